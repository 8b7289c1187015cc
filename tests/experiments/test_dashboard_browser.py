"""The dashboard's page in a real headless Chromium: what a person sees, switches, types and hovers."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from experiments.dashboard.page import dashboard_html, find_runs, read_logged
from tests.experiments.dashboard_runs import small_runs
from tests.experiments.inspector_pages import ATTACK
from tests.experiments.test_inspector_browser import CHROMIUM, PATIENCE_MS, QUIET, luminance, rgb

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
REAL = Path(__file__).parents[2] / "results" / "embedded"
REWARD = "figure[data-metric='train/reward_mean']"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield running
        running.close()


def opened(chromium: Browser, places: list[Path], folder: Path, scheme: str = "light") -> tuple[Page, list[str]]:
    """The page of these runs in a window, and what goes wrong there: errors of its script, and requests for anything."""
    runs = [read_logged(one) for one in find_runs(places)]
    text = dashboard_html(f"Runs {ATTACK}", runs, folder=folder, points=500, samples=4, provenance={"command": ATTACK})
    (folder / "page.html").write_text(text, encoding="utf-8")
    wrong: list[str] = []
    page = chromium.new_page(viewport={"width": 1300, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page.set_default_timeout(PATIENCE_MS)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))  # what the page's policy refuses is told there
    page.on("request", lambda request: wrong.append(request.url))
    page.goto((folder / "page.html").as_uri())
    page.wait_for_selector("html[data-opened]")
    assert wrong == [page.url]
    return page, wrong


@pytest.fixture(scope="module")
def shared(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The small runs; opened once, every test sets what it needs."""
    folder = small_runs(tmp_path_factory.mktemp("runs"))
    page, wrong = opened(chromium, [folder], folder)
    yield page
    assert wrong == [page.url]


@pytest.fixture
def page(shared: Page) -> Page:
    shared.click("#all")
    shared.select_option("#axis", "step")
    shared.check("#seeds")
    smooth(shared, 1)
    return shared


def smooth(page: Page, steps: int) -> None:
    page.locator("#smoothing").evaluate(
        "(one, value) => { one.value = value; one.dispatchEvent(new Event('input')); }", steps
    )


def lines(page: Page, figure: str = REWARD) -> list[str]:
    return [str(at) for at in page.locator(f"{figure} g.line").evaluate_all("all => all.map(one => one.dataset.line)")]


def read(page: Page, *keys: str) -> str:
    """What the box says at the place in the picture of rewards to which these keys lead."""
    page.keyboard.press("Escape")
    page.locator(f"{REWARD} svg").evaluate("one => one.blur()")
    page.focus(f"{REWARD} svg")
    for key in keys:
        page.keyboard.press(key)
    expect(page.locator("#tip")).to_be_visible()
    return page.locator("#tip").inner_text()


def test_lines_are_drawn_and_switched(page: Page) -> None:
    assert lines(page) == ["0", "1", "2"]
    assert lines(page, "figure[data-metric='seconds/total']") == ["0", "2"], "one logged no seconds"
    assert page.locator(f"{REWARD} .seed").count() == 2, "of GRPO; a single seed is the line itself"
    page.get_by_role("checkbox", name="OAR-G, tau 0.2").uncheck()
    assert lines(page) == ["0", "2"]
    page.keyboard.press("1")
    assert lines(page) == ["2"]
    expect(page.get_by_role("checkbox", name="GRPO, tau 0.4")).not_to_be_checked()
    page.keyboard.press("3")
    expect(page.locator(REWARD)).to_contain_text("every line is switched off")
    page.keyboard.press("0")
    assert lines(page) == ["0", "1", "2"]
    page.uncheck("#seeds")
    assert page.locator(".seed").count() == 0


def test_values_are_read_by_keyboard_and_pointer(page: Page) -> None:
    first = read(page, "Home")
    assert "near step 1" in first
    assert "GRPO, tau 0.4\t0.2\tstep 1\tseeds 0.1, 0.3" in first
    assert "OAR-G, tau 0.2\t0.9\tstep 1\tseeds 0.9" in first
    assert "0.3\tstep 2\tseeds 0.2, 0.4" in read(page, "Home", "ArrowRight")
    last = read(page, "End")
    assert "OAR-G, tau 0.2\t0.7\tstep 3" in last
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()
    box = page.locator(f"{REWARD} svg").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 15, box["y"] + 40)
    expect(page.locator("#tip")).to_contain_text("near step 3")
    visible = page.locator(".cross").evaluate_all("all => all.map(one => one.getAttribute('visibility'))")
    assert set(visible) == {"visible"}, "the same step in every picture"
    page.mouse.move(0, 0)
    expect(page.locator("#tip")).to_be_hidden()


def test_smoothing_is_a_centred_running_mean(page: Page) -> None:
    smooth(page, 3)
    expect(page.locator("#window")).to_have_text("3 steps")
    assert "OAR-G, tau 0.2\t0.85\tstep 1" in read(page, "Home")  # 0.9 and 0.8
    assert "OAR-G, tau 0.2\t0.8\tstep 2" in read(page, "Home", "ArrowRight")
    smooth(page, 9)
    assert "OAR-G, tau 0.2\t0.8\tstep 3" in read(page, "End")


