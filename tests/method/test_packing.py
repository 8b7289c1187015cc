"""A packed row against each of its sequences alone, run by the model as transformers runs it, in no batch."""

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, Gemma2Config, GptOssConfig

from oar.common.errors import DataError
from oar.config import LoraConfig
from oar.learner.sharding import recomputed_layers
from oar.method.forward import packing as packing_module
from oar.method.forward.logprobs import pack, run_forward, score_completions
from oar.method.forward.packing import Packing
from oar.model.lora import add_adapter
from tests.models import PAD, random_batch, tiny_model, windowed_model

LENGTHS = torch.tensor([5, 1, 9, 5])


def sequences(seed=0):
    drawn = torch.randint(4, 40, (4, 9), generator=torch.Generator().manual_seed(seed))
    return drawn.masked_fill(torch.arange(9) >= LENGTHS[:, None], PAD)


def packed_forward(model, ids):
    packed, packing = pack(ids, LENGTHS)
    return run_forward(model, model.get_input_embeddings()(packed), packing)


@pytest.mark.parametrize("make", [tiny_model, windowed_model])
def test_each_sequence_is_as_alone(make):
    model, ids = make(), sequences()
    found = packed_forward(model, ids).hidden
    alone = [
        model.base_model(row[None, :length]).last_hidden_state[0] for row, length in zip(ids, LENGTHS, strict=True)
    ]
    assert_close(found, torch.cat(alone), atol=2e-6, rtol=1e-5)


def test_no_sequence_sees_another():
    model, ids, other = tiny_model(), sequences(), sequences(1)
    other[2] = ids[2]
    changed = packed_forward(model, other).hidden
    row, position = torch.full((9,), 2), torch.arange(9)
    forward = packed_forward(model, ids)
    assert torch.equal(forward.packing.at(forward.hidden, row, position), forward.packing.at(changed, row, position))
    assert not torch.allclose(forward.hidden[:5], changed[:5], atol=0.1)


def test_places_by_hand():
    packing = Packing.of([2, 3], torch.device("cpu"))
    states = torch.arange(5.0)
    assert [one.tolist() for one in packing.tokens()] == [[0, 0, 1, 1, 1], [0, 1, 0, 1, 2]]
    assert packing.at(states, torch.tensor([1, 0]), torch.tensor([2, 1])).tolist() == [4.0, 1.0]
    second = packing.rows(torch.tensor([1]))
    assert second.padded(states[None, :, None], 3)[0, 0, :, 0].tolist() == [2.0, 3.0, 4.0]
    assert packing.padded(states[None, :, None], 3)[0, 0, :2, 0].tolist() == [0.0, 1.0]
    assert second.at(states, *second.tokens()).tolist() == [2.0, 3.0, 4.0]  # a part of a row, as a row of its own


def test_a_shared_beginning_stands_once_by_hand():
    """Rows 0 and 2 begin with the same two tokens, of which one is shared; row 1 stands between them in the batch only."""
    ids = torch.tensor([[5, 6, 7, PAD], [5, 6, 9, 8], [5, 6, 8, 9]])
    packed, packing = pack(ids, torch.tensor([3, 4, 4]), torch.tensor([2, 3, 2]))
    assert packed.tolist() == [5, 6, 7, 6, 8, 9, 5, 6, 9, 8]
    assert [one.tolist() for one in packing.stored()] == [
        [0, 0, 0, 2, 2, 2, 1, 1, 1, 1],
        [0, 1, 2, 1, 2, 3, 0, 1, 2, 3],
    ]
    for part in (packing, packing.rows(torch.tensor([2, 1]))):
        row, position = part.tokens()
        expected = ids[:, :4] if part is packing else ids[[2, 1]]
        assert part.at(packed, row, position).tolist() == expected[row, position].tolist()
    assert packing.padded(packed[None, :, None], 4)[2, 0, :, 0].tolist() == [5, 6, 8, 9]


@pytest.mark.parametrize("make", [tiny_model, windowed_model])
@pytest.mark.parametrize("group", [3, 5])
@pytest.mark.parametrize("long", [0, 4, 512])
def test_completions_of_one_prompt_are_each_as_alone(make, group, long, monkeypatch):
    monkeypatch.setattr(packing_module, "_LONG", long)  # 0: each attends alone and without a mask, 4: some of them
    model, batch = make(), random_batch(3, rows=5, group=group)
    found = score_completions(model, batch, temperature=1.0)
    whole = int((batch.prompt_lengths + batch.completion_lengths).sum())
    assert len(found.forward.hidden) == whole - (group - 1) * int(batch.prompt_lengths[0] - 1)
    assert_close(found.logprobs[batch.completion_mask], by_row(model, batch), atol=2e-6, rtol=1e-5)


