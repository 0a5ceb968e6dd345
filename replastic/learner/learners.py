"""Several networks that train together, for example an actor and a critic: `Learners`."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from ..linalg import many
from ..units import original
from ..weights.place import region_of
from .before import Before
from .checks import optimizers_of
from .fresh import named_tensors, shape_difference
from .learner import Learner
from .task import Task


class Learners(Mapping[str, Learner]):
    """Several networks that train together, each with a `Learner` of its own, and target networks that follow them.

    All members have their boundaries together and share one `state_dict`. For everything else use a member, for example
    `learners["critic"].step(...)`.

    >>> actor, critic, target = (nn.Linear(4, 2) for _ in range(3))
    >>> learners = Learners(
    ...     {
    ...         "actor": Learner(actor, torch.optim.Adam(actor.parameters())),
    ...         "critic": Learner(critic, torch.optim.Adam(critic.parameters())),
    ...     },
    ...     targets={"critic": target},
    ... )
    >>> learners.begin()

    learners: the members by name. From now on each member's random numbers come from its seed and its name, so members with
        the same seed draw different numbers.
    targets: target networks, by the name of the member that they follow. They get no gradients. After a boundary that
        changed a member, its target is an exact copy of the member, modules included. Steps leave targets unchanged.
    """

    def __init__(self, learners: Mapping[str, Learner], targets: Mapping[str, nn.Module] | None = None) -> None:
        _check_members(learners)
        self._members, self.targets = dict(learners), dict(targets or {})
        for name, target in self.targets.items():
            self._check_target(name, target)
        for name, learner in self._members.items():
            _seed_(learner, name)
        for target in self.targets.values():
            target.requires_grad_(False)

    def __getitem__(self, name: str) -> Learner:
        if name not in self._members:
            raise KeyError(f"{name!r} is not one of these learners: {', '.join(self._members)}")
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def begin(self, task: Task | None = None) -> None:
        """Call `begin` of every member, then copy every network that changed to its target.

        If one member raises, all members are restored. For this, a second copy of the weights and of the optimisers' states
        is in memory during the call.
        """
        before = {name: Before(learner) for name, learner in self._members.items()}
        try:
            for learner in self._members.values():
                learner.begin(task)
        except Exception:
            for state in before.values():
                state.restore_()
            raise
        for name, target in self.targets.items():
            if before[name].differs():
                copy_(target, self._members[name].model)

    @torch.no_grad()
    def polyak_(self, rate: float) -> None:
        """target <- target + rate · (network - target), for every target; buffers and integers are copied."""
        if not 0 <= rate <= 1:
            raise ValueError(f"polyak_(rate={rate}): pass a number between 0 and 1, for example 0.005")
        for name, target in self.targets.items():
            theirs, mine = named_tensors(self._members[name].model), named_tensors(target)
            parameters = {key for key, one in mine.items() if isinstance(one, nn.Parameter) and one.is_floating_point()}
            moving = {region_of(mine[key]): key for key in parameters}.values()  # tied tensors once
            many.lerp_([mine[key] for key in moving], [theirs[key].to(mine[key]) for key in moving], rate)
            for key in mine.keys() - parameters:
                mine[key].copy_(theirs[key])

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs: the `Learner.state_dict` of every member, and the targets' tensors."""
        return {
            "learners": {name: learner.state_dict() for name, learner in self._members.items()},
            "targets": {name: named_tensors(target) for name, target in self.targets.items()},
        }

    def load_state_dict(self, saved: Mapping[str, Any], task: Task | None = None) -> None:
        """Resume from a `state_dict`, in new `Learners` with the same networks, optimisers and methods.

        If one member or target does not fit, all members are restored.

        task: the current task of every member when the state was saved.
        """
        _check_names(saved, {"learners": self._members, "targets": self.targets})
        before = [Before(learner) for learner in self._members.values()]
        try:
            for name, learner in self._members.items():
                learner.load_state_dict(saved["learners"][name], task)
            for name in self.targets:
                _check_fits(f"the checkpoint's target {name!r}", saved["targets"][name], self._members[name].model)
        except Exception:
            for state in before:
                state.restore_()
            raise
        for name, target in self.targets.items():
            copy_(target, self._members[name].model, saved["targets"][name])

    def _check_target(self, name: str, target: object) -> None:
        learner = self._members.get(name)
        if learner is None:
            raise ValueError(f"targets has {name!r}, which is not one of the learners: {', '.join(self._members)}")
        if not isinstance(target, nn.Module):
            raise TypeError(f"targets[{name!r}] is a {type(target).__name__}: pass a network, as in copy.deepcopy(network)")
        held = set(map(region_of, named_tensors(target).values()))
        others = {f"the learner {member!r}": one.model for member, one in self._members.items()}
        others |= {f"the target {member!r}": one for member, one in self.targets.items() if member != name}
        for owner, model in others.items():
            if not held.isdisjoint(map(region_of, named_tensors(model).values())):
                raise ValueError(
                    f"the target {name!r} shares tensors with {owner}: pass a copy, as in copy.deepcopy(network)"
                )
        _check_fits(f"the target {name!r}", named_tensors(target), learner.model)


