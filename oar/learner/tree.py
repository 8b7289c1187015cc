"""Completions that are the leaves of a tree: drawn some tokens at a time, each part continued several times."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from oar.common.seeding import derive_seed
from oar.config import TrainConfig
from oar.config.checks import require
from oar.config.evaluation import Sampling
from oar.method.importance import TreeAdvantages
from oar.rollout.client.vllm import Engine
from oar.rollout.types import Rollout


def check_tree(tree: TreeAdvantages, cfg: TrainConfig) -> None:
    """Raises ConfigError where the groups of a configuration are no such trees."""
    drawn, before_last = cfg.learner.num_generations, tree.segment * (len(tree.branching) - 1)
    expected = f"{tree.leaves}, the leaves of a tree of method.estimator.branching={list(tree.branching)}"
    require(drawn == tree.leaves, "learner.num_generations", expected, drawn)
    longest = cfg.rollout.max_new_tokens
    expected = f"above {before_last}, the tokens of a tree's edges without the last ones"
    require(longest > before_last, "rollout.max_new_tokens", expected, longest)
    generic = cfg.method.generic
    require(generic is None, "method.generic", "null where a group is a tree, which has one prompt", generic)
    # A shared edge is learned in one of the completions that hold it, and would be lost with that one.
    overlong = cfg.learner.overlong
    require(overlong != "mask", "learner.overlong", "keep or soft_penalty where a group is a tree", overlong)


def grown(
    client: Engine,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    tree: TreeAdvantages,
    *,
    seed: int,
    version: int,
) -> list[list[Rollout]]:
    """The leaves of a tree for each prompt, those of a node next to each other, of at most `sampling.max_new_tokens` each.

    A node that ended is not continued: it is there once for each leaf that it would have had.
    """
    trees = [[Rollout(tuple(prompt), (), (), version, "length")] for prompt in prompts]
    for level, branches in enumerate(tree.branching):
        left = sampling.max_new_tokens - level * tree.segment
        longest = left if level == len(tree.branching) - 1 else tree.segment
        unfinished = [node for nodes in trees for node in nodes if node.finish_reason == "length"]
        drawn = iter(
            client.generate(
                [[*node.prompt_ids, *node.completion_ids] for node in unfinished],
                replace(sampling, n=branches, max_new_tokens=longest),
                seed=derive_seed(seed, level),
                expected_version=version,
            )
        )
        trees = [[child for node in nodes for child in _children(node, branches, drawn)] for nodes in trees]
    return trees


def _children(node: Rollout, branches: int, drawn: Iterator[list[Rollout]]) -> list[Rollout]:
    if node.finish_reason != "length":
        return [node] * branches
    return [child.behind(node) for child in next(drawn)]
