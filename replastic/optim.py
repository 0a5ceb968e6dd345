"""Surgery on optimiser state: whoever resets weights clears exactly those entries, and nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

# State that starts at zero and has one entry for each weight, in torch's optimisers and most others.
_ZERO_AT_START = {
    "momentum_buffer",  # SGD, Muon, RMSprop
    "exp_avg",  # Adam and its kin
    "exp_avg_sq",
    "max_exp_avg_sq",
    "exp_inf",  # Adamax
    "square_avg",  # RMSprop, Adadelta
    "acc_delta",
    "grad_avg",
    "sum",  # Adagrad, unless it was given an initial accumulator
    "row_var",  # Adafactor
    "col_var",
    "variance",
}
# State of the parameter as a whole, and what it starts from.
_COUNTERS = {"step": 0, "mu_product": 1}  # mu_product: NAdam


@torch.no_grad()
def clear_state_(optimizer: Optimizer, param: Tensor, index: Any = None) -> None:
    """Forget what the optimiser remembers of `param`, or of the entries `param[index]`, in place.

    Momenta and second moments go to zero, and with index=None the step count too: the parameter then trains on as if the
    optimiser had never seen it. With an index the step count stays, because a tensor's entries share it: Adam's bias
    correction is then spent, and the first update of a cleared entry is up to (1-b1)/sqrt(1-b2) ≈ 3.2 learning rates.
    Tensors keep their storage, so captured CUDA graphs and fused kernels stay valid; only SGD with dampening loses its
    buffer, because it tells the first gradient, which it does not dampen, by there being none. A parameter that has not
    been stepped has no state, and nothing happens.

    index: anything that indexes `param`: a row, a slice, a tensor of indices, a mask of its shape.

    >>> weight = torch.nn.Parameter(torch.ones(3, 2))
    >>> optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    >>> weight.sum().backward(); optimizer.step()
    >>> clear_state_(optimizer, weight, index=1)
    >>> optimizer.state[weight]["momentum_buffer"]
    tensor([[1., 1.],
            [0., 0.],
            [1., 1.]])
    """
    check_clearable(optimizer, param, index)
    group = _group_of(optimizer, param)
    state = optimizer.state.get(param, {})
    for key, value in state.items():
        if value is None:
            continue
        if key in _COUNTERS:
            if index is None:
                start = _COUNTERS[key]
                state[key] = value.fill_(start) if isinstance(value, Tensor) else start
        elif index is not None:
            value[index.to(value.device) if isinstance(index, Tensor) else index] = 0
        elif key == "momentum_buffer" and group.get("dampening"):
            state[key] = None
        else:
            value.zero_()


def check_clearable(optimizer: Optimizer, param: Tensor, index: Any = None) -> None:
    """Raise unless `clear_state_` with these arguments will succeed; changes nothing."""
    name = type(optimizer).__name__
    for attribute in ("optim", "optimizer", "base_optimizer"):
        inner = getattr(optimizer, attribute, None)
        if isinstance(inner, Optimizer) and inner.state is not optimizer.state:
            raise TypeError(f"{name} keeps its state in another optimiser: pass that, as in optimizer.{attribute}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("LBFGS remembers all parameters as one vector: build it anew instead")
    _group_of(optimizer, param)
    for key, value in optimizer.state.get(param, {}).items():
        if key in _COUNTERS or value is None:
            continue
        starts_elsewhere = key == "sum" and optimizer.defaults.get("initial_accumulator_value")
        if key not in _ZERO_AT_START or starts_elsewhere:
            raise TypeError(
                f"{name} keeps {key!r}, and how that starts is not known: build the optimiser anew "
                f"instead, or del optimizer.state[param] if it makes state when it is missing"
            )
        kind = type(value).__name__
        if kind not in ("Tensor", "Parameter", "DTensor"):
            raise TypeError(f"{name}'s {key!r} is a {kind}, not a plain tensor: build the optimiser anew instead")
        if index is not None and (kind == "DTensor" or value.shape != param.shape):
            raise TypeError(
                f"{name}'s {key!r} is a {kind} of shape {tuple(value.shape)}, of which single entries cannot be cleared: "
                "clear the whole parameter with index=None"
            )


def holds(optimizer: Optimizer, param: Tensor) -> bool:
    """Whether the optimiser trains this parameter."""
    return any(held is param for group in optimizer.param_groups for held in group["params"])


def _group_of(optimizer: Optimizer, param: Tensor) -> dict[str, Any]:
    if not holds(optimizer, param):
        raise ValueError(
            f"the optimiser does not hold this parameter of shape {tuple(param.shape)}: pass the optimiser that trains it"
        )
    return next(group for group in optimizer.param_groups if any(held is param for held in group["params"]))
