"""What arms cost in time."""

from typing import Any

import pytest

from replastic.report.cost import cost
from replastic.report.items import Bars, Table

from .records import arm_of, rows_of, run_of, study_of, table_of

TEST = "test_accuracy"


def test_cost_is_without_the_first_of_several_tasks() -> None:
    # Two tasks, a boundary and two epochs each: steps 0 to 5, and the second task begins after row 2.
    rows = rows_of([[0.1, 0.2], [0.3, 0.4]])
    base = [run_of("base", seed, rows, times=[0, 50, 100, 100.5, 101, 100 + 3 * seed]) for seed in (1, 2, 3)]
    slow = run_of("slow", 1, rows, times=[0, 1, 1, 2, 3, 13])
    stopped = run_of("slow", 2, rows, times=[0, 1, 1, 2, 3, 1000], status="started")
    bars, table = cost(study_of(*base, slow, stopped))
    assert isinstance(bars, Bars)
    assert [(bar.arm, bar.value, bar.low, bar.high, bar.n) for bar in bars.bars] == [
        ("base", 2000.0, 1000.0, 3000.0, 3),
        ("slow", 4000.0, 4000.0, 4000.0, 1),
    ]
    assert isinstance(table, Table)
    assert [row[4] for row in table.rows] == [1.0, 2.0]
    (bars, _) = cost(study_of(run_of("base", 1, rows_of([[0.1, 0.2]]), times=[1, 2, 5])))
    assert isinstance(bars, Bars)
    assert bars.bars[0].value == 2000.0  # of one task, all of it


def test_hours_have_a_first_task_that_others_trained_with_the_same_settings() -> None:
    rows = rows_of([[0.1, 0.2], [0.3, 0.4]])
    fast: dict[str, Any] = {"training": {"batch": 8}}
    slow: dict[str, Any] = {"training": {"batch": 9}}
    shared = [
        run_of("first task a", 1, rows_of([[0.1, 0.2]]), times=[0, 1800, 3600], tasks=1, **fast),
        run_of("first task b", 1, rows_of([[0.1, 0.2]]), times=[0, 1800, 7200], tasks=1, **slow),
    ]
    times = [0.1, 0.1, 0.1, 0.2, 1800, 3600]
    runs = [
        run_of("base", 1, rows, times=times, **fast),
        run_of("FIRE", 1, rows, times=times, **slow),
        run_of("alone", 1, rows, times=[0, 3000, 3600, 3601, 5000, 7200], **fast),  # it trained the first task itself
        run_of("other seed", 2, rows, times=times, **fast),
    ]
    table = table_of(cost(study_of(*runs, shared=shared)), "cost")
    assert [row[5] for row in table.rows] == pytest.approx([2.0, 3.0, 2.0, 1.0])


def test_without_steps_or_finished_runs_there_is_no_cost() -> None:
    assert cost(study_of(run_of("base", 1, [{"task": 0, "epoch": 1, TEST: 0.1}]))) == []
    assert cost(study_of(*arm_of("base", status="failed"))) == []
