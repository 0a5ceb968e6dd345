"""Arms times starts: the table of both, pairs of arms from the same start, and the figures of each start."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from replastic.cli import main
from replastic.record import Run
from replastic.report import compare, gather
from replastic.report.accuracy import accuracy
from replastic.report.best import best_points
from replastic.report.colours import styles
from replastic.report.contents import chapter
from replastic.report.cost import cost
from replastic.report.gathering import Study
from replastic.report.idle import chosen_baseline, idle
from replastic.report.items import Chart
from replastic.report.starts import starts

from .records import rows_of, run_of, table_of, write
from .text_runs import A_STEP, STARTS, from_starts, text_run

METRIC = "openmix_loss"
ENDS = {  # by arm and start, and seed: the pairs of one start differ from those of another
    "base, best": {1: 3.0, 2: 3.2, 3: 3.1}, "base, late": {1: 3.5, 2: 3.4, 3: 3.9},
    "FIRE, best": {1: 2.9, 2: 3.15, 3: 3.02}, "FIRE, late": {1: 3.1, 2: 3.05, 3: 3.4},
}  # fmt: skip


def gathered(tmp_path: Path, *runs: Run, **given: Any) -> Study:
    write(tmp_path / "runs", *runs)
    (study,), problems = gather([tmp_path / "runs"], **given)
    assert problems == []
    return study


def by_hand(arm: str, seed: int, value: float, epochs: int = 1) -> Run:
    """The arm "base, late" is base from the start "late"; a name without a comma has no start, and no first task."""
    family, _, start = arm.partition(", ")
    methods = [] if family in ("base", "new") else [{"name": "f"}]
    config = {"start": {"arm": family, "name": start or "none"}, "methods": methods}
    rows = rows_of([[9.0] * epochs, [value]], METRIC)
    return run_of(arm, seed, [row for row in rows if start or row["task"]], about={"metric": METRIC}, **config)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    runs = [
        by_hand(arm, seed, value, epochs=5 if arm.endswith("late") else 2)
        for arm, of in ENDS.items()
        for seed, value in of.items()
    ]
    return gathered(tmp_path, *runs, by_hand("new", 1, 2.5), by_hand("new", 2, 3.7))


def test_the_table_has_arms_down_and_starts_across_and_marks_the_lowest_of_each_start(study: Study) -> None:
    table = table_of(starts(study), "starts")
    assert list(table.columns) == ["arm", "best", "late", "without a start"]  # the earliest start first
    assert [row[0] for row in table.rows] == ["base", "FIRE", "new"]
    base, fire, new = ([*row[1:]] for row in table.rows)
    assert base[0] == pytest.approx((3.1, 0.1, 3, False))
    late = ENDS["FIRE, late"].values()
    assert fire[1] == pytest.approx((statistics.mean(late), statistics.stdev(late), 3, True))
    assert [cell and cell.best for cell in (*base, *fire)] == [False, False, None, True, True, None]
    assert new[:2] == [None, None]
    assert new[2] == pytest.approx((3.1, 0.72**0.5, 2, False))  # alone in its column: not the best
    assert "lowest" in table.note


def test_an_arm_is_compared_with_the_baseline_from_the_same_start_seed_by_seed(study: Study) -> None:
    found = {one.summary.arm: one for one in compare(study)}
    for start in ("best", "late"):
        fire, base = (ENDS[f"{arm}, {start}"] for arm in ("FIRE", "base"))
        difference = found[f"FIRE, {start}"].difference
        assert difference is not None
        assert difference.mean == pytest.approx(statistics.mean(fire[seed] - base[seed] for seed in fire))
        assert difference.p == pytest.approx(stats.ttest_rel([*fire.values()], [*base.values()]).pvalue)
        assert found[f"base, {start}"].difference is None
    assert found["new"].difference is None
    assert [study.baseline_of(arm) for arm in study.arms] == ["base, best", "base, late"] * 2 + [None]
    table = table_of(starts(study), "starts-differences")
    assert [row[0] for row in table.rows] == ["FIRE", "new"]
    assert table.rows[1][1] == pytest.approx((0.0, 0.5**0.5, 2, False))  # 2.5 - 3.0 and 3.7 - 3.2
    assert "Below 0" in table.note


def test_the_result_names_the_best_arm_and_the_baseline_from_its_start(study: Study) -> None:
    made = chapter(study)
    assert made.says.startswith("FIRE, best has the lowest openmix_loss in the last task: 3.023")
    assert "base, best has 3.100" in made.says
    assert [arm.name for arm in made.arms if arm.baseline] == ["base, best", "base, late"]
    assert chosen_baseline(study) in made.cautions
    assert "base, an arm without a method; no method acts in new either" in chosen_baseline(study)


def test_rows_equal_to_those_of_the_baseline_from_the_same_start_are_told(tmp_path: Path) -> None:
    ends = {"base, a": 3.0, "base, b": 3.1, "FIRE, a": 3.1, "FIRE, b": 3.1}
    runs = [by_hand(arm, 1, end) for arm, end in ends.items()]
    assert [sentence.split(" are ")[0] for sentence in idle(gathered(tmp_path, *runs))] == ["Rows of FIRE, b"]


def test_an_arm_in_the_file_can_be_the_baseline(study: Study, tmp_path: Path) -> None:
    (other,), _ = gather([tmp_path / "runs"], baseline="FIRE")
    assert other.baseline == "FIRE, best"
    assert other.baseline_of("base, late") == "FIRE, late"
    (new,), _ = gather([tmp_path / "runs"], baseline="new")
    assert {new.baseline_of(arm) for arm in new.arms} == {"new"}
    differences = {one.summary.arm: one.difference for one in compare(new)}
    assert differences["base, late"] is not None
    assert differences["base, late"].mean == pytest.approx(0.35)  # 3.5 - 2.5 and 3.4 - 3.7
    assert main(["compare", str(tmp_path / "runs"), "--baseline", "fire"]) == 2


def test_figures_are_drawn_from_each_start_and_the_first_task_once(tmp_path: Path) -> None:
    study = gathered(tmp_path, *from_starts(("base", "FIRE")))
    charts = {one.name: one for one in accuracy(study, "mean", 0)}
    assert [*charts] == [
        *(f"openmix-loss-last-{start}" for start in STARTS), *(f"openmix-loss-gap-{start}" for start in STARTS),
        "openmix-loss-first",
    ]  # fmt: skip
    last = charts["openmix-loss-last-125 epochs"]
    assert [line.arm for line in last.lines] == ["base, 125 epochs", "FIRE, 125 epochs", "full reset"]
    assert last.lines[0].x[-1] == last.lines[2].x[-1] == 4000 * A_STEP  # since the boundary
    first = charts["openmix-loss-first"]
    assert [line.arm for line in first.lines] == ["base, 250 epochs"]
    assert [mark / A_STEP for mark in first.marks] == [2000, 2500, 11_000, 22_000]  # seeds have their lowest loss elsewhere


def test_a_figure_shows_the_metric_against_the_length_of_the_first_task(tmp_path: Path) -> None:
    made = starts(gathered(tmp_path, *from_starts(("base", "FIRE"))))[0]
    assert isinstance(made, Chart)
    assert [line.label for line in made.lines] == ["base", "FIRE", "full reset"]
    assert [place / A_STEP for place in made.lines[0].x] == pytest.approx([(2500 + 2000 + 2500) / 3, 11_000, 22_000])
    assert len(set(made.lines[2].y)) == 1  # a level line
    assert made.y_label == "openmix loss (nats a token)"


def test_points_of_a_grid_are_chosen_from_each_start_apart() -> None:
    runs = []
    for start, scores in {"best": (3.0, 3.2), "late": (3.4, 3.1)}.items():
        for rate, score in zip((0.1, 0.2), scores, strict=True):
            run = by_hand(f"FIRE, rate={rate}, {start}", 1, 5.0)
            rows = [{**row, "validation_loss": score} for row in run.rows]
            grid = {"arm": f"FIRE, {start}", "point": {"rate": rate}}
            runs.append(run_of(run.arm, 1, rows, about=run.about, grid=grid, start=run.config["start"]))
    assert {name: one.point["rate"] for name, one in best_points(runs).items()} == {"FIRE, best": 0.1, "FIRE, late": 0.2}


def test_hours_have_the_first_task_up_to_the_start() -> None:
    rows = rows_of([[9.0] * 4, [3.0]], METRIC)
    shared = run_of("first task a", 1, rows[:5], times=[0, 3600, 7200, 10_800, 14_400], tasks=1, starts={"late": {"at": 4}})
    early = [row for row in rows if row["task"] or row["epoch"] <= 2]
    run = run_of("FIRE, early", 1, early, times=[0, 0, 0, 0, 3600], start={"arm": "FIRE", "name": "early", "at": 2})
    study = Study("study", "", METRIC, {run.arm: {1: run}}, None, [shared])
    assert table_of(cost(study), "cost").rows[0][5] == pytest.approx(3.0)


def test_compare_prints_arms_by_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "runs", *from_starts(("base", "FIRE")), text_run("FIRE", 4, start="best"))
    assert main(["compare", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("arm") and "without a start" in line)
    assert lines[head].split()[:4] == ["arm", "best", "125", "epochs"]
    fire = next(line for line in lines[head:] if line.startswith("FIRE"))
    assert fire.count("*") == 3
    assert "n = 4*" in fire  # the others have three seeds


def test_without_starts_there_is_no_such_table(tmp_path: Path) -> None:
    study = gathered(tmp_path, text_run("base", 1), text_run("FIRE", 1))
    assert (study.starts, starts(study)) == ([], [])
    assert "openmix-loss-epoch" in {one.name for one in accuracy(study, "mean", 0)}


def test_an_arm_looks_the_same_from_each_start(tmp_path: Path) -> None:
    made = chapter(gathered(tmp_path, *from_starts(("base", "FIRE", "S&P"))))
    looks = styles(made.arms)
    assert len({looks[f"FIRE, {start}"] for start in STARTS}) == 1
    assert len({looks[arm] for arm in ("base, best", "FIRE, best", "S&P, best", "full reset")}) == 4


def test_unfinished_runs_are_in_curves_and_not_in_tables(tmp_path: Path) -> None:
    runs = from_starts(("base", "FIRE"), seeds=(1,))
    for number, status in ((1, "started"), (4, "diverged")):  # base and FIRE, both from the second start
        run = runs[number]
        kept = [row for row in run.rows if row["task"] == 0 or (status == "diverged" and row["at"] <= 1000)]
        runs[number] = replace(run, rows=kept, times=run.times[: len(kept)], status=status)
    study = gathered(tmp_path, *runs, text_run("late", 1, start="250 epochs", status="started"))
    items = chapter(study).items
    base, fire, late, new = ([*row[1:]] for row in table_of([*items], "starts").rows)
    assert [cell is None for cell in (*base, *fire)] == [False, True, False, True] * 2
    assert late == [None] * 4
    assert new[3].n == 1
    (last,) = (one for one in items if isinstance(one, Chart) and one.name == "openmix-loss-last-125 epochs")
    assert len(last.lines) == 2  # FIRE's first steps, and the arm without a start


def test_a_start_of_which_nothing_is_known_yet_is_no_error(tmp_path: Path) -> None:
    run = text_run("FIRE", 1, start="best")
    study = gathered(tmp_path, replace(run, rows=[], times=[], status="started"), text_run("base", 1, start="250 epochs"))
    assert chapter(study).says.startswith("base, 250 epochs has the lowest")
