"""The rank of the Gauss-Newton matrix in KFAC's approximation, layer by layer.

For a layer with inputs x and outputs s, the Gauss-Newton matrix of its weight is approximated by

    E[xxᵀ] ⊗ E[Σ_o g_o g_oᵀ],    g_o = (∂z/∂s)ᵀ·(column o of a root of H_z)

where H_z is the loss's Hessian in the outputs z. The rank of a Kronecker product is the product of ranks, and L2-ER's
section 7 (equations 3 to 5) uses their sum over layers as a limit on the rank of the Hessian. Inputs of a convolution are
patches, and its positions, like those of a sequence, count as samples.

Martens & Grosse: Optimizing Neural Networks with Kronecker-factored Approximate Curvature, ICML 2015; Grosse & Martens: A
Kronecker-factored approximate Fisher matrix for convolution layers, ICML 2016.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from ...units.kinds import channels_last, has_rows_and_columns
from ..batch import shown
from ..probe import NotMeasurable, Probe
from .chunks import mixes_samples
from .factors import RowRank, patches
from .graphs import differentiable, gradients_of
from .operators import second_derivative


@dataclass(frozen=True)
class LayerRanks:
    """Ranks of the two factors of one layer."""

    inputs: int
    gradients: int

    @property
    def product(self) -> int:
        return self.inputs * self.gradients


@dataclass(frozen=True)
class KroneckerRanks:
    """Ranks by layer, and the layers whose factors are not implemented, with the reason."""

    layers: dict[str, LayerRanks]
    left_out: dict[str, str]

    @property
    def total(self) -> int:
        """The sum over layers of rank(E[xxᵀ])·rank(E[ggᵀ])."""
        return sum(ranks.product for ranks in self.layers.values())


def kronecker_ranks(probe: Probe) -> KroneckerRanks:
    """Both ranks of every linear and convolutional layer that `where` selects; a layer that was not called has rank 0.

    It takes one backward pass per output of the network. Ranks are numerical: singular values count if they exceed
    max(shape)·eps times the largest.
    """
    with differentiable(probe):
        norm = mixes_samples(probe)
        if norm is not None:
            raise NotMeasurable(
                f'the batch norm {norm} mixes samples, so they have no gradients of their own: use mode="eval"'
            )
        names, left_out = _layers(probe)
        layers = {name: probe.model.get_submodule(name) for name in names}
        outputs, read, made = _calls(probe, layers)
        roots = _roots(probe, outputs)  # (samples, outputs, outputs)
        inputs, gradients = {name: RowRank() for name in names}, {name: RowRank() for name in names}
        made = [(name, output) for name, output in made if output.requires_grad]
        for column in range(roots.shape[2]):
            vector = roots[:, :, column].reshape(outputs.shape)
            found = torch.autograd.grad(outputs, [o for _, o in made], vector, retain_graph=True, allow_unused=True)
            for (name, output), gradient in zip(made, found, strict=True):
                gradient = torch.zeros_like(output) if gradient is None else gradient
                gradients[name].add(channels_last(layers[name], gradient))
        for name, given in read:
            inputs[name].add(patches(layers[name], given))
    return KroneckerRanks({name: LayerRanks(inputs[name].rank(), gradients[name].rank()) for name in names}, left_out)


def _layers(probe: Probe) -> tuple[list[str], dict[str, str]]:
    names: dict[str, None] = {}
    left_out: dict[str, str] = {}
    for weight in probe.weights:
        name = weight.name.partition(":")[0].rpartition(".")[0]
        layer = probe.model.get_submodule(name)
        if not has_rows_and_columns(layer):
            left_out[name] = f"a {type(layer).__name__}, which applies its weights in its own code"
        elif isinstance(layer, _ConvNd) and (layer.groups > 1 or layer.transposed):
            left_out[name] = "a grouped convolution" if layer.groups > 1 else "a transposed convolution"
        else:
            names[name] = None
    for name, layer in probe.model.named_modules():
        if has_rows_and_columns(layer) and parametrize.is_parametrized(layer):
            left_out[name] = "parametrised: its weight is computed from other parameters"
    return list(names), left_out


_Call = tuple[str, Tensor]  # a layer's name, and what one call of it read or made


def _calls(probe: Probe, layers: Mapping[str, nn.Module]) -> tuple[Tensor, list[_Call], list[_Call]]:
    """The model's outputs, and the layers' inputs and outputs in the order of the calls."""
    read: list[_Call] = []
    made: list[_Call] = []

    def keep(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
        read.append((name, (args[0] if args else next(iter(kwargs.values()))).detach()))
        made.append((name, output))
        return output.clone()  # the next layer may work in place

    for name, layer in layers.items():  # undone where `running` ends
        layer.register_forward_hook(partial(keep, name), with_kwargs=True)
    outputs = probe.forward()
    if not isinstance(outputs, Tensor) or len(outputs) != probe.samples:
        raise NotMeasurable(f"needs one tensor of outputs with samples on its first axis, got {shown(outputs)}")
    return outputs, read, made


def _roots(probe: Probe, outputs: Tensor) -> Tensor:
    """S with H_z = SSᵀ for each sample: (samples, outputs, outputs)."""
    z = outputs.detach().flatten(1).requires_grad_()
    (gradient,) = gradients_of(probe.loss_of(z.view(outputs.shape)), [z])
    signs = torch.ones_like(z[:, :1])
    signs[::2] = -1
    columns = []
    for column in range(z.shape[1]):
        unit = torch.zeros_like(z)
        unit[:, column] = 1
        (made,) = second_derivative([gradient], [z], [unit], keep=True)
        made = torch.zeros_like(z) if made is None else made
        columns.append(made)
        if column == 0:
            # If samples are independent, a sign changes the product of its own sample only.
            (turned,) = second_derivative([gradient], [z], [unit * signs], keep=True)
            turned = torch.zeros_like(z) if turned is None else turned
            if not torch.allclose(turned, made * signs, rtol=1e-3, atol=1e-3 * float(made.abs().max())):
                raise NotMeasurable("the loss depends on several samples jointly: pass one that is a mean over samples")
    hessians = torch.stack(columns, dim=2)
    values, vectors = torch.linalg.eigh((hessians + hessians.mT) / 2)
    # The Hessian of a saturated softmax is rounding, at the scale of one that is not saturated.
    eps, most = torch.finfo(values.dtype).eps, values.abs().amax()
    rounding = eps * values.shape[1] * _usual_curvature(probe, outputs)
    if (values < -torch.maximum(eps**0.5 * most, 16 * rounding)).any():
        raise NotMeasurable("the loss is not convex in the outputs, so H_z has no root: use the Hessian")
    # Values at the rounding level are set to zero: their roots would not be small.
    zero = torch.maximum(eps * values.shape[1] * values.abs().amax(1, keepdim=True), rounding)
    return vectors * torch.where(values > zero, values, 0).sqrt().unsqueeze(1)


def _usual_curvature(probe: Probe, outputs: Tensor) -> Tensor:
    """The largest second derivative of the loss in the first output, at outputs of zero; 0 if the loss has none there."""
    z = torch.zeros_like(outputs).requires_grad_()
    loss = probe.require_loss()(z, probe.targets)
    unit = torch.zeros_like(z)
    unit.flatten(1)[:, 0] = 1
    (made,) = second_derivative(gradients_of(loss, [z]), [z], [unit], keep=False)
    return torch.zeros_like(z).amax() if made is None else made.abs().amax().nan_to_num(0, 0, 0)


def kronecker_rank_sum(probe: Probe) -> float:
    """Σ over layers of rank(E[xxᵀ])·rank(E[ggᵀ]); see `kronecker_ranks` for the ranks by layer.

    Layers whose factors are not implemented are an error; exclude them with the probe's `where`.
    """
    ranks = kronecker_ranks(probe)
    if ranks.left_out:
        name, reason = next(iter(ranks.left_out.items()))
        raise NotMeasurable(f"{name} is {reason}: exclude it, as in Probe(..., where='linears')")
    return float(ranks.total)
