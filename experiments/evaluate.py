"""Evaluate a model: greedy pass@1, avg@k, pass@k and maj@k, `python -m experiments.evaluate model.path=... model.teach=null`.

With `rollout.url=` the model that a running server holds is evaluated, and `model.path` only names its tokenizer. Finished
completions are kept in the output folder: the same command again goes on where an interrupted one stood.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.progress import Progress

from oar.command_line.entry import entry
from oar.common.errors import ConfigError
from oar.common.progress import progress_bars
from oar.common.provenance import ROOT, collect_provenance, config_hash, files_hash, git_state, versions
from oar.common.seeding import derive_seed
from oar.config import EvaluateConfig, validated
from oar.evaluation.completion_cache import Kept
from oar.evaluation.draw import Asked, Completion, Source, TextSource, TokenSource
from oar.evaluation.evaluate import concatenate, evaluate
from oar.evaluation.pass_at_k import group_by
from oar.launch.start_model import model_folder
from oar.launch.supervisor import own_fleet, refuse_without_gpus, server_options
from oar.model.load import load_tokenizer, weight_files
from oar.rollout.access import engine_token
from oar.rollout.client.http import HttpServer
from oar.rollout.client.openai import OpenAIClient
from oar.rollout.client.servers import engine_at
from oar.tasks.data.sources import load_benchmarks, refuse_unreadable
from oar.tasks.problem import ProblemSet
from oar.tasks.task import Task


@entry
def main(config: DictConfig) -> None:
    """Start an engine on the model (or use a running one), evaluate, write the files, print the table."""
    with ExitStack() as running:
        cfg = validated(config, EvaluateConfig)
        started, git = datetime.now(UTC), git_state(ROOT)
        folder = Path(HydraConfig.get().runtime.output_dir)
        if (folder / "evaluation.json").exists():
            raise ConfigError(f"{folder} already holds an evaluation: choose another output_dir.")
        evaluated = ", ".join(cfg.rollout.urls) or cfg.model.path or cfg.model.name
        print(f"{evaluated} on {', '.join(cfg.benchmark.sets)}: {cfg.output_dir}", flush=True)
        if not cfg.rollout.urls:
            refuse_without_gpus(cfg)
        model = model_folder(cfg.model, print)
        benchmarks = load_benchmarks(cfg.benchmark, "final", cfg.evaluation.final_problems)
        task = Task.named(load_tokenizer(model), cfg.model.marker, cfg.template)
        if cfg.template is not None:
            refuse_unreadable(benchmarks.values())
        source, served = connect(cfg, model, task, folder, running)
        kept = Kept(
            source, folder / "completions", served, {name: made_of(it, task) for name, it in benchmarks.items()}
        )
        with progress_bars() as progress:
            draw = WatchedDraw(kept, progress)
            result = concatenate(
                [
                    evaluate(
                        draw,
                        {name: found.problems for name, found in benchmarks.items()},
                        task=task,
                        sampling={name: task.ending(sampling(name)) for name in benchmarks},
                        seed=derive_seed(cfg.seed, "evaluation"),
                        group=group_by(task.same_answer),
                    )
                    for sampling in (cfg.evaluation.sampled, cfg.evaluation.greedy)
                ]
            )
        provenance = collect_provenance(asdict(cfg), started=started, git=git) | {
            "seed": cfg.seed,
            "served": served,
            "template": task.template_record(),
            "data": {name: found.origin for name, found in benchmarks.items()},
            "drawn": {"tokens": draw.tokens, "seconds": round(draw.seconds, 3)},
        }
        result.save(folder, provenance)
        record = task.template_record()
        print(f"template: {'none, the bare question' if record is None else '{name} ({digest})'.format(**record)}")
        print(result.table())
        print(f"written to {folder}")


def connect(
    cfg: EvaluateConfig, model: Path, task: Task, folder: Path, running: ExitStack
) -> tuple[Source, dict[str, object]]:
    """What completions are drawn from, and what is known of the model behind it; servers of our own end with `running`."""
    urls, timeout_s = cfg.rollout.urls, cfg.rollout.request_timeout_s
    if not urls:
        fleet = running.enter_context(own_fleet(server_options(cfg.rollout, cfg.model, model, folder)))
        client = engine_at(fleet.urls, timeout_s, fleet.token)
        known: dict[str, object] = {
            "weights": files_hash(weight_files(model)),
            "dtype": cfg.model.dtype,
            "vllm": versions()["vllm"],
        }
        return TokenSource(client, task, client.weight_version()), known
    token = engine_token(cfg.rollout.token_file)
    servers = [HttpServer(url, timeout_s, token) for url in urls]
    if cfg.api == "vllm" or (cfg.api == "auto" and any(server.answers("/weight_info") for server in servers)):
        client = engine_at(urls, timeout_s, token)
        name, version = client.model_info().name, client.weight_version()
        print(f"{', '.join(urls)} serves {name}, weight version {version}: token ids are drawn")
        return TokenSource(client, task, version), {"url": cfg.rollout.url, "model": name, "weight_version": version}
    url = str(cfg.rollout.only_url)
    texts = OpenAIClient(url, timeout_s, token)
    print(f"{url} serves {texts.model()}: texts are drawn, tokens are counted with the tokenizer in {model}")
    return TextSource(texts, task.render, task.tokenizer), {"url": url, "model": texts.model()}


def made_of(benchmark: ProblemSet, task: Task) -> dict[str, object]:
    """Where a set comes from, and the hash of what the model is shown of it: template and tokenizer are in there."""
    prompts = {problem.id: task.encode_prompt(problem) for problem in benchmark.problems}
    return {"origin": dict(benchmark.origin), "prompts": config_hash(prompts)}


@dataclass
class WatchedDraw:
    """Draws one set after the other, with a bar on the screen and a line when it is done.

    `tokens` and `seconds` leave out what was kept.
    """

    kept: Kept
    progress: Progress
    tokens: int = 0
    seconds: float = 0.0

    def __call__(self, asked: Sequence[Asked]) -> list[list[list[Completion]]]:
        """As `oar.evaluation.draw.draw`."""
        return [self._draw(one) for one in asked]

    def _draw(self, asked: Asked) -> list[list[Completion]]:
        how = "greedy" if asked.sampling.temperature == 0 else f"{asked.sampling.n} samples"
        name, started, before = f"{asked.problems[0].benchmark}, {how}", time.monotonic(), self.tokens
        bar = self.progress.add_task(name, total=len(asked.problems))

        def rate() -> str:
            seconds, tokens = time.monotonic() - started, self.tokens - before
            return f"{tokens:,} tokens in {seconds:.1f} s, {tokens / max(seconds, 1e-9):,.0f} a second"

        def watch(done: int, tokens: int) -> None:
            self.tokens += tokens
            self.progress.update(bar, completed=done, description=f"{name}: {rate()}")

        try:
            return self.kept(asked, watch)
        finally:
            self.seconds += time.monotonic() - started
            self.progress.remove_task(bar)
            self.progress.console.print(f"{name}: {rate()}", highlight=False)


if __name__ == "__main__":
    main()
