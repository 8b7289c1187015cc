"""The plan of one run: batches, tokens, memory, hours, and a refusal of what cannot fit."""

from collections.abc import Mapping
from dataclasses import dataclass

from oar.common.errors import ConfigError
from oar.config import TrainConfig
from oar.config.checks import require
from oar.method.importance import ImportanceEstimator
from oar.plan.assumptions import Assumptions
from oar.plan.importance import Lengths, Work, forward, importance_work
from oar.plan.memory import FLOAT32, GIB, NUMBER_BYTES, Memory, memory_of
from oar.plan.model import Architecture

HOUR = 3600.0
TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Batches:
    """How a run is cut up. micro_batches: of one rank in one update, every completion with an advantage and of mean length."""

    prompts: int
    generations: int
    completions: int
    updates_per_rollout: int
    micro_batches: int
    steps: int
    updates: int
    completions_of_run: int
    epochs: float | None


@dataclass(frozen=True, slots=True)
class MethodTime:
    """Seconds of a step by stage and in all (they take turns), and what a run of all steps with its evaluations takes.

    token_forwards: what the signal runs for one completion, as `Work.tokens` counts; memory: bytes of the fullest device.
    """

    generation: float
    importance: float
    update: float
    sync: float
    step: float
    hours: float
    device_hours: float
    price: float | None
    token_forwards: float
    memory: float


@dataclass(frozen=True, slots=True)
class Plan:
    """All of it; `methods` by name, `method` is the run's own.

    tokens: of one step. evaluations: points of the learning curve and the final one, samples, tokens at mean length and at
    most, hours. storage: bytes of the weights in one sync and in the run's syncs, of the last checkpoints and the best.
    """

    parameters: int
    method: str
    batches: Batches
    tokens: dict[str, int]
    memory: Memory
    methods: dict[str, MethodTime]
    evaluations: dict[str, float]
    storage: dict[str, int]


def plan_run(
    cfg: TrainConfig,
    model: Architecture,
    assume: Assumptions,
    estimators: Mapping[str, ImportanceEstimator],
    problems: Mapping[str, int],
) -> Plan:
    """What a run of `cfg` needs and costs, also with the methods of `estimators` (the run's own among them).

    `problems`: how many each published benchmark has. Raises ConfigError in one sentence for what cannot fit.
    """
    batches = _batches(cfg, assume)
    _check_settings(cfg, model, assume)
    memory = memory_of(cfg, model, assume, estimators[cfg.method.name])
    _check_memory(cfg, assume, memory)
    evaluations = _evaluations(cfg, assume, problems)
    sync = NUMBER_BYTES[cfg.model.dtype] * model.parameters
    lengths = {
        "prompts": assume.prompt_tokens,
        "completions": assume.completion_tokens,
        "completions_at_most": cfg.rollout.max_new_tokens,
    }
    return Plan(
        parameters=model.parameters,
        method=cfg.method.name,
        batches=batches,
        tokens={name: batches.completions * length for name, length in lengths.items()},
        memory=memory,
        methods={
            name: _time(cfg, model, assume, estimator, evaluations["hours"]) for name, estimator in estimators.items()
        },
        evaluations=evaluations,
        # Weights travel before the first step as well; a checkpoint has them and AdamW's moments as they are trained.
        storage={
            "sync": sync,
            "syncs": (batches.steps + 1) * sync,
            "checkpoints": (cfg.learner.keep_checkpoints + 1) * 3 * FLOAT32 * model.parameters,
        },
    )


