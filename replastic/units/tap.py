"""Read what hidden units do while the model trains."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .groups import UnitGroup
from .trace import original


class Tap:
    """Keeps the units' activations of the last forward pass, as the next layer reads them: after activation, norm, pooling.

    Only passes in training mode with gradients count, so that evaluation, acting and measuring leave no trace; with
    always=True every pass does. Reading what did not happen raises. Use it as a context, or `close()` it, to take it off.

    detach: False keeps the graph, for a loss on activations.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> from replastic.units import find_units
    >>> with Tap(model, find_units(model).groups) as tap:
    ...     _ = model(torch.randn(5, 3))
    >>> tap.activations("0").shape
    torch.Size([5, 4])
    """

    def __init__(self, model: nn.Module, groups: Sequence[UnitGroup], *, detach: bool = True, always: bool = False) -> None:
        self.groups = {group.name: group for group in groups}
        self.detach, self.always = detach, always
        self.inputs: dict[str, Tensor] = {}
        self._paused = False
        layers = {group.name: original(model).get_submodule(group.readers[0].layer) for group in groups}
        self._handles = [layer.register_forward_pre_hook(self._hook(name)) for name, layer in layers.items()]
        _forget_compiled_code()

    def _hook(self, name: str) -> Any:
        def keep(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
            if self.always or (layer.training and torch.is_grad_enabled() and not self._paused):
                self.inputs[name] = args[0].detach() if self.detach else args[0]

        return keep

    def read(self, name: str) -> Tensor:
        """The whole input of the layer that reads the group, as it was in the last pass."""
        if name not in self.inputs:
            raise RuntimeError(
                f"the units of {name!r} were not seen: no forward pass of the model in training mode, with gradients, came "
                "since the last step. Call model.train() and the model itself (not a copy, nor code compiled with another "
                "backend's cache)"
            )
        return self.inputs[name]

    def activations(self, name: str) -> Tensor:
        """(samples, units). Positions of images and sequences, and the columns of a flattened channel, count as samples."""
        group, inputs = self.groups[name], self.read(name)
        channels = inputs.movedim(1, -1) if group.channels_first else inputs
        arranged = channels.reshape(-1, channels.shape[-1])[:, group.columns]  # (samples, units, columns)
        return arranged.movedim(1, -1).reshape(-1, group.size)

    def mean_abs(self, name: str) -> Tensor:
        """(units,): the mean of |h| over samples, positions and columns."""
        inputs, axes, columns = self._to_reduce(name)
        total = torch.linalg.vector_norm(inputs, 1, axes, dtype=_accumulator(inputs))
        return total[columns].mean(1) * (len(total) / max(inputs.numel(), 1))

    def fired(self, name: str) -> Tensor:
        """(units,): whether h > 0 for any sample, position or column."""
        inputs, axes, columns = self._to_reduce(name)
        return (inputs.amax(axes) > 0)[columns].any(1)

    def _to_reduce(self, name: str) -> tuple[Tensor, list[int], Tensor]:
        group, inputs = self.groups[name], self.read(name)
        channel = 1 if group.channels_first else inputs.ndim - 1
        return inputs, [axis for axis in range(inputs.ndim) if axis != channel], group.columns

    def clear(self) -> None:
        """Forget the last pass, so that reading again before the next one raises."""
        self.inputs.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Passes made here are not kept."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _accumulator(inputs: Tensor) -> torch.dtype:
    return torch.float32 if inputs.dtype in (torch.float16, torch.bfloat16) else inputs.dtype


def _forget_compiled_code() -> None:
    """Code that torch.compile made before a hook was set does not call it, and no guard tells: have it made anew."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
