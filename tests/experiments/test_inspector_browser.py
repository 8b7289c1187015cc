"""The credit inspector in a real headless Chromium: what a person sees, clicks, types and hovers."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from experiments.inspect_credit.page import InspectorPage, inspector_html
from tests.experiments.inspector_pages import ATTACK, large_page, small_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
PATIENCE_MS = 60_000  # on a busy machine; nothing is waited for that does not come
expect.set_options(timeout=PATIENCE_MS)
QUIET = [
    "--no-sandbox",  # which refuses to run as root
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# What dichromats see of linear RGB: Machado, Oliveira, Fernandes 2009, severity 1.
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield running
        running.close()


def opened(browser: Browser, content: InspectorPage, folder: Path, scheme: str = "light") -> tuple[Page, list[str]]:
    """A page in a window, and what goes wrong there: errors of its script, and requests for anything."""
    (folder / "page.html").write_text(inspector_html(content), encoding="utf-8")
    wrong: list[str] = []
    page = browser.new_page(viewport={"width": 1300, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page.set_default_timeout(PATIENCE_MS)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url))
    page.goto((folder / "page.html").as_uri())
    page.wait_for_selector("html[data-opened]")
    assert wrong == [page.url]
    return page, wrong


@pytest.fixture(scope="module")
def shared(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The small page; opened once, every test sets what it needs."""
    page, wrong = opened(browser, small_page(), tmp_path_factory.mktemp("page"))
    yield page
    assert wrong == [page.url]


@pytest.fixture
def page(shared: Page) -> Page:
    for select, value in (("#left", "OAR-G"), ("#right", ""), ("#reward", ""), ("#benchmark", "")):
        shared.select_option(select, value)
    shared.fill("#search", "")
    return shared


def levels(page: Page, signal: int, completion: int = 1) -> list[str]:
    """The first class after `token` of each token: how it is coloured."""
    tokens = page.locator(f"article:nth-of-type({completion}) .tokens[data-signal='{signal}'] .token")
    return [str(classes).split()[1] for classes in tokens.evaluate_all("all => all.map(one => one.className)")]


def test_tokens_are_coloured_by_the_signal_that_is_chosen(page: Page) -> None:
    assert levels(page, 0) == ["d0", "d2", "d4", "d6", "off", "off", "off"]  # weights 0.1, 0.3, 1.2, 2.4
    page.select_option("#left", label="causal")
    assert levels(page, 4) == ["s7", "s0", "s7", "s0", "s0", "s0", "s0"]
    page.select_option("#left", label="ratio")
    assert levels(page, 7) == ["d4", "d7", "d1", "d4", "d4", "d4", "d4"]  # 1, 1.3, 0.7
    page.select_option("#left", label="advantage")  # largest size 1.2 (99 %: near 1.15)
    assert levels(page, 1) == ["d5", "d6", "d7", "d8", "d7", "d7", "d7"]
    assert levels(page, 1, completion=2) == ["d0", "d1", "d2", "d1", "d1"]
    expect(page.locator("#legends")).to_contain_text("advantage, as the run logged it")
    assert page.locator("#legends .token").count() == 9


def test_two_signals_beside_each_other(page: Page) -> None:
    page.select_option("#right", label="OAR-P")
    assert levels(page, 0)[:4] == ["d0", "d2", "d4", "d6"]
    assert levels(page, 6)[:4] == ["d3", "d3", "d5", "d5"]  # 0.5, 0.75, 1.25, 1.5
    expect(page.locator("article:nth-of-type(1) h2")).to_contain_text("rank agreement 1")
    expect(page.locator("article:nth-of-type(2) h2")).to_contain_text("rank agreement -1")
    expect(page.locator("#summary")).to_contain_text("(Spearman) of the two: mean 0 over 2 of them")
    page.select_option("#reward", "wrong")
    expect(page.locator("#summary")).to_contain_text("mean -1 over 1 of them")
    page.select_option("#right", label="advantage")
    expect(page.locator("#summary")).to_contain_text("no order to be compared")


