"""Runs in processes on this machine."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import torch

from ...options import OptionError
from ...record.provenance import cores
from .call import Call, Outcome, killed
from .engine import Engine

_PATIENCE = 10  # seconds in which a thread notices that its worker is gone
_PACKAGES = Path(__file__).resolve().parents[2]  # where workers find this package, installed or not


class Local(Engine):
    """Worker processes, each for one run after another, since starting a process costs seconds of imports.

    They are programs of their own: a script needs no `if __name__ == "__main__"`, and runs cannot depend on the caller's
    memory.

    jobs: the number of concurrent workers; by default as many as there are cores for their threads, or one per GPU.
    device: "cuda" distributes workers over all GPUs.
    threads: of a run; None: one on a CPU, and the cores divided by `jobs` on a GPU. More would compete for the cores: two
        processes with two threads each on two cores are ten times slower than with one thread.
    """

    def __init__(self, jobs: int | None = None, *, device: str = "cpu", threads: int | None = None) -> None:
        kind = torch.device(device)
        if kind.type == "cuda" and not torch.cuda.is_available():
            raise OptionError(f'device={device!r}: torch sees no GPU here; pass "cpu", or leave it out')
        all_gpus = kind.type == "cuda" and kind.index is None
        self.devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if all_gpus else [device]
        on_cpu = kind.type == "cpu"
        self.jobs = jobs or (max(1, cores() // (threads or 1)) if on_cpu else len(self.devices))
        self.threads = threads or (1 if on_cpu else max(1, cores() // self.jobs))
        self._workers: dict[int, subprocess.Popen[bytes]] = {}  # by the number of their place
        self._asking: list[threading.Thread] = []
        self._changing, self._closed = threading.Lock(), False

    def run(self, calls: Sequence[Call]) -> Iterator[Outcome]:
        waiting, done = SimpleQueue[Call](), SimpleQueue[Outcome]()
        for call in calls:
            waiting.put(call)
        places = range(min(self.jobs, len(calls)))
        self._asking = [threading.Thread(target=self._serve, args=(place, waiting, done), daemon=True) for place in places]
        for thread in self._asking:
            thread.start()
        for _ in calls:
            yield done.get()

    def _serve(self, place: int, waiting: SimpleQueue[Call], done: SimpleQueue[Outcome]) -> None:
        while not self._closed:
            try:
                call = waiting.get_nowait()
            except Empty:
                return
            device = self.devices[place % len(self.devices)]
            done.put(self._perform(place, dataclasses.replace(call, device=device)))

    def _perform(self, place: int, call: Call) -> Outcome:
        try:
            worker = self._worker(place)
            outcome = _ask(worker, call)
        except OSError as problem:  # for example too many processes, or no memory
            return call.outcome("killed", f"no process could be started for it: {problem}")
        if outcome is None or outcome.status not in ("finished", "diverged"):
            # Even if it answered: after a CUDA error its process is unusable, and the next run must not fail because of it.
            with self._changing:
                self._workers.pop(place, None)
            _end(worker)
        return outcome or killed(call, f"its process {_how_it_ended(worker.returncode)}")

    def _worker(self, place: int) -> subprocess.Popen[bytes]:
        with self._changing:
            if self._closed:
                raise OSError("the sweep was stopped")
            if place not in self._workers:
                self._workers[place] = _start(self.threads)
            return self._workers[place]

    def __exit__(self, *exception: object) -> None:
        with self._changing:
            self._closed = True
            for worker in self._workers.values():
                worker.kill()  # records are always whole, so there is no need to wait for a clean exit
        for thread in self._asking:
            thread.join(_PATIENCE)
        for worker in list(self._workers.values()):
            _end(worker)


def _start(threads: int) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join([str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])])
    count = str(threads)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "replastic.runs.sweep.worker"],  # -P: nothing in the current folder is imported
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count},
        # Ctrl-C goes to the sweep, which ends its workers; if the sweep is killed, they notice and end.
        start_new_session=True,
    )


def _ask(worker: subprocess.Popen[bytes], call: Call) -> Outcome | None:
    """The answer of a worker; None if it died."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        pickle.dump(call, worker.stdin)
        worker.stdin.flush()
        return pickle.load(worker.stdout)
    except (BrokenPipeError, EOFError, pickle.UnpicklingError):
        return None


def _end(worker: subprocess.Popen[bytes]) -> None:
    """End a worker by closing its input, and wait for it."""
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):  # it died with a call half read
                pipe.close()
    worker.wait()


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code} before it did"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", which is also what the system does when memory runs out" if -code == signal.SIGKILL else ""
    return f"was ended by {name}{hint}"
