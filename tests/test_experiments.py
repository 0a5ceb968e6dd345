"""Every file of experiments/ is what it says: the papers' sizes and numbers, and arms that train."""

import dataclasses
import importlib.util
import json
import math
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from replastic.methods.grids import BEST, DEFAULTS, GRIDS
from replastic.models import build_model
from replastic.report import gather
from replastic.report.summary import summarise
from replastic.runs.config import Experiment, parse, read
from replastic.runs.spec import RunSpec, first_tasks, runs_of
from replastic.train import train
from replastic.train.measuring import Measuring
from replastic.workloads.images import ImageData, Split

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
ALL = sorted(path.relative_to(ROOT / "experiments").as_posix() for path in (ROOT / "experiments").rglob("*.toml"))
# Those with images; tests/test_text_experiments.py has the others.
FILES = [file for file in ALL if tomllib.loads((ROOT / "experiments" / file).read_text()).get("kind", "images") == "images"]
PAGE = ROOT / "docs/experiments.md"
# (channels, side, classes) of each data set, and images in training and test
SHAPES = {
    "mnist": (1, 28, 10, 60_000, 10_000),
    "cifar10": (3, 32, 10, 50_000, 10_000),
    "cifar100": (3, 32, 100, 50_000, 10_000),
    "tiny_imagenet": (3, 64, 200, 100_000, 10_000),
    "digits": (1, 8, 10, 1_437, 360),
    "folder": (3, 32, 1000, 600_000, 100_000),
}


def experiment_of(file: str, changes: list[str] | None = None) -> Experiment:
    return read(ROOT / "experiments" / file, changes or [])


def of(*starts: str) -> list[str]:
    return [file for file in FILES if file.startswith(starts)]


def stand_in(name: str, root: object = None, **options: Any) -> ImageData:
    """A data set of small images, with two of each class to learn and one to test, and 40 of all classes at least."""
    channels, side, classes, _, _ = SHAPES[name]
    side, classes = min(side, 32), 4 if name == "folder" else min(classes, 40)
    draw = torch.Generator().manual_seed(0)

    def split(each: int) -> Split:
        labels = torch.arange(classes).repeat(max(each, math.ceil(20 * each / classes)))
        return Split(torch.randint(256, (len(labels), side, side, channels), generator=draw, dtype=torch.uint8), labels)

    return ImageData(name, split(2), split(1), classes, (0.5,) * channels, (0.25,) * channels)


SMALL_MODELS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "cnn": {"channels": 4, "hidden": [6]},
    "convnet": {"channels": [4, 4, 4], "hidden": [6, 6]},
    "resnet": {"widths": [4, 6], "blocks": [1, 1]},
    "vgg": {"widths": [4, 4, 4], "convolutions": [1, 1, 1], "hidden": [6, 6]},
    "vit": {"dim": 12, "depth": 2, "heads": 1, "head_dim": 8, "mlp": 10, "patch": 8},
}


def shrunken(file: str) -> Experiment:
    """The same arms on small networks, with two short tasks."""
    full = experiment_of(file)
    name, options = full.workload.model
    model = {**SMALL_MODELS[name], **({"hidden": [6] * len(options["hidden"])} if "hidden" in options else {})}
    changes = [f"model.{key}={json.dumps(value)}" for key, value in model.items()]
    two = {"warm_start": [], "single": [], "continual": ["chunks"], "class_incremental": ["phases"]}
    protocol = full.workload.protocol[0]
    changes += [f"protocol.{key}=2" for key in two.get(protocol, ["tasks"])]
    changes += ["protocol.epochs=" + ("[1, 1]" if protocol == "warm_start" else "1"), "training.evaluate_every=1"]
    changes += ["protocol.samples=30"] if "samples" in full.workload.protocol[1] else []
    changes += ['training.path="auto"'] if full.training.path == "compiled" else []  # which has tests of its own
    changes += ["data.validation=10"] if full.workload.validation else []
    images = len(stand_in(full.workload.data[0]).train)
    if full.workload.protocol[0] == "class_pairs":
        images = 2 * images // stand_in(full.workload.data[0]).classes
    changes += [f"training.batch={math.ceil(images / 3)}"]
    for arm, given in full.arms.items():
        for _, settings in given.methods:
            # What is done every so many steps is to be done within these few.
            name = given.grid_of or arm
            changes += [f'arms."{name}".{key}=1' for key in ("every", "period", "maturity") if key in settings]
    small = experiment_of(file, changes)
    return dataclasses.replace(small, measures=tuple(map(quick, small.measures)))


