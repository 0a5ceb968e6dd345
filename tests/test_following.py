"""Following runs: every row once, while somebody else writes them."""

from pathlib import Path

from replastic.cli.progress import _duration, _Lines
from replastic.record import Record
from replastic.record.following import Following

ABOUT = {"name": "followed", "metric": "test_accuracy", "tasks": 2, "epochs": [3, 1]}


def opened(folder: Path) -> Record:
    return Record.open(folder, config={}, seed=1, arm="FIRE", about=ABOUT)


def steps(following: Following) -> list[int]:
    return [row["step"] for _, row in following.news()]


def test_each_row_comes_once_and_the_end_is_seen(tmp_path: Path) -> None:
    following = Following([tmp_path / "a", tmp_path / "never"])
    assert steps(following) == []
    with opened(tmp_path / "a") as record:
        record.add({"task": 0, "epoch": 1, "step": 1})
        record.add({"task": 0, "epoch": 2, "step": 2})
        assert steps(following) == [1, 2]
        assert steps(following) == []
        run = following.runs[0]
        assert (run.name, run.status, run.done) == ("FIRE, seed 1", "started", 0.5)
        record.add({"task": 1, "epoch": 1, "step": 4})
        record.end("finished")
    assert steps(following) == [4]
    assert run.ended
    assert run.done == 1.0
    assert following.runs[1].status == ""


def test_a_line_that_is_not_whole_yet_is_left_for_the_next_look(tmp_path: Path) -> None:
    with opened(tmp_path) as record:
        record.add({"task": 0, "epoch": 1, "step": 1})
        following = Following([tmp_path], whole=True)
        rows = tmp_path / "rows.jsonl"
        rows.write_bytes(rows.read_bytes() + b'{"task": 0, "epoch"')
        assert steps(following) == [1]
        rows.write_bytes(rows.read_bytes() + b': 2, "step": 2}\n')
        assert steps(following) == [2]


def test_what_was_there_before_is_no_news_unless_all_is_wanted(tmp_path: Path) -> None:
    with opened(tmp_path) as record:
        record.add({"task": 0, "epoch": 1, "step": 1})
        assert steps(Following([tmp_path])) == []
        assert steps(Following([tmp_path], whole=True)) == [1]
        record.end("finished")
    assert steps(Following([tmp_path], whole=True)) == []  # it has ended: there is nothing to look at


def test_rows_behind_a_checkpoint_come_again_when_a_run_is_resumed(tmp_path: Path) -> None:
    with opened(tmp_path) as record:
        record.add({"task": 0, "epoch": 1, "step": 1})
        record.save({"step": 1}, {"x": 1})
        record.add({"task": 0, "epoch": 2, "step": 2})
    following = Following([tmp_path])
    with opened(tmp_path) as record:
        record.resume()
        assert steps(following) == []
        record.add({"task": 0, "epoch": 2, "step": 2})
        assert steps(following) == [2]


def test_after_a_resume_the_share_is_what_is_still_there(tmp_path: Path) -> None:
    with opened(tmp_path) as record:
        record.add({"task": 0, "epoch": 1, "step": 1})
        record.save({"step": 1}, {"x": 1})
        record.add({"task": 1, "epoch": 0, "step": 3})
    following = Following([tmp_path])
    (run,) = following.runs
    assert (run.done, run.begun, run.rows) == (0.75, 0.75, 2)
    with opened(tmp_path) as record:
        record.resume()
        assert steps(following) == []
        assert (run.done, run.begun, run.rows, run.moved) == (0.25, 0.25, 1, True)


def test_a_run_that_failed_is_followed_again_only_if_it_is_tried_again(tmp_path: Path) -> None:
    with opened(tmp_path) as record:
        record.add({"task": 0, "epoch": 1, "step": 1})
        record.end("failed")
    once, again = Following([tmp_path]), Following([tmp_path], retry=True)
    assert steps(again) == []
    with opened(tmp_path) as record:
        record.retry()
        record.resume()
        record.add({"task": 0, "epoch": 1, "step": 1})
        assert steps(once) == []
        assert steps(again) == [1]
        record.end("finished")
    list(again.news())
    assert again.runs[0].status == "finished"


