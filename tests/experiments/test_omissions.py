"""Edits of right reasoning, the blame of their tokens, and both on a real model whose rewards are known by hand."""

from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pytest
import torch
from hydra import initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress
from transformers import PreTrainedModel

from experiments.omissions.__main__ import OmissionsConfig, blame, measured, planned
from experiments.omissions.edits import NO_STEP, NO_VALUE, TWICE, WRONG_VALUE, edits
from oar.common.errors import DataError
from oar.config import validated
from oar.tasks.embedded.teaching import build_model, teach
from oar.tasks.sheets import Sheet
from oar.tasks.sheets.teaching import SheetTeaching
from oar.tasks.sheets.tokenizer import build_tokenizer
from tests.config.test_config import CONF, composed

DIGITS = frozenset(range(1, 9))


def test_edits_of_a_sheet_by_hand() -> None:
    """Two entries, so the first one is edited: 20 and 21 are keys."""
    found = edits([20, 5, 21, 3], [2], DIGITS, Random(0))
    wrong = found[WRONG_VALUE]
    assert (wrong.place, wrong.ids[::2], wrong.ids[3]) == (1, (20, 21), 3)
    assert wrong.ids[1] in DIGITS - {5}
    assert (found[NO_VALUE].ids, found[NO_VALUE].place) == ((20, 21, 3), 1)
    assert (found[NO_STEP].ids, found[NO_STEP].place) == ((21, 3), 0)
    assert (found[TWICE].ids, found[TWICE].place) == ((20, 5, 20, 5, 21, 3), 2)


def test_a_value_is_the_last_run_of_digits() -> None:
    """`4 + 1 2 = 1 6 .` with 30, 31, 32 for the signs: 16 goes, its last digit changes, the operands stay."""
    step = [4, 30, 1, 2, 31, 1, 6, 32]
    found = edits([*step, 7, 32], [8], DIGITS, Random(1))
    assert found[NO_VALUE].ids == (4, 30, 1, 2, 31, 32, 7, 32)
    assert found[WRONG_VALUE].place == 6


def test_what_cannot_be_edited() -> None:
    assert edits([20, 5], [], DIGITS, Random(0)) == {}  # nothing comes after its only step
    assert edits([20, 21, 5], [1], DIGITS, Random(0)) == {}  # the first step has no value


@given(
    st.lists(st.tuples(st.integers(20, 40), st.sampled_from(sorted(DIGITS))), min_size=2, max_size=6),
    st.integers(0, 99),
)
def test_every_edit_departs_at_its_place(entries: list[tuple[int, int]], seed: int) -> None:
    right = [token for entry in entries for token in entry]
    for name, one in edits(right, range(2, len(right), 2), DIGITS, Random(seed)).items():
        assert list(one.ids[: one.place]) == right[: one.place]
        assert one.ids[one.place] != right[one.place]
        assert len(one.ids) - len(right) == {WRONG_VALUE: 0, NO_VALUE: -1, NO_STEP: -2, TWICE: 2}[name]


def test_blame_by_hand() -> None:
    right, other = [1.0, 2.0, -1.0, 9.0], [0.0, 0.0, 0.0, 0.0]
    advantages = torch.tensor([right, [1.0, -3.0, -1.0, 9.0], [2.0, 1.0, 0.0, -9.0], other, [1.0, 0.0, 0.0, 0.0]])
    reasoning = torch.tensor([[True, True, True, False]] * 5)
    found = blame(advantages, reasoning, [None, 1, 0, None, 0])
    assert found.iloc[[0, 3]].isna().all(axis=None)
    assert found.iloc[1].tolist() == [1.0, 0.75, 1.0, 1.0]  # 3 of 4; -3 < 2; 1 - 3 - 1 < 1 + 2 - 1
    assert found.iloc[2].tolist() == [0.0, 0.0, 0.0, 0.0]  # 2 > 1, 3 > 2: what is outside the reasoning does not count
    assert found.iloc[4].tolist() == [0.0, 0.0, 0.0, 0.0]  # of the right one that stands before it: 1 > 0


UNTAUGHT = SheetTeaching(hidden_size=32, num_layers=1)


