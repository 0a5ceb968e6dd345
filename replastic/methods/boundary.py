"""What all functions share that change a model at a boundary by one call: their checks, the write, and their report."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..learner.checks import check_placed
from ..learner.fresh import plain
from ..linalg import many
from ..listing import aligned
from ..optim import as_list, check_clearable, clear_state_
from ..units import original
from ..weights import LeftAlone
from ..weights.inventory import WeightMatrix
from ..weights.layers import is_lazy
from ..weights.place import memory, place_of, region_of

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Optimizers = Optimizer | Sequence[Optimizer] | None


def on_model(example: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorate a function whose first argument is a model: no gradients, and errors that show `example`, a correct call."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        signature, name = inspect.signature(function), getattr(function, "__name__", "")

        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            model = args[0] if args else kwargs.get("model")
            if not isinstance(model, nn.Module):
                inside = "its .model is one: pass that. " if isinstance(getattr(model, "model", None), nn.Module) else ""
                raise TypeError(f"{name} takes a torch.nn.Module, got {type(model).__name__}: {inside}Write {example}")
            try:
                signature.bind(*args, **kwargs)
            except TypeError as problem:
                raise TypeError(f"{name}: {problem}. Write {example}") from None
            check_placed(model)
            lazy = [key for key, parameter in model.named_parameters() if is_lazy(parameter)]
            if lazy:
                raise ValueError(f"{lazy[0]} has no shape yet, because its layer is lazy: run the model on a batch first")
            with torch.no_grad():
                return function(*args, **kwargs)

        return call

    return decorate


@dataclass(frozen=True)
class Change:
    """What happened to one tensor."""

    name: str
    shape: tuple[int, ...]
    norm_before: float
    norm_after: float
    distance: float  # ‖after - before‖


@dataclass(frozen=True)
class BoundaryReport:
    """What a boundary function did; `print` shows it as a table. Figures are copied from the device at the first read."""

    what: str
    shapes: Mapping[str, tuple[int, ...]]  # the shapes of the written tensors, by name
    figures: tuple[Figures, ...]  # for each tensor: norm before, norm after, norm of the change
    source: str = ""  # the source of the initial weights; "" if none were needed
    cleared: tuple[str, ...] = ()  # parameters whose optimiser state was cleared
    cleared_by: str = ""  # the optimisers that were passed
    left_alone: tuple[LeftAlone, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the written tensors, in the model's order."""
        return tuple(self.shapes)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """One entry for each tensor that was written."""
        rows = zip(self.shapes.items(), self.figures, strict=True)
        return tuple(Change(name, shape, *map(float, figures)) for (name, shape), figures in rows)

    def __str__(self) -> str:
        rows = [["written", "shape", "norm before", "after", "moved by"]]
        for one in self.changes:
            shape = "x".join(map(str, one.shape)) or "1"
            rows.append([one.name, shape, *(f"{figure:.3g}" for figure in (one.norm_before, one.norm_after, one.distance))])
        count = len(self.changes)
        table = aligned(rows) if count else []
        lines = [f"{self.what}: {count} tensor{'s'[: count != 1]}", *table]
        lines += [f"first weights: {self.source}"] if self.source else []
        forgot = f"{self.cleared_by}, whose state of {len(self.cleared)} of them was cleared"
        lines += [f"optimizer: {forgot if self.cleared_by else 'none was passed'}"] if count else []
        return "\n".join([*lines, *(f"skipped: {one.name} {one.shape}: {one.reason}" for one in self.left_alone)])


class Written(NamedTuple):
    """A tensor that will be written: its name, the tensors that are its memory, and a mask if only parts of it are.

    parts: the names of these parts, or of all parts.
    """

    name: str
    tensors: Sequence[Tensor]
    mask: Tensor | None = None
    parts: Sequence[str] = ()


class Entry(NamedTuple):
    """What an optimiser will forget."""

    optimizer: Optimizer
    parameter: Tensor
    mask: Tensor | None
    names: list[str]  # of what is written in it


def written_parts(weights: Iterable[WeightMatrix]) -> Iterator[Written]:
    """Each parameter of these weights once, with all parameters on its memory, and a mask if only parts of it are there."""
    by_parameter: dict[int, list[WeightMatrix]] = {}
    for weight in weights:
        by_parameter.setdefault(id(weight.parameter), []).append(weight)
    for parts in by_parameter.values():
        parameter, mask = parts[0].parameter, None
        if sum(part.stack().view.numel() for part in parts) < parameter.numel():
            mask = torch.zeros_like(parameter, dtype=torch.bool)
            for part in parts:
                part.stack(mask).view.fill_(True)
        yield Written(parts[0].name, [parameter, *parts[0].aliases], mask, [part.name for part in parts])


@dataclass(frozen=True)
class Entries:
    """All that the optimisers will forget; every entry was found to be clearable."""

    entries: Sequence[Entry] = ()
    kinds: str = ""

    def clear_(self) -> None:
        for one in self.entries:
            clear_state_(one.optimizer, one.parameter, one.mask)


