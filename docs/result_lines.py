"""Lines of tables, from committed records; docs/results.py says which go where."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt
from pathlib import Path
from statistics import mean
from typing import Any

from replastic.record import Run, find_runs, read
from replastic.record.packed import SUFFIX
from replastic.report import best, gather
from replastic.report.best import best_points
from replastic.report.curves import of_row, points_of
from replastic.report.summary import Summary, summarise

RECORDS = Path(__file__).parent.parent / "experiments/results"
RESET = ("base", "FIRE", "FIRE, exact", "FIRE, everything", "FIRE, everything, exact", "S&P", "DASH", "full reset")
ITERATIONS = ("FIRE, steps=1", "FIRE, steps=5", "FIRE", "FIRE, steps=20", "FIRE, quintic", "FIRE, Muon's coefficients")
BY_STEP = (1, 2, 3, 4, 5, 7, 10, 15, 20)
COSTS = {"S&P": (0.002, 27), "FIRE": (0.06, 55), "DASH": (69, 2834)}  # published: seconds and MB, on a TITAN RTX
MOVED = "normalised_squared_frobenius_error"


@dataclass(frozen=True)
class Table:
    """Arms of an experiment beside what their paper has. `published`: None for arms that it does not have."""

    records: str
    published: Mapping[str, float | None]
    digits: int = 3
    metric: str = "test_accuracy"


def head(names: Sequence[str]) -> list[str]:
    """The two lines that a table begins with."""
    return [as_row(names), "|---" * len(names) + "|"]


def as_row(cells: Iterable[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"


def lines(table: Table) -> list[str]:
    """Of each arm: published, here, over how many seeds, and how far single epochs swing."""
    found, digits = outcomes(table), table.digits
    rows = ["| | published | here | n | ± over seeds | last five epochs | the last | here - published |", "|---" * 8 + "|"]
    for arm, published in table.published.items():
        one = found[arm]
        spread = f"{one.spread:.{digits}f}" if len(one.last) > 1 else "-"
        told = [f"{published:.{digits}f}", f"{one.mean - published:+.{digits}f}"] if published is not None else ["-", "-"]
        low, high = swing(table, arm)
        rows.append(
            f"| {arm} | {told[0]} | **{one.mean:.{digits}f}** | {len(one.last)} | {spread} | "
            f"{low:.{digits}f} to {high:.{digits}f} | {mean(last_epoch(table, arm).values()):.{digits}f} | {told[1]} |"
        )
    return rows


def short(table: Table) -> list[str]:
    """The same in a few lines: arms across."""
    found = outcomes(table)
    arms = [arm for arm, published in table.published.items() if published is not None]
    return [
        *head(["", *arms]),
        as_row(["published", *(f"{table.published[arm]:.3f}" for arm in arms)]),
        as_row(["here", *(f"{found[arm].mean:.3f}" for arm in arms)]),
        as_row(["seeds here", *(f"{len(found[arm].last)}" for arm in arms)]),
    ]


def outcomes(table: Table) -> dict[str, Summary]:
    """Every arm's end, by its name."""
    return dict(_outcomes(table.records, table.metric))


@cache
def _outcomes(records: str, metric: str) -> dict[str, Summary]:
    ((study,), problems) = gather([packed(records)], metric=metric)
    assert not problems, problems
    return {one.arm: one for one in summarise(study)}


@cache
def runs_in(records: str) -> list[Run]:
    """All runs of an experiment."""
    return [read(run) for run in find_runs(packed(records))]


def packed(records: str) -> Path:
    """The file that has an experiment's records."""
    return RECORDS / f"{records}{SUFFIX}"


def arms_in(*records: str, stopped: bool = False) -> dict[str, list[Run]]:
    """The runs of each arm, but for first tasks that arms share. stopped: also those that have not ended."""
    arms: dict[str, list[Run]] = {}
    for run in (run for one in records for run in runs_in(one) if run.config["tasks"] is None):
        assert stopped or run.status == "finished", run.folder
        assert run.seed not in [other.seed for other in arms.get(run.arm, [])], f"{run.arm}, seed {run.seed}: twice"
        arms.setdefault(run.arm, []).append(run)
    return arms


