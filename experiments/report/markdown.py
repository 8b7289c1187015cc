"""A page of results/ from Markdown to HTML: safe text, pictures inlined, its parts apart.

HTML in a page is shown as text. A picture is taken from the page's own folder, without loss but smaller, and nothing is loaded.
"""

import base64
import html
import io
import os
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from PIL import Image, UnidentifiedImageError

from experiments.report.folders import ResultPage, slug
from oar.analysis.reports.page import CLOSED, OPENED

QUESTION = "**Question.**"
LEFT_OUT = "Provenance"  # a part that the whole provenance.json stands for
DEEPER = 2  # a page's own title is a heading of the third level here


@dataclass(frozen=True, slots=True)
class Part:
    """What stands under a heading of the first or second level. title and body: HTML; anchor: what finds it."""

    level: int
    title: str
    anchor: str
    body: str

    @property
    def has_table(self) -> bool:
        """Whether it shows numbers."""
        return "<table" in self.body


@dataclass(frozen=True, slots=True)
class PageView:
    """A page in HTML: its title, the question it starts with, what people concluded (None: no place for it), the rest."""

    title: str
    question: str
    conclusion: str | None
    lead: str
    figures: list[str]
    parts: list[Part]
    faults: list[str]


@dataclass
class _Links:
    """Where the addresses in one page lead."""

    page: ResultPage
    known: Sequence[str]  # slugs of all pages
    output: Path  # folder of the report
    faults: list[str] = field(default_factory=list)

    def href(self, address: str) -> str | None:
        """A page of results/ is found inside of the report, other files beside it; None where an address is to be left out."""
        parts = urlsplit(address)
        if parts.scheme in ("http", "https"):
            return address
        if parts.scheme or parts.netloc or not parts.path:
            return None
        results, path = self.page.folder.parent, unquote(parts.path)
        inside = posixpath.normpath(posixpath.join(self.page.folder.name, path)).split("/")
        if inside[-1].endswith(".md") and len(inside) == 2 and slug(inside[0]) in self.known:
            return f"#{slug(inside[0])}"
        return Path(os.path.relpath(results.joinpath(*inside), self.output)).as_posix()

    def figure(self, address: str, caption: str) -> str | None:
        """The picture, inlined; None, with a sentence in `faults`, where it is not one of the page's folder."""
        name = f"{self.page.folder.name}/{self.page.file.name}"
        path = self.page.folder / unquote(address)
        if urlsplit(address).scheme or not path.resolve().is_relative_to(self.page.folder.resolve()):
            self.faults.append(f"{name} shows a picture from elsewhere ({address}), which is left out.")
            return None
        try:
            source, (width, height) = inlined(path)
        except (OSError, UnidentifiedImageError) as error:
            self.faults.append(f"{name} shows {address}, which is no picture here ({type(error).__name__}).")
            return None
        text = html.escape(caption)
        return (
            f'<figure><img src="{source}" width="{width}" height="{height}" alt="{text}" data-file="{html.escape(address)}">'
            f"<figcaption>{text}</figcaption></figure>"
        )


def inlined(path: Path) -> tuple[str, tuple[int, int]]:
    """A picture's data address and size (width, height): the same pixels, as lossless WebP where that is smaller."""
    original = path.read_bytes()
    with Image.open(io.BytesIO(original)) as picture:
        packed, size = io.BytesIO(), picture.size
        picture.save(packed, "webp", lossless=True, exact=True, quality=80, method=4)
        kind, content = Image.MIME[picture.format or ""], original
    if packed.tell() < len(original):
        kind, content = "image/webp", packed.getvalue()
    return f"data:{kind};base64,{base64.b64encode(content).decode()}", size


