"""Train the embedded task with TRL's trainer and OAR's weights: `python -m experiments.train_with_trl trl.method=oar_p`.

An example of oar/integrations/trl.py (docs/TRL.md) that needs no engine: completions are drawn with transformers' generation.
Prints a line a step and a summary; TRL's log goes to trainer_state.json in the output folder.
"""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from datasets import Dataset
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from oar.command_line.entry import entry
from oar.common.errors import ConfigError
from oar.common.files import atomic_path
from oar.common.provenance import ROOT, collect_provenance, git_state
from oar.config import DataConfig, ModelConfig, build, validated
from oar.integrations.trl import OARGRPOConfig, OARGRPOTrainer
from oar.launch.start_model import model_folder
from oar.model.load import load_policy, load_tokenizer
from oar.tasks.verifier.grade import same_answer

ENDS = 5  # steps at either end of a run whose mean reward the summary compares


@dataclass
class TrainWithTrlConfig:
    """See conf/train_with_trl.yaml."""

    seed: int
    output_dir: str
    threads: int
    model: ModelConfig
    data: DataConfig
    trl: dict[str, Any]

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError(f"threads must be 1 or more, but is {self.threads}.")

    def arguments(self, folder: Path) -> OARGRPOConfig:
        """Raises ConfigError for what OARGRPOConfig does not know or take."""
        try:
            return OARGRPOConfig(output_dir=str(folder), seed=self.seed, **self.trl)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"trl must hold arguments of OARGRPOConfig, but: {error}") from error


class Lines(TrainerCallback):
    """Prints what TRL logs, a line a step."""

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Of the entry at the end of a run, which is of no step, nothing is printed."""
        logs = given["logs"]
        if "reward" in logs:
            print(
                f"step {state.global_step:>4}/{args.max_steps}  reward {logs['reward']:.3f}  "
                f"entropy {logs['entropy']:.3f}  length {logs['completions/mean_length']:.1f}  "
                f"ess {logs['weights/ess_ratio']:.3f}  fallback {logs['probe/fallback_share']:.3f}  "
                f"{logs['step_time']:.2f} s, credit {logs['seconds/credit']:.2f} s",
                flush=True,
            )


@entry
def main(config: DictConfig) -> None:
    """Load, train, summarise."""
    cfg = validated(config, TrainWithTrlConfig)
    started, git = datetime.now(UTC), git_state(ROOT)
    folder = Path(HydraConfig.get().runtime.output_dir)
    torch.set_num_threads(cfg.threads)
    trainer = make_trainer(cfg, folder)
    trainer.train()
    trainer.save_state()
    with atomic_path(folder / "provenance.json") as path:
        path.write_text(json.dumps(collect_provenance(asdict(cfg), started=started, git=git), indent=2))
    print(summary(trainer.args, trainer.state.log_history))


def make_trainer(cfg: TrainWithTrlConfig, folder: Path) -> OARGRPOTrainer:
    """The trainer on as many fresh problems as the run has room for; an answer is right or wrong to the letter."""
    args, start = cfg.arguments(folder), model_folder(cfg.model, print)
    if args.max_steps < 1:
        raise ConfigError(
            f"trl.max_steps must be 1 or more, but is {args.max_steps}: problems are made for so many steps."
        )
    problems = build("data.source", cfg.data.source).problems(cfg.seed, 0, args.max_steps * prompts_per_step(args))

    def correct(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [
            float(same_answer(gold, said, args.marker).correct) for gold, said in zip(answer, completions, strict=True)
        ]

    trainer = OARGRPOTrainer(
        model=load_policy(start, cfg.model.dtype),
        reward_funcs=correct,
        args=args,
        train_dataset=Dataset.from_list(
            [{"prompt": one.question, "answer": one.answer, "solution": one.solution} for one in problems]
        ),
        processing_class=load_tokenizer(start),
        callbacks=[Lines()],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def prompts_per_step(args: OARGRPOConfig) -> int:
    """Prompts of an optimizer step."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps // int(args.num_generations or 1)


def summary(args: OARGRPOConfig, log: list[dict[str, float]]) -> str:
    """What a run came to, in one line."""
    steps = [entry for entry in log if "reward" in entry]
    rewards, seconds = [entry["reward"] for entry in steps], sum(entry["step_time"] for entry in steps)
    ends = min(ENDS, len(steps))
    return (
        f"{args.method}: {len(steps)} steps of {prompts_per_step(args)} problems x {args.num_generations} completions in "
        f"{seconds:.0f} s, of which credit took {sum(entry['seconds/credit'] for entry in steps):.0f} s; reward "
        f"{fmean(rewards[:ends]):.3f} in the first {ends} steps, {fmean(rewards[-ends:]):.3f} in the last {ends}"
    )


if __name__ == "__main__":
    main()
