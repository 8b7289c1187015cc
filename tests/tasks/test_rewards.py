"""Rewards: what the built-in ones give, what somebody's own is called with, and what ends a run."""

import re
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir

from oar.common.errors import ConfigError, DataError
from oar.config import TrainConfig, build_function, validated
from oar.tasks.problem import Problem
from oar.tasks.reward_terms import ANSWER, Completed, RewardTerms
from oar.tasks.verifier.grade import Verdict
from tests.config.test_config import CONF, composed

PAGE = (Path(__file__).parents[2] / "docs" / "OWN_REWARD.md").read_text()
RIGHT, WRONG, NONE = Verdict(True, "17", "plain"), Verdict(False, "12", "plain"), Verdict(False, None, "no_answer")
PARTLY = Verdict(False, "16", "plain", 0.25)


def completed(*verdicts: Verdict, **columns: object) -> list[Completed]:
    problem = Problem("p", "What is 12 + 5?", "17", "mine", columns=columns)
    return [
        Completed(problem, "Q: 12 + 5", f"So it is {one.answer}", one, 10 * row, row == 2)
        for row, one in enumerate(verdicts)
    ]


def chosen(*overrides: str) -> RewardTerms:
    cfg = validated(composed(*overrides), TrainConfig)
    return RewardTerms.built(cfg.reward, cfg.allow_targets)


def totals(reward: RewardTerms, items: list[Completed], seed: int = 1) -> list[float]:
    return [earned.total for earned in reward(items, seed)]


@pytest.fixture
def my_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's my_rewards.py and its YAML file; returns the folder of the latter."""
    (python,), (yaml,) = (re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.DOTALL) for kind in ("python", "yaml"))
    (tmp_path / "my_rewards.py").write_text(python)
    (tmp_path / "my_conf" / "reward").mkdir(parents=True)
    (tmp_path / "my_conf" / "reward" / "careful.yaml").write_text(yaml)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "my_conf"
    sys.modules.pop("my_rewards", None)


def test_the_built_in_rewards() -> None:
    items = completed(RIGHT, WRONG, NONE, PARTLY)
    assert totals(chosen(), items) == [1.0, 0.0, 0.0, 0.25]
    assert chosen() == ANSWER
    assert totals(chosen("reward=format"), items) == [1.0, 1.0, 0.0, 1.0]
    assert totals(chosen("reward=length", "reward.length.longest=20"), items) == [1.0, 0.5, 0.0, 0.0]
    assert chosen("reward=length").functions["length"].keywords == {"longest": 96}  # type: ignore[attr-defined]


def test_a_random_reward_follows_from_its_seed_alone() -> None:
    coins, items = chosen("method=random_reward"), completed(*[RIGHT, WRONG] * 100)
    assert totals(coins, items) == totals(coins, completed(*[WRONG] * 200)) != totals(coins, items, seed=2)
    assert set(totals(coins, items)) == {0.0, 1.0}


def test_terms_are_summed_by_weight_and_kept_by_name() -> None:
    reward = chosen("reward=[answer,format]", "reward.answer.weight=2", "reward.format.weight=-0.5")
    right, _, none = reward(completed(RIGHT, WRONG, NONE), seed=1)
    assert (right.terms, right.total) == ({"answer": 1.0, "format": 1.0}, 1.5)
    assert (none.terms, none.total) == ({"answer": 0.0, "format": 0.0}, 0.0)


def test_what_a_reward_is_called_with() -> None:
    seen = {}

    def look(**columns: object) -> list[float]:
        seen.update(columns)
        return [0.0, 0.0]

    first = completed(RIGHT, hint="add", score="theirs", completions="theirs")
    second = completed(NONE, other=3)
    RewardTerms({"look": look}, {"look": 1.0})([*first, *second], seed=7)
    assert seen["prompts"] == ["Q: 12 + 5"] * 2
    assert seen["completions"] == ["So it is 17", "So it is None"]
    assert (seen["hint"], seen["other"]) == (["add", None], [None, 3])
    assert seen["score"] == [1.0, 0.0]  # a column of the data set does not hide the verdict
    assert (seen["answer"], seen["final_answer"], seen["correct"]) == (["17"] * 2, ["17", None], [True, False])
    assert (seen["seed"], seen["truncated"], seen["completion_tokens"]) == (7, [False] * 2, [0, 0])


# The page


def commands() -> list[list[str]]:
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
    found = [shlex.split(line) for line in block.strip().splitlines()]
    assert all(words[:2] == ["make", "train"] for words in found)
    return [shlex.split(words[2].removeprefix("ARGS=")) for words in found]


def test_the_commands_of_the_page_train_with_the_rewards_of_the_page(my_rewards: Path) -> None:
    items = completed(RIGHT, WRONG, NONE)
    found = [totals(chosen(*overrides), items) for overrides in commands()]
    assert found[:3] == [[1.0, 0.5, 0.0], [1.0, 0.0, 0.0], pytest.approx([1.2, 0.2, 0.2])]
    assert found[3] == pytest.approx([1.3, 0.2 + 0.1 * (1 - 10 / 96), 0.1 * (1 - 20 / 96)])


def test_the_file_of_the_page_is_a_choice(my_rewards: Path) -> None:
    with initialize_config_dir(str(CONF), version_base=None):
        path = f"hydra.searchpath=[{my_rewards}]"
        config = compose("train", ["reward=careful", "allow_targets=[my_rewards]", "output_dir=here", path])
    terms = validated(config, TrainConfig).reward
    assert totals(RewardTerms.built(terms, ["my_rewards"]), completed(RIGHT, WRONG)) == pytest.approx([1.2, 0.2])


