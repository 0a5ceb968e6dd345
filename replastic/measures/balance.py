"""How evenly a network's weight norm is spread over its layers and over its units.

Layers drift apart if one grows faster than the others (definition 2 of Soft Weight Rescaling, appendix C):

    b = |r_t - r_0|,    r = ‖W'‖/‖W‖    with ‖W_0‖ ≤ ‖W'_0‖

In a positively homogeneous network, the incoming weights of a unit can be scaled by e^a and its outgoing weights by e^-a
without changing the function. One of all these networks has the smallest l_{p,q}-norm (equation 16; Neyshabur,
Salakhutdinov & Srebro 2015):

    ‖W‖_{p,q} = (Σ_i (Σ_j |W_ij|^p)^(q/p))^(1/q)    over all units i, each with its row of incoming weights
    balancedness = ‖W‖_{p,q} / min over scales,    1 for a balanced network

Saul: Weight-balancing fixes and flows for deep learning, TMLR 2023; his algorithm 1 finds the minimum by multiplicative
updates of all units at once. In the logarithms a of the scales the problem is convex: a sum of exponentials of log-sum-exps
of linear functions.

Departures, each for a reason:
    - Some of his updates come near the minimum from any start; Newton's steps in float64 on the logarithm of the norm then
      find it. The result is checked: the gradient there must be 0.
    - Biases are scaled with their units but are not in the norm, because equation 16 is of weights.
    - A unit without a path of nonzero weights from an input and to an output has no best scale: its weights can become
      arbitrarily small. They count as 0 in the minimum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from ..learner.fresh import named_tensors, plain
from ..units.groups import Slot
from ..units.unfolded import unfold
from .batch import arguments
from .probe import NotMeasurable, Probe

_STATIONARY = 1e-10  # Σ|d log‖W‖/da|: log‖W‖ exceeds its minimum by at most this times the largest distance in a
_UPDATES = 30  # of Saul's
_STEPS = 100  # of Newton's, and
_SOLVES = 200  # of conjugate gradients for each step; deep chains take more than wide layers


class LayerBalance(NamedTuple):
    """Definition 2 over all pairs of layers."""

    mean: float
    largest: float


def layer_balance(norm: float, other: float, first: float, other_first: float) -> float:
    """b = |‖W'_t‖/‖W_t‖ - ‖W'_0‖/‖W_0‖| of two layers' Frobenius norms, now and initially; W has the smaller initial norm.

    >>> layer_balance(1.0, 6.0, first=1.0, other_first=2.0)
    4.0
    >>> layer_balance(6.0, 1.0, first=2.0, other_first=1.0)
    4.0
    """
    if first > other_first:
        norm, other, first, other_first = other, norm, other_first, first
    if not (norm > 0 and first > 0):
        raise ValueError(f"norms of {norm} now and {first} initially: a layer of zeros has no ratio to other layers")
    return abs(other / norm - other_first / first)


@torch.no_grad()
def balance_between_layers(probe: Probe) -> LayerBalance:
    """Definition 2 over all pairs of the probe's weights, compared with its reference: how far norms have drifted apart."""
    names = [weight.name for weight in probe.weights]
    if len(names) < 2:
        raise NotMeasurable(f"needs two weights to compare, but there is only {names[0]}")
    before = named_tensors(probe.reference)
    norms = [float(weight.stack().view.double().norm()) for weight in probe.weights]
    firsts = [
        float(weight.stack(before[plain(weight.name.partition(":")[0])]).view.double().norm()) for weight in probe.weights
    ]
    zero = next((name for name, now, then in zip(names, norms, firsts, strict=True) if not (now > 0 and then > 0)), None)
    if zero:
        raise NotMeasurable(f"{zero} is all zeros, now or in the reference, so it has no ratio to other layers")
    pairs = itertools.combinations(zip(norms, firsts, strict=True), 2)
    values = [layer_balance(one[0], other[0], one[1], other[1]) for one, other in pairs]
    return LayerBalance(math.fsum(values) / len(values), max(values))


