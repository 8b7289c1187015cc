"""OAR-P against a naive version that shares nothing with it, in all its forms."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oar.common.errors import ConfigError, DataError
from oar.method.batch import collate
from oar.method.importance import GradientNormImportance, PerturbationImportance, perturbation
from oar.method.importance.clean import clean_passes
from oar.method.importance.counterfactual import recompute
from oar.method.importance.perturbation import _fill_in, largest
from oar.method.importance.replacements import replacement_ids
from oar.method.probes import AnswerJointProbe, AnswerMeanProbe, LastTokenProbe
from oar.method.segments import Segments
from oar.names import COUNTERFACTUALS
from tests.models import MARKER, PAD, credit_inputs, random_batch, tiny_model
from tests.plain_oar_p import naive_oar_p, outcome, parts

PROBES = {"lt_logits": LastTokenProbe([MARKER]), "as_mean": AnswerMeanProbe(), "as_joint": AnswerJointProbe()}
NEUTRAL = 7  # a token of random batches
exactly = {"atol": 1e-5, "rtol": 1e-4}


@pytest.mark.parametrize("keep_graph", [False, True])
@pytest.mark.parametrize("name", PROBES)
@pytest.mark.parametrize("seed", range(3))
def test_equals_naive(name, seed, keep_graph):
    """Random models, lengths and paddings, grouped queries; over its own clean forward and over the update's."""
    model, batch = tiny_model(seed, layers=1 + seed), random_batch(seed, rows=4)
    found = PerturbationImportance(max_tokens_per_forward=50)(
        credit_inputs(batch, PROBES[name], model=model, keep_graph=keep_graph)
    )
    torch.testing.assert_close(found, naive_oar_p(model, batch, name, MARKER), **exactly)
    assert float(found.max()) > 1e-3  # the models are not so dull that zeros would pass
    assert not found.requires_grad


@pytest.mark.parametrize("reach", [{}, {"window": 2}, {"window": 0, "routes": 2}])
@pytest.mark.parametrize("kind", COUNTERFACTUALS)
@given(seed=st.integers(0, 10_000), limit=st.sampled_from([1, 7, 64, 4096]))
@settings(max_examples=8)
def test_chunks_and_other_completions_do_not_matter(kind, reach, seed, limit):
    model, batch = tiny_model(seed), random_batch(seed, rows=4)
    inputs = replace(credit_inputs(batch, PROBES["as_mean"], model=model), neutral_id=NEUTRAL)
    whole = PerturbationImportance(kind, **reach, max_tokens_per_forward=10**6)(inputs)
    found = PerturbationImportance(kind, **reach, max_tokens_per_forward=limit)(inputs)
    torch.testing.assert_close(found, whole, **exactly)
    alone = PerturbationImportance(kind, **reach)(inputs.rows(torch.tensor([2])))
    torch.testing.assert_close(alone[0], whole[2], **exactly)


@pytest.mark.parametrize(("kind", "draws"), [("text", 1), ("mean_embedding", 1), ("random_token", 3), ("resampled", 2)])
@torch.no_grad()
def test_other_counterfactuals_equal_plain_forwards(kind, draws):
    """The embedding that is put in place is taken from the whole matrix; several draws are each a forward, then averaged."""
    model, batch = tiny_model(5), random_batch(5, rows=2)
    inputs = replace(credit_inputs(batch, PROBES["as_mean"], model=model), neutral_id=NEUTRAL)
    found = PerturbationImportance(kind, draws=draws)(inputs)
    table = model.get_input_embeddings().weight
    (clean,) = clean_passes(inputs, 10**6, graph=False)
    for place, completion in enumerate(clean.completions.tolist()):
        taken_apart = parts(batch, completion)
        prompt, reasoning, marker, answer = taken_apart
        ids = torch.tensor([[*prompt, *reasoning, *marker, *answer]])
        unchanged = outcome(model, "as_mean", MARKER, taken_apart)
        tokens = torch.arange(len(reasoning))
        rows = torch.full_like(tokens, place)
        put = [replacement_ids(kind, inputs, clean, rows, tokens, draw) for draw in range(draws)]
        assert draws == 1 or not torch.equal(put[0], put[1])
        for t in tokens.tolist():
            moved = 0.0
            for by in put:
                embeddings = table[ids]
                new = {"text": table[NEUTRAL], "mean_embedding": table.mean(dim=0)}.get(kind, table[by[t]])
                embeddings[0, len(prompt) + t] = new
                logits = model(inputs_embeds=embeddings).logits[0]
                changed = logits[-len(answer) - 1 : -1].mean(0).log_softmax(-1)
                moved += float((unchanged.exp() * (unchanged - changed)).sum()) / draws
            assert float(found[completion, t]) == pytest.approx(moved, abs=1e-5)


