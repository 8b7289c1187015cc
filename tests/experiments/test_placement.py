"""Where credit went: by hand on completions that are written down, and against exact OAR-P computed in another way."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from experiments.study.overview import choice_and_gain, overview
from experiments.study.placement import QUANTITIES, causal_auc, placement_table
from oar.analysis.signals.examine import examine, signal_importance
from oar.analysis.signals.recall import AUC, ERROR_FIFTH, ERROR_PERCENTILE, SPEARMAN
from oar.common.errors import DataError
from oar.config import TrainConfig
from oar.learner.samples import Sample
from oar.runs.folder import Run
from oar.runs.tracking import SAMPLES
from tests.analysis.test_examine import PROBLEM, RIGHT, WRONG, model, rollout, task
from tests.config.test_config import CONF
from tests.experiments.test_inspect_signals import STEP, kept, settings

ARM = {"condition": "default", "arm": "oar_p", "seed": 1}


def run_with(folder: Path, cfg: TrainConfig, samples: list[Sample]) -> Run:
    """A run whose policy never changed, and what it kept."""
    folder.mkdir(exist_ok=True)
    (folder / SAMPLES).write_text("".join(json.dumps({"step": STEP, **asdict(one)}) + "\n" for one in samples))
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(cfg)))
    checkpoint = folder / "checkpoints" / f"step_{STEP:06d}"
    model().save_pretrained(checkpoint)
    task().tokenizer.save_pretrained(checkpoint)
    return Run(folder, OmegaConf.structured(cfg), {}, "oar_p", "default")


def table(*runs: Run) -> pd.Series:
    with initialize_config_dir(str(CONF), version_base=None):
        found = placement_table(runs)
    assert set(found["quantity"]) <= set(QUANTITIES)
    return found.set_index("quantity")


def test_what_marks_say_by_hand(tmp_path: Path) -> None:
    """WRONG says `7 + 4 = 1 1`: its first error is the 4; a negative advantage counts by its size, an equal one not at all."""
    cfg = settings("method=oar_p")
    right, wrong = kept(tmp_path, cfg, RIGHT, WRONG)
    at, length = wrong.marks["error"][0], len(wrong.tokens)
    on_error = [-1.0 if place == at else -0.1 for place in range(length)]
    causal = [float(place in right.marks["causal"]) for place in range(length)]
    found = table(
        run_with(
            tmp_path,
            cfg,
            [
                replace(right, token_advantages=causal),
                replace(wrong, token_advantages=on_error),
                replace(wrong, token_advantages=[0.3] * length),
            ],
        )
    )
    # RIGHT is all on its causal tokens: 1. Of WRONG one of its n causal tokens is above all others, the rest is tied with them.
    n = len([place for place in wrong.marks["causal"] if place < wrong.reasoning_tokens])
    assert found["value"][AUC] == pytest.approx((1 + (1 + (n - 1) / 2) / n) / 2)
    assert found["n"][AUC] == 2
    assert (found["value"][ERROR_PERCENTILE], found["value"][ERROR_FIFTH], found["n"][ERROR_FIFTH]) == (1, 1, 1)


def test_what_the_credit_of_a_run_found_by_hand(tmp_path: Path) -> None:
    """All on the causal tokens is 1, all on the others 0; equal credit and completions without marks say nothing."""
    cfg = settings("method=oar_p")
    right, wrong = kept(tmp_path, cfg, RIGHT, WRONG)
    causal = [float(place in right.marks["causal"]) for place in range(len(right.tokens))]
    others = [-float(place not in wrong.marks["causal"]) for place in range(len(wrong.tokens))]
    found = replace(right, token_advantages=causal)
    silent = [replace(right, token_advantages=[0.3] * len(causal)), replace(found, marks={})]
    run = run_with(tmp_path, cfg, [found, *silent])
    assert causal_auc(run) == 1
    assert causal_auc(run_with(tmp_path, cfg, [found, replace(wrong, token_advantages=others)])) == 0.5
    assert math.isnan(causal_auc(run_with(tmp_path, cfg, silent)))
    (tmp_path / SAMPLES).unlink()
    assert math.isnan(causal_auc(run))


def test_agreement_is_with_exact_oar_p_under_the_last_checkpoint(tmp_path: Path) -> None:
    cfg = settings("method=oar_g", "probe=as_mean")
    samples = kept(tmp_path, cfg, RIGHT, WRONG)
    subject = examine(model(), task(), [PROBLEM], [[rollout(text) for text in (RIGHT, WRONG)]], cfg)
    exact = signal_importance(subject, settings("method=oar_p", "probe=as_mean"))
    ranks = [
        (pd.Series(sample.advantages[:count]).abs().rank(), pd.Series(row[:count]).rank())
        for sample, row in zip(samples, exact.tolist(), strict=True)
        if (count := sample.reasoning_tokens)
    ]
    expected = [ours.corr(theirs) for ours, theirs in ranks]
    found = table(run_with(tmp_path, cfg, samples))
    assert found["value"][SPEARMAN] == pytest.approx(sum(expected) / 2, abs=1e-3)
    assert abs(expected[0]) > 0.05


def test_a_run_that_cannot_be_placed(tmp_path: Path) -> None:
    cfg = settings("method=grpo")
    samples = kept(tmp_path, cfg, RIGHT, WRONG)
    with initialize_config_dir(str(CONF), version_base=None):
        assert placement_table([run_with(tmp_path, cfg, samples)]).empty, "of GRPO all tokens got the same"
        run = run_with(tmp_path, cfg, [replace(one, token_advantages=[*range(len(one.tokens))]) for one in samples])
        (tmp_path / "checkpoints" / f"step_{STEP:06d}").rename(tmp_path / "elsewhere")
        with pytest.raises(DataError, match="keep its last checkpoint"):
            placement_table([run])
        unknown = [replace(one, marks={}, token_advantages=[*range(len(one.tokens))]) for one in samples]
        with pytest.raises(DataError, match="know their error tokens, but words1 does not"):
            placement_table([run_with(tmp_path, cfg, unknown)])


def test_the_one_table_by_hand() -> None:
    kinds = {"grpo": "method", "a": "method", "b": "method", "a_shuffled": "control", "b_shuffled": "control"}
    about = {"kinds": kinds, "seconds": {"default": dict.fromkeys(kinds, 2.0)}}
    scores = pd.DataFrame(
        [("default", arm, seed, "mean", "avg@k", 50.0 + seed) for arm in kinds for seed in (1, 3)],
        columns=["condition", "arm", "seed", "benchmark", "metric", "value"],
    )

    def difference(arm: str, reference: str, value: float) -> dict[str, object]:
        return {"condition": "default", "arm": arm, "reference": reference, "metric": "avg@k", "difference": value} | {
            "error": 0.5,
            "low": value - 1,
            "high": value + 1,
        }

    pairs = pd.DataFrame([difference("a", "a_shuffled", 3), difference("b", "b_shuffled", 1), difference("a", "b", 9)])
    differences = pd.DataFrame([difference(arm, "grpo", -1) for arm in kinds if arm != "grpo"])
    placement = pd.DataFrame(
        [("default", arm, seed, AUC, value) for arm, value in (("a", 0.8), ("b", 0.6)) for seed in (1, 3)],
        columns=["condition", "arm", "seed", "quantity", "value"],
    )
    blank = [""] * (len(QUANTITIES) - 1)
    assert overview(about, scores, differences, pairs, placement) == [
        ["default", "`grpo`", "52.0 ± 1.0", "", "", "2.00", "", *blank],
        [
            "default",
            "`a`",
            "52.0 ± 1.0",
            "-1.0 ± 0.5 [-2.0, +0.0]",
            "+3.0 ± 0.5 [+2.0, +4.0]",
            "2.00",
            "0.80 ± 0.00",
            *blank,
        ],
        [
            "default",
            "`b`",
            "52.0 ± 1.0",
            "-1.0 ± 0.5 [-2.0, +0.0]",
            "+1.0 ± 0.5 [+0.0, +2.0]",
            "2.00",
            "0.60 ± 0.00",
            *blank,
        ],
    ]
    assert choice_and_gain(about, pairs, placement) == (pytest.approx(1.0), 2)
    correlation, arms = choice_and_gain(about, pairs.head(0), placement)
    assert math.isnan(correlation)
    assert arms == 0
