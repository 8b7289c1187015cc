"""What a dashboard compares: the panels and the lines in them, one definition for W&B and for the page without a network.

Metrics go by the names under which a run logs them to W&B (oar/runs/tracking.py): those of metrics.jsonl, `seconds/<stage>` of
timings.jsonl, and the table `samples`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from oar.analysis.reports.figures import COLOURS, MARKERS
from oar.analysis.reports.methods import BASE, GRPO, LABELS, label, method_order
from oar.evaluation.evaluate import MEAN

Kind = Literal["curve", "tiers", "stages", "samples"]
SAMPLES = "samples"
SECONDS = "seconds/"
TOTAL = f"{SECONDS}total"
STAGES = ("generation", "grading", "scoring", "importance", "update", "sync")  # of a training step, in its order
SMOOTHING = 9  # training steps of the running mean: one batch is noisy
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
class Panel:
    """One picture. metric: as it is logged, `*` for any one part of a name; title and about: for people, with its unit.

    curve: a line over training steps; of a metric with `*` a panel for each that was logged, whose name stands for `{}` in the
    title. tiers: accuracy by benchmark; stages: seconds of a step by what they go into; samples: completions with weights.
    """

    metric: str
    title: str
    about: str
    kind: Kind = "curve"


@dataclass(frozen=True, slots=True)
class Section:
    """Panels that answer one question."""

    name: str
    panels: Sequence[Panel]


SECTIONS = (
    Section(
        "Reward",
        [
            Panel(
                "train/reward_mean",
                "Training reward",
                "what completions earn; with reward=answer the share that is right",
            ),
            Panel("eval/mean/avg@*", "Accuracy, mean of the tiers", "% of the curve's problems, one sample each"),
            Panel(
                "train/zero_advantage_groups",
                "Groups without advantage",
                "share of groups all right or all wrong, 0 to 1",
            ),
            Panel("train/completion_length", "Completion length", "tokens, mean"),
        ],
    ),
    Section(
        "Accuracy by tier",
        [
            Panel("eval/*/avg@*", "Accuracy by tier", "% of problems", "tiers"),
            Panel("eval/*/avg@*", "Accuracy, {}", "% of the curve's problems, one sample each"),
        ],
    ),
    Section(
        "Policy",
        [
            Panel("train/entropy", "Policy entropy", "nats per token; near 0 the policy has collapsed"),
            Panel("train/approx_kl", "KL to the policy that drew", "nats per token, estimated"),
            Panel("train/clip_fraction", "Clipped tokens", "share, 0 to 1"),
            Panel("train/grad_norm", "Gradient norm", "before clipping"),
            Panel("train/sampler_logprob_diff_max", "Sampler against learner", "nats, largest logprob difference"),
            Panel("train/truncated_share", "Completions cut off", "share at the length limit, 0 to 1"),
        ],
    ),
    Section(
        "Credit",
        [
            Panel(
                "weights/ess_ratio",
                "ESS ratio of the weights",
                "1: every token alike; lower: few tokens hold the credit",
            ),
            Panel("weights/suppressed_share", "Tokens suppressed", "share of reasoning tokens with a weight below 1"),
            Panel("weights/boosted_share", "Tokens boosted", "share of reasoning tokens with a weight above 1"),
            Panel("weights/max", "Largest weight", "mean of a completion's weights is 1"),
            Panel("probe/fallback_share", "No answer found", "share of completions that fall back to uniform weights"),
        ],
    ),
    Section(
        "Overhead",
        [
            Panel(f"{SECONDS}*", "Seconds of a training step, by stage", "median over steps and seeds", "stages"),
            Panel(TOTAL, "Seconds of a training step", "wall clock, evaluations left out"),
            Panel(f"{SECONDS}importance", "Seconds in importance", "what the weights cost"),
            Panel(f"{SECONDS}generation", "Seconds in generation", "rollouts"),
        ],
    ),
    Section(
        "Completions",
        [Panel(SAMPLES, "Sample completions with weights", "saved at each run's last such step", "samples")],
    ),
)


def sections_of(logged: Iterable[str]) -> list[Section]:
    """The sections with what was logged: a panel without its metric is left out, one of `*` is made for each that is there."""
    names = sorted(set(logged))
    found = []
    for section in SECTIONS:
        panels = [one for panel in section.panels for one in _expanded(panel, names)]
        if panels:
            found.append(Section(section.name, panels))
    return found


def metrics_of(panel: Panel, logged: Iterable[str]) -> list[str]:
    """The names that a panel shows; of tiers without their mean, of stages those of a training step, in its order."""
    names = sorted(name for name in set(logged) if _matches(panel.metric, name))
    if panel.kind == "tiers":
        return [name for name in names if benchmark_of(name) != MEAN]
    if panel.kind == "stages":
        return [f"{SECONDS}{stage}" for stage in STAGES if f"{SECONDS}{stage}" in names]
    return names


def benchmark_of(metric: str) -> str:
    """words1 of eval/words1/avg@1."""
    return metric.split("/")[1]


def _expanded(panel: Panel, names: Sequence[str]) -> list[Panel]:
    shown = metrics_of(panel, names)
    if panel.kind != "curve" or "*" not in panel.metric:
        return [panel] if shown else []
    if "{}" in panel.title:
        shown = [name for name in shown if benchmark_of(name) != MEAN]
        return [Panel(name, panel.title.format(benchmark_of(name)), panel.about) for name in shown]
    return [Panel(name, panel.title, panel.about) for name in shown]


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", "[^/]+"), name) is not None


@dataclass(frozen=True, slots=True)
class Line:
    """Runs that differ in nothing but their seed: one thick line.

    values: of the keys that tell the lines apart, METHOD first; runs: their places. look: which of the colours and markers of
    oar/analysis/reports/figures.py; the same for a method on every page.
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
    def marker(self) -> str:
        """As matplotlib names it."""
        return MARKERS[self.look % len(MARKERS)]

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


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"gating.tau": 0.4, ...} of nested settings."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


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
