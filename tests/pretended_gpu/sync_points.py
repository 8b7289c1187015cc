"""How often the CPU waits for a GPU in a training step of each method: `python -m tests.pretended_gpu.sync_points`.

Writes docs/SYNC_POINTS.md.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.pretended_gpu.modes import ROOT, PretendedGpu
from tests.pretended_gpu.steps import METHODS, OF_SHEETS, SMALL, in_many_forwards, starts, trained

PAGE = ROOT / "docs" / "SYNC_POINTS.md"
SHOWN = 4  # functions of a method that wait most
COMMAND = "python -m tests.pretended_gpu.sync_points"
COMPLETIONS = SMALL[0].split("=")[1]
HEAD = f"""# Where the CPU waits for the GPU

Made by `{COMMAND}`; a test holds every method to its numbers. Counted on a pretended GPU in one
training step of {COMPLETIONS} completions of a few dozen tokens (probe `as_mean`), with at most 256 tokens in a forward of the
credit's own.

- **waits**: the CPU needs to know what the GPU has not computed yet (`.item()`, `.tolist()`, a copy to the CPU, `nonzero`, a mask
  as an index), so the GPU runs out of work. One per micro-batch is cheap beside its forward, one per layer is not.
- **uploads**: copies from the CPU to the GPU, for which it does not have to be idle.
- **synchronised**: the clock of stages (`oar/common/clock.py`) waits at both ends of each.

| method | waits | uploads | synchronised | where it waits most |
|---|---|---|---|---|
"""


def row(method: str, gpu: PretendedGpu) -> str:
    """A line of the page."""
    functions = Counter[str]()
    for (_, spot), count in gpu.waits.items():
        functions[f"`{spot.path}` {spot.function}"] += count
    where = ", ".join(f"{name} {count}" for name, count in functions.most_common(SHOWN))
    return f"| {method} | {gpu.waits.total()} | {gpu.uploads.total()} | {gpu.synchronised} | {where} |"


def committed() -> dict[str, tuple[int, int]]:
    """Of each method waits and uploads, as the page says."""
    cells = [line.split("|")[1:4] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return {method.strip(): (int(waits), int(uploads)) for method, waits, uploads in cells[1:]}


def rows() -> Iterator[str]:
    """The page's table."""
    with TemporaryDirectory() as folder:
        by_words = starts(Path(folder))
        for method in METHODS:
            yield row(method, trained(by_words[method in OF_SHEETS], *in_many_forwards(method)))


if __name__ == "__main__":
    PAGE.write_text(HEAD + "\n".join(rows()) + "\n", encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
