"""A run's configuration from conf/ without Hydra: YAML files over their parents.

tests/experiments/test_gpu_check.py holds it against what Hydra composes.
"""

from typing import Any

import yaml

from experiments.gpu_check.findings import ROOT
from oar.config import (
    BenchmarkConfig,
    CounterfactualConfig,
    DataConfig,
    EvaluationConfig,
    GatingConfig,
    LearnerConfig,
    LoraConfig,
    MethodConfig,
    ModelConfig,
    ProbeConfig,
    RolloutConfig,
    SyncConfig,
    TrackingConfig,
    TrainConfig,
    build,
)
from oar.method.importance import ImportanceEstimator
from oar.plan import Architecture, Assumptions

CONF = ROOT / "conf"
METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
ADAPTER = LoraConfig(r=4, alpha=8, targets=["q_proj", "o_proj", "up_proj"])


def read(group: str, choice: str) -> dict[str, Any]:
    """conf/`group`/`choice`.yaml over the files it names as its parents; what it overrides in other groups is left out."""
    found = yaml.safe_load((CONF / group / f"{choice}.yaml").read_text(encoding="utf-8"))
    for parent in found.pop("defaults", []):
        if isinstance(parent, str) and parent != "_self_":
            found = _over(read(group, parent), found)
    return dict(found)


def train_config(
    *,
    profile: str = "embedded",
    method: str = "grpo",
    counterfactual: str = "pad",
    gating: str = "bilevel",
    probe: str = "as_mean",
    estimator: dict[str, Any] | None = None,
    lora: LoraConfig | None = None,
    learner: dict[str, Any] | None = None,
    rollout: dict[str, Any] | None = None,
    sync: dict[str, Any] | None = None,
    **method_keys: Any,
) -> TrainConfig:
    """A training run on the embedded word problems, as conf/ has it; the mappings change single keys."""
    sizes, words = read("profile", profile), read("data", "words")
    chosen = _over(read("method", method), {"estimator": estimator or {}, **method_keys})
    rolls = {**read("rollout", "vllm"), **sizes.get("rollout", {}), **(rollout or {})}
    policy = {**read("model", "embedded"), **sizes.get("model", {}), "path": "made in this process", "teach": None}
    return TrainConfig(
        seed=1,
        output_dir="",
        resume="never",
        profile=profile,
        template=None,
        reward=read("reward", "answer"),
        method=MethodConfig(**{**chosen, "estimator": _filled(chosen["estimator"], counterfactual)}),
        gating=GatingConfig(**read("gating", gating)),
        probe=ProbeConfig(**read("probe", probe)),
        counterfactual=CounterfactualConfig(counterfactual),
        model=ModelConfig(**{**policy, "lora": lora}),
        data=DataConfig(words["name"], words["source"]),
        benchmark=BenchmarkConfig("words", ["words1"]),
        rollout=RolloutConfig(**rolls),
        sync=SyncConfig(**{**read("sync", "checkpoint"), **sizes.get("sync", {}), **(sync or {})}),
        tracking=TrackingConfig(**{**read("tracking", "disabled"), "group": profile}),
        learner=LearnerConfig(**{**sizes["learner"], **(learner or {})}),
        evaluation=EvaluationConfig(**{**read("evaluation", "embedded"), "max_new_tokens": rolls["max_new_tokens"]}),
    )


def step_config(
    batch: tuple[int, int],
    micro_batch: tuple[int, int],
    *,
    dtype: str = "float32",
    learner: dict[str, Any] | None = None,
    **settings: Any,
) -> TrainConfig:
    """A run whose steps have `batch` = (prompts, completions of each), cut by `micro_batch` = (rows, tokens of a row).

    No bound on the sampler's logprobs: completions may come from elsewhere than the policy.
    """
    sizes = {
        "batch_size": batch[0] * batch[1],
        "num_generations": batch[1],
        "micro_batch_tokens": micro_batch[0] * micro_batch[1],
        "compute_dtype": dtype,
    }
    return train_config(learner={**sizes, **(learner or {})}, sync={"max_logprob_diff": 1e9}, **settings)


def architecture(name: str) -> Architecture:
    """The sizes of a published model, as conf/plan.yaml has them."""
    found = yaml.safe_load((CONF / "plan.yaml").read_text(encoding="utf-8"))
    return Architecture(**found["architectures"][name])


def assumptions(profile: str, **changes: Any) -> Assumptions:
    """What a plan of `profile` assumes."""
    return Assumptions(**{**read("assume", profile), **changes})


def estimator_of(cfg: TrainConfig) -> ImportanceEstimator:
    """The estimator of the run's method."""
    found: ImportanceEstimator = build("method.estimator", cfg.method.estimator)
    return found


def _filled(target: dict[str, Any], counterfactual: str) -> dict[str, Any]:
    """The target with the one value that conf/method takes from another group."""
    values = {"${counterfactual.name}": counterfactual}
    return {
        key: _filled(value, counterfactual) if isinstance(value, dict) else values.get(value, value)
        for key, value in target.items()
    }


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, mappings key by key."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _over(merged[key], value) if both else value
    return merged
