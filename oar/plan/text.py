"""A plan for people: the same numbers, rounded, in tables. An A stands by what rests on an assumption."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import zip_longest

from rich.table import Table
from rich.text import Text

from oar.config import TrainConfig
from oar.plan.assumptions import Assumptions
from oar.plan.memory import GIB, Memory, largest_micro_batch
from oar.plan.run import GIGA, Plan

_WORDS = {"optimizer": "AdamW's moments", "kv_cache": "key-value cache"}
_METHODS_NOTE = """\
* this run; the others as conf/method has them. A run includes its evaluations. Token forwards are those of the credit
signal, a backward to the embeddings counted as one. Exact OAR-P grows with the square of the length: unequal
completions cost it more than equal ones of the same mean, which are planned here.
"""


def plan_text(plan: Plan, cfg: TrainConfig, source: str, assume: Assumptions) -> Iterator[Text | Table]:
    """The parts of the plan in order; `source`: where the model's sizes come from."""
    count = plan.parameters
    size = f"{count / 1e9:.2f} billion" if count >= 1e8 else f"{count / 1e6:.2f} million"
    yield Text(
        f"{cfg.profile}: {cfg.model.name}, {size} parameters (sizes from {source}), method {plan.method}, "
        f"{assume.devices} x {assume.device}\n"
        "Worked out, not measured. An A stands by what rests on the assumptions at the end.\n"
    )
    yield _title("Batches")
    yield _table(["", "a step", "the run"], [*_batch_rows(plan, cfg, assume), [""]])
    tokens = largest_micro_batch(cfg, assume)
    yield _title(f"Memory of one device, GiB (A; micro-batch at its largest: {tokens:,} tokens)")
    yield _table(["", "learner", "engine"], _memory_rows(plan.memory))
    yield _fullest_device(plan.memory, cfg, assume)
    yield _title("Time (A)")
    yield _methods(plan, assume)
    yield Text(_METHODS_NOTE)
    yield _title("Evaluation and storage")
    yield _table(["", ""], [*_evaluation_rows(plan, cfg), [""]])
    yield _title("Assumptions (A); conf/assume says where each comes from, assume.KEY=VALUE changes it")
    rows = [(key, "null" if value is None else str(value)) for key, value in asdict(assume).items()]
    half = -(-len(rows) // 2)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 3, 0, 0))
    for left, right in zip_longest(rows[:half], rows[half:], fillvalue=("", "")):
        table.add_row(*left, *right)
    yield table


def _title(title: str) -> Text:
    return Text(title, style="bold")


def _table(columns: list[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table without lines, its first column words, the others numbers."""
    table = Table(box=None, pad_edge=False, show_header=any(columns), header_style="", padding=(0, 2, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(
            name, no_wrap=True, justify="right" if index else "left", vertical="bottom" if index else "top"
        )
    for row in rows:
        table.add_row(*row)
    return table


def _batch_rows(plan: Plan, cfg: TrainConfig, assume: Assumptions) -> Iterator[list[str]]:
    cut, learner, new = plan.batches, cfg.learner, cfg.rollout.max_new_tokens
    micro = f"micro-batches of {learner.micro_batch_tokens:,} tokens on each of {learner.ranks} rank(s) (A)"
    for name, count in (
        ("prompts", cut.prompts),
        (f"completions, {cut.generations} a prompt", cut.completions),
        ("optimizer steps", cut.updates_per_rollout),
        (micro, cut.updates_per_rollout * cut.micro_batches),
        (f"tokens of prompts, {assume.prompt_tokens} each (A)", plan.tokens["prompts"]),
        (f"tokens of completions, {assume.completion_tokens} each (A)", plan.tokens["completions"]),
        (f"tokens of completions, at most ({new:,} each)", plan.tokens["completions_at_most"]),
    ):
        yield [name, f"{count:,}", f"{cut.steps * count:,}"]
    if cut.epochs is not None:
        yield [f"passes over {assume.training_problems:,} problems (A)", "", f"{cut.epochs:.1f}"]


def _memory_rows(memory: Memory) -> Iterator[list[str]]:
    sides = memory.learner, memory.engine
    for name in dict.fromkeys([*memory.learner, *memory.engine]):
        yield [_WORDS.get(name, name.replace("_", " ")), *(_gib(side.get(name)) for side in sides)]
    yield ["sum", *(_gib(sum(side.values())) for side in sides)]


def _fullest_device(memory: Memory, cfg: TrainConfig, assume: Assumptions) -> Text:
    both = "share a device" if memory.shared else "have devices of their own"
    return Text(
        f"Learner and engine {both} (A): {_gib(memory.device)} of {assume.memory_gib:g} GiB on the fullest.\n"
        f"A token has {memory.kv_token:,} bytes in the engine's cache: {cfg.rollout.kv_cache_gib:g} GiB hold "
        f"{memory.kv_sequences_full:,} sequences of {cfg.rollout.max_model_len:,} tokens, or {memory.kv_sequences_mean:,} of "
        f"{assume.prompt_tokens + assume.completion_tokens:,} (A).\n"
    )


def _methods(plan: Plan, assume: Assumptions) -> Table:
    stages = ("generation", "importance", "update", "sync", "step")
    columns = ["method", "token forwards\na completion", "fullest device\nGiB", *(f"{stage}\ns" for stage in stages)]
    columns += ["step\n/ GRPO", "run\nh", "device\nh"]
    grpo, rows = plan.methods.get("grpo"), []
    for name, time in plan.methods.items():
        prices = [] if time.price is None else [time.price]
        rows.append(
            [
                f"{name} *" if name == plan.method else name,
                f"{time.token_forwards:,.0f}",
                _gib(time.memory) + (" too much" if time.memory > assume.memory_gib * GIB else ""),
                *(_short(getattr(time, stage)) for stage in stages),
                "" if grpo is None else f"{time.step / grpo.step:.2f}",
                *map(_short, [time.hours, time.device_hours, *prices]),
            ]
        )
    return _table(columns + ["price\n"] * (assume.price_per_device_hour is not None), rows)


def _evaluation_rows(plan: Plan, cfg: TrainConfig) -> Iterator[list[str]]:
    seen, bytes_of, last = plan.evaluations, plan.storage, cfg.learner.keep_checkpoints
    yield [f"samples, {seen['points']} points of the curve", f"{seen['points'] * seen['samples_of_point']:,}"]
    yield ["samples, at the end", f"{seen['samples_at_end']:,}"]
    yield ["tokens of all samples (A)", f"{seen['tokens']:,}"]
    yield ["tokens of all samples, at most", f"{seen['tokens_at_most']:,}"]
    yield ["hours of evaluation (A)", _short(seen["hours"])]
    yield ["GB of weights a sync, through shared memory or sync.folder", _short(bytes_of["sync"] / GIGA)]
    yield ["GB of weights, all syncs", _short(bytes_of["syncs"] / GIGA)]
    yield [f"GB of checkpoints on disk, the last {last} and the best", _short(bytes_of["checkpoints"] / GIGA)]


def _gib(size: float | None) -> str:
    if size is None:
        return ""
    return f"{size / GIB:.1f}" if size >= GIB / 10 or not size else f"{size / GIB:.3f}"


def _short(value: float) -> str:
    """Three digits, more only where they stand before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