def _check_settings(cfg: TrainConfig, model: Architecture, assume: Assumptions) -> None:
    """Refuse too many ranks, a dtype of unknown speed, and lengths beyond the engine's limit or the model's context."""
    ranks, dtype, limit, new = (
        cfg.learner.ranks,
        cfg.learner.compute_dtype,
        cfg.rollout.max_model_len,
        cfg.rollout.max_new_tokens,
    )
    require(ranks <= assume.devices, "learner.ranks", f"at most assume.devices ({assume.devices})", ranks)
    if dtype not in assume.peak_tflops:
        known = ", ".join(assume.peak_tflops)
        raise ConfigError(f"assume.peak_tflops must name {dtype} (learner.compute_dtype), but names {known}.")
    if limit > model.context:
        raise ConfigError(
            f"rollout.max_model_len must be at most the model's context of {model.context:,} tokens, but is {limit:,}."
        )
    if assume.completion_tokens > new:
        raise ConfigError(
            f"assume.completion_tokens, a mean, must be at most rollout.max_new_tokens ({new:,}), but is "
            f"{assume.completion_tokens:,}."
        )
    evaluated = {name: cfg.evaluation.sampled(name).max_new_tokens for name in cfg.benchmark.sets}
    longest = max(evaluated, key=lambda name: evaluated[name])
    completions = {"rollout.max_new_tokens": new, f"evaluation's max_new_tokens for {longest}": evaluated[longest]}
    for key, tokens in completions.items():
        if assume.longest_prompt + tokens > limit:
            raise ConfigError(
                f"Prompt and completion must fit rollout.max_model_len ({limit:,}), but assume.longest_prompt "
                f"({assume.longest_prompt:,}) and {key} ({tokens:,}) make {assume.longest_prompt + tokens:,}."
            )


def _check_memory(cfg: TrainConfig, assume: Assumptions, memory: Memory) -> None:
    """Refuse a device that has less than it needs, and an engine's cache that cannot hold one sequence."""
    if not memory.kv_sequences_full:
        needed = memory.kv_token * cfg.rollout.max_model_len / GIB
        raise ConfigError(
            f"rollout.kv_cache_gib must hold one sequence of rollout.max_model_len ({cfg.rollout.max_model_len:,} tokens, "
            f"{needed:.2f} GiB), but is {cfg.rollout.kv_cache_gib:g}."
        )
    if memory.device <= assume.memory_gib * GIB:
        return
    parts = [
        (size, f"{name.replace('_', ' ')} of the {process}")
        for process, sizes in (("learner", memory.learner), ("engine", memory.engine))
        if memory.shared or sum(sizes.values()) == memory.device
        for name, size in sizes.items()
    ]
    largest = ", ".join(f"{name} {size / GIB:.1f}" for size, name in sorted(parts, reverse=True)[:3])
    raise ConfigError(
        f"A device must hold {memory.device / GIB:.1f} GiB, but has {assume.memory_gib:g} (assume.memory_gib); the largest "
        f"parts: {largest}. Lower learner.micro_batch_tokens or rollout.kv_cache_gib, or take more ranks or a smaller model."
    )


