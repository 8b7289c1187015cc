"""Teach a reward model to tell right completions from wrong ones, or find it taught: `python -m experiments.reward_model`.

It starts from the model that draws the completions, with one score in the place of its logits, and learns by cross-entropy on
sigmoid(score) what the verifier says of them. What it is good for is told on problems that it has not seen.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
from omegaconf import DictConfig
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from experiments.shared.reward_models import RECORD
from oar.analysis.signals.draw import draw
from oar.command_line.entry import entry
from oar.common.cache import kept_path
from oar.common.errors import DataError
from oar.common.files import whole_folder
from oar.common.provenance import ROOT, collect_provenance, files_hash, git_state
from oar.common.seeding import derive_seed, generator
from oar.config import TrainConfig, build, validated
from oar.config.checks import AtLeast, Positive
from oar.launch.start_model import model_folder
from oar.learner.collect import grade_groups
from oar.model.load import load_policy, load_tokenizer, weight_files
from oar.statistics.attribution import auc
from oar.tasks.data.sources import load_benchmarks
from oar.tasks.problem import Problem
from oar.tasks.task import Task

SOURCE_VERSION = 1  # raise it whenever this file changes what comes out
AT_ONCE = 100  # problems whose completions are drawn together


@dataclass(kw_only=True)
class RewardModelConfig(TrainConfig):
    """A run's configuration, which says what model draws completions of which task, and how much is learned from them."""

    problems: Positive
    held_out: Positive
    samples: Positive
    epochs: Positive
    examples: Positive
    score_lr: Annotated[float, AtLeast(0)]
    score_dir: str

    def made_of(self, weights: str) -> dict[str, object]:
        """All that the reward model depends on; `weights`: a hash of those it starts from."""
        own = ("seed", "problems", "held_out", "samples", "epochs", "examples", "score_lr")
        sampling = (self.rollout.temperature, self.rollout.max_new_tokens)
        data = {"source": self.data.source, "sets": self.benchmark.sets, "sampling": sampling}
        read = {"template": self.template, "marker": self.model.marker}
        return {"version": SOURCE_VERSION, "weights": weights} | data | read | {key: getattr(self, key) for key in own}


@dataclass(frozen=True, slots=True)
class Graded:
    """N completions behind their prompts as token ids, and which of them are right, (N,)."""

    sequences: Sequence[Sequence[int]]
    correct: Tensor


@entry
def main(config: DictConfig) -> None:
    """Print the folder and how well the model tells held-out completions."""
    cfg = validated(config, RewardModelConfig)
    torch.set_num_threads(cfg.learner.threads)
    base = model_folder(cfg.model, print)
    folder = kept_path(Path(cfg.score_dir), cfg.model.name, cfg.made_of(files_hash(weight_files(base))))
    if not folder.exists():
        teach(cfg, base, folder)
    record = json.loads((folder / RECORD).read_text())
    print(
        f"{folder}\ntaught on {record['completions']} completions, {record['right']:.1%} of them right\n"
        f"held out, {record['held_out_completions']} completions, {record['held_out_right']:.1%} of them right: "
        f"AUC {record['auc']:.3f}, accuracy {record['accuracy']:.1%}\nuse it with probe=reward_model probe.path={folder}"
    )