def swing(table: Table, arm: str) -> tuple[float, float]:
    """The least and the most of the last five epochs, of all seeds."""
    rows = [row for run in runs_in(table.records) if run.arm == arm for row in run.rows[-5:]]
    return min(row[table.metric] for row in rows), max(row[table.metric] for row in rows)


def last_epoch(table: Table, arm: str) -> dict[int, float]:
    """What the last epoch alone says, by seed."""
    return {run.seed: run.rows[-1][table.metric] for run in runs_in(table.records) if run.arm == arm}


def ends(table: Table) -> dict[str, dict[int, float]]:
    """What every arm comes to over its last five epochs, by seed."""
    return {name: dict(one.last) for name, one in outcomes(table).items()}


def after_the_reset(records: str) -> list[str]:
    """What is measured at the start of the second task; means over seeds."""
    rows = [
        "| right after | n | test accuracy | largest Hessian eigenvalue | DfI | SFE, all layers | SFE, mean over layers |",
        "|---" * 7 + "|",
    ]
    arms = arms_in(records)
    for arm in (arm for arm in RESET if arm in arms):
        starts = [start_of_second(run) for run in arms[arm]]
        found = [start["measures"] for start in starts]
        moved = [value for one in found for name, value in one.items() if name.startswith(f"{MOVED}/")]
        shown = [
            f"{len(starts)}",
            f"{mean(start['test_accuracy'] for start in starts):.2f}",
            *(f"{mean(one[name] for one in found):.2g}" for name in ("hessian_top_eigenvalue", "deviation_from_isometry")),
            *(f"{mean(values):.2f}" for values in ([one[MOVED] for one in found], moved)),
        ]
        rows.append(as_row([arm, *shown]))
    return rows


def iterations(*records: str) -> list[str]:
    """FIRE by the number of steps and by coefficients: what comes out at the end, and how far from an isometry it began.

    With the seeds alone that all of them have.
    """
    rows = ["| | here | n | last five epochs | right after the reset: DfI | SFE |", "|---" * 6 + "|"]
    arms = arms_in(*records)
    seeds = set.intersection(*({run.seed for run in arms[arm]} for arm in ITERATIONS))
    arms = {arm: [run for run in arms[arm] if run.seed in seeds] for arm in ITERATIONS}
    for arm in ITERATIONS:
        last = [row["test_accuracy"] for run in arms[arm] for row in run.rows[-5:]]
        found = [start_of_second(run)["measures"] for run in arms[arm]]
        rows.append(
            f"| {arm if arm != 'FIRE' else 'FIRE, steps=10'} | **{mean(last):.3f}** | {len(found)} | {min(last):.3f} to "
            f"{max(last):.3f} | {mean(one['deviation_from_isometry'] for one in found):.2g} | "
            f"{mean(one[MOVED] for one in found):.3f} |"
        )
    return rows


def renamed(names: Mapping[str, Iterable[str]], *records: str) -> dict[str, dict[int, Run]]:
    """Runs by what an arm is called here, and by seed. names: what each is called in the records."""
    found, arms = arms_in(*records), dict[str, dict[int, Run]]()
    for name, called in names.items():
        runs = [run for one in called for run in found[one]]
        arms[name] = {run.seed: run for run in runs}
        assert len(arms[name]) == len(runs), f"{name}: a seed is there twice"
    return arms


def end_of(run: Run) -> float:
    """Test accuracy over the last five epochs."""
    return mean(row["test_accuracy"] for row in run.rows[-5:])


def by_seed(arms: Mapping[str, Mapping[int, Run]]) -> list[str]:
    """What comes out of each seed, and how far from an isometry, and from where it was, it began: means over its seeds."""
    seeds = sorted({seed for runs in arms.values() for seed in runs})
    columns = ["", *(f"seed {seed}" for seed in seeds), "mean", "n", "right after the reset: DfI", "SFE"]
    rows = head(columns)
    for name, runs in arms.items():
        starts = [start_of_second(run)["measures"] for run in runs.values()]
        shown = [
            *(f"{end_of(runs[seed]):.3f}" if seed in runs else "-" for seed in seeds),
            f"**{mean(map(end_of, runs.values())):.3f}**",
            f"{len(runs)}",
            f"{mean(one['deviation_from_isometry'] for one in starts):.2g}",
            f"{mean(one[MOVED] for one in starts):.2f}",
        ]
        rows.append(as_row([name, *shown]))
    return rows


