"""A page that needs nothing beside it: a template of web/ with its style, script and data in one text.

Data goes in as JSON alone; the page's policy lets no script and no style run but its own, and nothing be loaded.
"""

import base64
import hashlib
import html
import json
import re
from pathlib import Path

WEB = Path(__file__).parent / "web"


def whole_page(title: str, data: object) -> str:
    """inspector.html of web/, filled with its style, its script and `data`."""
    template, css, js = ((WEB / f"inspector.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    fill = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; script-src '{_digest(js)}'; style-src '{_digest(css)}'",
        "css": css,
        "js": js,
        "data": _json(data),
    }
    # In one pass: data that holds the name of a place is not filled in itself.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: fill[place[1]], template)


def short(value: float | None) -> float | None:
    """To four digits, without a fraction where there is none: half of a page's size is such zeros."""
    if value is None:
        return None
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded


def _json(data: object) -> str:
    """JSON that may stand in a page: no character in it can end the element it stands in, or open a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
