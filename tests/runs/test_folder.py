"""A run's folder that somebody damaged."""

from pathlib import Path

import pytest

from oar.common.errors import DataError
from oar.config import TrainConfig, validated
from oar.runs.folder import finished, read_run
from tests.config.test_config import composed


@pytest.mark.parametrize("text", ["", "{", "[]", '{"provenance": 1}'])
def test_a_run_whose_evaluation_says_nothing_has_not_finished(text: str, tmp_path: Path) -> None:
    for name in ("config.yaml", "evaluation.csv"):
        (tmp_path / name).touch()
    (tmp_path / "evaluation.json").write_text(text)
    settings = validated(composed(), TrainConfig)
    assert finished(tmp_path, settings) is None
    with pytest.raises(DataError, match=r"evaluation\.json must say where its numbers come from, but does not"):
        read_run(tmp_path)
