"""Several ranks learn what one learns: the same curve and the same weights, to the rounding of a sum's order."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from oar.common.errors import ConfigError
from oar.learner.distributed import ALONE, joined
from oar.learner.sharding import gathered, shard
from oar.method.importance import GradientImportance
from oar.method.probes import AnswerMeanProbe
from oar.statistics.attribution import spearman
from tests.learner.on_ranks import ADAPTED, BY_ONE, BY_TWO, LOSING, RUNS, SAVED, STEPS, config, start_model, train
from tests.models import credit_inputs, random_batch, spread_embeddings

SHARES = ("weights/suppressed_share", "weights/boosted_share")
Result = tuple[list[dict[str, float]], dict[str, Tensor]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the starting model, and the checkpoints that one rank wrote."""
    folder = tmp_path_factory.mktemp("ranks")
    train(start_model(folder), ALONE, *RUNS[SAVED], save_to=folder / BY_ONE)
    return folder


@pytest.fixture(scope="module")
def on_two(folder: Path) -> Path:
    """The folder with what two gloo processes made of it in each run."""
    done = launch("tests.learner.on_ranks", str(folder), "all")
    assert done.returncode == 0, done.stderr
    return folder


def launch(module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "oar.learner.launch", "2", module, *arguments]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # with a GPU, each rank would want one
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)


def without(names: tuple[str, ...], metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in names}


def assert_alike(one: Result, two: Result, close: float, shares: bool = True) -> None:
    (curve, weights), (other_curve, other_weights) = one, two
    assert len(curve) == len(other_curve)
    for expected, found in zip(curve, other_curve, strict=True):
        assert found["train/loss"] == pytest.approx(expected["train/loss"], abs=close)
        # OAR-G differentiates a KL of about 1e-6, of which float32 keeps a few digits: token weights move more than the model's.
        coarse = max(1e-3, 10 * close)
        assert without(SHARES, found) == pytest.approx(without(SHARES, expected), abs=coarse, rel=coarse)
        for name in SHARES if shares else ():
            # A token at the gate's quantile may fall on either side of it by a rounding: two of 500 tokens.
            assert found[name] == pytest.approx(expected[name], abs=4e-3)
    assert set(weights) == set(other_weights)
    for name, weight in weights.items():
        torch.testing.assert_close(other_weights[name], weight, atol=close, rtol=0)


def result_in(folder: Path, name: str) -> Result:
    return json.loads((folder / f"{name}.json").read_text()), load_file(folder / f"{name}.safetensors")


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_learn_what_one_learns(name: str, on_two: Path) -> None:
    with joined(config(*RUNS[name]).learner) as ranks:
        alone = train(on_two / "start", ranks, *RUNS[name])
    # Gains of an untaught model are alike, and divided by how little they differ: a gradient's norm moves by thousandths, and a
    # rounding takes whole completions to the other side of a weight of 1, so their share of the tokens says nothing.
    close = 5e-4 if name == "gains" else 1e-3 if "bfloat16" in name else 1e-5
    assert_alike(alone, result_in(on_two, name), close, shares=name != "gains")
    curve, weights = alone
    assert all(metrics["train/grad_norm"] > 0.003 for metrics in curve)
    idle = [metrics["train/zero_advantage_groups"] for metrics in curve]
    assert all(0 < share < 1 for share in idle) or name == "tree"  # whose parts are drawn one by one, unlike each other
    start = load_file(on_two / "start" / "model.safetensors")
    learned = {key for key, weight in weights.items() if float((weight - start[key]).abs().max()) > 1e-4}
    trained = tuple(f"{layer}.weight" for layer in ADAPTED) if name == "options" else ""
    assert learned == {key for key in weights if key.endswith(trained)}


def test_bfloat16_computes_coarsely_and_keeps_float32_weights(on_two: Path) -> None:
    (coarse, weights), (fine, _) = result_in(on_two, "bfloat16"), result_in(on_two, "oar_p")
    assert 1e-5 < abs(coarse[0]["train/entropy"] - fine[0]["train/entropy"]) < 0.05
    start = load_file(on_two / "start" / "model.safetensors")
    for name, weight in weights.items():
        assert weight.dtype == torch.float32
        # A step of 1e-4 would be lost on most weights if they were bfloat16 themselves.
        assert float((weight != start[name]).float().mean()) > 0.9 or "embed" in name


