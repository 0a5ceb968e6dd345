"""Show the rows of running experiments in TensorBoard or Weights & Biases. The records remain the source of truth."""

from __future__ import annotations

import hashlib
import math
import shutil
from pathlib import Path
from typing import Any, Protocol

from ..extras import needed
from ..options import OptionError, nearest
from ..record.following import Followed


class LiveView(Protocol):
    """Receives every row of the runs that have not ended; may be slow, and is called by one thread at a time.

    Rows after a checkpoint come again when a run is resumed: `run.rows` is the number of the row in its run.
    """

    def row(self, run: Followed, row: dict[str, Any]) -> None:
        """Receive the next row of a run."""
        ...

    def end(self, run: Followed) -> None:
        """Called when the run has ended."""
        ...

    def close(self) -> None:
        """Called after the last row of all runs."""
        ...


def live_view(name: str, out: str | Path, experiment: str) -> LiveView:
    """A live view by name. out: the folder of the runs, where the view writes into a folder of its own name."""
    views = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
    if name not in views:
        raise OptionError(f"--live {name!r}: {nearest(name, list(views))}")
    return views[name](Path(out), experiment)


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """The values of a row that can be drawn: figures and measures that are finite numbers, by name.

    >>> scalars({"task": 2, "epoch": 0, "step": 50, "test_accuracy": 0.5, "measures": {"dead_fraction": 0.25}})
    {'task': 2.0, 'epoch': 0.0, 'test_accuracy': 0.5, 'measures/dead_fraction': 0.25}
    """
    flat = {**row, **{f"measures/{name}": value for name, value in row.get("measures", {}).items()}}
    numbers = {name: value for name, value in flat.items() if isinstance(value, int | float) and name != "step"}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


class TensorBoard:
    """Writes event files to DIR/tensorboard/<arm>/seed-<seed>: `tensorboard --logdir DIR/tensorboard` shows them."""

    def __init__(self, out: Path, experiment: str) -> None:
        needed("tensorboard", "live", "--live tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._made, self._folder = SummaryWriter, out / "tensorboard"
        self._writers = dict[Path, Any]()
        self._shown = dict[Path, int]()  # number of rows

    def row(self, run: Followed, row: dict[str, Any]) -> None:
        if run.folder not in self._writers:
            folder = self._folder / run.folder.parent.name / run.folder.name
            shutil.rmtree(folder, ignore_errors=True)  # from an earlier command; all rows come again
            self._writers[run.folder] = self._made(str(folder), flush_secs=5)
        if run.rows > self._shown.get(run.folder, 0):
            self._shown[run.folder] = run.rows
            for name, value in scalars(row).items():
                self._writers[run.folder].add_scalar(name, value, row.get("step", run.rows))

    def end(self, run: Followed) -> None:
        if run.folder in self._writers:
            self._writers.pop(run.folder).close()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class WeightsAndBiases:
    """One W&B run for each run, grouped by arm, in a project named after the experiment; $WANDB_MODE and its like apply."""

    def __init__(self, out: Path, experiment: str) -> None:
        self._wandb, self._out, self._runs = needed("wandb", "live", "--live wandb"), out, dict[Path, Any]()
        self._sent = dict[Path, int]()  # number of rows
        self._project = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in experiment)[:120]

    def row(self, run: Followed, row: dict[str, Any]) -> None:
        if run.folder not in self._runs:
            identity = hashlib.sha256(str(run.folder.resolve()).encode() + run.about["started"].encode()).hexdigest()[:16]
            self._runs[run.folder] = self._wandb.init(
                project=self._project,
                group=run.about["arm"],
                name=run.name,
                id=identity,
                resume="allow",
                reinit="create_new",
                config=run.about["config"],
                dir=str(self._out),
            )
            self._sent[run.folder] = self._runs[run.folder].step  # an earlier command has sent these
        if run.rows > self._sent[run.folder]:
            self._runs[run.folder].log({**scalars(row), "step": row.get("step", run.rows)}, step=run.rows - 1)
            self._sent[run.folder] = run.rows

    def end(self, run: Followed) -> None:
        if run.folder in self._runs:
            self._runs.pop(run.folder).finish()

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()