@torch.no_grad()
def copy_(target: nn.Module, network: nn.Module, values: Mapping[str, Tensor] | None = None) -> None:
    """Make `target` a copy of `network` without gradients, in place. Its tensors are kept unless its modules are others.

    values: of the tensors by name; None: those of the network.
    """
    network, target = original(network), original(target)
    if _tree(target) != _tree(network):
        held = {key: vars(network)[key] for key in ("_modules", "_parameters", "_buffers")}
        vars(target).update(copy.deepcopy(held, {id(network): target}))
        target.train(target.training)
    values = named_tensors(network) if values is None else values
    for name, tensor in named_tensors(target).items():
        tensor.copy_(values[name])
    target.requires_grad_(False)


def _tree(model: nn.Module) -> list[tuple[str, type[nn.Module]]]:
    return [(name, type(module)) for name, module in list(model.named_modules())[1:]]


def _seed_(learner: Learner, name: str) -> None:
    """Let random numbers come from the seed and the name."""
    learner.seed = int.from_bytes(hashlib.blake2b(f"{learner.seed} {name}".encode(), digest_size=7).digest(), "little")
    learner.generator.manual_seed(learner.seed)
    vars(learner).pop("template", None)


def _check_members(learners: Mapping[str, Learner]) -> None:
    if not isinstance(learners, Mapping):
        raise TypeError(
            f'Learners needs learners by name, got {type(learners).__name__}: write Learners({{"actor": actor}})'
        )
    if not learners:
        raise ValueError('Learners({}) has no learner: write Learners({"actor": actor, "critic": critic})')
    for name, learner in learners.items():
        if not isinstance(name, str):
            raise TypeError(f'the name {name!r} of a learner is a {type(name).__name__}: pass a string, for example "actor"')
        if not isinstance(learner, Learner):
            raise TypeError(f"learners[{name!r}] is a {type(learner).__name__}: pass rp.Learner(network, optimizer)")
    for (one, first), (other, second) in combinations(learners.items(), 2):
        if any(mine is its for mine in optimizers_of(first.optimizer) for its in optimizers_of(second.optimizer)):
            raise ValueError(f"{one!r} and {other!r} have the same optimiser: make one for each network")
        held = [{region_of(p): p for p in (*learner.model.parameters(), *learner.trained())} for learner in (first, second)]
        shared = [tuple(parameter.shape) for region, parameter in held[0].items() if region in held[1]]
        if shared:
            raise ValueError(
                f"{one!r} and {other!r} share {len(shared)} parameters, the first of shape {shared[0]}: keep these "
                "in one network and one optimiser, or make both networks one model with one learner"
            )


def _check_names(saved: Mapping[str, Any], mine: Mapping[str, Mapping[str, Any]]) -> None:
    for what, here in mine.items():
        if what not in saved:
            raise ValueError(f"this is not the state_dict() of Learners: it has no {what!r}")
        if set(saved[what]) != set(here):
            raise ValueError(f"the checkpoint has the {what} {sorted(saved[what])}, and there are {sorted(here)} here")


def _check_fits(what: str, tensors: Mapping[str, Tensor], network: nn.Module) -> None:
    """Raise unless tensors have the names and shapes of a network's."""
    if difference := shape_difference(named_tensors(network), tensors):
        raise ValueError(
            f"{what} is of another network: {difference} in its learner's. Pass a copy, as in copy.deepcopy(network)"
        )
