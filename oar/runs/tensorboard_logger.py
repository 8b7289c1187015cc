"""A run's metrics as event files, for `tensorboard --logdir FOLDER`: curves, final scores, histograms of weights, alerts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboardX import SummaryWriter

from oar.runs.wandb_logger import reasoning_weights

EVENTS = "tensorboard"  # folder of the event files, in the run's own


class TensorBoardLogger:
    """A `Logger` whose event files lie under `<folder>/tensorboard`; a resumed run adds one more file, which takes over."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / EVENTS
        self._writer: SummaryWriter | None = None
        self._step = 0

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Under the same names, but for signs that tags may not have: `avg@4` is `avg_4`."""
        for name, value in values.items():
            self._at(step).add_scalar(name, value, step)

    def samples(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """A histogram of the weights of their reasoning tokens."""
        weights = reasoning_weights(rows)
        if weights:
            self._at(step).add_histogram("weights/of_tokens", np.array(weights), step)

    def final(self, step: int, values: Mapping[str, float], rows: Sequence[Mapping[Any, object]]) -> None:
        """The values at the last step; the table stands in evaluation.csv."""
        self.scalars(step, values)

    def page(self, step: int, name: str, path: Path) -> None:
        """TensorBoard shows no pages."""

    def checkpoint(self, step: int, folder: Path) -> None:
        """TensorBoard keeps no files."""

    def alert(self, title: str, text: str) -> None:
        """A text at the step that it is about."""
        self._at(self._step).add_text(title, text, self._step)

    def finish(self) -> None:
        """Write what is in memory."""
        if self._writer is not None:
            self._writer.close()

    def _at(self, step: int) -> SummaryWriter:
        self._step = step
        if self._writer is None:  # what an interrupted run wrote of this step and later ones is hidden
            # The suffix, since files of one second would have one name.
            self._writer = SummaryWriter(str(self._folder), purge_step=step, filename_suffix=f".step_{step}")
        return self._writer
