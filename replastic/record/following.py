"""Follow runs while they are written: the rows that are new since the last look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .files import read_bytes
from .position import Position, lengths_of, position_of
from .reading import read_end, read_run
from .schema import RESUME, ROW, parsed


@dataclass
class Followed:
    """A run, which may not have started yet. Until it has a record, about is empty and status is ""."""

    folder: Path
    first: Followed | None = None  # the run of a first task that it shares; it starts from it if that has finished
    about: dict[str, Any] = field(default_factory=dict)  # as in run.json
    row: dict[str, Any] = field(default_factory=dict)  # the last one
    rows: int = 0  # number of rows, up to and including `row`
    status: str = ""
    moved: bool = False  # whether anything was written since following began
    begun: float = 0.0  # the share that was done before following began
    _read: int = 0  # bytes read of rows.jsonl
    _resumes: int = 0  # bytes read of resumes.jsonl

    @property
    def name(self) -> str:
        """Its arm and seed, for display."""
        return f"{self.about['arm']}, seed {self.about['seed']}" if self.about else str(self.folder)

    @property
    def ended(self) -> bool:
        return self.status not in ("", "started")

    @property
    def position(self) -> Position | None:
        """The position of its last row; None if there is none, or if the row does not say so."""
        with suppress(ValueError):
            return position_of(self.row)
        return None

    @property
    def done(self) -> float:
        """The share of its tasks' lengths that it has trained; a shared first task is not counted."""
        if self.status == "finished":
            return 1.0
        lengths, position = self.lengths, self.position
        if not lengths or position is None:
            return 0.0
        adopted = lengths[0] if self.first is not None and self.first.status == "finished" else 0
        behind = sum(lengths[: position.task]) + position.at - adopted
        return min(1.0, max(0, behind) / max(1, sum(lengths) - adopted))

    @property
    def lengths(self) -> list[int]:
        """The length of each task, in the unit of positions; empty if that is not known."""
        return lengths_of(self.about.get("about", {}))


class Following:
    """Read the rows of runs as they are written, by this process or another.

    >>> import tempfile
    >>> from replastic.record import Record
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     following = Following([folder])
    ...     with Record.open(folder, config={}, seed=0, arm="fire") as record:
    ...         record.add({"task": 0, "epoch": 1, "loss": 2.3})
    ...     [(run.name, row["loss"]) for run, row in following.news()]
    [('fire, seed 0', 2.3)]

    whole: report also the rows that were there before, of runs that have not ended.
    retry: failed runs will be tried again, so follow them, too; runs that have ended otherwise are not followed.
    first: for each run that shares its first task with others, the folder of that task's run. It is followed, too.
    """

    def __init__(
        self,
        folders: Iterable[str | Path],
        *,
        whole: bool = False,
        retry: bool = False,
        first: Mapping[Path, Path] | None = None,
    ) -> None:
        shared = {folder: Followed(folder) for folder in (first or {}).values()}
        of_run = {run: shared[folder] for run, folder in (first or {}).items()}
        self.firsts = list(shared.values())
        self.runs = [*self.firsts, *(Followed(Path(folder), of_run.get(Path(folder))) for folder in folders)]
        for run in self.runs:
            with suppress(OSError, ValueError):
                self._begin(run, whole)
        self._going = [run for run in self.runs if not run.ended or (retry and run.status == "failed")]

    def follows(self, run: Followed) -> bool:
        """Whether the run may still write rows."""
        return any(run is one for one in self._going)

    def news(self) -> Iterator[tuple[Followed, dict[str, Any]]]:
        """The rows that are new since the last call, run by run. Also updates `status` and `row` of each run."""
        for run in list(self._going):
            # A damaged or half-replaced file is reported by the process that writes it, and by `read`.
            with suppress(OSError, ValueError):
                yield from self._news_of(run)
            if run.ended and run.moved:
                self._going.remove(run)

    def _begin(self, run: Followed, whole: bool) -> None:
        if (run.folder / "run.json").exists():
            run.about, run.status = read_run(run.folder), read_end(run.folder)["status"]
            self._go_to(run)
            run.begun, run._resumes = run.done, _size(run.folder / "resumes.jsonl")
            if whole and not run.ended:
                run._read, run.rows = 0, 0

    def _news_of(self, run: Followed) -> Iterator[tuple[Followed, dict[str, Any]]]:
        if not run.about:
            if not (run.folder / "run.json").exists():
                return
            run.about, run.moved = read_run(run.folder), True
        status = read_end(run.folder)["status"]  # read before the rows: once a run has ended, all of its rows are there
        for row in self._new_rows(run):
            run.row, run.moved, run.rows = row, True, run.rows + 1
            yield run, row
        run.moved |= status != run.status
        run.status = status

    def _new_rows(self, run: Followed) -> Iterator[dict[str, Any]]:
        path = run.folder / "rows.jsonl"
        if _size(run.folder / "resumes.jsonl") != run._resumes:  # rows after its checkpoint are written again
            self._go_back(run)
        size = _size(path)
        if size <= run._read:
            return
        with path.open("rb") as file:
            file.seek(run._read)
            data = file.read(size - run._read)
        whole = data[: data.rfind(b"\n") + 1]
        run._read += len(whole)
        for line in whole.splitlines():
            yield parsed(line, ROW)

    def _go_back(self, run: Followed) -> None:
        """Go back to the row at which the run was resumed."""
        resumes = run.folder / "resumes.jsonl"
        whole = read_bytes(resumes).rpartition(b"\n")[0].splitlines()
        if whole:
            run._resumes = _size(resumes)
            self._go_to(run, parsed(whole[-1], RESUME)["rows"])
            run.begun, run.moved = min(run.begun, run.done), True

    def _go_to(self, run: Followed, count: int | None = None) -> None:
        """Skip `count` rows, or all; only the last of them is parsed."""
        path = run.folder / "rows.jsonl"
        lines = (read_bytes(path) if path.exists() else b"").split(b"\n")[:-1][:count]
        run._read, run.rows = sum(len(line) + 1 for line in lines), len(lines)
        run.row = parsed(lines[-1], ROW) if lines else {}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
