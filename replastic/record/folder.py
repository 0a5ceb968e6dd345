"""One run = one folder: its settings, its rows, and checkpoints from which it can be resumed.

    run.json             config, arm, seed, provenance; written once
    rows.jsonl           a row per line, without times, so that the same run gives the same file, byte for byte
    times.jsonl          for each row, the seconds that the run had taken, without stops
    resumes.jsonl        a line for each resume: when, from where, with what
    checkpoints/NNNNNN/  snapshots; the last two are kept
    end.json             status (finished, diverged, failed) and reason; absent during the run and after a kill
    lock                 held while a process writes here

The lines are JSON as Python writes it, with NaN, Infinity and -Infinity.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .checkpoints import checkpoints_of, load_newest
from .files import clean, explained, leaves, plain, sync_folder, write_json
from .lines import Log, Mark, check_lines
from .lock import Lock
from .packed import refuse_packed
from .provenance import provenance
from .reading import FORMAT, read_end, read_run
from .schema import ENDINGS, NOTE, ROW, RUN, check, written

_KEPT = 2  # checkpoints: the newest, and the one before it in case the newest is damaged


class Record(AbstractContextManager["Record"]):
    """A run's folder, held by this process until `close`.

    >>> import tempfile, torch
    >>> from replastic.record import read
    >>> with tempfile.TemporaryDirectory() as folder, Record.open(folder, config={"lr": 0.1}, seed=0, arm="fire") as record:
    ...     record.add({"step": 1, "loss": 2.3})
    ...     record.save({"step": 1}, {"weight": torch.zeros(2)})
    ...     record.end("finished")
    ...     read(folder).rows
    [{'step': 1, 'loss': 2.3}]

    status: "new", "started" (running or stopped), or how it ended. A run that was started continues with `resume`.
    """

    def __init__(self, folder: Path, lock: Lock, status: str) -> None:
        self.folder, self.status, self._lock = folder, status, lock
        self._rows, self._times = Log(folder / "rows.jsonl"), Log(folder / "times.jsonl")
        self._placed = status == "new"  # whether the logs end at the position of the run
        self._before, self._since = 0.0, time.monotonic()

    @classmethod
    def open(
        cls, folder: str | Path, *, config: Mapping[str, Any], seed: int, arm: str, about: Mapping[str, Any] | None = None
    ) -> Record:
        """Make the folder, or open it to continue the run with the same config, seed and arm.

        about: a description that does not affect the results; it may change when the run continues.
        """
        folder = Path(folder)
        given = {"config": plain({**config}, "config"), "arm": arm, "seed": seed}
        if type(seed) is not int or not isinstance(arm, str):
            raise TypeError(f"seed={seed!r}, arm={arm!r}: pass an integer and a name")
        said = {**given, "about": plain({**(about or {})}, "about")}
        written({"format": FORMAT, **said, "provenance": {}}, RUN, "run.json")
        _started(folder, given)  # before anything is touched
        with explained(f"the run {folder} was not opened"):
            folder.mkdir(parents=True, exist_ok=True)
            lock = Lock(folder / "lock")
        try:
            there = _started(folder, given)  # again: another process may have made it before we had the lock
            clean(folder)
            clean(folder / "checkpoints")
            if there is None:
                when = datetime.now(UTC).isoformat(timespec="seconds")
                write_json(folder / "run.json", {"format": FORMAT, **said, "started": when, "provenance": provenance()})
            elif about is not None and there["about"] != said["about"]:
                write_json(folder / "run.json", {**there, "about": said["about"]})
            status = "new" if there is None else read_end(folder)["status"]
            with explained(f"the run {folder} was not opened"):
                record = cls(folder, lock, status)
                sync_folder(folder)
            return record
        except BaseException:
            lock.release()
            raise

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a row, whole or not at all. Its values are int, float, bool, str, None, and lists and dicts of these.

        Values that reports use are checked: task, epoch and step are integers, and names that end in "accuracy" or "loss"
        have a number or None.
        """
        self._check_going("add")
        line, before = written(plain({**row}, "row"), ROW, "the row"), self._times.end
        with explained(f"the row was not written; the {self._rows.end.lines} rows before it were"):
            try:
                self._times.append(json.dumps(round(self._seconds(), 4)))  # first, so that every row has one
                self._rows.append(line)
            except BaseException:
                self._times.cut(before)
                raise
        self.status = "started"

    def save(self, position: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Write a checkpoint. Rows up to here are written to the disk first and are never removed.

        position: the position of the run, for example {"task": 2, "epoch": 0}.
        state: what `snapshot.save` accepts, such as learner.state_dict().
        """
        from . import snapshot  # imports torch, which is not needed to read records

        self._check_going("save")
        note = {"position": plain({**position}, "position"), "seconds": self._seconds()}
        check(note["position"], NOTE["position"], "position")
        with explained("the checkpoint was not written; rows and earlier checkpoints are unchanged"):
            note |= self._sync()
            (self.folder / "checkpoints").mkdir(exist_ok=True)
            sync_folder(self.folder)
        there = checkpoints_of(self.folder)
        number = int(there[-1].name) + 1 if there else 1
        snapshot.save(self.folder / "checkpoints" / f"{number:06}", state, note=note)
        for old in there[: 1 - _KEPT]:
            snapshot.discard(old)
        self.status = "started"

    def resume(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Position and state of the last checkpoint; rows after it are removed, because they will be written again.

        None: there is no checkpoint, and the run starts again without rows. If a file is damaged, nothing is changed.
        """
        self._check_open()
        if self.status in ENDINGS:
            hint = "call retry() first" if self.status == "failed" else "there is nothing to resume; pass another --out"
            raise RuntimeError(f"the run {self.folder} is {self.status}: {hint}")
        there, going_on = checkpoints_of(self.folder), not self._placed
        state, note, rows, times = None, {"position": {}, "seconds": 0.0}, Mark(), Mark()
        if there:
            state, note = load_newest(there)
            rows, times = (
                check_lines(log.path, log.path.read_bytes(), note[log.path.stem], f"checkpoint {there[-1].name}")
                for log in (self._rows, self._times)
            )
        with explained("the run was not resumed; nothing before its last checkpoint was changed"):
            self._rows.cut(rows)
            self._times.cut(times)
            if going_on:
                self._note_resume(there[-1].name if there else None)
        self._placed, self._before, self._since = True, note["seconds"], time.monotonic()
        return None if state is None else (note["position"], state)

    def end(self, status: str, reason: str = "", *, never_acted: Sequence[str] = ()) -> None:
        """Record how the run ended: finished, diverged or failed. never_acted: sentences on methods that changed nothing."""
        if status not in ENDINGS:
            raise ValueError(f"a run ends as one of {', '.join(ENDINGS)}, not {status!r}: call end('finished')")
        self._check_going("end")
        with explained("the end of the run was not written; its rows are unchanged"):
            marks = self._sync()
        idle = {"never_acted": list(never_acted)} if never_acted else {}
        write_json(self.folder / "end.json", {"status": status, "reason": str(reason), **idle, **marks})
        self.status = status

    def retry(self) -> None:
        """Allow a failed run to continue; call `resume` next."""
        self._check_open()
        if self.status != "failed":
            raise RuntimeError(f"the run {self.folder} is {self.status}: only a failed run can be tried again")
        (self.folder / "end.json").unlink()
        sync_folder(self.folder)
        self.status, self._placed = "started", False

    def close(self) -> None:
        """Release the folder for other processes. A run that has not ended can be opened again to continue it."""
        if self._lock.file is not None:
            self._rows.close()
            self._times.close()
            self._lock.release()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._lock.file is None:
            raise RuntimeError(f"the record of {self.folder} is closed, or was opened by another process: open it again")

    def _check_going(self, verb: str) -> None:
        self._check_open()
        if self.status in ENDINGS:
            raise RuntimeError(f"the run {self.folder} is {self.status}: {verb}() comes too late. Pass another --out")
        if not self._placed:
            raise RuntimeError(f"the run {self.folder} was started before: call resume() before {verb}()")

    def _sync(self) -> dict[str, Any]:
        """Write the rows to the disk, and return the ends of the logs."""
        return {log.path.stem: log.sync() for log in (self._rows, self._times)}

    def _seconds(self) -> float:
        return self._before + time.monotonic() - self._since

    def _note_resume(self, checkpoint: str | None) -> None:
        with closing(Log(self.folder / "resumes.jsonl")) as log:
            log.cut(Mark(size=log.path.read_bytes().rfind(b"\n") + 1))  # a kill may have left an incomplete line
            when = datetime.now(UTC).isoformat(timespec="seconds")
            line = {"when": when, "checkpoint": checkpoint, "rows": self._rows.end.lines, "provenance": provenance()}
            log.append(json.dumps(line))
            log.sync()


def status_of(folder: str | Path, *, config: Mapping[str, Any], seed: int, arm: str) -> str:
    """The status of a run that may exist already, without opening it; ValueError if the folder holds something else."""
    given = {"config": plain({**config}, "config"), "arm": arm, "seed": seed}
    return "new" if _started(Path(folder), given) is None else read_end(Path(folder))["status"]


def _started(folder: Path, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The content of run.json if this run was started in the folder; ValueError if something else is there."""
    refuse_packed(folder)
    if not (folder / "run.json").exists():
        ours = re.compile(r"lock|\..*\.part")  # left by a process that was killed before it wrote run.json
        others = sorted(path.name for path in folder.glob("*") if not ours.fullmatch(path.name))
        if others:
            raise ValueError(f"{folder} is not a run folder (it contains {others[0]}): pass an empty or new --out")
        return None
    there = read_run(folder)
    old, new = (dict(leaf for key in given for leaf in leaves(of[key], key)) for of in (there, given))
    for key in [*old, *new]:
        if old.get(key) != new.get(key):
            name = key.removesuffix("_sha256") if key.endswith("_sha256") else key.removesuffix("sha256") + "name"
            code = f" (the code of {new[name]})" if key.endswith("sha256") and name in new else ""
            raise ValueError(
                f"{folder} holds another run: {key}{code} is {old.get(key, 'missing')} there and {new.get(key, 'missing')} "
                "here. To run this one too, pass another --out; to continue that one, use the settings it was started with"
            )
    return there
