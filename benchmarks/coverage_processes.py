"""The processes of coverage.py: a limit on the time and the memory of each model, enforced from outside."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from coverage_account import Row, brief

MEMORY = 8 * 2**30  # bytes of address space of a process on the CPU

Look = Callable[[str, Callable[[str], None]], Row]  # of a name, and who is told of each stage


def work(look: Look, limited: bool) -> None:
    """A process that takes names from its input and answers with stages, "> build", and rows, as lines."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # models may print
    if limited:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        row = look(line.strip(), lambda stage: print(">", stage, file=answers))
        print(json.dumps(row), file=answers)


class Worker:
    """A process that calls `work`, the model that it has now, and since when."""

    def __init__(self, command: Sequence[str]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        pipe, away = subprocess.PIPE, subprocess.DEVNULL
        # Without a buffer: a line that waits in one is nothing that a selector sees.
        self.process = subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=away, env=environment)
        self.name, self.stage, self.since = "", "", time.monotonic()

    def give(self, name: str) -> None:
        self.name, self.stage, self.since = name, "start", time.monotonic()
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has died: its end is seen when its answer is read
            self.process.stdin.write(f"{name}\n".encode())
            self.process.stdin.flush()

    def answer(self) -> Row | None:
        """The row, or None if it is still at work; a process that died leaves a row that says so."""
        assert self.process.stdout
        line = self.process.stdout.readline().decode()
        if line.startswith(">"):
            self.stage = line[1:].strip()
            return None
        return json.loads(line) if line else self.ended(f"its process died, exit status {self.process.wait()}")

    def ended(self, problem: str) -> Row:
        row: Row = {"name": self.name, "seconds": {"all": round(time.monotonic() - self.since, 1)}}
        return row | (
            {"not_built": problem} if self.stage in ("start", "build") else {"ended": f"{problem}, in {self.stage}"}
        )

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def run(names: list[str], look: Look, command: Sequence[str], jobs: int, limit: float) -> list[Row]:
    """A row for each name, in order. jobs: processes of `command`; with 0 all is done in this one, without limits."""
    if jobs == 0:
        return [look(name, lambda stage: None) for name in names]
    waiting, rows = list(reversed(names)), {}
    with selectors.DefaultSelector() as watched:

        def start() -> None:
            worker = Worker(command)
            watched.register(worker.process.stdout, selectors.EVENT_READ, worker)  # pyright: ignore[reportArgumentType]
            worker.give(waiting.pop())

        def finish(worker: Worker, row: Row, alive: bool) -> None:
            rows[worker.name] = row
            print(f"{len(rows)}/{len(names)} {brief(row)}", file=sys.stderr, flush=True)
            if alive and waiting:
                worker.give(waiting.pop())
                return
            watched.unregister(worker.process.stdout)  # pyright: ignore[reportArgumentType]
            worker.stop()
            if waiting:
                start()

        for _ in range(min(jobs, len(names))):
            start()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            while watched.get_map():
                for key, _ in watched.select(timeout=1):
                    row = key.data.answer()
                    if row is not None:
                        finish(key.data, row, alive="died" not in str(row.get("not_built", row.get("ended", ""))))
                late = [key.data for key in watched.get_map().values() if time.monotonic() - key.data.since > limit]
                for worker in late:
                    finish(worker, worker.ended(f"took more than {limit:g} s"), alive=False)
        except KeyboardInterrupt:  # what has been looked at is kept
            for key in list(watched.get_map().values()):
                key.data.stop()
    return [rows[name] for name in names if name in rows]
