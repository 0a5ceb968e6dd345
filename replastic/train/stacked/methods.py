"""The optimiser and methods that act in every step, for many members of a `Stack` at once: SGD, L2, CBP and ER.

Each acts as in a separate learner, in the same order and with the same random draws; a test compares the two. Methods that
act only at boundaries need no stacked form, because they act on each learner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...learner import IndexedTask, Learner, Method
from ...linalg.effective_rank import effective_rank
from ...methods.cbp import CBP, contribution
from ...methods.er import ER, dense_groups
from ...methods.l2 import L2
from ...units import Tap, original

Weights = dict[str, Tensor]  # (members, *shape), by name
Rows = slice | Tensor
M = TypeVar("M", bound=Method)
_EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True)
class Member:
    """One learner of a stack, and the row of the stacked tensors that is its own."""

    row: int
    learner: Learner


def check_methods(methods: Sequence[Method]) -> None:
    """Raise unless a stack supports all methods of a learner that act in steps."""
    ours = [method for method in methods if type(method) in (L2, CBP, ER)]
    for method in methods:
        kind = type(method)
        in_steps = method.overrides("penalty") or method.overrides("after_step")
        if in_steps and not any(method is known for known in ours):
            raise TypeError(
                f"{kind.__name__} acts in every step, and a stack supports only L2, ER and CBP there: train this learner on "
                "its own"
            )
    order = [type(method) for method in ours if not isinstance(method, L2)]
    if order not in ([], [CBP], [ER], [CBP, ER]):
        listed = ", ".join(kind.__name__ for kind in order)
        raise ValueError(
            f"methods {listed}: a stack applies at most one CBP, and then at most one ER, after each step: use this order, "
            "or train this learner on its own"
        )


def acting(members: Iterable[Member], kind: type[M]) -> list[tuple[Member, M]]:
    """The members' methods of one kind that take part in the steps of the present task."""
    moment = "penalty" if kind is L2 else "after_step"
    return [(member, m) for member in members for m in member.learner.acting(moment) if isinstance(m, kind)]


def rows_of(members: Sequence[Member], device: torch.device) -> Rows:
    """The members' rows: a slice if they are neighbours, which needs no copy, else their numbers."""
    rows = [member.row for member in members]
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return torch.tensor(rows, device=device)


def column(values: Tensor, like: Tensor) -> Tensor:
    """One number for each member, (members,), in a shape that multiplies their tensor (members, *shape)."""
    return values.to(like.dtype).view(-1, *[1] * (like.ndim - 1))


