"""What a run's configuration must look like. conf/ holds the values and their sources; this file refuses wrong ones.

Hydra composes, `validated` turns the result into these dataclasses: an unknown key, a wrong type, a value out of range
or a combination that cannot work ends in one `ConfigError` sentence before any process starts.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from oar.errors import ConfigError
from oar.importance.replacements import KINDS
from oar.provenance import config_hash
from oar.rollout.types import Sampling
from oar.tasks.records import DatasetConfig

Settings = TypeVar("Settings")


def _require(ok: bool, key: str, expected: str, came: object) -> None:
    if not ok:
        raise ConfigError(f"{key} must be {expected}, but is {came!r}.")


def _one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    _require(value in choices, key, "one of " + ", ".join(choices), value)


@dataclass
class MethodConfig:
    """Which signal says what a token is worth. `estimator` is a Hydra target: a new method is one file and one YAML."""

    name: str
    estimator: Any
    times_surprisal: bool
    reward: str

    def __post_init__(self) -> None:
        _one_of("method.reward", self.reward, ("answer", "random"))


@dataclass
class GatingConfig:
    """From importance to weights (docs/METHOD.md §5)."""

    name: str
    suppress: bool
    boost: bool
    tau: float
    beta: float
    floor: float
    threshold: str

    def __post_init__(self) -> None:
        _require(0 <= self.tau <= 1, "gating.tau", "between 0 and 1", self.tau)
        _require(self.beta >= 0, "gating.beta", "0 or more", self.beta)
        _require(0 < self.floor <= 1, "gating.floor", "above 0 and at most 1", self.floor)
        _one_of("gating.threshold", self.threshold, ("quantile", "absolute", "released_drift"))


@dataclass
class ProbeConfig:
    """What stands for the model's answer (docs/METHOD.md §3)."""

    name: str
    warmup_steps: int
    conclude: str | None

    def __post_init__(self) -> None:
        _one_of("probe.name", self.name, ("warmup", "lt_logits", "as_mean", "as_joint"))
        _require(self.warmup_steps >= 0, "probe.warmup_steps", "0 or more", self.warmup_steps)


@dataclass
class CounterfactualConfig:
    """What OAR-P puts in a token's place (docs/METHOD.md §7.5)."""

    name: str

    def __post_init__(self) -> None:
        _one_of("counterfactual.name", self.name, KINDS)


@dataclass
class ModelConfig:
    """The policy's starting point: a Hugging Face folder, or one that is taught on this machine first."""

    name: str
    path: str | None
    teach: Any
    teach_dir: str | None
    dtype: str
    marker: str

    def __post_init__(self) -> None:
        _require(
            self.path is not None or self.teach is not None, "model.path", "a folder where model.teach is null", None
        )
        # AdamW at 1e-6 rounds its updates away in bfloat16, and probes are too coarse in it (docs/EMBEDDED.md).
        _one_of("model.dtype", self.dtype, ("float32",))
        _require(bool(self.marker), "model.marker", "the text that announces an answer", self.marker)


@dataclass
class DataConfig:
    """Where training problems come from; `source` is a Hydra target.

    `allow_contaminated` names the benchmarks whose problems may be among them.
    """

    name: str
    source: Any
    allow_contaminated: list[str] = field(default_factory=list)


@dataclass
class BenchmarkConfig:
    """Which problems are evaluated on: published sets (`sources` by name) or embedded tiers.

    `path`: local copies instead of the hub, as one file, a folder, or a file by set.
    """

    name: str
    sets: list[str]
    sources: dict[str, DatasetConfig] = field(default_factory=dict)
    path: Any = None

    def __post_init__(self) -> None:
        _require(len(set(self.sets)) == len(self.sets) > 0, "benchmark.sets", "a list without repetition", self.sets)
        by_set = isinstance(self.path, dict) and set(self.path) <= set(self.sets)
        fits = self.path is None or isinstance(self.path, str) or by_set
        _require(fits, "benchmark.path", f"a file, a folder or a file by set ({', '.join(self.sets)})", self.path)


@dataclass
class RolloutConfig:
    """The engine and how completions are drawn from it."""

    url: str | None
    host: str
    port: int
    max_model_len: int
    max_num_seqs: int
    kv_cache_gib: float
    threads: int
    startup_timeout_s: float
    request_timeout_s: float
    temperature: float
    max_new_tokens: int

    def __post_init__(self) -> None:
        _require(0 <= self.port <= 65535, "rollout.port", "a port number, or 0 for a free one", self.port)
        _require(self.temperature > 0, "rollout.temperature", "above 0 (training needs variety)", self.temperature)
        _require(
            0 < self.max_new_tokens < self.max_model_len,
            "rollout.max_new_tokens",
            f"above 0 and below rollout.max_model_len ({self.max_model_len})",
            self.max_new_tokens,
        )
        _require(self.startup_timeout_s > 0, "rollout.startup_timeout_s", "above 0", self.startup_timeout_s)
        _require(self.request_timeout_s > 0, "rollout.request_timeout_s", "above 0", self.request_timeout_s)
        _require(self.threads >= 1, "rollout.threads", "1 or more", self.threads)
        _require(self.max_num_seqs >= 1, "rollout.max_num_seqs", "1 or more", self.max_num_seqs)
        _require(self.kv_cache_gib > 0, "rollout.kv_cache_gib", "above 0", self.kv_cache_gib)