def test_how_much_credit_the_causal_tokens_get(page: Page) -> None:
    # 3 of 7 tokens; of the weight 0.1 + 1.2 + 1.5 of 4 + 3.
    expect(page.locator("#summary")).to_contain_text(
        "causal tokens: 42.9 % of the reasoning, 40.0 % of the weight of OAR-G"
    )


def test_filters(page: Page) -> None:
    def left() -> list[int]:
        return [at for at in (1, 2) if page.locator(f"article:nth-of-type({at})").is_visible()]

    for select, value, expected in (
        ("#reward", "right", [1]),
        ("#reward", "wrong", [2]),
        ("#benchmark", "words2", [2]),
    ):
        page.select_option(select, value)
        assert left() == expected
        expect(page.locator("#summary")).to_contain_text("1 of 2 completions")
        expect(page.locator("article.chosen")).to_have_attribute("data-row", str(expected[0] - 1))
        page.select_option(select, "")
    page.fill("#search", "SIX IT")
    assert left() == [2]
    page.fill("#search", "no such text")
    expect(page.locator("#summary")).to_contain_text("0 of 2 completions")
    page.fill("#search", "")
    assert left() == [1, 2]


def test_what_is_told_of_a_token(page: Page) -> None:
    page.hover("article:nth-of-type(1) .token >> nth=2")
    told = page.locator("#tip")
    expect(told).to_contain_text("three token 3 of 7, reasoning")
    names, values = told.locator("dt").all_inner_texts(), told.locator("dd").all_inner_texts()
    assert dict(zip(names, values, strict=True)) == {
        "OAR-G, as the run logged it: weight": "1.2",
        "OAR-G, as the run logged it: importance": "0.001",
        "logprob when drawn": "-0.5",
        "token advantage": "0.6",
        "causal": "as the run logged it",
        "error": "as the run logged it",
    }
    page.hover("article:nth-of-type(1) .token >> nth=5")
    expect(told).to_contain_text("5 token 6 of 7, answer")
    expect(told).to_contain_text("importancenot scored")
    page.hover("#title")
    expect(told).to_be_hidden()


def test_everything_by_keyboard(page: Page) -> None:
    page.focus("#marks")
    page.keyboard.press("Tab")
    told = page.locator("#tip")
    expect(told).to_contain_text("Two token 1 of 7")
    page.keyboard.press("ArrowRight")
    expect(told).to_contain_text("and token 2 of 7")
    page.keyboard.press("End")
    expect(told).to_contain_text("∅ token 7 of 7, end")
    page.keyboard.press("ArrowDown")
    expect(told).to_contain_text("Six token 1 of 5")
    expect(page.locator("article.chosen")).to_have_attribute("data-row", "1")
    page.keyboard.press("]")
    expect(page.locator("#left")).to_have_value("advantage")
    page.keyboard.press("[")
    expect(page.locator("#left")).to_have_value("OAR-G")
    page.keyboard.press("/")
    page.keyboard.type("[three")  # in a field the keys are letters
    expect(page.locator("#search")).to_have_value("[three")
    expect(page.locator("#left")).to_have_value("OAR-G")
    # One stop for each completion, however many tokens it has.
    assert page.locator(".token[tabindex='0']").count() == 2


def test_the_gates_threshold_stands_in_the_histogram(page: Page) -> None:
    page.locator("article:nth-of-type(1)").click()
    chosen, everything = page.locator("figure").all()
    expect(chosen).to_contain_text("completion #1")
    expect(chosen).to_contain_text("the gate's threshold, 5.0e-4; from it on (filled) 2, below (hollow) 2")
    # Importance 1e-4 ... 1e-2 over 24 bins of 11 units each, behind one for zeros; log10 of the threshold is -3.301.
    expected = 30 + 11 + (-3.30103 + 4) / 2 * 24 * 11
    assert float(str(chosen.locator(".threshold").get_attribute("x1"))) == pytest.approx(expected, abs=0.1)
    assert chosen.locator("text").all_text_contents() == ["1", "0", "1.0e-4", "0.01"]
    assert chosen.locator(".bar.boosted").count() == 2
    assert chosen.locator(".bar.suppressed").count() == 2
    expect(everything).to_contain_text("7 reasoning tokens")
    expect(everything).to_contain_text("from it on (filled) 4, below (hollow) 3")
    page.locator("article:nth-of-type(2)").click()
    page.select_option("#left", label="OAR-P")
    expect(page.locator("figure >> nth=0")).to_contain_text("no threshold")