def quick(measuring: Measuring) -> Measuring:
    """The same measures in the first two tasks, on few samples and in few steps."""
    loose = {
        "hessian_epsilon_mass": {"order": 3},
        "hessian_epsilon_mass_as_released": {"order": 3},
        "hessian_top_eigenvalue": {"max_steps": 3, "tolerance": 10.0},
    }
    return dataclasses.replace(
        measuring,
        samples=10,
        every=1,
        spectrum=min(measuring.spectrum, 3),
        slice=min(measuring.slice, 2),
        settings={name: loose[name] for name in measuring.names if name in loose},
    )


def one_of_each_grid(experiment: Experiment) -> list[str]:
    arms = {given.grid_of or name: name for name, given in experiment.arms.items()}
    return list(arms.values())


@pytest.mark.parametrize("file", FILES)
def test_every_arm_trains_and_gives_the_figures_it_is_there_for(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replastic.workloads.images.workload.load", stand_in)
    monkeypatch.setenv("REPLASTIC_DATA", str(tmp_path))
    (tmp_path / "imagenet32").mkdir()  # continual-imagenet.toml names a folder, which must be there
    experiment = shrunken(file)
    for arm in one_of_each_grid(experiment):
        run = RunSpec(experiment, arm, experiment.seeds[0])
        learner, tasks = run.build(device=torch.device("cpu"))
        before = {name: value.clone() for name, value in learner.model.state_dict().items()}
        rows = [row.read() for row in train(learner, tasks, run.training, seed=run.seed, measuring=experiment.measures)]
        assert len(rows) == 2 * len(tasks), arm
        assert rows[-1]["step"] >= 2 * len(tasks), arm
        assert all(math.isfinite(row["loss"]) for row in rows if row["epoch"]), arm
        assert 0 <= rows[-1][experiment.metric] <= 1, arm
        assert any(not torch.equal(before[name], value) for name, value in learner.model.state_dict().items()), arm
        assert ("validation_accuracy" in rows[-1]) == bool(experiment.workload.validation)
        for measuring in experiment.measures:
            found = rows[2 * len(tasks) - 2 if "start" in measuring.at else -1]["measures"]  # of the last task
            wanted = [*measuring.names, *(["hessian_spectrum"] if measuring.spectrum else [])]
            wanted += ["loss_slice"] if measuring.slice else []
            wanted = [name if split == "train" else f"{split}/{name}" for split in measuring.on for name in wanted]
            assert all(any(key.startswith(name) for key in found) for name in wanted), (arm, found)
            assert "not_measured" not in found, (arm, found)


@pytest.mark.parametrize("file", FILES)
def test_every_file_is_read_strictly_and_says_what_it_is_of(file: str) -> None:
    experiment = experiment_of(file)
    assert len(runs_of(experiment)) == len(experiment.arms) * len(experiment.seeds)  # no two in one folder
    figure = re.search(r"(figure|table)-(\d+)", file)
    if figure is not None:
        kind, number = figure.groups()
        assert re.search(rf"{kind}s?\b[^.]*\b{number}", experiment.about), "its figure is named"
    assert "differs" in experiment.about or file.startswith(("swr/table-1", "fire/figure-6-left", "quick", "settings/"))
    assert all(len(line) <= 125 for line in (ROOT / "experiments" / file).read_text().splitlines())
    grids = {given.grid_of for given in experiment.arms.values()} - {""}
    searched = bool(grids) and file.startswith(("swr/", "settings/"))
    searched &= experiment.workload.protocol[0] != "random_labels"  # nothing could be learnt from images held out
    searched |= file.startswith("biases/")  # to learn from the same images as a file that is searched
    assert (experiment.workload.validation > 0) == searched, (
        "grids are searched by images that are held out, steps are only listed"
    )


@pytest.mark.parametrize(
    ("file", "parameters"),
    [
        ("fire/figure-2a-cifar10.toml", 11_436_618),
        ("fire/figure-2a-cifar100.toml", 5_373_700),
        ("fire/figure-2a-tiny-imagenet.toml", 18_075_912),
        ("swr/table-1-mnist.toml", 89_610),
        ("swr/table-1-cifar10.toml", 48_742),
        ("swr/table-1-tiny-imagenet.toml", 40_716_552),
        ("spectral-collapse/permuted-mnist.toml", 2_797_010),
        ("spectral-collapse/continual-imagenet.toml", 373_826),
    ],
)
def test_networks_are_of_the_published_size(file: str, parameters: int) -> None:
    experiment = experiment_of(file)
    channels, side, classes, _, _ = SHAPES[experiment.workload.data[0]]
    outputs = 2 if experiment.workload.protocol[0] == "class_pairs" else classes
    with torch.device("meta"):
        model = build_model(experiment.workload.model[0], (channels, side, side), outputs, **experiment.workload.model[1])
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


# Settings, against the papers' tables

PAIRS = {"cifar10": "CIFAR-10 (ResNet-18)", "cifar100": "CIFAR-100 (ViT-Tiny)", "tiny-imagenet": "Tiny ImageNet (VGG-16)"}
FIRE_SETTINGS = {
    "2a": ("fire/warm_start", ("warm_start", {"fraction": 0.1, "epochs": [1000, 100], "train_accuracy": True})),
    "2b": ("fire/continual", ("continual", {"chunks": 10, "epochs": 100, "access": "full", "train_accuracy": True})),
    "2c": ("fire/class_incremental", ("class_incremental", {"phases": 20, "epochs": 100, "train_accuracy": True})),
}


@pytest.mark.parametrize("file", of("fire/figure-2"))
def test_fire_has_the_papers_sizes_and_best_hyperparameters(file: str) -> None:
    figure, pair = re.fullmatch(r"fire/figure-(2.)-(.*)\.toml", file).groups()  # pyright: ignore[reportOptionalMemberAccess]
    experiment = experiment_of(file)
    table, protocol = FIRE_SETTINGS[figure]
    assert experiment.workload.protocol == protocol
    best = BEST[table][PAIRS[pair]]
    beside = {"swr", "l2_er"} if file == "fire/figure-2a-cifar10.toml" else set()  # of other papers
    arms = [given for arm, given in experiment.arms.items() if not arm.startswith("FIRE, ")]
    found = {name: settings for given in arms for name, settings in given.methods}
    assert set(found) == {*best, "full_reset", "muon", *beside}
    for method, fields in best.items():
        assert {field: found[method][field] for field in fields} == fields, method
    late = {name for name, settings in found.items() if settings.get("from_task")}
    assert late == ({*DEFAULTS[table], *beside} if figure == "2a" else set())
    assert found["fire"].get("where") == ("paper_vit" if pair == "cifar100" else None)


@pytest.mark.parametrize("file", of("fire/"))
def test_fire_trains_as_table_2_says(file: str) -> None:
    experiment = experiment_of(file)
    training = experiment.training
    assert experiment.seeds == (1, 2, 3)
    assert (training.optimizer, training.learning_rate, training.batch, training.clip) == ("adam", 1e-3, 256, 0.5)
    assert (training.warmup, training.renew_optimizer, training.anneal) == (0.1, True, "none")
    assert not any(given.training for given in experiment.arms.values())


@pytest.mark.parametrize("file", of("fire/figure-2a", "fire/figure-5", "fire/figure-6-middle-right"))
def test_all_arms_of_a_warm_start_share_their_first_task(file: str) -> None:
    experiment = experiment_of(file)
    firsts = first_tasks(experiment)
    assert len(firsts) == len(runs_of(experiment))
    assert len({first.folder for first in firsts.values()}) == len(experiment.seeds)


def test_redo_recycles_once_an_epoch_on_average() -> None:
    for file in of("fire/figure-2"):
        experiment = experiment_of(file)
        images, name = SHAPES[experiment.workload.data[0]][3], experiment.workload.protocol[0]
        parts = {"warm_start": 1, "continual": 10, "class_incremental": 20}[name]
        lengths = [math.ceil(images * part / parts / 256) for part in range(1, parts + 1)]
        ((_, redo),) = experiment.arms["ReDo"].methods
        assert abs(redo["period"] - sum(lengths) / parts) <= 0.5, file


L2_ER = {
    "permuted-mnist": ("l2_er/permuted_mnist", "MNIST, fixed learning rate", (1, 0.0, 0.5), "all"),
    "permuted-mnist-best-rate": ("l2_er/permuted_mnist", "MNIST", (1, 0.0, 0.5), "all"),
    "continual-imagenet": ("l2_er/continual_imagenet", "ImageNet", (100, 0.9, None), 2),
    "incremental-cifar": ("l2_er/incremental_cifar", "CIFAR-100", (100, 0.9, None), 2),
}


@pytest.mark.parametrize("file", [file for file in of("spectral-collapse/") if Path(file).stem in L2_ER])
def test_spectral_collapse_has_the_papers_hyperparameters(file: str) -> None:
    table, data, training, layers = L2_ER[Path(file).stem]
    experiment = experiment_of(file)
    best, fixed = BEST[table][data], DEFAULTS[table]
    for name, given in experiment.arms.items():
        run = RunSpec(experiment, name, experiment.seeds[0])
        assert (run.training.batch, run.training.momentum, run.training.clip) == training
        assert (run.training.optimizer, run.training.renew_optimizer) == ("sgd", False)
        (method, settings) = given.methods[0] if given.methods else ("none", {})
        if method == "full_reset":
            assert (name, settings, run.training.learning_rate) == ("RESET", {"to": "fresh"}, 1e-2)
            continue
        wanted = {**{k: v for k, v in fixed[method].items() if k != "learning_rate"}, **best[method]}
        assert run.training.learning_rate == wanted.pop("learning_rate"), name
        assert {**settings, "layers": None} == {**wanted, "layers": None}, name
        if method in ("er", "l2_er"):
            assert settings.get("layers", "all") == layers
    assert {given.methods[0][0] for given in experiment.arms.values() if given.methods} >= {"er", "l2_er", "cbp", "l2"}
    assert len(experiment.seeds) == (10 if "imagenet" in file else 5)
    assert experiment.seeds[0] == 2025
    assert {measuring.samples for measuring in experiment.measures} == {2000}


def test_the_rest_of_spectral_collapse_is_what_is_compared_with_files_of_the_paper() -> None:
    assert {Path(file).stem for file in of("spectral-collapse/")} - {*L2_ER} == {
        "class-pairs-cifar100",
        "permuted-mnist-as-released",
    }


def test_permuted_mnist_as_released_differs_from_the_papers_tables_in_what_it_says_alone() -> None:
    released, tables = (experiment_of(f"spectral-collapse/permuted-mnist{of}.toml") for of in ("-as-released", ""))
    assert not released.workload.normalised
    assert tables.workload.normalised
    assert dataclasses.replace(released.training, clip=0.5) == tables.training
    assert (released.workload.protocol, released.workload.model, released.measures) == (
        tables.workload.protocol,
        tables.workload.model,
        tables.measures,
    )
    changed = {"L2": {"strength": 1e-4}, "ER": {"rate": 1e-4}, "L2-ER": {"rate": 1e-2}}
    for name, arm in tables.arms.items():
        wanted = [(method, {**given, **changed.get(name, {})}) for method, given in arm.methods]
        assert list(released.arms[name].methods) == wanted


def test_class_pairs_stand_in_for_continual_imagenet() -> None:
    pairs, wanted = map(experiment_of, of("spectral-collapse/class-pairs", "spectral-collapse/continual-imagenet"))
    assert (pairs.workload.model, pairs.training) == (wanted.workload.model, wanted.training)
    assert {**pairs.workload.protocol[1], "tasks": 2000} == wanted.workload.protocol[1]
    for name, arm in wanted.arms.items():
        released = [(method, {**given, "every": 12} if "every" in given else given) for method, given in arm.methods]
        assert (list(pairs.arms[name].methods), pairs.arms[name].training) == (released, arm.training)


@pytest.mark.parametrize(
    ("file", "init", "last"),
    [
        ("continual-imagenet", "lecun", ["10", "12"]),
        ("class-pairs-cifar100", "lecun", ["10", "12"]),
        ("incremental-cifar", "kaiming_fan_out", ["head.1", "head.3"]),
    ],
)
def test_convolutional_networks_of_spectral_collapse_begin_and_are_measured_as_released(
    file: str, init: str, last: list[str]
) -> None:
    experiment = experiment_of(f"spectral-collapse/{file}.toml")
    assert experiment.workload.model[1]["init"] == init
    (figure_6,) = [measuring for measuring in experiment.measures if "effective_rank" in measuring.names]
    assert (figure_6.names, figure_6.on, figure_6.at) == (["dead_fraction", "effective_rank"], ["test"], ["end"])
    with torch.device("meta"):
        model = build_model(experiment.workload.model[0], (3, 32, 32), 2, **experiment.workload.model[1])
    linear = [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)]
    assert linear[:-1] == last, "its two hidden layers, which the figure is of"
    for name in last:
        assert f"/{name}" in experiment.about


