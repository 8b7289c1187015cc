"""OAR in TRL's trainer gives tokens the weights that the learner gives them, and leaves everything else TRL's."""

import ast
import re
import sys
from dataclasses import fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("trl")

from peft import LoraConfig, get_peft_model
from trl import GRPOConfig, GRPOTrainer

from experiments.train_with_trl import Lines
from oar.common.errors import DataError, OarError
from oar.integrations.columns import in_context, told_problems
from oar.integrations.trl import OARGRPOConfig, OARGRPOTrainer
from oar.method.advantages import group_advantages
from oar.method.forward.logprobs import score_completions
from oar.method.importance import CreditInputs, TokenBaseline, gives
from oar.method.probes import AnswerMeanProbe
from tests.integrations.completions import (
    CUT,
    PROBLEMS,
    SILENT,
    TEXTS,
    dataset_row,
    encoded,
    generated,
    learnt_weights,
    metrics,
    policy,
    prompt_ids,
    rewards,
    scorer,
    task,
    trainer,
)

ROOT = Path(__file__).parents[2]
ADAPTER = ROOT / "oar" / "integrations" / "trl.py"


class Plain(GRPOTrainer):
    CONFIG = GRPOConfig


def assert_equal_to_rounding(ours: Tensor, learners: Tensor, made: Any) -> None:
    """Micro-batches differ, so sums do, and the gate, which divides by small thresholds, enlarges that.

    OAR-G takes the KL of a noise of 1e-3: float32 leaves it three digits.
    """
    bound = 3e-3 if made.args.method == "oar_g" else 5e-4
    torch.testing.assert_close(ours, learners, atol=bound, rtol=bound)


@pytest.mark.parametrize(
    ("overrides", "settings"),
    [
        (["method=grpo"], {"method": "grpo"}),
        (["method=oar_g", "probe.warmup_steps=4"], {"method": "oar_g", "probe_warmup_steps": 4}),  # lt_logits
        (["method=oar_g", "probe.warmup_steps=3"], {"method": "oar_g", "probe_warmup_steps": 3}),  # as_mean
        (["method=oar_p", "gating.tau=0.6"], {"method": "oar_p", "gating_tau": 0.6}),
        (
            ["method=oar_gn", "probe=as_joint", "gating=suppress_only", "gating.threshold=absolute"],
            {"method": "oar_gn", "probe": "as_joint", "gating": "suppress_only", "gating_threshold": "absolute"},
        ),
        *(([f"method={name}"], {"method": name}) for name in ("grail", "shear", "entropy_mask", "entropy_advantage")),
        *(
            ([f"method={name}"], {"method": name})
            for name in ("oar_s", "oar_s_routes", "oar_s_gradient", "oar_s_attention")
        ),
        *(
            ([f"method={name}"], {"method": name})
            for name in ("oar_s_advantage", "oar_s_outcome", "token_baseline", "rlsd")
        ),
        (["method=entropy", "gating.beta=1"], {"method": "entropy", "gating_beta": 1.0}),
        (["method=random", "gating.floor=0.3"], {"method": "random", "gating_floor": 0.3}),
        (["method=shuffled", "counterfactual=knockout"], {"method": "shuffled", "counterfactual": "knockout"}),
        (
            ["method=oar_p", "counterfactual=text", "counterfactual.text=pens"],
            {"method": "oar_p", "counterfactual": "text", "counterfactual_text": "pens"},
        ),
        (
            ["method=oar_p_routes", "counterfactual=random_token", "counterfactual.draws=2"],
            {"method": "oar_p_routes", "counterfactual": "random_token", "counterfactual_draws": 2},
        ),
        (["method=grpo", "method.times_surprisal=true"], {"method": "grpo", "times_surprisal": True}),
    ],
)
def test_weights_are_the_learners(tmp_path: Path, overrides: list[str], settings: dict[str, Any]) -> None:
    made = trainer(tmp_path, **settings)
    output = generated(made)
    weights, advantages = learnt_weights(*overrides)
    mask = output["completion_mask"][:, : weights.shape[1]]
    assert_equal_to_rounding(output["advantages"][:, : weights.shape[1]] * mask, advantages * mask, made)
    plain, kind = overrides == ["method=grpo"], gives(made.estimator)
    of_grpo = group_advantages(torch.tensor(rewards()), 4)[:, None] * mask
    assert ((advantages * mask - of_grpo).abs().max() < 1e-3) == plain
    assert bool((weights == 1).all()) == plain
    # Two of eight completions have no answer, and one more than these no advantage of its own to share.
    found = metrics(made)
    assert found["probe/fallback_share"] == 2 / 8
    if kind == "importance":
        assert (found["weights/ess_ratio"] == 1) == plain
    for row, text in enumerate(TEXTS):
        if text in (SILENT, CUT) and kind == "importance":
            assert (weights[row] == 1).all()


