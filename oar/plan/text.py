"""A plan for people: the same numbers, rounded, in tables. An A stands by what rests on an assumption."""

from collections.abc import Iterator
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from oar.config import TrainConfig
from oar.plan.assumptions import Assumptions
from oar.plan.memory import GIB, Memory
from oar.plan.run import Plan

GB = 1e9
_WORDS = {"optimizer": "AdamW's moments", "kv_cache": "key-value cache"}


def told(plan: Plan, cfg: TrainConfig, source: str, assume: Assumptions) -> Iterator[Text | Table]:
    """The parts of the plan in order; `source`: where the model's sizes come from."""
    yield Text(
        f"{cfg.profile}: {cfg.model.name}, {_count(plan.parameters)} parameters (sizes from {source}), method {plan.method}, "
        f"{assume.devices} x {assume.device}\n"
        "Worked out, not measured. An A stands by what rests on the assumptions at the end.\n"
    )
    yield from _section("Batches", _batches(plan, cfg, assume))
    tokens = max(cfg.learner.micro_batch_tokens, assume.longest_prompt + cfg.rollout.max_new_tokens)
    longest = f"micro-batch at its largest: {tokens:,} tokens"
    yield from _section(f"Memory of one device, GiB (A; {longest})", _memory(plan.memory))
    yield _filled(plan.memory, cfg, assume)
    yield from _section("Time (A)", _methods(plan, assume))
    yield Text(
        "* this run; the others as conf/method has them. A run includes its evaluations. Token forwards are those of the credit\n"
        "signal, a backward to the embeddings counted as one. Exact OAR-P grows with the square of the length: unequal\n"
        "completions cost it more than equal ones of the same mean, which are planned here.\n"
    )
    yield from _section("Evaluation and storage", _rest(plan, cfg))
    yield from _section(
        "Assumptions (A); conf/assume says where each comes from, assume.KEY=VALUE changes it", _listed(assume)
    )


def _section(title: str, *parts: Text | Table) -> Iterator[Text | Table]:
    yield Text(title, style="bold")
    yield from parts


def _grid(*columns: str) -> Table:
    """A table without lines, its first column words, the others numbers."""
    table = Table(box=None, pad_edge=False, show_header=any(columns), header_style="", padding=(0, 2, 0, 0))
    table.add_column(columns[0], no_wrap=True)
    for name in columns[1:]:
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    return table


def _batches(plan: Plan, cfg: TrainConfig, assume: Assumptions) -> Table:
    cut, tokens, learner = plan.batches, plan.tokens, cfg.learner
    table = _grid("", "a step", "the run")
    table.add_row("prompts", f"{cut.prompts:,}", f"{cut.steps * cut.prompts:,}")
    table.add_row(f"completions, {cut.generations} a prompt", f"{cut.completions:,}", f"{cut.completions_of_run:,}")
    table.add_row("optimizer steps", f"{cut.updates_per_rollout:,}", f"{cut.updates:,}")
    own = f"micro-batches of {learner.micro_batch_tokens:,} tokens on each of {learner.ranks} rank(s) (A)"
    table.add_row(own, f"{cut.updates_per_rollout * cut.micro_batches:,}", f"{cut.updates * cut.micro_batches:,}")
    for name, count in (
        (f"tokens of prompts, {assume.prompt_tokens} each (A)", tokens.prompts),
        (f"tokens of completions, {assume.completion_tokens} each (A)", tokens.completions),
        (f"tokens of completions, at most ({cfg.rollout.max_new_tokens:,} each)", tokens.completions_at_most),
    ):
        table.add_row(name, f"{count:,}", f"{cut.steps * count:,}")
    if cut.epochs is not None:
        table.add_row(f"passes over {assume.training_problems:,} problems (A)", "", f"{cut.epochs:.1f}")
    table.add_row("")
    return table


def _memory(memory: Memory) -> Table:
    table = _grid("", "learner", "engine")
    for name in dict.fromkeys([*memory.learner, *memory.engine]):
        table.add_row(
            _WORDS.get(name, name.replace("_", " ")),
            *(_gib(part.get(name)) for part in (memory.learner, memory.engine)),
        )
    table.add_row("sum", *(_gib(sum(part.values())) for part in (memory.learner, memory.engine)))
    return table


def _filled(memory: Memory, cfg: TrainConfig, assume: Assumptions) -> Text:
    both = "share a device" if memory.shared else "have devices of their own"
    return Text(
        f"Learner and engine {both} (A): {_gib(memory.device)} of {assume.memory_gib:g} GiB on the fullest.\n"
        f"A token has {memory.kv_token:,} bytes in the engine's cache: {cfg.rollout.kv_cache_gib:g} GiB hold "
        f"{memory.kv_sequences_full:,} sequences of {cfg.rollout.max_model_len:,} tokens, or {memory.kv_sequences_mean:,} of "
        f"{assume.prompt_tokens + assume.completion_tokens:,} (A).\n"
    )


def _methods(plan: Plan, assume: Assumptions) -> Table:
    columns = ["method", "token forwards\na completion", "fullest device\nGiB"]
    columns += [f"{stage}\ns" for stage in ("generation", "importance", "update", "sync", "step")]
    columns += ["step\n/ GRPO", "run\nh", "device\nh"]
    priced = assume.price_per_device_hour is not None
    table = _grid(*columns, *(["price\n"] if priced else []))
    grpo = plan.methods.get("grpo")
    for name, time in plan.methods.items():
        fits = time.memory <= assume.memory_gib * GIB
        row = [
            f"{name} *" if name == plan.method else name,
            f"{time.token_forwards:,.0f}",
            _gib(time.memory) if fits else f"{_gib(time.memory)} too much",
            *(_short(value) for value in (time.generation, time.importance, time.update, time.sync, time.step)),
            "" if grpo is None else f"{time.step / grpo.step:.2f}",
            _short(time.hours),
            _short(time.device_hours),
        ]
        table.add_row(*row, *([_short(time.price)] if time.price is not None else []))
    return table


def _rest(plan: Plan, cfg: TrainConfig) -> Table:
    seen, kept = plan.evaluations, plan.storage
    table = _grid("", "")
    table.add_row(f"samples, {seen.points} points of the curve", f"{seen.points * seen.samples_of_point:,}")
    table.add_row("samples, at the end", f"{seen.samples_at_end:,}")
    table.add_row("tokens of all samples (A)", f"{seen.tokens:,}")
    table.add_row("tokens of all samples, at most", f"{seen.tokens_at_most:,}")
    table.add_row("hours of evaluation (A)", _short(seen.hours))
    table.add_row("GB of weights a sync, through shared memory or sync.folder", _short(kept.sync / GB))
    table.add_row("GB of weights, all syncs", _short(kept.syncs / GB))
    table.add_row(
        f"GB of checkpoints on disk, the last {cfg.learner.keep_checkpoints} and the best",
        _short(kept.checkpoints / GB),
    )
    table.add_row("")
    return table


def _listed(assume: Assumptions) -> Table:
    rows = [(key, "null" if value is None else str(value)) for key, value in asdict(assume).items()]
    half = -(-len(rows) // 2)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 3, 0, 0))
    for left, right in zip(rows[:half], [*rows[half:], ("", "")][:half], strict=True):
        table.add_row(*left, *right)
    return table


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} billion" if parameters >= 1e8 else f"{parameters / 1e6:.2f} million"


def _gib(held: float | None) -> str:
    if held is None:
        return ""
    return f"{held / GIB:.1f}" if held >= GIB / 10 or not held else f"{held / GIB:.3f}"


def _short(value: float) -> str:
    """Three digits, more only where they stand before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