def test_a_sharded_model_keeps_what_a_credit_signal_gives_its_layers() -> None:
    """OAR-G's states are float32 in a bfloat16 learner: rounded on their way into a layer they would lose the noise."""
    model, batch = spread_embeddings(1.0).float(), random_batch(0, rows=3, longest=30)
    fine = GradientImportance()(credit_inputs(batch, AnswerMeanProbe(), model=model))
    with joined(config("learner.compute_dtype=bfloat16").learner):
        shard(model, torch.bfloat16)
        with gathered(model):
            coarse = GradientImportance()(credit_inputs(batch, AnswerMeanProbe(), model=model))
    for one, other, mask in zip(coarse, fine, batch.reasoning_mask, strict=True):
        assert spearman(one[mask].numpy(), other[mask].numpy()) > 0.95


def test_a_checkpoint_does_not_care_how_many_ranks_wrote_it(on_two: Path) -> None:
    whole_curve, weights = train(on_two / "start", ALONE, *RUNS[SAVED])
    rest = (whole_curve[1:], weights)
    assert_alike(rest, result_in(on_two, BY_ONE), 1e-5)
    checkpoint = on_two / BY_TWO / "step_000001"
    assert len(list((checkpoint / "optimizer").iterdir())) == 2
    assert_alike(rest, train(on_two / "start", ALONE, *RUNS[SAVED], checkpoint=checkpoint), 1e-5)


def test_engines_that_are_lost_change_nothing(on_two: Path) -> None:
    """Both ranks learn of each loss, give the next engine the weights together, and go on to the same bits."""
    (curve, weights), (undisturbed, expected) = result_in(on_two, LOSING), result_in(on_two, "grpo")
    assert curve == undisturbed
    assert all(torch.equal(weights[name], weight) for name, weight in expected.items())


def test_a_push_that_fails_ends_all_ranks_in_one_sentence(folder: Path) -> None:
    """It does so long before `learner.rank_timeout_s` (1,800 s), which is how long a rank waits in a collective of its own."""
    done = launch("tests.learner.on_ranks", str(folder), "fail")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: the supervisor gave no other engine in the time of rollout.startup_timeout_s."
    )


def test_nothing_listens_beyond_loopback(on_two: Path) -> None:
    for rank in (0, 1):
        listening = json.loads((on_two / f"listening-{rank}.json").read_text())
        assert len(listening) >= 2  # the rank itself, and the agent that started it
        assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


@pytest.mark.parametrize("method", ["grpo", "oar_g", "oar_p"])
def test_resumed_at_any_step_it_goes_on_to_the_same_bits(method: str, folder: Path, tmp_path: Path) -> None:
    curve, weights = train(folder / "start", ALONE, *RUNS[method], save_to=tmp_path)
    for step in range(1, STEPS):
        checkpoint = tmp_path / f"step_{step:06d}"
        rest, found = train(folder / "start", ALONE, *RUNS[method], checkpoint=checkpoint)
        assert rest == curve[step:]
        assert all(torch.equal(found[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize(
    ("number", "timeout_s"), [(signal.SIGKILL, 3600), pytest.param(signal.SIGSTOP, 20, marks=pytest.mark.slow)]
)
def test_a_lost_rank_ends_the_others(number: int, timeout_s: int) -> None:
    """Killed: noticed by itself. Stopped: after `learner.rank_timeout_s`, and torch takes half a minute to give it up."""
    done = launch("tests.learner.lost_rank", str(int(number)), str(timeout_s))
    if number == signal.SIGKILL:
        assert done.returncode == 128 + number
        assert done.stderr.splitlines()[-1].startswith("error: Rank 1 of the learner was ended by SIGKILL")
    else:
        assert done.returncode == 2
        assert done.stderr.startswith("error: Rank 0 of the learner lost another one")


def test_other_numbers_than_asked_for_are_refused() -> None:
    with (
        pytest.raises(ConfigError, match="is 2 and 1 started"),
        joined(config("learner.ranks=2").learner),
    ):
        pass
    with pytest.raises(ConfigError, match="few enough for an update of 24 completions"):
        config("learner.ranks=25")
