"""A batch in chunks of samples, for losses that are a mean or a sum over samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ..batch import has_samples, shown
from ..probe import NotMeasurable, Probe


@dataclass(frozen=True)
class Chunk:
    """Some samples of a batch, and the weight of their loss in the batch's loss."""

    inputs: Any
    targets: Any
    samples: int
    weight: float = 1.0

    def first(self, count: int) -> Chunk:
        """The first `count` samples, with the same weight."""
        count = min(count, self.samples)
        inputs, targets = (_cut(part, 0, count, self.samples) for part in (self.inputs, self.targets))
        return Chunk(inputs, targets, count, self.weight)


def whole(probe: Probe) -> Chunk:
    """The batch as one chunk."""
    return Chunk(probe.inputs, probe.targets, probe.samples)


def mixes_samples(probe: Probe) -> str | None:
    """The name of a batch norm that uses the batch's statistics, if there is one; call this within `running`."""
    for name, module in probe.model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            return name
    return None


def chunks_of(probe: Probe, size: int) -> list[Chunk]:
    """The batch in chunks of `size` samples, weighted so that their losses add up to that of the batch; call this within
    `running`. Raises NotMeasurable if no weights do that."""
    if size < 1:
        raise ValueError(f"chunk={size}: pass 1 sample or more, or None")
    if size >= probe.samples:
        return [whole(probe)]
    norm = mixes_samples(probe)
    if norm is not None:
        raise NotMeasurable(
            f"chunk={size} splits the batch, but the batch norm {norm} needs the statistics of all samples: omit chunk, or "
            'pass Probe(..., mode="eval")'
        )
    bounds = [(start, min(start + size, probe.samples)) for start in range(0, probe.samples, size)]
    parts = [
        Chunk(_cut(probe.inputs, *at, probe.samples), _cut(probe.targets, *at, probe.samples), at[1] - at[0])
        for at in bounds
    ]
    with torch.no_grad():
        if probe.mode == "eval":
            _check_apart(probe, parts[0])
        outputs = [probe.forward(part.inputs) for part in parts]
        weights = _weights(probe, parts, outputs)
    return [Chunk(p.inputs, p.targets, p.samples, weight) for p, weight in zip(parts, weights, strict=True)]


def _cut(part: Any, start: int, stop: int, samples: int) -> Any:
    if has_samples(part, samples):
        return part[start:stop]
    if isinstance(part, Mapping):
        return {
            key: _cut(value, start, stop, samples) if has_samples(value, samples) else value for key, value in part.items()
        }
    if isinstance(part, tuple | list):
        return type(part)(_cut(value, start, stop, samples) for value in part)
    raise NotMeasurable(f"a part of the batch has {shown(part)}, which cannot be cut into {samples} samples")


def _check_apart(probe: Probe, part: Chunk) -> None:
    """Raise if a sample's outputs depend on other samples."""
    together, one = probe.forward(part.inputs), part.first(1)
    alone = probe.forward(one.inputs)
    if not isinstance(together, Tensor) or not isinstance(alone, Tensor):
        raise NotMeasurable("chunks need a model with one tensor of outputs: omit chunk")
    if not torch.allclose(together[:1], alone, rtol=_tolerance(alone), atol=_tolerance(alone) * float(alone.abs().max())):
        raise NotMeasurable("in this model the outputs of a sample depend on other samples: omit chunk")


def _weights(probe: Probe, parts: list[Chunk], outputs: list[Any]) -> list[float]:
    """The weight of each chunk's loss: its share of samples for a mean, 1 for a sum.

    Tested with the outputs, and with those of other samples: a loss of zero would agree with any weights.
    """
    if not all(
        isinstance(output, Tensor) and len(output) == part.samples for output, part in zip(outputs, parts, strict=True)
    ):
        raise NotMeasurable("chunks need outputs with samples on their first axis: omit chunk")
    every = torch.cat(outputs)
    sizes = [part.samples for part in parts]
    tried = [(every, outputs), (every.roll(1, 0), list(every.roll(1, 0).split(sizes)))]
    for weights in ([size / probe.samples for size in sizes], [1.0] * len(sizes)):
        if all(_adds_up(probe, parts, weights, together, apart) for together, apart in tried):
            return weights
    raise NotMeasurable(
        "the loss of the batch is neither the mean nor the sum of the losses of its samples, so it cannot be computed in "
        "chunks: omit chunk"
    )


def _adds_up(probe: Probe, parts: list[Chunk], weights: list[float], together: Tensor, apart: list[Tensor]) -> bool:
    loss = probe.loss_of(together)
    losses = [probe.loss_of(one, part.targets) for one, part in zip(apart, parts, strict=True)]
    total = sum(float(one) * weight for one, weight in zip(losses, weights, strict=True))
    size = sum(abs(float(one)) * weight for one, weight in zip(losses, weights, strict=True))
    return abs(total - float(loss)) <= _tolerance(together) * size


def _tolerance(values: Tensor) -> float:
    return torch.finfo(values.dtype).eps ** 0.5  # above the rounding of long sums, and below the difference of another loss
