"""The reward model that is taught: what it reads, what it learns, and what cannot be learned."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from experiments.reward_model import RECORD, Graded, learned, publish, refuse_one_kind, score
from oar.common.errors import DataError
from tests.byte_level import byte_level_tokenizer
from tests.models import PAD, VOCAB, tiny_model, tiny_scorer

TOLD_BY = 17  # the token that makes a completion right
SETTINGS: Any = SimpleNamespace(seed=1, epochs=12, examples=8, score_lr=3e-3)


def sequences(seed: int) -> Graded:
    rng = torch.Generator().manual_seed(seed)
    rows = [
        torch.randint(4, VOCAB, (int(torch.randint(4, 12, (1,), generator=rng)),), generator=rng) for _ in range(96)
    ]
    correct = torch.rand(96, generator=rng) < 0.5
    for row, right in zip(rows, correct.tolist(), strict=True):
        row[row == TOLD_BY] = 4
        if right:
            row[1] = TOLD_BY
    return Graded([row.tolist() for row in rows], correct.float())


def test_a_score_is_that_of_the_sequence_alone() -> None:
    model, data = tiny_scorer(), sequences(0)
    rows = torch.tensor([3, 0, 7])
    expected = [model(torch.tensor([data.sequences[row]])).logits[0, 0] for row in rows.tolist()]
    torch.testing.assert_close(score(model, data, rows), torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_it_starts_from_the_policy_and_learns_what_makes_a_completion_right() -> None:
    policy = tiny_model()
    untaught: Any = SimpleNamespace(**{**vars(SETTINGS), "score_lr": 0.0})
    start = learned(untaught, policy, sequences(0), PAD)
    for name, weight in policy.base_model.state_dict().items():
        assert torch.equal(start.base_model.state_dict()[name], weight)
    model, unseen = learned(SETTINGS, policy, sequences(0), PAD), sequences(1)
    with torch.no_grad():
        said = score(model, unseen, torch.arange(96)) > 0
    assert float((said == unseen.correct.bool()).float().mean()) > 0.8
    again = learned(SETTINGS, policy, sequences(0), PAD)
    assert torch.equal(again.score.weight, model.score.weight)  # type: ignore[union-attr, arg-type]


def test_completions_of_one_kind_teach_nothing() -> None:
    refuse_one_kind(sequences(0), "problems")
    with pytest.raises(DataError, match=r"right and wrong ones among 96 completions \(problems\), but 0% are right"):
        refuse_one_kind(Graded(sequences(0).sequences, torch.zeros(96)), "problems")


def test_a_policy_that_names_no_padding_is_taught_with_the_tokenizers() -> None:
    """As Qwen2.5's config.json, which has none."""
    policy, short = tiny_model(), SimpleNamespace(**{**vars(SETTINGS), "epochs": 1})
    policy.config.pad_token_id = None
    assert learned(short, policy, sequences(0), PAD).config.pad_token_id == PAD  # type: ignore[arg-type]


def test_of_two_programs_that_teach_one_model_the_first_to_end_keeps_its_own(tmp_path: Path) -> None:
    model, folder = tiny_scorer(), tmp_path / "taught"
    for seconds in (1, 2):
        publish(model, byte_level_tokenizer(), {"seconds": seconds}, folder)
    assert json.loads((folder / RECORD).read_text()) == {"seconds": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["taught"]
