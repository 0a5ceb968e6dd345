"""Experiment files: strict, and wrong ones say what is wrong."""

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from replastic.options import OptionError
from replastic.record import find_runs
from replastic.record import read as read_record
from replastic.runs.config import Arm, Experiment, parse, read
from replastic.runs.spec import RunSpec, first_task_of, first_tasks, idle_in_first_task, runs_of, slug

TEXT = """
name = "an experiment"
seeds = [1, 2]
[data]
name = "digits"
[model]
name = "mlp"
hidden = [20, 20]
[protocol]
name = "warm_start"
fraction = 0.5
epochs = [2, 1]
[training]
renew_optimizer = true
batch = 50
[arms.base]
[arms.FIRE]
name = "fire"
steps = 5
[arms.CBP]
name = "cbp"
from_task = 1
[arms."L2 from the start"]
name = "l2"
"""


def table() -> dict[str, Any]:
    return tomllib.loads(TEXT)


def changed(*path: str, to: Any) -> dict[str, Any]:
    """The file with one thing changed; None takes it out."""
    whole = inner = table()
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    if to is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return whole


def experiment(**given: Any) -> Experiment:
    return parse({**table(), **given})


def test_a_file_says_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TEXT)
    found = read(tmp_path / "a.toml")
    assert (found.name, found.seeds, found.metric) == ("an experiment", (1, 2), "test_accuracy")
    assert found.workload.model == ("mlp", {"hidden": [20, 20]})
    assert found.workload.protocol == ("warm_start", {"fraction": 0.5, "epochs": [2, 1]})
    assert found.training.renew_optimizer is True
    assert found.training.batch == 50
    assert found.arms["FIRE"] == Arm((("fire", {"steps": 5}),), {})
    assert found.arms["base"].methods == ()


