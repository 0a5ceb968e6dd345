"""Many runs: each by itself, on every engine the same, and none takes another down."""

import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import replastic
from replastic.options import OptionError
from replastic.record import Record, find_runs
from replastic.record import read as read_run
from replastic.report import best
from replastic.runs import execute as in_this_process
from replastic.runs.config import Experiment, parse, read
from replastic.runs.run import Running
from replastic.runs.spec import RunSpec, first_task_of, runs_of
from replastic.runs.sweep import Local, OnRay, OnSlurm, Outcome, local, sweep
from replastic.runs.sweep.call import Call, perform


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # bits are compared, and GPUs do not promise them
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def tiny(arms: Mapping[str, Any] | None = None, *, epochs: int = 1, validation: int = 0, **changed: Any) -> dict[str, Any]:
    table = {
        "name": "tiny",
        "seeds": [1, 2],
        "data": {"name": "digits", "validation": validation},
        "model": {"name": "mlp", "hidden": [8]},
        "protocol": {"name": "continual", "chunks": 2, "epochs": epochs},
        "training": {"renew_optimizer": True},
        "arms": arms or {"base": {}, "FIRE": {"name": "fire"}},
    }
    return {**table, **changed}


def rows_of(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): (path / "rows.jsonl").read_bytes() for path in find_runs(out)}


def statuses(outcomes: list[Outcome]) -> dict[tuple[str, int], str]:
    return {(outcome.arm, outcome.seed): outcome.status for outcome in outcomes}


def obstruct(run: RunSpec, out: Path) -> Path:
    """Have a run fail for a reason that can be removed: where its checkpoints should be lies a file."""
    Record.open(out / run.folder, config=run.config(), seed=run.seed, arm=run.arm, about=run.about()).close()
    obstacle = out / run.folder / "checkpoints"
    obstacle.write_text("")
    return obstacle


ALONE = {"share_first_task": False}
NORMED = {"name": "mlp", "hidden": [8], "norm": "batch"}
BROKEN = {"broken": {"training": {"batch": 359}}}  # its last batch is one sample, of which a batch norm makes nothing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on", "options"), [("local", {}), ("ray", {}), ("slurm", {"cluster": "local"})], ids=["local", "ray", "submitit"]
)
def test_every_engine_gives_the_rows_of_runs_in_one_process(on: str, options: dict[str, Any], tmp_path: Path) -> None:
    experiment = parse(tiny(seeds=[1], **ALONE))
    in_this_process.run(experiment, tmp_path / "here", device="cpu")
    on_sigterm = signal.getsignal(signal.SIGTERM)
    outcomes = sweep(experiment, tmp_path / "out", on=on, jobs=2, device="cpu", options=options)
    assert statuses(outcomes) == {(arm, 1): "finished" for arm in ("base", "FIRE")}
    assert signal.getsignal(signal.SIGTERM) == on_sigterm
    assert all(read_run(outcome.folder).rows for outcome in outcomes)
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "here")
    if on == "ray":
        import ray

        assert not ray.is_initialized()  # the cluster was ours
    assert {read_run(outcome.folder).provenance["threads"] for outcome in outcomes} == {1}