def test_a_text_without_its_token_is_refused():
    with pytest.raises(DataError, match="counterfactual=text"):
        PerturbationImportance("text")(credit_inputs(random_batch(1), PROBES["as_mean"]))


def test_another_conclude_text_is_not_read_off_the_update_s_forward():
    """The probe then shows the model something that the completion does not hold."""
    model, batch, other = tiny_model(), random_batch(9), 7
    inputs = credit_inputs(batch, LastTokenProbe([other]), model=model, keep_graph=True)
    expected = naive_oar_p(model, batch, "lt_logits", other)
    torch.testing.assert_close(PerturbationImportance()(inputs), expected, **exactly)


def windowed_naively(model, batch, row, t, window, routes=()):
    """A cache whose keys and values come from the masked forward at recomputed positions, one token at a time."""
    prompt, reasoning, marker, answer = parts(batch, row)
    ids, start = [*prompt, *reasoning, *marker, *answer], len(prompt)
    tail = (
        start + len(reasoning) + len(marker) - 1
    )  # where the first answer token is predicted, if the marker is one token
    masked = start + t
    last = min(tail, start + len(reasoning))
    again = [p for p in range(len(ids)) if masked <= p <= masked + window or p >= last or p in routes]
    changed = list(ids)
    changed[masked] = PAD
    hidden = model.model.embed_tokens(torch.tensor([ids]))[0]
    new = model.model.embed_tokens(torch.tensor([changed]))[0]
    positions = torch.arange(len(ids))[None]
    cos, sin = model.model.rotary_emb(hidden[None], positions)
    clean = hidden
    state = torch.stack([new[p] if p in again else clean[p] for p in range(len(ids))])

    def layer_on(layer, stream, others):
        """The layer's output for `stream` where a position sees recomputed positions as in `stream`, others as in `others`."""
        mixed = torch.stack([stream[p] if p in again else others[p] for p in range(len(ids))])
        return layer(mixed[None], position_embeddings=(cos, sin), attention_mask=causal(len(ids)))[0]

    for layer in model.model.layers:
        after = layer_on(layer, state, clean)
        clean = layer(clean[None], position_embeddings=(cos, sin), attention_mask=causal(len(ids)))[0]
        state = torch.stack([after[p] if p in again else clean[p] for p in range(len(ids))])
    first = start + len(reasoning) + len(marker) - 1
    logits = model.lm_head(model.model.norm(state[first : first + len(answer)]))
    return logits.mean(0).log_softmax(-1)


def causal(length):
    return torch.full((1, 1, length, length), -torch.inf).triu(1)


@pytest.mark.parametrize("window", [0, 2, 5])
def test_windowed_equals_a_forward_with_all_other_positions_frozen(window):
    model, batch = tiny_model(4, layers=3), random_batch(4, rows=3)
    found = PerturbationImportance(window=window)(credit_inputs(batch, PROBES["as_mean"], model=model))
    with torch.no_grad():
        for row in range(3):
            taken_apart = parts(batch, row)
            clean = outcome(model, "as_mean", MARKER, taken_apart)
            for t in range(len(taken_apart[1])):
                changed = windowed_naively(model, batch, row, t, window)
                assert float(found[row, t]) == pytest.approx(float((clean.exp() * (clean - changed)).sum()), abs=2e-5)


