"""Probes: what the model is shown and where it is read, against sequences built by hand."""

import pytest
import torch

from oar.method.batch import collate
from oar.method.forward.logprobs import pack, read_logits, run_forward
from oar.method.probes import AnswerJointProbe, AnswerMeanProbe, LastTokenProbe, make_probe
from oar.method.segments import Segments
from tests.models import PAD, tiny_model

# prompt | reasoning | marker | answer | rest
ROWS = [([2, 10, 11], [20, 21, 22], [3], [30, 31], [1]), ([2, 12], [23], [4, 3], [32], [9, 1])]


def batch():
    completions = [[*r, *m, *a, *e] for _, r, m, a, e in ROWS]
    borders = [Segments(len(r), len(r) + len(m), len(r) + len(m) + len(a)) for _, r, m, a, _ in ROWS]
    return collate([p for p, *_ in ROWS], completions, [[0.0] * len(c) for c in completions], borders, pad_id=PAD)


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def test_last_token_probe_reads_after_the_conclude_text():
    probe, model = LastTokenProbe([7, 8]), tiny_model()
    inputs = probe.inputs(batch())
    with torch.no_grad():
        ids, packing = pack(inputs.input_ids, inputs.lengths)
        forward = run_forward(model, model.get_input_embeddings()(ids), packing)
        logits = read_logits(model, forward, inputs.read_positions)
    outcome = probe.outcome(logits, inputs.read_mask, inputs.read_ids)
    for row, (prompt, reasoning, _, answer, _) in enumerate(ROWS):
        shown = [*prompt, *reasoning, 7, 8]
        assert inputs.input_ids[row, : len(shown)].tolist() == shown
        assert (inputs.input_ids[row, len(shown) :] == PAD).all()
        torch.testing.assert_close(outcome[row], logits_of(model, shown)[-1].log_softmax(-1), atol=1e-5, rtol=1e-5)
        assert inputs.read_ids[row].tolist() == answer[:1]


@pytest.mark.parametrize("kind", [AnswerMeanProbe, AnswerJointProbe])
def test_answer_probes_read_what_predicts_the_answer(kind):
    probe, model = kind(), tiny_model()
    inputs = probe.inputs(batch())
    with torch.no_grad():
        ids, packing = pack(inputs.input_ids, inputs.lengths)
        forward = run_forward(model, model.get_input_embeddings()(ids), packing)
        logits = read_logits(model, forward, inputs.read_positions)
    outcome = probe.outcome(logits, inputs.read_mask, inputs.read_ids)
    for row, (prompt, reasoning, marker, answer, _) in enumerate(ROWS):
        before = [*prompt, *reasoning, *marker]
        full = logits_of(model, [*before, *answer])
        predicting = full[len(before) - 1 : len(before) - 1 + len(answer)]
        if kind is AnswerMeanProbe:
            expected = predicting.mean(0).log_softmax(-1)
        else:
            expected = predicting.log_softmax(-1)[range(len(answer)), answer].mean()
        torch.testing.assert_close(outcome[row], expected, atol=1e-5, rtol=1e-5)
        shown = [*before, *answer[:-1]]  # no position that is read sees the last token
        assert inputs.input_ids[row, : len(shown)].tolist() == shown
        assert int(inputs.lengths[row]) == len(shown)


def test_divergences_by_hand():
    clean = torch.tensor([[0.5, 0.5]]).log()
    changed = torch.tensor([[0.25, 0.75]]).log()
    expected = 0.5 * torch.log(torch.tensor(0.5 / 0.25)) + 0.5 * torch.log(torch.tensor(0.5 / 0.75))
    torch.testing.assert_close(AnswerMeanProbe().divergence(clean, changed), expected[None])
    assert float(AnswerJointProbe().divergence(torch.tensor([-1.0]), torch.tensor([-3.0]))) == 2.0


def test_reasoning_positions_point_at_the_reasoning_tokens():
    for probe in (LastTokenProbe([7]), AnswerMeanProbe()):
        inputs = probe.inputs(batch())
        for row, (_, reasoning, *_) in enumerate(ROWS):
            positions = inputs.reasoning_positions[row, : len(reasoning)]
            assert inputs.input_ids[row, positions].tolist() == reasoning


def test_warmup_schedule():
    kinds = [type(make_probe("warmup", [7], step=step, warmup_steps=2)) for step in range(4)]
    assert kinds == [LastTokenProbe, LastTokenProbe, AnswerMeanProbe, AnswerMeanProbe]
    with pytest.raises(KeyError):
        make_probe("best", [7], step=0, warmup_steps=0)
