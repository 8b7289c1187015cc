"""Estimators of token importance: one file each, one Protocol (`base.py`)."""

from oar.importance.base import CreditInputs, ImportanceEstimator
from oar.importance.controls import EntropyImportance, RandomImportance, UniformImportance
from oar.importance.gradient import GradientImportance
from oar.importance.perturbation import PerturbationImportance

__all__ = [
    "CreditInputs",
    "EntropyImportance",
    "GradientImportance",
    "ImportanceEstimator",
    "PerturbationImportance",
    "RandomImportance",
    "UniformImportance",
]
