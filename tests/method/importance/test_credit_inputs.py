"""What an estimator is given, for some of the completions."""

from dataclasses import fields, replace

import torch

from oar.method.importance import CreditInputs
from oar.method.probes import AnswerMeanProbe
from tests.models import credit_inputs, random_batch

OF_THE_TOKENIZER = {"step_end_ids"}  # a list of token ids, not a row a completion


def test_every_tensor_of_completions_is_cut_to_the_rows() -> None:
    """A field that is forgotten would be read beside the wrong completions."""
    names = [field.name for field in fields(CreditInputs) if "Tensor | None" in str(field.type)]
    by_completion = {name: torch.arange(6) for name in names if name not in OF_THE_TOKENIZER}
    given = replace(credit_inputs(random_batch(1, rows=6), AnswerMeanProbe()), **by_completion)
    given = replace(given, marks={"causal": torch.arange(6)})
    some = given.rows(torch.tensor([4, 1]))
    assert len(by_completion) >= 9
    assert {name: getattr(some, name).tolist() for name in by_completion} == {key: [4, 1] for key in by_completion}
    assert some.marks["causal"].tolist() == [4, 1]
    assert list(some.seeds) == [given.seeds[4], given.seeds[1]]
    assert torch.equal(some.scores.logprobs, given.scores.logprobs[[4, 1]])
    assert torch.equal(some.batch.input_ids, given.batch.input_ids[[4, 1]])
