"""Soft Weight Rescaling: after every step, move each layer's norm a little towards its initial value.

    c_l = (λ n_l + (1 - λ) ‖W_l‖) / ‖W_l‖,    n_l = ‖W_l‖ at the start
    W_l <- c_l W_l,    b_l <- C_l b_l,    C_l = c_l · C of the layer before;  at a norm layer C_l = c_l

A norm layer counts as a layer, with its gain as W and its shift as b. Biases are scaled by C, and BatchNorm's running mean
and variance by C and C² of its input. Outputs therefore stay proportional to what they were, in training and in evaluation:
the function is kept and only its scale shrinks (theorem 1).

Recovering Plasticity of Neural Networks via Soft Weight Rescaling, under review (authors not named), sections 3.2-3.4 and
algorithm 1.

The theorem holds for chains of layers (MLP, CNN, VGG), with or without norms, and for activations with f(cx) = c f(x). In a
residual network the branch is scaled and the skip connection is not, so no single factor fits their sum. C then restarts at
one after the sum, and outputs change by the order of λ. `replastic.units.chain` traces which layer feeds which; C also
restarts at a layer that it cannot trace.

λ does not decay with the learning rate. When the learning rate falls, training no longer makes norms grow, but SWR still
moves them towards n_l (appendix E). "SWR + re-init" then measures n_l again; without it a small CNN without batch norm ends
no better than with plain training (docs/results-swr.md). The newly measured norms have grown, so over many tasks
with a decaying learning rate n_l can grow from task to task.

Departures from the paper, each for a reason:
    - Algorithm 1 as printed multiplies C on through the last norm layer (l >= k). That scales the norm's shift by the factor
      of the layer before it, although the norm has removed that layer's scale. Here C restarts at every norm layer, which
      makes outputs proportional, as the text says.
    - Running statistics are scaled. The paper does not mention them; if they are not scaled, evaluation breaks.
    - A layer whose norm is zero, or whose squared norm overflows or vanishes in its dtype, is left unchanged. So are
      embeddings, recurrent layers and the packed projection of nn.MultiheadAttention, which the paper does not mention.
    - "SWR + re-init" needs to know when the learning rate has decayed: reinit=True measures a layer's norm again whenever
      its learning rate has fallen, within a task, to half of its value or less. A new task may start with a lower one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from ..learner import Learner, Method, Task
from ..learner.checks import check_precise
from ..learner.fresh import plain
from ..linalg import many
from ..linalg.polar_factor import work_dtype
from ..units import Example, original
from ..units.chain import Link, links
from ..weights.layers import NORMS
from ..weights.place import memory
from ..weights.sharded import check_unsharded
from .kept import Kept
from .reset import head_layers

_DECAYED = 0.5  # a fall of the learning rate to this share of its value counts as a decay


def rescaling_factors(norms: Tensor, first: Tensor, rate: float | Tensor) -> Tensor:
    """c = (rate·first + (1 - rate)·norm)/norm for each layer; 1 where the norm is zero or infinite, or so small that c
    is infinite.

    >>> rescaling_factors(torch.tensor([4.0, 0.0]), torch.tensor([2.0, 1.0]), 0.5)
    tensor([0.7500, 1.0000])
    """
    factors = (rate * first + (1 - rate) * norms) / norms  # NaN for infinite norms
    return torch.where((norms > 0) & (factors < torch.inf), factors, torch.ones_like(norms))


class LayerChain:
    """The layers of a model that are rescaled, and for each bias the layers whose factors it is multiplied by."""

    def __init__(self, model: nn.Module, example: Example | None = None) -> None:
        model = original(model)
        found = {link.name: link for link in links(model, example)}
        by_memory: dict[
            tuple[object, ...], str
        ] = {}  # tied weights are one tensor, scaled once, by its first layer's factor
        for name, link in found.items():
            if (weight := _trainable(link, "weight")) is not None:
                by_memory.setdefault(memory(weight), name)
        held = {name: found[name] for name in by_memory.values()}
        if not held:
            raise ValueError("this model has no trainable linear, convolutional or norm layer to rescale")
        self.names = [plain(name) for name in held]
        self.weights = [cast(Tensor, link.layer.weight) for link in held.values()]
        device = self.weights[0].device
        place = {name: index for index, name in enumerate(held)}
        reach = {name: _reach(found, name) for name in found}

        def rows(paths: Sequence[list[str]]) -> Tensor:
            table = torch.zeros(len(paths), len(held), dtype=torch.bool)
            for row, path in enumerate(paths):
                table[row, [place[name] for name in path if name in place]] = True
            return table.to(device)

        biased = [link for link in found.values() if _trainable(link, "bias") is not None]
        self.biases = [cast(Tensor, link.layer.bias) for link in biased]
        self._of_bias = rows([reach[link.name] for link in biased])
        tracking = [link for link in found.values() if getattr(link.layer, "running_mean", None) is not None]
        self.means = [cast(Tensor, link.layer.running_mean) for link in tracking]
        self.variances = [cast(Tensor, link.layer.running_var) for link in tracking]
        self._of_input = rows([reach[link.upstream] if link.upstream else [] for link in tracking])

    @torch.no_grad()
    def rescale_(self, factors: Tensor) -> None:
        """Scale each layer's weight by its factor, and biases and running statistics so that outputs stay proportional."""
        many.mul_(self.weights, list(factors.unbind()))
        if self.biases:
            many.mul_(self.biases, list(_products(self._of_bias, factors).unbind()))
        if self.means:
            entering = _products(self._of_input, factors)
            many.mul_(self.means, list(entering.unbind()))
            many.mul_(self.variances, list(entering.square().unbind()))

    def norms(self) -> Tensor:
        return many.norms([weight.detach() for weight in self.weights])


