"""Dots with their intervals as SVG that takes its colours from the page: what a reader sees first."""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, log10

ROW, TOP, BOTTOM = 24, 30, 24  # units of the picture
NAMES, PANEL, GAP = 190, 280, 44


@dataclass(frozen=True, slots=True)
class Dot:
    """A value with its interval; the ends are None where it has none."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a chart: its name, a dot in each panel (None: not measured), and whether it is no method but a control."""

    name: str
    dots: Sequence[Dot | None]
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One scale: what it shows, and the value that a dashed line marks (chance, no difference)."""

    title: str
    mark: float


def dot_chart(rows: Sequence[Row], panels: Sequence[Panel], about: str) -> str:
    """Rows below each other, panels side by side; `about`: the whole in words, for who does not see it."""
    width, height = NAMES + len(panels) * (PANEL + GAP), TOP + ROW * len(rows) + BOTTOM
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [f'<div class="chart"><svg {size} role="img" aria-label="{html.escape(about)}">']
    for index, row in enumerate(rows):
        y = TOP + ROW * index
        parts.append(f'<rect class="band{index % 2}" x="0" y="{y}" width="{width}" height="{ROW}"/>')
        parts.append(f'<text x="6" y="{y + 16}">{html.escape(row.name)}</text>')
    for index, panel in enumerate(panels):
        parts += _panel(rows, index, panel, NAMES + index * (PANEL + GAP))
    return "".join([*parts, "</svg></div>"])


def _panel(rows: Sequence[Row], index: int, panel: Panel, left: float) -> list[str]:
    dots = [row.dots[index] for row in rows]
    ends = [end for dot in dots if dot for end in (dot.value, dot.low, dot.high) if end is not None]
    low, high = min([panel.mark, *ends]), max([panel.mark, *ends])
    step = _step((high - low) or 1.0)
    low, high = floor(low / step) * step, -floor(-high / step) * step
    high = high if high > low else low + step

    def x(value: float) -> float:
        return round(left + (value - low) / (high - low) * PANEL, 1)

    bottom = TOP + ROW * len(rows)
    parts = [f'<text class="title" x="{left}" y="18">{html.escape(panel.title)}</text>']
    for tick in range(round((high - low) / step) + 1):
        value = low + tick * step
        parts.append(f'<line class="grid" x1="{x(value)}" x2="{x(value)}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x(value)}" y="{bottom + 16}">{round(value, 6):g}</text>')
    parts.append(f'<line class="mark" x1="{x(panel.mark)}" x2="{x(panel.mark)}" y1="{TOP}" y2="{bottom}"/>')
    for place, (row, dot) in enumerate(zip(rows, dots, strict=True)):
        if dot is not None:
            parts += _dot(dot, x, TOP + ROW * place + ROW / 2, row.hollow)
    return parts


def _dot(dot: Dot, x: Callable[[float], float], y: float, hollow: bool) -> list[str]:
    ends = f" [{dot.low:.3g}, {dot.high:.3g}]" if dot.low is not None and dot.high is not None else ""
    parts = []
    if dot.low is not None and dot.high is not None:
        parts.append(f'<line class="reach" x1="{x(dot.low)}" x2="{x(dot.high)}" y1="{y}" y2="{y}"/>')
    kind = "hollow" if hollow else "full"
    told = f"<title>{dot.value:.3g}{ends}</title>"
    return [*parts, f'<circle class="{kind}" cx="{x(dot.value)}" cy="{y}" r="5">{told}</circle>']


def _step(span: float) -> float:
    """A round distance of ticks, of which three to six fit into `span`."""
    power = 10.0 ** floor(log10(span / 3))
    return next(power * factor for factor in (5, 2, 1) if span / (power * factor) >= 3)
