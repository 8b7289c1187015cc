"""What the credit inspector's page holds."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from experiments.inspect_credit.page import inspector_html, page_data
from oar.common.errors import DataError
from oar.learner.samples import pieces
from tests.experiments.inspector_pages import ATTACK, large_page, small_page


class Elements(HTMLParser):
    """Every element of a page, and the text of its scripts and styles as a browser would see it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.append(dict(attributes))
        self.texts.append("")

    def handle_endtag(self, tag):
        self.handle_starttag(f"/{tag}", [])

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data

    def text_of(self, tag):
        return [text for name, text in zip(self.tags, self.texts, strict=True) if name == tag]


def test_the_pages_data_by_hand() -> None:
    data = json.loads(json.dumps(page_data(small_page())))
    first, second = data["completions"]
    assert first["tokens"] == ["Two", " and", " three", f" {ATTACK}", " ####", " 5", ""]
    assert first["segments"] == [4, 5, 6]
    assert first["values"][0] == [0.1, 0.3, 1.2, 2.4]
    assert first["importance"] == [[0, 1e-4, 1e-3, 1e-2], [1, 2, 3, 4]]  # of the two weights alone
    assert first["thresholds"] == [5e-4, 2.5]
    assert second["thresholds"] == [1.5, None]
    assert (second["reward"], second["advantage"], second["benchmark"]) == (0, -0.5, "words2")
    assert [signal["name"] for signal in data["signals"]][:2] == ["OAR-G", "advantage"]
    agreement = {(one, other): values for one, other, values in data["agreement"]}
    assert agreement[0, 6] == [1, -1]  # oar_g and oar_p
    # Ranks of the ratio 1, 1.3, 0.7, 1 are 2.5, 4, 1, 2.5; with 1, 2, 3, 4: covariance -1.5 over sqrt(4.5 x 5).
    assert agreement[6, 7] == [pytest.approx(-1.5 / 22.5**0.5, rel=1e-3), None]
    assert not any(1 in pair for pair in agreement)  # advantage


def test_every_signal_has_a_name_and_source_of_its_own() -> None:
    """By which the page's script finds it: a run of method=entropy has weights beside the policy's entropy."""
    page = small_page()
    signals = [replace(page.signals[0], name="entropy"), *page.signals[1:]]
    data: Any = page_data(replace(page, signals=signals))
    found = [(signal["name"], signal["source"]) for signal in data["signals"]]
    assert len(set(found)) == len(found)
    assert found[0] == ("entropy (control)", "as the run logged it")


def test_the_page_can_be_searched_and_printed() -> None:
    """No browser is needed to see that the script writes a completion's text at once, and colours all of it for the printer."""
    found = Elements(inspector_html(small_page()))
    (style,), script = found.text_of("style"), found.text_of("script")[-1]
    assert "@media print" in style
    assert 'addEventListener("beforeprint", () => cards.forEach(fill))' in script
    cards = script[script.index("const cards") : script.index("function holds")]
    assert 'completion.tokens.join("")' in cards


def test_numbers_are_short() -> None:
    page = small_page()
    signal = replace(page.signals[2], values=[[1 / 3] * 7, [2.0, 1e-9 / 3, 0.0, 1.0, 123456.0]])
    data = page_data(replace(page, signals=[signal]))
    assert json.dumps([row["values"][0] for row in data["completions"]]) == json.dumps(
        [[0.3333] * 7, [2, 3.333e-10, 0, 1, 123500]]
    )


def test_nothing_in_a_completion_becomes_a_part_of_the_page() -> None:
    text = inspector_html(small_page())
    found = Elements(text)
    assert "img" not in found.tags
    assert found.tags.count("script") == 2
    assert "<!--" not in text.split("<body>")[1]
    assert "\u2028" not in text.split("<body>")[1]
    data, _ = found.text_of("script")
    assert json.loads(data) == json.loads(json.dumps(page_data(small_page())))
    assert ATTACK in json.loads(data)["title"]


def test_the_policy_allows_the_pages_own_script_and_style_alone() -> None:
    found = Elements(inspector_html(small_page()))
    (policy,) = [row["content"] for row in found.attributes if row.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    digests = dict(re.findall(r"(script|style)-src '(sha256-[^']+)'", policy))
    for tag, name in (("script", "script"), ("style", "style")):
        content = found.text_of(tag)[-1]
        assert digests[name] == "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_the_page_needs_nothing_beside_it() -> None:
    found = Elements(inspector_html(large_page(4, 20)))
    assert not [row for row in found.attributes if row.keys() & {"src", "href", "action"}]
    (style,) = found.text_of("style")
    assert not re.search(r"url\(|@import", style)


@pytest.mark.parametrize(
    ("tokens", "text", "expected"),
    [
        (["We", "get", "7", ".", ""], "We get 7 .", ["We", " get", " 7", " .", ""]),  # word level, end without text
        (["We", " get", " 7", "."], "We get 7.", ["We", " get", " 7", "."]),  # byte level: blanks are the tokens'
        (["caf", "\ufffd", "\ufffd", " now"], "café now", ["caf", "\ufffd", "\ufffd", " now"]),  # parts of a character
        (["a", "\n\n", "b"], "a\n\nb", ["a", "\n\n", "b"]),
        (["x", "y"], "", ["x", "y"]),
    ],
)
def test_tokens_keep_the_blanks_of_the_text(tokens: list[str], text: str, expected: list[str]) -> None:
    assert pieces(tokens, text) == expected


def test_a_signal_of_other_completions_is_refused() -> None:
    page = small_page()
    longer = replace(page.signals[0], values=[[1.0] * 7, [1.0] * 5])  # a weight is of reasoning tokens only
    with pytest.raises(DataError, match=r"oar_g must have \[4, 3\] values"):
        inspector_html(replace(page, signals=[longer]))
