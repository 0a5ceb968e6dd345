"""Muon: momentum with an orthogonalised update for the matrices of hidden layers, and AdamW for the rest.

    M <- μ M + (1 - μ) G;    W <- W - η sqrt(max(1, out/in)) · NS5((1 - μ) G + μ M)

NS5 is five steps of X <- aX + b XXᵀX + c (XXᵀ)²X from M/‖M‖, with (a, b, c) = (3.4445, -4.775, 2.0315), which bring all
singular values near one. A convolution is one matrix, out x (in · kernel).

Jordan et al.: Muon: An optimizer for hidden layers in neural networks, 2024; as a baseline in FIRE (appendix D): rate 1e-2
for Muon, 1e-3 and betas (0.9, 0.95) for AdamW, no weight decay.

Departures, each for a reason:
    - Convolutions are allowed, which torch.optim.Muon refuses. For matrices the update is that of torch.optim.Muon, but in
      float32 on the CPU.
    - A convolution's factor sqrt(max(1, out/in)) is that of its matrix. Jordan's code uses the kernel's height and width,
      which makes it 1 for square kernels. So 1x1 convolutions with more output than input channels take larger steps here.
    - AdamW trains the input and output layers, as the FIRE paper says. Its code trains the stem of ResNets, and the patch,
      position and class embeddings of ViTs, with Muon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..learner import Learner, Method
from ..learner.fresh import plain
from ..linalg import many
from ..linalg.newton_schulz import COEFFICIENTS
from ..optim import Together
from ..units import original
from ..weights import select
from ..weights.inventory import take_inventory
from ..weights.sharded import check_unsharded

_NEWTON_SCHULZ_STEPS = 5
_EPSILON = 1e-7  # keeps a gradient of zeros from being divided by its norm


def orthogonalised(matrix: Tensor, steps: int = _NEWTON_SCHULZ_STEPS) -> Tensor:
    """The matrix with all its singular values brought near one (0.7 to 1.2) by Muon's Newton-Schulz iteration.

    matrix: one matrix, or a stack (..., out, in). As in torch.optim.Muon, the result is zero if the norm overflows float32
        (entries above about 1e19), and too small if the norm is below 1e-5.
    """
    a, b, c = COEFFICIENTS["muon"]
    if matrix.dtype == torch.float64:  # entries beyond float32 would become infinite, and then NaN
        matrix = matrix.clamp(-torch.finfo(torch.float32).max, torch.finfo(torch.float32).max)
    x = matrix.bfloat16() if matrix.is_cuda else matrix.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + _EPSILON)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrix.dtype)


class Muon(Optimizer):
    """The Muon optimiser, for weights with two or more axes. Its step can be part of a CUDA graph if capturable=True and the
    learning rate is a tensor on the weights' device."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 1e-2,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        capturable: bool = False,
    ) -> None:
        params = list(params)
        if any(param.ndim < 2 for param in params):
            raise ValueError("Muon trains weights with two or more axes: use AdamW for the rest, or muon(model) for both")
        if lr < 0 or not 0 <= momentum < 1:
            raise ValueError(f"Muon(lr={lr}, momentum={momentum}): lr must be 0 or more, and momentum in [0, 1)")
        if capturable and not isinstance(lr, Tensor):
            raise ValueError(f"Muon(lr={lr}, capturable=True): pass lr as a tensor on the device, for the graph")
        settings = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay, "capturable": capturable}
        super().__init__(params, {"lr": lr, **settings})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[tuple[object, ...], list[Tensor]] = {}  # weights of equal shape are orthogonalised together
            for param in group["params"]:
                if param.grad is not None:
                    alike.setdefault((param.shape, param.dtype, param.device), []).append(param)
            for params in alike.values():
                self._update(params, group)
        return loss

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [param.grad for param in params if param.grad is not None]
        for param in params:
            if "momentum_buffer" not in self.state[param]:
                self.state[param]["momentum_buffer"] = torch.zeros_like(param)
        momenta = [self.state[param]["momentum_buffer"] for param in params]
        many.lerp_(momenta, gradients, 1 - group["momentum"])
        directions = torch.stack(momenta)
        if group["nesterov"]:
            directions = torch.stack(gradients).lerp_(directions, group["momentum"])
        matrices = directions.flatten(2)  # (layers, out, in · kernel)
        out, into = matrices.shape[1:]
        updates = orthogonalised(matrices).view_as(directions)
        rate = group["lr"]
        if group["weight_decay"]:
            many.mul_(params, 1 - rate * group["weight_decay"])
        many.add_(params, (updates * (rate * max(1.0, out / into) ** 0.5)).unbind(), alpha=-1)