def test_text_of_completions_stays_text(page: Page) -> None:
    expect(page).to_have_title(f"A run {ATTACK}".replace("\u2028", " "))
    expect(page.locator("article:nth-of-type(1) .token >> nth=3")).to_have_text(ATTACK)
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    # And were there a hole, the policy would keep what came through from running.
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<svg onload=\"document.title=1\">')")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'document.title = 2'}))"
    )
    page.wait_for_timeout(100)
    assert page.title().startswith("A run")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read_and_told_apart(browser: Browser, tmp_path: Path, scheme: str) -> None:
    page, _ = opened(browser, small_page(), tmp_path, scheme)
    found = page.evaluate(
        """() => Object.fromEntries(["d", "s"].flatMap((map) => [...Array(9).keys()].map((level) => {
            const span = document.body.appendChild(document.createElement("span"));
            span.className = "token " + map + level;
            const style = getComputedStyle(span);
            const line = style.textDecorationLine + style.textDecorationStyle + style.textDecorationThickness;
            return [map + level, [style.color, style.backgroundColor, line]];
        })))"""
    )
    linear = {name: [rgb(text) for text in row[:2]] for name, row in found.items()}
    light = {name: [luminance(colour) for colour in row] for name, row in linear.items()}
    for name, (text, background) in light.items():
        assert (max(text, background) + 0.05) / (min(text, background) + 0.05) >= 4.5, f"{name} cannot be read"
    for names in (["d4", "d3", "d2", "d1", "d0"], ["d4", "d5", "d6", "d7", "d8"], [f"s{level}" for level in range(9)]):
        steps = np.diff([light[name][1] for name in names])
        assert (steps < 0).all() if scheme == "light" else (steps > 0).all(), "lightness alone orders them"
    for kind, matrix in BLIND.items():
        for level in range(4):  # suppressed and boosted alike far from the middle
            one, other = (
                np.clip(np.array(matrix) @ linear[f"d{at}"][1], 0, 1) ** (1 / 2.2) for at in (level, 8 - level)
            )
            assert np.linalg.norm(one - other) > 0.06 * (4 - level), f"{kind}: d{level} looks like d{8 - level}"
    lines = [row[2] for name, row in found.items() if name.startswith("d")]
    assert len(set(lines)) == 9, "told apart by their lines alone"
    page.screenshot(path=tmp_path / f"{scheme}.png")
    assert (tmp_path / f"{scheme}.png").stat().st_size > 20_000
    page.close()


def test_dark_and_light_by_hand(page: Page) -> None:
    def background() -> float:
        return luminance(rgb(page.evaluate("getComputedStyle(document.body).backgroundColor")))

    assert background() > 0.9
    page.click("#theme")
    assert background() < 0.05
    page.click("#theme")
    assert background() > 0.9


def test_256_completions_open_at_once(browser: Browser, tmp_path: Path) -> None:
    """Because most of their tokens are made later, each when it comes near the window."""
    (tmp_path / "page.html").write_text(inspector_html(large_page(256, 60)), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    page.set_default_timeout(PATIENCE_MS)
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("html[data-opened]")
    assert page.locator("article").count() == 256
    made = page.locator(".token").count()
    assert 60 < made < 256 * 60 / 2
    assert page.locator("article >> nth=200").locator(".tokens").inner_text().endswith("#### 5")
    page.keyboard.press("End")
    expect(page.locator("article >> nth=255").locator(".token")).to_have_count(60)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#completions .token").count() == 256 * 60, "all of it is printed"
    page.close()


def rgb(text: str) -> np.ndarray:
    """Linear RGB (3,) of a computed colour, `rgb(1, 2, 3)`."""
    values = np.array([float(part) for part in text[text.index("(") + 1 : -1].split(",")[:3]]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def luminance(colour: np.ndarray) -> float:
    """Relative luminance (WCAG 2)."""
    return float(colour @ [0.2126, 0.7152, 0.0722])
