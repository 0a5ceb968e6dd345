"""Everything a method may touch: `Learner`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .method import Method
from .optim import as_one, clear_state_, holds
from .task import Batch, Task
from .units import Example, Tap, Units, find_units, original

_TEMPLATE_SEED = 0x7E3A  # apart from the seeds that people choose, so that a template is never the run's own first weights


class Learner:
    """A model, its optimiser, randomness of its own, and the methods that act on them.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> learner = Learner(model, torch.optim.Adam(model.parameters()), loss=nn.functional.cross_entropy)
    >>> loss = learner.step(torch.randn(16, 4), torch.randint(2, (16,)))

    In a loop of one's own, the same without `step`: add `learner.penalty()` to the loss, call `learner.after_step(batch)`
    after the optimiser's step, and `learner.begin(task)` when the data changes.

    optimizer: one, or a list of them, which then look like one.
    methods: in the order in which they act; lists among them are taken apart.
    loss: of the model's outputs and the targets, until a task brings its own.
    build: makes a newly initialised model. Without it `fresh()` calls every layer's reset_parameters.
    initial: the run's first weights, as a state dict, if the model has been trained since. None: the weights it has now.
    example: an input for `find_units`, for models whose code cannot be traced.
    seed: of all randomness of the methods. The order of the data does not depend on it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        methods: Method | Iterable[Any] = (),
        loss: Callable[[Any, Any], Tensor] | None = None,
        build: Callable[[], nn.Module] | None = None,
        initial: Mapping[str, Tensor] | None = None,
        example: Example | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"Learner needs a torch.nn.Module, got {type(model).__name__}: pass the model itself")
        self.model, self.build, self.example, self.seed = model, build, example, seed
        self.optimizer = as_one(optimizer)
        self.methods = _flat(methods)
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.initial = _first_weights(original(model), initial)
        self.batch: Batch | None = None
        self.task: Task | None = None
        self.task_number = 0
        self.steps = 0
        self.taps: Tap | None = None
        self._loss = loss
        self._begun = False
        self._started: list[Method] = []
        self._structure = _structure(original(model))
        self._start_methods()

    # what a training loop calls

    def step(self, inputs: Any, targets: Any, *, clip: float | None = None) -> Tensor:
        """One step of training on one batch; returns the task's loss, without penalties.

        clip: the largest norm of the gradient of loss and penalties together.
        """
        self.batch = Batch(inputs, targets)
        loss = self.loss(self.batch)
        self.optimizer.zero_grad()
        (loss + self.penalty()).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimizer.step()
        self.after_step()
        return loss.detach()

    def begin(self, task: Task | None = None) -> None:
        """Say that the next steps are of `task`. From the second call on this is a boundary, and methods act at it."""
        self._check_structure()
        self.task = task
        if self._begun:
            self.task_number += 1
            self._start_methods()
            for method in list(self._started):
                method.at_boundary(self, task)
        self._begun = True

    def penalty(self) -> Tensor | float:
        """What the methods add to the loss."""
        terms = [method.penalty(self) for method in self._started if type(method).penalty is not Method.penalty]
        return torch.stack(terms).sum() if len(terms) > 1 else terms[0] if terms else 0.0

    def after_step(self, batch: tuple[Any, Any] | None = None) -> None:
        """Have the methods act after a step of the optimiser; `batch` is what the step learnt from."""
        if batch is not None:
            self.batch = Batch(*batch)
        self._check_structure()
        for method in self._started:
            method.after_step(self)
        self.steps += 1
        if self.taps is not None:
            self.taps.clear()

    def evaluated(self) -> dict[str, nn.Module]:
        """The networks to be tested, by name; the first is the one that counts."""
        for method in self._started:
            networks = method.evaluated(self)
            if networks:
                return networks
        return {"model": self.model}

    # what methods use

    def loss(self, batch: Batch) -> Tensor:
        """The task's own loss on a batch."""
        loss = self.task.loss if self.task is not None else self._loss
        if loss is None:
            raise ValueError(
                "the learner has no loss: pass Learner(..., loss=torch.nn.functional.cross_entropy) or begin a task"
            )
        return loss(self.model(batch.inputs), batch.targets)

    @cached_property
    def units(self) -> Units:
        """The model's hidden units."""
        return find_units(self.model, self.example)

    def tap(self) -> Tap:
        """The activations of hidden units in the training forward; from now on they are kept."""
        if self.taps is None:
            self.taps = Tap(self.model, self.units.groups)
        return self.taps

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Trainable parameters by name, each tensor once, however many names it has."""
        found: dict[tuple[object, ...], tuple[str, nn.Parameter]] = {}
        for name, parameter in original(self.model).named_parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                found.setdefault((parameter.data_ptr(), parameter.shape, parameter.device), (name, parameter))
        if not found:
            raise ValueError("this model has no trainable parameters: call requires_grad_(True) on it")
        return dict(found.values())

    def first(self, name: str) -> Tensor:
        """The run's first value of a parameter or buffer, on the model's device."""
        if name not in self.initial:
            raise KeyError(
                f"{name!r} is not among the run's first weights: the model was changed since, or Learner(initial=...) is of "
                "another model"
            )
        return self.initial[name]

    def fresh(self) -> nn.Module:
        """A newly initialised model, drawn with the learner's randomness; no other random state changes."""
        return self._drawn(int(torch.randint(2**62, (), generator=self.generator, device=self.device)))

    @cached_property
    def template(self) -> nn.Module:
        """One newly initialised model for the whole run, the same after a resume: the law that units are redrawn from."""
        return self._drawn(self.seed ^ _TEMPLATE_SEED)

    def _drawn(self, seed: int) -> nn.Module:
        model = original(self.model)
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            drawn = original(self.build()) if self.build is not None else reinitialised(model)
        like = next(model.parameters())
        drawn = drawn.to(device=like.device, dtype=like.dtype).train(model.training)
        if self.build is not None:
            _check_same_build(model, drawn)
        return drawn

    def forget(self, parameters: Iterable[nn.Parameter]) -> None:
        """Clear what the optimiser remembers of whole parameters."""
        for parameter in parameters:
            if holds(self.optimizer, parameter):
                clear_state_(self.optimizer, parameter)

    def model_changed(self) -> None:
        """For a method that changed the module tree itself: what was found out about the old one is forgotten."""
        for cached in ("units", "parameters", "template"):
            self.__dict__.pop(cached, None)
        if self.taps is not None:
            self.taps.close()
            self.taps = Tap(self.model, self.units.groups)
        self._structure = _structure(original(self.model))

    # stop and resume

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs: tensors, numbers, lists and dicts, to be loaded with weights_only=True."""
        return {
            "model": original(self.model).state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "initial": dict(self.initial),
            "generator": self.generator.get_state(),
            "task_number": self.task_number,
            "begun": self._begun,
            "steps": self.steps,
            "methods": [{"name": type(method).__name__, "state": method.state} for method in self.methods],
        }

    def load_state_dict(self, saved: Mapping[str, Any], task: Task | None = None) -> None:
        """Go on where `state_dict` was taken, with the same model, optimisers and methods, newly made.

        task: the one that was going on; it holds functions, which a checkpoint does not carry.
        """
        names = [entry["name"] for entry in saved["methods"]]
        mine = [type(method).__name__ for method in self.methods]
        if names != mine:
            raise ValueError(f"the checkpoint is of a run with methods {names}, and this learner has {mine}")
        self.task, self.task_number, self._begun = task, saved["task_number"], saved["begun"]
        self.initial = {name: tensor.to(self.device) for name, tensor in saved["initial"].items()}
        self._start_methods()
        for method, entry in zip(self.methods, saved["methods"], strict=True):
            method.state = copy.deepcopy(entry["state"])
            method.rebuild(self)
        original(self.model).load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.generator.set_state(saved["generator"].cpu())
        self.steps = saved["steps"]

    def _start_methods(self) -> None:
        for method in self.methods:
            if not self._has_started(method) and method.from_task <= self.task_number:
                if method.state:
                    raise ValueError(f"this {type(method).__name__} has run before: make a new one for each learner")
                method.start(self)
                self._started.append(method)

    def _has_started(self, method: Method) -> bool:
        return any(started is method for started in self._started)  # methods compare equal by their hyperparameters

    def _check_structure(self) -> None:
        for holder, key, value, size in self._structure:
            if holder.get(key) is not value or len(holder) != size:
                raise RuntimeError(
                    f"the model was changed after its methods started: {key!r} is another one now. Change it before "
                    "Learner(...), or make a new Learner of the changed model"
                )


def reinitialised(model: nn.Module) -> nn.Module:
    """A copy of `model` with every parameter drawn anew by the layer that holds it; raises if one is not."""
    fresh = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.fill_(torch.nan)  # what is still NaN in the end was not initialised by anything
        for module in fresh.modules():
            for name in ("reset_parameters", "_reset_parameters"):
                if callable(getattr(module, name, None)):
                    getattr(module, name)()
                    break
        left = [name for name, parameter in fresh.named_parameters() if parameter.isnan().any()]
    if left:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        raise ValueError(
            f"nothing re-initialises {', '.join(left[:3])}{more}: no layer's reset_parameters() does. Pass a function that "
            "makes the model, as in Learner(model, optimizer, build=lambda: MyModel())"
        )
    return fresh


def _flat(methods: Method | Iterable[Any]) -> list[Method]:
    if isinstance(methods, Method):
        return [methods]
    if isinstance(methods, type):
        raise TypeError(f"methods holds the class {methods.__name__}: write {methods.__name__}()")
    if not isinstance(methods, Iterable) or isinstance(methods, str):
        raise TypeError(f"methods={methods!r}: give a method such as rp.FIRE(), or a list of them")
    flat = [method for given in methods for method in _flat(given)]
    if len({id(method) for method in flat}) < len(flat):
        raise ValueError("the same method object stands twice in methods: make two of them")
    return flat


def _first_weights(model: nn.Module, initial: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    mine = model.state_dict()
    if initial is None:
        return {name: tensor.detach().clone() for name, tensor in mine.items()}
    given = {name.replace("_orig_mod.", ""): tensor for name, tensor in initial.items()}
    missing = [name for name, tensor in mine.items() if name not in given or given[name].shape != tensor.shape]
    if missing:
        raise ValueError(
            f"initial has no {missing[0]!r} of the model's shape: pass the state_dict() of this model as it was at first"
        )
    return {name: given[name].detach().to(tensor.device).clone() for name, tensor in mine.items()}


def _check_same_build(model: nn.Module, drawn: nn.Module) -> None:
    mine = {name: tensor.shape for name, tensor in model.state_dict().items()}
    theirs = {name: tensor.shape for name, tensor in drawn.state_dict().items()}
    if mine != theirs:
        name = next(name for name in [*mine, *theirs] if mine.get(name) != theirs.get(name))
        raise ValueError(
            f"build() makes another model: {name!r} is {tuple(theirs[name]) if name in theirs else 'missing'} there and "
            f"{tuple(mine[name]) if name in mine else 'missing'} here. Pass the function that made this model"
        )


def _structure(model: nn.Module) -> list[tuple[dict[str, Any], str, object, int]]:
    """Every child and parameter by the dict that holds it: cheap to look at again, and it shows when one is replaced."""
    return [
        (holder, key, value, len(holder))
        for module in model.modules()
        for holder in (module._modules, module._parameters)
        for key, value in holder.items()
    ]
