"""Checks of what is passed to a learner, and that the model has not been changed behind its back."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable
from operator import is_
from typing import Any

import numpy as np
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
    """Flatten methods and nested lists of them."""
    if isinstance(methods, Method):
        return [methods]
    if isinstance(methods, type):
        raise TypeError(f"methods holds the class {methods.__name__}: write {methods.__name__}()")
    if not isinstance(methods, Iterable) or isinstance(methods, str):
        called = getattr(methods, "__name__", "")
        hint = (
            f"{called} is a function: write {called}()" if called else "pass a method such as rp.FIRE(), or a list of them"
        )
        raise TypeError(f"methods holds a {type(methods).__name__}: {hint}")
    flat = [method for entry in methods for method in flat_list(entry)]
    if len({id(method) for method in flat}) < len(flat):
        raise ValueError("methods contains the same object twice: make two objects")
    return flat


def check_acts(method: Method) -> None:
    """Raise for a method that never acts."""
    kind = type(method)
    if not any(map(kind.overrides, _MOMENTS)):
        near = [n for name in vars(kind) for n in difflib.get_close_matches(name, _MOMENTS, n=1)]
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise TypeError(f"{kind.__name__} overrides none of {', '.join(_MOMENTS[:3])} and would do nothing{hint}")


def acts_in_steps(method: Method) -> bool:
    """Whether the method acts at every step."""
    return method.overrides("penalty") or method.overrides("after_step")


def check_processes(methods: Iterable[Method], count: int) -> None:
    """Raise if several processes train copies of one model and a method would change each copy differently."""
    names = [type(method).__name__ for method in methods if method.one_process]
    if count > 1 and names:
        raise ValueError(
            f"{', '.join(names)} with {count} processes or GPUs: each sees different batches and would change its copy of "
            "the model differently, so the copies would drift apart. Train in one process, or use methods that depend only "
            "on the weights, such as rp.FIRE()"
        )


def processes_of(model: nn.Module) -> int:
    """How many processes or GPUs train copies of this model, according to its wrapper."""
    if isinstance(model, nn.DataParallel):
        return len(model.device_ids)
    parallel = torch.distributed.is_available() and isinstance(model, nn.parallel.DistributedDataParallel)
    return torch.distributed.get_world_size() if parallel else 1


def check_unwrapped(model: nn.Module, who: str) -> None:
    """Raise if the model is inside a wrapper that trains copies of it, which the method `who` does not support."""
    if isinstance(model, nn.DataParallel):
        raise ValueError(f"{who} needs the model itself: pass model.module to Learner, and call the wrapper in your loop")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            f"{who} does not work inside DistributedDataParallel, which knows only the parameters that it was made with: "
            "train without it, or pass model.module to Learner and wrap that again after each boundary"
        )


def check_functions(loss: object, build: object) -> None:
    """Raise unless both are functions or None."""
    if isinstance(loss, type):
        raise TypeError(f"loss is the class {loss.__name__}: write loss={loss.__name__}()")
    for name, value in (("loss", loss), ("build", build)):
        if value is not None and (not callable(value) or (name == "build" and isinstance(value, nn.Module))):
            example = "build=lambda: MyModel()" if name == "build" else "loss=torch.nn.functional.cross_entropy"
            raise TypeError(f"{name} is a {type(value).__name__}: pass a function, as in {example}")


def check_loss_and_clip(loss: object, clip: float | None) -> None:
    """Raise unless these are a tensor or several, and a norm or None."""
    if not isinstance(loss, Iterable):
        raise TypeError(f"learner.backward(loss) got a {type(loss).__name__}: pass the loss as a tensor, or several of them")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip={clip!r}: pass the largest norm of a gradient, above 0, or None")


def check_tensors(inputs: object, targets: object) -> None:
    """Raise for arrays of NumPy, which a model does not take."""
    for name, value in (("inputs", inputs), ("targets", targets)):
        if isinstance(value, np.ndarray):
            raise TypeError(f"learner.step(): {name} is a numpy.ndarray: pass a tensor, torch.from_numpy({name})")


def check_objective(objective: object) -> None:
    """Raise unless it is a tensor of one number with a gradient."""
    if not isinstance(objective, Tensor):
        raise TypeError(
            f"the loss is a {type(objective).__name__}: pass a tensor, as loss.mean() returns it, not loss.item()"
        )
    if objective.numel() != 1:
        raise ValueError(f"the loss has shape {tuple(objective.shape)}: it must be one number, for example loss.mean()")
    if not objective.requires_grad:
        raise ValueError(
            "the loss does not depend on a parameter that trains: compute it outside of torch.no_grad(), and call "
            "requires_grad_(True) on what is to train"
        )


def check_task(task: object, methods: list[Method]) -> None:
    """Raise unless `task` is a Task, or is None and no method needs one."""
    if task is not None and not isinstance(task, Task):
        raise TypeError(
            f"begin({type(task).__name__}): a task is rp.Task(name, batches=lambda generator: loader, loss=...); "
            "begin() without a task also marks a boundary"
        )
    needy = [type(method).__name__ for method in methods if method.needs_task]
    if task is None and needy:
        raise ValueError(f"{needy[0]} needs the data of every task: call learner.begin(rp.Task(name, batches, loss))")


def warn_of_rate_0(optimizer: Optimizer) -> None:
    """Warn if a task begins with a learning rate of 0 in every group: what a scheduler leaves that has ended."""
    if all(float(group["lr"]) == 0 for group in optimizer.param_groups if "lr" in group):
        warnings.warn(
            "a task begins with learning rate 0, so nothing will be learnt: set the rate, and make a new scheduler for each "
            "task (docs/learner.md has a recipe), before begin() or, if it warms up from 0, after it",
            stacklevel=3,
        )


def check_holds(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise unless the optimiser trains at least one parameter of the model."""
    held = {id(param) for group in optimizer.param_groups for param in group["params"]}
    if not any(id(parameter) in held for parameter in model.parameters()):
        raise ValueError(
            f"the optimiser holds {len(held)} parameters, but none of this model: make it from model.parameters()"
        )