def test_a_reward_models_weights_are_the_learners(tmp_path: Path) -> None:
    """Completions without an answer are reweighed too."""
    path = scorer(tmp_path / "scorer")
    made = trainer(tmp_path / "run", method="oar_p", probe="reward_model", probe_path=str(path))
    output = generated(made)
    weights, advantages = learnt_weights("method=oar_p", "probe=reward_model", f"probe.path={path}")
    assert_equal_to_rounding(output["advantages"], advantages, made)
    assert metrics(made)["probe/fallback_share"] == 0
    assert any((weights[row] != 1).any() for row, text in enumerate(TEXTS) if text in (SILENT, CUT))


def test_left_padding_and_the_order_of_rows_do_not_matter(tmp_path: Path) -> None:
    """Prompts differ in length, so TRL has padded the shorter ones at the left."""
    made = trainer(tmp_path, pad_to_multiple_of=16)
    output = generated(made)
    assert (output["prompt_mask"][:4, 0] == 0).all()
    batch = made.completion_batch(output, [dataset_row(problem) for problem in PROBLEMS for _ in range(4)])
    assert [batch.input_ids[row, : len(ids)].tolist() for row, ids in enumerate(prompt_ids())] == prompt_ids()
    _, advantages = learnt_weights("method=oar_g")
    width = advantages.shape[1]
    assert output["advantages"].shape == output["completion_ids"].shape == (8, 32)
    assert_equal_to_rounding(output["advantages"][:, :width], advantages, made)


def test_oar_g_is_not_computed_in_bfloat16(tmp_path: Path) -> None:
    """In which it would hardly rank tokens as in float32: its noise is smaller than the rounding."""
    made = trainer(tmp_path, bf16=True)
    _, advantages = learnt_weights("method=oar_g")
    assert_equal_to_rounding(generated(made)["advantages"], advantages, made)


def test_with_grpo_losses_and_weights_are_trls_to_the_bit(tmp_path: Path) -> None:
    ends = {}
    for kind, settings in ((Plain, {}), (OARGRPOTrainer, {"method": "grpo"})):
        made = trainer(tmp_path, kind=kind, **settings)
        made.train()
        losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
        ends[kind] = losses, [weight.detach().clone() for weight in made.model.parameters()]
    (plain, plain_weights), (own, own_weights) = ends.values()
    assert len(plain) == 1
    assert own == plain
    assert all(torch.equal(one, other) for one, other in zip(own_weights, plain_weights, strict=True))


