"""Errors whose text is one clear sentence for the user: what was expected, what came, what to change."""

from collections.abc import Iterable
from difflib import get_close_matches


class OarError(Exception):
    """Base of every error that a user can mend; entry points print its text and end with `exit_code`."""

    exit_code = 2


class ConfigError(OarError):
    """A configuration value is out of range, or a combination cannot work."""


class DataError(OarError):
    """A problem, tokenizer, model folder or completion is not what it must be."""


class MissingInputError(DataError):
    """A credit signal asks for what it was called without."""


class EngineError(OarError):
    """The rollout engine died, hung, or answered with something unexpected."""


class EngineLostError(EngineError):
    """The rollout engine died or hangs; another one can take its place."""


class SyncError(OarError):
    """Engine and learner no longer hold the same weights, or cannot prove that they do."""


class CheckpointError(OarError):
    """A checkpoint cannot be written, or what is there cannot be trusted."""


class RankError(OarError):
    """A rank of the learner is lost."""


class MissingPackageError(OarError, ImportError):
    """A package that only this part of OAR needs is not installed."""


class FailedRunError(OarError):
    """A run of a sweep has failed, which was told at once; the others were made."""

    exit_code = 1


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` with the nearest of `known`: one with the same last part (`tau`: gating.tau), else a similar one."""
    names = sorted(known)
    ending = [name for name in names if name.rpartition(".")[2] == word.rpartition(".")[2]]
    found = get_close_matches(word, ending or names, n=1, cutoff=0.0 if ending else 0.6)
    return f"; did you mean {found[0]}?" if found else ""
