"""Images as tensors, and the tasks that are made of them.

The images of a data set lie on the device once, as bytes. What a task learns is an index into them, labels of its own and, if
its pixels are shuffled, their order: tasks share the images, and a batch is gathered where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ..task import Task

_EVALUATED_AT_ONCE = 1000  # samples: enough to fill a GPU, few enough for a large network's activations


@dataclass(frozen=True)
class Split:
    """Images, uint8 (samples, height, width, channels), and their labels, int64 (samples,)."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            raise ValueError(
                f"images are {self.images.dtype} of shape {tuple(self.images.shape)}: give bytes (samples, height, width, "
                "channels), as in images.permute(0, 2, 3, 1) for channels first"
            )
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            raise ValueError(
                f"labels are {self.labels.dtype} of shape {tuple(self.labels.shape)} for {len(self.images)} images: give one "
                "int64 each"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def of(self, index: Tensor) -> Split:
        """Some of the samples."""
        return Split(self.images[index], self.labels[index])

    def to(self, device: torch.device | str) -> Split:
        return Split(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class ImageData:
    """A data set. Mean and standard deviation are of the channels of training images, in [0, 1]."""

    name: str
    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    validation: Split | None = None

    def __post_init__(self) -> None:
        for name, split in self.splits().items():
            if len(split) and not 0 <= int(split.labels.min()) <= int(split.labels.max()) < self.classes:
                raise ValueError(
                    f"{self.name}: {name} labels go from {int(split.labels.min())} to {int(split.labels.max())}, and there "
                    f"are {self.classes} classes"
                )
        channels = self.train.images.shape[-1]
        if not len(self.mean) == len(self.std) == channels:
            raise ValueError(f"{self.name}: {len(self.mean)} means and {len(self.std)} deviations for {channels} channels")

    def splits(self) -> dict[str, Split]:
        """The splits there are, by name."""
        held_out = {"validation": self.validation} if self.validation is not None else {}
        return {"train": self.train, **held_out, "test": self.test}

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image, as a model sees it."""
        _, height, width, channels = self.train.images.shape
        return channels, height, width

    def to(self, device: torch.device | str) -> ImageData:
        return replace(self, **{name: split.to(device) for name, split in self.splits().items()})

    def hold_out(self, samples: int, seed: int) -> ImageData:
        """With so many training images, chosen at random, set apart for validation."""
        if not 0 < samples < len(self.train):
            raise ValueError(f"validation={samples}: {self.name} has {len(self.train)} training images to hold some out of")
        order = shuffled(len(self.train), seed).to(self.train.labels.device)
        return replace(self, validation=self.train.of(order[:samples]), train=self.train.of(order[samples:]))


def shuffled(count: int, seed: int) -> Tensor:
    """0 to count-1 in an order that the seed alone decides, on every device the same."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Examples:
    """Samples as a task sees them: which images, under which labels, with their pixels in which order."""

    images: Tensor  # uint8 (all, height, width, channels): of the whole split, shared by all tasks
    index: Tensor  # (samples,)
    labels: Tensor  # (samples,)
    shift: Tensor  # (channels, 1, 1): subtracted from bytes,
    scale: Tensor  # (channels, 1, 1): and multiplied
    pixels: Tensor | None = None  # (height · width · channels,)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised images (batch, channels, height, width) and labels. In memory the channels come last."""
        images = self.images.index_select(0, self.index.index_select(0, chosen))
        if self.pixels is not None:
            images = images.flatten(1).index_select(1, self.pixels).view_as(images)
        return (images.permute(0, 3, 1, 2) - self.shift) * self.scale, self.labels.index_select(0, chosen)


def examples_of(data: ImageData, split: Split, index: Tensor | None = None, labels: Tensor | None = None) -> Examples:
    """Some of a split's samples, or all; under their own labels, or others."""
    device = split.labels.device
    index = torch.arange(len(split), device=device) if index is None else index.to(device)
    mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (data.mean, data.std))
    return Examples(
        split.images,
        index,
        split.labels[index] if labels is None else labels.to(device),
        shift=255 * mean,
        scale=1 / (255 * std),
    )


@dataclass(frozen=True)
class ImageTask(Task):
    """A task of images: what `Task` says, and what its batches are gathered from."""

    examples: Examples = field(kw_only=True)
    batch: int = field(kw_only=True)

    def order(self, generator: torch.Generator) -> Tensor:
        """The order of the samples in one epoch."""
        return torch.randperm(len(self.examples), generator=generator)


def image_task(
    name: str,
    examples: Examples,
    tests: Mapping[str, Examples],
    *,
    batch: int,
    epochs: int,
    allowed: Tensor | None = None,
) -> ImageTask:
    """A task that learns `examples` and is tested on each of `tests`, as "<name>_accuracy".

    allowed: (classes,), bool: outputs of other classes count for nothing, in training and in tests. None: all count.
    """
    if not len(examples):
        raise ValueError(f"task {name!r} has no samples to learn")

    def batches(generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(examples), generator=generator).to(examples.labels.device)
        return (examples.batch(chosen) for chosen in order.split(batch))

    masked: Callable[[Tensor], Tensor] = lambda outputs: (  # noqa: E731
        outputs if allowed is None else outputs.masked_fill(~allowed, -torch.inf)
    )

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(masked(outputs), targets)

    def correct(outputs: Tensor, targets: Tensor) -> Tensor:
        return masked(outputs).argmax(1) == targets

    def evaluate(model: nn.Module) -> dict[str, float | Tensor]:
        return {f"{split}_accuracy": accuracy(model, tested, correct) for split, tested in tests.items()}

    return ImageTask(name, batches, loss, evaluate, epochs=epochs, correct=correct, examples=examples, batch=batch)


@torch.no_grad()
def accuracy(model: nn.Module, examples: Examples, correct: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The share of correct answers in evaluation mode, as a tensor on the device."""
    if not len(examples):
        raise ValueError("there are no samples to test on")
    training, device = model.training, examples.labels.device
    model.eval()
    try:
        right = torch.zeros((), dtype=torch.int64, device=device)
        for chosen in torch.arange(len(examples), device=device).split(_EVALUATED_AT_ONCE):
            images, labels = examples.batch(chosen)
            right += correct(model(images), labels).sum()
    finally:
        model.train(training)
    return right / len(examples)