def check_placed(model: nn.Module) -> None:
    """Raise for a model on the meta device."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ValueError(f"{name} is on the meta device and has no values: load the model's weights first")


def check_precise(weights: Iterable[tuple[str, Tensor]], but: str) -> None:
    """Raise for weights in half precision; `but` says what the method would lose there."""
    for name, weight in weights:
        if weight.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"{name} is in half precision, {but}: keep the weights in float32 and use torch.autocast for speed"
            )


def check_own_steps(optimizer: Optimizer) -> None:
    """Raise for an optimiser whose steps need a closure."""
    if any(isinstance(one, torch.optim.LBFGS) for one in optimizers_of(optimizer)):
        raise TypeError(
            "LBFGS needs a closure and computes several losses per step: use another optimiser, such as torch.optim.Adam"
        )


def optimizers_of(optimizer: Optimizer) -> list[Optimizer]:
    """The optimisers that a `Together` combines, or the optimiser itself."""
    return optimizer.optimizers if isinstance(optimizer, Together) else [optimizer]


def refuse_step(optimizer: Optimizer, *arguments: object) -> None:
    """A hook for an optimiser that a method has replaced: stepping it would train the model behind the learner's back."""
    raise RuntimeError(
        f"a method has replaced this {type(optimizer).__name__} by another optimiser: call learner.optimizer.step() and "
        "learner.optimizer.zero_grad(), and make schedulers of learner.optimizer"
    )


def place_of(model: nn.Module) -> tuple[object, object]:
    """Device and dtype of the model's first parameter."""
    parameter = next(model.parameters(), None)
    return (None, None) if parameter is None else (parameter.device, parameter.dtype)


def structure_of(model: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Every module's dicts of submodules and parameters, each with a copy. Comparing them at each step is cheap."""
    return [(holder, dict(holder)) for module in model.modules() for holder in (module._modules, module._parameters)]


def check_unchanged(
    model: nn.Module, structure: list[tuple[dict[str, Any], dict[str, Any]]], place: tuple[object, object]
) -> None:
    """Raise if `structure_of` or `place_of` the model has changed."""
    for name, now, then in zip(("device", "dtype"), place_of(model), place, strict=True):
        if now != then:
            raise RuntimeError(
                f"the model's {name} was changed from {then} to {now} after its methods started: change it before Learner()"
            )
    for holder, values in structure:
        if len(holder) != len(values) or not all(map(is_, holder.values(), values.values())):
            changed = [key for key in {**values, **holder} if holder.get(key) is not values.get(key)]
            raise RuntimeError(
                f"the model was changed after its methods started: {(changed or [*holder])[0]!r} is a different object now. "
                "Change the model before Learner(...), or make a new Learner of the changed model"
            )


def trains_of(parameters: Iterable[Tensor]) -> list[bool]:
    """Which parameters are not frozen."""
    return [parameter.requires_grad for parameter in parameters]


def warn_of_untrained(model: nn.Module, optimizer: Optimizer, thawed: Iterable[Tensor]) -> None:
    """Warn of parameters that were unfrozen but are in no optimiser."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    new = {id(parameter) for parameter in thawed} - held
    names = [name for name, parameter in model.named_parameters() if id(parameter) in new]
    if names:
        warnings.warn(
            f"{some(names)} was unfrozen, but is in no optimiser: methods will change it, and training will not. Add it "
            "first, as in optimizer.add_param_group({'params': layer.parameters()})",
            stacklevel=4,
        )
