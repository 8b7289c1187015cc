"""results/README.md, with every number read from the tables of results/: `python -m experiments.findings`.

The text is the template results/README.md.j2. It calls the methods of `experiments.shared.tables.Tables`. Where a folder of
results has a template what_follows.md.j2, that is what people say of its numbers: it is filled in from the folder's own tables
and put on its page.
"""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from experiments.shared.committed import committed
from experiments.shared.steps import Steps, number_in_words
from experiments.shared.tables import Tables
from oar.analysis.reports.page import rendered, with_conclusion
from oar.command_line.entry import entry
from oar.common.errors import DataError
from oar.common.files import write_text_atomic
from oar.config import validated
from oar.statistics.intervals import CONFIDENCE

TEMPLATE, PAGE = "README.md.j2", "README.md"
CONCLUSION = "what_follows.md.j2"


@dataclass
class FindingsConfig:
    """See conf/findings.yaml."""

    results: str


@entry
def main(config: DictConfig) -> None:
    """Write each page beside its template."""
    results = committed(validated(config, FindingsConfig).results)
    pages = {results / PAGE: findings(results)}
    for template in sorted(results.rglob(CONCLUSION)):
        page = page_of(template.parent)
        pages[page] = with_conclusion(page.read_text(encoding="utf-8"), conclusion(template.parent))
    for page, text in pages.items():
        write_text_atomic(page, text)
        print(f"written: {page}", flush=True)


def findings(results: Path) -> str:
    """The page, from the template and the tables in `results`. Raises DataError for a mistake in it or for what a table lacks."""
    template, tables = results / TEMPLATE, Tables(results)
    if not template.is_file():
        raise DataError(
            f"results must be the folder of the page's template, but {template} is not there: correct results."
        )
    return rendered(template, confidence=f"{100 * CONFIDENCE:.0f} %", **_asked(tables))


def conclusion(folder: Path) -> str:
    """What follows from the runs of a folder, its template filled in from its tables. Raises DataError as `findings` does."""
    asked = _asked(Tables(folder)) | _asked(Steps(folder))
    return rendered(folder / CONCLUSION, in_words=number_in_words, **asked).strip()


def page_of(folder: Path) -> Path:
    """The page of a folder of results. Raises DataError where there is not exactly one."""
    pages = list(folder.glob("*.md"))
    if len(pages) != 1:
        raise DataError(f"{folder} must hold one page (.md), but has {len(pages)}: write it first.")
    return pages[0]


def _asked(tables: object) -> dict[str, object]:
    """What a template may ask of tables: their public methods, by name."""
    return {name: getattr(tables, name) for name in dir(tables) if not name.startswith("_")}


if __name__ == "__main__":
    main()
