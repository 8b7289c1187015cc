"""Estimators of token importance: one file each, one Protocol (`base.py`)."""

from oar.method.importance.base import CreditInputs, ImportanceEstimator
from oar.method.importance.controls import (
    EntropyImportance,
    InvertedImportance,
    MarkedImportance,
    PositionImportance,
    RandomImportance,
    ShuffledImportance,
    UniformImportance,
)
from oar.method.importance.gradient import GradientImportance, GradientNormImportance
from oar.method.importance.perturbation import PerturbationImportance

__all__ = [
    "CreditInputs",
    "EntropyImportance",
    "GradientImportance",
    "GradientNormImportance",
    "ImportanceEstimator",
    "InvertedImportance",
    "MarkedImportance",
    "PerturbationImportance",
    "PositionImportance",
    "RandomImportance",
    "ShuffledImportance",
    "UniformImportance",
]
