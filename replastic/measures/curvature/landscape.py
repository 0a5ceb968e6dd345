"""The loss along lines and planes through the weights.

    L(θ + a·d₁ + b·d₂),    a, b from -radius to radius

Directions are flat vectors in the order of `probe.parameters`: random ones, the difference to another model, or
eigenvectors.

Li, Xu, Taylor, Studer & Goldstein: Visualizing the Loss Landscape of Neural Nets, NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...learner.fresh import plain
from ...units import original
from ...units.kinds import affine, has_rows_and_columns
from ...weights.place import memory
from ..batch import arguments
from ..probe import Probe
from ..range import power_of_two
from .operators import common_dtype, flat, split


def random_direction(probe: Probe, generator: torch.Generator | None = None) -> Tensor:
    """A Gaussian direction, each filter scaled to the norm of the model's, zero for biases and norms: (parameters,).

    Without the scaling, two models with the same function and weights of different norms would seem to differ in flatness.

    generator: on the parameters' device; None: a new one with the probe's seed.
    """
    parameters = list(probe.parameters.values())
    generator = probe.generator() if generator is None else generator
    pieces = []
    for name, parameter in probe.parameters.items():
        if parameter.ndim < 2:
            pieces.append(torch.zeros_like(parameter))
            continue
        drawn = torch.randn(parameter.shape, dtype=parameter.dtype, device=parameter.device, generator=generator)
        own, given = _filters(probe, name, parameter.detach()), _filters(probe, name, drawn)
        axes = list(range(own[1], parameter.ndim))
        scale = power_of_two(own[0])  # squares of large weights would overflow
        lengths = [torch.linalg.vector_norm(view, dim=axes, keepdim=True) for view in (own[0] / scale, given[0])]
        # This is a view, so it writes into `drawn`.
        given[0].mul_(lengths[0] / lengths[1].clamp_min(torch.finfo(drawn.dtype).tiny)).mul_(scale)
        pieces.append(drawn)
    return flat(pieces, parameters, common_dtype(parameters))


def direction_to(probe: Probe, other: nn.Module) -> Tensor:
    """From the probe's model to another of the same architecture: at 1 the loss is that of the other: (parameters,).

    Buffers, such as the statistics of batch norms, stay those of the probe's model.
    """
    theirs = {plain(name): parameter for name, parameter in original(other).named_parameters(remove_duplicate=False)}
    steps = []
    for name, parameter in probe.parameters.items():
        if name not in theirs or theirs[name].shape != parameter.shape:
            raise ValueError(
                f"the other model has no {name!r} of shape {tuple(parameter.shape)}: pass one of the same architecture"
            )
        steps.append(theirs[name].detach().to(parameter) - parameter.detach())
    parameters = list(probe.parameters.values())
    return flat(steps, parameters, common_dtype(parameters))


@torch.no_grad()
def loss_slice(probe: Probe, directions: Tensor | Sequence[Tensor], *, radius: float = 1.0, points: int = 51) -> Tensor:
    """Losses along one direction, (points,), or over the plane of two, (points, points), with the first direction as rows.

    Points are torch.linspace(-radius, radius, points) in each direction. The model's weights are never written. Losses that
    are not finite are returned as they are.
    """
    chosen = [directions] if isinstance(directions, Tensor) and directions.ndim == 1 else list(directions)
    parameters = list(probe.parameters.values())
    size = sum(parameter.numel() for parameter in parameters)
    if len(chosen) not in (1, 2) or any(direction.shape != (size,) for direction in chosen):
        shapes = ", ".join(str(tuple(direction.shape)) for direction in chosen)
        raise ValueError(f"directions of shapes {shapes or 'none'}: pass one or two vectors of shape ({size},)")
    if points < 1 or not radius > 0:
        raise ValueError(f"radius={radius}, points={points}: pass values above 0")
    loss = probe.require_loss()
    steps = torch.linspace(-radius, radius, points, dtype=torch.float64).tolist()
    losses = []
    for at in product(steps, repeat=len(chosen)):
        moved = torch.stack([direction * step for direction, step in zip(chosen, at, strict=True)]).sum(0)
        with _moved(probe, split(moved, parameters)) as outputs:
            losses.append(torch.as_tensor(loss(outputs, probe.targets)).detach().squeeze())
    return torch.stack(losses).view([points] * len(chosen))


@contextmanager
def _moved(probe: Probe, steps: Sequence[Tensor]) -> Iterator[object]:
    """The outputs with parameters moved by `steps`."""
    by_memory = {memory(p): p + step for p, step in zip(probe.parameters.values(), steps, strict=True)}
    everywhere = {
        name: by_memory[memory(parameter)]
        for name, parameter in probe.model.named_parameters(remove_duplicate=False)
        if memory(parameter) in by_memory
    }
    device = next(iter(probe.parameters.values())).device
    with probe.running(), torch.autocast(device.type, enabled=False):
        yield functional_call(probe.model, everywhere, *arguments(probe.inputs))


def _filters(probe: Probe, name: str, tensor: Tensor) -> tuple[Tensor, int]:
    """A view with filters on its first axes, and the number of these axes."""
    layer = probe.model.get_submodule(name.rpartition(".")[0])
    if name.endswith("weight") and has_rows_and_columns(layer):
        table = affine(layer)
        return table.rows(tensor), table.row_axes
    return tensor, 1