# What is refused


def test_a_key_that_the_function_does_not_have_is_refused(my_rewards: Path) -> None:
    """It would vanish into **columns, and the function would go on with its default."""
    own = ("reward=own", "reward.own._target_=my_rewards.near", "allow_targets=[my_rewards]")
    said = (
        r"reward\.own\.scael must be a parameter of my_rewards\.near, but is none of prompts, .*; did you mean scale\?"
    )
    with pytest.raises(ConfigError, match=said):
        chosen(*own, "+reward.own.scael=5")
    with pytest.raises(
        ConfigError, match=r"reward\.answer\.longest must be a parameter of oar\.tasks\.rewards\.answer, but"
    ):
        chosen("+reward.answer.longest=5")
    assert totals(chosen(*own, "+reward.own.scale=5"), completed(WRONG)) == [0.0]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"_target_": "my_rewards.near"}, r"type allow_targets=\[its name\]"),
        ({"_target_": "os.system"}, r"type allow_targets=\[its name\]"),
        ({"_target_": "oar.tasks.rewards.torch.hub.load"}, r"which is not there"),
        ({"_target_": "oar.tasks.rewards.Any"}, r"is defined in"),
        ({"_target_": "oar.tasks.rewards.anwser"}, r"oar\.tasks\.rewards\.anwser, which is not there"),
        ({"_target_": None}, r"reward\.own\._target_ must name a function or a class, e\.g\. mypkg\.reward"),
    ],
)
def test_nothing_else_becomes_a_reward(target: dict[str, object], said: str, my_rewards: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        build_function("reward.own", target)


def test_hydras_partial_may_stand_beside_a_function() -> None:
    target = {"_target_": "oar.tasks.rewards.length", "_partial_": True, "longest": 5}
    assert build_function("it", target).keywords == {"longest": 5}  # type: ignore[attr-defined]


FAULTY = """
import numpy as np
def raises(**columns):
    return [columns["no_such_column"] for _ in columns["answer"]]
def raises_within(**columns):
    return np.zeros(2).reshape(3)
def raises_at_length(**columns):
    raise RuntimeError("one\\ntwo")
def misses(hint, **columns): return [0.0, 0.0]
def too_few(**columns): return [1.0]
def nan(**columns): return [0.0, float("nan")]
def infinite(**columns): return [float("inf"), 0.0]
def huge(**columns): return [0.0, -(10**400)]
def nothing(**columns): return [1.0, None]
def text(**columns): return ["1", "0"]
def number(**columns): return 1.0
def array(**columns): return np.zeros(2)
def closed(prompts, completions): return [0.0, 0.0]
class Silent: pass
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", r"reward\.own raises KeyError in .*faulty\.py:4: 'no_such_column'$"),
        ("raises_within", r"reward\.own raises ValueError in .*faulty\.py:6: cannot reshape"),
        ("raises_at_length", r"reward\.own raises RuntimeError in .*faulty\.py:8: one$"),
        ("misses", r"reward\.own raises TypeError: misses\(\) missing .* 'hint'"),
        ("too_few", r"reward\.own must give a list of 2 numbers, one for each completion, but gave 1 of them"),
        ("nan", r"reward\.own must give finite numbers, but gave nan for completion 1 of 2"),
        ("infinite", r"gave inf for completion 0"),
        ("huge", r"gave -10{38} for completion 1"),
        ("nothing", r"gave None for completion 1"),
        ("text", r"gave '1' for completion 0"),
        ("number", r"must give a list of 2 numbers, .* but gave a float"),
        ("array", r"must give a list of 2 numbers, .* but gave a ndarray"),
        ("closed", r"reward\.own must take \*\*columns"),
        ("Silent", r"reward\.own must name a function or a class with __call__, but faulty\.Silent has none"),
    ],
)
def test_a_faulty_reward_ends_in_one_sentence(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "faulty", raising=False)
    with pytest.raises((ConfigError, DataError), match=said) as caught:
        chosen("reward=own", f"reward.own._target_=faulty.{name}", "allow_targets=[faulty]")(
            completed(RIGHT, WRONG), seed=1
        )
    assert "\n" not in str(caught.value)


def test_a_column_does_not_override_what_the_configuration_sets() -> None:
    def paid(bonus: float = 1.0, **columns: object) -> list[float]:
        return [bonus]

    one = completed(RIGHT, bonus=7.0)
    assert totals(RewardTerms({"own": partial(paid, bonus=3.0)}, {"own": 1.0}), one) == [3.0]
    given = RewardTerms({"own": lambda bonus, **columns: bonus}, {"own": 1.0})
    assert totals(given, one) == [7.0], "a column is what a parameter of its name gets"


def test_numbers_of_numpy_are_numbers() -> None:
    reward = RewardTerms({"one": lambda **columns: [np.float32(0.5), np.int64(1), True]}, {"one": 1.0})
    assert totals(reward, completed(RIGHT, WRONG, NONE)) == [0.5, 1.0, 1.0]
    with pytest.raises(DataError, match="tensor"):
        RewardTerms({"one": lambda **columns: [torch.tensor(1.0)]}, {"one": 1.0})(completed(RIGHT), seed=1)
