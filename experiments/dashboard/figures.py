"""The pictures of a dashboard's page, drawn by plotly: learning curves, and seconds of a step by stage.

Plotly reads tags in the text of a picture, so names that come from runs are escaped.
"""

import html
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from experiments.dashboard.lines import METHOD, Line
from experiments.dashboard.logged import Logged
from experiments.dashboard.panels import TOTAL, Panel
from oar.analysis.reports.methods import BASE, MARKERS
from oar.analysis.reports.methods import METHOD as OWN

SMOOTHING = 9  # training steps of the running mean: one batch is noisy
COLUMNS, ROW_PIXELS = 2, 300
# plotly's names of MARKERS
SYMBOLS = dict(
    zip(
        MARKERS,
        (
            *("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star"),
            *("pentagon", "hexagon", "diamond-tall", "octagon", "hexagon2"),
        ),
        strict=True,
    )
)
AXES = {"step": "training step", "time": "minutes of training steps"}


def curves_figure(
    panels: Sequence[Panel], lines: Sequence[Line], runs: Sequence[Logged], *, axis: str, points: int
) -> go.Figure:
    """A picture for each panel, with one legend: a thick line is the smoothed mean over seeds, a thin one a seed as logged."""
    titles = [f"{html.escape(panel.title)}<br><sub>{html.escape(panel.about)}</sub>" for panel in panels]
    rows = -(-len(panels) // COLUMNS)
    figure = make_subplots(rows, COLUMNS, subplot_titles=titles, vertical_spacing=0.3 / rows)
    for at, panel in enumerate(panels):
        for line in lines:
            for trace in _traces(panel.metric, line, runs, axis, points):
                figure.add_trace(trace, at // COLUMNS + 1, at % COLUMNS + 1)
    in_legend: set[str] = set()
    for trace in figure.data:
        trace.showlegend = trace.mode != "lines" and trace.name not in in_legend
        in_legend |= {trace.name} if trace.showlegend else set()
    figure.update_xaxes(title_text=AXES[axis], rangemode="tozero")
    legend = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"}
    return figure.update_layout(
        template="none",
        height=ROW_PIXELS * rows + 150,
        margin_b=120,
        hovermode="x unified",
        hoverlabel_namelength=-1,  # names in full
        legend=legend,
    )


def stages_figure(medians: pd.DataFrame) -> go.Figure:
    """Stacked bars of seconds; `medians`: see `experiments.dashboard.tables.stage_medians`."""
    names = [html.escape(name) for name in medians.index]
    bars = [go.Bar(x=medians[stage], y=names, name=stage, orientation="h") for stage in medians if stage != TOTAL]
    layout = {"barmode": "stack", "template": "none", "height": 120 + 30 * len(names), "yaxis_automargin": True}
    return go.Figure(bars).update_layout(**layout, yaxis_autorange="reversed", xaxis_title="seconds, median")


def _traces(metric: str, line: Line, runs: Sequence[Logged], axis: str, points: int) -> Iterator[go.Scatter]:
    own = [runs[at] for at in line.runs if len(runs[at].metrics.get(metric, ()))]
    for run in own:
        yield _trace(line, run.name, averages(run.metrics[metric], points), [run], axis, opacity=0.3, line_width=1)
    curves = [run.metrics[metric] for run in own]
    mean = pd.concat(curves, axis=1, join="inner").mean(axis=1) if curves else pd.Series(dtype=float)
    if mean.empty:
        return
    if line.values[METHOD] == BASE:  # it takes no step: what others are compared with along all of theirs
        own = [max(runs, key=lambda run: (run.metrics[TOTAL].sum() if TOTAL in run.metrics else 0, run.last_step))]
        mean = pd.Series(mean.iloc[0], index=[0, own[0].last_step])
    else:
        mean = averages(smoothed(mean, SMOOTHING), points)
    symbol = SYMBOLS[line.look.marker] + ("" if line.look.kind == OWN else "-open")
    marker = {"symbol": symbol, "maxdisplayed": 8}
    yield _trace(line, line.name, mean, own, axis, mode="lines+markers", marker=marker)


def _trace(
    line: Line, name: str, curve: pd.Series, runs: Sequence[Logged], axis: str, mode: str = "lines", **style: object
) -> go.Scatter:
    x = places(runs, curve.index, axis)
    known = ~np.isnan(x)
    return go.Scatter(
        x=x[known],
        y=curve.to_numpy(np.float32)[known],
        name=html.escape(name),
        legendgroup=html.escape(line.name),
        mode=mode,
        line_color=line.look.colour,
        line_dash="solid" if line.look.kind == OWN else "dash",
        hovertemplate="%{y:.4g}",
        **style,
    )


def places(runs: Sequence[Logged], steps: pd.Index, axis: str) -> np.ndarray:
    """Where steps lie on the axis: themselves, or the mean of `runs`' minutes until then, NaN where no run knows them."""
    if axis == "step":
        return np.asarray(steps, dtype=np.float32)
    return pd.DataFrame([_minutes(run, steps) for run in runs]).mean().to_numpy(np.float32)


def _minutes(run: Logged, steps: pd.Index) -> np.ndarray:
    """Of training steps alone, evaluations left out."""
    total = run.metrics.get(TOTAL, pd.Series(dtype=float)).cumsum() / 60
    if not len(total):
        return np.full(len(steps), np.nan)
    return np.interp(steps, [0, *total.index], [0, *total], right=np.nan)


def smoothed(curve: pd.Series, steps: int) -> pd.Series:
    """The centred running mean over so many training steps; points that lie further apart stay as they are."""
    timed = curve.set_axis(pd.to_timedelta(curve.index, unit="s"))  # only over times does a window go by distance
    return timed.rolling(f"{steps - 1}s", center=True, closed="both").mean().set_axis(curve.index)


def averages(curve: pd.Series, points: int) -> pd.Series:
    """At most `points`: the means of equal stretches of a curve, each at the middle one of its steps."""
    if len(curve) <= points:
        return curve
    stretches = np.array_split(np.arange(len(curve)), points)
    middle = [curve.index[stretch[len(stretch) // 2]] for stretch in stretches]
    return pd.Series([float(curve.iloc[stretch].mean()) for stretch in stretches], index=middle)
