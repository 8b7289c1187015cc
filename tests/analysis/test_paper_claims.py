"""The paper's own claims: which there are, that they can be tested, and that no number of the paper passes for a measured one."""

import re
from pathlib import Path

import pandas as pd
import pytest

from oar.analysis.claims.claims import NOT_REPRODUCED, NOT_RUN, REFERENCE, REPRODUCED, WITHIN, Claim, load_claims
from oar.analysis.claims.ledger import ledger
from oar.analysis.claims.page import claims_section
from oar.analysis.reports.page import write_csv
from oar.common.errors import ConfigError, DataError
from oar.runs.folder import read_run
from tests.analysis.test_claims import FULL, PAPER, falling, pair
from tests.experiments.made_runs import make_run

ROOT = Path(__file__).parents[2]
PAPERS_NUMBERS = ("90.5", "75.8", "51.3", "92.4", "78.7", "53.7", "1.4", "4.2")
PAPERS_NUMBER = re.compile(rf"(?<![\d.])({'|'.join(map(re.escape, PAPERS_NUMBERS))})(?!\d)")


@pytest.fixture
def claims() -> dict[str, Claim]:
    return {one.id: one for one in load_claims()}


def test_every_value_of_the_paper_is_a_claim(claims: dict[str, Claim]) -> None:
    numbers = {name: one.target[0] for name, one in claims.items() if one.claim.startswith("Qwen2.5-7B: ")}
    assert numbers == {
        "Qwen2.5-7B, GRPO, GSM8K": 90.5,
        "Qwen2.5-7B, GRPO, MATH500": 75.8,
        "Qwen2.5-7B, GRPO, average_of_five": 51.3,
        "Qwen2.5-7B, OAR-G, GSM8K": 92.4,
        "Qwen2.5-7B, OAR-G, MATH500": 78.7,
        "Qwen2.5-7B, OAR-G, overhead": 1.4,
        "Qwen2.5-7B, OAR-P, average_of_five": 53.7,
        "Qwen2.5-7B, OAR-P, overhead": 4.2,
    }  # blanks claim nothing, and GRPO's 1.0 is a definition
    assert all(claims[name].needs == {"profile": "paper", "model.name": "qwen2_5_7b"} for name in numbers)
    assert claims["Qwen2.5-7B, GRPO, average_of_five"].sets == {
        "gsm8k": 1319, "math500": 500, "aime24": 30, "aime25": 30, "amc23": 40,
    }  # fmt: skip
    points, factors = ({claims[name].tolerance for name in numbers if name.endswith("overhead") == of} for of in (0, 1))
    assert (points, factors) == ({1.0}, {0.25})
    assert len(claims) == len(numbers) + 15


def test_claims_speak_of_what_there_is(claims: dict[str, Claim]) -> None:
    """A setting that no run can have would leave a claim `not run` for ever."""
    settings = [wanted for one in claims.values() for wanted in (one.needs, *one.arms.values())]
    for group in ("method", "gating", "model"):
        for name in {wanted[f"{group}.name"] for wanted in settings if f"{group}.name" in wanted}:
            assert (ROOT / "conf" / group / f"{name}.yaml").exists(), name
    for name in {wanted["profile"] for wanted in settings if "profile" in wanted}:
        assert (ROOT / "conf" / "profile" / f"{name}.yaml").exists(), name
    for name in {name for one in claims.values() for name in one.sets}:
        assert (ROOT / "conf" / "benchmark" / f"{name}.yaml").exists(), name


def test_a_sweep_is_found_by_its_settings(tmp_path: Path, claims: dict[str, Claim]) -> None:
    """The same folders that a sweep leaves: tau 0.2 collapses first, 0.3 is as good as 0.4, boosting alone is worse."""
    kept, runs = [0.0, 0.25, 0.5, 0.75] * 10, []
    worse = [max(0.0, share - 0.25) for share in kept]
    for seed in range(3):
        for tau, drop in ((0.2, 12), (0.3, 30), (0.4, 30 + seed), (0.9, 30)):
            made = make_run(
                tmp_path / str(tau), "oar_g", seed, {"a": kept}, tau=tau, entropy=falling(drop), reward=[0.5] * 40,
            )  # fmt: skip
            runs.append(read_run(made))
        alone = make_run(tmp_path / "boost", "oar_g", seed, {"a": worse}, gating="boost_only")
        runs.append(read_run(alone))
    table = ledger(list(claims.values()), runs, FULL).set_index(["claim_id", "metric"])
    assert table.loc[("tau 0.3 stable", "avg@k"), "verdict"] == REPRODUCED
    assert table.loc[("tau too low", ""), "verdict"] == REPRODUCED
    assert table.loc[("tau too high", ""), "verdict"] == WITHIN  # the same reward
    assert table.loc[("tau 0.7 stable", "avg@k"), "reason"] == (
        "needs runs with method=oar_g gating=bilevel gating.tau=0.7 gating.beta=2.0"
    )
    several = table.loc[("boost only", "avg@k"), "reason"]  # which of the four tau is to be held against it?
    assert several == "needs one run of a seed with method=oar_g gating=bilevel, but several have seed 0"
    chosen = [run for run in runs if run.has({"gating.tau": 0.4})]
    table = ledger(list(claims.values()), chosen, FULL).set_index(["claim_id", "metric"])
    assert table.loc[("boost only", "avg@k"), "verdict"] == REPRODUCED


