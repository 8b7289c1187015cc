"""The update, and where its metrics go."""

from dataclasses import dataclass, field

from oar.config.checks import one_of, require
from oar.names import AGGREGATIONS, RATIO_LEVELS


@dataclass
class TrackingConfig:
    """Where metrics go besides metrics.jsonl."""

    mode: str
    project: str
    samples_every: int
    samples: int
    group: str | None = None
    entity: str | None = None
    name: str | None = None
    tags: list[str] = field(default_factory=list)
    notes: str | None = None
    checkpoints: bool = False
    tensorboard: bool = False

    def __post_init__(self) -> None:
        one_of("tracking.mode", self.mode, ("offline", "online", "disabled"))
        require(self.samples_every >= 1, "tracking.samples_every", "1 or more", self.samples_every)
        require(self.samples >= 0, "tracking.samples", "0 or more", self.samples)
        # As W&B would, but before an engine is started.
        fits = all(1 <= len(tag) <= 64 for tag in self.tags)
        require(fits, "tracking.tags", "a list of tags of 1 to 64 characters", self.tags)
        require(
            1 <= len(self.project) <= 128 and not set(self.project) & set(r"/\#?%:"),
            "tracking.project",
            r"of 1 to 128 characters without any of / \ # ? % :, with the team under tracking.entity",
            self.project,
        )


@dataclass
class LearnerConfig:
    """The update: batch, objective, optimizer (docs/METHOD.md §1)."""

    steps: int
    batch_size: int
    num_generations: int
    max_refills: int
    updates_per_rollout: int
    micro_batch_tokens: int
    divide_by_std: bool
    leave_one_out: bool
    clip_eps_low: float
    clip_eps_high: float
    ratio_level: str
    aggregation: str
    overlong: str
    overlong_buffer: int
    kl_coef: float
    sampler_correction_cap: float | None
    lr: float
    adam_beta1: float
    adam_beta2: float
    weight_decay: float
    warmup_steps: int
    max_grad_norm: float
    threads: int
    ranks: int
    rank_timeout_s: float
    compute_dtype: str
    activation_checkpointing: bool
    checkpoint_every: int
    keep_checkpoints: int

    def __post_init__(self) -> None:
        require(self.steps >= 0, "learner.steps", "0 or more", self.steps)
        require(self.num_generations >= 2, "learner.num_generations", "2 or more", self.num_generations)
        require(
            self.batch_size > 0 and self.batch_size % self.num_generations == 0,
            "learner.batch_size",
            f"a positive multiple of learner.num_generations ({self.num_generations})",
            self.batch_size,
        )
        require(self.max_refills >= 0, "learner.max_refills", "0 or more", self.max_refills)
        groups = self.batch_size // self.num_generations
        require(
            self.updates_per_rollout >= 1 and groups % self.updates_per_rollout == 0,
            "learner.updates_per_rollout",
            f"1 or more and a divisor of the number of groups ({groups})",
            self.updates_per_rollout,
        )
        require(self.micro_batch_tokens >= 1, "learner.micro_batch_tokens", "1 or more", self.micro_batch_tokens)
        require(0 < self.clip_eps_low < 1, "learner.clip_eps_low", "between 0 and 1", self.clip_eps_low)
        require(self.clip_eps_high > 0, "learner.clip_eps_high", "above 0", self.clip_eps_high)
        one_of("learner.ratio_level", self.ratio_level, RATIO_LEVELS)
        one_of("learner.overlong", self.overlong, ("keep", "mask", "soft_penalty"))
        require(self.overlong_buffer >= 1, "learner.overlong_buffer", "1 or more", self.overlong_buffer)
        one_of("learner.aggregation", self.aggregation, AGGREGATIONS)
        require(self.kl_coef >= 0, "learner.kl_coef", "0 or more", self.kl_coef)
        cap = self.sampler_correction_cap
        require(cap is None or cap >= 1, "learner.sampler_correction_cap", "null or 1 or more", cap)
        require(self.lr > 0, "learner.lr", "above 0", self.lr)
        require(0 <= self.adam_beta1 < 1, "learner.adam_beta1", "between 0 and 1", self.adam_beta1)
        require(0 <= self.adam_beta2 < 1, "learner.adam_beta2", "between 0 and 1", self.adam_beta2)
        require(self.weight_decay >= 0, "learner.weight_decay", "0 or more", self.weight_decay)
        require(self.warmup_steps >= 0, "learner.warmup_steps", "0 or more", self.warmup_steps)
        require(self.max_grad_norm > 0, "learner.max_grad_norm", "above 0", self.max_grad_norm)
        require(self.threads >= 1, "learner.threads", "1 or more", self.threads)
        updated = self.batch_size // self.updates_per_rollout
        require(
            1 <= self.ranks <= updated,
            "learner.ranks",
            f"1 or more, and few enough for an update of {updated} completions",
            self.ranks,
        )
        require(self.rank_timeout_s > 0, "learner.rank_timeout_s", "above 0", self.rank_timeout_s)
        one_of("learner.compute_dtype", self.compute_dtype, ("float32", "bfloat16"))
        require(self.checkpoint_every >= 1, "learner.checkpoint_every", "1 or more", self.checkpoint_every)
        require(self.keep_checkpoints >= 1, "learner.keep_checkpoints", "1 or more", self.keep_checkpoints)
