"""Which networks of a Stable-Baselines3 policy are trained, by which optimisers, and with which target networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import nn
from torch.optim import Optimizer

from ..optim import holds
from ..units import original


class Parts(NamedTuple):
    """The networks of a policy that methods act on."""

    model: nn.Module
    networks: list[nn.Module]
    optimizers: list[Optimizer]
    targets: list[tuple[nn.Module, nn.Module]]  # (online network, target network)


def parts_of(policy: nn.Module, names: list[str] | None) -> Parts:
    """The online networks that optimisers train, and their target networks.

    Either each network has an optimiser (SAC, TD3, DDPG), or the policy has one for all its parameters (PPO, A2C) or for all
    except those of target networks (DQN).
    """
    policy = original(policy)
    children = dict(policy.named_children())
    targets = {name.removesuffix("_target"): child for name, child in children.items() if name.endswith("_target")}
    online = {name: child for name, child in children.items() if not name.endswith("_target") and list(child.parameters())}
    own = {name: optimizer for name, child in online.items() if (optimizer := _optimizer_of(child))}
    common = _optimizer_of(policy)
    every = list(own.values()) if common is None else [common, *own.values()]
    follow = {id(parameter) for target in targets.values() for parameter in target.parameters()}
    left = [n for n, p in policy.named_parameters() if id(p) not in follow and not any(holds(o, p) for o in every)]
    if (common is None) == (not own) or left or not targets.keys() <= online.keys():
        raise TypeError(_unknown(policy, common, own, list(targets), left))

    whole = common is not None and not targets
    known = {} if whole else online if common is not None else {name: online[name] for name in own}
    _check_names(names, known, policy)
    chosen = {name: child for name, child in known.items() if names is None or name in names}
    optimizers = [common] if common is not None else [own[name] for name in chosen]
    model = policy if whole else nn.ModuleDict({name: _trained(child, optimizers) for name, child in chosen.items()})
    _check_one_trains(model, {"policy": common} if common is not None else own)
    return Parts(model, [policy] if whole else [*chosen.values()], optimizers, [(online[n], targets[n]) for n in targets])


def _optimizer_of(module: nn.Module) -> Optimizer | None:
    found = getattr(module, "optimizer", None)
    return found if isinstance(found, Optimizer) else None


def _trained(network: nn.Module, optimizers: list[Optimizer]) -> nn.Module:
    """The network without parts that another's optimiser trains: SAC's critic may use the actor's features extractor."""
    if all(any(holds(optimizer, parameter) for optimizer in optimizers) for parameter in network.parameters()):
        return network
    children = network.named_children()
    return nn.ModuleDict({n: c for n, c in children if any(holds(o, p) for o in optimizers for p in c.parameters())})


def _check_names(names: list[str] | None, known: Mapping[str, nn.Module], policy: nn.Module) -> None:
    for name in names or ():
        if name not in known:
            kind = type(policy).__name__
            have = f"it has {', '.join(known)}" if known else "it is one network: choose layers with a method's where"
            raise ValueError(f"networks contains {name!r}, which is not a trained network of this {kind}: {have}")


def _check_one_trains(model: nn.Module, optimizers: Mapping[str, Optimizer]) -> None:
    """Raise if a weight is trained by two optimisers."""
    for name, parameter in model.named_parameters():
        trainers = [network for network, optimizer in optimizers.items() if holds(optimizer, parameter)]
        if len(trainers) > 1:
            raise ValueError(
                f"{name} is trained by the optimisers of {' and '.join(trainers)}: use separate features extractors, with "
                "policy_kwargs=dict(share_features_extractor=False)"
            )


def _unknown(
    policy: nn.Module, common: Optimizer | None, own: Mapping[str, Optimizer], targets: list[str], left: list[str]
) -> str:
    optimizers = ["policy.optimizer"] if common is not None else []
    optimizers += [f"policy.{name}.optimizer" for name in own]
    found = f"optimisers {', '.join(optimizers) or 'nowhere'}; target networks of {', '.join(targets) or 'none'}"
    if left:
        found += f"; {left[0]} trained by none of them"
    return (
        f"{type(policy).__name__} does not have the structure of a policy of DQN, SAC, TD3, PPO or A2C, so it is not known "
        f"which networks are trained ({found}): call learn() in parts and rp.fire_(network, optimizer=its_optimizer) between"
    )
