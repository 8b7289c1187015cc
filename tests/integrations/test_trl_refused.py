"""What OAR in TRL's trainer refuses, in one sentence each, and what it warns of."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("trl")

from trl import GRPOConfig

from oar.common.errors import ConfigError, DataError
from oar.integrations.columns import told_problems
from oar.integrations.trl import OARGRPOConfig, OARGRPOTrainer
from tests.integrations.completions import PROBLEMS, generated, metrics, policy, rewards, task, trainer


def test_what_the_data_set_does_not_tell_is_refused_and_may_stand_in_another_column(tmp_path: Path) -> None:
    made = trainer(tmp_path, method="oar_s", answer_column="gold")
    with pytest.raises(DataError, match="needs the answer of every problem, but column 'gold' of the data set is not"):
        generated(made)
    (told,) = told_problems("oar_s", "answer", "gold", [{"prompt": PROBLEMS[0].question, "gold": "10"}])
    assert (told.answer, task().decode(task().encode_gold(told))) == ("10", "10")


def test_a_method_that_compares_completions_needs_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerate.Accelerator.num_processes", property(lambda _: 2))
    with pytest.raises(ConfigError, match="shear would run in 2: choose another method or start one process"):
        trainer(tmp_path, method="shear")
    with pytest.raises(ConfigError, match="gating='released_drift' must run in one process"):
        trainer(tmp_path, gating="released_drift")


@pytest.mark.filterwarnings("error:No completion of a batch announces")
def test_who_needs_no_answer_is_not_warned_that_there_is_none(tmp_path: Path) -> None:
    made = trainer(tmp_path, method="entropy_mask", marker="\\boxed{", probe="as_mean", probe_conclude="####")
    assert len(generated(made)["advantages"].unique()) > 2


def test_a_marker_that_no_completion_has_is_told(tmp_path: Path) -> None:
    made = trainer(tmp_path, marker="\\boxed{", probe="as_mean", probe_conclude="####")
    with pytest.warns(UserWarning, match=r"No completion of a batch announces an answer with '\\\\boxed\{'"):
        output = generated(made)
    assert metrics(made)["probe/fallback_share"] == 1
    means: Tensor = output["advantages"][:, 0]
    assert torch.equal(output["advantages"], means[:, None].expand_as(output["advantages"]))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "oar_x"}, "method must be one of grpo, oar_p, .* but is 'oar_x'"),
        ({"method": "oracle_causal"}, "method must need no more .* oracle_causal needs the task's own marks"),
        ({"method": "oar.method.importance.ContinuationAdvantages"}, "Advantages needs continuations of completions"),
        ({"marker": ""}, "marker must be the text that announces an answer, but is ''"),
        ({"gating": "soft"}, "gating must be one of bilevel, .* but is 'soft'"),
        ({"gating_tau": 1.5}, r"gating\.tau must be between 0 and 1, but is 1\.5"),
        ({"probe": "mean"}, r"probe\.name must be one of warmup, .* but is 'mean'"),
        ({"probe": "reference"}, "probe must be one that needs no reference response"),
        ({"probe": "reward_model"}, r"probe\.path must be a reward model's folder"),
        (
            {"method": "oar_s", "probe": "reward_model", "probe_path": "here"},
            "probe must be one that reads the answer with oar_s, .* but is 'reward_model'",
        ),
        ({"method": "grail", "times_surprisal": True}, "times_surprisal must be false with grail"),
        ({"counterfactual": "blank"}, r"counterfactual\.name must be one of pad, .* but is 'blank'"),
        ({"counterfactual": "text"}, r"counterfactual\.text must be a token in words where counterfactual is text"),
        ({"counterfactual_draws": 2}, r"counterfactual\.draws must be 1 where counterfactual is pad"),
        ({"use_liger_kernel": True}, "use_liger_kernel must be false"),
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level must be 'token'"),
        ({"fsdp": True}, "must run without DeepSpeed and FSDP"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(tmp_path: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        trainer(tmp_path, **settings)


def test_other_arguments_and_others_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="args must be an OARGRPOConfig, but is GRPOConfig"):
        OARGRPOTrainer(policy(), rewards, GRPOConfig(str(tmp_path), bf16=False, use_cpu=True))
    with pytest.raises(ConfigError, match="tools must not be given"):
        OARGRPOTrainer(policy(), rewards, OARGRPOConfig(str(tmp_path), bf16=False, use_cpu=True), tools=[print])
    made = trainer(tmp_path)
    with pytest.raises(DataError, match="leave env_mask out"):
        made.completion_batch({"tool_mask": torch.ones(8, 3)}, [])
