"""Something is made once, and again when something else would make it."""

from pathlib import Path

import pandas as pd
import pytest

from oar.common.cache import kept_json, kept_path, kept_table


def test_the_path_follows_what_makes_it(tmp_path: Path) -> None:
    one = kept_path(tmp_path, "one", {"length": 64, "code": "a"}, ".json")
    assert one == kept_path(tmp_path, "one", {"code": "a", "length": 64}, ".json")
    assert one.name.startswith("one-")
    assert (
        len(
            {
                one,
                *(
                    kept_path(tmp_path, "one", {"length": 64, "code": "a"} | other)
                    for other in ({"length": 65}, {"code": "b"})
                ),
            }
        )
        == 3
    )


def test_it_is_made_once_and_comes_back_the_same(tmp_path: Path) -> None:
    made = [{"value": 0.1}, {"value": 2}]
    file = tmp_path / "new" / "one.json"
    assert kept_json(file, lambda: made[0]) == kept_json(file, lambda: made[1]) == made[0]
    tables = [pd.DataFrame({"a": [0.1, None]}, index=[5, 6]), pd.DataFrame()]
    file = tmp_path / "one.parquet"
    first, second = (kept_table(file, lambda table=table: table) for table in tables)
    pd.testing.assert_frame_equal(first, second)
    pd.testing.assert_frame_equal(first, tables[0].reset_index(drop=True))


def test_what_was_interrupted_is_made_again(tmp_path: Path) -> None:
    def interrupted() -> dict[str, float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept_json(tmp_path / "one.json", interrupted)
    with pytest.raises(ValueError, match="Out of range"):
        kept_json(tmp_path / "one.json", lambda: {"value": float("nan")})
    assert not list(tmp_path.iterdir())
    assert kept_json(tmp_path / "one.json", lambda: {}) == {}
