"""Data of any kind as tensors: float features, token numbers, several inputs; class numbers or any other targets.

The samples are on the device once, without normalisation. A task has an index into them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..named import each
from .tasks import DataSet, LabelledTask, Loss, chosen_of, labelled_task

Inputs = Tensor | dict[str, Tensor] | tuple[Tensor, ...]


def tensors_of(inputs: Inputs) -> dict[str, Tensor]:
    """The tensors of the inputs, by their names in errors."""
    if isinstance(inputs, dict):
        return {f"inputs[{name!r}]": tensor for name, tensor in inputs.items()}
    return {f"inputs[{n}]": one for n, one in enumerate(inputs)} if isinstance(inputs, tuple) else {"inputs": inputs}


@dataclass(frozen=True, eq=False)
class TensorSplit:
    """Inputs with samples on the first axis, and one label, or row of targets, for each sample."""

    inputs: Inputs
    labels: Tensor

    def __post_init__(self) -> None:
        for name, tensor in {**tensors_of(self.inputs), "targets": self.labels}.items():
            if not tensor.ndim or len(tensor) != len(self.labels):
                raise ValueError(
                    f"{name} are of shape {tuple(tensor.shape)} and targets of shape {tuple(self.labels.shape)}: pass both "
                    "one entry a sample along the first axis"
                )
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                count = int((~tensor.isfinite()).sum())
                raise ValueError(f"{name} have {count} entries that are NaN or infinite: fill them in, or drop the samples")
        if not len(self.labels):
            raise ValueError("there are no samples: return one or more")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {_described(tensor)}" for name, tensor in tensors_of(self.inputs).items())
        return f"TensorSplit({len(self)} samples: {shown}, targets {_described(self.labels)}, {self.labels.device})"

    def of(self, index: Tensor) -> TensorSplit:
        """Some of the samples."""
        return TensorSplit(each(self.inputs, lambda tensor: tensor[index]), self.labels[index])

    def to(self, device: torch.device | str) -> TensorSplit:
        return TensorSplit(each(self.inputs, lambda tensor: tensor.to(device)), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class TensorData(DataSet):
    """A data set of tensors.

    classes: their number; None: the targets are not class numbers, and there is no accuracy.
    loss: of outputs and targets; see LOSSES.
    offers: further arguments for a model's class or function, by name.
    """

    name: str
    train: TensorSplit
    test: TensorSplit
    classes: int | None
    loss: Loss
    validation: TensorSplit | None = None
    offers: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first = self._layout(self.train)
        for name, split in self.splits().items():
            if (mine := self._layout(split)) != first:
                raise ValueError(f"{self.name}: {name} has {mine}, and train has {first}: bring all splits to the same form")
            if self.classes is not None and not 0 <= int(split.labels.min()) <= int(split.labels.max()) < self.classes:
                raise ValueError(
                    f"{self.name}: {name} targets go from {int(split.labels.min())} to {int(split.labels.max())}, and there "
                    f"are {self.classes} classes, 0 to {self.classes - 1}"
                )

    @staticmethod
    def _layout(split: TensorSplit) -> str:
        named = {**tensors_of(split.inputs), "targets": split.labels}
        return ", ".join(f"{name} {_described(tensor)}" for name, tensor in named.items())

    @property
    def shape(self) -> Any:
        """The shape of a sample; of several inputs, a dict or tuple of shapes."""
        return each(self.train.inputs, lambda tensor: tuple(tensor.shape[1:]))

    @property
    def outputs(self) -> int:
        """The number of outputs that a model needs for each sample."""
        return math.prod(self.train.labels.shape[1:]) if self.classes is None else self.classes

    @property
    def positions(self) -> int:
        if not isinstance(self.train.inputs, Tensor):
            raise ValueError(
                f"permuted_pixels changes the order of one input's features, and {self.name} has several inputs: name "
                "another protocol, or one of your own"
            )
        return math.prod(self.shape)

    def examples(self, split: TensorSplit, index: Tensor | None = None, labels: Tensor | None = None) -> TensorExamples:
        return TensorExamples(split.inputs, *chosen_of(split, index, labels))

    def task(
        self, name: str, examples: TensorExamples, tests: Mapping[str, TensorExamples], **settings: Any
    ) -> LabelledTask:
        figures = ["loss"] if self.classes is None else ["accuracy", "loss"]
        return labelled_task(name, examples, tests, loss=self.loss, figures=figures, **settings)


@dataclass(frozen=True, eq=False)
class TensorExamples:
    """The samples of a task: their numbers in the split, their labels, and the order of their features."""

    inputs: Inputs  # of the whole split, shared by all tasks
    index: Tensor  # (samples,)
    labels: Tensor  # (samples, ...)
    pixels: Tensor | None = None  # (features,): the feature at each position

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.labels.device

    def batch(self, chosen: Tensor) -> tuple[Inputs, Tensor]:
        """Inputs and labels of the chosen samples."""
        rows = self.index.index_select(0, chosen)
        inputs = each(self.inputs, lambda tensor: tensor.index_select(0, rows))
        if self.pixels is not None:
            inputs = inputs.flatten(1).index_select(1, self.pixels).view_as(inputs)
        return inputs, self.labels.index_select(0, chosen)


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error. One output a sample may have an axis of its own, or none."""
    if outputs.shape == (*targets.shape, 1) or (*outputs.shape, 1) == targets.shape:
        outputs = outputs.reshape(targets.shape)
    _check_same_shape(outputs, targets)  # else torch would compare every output with every target
    return F.mse_loss(outputs, targets)


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean binary cross entropy of logits, for targets of which several may be 1."""
    _check_same_shape(outputs, targets)
    return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))


def _check_same_shape(outputs: Tensor, targets: Tensor) -> None:
    if outputs.shape != targets.shape:
        raise ValueError(f"the model's outputs have shape {tuple(outputs.shape)}, but targets {tuple(targets.shape)}")


LOSSES: dict[str, Loss] = {
    "cross_entropy": F.cross_entropy,
    "mean_squared_error": mean_squared_error,
    "binary_cross_entropy": binary_cross_entropy,
}


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} ({', '.join(['samples', *map(str, tensor.shape[1:])])})"