def pq_norm(weights: Sequence[Tensor], p: float = 2, q: float = 2) -> Tensor:
    """Equation 16: (Σ_i (Σ_j |W_ij|^p)^(q/p))^(1/q) over the rows of all weights, in float64.

    weights: (out, ...) each, as PyTorch stores linear and convolutional weights: a row has all incoming weights of a unit.

    >>> pq_norm([torch.tensor([[3.0, 4.0], [0.0, 12.0]])], p=2, q=1)
    tensor(17., dtype=torch.float64)
    """
    _check(p, q)
    rows = torch.cat([torch.linalg.vector_norm(weight.double().flatten(1), p, dim=1) for weight in weights])
    return torch.linalg.vector_norm(rows, q)


def pq_balancedness(probe: Probe, p: float = 2, q: float = 2) -> float:
    """‖W‖_{p,q} divided by its minimum over scalings of hidden units: at least 1, and 1 for a balanced network.

    The probe's batch is used to check, with random scales, that scaling leaves the function unchanged. Units that are
    normalised, or whose activation function is not positively homogeneous, are an error.
    """
    rows = _Rows(probe, p, q)
    return max(1.0, math.exp((rows.total - rows.value(_minimum(rows))).item() / q))


def balancing_scales(probe: Probe, p: float = 2, q: float = 2) -> dict[str, Tensor]:
    """The scales of the units, by group, that minimise the l_{p,q}-norm; 1 for units without a best scale."""
    rows = _Rows(probe, p, q)
    found = _minimum(rows).exp()
    return dict(zip(probe.groups, found.split([group.size for group in probe.groups.values()]), strict=True))