def _products(table: Tensor, factors: Tensor) -> Tensor:
    return torch.where(table, factors, torch.ones_like(factors)).prod(dim=1)


def _trainable(link: Link, attribute: str) -> nn.Parameter | None:
    parameter = link.layer._parameters.get(attribute)
    return parameter if parameter is not None and parameter.requires_grad else None


def _reach(found: dict[str, Link], name: str) -> list[str]:
    """The layer, and those before it that its output's scale depends on: back to and including the last norm."""
    path = [name]
    while not isinstance(found[path[-1]].layer, NORMS) and (before := found[path[-1]].upstream) and before not in path:
        path.append(before)
    return path


@torch.no_grad()
def rescale_(model: nn.Module, factors: Sequence[float], example: Example | None = None) -> None:
    """Scale each layer by its factor, in the order of the graph (theorem 1). Outputs are scaled by the product of the
    factors from the last norm on.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> x = torch.randn(5, 3); before = model(x)
    >>> rescale_(model, [0.5, 0.6]); torch.allclose(model(x), 0.3 * before)
    True
    """
    check_unsharded(model, for_good=True)  # layers cannot be traced through FSDP1's wrappers
    chain = LayerChain(model, example)
    first = chain.weights[0]
    if len(factors) != len(chain.weights) or not all(factor > 0 for factor in factors):
        raise ValueError(f"factors={factors!r}: pass one positive number for each of {', '.join(chain.names)}")
    wanted = torch.tensor(factors, dtype=work_dtype(first.dtype), device=first.device)
    used = torch.cat([wanted, _products(chain._of_bias, wanted), _products(chain._of_input, wanted).square()])
    if not ((used > 0) & used.isfinite()).all():
        raise ValueError(
            f"factors={factors!r}: these factors, or the products applied to biases and "
            f"running variances, overflow or vanish in {wanted.dtype}"
        )
    chain.rescale_(wanted)


@dataclass
class SWR(Method):
    """Soft Weight Rescaling after every step."""

    rate: float = 1e-3  # λ; with classifier_rate, λ_f of the feature extractor
    classifier_rate: float | None = None  # λ_c of all linear layers (of the last one in an MLP); None: the same as rate
    reinit: bool = False  # "SWR + re-init": measure the norms again when the learning rate decays
    capturable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._layers = Kept(self._find)
        self.require("rate", 0 <= self.rate <= 1, "between 0 and 1")
        self.require("classifier_rate", self.classifier_rate is None or 0 <= self.classifier_rate <= 1, "between 0 and 1")

    def start(self, learner: Learner) -> None:
        chain, _ = self._layers.of(learner)
        check_precise(zip(chain.names, chain.weights, strict=True), "in which SWR's factors round to one")

    def _find(self, learner: Learner) -> tuple[LayerChain, Tensor]:
        """The layers and their rates. Layers that have no initial norm yet get one."""
        chain = LayerChain(learner.model, learner.example)
        first = many.lengths([learner.first(f"{name}.weight" if name else "weight") for name in chain.names])
        known = dict(zip(self.state.get("names", []), self.state.get("norms", []), strict=True))
        norms = [known.get(name, norm) for name, norm in zip(chain.names, first, strict=True)]
        if self.state.get("names") != chain.names:
            self.state["learning_rates"] = torch.zeros(len(norms), device=learner.device)  # before the first step: none
        self.state["names"], self.state["norms"] = chain.names, torch.stack(norms)
        rates = torch.full((len(norms),), self.rate, dtype=first.dtype)
        if self.classifier_rate is not None:
            head = {name.removesuffix(".weight") for name in head_layers(original(learner.model))}
            rates[[index for index, name in enumerate(chain.names) if name in head]] = self.classifier_rate
        return chain, rates.to(learner.device)

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        self.state["learning_rates"].zero_()  # so that a lower rate in a new task does not count as a decay

    def after_step(self, learner: Learner) -> None:
        chain, rates = self._layers.of(learner)
        norms = chain.norms()
        if self.reinit:  # on the device alone, so that it can be part of a CUDA graph
            now, before = _learning_rates(learner, chain.weights), self.state["learning_rates"]
            decayed, rising = now <= _DECAYED * before, now > before
            self.state["norms"].copy_(torch.where(decayed, norms, self.state["norms"]))
            before.copy_(torch.where(decayed | rising, now, before))
        chain.rescale_(rescaling_factors(norms, self.state["norms"], rates))


def _learning_rates(learner: Learner, weights: Sequence[Tensor]) -> Tensor:
    """The learning rate of each weight: that of its group in the optimiser."""
    rates = dict[int, Tensor]()
    for group in learner.optimizer.param_groups:
        rate = group["lr"]
        one = rate.to(learner.device) if isinstance(rate, Tensor) else torch.full((), rate, device=learner.device)
        rates |= dict.fromkeys(map(id, group["params"]), one)
    untrained = torch.zeros((), device=learner.device)
    return torch.stack([rates.get(id(weight), untrained) for weight in weights]).float()
