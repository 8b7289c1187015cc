"""The page of a sweep: its numbers, its files, and that nothing is left out or overwritten."""

import json
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from experiments.reanalyse import judge
from experiments.stability.gathering import gather
from experiments.stability.levels import compare_levels, deciding_keys
from experiments.stability.page import usual_reference, write_stability
from oar.analysis.reports.page import UNWRITTEN
from tests.experiments.made_runs import numbered_run
from tests.experiments.test_gathering import recorded


def page(folder: Path, out: Path, repeat: str | None = None) -> str:
    gathered = gather([folder])
    keys = deciding_keys(gathered)
    levels = compare_levels(gathered, keys, None, usual=usual_reference(keys))
    return write_stability(gathered, levels, out, repeat=repeat).read_text()


@pytest.fixture
def frontier(tmp_path: Path) -> Path:
    """tau x beta x two seeds; the last level was not come to."""
    folder = tmp_path / "gating"
    recorded(folder, "gating.tau=0.2,0.4", "gating.beta=1,2", "seed=1,2")
    entropy = [1.0] * 10 + [0.05] * 10
    for number in range(6):
        tau, beta, seed = (0.2, 0.4)[number // 4], (1.0, 2.0)[number // 2 % 2], 1 + number % 2
        share = 0.5 if tau == 0.2 else 0.75
        settings = {"entropy": entropy, "reward": [0.5] * 20, "seconds": [1.0] * 20} if number == 0 else {}
        numbered_run(folder, number, "oar_g", seed, {"a": [share] * 4}, tau=tau, beta=beta, **settings)
    return folder


def test_the_frontier(frontier: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep_gating"
    text = page(frontier, out)
    assert "# The stability frontier over tau and beta" in text
    assert "8 runs of `experiments.train`, 6 finished, 2 not begun; seeds 1, 2" in text
    assert "points from tau 0.2, beta 1, paired" in text  # of the paper's level no run has finished here
    assert "| 0.4 | 1 | 2 of 2 | 1, 2 | 75.0 [75.0, 75.0] | +25.0 [+25.0, +25.0] |" in text
    assert "| 0.2 | 1 | 0.500 |" in text
    assert "1 of 2, from step 18 |" in text
    assert "| `gating/6` | not begun |" in text
    assert "`gating.tau=0.4 gating.beta=2 seed=1`" in text
    assert UNWRITTEN in text
    made = (
        "python -m experiments.train -m gating.tau=0.2,0.4 gating.beta=1,2 seed=1,2 hydra.sweep.dir=multirun/gating\n"
    )
    assert made + "python -m experiments.stability 'folders=[multirun/gating]' output_dir=results/sweep_gating" in text
    for picture in ("frontier.png", "trajectories.png"):
        assert f"({picture})" in text
        with Image.open(out / picture) as image:
            assert 120 <= image.width <= 270
    tidy = pd.read_parquet(out / "metrics.parquet")
    assert len(tidy) == (20 + 5 * 3) * 2
    assert set(tidy["gating.tau"]) == {0.2, 0.4}
    assert len(pd.read_csv(out / "runs.csv")) == 8
    provenance = json.loads((out / "provenance.json").read_text())
    assert (provenance["git_commit"], provenance["runs"]) == ("c0ffee", 6)
    assert provenance["started"] == "2026-11-01T00:00:00+00:00"
    assert provenance["finished"] == "2026-11-02T01:00:00+00:00"


def test_an_ablation(tmp_path: Path) -> None:
    folder, out = tmp_path / "ablation", tmp_path / "out"
    for number, (gating, seed) in enumerate(
        [(name, seed) for name in ("none", "bilevel", "boost_only") for seed in (1, 2)]
    ):
        share = {"none": 0.25, "bilevel": 0.75, "boost_only": 0.5}[gating]
        numbered_run(folder, number, "oar_g", seed, {"a": [share] * 4, "b": [0.5] * 4}, gating=gating)
    text = page(folder, out, repeat="make ablation-gating")
    assert "# Gating: both levels, one of them, none" in text
    assert "points from gating bilevel, paired" in text
    assert "| none | 2 of 2 | 1, 2 | 37.5 [37.5, 37.5] | -25.0 [-25.0, -25.0] |" in text
    assert "Of 4 such differences, 2 have an interval without 0" in text  # greedy, all problems are right everywhere
    claim = "boost-only is worse than both together | > 0 | **too few seeds to tell** (2 of 3 seeds, 3 of 100 steps)"
    assert claim in text
    assert "```\nmake ablation-gating\n```" in text
    assert (out / "levels.png").exists()
    assert "have not finished" not in text

    kept = text.replace(UNWRITTEN, "Both are needed.")
    (out / "out.md").write_text(kept)
    assert page(folder, out, repeat="make ablation-gating") == kept


def test_a_sweep_that_tests_no_claim_has_no_table_of_them(tmp_path: Path) -> None:
    for number, gating in enumerate(("bilevel", "none")):
        numbered_run(tmp_path / "runs", number, "oar_g", 1, {"a": [0.5] * 4}, gating=gating)
    assert "claims that these runs can test" not in page(tmp_path / "runs", tmp_path / "out")
    assert not (tmp_path / "out" / "claims.csv").exists()


@pytest.mark.parametrize("values", [(True, False), (None, 0.4), ("None", "other")])
def test_a_value_that_a_table_would_read_as_something_else_is_a_level(
    tmp_path: Path, values: tuple[object, ...]
) -> None:
    """A page is made of its tables: what is read back from them must be what the runs had."""
    for number, value in enumerate(values):
        numbered_run(tmp_path / "runs", number, "oar_g", 1, {"a": [0.5, 0.75]}, tau=value)
    out = tmp_path / "out"
    text = page(tmp_path / "runs", out)
    named = [value if isinstance(value, str) else json.dumps(value) for value in values]
    assert all(f"| {name} | 1 of 1 | 1 | 62.5" in text for name in named)
    before = (out / "levels.csv").read_text()
    judge(out, analysis={})
    assert (out / "out.md").read_text().split("## Provenance")[0] == text.split("## Provenance")[0]
    assert (out / "levels.csv").read_text() == before


def test_pictures_of_runs_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRPO logs no ESS ratio: no panel is empty, and the words above the frontier, which are many here, are not cut."""
    figures: dict[str, Figure] = {}
    monkeypatch.setattr("oar.analysis.reports.figures.save_png", lambda made, path: figures.update({path.name: made}))
    for number, (tau, beta) in enumerate([(0.2, 1.0), (0.2, 2.0), (0.4, 1.0), (0.4, 2.0)]):
        logged = {"entropy": [1.0 - tau / 100, 1.0], "reward": [0.5, 0.5], "seconds": [1.0, 1.0]}
        numbered_run(tmp_path / "runs", number, "grpo", 1, {"a": [0.5, 0.75]}, tau=tau, beta=beta, **logged)
    assert "| 0.2 | 1 | 1 of 1 |" in page(tmp_path / "runs", tmp_path / "out")
    assert all(axes.has_data() or axes.texts for made in figures.values() for axes in made.get_axes())
    frontier = figures["frontier.png"]
    words = frontier.get_suptitle()
    assert "policy entropy" in words
    assert "none of 4 runs collapsed" in words
    assert "nan" not in words
    (above,) = [text for text in frontier.texts if text.get_text() == words]
    frontier.draw_without_rendering()
    box = above.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= frontier.bbox.width
