"""What the benchmark of importance measures: validated before anything starts, and every measured case kept as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from rich.progress import Progress

from experiments.bench_importance.costs import (
    EMBEDDED,
    EXACT,
    GRPO,
    METHODS,
    OAR_G,
    OAR_GN,
    PLAIN,
    STEPS,
    SYNTHETIC,
    WINDOW,
)
from experiments.bench_importance.update import PlainImportance, Synthetic
from experiments.shared.cases import Case, KeptCases, SizeConfig, told_size
from oar.common.errors import ConfigError
from oar.common.provenance import ROOT, code_hash, files_hash
from oar.config import TrainConfig, build
from oar.config.checks import Positive, require
from oar.config.composed import composed_run
from oar.launch.start_model import model_folder
from oar.method.importance import ImportanceEstimator
from oar.model.load import weight_files

PARTS = (SYNTHETIC, EMBEDDED, STEPS, METHODS)
NEEDED = (GRPO, OAR_G, OAR_GN, EXACT, WINDOW)
AUTO = "auto"


@dataclass
class GridConfig:
    """The sizes for one kind of device."""

    dtype: str
    max_tokens_per_forward: int
    sizes: dict[str, SizeConfig]


@dataclass
class BenchConfig:
    """One benchmark; the keys are explained in conf/bench_importance.yaml."""

    seed: int
    overrides: list[str]
    parts: list[str]
    variants: dict[str, list[str]]
    methods: dict[str, list[str]]
    faithful: float
    grid: str
    grids: dict[str, GridConfig]
    prompt_tokens: Positive
    answer_tokens: Positive
    rounds: Positive
    method_seconds: float
    limit_s: float
    synthetic_methods: list[str]
    step_methods: list[str]
    step_warmup: int
    step_rounds: Positive
    output_dir: str

    def __post_init__(self) -> None:
        if not self.parts or set(self.parts) - set(PARTS):
            raise ConfigError(f"parts must be some of {', '.join(PARTS)}, but is {self.parts}.")
        if STEPS in self.parts and EMBEDDED not in self.parts:
            raise ConfigError(f"parts names {STEPS} without {EMBEDDED}, which finds the variant to judge: name both.")
        if missing := [name for name in NEEDED if name not in self.variants]:
            raise ConfigError(f"variants must name {', '.join(missing)}, which the ten numbers are made of.")
        # A method's steps are one number, whichever part takes them.
        if STEPS in self.parts and (both := set(self.methods) & set(self.step_methods)):
            raise ConfigError(
                f"methods must not name {', '.join(sorted(both))}, which step_methods names: leave it to one."
            )
        if PLAIN in self.variants:
            raise ConfigError(f"variants must not name {PLAIN}: it is the naive reference, measured by itself.")
        for key, needed in (("synthetic_methods", {GRPO, EXACT, WINDOW}), ("step_methods", {GRPO})):
            methods = getattr(self, key)
            if needed - set(methods) or set(methods) - set(self.variants):
                raise ConfigError(
                    f"{key} must be names of variants, {', '.join(sorted(needed))} among them, but is {methods}."
                )
        for key in ("method_seconds", "limit_s"):
            require(getattr(self, key) > 0, key, "above 0", getattr(self, key))
        if self.grid not in (AUTO, *self.grids):
            raise ConfigError(f"grid must be one of {', '.join((AUTO, *self.grids))}, but is {self.grid!r}.")
        shortest = self.answer_tokens + 3
        for name, grid in self.grids.items():
            for size, found in grid.sizes.items():
                if any(length < shortest or count < 0 for length, count in found.lengths.items()):
                    raise ConfigError(
                        f"grids.{name}.sizes.{size}.lengths must map lengths of {shortest} or more to completions (0: none), "
                        f"but is {found.lengths}."
                    )


class Bench(KeptCases):
    """What is to be measured, all of it validated before anything starts, and the cases that are there already."""

    def __init__(self, cfg: BenchConfig, folder: Path, progress: Progress) -> None:
        """Raises ConfigError for whatever cannot work."""
        # What the measured thing and the reference are made of.
        shared = [ROOT / "experiments/shared" / f"{name}.py" for name in ("made_up", "peak_memory")]
        own = [Path(__file__).with_name(f"{name}.py") for name in ("__main__", "steps", "update")]
        super().__init__(folder, progress, code_hash(*own, *shared))
        self.cfg = cfg
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.grid = cfg.grids[("gpu" if self.device == "cuda" else "cpu") if cfg.grid == AUTO else cfg.grid]
        self.variants = {name: self._compose(overrides) for name, overrides in cfg.variants.items()}
        self.settings = self.variants[GRPO]
        asked = cfg.methods if METHODS in cfg.parts else {}
        self.methods = {GRPO: self.settings} | {name: self._compose(overrides) for name, overrides in asked.items()}
        self.estimators = {name: _build(variant, {}) for name, variant in self.variants.items()}

    @cached_property
    def weights(self) -> str:
        """What the cases of the starting model are measured on: another model under the same path is another case."""
        return files_hash(weight_files(model_folder(self.settings.model, print)))

    def _compose(self, overrides: list[str]) -> TrainConfig:
        return composed_run([*self.cfg.overrides, f"seed={self.cfg.seed}", *overrides])

    def candidates(self) -> list[str]:
        """The variants with a window (routes have one) or a budget."""
        estimators = {name: variant.method.estimator for name, variant in self.variants.items()}
        return [n for n, e in estimators.items() if e.get("window") is not None or e.get("budget") is not None]

    def synthetic_methods(self) -> dict[str, ImportanceEstimator]:
        """By name, with the grid's own bound on a forward; the naive OAR-P last."""
        bound = {"max_tokens_per_forward": self.grid.max_tokens_per_forward}
        found = {name: _build(self.variants[name], bound) for name in self.cfg.synthetic_methods}
        return found | {PLAIN: PlainImportance(**bound)}

    def synthetic_cases(self) -> list[Synthetic]:
        """One for every size and length."""
        cfg = self.cfg
        return [
            Synthetic(
                size=size,
                architecture=dict(found.architecture),
                dtype=self.grid.dtype,
                device=self.device,
                length=length,
                completions=count,
                prompt_tokens=cfg.prompt_tokens,
                answer_tokens=cfg.answer_tokens,
                seed=cfg.seed,
                cfg=self.settings,
            )
            for size, found in self.grid.sizes.items()
            for length, count in found.lengths.items()
            if count
        ]

    def description(self) -> Case:
        """What was measured, for the report."""
        keys = ("faithful", "step_rounds", "prompt_tokens", "answer_tokens")
        dtypes = [f"{self.grid.dtype} for the made-up models"] if SYNTHETIC in self.cfg.parts else []
        if set(self.cfg.parts) - {SYNTHETIC}:
            dtypes.append(f"{self.settings.model.dtype} for the model {self.settings.model.name}")
        return {key: getattr(self.cfg, key) for key in keys} | {
            "threads": self.settings.learner.threads,
            "dtype": " and ".join(dtypes),
            "probe": self.settings.probe.name,
            "profile": self.settings.profile,
            "model": self.settings.model.name,
            "sizes": "; ".join(told_size(size, found) for size, found in self.grid.sizes.items()),
            "kept": f"{self.kept} cases were kept from an earlier call." if self.kept else "",
        }


def _build(variant: TrainConfig, options: Mapping[str, int]) -> ImportanceEstimator:
    """The variant's estimator, with those of `options` that it has."""
    target = dict(variant.method.estimator)
    changed = {key: value for key, value in options.items() if key in target}
    estimator: ImportanceEstimator = build("method.estimator", target | changed, variant.allow_targets)
    return estimator
