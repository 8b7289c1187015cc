"""LoRA: nothing but the adapter is trained, its product is what the engine gets, and every estimator runs on it as it is."""

from dataclasses import replace

import pytest
import torch
from peft import PeftModel

from oar.common.errors import CheckpointError, ConfigError
from oar.config import LoraConfig, TrainConfig, validated
from oar.learner.checkpoint import OPTIMIZER_FOLDER, load_state, save_checkpoint
from oar.learner.credit import given_credit
from oar.learner.optimizer_state import load_optimizer
from oar.learner.update import LossBatch, accumulate_gradient, make_optimizer
from oar.method.importance import (
    AttentionGradientImportance,
    EntropyImportance,
    GradientImportance,
    GradientNormImportance,
    PerturbationImportance,
)
from oar.method.probes import AnswerMeanProbe
from oar.model.load import load_policy
from oar.model.lora import ADAPTER_FOLDER, adapter_weights, add_adapter, load_adapter, load_trained, save_adapter
from oar.model.parameters import full_weights
from oar.tasks.words import build_tokenizer
from tests.config.test_config import composed
from tests.learner.test_checkpoint import one_step
from tests.models import credit_inputs, random_batch, tiny_model
from tests.pretended_gpu import pretended_gpu

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
UP = "model.layers.1.mlp.up_proj"
CFG = LoraConfig(r=4, alpha=8, targets=ALL)


def adapted(seed=0, cfg=CFG, *, trained=True):
    """A tiny model with an adapter, which has learned something unless it is not `trained`."""
    model = tiny_model()
    add_adapter(model, cfg, seed)
    if trained:
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".lora_B." in name:
                    parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def merged(model):
    plain = tiny_model(1)
    plain.load_state_dict(dict(full_weights(model)))  # strict: each weight once, under its own name
    return plain


def test_making_an_adapter_touches_no_gpus_random_state():
    """It belongs to whoever uses that GPU; torch would read it, of every GPU there is."""
    model, before = tiny_model(), torch.get_rng_state()
    with pretended_gpu():
        add_adapter(model, CFG, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_fresh_adapter_changes_nothing():
    model, ids = adapted(trained=False), torch.arange(4, 20)[None]
    assert len(adapter_weights(model)) == 2 * 2 * len(ALL)
    assert adapter_weights(tiny_model()) == {}
    assert torch.equal(model(ids).logits, tiny_model()(ids).logits)
    state = tiny_model().state_dict()
    assert all(torch.equal(weight, state[name]) for name, weight in full_weights(model))


def test_merged_weights_are_the_model_with_its_adapter():
    model, ids = adapted(), torch.arange(4, 20)[None]
    torch.testing.assert_close(merged(model)(ids).logits, model(ids).logits, atol=2e-5, rtol=1e-4)
    assert float((tiny_model()(ids).logits - model(ids).logits).detach().abs().max()) > 0.1
    q = model.model.layers[0].self_attn.q_proj
    by_hand = (
        tiny_model().model.layers[0].self_attn.q_proj.weight
        + 8 / 4 * q.lora_B["default"].weight @ q.lora_A["default"].weight
    )
    torch.testing.assert_close(dict(full_weights(model))["model.layers.0.self_attn.q_proj.weight"], by_hand)


def test_only_the_adapter_is_trained():
    cfg = replace(validated(composed(), TrainConfig).learner, lr=1e-2, weight_decay=0.1)
    model, batch = adapted(trained=False), random_batch(0, rows=4)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(model, cfg)
    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) < 0.5 * model.num_parameters()
    data = LossBatch.of(batch, torch.tensor([1.0, -1.0, 1.0, -1.0]))

    def credit(rows, scores):
        advantages = data.advantages[rows, None] * torch.ones_like(scores.logprobs)
        return given_credit(scores.logprobs.detach(), advantages)

    settings = {"temperature": 1.0, "max_completion_length": 16, "credit": credit}
    for _ in range(2):  # B is 0 at first, so A gets a gradient from the second step on
        optimizer.zero_grad(set_to_none=True)
        accumulate_gradient(model, None, data, torch.arange(4), cfg, **settings)
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (".lora_" not in name), name