def test_spectral_collapse_has_the_papers_sizes() -> None:
    protocols = {Path(file).stem: experiment_of(file).workload.protocol for file in of("spectral-collapse/")}
    assert protocols["permuted-mnist"] == ("permuted_pixels", {"tasks": 800, "epochs": 1})
    assert protocols["permuted-mnist-best-rate"] == protocols["permuted-mnist"]
    assert protocols["continual-imagenet"] == ("class_pairs", {"tasks": 2000, "epochs": 250})
    assert protocols["incremental-cifar"] == ("class_incremental", {"phases": 20, "epochs": 200, "masked": True})
    shown = {"permuted-mnist": [50, 300, 790], "continual-imagenet": [100, 800, 1400, 1990], "incremental-cifar": [10]}
    for name, tasks in shown.items():
        several = experiment_of(f"spectral-collapse/{name}.toml").measures
        (spectra,) = [measuring for measuring in several if measuring.spectrum]
        assert all(spectra.due(task, 0, 1) for task in tasks), "the figures' tasks are measured at their start"
        as_released = ("train", "new", 16) if name == "incremental-cifar" else ("eval", "all", 100)
        assert (spectra.mode, spectra.classes, spectra.spectrum) == as_released
        assert {settings["order"] for settings in spectra.settings.values()} <= {spectra.spectrum}
        assert list(spectra.on) == ["train", "test"]


