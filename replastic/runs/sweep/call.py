"""A run as it is handed to another process, and its outcome."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ...record import ENDINGS, RecordNotWritten, status_of
from ...record.reading import read_end
from ..run import Running
from ..spec import RunSpec
from ..threads import computing


@dataclass(frozen=True)
class Call:
    """All that a worker needs to train a run; it can be pickled.

    first: the run of a first task that it shares with others, and starts from.
    out, root: absolute, because workers may run in another folder.
    device: set by the engine. threads: None: one on a CPU, and what torch chooses on a GPU.
    command: what was typed, for the record.
    """

    run: RunSpec
    out: Path
    first: RunSpec | None = None
    device: str = "cpu"
    root: str | None = None
    retry: bool = False
    threads: int | None = None
    command: Sequence[str] = ()

    @property
    def folder(self) -> Path:
        return self.out / self.run.folder

    def outcome(self, status: str, reason: str = "") -> Outcome:
        return Outcome(self.folder, self.run.arm, self.run.seed, status, reason, self.run.tasks is not None)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    status: "finished", "diverged" or "failed", as in its record; "killed": its process ended first; "stopped": its record
        could not be written. The same sweep continues killed and stopped runs from their last checkpoints. "not opened":
        nothing was run, because the run cannot be built or its folder must not be written to.
    reason: a traceback or a sentence; empty for a run that has finished.
    """

    folder: Path
    arm: str
    seed: int
    status: str
    reason: str = ""
    first_task: bool = False  # shared by several arms


def perform(call: Call) -> Outcome:
    """Train a run to its end, whatever that is."""
    with _set_up(call):
        outcome = _perform(call)
    gc.collect()  # models and optimisers refer to each other in circles, and the next run needs their memory
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return outcome


def _perform(call: Call) -> Outcome:
    try:
        running = Running(
            call.run, call.out, device=call.device, root=call.root, first=call.first, retry=call.retry
        )  # fmt: skip
    except Exception as problem:  # any of them concerns this run alone
        return call.outcome("not opened", str(problem) or repr(problem))
    try:
        running.finish()
    except RecordNotWritten as problem:  # all other errors of training are in the record
        return call.outcome("stopped", str(problem))
    finally:
        running.close()
    return call.outcome(running.status, read_end(running.record.folder)["reason"])


@contextmanager
def _set_up(call: Call) -> Iterator[None]:
    """The threads, device and command of a call while it is performed: some engines do so in the caller's process."""
    argv = sys.argv
    with ExitStack() as stack:
        stack.callback(setattr, sys, "argv", argv)
        stack.enter_context(computing(call.threads, call.device))
        sys.argv = list(call.command) or argv
        if torch.device(call.device).type == "cuda" and torch.cuda.is_available():
            # Code that names no device must not make a context on the first GPU.
            stack.enter_context(torch.cuda.device(call.device))
        yield


def known(call: Call) -> Outcome | None:
    """The outcome of a run that needs no worker: it has ended and is not tried again, or its folder holds something else."""
    run = call.run
    try:
        status = status_of(call.folder, config=run.config(), seed=run.seed, arm=run.arm)
        if status in ENDINGS and not (status == "failed" and call.retry):
            return call.outcome(status, read_end(call.folder)["reason"])
    except (OSError, ValueError) as problem:
        return call.outcome("not opened", str(problem))
    return None


def killed(call: Call, reason: str) -> Outcome:
    """The outcome of a run whose process is gone; it may have written its end before."""
    outcome = known(replace(call, retry=False))
    return outcome if outcome is not None and outcome.status in ENDINGS else call.outcome("killed", reason)
