"""All of results/ as one page of links: what was found, what people concluded, every picture and table, what is missing.

The page is page.html.j2. It has no script, and its policy lets none run and loads nothing but pictures beside it.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from experiments.report.folders import INSPECTOR, ResultPage, read_results
from experiments.report.markdown import PageView, page_view
from experiments.report.summary import summary
from oar.analysis.reports.page import UNWRITTEN, rendered
from oar.common.errors import DataError

TEMPLATE = Path(__file__).parent / "page.html.j2"
REST = "More results"  # of folders that no section names


@dataclass
class Section:
    """A chapter: its title, and by folder of results/ what each experiment asks, in the order of reading (conf/report.yaml)."""

    title: str
    experiments: dict[str, str]


@dataclass(frozen=True, slots=True)
class Report:
    """The report as text, and a sentence for everything that is missing or not as it should be."""

    text: str
    notes: list[str]


def report_html(results: Path, output: Path, sections: Sequence[Section], made: str) -> Report:
    """The report on the folder `results`, to be written to the file `output`; `made`: what made it, in words.

    Raises DataError where `results` is no folder, or holds nothing to report.
    """
    if not results.is_dir():
        raise DataError(f"results must be a folder of results, but {results} is none.")
    pages, faults = read_results(results)
    if not pages:
        raise DataError(
            f"{results} must hold folders with a page each, but has none: run an experiment first. {' '.join(faults)}"
        )
    base = quote(Path(os.path.relpath(results, output.parent)).as_posix())
    views = {page.name: (page, page_view(page, f"{base}/{page.name}")) for page in pages}
    answers, unanswered = summary(results)
    inspectors = [path.name for path in sorted((results / INSPECTOR).glob("*.html"))]
    shown = {*views, INSPECTOR} if inspectors else {*views}
    notes = [*_unmeasured(sections, shown), *unanswered, *_unread(views), *faults]
    notes += [fault for _, view in views.values() for fault in view.faults]
    sections = [Section(one.title, _with_those_below(one.experiments, views)) for one in sections]
    named = {name for section in sections for name in section.experiments}
    rest = {name: "" for name in views if name not in named}
    text = rendered(
        TEMPLATE,
        answers=answers,
        base=base,
        chapters=[*sections, *([Section(REST, rest)] if rest else [])],
        views=views,
        inspectors=inspectors,
        notes=notes,
        made=made,
    )
    return Report(text, notes)


def _with_those_below(experiments: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Behind each experiment those in its folder, which no section names."""
    return {
        name: experiments.get(name, "")
        for experiment in experiments
        for name in (experiment, *(one for one in names if one.startswith(f"{experiment}/")))
    }


def _unmeasured(sections: Sequence[Section], shown: set[str]) -> Iterator[str]:
    for section in sections:
        for name, asks in section.experiments.items():
            if name not in shown:
                yield f"{name}: has not been measured yet. It asks: {asks}"


def _unread(views: Mapping[str, tuple[ResultPage, PageView]]) -> Iterator[str]:
    for name, (_, view) in views.items():
        if view.conclusion is not None and UNWRITTEN in view.conclusion:
            yield f"{name}: nobody has written down what follows from its numbers."
