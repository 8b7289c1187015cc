"""The plan of one run: batches, tokens, memory, hours, and a refusal of what cannot fit."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from oar.common.errors import ConfigError
from oar.config import MethodConfig, TrainConfig, build
from oar.config.checks import require
from oar.method.importance import CreditSignal, gives, needs_batch, needs_continuations
from oar.plan.assumptions import Assumptions
from oar.plan.memory import FLOAT32, GIB, NUMBER_BYTES, Memory, memory_of
from oar.plan.model import Architecture
from oar.plan.work import (
    Lengths,
    Work,
    auxiliary_work,
    importance_work,
    probed,
    reads_outcome,
    together,
    update_work,
)

HOUR = 3600.0
TERA = 1e12
GIGA = 1e9
Table = dict[str, dict[str, float]]  # row, column


@dataclass(frozen=True, slots=True)
class Plan:
    """All of it in tables.

    method: the run's own. batches: of a step and of the run. cache: of the engine. methods: by name the tokens that the
    signal runs for one completion (`Work.tokens`), GiB of the fullest device, seconds of a step by stage and in all (they
    take turns), hours of the run with its evaluations. evaluations: points of the learning curve, samples, tokens, hours.
    storage: 10^9 bytes.
    """

    parameters: int
    method: str
    batches: Table
    memory: Memory
    cache: dict[str, int]
    methods: Table
    evaluations: dict[str, float]
    storage: dict[str, float]


def plan_run(
    cfg: TrainConfig,
    model: Architecture,
    assume: Assumptions,
    estimators: Mapping[str, CreditSignal],
    problems: Mapping[str, int],
    methods: Mapping[str, MethodConfig] | None = None,
    scorer: Architecture | None = None,
) -> Plan:
    """What a run of `cfg` needs and costs, also with the methods of `estimators` (the run's own among them).

    `problems`: how many each published benchmark has; `methods`: the settings of those whose estimators are not the run's own,
    where they ask for a teacher or add a loss; `scorer`: the reward model of probe=reward_model. Raises ConfigError in one
    sentence for what cannot fit.
    """
    _check_lengths(cfg, model, assume)
    cache = _cache(cfg, model, assume)
    memory = memory_of(cfg, model, assume, estimators[cfg.method.name], scorer)
    _check_memory(assume, memory)
    evaluations = _evaluations(cfg, assume, problems)
    of_method = {name: replace(cfg, method=(methods or {}).get(name, cfg.method)) for name in estimators}
    table = {
        name: step_costs(of_method[name], model, assume, one, evaluations["hours"], scorer)
        for name, one in estimators.items()
    }
    if "grpo" in table:
        for costs in table.values():
            costs["step_of_grpo"] = costs["step"] / table["grpo"]["step"]
    sync = NUMBER_BYTES[cfg.model.dtype] * model.parameters / GIGA
    # Weights travel before the first step as well; a checkpoint has them, an adapter's, and AdamW's moments of what is trained.
    lora, n = cfg.model.lora, model.parameters
    saved = 3 * n if lora is None else n + 3 * model.adapter_parameters(lora.r, lora.targets)
    storage = {
        "weights_a_sync": sync,
        "weights_all_syncs": (cfg.learner.steps + 1) * sync,
        "checkpoints": (cfg.learner.keep_checkpoints + 1) * FLOAT32 * saved / GIGA,
    }
    batches = _batches(cfg, assume)
    return Plan(model.parameters, cfg.method.name, batches, memory, cache, table, evaluations, storage)


def _check_lengths(cfg: TrainConfig, model: Architecture, assume: Assumptions) -> None:
    """Refuse too many ranks, a dtype of unknown speed, and lengths beyond the engine's limit or the model's context."""
    dtype, ranks, mean = cfg.learner.compute_dtype, cfg.learner.ranks, assume.completion_tokens
    limit, new, prompt = cfg.rollout.max_model_len, cfg.rollout.max_new_tokens, assume.longest_prompt
    require(ranks <= assume.devices, "learner.ranks", f"at most assume.devices ({assume.devices})", ranks)
    require(dtype in assume.peak_tflops, "learner.compute_dtype", "named in assume.peak_tflops", dtype)
    require(limit <= model.context, "rollout.max_model_len", f"at most the model's context ({model.context})", limit)
    require(mean <= new, "assume.completion_tokens", f"a mean, and so at most rollout.max_new_tokens ({new})", mean)
    evaluated = {name: cfg.evaluation.sampled(name).max_new_tokens for name in cfg.benchmark.sets}
    completions = {f"evaluation's max_new_tokens for {name}": tokens for name, tokens in evaluated.items()}
    for key, tokens in {"rollout.max_new_tokens": new, **completions}.items():
        if prompt + tokens > limit:
            raise ConfigError(
                f"Prompt and completion must fit rollout.max_model_len ({limit:,}), but assume.longest_prompt "
                f"({prompt:,}) and {key} ({tokens:,}) make {prompt + tokens:,}."
            )


def _cache(cfg: TrainConfig, model: Architecture, assume: Assumptions) -> dict[str, int]:
    """Bytes of a token in the engine's cache, and how many sequences of full and of mean length it holds at a time."""
    token, full = model.kv_bytes(NUMBER_BYTES[cfg.model.dtype]), cfg.rollout.max_model_len
    held = cfg.rollout.kv_cache_gib * GIB / token
    if held < full:
        raise ConfigError(
            f"rollout.kv_cache_gib must hold one sequence of rollout.max_model_len ({full:,} tokens, "
            f"{token * full / GIB:.2f} GiB), but is {cfg.rollout.kv_cache_gib:g}."
        )
    mean = assume.prompt_tokens + assume.completion_tokens
    return {"bytes_a_token": token, "full_sequences": int(held // full), "mean_sequences": int(held // mean)}


def _check_memory(assume: Assumptions, memory: Memory) -> None:
    """Refuse a device that has less than it needs."""
    if memory.device <= assume.memory_gib * GIB:
        return
    parts = [
        (size, f"{name.replace('_', ' ')} of the {process}")
        for process, sizes in memory.sides.items()
        if memory.shared or sum(sizes.values()) == memory.device
        for name, size in sizes.items()
    ]
    largest = ", ".join(f"{name} {size / GIB:.1f}" for size, name in sorted(parts, reverse=True)[:3])
    raise ConfigError(
        f"A device must hold {memory.device / GIB:.1f} GiB, but has {assume.memory_gib:g} (assume.memory_gib); the largest "
        f"parts: {largest}. Lower learner.micro_batch_tokens or rollout.kv_cache_gib, or take more ranks or a smaller model."
    )


def _batches(cfg: TrainConfig, assume: Assumptions) -> Table:
    """Micro-batches are those of one rank, every completion with an advantage and of mean length."""
    learner, completions = cfg.learner, cfg.learner.batch_size
    prompts, updates = completions // learner.num_generations, learner.updates_per_rollout
    together = max(1, learner.micro_batch_tokens // (assume.prompt_tokens + assume.completion_tokens))
    micro_batches = -(-(completions // updates) // together)
    of_step = {
        "prompts": prompts,
        "completions": completions,
        "optimizer_steps": updates,
        "micro_batches_of_a_rank": updates * -(-micro_batches // learner.ranks),
        "tokens_of_prompts": completions * assume.prompt_tokens,
        "tokens_of_completions": completions * assume.completion_tokens,
        "tokens_of_completions_at_most": completions * cfg.rollout.max_new_tokens,
    }
    table: Table = {name: {"a_step": count, "the_run": learner.steps * count} for name, count in of_step.items()}
    if assume.training_problems is not None:
        table["passes_over_the_problems"] = {"the_run": learner.steps * prompts / assume.training_problems}
    return table


def step_costs(
    cfg: TrainConfig,
    model: Architecture,
    assume: Assumptions,
    estimator: CreditSignal,
    evaluation_hours: float,
    scorer: Architecture | None = None,
) -> dict[str, float]:
    """A line of `Plan.methods`; `evaluation_hours` are part of the run's."""
    learner, marker, answer = cfg.learner, assume.marker_tokens, assume.answer_tokens
    auxiliary = cfg.method.auxiliary and build("method.auxiliary", cfg.method.auxiliary, cfg.allow_targets)
    if gives(estimator) == "advantages" or auxiliary:  # groups without a difference in reward learn as well
        assume = replace(assume, contributing_share=1.0)
    # Of a completion of mean length, what is not marker, answer or EOS is reasoning.
    prompt, completion = assume.prompt_tokens, assume.completion_tokens
    shared = together(learner, prompt, completion)
    lengths = Lengths(prompt, completion - marker - answer - 1, marker, answer, shared)
    shown, clean = probed(cfg.probe, lengths) if reads_outcome(estimator) else (lengths, Work())
    signal = clean + importance_work(estimator, shown, learner)
    beside = auxiliary_work(auxiliary, lengths, learner)
    reader = replace(scorer, vocabulary=1) if scorer and reads_outcome(estimator) else model
    peak = learner.ranks * assume.peak_tflops[learner.compute_dtype] * TERA  # operations a second
    generated = float(learner.batch_size * assume.completion_tokens)
    if needs_continuations(estimator) and cfg.method.continuations is not None:
        # A state lies anywhere in a completion, so that half of one is drawn from it.
        generated *= 1 + cfg.method.continuations.samples * assume.continued_states / 2
    flops = signal.flops(reader) + beside.flops(model)
    stages = {
        "generation": generated / (assume.engines * assume.generated_tokens_per_s),
        "importance": learner.batch_size * assume.contributing_share * flops / (peak * assume.credit_utilisation),
        "update": update_work(cfg, assume, scores_all=needs_batch(estimator)).flops(model)
        / (peak * assume.utilisation),
        "sync": NUMBER_BYTES[cfg.model.dtype] * model.parameters / (assume.sync_gb_per_s * GIGA),
    }
    step = sum(stages.values())
    hours = learner.steps * step / HOUR + evaluation_hours
    costs = {
        "token_forwards": signal.tokens + beside.tokens,
        "device_gib": memory_of(cfg, model, assume, estimator, scorer).device / GIB,
        **stages,
        "step": step,
        "hours": hours,
        "device_hours": hours * assume.devices,
    }
    if assume.price_per_device_hour is not None:
        costs["price"] = assume.price_per_device_hour * costs["device_hours"]
    return costs


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
        sizes = [size for size in (evaluation.final_problems, known) if size is not None]
        if not sizes:
            raise ConfigError(f"evaluation.final_problems must be a number, since {name} is generated and has no end.")
        sampling = evaluation.sampled(name)
        curve, end = min(evaluation.curve_problems, known or evaluation.curve_problems), min(sizes) * (sampling.n + 1)
        of_point, at_end = of_point + curve, at_end + end
        samples = points * curve + end
        tokens += samples * min(assume.completion_tokens, sampling.max_new_tokens)
        at_most += samples * sampling.max_new_tokens
    return {
        "points_of_the_curve": points,
        "samples_of_the_curve": points * of_point,
        "samples_at_the_end": at_end,
        "tokens_of_all_samples": tokens,
        "tokens_of_all_samples_at_most": at_most,
        "hours": tokens / (assume.engines * assume.generated_tokens_per_s) / HOUR,
    }
