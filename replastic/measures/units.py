"""Measures of hidden units: who is active, who is not.

Activations are (samples, units) as the next layer reads them; positions of images and sequences count as samples.
"""

from __future__ import annotations

import torch
from torch import Tensor


def activity_scores(mean_abs: Tensor) -> Tensor:
    """s_i = mean|h_i| / (1/H Σ_k mean|h_k|): each unit's activity as a multiple of its layer's (Sokar et al. 2023).

    All zero for a layer that is silent as a whole.

    >>> activity_scores(torch.tensor([0.0, 1.0, 3.0, 4.0]))
    tensor([0.0000, 0.5000, 1.5000, 2.0000])
    """
    mean = mean_abs.mean()
    return torch.where(mean > 0, mean_abs / mean, torch.zeros_like(mean_abs))