WRONG: list[tuple[tuple[str, ...], Any, str]] = [
    (("sedes",), [1], "the file has the key 'sedes': did you mean 'seeds'?"),
    (("seeds",), None, "the file has no 'seeds'"),
    (("seeds",), [], r"seeds = \[\]: .*at least one"),
    (("seeds",), [1, 1], "each once"),
    (("seeds",), [-1], "0 or more"),
    (("seeds",), ["one"], r"seeds = \['one'\]: .*list.*integer"),
    (("name",), 3, "name = 3: .*in quotes"),
    (("data", "name"), "cifar", "did you mean 'cifar10'?"),
    (("data", "name"), None, r"\[data\] has no name: .*digits"),
    (("data",), {"context": 32, "train": {"a": "a.txt"}}, r"\[data\] has no name: .* kind = \"text\""),
    (("data", "root"), "/here", "'root'"),
    (("data", "validaton"), 10, "has the key 'validaton': did you mean 'validation'?"),
    (("checkpoints", "minutes"), -1, "minutes = -1 must be 0 or more"),
    (("data", "validation"), 0.1, r"\[data\] validation = 0.1: .*integer"),
    (("data", "normalised"), "no", r"\[data\] normalised = 'no': .*true or false"),
    (("model", "name"), "resnet-18", "did you mean 'resnet'?"),
    (("model", "name"), "gpt", r"\[model\] model 'gpt' is for tokens; for images there are mlp, "),
    (("model", "hiden"), [3], "has the key 'hiden': did you mean 'hidden'?"),
    (("model", "hidden"), None, "has no 'hidden', which has no default"),
    (("model", "inputs"), 64, "has the key 'inputs'"),
    (("protocol", "name"), "warmstart", "did you mean 'warm_start'?"),
    (("protocol", "fractoin"), 0.1, "did you mean 'fraction'?"),
    (("protocol", "fraction"), "a tenth", "fraction = 'a tenth': .*number"),
    (("protocol", "batch"), 10, "has the key 'batch'"),
    (("protocol", "epochs"), 3, "epochs = 3: .*list.*integer"),
    (("training", "renew_optimizer"), None, "has no 'renew_optimizer', which has no default"),
    (("training", "renew_optimizer"), "yes", "renew_optimizer = 'yes': .*true or false"),
    (("training", "lr"), 0.1, r"\[training\] has the key 'lr'"),
    (("training", "learning_rte"), 0.1, "did you mean 'learning_rate'?"),
    (("training", "learning_rate"), -1, "learning_rate = -1 must be above 0"),
    (("training", "precision"), "fp32", "precision = 'fp32': .*'float32' or 'tf32' or 'bfloat16'"),
    (("training",), 3, r"\[training\] is 3: make it a table"),
    (("measures", "names"), "srank", "names = 'srank': .*list"),
    (("measures", "at"), ["middle"], "at = "),
    (("checkpoints", "minute"), 1, "did you mean 'minutes'?"),
    (("arms",), {}, r"\[arms\] has none: write \[arms.base\]"),
    (("arms", "x"), {"name": "fier"}, r"\[arms.x\] name = 'fier': did you mean 'fire'?"),
    (("arms", "x"), {"steps": 3}, r"\[arms.x\] has no name"),
    (("arms", "x"), {"name": "fire", "step": 3}, "has the key 'step': did you mean 'steps'?"),
    (("arms", "x"), {"name": "fire", "steps": "ten"}, "steps = 'ten': .*integer"),
    (("arms", "x"), {"name": "fire", "steps": 10**9}, r"\[arms.x\]: .*steps=1000000000"),
    (("arms", "x"), {"name": "spectral", "iterations": 10**9}, r"\[arms.x\]: .*iterations must be .* 1 to 10000"),
    (("arms", "x"), {"name": "fire", "steps": -3}, r"\[arms.x\]: .*steps"),
    (("arms", "x"), {"name": "cbp", "rate": 7}, r"CBP\(rate=7\): rate must be between 0 and 1"),
    (("measures",), {"names": ["weight_distance"], "at": ["end"]}, 'add "start" to at'),
    (("measures",), {"names": ["srank"], "at": []}, "is never"),
    (("measures",), {"names": ["srank"], "settings": {"srank": {"dleta": 1}}}, "srank has no setting 'dleta'"),
    (("arms", "x"), {"methods": "fire"}, "methods: .* a list"),
    (("arms", "x"), {"methods": [], "steps": 3}, "has the key 'steps'"),
    (("arms", "x"), {"training": {"lr": 1}}, r"\[arms.x\] training has the key 'lr'"),
    (("arms", "x"), {"training": {"learning_rate": 0}}, "learning_rate = 0 must be above 0"),
    (("arms", "x"), {"name": "fire", "grid": {"steps": 3}}, "steps = 3; .* a list"),
    (("arms", "x"), {"name": "fire", "grid": {"stepz": [3]}}, "did you mean 'steps'?"),
    (("arms", "x"), {"grid": {"steps": [3]}}, "no method whose settings"),
]


@pytest.mark.parametrize(("path", "to", "says"), WRONG, ids=[f"{'.'.join(path)}={to}" for path, to, _ in WRONG])
def test_what_cannot_be_meant_is_an_error_that_says_what_can(path: tuple[str, ...], to: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse(changed(*path, to=to))


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"no\.toml"):
        read(tmp_path / "no.toml")
    (tmp_path / "broken.toml").write_text("name == 3")
    with pytest.raises(OptionError, match=r"broken\.toml: .*line 1"):
        read(tmp_path / "broken.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match=r"binary\.toml.*UTF-8"):
        read(tmp_path / "binary.toml")
    (tmp_path / "wrong.toml").write_text(TEXT.replace("batch", "bacth"))
    with pytest.raises(OptionError, match=r"wrong\.toml: \[training\].*'bacth'.*'batch'"):
        read(tmp_path / "wrong.toml")


def test_changes_on_the_command_line_stand_above_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TEXT)
    found = read(tmp_path / "a.toml", ["training.batch=7", "training.precision=bfloat16", "protocol.epochs=[1, 1]"])
    assert (found.training.batch, found.training.precision) == (7, "bfloat16")
    assert found.workload.protocol[1]["epochs"] == [1, 1]
    named = read(tmp_path / "a.toml", ['arms."L2 from the start".strength=0.5', "arms.FIRE.where=['*.weight', '1*']"])
    assert named.arms["L2 from the start"].methods[0][1] == {"strength": 0.5}
    assert named.arms["FIRE"].methods[0][1]["where"] == ["*.weight", "1*"]
    for wrong, says in {
        "training.bathc=7": "did you mean 'batch'",
        "batch": "write it as section.key=value",
        "a b=3": "write it as section.key=value",
        "arms.Base.training.batch=3": r"\[arms\] has no 'Base'; did you mean 'base'",
        "name.x=1": "name is not a table",
    }.items():
        with pytest.raises(OptionError, match=says):
            read(tmp_path / "a.toml", [wrong])


