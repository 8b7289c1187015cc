"""results/README.md, with every number read from the tables of results/: `python -m experiments.findings`.

The text is the template results/README.md.j2. It calls the methods of `experiments.shared.tables.Tables`.
"""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from experiments.shared.committed import committed
from experiments.shared.tables import Tables
from oar.analysis.reports.page import rendered
from oar.command_line.entry import entry
from oar.common.errors import DataError
from oar.common.files import write_text_atomic
from oar.config import validated
from oar.statistics.intervals import CONFIDENCE

TEMPLATE, PAGE = "README.md.j2", "README.md"


@dataclass
class FindingsConfig:
    """See conf/findings.yaml."""

    results: str


@entry
def main(config: DictConfig) -> None:
    """Write the page beside its template."""
    results = committed(validated(config, FindingsConfig).results)
    write_text_atomic(results / PAGE, findings(results))
    print(f"written: {results / PAGE}", flush=True)


def findings(results: Path) -> str:
    """The page, from the template and the tables in `results`. Raises DataError for a mistake in it or for what a table lacks."""
    template, tables = results / TEMPLATE, Tables(results)
    if not template.is_file():
        raise DataError(
            f"results must be the folder of the page's template, but {template} is not there: correct results."
        )
    asked = {name: getattr(tables, name) for name in dir(tables) if not name.startswith("_")}
    return rendered(template, confidence=f"{100 * CONFIDENCE:.0f} %", **asked)


if __name__ == "__main__":
    main()
