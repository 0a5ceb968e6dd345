"""A model's tensors by name, copies of its initial weights, and newly initialised models of the same build."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..listing import some
from ..units import original
from ..weights.place import memory, region_of


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer of a checkpoint, not copied, under the uncompiled model's names."""
    state = original(model).state_dict(keep_vars=True)
    return {plain(name): value for name, value in state.items() if isinstance(value, Tensor)}


_PASS_BUILD = "Pass a function that makes the model, as in Learner(model, optimizer, build=lambda: MyModel())"


def reinitialised(model: nn.Module, needed: Collection[str] | None = None, instead: str = _PASS_BUILD) -> nn.Module:
    """A copy of `model` in which each layer has re-initialised its parameters; raises if a parameter was left out.

    needed: names of the parameters that must not be left out; None: all.
    instead: what the error tells the caller to do.
    """
    fresh = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in (one for one in fresh.parameters() if one.is_floating_point() or one.is_complex()):
            parameter.fill_(torch.nan)  # a parameter that is NaN afterwards was not initialised
        fresh.apply(_reset_parameters)  # children first, as in the constructor: attention sets biases of its inner layers
        _apply_init_weights(fresh, None)
        every = fresh.named_parameters(remove_duplicate=needed is None)
        asked = [(name, parameter) for name, parameter in every if needed is None or plain(name) in needed]
        left = [name for name, parameter in asked if parameter.isnan().any()]
    if left:
        raise ValueError(f"nothing re-initialises {some(left)}: no layer's reset_parameters() does. {instead}")
    return fresh


def _apply_init_weights(module: nn.Module, law: Callable[[nn.Module], object] | None) -> None:
    """Hugging Face's models initialise a module by `_init_weights`; in nested models that of the inner model applies."""
    own = getattr(module, "_init_weights", None)
    if (
        hasattr(module, "config") and hasattr(module, "base_model_prefix") and callable(own)
    ):  # other libraries use it differently
        law = own
    for child in module.children():
        _apply_init_weights(child, law)
    if law is not None:
        law(module)


