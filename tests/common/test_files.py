from pathlib import Path

import pytest

from oar.common.errors import OarError
from oar.common.files import atomic_path, shown, write_text_atomic


def test_the_name_appears_only_when_the_block_ends_well(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file.txt"
    with atomic_path(target) as path:
        path.write_text("one")
        assert not target.exists()
    assert target.read_text() == "one"


def test_an_error_of_any_kind_leaves_the_old_file_and_no_remains(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    write_text_atomic(target, "old")

    def fail_half_way() -> None:
        with atomic_path(target) as path:
            path.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_half_way()
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]
    assert target.read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the always-full device")
def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    write_text_atomic(target, "old")

    def write_to_full_disk() -> None:
        with atomic_path(target) as path:
            path.symlink_to("/dev/full")
            path.write_text("new")

    with pytest.raises(OarError, match=r"could not be written \(No space left on device\)"):
        write_to_full_disk()
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_a_path_is_shown_from_the_working_folder_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "outputs" / "run") == Path("outputs/run")
    assert shown(Path("outputs/run")) == Path("outputs/run")
    assert shown(tmp_path.parent / "run") == tmp_path.parent / "run"
