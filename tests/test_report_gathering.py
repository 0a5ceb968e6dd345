"""Runs that belong together are found, and what cannot be read is said."""

from pathlib import Path

import pytest

from replastic.options import OptionError
from replastic.report import gather
from replastic.report.contents import chapter
from replastic.report.gathering import plain_arms

from .records import arm_of, rows_of, run_of, study_of, write

TEST = "test_accuracy"


def test_runs_are_gathered_by_experiment_arm_and_seed_with_the_plain_arm_first(tmp_path: Path) -> None:
    runs = [*arm_of("FIRE"), *reversed(arm_of("base")), *arm_of("a", about={"name": "other"}), *arm_of("Z")]
    first = run_of("first task 1", 1, rows_of([0.1]), tasks=1)
    write(tmp_path, *runs, first)
    studies, problems = gather([tmp_path])
    assert problems == []
    assert [study.name for study in studies] == ["study", "other"]
    assert list(studies[0].arms) == ["base", "FIRE", "Z"]
    assert list(studies[0].arms["base"]) == [1, 2, 3, 4, 5]
    assert [study.baseline for study in studies] == ["base", None]
    assert [run.arm for run in studies[0].shared] == ["first task 1"]
    assert [study.baseline for study in gather([tmp_path], baseline="FIRE")[0]] == ["FIRE", None]
    assert next(iter(gather([tmp_path], baseline="FIRE")[0][0].arms)) == "FIRE"


def test_a_folder_that_is_given_twice_or_inside_another_counts_once(tmp_path: Path) -> None:
    places = write(tmp_path, *arm_of("base"))
    (tmp_path / "link").symlink_to(places[0], target_is_directory=True)
    (study,), _ = gather([tmp_path, str(tmp_path), places[0], tmp_path / "link"])
    assert len(study.runs) == 5


def test_the_same_arm_and_seed_in_two_folders_is_an_error_that_names_both(tmp_path: Path) -> None:
    (one,) = write(tmp_path / "a", run_of("base", 1, rows_of([0.1])))
    (other,) = write(tmp_path / "b", run_of("base", 1, rows_of([0.2])))
    with pytest.raises(OptionError, match="'base' with seed 1 of 'study'") as problem:
        gather([tmp_path])
    assert str(one) in str(problem.value)
    assert str(other) in str(problem.value)


def test_names_that_cannot_be_meant_are_errors_that_say_what_can(tmp_path: Path) -> None:
    write(tmp_path, *arm_of("base"), *arm_of("FIRE"), run_of("first task 1", 1, rows_of([0.1]), tasks=1))
    with pytest.raises(OptionError, match=r"--baseline 'fier': did you mean 'FIRE'\? \(there are FIRE, base\)"):
        gather([tmp_path], baseline="fier")
    with pytest.raises(ValueError, match=r"'test_acuracy'.* test_accuracy"):
        gather([tmp_path], metric="test_acuracy")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        gather([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match=r"empty has no runs \(no run.json below it\)"):
        gather([tmp_path / "empty"])


def test_what_cannot_be_read_or_was_not_written_by_replastic_is_a_problem_and_not_the_end(tmp_path: Path) -> None:
    odd = [{"step": 1, "loss": 0.1}], [{"task": 0}], [{"task": 0, "epoch": 0}]
    places = write(tmp_path, *arm_of("base"), *(run_of("odd", seed, rows) for seed, rows in enumerate(odd)))
    (other,) = write(tmp_path / "z", run_of("odd", 9, rows_of([0.1])))
    places.append(other)
    text = (other / "run.json").read_text()
    (other / "run.json").write_text(text.replace('"seed": 9', '"seed": "nine"'))
    (places[1] / "run.json").write_text("{")
    (places[2] / "rows.jsonl").write_bytes((places[2] / "rows.jsonl").read_bytes()[:-3])
    (study,), problems = gather([tmp_path])
    assert list(study.arms) == ["base"]
    assert list(study.arms["base"]) == [1, 4, 5]
    assert len(problems) == 6
    assert all(str(place) in problem for place, problem in zip([places[1], places[2], *places[5:]], problems, strict=True))
    assert "rows.jsonl line 1 " in problems[2]
    assert f"{places[7]} has finished" in problems[4]
    assert 'seed is "nine"' in problems[5]


def test_of_several_arms_without_methods_the_one_that_trains_as_most_do_is_the_baseline() -> None:
    common, other = {"optimizer": "adam"}, {"optimizer": "sgd"}
    runs = [
        run_of("A other optimiser", 1, rows_of([0.1]), methods=[], training=other),
        run_of("base", 1, rows_of([0.2]), training=common),
        run_of("FIRE", 1, rows_of([0.3]), training=common),
    ]
    arms = {run.arm: {1: run} for run in runs}
    assert plain_arms(arms) == ["base", "A other optimiser"]
    said = chapter(study_of(*runs, baseline="base")).cautions
    assert any("A other optimiser" in text and "--baseline" in text for text in said)
