"""Measures of hidden units: which are active, and which are not.

Activations are (samples, units) as the next layer reads them; positions of images and sequences count as samples. A model's
share is over all its units, not the mean of its layers' shares.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .batch import check_rows
from .probe import NotMeasurable
from .range import power_of_two


def activity_scores(mean_abs: Tensor) -> Tensor:
    """s_i = mean|h_i| / (1/H Σ_k mean|h_k|): each unit's activity as a multiple of its layer's (Sokar et al. 2023).

    All zero if the whole layer is silent.

    >>> activity_scores(torch.tensor([0.0, 1.0, 3.0, 4.0]))
    tensor([0.0000, 0.5000, 1.5000, 2.0000])
    """
    mean_abs = mean_abs / power_of_two(mean_abs)
    mean = mean_abs.mean()
    return torch.where(mean == 0, torch.zeros_like(mean_abs), mean_abs / mean)  # NaN, not zero, for infinite activations


def smallest_activity(activations: Tensor) -> Tensor:
    """min_i s_i: the activity of a layer's least active unit, as a multiple of the layer's mean (Sokar et al. 2023).

    >>> smallest_activity(torch.tensor([[1.0, 3.0], [1.0, -3.0]]))
    tensor(0.5000)
    """
    return activity_scores(_mean_abs(activations)).amin()


def dormant_fraction(activations: Tensor, tau: float = 0.025) -> Tensor:
    """The share of τ-dormant units, those with s_i ≤ τ (Sokar et al. 2023; `activity_scores`).

    Sokar, Agarwal, Castro & Evci: The Dormant Neuron Phenomenon in Deep Reinforcement Learning, ICML 2023. If a whole
    layer is silent, all its units are dormant.

    >>> dormant_fraction(torch.tensor([[0.0, 1.0, 0.01, 3.0], [0.0, 2.0, 0.01, 0.0]]))
    tensor(0.5000)
    """
    if not tau >= 0:
        raise ValueError(f"tau={tau}: pass a multiple of the layer's mean activity, 0 or more")
    return _share(activity_scores(_mean_abs(activations)) <= tau)


def dead_fraction(activations: Tensor) -> Tensor:
    """The share of dead units, those that are zero for every sample.

    >>> dead_fraction(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    tensor(0.5000)
    """
    return _share((check_rows(activations) == 0).all(0))


def margins(preactivations: Tensor) -> Tensor:
    """m_j = -max_x z_j(x): how far each unit is from firing on any sample; negative if it fires.

    >>> margins(torch.tensor([[-1.0, 2.0], [-3.0, -4.0]]))
    tensor([ 1., -2.])
    """
    return -check_rows(preactivations).amax(0)


def margin_dead_fraction(preactivations: Tensor, gamma: float = 0.0) -> Tensor:
    """The share of units that are dead with margin γ: z_j(x) ≤ -γ for every sample (He et al. 2025, definition 6.1).

    He, Guo, Prakash, Tiwari, Tao, Serapio, Greenwald & Konidaris: Spectral Collapse Drives Loss of Plasticity in Deep
    Continual Learning. For γ = 0 and ReLU these are the dead units.

    >>> z = torch.tensor([[-1.0, 0.0, 2.0], [-3.0, -4.0, -1.0]])
    >>> margin_dead_fraction(z), margin_dead_fraction(z, gamma=0.5)
    (tensor(0.6667), tensor(0.3333))
    """
    if not gamma >= 0:
        raise ValueError(f"gamma={gamma}: pass a margin, 0 or more")
    return _share(margins(preactivations) >= gamma)


def saturated_fraction(slopes: Tensor, epsilon: float = 0.01) -> Tensor:
    """The share of saturated units, those whose activation function has a slope of at most ε for every sample.

    slopes: (samples, units), |∂h/∂z|, for example `Probe.slopes`. No gradient reaches the weights of such a unit; the dead
    units of ReLU are a special case.

    >>> saturated_fraction(torch.tensor([[0.001, 1.0], [0.0, 0.0]]))
    tensor(0.5000)
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon={epsilon}: pass the largest slope that counts as flat, 0 or more")
    return _share((check_rows(slopes) <= epsilon).all(0))


def sign_entropy(preactivations: Tensor) -> Tensor:
    """The mean over units of H(p_j) in bits, p_j the share of samples with z_j > 0: 1 if signs are even, 0 if all are equal.

        H(p) = -p log₂ p - (1 - p) log₂(1 - p)

    The unit sign entropy of Lewandowski, Schuurmans & Machado: Plastic Learning with Deep Fourier Features, ICLR 2025. A
    unit of ReLU whose sign never changes is linear, or dead.

    >>> sign_entropy(torch.tensor([[1.0, 2.0], [-1.0, 3.0]]))
    tensor(0.5000)
    """
    positive = (check_rows(preactivations) > 0).double().mean(0)
    nats = torch.special.entr(positive) + torch.special.entr(1 - positive)
    return (nats.mean() / math.log(2)).float()


def _mean_abs(activations: Tensor) -> Tensor:
    """mean|h| of each unit, scaled down if the sum overflows: scores do not depend on a factor."""
    mean_abs = check_rows(activations).abs().mean(0)
    if mean_abs.isfinite().all():
        return mean_abs
    if not activations.isfinite().all():
        raise NotMeasurable("activations are NaN or infinite: check the batch and the weights")
    return (activations / power_of_two(activations)).abs().mean(0)


def _share(chosen: Tensor) -> Tensor:
    return chosen.float().mean()