class StackedL2:
    """L2: adds λ θ to gradients, with a λ for each member."""

    def __init__(self, members: Sequence[Member], like: Tensor) -> None:
        strengths: dict[Member, float] = {}
        for member, method in acting(members, L2):
            if method.strength:
                strengths[member] = strengths.get(member, 0.0) + method.strength
        self.rows = rows_of(list(strengths), like.device) if strengths else None
        self.strengths = torch.tensor([*strengths.values()], dtype=like.dtype, device=like.device)
        self.of_all = torch.tensor([strengths.get(member, 0.0) for member in members], dtype=like.dtype, device=like.device)

    def added(self, gradients: Sequence[Tensor], weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """The gradients plus λ θ, which may be written in place."""
        if self.rows is None:
            return gradients
        if torch.compiler.is_compiling():  # in-place writes to a part would have to store the gradient first
            return [
                torch.addcmul(g, weight, column(self.of_all, weight)) for g, weight in zip(gradients, weights, strict=True)
            ]
        for gradient, weight in zip(gradients, weights, strict=True):
            part = gradient[self.rows].addcmul_(weight[self.rows], column(self.strengths, weight))
            if isinstance(self.rows, Tensor):  # then the part is a copy
                gradient[self.rows] = part
        return gradients


class StackedSGD:
    """Steps of all members' SGD, each with its own rates, momenta and decays, (members, parameters).

    Until `finish`, the momenta in the optimisers' state are rows of the stacked buffers.
    """

    def __init__(self, members: Sequence[Member], trained: Weights, clip: float | None) -> None:
        self.clip, self.weights = clip, list(trained.values())
        self.l2 = StackedL2(members, self.weights[0])
        settings = [[_settings(member.learner, name) for name in trained] for member in members]
        self.rates, self.momenta, self.decays = (
            _table(settings, key, self.weights[0]) for key in ("lr", "momentum", "weight_decay")
        )
        self.decaying = any(group["weight_decay"] for groups in settings for group in groups)
        self.own: list[tuple[dict[str, Any], Tensor, Tensor]] = []
        self.buffers: list[Tensor] | None = None
        if any(group["momentum"] for groups in settings for group in groups):
            self.buffers = [torch.zeros_like(weight, requires_grad=False) for weight in self.weights]
            for member, groups in zip(members, settings, strict=True):
                for name, group, buffer in zip(trained, groups, self.buffers, strict=True):
                    if group["momentum"]:
                        self._lend(member.learner, name, buffer[member.row])

    def _lend(self, learner: Learner, name: str, row: Tensor) -> None:
        state = learner.optimizer.state[original(learner.model).get_parameter(name)]
        own = state.get("momentum_buffer")
        own = torch.zeros_like(row) if own is None else own  # the same as SGD's first step
        state["momentum_buffer"] = row.copy_(own)
        self.own.append((state, own, row))

    @property
    def plain(self) -> bool:
        """Whether there is neither momentum nor decay."""
        return not self.decaying and self.buffers is None

    def step_(self, gradients: Sequence[Tensor], norms: Tensor | None = None) -> None:
        """Make a step. gradients: of the loss alone, (members, *shape) each; they are overwritten.

        norms: (members, 1), of the gradients of loss and L2 together, if they are known.
        """
        gradients = self.l2.added(gradients, self.weights)
        shrink = self._clipping(gradients, norms)
        if self.decaying or self.buffers is not None:
            gradients = [self._directed(number, gradient, shrink) for number, gradient in enumerate(gradients)]
            shrink = None
        factors = -self.rates if shrink is None else -self.rates * shrink
        for number, (weight, gradient) in enumerate(zip(self.weights, gradients, strict=True)):
            weight.addcmul_(gradient, column(factors[:, number], weight))

    def _clipping(self, gradients: Sequence[Tensor], norms: Tensor | None) -> Tensor | None:
        """(members, 1): the factors by which torch.nn.utils.clip_grad_norm_ would multiply each member's gradients."""
        if self.clip is None:
            return None
        known = _norms(gradients) if norms is None else norms
        return (self.clip / (known + _EPSILON)).clamp(max=1)

    def _directed(self, number: int, gradient: Tensor, shrink: Tensor | None) -> Tensor:
        """The clipped gradient with decay and momentum."""
        if shrink is not None:
            gradient.mul_(column(shrink, gradient))
        if self.decaying:
            gradient.addcmul_(self.weights[number], column(self.decays[:, number], gradient))
        if self.buffers is None:
            return gradient
        return self.buffers[number].mul_(column(self.momenta[:, number], gradient)).add_(gradient)

    def finish(self) -> None:
        for state, own, row in self.own:
            state["momentum_buffer"] = own.copy_(row)


def _norms(gradients: Sequence[Tensor]) -> Tensor:
    """(members, 1): the norm of each member's gradients together."""
    each = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
    return torch.linalg.vector_norm(torch.stack(each, 1), dim=1, keepdim=True)


def check_optimizer(learner: Learner) -> None:
    """Raise unless it is SGD with settings that a stack supports."""
    kind = type(learner.optimizer)
    if kind is not torch.optim.SGD:
        raise TypeError(f"a stack trains with torch.optim.SGD, but a learner has {kind.__name__}: train it on its own")
    for group in learner.optimizer.param_groups:
        for option in ("nesterov", "dampening", "maximize"):
            if group[option]:
                raise ValueError(
                    f"SGD({option}={group[option]}): a stack supports only lr, momentum and weight_decay: leave {option} "
                    "out, or train this learner on its own"
                )
    for name, parameter in original(learner.model).named_parameters():
        if parameter.requires_grad:
            _settings(learner, name)


def _settings(learner: Learner, name: str) -> Mapping[str, Any]:
    parameter = original(learner.model).get_parameter(name)
    for group in learner.optimizer.param_groups:
        if any(held is parameter for held in group["params"]):
            return group
    raise ValueError(f"no optimiser trains {name!r}: pass it to one, or freeze it with requires_grad_(False)")


def _table(settings: Sequence[Sequence[Mapping[str, Any]]], key: str, like: Tensor) -> Tensor:
    """(members, parameters): one setting of all groups, without waiting for rates that are on the device."""
    entries = [[torch.as_tensor(group[key], dtype=like.dtype, device=like.device) for group in row] for row in settings]
    return torch.stack([torch.stack(row) for row in entries])


class StackedCBP:
    """CBP: utilities and ages of all members' units within the step; each learner replaces its few units between steps."""

    def __init__(self, model: nn.Module, weights: Weights, found: Sequence[tuple[Member, CBP]]) -> None:
        self.found, self.weights = found, weights
        first = found[0][0].learner
        self.groups = found[0][1].units(first)
        for member, method in found:
            if [g.name for g in method.units(member.learner)] != [g.name for g in self.groups]:
                raise ValueError(
                    f"CBP finds different hidden units in learner {member.row} and in learner {found[0][0].row}: "
                    "pass the same example= to all, or none"
                )
        self.rows = rows_of([member for member, _ in found], first.device)
        self.tap = Tap(model, self.groups, compiled=False)
        self._contributions = _Contributions(model, self.groups)
        self._readers = sorted({f"{slot.layer}.{slot.attribute}" for group in self.groups for slot in group.readers})
        self.utility = torch.stack([method.state["utility"] for _, method in found])  # (CBP members, units of all groups)
        self.age = torch.stack([method.state["age"] for _, method in found])
        self.fresh = torch.tensor([[1 - method.decay] for _, method in found]).to(self.utility)  # a step's share in it

    def activity(self) -> Tensor:
        """(channels that the groups' readers read,): mean |h| in one member's last pass."""
        seen = torch.cat([self.tap.mean_abs_by_channel(group.name) for group in self.groups]).float()
        self.tap.clear()
        return seen

    def observe(self, activity: Tensor) -> None:
        """Update utilities and ages after a step; activity: (all members, channels), of its forward pass."""
        held = {f"model.{name}": self.weights[name][self.rows] for name in self._readers}
        found = torch.vmap(lambda weights, seen: functional_call(self._contributions, weights, (seen,)))
        self.utility.lerp_(found(held, activity[self.rows]), self.fresh)
        self.age.add_(1)

    def replace(self) -> None:
        """Replace the units that are due; their number is known without waiting for the device."""
        for (member, method), utility, age in zip(self.found, self.utility, self.age, strict=True):
            method.replace(member.learner, utility, age)

    def finish(self) -> None:
        """Write the methods' state."""
        self.tap.close()
        for number, (_, method) in enumerate(self.found):
            method.state["utility"].copy_(self.utility[number])
            method.state["age"].copy_(self.age[number])


class _Contributions(nn.Module):
    """The contributions of all units, as a module, so that functional_call can use other weights."""

    def __init__(self, model: nn.Module, groups: Sequence[Any]) -> None:
        super().__init__()
        self.model, self.groups = model, groups

    def forward(self, activity: Tensor) -> Tensor:
        parts = activity.split([len(group.readers[0].units) for group in self.groups])
        return torch.cat([contribution(self.model, group, part) for group, part in zip(self.groups, parts, strict=True)])


class StackedER:
    """ER: effective-rank steps, together for all members for which one is due.

    The inputs since a member's last such step are gathered from the order of the epoch's samples. Those left at the end of
    an epoch are stored in the methods' state, for the next epoch.
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Weights,
        found: Sequence[tuple[Member, ER]],
        tasks: Sequence[IndexedTask],
        orders: Tensor,
    ) -> None:
        self.model, self.weights, self.found, self.tasks, self.orders = model, weights, found, tasks, orders
        self.layers = [tuple(g.name for g in dense_groups(member.learner, method.layers)) for member, method in found]
        groups = {g.name: g for member, method in found for g in dense_groups(member.learner, method.layers)}
        self.tap = Tap(model, list(groups.values()), detach=False, on=False, compiled=False)
        self.waiting = [len(method.state["inputs"]) for _, method in found]  # steps whose inputs were not used yet
        self.used = [0] * len(found)  # samples of this epoch before the last effective-rank step

    def after_step(self, seen: int) -> None:
        """Make the steps that are due; seen: the number of samples so far in this epoch."""
        together: dict[tuple[int, tuple[str, ...]], list[tuple[int, Tensor]]] = {}
        for number, (_, method) in enumerate(self.found):
            self.waiting[number] += 1
            if self.waiting[number] >= method.every:
                inputs = torch.cat([*method.state["inputs"], self._inputs(number, seen)])
                method.state["inputs"] = []
                self.waiting[number], self.used[number] = 0, seen
                together.setdefault((len(inputs), self.layers[number]), []).append((number, inputs))
        for (_, layers), due in together.items():
            self._ascend(layers, [number for number, _ in due], torch.stack([inputs for _, inputs in due]))

    def _inputs(self, number: int, seen: int) -> Tensor:
        row = self.found[number][0].row
        return self.tasks[row].batch(self.orders[row, self.used[number] : seen])[0]

    def _ascend(self, layers: tuple[str, ...], numbers: list[int], inputs: Tensor, *, draw: bool = True) -> None:
        members, methods = zip(*(self.found[number] for number in numbers), strict=True)
        rows = rows_of(members, inputs.device)
        held = {name: weight.detach()[rows].requires_grad_(weight.requires_grad) for name, weight in self.weights.items()}

        def features(weights: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, ...]:
            functional_call(self.model, dict(weights), (inputs,))
            found = tuple(self.tap.activations(name) for name in layers)
            self.tap.clear()
            return found

        with self.tap.listening():
            found = torch.vmap(features)(held, inputs)  # of each layer (members, samples, units)
        for member in members if draw else ():  # as ER does in a separate learner, for its pass
            torch.randint(2**62, (), generator=member.learner.generator, device=inputs.device)
        trained = {name: weight for name, weight in held.items() if weight.requires_grad}
        finite = torch.stack([feature.isfinite().flatten(1).all(1) for feature in found]).all(0)
        if not bool(finite.all()):  # members that have diverged have no rank; their losses show it
            well = [number for number, is_finite in zip(numbers, finite.tolist(), strict=True) if is_finite]
            if well:
                self._ascend(layers, well, inputs[finite], draw=False)
            return
        ranks = effective_ranks(found).sum() / len(layers)
        gradients = torch.autograd.grad(ranks, [*trained.values()], allow_unused=True)
        rates = torch.tensor([method.rate for method in methods], dtype=torch.float64, device=inputs.device)
        with torch.no_grad():
            for name, gradient in zip(trained, gradients, strict=True):
                if gradient is not None:
                    self.weights[name][rows] += column(rates, gradient) * gradient

    def finish(self, seen: int) -> None:
        """Store the inputs that were not used yet in the methods' state, one tensor for each step."""
        self.tap.close()
        for number, (member, method) in enumerate(self.found):
            batches = self.orders[member.row, self.used[number] : seen].split(self.tasks[member.row].batch_size)
            method.state["inputs"] += [self.tasks[member.row].batch(chosen)[0] for chosen in batches if len(chosen)]


def effective_ranks(features: Sequence[Tensor]) -> Tensor:
    """The effective rank of each matrix in (members, samples, units) features; one decomposition for each shape."""
    shapes = {feature.shape for feature in features}
    return torch.cat([effective_rank(torch.stack([f for f in features if f.shape == shape])).flatten() for shape in shapes])
