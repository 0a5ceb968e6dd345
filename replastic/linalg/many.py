"""The same operation on many tensors, in few kernels. Only this module uses torch's private `_foreach` functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .products import frobenius_norms

Tensors = Sequence[Tensor]


def copy_(tensors: Tensors, values: Tensors) -> None:
    """tensor <- value"""
    torch._foreach_copy_(list(tensors), list(values))  # pyright: ignore


def mul_(tensors: Tensors, factors: float | Tensor | Tensors) -> None:
    """By one number, by one tensor, or by a tensor (or number) for each."""
    torch._foreach_mul_(list(tensors), factors)  # pyright: ignore


def add_(tensors: Tensors, others: Tensors, alpha: float = 1) -> None:
    """tensor <- tensor + alpha·other"""
    torch._foreach_add_(list(tensors), list(others), alpha=alpha)  # pyright: ignore


def sub(tensors: Tensors, others: Tensors) -> list[Tensor]:
    """tensor - other, as new tensors"""
    return list(torch._foreach_sub(list(tensors), list(others)))  # pyright: ignore


def mul(tensors: Tensors, factors: float | Tensor | Tensors) -> list[Tensor]:
    """tensor·factor, as new tensors"""
    return list(torch._foreach_mul(list(tensors), factors))  # pyright: ignore


def lerp_(tensors: Tensors, others: Tensors, weight: float) -> None:
    """tensor + weight·(other - tensor)"""
    torch._foreach_lerp_(list(tensors), list(others), weight)  # pyright: ignore


def clamp_(tensors: Tensors, bounds: Sequence[float]) -> None:
    """To [-bound, bound], a bound for each."""
    torch._foreach_clamp_min_(list(tensors), [-bound for bound in bounds])  # pyright: ignore
    torch._foreach_clamp_max_(list(tensors), list(bounds))  # pyright: ignore


def norms(tensors: Tensors) -> Tensor:
    """The Frobenius norm of each, as one vector; of half-precision tensors in float32."""
    dtypes = {tensor.dtype for tensor in tensors}
    half = dtypes & {torch.float16, torch.bfloat16}
    wide = torch.float64 if torch.float64 in dtypes else torch.float32
    return torch.stack(torch._foreach_norm(list(tensors), 2, wide if half else None))  # pyright: ignore


def lengths(tensors: Tensors) -> Tensor:
    """`norms` of tensors that are not differentiated, correct also where their squares overflow or vanish in their dtype.

    It reads the tensors twice and is many times slower than `norms` on a CPU: for initial weights, not for every step.
    """
    found = norms(tensors)
    info = torch.finfo(found.dtype)
    exact = torch.stack([frobenius_norms(tensor.reshape(1, -1, 1))[0] for tensor in tensors]).to(found)
    ordinary = (found > info.smallest_normal**0.5 / info.eps) & (found < info.max**0.5)
    return torch.where(ordinary, found, exact)
