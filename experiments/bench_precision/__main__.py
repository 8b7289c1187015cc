"""How well importance in bfloat16 agrees with float32: `python -m experiments.bench_precision`.

Both have the same weights, those of bfloat16, and the same completions and draws: what differs is the arithmetic alone. A
credit signal is made of differences that may be smaller than what bfloat16 rounds off (oar/method/importance/in_pairs.py).
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from torch import Tensor
from transformers import PreTrainedModel

from experiments.shared.made_up import made_up_batch, made_up_model
from oar.analysis.reports.page import machine, write_page
from oar.command_line.entry import entry
from oar.common.errors import ConfigError
from oar.common.files import atomic_path
from oar.common.provenance import ROOT, collect_provenance, git_state
from oar.common.seeding import derive_seed, generator
from oar.config import build, validated
from oar.config.checks import Positive
from oar.method.batch import CompletionBatch
from oar.method.forward.logprobs import score_completions
from oar.method.importance import CreditInputs, ImportanceEstimator
from oar.method.probes import AnswerMeanProbe
from oar.statistics.attribution import spearman

NAME = "bench_precision"


@dataclass
class BenchPrecisionConfig:
    """See conf/bench_precision.yaml."""

    seed: int
    architecture: dict[str, Any]
    spreads: list[float]
    completions: Positive
    prompt_tokens: Positive
    reasoning_tokens: Positive
    answer_tokens: Positive
    signals: dict[str, Any]
    threads: Positive
    output_dir: str

    def __post_init__(self) -> None:
        if not self.spreads or min(self.spreads) <= 0:
            raise ConfigError(f"spreads must be numbers above 0, but is {self.spreads}.")


def measured(cfg: BenchPrecisionConfig, signals: Mapping[str, ImportanceEstimator], device: str) -> pd.DataFrame:
    """A row for each spread, signal and completion: the rank correlation of both arithmetics."""
    batch = made_up_batch(
        cfg.completions,
        int(cfg.architecture["vocab_size"]),
        generator(cfg.seed, "bench_precision"),
        prompt_tokens=cfg.prompt_tokens,
        reasoning_tokens=cfg.reasoning_tokens,
        answer_tokens=cfg.answer_tokens,
        device=device,
    )
    found = []
    for spread in cfg.spreads:
        coarse = made_up_model(cfg.architecture, "bfloat16", device, cfg.seed)
        embeddings = coarse.get_input_embeddings().weight
        assert isinstance(embeddings, Tensor)
        with torch.no_grad():
            embeddings.mul_(spread / embeddings.float().std())
        both = [importance(model, batch, cfg.seed, signals) for model in (coarse, deepcopy(coarse).float())]
        for name in signals:
            for row, mask in enumerate(batch.reasoning_mask.cpu()):
                pair = (values[name][row, mask].double().numpy() for values in both)
                found.append((spread, name, row, spearman(*pair)))
    return pd.DataFrame(found, columns=["spread", "signal", "completion", "spearman"])


def importance(
    model: PreTrainedModel, batch: CompletionBatch, seed: int, signals: Mapping[str, ImportanceEstimator]
) -> dict[str, Tensor]:
    """(B, T) of each signal, from one forward, as in an update."""
    seeds = [derive_seed(seed, "credit", row) for row in range(len(batch))]
    scores = score_completions(model, batch, temperature=1.0)
    inputs = CreditInputs(model, batch, AnswerMeanProbe(), scores, seeds)
    return {name: signal(inputs).cpu() for name, signal in signals.items()}


def write_precision(
    found: pd.DataFrame, cfg: BenchPrecisionConfig, folder: Path, provenance: Mapping[str, Any]
) -> Path:
    """The table of `measured`, page and provenance; returns the page."""
    with atomic_path(folder / f"{NAME}.csv") as path:
        found.to_csv(path, index=False, float_format="%.4f")
    return write_page(
        folder / f"{NAME}.md",
        Path(__file__).with_name("page.md.j2"),
        provenance,
        **machine(provenance),
        agreed=dict(list(found.groupby(["spread", "signal"])["spearman"])),
        run=cfg,
    )


@entry
def main(config: DictConfig) -> None:
    """Measure, write the files, print the page."""
    started, git = datetime.now(UTC), git_state(ROOT)
    cfg = validated(config, BenchPrecisionConfig)
    signals = {name: build(f"signals.{name}", target) for name, target in cfg.signals.items()}
    torch.set_num_threads(cfg.threads)
    found = measured(cfg, signals, "cuda" if torch.cuda.is_available() else "cpu")
    folder = Path(HydraConfig.get().runtime.output_dir)
    provenance = collect_provenance(asdict(cfg), started=started, git=git)
    print(write_precision(found, cfg, folder, provenance).read_text())


if __name__ == "__main__":
    main()
