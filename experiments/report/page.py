"""All of results/ as one HTML text that needs nothing beside it: what was found, every page with its pictures, what is missing.

The page's own parts are oar/analysis/reports/web/report.{html,css,js}. Its policy lets no script run but its own and
that of the credit inspector's page, which is framed apart from it, and loads nothing.
"""

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.report.folders import INSPECTOR, ResultPage, read_results, slug
from experiments.report.markdown import PageView, page_view
from experiments.report.summary import Answer, summary
from oar.analysis.reports.html import WEB
from oar.analysis.reports.page import UNWRITTEN
from oar.common.errors import DataError

REST = "More results"  # of folders that no section names


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter: its title, and by folder of results/ what each experiment asks, in the order of reading."""

    title: str
    experiments: Mapping[str, str]


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
    known = [page.slug for page in pages]
    views = {page.slug: (page, page_view(page, known, output.parent)) for page in pages}
    answers, unanswered = summary(results)
    frames = _inspectors(results / INSPECTOR, output.parent)
    named = {slug(name) for section in sections for name in section.experiments}
    rest = {page.folder.name: "" for page in pages if page.slug not in named}
    chapters = [*sections, *([Section(REST, rest)] if rest else [])]
    missing = [
        f"{name}: has not been measured yet. It asks: {asks}"
        for section in sections
        for name, asks in section.experiments.items()
        if slug(name) not in views and not (slug(name) == INSPECTOR and frames)
    ]
    unread = [f"{slug}: nobody has written down what follows from its numbers." for slug in _unread(views)]
    notes = [*missing, *unanswered, *unread, *faults, *(fault for _, view in views.values() for fault in view.faults)]
    body = [
        _top(answers, views),
        *(_chapter(section, views, frames) for section in chapters),
        _missing(notes),
    ]
    text = _filled(
        title="OAR: what was measured",
        made=html.escape(made),
        contents=_contents(chapters, views, frames),
        body="\n".join(body),
        framed=[digest for frame in frames for digest in frame.digests],
    )
    return Report(text, notes)


Views = Mapping[str, tuple[ResultPage, PageView]]


@dataclass(frozen=True, slots=True)
class Frame:
    """A page of the credit inspector as it stands in the report; digests: of the scripts and styles that it brings."""

    name: str
    body: str
    digests: Sequence[tuple[str, str]]


def _inspectors(folder: Path, output: Path) -> list[Frame]:
    """The first page framed, so that it can be used at once; of others a link, since each has the size of this report."""
    files = sorted(folder.glob("*.html")) if folder.is_dir() else []
    frames: list[Frame] = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        address = Path(os.path.relpath(file, output)).as_posix()
        link = f'<p>On its own, beside this file: <a href="{html.escape(address)}">{html.escape(file.name)}</a></p>'
        digests: list[tuple[str, str]] = []
        if not frames:
            digests = [("script", _digest(script)) for script in re.findall(r"<script>(.*?)</script>", text, re.DOTALL)]
            digests += [("style", _digest(style)) for style in re.findall(r"<style>(.*?)</style>", text, re.DOTALL)]
            inside = text.replace("&", "&amp;").replace("'", "&#39;")
            link += (
                f'<iframe title="Credit inspector" sandbox="allow-scripts" loading="lazy" srcdoc=\'{inside}\'></iframe>'
            )
        frames.append(Frame(file.name, link, digests))
    return frames


def _top(answers: Sequence[Answer], views: Views) -> str:
    """The answers in a line each, then each with its sentences, picture and numbers."""
    lines, cards = [], []
    for number, answer in enumerate(answers, start=1):
        page, question = slug(answer.link), html.escape(answer.question)
        more = f' <a href="#{page}">{views[page][1].title}</a>' if page in views else ""
        lines.append(f'<dt><a href="#answer-{number}">{question}</a></dt><dd>{html.escape(answer.short)}</dd>')
        cards.append(
            f'<article class="answer" id="answer-{number}"><h3>{question}</h3><p class="short">{html.escape(answer.short)}</p>'
            f"{''.join(f'<p>{sentence}</p>' for sentence in answer.sentences)}{answer.chart}"
            f"<details><summary>The numbers</summary>{answer.table}</details>"
            f'<p class="source">Read from <code>{html.escape(answer.source)}</code>.{more}</p></article>'
        )
    return f'<section id="summary"><h2>In short</h2><dl class="short">{"".join(lines)}</dl>{"".join(cards)}</section>'


def _chapter(section: Section, views: Views, frames: Sequence[Frame]) -> str:
    parts = []
    for name, asks in section.experiments.items():
        if slug(name) == INSPECTOR and frames:
            parts.append(
                f'<article class="page" id="{INSPECTOR}"><h3>Credit inspector</h3><p>{html.escape(asks)}</p>'
                f"{''.join(frame.body for frame in frames)}</article>"
            )
        elif slug(name) in views:
            parts.append(_article(*views[slug(name)]))
        else:
            parts.append(
                f'<p class="absent"><b>{html.escape(name)}</b> has not been measured yet. {html.escape(asks)}</p>'
            )
    return f'<section id="{_chapter_anchor(section)}"><h2>{html.escape(section.title)}</h2>{"".join(parts)}</section>'


def _article(page: ResultPage, view: PageView) -> str:
    concluded = ""
    if view.conclusion is not None:
        concluded = f'<aside class="follows"><h4>What follows</h4>{view.conclusion}</aside>'
    opened = next((part.anchor for part in view.parts if part.has_table), None)
    parts = []
    for part in view.parts:
        if part.level == 1:
            parts.append(f'<h4 class="second" id="{part.anchor}">{part.title}</h4>{part.body}')
        else:
            state = " open" if part.anchor == opened else ""
            parts.append(
                f'<details class="part" id="{part.anchor}"{state}><summary>{part.title}</summary>{part.body}</details>'
            )
    return (
        f'<article class="page" id="{page.slug}"><h3>{view.title}</h3>{view.question}{concluded}{view.lead}'
        f"{''.join(view.figures)}{''.join(parts)}{_source(page)}</article>"
    )


def _source(page: ResultPage) -> str:
    """Where the numbers come from, folded away; its first line says what a reader asks first."""
    tables = ", ".join(f"<code>{html.escape(f'{page.folder.name}/{table.name}')}</code>" for table in page.tables)
    held = f"<p>Its numbers are in {tables}.</p>" if tables else ""
    if page.provenance is None:
        return f'<div class="source"><p>Where these numbers come from is not said.</p>{held}</div>'
    made = page.provenance
    facts = [made.get("command"), f"commit {str(made['git_commit'])[:9]}" if made.get("git_commit") else None]
    facts += [str(made["started"])[:10] if made.get("started") else None]
    short = ", ".join(html.escape(str(fact)) for fact in facts if fact) or "provenance"
    whole = html.escape(json.dumps(made, indent=2, ensure_ascii=False))
    return f'<details class="source"><summary>Measured by {short}</summary>{held}<pre>{whole}</pre></details>'


def _missing(notes: Sequence[str]) -> str:
    lines = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return (
        f'<section id="missing"><h2>What is missing</h2>{f"<ul>{lines}</ul>" if notes else "<p>Nothing.</p>"}</section>'
    )


def _contents(chapters: Sequence[Section], views: Views, frames: Sequence[Frame]) -> str:
    """Links in the order of the report; what is absent is named, without one."""
    items = ['<li><a href="#summary">In short</a></li>']
    for section in chapters:
        inner = []
        for name in section.experiments:
            if slug(name) in views:
                view = views[slug(name)][1]
                more = "".join(
                    f'<li><a href="#{one.anchor}">{one.title}</a></li>' for one in view.parts if one.level == 1
                )
                inner.append(f'<li><a href="#{slug(name)}">{view.title}</a>{f"<ul>{more}</ul>" if more else ""}</li>')
            elif slug(name) == INSPECTOR and frames:
                inner.append(f'<li><a href="#{INSPECTOR}">Credit inspector</a></li>')
            else:
                inner.append(f'<li class="absent">{html.escape(name)} <small>not measured</small></li>')
        anchor = _chapter_anchor(section)
        items.append(f'<li><a href="#{anchor}">{html.escape(section.title)}</a><ul>{"".join(inner)}</ul></li>')
    return f'<ul>{"".join(items)}<li><a href="#missing">What is missing</a></li></ul>'


def _chapter_anchor(section: Section) -> str:
    return f"chapter-{slug(section.title)}"


def _unread(views: Views) -> list[str]:
    return [name for name, (_, view) in views.items() if view.conclusion is not None and UNWRITTEN in view.conclusion]


def _filled(*, title: str, made: str, contents: str, body: str, framed: Sequence[tuple[str, str]]) -> str:
    parts = {name: (WEB / f"report.{name}").read_text(encoding="utf-8") for name in ("html", "css", "js")}
    allowed = {
        kind: " ".join(f"'{digest}'" for digest in [own, *(found for of, found in framed if of == kind)])
        for kind, own in (("script", _digest(parts["js"])), ("style", _digest(parts["css"])))
    }
    fill = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; img-src data:; script-src {allowed['script']}; style-src {allowed['style']}",
        "css": parts["css"],
        "js": parts["js"],
        "made": made,
        "contents": contents,
        "body": body,
    }
    # In one pass: a page that holds the name of a place is not filled in itself.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: fill[place[1]], parts["html"])


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
