"""Measures of gradients: how large they are, and whether samples pull in the same direction.

The gradient of sample i is that of its own term, loss(outputs[i:i+1], targets[i:i+1]), in one forward pass of the batch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_leaves, tree_map

from ..linalg.effective_rank import effective_rank_of_spectrum
from ..linalg.polar_factor import work_dtype
from .batch import arguments, has_samples, shown
from .probe import NotMeasurable, Probe

# Bytes of per-sample gradients that are held at once. Each further block costs a backward pass of every sample: ResNet-18
# with 128 samples takes eleven blocks.
BUDGET = 2**30
# How much the loss of a sample may differ when it is computed alone. TF32 keeps ten bits and rounds to 1e-3.
_SAME_LOSS = 2e-3


def gradient_norm(gradient: Tensor) -> Tensor:
    """‖∇L‖₂ of the batch's loss, by parameter and for all parameters.

    >>> gradient_norm(torch.tensor([[3.0], [4.0]]))
    tensor(5.)
    """
    return torch.linalg.vector_norm(gradient, dtype=torch.float64).to(work_dtype(gradient.dtype))


def sample_gradient_gram(probe: Probe, *, vectorised: bool | None = None, budget: int = BUDGET) -> Tensor:
    """G_ij = <∇ℓ_i, ∇ℓ_j>, (samples, samples), of every sample's own loss ℓ_i; in float64.

    Gradients are with respect to trainable parameters, a block of them at a time: memory stays within `budget` bytes plus
    that of a forward pass, and each block takes another backward pass. Autocast is off; TF32 follows torch's settings.

    vectorised: True differentiates all samples at once, each on its own (torch.func); False differentiates the terms of the
        batch's pass one after another, which is slower and always correct. None: at once, if that gives the losses of the
        batch's pass. It does not if samples affect each other (batch norm in training mode), and code that draws random
        numbers (dropout) or branches on data cannot be vectorised at all.
    """
    probe.require_loss()
    blocks = list(_blocks(list(probe.parameters.values()), max(budget // (8 * probe.samples), 1)))
    with probe.differentiating(), torch.no_grad():
        terms = torch.stack(_losses(probe))
    if vectorised is None or vectorised:
        try:
            gram = _all_at_once(probe, blocks, terms, budget)
        except NotMeasurable:
            raise
        except Exception as problem:  # forward may hold any code, and vmap refuses it with many kinds of errors
            if vectorised:
                raise NotMeasurable(f"this model cannot be vectorised: {problem}") from problem
            gram = None
        if gram is not None and gram.any():  # if all are zero, the other way finds out whether the loss was detached
            return gram
        if gram is None and vectorised:
            raise NotMeasurable("samples of this model affect each other, or draw random numbers: pass vectorised=False")
    return _one_by_one(probe, blocks)


def gradient_covariance(gram: Tensor) -> Tensor:
    """C_ij = <∇ℓ_i, ∇ℓ_j>/(‖∇ℓ_i‖‖∇ℓ_j‖), the cosines between samples' gradients (Lyle et al. 2023).

    Lyle, Zheng, Nikishin, Avila Pires, Pascanu & Dabney: Understanding Plasticity in Neural Networks, ICML 2023. Samples
    without a gradient have no direction and are left out.

    >>> gradient_covariance(torch.tensor([[4.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    norms = gram.diagonal().clamp_min(0).sqrt()
    kept = norms > 0
    if int(kept.sum()) < 2:
        raise NotMeasurable(f"needs two samples with a gradient, but only {int(kept.sum())} of {len(gram)} have one")
    return gram[kept][:, kept] / norms[kept] / norms[kept, None]


def gradient_collinearity(gram: Tensor) -> Tensor:
    """The mean cosine between the gradients of two different samples: 1 if all have the same direction (Lyle et al. 2023).

    See `gradient_covariance`.

    >>> gradient_collinearity(torch.tensor([[4.0, 1.0], [1.0, 1.0]]))
    tensor(0.5000)
    """
    cosines = gradient_covariance(gram)
    pairs = len(cosines) * (len(cosines) - 1)
    return (cosines.sum() - cosines.diagonal().sum()) / pairs


def gradient_rank(gram: Tensor) -> Tensor:
    """The effective rank of the samples' gradients: the effective number of their directions; 0 if all gradients are zero.

    exp(-Σ p log p), p = σ/Σσ, of the matrix with a row ∇ℓ_i for each sample, whose Gram matrix has the eigenvalues σ².

    >>> gradient_rank(torch.eye(3)), gradient_rank(torch.ones(3, 3))
    (tensor(3.), tensor(1.))
    """
    squares = torch.linalg.eigvalsh(gram.double()).clamp_min(0)
    # Smaller eigenvalues are rounding, which would no longer be small after the square root.
    noise = torch.finfo(squares.dtype).eps * len(gram) * squares[-1]
    return effective_rank_of_spectrum(torch.where(squares > noise, squares, 0).sqrt()).to(gram.dtype)


_Block = tuple[list[nn.Parameter], slice]  # parameters, and a slice of their flattened entries


def _blocks(parameters: Sequence[nn.Parameter], most: int) -> Iterator[_Block]:
    """All entries of all parameters once, in blocks of at most `most` entries; only larger parameters are split."""
    held: list[nn.Parameter] = []
    for parameter in parameters:
        if held and sum(map(Tensor.numel, [*held, parameter])) > most:
            yield held, slice(None)
            held = []
        if parameter.numel() > most:
            for start in range(0, parameter.numel(), most):
                yield [parameter], slice(start, start + most)
        else:
            held.append(parameter)
    if held:
        yield held, slice(None)


def _losses(probe: Probe) -> list[Tensor]:
    """The loss of every sample in the batch's pass."""
    outputs = probe.forward()
    for what, value in {"outputs": outputs, "targets": probe.targets}.items():
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
        if not any(has_samples(tensor, probe.samples) for tensor in tensors):
            given = shown(tensors[0] if tensors else value)
            raise NotMeasurable(f"needs {what} with the batch's {probe.samples} samples on the first axis, got {given}")
    _check_that_outputs_count(probe, outputs)
    one = [torch.tensor([index]) for index in range(probe.samples)]
    return [probe.loss_of(_of(outputs, i, probe.samples), _of(probe.targets, i, probe.samples)) for i in one]


def _check_that_outputs_count(probe: Probe, outputs: Any) -> None:
    """Raise if the model computed the loss itself, from the whole batch, so that samples have no terms of their own."""

    def other(leaf: Any) -> Any:
        return leaf + 1 + torch.arange(leaf.shape[-1], device=leaf.device) if has_samples(leaf, probe.samples) else leaf

    with torch.no_grad():
        if torch.equal(probe.loss_of(outputs), probe.loss_of(tree_map(other, outputs))):
            raise NotMeasurable(
                "the loss does not depend on the outputs of single samples: compute it from the outputs, as in "
                "loss=lambda outputs, targets: torch.nn.functional.cross_entropy(outputs.logits, targets)"
            )


def _one_by_one(probe: Probe, blocks: Sequence[_Block]) -> Tensor:
    with probe.differentiating():
        losses = _losses(probe)
        if not all(loss.requires_grad for loss in losses):
            raise NotMeasurable("the loss depends on no trainable parameter: it was computed without gradients")
        gram = _zeros(probe)
        for parameters, entries in blocks:
            rows = [_row(loss, parameters)[entries].double() for loss in losses]
            gram += _product(torch.stack(rows), gram)
    return gram


def _row(loss: Tensor, parameters: Sequence[nn.Parameter]) -> Tensor:
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in found])


def _all_at_once(probe: Probe, blocks: Sequence[_Block], terms: Tensor, budget: int) -> Tensor | None:
    """None if the samples' losses are not those of the batch's pass."""
    names = {id(parameter): name for name, parameter in probe.model.named_parameters()}
    device = terms.device
    indices = torch.arange(probe.samples, device=device)[:, None]
    given = probe.inputs

    def loss_of_one(chosen: dict[str, Tensor], index: Tensor) -> Tensor:
        inputs = _of(given, index, probe.samples)
        outputs = functional_call(probe.model, chosen, *arguments(inputs))
        return probe.require_loss()(outputs, _of(probe.targets, index, probe.samples)).squeeze()

    gram = _zeros(probe)
    for parameters, entries in blocks:
        chosen = {names[id(parameter)]: parameter.detach() for parameter in parameters}
        # A parameter that is split is differentiated as a whole, for as many samples at a time as fit the budget.
        chunk = max(budget // (8 * sum(map(Tensor.numel, parameters))), 1)
        with probe.differentiating(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # vmap warns of functions without a batched form, which are only slower
            rows: list[Tensor] = []
            for some in indices.split(chunk):
                found, losses = vmap(grad_and_value(loss_of_one), in_dims=(None, 0))(chosen, some)
                expected = terms[some[:, 0]]
                tolerance = max(_SAME_LOSS, math.sqrt(torch.finfo(losses.dtype).eps)) * float(terms.abs().mean())
                if not torch.allclose(losses.to(expected), expected, rtol=0, atol=tolerance):
                    return None
                gradients = torch.cat([gradient.flatten(1) for gradient in found.values()], dim=1)
                if not rows and not _is_gradient_of_first(probe, parameters, gradients[0]):
                    return None
                rows.append(gradients[:, entries].double())
            gram += _product(torch.cat(rows), gram)
    return gram


def _is_gradient_of_first(probe: Probe, parameters: Sequence[nn.Parameter], row: Tensor) -> bool:
    """Losses may agree where gradients differ, for example if the last layer is zero and samples meet before it."""
    first = torch.tensor([0])
    with probe.differentiating():
        outputs = _of(probe.forward(), first, probe.samples)
        expected = _row(probe.loss_of(outputs, _of(probe.targets, first, probe.samples)), parameters)
    return bool((row - expected).norm() <= _SAME_LOSS * expected.norm())


def _zeros(probe: Probe) -> Tensor:
    device = next(iter(probe.parameters.values())).device
    return torch.zeros(probe.samples, probe.samples, dtype=torch.float64, device=device)


def _product(rows: Tensor, gram: Tensor) -> Tensor:
    """Rows times their transpose, in float64: ranks use square roots, which amplify the rounding of lower precision."""
    return (rows @ rows.mT).to(gram.device)


def _of(value: Any, index: Tensor, samples: int) -> Any:
    """One sample of the tensors in dicts, tuples and model outputs; values without samples stay as they are."""
    return tree_map(lambda leaf: leaf.index_select(0, index.to(leaf.device)) if has_samples(leaf, samples) else leaf, value)
