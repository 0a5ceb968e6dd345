"""The tables of the papers: numbers read off them by hand, and what must hold between sweeps and best values."""

import pytest

from replastic.methods.grids import BEST, DEFAULTS, GRIDS

# Best values that are not in their own sweep, as the papers print them.
OUTSIDE = {
    ("l2_er/slippery_ant", "Ant", "er", "rate"),
    ("l2_er/permuted_mnist", "MNIST, fixed learning rate", "l2_er", "learning_rate"),
}
UNSEARCHED = {("fire", "steps")}


def test_every_best_value_was_searched_except_where_the_paper_prints_another() -> None:
    outside = set()
    for experiment, data in BEST.items():
        for name, methods in data.items():
            for method, fields in methods.items():
                for field, value in fields.items():
                    if (method, field) not in UNSEARCHED and value not in GRIDS[experiment][method][field]:
                        outside.add((experiment, name, method, field))
    assert outside == OUTSIDE


def test_sweeps_hold_each_value_once_and_belong_to_an_experiment_with_best_values() -> None:
    assert GRIDS.keys() == BEST.keys()
    assert DEFAULTS.keys() == {name for name in GRIDS if name.startswith("l2_er/")} | {"fire/warm_start"}
    for grid in GRIDS.values():
        for fields in grid.values():
            assert fields
            for values in fields.values():
                assert len(set(values)) == len(values) > 0


@pytest.mark.parametrize(
    ("experiment", "method", "field", "values"),
    [
        ("fire/warm_start", "shrink_and_perturb", "rate", [0.2, 0.4, 0.6, 0.8]),
        ("fire/continual", "dash", "floor", [0.05, 0.1, 0.3]),
        ("fire/class_incremental", "cbp", "maturity", [100, 1000]),
        ("fire/warm_start", "redo", "threshold", [0.01, 0.05, 0.1, 0.5]),
        ("fire/warm_start", "snr", "threshold", [0.01, 0.02, 0.04, 0.08]),
        ("fire/gpt", "shrink_and_perturb", "rate", [0.2, 0.5, 0.8]),
        ("l2_er/permuted_mnist", "er", "rate", [1e-2, 1e-3, 1e-4]),
        ("l2_er/continual_imagenet", "er", "rate", [1e-3, 1e-4, 1e-5]),
        ("l2_er/incremental_cifar", "l2_er", "rate", [1e-2, 1e-3, 1e-4]),
        ("l2_er/incremental_cifar", "cbp", "rate", [1e-4, 1e-5, 1e-6]),
        ("l2_er/slippery_ant", "cbp+l2", "rate", [1e-5, 1e-6, 1e-7]),
        ("l2_er/slippery_ant", "cbp+l2", "strength", [1e-3, 1e-4, 1e-5]),
        ("swr/continual", "l2_init", "strength", [0.1, 0.01, 0.001, 0.0001, 0.00001]),
    ],
)
def test_sweeps_are_those_of_the_tables(experiment: str, method: str, field: str, values: list[float]) -> None:
    assert GRIDS[experiment][method][field] == values


@pytest.mark.parametrize(
    ("experiment", "data", "method", "expected"),
    [
        ("fire/warm_start", "CIFAR-10 (ResNet-18)", "dash", {"alpha": 0.3, "floor": 0.05}),
        ("fire/warm_start", "CIFAR-100 (ViT-Tiny)", "cbp", {"rate": 1e-4, "maturity": 100}),
        ("fire/warm_start", "Tiny ImageNet (VGG-16)", "snr", {"threshold": 0.08}),
        ("fire/continual", "CIFAR-10 (ResNet-18)", "l2_init", {"strength": 1e-5}),
        ("fire/continual", "CIFAR-100 (ViT-Tiny)", "redo", {"threshold": 0.01}),
        ("fire/continual", "Tiny ImageNet (VGG-16)", "parseval", {"strength": 1e-4}),
        ("fire/class_incremental", "CIFAR-100 (ViT-Tiny)", "dash", {"alpha": 0.3, "floor": 0.3}),
        ("fire/class_incremental", "Tiny ImageNet (VGG-16)", "redo", {"threshold": 0.05}),
        ("fire/class_incremental", "Tiny ImageNet (VGG-16)", "fire", {"steps": 10}),
        ("fire/gpt", "30k", "shrink_and_perturb", {"rate": 0.8}),
        ("fire/gpt", "60k", "fire", {"steps": 5}),
        ("l2_er/permuted_mnist", "MNIST, fixed learning rate", "none", {"learning_rate": 1e-2}),
        ("l2_er/permuted_mnist", "MNIST", "cbp", {"learning_rate": 1e-3, "rate": 1e-6}),
        ("l2_er/continual_imagenet", "ImageNet", "er", {"learning_rate": 1e-4, "rate": 1e-5}),
        ("l2_er/continual_imagenet", "ImageNet", "l2_er", {"learning_rate": 1e-3, "rate": 1e-4, "strength": 1e-3}),
        ("l2_er/incremental_cifar", "CIFAR-100", "er", {"learning_rate": 1e-2, "rate": 1e-4}),
        ("l2_er/incremental_cifar", "CIFAR-100", "l2", {"learning_rate": 1e-2, "strength": 1e-4}),
        ("l2_er/slippery_ant", "Ant", "er", {"learning_rate": 1e-4, "rate": 1e-7}),
        ("l2_er/slippery_ant", "Ant", "cbp+l2", {"learning_rate": 1e-4, "rate": 1e-7}),
        ("swr/warm_start", "CIFAR-100 (CNN-BN)", "swr", {"rate": 1e-4, "classifier_rate": 1}),
        ("swr/continual", "MNIST (MLP)", "shrink_and_perturb", {"rate": 0.6}),
        ("swr/continual_limited", "CIFAR-100 (CNN-BN)", "swr", {"rate": 0.1, "classifier_rate": 0.01}),
        ("swr/generalisation", "TinyImageNet (VGG-16)", "swr", {"rate": 0.01, "classifier_rate": 0.1}),
        ("swr/generalisation", "CIFAR-10 (CNN)", "l2", {"strength": 0.01}),
    ],
)
def test_best_values_are_those_of_the_tables(experiment: str, data: str, method: str, expected: dict[str, float]) -> None:
    assert BEST[experiment][data][method] == expected


def test_a_number_that_cannot_be_read_is_absent() -> None:
    assert "swr" not in BEST["swr/warm_start"]["MNIST (MLP)"]
    assert "classifier_rate" not in BEST["swr/warm_start"]["TinyImageNet (VGG-16)"]["swr"]
    assert "strength" not in BEST["l2_er/slippery_ant"]["Ant"]["cbp+l2"]


def test_defaults_are_those_of_the_tables() -> None:
    assert [DEFAULTS[f"l2_er/{name}"]["er"]["every"] for name in ("permuted_mnist", "continual_imagenet")] == [100, 1]
    assert DEFAULTS["l2_er/incremental_cifar"]["l2"] == {"strength": 0.0005}
    assert DEFAULTS["l2_er/slippery_ant"]["cbp"] == {"rate": 1e-4, "decay": 0.99, "maturity": 10_000}
