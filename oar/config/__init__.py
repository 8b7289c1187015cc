"""What a run's configuration must look like. conf/ holds the values and their sources; these files refuse wrong ones.

Hydra composes, `validated` turns the result into these dataclasses: an unknown key, a wrong type, a value out of range
or a combination that cannot work ends in one `ConfigError` sentence before any process starts.
"""

from oar.config.build import build, build_function, validated
from oar.config.credit import CounterfactualConfig, GatingConfig, MethodConfig, ProbeConfig, TeacherConfig
from oar.config.data import BenchmarkConfig, DataConfig, LoraConfig, ModelConfig
from oar.config.evaluation import EvaluationConfig, SetSamplingConfig
from oar.config.learner import LearnerConfig, TrackingConfig
from oar.config.rollout import RolloutConfig, SyncConfig
from oar.config.runs import EvaluateConfig, Table1Config, TrainConfig

__all__ = [
    "BenchmarkConfig",
    "CounterfactualConfig",
    "DataConfig",
    "EvaluateConfig",
    "EvaluationConfig",
    "GatingConfig",
    "LearnerConfig",
    "LoraConfig",
    "MethodConfig",
    "ModelConfig",
    "ProbeConfig",
    "RolloutConfig",
    "SetSamplingConfig",
    "SyncConfig",
    "Table1Config",
    "TeacherConfig",
    "TrackingConfig",
    "TrainConfig",
    "build",
    "build_function",
    "validated",
]
