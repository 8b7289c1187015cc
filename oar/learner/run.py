"""A whole run of the learner: restore, verify the engine, step, look, save; then the final evaluation."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from oar.common.files import shown
from oar.common.kernels import choose_kernels
from oar.common.progress import step_bar
from oar.common.provenance import ROOT, collect_provenance, files_hash, git_state
from oar.common.seeding import derive_seed
from oar.config import TrainConfig
from oar.config.evaluation import Sampling
from oar.evaluation.draw import Asked, Completion, TokenSource, draw
from oar.evaluation.evaluate import MEAN, EvaluationResult, concatenate, evaluate
from oar.learner.beside import Beside
from oar.learner.checkpoint import (
    CHECKPOINTS,
    OPTIMIZER_FOLDER,
    best_checkpoint,
    checkpoint_of,
    checkpoint_step,
    noted,
    resumable_checkpoint,
    save_checkpoint,
)
from oar.learner.collect import GradedGroup, grade_groups
from oar.learner.distributed import Ranks, joined
from oar.learner.optimizer_state import load_optimizer
from oar.learner.parity import parity_metrics
from oar.learner.recovery import Recovery, Steady
from oar.learner.samples import sample_rows
from oar.learner.sharding import gathered, shard
from oar.learner.step import Learner, StepReport
from oar.method.forward.logprobs import score_completions
from oar.model.load import load_tokenizer, weight_files
from oar.model.lora import load_trained
from oar.rollout.access import engine_token
from oar.rollout.client.servers import engine_at
from oar.rollout.release import refuse_other_release
from oar.rollout.sync import make_sync
from oar.runs.folder import START_WEIGHTS
from oar.runs.tracking import SAMPLES, Tracker, start_tracker
from oar.tasks.data.sources import load_benchmarks
from oar.tasks.task import Task

CURVE = f"eval/{MEAN}/avg@1"  # the accuracy that a point of the learning curve comes down to
EARNED = f"eval/{MEAN}/reward@1"  # its mean reward, where that is more than right or wrong


def run_training(cfg: TrainConfig, folder: Path, start_model: Path, engine_urls: list[str], sync_folder: Path) -> None:
    """Train to `learner.steps` in `folder`, from its last checkpoint if there is one, then evaluate."""
    started, git = datetime.now(UTC), git_state(ROOT)
    torch.set_num_threads(cfg.learner.threads)
    choose_kernels()
    with ExitStack() as running:
        ranks = running.enter_context(joined(cfg.learner))
        checkpoint = resumed(folder, cfg, ranks)
        learner = make_learner(cfg, checkpoint, start_model, engine_urls, sync_folder, ranks)
        if ranks.first:
            for server in learner.client.servers:
                refuse_other_release(server.release(), f"at {server.url}")
        tracker = make_tracker(cfg, folder) if ranks.first else None  # who has one tells what happens
        if tracker is not None:
            tracker.resume(-1 if checkpoint is None else learner.step)
            print(batch_arithmetic(cfg), flush=True)
            if checkpoint is not None:
                print(f"going on from {checkpoint}", flush=True)
        steady = Recovery(cfg.rollout, folder, ranks, lambda: learner.step, partial(verify_sync, learner))
        steady(lambda: None)  # nothing but to verify the engine
        bar = step_bar(str(shown(folder)), cfg.learner.steps, learner.step, shown=ranks.first)
        tell = running.enter_context(bar)
        if checkpoint is None:
            curve = steady(partial(curve_point, learner))
            if tracker is not None:
                tracker.log(0, curve)
                tell(0, "before the first step", held_out(curve))
        first, bound = learner.step + 1, cfg.evaluation.stop_at
        # A run that ended early and was killed in its final evaluation has nothing more to learn.
        reached = checkpoint is not None and has_reached(bound, noted(checkpoint, "earned"))
        while learner.step < cfg.learner.steps and not reached:
            report = learner.training_step(steady)
            on_curve = learner.step % cfg.evaluation.curve_every == 0
            if cfg.rollout.max_staleness > 0 and (learner.step == first or on_curve):
                check_engine(learner, steady)  # a step's completions are of older weights, and so do not tell
            evaluating = time.perf_counter()
            curve = steady(partial(curve_point, learner)) if on_curve else {}
            evaluated = time.perf_counter() - evaluating - learner.groups.ahead_seconds  # beyond the draw beside it
            if tracker is not None:
                record(learner, tracker, report, curve, evaluated)
            # The first rank alone has the curve.
            reached = on_curve and ranks.agree(has_reached(bound, earned(curve)))
            if learner.step % cfg.learner.checkpoint_every == 0 or learner.step == cfg.learner.steps or reached:
                steady(partial(checkpoint_now, learner, folder, curve))
                if tracker is not None and cfg.tracking.checkpoints:
                    tracker.log_checkpoint(learner.step, checkpoint_of(folder / CHECKPOINTS, learner.step))
            if tracker is not None:
                tell(learner.step, progress_line(report, learner.step, cfg.learner.steps), held_out(curve))
        result = steady(partial(final_evaluation, learner)) if ranks.count == 1 else None
    if tracker is None:
        return  # a final evaluation may take hours, for which nobody needs to wait
    learner.sync.close()
    result = result or final_evaluation(learner)  # without the other ranks it cannot be repeated on another engine
    provenance = collect_provenance(asdict(cfg), started=started, git=git)
    benchmarks = load_benchmarks(cfg.benchmark, "final", cfg.evaluation.final_problems)
    data = {"train": learner.source.origin()} | {name: found.origin for name, found in benchmarks.items()}
    provenance |= {
        "data": data,
        START_WEIGHTS: files_hash(weight_files(start_model)),
        "seed": cfg.seed,
        "first_step": first,
        "step": learner.step,
        "reached": reached,
        "identity": cfg.identity(),
        "measure": cfg.measure(),
        "template": learner.task.template_record(),
    }
    result.save(folder, provenance)
    tracker.log_final(learner.step, result.metrics(), result.summary.to_dict("records"))
    tracker.finish()
    print(ending(result, folder), flush=True)


def resumed(folder: Path, cfg: TrainConfig, ranks: Ranks) -> Path | None:
    """The checkpoint to go on from, found and verified by the first rank."""
    found = resumable_checkpoint(folder, cfg) if ranks.first else None
    step = ranks.share({"step": torch.tensor(-1 if found is None else checkpoint_step(found))} if ranks.first else None)
    return None if step["step"] < 0 else checkpoint_of(folder / CHECKPOINTS, int(step["step"]))


def make_learner(
    cfg: TrainConfig,
    checkpoint: Path | None,
    start_model: Path,
    engine_urls: list[str],
    sync_folder: Path,
    ranks: Ranks,
) -> Learner:
    """The learner as `checkpoint` left it, or at step 0 with the starting model."""
    # AdamW's small steps need float32; what forwards compute in is learner.compute_dtype.
    model = load_trained(cfg.model.lora, start_model, checkpoint, "float32", cfg.seed)
    tokenizer = load_tokenizer(checkpoint or start_model)
    if ranks.count > 1 or cfg.learner.compute_dtype != "float32":
        shard(model, getattr(torch, cfg.learner.compute_dtype))
    beside = Beside.loaded(cfg, start_model, checkpoint)
    token = engine_token(cfg.rollout.token_file)
    client = engine_at(engine_urls, cfg.rollout.request_timeout_s, token)
    engine_dtype = getattr(torch, cfg.model.dtype)
    sync = make_sync(cfg.sync, engine_at(engine_urls, cfg.sync.timeout_s, token), sync_folder, engine_dtype)
    task = Task.named(tokenizer, cfg.model.marker, cfg.template)
    learner = Learner(cfg, model, task, client, sync, ranks, beside)
    if checkpoint is not None:
        load_optimizer(checkpoint / OPTIMIZER_FOLDER, model, learner.optimizer)
        learner.step = checkpoint_step(checkpoint)
    return learner


def make_tracker(cfg: TrainConfig, folder: Path) -> Tracker:
    """Where the run's metrics go."""
    return start_tracker(
        folder,
        cfg.tracking,
        job_type=cfg.method.name,
        tags=[cfg.profile, cfg.method.name, cfg.gating.name, cfg.probe.name],
        config=asdict(cfg),
        max_logprob_diff=cfg.sync.max_logprob_diff,
    )


