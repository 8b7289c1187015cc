"""The one table of a study of methods: what each gains over GRPO and over its control, and where its credit went."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.study.placement import QUANTITIES
from oar.analysis.reports.methods import CONTROL
from oar.analysis.reports.page import interval_text, with_error
from oar.analysis.signals.recall import AUC
from oar.evaluation.evaluate import MEAN, SAMPLED_METRIC
from oar.statistics.attribution import spearman
from oar.statistics.intervals import mean_and_standard_error

ARM = ["condition", "arm"]


def overview(
    about: Mapping[str, Any],
    scores: pd.DataFrame,
    differences: pd.DataFrame,
    pairs: pd.DataFrame,
    placement: pd.DataFrame,
) -> list[list[str]]:
    """Cells, a line per condition and arm that is no control: accuracy at temperature 1, its difference from the reference and
    from the arm that it is paired with, seconds a step, and QUANTITIES of its credit; blank where there is none.
    """
    sampled = scores[(scores["benchmark"] == MEAN) & (scores["metric"] == SAMPLED_METRIC)]
    placed = {key: own["value"] for key, own in placement.groupby([*ARM, "quantity"])}
    gains, pair_gains = _gains(differences), _gains(pairs)
    lines = []
    for key, own in sampled.groupby(ARM, sort=False):
        condition, arm = map(str, key)
        if about["kinds"][arm] == CONTROL:
            continue
        cells = [placed.get((condition, arm, name)) for name in QUANTITIES]
        lines.append(
            [
                condition,
                f"`{arm}`",
                with_error(*mean_and_standard_error(own["value"])),
                gains.get((condition, arm), ""),
                pair_gains.get((condition, arm), ""),
                f"{about['seconds'][condition][arm]:.2f}",
                *("" if cell is None else with_error(*mean_and_standard_error(cell), ".2f") for cell in cells),
            ]
        )
    return lines


def choice_and_gain(about: Mapping[str, Any], pairs: pd.DataFrame, placement: pd.DataFrame) -> tuple[float, int]:
    """Over the arms that are paired with a control: rank correlation of their AUC of causal tokens with their gain over it,
    accuracy at temperature 1, NaN of fewer than two, and how many arms these are.
    """
    found = placement[placement["quantity"] == AUC].groupby(ARM)["value"].mean().rename("auc").reset_index()
    controlled = pairs[(pairs["metric"] == SAMPLED_METRIC) & (pairs["reference"].map(about["kinds"]) == CONTROL)]
    both = controlled.merge(found, on=ARM)
    return spearman(both["auc"], both["difference"]) if len(both) > 1 else float("nan"), len(both)


def _gains(table: pd.DataFrame) -> dict[tuple[str, str], str]:
    """By condition and arm its first difference at temperature 1, with its interval."""
    sampled = table[table["metric"] == SAMPLED_METRIC].drop_duplicates(ARM)
    return {
        (
            row["condition"],
            row["arm"],
        ): f"{with_error(row['difference'], row['error'], '+.1f')} {interval_text(row['low'], row['high'])}"
        for row in sampled.to_dict("records")
    }
