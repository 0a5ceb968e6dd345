"""Measures beside the accuracy, and spectra."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from replastic.record import Run
from replastic.report.contents import chapter
from replastic.report.items import Bars, Chart
from replastic.report.measured import measured
from replastic.report.spectra import spectra

from .records import arm_of, rows_of, run_of, study_of, table_of

TEST = "test_accuracy"


def measures_at(run: Run, wanted: Any, **values: Any) -> Run:
    for row in run.rows:
        if wanted(row):
            row["measures"] = {name: value(row) if callable(value) else value for name, value in values.items()}
    return run


def starts(row: dict[str, Any]) -> bool:
    return row["epoch"] == 0


def test_measures_of_the_whole_model_are_shown_at_the_moments_that_they_were_taken() -> None:
    run = measures_at(
        run_of("base", 1, rows_of([[0.1, 0.2, 0.3]] * 4)),
        lambda row: row["epoch"] in (0, 3),
        **{"rank": 3.0, "rank/0": 1.0, "test/rank": 2.0, "test/rank/0": 2.0, "not_measured": {"hessian": "too large"}},
    )
    items = measured(study_of(run, run_of("without", 1, rows_of([[0.1, 0.2, 0.3]] * 4))), "mean", 0)
    assert [item.name for item in items] == ["beside", "rank-start", "rank-end", "test-rank-start", "test-rank-end"]
    assert [line.arm for item in items[1:] if isinstance(item, Chart) for line in item.lines] == ["base"] * 4
    assert measured(study_of(*arm_of("base")), "mean", 0) == []


def test_what_could_not_be_measured_is_a_caution() -> None:
    lost = {"not_measured": {"rank": "NaN in the weights"}, "test/not_measured": {"rank": "the same"}}
    runs = [measures_at(run, starts, **lost) for run in arm_of("base")]
    assert list(chapter(study_of(*runs)).cautions) == [
        "rank could not be measured in 5 rows, for example: NaN in the weights",
        "test/rank could not be measured in 5 rows, for example: the same",
    ]


def test_a_measure_within_tasks_is_over_epochs_and_never_called_an_end() -> None:
    """Also one that was taken once a task, in its second epoch of three."""
    for epochs in ({1, 2, 3}, {2}):
        run = run_of("base", 1, rows_of([[0.1, 0.2, 0.3]] * 4))
        measures_at(run, lambda row, epochs=epochs: row["epoch"] in epochs, rank=3.0)
        assert [item.name for item in measured(study_of(run), "mean", 0)] == ["beside", "rank-epoch"]


def test_over_two_tasks_measures_and_the_accuracy_beside_them_are_bars() -> None:
    run = measures_at(run_of("base", 1, rows_of([0.1, 0.2])), starts, rank=3.0)
    beside, rank = measured(study_of(run), "mean", 0)
    assert isinstance(beside, Bars)
    assert isinstance(rank, Bars)
    assert (beside.title, beside.bars[0].value) == ("Test accuracy at the end of task 2", 0.2)


def test_correlations_are_spearmans_of_starts_and_ends() -> None:
    rng, runs, pairs = np.random.default_rng(0), [], []
    for seed in range(3):
        values, ranks = rng.uniform(size=5).tolist(), rng.uniform(size=5).tolist()
        status = "started" if seed == 2 else "finished"
        run = run_of("base", seed, rows_of([[0.0, value] for value in values]), status=status)
        runs.append(measures_at(run, starts, rank=lambda row, ranks=ranks: ranks[row["task"]], constant=1.0))
        pairs += list(zip(ranks, values, strict=True))
    pairs.pop()  # the task in which a run stopped has no end
    (row,) = table_of(measured(study_of(*runs), "mean", 0), "correlations").rows
    assert row == ["rank", pytest.approx(stats.spearmanr(np.array(pairs))[0]), 14]
    few = measured(study_of(*runs[:1]), "mean", 0)
    assert not any(item.name == "correlations" for item in few)


def spectrum(nodes: list[float], weights: list[float] | None = None) -> dict[str, list[float]]:
    return {"nodes": nodes, "weights": weights or [1 / len(nodes)] * len(nodes)}


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_spectra_are_densities_and_means_over_seeds(scale: float) -> None:
    runs = []
    for seed, nodes in ((1, [0.0, 1.0]), (2, [0.0, 3.0])):
        found = spectrum([scale * node for node in nodes], [1.5, 0.5])  # whatever they add up to
        runs.append(measures_at(run_of("base", seed, rows_of([0.1] * 3)), starts, hessian_spectrum=found))
    (made,) = spectra(study_of(*runs))
    assert [label for label, _ in made.frames] == [f"task {task}, right after its boundary" for task in (1, 2, 3)]
    (line,) = made.frames[0][1]
    x, y = np.array(line.x), np.nan_to_num(line.y)
    assert float(np.trapezoid(y, x)) == pytest.approx(1.0, abs=5e-3)  # three breadths beyond the last node end it
    for place, weight in ((0.0, 0.75), (1.0, 0.125), (3.0, 0.125)):
        near = abs(x / scale - place) < 0.2
        assert float(np.trapezoid(y[near], x[near])) == pytest.approx(weight, abs=5e-3)
    assert set(line.n) == {2}
    assert np.isnan(line.y).any()  # between them is nothing


@pytest.mark.filterwarnings("error")
def test_spectra_of_weights_that_were_lost_are_left_out() -> None:
    good = measures_at(run_of("base", 1, rows_of([0.1])), starts, hessian_spectrum=spectrum([0.0, 1.0]))
    lost = measures_at(run_of("base", 2, rows_of([0.1])), starts, hessian_spectrum=spectrum([math.nan, 1.0]))
    (made,) = spectra(study_of(good, lost))
    assert set(made.frames[0][1][0].n) == {1}
    assert spectra(study_of(lost)) == []
    one = measures_at(run_of("base", 1, rows_of([0.1])), starts, **{"test/hessian_spectrum": spectrum([2.0])})
    (made,) = spectra(study_of(one))
    assert made.title == "Spectrum of the Hessian, test/hessian_spectrum"


def test_of_many_moments_some_spectra_are_shown_and_that_is_said() -> None:
    run = measures_at(run_of("base", 1, rows_of([0.1] * 100)), starts, hessian_spectrum=spectrum([0.0, 1.0]))
    (made,) = spectra(study_of(run))
    assert len(made.frames) == 24
    assert made.note.endswith("24 of 100 moments are shown.")
    assert [made.frames[at][0].split(",")[0] for at in (0, -1)] == ["task 1", "task 100"]