def teach(cfg: RewardModelConfig, base: Path, folder: Path) -> None:
    """Draw, learn, judge, write."""
    started, git = datetime.now(UTC), git_state(ROOT)
    policy, tokenizer = load_policy(base, "float32"), load_tokenizer(base)
    task = Task.named(tokenizer, cfg.model.marker, cfg.template)
    source = build("data.source", cfg.data.source, cfg.allow_targets)
    held_out = [
        one for found in load_benchmarks(cfg.benchmark, "tuning", cfg.held_out).values() for one in found.problems
    ]
    print("drawing completions", flush=True)
    data = drawn(cfg, policy, task, source.problems(cfg.seed, 0, cfg.problems), "taught")
    judged = drawn(cfg, policy, task, held_out, "held out")
    refuse_one_kind(data, "problems")
    refuse_one_kind(judged, "held_out")
    model = learned(cfg, policy, data, task.pad_id)
    with torch.no_grad():
        parts = torch.arange(len(judged.sequences)).split(cfg.examples)
        scores = torch.cat([score(model, judged, rows).cpu() for rows in parts])
    record = {
        "completions": len(data.sequences),
        "right": float(data.correct.mean()),
        "held_out_completions": len(judged.sequences),
        "held_out_right": float(judged.correct.mean()),
        "auc": auc(scores.numpy(), judged.correct.bool().numpy()),
        "accuracy": float(((scores > 0) == judged.correct.bool()).float().mean()),
        "provenance": collect_provenance(asdict(cfg), started=started, git=git),
    }
    publish(model, tokenizer, record, folder)


def publish(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, record: Mapping[str, object], folder: Path
) -> None:
    """Write all of it, whole or not at all; where another program was sooner, its folder stays."""
    with whole_folder(folder) as unfinished:
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        (unfinished / RECORD).write_text(json.dumps(record, indent=2) + "\n")


def drawn(
    cfg: RewardModelConfig, policy: PreTrainedModel, task: Task, problems: Sequence[Problem], name: str
) -> Graded:
    """`cfg.samples` completions of each problem, drawn by the policy and graded."""
    sequences, correct = [], []
    for first in range(0, len(problems), AT_ONCE):
        some = problems[first : first + AT_ONCE]
        groups = draw(
            policy,
            task,
            some,
            samples=cfg.samples,
            temperature=cfg.rollout.temperature,
            max_new_tokens=cfg.rollout.max_new_tokens,
            seed=derive_seed(cfg.seed, "reward model", name, first),
        )
        for group in grade_groups(some, groups, task):
            sequences += [[*one.prompt_ids, *one.completion_ids] for one in group.rollouts]
            correct += [float(verdict.correct) for verdict in group.verdicts]
    return Graded(sequences, torch.tensor(correct))


def refuse_one_kind(data: Graded, key: str) -> None:
    """Raises DataError where all completions are right, or all are wrong."""
    right = float(data.correct.mean())
    if right in (0.0, 1.0):
        raise DataError(
            f"A reward model needs right and wrong ones among {len(data.sequences)} completions ({key}), but {right:.0%} are "
            "right: draw more, or start from another model."
        )


def learned(cfg: RewardModelConfig, policy: PreTrainedModel, data: Graded, padding: int) -> PreTrainedModel:
    """The policy's decoder under a new head, after `cfg.epochs` passes of AdamW whose rate falls to 0.

    padding: the tokenizer's, for a policy that names none.
    """
    config = policy.config
    if config.pad_token_id is None:
        config.pad_token_id = padding
    config.num_labels = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(cfg.seed, "reward model", "head"))
        model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config).to(policy.device)
    model.base_model.load_state_dict(policy.base_model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), cfg.score_lr)
    steps = cfg.epochs * -(-len(data.sequences) // cfg.examples)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for epoch in range(cfg.epochs):
        order = torch.randperm(len(data.sequences), generator=generator(cfg.seed, "reward model", epoch))
        total = 0.0
        for rows in order.split(cfg.examples):
            scores = score(model, data, rows)
            loss = F.binary_cross_entropy_with_logits(scores, data.correct[rows].to(scores.device))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch + 1}/{cfg.epochs}: loss {total / len(data.sequences):.3f}", flush=True)
    return model.eval()


def score(model: PreTrainedModel, data: Graded, rows: Tensor) -> Tensor:
    """(R,) of some completions, as transformers reads it: at the last token that is no padding, which stands at the right."""
    sequences = [data.sequences[row] for row in rows.tolist()]
    width, padding = max(map(len, sequences)), model.config.pad_token_id
    ids = torch.tensor([[*one, *[padding] * (width - len(one))] for one in sequences], device=model.device)
    scores: Tensor = model(input_ids=ids).logits[:, 0]
    return scores


if __name__ == "__main__":
    main()
