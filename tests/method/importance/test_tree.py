"""Edges of trees: by hand, and as training samples of their own, each once."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
import torch

from oar.common.errors import ConfigError, DataError
from oar.method.batch import collate
from oar.method.importance import CreditInputs, TreeAdvantages
from oar.method.probes import AnswerMeanProbe
from tests.models import PAD, credit_inputs

BY_HAND = TreeAdvantages(branching=(2, 2), segment=2)
# The first node has two leaves, the second one ended early and stands twice.
COMPLETIONS = [[5, 6, 7, 8, 9], [5, 6, 10], [11], [11]]
REWARDS = [1.0, 0.0, 0.0, 0.0]


def inputs(completions: list[list[int]], rewards: list[float]) -> CreditInputs:
    batch = collate(
        [[2, 4]] * len(completions),
        completions,
        [[-1.0] * len(one) for one in completions],
        [None] * len(completions),
        pad_id=PAD,
    )
    return replace(credit_inputs(batch, AnswerMeanProbe()), rewards=torch.tensor(rewards))


@pytest.mark.parametrize(
    ("divide_by_std", "edges"),
    [
        # V of the root 1/4, of its children 1/2 and 0, of the leaves 1 and 0.
        (False, [[0.25, 0.25, 0.5, 0.5, 0.5], [0.0, 0.0, -0.5], [-0.25], [0.0]]),
        (True, [[0.5**0.5] * 5, [0.0, 0.0, -(0.5**0.5)], [-(0.5**0.5)], [0.0]]),
    ],
)
def test_by_hand(divide_by_std: bool, edges: list[list[float]]) -> None:
    found = replace(BY_HAND, divide_by_std=divide_by_std)(inputs(COMPLETIONS, REWARDS))
    for row, expected in enumerate(edges):  # of 10 tokens 7 are in an edge that counts, once
        assert found[row, : len(expected)].tolist() == pytest.approx([10 / 7 * value for value in expected], abs=1e-5)
        assert (found[row, len(expected) :] == 0).all()


@dataclass
class Node:
    """Its tokens behind its parent's, and its children, or the reward of a leaf."""

    tokens: list[int]
    reward: float = 0.0
    children: list["Node"] = field(default_factory=list)

    def value(self) -> float:
        return sum(child.value() for child in self.children) / len(self.children) if self.children else self.reward


def grown(tree: TreeAdvantages, level: int, rng: Random) -> Node:
    last = level == len(tree.branching)
    tokens = [
        rng.randrange(4, 40) for _ in range(tree.segment if 0 < level < len(tree.branching) else rng.randint(1, 5))
    ]
    if last or (level > 0 and rng.random() < 0.3):
        return Node(tokens[: rng.randint(1, len(tokens))], reward=float(rng.random() < 0.5))
    return Node(
        [] if level == 0 else tokens, children=[grown(tree, level + 1, rng) for _ in range(tree.branching[level])]
    )


def leaves(node: Node, tree: TreeAdvantages, level: int, before: list[int]) -> list[tuple[list[int], float]]:
    """Rows as the engine gives them."""
    text = [*before, *node.tokens]
    if node.children:
        return [leaf for child in node.children for leaf in leaves(child, tree, level + 1, text)]
    copies = 1
    for branches in tree.branching[level:]:
        copies *= branches
    return [(text, node.reward)] * copies


def edges(node: Node, before: list[int], divide: bool) -> list[tuple[float, list[int], list[int]]]:
    """Of each edge its advantage, what stands before it and its own tokens."""
    found = []
    for child in node.children:
        gain = child.value() - node.value()
        if divide:
            values = torch.tensor([one.value() for one in node.children], dtype=torch.float64)
            gain /= float(values.std()) + 1e-8
        found.append((gain, [*before, *node.tokens], child.tokens))
        found += edges(child, [*before, *node.tokens], divide)
    return found


@pytest.mark.parametrize("branching", [(2, 2, 2), (3, 2), (2, 3, 2), (4,)])
@pytest.mark.parametrize("divide_by_std", [False, True])
def test_a_batch_teaches_what_its_edges_teach_one_by_one(branching: tuple[int, ...], divide_by_std: bool) -> None:
    """Whatever a token's gradient is, if it follows from what stands up to it: a random number stands for it here."""
    tree = TreeAdvantages(branching, segment=3, divide_by_std=divide_by_std)
    for seed in range(5):
        rng = Random(seed)
        roots = [grown(tree, 0, rng) for _ in range(3)]
        rows = [leaf for root in roots for leaf in leaves(root, tree, 0, [])]
        given = inputs([text for text, _ in rows], [reward for _, reward in rows])
        found = tree(given)

        def gradient(prompt: int, text: list[int]) -> float:
            return Random(str((prompt, text))).gauss(0, 1)

        of_batch = sum(
            float(found[row, at]) * gradient(row // tree.leaves, text[: at + 1])
            for row, (text, _) in enumerate(rows)
            for at in range(len(text))
        ) / sum(len(text) for text, _ in rows)
        counted = [
            gain * gradient(number, [*before, *own[: at + 1]])
            for number, root in enumerate(roots)
            for gain, before, own in edges(root, [], divide_by_std)
            if abs(gain) > 1e-7
            for at in range(len(own))
        ]
        assert of_batch == pytest.approx(sum(counted) / max(1, len(counted)), abs=1e-5)
        assert len(counted) > 3


def test_edges_of_a_tree_in_which_all_earn_the_same_teach_nothing() -> None:
    third = inputs(COMPLETIONS, [1 / 3] * 4)
    assert (BY_HAND(third) == 0).all()


def test_other_completions_are_no_tree() -> None:
    with pytest.raises(DataError, match="groups of 4 completions that were drawn as a tree"):
        BY_HAND(inputs(COMPLETIONS[:3], REWARDS[:3]))
    for row, text in ((1, [5, 7, 10]), (3, [11, 12]), (1, [5])):
        with pytest.raises(DataError, match="drawn as a tree"):
            BY_HAND(inputs([*COMPLETIONS[:row], text, *COMPLETIONS[row + 1 :]], REWARDS))
    for wrong in ({"branching": (2, 1)}, {"branching": ()}, {"segment": 0}):
        with pytest.raises(ConfigError, match="must"):
            TreeAdvantages(**wrong)  # type: ignore[arg-type]
