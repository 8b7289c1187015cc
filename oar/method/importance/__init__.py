"""Estimators of token importance: one file each, one Protocol (`base.py`)."""

from oar.method.importance.attention_gradient import AttentionGradientDrop, AttentionGradientImportance
from oar.method.importance.base import (
    CreditInputs,
    CreditSignal,
    ImportanceEstimator,
    MadeFrom,
    gives,
    needs_batch,
    needs_continuations,
    reads_gold,
    reads_rewards,
)
from oar.method.importance.continuations import ContinuationAdvantages
from oar.method.importance.controls import (
    EntropyImportance,
    InvertedImportance,
    MarkedImportance,
    PositionImportance,
    RandomImportance,
    ShuffledImportance,
    UniformImportance,
)
from oar.method.importance.entropy_based import EntropyBonusWeights, HighEntropyWeights
from oar.method.importance.exact import ExactAdvantages, ExactWeights
from oar.method.importance.gradient import GradientImportance, GradientNormImportance
from oar.method.importance.grail import GrailWeights
from oar.method.importance.mig import InformationAdvantages
from oar.method.importance.perturbation import PerturbationImportance
from oar.method.importance.prime import ImplicitReward, ImplicitRewardAdvantages
from oar.method.importance.privileged import Schedule
from oar.method.importance.reward_head import RewardHead, RewardHeadAdvantages
from oar.method.importance.rlsd import SelfDistilledWeights
from oar.method.importance.serl import ActionWeights
from oar.method.importance.shear import ShearWeights
from oar.method.importance.signed import CounterfactualDrop, GradientDrop, SignedAdvantages, SignMatchedImportance
from oar.method.importance.token_baseline import TokenBaseline
from oar.method.importance.tree import TreeAdvantages
from oar.method.importance.value_head import ValueHead, ValueHeadAdvantages

__all__ = [
    "ActionWeights",
    "AttentionGradientDrop",
    "AttentionGradientImportance",
    "ContinuationAdvantages",
    "CounterfactualDrop",
    "CreditInputs",
    "CreditSignal",
    "EntropyBonusWeights",
    "EntropyImportance",
    "ExactAdvantages",
    "ExactWeights",
    "GradientDrop",
    "GradientImportance",
    "GradientNormImportance",
    "GrailWeights",
    "HighEntropyWeights",
    "ImplicitReward",
    "ImplicitRewardAdvantages",
    "ImportanceEstimator",
    "InformationAdvantages",
    "InvertedImportance",
    "MadeFrom",
    "MarkedImportance",
    "PerturbationImportance",
    "PositionImportance",
    "RandomImportance",
    "RewardHead",
    "RewardHeadAdvantages",
    "Schedule",
    "SelfDistilledWeights",
    "ShearWeights",
    "ShuffledImportance",
    "SignMatchedImportance",
    "SignedAdvantages",
    "TokenBaseline",
    "TreeAdvantages",
    "UniformImportance",
    "ValueHead",
    "ValueHeadAdvantages",
    "gives",
    "needs_batch",
    "needs_continuations",
    "reads_gold",
    "reads_rewards",
]