def test_a_damaged_record_does_not_stop_those_who_follow_others(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    following = Following([tmp_path / "bad", tmp_path / "good"])
    with opened(tmp_path / "good") as record:
        record.add({"task": 0, "epoch": 1, "step": 7})
    assert steps(following) == [7]


def test_without_a_terminal_ends_are_lines_and_silence_is_broken(tmp_path: Path, capsys, monkeypatch) -> None:
    following, lines = Following([tmp_path]), _Lines("test_accuracy")
    with opened(tmp_path) as record:
        record.add({"task": 0, "epoch": 2, "step": 1, "test_accuracy": 0.25})
        list(following.news())
        lines.show(following.runs, following.runs)
        assert capsys.readouterr().out == ""
        monkeypatch.setattr("replastic.cli.progress._SILENCE", -1.0)
        lines.show(following.runs, following.runs)
        said = capsys.readouterr().out
        assert said.startswith("FIRE, seed 1: task 1 of 2, epoch 2 of 3, test_accuracy 0.2500; about ")
        record.end("diverged", "too fast")
    list(following.news())
    lines.show(following.runs, following.runs)
    assert capsys.readouterr().out == "FIRE, seed 1: diverged, test_accuracy 0.2500 (1 of 1 runs)\n"


def test_a_first_task_that_another_run_has_trained_is_no_work_of_ones_own(tmp_path: Path) -> None:
    first, arm = tmp_path / "first", tmp_path / "arm"
    following = Following([arm], first={arm: first})
    assert following.firsts == following.runs[:1]
    with opened(first) as record:
        record.add({"task": 0, "epoch": 3, "step": 3})
        record.end("finished")
    with opened(arm) as record:
        record.add({"task": 0, "epoch": 3, "step": 3})
        list(following.news())
        assert following.runs[1].done == 0
        record.add({"task": 1, "epoch": 1, "step": 4})
        list(following.news())
        assert following.runs[1].done == 1  # of one epoch


def test_a_first_task_that_nobody_could_train_for_it_is_a_runs_own_work(tmp_path: Path) -> None:
    first, arm = tmp_path / "first", tmp_path / "arm"
    following = Following([arm], first={arm: first})
    with opened(first) as record:
        record.end("failed")
    with opened(arm) as record:
        record.add({"task": 0, "epoch": 3, "step": 3})
        list(following.news())
    assert following.runs[1].done == 0.75


def test_time_is_counted_from_when_the_first_run_begins_and_not_from_the_first_task_that_runs_share(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("replastic.cli.progress.time.monotonic", lambda: clock[0])
    first, arm = tmp_path / "first", tmp_path / "arm"
    following, lines = Following([arm], first={arm: first}), _Lines("test_accuracy")

    def show() -> str:
        list(following.news())
        lines.show([run for run in following.runs if run.moved], following.runs[1:])
        return capsys.readouterr().out

    with opened(first) as record:
        record.add({"task": 0, "epoch": 1, "step": 1})
        clock[0] = 20
        show()
        record.add({"task": 0, "epoch": 3, "step": 3})
        clock[0] = 1000
        assert "left" not in show()
        record.end("finished")
    with Record.open(arm, config={}, seed=1, arm="FIRE", about={"tasks": 2, "epochs": [3, 10]}) as record:
        record.add({"task": 0, "epoch": 3, "step": 3})
        show()
        record.add({"task": 1, "epoch": 2, "step": 5})
        clock[0] = 1020
        assert "about 1 min 20 s left" in show()


def test_the_command_line_says_which_runs_share_a_first_task(tmp_path: Path) -> None:
    from replastic.cli.running import Run

    command = Run(file="fire/figure-2a-cifar10", out=str(tmp_path), arm=["base", "FIRE"], seed=[1])
    following = command._progress(command._read())._following
    (first,) = following.firsts
    assert first.folder.parent.name.startswith("first-task")
    assert [(run.folder.parent.name, run.first) for run in following.runs[1:]] == [("base", first), ("FIRE", first)]


def test_durations_are_as_people_say_them() -> None:
    assert [_duration(seconds) for seconds in (4.4, 75, 3700)] == ["4 s", "1 min 15 s", "1 h 1 min"]
