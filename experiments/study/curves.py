"""Learning curves of a study: all arms in one panel for each metric, or, where these are many, a panel for each arm."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from oar.analysis.reports.figures import CURVES, draw_curves, draw_lines
from oar.analysis.reports.methods import BLUE, CONTROL, GREY, ORANGE, Look

MANY = 12  # arms: more cannot be told apart in one panel
ARM, PAIRED, REFERENCE = "the arm", "what it is paired with", "reference"
ACCURACY, *_ = CURVES


def draw_study_curves(table: pd.DataFrame, about: Mapping[str, Any], path: Path) -> None:
    """`table`: see `curve_table`, of one condition; `about`: arms, pairs, kinds and the reference of the study.

    Of many arms only the accuracy is drawn, and a control has no panel of its own: it stands in that of its arm.
    """
    arms = list(about["arms"])
    if len(arms) <= MANY:
        draw_curves(table, arms, path)
        return
    looks = {
        REFERENCE: Look(about["reference"], GREY, "o"),
        PAIRED: Look(PAIRED, ORANGE, "s", CONTROL),
        ARM: Look(ARM, BLUE, "o"),
    }
    panels = arm_panels(table[table["metric"] == ACCURACY], about)
    draw_lines(panels, path, looks=looks, columns=5, sharey=True, height=1.7, legend=CURVES[ACCURACY][0])


def arm_panels(curves: pd.DataFrame, about: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """By arm that is no control: its curves as ARM, those of the first arm it is paired with as PAIRED, and of the REFERENCE."""
    paired = dict(reversed(about["pairs"]))
    panels = {}
    for arm in about["arms"]:
        if about["kinds"][arm] != CONTROL and arm != about["reference"]:
            named = {about["reference"]: REFERENCE, paired.get(arm): PAIRED, arm: ARM}
            own = curves[curves["series"].isin(named)]
            panels[arm] = own.assign(series=own["series"].map(named))
    return panels
