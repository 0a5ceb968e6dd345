"""Stop and resume: what a learner's checkpoint holds, and the checks before one is loaded."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..units import original
from .before import Before
from .fresh import as_loaded, copied, load_, moved, named_tensors, plain
from .task import Task

if TYPE_CHECKING:
    from .learner import Learner

_OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"}  # left in optimisers' groups


def state_of(learner: Learner) -> dict[str, Any]:
    """All that a resumed run needs: tensors, numbers, lists and dicts."""
    return {
        "model": {plain(name): value for name, value in original(learner.model).state_dict().items()},
        "optimizer": learner.optimizer.state_dict(),
        "initial": dict(learner.initial),
        "generator": learner.generator.get_state(),
        "seed": learner.seed,
        "task_number": learner.task_number,
        "begun": learner._begun,
        "steps": learner.steps,
        "methods": [
            {
                "name": type(method).__name__,
                "settings": repr(method),
                "books": {name: getattr(method, name) for name in method.books},
                "state": method.state,
            }
            for method in learner.methods
        ],
    }


def resume_from(learner: Learner, saved: Mapping[str, Any], task: Task | None) -> None:
    """Load a state, or raise and leave the learner unchanged if it does not fit."""
    _check_methods(saved, state_of(learner))
    first = _first_weights(learner, saved)
    if len(learner._started) == len(learner.methods):  # a method that has yet to start may replace the optimiser
        _check_optimizers(saved["optimizer"], learner.optimizer.state_dict())
    before = Before(learner, values=False)
    try:
        learner.task, learner.task_number, learner._begun = task, saved["task_number"], saved["begun"]
        learner.seed, learner.steps = saved["seed"], saved["steps"]
        mine = named_tensors(learner.model)
        learner.initial = copied(first, lambda name, tensor: moved(tensor, mine.get(name), learner.device))
        _resume_methods(learner, saved["methods"])
        _check_optimizers(saved["optimizer"], learner.optimizer.state_dict())
        if _loads_by_name(original(learner.model)):  # methods may have rebuilt it
            _check_tensors(saved["model"], state_of(learner)["model"], names=True)
    except Exception:
        before.restore_()
        raise
    load_(original(learner.model), saved["model"])
    learner.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))  # torch would keep the caller's tensors
    learner.generator.set_state(saved["generator"].cpu())


def _first_weights(learner: Learner, saved: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The checkpoint's initial weights, by the model's names; raises if the checkpoint is from a different model."""
    model, changes = original(learner.model), any(method.overrides("rebuild") for method in learner.methods)
    if _loads_by_name(model):
        _check_tensors(saved["model"], state_of(learner)["model"], names=not changes)
    elif not changes:  # the model's own loading code may accept other names: try it on a copy
        as_loaded(model, saved["model"])
        return as_loaded(model, saved["initial"]) if saved["initial"] else {}
    return saved["initial"]


def _resume_methods(learner: Learner, entries: Sequence[Mapping[str, Any]]) -> None:
    vars(learner).pop("template", None)  # it comes from the seed
    learner._have_started([method for method in learner._started if method.from_task <= learner.task_number])
    for method, entry in zip(learner.methods, entries, strict=True):
        learner._start(method)  # in order: a method may need modules that the one before rebuilds
        method.state = moved(entry["state"], method.state, learner.device)
        if any(method is started for started in learner._started):
            method.rebuild(learner)
        if entry["settings"] != repr(method):
            warnings.warn(f"the checkpoint was saved with {entry['settings']}; resuming with {method!r}", stacklevel=4)


def _check_methods(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Raise unless the methods and the random state of `saved` fit a learner whose state is `mine`."""
    missing = [key for key in mine if key not in saved]
    if missing:
        raise ValueError(f"this is not a Learner's state_dict(): it has no {missing[0]!r}")
    theirs, ours = ([entry["name"] for entry in state["methods"]] for state in (saved, mine))
    if theirs != ours:
        raise ValueError(
            f"the checkpoint was saved with methods {theirs}, but this learner has {ours}: pass the same methods in the "
            "same order"
        )
    for then, now in zip(saved["methods"], mine["methods"], strict=True):
        for name, value in then.get("books", {}).items():
            if value != (here := now["books"].get(name, value)):
                raise ValueError(
                    f"the checkpoint was saved with {now['name']}({name}={value!r}), on which its state depends, but this "
                    f"learner has {name}={here!r}: use the same value, or start a new run"
                )
    if saved["generator"].shape != mine["generator"].shape:
        raise ValueError("the checkpoint's random state is from a different kind of device: resume on the same kind")


def _check_tensors(there: Mapping[str, Any], here: Mapping[str, Any], *, names: bool) -> None:
    """Raise unless a checkpoint's tensors have the model's shapes; `names`: raise also if a name is in only one of them."""
    for name, tensor in here.items():
        stored = there.get(name, tensor)
        if isinstance(tensor, Tensor) and stored.shape != tensor.shape:
            raise ValueError(
                f"the checkpoint is from a different model: {name} is {tuple(stored.shape)} there and {tuple(tensor.shape)} "
                "here"
            )
    odd = [name for name in [*here, *there] if (name in here) != (name in there)]
    if names and odd:
        where = "only in the learner's model" if odd[0] in here else "only in the checkpoint"
        raise ValueError(f"the checkpoint is from a different model: {odd[0]} is {where}. Build the model that was saved")


def _check_optimizers(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Raise unless an optimiser, or several that are used like one, can load a state."""
    theirs, ours = (state.get("optimizers", [state]) for state in (saved, mine))
    if len(theirs) != len(ours):
        raise ValueError(f"the checkpoint was saved with {len(theirs)} optimiser(s), but this learner has {len(ours)}")
    for then, now in zip(theirs, ours, strict=True):
        old, new = (set[str]().union(*state["param_groups"]) - _OF_SCHEDULERS for state in (then, now))
        if old - new and new - old:  # a different version of torch may have more settings or fewer, but not both
            raise ValueError(
                f"the checkpoint was saved with a different kind of optimiser, with {', '.join(sorted(old - new))}; this "
                f"learner's has {', '.join(sorted(new - old))}: use the same kind"
            )
        sizes = [[len(group["params"]) for group in state["param_groups"]] for state in (then, now)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"the checkpoint's optimiser has groups of {sizes[0]} parameters, but this learner's has {sizes[1]}: make "
                "the optimiser with the same groups"
            )


def _loads_by_name(model: nn.Module) -> bool:
    """Whether the model loads tensors by their present names, without loading code of its own that may accept others."""
    loading = [type(model).load_state_dict, *(type(module)._load_from_state_dict for module in model.modules())]
    hooked = any(module._load_state_dict_pre_hooks for module in model.modules())
    return not hooked and all(function.__module__.startswith("torch.") for function in loading)