def muon(
    model: nn.Module,
    *,
    lr: float = 1e-2,
    adam_lr: float = 1e-3,
    momentum: float = 0.95,
    betas: tuple[float, float] = (0.9, 0.95),
    weight_decay: float = 0.0,
    adam_only: Sequence[str] = (),
    only: Iterable[Tensor] | None = None,
    capturable: bool = False,
) -> Together:
    """Muon for the matrices of hidden layers and AdamW for everything else, as one optimiser.

    Hidden layers' matrices are the linear and convolutional weights except the first (unless an embedding comes before it)
    and the last.

    adam_only: names of other parameters that AdamW trains.
    only: the parameters to train; None: all that require gradients.
    capturable: make learning rates tensors on the device, so that a step can be part of a CUDA graph.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [len(group["params"]) for group in muon(model).param_groups]
    [1, 5]
    """
    check_unsharded(model, for_good=True)
    model = original(model)
    wanted = {id(param) for param in only} if only is not None else None
    named = {
        plain(name): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (wanted is None or id(parameter) in wanted)
    }
    unknown = [name for name in adam_only if name not in named]
    if unknown:
        raise ValueError(f"adam_only: {unknown[0]!r} is not a trainable parameter of this model")
    hidden = [name for name in hidden_matrices(model) if name in named and name not in adam_only]
    if not hidden:
        raise ValueError("this model has no hidden matrix for Muon: with two layers or fewer, use AdamW")
    rest = [parameter for name, parameter in named.items() if name not in hidden]
    matrices = [named[name] for name in hidden]
    rates: Any = [torch.tensor(rate, device=matrices[0].device) if capturable else rate for rate in (lr, adam_lr)]
    return Together(
        [
            Muon(matrices, rates[0], momentum, weight_decay=weight_decay, capturable=capturable),
            torch.optim.AdamW(rest, rates[1], betas, eps=1e-10, weight_decay=weight_decay, capturable=capturable),
        ]
    )


def hidden_matrices(model: nn.Module) -> list[str]:
    """Names of the linear and convolutional weights between the model's first and last."""
    # Frozen weights count: the layer after a frozen first layer is a hidden one.
    chosen = select(model, "everything", frozen=True).chosen
    names = list(dict.fromkeys(w.name.partition(":")[0] for w in chosen if w.kind in ("linear", "convolution")))
    kinds = {weight.kind for weight in take_inventory(model, frozen=True).weights}
    return names[0 if "embedding" in kinds else 1 : None if "tied_head" in kinds else -1]


@dataclass
class UseMuon(Method):
    """Train with Muon and AdamW, from the method's first task on, instead of the learner's optimiser.

    Learning rates, weight decay and schedulers of the learner's optimiser do not carry over. Your own loop must call
    `learner.optimizer.step()`.
    """

    lr: float = 1e-2  # Muon's learning rate
    adam_lr: float = 1e-3
    momentum: float = 0.95
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("lr", self.lr >= 0, "0 or more")
        self.require("adam_lr", self.adam_lr >= 0, "0 or more")
        self.require("momentum", 0 <= self.momentum < 1, "at least 0 and below 1")
        self.require("weight_decay", self.weight_decay >= 0, "0 or more")

    def start(self, learner: Learner) -> None:
        replaced = learner.optimizer.param_groups
        learner.optimizer = muon(
            learner.model,
            lr=self.lr,
            adam_lr=self.adam_lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            only=[param for group in replaced for param in group["params"]],
            # As in the optimiser that it replaces, whose rate may be on the CPU after a checkpoint was loaded.
            capturable=learner.device.type == "cuda" and all(isinstance(group["lr"], Tensor) for group in replaced),
        )
