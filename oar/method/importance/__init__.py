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
from oar.method.importance.gradient import GradientImportance, GradientNormImportance
from oar.method.importance.mig import InformationAdvantages
from oar.method.importance.perturbation import PerturbationImportance
from oar.method.importance.prime import ImplicitReward, ImplicitRewardAdvantages
from oar.method.importance.privileged import Schedule
from oar.method.importance.rlsd import SelfDistilledWeights
from oar.method.importance.serl import ActionWeights
from oar.method.importance.signed import CounterfactualDrop, GradientDrop, SignedAdvantages, SignMatchedImportance

__all__ = [
    "ActionWeights",
    "CounterfactualDrop",
    "CreditInputs",
    "CreditSignal",
    "EntropyImportance",
    "GradientDrop",
    "GradientImportance",
    "GradientNormImportance",
    "ImplicitReward",
    "ImplicitRewardAdvantages",
    "ImportanceEstimator",
    "InformationAdvantages",
    "InvertedImportance",
    "MarkedImportance",
    "PerturbationImportance",
    "PositionImportance",
    "RandomImportance",
    "Schedule",
    "SelfDistilledWeights",
    "ShuffledImportance",
    "SignMatchedImportance",
    "SignedAdvantages",
    "UniformImportance",
    "gives",
    "needs_batch",
]