def of_sheets(sheet: str, folder: Path, model: PreTrainedModel | None = None, tokens: int = 1) -> pd.DataFrame:
    """Measured on the model, or on one that was taught nothing: a share of right entries does not ask what the answer is."""
    tokenizer = build_tokenizer()
    (build_model(UNTAUGHT, tokenizer) if model is None else model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    sheets = [
        "'profile=sheets'",
        f"'data.source.sheet={sheet}'",
        f"'model.path={folder}'",
        "'model.teach=null'",
        f"'rollout.max_new_tokens={tokens}'",
    ]
    arms = "{grpo:['method=grpo'],oar_s_advantage:['method=oar_s_advantage']}"
    conditions = f"+conditions={{share:[{','.join(sheets)}]}}"
    kept = f"work_dir={folder}"
    overrides = ["problems=6", "continuations=2", kept, "~arms", f"+arms={arms}", "~conditions", conditions]
    cfg = validated(composed(*overrides, name="omissions"), OmissionsConfig)
    with initialize_config_dir(str(CONF), version_base=None), Progress(disable=True) as progress:
        return measured(cfg, "share", planned(cfg, cfg.conditions["share"]), progress)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return of_sheets("{reward:share,answer:checksum,entries:4}", tmp_path_factory.mktemp("model"))


def test_a_condition_is_measured_once(tmp_path: Path) -> None:
    sheet, model = "{reward:share,answer:checksum,entries:2,asked:1}", build_model(UNTAUGHT, build_tokenizer())
    of_sheets(sheet, tmp_path, model)
    (file,) = (tmp_path / "conditions").iterdir()
    marked = pd.read_parquet(file).assign(value=7.0)
    marked.to_parquet(file, index=False)
    assert of_sheets(sheet, tmp_path, model).equals(marked)
    assert not of_sheets(sheet.replace("entries:2", "entries:3"), tmp_path, model).equals(marked)
    model.get_input_embeddings().weight.data.mul_(2)
    assert not of_sheets(sheet, tmp_path, model).equals(marked)  # another model under the same name


def test_a_task_without_such_solutions_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must have two steps or more"):
        of_sheets("{reward:share,answer:checksum,entries:1,asked:1}", tmp_path)


def value(table, split: str, signal: str, metric: str, column: str = "value") -> float:
    (found,) = table.query("split == @split and signal == @signal and metric == @metric")[column]
    return float(found)


def test_a_mistake_costs_one_entry_of_four(table) -> None:
    for edit in (WRONG_VALUE, NO_VALUE, NO_STEP):
        # Now and then it writes nothing behind the marker, which earns nothing.
        assert value(table, edit, "continuations", "reward", "high") == 0.75
    assert TWICE not in set(table["split"])  # an entry that stands there twice is right twice


def test_the_cost_is_what_the_policy_loses_at_the_place(tmp_path: Path) -> None:
    """A policy that is sure of its three right entries loses one of them, and more where the mistake confuses it."""
    sheet = Sheet(entries=3, keys=8, asked=1, reward="share")
    small = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 2, "batch_size": 32, "max_new_tokens": 16}
    steps = {"max_steps": 120, "first_check_step": 120, "target_accuracy": 0.0, "check_problems": 8}
    taught = teach(SheetTeaching(**small, **steps, known=1.0, sheet=sheet), lambda _: None)
    table = of_sheets("{reward:share,answer:one,entries:3,keys:8,asked:1}", tmp_path, taught.model, tokens=16)
    for edit in (WRONG_VALUE, NO_VALUE):
        assert value(table, edit, "continuations", "cost") >= 0.3


def test_grpo_spreads_the_blame_over_all_tokens(table) -> None:
    for edit, tokens in ((WRONG_VALUE, 8), (NO_VALUE, 7), (NO_STEP, 6)):
        blamed = value(table, edit, "grpo", "blamed")  # not where another completion of the group earned nothing at all
        assert 0.5 < blamed == value(table, edit, "grpo", "token_below_right")
        assert np.isclose(value(table, edit, "grpo", "share_of_blame"), blamed / tokens)
        assert 0 <= value(table, edit, "oar_s_advantage", "share_of_blame") <= 1
