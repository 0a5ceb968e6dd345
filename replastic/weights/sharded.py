"""Sharded weights, which no single process holds: functions that change weights refuse them until they are supported.

FSDP2 (`fully_shard`) gathers whole weights for a forward, and keeps the root's gathered if no backward follows. These are
copies: changes to them are lost at the next `reshard()`. FSDP1 (`FullyShardedDataParallel`) writes changes back to
the shards only inside its `summon_full_params`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

DTENSOR = "is a DTensor, of which each process holds a part"
INSTEAD = "act on the whole model before it is sharded, or train with DistributedDataParallel"


def check_unsharded(model: nn.Module, *, for_good: bool = False) -> None:
    """Raise for a model with sharded weights, gathered or not; inside FSDP1's `summon_full_params` they are whole.

    for_good: whether the weights must be whole afterwards, too.
    """
    check_no_fsdp(model, for_good=for_good)
    if isinstance(model, nn.Module):
        _check_no_dtensor(model.named_parameters())


def check_no_fsdp(model: nn.Module, *, for_good: bool = False) -> None:
    """`check_unsharded` for FSDP only, for callers that check for other DTensors themselves."""
    kinds = _kinds()
    if not kinds or not isinstance(model, nn.Module):  # the caller refuses what is not a model
        return
    inside = [module for module in model.modules() if isinstance(module, kinds)]
    _check_fsdp(inside, for_good)
    known = {module for wrapper in inside for module in _sharded_by(wrapper)}
    # torch marks every module inside a wrapper, so that a part of a wrapped model is known as one.
    parts = {module for module in model.modules() if module not in known and "_is_fsdp_managed_module" in vars(module)}
    if parts:
        _check_fsdp((wrapper for wrapper in _wrappers() if not parts.isdisjoint(_sharded_by(wrapper))), for_good)


def _kinds() -> tuple[type, ...]:
    """FSDP's classes; none if they were never imported, so that no model can be wrapped."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    return () if fsdp is None else (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)


def _wrappers() -> list[nn.Module]:
    """All FSDP wrappers in the process: a part of a model does not know its wrapper, nor a parameter its module."""
    kinds = _kinds()
    return [held for held in gc.get_objects() if issubclass(type(held), kinds)]


def _sharded_by(module: nn.Module) -> Iterator[nn.Module]:
    """A wrapper and the modules in it, except those in wrappers of their own."""
    yield module
    for child in module.children():
        if not isinstance(child, _kinds()):
            yield from _sharded_by(child)


def _check_fsdp(wrappers: Iterable[Any], for_good: bool) -> None:
    for wrapper in wrappers:
        if not isinstance(wrapper, _kinds()[1]):
            raise TypeError(
                f"weights of {type(wrapper).__name__} are sharded by FSDP2 (fully_shard), and those that it has gathered "
                f"are copies, where changes are lost: {INSTEAD}"
            )
        if for_good or wrapper.training_state.name != "SUMMON_FULL_PARAMS":
            write = "" if for_good else "write inside `with FullyShardedDataParallel.summon_full_params(model):`, "
            whose = type(wrapper.module).__name__
            raise TypeError(f"weights of {whose} are sharded by FSDP1 (FullyShardedDataParallel): {write}{INSTEAD}")


def _check_no_dtensor(named: Iterable[tuple[str, Tensor]]) -> None:
    for name, tensor in named:
        if type(tensor).__name__ == "DTensor":
            raise TypeError(f"{name} {DTENSOR}: {INSTEAD}")
