"""The paper, pure: tensors in, tensors and metrics out. `from oar.method import ...` has what a trainer of one's own needs."""

from oar.method.advantages import group_advantages
from oar.method.batch import CompletionBatch, collate
from oar.method.credit import Credit, CreditAssigner
from oar.method.forward.logprobs import score_completions
from oar.method.gating import bilevel_weights, make_gate, weight_metrics
from oar.method.importance import GradientImportance, GradientNormImportance, PerturbationImportance
from oar.method.losses import loss_scale, policy_loss
from oar.method.probes import AnswerJointProbe, AnswerMeanProbe, LastTokenProbe, make_probe
from oar.method.segments import Segments, find_segments

__all__ = [
    "AnswerJointProbe",
    "AnswerMeanProbe",
    "CompletionBatch",
    "Credit",
    "CreditAssigner",
    "GradientImportance",
    "GradientNormImportance",
    "LastTokenProbe",
    "PerturbationImportance",
    "Segments",
    "bilevel_weights",
    "collate",
    "find_segments",
    "group_advantages",
    "loss_scale",
    "make_gate",
    "make_probe",
    "policy_loss",
    "score_completions",
    "weight_metrics",
]
