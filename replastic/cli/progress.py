"""Show the progress of runs: bars on a terminal, lines elsewhere.

It is read from their records, so any process may write them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import progress as bars
from rich.table import Column

from ..listing import one_line
from ..record.following import Followed, Following
from ..runs.live import LiveView
from .console import console, print_line, with_bars

log = logging.getLogger("replastic")
_EVERY = 0.3  # seconds between reads, at least
_PATIENCE = 20  # times the duration of a read: on a slow disk the program must not be busy with reading
_SILENCE = 10.0  # seconds without a line, where there are no bars
_RUNS = 8  # bars at most
_WIDE = 100  # columns of a terminal that also has room for the elapsed time


class Progress(AbstractContextManager["Progress"]):
    """A context manager that shows the progress of runs while its body runs.

    folders: the folders of the runs. first: for each run that shares its first task with others, the folder of that task's
    run. metric: the figure to show. retry: whether failed runs are tried again. view: also receives every row.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        metric: str,
        *,
        first: Mapping[Path, Path] | None = None,
        retry: bool = False,
        view: LiveView | None = None,
    ) -> None:
        self._following = Following(folders, whole=view is not None, retry=retry, first=first)
        self._counted = self._following.runs[len(self._following.firsts) :]
        self._view = view
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._follow, daemon=True)
        self._shown = _Bars(metric) if console().is_terminal else _Lines(metric)

    def __enter__(self) -> Progress:
        before = sum(not self._following.follows(run) for run in self._counted)
        if before:
            print_line(f"{before} of {len(self._counted)} runs had already ended")
        self._shown.begin(self._counted, before)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with ExitStack() as last:  # the terminal is restored after any error
            last.callback(self._shown.end)
            last.callback(self._tell_view, "close")
            self._stop.set()
            self._thread.join()
            self._look()

    def _follow(self) -> None:
        took = 0.0
        while not self._stop.wait(max(_EVERY, _PATIENCE * took)):
            start = time.monotonic()
            self._look()
            took = time.monotonic() - start

    def _look(self) -> None:
        with suppress(OSError):  # training does not stop if the screen cannot be written to
            self._look_and_tell()

    def _look_and_tell(self) -> None:
        ended = {id(run) for run in self._following.runs if run.ended and run.moved}
        news = [(replace(run), row) for run, row in self._following.news()]
        self._shown.show([run for run in self._following.runs if run.moved], self._counted)
        for run, row in news:
            self._tell_view("row", run, row)
        for run in self._following.runs:
            if run.ended and run.moved and id(run) not in ended:
                self._tell_view("end", run)

    def _tell_view(self, what: str, *given: Any) -> None:
        """An error in a live view is reported once and stops no run."""
        if self._view is not None:
            try:
                getattr(self._view, what)(*given)
            except Exception as problem:
                self._view = None
                what = f"{type(problem).__name__}: {problem}"
                log.warning("the live view failed, and the runs continue without it: %s", what)


class _Lines:
    """A line when a run ends, and now and then one in between."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self._ended: set[int] = set()
        self._before = 0
        self._last = time.monotonic()
        self._since: float | None = None  # when the first run began, shared first tasks aside

    def begin(self, counted: Sequence[Followed], before: int) -> None:
        self._before = before

    def show(self, active: Sequence[Followed], counted: Sequence[Followed]) -> None:
        if self._since is None and any(run.moved for run in counted):
            self._since = time.monotonic()
        for run in active:
            if run.ended and id(run) not in self._ended:
                self._ended.add(id(run))
                done = sum(id(one) in self._ended for one in counted)
                of_all = f" ({self._before + done} of {len(counted)} runs)" if any(run is one for one in counted) else ""
                print_line(f"{run.name}: {run.status}{_figure(run, self.metric)}{of_all}")
                self._last = time.monotonic()
        going = [run for run in active if not run.ended and run.row]
        if going and time.monotonic() - self._last > _SILENCE:
            self._last = time.monotonic()
            new = sum(run.done - run.begun for run in counted)
            left = sum(1 - run.done for run in counted if not run.ended)
            took = self._last - self._since if self._since is not None else 0.0
            eta = f"; about {_duration(took * left / new)} left" if new > 0 else ""
            print_line(f"{'; '.join(_place(run, self.metric) for run in going)}{eta}")

    def end(self) -> None:
        pass


class _Bars:
    """A bar for all runs together, and one for each active run."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        columns = (
            bars.TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, max_width=36)),
            bars.BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8)),
            bars.TextColumn("{task.fields[place]}", markup=False, table_column=Column(no_wrap=True)),
            bars.TextColumn("{task.fields[figure]}", markup=False, table_column=Column(no_wrap=True)),
            bars.TextColumn("left"),
            bars.TimeRemainingColumn(elapsed_when_finished=False),
        )
        where = console()
        elapsed = [bars.TimeElapsedColumn()] if where.width >= _WIDE else []
        self._bars = bars.Progress(*columns, *elapsed, console=where, transient=True, expand=True, speed_estimate_period=120)
        self._of: dict[int, bars.TaskID] = {}
        self._told: set[int] = set()

    def begin(self, counted: Sequence[Followed], before: int) -> None:
        with_bars.append(self._bars.console)
        self._all = self._bars.add_task("all runs", total=len(counted), place="", figure="")
        self._bars.update(self._all, completed=sum(map(_behind, counted)))
        self._bars.start()

    def show(self, active: Sequence[Followed], counted: Sequence[Followed]) -> None:
        ended = sum(run.ended for run in counted)
        self._bars.update(self._all, completed=sum(map(_behind, counted)), place=f"{ended} of {len(counted)} runs")
        for run in active:
            bar = self._of.get(id(run))
            if run.ended and id(run) not in self._told:
                self._told.add(id(run))
                if bar is not None:
                    self._bars.remove_task(self._of.pop(id(run)))
                print_line(f"{run.name}: {run.status}{_figure(run, self.metric)}")
            elif not run.ended and (bar is not None or len(self._of) < _RUNS):
                if bar is None:
                    bar = self._of[id(run)] = self._bars.add_task(one_line(run.name), total=1.0, place="", figure="")
                at = _where(run, short=True)
                self._bars.update(bar, completed=run.done, place=at, figure=_figure(run, self.metric).lstrip(", "))

    def end(self) -> None:
        with suppress(OSError):  # the terminal may be gone
            self._bars.stop()
        with_bars.remove(self._bars.console)


def _behind(run: Followed) -> float:
    """The share of a run that need not be waited for any more; 1 if it has ended, also if it failed."""
    return 1.0 if run.ended else run.done


def _place(run: Followed, metric: str) -> str:
    return f"{run.name}: {_where(run)}{_figure(run, metric)}"


def _where(run: Followed, *, short: bool = False) -> str:
    """For example "task 3 of 40, epoch 7 of 15"."""
    lengths, position = run.lengths, run.position
    if position is None:
        return "begins"
    of = "/" if short else " of "
    tasks = f"{of}{len(lengths)}" if lengths else ""
    in_task = f"{of}{lengths[position.task]}" if position.task < len(lengths) else ""
    return f"task {position.task + 1}{tasks}, {position.moment}{in_task}"


def _figure(run: Followed, metric: str) -> str:
    value: Any = run.row.get(metric, run.row.get("loss"))
    name = metric if metric in run.row else "loss"
    return f", {name} {value:.4f}" if isinstance(value, float) else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
