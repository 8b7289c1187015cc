"""The house: arrows run one way, the hall is empty, and the method is pure."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
Graph = dict[str, set[str]]
# They bring other experiments together, and nothing else may.
OVER_EXPERIMENTS = {"experiments.reanalyse"}
# What each room of the method may use: no configuration, no files, no engine.
PURE = {"oar.common", "oar.method", "oar.names"}
HALL = {"oar", "oar.names"}  # no rooms


@cache
def modules() -> dict[str, Path]:
    found = {}
    for top in ("oar", "experiments"):
        for path in (ROOT / top).rglob("*.py"):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


@cache
def imports() -> Graph:
    """By module the modules of this repository that it imports, wherever the statement stands."""
    graph: Graph = {}
    for name, path in modules().items():
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names if alias.name in modules()}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    graph[name] |= {full if full in modules() else node.module} & modules().keys()
    return graph


def room(name: str) -> str:
    """The folder below oar/ or experiments/; of a file there, the file."""
    return ".".join(name.split(".")[:2])


def rooms() -> Graph:
    graph: Graph = {}
    for name, found in imports().items():
        graph.setdefault(room(name), set()).update({room(one) for one in found} - {room(name)})
    return graph


def circle(graph: Graph) -> list[str]:
    """A circle of the graph, empty if there is none."""
    done: set[str] = set()

    def search(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for following in sorted(graph.get(node, set())):
            if found := search(following, [*path, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := search(node, []))), [])


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_circle_of_files() -> None:
    assert circle(imports()) == []


def test_no_circle_of_rooms() -> None:
    assert circle(rooms()) == []


def test_the_page_lists_the_rooms_in_the_order_of_their_imports() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    listed = [name.replace("/", ".") for name in re.findall(r"^\| `(oar/\w+)` \|", page, flags=re.MULTILINE)]
    found = {name: used for name, used in rooms().items() if name.startswith("oar.") and name not in HALL}
    assert set(listed) == found.keys()
    for place, name in enumerate(listed):
        assert found[name] - HALL <= set(listed[:place]), name


def test_the_hall_is_empty() -> None:
    assert {path.name for path in (ROOT / "oar").glob("*.py")} <= {"__init__.py", "names.py"}


def test_the_library_knows_no_experiment() -> None:
    outside = {name: found for name, found in imports().items() if name.startswith("oar.")}
    assert {name for name, found in outside.items() if any(one.startswith("experiments") for one in found)} == set()


def test_experiments_do_not_import_each_other() -> None:
    for name, found in rooms().items():
        if name.startswith("experiments.") and name not in OVER_EXPERIMENTS:
            assert {one for one in found if one.startswith("experiments.")} <= {"experiments.shared"}, name


def test_the_method_is_pure() -> None:
    for name, found in imports().items():
        if name.startswith("oar.method"):
            assert {room(one) for one in found} <= PURE, name


@pytest.mark.parametrize("package", ["torch", "pandas", "transformers"])
def test_a_configuration_is_read_without(package: str) -> None:
    """What is wrong with it is told at once, not after seconds of imports."""
    code = f"import sys, oar.config; sys.exit({package!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_every_experiment_has_one_name() -> None:
    """The program, its configuration, and the target of the Makefile that starts it."""
    programs = {path.stem for path in (ROOT / "conf").glob("*.yaml")}
    found = {name.split(".")[1] for name in modules() if name.count(".") == 1 or name.endswith(".__main__")}
    assert programs <= found
    makefile = (ROOT / "Makefile").read_text()
    for program in programs:
        assert f"program,{program})" in makefile or program in NO_TARGET_OF_THEIR_OWN, program


def test_results_have_the_name_of_their_experiment() -> None:
    """The folder and the page: of a program, of an experiment of conf/experiment, or of a sweep of the Makefile."""
    programs = {path.stem for path in [*(ROOT / "conf").glob("*.yaml"), *(ROOT / "conf" / "experiment").glob("*.yaml")]}
    sweeps = re.findall(r"^(\S+): .*\n\t\$\(call sweep,", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    known = programs | {name.replace("-", "_") for name in sweeps} | {"gpu_check"}  # which composes no configuration
    folders = {path for path in (ROOT / "results").iterdir() if path.is_dir()} - {ROOT / "results" / "reference"}
    assert {folder.name for folder in folders} <= known
    pages = {folder.name: [page.stem for page in folder.glob("*.md")] for folder in folders}
    assert pages.pop("inspect_credit") == []  # its pages are HTML
    assert pages == {name: [name] for name in pages}


NO_TARGET_OF_THEIR_OWN = {
    "coverage",
    "reanalyse",
    "stability",
}  # of the statistics, and the page that ends `make sweep-gating`
