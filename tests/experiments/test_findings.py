"""results/README.md is what the committed tables say."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from experiments.findings import PAGE, TEMPLATE, findings
from experiments.shared.committed import committed
from experiments.shared.tables import Tables
from oar.analysis.reports.page import fixed
from oar.common.errors import DataError
from oar.common.provenance import ROOT
from oar.tasks.embedded.teaching import build_model
from oar.tasks.words import build_tokenizer
from oar.tasks.words.teaching import TeachConfig

RESULTS = ROOT / "results"
COMMITTED = Tables(RESULTS)
NOT_NUMBERS = (
    r"Qwen2(\.5-(7|0\.5)B)?|SmolLM2(-135M)?|MATH500|GSM8K|"
    r"temperature 1|bfloat16|float32|table1\.md|README\.md\.j2|0\.5 M"
)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The tables, to be changed."""
    files = [RESULTS / TEMPLATE, *RESULTS.glob("*/**/*.csv"), *RESULTS.rglob("provenance.json")]
    for file in files:
        copy = tmp_path / file.relative_to(RESULTS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return tmp_path


def ask(results: Path, question: str) -> str:
    (results / TEMPLATE).write_text(f"{{{{ {question} }}}}", encoding="utf-8")
    return findings(results)


def test_the_committed_page_is_the_one_of_the_committed_tables() -> None:
    assert (RESULTS / PAGE).read_text(encoding="utf-8") == findings(RESULTS)


def test_its_links_point_at_files() -> None:
    for target in re.findall(r"\]\((?!http)([^)]+)\)", (RESULTS / PAGE).read_text(encoding="utf-8")):
        assert (RESULTS / target).exists(), target


def test_no_number_is_typed_in_the_template() -> None:
    text = (RESULTS / TEMPLATE).read_text(encoding="utf-8")
    filled_in, code, link = r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", r"`[^`]+`", r"\]\([^)]+\)"
    left = re.sub(f"{filled_in}|{code}|{link}|{NOT_NUMBERS}", "", text, flags=re.DOTALL)
    assert re.findall(r".*\d.*", left) == []


def test_a_changed_table_changes_the_page(results: Path) -> None:
    before = (RESULTS / PAGE).read_text(encoding="utf-8").splitlines()
    table = pd.read_csv(results / "table1" / "differences.csv")
    chosen = (table["method"] == "oar_g") & (table["metric"] == "avg@k") & (table["benchmark"] == "mean")
    table.loc[chosen, ["difference", "low", "high"]] = [4.44, 1.0, 7.0]
    table.to_csv(results / "table1" / "differences.csv", index=False)
    new = [line for line in findings(results).splitlines() if line not in before]
    assert "4.4 points above GRPO (1.0 to 7.0 above)" in "\n".join(new)
    assert "told apart from GRPO: OAR-G" in "\n".join(new)
    assert len(new) <= 3


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ('number("recall/none.csv")', "none.csv, which is not there"),
        ('number("bench_precision/bench_precision.csv", "spaerman")', "has no column spaerman; did you mean spearman?"),
        (
            'number("bench_precision/bench_precision.csv", "spearman", signal="oar_gm")',
            "no signal oar_gm; did you mean oar_g?",
        ),
        (
            'mean("bench_precision/bench_precision.csv", "spearman", signal=["oar_g", "none"])',
            "there is no signal none",
        ),
        (
            'number("bench_precision/bench_precision.csv", "spearman", signal="oar_g")',
            "has 12 rows with {'signal': 'oar_g'}, but one",
        ),
        ('mean("gradient_signal/gradient_signal.csv", "batch", metric="signal_share")', "is blank in batch"),
        ('interval("bench_precision/bench_precision.csv", "spearman")', "has no interval of spearman"),
        ('provenance("recall", "moon")', "has no moon"),
        ("numbr(1)", "'numbr' is undefined"),
        ("number(", "cannot be filled in"),
    ],
)
def test_what_is_not_there_is_refused(results: Path, question: str, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        ask(results, question)


def test_how_values_are_said(results: Path) -> None:
    pd.DataFrame(
        {
            "arm": ["oar_g", "oar_p", "random"],
            "seed": [1, 2, 2],
            "difference": [-1.0, 0.24, 3.0],
            "low": [-2.0, -0.04, 1.0],
            "high": [-0.5, 0.5, 4.0],
            "p_holm": [0.2, 1.0, 0.01],
        }
    ).to_csv(results / "made.csv", index=False)
    assert ask(results, 'difference("made.csv", arm="oar_g")') == "1.0 points below GRPO (2.0 to 0.5 below)"
    assert ask(results, 'difference("made.csv", arm="oar_p")') == "0.2 points above GRPO (0.0 below to 0.5 above)"
    assert ask(results, 'interval("made.csv", "difference", arm="oar_p", digits=1)') == "0.2 (0.0 to 0.5)"
    assert ask(results, 'apart("made.csv", "arm") | listed') == "OAR-G and random (control)"
    assert ask(results, 'significant("made.csv", "arm") | listed') == "random (control)"
    assert ask(results, 'apart("made.csv", "arm", arm="oar_p") | listed') == "none"
    assert ask(results, 'span("made.csv", "difference")') == "-1.0 to 3.0"
    assert ask(results, 'span("made.csv", "difference", by=["seed"])') == "-1.0 to 1.6"
    assert ask(results, 'span("made.csv", "difference", arm="oar_g")') == "-1.0"
    assert ask(results, 'count("made.csv", "seed")') == "2"
    assert ask(results, 'correlation("made.csv", "difference", "high") | fixed') == "1.0"
    assert fixed(-0.04) == "0.0"


def test_a_measurement_within_another_folder_has_a_machine_of_its_own(tmp_path: Path) -> None:
    for folder, cpu, gpu in (("a", "one", None), ("a/b", "other", None), ("c", "one", None), ("d", "one", "big")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "provenance.json").write_text(json.dumps({"cpu": cpu, "gpu": gpu}))
    (tmp_path / "e").mkdir()
    joined = {"cpu": ["other", "one", "other"], "gpu": None, "study": {"beside": [{"cpu": "one"}, {"cpu": "one"}]}}
    (tmp_path / "e/provenance.json").write_text(json.dumps(joined))
    found = Tables(tmp_path).machines()
    assert found == {"one": ["a", "c", "e"], "other": ["a/b", "e"], "big": ["d"]}


class TestWords:
    """Words of the template that stand for numbers: where one of these fails, the template must say something else."""

    def test_the_model_has_half_a_million_parameters(self) -> None:
        assert fixed(build_model(TeachConfig(), build_tokenizer()).num_parameters() / 1e6) == "0.5"

    def test_one_table_alone_has_runs_of_a_gpu(self) -> None:
        folders = [file.parent.relative_to(RESULTS).as_posix() for file in RESULTS.rglob("provenance.json")]
        gpus = {folder: COMMITTED.provenance(folder, "gpu") for folder in folders}
        assert [folder for folder, gpu in gpus.items() if gpu is not None] == ["smollm2/table1"]

    @pytest.mark.parametrize("folder", ["table1", "controls", "pays", "suppression", "written", "dynamics"])
    def test_nothing_is_shown_to_beat_grpo(self, folder: str) -> None:
        table = pd.read_csv(RESULTS / folder / "differences.csv")
        assert (table[table["metric"] == "avg@k"]["low"] <= 0).all()

    @pytest.mark.parametrize("metric", ["avg@k", "pass@1"])
    def test_every_method_gains_over_the_base_model(self, metric: str) -> None:
        base, *methods = (
            COMMITTED.mean("table1/table1.csv", method=method, benchmark="mean", metric=metric)
            for method in ("base", "grpo", "oar_g", "oar_p")
        )
        assert base < min(methods)

    @pytest.mark.parametrize("model", ["base", "trained"])
    def test_which_signals_find_causal_tokens(self, model: str) -> None:
        def causal(signal: str) -> float:
            of = {"model": model, "signal": signal, "split": "all", "metric": "causal_auc"}
            return COMMITTED.number("recall/recall.csv", **of)

        alike = [causal(signal) for signal in ("oar_p", "oar_p_knockout", "oar_p_routes", "oar_gn")]
        assert max(alike) - min(alike) < 0.05 < min(alike) - 0.5
        assert 0 < min(alike) - causal("oar_g") < 0.05
        assert 0.5 < causal("entropy") < 0.6
        assert max(causal("position"), causal("random")) < 0.51

    def test_blame_goes_to_the_consequences(self) -> None:
        before, error, after = (
            COMMITTED.number(
                "proxy_mismatch/proxy_mismatch.csv",
                model="base",
                split="wrong",
                signal="oar_p",
                metric=f"{where}_weight",
            )
            for where in ("before", "error", "after")
        )
        assert before < error < after

    def test_the_gate(self) -> None:
        levels = pd.read_csv(RESULTS / "sweep_gating" / "levels.csv").set_index(["gating.tau", "gating.beta"])
        assert (levels["ess_ratio"].idxmax(), levels["ess_ratio"].idxmin()) == ((0.2, 1), (0.9, 4))
        for ablation, name in (("gating", "gating.name"), ("probe", "probe.name")):
            assert COMMITTED.apart(f"ablation_{ablation}/levels.csv", name, "difference avg@k") == []

    def test_the_order_of_means_that_credit_predicts(self) -> None:
        means = [difference("controls", arm) for arm in ("oar_p_routes", "shuffled", "inverted")]
        assert means == sorted(means, reverse=True)

    @pytest.mark.parametrize("oracle", ["oracle_causal", "oracle_error"])
    def test_oracles_lose_more_the_further_apart_their_weights_are(self, oracle: str) -> None:
        means = [difference("suppression", f"{oracle}{gate}") for gate in ("_boost", "_suppress", "")]
        assert means == sorted(means, reverse=True)

    def test_marked_signs_take_the_loss_away(self) -> None:
        assert difference("written", "oracle_causal") < -3 < -0.5 < difference("written", "oracle_written")

    def test_what_stands_in_for_exact_oar_p(self) -> None:
        conditions = pd.read_csv(RESULTS / "fidelity" / "fidelity.csv")["condition"].unique()
        lead = {one: fidelity("oar_gn - oar_g", one) for one in conditions}
        assert set(sorted(lead, key=lead.__getitem__)[:2]) == {"wide", "as_joint"}
        assert min(lead.values()) > 0
        assert round(fidelity("routes_2"), 2) >= round(fidelity("window_16"), 2)
        for untrained in ("untrained", "tied_untrained"):
            assert 0 < fidelity("routes_4", untrained) - fidelity("window_4", untrained) < 0.03


def difference(folder: str, arm: str) -> float:
    return COMMITTED.number(f"{folder}/differences.csv", "difference", arm=arm, condition="default", metric="avg@k")


def fidelity(signal: str, condition: str = "base") -> float:
    of = {"signal": signal, "condition": condition, "split": "all", "metric": "spearman"}
    return COMMITTED.number("fidelity/fidelity.csv", **of)


def test_a_folder_without_the_text_of_the_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"README\.md\.j2 is not there: correct results"):
        findings(tmp_path)


def test_committed_results_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert committed("results/league/league.csv").is_file()
    (tmp_path / "results").mkdir()
    assert committed("results") == Path("results")  # one's own comes first