def _batches(cfg: TrainConfig, assume: Assumptions) -> Batches:
    learner = cfg.learner
    prompts = learner.batch_size // learner.num_generations
    together = max(1, learner.micro_batch_tokens // (assume.prompt_tokens + assume.completion_tokens))
    micro_batches = -(-(learner.batch_size // learner.updates_per_rollout) // together)
    return Batches(
        prompts=prompts,
        generations=learner.num_generations,
        completions=learner.batch_size,
        updates_per_rollout=learner.updates_per_rollout,
        micro_batches=-(-micro_batches // learner.ranks),
        steps=learner.steps,
        updates=learner.steps * learner.updates_per_rollout,
        completions_of_run=learner.steps * learner.batch_size,
        epochs=learner.steps * prompts / assume.training_problems if assume.training_problems else None,
    )


def update_work(cfg: TrainConfig, assume: Assumptions) -> Work:
    """Forwards and backwards of one step by the learner, importance apart (`oar.learner.step`); a backward is two forwards.

    On the policy (one update per rollout) a completion with an advantage has one forward that scores, credits and learns,
    and one without it a forward that only scores. Otherwise all are scored first. A KL term gives every completion a
    gradient and a forward of the reference. The backward computes the logits once more
    (oar/method/forward/projection.py), and with checkpointing the blocks. Source of the factor: Kaplan et al. 2020,
    section 2.1.
    """
    completion = forward(assume.prompt_tokens + assume.completion_tokens, assume.completion_tokens)
    learning = completion * 3 + Work(read=completion.read) + completion.blocks(cfg.learner.activation_checkpointing)
    kl = cfg.learner.kl_coef > 0
    share = 1.0 if kl else assume.contributing_share
    scored = 1.0 - share if cfg.learner.updates_per_rollout == 1 else 1.0
    return (learning * share + completion * scored + completion * float(kl)) * cfg.learner.batch_size


def _time(
    cfg: TrainConfig,
    model: Architecture,
    assume: Assumptions,
    estimator: ImportanceEstimator,
    evaluation_hours: float,
) -> MethodTime:
    # Of a completion of mean length, what is not marker, answer or EOS is reasoning.
    reasoning = assume.completion_tokens - assume.marker_tokens - assume.answer_tokens - 1
    signal = importance_work(
        estimator,
        Lengths(assume.prompt_tokens, reasoning, assume.marker_tokens, assume.answer_tokens),
        checkpointing=cfg.learner.activation_checkpointing,
        half_precision=cfg.learner.compute_dtype == "bfloat16",
    )
    completions = cfg.learner.batch_size
    per_second = cfg.learner.ranks * assume.peak_tflops[cfg.learner.compute_dtype] * TERA * assume.utilisation
    stages = {
        "generation": completions * assume.completion_tokens / (assume.engines * assume.generated_tokens_per_s),
        "importance": completions * assume.contributing_share * signal.flops(model) / per_second,
        "update": update_work(cfg, assume).flops(model) / per_second,
        "sync": NUMBER_BYTES[cfg.model.dtype] * model.parameters / (assume.sync_gb_per_s * GIGA),
    }
    step = sum(stages.values())
    hours = cfg.learner.steps * step / HOUR + evaluation_hours
    device_hours = hours * assume.devices
    price = assume.price_per_device_hour
    return MethodTime(
        **stages,
        step=step,
        hours=hours,
        device_hours=device_hours,
        price=None if price is None else price * device_hours,
        token_forwards=signal.tokens,
        memory=memory_of(cfg, model, assume, estimator).device,
    )


def _evaluations(cfg: TrainConfig, assume: Assumptions, problems: Mapping[str, int]) -> dict[str, float]:
    """As `oar.learner.run` evaluates: a curve before step 1 and every `curve_every` steps, then k samples and a greedy one."""
    evaluation = cfg.evaluation
    points = 1 + cfg.learner.steps // evaluation.curve_every
    of_point = at_end = tokens = at_most = 0
    for name in cfg.benchmark.sets:
        known = problems.get(name)  # None for a generated set, which has no end
        if known is None and name in cfg.benchmark.sources:
            raise ConfigError(
                f"A plan needs to know how many problems {name} has: give it with +problems.{name}=NUMBER."
            )
        final = evaluation.final_problems
        if final is None and known is None:
            raise ConfigError(f"evaluation.final_problems must be a number, since {name} is generated and has no end.")
        sampling = evaluation.sampled(name)
        curve = min(evaluation.curve_problems, known or evaluation.curve_problems)
        end = min(count for count in (final, known) if count is not None) * (sampling.n + 1)
        of_point, at_end = of_point + curve, at_end + end
        samples = points * curve + end
        tokens += samples * min(assume.completion_tokens, sampling.max_new_tokens)
        at_most += samples * sampling.max_new_tokens
    return {
        "points": points,
        "samples_of_point": of_point,
        "samples_at_end": at_end,
        "tokens": tokens,
        "tokens_at_most": at_most,
        "hours": tokens / (assume.engines * assume.generated_tokens_per_s) / HOUR,
    }