def as_factors(runs: Iterable[Run]) -> list[str]:
    """Which factor would have moved each kind of layer as far as a reset did: 1 - √SFE, over layers and seeds."""
    kinds = {"stem": "the first layer", "conv": "3x3 convolutions", "shortcut": "shortcuts", "head": "the head"}
    found: dict[str, list[float]] = {said: [] for said in kinds.values()}
    for run in runs:
        for name, moved in start_of_second(run)["measures"].items():
            if name.startswith(f"{MOVED}/"):
                found[next(said for kind, said in kinds.items() if kind in name)].append(1 - sqrt(moved))
    told = ", ".join(f"{said} {min(factors):.2g} to {max(factors):.2g}" for said, factors in found.items())
    return [f"By its SFE one step is like a factor: {told}."]


def by_step(records: str) -> list[str]:
    """DfI and SFE after so many steps; means over seeds."""
    arms = arms_in(records)
    rows = head(["steps", *map(str, BY_STEP)])
    for label, name, digits in (
        ("DfI", "deviation_from_isometry", ".2g"),
        ("SFE", "squared_frobenius_error", ".0f"),
        ("SFE, normalised", MOVED, ".3f"),
    ):
        shown = [mean(start_of_second(run)["measures"][name] for run in arms[f"FIRE, steps={steps}"]) for steps in BY_STEP]
        rows.append(as_row([label, *(f"{figure:{digits}}" for figure in shown)]))
    return rows


def costs() -> list[str]:
    """Time and memory of a boundary, beside what is published."""
    rows = ["| | seconds, published | here | MB, published | here |", "|---|---|---|---|---|"]
    for line in map(json.loads, (RECORDS / "fire-table-1.jsonl").read_text().splitlines()):
        seconds, megabytes = COSTS[line["method"]]
        rows.append(f"| {line['method']} | {seconds} | {line['seconds']:.2g} | {megabytes} | {line['megabytes']:.0f} |")
    return rows


def by_factor() -> list[str]:
    """Scaling all layers of a trained network by a factor, and training on; means over seeds."""
    found = dict[tuple[float, bool], list[dict[str, Any]]]()
    for line in map(json.loads, (RECORDS / "swr-figure-1.jsonl").read_text().splitlines()):
        found.setdefault((line["factor"], line["proportional"]), []).append(line)
    factors = sorted({factor for factor, _ in found}, reverse=True)
    rows = head(["factor", *map(str, factors)])
    for when, key in (("right after", "scaled"), ("best of 50 more epochs", "after")):
        for how, proportional in (("weights and biases alike", False), ("with proportionality", True)):
            cells = [mean(line[key] for line in found[factor, proportional]) for factor in factors]
            rows.append(as_row([f"{when}, {how}", *(f"{cell:.3f}" for cell in cells)]))
    (seeds,) = {tuple(line["seed"] for line in several) for several in found.values()}  # each has all factors, both ways
    before = mean(line["before"] for line in found[factors[0], True])
    return [*rows, "", f"n = {len(seeds)}. Best of the first 100 epochs: {before:.3f}."]


def start_of_second(run: Run) -> Mapping[str, Any]:
    """The row right after the first boundary."""
    return next(row for row in run.rows if (row["task"], row["epoch"]) == (1, 0))


def at_epochs(runs: Mapping[str, Sequence[Run]], figure: str, epochs: Sequence[int], digits: int) -> list[str]:
    """A figure in some epochs of the last task; means over seeds."""
    get = of_row(figure)
    names = [figure.removeprefix("measures."), *(f"epoch {epoch}" for epoch in epochs), "n"]
    rows = head(names)
    for name, several in runs.items():
        seeds = [{row["epoch"]: get(row) for row in run.rows if row["task"] == run.rows[-1]["task"]} for run in several]
        cells = [f"{mean(seed[epoch] for seed in seeds):.{digits}f}" for epoch in epochs]
        rows.append(as_row([name, *cells, f"{len(seeds)}"]))
    return rows