def record(
    learner: Learner, tracker: Tracker, report: StepReport, curve: dict[str, float], evaluation_s: float
) -> None:
    """Tell a step's metrics, with its point of the learning curve where it has one, its seconds and some of its completions."""
    cfg, step = learner.cfg.tracking, learner.step
    tracker.log(step, report.metrics | curve)
    tracker.log_timings(step, report.seconds | {"evaluation": evaluation_s})
    if step % cfg.samples_every == 0:
        tracker.log_samples(step, sample_rows(learner.task, report, cfg.samples))


def verify_sync(learner: Learner, steady: Steady) -> None:
    """Give the engine the learner's weights and prove by logprobs that it has them, before anything builds on it."""
    steady(learner.publish)
    check_engine(learner, steady)


def check_engine(learner: Learner, steady: Steady) -> None:
    """Draw a few completions and compare their logprobs with the learner's. Raises SyncError where the weights differ."""
    graded = learner.batch(steady(partial(_few_groups, learner)))
    with torch.no_grad(), gathered(learner.model):
        scores = score_completions(learner.model, graded.batch, temperature=learner.cfg.rollout.temperature)
    bound = learner.cfg.sync.max_logprob_diff
    parity_metrics(graded.batch.sampler_logprobs, scores.logprobs, graded.batch.completion_mask, bound=bound)


