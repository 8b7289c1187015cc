"""What is loaded is the model of the folder, whole."""

import json
from pathlib import Path

import pytest

from oar.common.errors import DataError
from oar.model.load import load_policy
from tests.models import tiny_model, tiny_scorer


@pytest.mark.parametrize("tied", [False, True])
def test_a_whole_model_is_loaded(tied: bool, tmp_path: Path) -> None:
    tiny_model(tied=tied).save_pretrained(tmp_path)
    load_policy(tmp_path, "float32")


def test_weights_that_would_be_drawn_at_random_are_refused(tmp_path: Path) -> None:
    tiny_scorer().save_pretrained(tmp_path)  # has no head over the vocabulary
    with pytest.raises(DataError, match=r"all weights of a Qwen2ForCausalLM .*, but 1 are missing .*, lm_head\.weight"):
        load_policy(tmp_path, "float32")


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 50}))
    with pytest.raises(DataError, match=r"but 2 are missing or of another size, lm_head\.weight among them"):
        load_policy(tmp_path, "float32")