@dataclass
class SyncConfig:
    """How weights reach the engine, and how far sampler and learner may differ before the run stops."""

    name: str
    folder: str | None
    max_logprob_diff: float

    def __post_init__(self) -> None:
        _one_of("sync.name", self.name, ("checkpoint",))
        _require(self.max_logprob_diff > 0, "sync.max_logprob_diff", "above 0", self.max_logprob_diff)


@dataclass
class TrackingConfig:
    """Where metrics go besides metrics.jsonl."""

    mode: str
    project: str
    group: str
    samples_every: int
    samples: int

    def __post_init__(self) -> None:
        _one_of("tracking.mode", self.mode, ("offline", "online", "disabled"))
        _require(self.samples_every >= 1, "tracking.samples_every", "1 or more", self.samples_every)
        _require(self.samples >= 0, "tracking.samples", "0 or more", self.samples)


@dataclass
class LearnerConfig:
    """The update: batch, objective, optimizer (docs/METHOD.md §1)."""

    steps: int
    batch_size: int
    num_generations: int
    updates_per_rollout: int
    micro_batch_size: int
    divide_by_std: bool
    leave_one_out: bool
    clip_eps_low: float
    clip_eps_high: float
    aggregation: str
    kl_coef: float
    sampler_correction_cap: float | None
    lr: float
    adam_beta1: float
    adam_beta2: float
    weight_decay: float
    warmup_steps: int
    max_grad_norm: float
    threads: int
    checkpoint_every: int
    keep_checkpoints: int

    def __post_init__(self) -> None:
        _require(self.steps >= 0, "learner.steps", "0 or more", self.steps)
        _require(self.num_generations >= 2, "learner.num_generations", "2 or more", self.num_generations)
        _require(
            self.batch_size > 0 and self.batch_size % self.num_generations == 0,
            "learner.batch_size",
            f"a positive multiple of learner.num_generations ({self.num_generations})",
            self.batch_size,
        )
        groups = self.batch_size // self.num_generations
        _require(
            self.updates_per_rollout >= 1 and groups % self.updates_per_rollout == 0,
            "learner.updates_per_rollout",
            f"1 or more and a divisor of the number of groups ({groups})",
            self.updates_per_rollout,
        )
        _require(self.micro_batch_size >= 1, "learner.micro_batch_size", "1 or more", self.micro_batch_size)
        _require(0 < self.clip_eps_low < 1, "learner.clip_eps_low", "between 0 and 1", self.clip_eps_low)
        _require(self.clip_eps_high > 0, "learner.clip_eps_high", "above 0", self.clip_eps_high)
        _one_of("learner.aggregation", self.aggregation, ("sequence_mean", "token_mean", "constant"))
        _require(self.kl_coef >= 0, "learner.kl_coef", "0 or more", self.kl_coef)
        cap = self.sampler_correction_cap
        _require(cap is None or cap >= 1, "learner.sampler_correction_cap", "null or 1 or more", cap)
        _require(self.lr > 0, "learner.lr", "above 0", self.lr)
        _require(0 <= self.adam_beta1 < 1, "learner.adam_beta1", "between 0 and 1", self.adam_beta1)
        _require(0 <= self.adam_beta2 < 1, "learner.adam_beta2", "between 0 and 1", self.adam_beta2)
        _require(self.weight_decay >= 0, "learner.weight_decay", "0 or more", self.weight_decay)
        _require(self.warmup_steps >= 0, "learner.warmup_steps", "0 or more", self.warmup_steps)
        _require(self.max_grad_norm > 0, "learner.max_grad_norm", "above 0", self.max_grad_norm)
        _require(self.threads >= 1, "learner.threads", "1 or more", self.threads)
        _require(self.checkpoint_every >= 1, "learner.checkpoint_every", "1 or more", self.checkpoint_every)
        _require(self.keep_checkpoints >= 1, "learner.keep_checkpoints", "1 or more", self.keep_checkpoints)


@dataclass
class SetSamplingConfig:
    """What is different in sampling one benchmark; None: as everywhere."""

    k: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_new_tokens: int | None = None