def test_a_grid_is_an_arm_for_each_of_its_points() -> None:
    grid = {"name": "dash", "floor": 0.1, "grid": {"alpha": [0.1, 0.3], "floor": [0.05, 0.2]}}
    arms = parse(changed("arms", "DASH", to=grid)).arms
    found = {name: arm.methods[0][1] for name, arm in arms.items() if name.startswith("DASH")}
    assert found == {
        "DASH, alpha=0.1, floor=0.05": {"floor": 0.05, "alpha": 0.1},
        "DASH, alpha=0.1, floor=0.2": {"floor": 0.2, "alpha": 0.1},
        "DASH, alpha=0.3, floor=0.05": {"floor": 0.05, "alpha": 0.3},
        "DASH, alpha=0.3, floor=0.2": {"floor": 0.2, "alpha": 0.3},
    }


def test_two_arms_of_one_name_are_an_error() -> None:
    arms = {"x": {"name": "fire", "grid": {"steps": [3, 3]}}}
    with pytest.raises(OptionError, match="'x, steps=3'"):
        experiment(arms=arms)
    arms = {"x": {"name": "fire", "grid": {"steps": [3]}}, "x, steps=3": {}}
    with pytest.raises(OptionError, match="'x, steps=3'"):
        experiment(arms=arms)


def test_an_arm_may_have_several_methods_and_another_training() -> None:
    arm = {"methods": [{"name": "cbp", "rate": 1e-5}, {"name": "l2"}], "training": {"learning_rate": 0.1}}
    found = parse(changed("arms", "CBP+L2", to=arm))
    run = RunSpec(found, "CBP+L2", 1)
    assert [type(method).__name__ for method in run.methods()] == ["CBP", "L2"]
    assert run.training.learning_rate == 0.1
    assert RunSpec(found, "base", 1).training.learning_rate == 1e-3


def test_the_head_is_reset_in_every_arm_if_training_says_so() -> None:
    found = parse(changed("training", "reset_head", to=True))
    assert [type(method).__name__ for method in RunSpec(found, "FIRE", 1).methods()] == ["LayerReset", "FIRE"]
    assert [type(method).__name__ for method in RunSpec(found, "base", 1).methods()] == ["LayerReset"]


def test_runs_are_every_arm_with_every_seed_in_folders_of_their_own() -> None:
    runs = runs_of(experiment())
    assert [(run.arm, run.seed) for run in runs][:5] == [
        ("base", 1), ("FIRE", 1), ("CBP", 1), ("L2 from the start", 1), ("base", 2),
    ]  # fmt: skip
    assert len({run.folder for run in runs}) == 8
    assert str(RunSpec(experiment(), "L2 from the start", 2).folder) == "L2-from-the-start/seed-2"


def test_names_that_would_share_a_folder_are_an_error() -> None:
    with pytest.raises(OptionError, match="S-P"):
        runs_of(experiment(arms={"S&P": {}, "S P": {}}))


def test_letters_of_any_script_tell_folders_apart() -> None:
    assert [run.folder.parts[0] for run in runs_of(experiment(arms={"α": {}, "β": {}, "S&P": {}}, seeds=[1]))] == [
        "α",
        "β",
        "S-P",
    ]


@pytest.mark.parametrize("name", ["../up", "a/b", "..", ".hidden", "con: x", "tab\tname", "", "&&&"])
def test_no_name_leaves_its_folder(name: str) -> None:
    folder = Path(slug(name))
    assert len(folder.parts) == 1
    assert folder.name == slug(name)
    assert not folder.name.startswith(".")