SWR_PAIRS = {
    "mnist": "MNIST (MLP)",
    "cifar10": "CIFAR-10 (CNN)",
    "cifar100": "CIFAR-100 (CNN)",
    "cifar100-bn": "CIFAR-100 (CNN-BN)",
    "tiny-imagenet": "TinyImageNet (VGG-16)",
}
SWR_SETTINGS = {
    "figure-2": ("swr/warm_start", ("warm_start", {"fraction": 0.5, "epochs": [100, 100]})),
    "figure-3": ("swr/continual", ("continual", {"chunks": 10, "epochs": 100, "access": "full"})),
    "figure-4": ("swr/continual_limited", ("continual", {"chunks": 10, "epochs": 100, "access": "limited"})),
    "table-1": ("swr/generalisation", ("single", {"epochs": 200})),
    "table-5": ("swr/generalisation", ("single", {"epochs": 200})),
}


@pytest.mark.parametrize("file", [file for file in of("swr/") if file != "swr/figure-5.toml"])
def test_swr_has_the_papers_sizes_and_what_can_be_read_of_its_coefficients(file: str) -> None:
    figure, pair = re.fullmatch(r"swr/(\w+-\d)-(.*)\.toml", file).groups()  # pyright: ignore[reportOptionalMemberAccess]
    experiment = experiment_of(file)
    table, protocol = SWR_SETTINGS[figure]
    assert experiment.workload.protocol == protocol
    assert len(experiment.seeds) == (3 if pair == "tiny-imagenet" else 5)
    training = experiment.training
    assert (training.optimizer, training.learning_rate, training.batch, training.clip) == ("adam", 1e-3, 256, None)
    assert list(training.decay_at) == ([100, 150] if figure == "table-5" else [])
    best = BEST[table].get(SWR_PAIRS[pair], {})
    norm = pair in ("cifar100-bn", "tiny-imagenet")
    for method, grid in GRIDS[table].items():
        fields = [field for field in grid if norm or field != "classifier_rate"]
        found = [s for given in experiment.arms.values() for name, s in given.methods if name == method]
        found = [{key: value for key, value in settings.items() if key != "reinit"} for settings in found]
        for field in fields:
            known = best.get(method, {}).get(field)
            assert {settings[field] for settings in found} == ({known} if known is not None else set(grid[field])), method
        assert all(set(settings) == set(fields) for settings in found), method
    names = {name for given in experiment.arms.values() for name, _ in given.methods}
    resets = {"figure-2": {"layer_reset", "full_reset"}, "figure-3": {"layer_reset"}, "figure-4": {"layer_reset"}}
    assert names == {*GRIDS[table], *resets.get(figure, set())}
    reinit = [name for name, given in experiment.arms.items() if any(s.get("reinit") for _, s in given.methods)]
    assert reinit == (["SWR + re-init"] if figure == "table-5" else [])


