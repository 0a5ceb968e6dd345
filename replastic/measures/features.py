"""Measures of features: how many directions a layer's outputs use to distinguish samples.

Features are (samples, channels); positions of images and sequences count as samples. Covariances take one row per sample.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..linalg.effective_rank import effective_rank as effective_rank
from ..linalg.polar_factor import work_dtype
from .batch import check_rows
from .probe import NotMeasurable
from .range import power_of_two
from .weights import singular_values


def srank(features: Tensor, delta: float = 0.01) -> Tensor:
    """srank_δ = min{k : Σ_{i≤k} σ_i / Σ σ_i ≥ 1 - δ}: how many directions hold 1 - δ of the spectrum (Kumar et al. 2021).

    Kumar, Agarwal, Ghosh & Levine: Implicit Under-Parameterization Inhibits Data-Efficient Deep Reinforcement Learning, ICLR
    2021. 0 for features that are all zero.

    >>> srank(torch.eye(4)), srank(torch.diag(torch.tensor([1.0, 1.0, 0.001])))
    (tensor(4), tensor(2))
    """
    return srank_of_spectrum(singular_values(_rows(features)), delta)


def threshold_rank(features: Tensor, epsilon: float = 0.01) -> Tensor:
    """#{i : σ_i(Φ/√n) > ε}: the number of directions in which n samples vary by more than ε (Lyle, Rowland & Dabney 2022).

    The feature rank of "Understanding and Preventing Capacity Loss in Reinforcement Learning", ICLR 2022.

    >>> threshold_rank(torch.diag(torch.tensor([1.0, 1.0, 0.001])))
    tensor(2)
    """
    rows = _rows(features)
    return threshold_rank_of_spectrum(singular_values(rows) / math.sqrt(len(rows)), epsilon)


def feature_norm(features: Tensor) -> Tensor:
    """The mean of ‖φ(x)‖₂ over samples.

    >>> feature_norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor(3.)
    """
    rows = _rows(features)
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).mean().to(rows.dtype)


def normalised_feature_covariance(features: Tensor) -> Tensor:
    """C = HHᵀ/‖H‖²_F, (samples, samples): how similar the network finds two samples, whatever the features' scale.

    Han et al. (FIRE, ICLR 2026), section 3.1. Each row of `features` is one sample with all its positions.

    >>> normalised_feature_covariance(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """
    rows = _rows(features)
    rows = rows / power_of_two(rows)  # squares of large or small features would leave float32's range
    norm = torch.linalg.matrix_norm(rows)
    if not norm > 0:
        raise NotMeasurable("features that are all zero have no normalised covariance")
    rows = rows / norm
    with torch.autocast(rows.device.type, enabled=False):
        return rows @ rows.mT


def feature_covariance_distance(features: Tensor, reference: Tensor) -> Tensor:
    """‖C - C_ref‖_F of the normalised feature covariances: how far the features have changed direction since the reference.

    Han et al. (FIRE, ICLR 2026), section 3.1: a small SFE keeps it small. Between 0 and √2.

    >>> feature_covariance_distance(torch.eye(4), 2 * torch.eye(4))
    tensor(0.)
    >>> feature_covariance_distance(torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]]))
    tensor(1.4142)
    """
    if len(features) != len(reference):
        raise ValueError(f"compares features of the same samples, got {len(features)} and {len(reference)} samples")
    now, then = normalised_feature_covariance(features), normalised_feature_covariance(reference)
    return torch.linalg.matrix_norm(now - then.to(now))


def srank_of_spectrum(values: Tensor, delta: float = 0.01) -> Tensor:
    """`srank` from singular values, largest first."""
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta}: pass the share of the singular values to leave out, at least 0 and below 1")
    sums = values.double().cumsum(0)
    # Allow for rounding: 99 of 100 equal values are 99 %.
    rounding = torch.finfo(values.dtype).eps * len(values)
    enough = sums >= (1 - delta - rounding) * sums[-1]
    return torch.where(sums[-1] > 0, enough.int().argmax() + 1, 0)


def threshold_rank_of_spectrum(values: Tensor, epsilon: float = 0.01) -> Tensor:
    """`threshold_rank` from the singular values of Φ/√n."""
    if not epsilon >= 0:
        raise ValueError(f"epsilon={epsilon}: pass the singular value above which a direction counts, 0 or more")
    return (values > epsilon).sum()


def _rows(features: Tensor) -> Tensor:
    check_rows(features, "features (samples, channels)")
    return features.to(work_dtype(features.dtype))