@pytest.mark.parametrize(
    "estimator",
    [
        PerturbationImportance(),
        PerturbationImportance(window=1, routes=2),
        GradientImportance(),
        GradientNormImportance(),
        AttentionGradientImportance(),
        EntropyImportance(),
    ],
    ids=["oar_p", "routes", "oar_g", "oar_gn", "oar_ga", "entropy"],
)
@pytest.mark.parametrize("keep_graph", [False, True], ids=["beforehand", "in the update"])
def test_estimators_see_the_merged_model(estimator, keep_graph):
    model, batch = adapted(), random_batch(0)
    found = estimator(credit_inputs(batch, AnswerMeanProbe(), model=model, keep_graph=keep_graph))
    expected = estimator(credit_inputs(batch, AnswerMeanProbe(), model=merged(model)))
    # OAR-G differentiates a KL of about 1e-6, of which float32 keeps a few digits.
    tolerance = 2e-2 if isinstance(estimator, GradientImportance) else 1e-3
    torch.testing.assert_close(found, expected, atol=tolerance * float(expected.max()), rtol=tolerance)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_peft_reads_what_is_written_and_so_do_we(tmp_path):
    model, ids = adapted(), torch.arange(4, 20)[None]
    save_adapter(model, adapter_weights(model), tmp_path / ADAPTER_FOLDER)
    theirs = PeftModel.from_pretrained(tiny_model(), tmp_path / ADAPTER_FOLDER).eval()
    torch.testing.assert_close(theirs(ids).logits, model(ids).logits)
    ours = adapted(seed=5, trained=False)
    load_adapter(ours, tmp_path / ADAPTER_FOLDER)
    for (name, one), (_, other) in zip(ours.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.usefixtures("on_cpu")
def test_a_run_with_an_adapter_goes_on_exactly(tmp_path):
    """A checkpoint is an ordinary model to everybody else, and the adapter's exact bytes to the run that goes on."""
    start = tmp_path / "start"
    tiny_model(vocab=130).save_pretrained(start)
    model = load_trained(CFG, start, None, "float32", 1)
    optimizer = make_optimizer(model, validated(composed(), TrainConfig).learner)
    for step in range(3):
        one_step(model, optimizer, step)
    checkpoint = save_checkpoint(tmp_path, 3, model, build_tokenizer(), optimizer, {}, keep=1)
    assert {"adapter/adapter_model.safetensors", "model.safetensors"} < set(load_state(checkpoint)["files"])

    ids = torch.arange(4, 20)[None]
    torch.testing.assert_close(load_policy(checkpoint, "float32")(ids).logits, model(ids).logits, atol=2e-5, rtol=1e-4)
    restored = load_trained(CFG, start, checkpoint, "float32", 1)
    again = make_optimizer(restored, validated(composed(), TrainConfig).learner)
    load_optimizer(checkpoint / OPTIMIZER_FOLDER, restored, again)
    for step in (3, 4):
        one_step(model, optimizer, step)
        one_step(restored, again, step)
    for (name, one), (_, other) in zip(model.named_parameters(), restored.named_parameters(), strict=True):
        assert torch.equal(one, other), name

    (checkpoint / "adapter" / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="adapter_model"):
        load_state(checkpoint)


def test_an_adapter_follows_from_its_seed_alone():
    models = [adapted(seed, trained=False) for seed in (1, 1, 2)]
    first, again, other = (dict(model.named_parameters())[f"{UP}.lora_A.default.weight"].detach() for model in models)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    in_layer_0 = dict(models[0].named_parameters())[f"{UP}.lora_A.default.weight".replace("layers.1", "layers.0")]
    assert not torch.equal(first, in_layer_0)
    assert 0.5 < float(first.abs().max()) * 32**0.5 <= 1.0  # uniform up to 1 / sqrt(hidden size)
    model, before = tiny_model(), torch.get_rng_state()
    add_adapter(model, CFG, 0)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("wrong", ["query", "norm", "embed_tokens", "lm_head"])
def test_targets_that_are_no_linear_layers_are_refused(wrong):
    with pytest.raises(ConfigError, match=rf"model\.lora\.targets must name linear layers .*q_proj.*{wrong}"):
        add_adapter(tiny_model(), replace(CFG, targets=["q_proj", wrong]), 0)
