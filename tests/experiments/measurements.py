"""Measurements of token signals as their programs prepare them: all of it validated, nothing started."""

from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from rich.progress import Progress

from experiments.bench_importance.plan import Bench, BenchConfig
from experiments.bench_learner.__main__ import BenchLearner, BenchLearnerConfig
from experiments.bench_precision.__main__ import BenchPrecisionConfig
from experiments.fidelity.__main__ import FidelityConfig
from experiments.fidelity.__main__ import Plan as FidelityPlan
from experiments.gradient_signal.__main__ import GradientSignalConfig, planned
from experiments.recall.__main__ import RecallConfig
from experiments.shared.subjects import Plan
from experiments.signals.__main__ import MEASURES, SignalsConfig
from oar.config import validated
from tests.config.test_config import CONF, composed

SCHEMAS = {
    "recall": RecallConfig,
    "signals": SignalsConfig,
    "fidelity": FidelityConfig,
    "gradient_signal": GradientSignalConfig,
    "bench_importance": BenchConfig,
    "bench_learner": BenchLearnerConfig,
    "bench_precision": BenchPrecisionConfig,
}


def config(name: str, *overrides: str) -> Any:
    """The program's own configuration."""
    return validated(composed(*overrides, name=name), SCHEMAS[name])


def prepared(name: str, *overrides: str, folder: Path = Path("unused")) -> Any:
    """What the program measures by."""
    cfg = config(name, *overrides)
    # Hydra takes a sixth of a second for each signal, and nearly every test has the same ones.
    composed_once = mock.patch("oar.config.composed.compose", lambda of, some: _composed(of, tuple(some)))
    with composed_once, initialize_config_dir(str(CONF), version_base=None):
        return _prepare(cfg, folder)


@cache
def _composed(name: str, overrides: tuple[str, ...]) -> DictConfig:
    return compose(name, list(overrides))


def _prepare(cfg: Any, folder: Path) -> Any:
    match cfg:
        case SignalsConfig():
            plan = Plan.of(cfg)
            MEASURES[cfg.study](plan)
            return plan
        case RecallConfig():
            return Plan.of(cfg)
        case FidelityConfig():
            return FidelityPlan.of(cfg)
        case GradientSignalConfig():
            return planned(cfg, cfg.conditions["default"])  # the others have the same arms
        case BenchConfig():
            return Bench(cfg, folder, Progress())
        case BenchLearnerConfig():
            return BenchLearner(cfg, folder, Progress())
    return cfg