def routes_naively(model, batch, row, t, window, count):
    """Attention weights as transformers' own eager attention gives them, and rollout with one loop for each index."""
    prompt, reasoning, marker, answer = parts(batch, row)
    ids = torch.tensor([[*prompt, *reasoning, *marker, *answer]])
    eager = type(model)(model.config)
    eager.load_state_dict(model.state_dict())
    eager.config._attn_implementation = "eager"
    weights = [layer[0].mean(0) for layer in eager.eval()(ids, output_attentions=True).attentions]
    model.config._attn_implementation = "sdpa"  # the two share a config
    first = len(prompt) + len(reasoning) + len(marker) - 1
    reach = [1.0 if first <= s < first + len(answer) else 0.0 for s in range(ids.shape[1])]
    masked = len(prompt) + t
    strength = [0.0] * len(reach)
    for layer in reversed(weights):
        strength = [strength[s] + float(layer[s, masked]) * reach[s] for s in range(len(reach))]
        reach = [
            reach[s] + sum(float(layer[later, s]) * reach[later] for later in range(s, len(reach)))
            for s in range(len(reach))
        ]
    candidates = range(masked + window + 1, len(prompt) + len(reasoning))
    return sorted(candidates, key=lambda s: -strength[s])[:count]


@pytest.mark.parametrize("window", [0, 1])
@pytest.mark.parametrize("count", [1, 3])
def test_routes_are_the_strongest_by_attention_rollout(window, count):
    model, batch = tiny_model(7, layers=3), random_batch(7, rows=3, longest=20)
    estimator = PerturbationImportance(window=window, routes=count, max_tokens_per_forward=60)
    found = estimator(credit_inputs(batch, PROBES["as_mean"], model=model))
    nearest = PerturbationImportance(window=window + count)(credit_inputs(batch, PROBES["as_mean"], model=model))
    assert not torch.allclose(found, nearest, atol=1e-3)
    with torch.no_grad():
        for row in range(3):
            taken_apart = parts(batch, row)
            clean = outcome(model, "as_mean", MARKER, taken_apart)
            for t in range(len(taken_apart[1])):
                routes = routes_naively(model, batch, row, t, window, count)
                changed = windowed_naively(model, batch, row, t, window, routes)
                assert float(found[row, t]) == pytest.approx(float((clean.exp() * (clean - changed)).sum()), abs=2e-5)


@pytest.mark.parametrize("name", PROBES)
def test_a_window_or_routes_over_everything_are_exact(name):
    inputs = credit_inputs(random_batch(5), PROBES[name])
    exact, narrow = PerturbationImportance()(inputs), PerturbationImportance(window=0)(inputs)
    torch.testing.assert_close(PerturbationImportance(window=50)(inputs), exact, **exactly)
    torch.testing.assert_close(PerturbationImportance(window=0, routes=50)(inputs), exact, **exactly)
    assert not torch.allclose(narrow, exact, atol=1e-3)


def test_random_tokens_and_resampled_ones_are_what_they_say():
    """Each importance equals that of the naive forward with the token which the same seed draws."""
    model, batch = tiny_model(2), random_batch(2, rows=3)
    inputs = credit_inputs(batch, PROBES["as_mean"], model=model, seed=3)
    for kind in ("random_token", "resampled"):
        found = PerturbationImportance(kind)(inputs)
        prompt, reasoning, marker, answer = parts(batch, 1)
        clean = outcome(model, "as_mean", MARKER, (prompt, reasoning, marker, answer))
        for t, own in enumerate(reasoning):
            moved = []
            for token in range(model.config.vocab_size):
                changed = (prompt, [*reasoning[:t], token, *reasoning[t + 1 :]], marker, answer)
                after = outcome(model, "as_mean", MARKER, changed)
                moved.append(max(0.0, float((clean.exp() * (clean - after)).sum())))
            fitting = [token for token, value in enumerate(moved) if abs(value - float(found[1, t])) < 1e-5]
            assert fitting
            if kind == "random_token":
                assert set(fitting) - {own, PAD}


