"""A transformer whose causal tokens are known because its weights were set by hand: OAR-P must rank exactly these first.

Nothing is trained and nothing is marked by the code under test. The marker and the answer's tokens read (by attention) the
tokens of one type, `counted`, and nothing else; each of these votes for its value, and the answer is the value with the most
votes. All other tokens carry a value as well, but no reader attends to them, so nothing about them can matter.
"""

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from oar.method.batch import CompletionBatch, collate
from oar.method.forward.logprobs import score_completions
from oar.method.importance import CreditInputs, GradientNormImportance, PerturbationImportance
from oar.method.probes import AnswerJointProbe, AnswerMeanProbe, LastTokenProbe
from oar.method.segments import Segments
from oar.statistics.attribution import auc, recall_at_truth

PAD, EOS, BOS, MARKER = range(4)
VALUES, KINDS = 4, 3  # kinds: tokens that look different and mean the same
ANSWER, COUNTED, IGNORED = 4, 4 + VALUES, 4 + VALUES + VALUES * KINDS
VOCAB = IGNORED + VALUES * KINDS
# What the directions of the residual stream mean: one for a type, one for each value, one for each value's votes.
READER, COUNTED_FLAG, SINK, VALUE, VOTE, LOOKS = 0, 1, 2, 3, 3 + VALUES, 3 + 2 * VALUES
HIDDEN, HEAD = 16, 8
SLOW = HEAD // 2 - 1  # the direction of a head that position turns least: a billionth of a radian per token here
PROBES = {"lt_logits": LastTokenProbe([MARKER]), "as_mean": AnswerMeanProbe(), "as_joint": AnswerJointProbe()}
BUDGET = 1000  # tokens in one forward


def hand_built_model() -> Qwen2ForCausalLM:
    """One layer; the first of two heads does all of the work, the feed-forward none."""
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        rope_theta=1e12,
        tie_word_embeddings=False,
        pad_token_id=PAD,
    )
    model = Qwen2ForCausalLM(config).eval()
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        embedding = model.model.embed_tokens.weight
        embedding[BOS, SINK] = 1
        embedding[[MARKER, *range(ANSWER, ANSWER + VALUES)], READER] = 1
        for value in range(VALUES):
            for kind in range(KINDS):
                counted, ignored = (first + value * KINDS + kind for first in (COUNTED, IGNORED))
                embedding[counted, COUNTED_FLAG] = 1
                embedding[[counted, ignored], VALUE + value] = 1
                embedding[[counted, ignored], LOOKS + kind] = 0.5
        # All of one length, so that the first normalisation doubles each of them; the padding token stays zero.
        rest = 4 - embedding[1:].square().sum(dim=1)
        embedding[1:, LOOKS + KINDS] = rest.sqrt()
        # Scores 12 for a counted token, 13 for BOS and 0 for all others: these get a millionth of the attention. BOS takes
        # what the counted leave, so that each more of them adds to the votes.
        attention.q_proj.weight[SLOW, READER] = HEAD**0.5 / 2
        attention.k_proj.weight[SLOW, COUNTED_FLAG] = 6.0
        attention.k_proj.weight[SLOW, SINK] = 6.5
        for value in range(VALUES):
            attention.v_proj.weight[value, VALUE + value] = 1
            attention.o_proj.weight[VOTE + value, value] = 1
            model.lm_head.weight[ANSWER + value, VOTE + value] = 1.5
    return model


def completions(seed: int, rows: int = 6) -> tuple[CompletionBatch, Tensor]:
    """Reasoning in which a few tokens, anywhere, are counted, all of one value; and the marks (B, T) of these."""
    rng = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=rng))

    prompts, texts, segments, counted = [], [], [], []
    for _ in range(rows):
        length, value, answer = draw(8, 25), draw(0, VALUES - 1), draw(1, 3)
        reasoning = [draw(IGNORED, VOCAB - 1) for _ in range(length)]
        places = torch.randperm(length, generator=rng)[: draw(2, 5)].tolist()
        for place in places:
            reasoning[place] = COUNTED + value * KINDS + draw(0, KINDS - 1)
        prompts.append([BOS, *(draw(IGNORED, VOCAB - 1) for _ in range(draw(0, 4)))])
        texts.append([*reasoning, MARKER, *[ANSWER + value] * answer, EOS])
        segments.append(Segments(length, length + 1, length + 1 + answer))
        counted.append(places)
    batch = collate(prompts, texts, [[0.0] * len(text) for text in texts], segments, pad_id=PAD)
    marks = torch.zeros_like(batch.reasoning_mask)
    for row, places in enumerate(counted):
        marks[row, places] = True
    return batch, marks


def inputs(model: Qwen2ForCausalLM, batch: CompletionBatch, probe: str) -> CreditInputs:
    with torch.no_grad():
        scores = score_completions(model, batch, temperature=1.0)
    return CreditInputs(model, batch, PROBES[probe], scores, range(len(batch)), neutral_id=IGNORED)


