"""What the report takes from a page of results/: its title, what people concluded, its pictures.

HTML in a page is shown as text. Pictures and links lead to files; nothing of another address is shown.
"""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from experiments.report.folders import ResultPage
from oar.analysis.reports.page import CLOSED, OPENED


@dataclass(frozen=True, slots=True)
class PageView:
    """A page for the template.

    title, conclusion: HTML, the second None where the page has no place for one; pictures: caption by file name.
    """

    title: str
    conclusion: str | None
    pictures: Mapping[str, str]
    faults: list[str]


def page_view(page: ResultPage, base: str) -> PageView:
    """What is shown of `page`; `base`: its folder as seen from the report."""
    heading = re.search(r"^# (.+)$", page.text, flags=re.MULTILINE)
    concluded = re.search(f"{OPENED}\n(.*?)\n?{CLOSED}", page.text, flags=re.DOTALL)
    pictures, faults = _pictures(page)
    env = {"base": base}
    return PageView(
        title=_MARKDOWN.renderInline(heading[1] if heading else page.name, env),
        conclusion=_MARKDOWN.render(concluded[1], env) if concluded else None,
        pictures=pictures,
        faults=faults,
    )


def _pictures(page: ResultPage) -> tuple[dict[str, str], list[str]]:
    """Those that the page shows, then the folder's others: whatever was drawn is to be seen."""
    pictures, faults = {}, []
    for block in _MARKDOWN.parse(page.text):
        for image in (child for child in block.children or [] if child.type == "image"):
            address = str(image.attrGet("src"))
            path, folder = (page.folder / unquote(address)).resolve(), page.folder.resolve()
            if urlsplit(address).scheme or not path.is_relative_to(folder):
                faults.append(f"{page.name}/{page.file.name} shows a picture from elsewhere ({address}).")
            elif not path.is_file():
                faults.append(f"{page.name}/{page.file.name} shows {address}, which is not there.")
            else:
                pictures[path.relative_to(folder).as_posix()] = image.content
    others = sorted(path.name for path in page.folder.glob("*.png"))
    return pictures | {name: name for name in others if name not in pictures}, faults


class _Renderer(RendererHTML):
    """Links beside a page are links from the report; pictures have a place of their own."""

    def link_open(self, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType) -> str:
        """A link's start, whose address is one from the report."""
        parts = urlsplit(str(tokens[at].attrGet("href")))
        if not parts.scheme and not parts.netloc and parts.path:
            path = posixpath.normpath(posixpath.join(env["base"], parts.path))
            tokens[at].attrSet("href", parts._replace(path=path).geturl())
        return self.renderToken(tokens, at, options, env)

    def image(self, *_: object) -> str:
        """Nothing."""
        return ""


_MARKDOWN = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