def page_view(page: ResultPage, known: Sequence[str], output: Path) -> PageView:
    """The page as it stands in a report in `output`; `known`: slugs of the pages that it may lead to."""
    links = _Links(page, known, output)
    found = re.search(f"{OPENED}\n(.*?)\n?{CLOSED}", page.text, flags=re.DOTALL)
    text = page.text.replace(found[0], "") if found else page.text
    text = re.sub(r"^<!--.*?-->[ \t]*$", "", text, flags=re.MULTILINE)  # a mark for programs, not for people
    figures: list[str] = []
    blocks = _without_pictures(_MARKDOWN.parse(text), links, figures)
    (start, *parts), title = _split(blocks), html.escape(page.folder.name)
    if start == [] and parts and parts[0][0].tag == "h1":
        title, start = _MARKDOWN.renderer.render(parts[0][1:2], _MARKDOWN.options, {}), parts.pop(0)[3:]
    figures += _unnamed(page, links, figures)
    asked = _first_block(start)
    question = start[:asked] if asked and start[1].content.startswith(QUESTION) else []
    return PageView(
        title=title,
        question=_html(question, links),
        conclusion=_html(_MARKDOWN.parse(found[1]), links) if found else None,
        lead=_html(start[len(question) :], links),
        figures=figures,
        parts=[part for part in (_part(tokens, page, links) for tokens in parts) if part is not None],
        faults=links.faults,
    )


def _markdown() -> MarkdownIt:
    """CommonMark with tables; HTML is text, and pictures are taken out before."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    markdown.add_render_rule(
        "table_open", lambda *_: '<div class="scroll" tabindex="0" role="region" aria-label="table"><table>\n'
    )
    markdown.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return markdown


_MARKDOWN = _markdown()


def _without_pictures(tokens: list[Token], links: _Links, figures: list[str]) -> list[Token]:
    """The blocks without those that are a picture, and without a caption that repeats its text; `figures` takes the pictures."""
    kept: list[Token] = []
    captions: set[str] = set()
    at = 0
    while at < len(tokens):
        inline = tokens[at + 1] if tokens[at].type == "paragraph_open" else None
        children = (inline.children or []) if inline is not None else []
        if inline is not None and (len(children) == 1 and children[0].type == "image"):
            figures += _figures(children, links)
            captions.add(f"*{children[0].content}*")
            at += 3
        elif inline is not None and inline.content in captions:
            at += 3
        else:
            kept.append(tokens[at])
            at += 1
    for token in kept:
        if token.children and any(child.type == "image" for child in token.children):
            figures += _figures(token.children, links)
            token.children = [child for child in token.children if child.type != "image"]
    return kept


def _figures(children: Sequence[Token], links: _Links) -> list[str]:
    pictures = [child for child in children if child.type == "image"]
    found = [links.figure(str(one.attrGet("src")), one.content) for one in pictures]
    return [figure for figure in found if figure is not None]


def _unnamed(page: ResultPage, links: _Links, shown: Sequence[str]) -> list[str]:
    """The folder's other pictures: whatever was drawn is to be seen."""
    names = (path.name for path in sorted(page.folder.glob("*.png")))
    missing = [name for name in names if not any(f'data-file="{html.escape(name)}"' in figure for figure in shown)]
    return [figure for name in missing if (figure := links.figure(name, name)) is not None]


def _split(tokens: list[Token]) -> list[list[Token]]:
    """What comes before the first heading of level one or two, and each of these with what stands under it."""
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token.type == "heading_open" and token.level == 0 and token.tag in ("h1", "h2"):
            parts.append([])
        parts[-1].append(token)
    return parts


def _first_block(tokens: list[Token]) -> int:
    """How many tokens the first paragraph has; 0 where something else comes first."""
    return 3 if tokens and tokens[0].type == "paragraph_open" else 0


def _part(tokens: list[Token], page: ResultPage, links: _Links) -> Part | None:
    """None for one that holds nothing, or what the report shows in another place."""
    level, heading = int(tokens[0].tag[1]), tokens[1].content
    if heading == LEFT_OUT or (level > 1 and len(tokens) == 3):
        return None
    return Part(
        level=level,
        title=_MARKDOWN.renderer.render(tokens[1:2], _MARKDOWN.options, {}),
        anchor=f"{page.slug}--{slug(heading)}",
        body=_html(tokens[3:], links),
    )


def _html(tokens: Sequence[Token], links: _Links) -> str:
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + DEEPER)}"
        for child in token.children or []:
            if child.type == "link_open":
                _lead(child, links)
    return str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))


def _lead(link: Token, links: _Links) -> None:
    href = links.href(str(link.attrGet("href")))
    link.attrs = {} if href is None else {"href": href, "rel": "noreferrer"}