def per_completion(metric, importance: Tensor, marks: Tensor, batch: CompletionBatch) -> list[float]:
    """A metric of each completion's reasoning tokens."""
    masks = batch.reasoning_mask
    return [metric(importance[row, masks[row]], marks[row, masks[row]]) for row in range(len(batch))]


def test_the_model_answers_by_the_counted_tokens_alone() -> None:
    """Straight from the model, without any code of ours: the ground truth of the other tests."""
    model, (batch, marks) = hand_built_model(), completions(0)
    rng = torch.Generator().manual_seed(1)
    for row in range(len(batch)):
        length = int(batch.prompt_lengths[row] + batch.reasoning_mask[row].sum()) + 1
        ids = batch.input_ids[row, :length]  # up to the marker, which predicts the answer
        reasoning = int(batch.prompt_lengths[row]) + marks[row].nonzero()[:, 0]
        others = torch.tensor([at for at in range(1, length - 1) if at not in reasoning.tolist()])
        answer = int(batch.completion_ids[row, batch.answer_mask[row]][0])

        def logits(ids: Tensor) -> Tensor:
            with torch.no_grad():
                return model(ids[None]).logits[0, -1]

        clean = logits(ids)
        assert int(clean.argmax()) == answer
        shuffled, fewer = ids.clone(), ids.clone()
        shuffled[others] = torch.randint(IGNORED, VOCAB, (len(others),), generator=rng)
        torch.testing.assert_close(logits(shuffled), clean, atol=1e-3, rtol=0)
        fewer[reasoning[0]] = IGNORED
        assert float(clean[answer] - logits(fewer)[answer]) > 0.05


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize(
    ("counterfactual", "window", "budget"),
    [
        *((kind, None, None) for kind in ("pad", "knockout", "text")),
        ("pad", 0, None),
        ("pad", None, 5),
    ],
)
def test_oar_p_ranks_the_counted_tokens_first(
    probe: str, counterfactual: str, window: int | None, budget: int | None
) -> None:
    model, (batch, marks) = hand_built_model(), completions(1)
    estimator = PerturbationImportance(
        counterfactual=counterfactual, window=window, budget=budget, max_tokens_per_forward=BUDGET
    )
    importance = estimator(inputs(model, batch, probe))
    assert per_completion(auc, importance, marks, batch) == [1.0] * len(batch)
    least = importance.where(marks, torch.inf).amin(dim=1)
    most = importance.where(~marks, 0.0).amax(dim=1)
    assert (least > 100 * most).all()  # far ahead, not by a hair


@pytest.mark.parametrize("probe", PROBES)
def test_the_gradient_norm_ranks_them_first_as_well(probe: str) -> None:
    model, (batch, marks) = hand_built_model(), completions(2)
    importance = GradientNormImportance(max_tokens_per_forward=BUDGET)(inputs(model, batch, probe))
    assert per_completion(auc, importance, marks, batch) == [1.0] * len(batch)


@pytest.mark.parametrize("counterfactual", ["random_token", "resampled"])
def test_random_replacements_blame_tokens_that_do_not_matter(counterfactual: str) -> None:
    """A mask artefact (docs/METHOD.md §7.5): a token put in another's place may be counted where that one was not."""
    model, (batch, marks) = hand_built_model(), completions(5, rows=20)
    estimator = PerturbationImportance(
        counterfactual=counterfactual, window=None, budget=None, max_tokens_per_forward=BUDGET
    )
    importance = estimator(inputs(model, batch, "as_mean"))
    assert float(importance.where(~marks, 0.0).max()) > 1e-2
    found = per_completion(auc, importance, marks, batch)
    assert 0.6 < sum(found) / len(found) < 0.95


def test_other_marks_are_not_found() -> None:
    """The check can fail: as many marks on other tokens give chance or less."""
    model, (batch, marks) = hand_built_model(), completions(3, rows=20)
    estimator = PerturbationImportance(counterfactual="pad", window=None, budget=None, max_tokens_per_forward=BUDGET)
    importance = estimator(inputs(model, batch, "as_mean"))
    moved = torch.zeros_like(marks)
    for row in range(len(batch)):
        reasoning = batch.reasoning_mask[row]
        order = torch.randperm(int(reasoning.sum()), generator=torch.Generator().manual_seed(row))
        moved[row, reasoning] = marks[row, reasoning][order]
    assert not torch.equal(moved, marks)
    found = torch.tensor(per_completion(auc, importance, moved, batch))
    assert abs(float(found.mean()) - 0.5) < 0.15
    assert sum(per_completion(recall_at_truth, importance, moved, batch)) < 0.5 * len(batch)
    assert sum(per_completion(recall_at_truth, importance, marks, batch)) == len(batch)
