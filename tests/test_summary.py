"""Summaries are of what was recorded."""

from pathlib import Path
from typing import Any

import pytest

from replastic.record import Record
from replastic.summary import summarise, summary_table


def recorded(out: Path, arm: str, seed: int, ends: list[float], status: str = "finished", **config: Any) -> None:
    about = {"metric": config.pop("metric", "test_accuracy")}
    settings = {"tasks": None, **config}
    with Record.open(out / arm / f"seed-{seed}", config=settings, seed=seed, arm=arm, about=about) as record:
        for task, value in enumerate(ends):
            record.add({"task": task, "epoch": 0, "test_accuracy": 0.0})
            record.add({"task": task, "epoch": 3, "test_accuracy": value})
        record.end(status)


def test_arms_are_ranked_by_their_last_tasks_with_mean_and_spread_over_seeds(tmp_path: Path) -> None:
    recorded(tmp_path, "falls", 1, [0.9] * 2 + [0.5] * 16 + [0.1, 0.2])
    recorded(tmp_path, "falls", 2, [0.8] * 2 + [0.5] * 16 + [0.3, 0.4])
    recorded(tmp_path, "stays", 1, [0.7] * 20)
    recorded(tmp_path, "one that failed", 1, [0.99] * 20, status="failed")
    recorded(tmp_path, "first task 12345678", 1, [1.0], tasks=1)
    recorded(tmp_path, "stays", 2, [0.9], status="diverged")
    best, worst, failed = summarise(tmp_path)
    assert (failed.arm, failed.last, failed.others) == ("one that failed", (), ("failed",))
    assert best.others == ("diverged",)
    head, first, *_, last = summary_table([best, worst, failed])
    assert head.split() == [
        "test_accuracy",
        "first",
        "2",
        "tasks",
        "last",
        "2",
        "tasks",
        "±",
        "over",
        "seeds",
        "n",
        "others",
    ]
    assert first.split() == ["stays", "0.700", "0.700", "-", "1", "1", "diverged"]
    assert last.split() == ["one", "that", "failed", "-", "-", "-", "0", "1", "failed"]
    assert (best.arm, best.tasks, best.last, best.spread) == ("stays", 2, pytest.approx((0.7,)), 0.0)
    assert worst.arm == "falls"
    assert worst.first == pytest.approx((0.9, 0.8))
    assert worst.last == pytest.approx((0.15, 0.35))
    assert worst.mean == pytest.approx(0.25)
    assert worst.spread == pytest.approx(0.1414, abs=1e-4)


def test_a_figure_that_was_not_recorded_is_an_error_that_names_those_that_were(tmp_path: Path) -> None:
    recorded(tmp_path, "arm", 1, [0.5], metric="full_accuracy")
    with pytest.raises(ValueError, match=r"has no 'full_accuracy': set metric = .* to one of test_accuracy"):
        summarise(tmp_path)
