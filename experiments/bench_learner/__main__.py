"""The learner's training step against TRL's GRPOTrainer, seconds and peak memory: `python -m experiments.bench_learner`.

Every round that is measured is kept in the output folder, so the command can be interrupted and run again; the last line is one
JSON object.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.progress import Progress

from experiments.bench_learner.page import GROUPED, OAR, TRL, Where, case_rows, tidy, write_bench_learner
from experiments.bench_learner.sides import SIDES, Steps, measure_side
from experiments.shared.cases import Case, KeptCases, SizeConfig, told_size
from experiments.shared.fresh_process import in_fresh_process, turned
from experiments.shared.made_up import made_up_words
from oar.command_line.entry import entry
from oar.common.errors import ConfigError
from oar.common.progress import progress_bars
from oar.common.provenance import ROOT, code_hash, collect_provenance, git_state
from oar.common.seeding import generator
from oar.config import validated
from oar.config.checks import Positive
from oar.config.composed import composed_run

OLD_NOISE = 0.1  # nats; standard deviation of the old logprobs about those of a uniform policy


@dataclass
class HeadlineConfig:
    """The case that the ratios are of."""

    size: str
    length: int
    batch: str


@dataclass
class GroupedConfig:
    """A whole group in one micro-batch; lengths in tokens."""

    prompt_tokens: Positive
    completion_tokens: Positive
    completions: int

    @property
    def forwarded(self) -> int:
        """Tokens of a forward over the group, whose prompt is computed once but for its last token."""
        return self.prompt_tokens - 1 + self.completions * (self.completion_tokens + 1)


@dataclass
class BenchLearnerConfig:
    """See conf/bench_learner.yaml."""

    seed: int
    overrides: list[str]
    dtype: str
    sizes: dict[str, SizeConfig]
    batches: dict[str, float]
    prompt_tokens: Positive
    grouped: dict[str, GroupedConfig]
    sides: list[str]
    rounds: Positive
    steps: Positive
    headline: HeadlineConfig
    output_dir: str

    def __post_init__(self) -> None:
        if set(self.sides) - set(SIDES) or not {OAR, TRL} <= set(self.sides):
            raise ConfigError(f"sides must be some of {', '.join(SIDES)}, oar and trl among them, but is {self.sides}.")
        if any(not 0 < share <= 1 for share in self.batches.values()):
            raise ConfigError(f"batches must give each a share above 0 and at most 1, but is {self.batches}.")
        if any(not name.startswith(GROUPED) for name in self.grouped):
            raise ConfigError(f"Every name in grouped must begin with {GROUPED}, but they are {list(self.grouped)}.")
        if Where(**asdict(self.headline)) not in [where for where, _ in self.cases()]:
            raise ConfigError(f"headline must be one of the cases that are measured, but is {asdict(self.headline)}.")

    def cases(self) -> Iterator[tuple[Where, int]]:
        """Every case, and its completions."""
        for size, found in self.sizes.items():
            for length, completions in found.lengths.items():
                for batch in self.batches if completions else ():
                    yield Where(size, length, batch), completions
            for name, group in self.grouped.items():
                if group.completions:
                    yield Where(size, group.completion_tokens, name), group.completions


class BenchLearner(KeptCases):
    """What is to be measured, and the rounds that are there already."""

    def __init__(self, cfg: BenchLearnerConfig, folder: Path, progress: Progress) -> None:
        """Raises ConfigError for whatever cannot work."""
        shared = [ROOT / "experiments/shared" / f"{name}.py" for name in ("made_up", "peak_memory")]
        super().__init__(folder, progress, code_hash(Path(__file__).with_name("sides.py"), *shared))
        self.cfg, self.settings = cfg, composed_run([*cfg.overrides, f"seed={cfg.seed}"])
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        learner = self.settings.learner
        if learner.aggregation != "sequence_mean":
            raise ConfigError(f"learner.aggregation must be sequence_mean, TRL's grpo, but is {learner.aggregation!r}.")
        if learner.micro_batch_tokens != 1:
            raise ConfigError(
                "learner.micro_batch_tokens must be 1, which is one completion per forward on both sides, but is "
                f"{learner.micro_batch_tokens}."
            )
        for (size, length, batch), completions in cfg.cases():
            if batch not in cfg.grouped and completions % learner.num_generations:
                raise ConfigError(
                    f"The completions of {size}, {length} must be a multiple of learner.num_generations "
                    f"({learner.num_generations}), but are {completions}."
                )

    def rows(self, where: Where, completions: int) -> Iterator[tuple[Any, ...]]:
        """Measure what is not there yet of a case."""
        steps = self.steps(where, completions)
        made_of = {**asdict(steps), "cfg": steps.cfg.identity(), "trl": version("trl"), "sides": self.cfg.sides}
        name = "-".join(map(str, where))
        rounds = [
            self.case(f"{name}-{at}", {**made_of, "round": at}, partial(self.round, steps, at, count_memory=False))
            for at in range(self.cfg.rounds)
        ]
        memory = self.case(f"{name}-memory", made_of, partial(self.round, steps, 0, count_memory=True))
        return case_rows(where, sum(map(len, [*steps.prompts, *steps.completions])), rounds, memory)

    def round(self, steps: Steps, at: int, count_memory: bool) -> Case:
        """Every side once, each in a process of its own; another one begins each time."""
        found = {}
        for side in turned(self.cfg.sides, at):
            found[side] = in_fresh_process(measure_side, side, steps, count_memory)
        return {side: found[side] for side in self.cfg.sides}

    def steps(self, where: Where, completions: int) -> Steps:
        """Groups of one prompt; the first completion has the whole length, the others are drawn from the batch's lengths."""
        cfg, rng, settings = self.cfg, generator(self.cfg.seed, "bench_learner", *where), self.settings
        architecture = dict(cfg.sizes[where.size].architecture)
        vocabulary, prompt_tokens, together = int(architecture["vocab_size"]), cfg.prompt_tokens, 1
        if where.batch in cfg.grouped:
            grouped = cfg.grouped[where.batch]
            shortest, prompt_tokens, together = 1.0, grouped.prompt_tokens, completions
            learner = replace(settings.learner, num_generations=completions, micro_batch_tokens=grouped.forwarded)
            settings = replace(settings, learner=replace(learner, batch_size=completions))
        else:
            shortest = cfg.batches[where.batch]
        group = settings.learner.num_generations

        def words(longest: int, whole: bool) -> list[int]:
            count = (
                longest
                if whole
                else round(longest * (shortest + (1 - shortest) * float(torch.rand((), generator=rng))))
            )
            return made_up_words(max(1, count), vocabulary, rng)

        prompts = [words(prompt_tokens, at == 0) for at in range(completions // group) for _ in range(group)]
        prompts = [prompts[at // group * group] for at in range(completions)]
        drawn = [words(where.length, at == 0) for at in range(completions)]
        uniform = -math.log(vocabulary)
        return Steps(
            architecture=architecture,
            dtype=cfg.dtype,
            device=self.device,
            seed=cfg.seed,
            prompts=prompts,
            completions=drawn,
            old_logprobs=[(uniform + OLD_NOISE * torch.randn(len(ids), generator=rng)).tolist() for ids in drawn],
            rewards=[float(at % 2) for at in range(completions)],
            cfg=settings,
            steps=cfg.steps,
            together=together,
        )

    def description(self) -> dict[str, Any]:
        """What was measured, for the report."""
        cfg, learner = self.cfg, self.settings.learner
        return {
            "trl": version("trl"),
            "threads": learner.threads,
            "dtype": cfg.dtype,
            "rounds": cfg.rounds,
            "steps": cfg.steps,
            "old_noise": OLD_NOISE,
            "sizes": "; ".join(told_size(size, found) for size, found in cfg.sizes.items()),
            "batches": "; ".join(
                f"batch `{name}`: completions of "
                + ("all the length" if share == 1 else f"{share:g} of the length to all of it, drawn evenly")
                for name, share in cfg.batches.items()
            ),
            "grouped": "; ".join(
                f"`{name}`: one group of {group.completions}, {group.prompt_tokens} tokens of prompt and "
                f"{group.completion_tokens} of each completion"
                for name, group in cfg.grouped.items()
                if group.completions
            ),
        }


@entry
def main(config: DictConfig) -> None:
    """Validate everything, measure what is missing, write the files; the last line is one JSON object."""
    cfg = validated(config, BenchLearnerConfig)
    started, git = datetime.now(UTC), git_state(ROOT)
    folder = Path(HydraConfig.get().runtime.output_dir)
    with progress_bars() as progress:
        bench = BenchLearner(cfg, folder, progress)
        table = tidy(row for case in cfg.cases() for row in bench.rows(*case))
    numbers = write_bench_learner(
        table,
        folder,
        headline=Where(**asdict(cfg.headline)),
        run=bench.description(),
        provenance=collect_provenance(asdict(cfg), started=started, git=git),
    )
    print((folder / "bench_learner.md").read_text())
    print(f"written to {folder}: bench_learner.csv, its page and picture, provenance.json")
    print(json.dumps(numbers, allow_nan=False))


if __name__ == "__main__":
    main()
