"""Errors whose text is one clear sentence for the user: what was expected, what came, what to change."""


class OarError(Exception):
    """Base of every error that a user can mend; entry points print its text and exit with code 2."""


class ConfigError(OarError):
    """A configuration value is out of range, or a combination cannot work."""


class DataError(OarError):
    """A problem, tokenizer, model folder or completion is not what it must be."""


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
