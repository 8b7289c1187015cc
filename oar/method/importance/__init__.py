"""Estimators of token importance: one file each, one Protocol (`base.py`)."""

from oar.method.importance.base import CreditInputs, CreditSignal, ImportanceEstimator, gives, needs_batch
from oar.method.importance.controls import (
    EntropyImportance,
    InvertedImportance,
    MarkedImportance,
    PositionImportance,
    RandomImportance,
    ShuffledImportance,
    UniformImportance,
)
from oar.method.importance.exact import ExactAdvantages, ExactWeights
from oar.method.importance.gradient import GradientImportance, GradientNormImportance
from oar.method.importance.perturbation import PerturbationImportance
from oar.method.importance.signed import CounterfactualDrop, GradientDrop, SignedAdvantages, SignMatchedImportance

__all__ = [
    "CounterfactualDrop",
    "CreditInputs",
    "CreditSignal",
    "EntropyImportance",
    "ExactAdvantages",
    "ExactWeights",
    "GradientDrop",
    "GradientImportance",
    "GradientNormImportance",
    "ImportanceEstimator",
    "InvertedImportance",
    "MarkedImportance",
    "PerturbationImportance",
    "PositionImportance",
    "RandomImportance",
    "ShuffledImportance",
    "SignMatchedImportance",
    "SignedAdvantages",
    "UniformImportance",
    "gives",
    "needs_batch",
]
