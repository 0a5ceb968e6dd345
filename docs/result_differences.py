"""Sentences about how arms differ, seed by seed, from committed records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from result_lines import Table, arms_in, chosen_arms, ends, ends_of_tasks, last_epoch, mean_end

from replastic.record import Run
from replastic.report.estimates import Difference, holm, paired


def differences(table: Table, arm: str, others: Sequence[str]) -> list[str]:
    """How an arm differs from others over the last five epochs, and in the last alone, which is what papers count."""
    counted = {
        "Over the last five epochs": ends(table),
        "In the last epoch alone": {name: last_epoch(table, name) for name in table.published},
    }
    return [f"- {over}: {against(figures, arm, others, table.digits)[0]}" for over, figures in counted.items()]


def against(figures: Mapping[str, Mapping[int, float]], arm: str, others: Iterable[str], digits: int) -> list[str]:
    """How an arm differs from others, seed by seed; p is adjusted for their number."""
    return [f"{arm} against {_told({other: (figures[arm], figures[other]) for other in others}, digits)}."]


def against_vanilla(records: str, digits: int) -> list[str]:
    """How arms, of grids those that held-out images choose, differ from plain training over all tasks and in the last."""
    arms = chosen_arms(records)
    names = [arm for arm in arms if arm != "vanilla"]
    over = {
        "All tasks": {arm: {run.seed: mean_end(run) for run in runs} for arm, runs in arms.items()},
        "The last task": ends(Table(records, {})),
    }
    return [
        f"- {tasks}, minus vanilla: {_told({arm: (figures[arm], figures['vanilla']) for arm in names}, digits)}."
        for tasks, figures in over.items()
    ]


def in_chunks(arms: Mapping[str, Sequence[Run]], arm: str, others: Sequence[str], digits: int) -> list[str]:
    """How an arm differs from others at the ends of tasks, and in what the first epoch of a task changes."""
    figures = {"Ends of all tasks": mean_end, "First epoch of a task, minus the end of the task before": first_change}
    found = {name: {one: {run.seed: of(run) for run in arms[one]} for one in (arm, *others)} for name, of in figures.items()}
    return [f"- {name}: {against(by_arm, arm, others, digits)[0]}" for name, by_arm in found.items()]


def first_change(run: Run) -> float:
    """Test accuracy after the first epoch of a task minus that at the end of the task before, on average."""
    ended = ends_of_tasks(run, "test_accuracy")
    first = {row["task"] + 1: row["test_accuracy"] for row in run.rows if row["epoch"] == 1}
    return mean(first[task + 1] - end for task, end in ended.items() if task + 1 in first)


def alarm_against_the_clock(records: str) -> list[str]:
    """How FIRE on alarm differs from FIRE by the clock, by the ends of all tasks and of the last two."""
    found = {
        arm: {run.seed: [*ends_of_tasks(run, "train_accuracy").values()] for run in runs}
        for arm, runs in arms_in(records).items()
    }
    return [
        f"- {tasks}: {against(figures, 'FIRE on alarm', ['FIRE by the clock'], 3)[0]}"
        for tasks, first in (("All tasks", 0), ("The last two tasks", -2))
        for figures in [{arm: {seed: mean(ends[first:]) for seed, ends in by.items()} for arm, by in found.items()}]
    ]


def _told(pairs: Mapping[str, tuple[Mapping[int, float], Mapping[int, float]]], digits: int) -> str:
    found = compared(pairs)
    told = [f"{name} {one.mean:+.{digits}f} (p = {adjusted:.2g})" for name, (one, adjusted) in found.items()]
    (seeds,) = {one.n for one, _ in found.values()}
    several = f"tests over {seeds} seeds, adjusted for {len(told)} comparisons"
    return f"{', '.join(told)}; paired t-{several if len(told) > 1 else f'test over {seeds} seeds'}"


def compared(pairs: Mapping[str, tuple[Mapping[int, float], Mapping[int, float]]]) -> dict[str, tuple[Difference, float]]:
    """Of each pair its difference, seed by seed, and p as adjusted for all of them."""
    found = {name: paired(*pair) for name, pair in pairs.items()}
    return dict(zip(found, zip(found.values(), holm([one.p for one in found.values()]), strict=True), strict=True))