def test_time_is_the_sum_of_training_steps(page: Page) -> None:
    page.select_option("#axis", "time")
    # GRPO's seeds need 1, 2 and 3, 2 seconds: after two steps 3 and 5, on average 4. OAR-G, tau 0.4: 4 a step.
    assert lines(page) == ["0", "2"], "without seconds a run has no place in time"
    told = read(page, "Home")
    assert "after 2 s" in told
    assert "step 1\tseeds 0.1, 0.3" in told
    assert "after 4 s" in read(page, "Home", "ArrowRight")
    assert "after 12 s" in read(page, "End")


def test_a_picture_becomes_large(page: Page) -> None:
    figure, before = page.locator(REWARD), page.locator(REWARD).bounding_box()
    figure.get_by_role("button").click()
    after = figure.bounding_box()
    assert before is not None
    assert after is not None
    assert after["width"] > 2 * before["width"]
    page.focus(f"{REWARD} svg")
    page.keyboard.press("Enter")
    small = figure.bounding_box()
    assert small is not None
    assert small["width"] == pytest.approx(before["width"], abs=1)


def test_completions_stand_side_by_side_with_their_weights(page: Page) -> None:
    problems = page.locator(".problem")
    assert problems.locator("h3").all_inner_texts() == ["p1, gold 5", "p2, gold 5", "p9, gold 5"]
    cards = problems.nth(0).locator("article")
    assert cards.count() == 2
    classes = cards.nth(1).locator(".token").evaluate_all("all => all.map(one => one.className)")
    assert classes == ["token d0", "token d4", "token d6", "token d2", "token off", "token off answer", "token off"]
    assert (
        cards.nth(1).get_by_role("link", name="inspector").get_attribute("href")
        == "sweep/oar_g-seed1/inspector/step_000002.html"
    )
    expect(cards.nth(1).locator(".token >> nth=3")).to_have_text(ATTACK)
    cards.nth(1).locator(".token >> nth=0").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tip")).to_contain_text("token 2 of 7, reasoning")
    expect(page.locator("#tip")).to_contain_text("weight 1.2, token advantage 0.6")
    page.get_by_label("Graded").select_option("wrong")
    assert page.locator(".problem h3").all_inner_texts() == ["p2, gold 5", "p9, gold 5"]
    page.get_by_role("checkbox", name="GRPO, tau 0.4").uncheck()
    assert page.locator(".problem h3").all_inner_texts() == ["p2, gold 5"]
    page.get_by_label("Graded").select_option("all")


def test_text_of_runs_stays_text(page: Page) -> None:
    expect(page).to_have_title(f"Runs {ATTACK}".replace("\u2028", " "))
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


def table1_row(method: str) -> list[str]:
    """The cells of a method's line of the committed table at temperature 1: its name, the tiers, ..., the overhead."""
    lines = (REAL / "table1.md").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"| {method} |")).strip("| ").split(" | ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_real_runs(chromium: Browser, tmp_path: Path, scheme: str) -> None:
    page, wrong = opened(chromium, [REAL], tmp_path, scheme)
    table = page.locator("figure[data-metric='tiers'] table")
    words1 = table1_row("GRPO")[1].partition(",")[0]
    assert words1 in table.inner_text()
    page.get_by_label("Measured by").select_option(
        label="Last point of the learning curve, one sample for each problem"
    )
    expect(table).not_to_contain_text(words1)
    ratio, seconds = re.findall(r"[\d.]+", table1_row("OAR-G")[-1])
    shown = re.search(rf"{ratio}x, ([\d.]+) s", page.locator("figure[data-metric='stages']").inner_text())
    assert shown
    assert float(shown[1]) == pytest.approx(float(seconds), abs=0.0055)  # rounded twice
    assert page.locator("svg.chart").count() > 20
    background = luminance(rgb(page.evaluate("getComputedStyle(document.body).backgroundColor")))
    for at, colour in enumerate(
        page.locator(f"{REWARD} .mean").evaluate_all("all => all.map(one => getComputedStyle(one).stroke)")
    ):
        light = luminance(rgb(colour))
        assert (max(light, background) + 0.05) / (min(light, background) + 0.05) >= 2, f"line {at} is not seen"
    for text in (".chart text", "figcaption small", ".chip", "td", "h2"):
        light = luminance(
            rgb(
                page.locator(text).first.evaluate(
                    "one => { const s = getComputedStyle(one); return one.namespaceURI.endsWith('svg') ? s.fill : s.color; }"
                )
            )
        )
        assert (max(light, background) + 0.05) / (min(light, background) + 0.05) >= 4.5, f"{text} cannot be read"
    page.set_viewport_size({"width": 420, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 420, "no page that is wider than a phone"
    page.click("#theme")
    changed = luminance(rgb(page.evaluate("getComputedStyle(document.body).backgroundColor")))
    assert (changed < 0.05) == (background > 0.5)
    assert wrong == [page.url]
    page.close()