def _few_groups(learner: Learner) -> list[GradedGroup]:
    sampler = learner.groups.sampler
    if sampler is None:
        return []
    problems = learner.source.problems(0, 0, 1)
    seed = derive_seed(learner.cfg.seed, "sampling", learner.step)
    return grade_groups(problems, sampler.generate(problems, seed=seed, version=learner.step), learner.task)


def checkpoint_now(learner: Learner, folder: Path, curve: Mapping[str, float]) -> None:
    """Save what the run would go on from. The next step's groups are drawn meanwhile, if they are not there yet."""
    with learner.groups.drawing(learner.step):
        save_checkpoint(
            folder / CHECKPOINTS,
            learner.step,
            learner.model,
            learner.task.tokenizer,
            learner.optimizer,
            {"identity": learner.cfg.identity(), "accuracy": curve.get(CURVE), "earned": earned(curve)},
            keep=learner.cfg.learner.keep_checkpoints,
            ranks=learner.ranks,
            beside=learner.beside.save,
        )


def curve_point(learner: Learner) -> dict[str, float]:
    """A point of the learning curve: one sample for each of a few problems of every set; empty on other ranks than the first.

    The groups of the next step are of the same weights, and are drawn at the same time.
    """
    if not learner.ranks.first:
        return {}
    cfg = learner.cfg.evaluation

    def once_each(name: str) -> Sampling:
        return replace(cfg.sampled(name), n=1)

    beside = learner.groups.drawing(learner.step)
    return _evaluate(learner, "curve", cfg.curve_problems, once_each, beside).metrics()


def earned(curve: Mapping[str, float]) -> float | None:
    """The mean reward of a point of the learning curve; None where there is no point."""
    return curve.get(EARNED, curve[CURVE] / 100) if curve else None


def has_reached(bound: float | None, reward: float | None) -> bool:
    """Whether a point of the learning curve, where there is one, earns as much as training is to reach."""
    return bound is not None and reward is not None and reward >= bound


def final_evaluation(learner: Learner) -> EvaluationResult:
    """avg@k at the configured temperature and greedy pass@1 on the final split."""
    cfg = learner.cfg.evaluation
    both = [
        _evaluate(learner, "final", cfg.final_problems, sampling, nullcontext())
        for sampling in (cfg.sampled, cfg.greedy)
    ]
    return concatenate(both)


def batch_arithmetic(cfg: TrainConfig) -> str:
    """The numbers of a step in one line, because every framework's users ask."""
    learner = cfg.learner
    groups = learner.batch_size // learner.num_generations
    return (
        f"{cfg.method.name}, seed {cfg.seed}: {learner.steps} steps of {groups} prompts x {learner.num_generations} = "
        f"{learner.batch_size} completions; {learner.updates_per_rollout} update(s) per rollout, "
        f"micro-batches of up to {learner.micro_batch_tokens:,} tokens"
        + (f" over {learner.ranks} ranks" if learner.ranks > 1 else "")
    )


def progress_line(report: StepReport, step: int, steps: int) -> str:
    """What a person watching wants to know of a step."""
    metrics = report.metrics
    return (
        f"step {step:>4}/{steps}  reward {metrics['train/reward_mean']:.3f}  entropy {metrics['train/entropy']:.3f}  "
        f"length {metrics['train/completion_length']:.1f}  ess {metrics['weights/ess_ratio']:.3f}  "
        f"grad {metrics['train/grad_norm']:.3f}  {report.seconds['total']:.2f} s"
    )


def held_out(curve: Mapping[str, float]) -> str:
    """The accuracy of a point of the learning curve, and its reward where answers are right in part; empty without a point."""
    if CURVE not in curve:
        return ""
    return f"held-out {curve[CURVE]:.1f} %" + (f", reward {curve[EARNED]:.2f}" if EARNED in curve else "")


def ending(result: EvaluationResult, folder: Path) -> str:
    """What came out, and what to type next."""
    best = best_checkpoint(folder / CHECKPOINTS)
    lines = [result.overview(), f"written to {shown(folder)}"]
    if best is not None:
        lines.append(f"best on the learning curve: {shown(best)}")
    if (folder / SAMPLES).exists():
        lines.append(f"which tokens got the credit: make inspect ARGS='run={shown(folder)}'")
    return "\n".join(lines)


def _evaluate(
    learner: Learner,
    split: str,
    n: int | None,
    sampling: Callable[[str], Sampling],
    beside: AbstractContextManager[None],
) -> EvaluationResult:
    cfg = learner.cfg
    benchmarks = load_benchmarks(cfg.benchmark, split, n)
    source = TokenSource(learner.client, learner.task, learner.step)

    def drawn(asked: Sequence[Asked]) -> list[list[list[Completion]]]:
        with beside:
            return draw(source, asked)

    return evaluate(
        drawn,
        {name: found.problems for name, found in benchmarks.items()},
        task=learner.task,
        sampling={name: learner.task.ending(sampling(name)) for name in benchmarks},
        seed=derive_seed(cfg.seed, "evaluation", split, learner.step),
        reward=learner.reward,
    )
