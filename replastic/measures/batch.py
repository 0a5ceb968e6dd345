"""A batch: its inputs and targets, its number of samples, and how a model is called with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .not_measurable import NotMeasurable


def inputs_and_targets(batch: Any) -> tuple[Any, Any]:
    """The two parts of a batch; targets are None if the batch has none."""
    if isinstance(batch, tuple | list):
        if len(batch) != 2:
            raise TypeError(f"a batch of {len(batch)} parts: pass the inputs, or a pair (inputs, targets)")
        inputs, targets = batch
    else:
        inputs, targets = batch, None
    inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs  # a tokenizer returns a Mapping that is not a dict
    with torch.inference_mode(False):  # tensors made in inference mode cannot be differentiated
        return tree_map(lambda leaf: leaf.clone() if _frozen(leaf) else leaf, (inputs, targets))


def count_samples(inputs: Any) -> int:
    """The number of samples; raises for inputs that are not samples or not finite."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    if not tensors:
        raise TypeError(
            f"the inputs are a {type(inputs).__name__}: pass a tensor of samples, a tuple of tensors, or a dict of tensors. "
            "From a DataLoader, pass next(iter(loader)); from numpy, torch.from_numpy(array)"
        )
    if not tensors[0].ndim or (tensors[0].ndim == 1 and tensors[0].is_floating_point()):
        shape = tuple(tensors[0].shape)
        raise NotMeasurable(f"the inputs have shape {shape}, without an axis of samples: pass several, or inputs[None]")
    if not len(tensors[0]):
        raise NotMeasurable("the batch has no samples")
    if any(tensor.is_floating_point() and not tensor.isfinite().all() for tensor in tensors):
        raise NotMeasurable("the inputs contain NaN or infinite values: pass finite ones")
    return len(tensors[0])


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments that the model is called with."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, tuple | list) else ((inputs,), {})


def has_samples(value: Any, samples: int) -> bool:
    """Whether a value is a tensor with the batch's samples on its first axis."""
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == samples


def shown(value: Any) -> str:
    """A value in an error message: a tensor by its shape, anything else by its type."""
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"


def check_rows(values: Any, expected: str = "(samples, units)") -> Tensor:
    """Raise unless a value is a matrix with entries."""
    if not isinstance(values, Tensor) or values.ndim != 2 or not values.numel():
        raise ValueError(f"needs {expected}, got {shown(values)}: flatten positions into samples first")
    return values


def _frozen(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_inference()