def test_resampled_tokens_follow_the_policy():
    """Over many seeds a token comes out as often as the policy says."""
    model, batch = tiny_model(2), random_batch(2, rows=1)
    many = batch.rows(torch.zeros(3000, dtype=torch.long))
    inputs = credit_inputs(many, PROBES["as_mean"], model=model)
    (clean,) = clean_passes(inputs, 10**9, graph=False)
    row, token = torch.arange(3000), torch.zeros(3000, dtype=torch.long)
    drawn = replacement_ids("resampled", inputs, clean, row, token)
    frequency = torch.bincount(drawn, minlength=model.config.vocab_size) / 3000
    prompt = batch.input_ids[0, : int(batch.prompt_lengths[0])]
    with torch.no_grad():
        policy = model(prompt[None]).logits[0, -1].softmax(-1)
    assert float((frequency - policy).abs().max()) < 0.03
    others = replacement_ids("random_token", inputs, clean, row, token)
    own = int(batch.completion_ids[0, 0])
    assert set(others.tolist()) == set(range(model.config.vocab_size)) - {own, PAD}
    assert float(torch.bincount(others).max()) < 1.5 * 3000 / (model.config.vocab_size - 2)  # none twice as often


@pytest.mark.parametrize("draws", [1, 3])
def test_a_draw_that_is_the_token_itself_moves_nothing_and_is_not_run(draws, monkeypatch):
    """A completion that the policy is sure of costs nothing; one that it is not sure of costs a counterfactual a change."""
    model, batch = tiny_model(2), random_batch(2, rows=40)
    model.get_output_embeddings().weight.data *= 100
    reasoning = batch.reasoning_mask
    for row in range(20):  # written anew, each token the likeliest
        for place in reasoning[row].nonzero()[:, 0].tolist():
            at = int(batch.prompt_lengths[row]) + place
            with torch.no_grad():
                chosen = model(batch.input_ids[row : row + 1, :at]).logits[0, -1].argmax()
            batch.input_ids[row, at] = batch.completion_ids[row, place] = chosen
    inputs, run = credit_inputs(batch, PROBES["as_mean"], model=model), []

    def counted(model, keys, job):
        run.extend(job.rows)
        return recompute(model, keys, job)

    monkeypatch.setattr(perturbation, "recompute", counted)
    found = PerturbationImportance("resampled", draws=draws, max_tokens_per_forward=200).measure(inputs, reasoning)
    (clean,) = clean_passes(inputs, 10**6, graph=False)
    row, token = reasoning[clean.completions].nonzero(as_tuple=True)
    put = torch.stack([replacement_ids("resampled", inputs, clean, row, token, draw) for draw in range(draws)])
    row = clean.completions[row]
    changes = put != batch.completion_ids[row, token]
    assert 0.2 < changes.float().mean() < 0.8
    assert len(run) == changes.sum()
    still = ~changes.any(dim=0)
    assert (found[row[still], token[still]] == 0).all()
    assert (found[row[~still], token[~still]] != 0).any()


def test_knockout_hides_the_token_and_keeps_it_in_place():
    """Naively: an attention mask in which no later position sees t."""
    model, batch = tiny_model(6), random_batch(6, rows=2)
    found = PerturbationImportance("knockout")(credit_inputs(batch, PROBES["as_mean"], model=model))
    for row in range(2):
        taken_apart = parts(batch, row)
        prompt, reasoning, marker, answer = taken_apart
        clean = outcome(model, "as_mean", MARKER, taken_apart)
        ids = torch.tensor([[*prompt, *reasoning, *marker, *answer]])
        first = len(prompt) + len(reasoning) + len(marker) - 1
        for t in range(len(reasoning)):
            hidden = len(prompt) + t
            mask = causal(ids.shape[1])
            mask[0, 0, hidden + 1 :, hidden] = -torch.inf
            with torch.no_grad():
                logits = model(ids, attention_mask=mask).logits[0, first : first + len(answer)]
            changed = logits.mean(0).log_softmax(-1)
            assert float(found[row, t]) == pytest.approx(float((clean.exp() * (clean - changed)).sum()), abs=1e-5)


def test_a_budget_measures_the_largest_gradients_and_keeps_their_order_elsewhere():
    inputs = credit_inputs(random_batch(3, rows=3, longest=20), PROBES["as_mean"])
    exact, norms = PerturbationImportance()(inputs), GradientNormImportance()(inputs)
    found = PerturbationImportance(budget=3)(inputs)
    for row in range(3):
        tokens = inputs.batch.reasoning_mask[row].nonzero()[:, 0]
        order = tokens[norms[row, tokens].argsort(descending=True)]
        measured, rest = order[:3], order[3:]
        torch.testing.assert_close(found[row, measured], exact[row, measured], **exactly)
        ratio = (exact[row, measured] / norms[row, measured]).log().mean().exp()
        torch.testing.assert_close(found[row, rest], norms[row, rest] * ratio, atol=1e-5, rtol=1e-2)


