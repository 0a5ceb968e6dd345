"""Protocols: how a data set becomes a stream of tasks.

Each is a function of the data that returns a list of tasks. All randomness comes from `seed`, so that every method sees the
same tasks in the same order.

`epochs` are passes over a task's samples, `batch` is the number of samples in a step. All protocols test on the test set, as
"test_accuracy", and if training samples were held out, on those as "validation_accuracy". With train_accuracy=True they also
test on the task's training samples, in evaluation mode.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .tasks import DataSet, LabelledTask, shuffled


def single(
    data: DataSet, *, seed: int, batch: int = 256, epochs: int = 200, train_accuracy: bool = False
) -> list[LabelledTask]:
    """One task: all training data. It measures generalisation alone (Soft Weight Rescaling, tables 1 and 5)."""
    examples = data.examples(data.train)
    return [data.task("all", examples, _tests(data, examples, train_accuracy), batch=batch, epochs=epochs)]


def warm_start(
    data: DataSet,
    *,
    seed: int,
    batch: int = 256,
    fraction: float = 0.1,
    epochs: Sequence[int] = (1000, 100),
    train_accuracy: bool = False,
) -> list[LabelledTask]:
    """First a random part of the training data, then all of it, including that part."""
    if not 0 < fraction < 1:
        raise ValueError(f"fraction={fraction}: set the share of the data in the first task, between 0 and 1")
    if not isinstance(epochs, Sequence) or len(epochs) != 2:
        raise ValueError(f"epochs={epochs!r}: set two numbers, one for each task, as in [1000, 100]")
    order = shuffled(len(data.train), seed)
    first = order[: round(fraction * len(order))]
    if not 0 < len(first) < len(order):
        raise ValueError(
            f"fraction={fraction} of {len(order)} samples is {len(first)}: set one that leaves samples for both tasks"
        )
    return [
        _subset_task(data, name, index, batch, passes, train_accuracy)
        for name, index, passes in zip(("part", "all"), (first, order), epochs, strict=True)
    ]


def continual(
    data: DataSet,
    *,
    seed: int,
    batch: int = 256,
    chunks: int = 10,
    epochs: int = 100,
    access: str = "full",
    train_accuracy: bool = False,
) -> list[LabelledTask]:
    """The training data arrives in random chunks, whose sizes differ by at most one sample.

    access: "full": each task has all chunks so far; "limited": only the newest.
    """
    if access not in ("full", "limited"):
        raise ValueError(f'access={access!r}: set "full" (all chunks so far) or "limited" (only the newest)')
    pieces = _pieces(shuffled(len(data.train), seed), chunks, "chunks")
    return [
        _subset_task(
            data, f"chunk {number + 1}", torch.cat(pieces[0 if access == "full" else number : number + 1]), batch, epochs,
            train_accuracy,
        )
        for number in range(chunks)
    ]  # fmt: skip


def class_incremental(
    data: DataSet,
    *,
    seed: int,
    batch: int = 256,
    phases: int = 20,
    epochs: int = 100,
    masked: bool = False,
    train_accuracy: bool = False,
) -> list[LabelledTask]:
    """Each task adds classes, in random order, and has all data of the classes so far.

    The numbers of classes that tasks add differ by at most one.
    "test_accuracy" is on the classes so far, "full_accuracy" on the whole test set.

    masked: ignore the outputs of classes that were not added yet, as Incremental CIFAR of L2-ER does; False: all outputs
        count from the start, as in FIRE.
    """
    _check_classes(data, "class_incremental")
    added = _pieces(shuffled(data.classes, seed), phases, "phases")
    _check_present(data, data.train, "train", torch.arange(data.classes))
    tasks, seen = list[LabelledTask](), torch.zeros(data.classes, dtype=torch.bool, device=data.train.labels.device)
    for classes in added:
        new = torch.zeros_like(seen)
        new[classes.to(new.device)] = True
        seen = seen | new
        examples = _of_classes(data, data.train, seen)
        tests = {name: _of_classes(data, split, seen) for name, split in _held_out(data).items()}
        tests |= {"full": data.examples(data.test)} | ({"train": examples} if train_accuracy else {})
        name = f"{int(seen.sum())} classes"
        allowed = seen if masked else None
        tasks.append(data.task(name, examples, tests, batch=batch, epochs=epochs, allowed=allowed, new=new))
    return tasks


def permuted_pixels(
    data: DataSet, *, seed: int, batch: int = 1, tasks: int = 800, epochs: int = 1, train_accuracy: bool = False
) -> list[LabelledTask]:
    """Each task has its own order of pixels, the same for all training and test images.

    The channels of a pixel move together, so it keeps its colour. If samples are not images, single features are permuted.
    """
    _at_least_one(tasks, "tasks")
    base = data.examples(data.train)
    tests = _tests(data, base, train_accuracy)
    stream = []
    for number, order in enumerate(_drawn(seed, tasks, data.positions)):
        pixels = order.to(base.labels.device)
        shuffled_tests = {name: replace(test, pixels=pixels) for name, test in tests.items()}
        examples = replace(base, pixels=pixels)
        stream.append(data.task(f"permutation {number + 1}", examples, shuffled_tests, batch=batch, epochs=epochs))
    return stream


def random_labels(
    data: DataSet, *, seed: int, batch: int = 256, tasks: int = 40, epochs: int = 10, samples: int | None = None
) -> list[LabelledTask]:
    """Each task has new random labels for the same samples: earlier tasks do not help, and all tasks are equally hard.

    Tests are on the training samples, as "train_accuracy", because random labels do not generalise.

    samples: the number of training samples, chosen at random; None: all.
    """
    _at_least_one(tasks, "tasks")
    _check_classes(data, "random_labels")
    available = len(data.train)
    if samples is not None and not (isinstance(samples, int) and 0 < samples <= available):
        raise ValueError(f"samples={samples}: {data.name} has {available} training samples")
    draw = torch.Generator().manual_seed(seed)
    index = torch.randperm(available, generator=draw)[:samples]
    stream = []
    for number in range(tasks):
        labels = torch.randint(data.classes, index.shape, generator=draw)
        examples = data.examples(data.train, index, labels)
        stream.append(data.task(f"labels {number + 1}", examples, {"train": examples}, batch=batch, epochs=epochs))
    return stream


def class_pairs(
    data: DataSet,
    *,
    seed: int,
    batch: int = 100,
    tasks: int = 2000,
    epochs: int = 250,
    classes: int = 2,
    train_accuracy: bool = False,
) -> list[LabelledTask]:
    """Each task distinguishes two classes, drawn at random, as in Continual ImageNet. The model has one output for each.

    Classes are dealt like cards: none is used again before all others. If the last hand of a deck is incomplete, it is left
    out.

    classes: the number of classes in a task.
    """
    _at_least_one(tasks, "tasks")
    _check_classes(data, "class_pairs")
    if not isinstance(classes, int) or not 2 <= classes <= data.classes:
        raise ValueError(f"classes={classes}: {data.name} has {data.classes}, and a task needs at least 2")
    hands = _dealt(data.classes, classes, tasks, seed)
    for name, split in data.splits().items():
        _check_present(data, split, name, torch.cat(hands).unique())
    stream = []
    for hand in hands:
        examples = _relabelled(data, data.train, hand)
        tests = {name: _relabelled(data, split, hand) for name, split in _held_out(data).items()}
        tests |= {"train": examples} if train_accuracy else {}
        name = "classes " + ", ".join(map(str, hand.tolist()))
        stream.append(data.task(name, examples, tests, batch=batch, epochs=epochs))
    return stream


def label_noise(
    data: DataSet,
    *,
    seed: int,
    batch: int = 256,
    noise: Sequence[float] = (0.5, 0.0),
    epochs: Sequence[int] = (100, 100),
    train_accuracy: bool = False,
) -> list[LabelledTask]:
    """All training data in each task, with a share of the labels redrawn at random. Tests are on clean labels.

    noise: this share, for each task; a noisier task redraws the labels of the same samples and of more.
    """
    _check_classes(data, "label_noise")
    both = isinstance(noise, Sequence) and isinstance(epochs, Sequence)
    if not both or len(noise) != len(epochs) or not noise or not all(0 <= share <= 1 for share in noise):
        raise ValueError(f"noise={noise!r}, epochs={epochs!r}: set two lists of one length, the first of shares")
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.train), generator=draw)
    drawn = torch.randint(data.classes, order.shape, generator=draw)
    stream = []
    for share, passes in zip(noise, epochs, strict=True):
        labels = data.train.labels.cpu().clone()
        wrong = order[: round(share * len(order))]
        labels[wrong] = drawn[wrong]
        examples = data.examples(data.train, labels=labels)
        tests = _tests(data, examples, train_accuracy)
        stream.append(data.task(f"noise {share:g}", examples, tests, batch=batch, epochs=passes))
    return stream


PROTOCOLS = {
    "single": single,
    "warm_start": warm_start,
    "continual": continual,
    "class_incremental": class_incremental,
    "permuted_pixels": permuted_pixels,
    "random_labels": random_labels,
    "class_pairs": class_pairs,
    "label_noise": label_noise,
}


def _held_out(data: DataSet) -> dict[str, Any]:
    return {name: split for name, split in data.splits().items() if name != "train"}


def _tests(data: DataSet, learnt: Any, train_accuracy: bool) -> dict[str, Any]:
    tests = {name: data.examples(split) for name, split in _held_out(data).items()}
    return tests | ({"train": learnt} if train_accuracy else {})


def _subset_task(
    data: DataSet, name: str, index: Tensor, batch: int, epochs: int, train_accuracy: bool
) -> LabelledTask:  # fmt: skip
    examples = data.examples(data.train, index)
    return data.task(name, examples, _tests(data, examples, train_accuracy), batch=batch, epochs=epochs)


def _of_classes(data: DataSet, split: Any, wanted: Tensor) -> Any:
    return data.examples(split, wanted[split.labels].nonzero().flatten())


def _relabelled(data: DataSet, split: Any, hand: Tensor) -> Any:
    """The samples of some classes, with the new labels 0, 1, ... in the order of `hand`."""
    hand = hand.to(split.labels.device)
    place = torch.full((data.classes,), -1, device=hand.device)
    place[hand] = torch.arange(len(hand), device=hand.device)
    labels = place[split.labels]
    index = (labels >= 0).nonzero().flatten()
    return data.examples(split, index, labels[index])


def _check_classes(data: DataSet, protocol: str) -> None:
    if data.classes is None:
        kind = f"{data.train.labels.dtype} of shape {tuple(data.train.labels.shape)}"
        raise ValueError(
            f"{protocol} needs class numbers, but the targets of {data.name} are {kind}: return int64 targets (samples,), "
            "or name a protocol that does not need them, such as continual"
        )


def _check_present(data: DataSet, split: Any, name: str, wanted: Tensor) -> None:
    """Raise if a class has no samples in a split, because its results would be empty."""
    counts = torch.bincount(split.labels, minlength=data.classes)[wanted.to(split.labels.device)]
    absent = wanted[(counts == 0).cpu()].tolist()
    if absent:
        listed = ", ".join(map(str, absent[:5])) + (" and more" if len(absent) > 5 else "")
        advice = "hold out more samples" if name == "validation" else "leave the class out, and number the others from 0"
        raise ValueError(f"{data.name} has no {name} samples of class {listed}: {advice}")


def _pieces(order: Tensor, count: int, name: str) -> list[Tensor]:
    if not isinstance(count, int) or not 1 <= count <= len(order):
        raise ValueError(f"{name}={count!r}: set an integer from 1 to {len(order)}")
    return list(order.tensor_split(count))


def _drawn(seed: int, count: int, size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(size, generator=generator) for _ in range(count)]


def _dealt(classes: int, each: int, hands: int, seed: int) -> list[Tensor]:
    """Hands of `each` different classes, from one shuffled deck of all classes after the other."""
    generator = torch.Generator().manual_seed(seed)
    decks = (torch.randperm(classes, generator=generator) for _ in itertools.count())
    whole = (hand for deck in decks for hand in deck.split(each) if len(hand) == each)
    return list(itertools.islice(whole, hands))


def _at_least_one(count: int, name: str) -> None:
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"{name}={count!r}: set an integer, 1 or more")