def _reset_parameters(module: nn.Module) -> None:
    for name in ("reset_parameters", "_reset_parameters"):
        if callable(getattr(module, name, None)):
            getattr(module, name)()
            break


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that train, by name; a tensor with several names appears once."""
    found: dict[tuple[object, ...], tuple[str, nn.Parameter]] = {}
    for name, parameter in original(model).named_parameters():
        if parameter.requires_grad and parameter.is_complex():
            raise ValueError(
                f"{name} is complex, and methods and measures expect real parameters: store it as real numbers "
                "(torch.view_as_real), or freeze it"
            )
        if parameter.requires_grad and parameter.is_floating_point():
            found.setdefault(memory(parameter), (plain(name), parameter))
    if not found:
        raise ValueError("this model has no trainable parameters: call requires_grad_(True) on it")
    return dict(found.values())


@contextmanager
def seeded(seed: int, model: nn.Module) -> Iterator[None]:
    """Seed torch on the CPU and on the model's devices, NumPy and Python; restore their random states afterwards.

    A function that makes a model, or the user's data, may draw from any of them. NumPy's and Python's states belong to the
    whole process, so another thread should draw from a generator of its own.
    """
    devices = sorted({parameter.device.index for parameter in model.parameters() if parameter.is_cuda})
    of_numpy, of_python = np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002 to restore the global state
    with torch.random.fork_rng(devices):
        # torch.manual_seed would seed every GPU, but fork_rng restores only these.
        torch.default_generator.manual_seed(seed)
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        np.random.seed([seed % 2**32, (seed >> 32) % 2**32])  # noqa: NPY002 takes 32 bits at a time
        random.seed(str(seed))  # of an integer it would take the absolute value
        try:
            yield
        finally:
            np.random.set_state(of_numpy)  # noqa: NPY002
            random.setstate(of_python)


def first_weights(model: nn.Module, initial: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """A copy of `initial`, with the model's devices and dtypes. None: a copy of the model's present weights."""
    mine = named_tensors(model)
    if initial is None:
        return copied(mine, lambda name, tensor: tensor.detach().clone())
    saved = {plain(name): tensor for name, tensor in initial.items()}
    missing = [name for name, tensor in mine.items() if name not in saved or saved[name].shape != tensor.shape]
    if missing:
        raise ValueError(
            f"initial has no {missing[0]!r} of the model's shape: pass a state_dict() of this model from before training"
        )
    check_not_shared(mine, saved, "initial")
    given = {name: saved[name] for name in mine}
    return copied(given, lambda name, tensor: tensor.detach().to(mine[name], copy=True))


def copied(tensors: Mapping[str, Tensor], copy_of: Callable[[str, Tensor], Tensor]) -> dict[str, Tensor]:
    """A copy of each tensor, by name. A tensor with several names, such as a tied head, is copied once."""
    made: dict[object, Tensor] = {}
    found = {}
    for name, tensor in tensors.items():
        key = memory(tensor), tensor.stride(), tensor.dtype
        if key not in made:
            made[key] = copy_of(name, tensor)
        found[name] = made[key]
    return found


def check_not_shared(mine: Mapping[str, Tensor], saved: Mapping[str, Tensor], what: str) -> None:
    """Raise if saved weights share memory with the model, and so change with it."""
    shared = [name for name, tensor in mine.items() if region_of(tensor) == region_of(saved[name])]
    if shared:
        raise ValueError(
            f"{what} holds the model's own {shared[0]!r}, which changes as the model trains: "
            "copy it before training, as in first = copy.deepcopy(model.state_dict())"
        )


def check_same_build(model: nn.Module, drawn: nn.Module) -> None:
    """Raise unless the two models have tensors of the same names and shapes, and share none."""
    ours = {memory(parameter) for parameter in model.parameters()}
    if any(memory(parameter) in ours for parameter in drawn.parameters()):
        raise ValueError("build() returned the model that is being trained: it must make a new one, as in lambda: MyModel()")
    mine, theirs = named_tensors(model), named_tensors(drawn)
    if difference := shape_difference(mine, theirs):
        if not shape_difference({name.removeprefix("module."): tensor for name, tensor in mine.items()}, theirs):
            raise ValueError("build() makes the inner model, but the learner has its wrapper: pass model.module to Learner")
        raise ValueError(f"build() makes a different model: {difference} here. Pass the function that made this model")


def shape_difference(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> str:
    """The first name that has another shape in `theirs`, with both shapes; empty if all are the same."""
    for name in {**mine, **theirs}:
        here, there = (tuple(of[name].shape) if name in of else "missing" for of in (mine, theirs))
        if here != there:
            return f"{name!r} is {there} there and {here}"
    return ""


def built_like(model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
    """A model from `build`, on the device, in the dtypes and with the frozen parameters of `model`; raises if it differs."""
    drawn = original(build())
    check_same_build(model, drawn)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    drawn, mine = drawn.to(device), named_tensors(model)
    for name, tensor in named_tensors(drawn).items():
        tensor.data = tensor.data.to(mine[name])  # dtypes may be mixed; no other code holds this model's tensors yet
        if isinstance(tensor, nn.Parameter):
            tensor.requires_grad_(mine[name].requires_grad)
    return drawn


def load_(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load tensors that are named as in the uncompiled model."""
    names = {plain(name): name for name in model.state_dict()}
    model.load_state_dict({names.get(name, name): value for name, value in saved.items()})


def as_loaded(model: nn.Module, saved: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that a model with loading code of its own loads from a checkpoint; the model is unchanged."""
    trial = copy.deepcopy(model)
    try:
        load_(trial, saved)
    except RuntimeError as problem:
        raise ValueError(f"the checkpoint is from a different model: {problem}") from problem
    return {name: tensor.detach() for name, tensor in named_tensors(trial).items()}


def plain(name: str) -> str:
    """A tensor's name in the uncompiled model, where torch.compile has wrapped the model or parts of it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod") or name


def moved(saved: Any, like: Any, device: torch.device) -> Any:
    """A copy of a method's state or of weights. Each tensor goes to the device of its counterpart in `like`, or `device`."""
    if isinstance(saved, Tensor):
        return saved.detach().to(like.device if isinstance(like, Tensor) else device, copy=True)
    if isinstance(saved, Mapping):
        others = like if isinstance(like, Mapping) else {}
        return {key: moved(value, others.get(key), device) for key, value in saved.items()}
    if isinstance(saved, list | tuple):
        others = like if isinstance(like, list | tuple) and len(like) == len(saved) else [None] * len(saved)
        return type(saved)(moved(value, other, device) for value, other in zip(saved, others, strict=True))
    return saved
