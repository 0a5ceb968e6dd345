"""Images as tensors, and the tasks that are made of them.

The images of a data set are on the device once, as bytes. A task has an index into them, its own labels and, if its pixels
are shuffled, their order: tasks share the images, and each batch is gathered on the device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from ...learner import IndexedTask, Samples
from ...learner.task import batches_of, outputs_of
from ..base import in_evaluation
from .stacked import stacked_examples

Loss = Callable[[Any, Tensor], Tensor]
_EVALUATED_AT_ONCE = 1000  # samples: enough to fill a GPU, few enough for a large network's activations


@dataclass(frozen=True, eq=False)
class Split:
    """Images, uint8 (samples, height, width, channels), and their labels, int64 (samples,)."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            raise ValueError(
                f"images are {self.images.dtype} of shape {tuple(self.images.shape)}: pass bytes (samples, height, width, "
                "channels), as in images.permute(0, 2, 3, 1) for channels first"
            )
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            raise ValueError(
                f"labels are {self.labels.dtype} of shape {tuple(self.labels.shape)} for {len(self.images)} images: pass "
                "one int64 each"
            )
        if self.labels.device != self.images.device:
            raise ValueError(
                f"images are on {self.images.device} and labels on {self.labels.device}: move both to one device, as in "
                "labels.to(images.device)"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Split({len(self)} images of {' x '.join(map(str, self.images.shape[1:]))}, {self.labels.device})"

    def of(self, index: Tensor) -> Split:
        """Some of the samples."""
        return Split(self.images[index], self.labels[index])

    def to(self, device: torch.device | str) -> Split:
        return Split(self.images.to(device), self.labels.to(device))


class DataSet(ABC):
    """The interface of a data set for protocols: images (`ImageData`), or any other tensors (`TensorData`), in splits.

    classes: their number; None: the labels are not class numbers.
    """

    name: str
    train: Any
    test: Any
    validation: Any
    classes: Any

    @property
    @abstractmethod
    def positions(self) -> int:
        """The number of positions in a sample that `permuted_pixels` permutes."""

    @abstractmethod
    def examples(self, split: Any, index: Tensor | None = None, labels: Tensor | None = None) -> Any:
        """Some of a split's samples, or all, with their own labels or others. index: numbers, or a bool for each sample."""

    @abstractmethod
    def task(
        self,
        name: str,
        examples: Any,
        tests: Mapping[str, Any],
        *,
        batch: int,
        epochs: int,
        allowed: Tensor | None = None,
        new: Tensor | None = None,
    ) -> LabelledTask:
        """A task that trains on `examples` and is tested on each of `tests`. allowed, new: see `labelled_task`."""

    def splits(self) -> dict[str, Any]:
        """The splits that exist, by name."""
        held_out = {"validation": self.validation} if self.validation is not None else {}
        return {"train": self.train, **held_out, "test": self.test}

    def to(self, device: torch.device | str) -> Self:
        return replace(self, **{name: split.to(device) for name, split in self.splits().items()})  # pyright: ignore

    def hold_out(self, samples: int, seed: int) -> Self:
        """The data set with some of its training samples, chosen at random, as validation samples."""
        if self.validation is not None:
            raise ValueError(
                f"{self.name} already has {len(self.validation)} validation samples, which would be lost: hold out once"
            )
        if not isinstance(samples, int) or not 0 < samples < len(self.train):
            raise ValueError(f"validation={samples}: {self.name} has {len(self.train)} training samples: hold out fewer")
        order = shuffled(len(self.train), seed).to(self.train.labels.device)
        held_out, kept = self.train.of(order[:samples]), self.train.of(order[samples:])
        return replace(self, validation=held_out, train=kept)  # pyright: ignore


@dataclass(frozen=True, eq=False)
class ImageData(DataSet):
    """A data set of images. Mean and standard deviation, by which channels are normalised, are for pixels in [0, 1]."""

    name: str
    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    validation: Split | None = None

    def __post_init__(self) -> None:
        for name, split in self.splits().items():
            mine, first = ((tuple(one.images.shape[1:]), one.images.device) for one in (split, self.train))
            if mine != first:
                raise ValueError(
                    f"{self.name}: {name} images are {mine[0]} on {mine[1]}, but train images {first[0]} on {first[1]}: "
                    "all splits must have the same shape and device"
                )
            if len(split) and not 0 <= int(split.labels.min()) <= int(split.labels.max()) < self.classes:
                raise ValueError(
                    f"{self.name}: {name} labels go from {int(split.labels.min())} to {int(split.labels.max())}, and there "
                    f"are {self.classes} classes"
                )
        channels = self.train.images.shape[-1]
        if not len(self.mean) == len(self.std) == channels:
            raise ValueError(f"{self.name}: {len(self.mean)} means and {len(self.std)} deviations for {channels} channels")
        if not all(0 < deviation < math.inf for deviation in self.std):
            raise ValueError(
                f"{self.name}: std={self.std}, by which images are divided: pass a positive number for each channel, 1 for "
                "a constant one"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image, as a model sees it."""
        _, height, width, channels = self.train.images.shape
        return channels, height, width

    @property
    def positions(self) -> int:
        return self.shape[1] * self.shape[2]

    def as_pixels(self) -> ImageData:
        """The data set with images from 0 to 1 instead of normalised ones."""
        return replace(self, mean=(0.0,) * len(self.mean), std=(1.0,) * len(self.std))

    def examples(self, split: Split, index: Tensor | None = None, labels: Tensor | None = None) -> Examples:
        index, labels = chosen_of(split, index, labels)
        mean, std = (torch.tensor(values, device=labels.device).view(-1, 1, 1) for values in (self.mean, self.std))
        return Examples(split.images, index, labels, shift=255 * mean, scale=1 / (255 * std))

    def task(self, name: str, examples: Examples, tests: Mapping[str, Examples], **settings: Any) -> LabelledTask:
        return labelled_task(name, examples, tests, **settings)


def shuffled(count: int, seed: int) -> Tensor:
    """0 to count-1 in an order that depends only on the seed, not on the device."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True, eq=False)
class Examples:
    """The samples of a task: the numbers of its images, their labels, and the order of their pixels."""

    images: Tensor  # uint8 (all, height, width, channels): of the whole split, shared by all tasks
    index: Tensor  # (samples,)
    labels: Tensor  # (samples,)
    shift: Tensor  # (channels, 1, 1): subtracted from bytes,
    scale: Tensor  # (channels, 1, 1): and multiplied
    pixels: Tensor | None = None  # (height · width,): the pixel at each position; its channels stay together

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.labels.device

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised images (batch, channels, height, width), with channels last in memory, and labels."""
        images = self.images.index_select(0, self.index.index_select(0, chosen))
        if self.pixels is not None:
            images = images.flatten(1, 2).index_select(1, self.pixels).view_as(images)
        return (images.permute(0, 3, 1, 2) - self.shift) * self.scale, self.labels.index_select(0, chosen)

    stacked = staticmethod(stacked_examples)


def chosen_of(split: Any, index: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """The numbers and the labels of some of a split's samples, or of all, on its device."""
    device, count = split.labels.device, len(split)
    index = torch.arange(count, device=device) if index is None else torch.as_tensor(index, device=device)
    if index.dtype == torch.bool and len(index) == count:
        index = index.nonzero().flatten()
    if index.ndim != 1 or (len(index) and (index.is_floating_point() or index.dtype == torch.bool)):
        raise ValueError(
            f"an index of shape {tuple(index.shape)} and {index.dtype} for {count} samples: pass integers (samples,), "
            "or one bool for each sample"
        )
    index = index.to(torch.int64)
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < count:
        raise ValueError(f"an index goes from {int(index.min())} to {int(index.max())}, but there are {count} samples")
    labels = split.labels[index] if labels is None else torch.as_tensor(labels, device=device)
    if len(labels) != len(index):
        raise ValueError(f"there are {len(labels)} labels for {len(index)} samples: pass one for each")
    return index, labels


@dataclass(frozen=True, eq=False)
class LabelledTask(IndexedTask):
    """A task of samples with labels.

    new: (classes,), bool: classes that no earlier task has; None: tasks of this protocol do not add classes.
    figures: the names of the figures that `evaluate` returns.
    """

    samples: Any = field(kw_only=True)  # with `labels`, like all of `tests`
    tests: Mapping[str, Any] = field(kw_only=True)
    new: Tensor | None = field(default=None, kw_only=True)
    figures: tuple[str, ...] = field(default=(), kw_only=True)

    def added(self, split: str) -> Tensor | None:
        if self.new is None:
            return None
        examples = self.samples if split == "train" else self.tests[split]
        return self.new[examples.labels].nonzero().flatten()


def labelled_task(
    name: str,
    examples: Any,
    tests: Mapping[str, Any],
    *,
    batch: int,
    epochs: int,
    allowed: Tensor | None = None,
    new: Tensor | None = None,
    loss: Loss = nn.functional.cross_entropy,
    figures: Sequence[str] = ("accuracy",),
) -> LabelledTask:
    """A task that trains on `examples` and is tested on each of `tests`, as "<name>_accuracy".

    allowed: (classes,), bool: outputs of other classes are ignored, in training and in tests. None: all count.
    new: see `LabelledTask`.
    loss: a function of outputs and targets that returns the mean over samples.
    figures: of each test, "accuracy", "loss" or both; without "accuracy", targets need not be class numbers.
    """
    check_samples(name, examples, tests, batch)
    masked = masking(name, allowed)

    def masked_loss(outputs: Any, targets: Tensor) -> Tensor:
        return loss(masked(outputs), targets)

    def correct(outputs: Any, targets: Tensor) -> Tensor:
        return masked(outputs).argmax(1) == targets

    sums: dict[str, Loss] = {
        "accuracy": lambda outputs, targets: correct(outputs, targets).sum(),
        "loss": lambda outputs, targets: masked_loss(outputs, targets).double() * len(targets),
    }
    wanted = {figure: sums[figure] for figure in figures}

    def evaluate(model: nn.Module) -> dict[str, float | Tensor]:
        found = {split: means(model, tested, wanted) for split, tested in tests.items()}
        return {f"{split}_{figure}": value for split, values in found.items() for figure, value in values.items()}

    return LabelledTask(
        name, batches_of(examples, batch), masked_loss, evaluate, epochs=epochs, batch_size=batch, new=new,
        correct=correct if "accuracy" in figures else None, samples=examples, tests=tests,
        figures=tuple(f"{split}_{figure}" for split in tests for figure in figures),
    )  # fmt: skip


def check_samples(name: str, examples: Samples, tests: Mapping[str, Samples], batch: int) -> None:
    """Raise if a task has no training or test samples, or an invalid batch size."""
    if not isinstance(tests, Mapping):
        raise TypeError(f"task {name!r}: tests is a {type(tests).__name__}: pass a dict of names and data.examples(...)")
    for what, one in {"examples": examples, **{f"tests[{key!r}]": tested for key, tested in tests.items()}}.items():
        if not hasattr(one, "batch"):
            raise TypeError(f"task {name!r}: {what} is {type(one).__name__}: pass data.examples(split)")
    if not len(examples):
        raise ValueError(f"task {name!r} has no training samples")
    empty = [split for split, tested in tests.items() if not len(tested)]
    if empty:
        raise ValueError(f"task {name!r} has no {empty[0]} samples, but {len(examples)} to train on: leave this test out")
    if not isinstance(batch, int) or batch < 1:
        raise ValueError(f"batch={batch!r}: set the number of samples in a step, an integer, 1 or more")


def masking(name: str, allowed: Tensor | None) -> Callable[[Tensor], Tensor]:
    """A function that sets the outputs of all other classes to -inf. allowed: see `labelled_task`."""

    def masked(outputs: Tensor) -> Tensor:
        if allowed is None:
            return outputs
        if outputs.shape[-1] != len(allowed):  # a single output would be broadcast
            raise ValueError(
                f"task {name!r}: the model has {outputs.shape[-1]} outputs, but there are {len(allowed)} classes"
            )
        return outputs.masked_fill(~allowed, -torch.inf)

    return masked


@torch.no_grad()
def means(model: nn.Module, examples: Samples, sums: Mapping[str, Loss]) -> dict[str, Tensor]:
    """Means over all samples in evaluation mode, as tensors on the device. sums: over a batch, of outputs and targets."""
    if not len(examples):
        raise ValueError("there are no samples to test on")
    totals = {name: torch.zeros((), dtype=torch.float64, device=examples.device) for name in sums}
    everything = torch.arange(len(examples), device=examples.device)
    with in_evaluation(model):
        for chosen in everything.split(_EVALUATED_AT_ONCE):
            inputs, labels = examples.batch(chosen)
            outputs = outputs_of(model, inputs)
            for name, of in sums.items():
                totals[name] += of(outputs, labels)
    return {name: total / len(examples) for name, total in totals.items()}