@pytest.mark.slow
def test_a_failing_run_is_reported_the_others_finish_and_retry_runs_it_again_and_only_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = {"base": {}, **BROKEN, "stuck": {"name": "l2"}, "wrong": {"name": "fire", "where": "nowhere"}}
    experiment = parse(tiny(arms, seeds=[1], model=NORMED, **ALONE))
    stuck = runs_of(experiment)[2]
    obstacle = obstruct(stuck, tmp_path)
    outcomes = sweep(experiment, tmp_path, jobs=2)
    others = {("base", 1): "finished", ("wrong", 1): "not opened"}
    assert statuses(outcomes) == {("broken", 1): "failed", ("stuck", 1): "stopped", **others}
    broken = outcomes[1]
    assert "where='nowhere'" in outcomes[3].reason
    assert "more than 1 value per channel" in broken.reason
    assert broken.reason.startswith("Traceback")
    assert json.loads((broken.folder / "end.json").read_text())["reason"] == broken.reason

    obstacle.unlink()
    asked: list[str] = []
    train = Local.run
    monkeypatch.setattr(Local, "run", lambda self, calls: asked.extend(call.run.arm for call in calls) or train(self, calls))
    sweep(experiment, tmp_path, jobs=2)
    assert asked == ["stuck", "wrong"]
    asked.clear()
    again = sweep(experiment, tmp_path, jobs=2, retry=True)
    assert asked == ["broken", "wrong"]
    assert statuses(again) == {("broken", 1): "failed", ("stuck", 1): "finished", **others}
    in_this_process.run(experiment, tmp_path / "whole", arms=["stuck"], device="cpu")
    assert read_run(tmp_path / stuck.folder).rows == read_run(tmp_path / "whole" / stuck.folder).rows