@dataclass
class EvaluationConfig:
    """How accuracy is measured: a small set on the way, the final set at the end (`final_problems` None: all of it)."""

    curve_every: int
    curve_problems: int
    final_problems: int | None
    k: int
    temperature: float
    top_p: float
    max_new_tokens: int
    sets: dict[str, SetSamplingConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require(self.curve_every >= 1, "evaluation.curve_every", "1 or more", self.curve_every)
        _require(self.curve_problems >= 1, "evaluation.curve_problems", "1 or more", self.curve_problems)
        problems = self.final_problems
        _require(problems is None or problems >= 1, "evaluation.final_problems", "null or 1 or more", problems)
        self._check("evaluation", self.sampled(""))
        for name in self.sets:
            self._check(f"evaluation.sets.{name}", self.sampled(name))

    def sampled(self, benchmark: str) -> Sampling:
        """How completions of a benchmark are drawn for avg@k."""
        own = {
            key: value
            for key, value in vars(self.sets.get(benchmark, SetSamplingConfig())).items()
            if value is not None
        }
        chosen = {key: getattr(self, key) for key in ("k", "temperature", "top_p", "max_new_tokens")} | own
        return Sampling(chosen.pop("k"), **chosen)

    def greedy(self, benchmark: str) -> Sampling:
        """How the one completion of pass@1 is drawn."""
        return Sampling(1, 0.0, self.sampled(benchmark).max_new_tokens)

    @staticmethod
    def _check(key: str, sampling: Sampling) -> None:
        _require(sampling.n >= 1, f"{key}.k", "1 or more", sampling.n)
        _require(sampling.temperature > 0, f"{key}.temperature", "above 0", sampling.temperature)
        _require(0 < sampling.top_p <= 1, f"{key}.top_p", "above 0 and at most 1", sampling.top_p)
        _require(sampling.max_new_tokens >= 1, f"{key}.max_new_tokens", "1 or more", sampling.max_new_tokens)


@dataclass
class TrainConfig:
    """One training run (experiments/train.py)."""

    seed: int
    output_dir: str
    resume: str
    profile: str
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

    def __post_init__(self) -> None:
        _one_of("resume", self.resume, ("never", "auto"))

    def identity(self) -> str:
        """A hash of all that decides what a run computes; a checkpoint of another identity is not resumed.

        How long a run is, where it writes, reports or finds its engine does not change a step, so it is left out.
        """
        content = asdict(self)
        for key in ("output_dir", "resume", "tracking", "evaluation", "benchmark"):
            del content[key]
        del content["data"]["allow_contaminated"]
        for key in ("steps", "checkpoint_every", "keep_checkpoints"):
            del content["learner"][key]
        for key in ("url", "host", "port", "startup_timeout_s", "request_timeout_s"):
            del content["rollout"][key]
        return config_hash(content)[:12]

    def measure(self) -> str:
        """A hash of what is evaluated and how."""
        return config_hash({"evaluation": asdict(self.evaluation), "benchmark": asdict(self.benchmark)})[:12]


@dataclass
class EvaluateConfig:
    """One evaluation (experiments/evaluate.py)."""

    seed: int
    output_dir: str
    api: str
    model: ModelConfig
    benchmark: BenchmarkConfig
    rollout: RolloutConfig
    evaluation: EvaluationConfig

    def __post_init__(self) -> None:
        _one_of("api", self.api, ("auto", "vllm", "openai"))
        own_engine = self.rollout.url is None
        _require(
            not own_engine or self.api != "openai", "rollout.url", "the address of a server where api=openai", None
        )
        longest = max(self.evaluation.sampled(name).max_new_tokens for name in self.benchmark.sets)
        _require(
            not own_engine or longest < self.rollout.max_model_len,
            "evaluation.max_new_tokens",
            f"below rollout.max_model_len ({self.rollout.max_model_len})",
            longest,
        )


@dataclass
class Table1Config:
    """All cells of Table 1 (experiments/table1.py)."""

    seeds: int
    steps: int | None
    methods: list[str]
    profile: str
    output_dir: str
    lanes: int
    overrides: list[str]

    def __post_init__(self) -> None:
        _require(self.seeds >= 1, "seeds", "1 or more", self.seeds)
        _require(self.steps is None or self.steps >= 1, "steps", "1 or more", self.steps)
        _require(self.lanes >= 1, "lanes", "1 or more", self.lanes)
        _require(len(set(self.methods)) == len(self.methods) > 0, "methods", "a list without repetition", self.methods)


def build(key: str, target: Any) -> Any:
    """The object that a Hydra target under `key` describes. Raises ConfigError where its keys do not fit."""
    try:
        return instantiate(target)
    except HydraException as error:
        reason = str(error.__cause__ or error).splitlines()[0].rstrip(".")
        raise ConfigError(f"{key} cannot be built from {target}: {reason}.") from error


def validated(config: DictConfig | ListConfig, schema: type[Settings]) -> Settings:
    """The composed configuration as dataclasses. Raises ConfigError in one sentence for whatever is wrong with it."""
    try:
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), config))
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        key = f" ({error.full_key})" if getattr(error, "full_key", None) else ""
        raise ConfigError(f"The configuration does not fit: {reason}{key}.") from error
    assert isinstance(settings, schema)
    return settings
