"""A run's configuration from conf/ without Hydra: YAML files over their parents.

tests/experiments/test_gpu_check.py holds it against what Hydra composes.
"""

import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, get_type_hints

import yaml

from experiments.gpu_check.findings import ROOT
from oar.config import LoraConfig, TrainConfig, build
from oar.config.credit import ContinuationsConfig, GenericConfig, TeacherConfig
from oar.method.importance import ImportanceEstimator
from oar.plan import Architecture, Assumptions

CONF = ROOT / "conf"
OF_SHEETS = ("oracle_sign_matched", "oracle_signed", "oracle_unsigned")  # word problems do not know exact token values
METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
ADAPTER = LoraConfig(r=4, alpha=8, targets=["q_proj", "o_proj", "up_proj"])
CHOICES = {
    "method": "grpo",
    "gating": "bilevel",
    "probe": "as_mean",
    "counterfactual": "pad",
    "model": "embedded",
    "data": "words",
    "benchmark": "words",
    "rollout": "vllm",
    "sync": "checkpoint",
    "tracking": "disabled",
    "evaluation": "embedded",
}
RUN = {"seed": 1, "output_dir": "", "resume": "never", "template": None}
NO_FOLDER = {"path": "made in this process", "teach": None}


def read(group: str, choice: str) -> dict[str, Any]:
    """conf/`group`/`choice`.yaml over the files it names as its parents; what it overrides in other groups is left out."""
    found = yaml.safe_load((CONF / group / f"{choice}.yaml").read_text(encoding="utf-8"))
    for parent in found.pop("defaults", []):
        if isinstance(parent, str) and parent != "_self_":
            found = _over(read(group, parent), found)
    return dict(found)


def train_config(profile: str = "embedded", **groups: Any) -> TrainConfig:
    """A training run on the embedded word problems, as conf/ has it.

    groups: of each that is not as in CHOICES and the profile another choice, or the keys that differ, `name` among them.
    """
    sizes = read("profile", profile)
    found: dict[str, Any] = {**RUN, "profile": profile, "reward": read("reward", "answer")}
    found["learner"] = _over(sizes["learner"], groups.get("learner", {}))
    for group, usual in CHOICES.items():
        given = groups.get(group, {})
        own = {"name": given} if isinstance(given, str) else given
        found[group] = _over(_over(read(group, own.get("name", usual)), sizes.get(group, {})), own)
    found["model"] |= NO_FOLDER
    found["method"]["teacher"] = TeacherConfig(**found["method"]["teacher"])
    if found["method"]["continuations"] is not None:
        found["method"]["continuations"] = ContinuationsConfig(**found["method"]["continuations"])
    if found["method"]["generic"] is not None:
        found["method"]["generic"] = GenericConfig(**found["method"]["generic"])
    kinds, found = get_type_hints(TrainConfig), _filled(found, found)
    return TrainConfig(**{key: kinds[key](**it) if is_dataclass(kinds[key]) else it for key, it in found.items()})


def step_config(
    batch: tuple[int, int],
    micro_batch: tuple[int, int],
    *,
    dtype: str = "float32",
    profile: str = "embedded",
    **groups: Any,
) -> TrainConfig:
    """A run whose steps have `batch` = (prompts, completions of each), cut by `micro_batch` = (rows, tokens of a row).

    No bound on the sampler's logprobs: completions may come from elsewhere than the policy.
    """
    learner = {
        "batch_size": batch[0] * batch[1],
        "num_generations": batch[1],
        "micro_batch_tokens": micro_batch[0] * micro_batch[1],
        "compute_dtype": dtype,
    }
    return train_config(profile, **_over({"learner": learner, "sync": {"max_logprob_diff": 1e9}}, groups))


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


def _filled(value: Any, run: Mapping[str, Any]) -> Any:
    """With `${group.key}` of the run in the place of its name."""
    if isinstance(value, dict):
        return {key: _filled(one, run) for key, one in value.items()}
    named = re.fullmatch(r"\$\{([\w.]+)\}", value) if isinstance(value, str) else None
    for key in named[1].split(".") if named else ():
        run = value = run[key]
    return value


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, mappings key by key."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _over(merged[key], value) if both else value
    return merged
