"""Is what a learner was given right, and is it still what it was?"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable
from operator import is_
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.optim import Optimizer

from ..listing import some
from ..optim import Together
from .method import Method
from .task import Task

_MOMENTS = ("at_boundary", "penalty", "after_step", "start", "evaluated")


def flat_list(methods: Method | Iterable[Any]) -> list[Method]:
    """Methods, and lists of them, as one list."""
    if isinstance(methods, Method):
        return [methods]
    if isinstance(methods, type):
        raise TypeError(f"methods holds the class {methods.__name__}: write {methods.__name__}()")
    if not isinstance(methods, Iterable) or isinstance(methods, str):
        called = getattr(methods, "__name__", "")
        hint = (
            f"{called} is a function: write {called}()" if called else "give a method such as rp.FIRE(), or a list of them"
        )
        raise TypeError(f"methods holds a {type(methods).__name__}: {hint}")
    flat = [method for given in methods for method in flat_list(given)]
    if len({id(method) for method in flat}) < len(flat):
        raise ValueError("the same method object stands twice in methods: make two of them")
    return flat


def check_acts(method: Method) -> None:
    """Raise for a method that has no moment."""
    kind = type(method)
    if not any(map(kind.overrides, _MOMENTS)):
        near = [n for name in vars(kind) for n in difflib.get_close_matches(name, _MOMENTS, n=1)]
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise TypeError(f"{kind.__name__} overrides none of {', '.join(_MOMENTS[:3])} and would do nothing{hint}")


def acts_in_steps(method: Method) -> bool:
    """Whether a loop must let it in at every step."""
    return method.overrides("penalty") or method.overrides("after_step")


def check_processes(methods: Iterable[Method], count: int) -> None:
    """Raise if processes that train copies of one model would each do something else to theirs."""
    names = [type(method).__name__ for method in methods if method.one_process]
    if count > 1 and names:
        raise ValueError(
            f"{', '.join(names)} with {count} processes or GPUs: each sees other batches, would act otherwise, and the "
            "copies of the model would drift apart. Train in one process, or use methods of weights, as rp.FIRE()"
        )


def processes_of(model: nn.Module) -> int:
    """How many train copies of this model, as far as its wrapper tells."""
    if isinstance(model, nn.DataParallel):
        return len(model.device_ids)
    parallel = torch.distributed.is_available() and isinstance(model, nn.parallel.DistributedDataParallel)
    return torch.distributed.get_world_size() if parallel else 1


def check_unwrapped(model: nn.Module, who: str) -> None:
    """Raise for a model inside a wrapper that trains copies of it, for a method that cannot do with one."""
    if isinstance(model, nn.DataParallel):
        raise ValueError(f"{who} needs the model itself: give the learner model.module, and call the wrapper in your loop")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            f"{who} cannot do so inside DistributedDataParallel, which knows only the parameters that it was made with: "
            "train without it, or give the learner model.module and wrap that anew after each boundary"
        )


def check_functions(loss: object, build: object) -> None:
    """Raise unless they are functions, or None."""
    if isinstance(loss, type):
        raise TypeError(f"loss is the class {loss.__name__}: write loss={loss.__name__}()")
    for name, given in (("loss", loss), ("build", build)):
        if given is not None and (not callable(given) or (name == "build" and isinstance(given, nn.Module))):
            example = "build=lambda: MyModel()" if name == "build" else "loss=torch.nn.functional.cross_entropy"
            raise TypeError(f"{name} is a {type(given).__name__}: give a function, as in {example}")


def check_task(task: object, methods: list[Method]) -> None:
    """Raise unless it is a task, or none where no method needs one."""
    if task is not None and not isinstance(task, Task):
        raise TypeError(
            f"begin({type(task).__name__}): a task is rp.Task(name, batches=lambda generator: loader, loss=...); "
            "begin() alone marks a boundary, too"
        )
    needy = [type(method).__name__ for method in methods if method.needs_task]
    if task is None and needy:
        raise ValueError(f"{needy[0]} needs the data of every task: say learner.begin(rp.Task(name, batches, loss))")


def check_holds(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise unless the optimiser trains something of the model."""
    held = {id(param) for group in optimizer.param_groups for param in group["params"]}
    if not any(id(parameter) in held for parameter in model.parameters()):
        raise ValueError(
            f"the optimiser holds {len(held)} parameters, none of them of this model: make it from model.parameters()"
        )


