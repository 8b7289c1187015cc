"""Completions for the dashboard's page: of every run the last that it saved, problems that several runs share before others."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from experiments.dashboard.lines import Line
from oar.common.errors import DataError
from oar.learner.samples import Sample, pieces, read_samples
from oar.runs.folder import Run
from oar.runs.tracking import SAMPLES

INSPECTOR = "inspector/step_{:06d}.html"


@dataclass(frozen=True, slots=True)
class Shown:
    """A completion with the line and run that it is of; link: to the inspector's page of its step, where there is one."""

    sample: Sample
    line: str
    run: str
    step: int
    link: str | None

    @property
    def tokens(self) -> Iterator[tuple[str, str, str]]:
        """Text, its weight in words, and the colour behind it ("" where it takes no weight)."""
        scored, segments = self.sample.reasoning_tokens, self.sample.segments
        for at, text in enumerate(pieces(self.sample.tokens, self.sample.completion)):
            if at < scored:
                weight = self.sample.token_weights[at]
                yield (
                    text,
                    f"weight {weight:.4g}, token advantage {self.sample.token_advantages[at]:.4g}",
                    colour(weight),
                )
            else:
                answer = segments is not None and segments[1] <= at < segments[2]
                yield text, "answer, not weighted" if answer else "not weighted", ""


def colour(weight: float) -> str:
    """Of CSS: blue for what is boosted, orange for what is suppressed; full from four times and from a quarter on."""
    strength = min(abs(math.log2(max(weight, 0.25))), 2) / 2
    return f"rgb({'0 114 178' if weight > 1 else '230 159 0'} / {0.7 * strength:.2f})"


def last_samples(
    runs: Sequence[Run], lines: Sequence[Line], count: int, folder: Path
) -> tuple[list[list[Shown]], list[str]]:
    """At most `count` completions of each run, those of one problem together; and notes on what is missing.

    folder: where the page will lie, for links to pages of the inspector.
    """
    found: dict[int, tuple[int, list[Sample]]] = {}
    notes = []
    for at, run in enumerate(runs):
        if (run.folder / SAMPLES).exists():
            try:
                found[at] = read_samples(run.folder, None)
            except DataError as error:
                notes.append(f"Completions of {run.folder.name} are left out: {error}")
    runs_with = Counter(prompt for _, samples in found.values() for prompt in {sample.prompt for sample in samples})
    shown = []
    for line in lines:
        for at in line.runs:
            step, samples = found.get(at, (0, []))
            page = runs[at].folder / INSPECTOR.format(step)
            link = Path(os.path.relpath(page, folder)).as_posix() if page.exists() else None
            first = sorted(samples, key=lambda one: -runs_with[one.prompt])[:count]
            shown += [Shown(sample, line.name, runs[at].folder.name, step, link) for sample in first]
    # By the prompt: another seed's problems may have the same names.
    shown.sort(key=lambda one: (-runs_with[one.sample.prompt], one.sample.problem, one.sample.prompt))
    return [list(group) for _, group in groupby(shown, key=lambda one: one.sample.prompt)], notes
