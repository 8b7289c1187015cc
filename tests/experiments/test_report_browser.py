"""The report in a real headless Chromium: what a person sees, clicks, types and prints."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from experiments.report.page import report_html
from tests.experiments.made_results import SECTIONS, make_results
from tests.experiments.test_inspector_browser import CHROMIUM, PATIENCE_MS, QUIET, luminance, rgb

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield running
        running.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report, alone in a folder of its own."""
    results = make_results(tmp_path_factory.mktemp("made") / "results")
    file = tmp_path_factory.mktemp("alone") / "report.html"
    file.write_text(report_html(results, results / "report.html", SECTIONS, "Made by a test.").text, encoding="utf-8")
    return file


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    """A fresh page; whatever it asks for beside itself, and whatever goes wrong in it, fails the test."""
    wrong: list[str] = []
    page = browser.new_page(viewport={"width": 1300, "height": 900}, color_scheme="light")
    page.set_default_timeout(PATIENCE_MS)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-opened]")
    yield page
    asked = [one for one in wrong if not one.startswith("data:") and one != "about:srcdoc"]
    assert asked == [file.as_uri()]
    page.close()


def column(page: Page, number: int) -> list[str]:
    return page.locator(f"#embedded tbody >> nth=0 >> td:nth-child({number})").all_inner_texts()


def test_tables_are_sorted_by_value_and_back(page: Page) -> None:
    first = ["9.4 ± 0.3, n=3", "67.8 ± 0.4, n=3", "-3.9 [-11.7, +13.7]", "20"]
    assert column(page, 2) == first
    head = page.locator("#embedded th >> nth=1")
    head.locator("button").click()
    assert column(page, 2) == [first[2], first[0], first[3], first[1]]
    expect(head).to_have_attribute("aria-sort", "ascending")
    page.keyboard.press("Enter")
    assert column(page, 2) == [first[1], first[3], first[0], first[2]]
    expect(head).to_have_attribute("aria-sort", "descending")
    page.keyboard.press("Enter")
    assert column(page, 2) == first
    assert page.locator("#embedded th[aria-sort]").count() == 0


def test_empty_cells_stay_last_and_thousands_are_numbers(page: Page) -> None:
    button = page.locator("#embedded th >> nth=2 >> button")
    button.click()
    assert column(page, 3) == ["40", "500", "1,579", ""]
    button.click()
    assert column(page, 3) == ["1,579", "500", "40", ""]
    page.locator("#embedded th >> nth=0 >> button").click()
    assert column(page, 1)[1:] == ["GRPO", "OAR-G", "OAR-P"]
    assert page.locator("#embedded th >> nth=2").get_attribute("aria-sort") is None


def test_pictures_are_drawn_and_grow(page: Page) -> None:
    sizes = page.locator("figure img").evaluate_all("all => all.map((one) => one.complete && one.naturalWidth)")
    assert sizes == [40] * 4
    figure, image = page.locator("#gating figure"), page.locator("#gating figure img")
    image.click()
    expect(figure).to_have_class("large")
    page.keyboard.press("Enter")
    expect(figure).not_to_have_class("large")


def test_what_is_folded_opens_by_click_by_address_and_on_paper(page: Page) -> None:
    part = page.locator("#embedded--pass-1")
    assert not part.evaluate("one => one.open")
    page.evaluate("location.hash = 'embedded--pass-1'")
    page.wait_for_function("document.getElementById('embedded--pass-1').open")
    page.click("#unfold")
    assert page.locator("main details:not([open])").count() == 0
    page.click("#unfold")
    assert not part.evaluate("one => one.open")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("main details:not([open]):not(.source)").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not part.evaluate("one => one.open")
    page.emulate_media(media="print")
    expect(page.locator("nav")).to_be_hidden()
    expect(page.locator("iframe")).to_be_hidden()


def test_contents_lead_and_say_where_the_reader_is(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.click("nav a[href='#gating']")
    expect(page.locator("nav [aria-current]")).to_have_text("The gate")
    expect(page.locator("#gating h3")).to_be_in_viewport()
    page.click("nav a[href='#summary']")
    expect(page.locator("nav [aria-current]")).to_have_text("In short")


def test_the_inspector_works_in_its_frame_and_stays_there(page: Page) -> None:
    page.evaluate("location.hash = 'inspector'")
    frame = page.frame_locator("iframe")
    expect(frame.locator("article")).to_have_count(2)
    frame.locator("#reward").select_option("wrong")
    expect(frame.locator("#summary")).to_contain_text("1 of 2 completions")
    (inside,) = [one for one in page.frames if one.parent_frame is not None]
    assert inside.evaluate("origin") == "null"
    assert (
        inside.evaluate("(() => { try { return String(parent.document); } catch { return 'refused'; } })()")
        == "refused"
    )


def test_text_of_a_page_stays_text(page: Page) -> None:
    expect(page).to_have_title("OAR: what was measured")
    assert page.locator("script").count() == 1
    assert page.locator("img:not([data-file])").count() == 0
    # And were there a hole, the policy would keep what came through from running.
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<svg onload=\"document.title=1\">')")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'document.title = 2'}))"
    )
    page.wait_for_timeout(100)
    expect(page).to_have_title("OAR: what was measured")


@pytest.mark.parametrize("width", [1300, 420])
def test_it_is_as_wide_as_the_window(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.click("#unfold")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_and_dots_be_told_apart(page: Page, dark: bool, tmp_path: Path) -> None:
    if dark:
        page.click("#theme")
    colours = page.evaluate(
        """() => Object.fromEntries(["main p", "main a", ".source", ".absent", ".follows p", ".answer a"].map((one) => {
            const element = document.querySelector(one);
            let behind = element;
            const painted = (of) => getComputedStyle(of).backgroundColor;
            while (behind.parentElement && painted(behind) === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
            return [one, [getComputedStyle(element).color, painted(behind)]];
        }))"""
    )
    for name, (text, background) in colours.items():
        light = sorted(luminance(rgb(colour)) for colour in (text, background))
        assert (light[1] + 0.05) / (light[0] + 0.05) >= 4.5, name
    assert (luminance(rgb(colours["main p"][1])) < 0.1) == dark
    # A control is hollow: its form tells it apart, whatever its colour.
    full, hollow = (
        page.locator(f".chart .{kind} >> nth=0").evaluate("one => getComputedStyle(one).fill")
        for kind in ("full", "hollow")
    )
    panel = page.locator(".answer >> nth=0").evaluate("one => getComputedStyle(one).backgroundColor")
    assert hollow == panel != full
    page.screenshot(path=tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000
