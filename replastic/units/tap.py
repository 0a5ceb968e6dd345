"""Read hidden units' activations while the model trains."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..linalg.polar_factor import work_dtype
from .groups import UnitGroup
from .kinds import original


class Tap:
    """Records units' activations in the last forward pass, as the next layer reads them: after activation, norm, pooling.

    Only passes in training mode with gradients are recorded, so evaluation, acting and measuring are ignored. always=True
    records every pass. Reading raises if there was no pass. Use the tap as a context manager, or call `close()` to remove
    its hooks.

    detach: False keeps the autograd graph, for a loss on activations.
    on: False records passes only within `listening()`.
    compiled: False if no compiled code will run while the tap is on; then torch.compile's caches are kept.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> from replastic.units import find_units
    >>> with Tap(model, find_units(model).groups) as tap:
    ...     _ = model(torch.randn(5, 3))
    >>> tap.activations("0").shape
    torch.Size([5, 4])
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[UnitGroup],
        *,
        detach: bool = True,
        always: bool = False,
        on: bool = True,
        compiled: bool = True,
    ) -> None:
        self.groups: dict[str, UnitGroup] = {}
        self.detach, self.always = detach, always
        self.inputs: dict[str, Tensor] = {}
        self.on = on
        self._compiled, self._hooked = compiled, dict[str, UnitGroup]()
        self._channels: dict[str, int] = {}  # the axis of the channels
        self._handles = [self._hook(original(model))]  # before the readers' hooks: a reader may be the first layer
        self.show(model, groups)

    def show(self, model: nn.Module, groups: Iterable[UnitGroup]) -> None:
        """Record these groups of the same model from now on. Hooks of earlier groups stay, so switching back is free."""
        self.groups = {group.name: group for group in groups}
        new = [group for name, group in self.groups.items() if self._hooked.get(name) is not group]
        for group in new:
            reader = group.readers[0]
            self._channels[group.name] = 1 - reader.tensor(original(model)).ndim if group.channels_first else -1
            self._handles.append(self._hook(original(model).get_submodule(reader.layer), group.name))
        self._hooked.update(self.groups)
        if new and self._compiled:
            _forget_compiled_code()

    def _hook(self, layer: nn.Module, name: str | None = None) -> RemovableHandle:
        """Keep a layer's input; without a name, clear the last pass when a new pass of the whole model begins."""
        return layer.register_forward_pre_hook(_Keep(self, name), with_kwargs=True)

    def read(self, name: str) -> Tensor:
        """The whole input of the layer that reads the group, in the last pass."""
        if name not in self.inputs:
            raise RuntimeError(
                f"no activations of {name!r}: since the last step, no forward pass in training mode with gradients reached "
                "these units. Call model.train(), and call the model itself, not a copy; a method must ask for the tap in "
                "start(), before the pass that it reads"
            )
        return self.inputs[name]

    def activations(self, name: str) -> Tensor:
        """(samples, units). Positions of images and sequences, and the columns of a flattened channel, count as samples."""
        group, inputs = self.groups[name], self.read(name)
        channels = inputs.movedim(self._channels[name], -1)
        arranged = group.by_unit(channels.reshape(-1, channels.shape[-1]))  # (samples, units, columns)
        return arranged.movedim(1, -1).reshape(-1, group.size)

    def mean_abs(self, name: str) -> Tensor:
        """(units,): the mean of |h| over samples, positions and columns."""
        total, samples = self._totals(name)
        group = self.groups[name]
        return group.total(total) / max(group.columns.shape[1] * samples, 1)

    def mean_abs_by_channel(self, name: str) -> Tensor:
        """(channels,): the mean of |h| for each input channel of the layer that reads the group."""
        total, samples = self._totals(name)
        return total / max(samples, 1)

    def largest(self, name: str) -> Tensor:
        """(units,): the largest h over samples, positions and columns."""
        inputs, axes = self._to_reduce(name)
        columns = self.groups[name].by_unit(inputs.amax(axes))
        return columns.squeeze(1) if columns.shape[1] == 1 else columns.amax(1)

    def fired(self, name: str) -> Tensor:
        """(units,): whether h > 0 for some sample, position or column."""
        return self.largest(name) > 0

    def _totals(self, name: str) -> tuple[Tensor, float]:
        """Σ|h| of each channel, and the number of terms."""
        inputs, axes = self._to_reduce(name)
        total = torch.linalg.vector_norm(inputs, 1, axes, dtype=work_dtype(inputs.dtype))
        return total, inputs.numel() / len(total)

    def _to_reduce(self, name: str) -> tuple[Tensor, list[int]]:
        inputs, channel = self.read(name), self._channels[name]
        return inputs, [axis for axis in range(-inputs.ndim, 0) if axis != channel]

    def clear(self) -> None:
        """Drop the last pass; reading before the next pass raises."""
        self.inputs.clear()

    def paused(self) -> AbstractContextManager[None]:
        """A context in which passes are not recorded."""
        return self._switched(False)

    def listening(self) -> AbstractContextManager[None]:
        """A context in which passes are recorded, even if the tap is off."""
        return self._switched(True)

    @contextmanager
    def _switched(self, on: bool) -> Iterator[None]:
        before, self.on = self.on, on
        try:
            yield
        finally:
            self.on = before

    def close(self) -> None:
        self.on = False  # compiled code may still call the hooks
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def closed(self) -> bool:
        """Whether the hooks were removed."""
        return not self._handles

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Keep:
    """The hook on one layer. Copies of the model, and pickles of it, have a hook that does nothing instead."""

    def __init__(self, tap: Tap, name: str | None) -> None:
        self.tap, self.name = tap, name

    def __call__(self, called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tap = self.tap
        if tap.on and (tap.always or (called.training and torch.is_grad_enabled())):
            if self.name is None:
                tap.inputs.clear()
            else:
                read = args[0] if args else next(iter(kwargs.values()))
                tap.inputs[self.name] = read.detach() if tap.detach else read

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_hook, ()


def _no_hook() -> Callable[..., None]:
    return _ignore


def _ignore(*arguments: object) -> None:
    """The hook in a copy of the model."""


def _forget_compiled_code() -> None:
    """Code that was compiled before a hook was set does not call it, and no guard notices: have it recompiled."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
