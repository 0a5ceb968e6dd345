"""What a boundary costs."""

import pytest

from replastic.report.accuracy import after_boundaries
from replastic.report.items import Chart

from .records import arm_of, rows_of, run_of, study_of, table_of

TEST = "test_accuracy"


def test_what_a_boundary_costs_is_computed_by_hand() -> None:
    rows = rows_of([[0.1, 0.6], [0.5, 0.8], [0.5, 0.9]])
    for row, value in zip((row for row in rows if row["epoch"] == 0), (0.0, 0.2, 0.4), strict=True):
        row[TEST] = value
    stopped = run_of("base", 2, rows_of([[0.9], [0.9]]), status="started")
    items = after_boundaries(study_of(run_of("base", 1, rows), stopped, *arm_of("one task")), "mean")
    (row,) = table_of(items, "boundaries").rows
    # Ends 0.6 and 0.8, then 0.2 and 0.4, then ends 0.8 and 0.9.
    assert row == ["base", pytest.approx(0.7), pytest.approx(0.3), pytest.approx(0.4), pytest.approx(0.85), 2]
    assert isinstance(items[0], Chart)
    assert items[0].lines[0].y[0] == 0.0  # of both seeds
    loss = [{**row, "test_loss": 1 - row[TEST]} for row in rows]
    (row,) = table_of(after_boundaries(study_of(run_of("base", 1, loss), metric="test_loss"), "mean"), "boundaries").rows
    assert row[3] == pytest.approx(0.4)  # a loss that rises is one, too


def test_without_boundaries_or_figures_there_nothing_is_said_of_them() -> None:
    assert after_boundaries(study_of(*arm_of("base")), "mean") == []
    online = [{"task": task, "epoch": 1, TEST: 0.5} for task in range(4)]
    assert after_boundaries(study_of(run_of("base", 1, online)), "mean") == []
    going_on = after_boundaries(study_of(run_of("base", 1, rows_of([0.5] * 4), status="started")), "mean")
    assert [type(item) for item in going_on] == [Chart]  # no table before a run has finished
