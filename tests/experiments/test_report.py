import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

from experiments.report.__main__ import ReportConfig
from experiments.report.page import Report, Section, report_html
from experiments.report.summary import does_it_matter, summary, what_became_of_the_claims, what_it_costs, which_tokens
from oar.analysis.claims.claims import TOO_FEW
from oar.analysis.reports.page import UNWRITTEN
from oar.common.errors import ConfigError, DataError
from oar.config import validated
from oar.statistics.intervals import ENDS
from tests.experiments.made_results import ATTACK, CONCLUSION, SECTIONS, make_results, recall_table, write_folder
from tests.experiments.test_inspector import Elements

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_results(tmp_path_factory.mktemp("made") / "results")


@pytest.fixture(scope="module")
def report(results: Path) -> Report:
    return report_html(results, results.parent / "pages" / "report.html", SECTIONS, "Made by a test.")


def article(report: Report, name: str) -> str:
    return report.text.split(f'<h3 id="{name}">')[1].split("<h3")[0].split("<h2")[0]


def test_every_link_and_picture_leads_to_a_file_or_into_the_page(results: Path, report: Report) -> None:
    elements = Elements(report.text)
    folder = results.parent / "pages"
    folder.mkdir()
    ids = {one.get("id") for one in elements.attributes}
    pictures = [str(one["src"]) for one in elements.attributes if "src" in one]
    assert sorted(Path(source).name for source in pictures) == ["gating.png", "recall.png", "second.png", "unnamed.png"]
    links = [*(str(one["href"]) for one in elements.attributes if "href" in one), *pictures]
    assert {"../results/recall/recall.md#numbers", "../docs/METHOD.md", "../results/table1/claims.csv"} <= set(links)
    assert "../results/inspect_credit/step_000001.html" in links
    for link in links:
        if link.startswith("#"):
            assert link[1:] in ids, link
        elif link != "../docs/METHOD.md":
            assert (folder / link.split("#")[0]).is_file(), link
    assert "<figcaption>how well</figcaption>" in article(report, "recall")


def test_text_of_results_stays_text(report: Report) -> None:
    elements = Elements(report.text)
    assert not {"script", "iframe", "link"} & set(elements.tags)
    assert not [name for one in elements.attributes for name in one if name.startswith("on")]
    assert not [one for one in elements.attributes if str(one.get("href")).startswith("javascript")]
    (policy,) = (one["content"] for one in elements.attributes if "http-equiv" in one)
    assert str(policy).startswith("default-src 'none'; img-src 'self' file:;")
    # in the title, the conclusion, the claims and the provenance of Table 1, and in a title below
    assert report.text.count("&lt;script&gt;document.title=") == 5
    assert "{{ made }}" in report.text, "what a page says is not filled in"


def test_chapters_stand_in_their_order(report: Report) -> None:
    names = re.findall(r'<h3 id="([^"]+)"', report.text)
    assert names == ["inspect_credit", "recall", "table1", "gating", "odd_one", "untabled"]
    assert re.findall(r'<h2 id="[^"]+">([^<]+)', report.text) == [
        "Which tokens?",
        "Does it matter?",
        "More results",
        "What is missing",
    ]
    assert "<b>error_location</b> has not been measured yet. Where?" in report.text


def test_what_is_missing_or_broken_is_named(report: Report) -> None:
    for sentence in (
        "error_location: has not been measured yet. It asks: Where?",
        "empty must hold one page (a file .md), but has none",
        "two must hold one page (a file .md), but has 2 of them: more.md, two.md",
        "bytes/bytes.md cannot be read",
        "untabled has no table beside its page",
        "odd_one does not say where its numbers come from",
        "odd_one/odd_one.md shows a picture from elsewhere (../recall/recall.png)",
        "odd_one/odd_one.md shows a picture from elsewhere (https://example.org/x.png)",
        "odd_one/odd_one.md shows gone.png, which is not there",
        "“What does it cost?” has no answer on top",
    ):
        assert sentence in "\n".join(report.notes)
        assert sentence in report.text
    assert not any("gating" in note or "reference" in note or "inspect_credit" in note for note in report.notes)