def test_a_prompt_of_one_token_is_nobodys_beginning():
    """Its last token is all it has; two such completions are two sequences, not one."""
    model, ids, lengths = tiny_model(), torch.tensor([[5, 6, 7], [5, 8, 9]]), torch.tensor([3, 3])
    packed, packing = pack(ids, lengths, torch.tensor([1, 1]))
    assert packed.tolist() == [5, 6, 7, 5, 8, 9]
    found = run_forward(model, model.get_input_embeddings()(packed), packing).hidden
    assert_close(found, model.base_model(ids).last_hidden_state.flatten(0, 1), atol=2e-6, rtol=1e-5)


def by_row(model, batch):
    """Logprobs of each completion's tokens from the model's own logits, a row at a time."""
    found = []
    for row, (prompt, length) in enumerate(zip(batch.prompt_lengths, batch.completion_lengths, strict=True)):
        ids = batch.input_ids[row, : prompt + length]
        logits = model(ids[None]).logits[0, prompt - 1 : -1]
        found.append(logits.log_softmax(-1).gather(1, ids[prompt:, None])[:, 0])
    return torch.cat(found)


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("group", "long"), [(1, 512), (3, 512), (3, 8), (3, 0)])
def test_gradients_are_those_of_the_rows(adapter, recompute, group, long, monkeypatch):
    monkeypatch.setattr(packing_module, "_LONG", long)
    model, batch = tiny_model(), random_batch(3, rows=5, group=group)
    if adapter:
        add_adapter(model, LoraConfig(r=4, alpha=8, targets=["q_proj", "v_proj", "up_proj"]), 0)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    weights = torch.randn(int(batch.completion_mask.sum()), generator=torch.Generator().manual_seed(0))
    expected = torch.autograd.grad((by_row(model, batch) * weights).sum(), trained)
    with recomputed_layers(model, recompute):
        scores = score_completions(model, batch, temperature=1.0)
    found = torch.autograd.grad((scores.logprobs[batch.completion_mask] * weights).sum(), trained)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_layers_that_run_again_are_not_noted_again_and_attend_as_before():
    """A list that grew in the backward pass would hold every layer's keys; a model left on another attention would leak."""
    model, batch = tiny_model(), random_batch(3, rows=5)
    with recomputed_layers(model):
        scores = score_completions(model, batch, temperature=1.0)
    objective = scores.logprobs.sum()
    first = torch.autograd.grad(objective, [model.lm_head.weight], retain_graph=True)
    again = torch.autograd.grad(objective, list(model.parameters()))  # as credit does before the loss
    assert torch.equal(first[0], again[-1])
    assert len(scores.forward.layers) == 2
    assert model.config._attn_implementation == "sdpa"


def test_what_cannot_be_packed_is_refused():
    eager, linear = tiny_model(), tiny_model()
    eager.config._attn_implementation = "eager"
    linear.config.layer_types = ["full_attention", "linear_attention"]
    for model, said in ((eager, "but have eager"), (linear, "but have sdpa, linear_attention")):
        with pytest.raises(DataError, match=said):
            packed_forward(model, sequences())


def test_a_wrapped_model_is_refused():
    wrapped = get_peft_model(tiny_model(), PeftConfig(target_modules=["q_proj"]))
    with pytest.raises(DataError, match="but is a PeftModel: hand over what it wraps"):
        packed_forward(wrapped, sequences())
    assert packed_forward(wrapped.get_base_model(), sequences())


@pytest.mark.parametrize("reentrant", [True, False])
def test_layers_that_run_again_behind_our_back_are_refused(reentrant):
    """They would attend as one row: a gradient that is wrong without a word, or an error that says nothing."""
    model, batch = tiny_model().train(), random_batch(3, rows=5)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with pytest.raises(DataError, match="must not recompute its layers by gradient_checkpointing_enable"):
        score_completions(model, batch, temperature=1.0)
    score_completions(model.eval(), batch, temperature=1.0)  # then it recomputes nothing


TINY = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "pad_token_id": PAD,
}


@pytest.mark.parametrize(
    "config",
    [
        Gemma2Config(**TINY, attn_logit_softcapping=50.0),
        GptOssConfig(**TINY, num_local_experts=2, num_experts_per_tok=1),
    ],
    ids=["caps scores", "has sinks"],
)
def test_attention_that_is_not_plain_softmax_is_refused(config):
    """Two public architectures that sdpa as we call it would run wrongly without a word."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.config._attn_implementation = "sdpa"  # where it is loaded with it all the same
    with pytest.raises(DataError, match="must be plain softmax attention"):
        packed_forward(model, sequences())