def test_every_pair_of_the_swr_paper_has_its_files() -> None:
    assert set(of("swr/")) == {f"swr/{f}-{pair}.toml" for f in SWR_SETTINGS for pair in SWR_PAIRS} | {"swr/figure-5.toml"}


# The quick one, the script, and the page


def test_quick_compares_at_least_six_methods_on_three_seeds() -> None:
    experiment = experiment_of("quick.toml")
    methods = {given.methods[0][0] for given in experiment.arms.values() if given.methods}
    assert len(experiment.arms) >= 6
    assert len(experiment.seeds) >= 3
    assert methods >= {"full_reset", "shrink_and_perturb", "swr", "redo", "fire"}
    assert (experiment.workload.data[0], experiment.workload.protocol[0], experiment.metric) == (
        "digits",
        "random_labels",
        "train_accuracy",
    )
    tasks, epochs, samples = (experiment.workload.protocol[1][key] for key in ("tasks", "epochs", "samples"))
    steps = tasks * epochs * math.ceil(samples / experiment.training.batch)
    assert steps * len(experiment.arms) * len(experiment.seeds) < 200_000, "a minute and a half on two cores"


def test_methods_of_quick_have_the_best_of_their_search_and_of_three_points_each() -> None:
    (study,), _ = gather([ROOT / "experiments/results/quick-search.jsonl.gz"])
    searched, used = experiment_of("settings/quick-search.toml"), experiment_of("quick.toml")
    assert set(searched.seeds).isdisjoint(used.seeds)
    assert searched.training == used.training
    assert all(getattr(searched.workload, key) == getattr(used.workload, key) for key in ("data", "model", "protocol"))
    ranked = [one.arm for one in summarise(study)]
    grids = Counter(arm.grid_of for arm in searched.arms.values())
    assert set(grids.values()) == {3}
    for name in grids:
        best = next(arm for arm in ranked if searched.arms[arm].grid_of == name)
        assert used.arms[name].methods == searched.arms[best].methods, name
    without = {name for name, arm in used.arms.items() if name not in grids}
    assert without == {"base", "full reset", "FIRE, exact", "FIRE, then norms"}  # nothing to set, or nothing is searched


