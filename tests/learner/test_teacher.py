"""Teachers: what they hold after each step, what a run that goes on finds, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from oar.common.errors import ConfigError
from oar.config import TeacherConfig
from oar.learner.credit import Method
from oar.learner.distributed import ALONE
from oar.learner.teacher import follow, load_beside, save_beside
from oar.model.load import load_policy
from tests.learner.on_ranks import STEPS, config, learner_of, start_model, train
from tests.models import tiny_model

KINDS = {
    "rlsd": ["method=rlsd"],  # the starting model
    "serl": ["method=serl", "method.teacher.every=2"],
    "serl with an adapter": ["method=serl", "method.teacher.every=1", "model.lora={r: 4, alpha: 8, targets: [q_proj]}"],
    "sdpg": ["method=sdpg", "method.auxiliary.divergence=1"],
    "sdpo": ["method=sdpo", "method.teacher.rate=0.5"],
    "mig": ["method=mig", "method.estimator.spellings=true"],
    "crpo": ["method=crpo", "method.auxiliary.horizon=5"],
    "prime": ["method=prime", "method.estimator.learned.relative_lr=10"],
    "mig_steps": ["method=mig_steps", "learner.updates_per_rollout=2"],
    "value_head": ["method=value_head"],
    "reward_head": ["method=reward_head"],
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model(tmp_path_factory.mktemp("start"))


def test_followers_by_hand() -> None:
    policy, teacher = tiny_model(1, tied=True), tiny_model(2, tied=True)
    before = {name: weight.clone() for name, weight in teacher.state_dict().items()}
    average = TeacherConfig("averaged", every=1, rate=0.25)
    follow(teacher, policy, average, step=1)
    for name, weight in teacher.state_dict().items():
        torch.testing.assert_close(weight, 0.75 * before[name] + 0.25 * policy.state_dict()[name])
    copied = replace(average, kind="synced", every=3)
    held = {name: weight.clone() for name, weight in teacher.state_dict().items()}
    follow(teacher, policy, copied, step=2)
    assert all(torch.equal(weight, held[name]) for name, weight in teacher.state_dict().items())
    follow(teacher, policy, copied, step=3)
    assert all(torch.equal(weight, policy.state_dict()[name]) for name, weight in teacher.state_dict().items())


def test_what_is_saved_comes_back(start: Path, tmp_path: Path) -> None:
    teacher = load_policy(start, "float32")
    with torch.no_grad():
        for weight in teacher.parameters():
            weight.mul_(1.5)
    save_beside(teacher, tmp_path / "teacher")
    found = load_beside(start, tmp_path / "teacher", "float32").state_dict()
    assert all(torch.equal(weight, found[name]) for name, weight in teacher.state_dict().items())


@pytest.mark.parametrize("name", KINDS)
def test_a_run_learns_and_goes_on_to_the_same_bits(name: str, start: Path, tmp_path: Path) -> None:
    curve, weights = train(start, ALONE, *KINDS[name], save_to=tmp_path)
    plain, unlike = train(start, ALONE)
    assert any(not torch.equal(unlike[key], weight) for key, weight in weights.items())
    assert ("credit/context_share" in curve[0]) is (name in ("rlsd", "serl", "serl with an adapter", "sdpg", "sdpo"))
    assert "credit/context_share" not in plain[0]
    for step in range(1, STEPS):
        rest, found = train(start, ALONE, *KINDS[name], checkpoint=tmp_path / f"step_{step:06d}")
        assert rest == curve[step:]
        assert all(torch.equal(found[key], weight) for key, weight in weights.items())


def test_layers_that_run_again_change_nothing(start: Path) -> None:
    kept, again = (
        train(start, ALONE, *KINDS["sdpg"], f"learner.activation_checkpointing={on}") for on in ("false", "true")
    )
    assert kept[0] == again[0]
    assert all(torch.equal(again[1][name], weight) for name, weight in kept[1].items())


def test_who_teaches(start: Path) -> None:
    of_start = learner_of(config("method=rlsd"), start, ALONE)
    assert of_start.beside.teacher is of_start.beside.reference is not None
    assert of_start.beside.kl_reference is None  # no KL term is asked for
    live = learner_of(config("method=sdpg"), start, ALONE)
    assert live.beside.teacher is None
    assert live.beside.reference is not None
    assert learner_of(config("method=grpo"), start, ALONE).beside.reference is None


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.teacher\.kind must be live, start or synced where"):
        config("method=sdpo", "learner.compute_dtype=bfloat16")
    with pytest.raises(ConfigError, match=r"method\.teacher\.kind must be one of live, start, synced, averaged"):
        config("method.teacher.kind=wise")
    with pytest.raises(ConfigError, match=r"must be live where the method asks for no privileged context"):
        Method.built(config("method.teacher.kind=synced"))
    auxiliary = "{_target_: oar.method.auxiliary.TopDivergence, context: peer}"
    with pytest.raises(ConfigError, match=r"must ask for the same context, .* but ask for peer and solution"):
        Method.built(config("method=rlsd", f"method.auxiliary={auxiliary}"))
    for key, value in (("every", 0), ("rate", 0)):
        with pytest.raises(ConfigError, match=rf"method\.teacher\.{key}"):
            config(f"method.teacher.{key}={value}")