def optimizer_entries(model: nn.Module, written: Iterable[Written], optimizer: Optimizers, every: bool = False) -> Entries:
    """The state of `written` in the optimisers; raises if some of it cannot be cleared.

    every: whether each tensor must be held by one of the optimisers.
    """
    if optimizer is None:
        return Entries()
    optimizers = as_list(optimizer)
    if not optimizers:
        raise ValueError("optimizer=[] is empty: pass the optimiser that trains the model, or optimizer=None")
    by_memory: dict[object, list[tuple[Optimizer, Tensor]]] = {}
    for one in optimizers:
        for parameter in (parameter for group in one.param_groups for parameter in group["params"]):
            if not is_lazy(parameter):  # of a layer that is not selected
                by_memory.setdefault(memory(parameter), []).append((one, parameter))
    if not every and by_memory.keys().isdisjoint(map(memory, model.parameters())):
        raise ValueError("the optimiser that was passed holds no parameter of this model: pass the one that trains it")
    entries: dict[tuple[int, int], Entry] = {}
    for name, tensors, mask, parts in written:
        found = [pair for key in dict.fromkeys(map(memory, tensors)) for pair in by_memory.get(key, [])]
        if every and not found:
            raise ValueError(
                f"no optimiser that was passed holds {name}: pass the one that trains it, several as a list, "
                "or optimizer=None"
            )
        for one, parameter in found:
            check_clearable(one, parameter, mask)
            entries.setdefault((id(one), id(parameter)), Entry(one, parameter, mask, [])).names.extend(parts or [name])
    return Entries(list(entries.values()), ", ".join(dict.fromkeys(type(one).__name__ for one in optimizers)))


def check_finite(tensors: Mapping[str, Tensor], advice: str) -> None:
    """Raise if a tensor has NaN or infinite entries, wherever it lives; `advice` ends the message."""
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() or tensor.is_complex()}
    placed = {name: place for name, tensor in floats.items() if (place := place_of(tensor)) is not None}
    own = [tensor.detach() for name, tensor in floats.items() if name not in placed]
    # One call and one synchronisation for all. Finite weights can overflow a norm, so only a finite one is proof.
    if not placed and (not own or torch.nn.utils.get_total_norm(own).isfinite()):
        return
    values = ((name, placed[name].gather() if name in placed else tensor) for name, tensor in floats.items())
    bad = [name for name, value in values if not value.isfinite().all()]
    if bad:
        raise ValueError(f"{', '.join(bad[:5])}{' and more' if len(bad) > 5 else ''}: NaN or infinite entries{advice}")


def check_apart(tensors: Mapping[str, Tensor]) -> None:
    """Raise if two tensors are views of the same memory, such as a matrix and its transpose: both would be changed twice."""
    regions = [(region_of(tensor), tensor.numel() * tensor.itemsize, name) for name, tensor in tensors.items()]
    dense = [(region, name) for region, size, name in regions if region.stop - region.start == size > 0]
    dense.sort(key=lambda one: (str(one[0].where), one[0].start))
    for (one, name), (other, second) in pairwise(dense):
        if one.where == other.where and other.start < one.stop:
            raise ValueError(
                f"{name} and {second} share memory, read in two ways, and would be changed twice: choose one of them, as "
                f"with where={name!r}, or freeze one"
            )


def frozen_parameters(model: nn.Module) -> list[LeftAlone]:
    """The parameters that do not train, for a report."""
    fixed = ((name, one) for name, one in original(model).named_parameters() if not one.requires_grad)
    return [LeftAlone(plain(name), tuple(one.shape), "is frozen") for name, one in fixed]


def rewrite_(
    what: str,
    tensors: Mapping[str, Tensor],
    new: Callable[[str, Tensor], Tensor],
    entries: Entries,
    source: str = "",
    left_alone: Sequence[LeftAlone] = (),
) -> BoundaryReport:
    """Replace each tensor by its `new` value, in place, and clear the optimisers' entries. All checks have been made.

    Memory that has several names is written once. Besides the model this needs the memory of a few copies of one tensor.
    """
    written: dict[object, tuple[str, Tensor]] = {}
    for name, tensor in tensors.items():
        written.setdefault((memory(tensor), tensor.stride()), (name, tensor))
    before, distances = norms_of([tensor for _, tensor in written.values()]), list[Tensor]()
    for name, tensor in written.values():
        value = new(name, tensor).to(tensor)
        distances.append(_distance(tensor.detach(), value.detach()))
        tensor.copy_(value)
    after = norms_of([tensor for _, tensor in written.values()])
    figures = dict(zip(written, zip(before, after, distances, strict=True), strict=True))
    entries.clear_()
    return BoundaryReport(
        what,
        {name: tuple(tensor.shape) for name, tensor in tensors.items()},
        tuple(figures[memory(tensor), tensor.stride()] for tensor in tensors.values()),
        source,
        tuple(dict.fromkeys(name for entry in entries.entries for name in entry.names)),
        entries.kinds,
        tuple(left_alone),
    )


Figures = tuple[Tensor, Tensor, Tensor]  # of one tensor: its norm before and after, and the distance between


def change_of(old: Tensor, new: Tensor) -> Figures:
    """The norms of both, and of their difference."""
    before, after = norms_of([old, new])
    return before, after, _distance(old.detach(), new.detach())


_TOGETHER = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # dtypes with norms of many at once


def norms_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The norm of each tensor, in few kernels where many are alike."""
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, tensor in enumerate(tensors):
        alike.setdefault((tensor.device, tensor.dtype), []).append(number)
    norms: dict[int, Tensor] = {}
    for (_, dtype), numbers in alike.items():
        group = [tensors[number].detach() for number in numbers]
        one_by_one = map(torch.linalg.vector_norm, map(_wide, group))
        norms |= zip(numbers, many.norms(group) if dtype in _TOGETHER else one_by_one, strict=True)
    return [norms[number] for number in range(len(tensors))]


def _distance(old: Tensor, new: Tensor) -> Tensor:
    return torch.linalg.vector_norm(_wide(new) - _wide(old))


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 or tensor.is_complex() else tensor.float()
