"""What a dashboard compares: runs that differ in nothing but their seed are one line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from experiments.shared.settings import flatten
from oar.analysis.reports.figures import COLOURS
from oar.analysis.reports.methods import BASE, GRPO, LABELS, label, method_order

METHOD = "method.name"
# Settings that do not change what a step computes: runs that differ in nothing else are of one line. A dot: all below it.
SILENT = tuple(
    """
    seed output_dir resume tracking. evaluation. benchmark. sync. method. data.allow_contaminated allow_targets
    learner.steps learner.checkpoint_every learner.keep_checkpoints learner.ranks learner.rank_timeout_s
    learner.activation_checkpointing rollout.url rollout.host rollout.port rollout.token_file rollout.servers
    rollout.tensor_parallel rollout.startup_timeout_s rollout.request_timeout_s rollout.restart rollout.max_restarts
    """.split()
)


@dataclass(frozen=True, slots=True)
class Line:
    """Runs that differ in nothing but their seed: one thick line.

    values: of the keys that tell the lines apart, METHOD first; runs: their places. look: which of the colours of
    oar/analysis/reports/figures.py and of the markers; the same for a method on every page.
    """

    name: str
    values: Mapping[str, Any]
    runs: Sequence[int]
    look: int

    @property
    def colour(self) -> str:
        """Okabe and Ito's, then from the first on again."""
        return COLOURS[self.look % len(COLOURS)]

    @property
    def dash(self) -> int:
        """How often the colours have been used up before: a line of another dash."""
        return self.look // len(COLOURS)


def lines_of(configs: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Runs by their settings (nested, as in config.yaml), in the order of Table 1 and then of the settings they differ in.

    A run of no training steps is the base model.
    """
    flat = [flatten(config) for config in configs]
    methods = [BASE if config.get("learner.steps") == 0 else str(config[METHOD]) for config in flat]
    keys = _distinguishing_keys(methods, flat)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for at, (method, config) in enumerate(zip(methods, flat, strict=True)):
        own = [None if method == BASE else config.get(key) for key in keys]
        groups.setdefault((method, *own), []).append(at)
    ordered = sorted(
        groups.items(), key=lambda item: (method_order(item[0][0]), [_natural(one) for one in item[0][1:]])
    )
    looks = _looks([group[0] if not any(one is not None for one in group[1:]) else None for group, _ in ordered])
    return [
        Line(_name(group, keys), dict(zip((METHOD, *keys), group, strict=True)), runs, look)
        for (group, runs), look in zip(ordered, looks, strict=True)
    ]


def other_differences(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings outside `method` that some runs have otherwise than others: a comparison of methods is one of these as well."""
    return _differing([config for config in map(flatten, configs) if config.get("learner.steps") != 0])


def _distinguishing_keys(methods: Sequence[str], flat: Sequence[Mapping[str, Any]]) -> list[str]:
    found: list[str] = []
    for method in dict.fromkeys(methods):
        of_method = [config for name, config in zip(methods, flat, strict=True) if name == method]
        if method != BASE:
            found += [key for key in _differing(of_method, own=True) if key not in found]
    return found


def _differing(flat: Sequence[Mapping[str, Any]], *, own: bool = False) -> list[str]:
    """Keys that all of them have and that change what a step computes, without one value; `own`: of the method as well."""
    silent = tuple(key for key in SILENT if not (own and key == "method."))
    shared = set.intersection(*(set(config) for config in flat)) if flat else set()
    keys = [key for key in flat[0] if key in shared and not key.startswith(silent)] if flat else []
    return [key for key in keys if len({repr(config[key]) for config in flat}) > 1]


def _name(group: Sequence[Any], keys: Sequence[str]) -> str:
    short = [key.rsplit(".", 1)[-1] for key in keys]
    names = [key if short.count(last) > 1 else last for key, last in zip(keys, short, strict=True)]
    values = [f"{name} {_text(value)}" for name, value in zip(names, group[1:], strict=True) if value is not None]
    return ", ".join([label(group[0]), *values])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _natural(value: Any) -> tuple[int, float, str]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return (1, 0.0, str(value))
    return (0, float(value), "")


def _looks(methods: Sequence[str | None]) -> list[int]:
    """The places of Table 1 for its methods; what has none (None: a method in several settings) comes behind them."""
    order = list(LABELS)
    taken = {order.index(method) for method in methods if method in order}
    free = count(len(order) if taken else order.index(GRPO))
    return [order.index(method) if method in order else next(free) for method in methods]
