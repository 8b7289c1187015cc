"""A plan for people: the same numbers, rounded, by the same names. An A stands by what rests on an assumption."""

from collections.abc import Mapping
from dataclasses import asdict

import pandas as pd

from oar.config import TrainConfig
from oar.plan.assumptions import Assumptions
from oar.plan.memory import GIB, largest_micro_batch
from oar.plan.run import Plan


def plan_text(plan: Plan, cfg: TrainConfig, source: str, assume: Assumptions) -> str:
    """`source`: where the model's sizes come from."""
    learner, rollout, cache, sides = cfg.learner, cfg.rollout, plan.cache, plan.memory.sides
    names = dict.fromkeys([*plan.memory.learner, *plan.memory.engine])
    memory = {name: {side: of[name] / GIB for side, of in sides.items() if name in of} for name in names}
    memory["sum"] = {side: sum(of.values()) / GIB for side, of in sides.items()}
    own, fullest = plan.method, plan.memory.device / GIB
    too_much = [name for name, costs in plan.methods.items() if costs["device_gib"] > assume.memory_gib]
    return f"""\
{cfg.profile}: {cfg.model.name}, {plan.parameters:,} parameters (sizes from {source}), method {own}, \
{assume.devices} x {assume.device}
Worked out, not measured. An A stands by what rests on the assumptions at the end.

Batches: {learner.num_generations} completions a prompt, micro-batches of {learner.micro_batch_tokens:,} tokens on each of \
{learner.ranks} rank(s) (A)
{_table(plan.batches)}

Memory of one device, GiB (A; micro-batch at its largest: {largest_micro_batch(cfg, assume):,} tokens)
{_table(memory)}
Learner and engine {"share a device" if plan.memory.shared else "have devices of their own"} (A): {fullest:.1f} of \
{assume.memory_gib:g} GiB on the fullest; too much: {", ".join(too_much) or "no method"}.
A token has {cache["bytes_a_token"]:,} bytes in the engine's cache: {rollout.kv_cache_gib:g} GiB hold \
{cache["full_sequences"]:,} sequences of {rollout.max_model_len:,} tokens,
or {cache["mean_sequences"]:,} of {assume.prompt_tokens + assume.completion_tokens:,} (A).

Seconds of a step, hours of the run with its evaluations (A): {own} as configured, the others as conf/method has them
{_table(plan.methods)}
Token forwards are those of the credit signal for a completion, a backward to the embeddings counted as one. Exact OAR-P
grows with the square of the length: unequal completions cost it more than equal ones of the same mean, as planned here.

Evaluation: a curve, then more samples at the end (A)
{_list(plan.evaluations)}

GB: weights through shared memory or sync.folder, checkpoints on disk (the last {learner.keep_checkpoints} and the best)
{_list(plan.storage)}

Assumptions (A); conf/assume says where each comes from, assume.KEY=VALUE changes it
{pd.Series(asdict(assume)).to_string()}
"""


def _list(numbers: Mapping[str, float]) -> str:
    return pd.Series({name: _shown(value) for name, value in numbers.items()}).to_string()


def _table(rows: Mapping[str, Mapping[str, float]]) -> str:
    shown = {name: {column: _shown(value) for column, value in row.items()} for name, row in rows.items()}
    return pd.DataFrame.from_dict(shown, orient="index").fillna("").to_string()


def _shown(value: float) -> str:
    """Three digits, more only where they stand before the point."""
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:.3g}"