def hears_signals() -> None:
    """In a new process: where tests run in the background of a shell, it would ignore signals, as they do."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


LONG = {"victim": {}, "other": {"training": {"learning_rate": 0.01}}}


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.005)


@pytest.mark.slow
def test_a_worker_that_is_killed_takes_one_run_down_and_the_next_sweep_goes_on_with_it_bit_for_bit(tmp_path: Path) -> None:
    experiment = parse(tiny(LONG, epochs=40, seeds=[1], **ALONE))
    victim = tmp_path / "out" / "victim" / "seed-1"
    outcomes: list[Outcome] = []
    sweeping = threading.Thread(target=lambda: outcomes.extend(sweep(experiment, tmp_path / "out", jobs=1)))
    sweeping.start()
    wait_for(lambda: any(victim.glob("checkpoints/0*")))  # the first task is over, the second is being trained
    os.kill(json.loads((victim / "lock").read_text())["pid"], signal.SIGKILL)
    sweeping.join()
    assert statuses(outcomes) == {("victim", 1): "killed", ("other", 1): "finished"}
    assert "SIGKILL" in outcomes[0].reason
    assert not (victim / "end.json").exists()
    assert statuses(sweep(experiment, tmp_path / "out", jobs=1)) == {
        ("victim", 1): "finished",
        ("other", 1): "finished",
    }
    assert json.loads((victim / "resumes.jsonl").read_text())["checkpoint"] == "000001"
    in_this_process.run(experiment, tmp_path / "whole", device="cpu")
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "whole")


def call_of(experiment: Experiment, arm: str, out: Path, seed: int = 1) -> Call:
    return Call(RunSpec(experiment, arm, seed), out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "jobs"),
    [
        (signal.SIGINT, 1),
        (signal.SIGTERM, 2),
        (signal.SIGHUP, 2),
        (signal.SIGKILL, 1),
    ],
)
def test_workers_end_with_their_sweep_and_leave_folders_to_go_on_with(
    how: signal.Signals, jobs: int, tmp_path: Path
) -> None:
    path = tmp_path / "e.toml"
    write_toml(path, tiny(LONG, epochs=100_000, seeds=[1], **ALONE))
    command = [sys.executable, "-m", "replastic", "sweep", str(path), "--out", str(tmp_path / "out")]
    arguments = ["--device", "cpu", "--jobs", str(jobs)]
    folders = [tmp_path / "out" / arm / "seed-1" for arm in ("victim", "other")][:jobs]
    with subprocess.Popen(
        [*command, *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=hears_signals
    ) as going:
        try:
            rows = [folder / "rows.jsonl" for folder in folders]
            wait_for(lambda: all(path.exists() and path.stat().st_size > 0 for path in rows))
            workers = {json.loads((folder / "lock").read_text())["pid"] for folder in folders}
            assert len(workers - {going.pid}) == jobs
            os.kill(going.pid, how)
            _, said = going.communicate(timeout=30)
        finally:
            going.kill()  # its workers end with it: whatever fails here, nothing trains on for hours
    stopped = (128 + how, "stopped; the same command continues\n")
    assert (going.returncode, said) == ((-9, "") if how == signal.SIGKILL else stopped)
    wait_for(lambda: not any(map(alive, workers)))
    for run in runs_of(read(path))[:jobs]:
        with Running(run, tmp_path / "out").record as record:
            assert record.status == "started"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def write_toml(path: Path, table: Mapping[str, Any]) -> None:
    """JSON's words for plain values and tables are TOML's, but for the colon."""

    def text(value: Any) -> str:
        if isinstance(value, Mapping):
            return "{ " + ", ".join(f"{json.dumps(key)} = {text(item)}" for key, item in value.items()) + " }"
        return "[" + ", ".join(map(text, value)) + "]" if isinstance(value, list) else json.dumps(value)

    path.write_text("".join(f"{key} = {text(value)}\n" for key, value in table.items()))


@pytest.mark.slow
def test_first_tasks_are_trained_once_and_one_that_fails_stops_nobody(tmp_path: Path) -> None:
    experiment = parse(tiny())
    firsts = {run.seed: first_task_of(run) for run in runs_of(experiment)}
    trained = Running(firsts[1], tmp_path)
    add = trained.record.add
    trained.record.add = lambda row: add({**row, "mark": "trained here"})
    trained.finish()
    trained.close()
    obstruct(firsts[2], tmp_path)
    outcomes = sweep(experiment, tmp_path, jobs=2)
    first = firsts[1].arm
    finished = {(arm, seed): "finished" for arm in ("base", "FIRE") for seed in (1, 2)}
    assert statuses(outcomes) == {(first, 1): "finished", (first, 2): "stopped", **finished}
    for arm in ("base", "FIRE"):
        marked = [row.get("mark") for row in read_run(tmp_path / arm / "seed-1").rows]
        assert marked == ["trained here"] * 2 + [None] * 2
        assert len(read_run(tmp_path / arm / "seed-2").rows) == 4


def test_runs_that_have_finished_are_not_run_again_and_need_no_engine(tmp_path: Path, monkeypatch: Any) -> None:
    experiment = parse(tiny())
    in_this_process.run(experiment, tmp_path, device="cpu")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.setattr(Local, "run", lambda *_: pytest.fail("nothing is left to run"))
    assert set(statuses(sweep(experiment, tmp_path)).values()) == {"finished"}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_folder_that_holds_another_run_is_an_outcome_that_says_so(tmp_path: Path) -> None:
    in_this_process.run(parse(tiny(seeds=[1], **ALONE)), tmp_path, arms=["base"], device="cpu")
    other = parse(tiny(seeds=[1], training={"renew_optimizer": False}, **ALONE))
    outcome = perform(call_of(other, "base", tmp_path))
    assert outcome.status == "not opened"
    assert "training.renew_optimizer is true there and false here" in outcome.reason


def test_a_run_that_diverges_is_an_outcome_of_its_own(tmp_path: Path) -> None:
    wild = {"training": {"optimizer": "sgd", "learning_rate": 1e30}}
    experiment = parse(tiny({"wild": wild}, seeds=[1], epochs=3, **ALONE))
    outcome = perform(call_of(experiment, "wild", tmp_path))
    assert outcome.status == "diverged"
    assert "the loss is nan" in outcome.reason


def test_what_workers_are_sent_means_the_same_run(tmp_path: Path) -> None:
    arms = {
        "redo": {"name": "redo", "grid": {"threshold": [0.0, 0.1]}},
        "both": {"methods": [{"name": "fire", "steps": 3}, {"name": "l2"}], "training": {"decay_at": [1]}},
    }
    experiment = parse(tiny(arms, measures={"names": ["effective_rank"]}, checkpoints={"minutes": 1}))
    for run in runs_of(experiment):
        back = pickle.loads(pickle.dumps(run))
        assert back == run
        assert back.config() == run.config()
        assert first_task_of(back).folder == first_task_of(run).folder
    # Threads and what was typed are the call's while it goes on, and the caller's again after it.
    before = torch.get_num_threads(), list(sys.argv)
    call = dataclasses.replace(call_of(parse(tiny()), "base", tmp_path), threads=2, command=["replastic", "sweep"])
    assert perform(call).status == "finished"
    made_with = read_run(tmp_path / "base" / "seed-1").provenance
    assert (made_with["threads"], made_with["command"]) == (2, ["replastic", "sweep"])
    assert (torch.get_num_threads(), sys.argv) == before


GRID = {"redo": {"name": "redo", "grid": {"threshold": [0.0, 0.1], "period": [5]}}, "base": {}}


def test_grids_expand_and_every_run_knows_its_point() -> None:
    runs = runs_of(parse(tiny(GRID, seeds=[1])))
    assert [run.arm for run in runs] == ["redo, threshold=0.0, period=5", "redo, threshold=0.1, period=5", "base"]
    assert [run.config()["grid"] for run in runs] == [
        {"arm": "redo", "point": {"threshold": 0.0, "period": 5}},
        {"arm": "redo", "point": {"threshold": 0.1, "period": 5}},
        None,
    ]
    assert runs[1].config()["methods"][0].items() >= {"name": "redo", "threshold": 0.1, "period": 5}.items()


def write_runs(experiment: Experiment, out: Path, rows: Callable[[RunSpec], list[dict[str, Any]] | None]) -> None:
    """Runs with made-up rows; None: one that diverged."""
    for run in runs_of(experiment):
        with Record.open(out / run.folder, config=run.config(), seed=run.seed, arm=run.arm, about=run.about()) as record:
            made = rows(run)
            for row in made or []:
                record.add(row)
            record.end("finished" if made else "diverged")


def test_best_goes_by_validation_even_where_the_test_set_says_otherwise(tmp_path: Path) -> None:
    def rows(run: RunSpec) -> list[dict[str, Any]]:
        large = "0.1" in run.arm
        made = [{"task": 0, "epoch": epoch, "validation_accuracy": 0.0 if large else 1.0} for epoch in range(3)]
        made += [{"task": 1, "epoch": 0, "validation_accuracy": 0.0}]
        early = [0.0 if large else 1.0] * 3  # the last five epochs count, and these came before
        late = [0.5 + 0.1 * run.seed] * 4 + [0.8 if large else 0.2]
        made += [
            {"task": 1, "epoch": epoch, "validation_accuracy": value, "test_accuracy": 0.1 if large else 0.9}
            for epoch, value in enumerate(early + late, 1)
        ]
        return made

    write_runs(parse(tiny(GRID, validation=100)), tmp_path, rows)
    found = best(tmp_path)
    assert list(found) == ["redo"]
    point, score, n, spread, arm, figure = found["redo"]
    assert point == {"threshold": 0.1, "period": 5}
    assert score == pytest.approx((4 * 0.65 + 0.8) / 5)
    assert spread == pytest.approx(0.08 / 2**0.5)
    assert (n, arm, figure) == (2, "redo, threshold=0.1, period=5", "validation_accuracy")


def test_best_refuses_without_validation_images(tmp_path: Path) -> None:
    write_runs(parse(tiny(GRID)), tmp_path, lambda run: [{"task": 0, "epoch": 1, "test_accuracy": 0.5}])
    with pytest.raises(OptionError, match=r"validation_accuracy.*\[data\] validation = 5000"):
        best(tmp_path)


def test_best_compares_points_on_the_seeds_that_all_have_and_divergence_is_worst(tmp_path: Path) -> None:
    def row(value: float) -> list[dict[str, Any]]:
        return [{"task": 0, "epoch": 1, "validation_accuracy": value}]

    experiment = parse(tiny(GRID, seeds=[1, 2, 3], validation=100))
    small, large = "redo, threshold=0.0, period=5", "redo, threshold=0.1, period=5"
    values = {(small, 1): 0.9, (small, 2): None, (small, 3): 0.9, (large, 1): 0.2, (large, 2): 0.1}
    write_runs(
        experiment, tmp_path, lambda run: row(value) if (value := values.get((run.arm, run.seed), 0)) is not None else None
    )
    (tmp_path / "redo,-threshold=0.1,-period=5" / "seed-3" / "end.json").unlink()  # it was stopped
    found = best(tmp_path)["redo"]
    assert (found.arm, found.n, found.score) == (large, 2, pytest.approx(0.15))
    for folder in tmp_path.glob("redo*0.1*/seed-*"):
        (folder / "end.json").unlink(missing_ok=True)
    with pytest.raises(OptionError, match=r"'redo'.* has 0 .*--retry"):
        best(tmp_path)


def test_best_says_what_it_lacks(tmp_path: Path) -> None:
    row = {"task": 0, "epoch": 1, "validation_accuracy": 0.5}
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        best(tmp_path / "nowhere")
    with pytest.raises(OptionError, match=r"has no runs: .*--out"):
        best(tmp_path)
    write_runs(parse(tiny()), tmp_path / "plain", lambda run: [row])
    with pytest.raises(OptionError, match="has no runs of a grid"):
        best(tmp_path / "plain")
    write_runs(parse(tiny(GRID, metric="full_accuracy")), tmp_path / "metric", lambda run: [row])
    with pytest.raises(OptionError, match=r"metric = 'full_accuracy'.*validation"):
        best(tmp_path / "metric")
    write_runs(parse(tiny(GRID)), tmp_path / "wild", lambda run: None)
    with pytest.raises(OptionError, match="every point of 'redo' diverged"):
        best(tmp_path / "wild")
    write_runs(parse(tiny(GRID, name="another")), tmp_path / "plain" / "more", lambda run: [row])
    write_runs(parse(tiny(GRID)), tmp_path / "plain" / "redo", lambda run: [row])
    with pytest.raises(OptionError, match="runs of 2 experiments, another, tiny"):
        best(tmp_path / "plain")


def test_wrong_engines_options_and_numbers_are_errors_that_say_what_to_type(tmp_path: Path) -> None:
    experiment = parse(tiny())
    for given, said in (
        ({"on": "slrum"}, "on='slrum': did you mean 'slurm'"),
        ({"jobs": 0}, "jobs=0: "),
        ({"options": {"partition": "gpu"}}, "has the key 'partition': nothing can be set"),
        ({"options": {"threads": 2}}, "--set run.threads=2"),
        ({"on": "ray", "options": {"cpu": 2}}, "did you mean 'cpus'"),
        ({"on": "ray", "options": {"cpus": "two"}}, "--engine cpus = 'two'"),
        ({"on": "slurm", "options": {"cluster": "pbs"}}, "cluster.*'slurm' or 'local' or 'debug'"),
        ({"on": "slurm", "device": "cuda:1"}, "device='cuda:1'"),
        ({"device": "cuda"}, "torch sees no GPU here"),
        ({"arms": ["fire"]}, "--arm 'fire'"),
        ({"changes": ["training.batch=1"]}, r"changes=.*training\.batch=1"),
    ):
        with pytest.raises(OptionError, match=said):
            sweep(experiment, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("on", "package", "extra"), [("ray", "ray", "ray"), ("slurm", "submitit", "slurm")])
def test_a_missing_package_is_named_with_what_to_install(
    on: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf'pip install "replastic\[{extra}\]"'):
        sweep(parse(tiny()), tmp_path, on=on)


def test_slurm_needs_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OptionError, match="there is no sbatch on this machine"):
        sweep(parse(tiny()), tmp_path / "out", on="slurm")


@pytest.mark.slow
def test_slurm_is_asked_for_what_the_options_say_and_a_lost_job_is_a_killed_run(tmp_path: Path, monkeypatch: Any) -> None:
    """With programs that only pretend to be SLURM's: what submitit asks them for is what is tested."""
    for name, text in (
        ("sbatch", f'cp "$1" {tmp_path}/script; echo "Submitted batch job 7"'),
        ("srun", ""),
        ("sacct", r'printf "JobID|State|NodeList\n7_0|NODE_FAIL|n1\n7_1|NODE_FAIL|n1\n"'),
        ("scancel", ""),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    submitit = pytest.importorskip("submitit")
    monkeypatch.setattr(submitit.SlurmJob, "_results_timeout_s", 0.1)  # else it waits long for files on slow disks
    options = {"partition": "short", "time": 90, "gpus": 1, "cpus": 3, "memory": 8}
    outcomes = sweep(parse(tiny(seeds=[1], **ALONE)), tmp_path / "out", on="slurm", jobs=2, options=options)
    assert statuses(outcomes) == {("base", 1): "killed", ("FIRE", 1): "killed"}
    assert "NODE_FAIL" in outcomes[0].reason
    script = (tmp_path / "script").read_text()
    for line in ("partition=short", "time=90", "gpus-per-node=1", "cpus-per-task=3", "mem=8GB", "array=0-1%2"):
        assert f"#SBATCH --{line}\n" in script


@pytest.mark.slow
def test_a_job_that_has_to_make_room_goes_on_with_the_same_run(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    from replastic.runs.sweep.on_slurm import Job

    again = Job().checkpoint(call_of(parse(tiny(**ALONE)), "base", tmp_path))
    assert again.result().status == "finished"


def test_workers_import_the_package_that_started_them_and_none_of_its_modules_by_a_short_name() -> None:
    path = [str(local._PACKAGES)]  # the first of a worker's PYTHONPATH
    found = PathFinder.find_spec("replastic", path)
    assert found is not None
    assert found.origin == replastic.__file__
    assert PathFinder.find_spec("models", path) is None


def test_workers_are_dealt_out_over_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (Local(device="cuda").devices, Local(device="cuda").jobs) == (["cuda:0", "cuda:1"], 2)
    assert (Local(device="cuda:1").devices, Local(device="cuda:1").jobs) == (["cuda:1"], 1)
    assert Local(6, device="cuda").jobs == 6
    assert OnRay(device="cuda").gpus == 1
    assert OnRay(device="cuda", options={"gpus": 0.25}).gpus == 0.25


def test_a_place_on_the_cluster_that_nobody_has_is_an_error_and_others_clusters_are_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    engine = OnRay(options={"cpus": 4})
    engine._ray = SimpleNamespace(
        is_initialized=lambda: True, cluster_resources=lambda: {"CPU": 1.0}, shutdown=lambda: pytest.fail("it is not ours")
    )
    with pytest.raises(OptionError, match="cpus=4, and the Ray cluster has 1 in all: pass --engine cpus=N"), engine:
        pass


def test_jobs_of_the_stand_in_for_slurm_are_as_many_as_there_are_cores(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    cores = len(os.sched_getaffinity(0))
    assert OnSlurm(tmp_path, options={"cluster": "local"}).jobs == cores
    assert OnSlurm(tmp_path, options={"cluster": "local", "cpus": 2 * cores}).jobs == 1


def test_a_run_that_another_sweep_has_finished_meanwhile_has_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = parse(tiny({"base": {}}, seeds=[1], **ALONE))

    def busy(self: Local, calls: Any) -> Any:
        """As if another process had held the folder, and finished after that."""
        in_this_process.run(experiment, tmp_path / "out", device="cpu")
        return (call.outcome("not opened", "is open in another process") for call in calls)

    monkeypatch.setattr(Local, "run", busy)
    assert statuses(sweep(experiment, tmp_path / "out", device="cpu")) == {("base", 1): "finished"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "read only").mkdir(mode=0o500)
    with pytest.raises(OptionError, match=r"read only.*cannot be written to"):
        in_this_process.run(parse(tiny()), tmp_path / "read only" / "out", device="cpu")