def test_the_gradient_is_that_of_weighted_tokens(tmp_path: Path) -> None:
    """Against a naive sum over completions, one by one, without padding: mean over completions of the mean of w A log p."""
    made = trainer(tmp_path, method="oar_gn", per_device_train_batch_size=8, gradient_accumulation_steps=1, beta=0.0)
    output = generated(made)
    made.current_gradient_accumulation_steps = 1
    loss = made.compute_loss(made.model, output)
    loss.backward()
    model = policy()
    _, advantages = learnt_weights("method=oar_gn")
    naive = torch.zeros(())
    for prompt, text, shares in zip(prompt_ids(), TEXTS, advantages, strict=True):
        ids = encoded(text)
        logprobs = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        naive = naive - (shares[: len(ids)] * logprobs[range(len(ids)), ids]).mean() / len(TEXTS)
    naive.backward()
    for (name, weight), expected in zip(made.model.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(
            weight.grad, expected.grad, atol=5e-5, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )
    # Weights have mean 1, so what a step sums to is what it was; only where it goes differs.
    uniform = torch.autograd.grad(
        made.compute_loss(made.model, output | {"advantages": output["advantages"].mean(1)}), made.model.lm_head.weight
    )[0]
    assert (uniform - made.model.lm_head.weight.grad).abs().max() > 1e-4


def test_completions_that_trl_masks_have_no_weights_and_do_not_count(tmp_path: Path) -> None:
    made = trainer(tmp_path, method="oar_gn", mask_truncated_completions=True)
    output = generated(made)
    found = metrics(made)
    cut = [row for row, text in enumerate(TEXTS) if not text.endswith("<eos>")]
    assert len(cut) == 2
    assert (output["completion_mask"][cut] == 0).all()
    assert all(len(output["advantages"][row].unique()) == 1 for row in cut)
    assert found["probe/fallback_share"] == pytest.approx(1 / 6)
    _, advantages = learnt_weights("method=oar_gn")
    rest = [row for row in range(8) if row not in cut]
    assert_equal_to_rounding(output["advantages"][rest], advantages[rest], made)


def test_training_logs_what_weights_do_and_evaluation_is_trls(tmp_path: Path) -> None:
    made = trainer(tmp_path, method="oar_p", gradient_checkpointing=True, bf16=True)
    made.train()
    (entry,) = [entry for entry in made.state.log_history if "loss" in entry]
    assert 0 < entry["weights/ess_ratio"] < 1
    assert entry["weights/max"] > 1
    assert 0 < entry["weights/suppressed_share"] < 1
    assert 0 < entry["weights/boosted_share"] < 1
    assert entry["probe/fallback_share"] == 2 / 8
    assert entry["seconds/credit"] > 0
    assert made.model.training
    made.model.eval()
    output = made._generate_and_score_completions([{"prompt": p.question} for p in PROBLEMS for _ in range(4)])
    assert output["advantages"].shape == (8,)


def test_batches_are_counted_across_updates_and_after_a_resume(tmp_path: Path) -> None:
    made = trainer(tmp_path, num_iterations=2)  # a batch is trained on twice: two updates of four forwards
    for made.state.global_step, made._step, drawn in ((0, 0, 0), (1, 4, 0), (2, 8, 1), (7, 0, 3), (8, 0, 4)):
        assert made.batches_drawn == drawn
    made = trainer(tmp_path, steps_per_generation=8)  # a batch is for two updates
    for made.state.global_step, made._step, drawn in ((0, 0, 0), (2, 8, 1), (6, 0, 3)):
        assert made.batches_drawn == drawn


def test_lora_is_credited_with_its_own_weights(tmp_path: Path) -> None:
    torch.manual_seed(1)
    adapter = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    made = trainer(tmp_path, method="oar_gn", model=get_peft_model(policy(), adapter))
    adapted = generated(made)["advantages"]
    assert made._forward_is_proven
    merged = made.model.merge_and_unload()
    torch.testing.assert_close(
        generated(trainer(tmp_path, method="oar_gn", model=merged))["advantages"], adapted, atol=1e-4, rtol=1e-3
    )
    assert (generated(trainer(tmp_path, method="oar_gn"))["advantages"] - adapted).abs().max() > 0.01


def test_a_model_whose_logits_are_more_than_a_head_is_refused(tmp_path: Path) -> None:
    model = policy()
    model.config.final_logit_softcapping = 1.0  # as Gemma 2's 30: TRL's forward caps the logits
    with pytest.raises(DataError, match="forward of the model must be TRL's"):
        generated(trainer(tmp_path, model=model))


@pytest.mark.parametrize("method", ["oar_s_advantage", "entropy_mask", "token_baseline", "rlsd", "oar_s_gradient"])
def test_one_step_of_each_kind(method: str, tmp_path: Path) -> None:
    """Signed, compared within the batch or the group, by a teacher, towards the right answer."""
    made = trainer(tmp_path, method=method)
    before = [weight.detach().clone() for weight in made.model.parameters()]
    made.train()
    (entry,) = [entry for entry in made.state.log_history if "loss" in entry]
    assert entry["seconds/credit"] > 0
    assert any(not torch.equal(one, other) for one, other in zip(before, made.model.parameters(), strict=True))
    if made.teacher is not None:  # stays where training began
        assert all(torch.equal(one, other) for one, other in zip(before, made.teacher.parameters(), strict=True))


def test_a_privileged_look_at_a_conversation_stands_in_its_last_message(tmp_path: Path) -> None:
    made = trainer(tmp_path, method="rlsd")
    made.processing_class.chat_template = "{% for message in messages %}{{ message.content }} . {% endfor %}"
    prompt = [{"role": "system", "content": "We count"}, {"role": "user", "content": "How many pens ?"}]
    (told,) = told_problems("rlsd", "solution", "solution", [{"prompt": prompt, "solution": "7 + 3 = 10"}])
    read = task().decode(in_context("solution", told, prompt, made.task, made._encoded))
    assert read.startswith("We count . How many pens ?")
    assert "7 + 3 = 10" in read


def test_a_completion_without_a_reward_is_in_nobodys_group(tmp_path: Path) -> None:
    made = trainer(tmp_path, method="token_baseline")
    given, missing = made.reward_funcs[0], 2
    made.reward_funcs[0] = lambda **all_of: [
        None if row == missing else reward for row, reward in enumerate(given(**all_of))
    ]
    output = generated(made)
    assert (output["advantages"][missing] == 0).all()
    assert made._rewards.isnan().tolist() == [row == missing for row in range(8)]
    left = torch.tensor([row for row in range(4) if row != missing])
    batch = made.completion_batch(output, [dataset_row(problem) for problem in PROBLEMS for _ in range(4)]).rows(left)
    scores = score_completions(made.model, batch, temperature=1.0)
    group, own = torch.zeros(3, dtype=torch.long), torch.tensor(rewards())[left]
    alone = TokenBaseline()(
        CreditInputs(made.model, batch, AnswerMeanProbe(), scores, [0, 0, 0], groups=group, rewards=own)
    )
    mask = batch.completion_mask
    found = output["advantages"][left, : mask.shape[1]]
    torch.testing.assert_close(found * mask, alone * mask, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("error:No completion of a batch announces")
def test_a_batch_with_nothing_in_the_loss_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every completion is cut off, and masked for it."""
    monkeypatch.setattr("tests.integrations.completions.GROUPS", [[CUT] * 4] * 2)
    made = trainer(tmp_path, method="oar_gn", mask_truncated_completions=True)
    made.add_callback(Lines())
    made.train()
    assert " fallback 0.000 " in capsys.readouterr().out


def test_without_trl_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    spec = spec_from_file_location("adapter_without_trl", ADAPTER)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(
        ImportError, match=r"^oar\.integrations\.trl needs TRL, .*: pip install trl==1\.16\.0\.$"
    ) as raised:
        spec.loader.exec_module(module_from_spec(spec))
    assert isinstance(raised.value, OarError)


def test_nothing_but_the_adapter_imports_trl() -> None:
    others = [
        path for path in (ROOT / "oar").rglob("*.py") if path not in (ADAPTER, ADAPTER.with_name("trl_config.py"))
    ]
    told = [path.name for path in others if "import trl" in path.read_text() or "from trl" in path.read_text()]
    assert told == []


def test_the_page_names_every_argument_and_its_script_is_python() -> None:
    page = (ROOT / "docs" / "TRL.md").read_text()
    own = {field.name: field.default for field in fields(OARGRPOConfig)}
    for field in fields(GRPOConfig):
        del own[field.name]
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|", page, flags=re.MULTILINE)
    assert {name for row, _ in rows for name in re.findall(r"`(\w+)`", row)} == set(own)
    for row, default in rows:
        told = default.replace("`", "").split(", ")
        names = re.findall(r"`(\w+)`", row)
        assert told == ["the marker"] or told == [str(own[name]).replace("False", "false") for name in names]
    (script,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (made,) = [
        node
        for node in ast.walk(ast.parse(script))
        if getattr(getattr(node, "func", None), "id", "") == "OARGRPOConfig"
    ]
    assert isinstance(made, ast.Call)
    assert {keyword.arg for keyword in made.keywords} <= {field.name for field in fields(OARGRPOConfig)}