@torch.no_grad()
def rescaled(probe: Probe, scales: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model's state with units scaled: incoming weights are multiplied by the scale, outgoing weights divided by it.

    The model itself is unchanged; pass the result to `model.load_state_dict(...)`.
    """
    unknown = [name for name in scales if name not in probe.groups]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a group of units of this model; its groups are {', '.join(probe.groups)}")
    clones: dict[int, Tensor] = {}  # a tensor with several names stays one tensor
    tensors = named_tensors(probe.model).items()
    state = {name: clones.setdefault(id(tensor), tensor.detach().clone()) for name, tensor in tensors}
    for name, scale in scales.items():
        group = probe.groups[name]
        if scale.shape != (group.size,):
            raise ValueError(f"scales of shape {tuple(scale.shape)} for the {group.size} units of {name}: pass one per unit")
        for slot, sign in [*((slot, 1) for slot in group.makers), *((slot, -1) for slot in group.readers)]:
            view = slot.view(state[_name(slot)])
            factor = (
                torch.where(slot.units >= 0, scale.to(slot.units.device, torch.float64)[slot.units.clamp_min(0)], 1) ** sign
            )
            view.mul_(slot.spread(factor.to(view), view))
    return state


class _Block(NamedTuple):
    """One weight as (rows, units that it reads): Σ|W|^p of each row over the entries that read one unit."""

    powers: Tensor
    owners: Tensor  # (rows,): the unit that a row makes
    columns: Tensor  # (units that it reads,)


class _Rows:
    """The l_{p,q}-norm as a function of the scales' logarithms a, one for each unit, then a 0 for everything else.

    ‖W‖^q = Σ_i e^(q a_i) (Σ_k A_ik e^(-p a_k))^(q/p) over rows i and the units k that they read.
    """

    def __init__(self, probe: Probe, p: float, q: float) -> None:
        _check(p, q)
        probe.check_finite()
        self.p, self.q = p, q
        for name, group in probe.groups.items():
            if group.norms:
                raise NotMeasurable(f"the units of {name} are normalised by {group.norms[0].layer}, which undoes scales")
        self.units = sum(group.size for group in probe.groups.values())
        _check_that_scales_do_nothing(probe)
        whole = self._blocks(probe)
        self.total = torch.cat([block.powers.sum(1) ** (q / p) for block in whole]).sum().log()
        self.kept = self._on_a_path(whole)
        self.blocks = [block for block in map(self._live, whole) if len(block.powers)]
        if not self.blocks:
            raise NotMeasurable("no input reaches an output through weights that are not 0: so the smallest norm is 0")

    def _blocks(self, probe: Probe) -> list[_Block]:
        parameters, unfolded = unfold(probe.model, probe.where, frozen=True)
        slots = [slot for group in probe.groups.values() for slot in (*group.makers, *group.readers)]
        counted = {id(parameter) for parameter in parameters}
        for slot in slots:
            if slot.attribute == "weight" and id(slot.tensor(probe.model)) not in counted:
                raise NotMeasurable(
                    f"{_name(slot)} scales with units but is not among the selected weights: pass where='everything'"
                )
        made, read = self._marks(probe)
        blocks: list[_Block] = []
        for weight in unfolded:
            parameter = parameters[weight.parameter]
            no_unit = torch.full(parameter.shape, float(self.units), dtype=torch.float64, device=parameter.device)
            values = weight.read(parameter.detach()).double().abs()
            values = values.reshape(-1, values.shape[-1]) ** self.p
            owners = weight.read(made.get(id(parameter), no_unit)).reshape(values.shape)[:, 0].long()
            reads = weight.read(read.get(id(parameter), no_unit)).reshape(values.shape).long()
            columns, where = reads.unique(return_inverse=True)
            powers = values.new_zeros(len(values), len(columns)).scatter_add(1, where, values)
            blocks.append(_Block(powers, owners, columns))
        return blocks

    def _marks(self, probe: Probe) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """The unit of each entry of the tensors that make and that read units, by the tensor's id."""
        made: dict[int, Tensor] = {}
        read: dict[int, Tensor] = {}
        first = 0
        for group in probe.groups.values():
            for marks, slots in ((made, group.makers), (read, group.readers)):
                for slot in slots:
                    tensor = slot.tensor(probe.model)
                    no_unit = torch.full(tensor.shape, float(self.units), dtype=torch.float64, device=tensor.device)
                    view = slot.view(marks.setdefault(id(tensor), no_unit))
                    mine = slot.spread(slot.units >= 0, view)
                    view.copy_(torch.where(mine, slot.spread((slot.units + first).to(view), view), view))
            first += group.size
        return made, read

    def _on_a_path(self, blocks: Sequence[_Block]) -> Tensor:
        """Which units are on a path of nonzero weights from an input to an output."""
        reached = torch.zeros(self.units + 1, dtype=torch.bool, device=blocks[0].powers.device)
        reached[-1] = True
        reaching = reached.clone()
        known = 0
        while known != int(reached.sum() + reaching.sum()):
            known = int(reached.sum() + reaching.sum())
            for powers, owners, columns in blocks:
                there = powers > 0
                reached[owners[(there & reached[columns]).any(1)]] = True
                reaching[columns[(there & reaching[owners][:, None]).any(0)]] = True
        return reached & reaching

    def _live(self, block: _Block) -> _Block:
        """The block without units that are on no path."""
        columns = self.kept[block.columns]
        powers = block.powers[:, columns]
        rows = self.kept[block.owners] & (powers.sum(1) > 0)
        return _Block(powers[rows], block.owners[rows], block.columns[columns])

    def log_sum(self, makes: Tensor, reads: Tensor) -> Tensor:
        """log ‖W‖^q, with the logarithms of the scales passed once as those of rows and once as those of columns."""
        terms = [
            self.q * makes[owners] + (powers @ (-self.p * reads[columns]).exp()).log() * (self.q / self.p)
            for powers, owners, columns in self.blocks
        ]
        return torch.logsumexp(torch.cat(terms), 0)

    def slopes(self, logs: Tensor, graph: bool = False) -> tuple[Tensor, Tensor]:
        """The two parts of d log‖W‖^q/da, from incoming and outgoing weights; equal for a balanced unit."""
        makes, reads = (torch.cat([logs, logs.new_zeros(1)]) for _ in range(2))
        if not graph:
            makes, reads = makes.detach().requires_grad_(), reads.detach().requires_grad_()
        more, less = torch.autograd.grad(self.log_sum(makes, reads), (makes, reads), create_graph=graph)
        return more[:-1], -less[:-1]

    def value(self, logs: Tensor) -> Tensor:
        """log ‖W‖^q."""
        both = torch.cat([logs, logs.new_zeros(1)])
        return self.log_sum(both, both)


def _minimum(rows: _Rows) -> Tensor:
    """The scales' logarithms that minimise the norm, by Saul's updates and then Newton's steps."""
    kept = rows.kept[:-1]
    logs = torch.zeros(rows.units, dtype=torch.float64, device=kept.device)
    away = math.inf
    with torch.enable_grad():
        for _ in range(_UPDATES):
            more, less = rows.slopes(logs)
            logs = logs + torch.where(kept, less / more, 1).log() / (4 * max(rows.p, rows.q))
        for _ in range(_STEPS):
            at = logs.clone().requires_grad_()
            more, less = rows.slopes(at, graph=True)
            slope = more - less
            away = float(slope.detach().abs().sum()) / rows.q
            if away <= _STATIONARY:
                return logs
            sizes = torch.where(kept, rows.q * more + rows.p * less, 1).detach()  # roughly the diagonal of the Hessian
            step = _solve(slope, at, sizes)
            logs = _along(rows, logs, slope.detach(), step)
    raise NotMeasurable(f"the smallest norm was not found: Σ|d log‖W‖/da| is {away:.2g} after {_STEPS} steps")


def _solve(slope: Tensor, at: Tensor, sizes: Tensor) -> Tensor:
    """Newton's step -H⁻¹g by conjugate gradients, with a residual of at most a tenth of the slope, less for small slopes."""
    step, left = torch.zeros_like(slope), -slope.detach()
    enough = min(0.1, math.sqrt(float(left.norm()))) * left.norm()
    scaled = left / sizes
    turn, product = scaled, left @ scaled
    for _ in range(_SOLVES):
        (image,) = torch.autograd.grad(slope, at, turn, retain_graph=True)
        bend = turn @ image
        if not bend > 0:
            break
        step, left = step + product / bend * turn, left - product / bend * image
        if left.norm() <= enough:
            break
        scaled = left / sizes
        turn, product = scaled + (left @ scaled) / product * turn, left @ scaled
    return step


def _along(rows: _Rows, logs: Tensor, slope: Tensor, step: Tensor) -> Tensor:
    """The largest part of the step, by halving, that decreases the norm up to rounding."""
    before, fall = rows.value(logs), slope @ step
    share = 1.0
    while share > 1e-6 and not rows.value(logs + share * step) <= before + 1e-4 * share * fall + 1e-14:
        share /= 2
    return logs + share * step


@torch.no_grad()
def _check_that_scales_do_nothing(probe: Probe) -> None:
    """Raise unless the model's outputs on the batch are the same with random scales."""
    generator = torch.Generator().manual_seed(probe.seed)
    for _ in range(2):
        scales = {
            name: torch.empty(group.size, dtype=torch.float64).uniform_(0.5, 2, generator=generator)
            for name, group in probe.groups.items()
        }
        state = rescaled(probe, scales)
        with probe.differentiating(), torch.no_grad():
            before = _flat(probe.forward())
        with probe.differentiating(), torch.no_grad():
            after = _flat(functional_call(probe.model, state, *arguments(probe.inputs)))
        if not (before.isfinite().all() and after.isfinite().all()):
            raise NotMeasurable(
                f"outputs are not finite in {before.dtype} when units are scaled by up to 2: weights are too large"
            )
        allowed = math.sqrt(torch.finfo(before.dtype).eps) * float(before.abs().max())
        if not float((after - before).abs().max()) <= allowed:
            raise NotMeasurable(
                "scaling units changes the outputs: an activation function is not positively homogeneous, as ReLU is, "
                "or a unit is made or read in more than one way"
            )


def _flat(outputs: Any) -> Tensor:
    return torch.cat([leaf.flatten() for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)])


def _name(slot: Slot) -> str:
    return plain(f"{slot.layer}.{slot.attribute}" if slot.layer else slot.attribute)


def _check(p: float, q: float) -> None:
    if not (1 <= p < math.inf and 1 <= q < math.inf):
        raise ValueError(f"p={p}, q={q}: pass finite numbers of 1 or more, as in p=2, q=2")