def train_accuracy(records: str) -> list[str]:
    """Of each arm, in the last five epochs."""
    found = outcomes(Table(records, {}, metric="train_accuracy"))
    return [
        *head(list(found)),
        as_row(f"{one.mean:.3f}" for one in found.values()),
        as_row(f"n = {len(one.last)}" for one in found.values()),
    ]


def settings(records: str) -> list[str]:
    """The points that were tried for arms without published settings."""
    chosen = {one.arm for one in best(packed(records)).values()}
    rows = ["| | validation | test |", "|---|---|---|"]
    for run in runs_in(records):
        if not run.config.get("grid"):
            continue
        means = [mean(row[f"{split}_accuracy"] for row in run.rows[-5:]) for split in ("validation", "test")]
        mark = "**" if run.arm in chosen else ""
        rows.append(as_row([f"{mark}{run.arm}{mark}", *(f"{figure:.3f}" for figure in means)]))
    return rows


def chosen(records: str, *, all_tasks: bool = False) -> list[str]:
    """Arms, and of those that are grids the point that held-out images choose.

    all_tasks: also how all tasks ended, and with how many seeds better than those of plain training.
    """
    points, arms = {one.arm: (name, one.point) for name, one in best(packed(records)).items()}, chosen_arms(records)
    more = ["all tasks", "above vanilla there"] if all_tasks else []
    names = ["arm", "chosen of the grid", "the last task" if all_tasks else "here", "n", "± over seeds", *more]
    rows = head(names)
    for name, one in outcomes(Table(records, {})).items():
        if name in arms:
            arm, point = points.get(name, (name, {}))
            said = ", ".join(f"{key} {value:g}" for key, value in point.items()) or "-"
            spread = f"{one.spread:.4f}" if len(one.last) > 1 else "-"
            if all_tasks:
                ended, plain = ({run.seed: mean_end(run) for run in arms[of]} for of in (name, "vanilla"))
                above = sum(end > plain[seed] for seed, end in ended.items())
                more = [f"{mean(ended.values()):.4f}", "-" if name == "vanilla" else f"{above} of {len(ended)} seeds"]
            rows.append(as_row([arm, said, f"**{one.mean:.4f}**", f"{len(one.last)}", spread, *more]))
    return rows


def chosen_arms(records: str, *, after: int = 0) -> dict[str, list[Run]]:
    """The runs of arms; of grids, of the point that held-out images choose.

    after: at the end of so many tasks, which all runs have though some were stopped later; 0: at the end of all.
    """
    every = arms_in(records, stopped=after > 0)
    counted = [first_tasks(run, after) if after else run for runs in every.values() for run in runs]
    points = {one.arm for one in best_points(counted).values()}
    return {arm: runs for arm, runs in every.items() if arm in points or not runs[0].config.get("grid")}


def first_tasks(run: Run, tasks: int) -> Run:
    """A run as it was at the end of so many tasks."""
    assert len(ends_of_tasks(run, "test_accuracy")) >= tasks, f"{run.folder} was stopped before"
    return replace(run, rows=[row for row in run.rows if row["task"] < tasks], status="finished")


def ends_of_tasks(run: Run, figure: str) -> dict[int, float]:
    """What is known at the end of each task; tasks are counted from 1."""
    return dict(points_of(run, figure, "end"))


def late(run: Run, figure: str) -> dict[int, float]:
    """Means over the last five epochs of each task that has come to its end; tasks are counted from 1."""
    tasks: dict[int, list[float]] = {}
    for row in run.rows:
        tasks.setdefault(row["task"] + 1, []).append(row[figure])
    return {task: mean(tasks[task][-5:]) for task in ends_of_tasks(run, figure)}


def mean_end(run: Run) -> float:
    """Test accuracy over the last five epochs of all tasks, on average."""
    return mean(late(run, "test_accuracy").values())
