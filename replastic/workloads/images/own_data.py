"""What a user's own data function may return, and what is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from ...options import OptionError, check_keys
from ..base import described
from .tasks import DataSet, ImageData, Loss
from .tensors import LOSSES, Inputs, TensorData, TensorSplit

_FORMS = (
    'return {"train": (inputs, targets), "test": (inputs, targets)}, a pair of torch Datasets (train, test), or ImageData'
)
_LABELS = ("train", "test", "validation")


def data_set_of(found: Any, name: str, loss: Loss | None = None) -> DataSet:
    """The data set that a user's function returned. name: as the file has it. loss: instead of the targets' own."""
    if isinstance(found, TensorData):
        return found if loss is None else replace(found, loss=loss)
    if isinstance(found, ImageData):
        if loss is not None:
            raise OptionError(f"[data] loss is for tensors, and {name} returned ImageData, which has cross entropy")
        return found
    if isinstance(found, tuple | list) and len(found) == 2 and all(isinstance(one, Dataset | DataLoader) for one in found):
        found = {"train": found[0], "test": found[1]}
    if not isinstance(found, Mapping):
        raise OptionError(f"{name} returned {described(found)}: {_FORMS}")
    check_keys(found, [*_LABELS, "classes", "offers"], f"what {name} returned")
    for label in ("train", "test"):
        if label not in found:
            raise OptionError(f"{name} returned a dict without {label!r}: {_FORMS}")
    offers = found.get("offers", {})
    if not isinstance(offers, Mapping) or not all(isinstance(key, str) for key in offers):
        raise OptionError(f'{name}: "offers" is {offers!r}: return a dict of names and values')
    splits: dict[str, TensorSplit] = {}
    for label in _LABELS:
        if found.get(label) is not None:
            inputs, targets = _pair(found[label], f"{name}: {label}")
            try:
                splits[label] = TensorSplit(inputs, targets)
            except ValueError as problem:
                raise OptionError(f"{name}: {label}: {problem}") from problem
    classes = found.get("classes")
    if classes is not None and (type(classes) is not int or classes < 1):
        raise OptionError(f'{name}: "classes" is {classes!r}: return the number of classes, or leave it out')
    numbered = splits["train"].labels.dtype == torch.int64 and splits["train"].labels.ndim == 1
    if not numbered and classes is not None:
        raise OptionError(f'{name}: "classes" is {classes}, and train targets are {described(splits["train"].labels)}')
    if numbered and classes is None:
        classes = 1 + max(int(split.labels.max()) for split in splits.values())
    try:
        return TensorData(
            name, classes=classes, loss=loss or _loss_for(splits["train"].labels, numbered, name), offers=offers, **splits
        )  # fmt: skip
    except ValueError as problem:
        raise OptionError(str(problem)) from problem


def _loss_for(targets: Tensor, numbered: bool, name: str) -> Loss:
    if numbered:
        return LOSSES["cross_entropy"]
    if targets.dtype == torch.bool:
        return LOSSES["binary_cross_entropy"]
    if targets.is_floating_point():
        return LOSSES["mean_squared_error"]
    raise OptionError(
        f"{name}: train targets are {described(targets)}, for which there is no usual loss: set loss in [data], one of "
        f'{", ".join(LOSSES)} or "mydata.py:my_loss", or return class numbers (samples,), floats, or bools'
    )


def _pair(part: Any, where: str) -> tuple[Inputs, Tensor]:
    if isinstance(part, DataLoader):
        raise OptionError(f"{where} is a DataLoader: return its dataset; batches are made of it on the device")
    if isinstance(part, TensorDataset):
        *several, targets = part.tensors
        part = (several[0] if len(several) == 1 else tuple(several), targets)
    elif isinstance(part, Dataset):
        part = _materialised(part, where)
    if not isinstance(part, tuple | list) or len(part) != 2:
        raise OptionError(f"{where} is {described(part)}: return a pair (inputs, targets), or a torch Dataset of such pairs")
    inputs, targets = part
    if isinstance(inputs, Mapping):
        if not inputs or not all(isinstance(key, str) for key in inputs):
            raise OptionError(f"{where}: inputs have the keys {[*inputs]!r}: return one tensor or more, by names in quotes")
        inputs = {key: _tensor(value, f"{where}: inputs[{key!r}]") for key, value in inputs.items()}
    elif isinstance(inputs, tuple) and inputs:
        inputs = tuple(_tensor(value, f"{where}: inputs[{number}]") for number, value in enumerate(inputs))
    else:
        inputs = _tensor(inputs, f"{where}: inputs")
    targets = _tensor(targets, f"{where}: targets")
    if targets.ndim == 1 and not targets.is_floating_point():
        targets = targets.to(torch.int64)  # class numbers
    return inputs, targets


def _materialised(dataset: Dataset[Any], where: str) -> Any:
    """All samples of a map-style dataset, collated as one batch."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise OptionError(
            f"{where} is {type(dataset).__name__}, an iterable-style dataset: return a map-style one, with __len__ and "
            "__getitem__, or the tensors themselves; all samples are kept on the device"
        )
    samples: list[Any] = []
    try:
        for number in range(len(dataset)):  # pyright: ignore[reportArgumentType]
            samples.append(dataset[number])
    except Exception as problem:
        raise OptionError(f"{where}[{len(samples)}] raised {type(problem).__name__}: {problem}") from problem
    if not samples:
        raise OptionError(f"{where}: there are no samples: return one or more")
    if not all(isinstance(sample, tuple | list) and len(sample) == 2 for sample in samples):
        raise OptionError(f"{where}[0] is {described(samples[0])}: each sample of a Dataset is a pair (input, target)")
    try:
        inputs, targets = default_collate([tuple(sample) for sample in samples])
    except (RuntimeError, TypeError, KeyError) as problem:
        raise OptionError(f"{where}: the samples do not make one batch: {problem}") from problem
    return tuple(inputs) if isinstance(inputs, list) else inputs, targets


def _tensor(value: Any, where: str) -> Tensor:
    """A dense tensor of real numbers; float64, which numpy has by default, in torch's default dtype."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.from_numpy(np.ascontiguousarray(value.astype(value.dtype.newbyteorder("="), copy=False)))
    if not isinstance(value, Tensor) or value.is_complex() or value.layout != torch.strided:
        raise OptionError(f"{where} is {described(value)}: return a dense tensor, or a numpy array, of real numbers")
    value = value.detach()
    return value.to(torch.get_default_dtype()) if value.dtype == torch.float64 else value