def test_where_no_candidate_moves_anything_the_others_get_nothing():
    measured, norms = torch.zeros(2, 4), torch.tensor([[3.0, 2.0, 1.0, 0.5]]).expand(2, 4).clone()
    candidates = torch.tensor([[True, True, False, False], [False] * 4])
    expected = torch.stack([torch.zeros(4), norms[1]])  # of a row without candidates the norms are all that is known
    torch.testing.assert_close(_fill_in(measured, norms, candidates), expected)


def test_a_candidate_that_moves_nothing_says_nothing_of_the_ratio():
    measured, norms = torch.tensor([[8.0, 0.0, 0.0]]), torch.tensor([[2.0, 1.0, 0.5]])
    found = _fill_in(measured, norms, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(found, torch.tensor([[8.0, 0.0, 2.0]]))  # measured is 4 times the norm


@pytest.mark.parametrize("probe", ["as_mean", "as_joint"])
def test_the_borders_of_a_budget(probe):
    inputs = credit_inputs(random_batch(3), PROBES[probe])
    torch.testing.assert_close(PerturbationImportance(budget=0)(inputs), GradientNormImportance()(inputs))
    torch.testing.assert_close(PerturbationImportance(budget=1000)(inputs), PerturbationImportance()(inputs))


def test_largest_counts_ties_once():
    signal = torch.tensor([[1.0, 1.0, 1.0, 9.0], [5.0, 4.0, 3.0, 2.0]])
    mask = torch.tensor([[True, True, True, False], [True, False, True, True]])
    assert largest(signal, mask, 2).sum(dim=1).tolist() == [2, 2]
    assert largest(signal, mask, 2)[1].tolist() == [True, False, True, False]
    assert torch.equal(largest(signal, mask, 9), mask)


def edge_batch():
    """No reasoning; one token; an answer of 40 tokens at the very end; a row that ends with padding only."""
    long_answer = [*range(4, 39), *range(4, 9)]
    completions = [[MARKER, 9, 1], [10, MARKER, 9, 1], [11, 12, MARKER, *long_answer]]
    borders = [Segments(0, 1, 2), Segments(1, 2, 3), Segments(2, 3, 43)]
    return collate([[2, 5]] * 3, completions, [[-1.0] * len(c) for c in completions], borders, pad_id=PAD)


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.parametrize(
    "options",
    [{}, {"window": 0}, {"window": 1}, {"window": 0, "routes": 2}, {"budget": 1}, {"counterfactual": "knockout"}],
)
def test_edges_of_a_completion(name, options):
    batch = edge_batch()
    found = PerturbationImportance(**options)(credit_inputs(batch, PROBES[name]))
    assert found.isfinite().all()
    assert (found[~batch.reasoning_mask] == 0).all()
    assert (found[0] == 0).all()
    if not options:
        torch.testing.assert_close(found, naive_oar_p(tiny_model(), batch, name, MARKER), **exactly)


@pytest.mark.parametrize(
    "options",
    [
        {"window": -1},
        {"routes": -1, "window": 0},
        {"routes": 2},
        {"budget": -1},
        {"counterfactual": "swap"},
        {"draws": 0, "counterfactual": "resampled"},
        {"draws": 2},
        {"max_tokens_per_forward": 0},
    ],
)
def test_refused_options(options):
    with pytest.raises(ConfigError, match=f"{next(iter(options))} must be"):
        PerturbationImportance(**options)


def test_another_architecture_is_refused_by_name():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=64)).eval()
    with pytest.raises(DataError, match="GPT2LMHeadModel"):
        PerturbationImportance()(credit_inputs(random_batch(0), PROBES["as_mean"], model=model))


def test_the_model_is_left_as_it_was():
    model, batch = tiny_model(), random_batch(1)
    before = model(batch.input_ids).logits
    PerturbationImportance()(credit_inputs(batch, PROBES["as_mean"], model=model))
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(batch.input_ids).logits, before)
