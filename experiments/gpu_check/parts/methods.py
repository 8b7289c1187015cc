"""Every method on the device against the same step on the CPU in float32: credit, loss and gradient."""

import copy
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from experiments.gpu_check.device import DEVICE, relative, sized
from experiments.gpu_check.engine import OwnSampling
from experiments.gpu_check.findings import Findings
from experiments.gpu_check.learners import TINY, learner_on, random_model
from experiments.gpu_check.settings import ADAPTER, METHODS, OF_SHEETS, estimator_of, step_config
from oar.config import TrainConfig
from oar.learner.beside import Beside
from oar.method.gating import make_gate
from oar.method.importance import gives
from oar.model.parameters import whole
from oar.names import COUNTERFACTUALS
from oar.tasks.words import build_tokenizer

CPU = torch.device("cpu")
REASONING = sized((6, 24), (4, 8))  # tokens
BATCH, MICRO_BATCH = sized((4, 8), (2, 4)), (6, 128)
# Importance, and weights made of one and the same importance, in shares of the largest; the loss in nats.
BOUND = 1e-4
# Where most importance is close to the least, the gate's threshold is a small number that scores are divided by: float32's
# rounding alone moves a weight by 3e-4 and the gradient by 4e-5 (the same step on a CPU, in micro-batches of another size).
BOUNDS = {"weights": 1e-2, "gradient": 1e-3}
# The KL that a noise of 1e-3 makes is the difference of numbers that agree to six digits: float32 leaves it three of its own.
# So OAR-G is compared at a noise that is well above rounding, and once as conf/ has it.
STRONG_NOISE = {"noise_std": 0.1}
SMALL_TREE = {"branching": [2, BATCH[1] // 2], "segment": REASONING[0]}  # only its last parts may end
OF_WEAK_NOISE = {"importance": 1e-2, "weights": 0.1, "gradient": 1e-2}
SPREAD = 0.2  # of the weights: far from uniform, as the unit tests' model is
LEARN_BESIDE = ("prime", "reward_head", "value_head")  # and know nothing in a first step
AGAIN = {"activation_checkpointing": True}
LR = {"lr": 1e-6, "warmup_steps": 0}  # so small that a second update starts from the same weights on both devices


@dataclass(frozen=True)
class Variant:
    """Steps of which the last is compared: how they differ from the defaults, and bounds that are not the usual ones."""

    name: str
    groups: dict[str, Any]
    bounds: dict[str, float] = field(default_factory=dict)
    steps: int = 1


def variants() -> list[Variant]:
    """Every method of conf/, each probe, counterfactual and gate, and whatever else changes which forwards run."""
    found = [Variant(name, _method(name), steps=2 if name in LEARN_BESIDE else 1) for name in METHODS]
    found.append(Variant("oar_g, noise of conf/", {"method": "oar_g"}, OF_WEAK_NOISE))
    for kind in sorted({*COUNTERFACTUALS} - {"pad"}):
        for name in ("oar_p", "oar_p_routes"):
            found.append(Variant(f"{name}, {kind}", _method(name, counterfactual=kind)))
    for probe in ("lt_logits", "as_joint", "reference"):
        for name in ("oar_g", "oar_gn", "oar_p", "oar_p_routes", "oar_p_budget"):
            found.append(Variant(f"{name}, {probe}", _method(name, probe=probe)))
    for gate in ("boost_only", "suppress_only", "none", "released_drift"):
        found.append(Variant(f"gating {gate}", _method("oar_p_window", gating=gate)))
    surprised = {"name": "oar_gn", "times_surprisal": True}
    options: dict[str, dict[str, Any]] = {
        "activation checkpointing": {"learner": AGAIN},
        "LoRA": {"model": {"lora": ADAPTER}},
        "LoRA, activation checkpointing": {"model": {"lora": ADAPTER}, "learner": AGAIN},
        "KL to a reference": {"learner": {"kl_coef": 0.1}},
        "two updates": {"learner": {"updates_per_rollout": 2}},
        "soft penalty, token mean": {"learner": {"overlong": "soft_penalty", "aggregation": "token_mean"}},
        "masked, constant normaliser": {"learner": {"overlong": "mask", "aggregation": "constant"}},
        "sequence ratio, sampler correction": {"learner": {"ratio_level": "sequence", "sampler_correction_cap": 2.0}},
        "times surprisal, leave one out": {"method": surprised, "learner": {"leave_one_out": True}},
    }
    found += [Variant(f"oar_gn, {name}", {**_method("oar_gn"), **groups}) for name, groups in options.items()]
    checkpointed = ("oar_g", "oar_p_routes")
    return found + [Variant(f"{name}, activation checkpointing", _method(name, learner=AGAIN)) for name in checkpointed]


def _method(name: str, **groups: Any) -> dict[str, Any]:
    """A method as it is compared, and what else differs."""
    if name in OF_SHEETS:
        groups = {"data": "sheets", **groups}
    estimator = {"oar_g": STRONG_NOISE, "spo_tree": SMALL_TREE}.get(name)
    return {"method": {"name": name, **({"estimator": estimator} if estimator else {})}, **groups}


def run(findings: Findings) -> None:
    """One step on either side of each variant, from the same weights and completions."""
    torch.set_num_threads(1)  # tensors are so small that more threads wait for each other
    start = random_model(TINY, spread=SPREAD, device=CPU)
    with tempfile.TemporaryDirectory() as folder:
        start.save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)
        _compare(findings, start, Path(folder))


def _compare(findings: Findings, start: PreTrainedModel, folder: Path) -> None:
    """`folder` holds `start`, for those that stand beside the policy."""
    engines: dict[str, OwnSampling] = {}  # by the problems
    for variant in variants():
        with findings.case(variant.name):
            groups = {**variant.groups, "learner": {**LR, **variant.groups.get("learner", {})}}
            cfg = step_config(BATCH, MICRO_BATCH, **groups)
            if cfg.data.name not in engines:
                engines[cfg.data.name] = OwnSampling(cfg, REASONING, copy.deepcopy(start))
            engine = engines[cfg.data.name]
            here, reference = (step_on(device, start, folder, engine, cfg, variant.steps) for device in (DEVICE, CPU))
            bounds = {**BOUNDS, **variant.bounds}
            for name in ("importance", "weights", "logprobs", "gradient"):
                findings.at_most(name, relative(here[name], reference[name]), bounds.get(name, BOUND))
            # On the policy the loss is about 0, so there is no share of it to take.
            findings.at_most("loss", abs(float(here["loss"] - reference["loss"])), BOUND, "nats")
            gated = gives(estimator_of(cfg)) == "importance"
            if gated and cfg.gating.threshold != "released_drift":  # which depends on how completions are batched
                findings.at_most("gate", _gate_error(here, cfg), BOUND)
            findings.at_least("size of the gradient", float(reference["gradient"].abs().max()), 1e-9)


def step_on(
    device: torch.device, start: PreTrainedModel, folder: Path, engine: OwnSampling, cfg: TrainConfig, steps: int
) -> dict[str, Tensor]:
    """What the last of `steps` training steps computes there, on the CPU: importance, weights, logprobs, loss, and the last
    update's gradient.
    """
    model = copy.deepcopy(start).to(device)  # type: ignore[arg-type]
    beside = Beside.loaded(cfg, folder, None)
    learned = None if beside.reward_model is None else beside.reward_model.model
    for other in (beside.reference, beside.teacher, learned):
        if other is not None:
            other.to(device)  # type: ignore[arg-type]
    if beside.reward_head is not None:
        beside.reward_head.codes = beside.reward_head.codes.to(device)
    learner = learner_on(cfg, model, engine, beside=beside)
    for _ in range(steps):
        report = learner.training_step()
    gradient = [whole(weight.grad).flatten() for weight in model.parameters() if weight.grad is not None]
    found = {
        "importance": report.credited.token_importance,
        "weights": report.credited.token_weights,
        "mask": report.graded.batch.reasoning_mask,
        "logprobs": report.credited.old_logprobs,
        "loss": torch.tensor(report.metrics["train/loss"]),
        "gradient": torch.cat(gradient),
    }
    return {name: value.detach().cpu() for name, value in found.items()}


def _gate_error(found: dict[str, Tensor], cfg: TrainConfig) -> float:
    """The device's weights against those that the CPU makes of the device's importance."""
    credited = (found["importance"] != 0).any(dim=1)
    expected = torch.ones_like(found["weights"])
    expected[credited] = make_gate(**cfg.gating.options())(found["importance"][credited], found["mask"][credited])
    return relative(found["weights"], expected)
