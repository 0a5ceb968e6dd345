"""Full Hessians of small multilayer perceptrons in float64, for the theorems."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import jacrev, vmap

Loss = Callable[[Tensor, Tensor], Tensor]
Activation = Callable[[Tensor], Tensor]
Form = Literal["proved", "printed"]

_MOST = 4000  # parameters: their Hessian is 128 MB


def mlp(weights: Sequence[Tensor], biases: Sequence[Tensor | None], inputs: Tensor) -> Tensor:
    """ReLU between the layers and none after the last; weights as PyTorch stores them, (out, in)."""
    hidden = inputs
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        hidden = torch.nn.functional.linear(torch.relu(hidden) if number else hidden, weight, bias)
    return hidden


@dataclass(frozen=True)
class Curvature:
    """The Hessian of a mean loss and its terms: H = G + R, for n samples, O outputs and P parameters."""

    hessian: Tensor  # (P, P)
    gauss_newton: Tensor  # (P, P): G = 1/n Σ JᵢᵀHᵢJᵢ
    gradients: Tensor  # (n, O): gradient of each sample's loss in its outputs
    curvatures: Tensor  # (n, O, O): Hᵢ, the Hessian of each sample's loss in its outputs

    @property
    def residual(self) -> Tensor:
        """R = 1/n Σ over samples and outputs of ∂ℓ/∂z ∇²z."""
        return self.hessian - self.gauss_newton


def curvature(
    weights: Sequence[Tensor], biases: Sequence[Tensor | None], inputs: Tensor, targets: Tensor, loss: Loss
) -> Curvature:
    """The curvature of a ReLU network with these weights, (out, in) each, and biases (None: the layer has none)."""
    weights, inputs = chain(weights, inputs)
    targets = targets.double() if targets.is_floating_point() else targets
    theta, outputs = _of_parameters(weights, biases)

    def sample_loss(output: Tensor, target: Tensor) -> Tensor:
        return loss(output[None], target[None])

    made = outputs(theta, inputs)
    whole = loss(made, targets)
    single = torch.stack([sample_loss(output, target) for output, target in zip(made, targets, strict=True)])
    if single.ndim != 1 or not torch.allclose(whole, single.mean(), rtol=1e-9):
        raise ValueError("the loss is not the mean of the samples' losses: pass one with reduction='mean'")
    jacobian = jacrev(outputs)(theta, inputs)  # (n, O, P)
    assert isinstance(jacobian, Tensor)
    gradients = vmap(jacrev(sample_loss))(made, targets)
    curvatures = vmap(jacrev(jacrev(sample_loss)))(made, targets)
    gauss_newton = torch.einsum("noi,nop,npj->ij", jacobian, curvatures, jacobian) / len(inputs)
    hessian = jacrev(jacrev(lambda theta: loss(outputs(theta, inputs), targets)))(theta)
    assert isinstance(hessian, Tensor)
    return Curvature((hessian + hessian.T) / 2, gauss_newton, gradients, curvatures)


def output_curvature(weights: Sequence[Tensor], biases: Sequence[Tensor | None], inputs: Tensor) -> float:
    """Γ = max over samples and outputs of ‖∇²_θ z‖₂."""
    theta, outputs = _of_parameters(weights, biases)
    second = jacrev(jacrev(lambda theta, sample: outputs(theta, sample[None])[0]))
    found = [torch.linalg.matrix_norm(second(theta, sample), 2).max() for sample in inputs]  # of (outputs, P, P)
    return float(torch.stack(found).max())


def _of_parameters(
    weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """All parameters as one vector, and the outputs as a function of this vector and of inputs."""
    if len(weights) != len(biases):
        raise ValueError(f"{len(weights)} weights and {len(biases)} biases: pass one per layer, None if it has no bias")
    parameters = in_float64([tensor for tensor in (*weights, *biases) if tensor is not None])
    theta = torch.cat([tensor.flatten() for tensor in parameters])
    if len(theta) > _MOST:
        raise ValueError(f"full Hessians are limited to {_MOST} parameters, got {len(theta)}: pass a smaller network")

    def outputs(theta: Tensor, inputs: Tensor) -> Tensor:
        parts = theta.split([tensor.numel() for tensor in parameters])
        made = iter([part.view_as(tensor) for part, tensor in zip(parts, parameters, strict=True)])
        layers = [next(made) for _ in weights]
        return mlp(layers, [None if bias is None else next(made) for bias in biases], inputs)

    return theta, outputs


def in_float64(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Detached copies in float64, in which the theorems are computed."""
    return [tensor.detach().to(torch.float64) for tensor in tensors]


def chain(weights: Sequence[Tensor], inputs: Tensor) -> tuple[list[Tensor], Tensor]:
    """The weights and the inputs in float64; raises unless they fit each other."""
    if not weights or any(weight.ndim != 2 for weight in weights):
        shapes = [tuple(weight.shape) for weight in weights]
        raise ValueError(f"weights of shapes {shapes}: pass matrices, (out, in) each, such as layer.weight of linear layers")
    if inputs.ndim != 2 or not len(inputs):
        raise ValueError(f"inputs of shape {tuple(inputs.shape)}: pass one row per sample, (samples, features)")
    widths = [inputs.shape[1], *(weight.shape[0] for weight in weights)]
    for number, ((before, _), weight) in enumerate(zip(itertools.pairwise(widths), weights, strict=True)):
        if weight.shape[1] != before:
            raise ValueError(
                f"weight {number} is {tuple(weight.shape)} and reads {weight.shape[1]} values, but gets {before}: "
                "weights are (out, in), such as layer.weight of linear layers, in the order in which they are called"
            )
    return in_float64(weights), inputs.detach().double()