def test_no_methods_no_verdict(tmp_path: Path, claims: dict[str, Claim]) -> None:
    table = ledger(list(claims.values()), [read_run(make_run(tmp_path, "grpo", 0, {"a": [1.0, 0.0]}))], FULL)
    assert set(table["verdict"]) == {NOT_RUN}
    assert (table["reason"].str.len() > 0).all()
    assert table["value"].isna().all()
    assert "needs runs with method=oar_p gating=bilevel" in set(table["reason"])


def test_a_claims_file_that_names_nothing_known_is_refused(tmp_path: Path) -> None:
    (tmp_path / "paper.csv").write_bytes((REFERENCE / "paper.csv").read_bytes())
    with pytest.raises(DataError, match=r"has no claims\.yaml"):
        load_claims(tmp_path)
    text = (REFERENCE / "claims.yaml").read_text()
    for wrong, said in (
        (text.replace("arms: [OAR-P, GRPO]", "arms: [OAR-X, GRPO]"), "but names 'OAR-X'"),
        (text.replace("target: [80, 90]", "target: [90, 80]"), "must have a target"),
        (text.replace("id: tau too low", "id: tau too high"), "Two claims have the same id"),
        (text.replace("quantity: share", "quality: share"), "quality"),
    ):
        (tmp_path / "claims.yaml").write_text(wrong)
        with pytest.raises(ConfigError, match=said):
            load_claims(tmp_path)


def test_a_number_of_the_paper_is_never_ours(tmp_path: Path) -> None:
    """On the paper's own profile, with whole benchmarks, where its numbers are tested: only its own columns hold them."""
    sizes = {"gsm8k": 1319, "math500": 500, "aime24": 30, "aime25": 30, "amc23": 40}
    right = {"grpo": (0.2, 1.0), "oar_g": (0.3, 3.0), "oar_p": (0.1, 9.0)}
    runs = [
        read_run(
            make_run(
                tmp_path, method, seed, {name: [float(at < share * n) for at in range(n)] for name, n in sizes.items()},
                k=1, seconds=[seconds] * 3, **PAPER,
            )
        )
        for method, (share, seconds) in right.items()
        for seed in (1, 2, 3)
    ]  # fmt: skip
    table = ledger(load_claims(), runs, FULL)
    numbers = table[table["paper_claim"].str.startswith("Qwen2.5-7B: ")]
    assert set(numbers["verdict"]) == {NOT_REPRODUCED}
    assert numbers["value"].round(1).tolist() == [20.0] * 6 + [30.0] * 4 + [3.0, 10.0, 10.0, 9.0]
    write_csv(table, tmp_path / "claims.csv")
    written = pd.read_csv(tmp_path / "claims.csv", dtype=str, keep_default_na=False)
    ours = [column for column in written.columns if not column.startswith("paper_")]
    assert all(written["paper_claim"].str.contains(number, regex=False).any() for number in PAPERS_NUMBERS)
    assert [cell for column in ours for cell in written[column] if PAPERS_NUMBER.search(cell)] == []
    header, _, *lines = claims_section(table, "paper").split("## Tested\n\n")[1].split("\n\n")[0].splitlines()
    assert [at for at, cell in enumerate(header.split(" | ")) if "paper" in cell] == [0, 1]
    assert [line for line in lines if PAPERS_NUMBER.search(line)] != []
    assert [line for line in lines if PAPERS_NUMBER.search(" | ".join(line.split(" | ")[2:]))] == []


def test_the_section(tmp_path: Path, claims: dict[str, Claim]) -> None:
    folders = pair(tmp_path, {"a": [0.25, 0.5]}, {"a": [0.5, 0.75]}, seeds=3)
    table = ledger(list(claims.values()), [read_run(folder) for folder in folders], FULL)
    text = claims_section(table, "embedded")
    assert text.startswith("# The paper's claims, tested on profile `embedded`\n")
    assert (
        f"{len(table)} tests of 23 claims: 1 reproduced, 1 within the confidence interval, 0 not reproduced, " in text
    )
    assert (
        "| OAR-P > GRPO | > 0 | **reproduced** | accuracy, OAR-P − GRPO | avg@k | +25.0 [+25.0, +25.0] points "
        "| problems and seeds | 2 x 4 | 0, 1, 2 |"
    ) in text
    assert "| OAR-G > GRPO | needs runs with method=oar_g gating=bilevel |" in text
    for fact in (
        "GRPO, hash by seed | 0: grpo0, 1: grpo1, 2: grpo2 |",
        "| qwen_math d16e57 |",
        "| a: file a.jsonl, sha256 5a |",
    ):
        assert fact in text
    assert "model and task are not the paper's" in text
    nothing = claims_section(ledger(list(claims.values()), [], FULL), "paper")
    assert "Nothing: see below." in nothing
    assert "model and task are not" not in nothing
