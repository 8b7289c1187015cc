"""What one program is given: every group it has, and the checks across them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from oar.common.provenance import config_hash
from oar.config.checks import one_of, require
from oar.config.credit import CounterfactualConfig, GatingConfig, MethodConfig, ProbeConfig, check_reward
from oar.config.data import BenchmarkConfig, DataConfig, ModelConfig
from oar.config.evaluation import EvaluationConfig
from oar.config.learner import LearnerConfig, TrackingConfig
from oar.config.rollout import RolloutConfig, SyncConfig

DEVICES = ("any", "gpu")


@dataclass
class TrainConfig:
    """One training run (experiments/train.py). `allow_targets`: what beside our own classes `build` may make."""

    seed: int
    output_dir: str
    resume: str
    profile: str
    template: str | None
    reward: dict[str, Any]
    method: MethodConfig
    gating: GatingConfig
    probe: ProbeConfig
    counterfactual: CounterfactualConfig
    model: ModelConfig
    data: DataConfig
    benchmark: BenchmarkConfig
    rollout: RolloutConfig
    sync: SyncConfig
    tracking: TrackingConfig
    learner: LearnerConfig
    evaluation: EvaluationConfig
    allow_targets: list[str] = field(default_factory=list)
    device: str = "any"

    def __post_init__(self) -> None:
        one_of("device", self.device, DEVICES)
        expected = "one of never, auto (which goes on with the run in output_dir)"
        require(self.resume in ("never", "auto"), "resume", expected, self.resume)
        check_reward(self.reward)
        require(
            "random" not in self.reward or self.learner.max_refills == 0,
            "learner.max_refills",
            "0 where reward=random, since which groups earn the same is chance there",
            self.learner.max_refills,
        )
        require(
            self.rollout.max_staleness == 0 or self.learner.sampler_correction_cap is not None,
            "learner.sampler_correction_cap",
            "a number (docs/METHOD.md §1: 2) where rollout.max_staleness is not 0, for what older weights drew",
            None,
        )
        require(
            not self.rollout.restart or self.rollout.max_staleness == 0,
            "rollout.restart",
            "false where rollout.max_staleness is not 0: what is drawn during an update is not drawn again",
            self.rollout.restart,
        )
        require(
            self.learner.overlong != "soft_penalty" or self.learner.overlong_buffer < self.rollout.max_new_tokens,
            "learner.overlong_buffer",
            f"below rollout.max_new_tokens ({self.rollout.max_new_tokens})",
            self.learner.overlong_buffer,
        )
        require(
            self.gating.threshold != "released_drift" or self.learner.ranks == 1,
            "learner.ranks",
            "1 where gating.threshold is released_drift, whose level goes from each completion to the next",
            self.learner.ranks,
        )
        require(
            not self.method.decoupled_rewards or self.learner.overlong != "soft_penalty",
            "learner.overlong",
            "keep or mask where method.decoupled_rewards is true, since the penalty is on the sum of the rewards",
            self.learner.overlong,
        )
        generic = self.method.generic
        require(
            generic is None or generic.members < self.learner.num_generations,
            "method.generic.members",
            f"below learner.num_generations ({self.learner.num_generations}), of which they are part",
            generic and generic.members,
        )
        weights = [term.get("weight", 1.0) for term in self.reward.values()]
        require(
            not self.method.decoupled_rewards or any(weights),
            "reward",
            "terms of which one has a weight where method.decoupled_rewards is true",
            weights,
        )
        require(
            self.method.teacher.kind != "averaged" or self.learner.compute_dtype == "float32",
            "method.teacher.kind",
            "live, start or synced where learner.compute_dtype is bfloat16, in which a small step of an average is lost",
            "averaged",
        )
        alone = self.rollout.servers == self.rollout.tensor_parallel == self.learner.ranks == 1
        several = self.sync.name == "ipc" and not alone
        require(not several, "sync.name", "nccl or checkpoint where there are several GPUs", self.sync.name)

    def identity(self) -> str:
        """A hash of `computed`; a checkpoint of another identity is not resumed."""
        return config_hash(self.computed())[:12]

    def computed(self) -> dict[str, Any]:
        """The settings that decide what a run computes.

        How long a run is, what it may build, where it writes, reports, finds its engine or reaches it does not change a
        step, so it is left out.
        """
        content = asdict(self)
        for key in ("output_dir", "resume", "allow_targets", "device", "tracking", "evaluation", "benchmark", "sync"):
            del content[key]
        del content["data"]["allow_contaminated"]
        del content["model"]["template"]  # `template` has it, or another one
        # What was computed before there were any of these is computed alike.
        content["counterfactual"] = _without(content["counterfactual"], {"draws": 1, "text": None})
        content["method"] = _without(content["method"], {"draws": 1, "generic": None})
        content["probe"] = _without(content["probe"], {"path": None, "reference": None})
        for key in (
            "steps",
            "checkpoint_every",
            "keep_checkpoints",
            "ranks",
            "rank_timeout_s",
            "activation_checkpointing",
        ):
            del content["learner"][key]
        for key in (
            *("url", "host", "port", "token_file", "servers", "tensor_parallel"),
            *("startup_timeout_s", "request_timeout_s", "restart", "max_restarts"),
        ):
            del content["rollout"][key]
        return content

    def measure(self) -> str:
        """A hash of what is evaluated and how."""
        benchmark, evaluation = asdict(self.benchmark), asdict(self.evaluation)
        # What was measured before there were any of these is measured alike.
        if self.benchmark.options is None:
            del benchmark["options"]
        if self.evaluation.stop_at is None:
            del evaluation["stop_at"]
        return config_hash({"template": self.template, "evaluation": evaluation, "benchmark": benchmark})[:12]


def _without(node: Any, values: Mapping[str, Any]) -> Any:
    """`node` without the keys that have these values, at any depth."""
    if not isinstance(node, dict):
        return node
    left = {key: value for key, value in node.items() if key not in values or value != values[key]}
    return {key: _without(value, values) for key, value in left.items()}


@dataclass
class EvaluateConfig:
    """One evaluation (experiments/evaluate.py)."""

    seed: int
    output_dir: str
    api: str
    template: str | None
    model: ModelConfig
    benchmark: BenchmarkConfig
    rollout: RolloutConfig
    evaluation: EvaluationConfig
    device: str = "any"

    def __post_init__(self) -> None:
        one_of("device", self.device, DEVICES)
        one_of("api", self.api, ("auto", "vllm", "openai"))
        require(
            not self.rollout.restart, "rollout.restart", "false for an evaluation, which goes on when run again", True
        )
        own_engine = self.rollout.url is None
        require(not own_engine or self.api != "openai", "rollout.url", "the address of a server where api=openai", None)
        longest = max(self.evaluation.sampled(name).max_new_tokens for name in self.benchmark.sets)
        require(
            not own_engine or longest < self.rollout.max_model_len,
            "evaluation.max_new_tokens",
            f"below rollout.max_model_len ({self.rollout.max_model_len})",
            longest,
        )


@dataclass(kw_only=True)
class Table1Config(TrainConfig):
    """All cells of Table 1 (experiments/table1/__main__.py), and what a cell is where the table does not say it."""

    seeds: int
    steps: int | None
    methods: list[str]
    shuffled: list[str]
    parallel_runs: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.seeds >= 1, "seeds", "1 or more", self.seeds)
        require(self.steps is None or self.steps >= 1, "steps", "1 or more", self.steps)
        require(self.parallel_runs >= 1, "parallel_runs", "1 or more", self.parallel_runs)
        require(len(set(self.methods)) == len(self.methods) > 0, "methods", "a list without repetition", self.methods)
        require(set(self.shuffled) <= set(self.methods), "shuffled", f"a list of some of {self.methods}", self.shuffled)