def test_a_page_shows_what_people_concluded_and_where_its_numbers_come_from(report: Report) -> None:
    text = article(report, "gating")
    assert "What does the gate do?" in text
    assert "<p>Boost <strong>alone</strong> is enough.</p>" in text
    assert "Measured by python -m experiments.x, commit c0ffee123, 2026-01-02" in text
    assert "gating/gating.parquet" in text
    assert "Where these numbers come from is not recorded." in article(report, "odd_one")


def test_a_page_nobody_has_read_is_said_to_be_one(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    write_folder(folder / "gating", (results / "gating" / "gating.md").read_text().replace(CONCLUSION, UNWRITTEN))
    found = report_html(folder, folder / "report.html", SECTIONS, "")
    assert "gating: nobody has written down what follows from its numbers." in found.notes


def test_the_summary_reads_its_numbers(results: Path) -> None:
    answers, missing = summary(results)
    assert [answer.question for answer in answers] == [
        "Which tokens got the credit?",
        "Does it matter?",
        "What became of the paper's claims?",
    ]
    tokens, matter, claims = answers
    assert tokens.told.short == "OAR-P and OAR-G are better than chance at the tokens that matter."
    assert tokens.told.line == (
        "AUC of causal tokens: OAR-P 0.73 [0.71, 0.75]; OAR-G 0.60 [0.58, 0.62]; uniform (chance) 0.50 [0.48, 0.52]."
    )
    assert [answer.told.number for answer in answers] == [
        "AUC 0.73 [0.71, 0.75] (OAR-P)",
        "-1.5 [-2.1, -0.7] points (OAR-G)",
        "0 of 1",
    ]
    assert list(tokens.told.table) == [
        "signal, model trained",
        "AUC of causal tokens [95 %], 598 completions",
        "first error in top fifth [95 %], 196 wrong ones",
    ]
    assert tokens.told.table.iloc[0].tolist() == ["OAR-P", "0.73 [0.71, 0.75]", "0.55 [0.53, 0.57]"]
    assert matter.told.short == "No method is shown to be above GRPO."
    assert matter.told.line == "avg@k, points: OAR-G -1.5 [-2.1, -0.7]; OAR-P -0.5 [-1.2, +0.3]."
    assert matter.told.table["shown"].tolist() == ["below", "not told apart", "above"]
    first = matter.told.table.iloc[0].tolist()
    assert first == ["OAR-G", "method", "avg@k", "-1.5 [-2.1, -0.7]", "below", 3, "9 (4 to 310)", "1.6"]
    assert claims.told.short == "0 of the 1 tests that could be made bear a claim out."
    assert claims.told.line.startswith("2 tests: 0 reproduced")
    assert claims.told.table.to_numpy().tolist() == [
        ["✗ not reproduced", f"A > B {ATTACK}", "avg@k", "-1.5 [-2, -1] points", "1, 2"]
    ]
    assert len(missing) == 1


def test_a_question_that_several_folders_answer_says_which(results: Path, tmp_path: Path) -> None:
    several = shutil.copytree(results, tmp_path / "several")
    sweep = write_folder(several / "tau", "# A sweep")
    for name in ("differences.csv", "claims.csv"):
        shutil.copy(several / "table1" / name, sweep / name)
    assert [answer.question for answer in summary(several)[0]] == [
        "Which tokens got the credit?",
        "Does it matter?",
        "Does it matter? (tau)",
        "What became of the paper's claims?",
        "What became of the paper's claims? (tau)",
    ]


def test_results_in_folders_of_results_are_reported_too(results: Path, tmp_path: Path) -> None:
    """results/smollm2 holds pages of its own; an odd name of the folder above is no other address."""
    several = shutil.copytree(results, tmp_path / "all #1")
    write_folder(several / "recall" / "again", "# Recall again", table=False)
    shutil.copytree(several / "table1", several / "recall" / "table1")
    found = report_html(several, tmp_path / "pages" / "report.html", SECTIONS, "")
    names = re.findall(r'<h3 id="([^"]+)"', found.text)
    assert names[:4] == ["inspect_credit", "recall", "recall/again", "recall/table1"]
    assert '<a href="../all%20%231/recall/again/again.md">Recall again</a> (recall/again)</h3>' in found.text
    assert "Does it matter? (recall/table1)" in article(found, "recall/table1")
    assert "recall/again has no table beside its page (.csv or .parquet): its numbers cannot be checked." in found.notes


def test_above_and_below_need_an_interval_beside_zero(results: Path) -> None:
    table = pd.read_csv(results / "table1" / "differences.csv")

    def told(low: float, high: float) -> tuple[str, str]:
        frame = table[table["method"] == "oar_g"].assign(low=low, high=high)
        answer = does_it_matter(frame)
        assert answer is not None
        return answer.short, answer.table["shown"].item()

    assert told(0.1, 2.0) == ("OAR-G is above GRPO.", "above")
    assert told(0.0, 2.0) == ("No method is shown to be above GRPO.", "not told apart")
    assert told(-2.0, -0.1)[1] == "below"
    assert told(float("nan"), float("nan"))[1] == "without interval"


def test_a_studys_differences_are_read_as_well() -> None:
    known = {"metric": "avg@k", "seeds": 3, "seeds_needed": None, "low": 0.5, "high": 2.0, "difference": 1.0}
    known |= dict.fromkeys(ENDS[3:]) | {"interval_over": "problems and seeds", "p_holm": 0.01}
    rows = [known | {"condition": "default", "arm": arm} for arm in ("oar_g", "oracle_causal")]
    answer = does_it_matter(pd.DataFrame(rows))
    assert answer is not None
    assert answer.short == "OAR-G is above the reference."
    assert answer.table.iloc[1, :4].tolist() == ["oracle_causal (oracle)", "oracle", "avg@k", "+1.0 [+0.5, +2.0]"]
    rows.append(known | {"condition": "long", "arm": "oar_g", "low": -0.5, "seeds_needed": 1200})
    answer = does_it_matter(pd.DataFrame(rows))
    assert answer is not None
    assert answer.table[""].tolist() == ["OAR-G, default", "oracle_causal (oracle), default", "OAR-G, long"]
    assert answer.table["shown"].tolist() == ["above", "above", "not told apart"]
    assert answer.table["seeds to show it"].tolist() == ["more than 10,000", "more than 10,000", "1,200"]
    rows = [known | {"condition": "default", "arm": "oar_g", "p_holm": 0.08}]  # one of many that were compared
    rows += [known | {"condition": "default", "arm": arm, "metric": "pass@1"} for arm in ("oar_p", "grail", "shear")]
    answer = does_it_matter(pd.DataFrame(rows))
    assert answer is not None
    assert answer.short == "OAR-P (pass@1), grail (pass@1) and shear (pass@1) are above the reference."
    assert answer.table["shown"].iloc[0] == "above alone, not among so many"


def test_methods_are_told_of_before_oracles() -> None:
    known: dict[str, object] = {"condition": "default", "metric": "avg@k", "seeds": 3, "low": -0.5, "high": 2.0}
    known |= dict.fromkeys(ENDS[2:]) | {"seeds_needed": 9, "p_holm": 1.0}
    rows = [known | {"arm": "oracle_causal", "difference": 5.0}, known | {"arm": "oar_g", "difference": 1.0}]
    answer = does_it_matter(pd.DataFrame(rows))
    assert answer is not None
    assert (answer.short, answer.number) == (
        "No method is shown to be above the reference.",
        "+1.0 [-0.5, +2.0] points (OAR-G)",
    )
    answer = does_it_matter(pd.DataFrame(rows[:1]))
    assert answer is not None
    assert answer.short == "No oracle is shown to be above the reference."


def test_claims_that_no_seeds_suffice_for_are_not_counted_as_tests() -> None:
    known = {
        "paper_claim": "A > B",
        "metric": "avg@k",
        "value": 1.0,
        "low": 0.0,
        "high": 2.0,
        "unit": "x",
        "seeds": "1",
    }
    answer = what_became_of_the_claims(pd.DataFrame([known | {"verdict": TOO_FEW}] * 4))
    assert answer is not None
    assert answer.short == "For 4 there are too few seeds, or too short runs, to tell."
    assert answer.number == "no verdict"


def test_costs_are_read_in_steps_of_grpo() -> None:
    steps = {"grpo": (1.0, 1.0, 1.0), "oar_p": (2.8, 2.7, 2.9), "oar_g": (1.2, 1.1, 1.3)}
    metrics = ("step_ratio", "step_ratio_q1", "step_ratio_q3")
    rows = [
        {"part": "steps", "method": method, "metric": metric, "value": value}
        for method, values in steps.items()
        for metric, value in zip(metrics, values, strict=True)
    ]
    answer = what_it_costs(pd.DataFrame(rows))
    assert answer is not None
    assert answer.short == "A step takes 1.20 (OAR-G) to 2.80 (OAR-P) of GRPO's."
    assert answer.line.startswith("OAR-G 1.20 [1.10, 1.30], OAR-P 2.80 [2.70, 2.90]. Measured by itself")
    assert answer.number == "2.80 times GRPO's step (OAR-P)"
    # The field's methods stand in a part of their own, beside a GRPO of their own.
    more = [row | {"part": "methods", "method": "prime", "value": 2 * row["value"]} for row in rows[3:6]]
    more += [row | {"part": "methods"} for row in rows[:3]]
    answer = what_it_costs(pd.DataFrame(rows + more))
    assert answer is not None
    assert answer.short == "A step takes 1.20 (OAR-G) to 5.60 (prime) of GRPO's."
    assert what_it_costs(pd.DataFrame(rows[:3])) is None  # nothing but GRPO


def test_a_signal_no_better_than_chance_is_called_that() -> None:
    table = recall_table()
    chance = table[table["signal"] == "uniform"].set_index(["model", "metric"])["value"]
    worse = table.assign(
        low=[chance[model, metric] - 0.01 for model, metric in zip(table["model"], table["metric"], strict=True)]
    )
    answer = which_tokens(worse)
    assert answer is not None
    assert answer.short == "OAR does no better than chance."
    assert which_tokens(table[~table["signal"].isin(["oar_p", "oar_g"])]) is None  # nothing is known of it


def test_tables_of_another_form_give_no_answer(tmp_path: Path) -> None:
    for folder, name in (
        ("recall", "recall.csv"),
        ("table1", "differences.csv"),
        ("bench_importance", "bench_importance.csv"),
        ("table1", "claims.csv"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text("other,columns\n1,2\n")
    answers, missing = summary(tmp_path)
    assert answers == []
    assert len(missing) == 4
    (tmp_path / "recall" / "recall.csv").write_text("")
    assert "recall/recall.csv does not hold" in summary(tmp_path)[1][0]


def test_no_results_are_no_report(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must be a folder of results"):
        report_html(tmp_path / "none", tmp_path / "report.html", SECTIONS, "")
    (tmp_path / "results" / "empty").mkdir(parents=True)
    with pytest.raises(DataError, match=r"has none: run an experiment first\. empty must hold one page"):
        report_html(tmp_path / "results", tmp_path / "report.html", SECTIONS, "")


def committed() -> list[Section]:
    config = OmegaConf.load(ROOT / "conf" / "report.yaml")
    for key in ("defaults", "hydra"):
        del config[key]
    return validated(config, ReportConfig).sections


def test_the_committed_results_are_twelve_screens_at_most() -> None:
    """Of 900 pixels, as far as can be told without a browser: lines of 24 pixels of 105 letters, headings and rows with room."""
    results = ROOT / "results"
    text = report_html(results, results / "report.html", committed(), "").text.split("</style>")[1]
    folded = text
    while (shorter := re.sub(r"<details>(?:(?!<details>).)*?</details>", "", folded, flags=re.DOTALL)) != folded:
        folded = shorter
    assert "<img" in text
    assert "<img" not in folded, "pictures are folded away"
    blocks = [re.sub(r"<[^>]+>", "", block).strip() for block in re.split(r"</(?:p|h\d|tr|li|nav)>", folded)]
    height = sum(24 * -(-len(block) // 105) + 20 for block in blocks if block) + 30 * text.count(
        "<summary>What follows"
    )
    assert height < 12 * 900
    rows = text.split("<h2>In short</h2>")[1].split("</table>")[0].split("<tr>")[2:]
    assert rows
    assert all(row.count("<td>") == 3 and len(re.sub(r"<[^>]+>", "", row)) < 250 for row in rows), (
        "a line for each question"
    )


def test_the_committed_results_have_their_chapters() -> None:
    named = {name for section in committed() for name in section.experiments}
    found = {path.parent.name for path in (ROOT / "results").glob("*/*.md")}
    assert found <= named, "conf/report.yaml says where each experiment stands"
    with pytest.raises(ConfigError, match="recall more often"):
        ReportConfig("a", "b", [Section("c", {"recall": ""}), Section("d", {"recall": ""})])
