"""How results depend on the points of grids."""

import math
from typing import Any

import pytest

from replastic.record import Run
from replastic.report.contents import chapter
from replastic.report.items import Chart, Table
from replastic.report.sensitivity import sensitivity, set_aside

from .records import FIVE, arm_of, rows_of, run_of, study_of

TEST = "test_accuracy"


def grid_of(
    points: list[dict[str, Any]], values: list[float], *, validation: list[float] | None = None, arm: str = "redo"
) -> list[Run]:  # fmt: skip
    runs = []
    for number, (point, value) in enumerate(zip(points, values, strict=True)):
        name = f"{arm}, " + ", ".join(f"{key}={of}" for key, of in point.items())
        for seed in FIVE:
            rows = rows_of([value + 0.001 * seed])
            if validation is not None:
                for row in rows:
                    row["validation_accuracy"] = validation[number]
            runs.append(run_of(name, seed, rows, grid={"arm": arm, "point": point}))
    return runs


POINTS = [{"rate": rate, "period": period, "kind": "a"} for rate in (0.01, 0.1, 1.0) for period in (20, 50)]


def test_each_parameter_of_a_grid_has_a_chart_with_the_others_as_lines() -> None:
    runs = grid_of(POINTS, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    *charts, table = sensitivity(study_of(*arm_of("base"), *runs))
    rate, period = charts  # the kind does not vary
    assert isinstance(rate, Chart)
    assert isinstance(period, Chart)
    assert [line.label for line in rate.lines] == ["period=20", "period=50"]
    assert [line.x for line in rate.lines] == [[0.01, 0.1, 1.0]] * 2
    assert rate.lines[1].y == pytest.approx([0.203, 0.403, 0.603])
    assert rate.lines[0].n == [5, 5, 5]
    assert [line.label for line in period.lines] == ["rate=0.01", "rate=0.1", "rate=1.0"]
    assert (rate.x_log, period.x_log) == (True, False)
    assert isinstance(table, Table)
    assert len(table.rows) == 6
    assert table.rows[0][:2] == ["redo", "rate=0.01, period=20, kind=a"]
    assert table.rows[0][2:] == pytest.approx([0.103, 0.001 * math.sqrt(2.5), 5])
    assert sensitivity(study_of(*arm_of("base"))) == []


@pytest.mark.parametrize(
    ("rates", "is_log"), [((1, 10), True), ((1, 9), False), ((0, 0.1, 1), False), ((-1, 10), False), ((0.3, 0.5), False)]
)
def test_an_axis_is_logarithmic_from_a_factor_of_ten_on_and_never_with_zero(rates: tuple[float, ...], is_log: bool) -> None:
    made = sensitivity(study_of(*grid_of([{"rate": rate} for rate in rates], [0.1] * len(rates))))[0]
    assert isinstance(made, Chart)
    assert made.x_log is is_log
    assert made.lines[0].label == "redo"


def test_words_switches_and_points_of_another_grid_have_no_axis() -> None:
    points = [{"kind": "a", "on": True}, {"kind": "b", "on": False}, {"rate": 0.1}]
    (table,) = sensitivity(study_of(*grid_of(points, [0.1, 0.2, 0.3])))
    assert isinstance(table, Table)
    assert [row[1] for row in table.rows] == ["kind=a, on=True", "kind=b, on=False", "rate=0.1"]


def test_a_point_that_nothing_has_finished_of_is_not_drawn() -> None:
    runs = grid_of([{"rate": 0.1}, {"rate": 0.2}], [0.1, 0.2])
    runs += [run_of("redo, rate=0.3", 1, [], status="started", grid={"arm": "redo", "point": {"rate": 0.3}})]
    made, table = sensitivity(study_of(*runs))
    assert isinstance(made, Chart)
    assert isinstance(table, Table)
    assert made.lines[0].x == [0.1, 0.2]
    assert table.rows[2][2:] == [None, None, 0]


def test_points_are_set_aside_by_validation_images_and_never_by_the_result() -> None:
    points = [{"rate": 0.1}, {"rate": 0.2}]
    runs = grid_of(points, [0.9, 0.1], validation=[0.2, 0.8])  # the second is worse on the test set
    study = study_of(*arm_of("base"), *runs)
    assert set_aside(study) == ({"redo, rate=0.1"}, {})
    made = chapter(study)
    assert [arm.name for arm in made.arms if arm.shown] == ["base", "redo, rate=0.2"]
    assert made.says.startswith("base has the highest")
    assert made.cautions == ["Of each grid only the best point on validation images is shown at first."]


def test_where_no_point_can_be_chosen_all_are_shown_and_the_reason_is_said() -> None:
    points = [{"rate": 0.1}, {"rate": 0.2}]
    chosen = grid_of(points, [0.3, 0.4], validation=[0.8, 0.2], arm="other")
    study = study_of(*arm_of("base"), *grid_of(points, [0.9, 0.1]), *chosen)
    aside, reasons = set_aside(study)
    assert aside == {"other, rate=0.2"}
    assert list(reasons) == ["redo"]
    made = chapter(study)
    assert [arm.name for arm in made.arms if not arm.shown] == ["other, rate=0.2"]
    (said,) = [text for text in made.cautions if text.startswith("No point of redo was chosen on validation images")]
    assert "validation = 5000" in said
    loss = study_of(*grid_of(points, [0.9, 0.1], validation=[0.2, 0.8]), metric="loss")
    assert "[data] validation" in set_aside(loss)[1]["redo"]
    runs = grid_of(points, [0.9, 0.1], validation=[0.2, 0.8])
    assert set_aside(study_of(*runs[:5])) == (set(), {})  # one point alone is the best
    assert set_aside(study_of(*runs[:6])) == ({"redo, rate=0.1"}, {})  # by the seed that both have
    assert "no seed has ended" in set_aside(study_of(runs[0], runs[6]))[1]["redo"]
