import base64
import hashlib
import html
import io
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf
from PIL import Image, ImageChops

from experiments.report.__main__ import ReportConfig, SectionConfig
from experiments.report.charts import Dot, Panel, Row, dot_chart
from experiments.report.folders import slug
from experiments.report.page import Report, Section, report_html
from experiments.report.summary import does_it_matter, summary, which_tokens
from oar.analysis.reports.page import UNWRITTEN
from oar.common.errors import ConfigError, DataError
from oar.config import validated
from oar.statistics.intervals import ENDS
from tests.experiments.made_results import CONCLUSION, SECTIONS, make_results, recall_table, write_folder


class Elements(HTMLParser):
    """Every element with its attributes, and the text under those that have an id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_results(tmp_path_factory.mktemp("made") / "results")


@pytest.fixture(scope="module")
def report(results: Path) -> Report:
    return report_html(results, results / "report.html", SECTIONS, "Made by a test.")


def article(report: Report, slug: str) -> str:
    return report.text.split(f'<article class="page" id="{slug}">')[1].split("</article>")[0]


def test_every_picture_is_in_it_to_the_pixel(results: Path, report: Report) -> None:
    shown = {image["data-file"]: str(image["src"]) for image in Elements(report.text).of("img")}
    files = {path.name: path for path in results.glob("*/*.png")}
    assert sorted(shown) == sorted(files) == ["gating.png", "recall.png", "second.png", "unnamed.png"]
    for name, source in shown.items():
        head, content = source.split(",")
        assert head in ("data:image/webp;base64", "data:image/png;base64")
        inside, original = (
            Image.open(file).convert("RGBA") for file in (io.BytesIO(base64.b64decode(content)), files[str(name)])
        )
        assert inside.size == original.size
        assert all(low == high == 0 for low, high in ImageChops.difference(inside, original).getextrema())
    assert article(report, "recall").count("<figcaption>") == 3
    assert "<em>recall</em>" not in report.text  # the caption stands once


def test_nothing_is_loaded_and_nothing_runs_but_its_own(report: Report) -> None:
    elements = Elements(report.text)
    assert len(elements.of("script")) == 1
    assert all(str(image["src"]).startswith("data:") for image in elements.of("img"))
    assert not [attributes for _, attributes in elements.found if any(name.startswith("on") for name in attributes)]
    assert not elements.of("link")
    assert [frame["sandbox"] for frame in elements.of("iframe")] == ["allow-scripts"]
    (policy,) = (str(meta["content"]) for meta in elements.of("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'; img-src data:; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "&lt;script&gt;document.title='owned'" in article(report, "odd-one")
    assert "{{js}}" in article(report, "embedded")  # what a page says is not filled in


def test_links_lead_into_the_report_or_beside_it(report: Report) -> None:
    text = article(report, "embedded")
    assert '<a href="#recall" rel="noreferrer">ran</a>' in text
    assert '<a href="#gating" rel="noreferrer">the gate</a>' in text
    assert '<a href="../docs/METHOD.md" rel="noreferrer">docs</a>' in text
    assert "<a>mail</a>" in text
    assert "[bad](javascript:alert(1))" in text


def test_chapters_stand_in_their_order(report: Report) -> None:
    places = [
        report.text.index(f'id="{name}"')
        for name in ("summary", "inspector", "recall", "embedded", "gating", "odd-one", "missing")
    ]
    assert places == sorted(places)
    contents = report.text.split("<nav")[1].split("</nav>")[0]
    linked = re.findall(r'href="#([^"]+)"', contents)
    for name in linked:
        assert f'id="{name}"' in report.text, name
    assert "embedded--what-the-paper-reports" in linked
    assert "error_location <small>not measured</small>" in contents
    assert "More results" in contents


def test_what_is_missing_or_broken_is_named(report: Report) -> None:
    said = "\n".join(report.notes)
    for sentence in (
        "error_location: has not been measured yet. It asks: Where?",
        "empty must hold one page (a file .md), but has none",
        "two must hold one page (a file .md), but has 2 of them: more.md, two.md",
        "bytes/bytes.md cannot be read",
        "untabled has no table beside its page",
        "odd_one does not say where its numbers come from",
        "odd_one/odd_one.md shows a picture from elsewhere (../recall/recall.png)",
        "odd_one/odd_one.md shows a picture from elsewhere (https://example.org/x.png)",
        "odd_one/odd_one.md shows gone.png, which is no picture here (FileNotFoundError)",
        "“What does it cost?” has no answer on top",
    ):
        assert sentence in said
        assert sentence in report.text
    assert not any("gating" in note or "reference" in note or "inspector" in note for note in report.notes)
    assert 'id="two"' not in report.text


def test_a_study_says_its_conclusion_first_and_its_table_in_sight(report: Report) -> None:
    text = article(report, "gating")
    asked, follows, ran, table = (
        text.index(part) for part in ("What does the gate do?", "<strong>alone</strong>", "What was run.", "60.1")
    )
    assert asked < follows < ran < table
    assert text.count("<h4>What follows</h4>") == 1
    assert "what follows --" not in text
    assert "commit c0ffee123, 2026-01-02" in text
    assert "&quot;git_commit&quot;: &quot;c0ffee123456&quot;" in text
    assert "gating/gating.parquet" in text


def test_a_page_nobody_has_read_is_said_to_be_one(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    write_folder(folder / "gating", (results / "gating" / "gating.md").read_text().replace(CONCLUSION, UNWRITTEN))
    found = report_html(folder, folder / "report.html", SECTIONS, "")
    assert "gating: nobody has written down what follows from its numbers." in found.notes


def test_every_table_row_of_a_page_is_there(report: Report) -> None:
    text = article(report, "embedded")
    assert text.count("<tr>") == 5  # heading and four; the table of the provenance is replaced by the whole record
    assert "<td>1,579</td>" in text
    assert "<h5>Deeper</h5>" in article(report, "recall")
    first, second = re.findall(r'<details class="part" id="([^"]+)"( open)?', text)
    assert (first[0], first[1]) == ("embedded--avg-4", " open")
    assert second[1] == ""


def test_the_summary_reads_its_numbers(results: Path) -> None:
    answers, missing = summary(results)
    assert [answer.question for answer in answers] == [
        "Which tokens got the credit?",
        "Does it matter?",
        "What became of the paper's claims?",
    ]
    tokens, matter, claims = answers
    assert tokens.short == "OAR-P and OAR-G are better than chance at the tokens that matter."
    assert "In 598 completions of model <code>trained</code>" in tokens.sentences[0]
    assert "73% (OAR-P) and 60% (OAR-G) of the pairs; 50% is chance" in tokens.sentences[0]
    assert "55% (OAR-P) and 25% (OAR-G) of 196; 20% is chance. OAR-P finds it most often: 55%" in tokens.sentences[1]
    assert matter.short == "No method is shown to be above GRPO."
    assert matter.sentences[0] == (
        "<b>Methods</b>: below: OAR-G (avg@k -1.5 [-2.1, -0.7]); not told apart: OAR-P (avg@k -0.5 [-1.2, +0.3])."
    )
    assert matter.sentences[1] == "<b>Controls</b>: above: shuffled (control) (avg@k +1.2 [+0.4, +2.2])."
    assert "With 3 seeds, only differences of 1.6 to 1.6 points" in matter.sentences[-1]
    assert "9 (4 to 310)" in matter.table
    assert claims.short == "0 of the 1 tests that could be made bear a claim out."
    assert "✗ not reproduced" in claims.table
    assert len(missing) == 1


def test_a_question_that_several_folders_answer_says_which(results: Path, tmp_path: Path) -> None:
    several = shutil.copytree(results, tmp_path / "several")
    sweep = write_folder(several / "tau", "# A sweep")
    for name in ("differences.csv", "claims.csv"):
        shutil.copy(several / "embedded" / name, sweep / name)
    assert [answer.question for answer in summary(several)[0]] == [
        "Which tokens got the credit?",
        "Does it matter?",
        "Does it matter? (tau)",
        "What became of the paper's claims?",
        "What became of the paper's claims? (tau)",
    ]


def test_above_and_below_need_an_interval_beside_zero(results: Path) -> None:
    table = pd.read_csv(results / "embedded" / "differences.csv")

    def told(low: float, high: float) -> tuple[str, str]:
        frame = table[table["method"] == "oar_g"].assign(low=low, high=high)
        answer = does_it_matter("?", frame, "embedded/differences.csv")
        assert answer is not None
        return answer.short, answer.sentences[0].split(": ")[1]

    assert told(0.1, 2.0) == ("OAR-G is above GRPO.", "above")
    assert told(0.0, 2.0) == ("No method is shown to be above GRPO.", "not told apart")
    assert told(-2.0, -0.1)[1] == "below"
    assert told(float("nan"), float("nan"))[1] == "without interval"


def test_a_studys_differences_are_read_as_well() -> None:
    known = {"metric": "avg@k", "seeds": 3, "seeds_needed": None, "low": 0.5, "high": 2.0, "difference": 1.0}
    known |= dict.fromkeys(ENDS[3:]) | {"interval_over": "problems and seeds"}
    rows = [known | {"condition": "default", "arm": arm} for arm in ("oar_g", "oracle_causal")]
    answer = does_it_matter("Matter?", pd.DataFrame(rows), "controls/differences.csv")
    assert answer is not None
    assert answer.short == "OAR-G is above the reference."
    assert "oracle_causal (oracle) (avg@k +1.0 [+0.5, +2.0])" in answer.sentences[1]
    rows.append(known | {"condition": "long", "arm": "oar_g", "low": -0.5, "seeds_needed": 1200})
    answer = does_it_matter("Matter?", pd.DataFrame(rows), "pays/differences.csv")
    assert answer is not None
    assert "above: OAR-G, default (" in answer.sentences[0]
    assert "not told apart: OAR-G, long (" in answer.sentences[0]
    assert "<td>1,200</td>" in answer.table


def test_a_signal_no_better_than_chance_is_called_that() -> None:
    table = recall_table()
    chance = table[table["signal"] == "uniform"].set_index(["model", "metric"])["value"]
    worse = table.assign(
        low=[chance[model, metric] - 0.01 for model, metric in zip(table["model"], table["metric"], strict=True)]
    )
    answer = which_tokens("?", worse, "recall/recall.csv")
    assert answer is not None
    assert answer.short == "OAR does no better than chance."


def test_tables_of_another_form_give_no_answer(tmp_path: Path) -> None:
    for folder, name in (
        ("recall", "recall.csv"),
        ("embedded", "differences.csv"),
        ("importance-cost", "bench.csv"),
        ("embedded", "claims.csv"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text("other,columns\n1,2\n")
    answers, missing = summary(tmp_path)
    assert answers == []
    assert len(missing) == 4
    (tmp_path / "recall" / "recall.csv").write_text("")
    assert "recall/recall.csv does not hold" in summary(tmp_path)[1][0]


def test_dots_stand_where_their_values_are() -> None:
    text = dot_chart(
        [Row("one", [Dot(0.5, 0.0, 1.0)]), Row("two <", [Dot(1.0, None, None)], hollow=True), Row("three", [None])],
        [Panel("p", 0.0)],
        "about",
    )
    assert re.findall(r'<circle class="(\w+)" cx="([\d.]+)"', text) == [("full", "330.0"), ("hollow", "470.0")]
    assert re.findall(r'class="reach" x1="([\d.]+)" x2="([\d.]+)"', text) == [("190.0", "470.0")]
    assert re.findall(r'class="mark" x1="([\d.]+)"', text) == ["190.0"]
    assert re.findall(r'class="tick"[^>]*>([^<]+)<', text) == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert "two &lt;" in text
    assert dot_chart([Row("one", [Dot(2.0, 2.0, 2.0)])], [Panel("p", 2.0)], "").count("<circle") == 1


def test_the_same_results_give_the_same_text(results: Path, report: Report) -> None:
    assert report_html(results, results / "report.html", SECTIONS, "Made by a test.").text == report.text


def test_no_results_are_no_report(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must be a folder of results"):
        report_html(tmp_path / "none", tmp_path / "report.html", SECTIONS, "")
    (tmp_path / "results" / "empty").mkdir(parents=True)
    with pytest.raises(DataError, match=r"has none: run an experiment first\. empty must hold one page"):
        report_html(tmp_path / "results", tmp_path / "report.html", SECTIONS, "")


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def chapters() -> list[SectionConfig]:
    """Those of conf/report.yaml."""
    config = OmegaConf.load(ROOT / "conf" / "report.yaml")
    for key in ("defaults", "hydra"):
        del config[key]
    return validated(config, ReportConfig).sections


def test_the_committed_results_have_their_chapters(chapters: list[SectionConfig]) -> None:
    named = {slug(name) for section in chapters for name in section.experiments}
    found = {slug(path.parent.name) for path in (ROOT / "results").glob("*/*.md")}
    assert found <= named, "conf/report.yaml says where each experiment stands"
    with pytest.raises(ConfigError, match="fault-drills more often"):
        ReportConfig("a", "b", [SectionConfig("c", {"fault-drills": "", "fault_drills": ""})])


def with_pixels(text: str) -> str:
    """The page with each picture's pixels in place of its bytes, which another machine may pack otherwise."""

    def pixels(found: re.Match[str]) -> str:
        with Image.open(io.BytesIO(base64.b64decode(found[1]))) as image:
            return hashlib.sha256(image.convert("RGBA").tobytes()).hexdigest()

    return re.sub(r"data:image/(?:png|webp);base64,([A-Za-z0-9+/=]+)", pixels, text)


def test_the_committed_report_is_of_the_committed_results(chapters: list[SectionConfig]) -> None:
    """It is made by hand, and somebody forgets."""
    committed = ROOT / "results" / "report.html"
    text = committed.read_text(encoding="utf-8")
    made = html.unescape(re.search(r"Made by [^<]*", text)[0])
    sections = [Section(section.title, section.experiments) for section in chapters]
    again = report_html(ROOT / "results", committed, sections, made).text
    assert with_pixels(again) == with_pixels(text), "make report, and commit it"
