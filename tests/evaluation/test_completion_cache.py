"""An evaluation that was interrupted goes on where it stood, and takes nothing that something else made."""

import fcntl
import json
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from oar.common.errors import ConfigError, DataError, EngineError
from oar.config.evaluation import Sampling
from oar.evaluation.completion_cache import Kept
from oar.evaluation.draw import Asked, Completion, draw
from oar.tasks.problem import Problem

PROBLEMS = [Problem(id=f"p{i}", question=f"q{i}", answer=str(i), benchmark="toy") for i in range(5)]
SAMPLING = Sampling(n=2, temperature=1.0, max_new_tokens=8)
ORDER = (3, 0, 6, 4, 1, 2, 5)  # completions come as they are done


class Server:
    """Says the question and the seed; fails after `lasts` problems."""

    def __init__(self, lasts: int = 99) -> None:
        self.lasts = lasts
        self.asked: list[str] = []

    def __call__(
        self, problems: Sequence[Problem], samplings: Sequence[Sampling], *, seeds: Sequence[int]
    ) -> Iterator[tuple[int, list[Completion]]]:
        assert len(samplings) == len(seeds) == len(problems)
        for index in [index for index in ORDER if index < len(problems)]:
            if len(self.asked) == self.lasts:
                raise EngineError("the engine is gone.")
            problem, seed = problems[index], seeds[index]
            self.asked.append(problem.id)
            said = [f"\u2028{seed}\n{at}" for at in range(samplings[index].n)]
            yield index, [Completion(problem.question, text, 3, "stop") for text in said]


def kept(server: Server, folder: Path, **changes: object) -> Kept:
    fields = {"model": {"weights": "abc"}, "data": {"toy": {"origin": "file", "prompts": "def"}}} | changes
    return Kept(server, folder, **fields)  # type: ignore[arg-type]


ASKED = Asked(PROBLEMS, SAMPLING, 1)


def run(one: Kept, asked: Asked = ASKED) -> object:
    return one(asked, lambda done, tokens: None)


def plain(asked: Asked = ASKED) -> object:
    (groups,) = draw(Server(), [asked])
    return groups


def test_without_an_interruption_it_is_the_plain_draw(tmp_path: Path) -> None:
    server = Server()
    told: list[tuple[int, int]] = []
    groups = kept(server, tmp_path)(ASKED, lambda *one: told.append(one))
    assert groups == plain()
    assert groups[3][1] == Completion("q3", f"\u2028{ASKED.seeds()[3]}\n1", 3, "stop")
    assert told == [(0, 0), (1, 6), (2, 6), (3, 6), (4, 6), (5, 6)]


def test_sets_that_are_drawn_at_once_get_what_they_get_alone() -> None:
    other = Asked(PROBLEMS[1:3], Sampling(n=1, temperature=0.0, max_new_tokens=4), 2)
    assert draw(Server(), [other, ASKED]) == [plain(other), plain()]
    assert len({*other.seeds(), *ASKED.seeds()}) == 2 + len(PROBLEMS)  # each problem draws from its own seed


def test_what_was_drawn_before_a_failure_is_not_drawn_again(tmp_path: Path) -> None:
    with pytest.raises(EngineError):
        run(kept(Server(lasts=3), tmp_path))
    second = Server()
    groups = run(kept(second, tmp_path))
    assert sorted(second.asked) == ["p1", "p2"]
    assert groups == plain()  # the seeds are those of the unbroken draw
    third = Server(lasts=0)
    assert run(kept(third, tmp_path)) == groups
    assert third.asked == []


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"weights": "other"}},
        {"data": {"toy": {"origin": "other", "prompts": "def"}}},
        {"data": {"toy": {"origin": "file", "prompts": "of another template"}}},
        {"sampling": replace(SAMPLING, n=3)},
        {"sampling": replace(SAMPLING, top_p=0.9)},
        {"problems": PROBLEMS[:4]},
        {"seed": 2},
    ],
)
def test_what_something_else_made_is_not_taken(tmp_path: Path, change: dict[str, object]) -> None:
    run(kept(Server(), tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    asked = replace(ASKED, **{key: change.pop(key) for key in ("sampling", "problems", "seed") if key in change})  # type: ignore[arg-type]
    server = Server()
    assert run(kept(server, tmp_path, **change), asked) == plain(asked)
    assert len(server.asked) == len(asked.problems)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert len(list(tmp_path.iterdir())) == 2


def test_a_line_that_a_kill_cut_off_is_drawn_again(tmp_path: Path) -> None:
    whole = run(kept(Server(), tmp_path))
    (file,) = tmp_path.iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    for cut in (1, len(lines[-1]) - 1):  # of the last line; all of it but the newline, too
        file.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])
        server = Server()
        assert run(kept(server, tmp_path)) == whole
        assert server.asked == ["p2"]
        assert file.read_bytes() == b"".join(lines)


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "{}",
        '{"problem": 9, "completions": []}',
        '{"problem": 2, "completions": [{"prompt": "q", "text": "t", "tokens": 1, "finish_reason": "stop"}]}',
        "[]",
    ],
)
def test_a_line_that_is_not_ours_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(EngineError):
        run(kept(Server(lasts=1), tmp_path))
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(DataError, match="line 2 is not a problem's kept completions: delete the file"):
        run(kept(Server(), tmp_path))


def test_a_problem_twice_is_named(tmp_path: Path) -> None:
    run(kept(Server(), tmp_path))
    (file,) = tmp_path.iterdir()
    first = file.read_text().splitlines(keepends=True)[0]
    file.write_text(first + first)
    with pytest.raises(DataError, match="line 2"):
        run(kept(Server(), tmp_path))
    assert json.loads(first)["problem"] == ORDER[0]


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    one = kept(Server(), tmp_path)
    with one.path(ASKED).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another evaluation"):
            run(one)


FULL = """
from pathlib import Path
from tests.evaluation.test_completion_cache import Server, kept, run
run(kept(Server(), Path({folder!r})))
"""


def test_a_full_disk_says_so_and_keeps_what_fitted(tmp_path: Path) -> None:
    """A limit on file size stands for the disk: half of the lines fit."""
    run(kept(Server(), tmp_path / "whole"))
    ((whole, limit),) = [(file.read_bytes(), file.stat().st_size // 2) for file in (tmp_path / "whole").iterdir()]
    done = subprocess.run(
        [sys.executable, "-B", "-c", FULL.format(folder=str(tmp_path / "full"))],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert "run the same command again to go on" in done.stderr
    server = Server()
    run(kept(server, tmp_path / "full"))
    assert sorted(server.asked) == ["p1", "p2", "p4"]
    (file,) = (tmp_path / "full").iterdir()
    assert sorted(file.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(Exception, match=r"taken.*could not be written"):
        run(kept(Server(), tmp_path / "taken" / "completions"))