def check_placed(model: nn.Module) -> None:
    """Raise for a model without numbers."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ValueError(f"{name} is on the meta device and has no values: load the model's weights first")


def check_precise(weights: Iterable[tuple[str, Tensor]], but: str) -> None:
    """Raise for weights in half precision, with what a method would lose there."""
    for name, weight in weights:
        if weight.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"{name} is in half precision, {but}: keep the weights in float32, and use torch.autocast for speed"
            )


def check_own_steps(optimizer: Optimizer) -> None:
    """Raise for an optimiser whose steps need more than gradients."""
    if any(isinstance(one, torch.optim.LBFGS) for one in several(optimizer)):
        raise TypeError("LBFGS wants a closure and takes several losses a step: train with another, as torch.optim.Adam")


def several(optimizer: Optimizer) -> list[Optimizer]:
    """The optimisers that look like this one."""
    return optimizer.optimizers if isinstance(optimizer, Together) else [optimizer]


def refuse_step(optimizer: Optimizer, *arguments: object) -> None:
    """For an optimiser that a method has replaced: stepping it would train the model behind the learner's back."""
    raise RuntimeError(
        f"a method has put another optimiser in the place of this {type(optimizer).__name__}: call learner.optimizer.step()"
        " and learner.optimizer.zero_grad(), and make schedulers of learner.optimizer"
    )


def place_of(model: nn.Module) -> tuple[object, object]:
    """Device and dtype of the model, by its first parameter."""
    parameter = next(model.parameters(), None)
    return (None, None) if parameter is None else (parameter.device, parameter.dtype)


def structure_of(model: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What every module holds: the dict itself, and what was in it. Cheap to look at again after each step."""
    return [(holder, dict(holder)) for module in model.modules() for holder in (module._modules, module._parameters)]


def check_unchanged(
    model: nn.Module, structure: list[tuple[dict[str, Any], dict[str, Any]]], place: tuple[object, object]
) -> None:
    """Raise if a model is elsewhere, or made of other modules and parameters, than `structure_of` and `place_of` said."""
    for name, now, then in zip(("device", "dtype"), place_of(model), place, strict=True):
        if now != then:
            raise RuntimeError(
                f"the model's {name} was changed from {then} to {now} since its methods started: do so before Learner()"
            )
    for holder, values in structure:
        if len(holder) != len(values) or not all(map(is_, holder.values(), values.values())):
            changed = [key for key in {**values, **holder} if holder.get(key) is not values.get(key)]
            raise RuntimeError(
                f"the model was changed after its methods started: {(changed or [*holder])[0]!r} is another one now. "
                "Change it before Learner(...), or make a new Learner of the changed model"
            )


def trains_of(parameters: Iterable[Tensor]) -> list[bool]:
    """Which parameters are not frozen."""
    return [parameter.requires_grad for parameter in parameters]


def warn_of_untrained(model: nn.Module, optimizer: Optimizer, thawed: Iterable[Tensor]) -> None:
    """Warn of parameters that were unfrozen and that no optimiser trains."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    new = {id(parameter) for parameter in thawed} - held
    names = [name for name, parameter in model.named_parameters() if id(parameter) in new]
    if names:
        warnings.warn(
            f"{some(names)} was unfrozen, but the optimiser does not hold it: methods will change it, and training will "
            "not. Add it first, as in optimizer.add_param_group({'params': layer.parameters()})",
            stacklevel=4,
        )
