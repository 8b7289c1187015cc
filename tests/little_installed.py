"""A Python in which little is installed: of this environment it has what some requirements bring along, and nothing else."""

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

from packaging.requirements import Requirement

KEPT = {"oar", "pip", "setuptools", "_distutils_hack", "pkg_resources"}
# For imports and for `find_spec` alike.
HIDING = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in {hidden} else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""


def hiding_all_but(requirements: Iterable[str]) -> str:
    """Code that hides what does not come with `requirements` (`torch>=2.10`, `oar[x]`: extras of installed packages count)."""
    brought: set[tuple[str, str]] = set()  # names of packages, each with an extra or ""
    open_ones = [Requirement(line) for line in requirements]
    while open_ones:
        one = open_ones.pop()
        for extra in {"", *one.extras}:
            if (node := (_normal(one.name), extra)) in brought:
                continue
            brought.add(node)
            needed = [Requirement(line) for line in _requires(one.name)]
            open_ones += [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]
    names = {name for name, _ in brought}
    of_packages = packages_distributions().items()
    hidden = {module for module, owners in of_packages if not names & {_normal(owner) for owner in owners}} - KEPT
    return HIDING.format(hidden=sorted(hidden))


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:  # of another platform
        return []


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
