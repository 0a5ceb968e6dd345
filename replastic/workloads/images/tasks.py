"""Images as tensors, and the tasks that are made of them.

The images of a data set lie on the device once, as bytes. What a task learns is an index into them, labels of its own and,
if its pixels are shuffled, their order: tasks share the images, and a batch is gathered where it is needed.
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
                f"images are on {self.images.device} and labels on {self.labels.device}: put both on one device, as in "
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
    """What protocols need of a data set: images (`ImageData`), or any other tensors (`TensorData`), in splits.

    classes: how many; None: the labels are not class numbers.
    """

    name: str
    train: Any
    test: Any
    validation: Any
    classes: Any

    @property
    @abstractmethod
    def positions(self) -> int:
        """Of how many places in a sample `permuted_pixels` changes the order."""

    @abstractmethod
    def examples(self, split: Any, index: Tensor | None = None, labels: Tensor | None = None) -> Any:
        """Some of a split's samples, or all; under their own labels, or others. index: numbers, or a bool for each."""

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
        """A task that learns `examples` and is tested on each of `tests`. allowed, new: as in `labelled_task`."""

    def splits(self) -> dict[str, Any]:
        """The splits there are, by name."""
        held_out = {"validation": self.validation} if self.validation is not None else {}
        return {"train": self.train, **held_out, "test": self.test}

    def to(self, device: torch.device | str) -> Self:
        return replace(self, **{name: split.to(device) for name, split in self.splits().items()})  # pyright: ignore

    def hold_out(self, samples: int, seed: int) -> Self:
        """With some of the training samples, chosen at random, set apart for validation."""
        if self.validation is not None:
            raise ValueError(
                f"{self.name} has {len(self.validation)} validation samples already, which would be lost: hold out once"
            )
        if not isinstance(samples, int) or not 0 < samples < len(self.train):
            raise ValueError(f"validation={samples}: {self.name} has {len(self.train)} training samples to hold some out of")
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
                    f"{self.name}: {name} images are {mine[0]} on {mine[1]}, and train images {first[0]} on {first[1]}: "
                    "give all splits one shape and one device"
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
                f"{self.name}: std={self.std}, and images are divided by it: pass a positive number for each channel, 1 "
                "for a constant one"
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
        """With images that a model sees as they are, from 0 to 1, instead of normalised."""
        return replace(self, mean=(0.0,) * len(self.mean), std=(1.0,) * len(self.std))

    def examples(self, split: Split, index: Tensor | None = None, labels: Tensor | None = None) -> Examples:
        index, labels = chosen_of(split, index, labels)
        mean, std = (torch.tensor(values, device=labels.device).view(-1, 1, 1) for values in (self.mean, self.std))
        return Examples(split.images, index, labels, shift=255 * mean, scale=1 / (255 * std))

    def task(self, name: str, examples: Examples, tests: Mapping[str, Examples], **settings: Any) -> LabelledTask:
        return labelled_task(name, examples, tests, **settings)


def shuffled(count: int, seed: int) -> Tensor:
    """0 to count-1 in an order that the seed alone decides, on every device the same."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True, eq=False)
class Examples:
    """Samples as a task sees them: which images, under which labels, with their pixels in which order."""

    images: Tensor  # uint8 (all, height, width, channels): of the whole split, shared by all tasks
    index: Tensor  # (samples,)
    labels: Tensor  # (samples,)
    shift: Tensor  # (channels, 1, 1): subtracted from bytes,
    scale: Tensor  # (channels, 1, 1): and multiplied
    pixels: Tensor | None = None  # (height · width,): which pixel stands at each place; its channels stay together

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.labels.device

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Images (batch, channels, height, width), normalised, and labels. In memory the channels come last."""
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
            f"an index of shape {tuple(index.shape)} and {index.dtype} for {count} samples: pass whole numbers (samples,), "
            "or one bool for each sample"
        )
    index = index.to(torch.int64)
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < count:
        raise ValueError(f"an index goes from {int(index.min())} to {int(index.max())}, and there are {count} samples")
    labels = split.labels[index] if labels is None else torch.as_tensor(labels, device=device)
    if len(labels) != len(index):
        raise ValueError(f"{len(index)} samples are to have {len(labels)} labels: pass one for each")
    return index, labels


@dataclass(frozen=True, eq=False)
class LabelledTask(IndexedTask):
    """A task of samples with labels.

    new: (classes,), bool: classes that this task has and no earlier one; None: tasks of this protocol do not add classes.
    figures: the names of what `evaluate` returns.
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
    """A task that learns `examples` and is tested on each of `tests`, as "<name>_accuracy".

    allowed: (classes,), bool: outputs of other classes count for nothing, in training and in tests. None: all count.
    new: as in `LabelledTask`.
    loss: of outputs and targets; their mean.
    figures: of each test, "accuracy", "loss" or both; without the first, targets are not class numbers.
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
    """Raise if a task has nothing to learn or to be tested on, or batches of no size."""
    if not isinstance(tests, Mapping):
        raise TypeError(f"task {name!r}: tests are a {type(tests).__name__}: pass a dict of names and data.examples(...)")
    for what, one in {"what it learns": examples, **{f"the test {key!r}": tested for key, tested in tests.items()}}.items():
        if not hasattr(one, "batch"):
            raise TypeError(f"task {name!r}: {what} is {type(one).__name__}: pass data.examples(split)")
    if not len(examples):
        raise ValueError(f"task {name!r} has no samples to learn")
    empty = [split for split, tested in tests.items() if not len(tested)]
    if empty:
        raise ValueError(f"task {name!r} has no {empty[0]} samples: it learns {len(examples)}, and cannot be tested on any")
    if not isinstance(batch, int) or batch < 1:
        raise ValueError(f"batch={batch!r}: set the samples of a step, a whole number, 1 or more")


def masking(name: str, allowed: Tensor | None) -> Callable[[Tensor], Tensor]:
    """A function of outputs that leaves the allowed classes alone to choose from. allowed: as in `labelled_task`."""

    def masked(outputs: Tensor) -> Tensor:
        if allowed is None:
            return outputs
        if outputs.shape[-1] != len(allowed):  # else a single output would be taken for all of them
            raise ValueError(
                f"task {name!r}: the model has {outputs.shape[-1]} outputs, and there are {len(allowed)} classes"
            )
        return outputs.masked_fill(~allowed, -torch.inf)

    return masked


@torch.no_grad()
def means(model: nn.Module, examples: Samples, sums: Mapping[str, Loss]) -> dict[str, Tensor]:
    """Means over all samples in evaluation mode, as tensors on the device. sums: of a batch's outputs and targets."""
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
