"""One run as it is handed to another process: plain data there, plain data back."""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch

from ...record import ENDINGS, RecordNotWritten
from ...record.reading import read_end, read_run
from ..config import Experiment
from ..run import Running
from ..spec import RunSpec, first_task_of


@dataclass(frozen=True)
class Call:
    """All that a worker needs to train a run: numbers, strings, and lists and tables of these.

    experiment: as `plain` makes it, with this run's arm alone.
    first_task: the run is the first task that the arm's run shares with others. shares: the run goes on from there.
    out, root: absolute, as workers may stand in another folder.
    device, threads: set by the engine.
    command: what was typed, for the record.
    """

    experiment: Mapping[str, Any]
    arm: str
    seed: int
    out: str
    device: str = "cpu"
    first_task: bool = False
    shares: bool = False
    root: str | None = None
    retry: bool = False
    threads: int = 1
    command: Sequence[str] = ()

    def text(self) -> str:
        """As one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @property
    def run(self) -> RunSpec:
        run = RunSpec(experiment_of(self.experiment), self.arm, self.seed)
        return first_task_of(run) if self.first_task else run

    def outcome(self, status: str, reason: str = "") -> Outcome:
        run = self.run
        return Outcome(Path(self.out) / run.folder, run.arm, run.seed, status, reason, self.first_task)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    status: "finished", "diverged" or "failed", as its record says; "killed": its process ended before it, "stopped": its
        record could not be written, and the same sweep goes on with both from their last checkpoints; "not opened": nothing
        was run, because it cannot be built, or its folder is not to be written to.
    reason: a traceback, or a sentence; of a run that has finished, nothing.
    """

    folder: Path
    arm: str
    seed: int
    status: str
    reason: str = ""
    first_task: bool = False  # one that several arms share


def perform(text: str) -> str:
    """Train the run of a `Call` to its end, whatever that is; returns the `Outcome`. Both are lines of JSON."""
    call = Call(**json.loads(text))
    with _set_up(call):
        outcome = _perform(call)
    gc.collect()  # models and optimisers refer to each other in circles, and the next run wants their memory
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return json.dumps({**dataclasses.asdict(outcome), "folder": str(outcome.folder)})


def outcome_from(text: str) -> Outcome:
    """What `perform` returned."""
    table = json.loads(text)
    return Outcome(**{**table, "folder": Path(table["folder"])})


def _perform(call: Call) -> Outcome:
    run = call.run
    first = first_task_of(run) if call.shares else None
    try:
        running = Running(run, call.out, device=call.device, root=call.root, first=first, retry=call.retry)
    except Exception as problem:  # of this run's folder alone, whatever it is
        return call.outcome("not opened", str(problem) or repr(problem))
    try:
        running.finish()
    except RecordNotWritten as problem:  # all else that goes wrong in training is in the record
        return call.outcome("stopped", str(problem))
    finally:
        running.close()
    return call.outcome(running.status, read_end(running.record.folder)["reason"])


@contextmanager
def _set_up(call: Call) -> Iterator[None]:
    """Threads, device and command of a call, for as long as it goes on: some engines run calls in the caller's process."""
    threads, argv = torch.get_num_threads(), sys.argv
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        stack.callback(setattr, sys, "argv", argv)
        torch.set_num_threads(call.threads)
        sys.argv = list(call.command) or argv
        if torch.device(call.device).type == "cuda" and torch.cuda.is_available():
            # Also what asks for no device must not make a context on the first GPU.
            stack.enter_context(torch.cuda.device(call.device))
        yield


def ended(call: Call) -> Outcome | None:
    """What the record says of a run that needs no worker: one that has ended, and is not to be tried again.

    A folder that holds something else is the worker's to complain about.
    """
    run = call.run
    folder = Path(call.out) / run.folder
    if not (folder / "run.json").exists():
        return None
    try:
        about, end = read_run(folder), read_end(folder)
    except (OSError, ValueError):
        return None
    same = (about["arm"], about["seed"]) == (run.arm, run.seed) and _text(about["config"]) == _text(run.config())
    if not same or end["status"] not in ENDINGS or (end["status"] == "failed" and call.retry):
        return None
    return call.outcome(end["status"], end["reason"])


def killed(call: Call, reason: str) -> Outcome:
    """The outcome of a run whose process is gone; it may have written its end before."""
    return ended(dataclasses.replace(call, retry=False)) or call.outcome("killed", reason)


def _text(config: Any) -> str:
    return json.dumps(config, sort_keys=True)  # there 1 is neither 1.0 nor true, as in records


def plain(experiment: Experiment, arm: str) -> dict[str, Any]:
    """An experiment with one of its arms, as JSON has it."""
    alone = dataclasses.replace(experiment, arms={arm: experiment.arms[arm]})
    return json.loads(json.dumps(dataclasses.asdict(alone)))


def experiment_of(table: Mapping[str, Any]) -> Experiment:
    """What `plain` was made of. It was checked when it was read."""
    return _rebuilt(table, Experiment)


def _rebuilt(value: Any, kind: Any) -> Any:
    """A value of an annotated type, of what JSON made of it: tables of dataclasses, and lists of tuples."""
    origin, inner = get_origin(kind), get_args(kind)
    if value is None:
        return None
    if origin in (Union, UnionType):  # of something and None
        return _rebuilt(value, next(one for one in inner if one is not type(None)))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return kind(**{key: _rebuilt(item, hints[key]) for key, item in value.items()})
    if origin is tuple:
        kinds = inner[:1] * len(value) if inner[1:] == (...,) else inner
        return tuple(_rebuilt(item, one) for item, one in zip(value, kinds, strict=True))
    if isinstance(value, dict) and len(inner) == 2:
        return {key: _rebuilt(item, inner[1]) for key, item in value.items()}
    return value