def test_what_is_recorded_is_all_that_decides_the_results() -> None:
    base = RunSpec(experiment(), "FIRE", 1).config()
    assert base["training"]["learning_rate"] == 1e-3  # a default
    assert base["methods"][0].items() >= {"name": "fire", "steps": 5, "method": "published", "from_task": 0}.items()
    assert base["model"]["activation"] == "relu"
    assert base["protocol"]["train_accuracy"] is False
    for other in (
        changed("training", "batch", to=51),
        changed("model", "hidden", to=[20]),
        changed("protocol", "fraction", to=0.4),
        changed("arms", "FIRE", "steps", to=6),
        changed("measures", to={"names": ["srank"]}),
        changed("data", "validation", to=10),
    ):
        assert RunSpec(parse(other), "FIRE", 1).config() != base
    for free in (changed("checkpoints", to={"minutes": 1}), changed("about", to="x"), changed("metric", to="y")):
        assert RunSpec(parse(free), "FIRE", 1).config() == base


def test_a_first_task_is_shared_by_arms_that_are_idle_in_it() -> None:
    found = experiment()
    firsts = first_tasks(found)
    users = {run.arm for run in runs_of(found) if run.folder in firsts}
    assert users == {"base", "FIRE", "CBP"}
    assert len({first.folder for first in firsts.values()}) == 2  # one for each seed
    first = next(iter(firsts.values()))
    assert first.tasks == 1
    assert first.methods() == []
    assert first_tasks(experiment(share_first_task=False)) == {}


def test_a_first_task_is_only_shared_by_arms_that_train_alike() -> None:
    arms = copy.deepcopy(table()["arms"])
    arms["FIRE"]["training"] = {"learning_rate": 0.1}
    found = experiment(arms=arms)
    assert {run.arm for run in runs_of(found) if run.folder in first_tasks(found)} == {"base", "CBP"}
    assert first_task_of(RunSpec(found, "FIRE", 1)).folder != first_task_of(RunSpec(found, "base", 1)).folder


@pytest.mark.parametrize(
    ("method", "idle"),
    [
        ({"name": "fire"}, True),
        ({"name": "dash"}, True),
        ({"name": "full_reset"}, True),
        ({"name": "plasticity_injection"}, True),
        ({"name": "cbp"}, False),
        ({"name": "l2_init"}, False),
        ({"name": "muon"}, False),
        ({"name": "muon", "from_task": 1}, True),
        ({"name": "hare_and_tortoise"}, False),
        ({"name": "swr", "from_task": 1}, True),
        ({"name": "l2_er"}, False),
    ],
)
def test_which_methods_do_nothing_before_the_first_boundary(method: dict[str, Any], idle: bool) -> None:
    run = RunSpec(experiment(arms={"x": method}), "x", 1)
    assert idle_in_first_task(run.methods()) is idle


@pytest.mark.parametrize(
    ("record", "file"), [("fire-2a-cifar10", "fire/figure-2a-cifar10"), ("swr-table-1-mnist", "swr/table-1-mnist")]
)
def test_runs_that_were_recorded_before_options_were_added_can_be_continued(record: str, file: str) -> None:
    root = Path(__file__).parent.parent / "experiments"
    (place, *_) = find_runs(root / f"results/{record}.jsonl.gz")
    old = read_record(place)
    new = RunSpec(read(root / f"{file}.toml"), old.arm, old.seed).config()
    for recorded in (new, old.config):  # where and how fast it was run may be set for one run
        recorded.pop("training")
        recorded.pop("measures")
    assert new == old.config


def test_an_option_that_older_records_lack_is_recorded_where_it_is_set() -> None:
    small = {"name": "resnet", "widths": [8], "blocks": [1]}
    assert "init" not in RunSpec(experiment(model=small), "base", 1).config()["model"]
    drawn = experiment(model={**small, "init": "kaiming_fan_out"})
    assert RunSpec(drawn, "base", 1).config()["model"]["init"] == "kaiming_fan_out"
