"""The table of bfloat16 against float32: what it refuses, and that a small one says what is so."""

from pathlib import Path

from experiments.bench_precision.__main__ import measured, write_precision
from oar.config import build
from tests.experiments.measurements import config

SMALL = (
    "architecture.hidden_size=64",
    "architecture.num_hidden_layers=2",
    "completions=2",
    "reasoning_tokens=20",
    "spreads=[0.016,1.0]",
)


def test_every_cell_is_measured_and_gradients_rank_as_in_float32(tmp_path: Path) -> None:
    cfg = config("bench_precision", *SMALL)
    found = measured(cfg, {name: build(name, target) for name, target in cfg.signals.items()}, "cpu")
    assert len(found) == 2 * len(cfg.signals) * 2
    assert found["spearman"].between(-1, 1).all()
    gradients = found[found["signal"].isin(["oar_g", "oar_g_relative", "oar_gn"])]
    assert gradients["spearman"].min() > 0.95
    provenance = {"versions": {"torch": "2"}, "gpu": None, "cpu": "a CPU", "cores": 2, "command": "python -m this"}
    text = write_precision(found, cfg, tmp_path, provenance).read_text()
    mean = found[(found["spread"] == 1.0) & (found["signal"] == "oar_p")]["spearman"].mean()
    assert f"| {mean:.3f} [" in text.split("| 1 |")[1]
