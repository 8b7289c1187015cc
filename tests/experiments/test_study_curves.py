"""Learning curves of a study of many arms: who stands in which panel."""

import pandas as pd

from experiments.study.curves import ARM, MANY, PAIRED, REFERENCE, arm_panels, draw_study_curves
from oar.analysis.reports.figures import CURVES
from oar.analysis.reports.methods import CONTROL, METHOD

ACCURACY = next(iter(CURVES))


def curves(arms):
    rows = [(arm, at, step, ACCURACY, 10.0 * at + step) for at, arm in enumerate(arms) for step in (0, 10)]
    return pd.DataFrame(rows, columns=["series", "run", "step", "metric", "value"])


def about(arms, pairs):
    kinds = {arm: CONTROL if arm.endswith("_shuffled") else METHOD for arm in arms}
    return {"arms": dict.fromkeys(arms), "kinds": kinds, "pairs": pairs, "reference": "grpo"}


def test_each_arm_has_a_panel_with_the_reference_and_the_first_that_it_is_paired_with():
    arms = ["grpo", "spo", "spo_shuffled", "mig", "fipo"]
    found = arm_panels(curves(arms), about(arms, [["spo", "spo_shuffled"], ["spo", "mig"], ["fipo", "mig"]]))
    drawn = {arm: panel.groupby("series")["value"].first().to_dict() for arm, panel in found.items()}
    assert drawn == {
        "spo": {REFERENCE: 0.0, ARM: 10.0, PAIRED: 20.0},
        "mig": {REFERENCE: 0.0, ARM: 30.0},
        "fipo": {REFERENCE: 0.0, ARM: 40.0, PAIRED: 30.0},
    }


def test_few_arms_share_panels_and_many_are_drawn_apart(tmp_path):
    for count, name in ((MANY, "few.png"), (MANY + 1, "many.png")):
        arms = ["grpo", *(f"arm{number}" for number in range(count - 1))]
        draw_study_curves(curves(arms), about(arms, []), tmp_path / name)
    few, many = ((tmp_path / name).read_bytes() for name in ("few.png", "many.png"))
    heights = [int.from_bytes(png[20:24], "big") for png in (few, many)]
    assert heights[1] > heights[0]  # three rows of panels instead of one
