"""The embedded task: generated word problems whose computation is known, and a model taught to half solve them."""

from oar.tasks.embedded.splits import RL_STREAM, TEACHING_STREAM
from oar.tasks.words.generator import WordProblem, demonstration, evaluation_set, training_problem
from oar.tasks.words.mistakes import MISTAKES, correction, mistake, written_out
from oar.tasks.words.oracle import causal_mask, first_error, token_roles, written_mask
from oar.tasks.words.tiers import ENGLISH_TIERS, TIER_NAMES, WORD_TIERS, Tier, make_tiers, tier_named
from oar.tasks.words.tokenizer import build_tokenizer

__all__ = [
    "ENGLISH_TIERS",
    "MISTAKES",
    "RL_STREAM",
    "TEACHING_STREAM",
    "TIER_NAMES",
    "WORD_TIERS",
    "Tier",
    "WordProblem",
    "build_tokenizer",
    "causal_mask",
    "correction",
    "demonstration",
    "evaluation_set",
    "first_error",
    "make_tiers",
    "mistake",
    "tier_named",
    "token_roles",
    "training_problem",
    "written_mask",
    "written_out",
]
