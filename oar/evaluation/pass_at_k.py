"""What k samples of one problem say together: unbiased pass@k and maj@k. Shares between 0 and 1; nothing here draws or grades."""

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from oar.common.errors import DataError

Group = Callable[[Sequence[str]], Sequence[Hashable]]
"""A label for each answer of a problem; answers of one label are the same answer."""


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The share of all draws of `k` out of `samples` completions that hold a correct one: 1 - C(n - c, k) / C(n, k).

    Unbiased for "one of k is right" (Chen et al. 2021, arXiv 2107.03374, section 2.1), as their product, since the binomials
    overflow. Raises DataError for counts that cannot be.
    """
    if not (1 <= k <= samples and 0 <= correct <= samples):
        raise DataError(
            f"pass@k needs 1 <= k <= samples and 0 <= correct <= samples, got k={k}, {correct} of {samples} correct."
        )
    if samples - correct < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(samples - correct + 1, samples + 1)))


def majority_score(labels: Sequence[Hashable | None], correct: Sequence[bool]) -> float:
    """Whether the most frequent answer is right: 1 or 0, and between them only in a tie.

    `labels` names the answer of each sample, None where it has none: it does not vote, and without any vote the score is 0.
    A tie is broken by a fair draw whose expectation is taken: the mean over the tied answers, so that neither the order of
    the samples nor a seed decides. An answer counts as right by the share of its samples that were graded so, which is all
    or none where labels and verdicts agree.
    """
    votes: dict[Hashable, list[bool]] = {}
    for label, verdict in zip(labels, correct, strict=True):
        if label is not None:
            votes.setdefault(label, []).append(verdict)
    if not votes:
        return 0.0
    most = max(map(len, votes.values()))
    return float(np.mean([np.mean(verdicts) for verdicts in votes.values() if len(verdicts) == most]))


def group_by(same: Callable[[str, str], bool]) -> Group:
    """Labels from an equivalence: an answer has the label of the first one that it is the same as."""

    def labels(answers: Sequence[str]) -> list[int]:
        found: dict[str, int] = {}
        for answer in answers:
            if answer not in found:
                equal = (label for known, label in found.items() if same(known, answer))
                found[answer] = next(equal, len(found))
        return [found[answer] for answer in answers]

    return labels


def sizes(samples: int) -> list[int]:
    """The k of pass@k that `samples` completions allow and a table shows: powers of two from 2, and all of them."""
    powers = [2**power for power in range(1, samples.bit_length())]
    return sorted({k for k in [*powers, samples] if 1 < k <= samples})