def script(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(re.sub(r"\W", "_", path), ROOT / "experiments" / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_of_fire_table_1_times_the_three_methods(capsys: pytest.CaptureFixture[str]) -> None:
    script("fire/table-1.py").main(["--quick", "--device", "cpu"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    seconds = {line["method"]: line["seconds"] for line in lines}
    assert set(seconds) == {"S&P", "FIRE", "DASH"}
    assert seconds["DASH"] > seconds["S&P"] > 0  # it passes over the images


def test_the_script_of_swr_figure_1_runs_and_proportional_scaling_keeps_the_accuracy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("swr/figure-1.py")
    monkeypatch.setattr(module, "load", lambda name, root=None: dataclasses.replace(stand_in("digits"), name=name))
    module.main(["--quick", "--device", "cpu"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["factor"], line["proportional"]) for line in lines] == [
        (0.9, False), (0.9, True), (0.5, False), (0.5, True)
    ]  # fmt: skip
    assert len({line["scaled"] for line in lines if line["proportional"]}) == 1
    assert {line["before"] for line in lines} == {lines[0]["before"]}


def test_the_example_of_the_page_is_a_whole_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)  # tests/test_starts.py runs the other one
    experiment = parse(tomllib.loads(text))
    assert [given.grid_of for given in experiment.arms.values()].count("L2 Init") == 3
    monkeypatch.setattr("replastic.workloads.images.workload.load", stand_in)
    small = dataclasses.replace(experiment, workload=dataclasses.replace(experiment.workload, validation=5))
    for arm in one_of_each_grid(experiment):
        learner, tasks = RunSpec(small, arm, 1).build(device=torch.device("cpu"))
        assert (len(tasks), tasks[1].epochs) == (2, 10)
        assert len(learner.methods) == len(experiment.arms[arm].methods)


def test_the_page_names_every_file_and_every_figure() -> None:
    text = (ROOT / "docs/reproduce.md").read_text()
    files = {path.relative_to(ROOT / "experiments").as_posix() for path in (ROOT / "experiments").rglob("*.py")}
    folders = "advice|biases|fire|spectral-collapse|swr|settings|watch"
    named = set(re.findall(rf"`((?:{folders})/[\w.-]+|(?:text-)?quick\.toml|domains\.toml)`", text))
    assert named == {*ALL, *files}
    for paper, figures in {
        "FIRE": ["2a", "2b", "2c", "3", "5a", "5b", "6 left", "6 middle, right", "7", "8a", "8b", "8c", "table 1"],
        "Spectral collapse": ["1 right", *map(str, range(2, 14))],
        "SWR": [*map(str, range(1, 7)), "table 1", "table 5"],
    }.items():
        section = text.split(f"### {paper}")[1].split("\n### ")[0]
        rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]
        assert set(figures) <= set(rows), (paper, set(figures) - set(rows))
