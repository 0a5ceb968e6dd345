"""The pictures of the pages of results, drawn from committed records as a report draws them."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from result_lines import ITERATIONS, chosen_arms, packed
from result_lines_over_tasks import shares_and_ends

from replastic.report import Study, gather
from replastic.report.charts import chart
from replastic.report.contents import chapter
from replastic.report.curves import Moment
from replastic.report.figures import draw
from replastic.report.finding import entitled, finding
from replastic.report.items import Chart, Line
from replastic.report.kinds import in_words
from replastic.report.spectra import spectra


@dataclass(frozen=True)
class OverTime:
    """A figure over tasks or epochs, of arms of one record or several."""

    records: Sequence[str]
    moment: Moment
    arms: Sequence[str] = ()  # none: all
    figure: str | None = None  # None: the metric of the experiment
    smooth: int = 0  # over so many points; 0: not

    def chart(self, study: Study) -> Chart | None:
        made = chart(study, self.figure or study.metric, self.moment, "Accuracy", "mean", smooth=self.smooth)
        return entitled(made, finding(study)) if made is not None and self.figure in (None, study.metric) else made


@dataclass(frozen=True)
class Spectra:
    """The Hessian's eigenvalues at the start of some tasks, which are counted from 1."""

    records: Sequence[str]
    tasks: Sequence[int]

    def chart(self, study: Study) -> Chart:
        wanted = {(task - 1, 0) for task in self.tasks}
        arms = {
            arm: {
                seed: replace(run, rows=[row for row in run.rows if (row["task"], row["epoch"]) in wanted])
                for seed, run in runs.items()
            }
            for arm, runs in study.arms.items()
        }
        return next(one for one in spectra(replace(study, arms=arms)) if one.name == "hessian-spectrum")


@dataclass(frozen=True)
class Scatter:
    """The share of the Hessian's eigenvalues that are not small at a task's start, and what comes of the task."""

    records: Sequence[str]
    figure: str

    def chart(self, study: Study) -> Chart:
        lines = []
        for arm, runs in study.arms.items():
            _, shares, ends = zip(*shares_and_ends(runs.values(), self.figure), strict=True)
            lines.append(Line(arm, _apart(shares), _apart(ends), arm=arm))
        name = in_words(self.figure)
        title = f"{name.capitalize()} of a task and the Hessian at its start"
        return Chart("scatter", title, "", "", "ε-rank, share", name, lines, x_log=True)


def _apart(values: Sequence[float]) -> list[float]:
    """With gaps between them: what stands alone in a line is drawn as a dot."""
    return [one for value in values for one in (value, math.nan)]


QUICK = ("base", "full reset", "S&P", "ReDo", "SWR", "FIRE")  # of ten arms; README has a table of all
AS_RELEASED = ["permuted-mnist-as-released"]
FIGURES: dict[str, OverTime | Spectra | Scatter] = {
    "quick.png": OverTime(["quick"], "end", QUICK),
    "quick-dark.png": OverTime(["quick"], "end", QUICK),
    "warm-start-cifar10.png": OverTime(["fire-2a-cifar10"], "last"),
    "warm-start-cifar100.png": OverTime(["fire-2a-cifar100"], "last"),
    "continual-cifar10.png": OverTime(["fire-2b-cifar10"], "end"),
    "classes-cifar100.png": OverTime(["fire-2c-cifar100"], "epoch"),
    "chunks-cifar100.png": OverTime(["biases-chunks-cifar100"], "end"),
    "iterations-cifar10.png": OverTime(
        ["fire-5a-7-cifar10", "fire-2a-cifar10"], "last", ("base", "full reset", *ITERATIONS)
    ),
    "permuted-mnist.png": OverTime(["permuted-mnist"], "end", figure="online_accuracy"),
    "permuted-mnist-as-released.png": OverTime(AS_RELEASED, "end", figure="online_accuracy"),
    "permuted-mnist-as-released-spectra.png": Spectra(AS_RELEASED, (1, 11, 91)),
    "permuted-mnist-as-released-epsilon-rank.png": Scatter(AS_RELEASED, "online_accuracy"),
    "class-pairs-cifar100.png": OverTime(["class-pairs-cifar100"], "end", smooth=21),
    "incremental-cifar.png": OverTime(["incremental-cifar"], "end"),
    "swr-table-1-cifar10.png": OverTime(["swr-table-1-cifar10"], "epoch"),
    "swr-table-5-cifar100.png": OverTime(["swr-table-5-cifar100"], "epoch"),
    "swr-figure-4-cifar100.png": OverTime(["swr-figure-4-cifar100"], "end", [*chosen_arms("swr-figure-4-cifar100")]),
    "swr-figure-5.png": OverTime(["swr-figure-5"], "epoch", figure="measures.pq_balancedness"),
    "alarm.png": OverTime(["watch-random-labels-mnist"], "end"),
}


def figure(name: str) -> bytes:
    """One picture, as the report draws it; NAME-dark.png for dark pages."""
    study, shown = charted(name.replace("-dark.", "."))
    with tempfile.TemporaryDirectory() as folder:
        paths = draw(shown, chapter(study).arms, Path(folder), dark="-dark." in name)
        return next(path for path in paths if path.suffix == ".png").read_bytes()


def charted(name: str) -> tuple[Study, Chart]:
    """What a picture is of, and the chart in it."""
    wanted = FIGURES[name]
    studies = [gather([packed(one)])[0][0] for one in wanted.records]
    only = wanted.arms if isinstance(wanted, OverTime) else ()
    found = [(arm, runs) for study in studies for arm, runs in study.arms.items() if not only or arm in only]
    arms = dict(found)
    assert len(arms) == len(found), f"{name}: two records have an arm of the same name"
    study = replace(studies[0], arms=arms)
    shown = wanted.chart(study)
    assert shown is not None
    return study, shown
