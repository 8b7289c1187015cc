"""What a dashboard compares: runs that differ in nothing but their seed are one line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.shared.settings import flatten
from oar.analysis.reports.methods import BASE, Look, label, look, method_order, numbered
from oar.runs.naming import SILENT

METHOD = "method.name"


@dataclass(frozen=True, slots=True)
class Line:
    """Runs that differ in nothing but their seed: one thick line.

    values: of the keys that tell the lines apart, METHOD first; runs: their places; look: the same for a method on every page.
    """

    name: str
    values: Mapping[str, Any]
    runs: Sequence[int]
    look: Look


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
    names = [_name(group, keys) for group, _ in ordered]
    in_settings = numbered([name for name, (group, _) in zip(names, ordered, strict=True) if name != label(group[0])])
    return [
        Line(name, dict(zip((METHOD, *keys), group, strict=True)), runs, in_settings.get(name) or look(group[0]))
        for name, (group, runs) in zip(names, ordered, strict=True)
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
    silent = SILENT if own else (*SILENT, "method.")
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
