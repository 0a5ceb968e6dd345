"""A run that is being trained: resumed from its record, and written back into it."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..learner import Task
from ..record import ENDINGS, Record, RecordNotWritten, load_checkpoint, read
from ..record.checkpoints import checkpoints_of
from ..record.position import Position, about_lengths, position_of
from ..record.reading import read_run
from ..record.schema import STATE, check
from ..train.allocator import keep_freed_memory
from ..train.loop import Loop, Row, SupervisedLoop, check_path, check_stream
from .snapshots import Beginning, Snapshots, beginning
from .spec import RunSpec, first_task_of, idle_in_first_task
from .starts import last_of

log = logging.getLogger("replastic")
_ROWS_ON_THEIR_WAY = 1  # left unread while training continues, so that it does not wait for the device


class Running:
    """Trains a run, a piece at each `advance`, so that several runs can take turns on a GPU, or records a stacked one.

    first: the run of a first task that this one shares with others; if it has finished, this one continues from its end.
    retry: a run that has failed continues from its last checkpoint.
    turns: a piece is a few steps instead of all steps up to the next row.
    """

    def __init__(
        self,
        run: RunSpec,
        out: str | Path,
        *,
        device: torch.device | str = "cpu",
        root: str | Path | None = None,
        first: RunSpec | None = None,
        retry: bool = False,
        turns: bool = False,
    ) -> None:
        self.run, self.out, self.root, self.first, self._turns = run, Path(out), root, first, turns
        self.device = torch.device(device)
        self.last: dict[str, Any] = {}  # the last row that was written
        self._beginning: Beginning | None = None  # of a run from a start that has no checkpoint yet
        self.tasks: Sequence[Task] = ()  # of a run that has ended, none
        self._rows: Iterator[Row | None] | None = None
        self._waiting: deque[Row] = deque()
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._random: dict[str, torch.Tensor] | None = None
        self._saved: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._saved_at = time.monotonic()
        folder = self.out / run.folder
        self._snapshots = Snapshots(folder, run.starts) if run.starts else None
        new = not (folder / "run.json").exists()
        if new:
            self._build()  # what cannot be built leaves no folder behind
        self.record = Record.open(folder, config=run.config(), seed=run.seed, arm=run.arm, about=self._about(folder))
        try:
            if retry and self.record.status == "failed":
                self.record.retry()
            if not self.ended:
                self._saved = self.record.resume()  # raises if it is damaged, and changes nothing
                if self._snapshots is not None:
                    self._snapshots.resume([] if self._saved is None else read(folder).rows)
                if not new:
                    self._build()
        except BaseException:
            self.record.close()
            raise

    @property
    def status(self) -> str:
        """ "new", "started", "finished", "diverged" or "failed"."""
        return self.record.status

    @property
    def ended(self) -> bool:
        return self.status in ENDINGS

    def advance(self) -> bool:
        """Train a piece; returns whether there is more to do.

        An error in training is recorded, and ends only this run. If it cannot be recorded, RecordNotWritten is raised, and
        the run can be resumed later from its last checkpoint.
        """
        if self.ended:
            return False
        try:
            with self.own_world():
                self._next_piece()
        except RecordNotWritten:
            raise
        except Exception:
            reason = traceback.format_exc()
            with suppress(Exception):  # figures that are still on the device may be affected by the same error
                self._write(left=0)
            if not self.ended:
                self.record.end("diverged" if self._has_lost_its_weights() else "failed", reason)
        return not self.ended

    def finish(self) -> str:
        """Train to the end; returns the status."""
        while self.advance():
            pass
        return self.status

    def close(self) -> None:
        """Release the folder; a run that has not ended can be resumed later."""
        self.record.close()

    def _about(self, folder: Path) -> dict[str, Any]:
        """What is said of the run, with the lengths of its tasks, which show its progress."""
        if self.tasks:
            length, unit = [task.length for task in self.tasks], self.tasks[0].unit
            if self.run.starts:
                length = [last_of(self.run.starts, *length)]
            if self.run.start is not None:
                length[0] = 0 if self._beginning is None else self._beginning.position.at
            said = about_lengths(length, unit)
            if self._beginning is not None:
                said["start"] = {"at": length[0], "of": self.tasks[0].length, "unit": unit, "in": str(self._first().folder)}
        else:
            known = read_run(folder)["about"]
            said = {key: known[key] for key in ("tasks", "epochs", "lengths", "unit", "start") if key in known}
        return {**self.run.about(), **said}

    def _build(self) -> None:
        if self.device.type == "cpu":
            keep_freed_memory()
        check_path(self.run.training, self.device)
        with self.own_world():
            torch.manual_seed(self.run.seed)  # what dropout draws; first weights and orders have seeds of their own
            self.learner, self.tasks = self.run.build(device=self.device, root=self.root)
        training = self.run.training if self.run.tasks is None else self.run.training.first(self.run.tasks)
        check_stream(self.tasks, training)
        start, measures = self.run.start, self.run.experiment.measures
        if start is not None and not self.run.skips and self._saved is None:
            self._beginning = beginning(start, self.out / self._first().folder)
        ends = [one.at for one in self.run.starts.values() if one.at is not None]
        measures = [dataclasses.replace(one, epochs=[*one.epochs, *ends]) if "end" in one.at else one for one in measures]
        self.loop: Loop = SupervisedLoop(
            self.learner, self.tasks, training, self.run.seed, measures, self._turns, first=int(start is not None), also=ends
        )  # fmt: skip

    def _first(self) -> RunSpec:
        """The run of the first task from which this one starts."""
        return self.first if self.first is not None else first_task_of(self.run)

    def _has_lost_its_weights(self) -> bool:
        """Whether a weight is NaN or infinite, which some decompositions raise an error for."""
        with suppress(Exception):  # a device that has failed cannot tell
            return not all(bool(tensor.isfinite().all()) for tensor in self.learner.parameters.values())
        return False

    def prepare(self) -> Position:
        """Load the last checkpoint, if there is one; returns its position."""
        if self._saved is not None:
            (position, state), self._saved = self._saved, None
            return self._load(position, state, checkpoints_of(self.out / self.run.folder)[-1])
        if self._beginning is not None:
            return self._begin(self._beginning)
        return self._adopt(self.first) if self.first is not None else Position(0, 0)

    def take(self, row: Row) -> None:
        """Record a row, and save the run if a checkpoint is due."""
        self._waiting.append(row)
        if self._snapshots is not None:
            self._write(left=0)
            if not self.ended:
                self._snapshots.take(self.last, partial(self._state, optimizer=not self.run.training.renew_optimizer))
        if self._is_due(row.position):
            self._save(row.position)
        else:
            self._write(left=_ROWS_ON_THEIR_WAY)

    def complete(self) -> None:
        """Record that the run has finished."""
        self._write(left=0)
        if not self.ended:
            self.record.end("finished")

    def _next_piece(self) -> None:
        if self._rows is None:
            self._rows = self.loop.rows(self.prepare())
        row = next(self._rows, self)  # `self` stands for the end, because None is a pause
        if row is self:
            self.complete()
        elif isinstance(row, Row):
            self.take(row)
            if self.run.starts and row.position.at == last_of(self.run.starts, self.tasks[0].length):
                self.complete()

    def _begin(self, beginning: Beginning) -> Position:
        """Take over the first task up to a start: its rows, weights and, unless it is renewed, optimiser state."""
        self._beginning, state, mine = None, beginning.state, self.learner.state_dict()
        for row in beginning.rows:
            self.record.add(row)
        others = ["methods", "generator"] if idle_in_first_task(self.run.methods()) else []
        others += [] if "optimizer" in state["learner"] else ["optimizer"]
        return self._load(
            beginning.position.as_row(), state, beginning.place, {key: mine[key] for key in others}
        )  # fmt: skip

    def _adopt(self, first: RunSpec) -> Position:
        """Take over a first task that another run has trained: its rows, weights and optimiser state."""
        folder = self.out / first.folder
        try:
            if not (folder / "run.json").exists() or (shared := read(folder)).status != "finished":
                return Position(0, 0)
            position, state = load_checkpoint(folder)
        except (OSError, ValueError) as problem:
            log.warning(
                "this run trains its first task itself; delete %s to have it trained again for all: %s", folder, problem
            )
            return Position(0, 0)
        for row in shared.rows:
            self.record.add(row)
        mine = self.learner.state_dict()
        place = checkpoints_of(folder)[-1]
        return self._load(position, state, place, {key: mine[key] for key in ("methods", "generator")})

    def _load(
        self, position: dict[str, Any], state: dict[str, Any], place: Path, mine: dict[str, Any] | None = None
    ) -> Position:  # fmt: skip
        """Load a checkpoint; returns its position. mine: the parts of the state that are not taken from it."""
        try:
            check(state, STATE)
            done = position_of(position)
            self.learner.load_state_dict({**state["learner"], **(mine or {})}, task=self.tasks[done.task])
            self.loop.load_state_dict(state.get("loop", {}))
            _set_random(state["random"], self.device)
            return done
        except torch.OutOfMemoryError:  # which is not the checkpoint's fault
            raise
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as problem:
            raise ValueError(
                f"the checkpoint {place} could not be loaded ({type(problem).__name__}: {problem}). If "
                "it is not of this run, delete it: --retry then starts from the one before it, or from the beginning"
            ) from problem

    def _write(self, *, left: int) -> None:
        """Write the waiting rows, except the last `left`."""
        while len(self._waiting) > left and not self.ended:
            self.last = self._waiting[0].read()
            self.record.add(self.last)
            self._waiting.popleft()  # not before it is written
            if not math.isfinite(self.last.get("loss", 0.0)):
                place = position_of(self.last)
                self.record.end("diverged", f"the loss is {self.last['loss']} in task {place.task}, {place.moment}")

    def _is_due(self, position: Position) -> bool:
        settings = self.run.experiment.checkpoints
        if position.at == 0:  # a resumed run crosses a boundary as a whole
            return False
        at_end = position.at == self.tasks[position.task].length
        late = time.monotonic() - self._saved_at >= 60 * settings.minutes
        return late or (at_end and (settings.boundaries or position.task == len(self.tasks) - 1))

    def _save(self, position: Position) -> None:
        self._write(left=0)
        if not self.ended:
            self.record.save(position.as_row(), self._state())
            if self._snapshots is not None:
                self._snapshots.settle()
            self._saved_at = time.monotonic()

    def _state(self, *, optimizer: bool = True) -> dict[str, Any]:
        learner, own = self.learner.state_dict(), self.loop.state_dict()
        kept = learner if optimizer else {name: value for name, value in learner.items() if name != "optimizer"}
        return {"learner": kept, "random": _get_random(self.device), **({"loop": own} if own else {})}

    @contextmanager
    def own_world(self) -> Iterator[None]:
        """A CUDA stream and a random state of this run alone, so that runs that take turns do not affect each other."""
        outside = _get_random(self.device)
        if self._random is not None:
            _set_random(self._random, self.device)
        with ExitStack() as stack:
            if self._stream is not None:
                stack.enter_context(torch.cuda.stream(self._stream))
            try:
                yield
            finally:
                self._random = _get_random(self.device)
                _set_random(outside, self.device)


def _get_random(device: torch.device) -> dict[str, torch.Tensor]:
    """Torch's random state, on the CPU and on the device."""
    on_gpu = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **on_gpu}


def _set_random(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
