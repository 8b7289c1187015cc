"""Logprobs and batches against a row-by-row forward of the whole model."""

import torch

from oar.method.forward.logprobs import score_completions
from tests.models import random_batch, tiny_model


def rowwise(model, batch, temperature):
    """Logprobs and entropy of each completion token, one unpadded row at a time, over all logits."""
    logprobs, entropies = torch.zeros(batch.completion_mask.shape), torch.zeros(batch.completion_mask.shape)
    for row in range(len(batch)):
        prompt, length = int(batch.prompt_lengths[row]), int(batch.completion_lengths[row])
        ids = batch.input_ids[row, : prompt + length]
        with torch.no_grad():
            distribution = torch.distributions.Categorical(logits=model(ids[None]).logits[0] / temperature)
        for t in range(length):
            step = torch.distributions.Categorical(logits=distribution.logits[prompt + t - 1])
            logprobs[row, t] = step.log_prob(ids[prompt + t])
            entropies[row, t] = step.entropy()
    return logprobs, entropies


def test_equals_rowwise_forward():
    model, batch = tiny_model(), random_batch(0, rows=5)
    for temperature in (1.0, 0.7):
        scores = score_completions(model, batch, temperature=temperature)
        expected_logprobs, expected_entropy = rowwise(model, batch, temperature)
        torch.testing.assert_close(scores.logprobs.detach(), expected_logprobs, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(scores.entropy, expected_entropy, atol=2e-6, rtol=1e-5)


def test_padding_does_not_matter():
    model, batch = tiny_model(), random_batch(1, rows=6)
    together = score_completions(model, batch, temperature=1.0).logprobs
    for row in range(6):
        alone = score_completions(model, batch.rows(torch.tensor([row])), temperature=1.0).logprobs
        torch.testing.assert_close(alone[0], together[row], atol=2e-6, rtol=1e-5)


def test_rows_cuts_padding_and_keeps_content():
    batch = random_batch(2, rows=4)
    shortest = (batch.prompt_lengths + batch.completion_lengths).argmin()[None]
    cut = batch.rows(shortest)
    assert cut.input_ids.shape[1] == int(cut.prompt_lengths + cut.completion_lengths)
    assert torch.equal(cut.completion_mask[0], batch.completion_mask[shortest[0]])
