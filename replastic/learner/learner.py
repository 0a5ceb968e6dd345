"""`Learner`: everything that a method may read or change, and the training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..optim import as_one, check_clearable, check_will_clear, clear_state_
from ..units import FROZEN, Example, Tap, UnitGroup, Units, find_units, original, reset_checked_, written
from ..units.trace import untouched
from ..weights.place import memory
from ..weights.sharded import check_unsharded
from .checks import (
    acts_in_steps,
    check_acts,
    check_functions,
    check_holds,
    check_loss_and_clip,
    check_objective,
    check_own_steps,
    check_placed,
    check_processes,
    check_task,
    check_tensors,
    check_unchanged,
    flat_list,
    optimizers_of,
    place_of,
    processes_of,
    refuse_step,
    structure_of,
    trains_of,
    warn_of_rate_0,
    warn_of_untrained,
)
from .fresh import built_like, first_weights, reinitialised, seeded, trainable
from .method import Method
from .missed_calls import MissedCalls
from .resume import resume_from, state_of
from .task import Batch, Task, outputs_of

Moment = Literal["at_boundary", "penalty", "after_step"]
_TEMPLATE_SEED = 0x7E3A  # unlikely as a user's seed, so that a template does not equal the run's own initial weights


class Learner:
    """A model, its optimiser, a random generator, and the methods that act on them.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> learner = Learner(model, torch.optim.Adam(model.parameters()), loss=nn.functional.cross_entropy)
    >>> loss = learner.step(torch.randn(16, 4), torch.randint(2, (16,)))

    Call `learner.begin(task)` when the data changes. Your own loop may call the two halves of `step`,
    `learner.backward(loss, batch)` and `learner.apply()`. A loop that must call loss.backward() and optimizer.step() itself
    adds `learner.penalty(batch)` to the loss and calls `learner.after_step(batch)` after the optimiser's step.

    optimizer: an optimiser, or a list of optimisers, which is then used like one optimiser.
    methods: the methods, in the order in which they act; nested lists are flattened.
    loss: a function of the model's outputs and the targets, used until `begin` gets a task with a loss of its own.
    build: a function that makes a newly initialised model. Without it `fresh()` calls every layer's reset_parameters, which
        does not repeat what the model's constructor did afterwards, such as a different initialisation or tied weights.
    initial: the run's initial weights, as a copied state dict, if the model has been trained since. None: the model's
        present weights. False: no copy is kept, for large models whose methods do not need it.
    example: an input for `find_units`, for models whose code cannot be traced.
    seed: seeds all randomness of the methods. The order of the data does not depend on it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        methods: Method | Iterable[Any] = (),
        loss: Callable[[Any, Any], Tensor] | None = None,
        build: Callable[[], nn.Module] | None = None,
        initial: Mapping[str, Tensor] | Literal[False] | None = None,
        example: Example | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"Learner needs a torch.nn.Module, got {type(model).__name__}: pass the model itself")
        check_functions(loss, build)
        self.model, self.build, self.example, self.seed = model, build, example, seed
        self._begun, self._missed = False, MissedCalls()
        self.methods = flat_list(methods)
        if self.methods:  # FIRE, for example, needs whole weights only at boundaries
            more = any(acts_in_steps(method) or method.one_process or method.needs_first for method in self.methods)
            check_unsharded(model, for_good=more)
        self.optimizer = as_one(optimizer)
        check_holds(model, self.optimizer)
        check_placed(model)
        check_processes(self.methods, processes_of(model))
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.initial = {} if initial is False else first_weights(model, initial)
        self.batch: Batch | None = None
        self.task: Task | None = None
        self.task_number = 0
        self.steps = 0
        self._can_draw = False  # whether a new model was made successfully
        self.taps: Tap | None = None
        self.precision: Callable[[], AbstractContextManager[Any]] = nullcontext  # of forward passes
        self.scheduled = False  # whether the loop sets the learning rate before each step
        self._loss = loss
        self._have_started([])
        self._structure, self._place = structure_of(original(model)), place_of(model)
        self._known = list(model.parameters())
        self.trains = trains_of(self._known)  # whether each parameter trained when this was last checked
        self._claim_methods()
        try:
            self._start_methods()
        except Exception:
            self._let_go()
            raise

    # what a training loop calls

    def step(self, inputs: Any, targets: Any, *, clip: float | None = None) -> Tensor:
        """Train on one batch: forward pass, `backward` and `apply`. Returns the task's loss, without penalties."""
        check_own_steps(self.optimizer)
        check_tensors(inputs, targets)
        batch = Batch(inputs, targets)
        if self.taps is not None:  # the forward pass must show units that were unfrozen
            self.notice_frozen()
        loss = self.backward(self.loss(batch), batch, clip=clip)
        self.apply()
        return loss

    def backward(
        self, loss: Tensor | Iterable[Tensor], batch: tuple[Any, Any] | None = None, *, clip: float | None = None
    ) -> Tensor:
        """Replace all gradients by the gradients of the loss and the methods' penalties. Returns the loss alone, detached.

        loss: a scalar, or the losses of micro-batches, whose gradients and values are summed. A generator that computes the
            losses one by one needs the memory of one micro-batch.
        batch: the inputs and targets of the loss, for methods that use them.
        clip: the largest norm of the summed gradient, penalties included.
        """
        check_loss_and_clip(loss, clip)
        self.optimizer.zero_grad()
        total = None
        for one in [loss] if isinstance(loss, Tensor) else loss:
            penalty = self.penalty(batch) if total is None else 0.0
            objective = one + penalty if isinstance(penalty, Tensor) and isinstance(one, Tensor) else one
            check_objective(objective)
            objective.backward()
            total = one.detach() if total is None else total + one.detach()
        if total is None:
            raise ValueError("learner.backward(loss) got an empty sequence of losses: pass a tensor, or one or more of them")
        if clip is not None:
            nn.utils.clip_grad_norm_(self.trained(), clip)
        return total

    def apply(self, batch: tuple[Any, Any] | None = None) -> None:
        """Step the optimiser with the gradients of `backward`, then let the methods act. This ends the step."""
        self._finish(batch, self.updates())

    def after_step(self, batch: tuple[Any, Any] | None = None) -> None:
        """Let the methods act and end the step, like `apply`, in a loop that has stepped the optimiser itself."""
        self._finish(batch, self.updates()[1:])

    def updates(self) -> list[Optimizer | Method]:
        """The optimiser and the methods that act after it, in the order in which they change the model in a step."""
        return [self.optimizer, *self.acting("after_step")]

    def update(self, updates: Iterable[Optimizer | Method]) -> None:
        """Run these `updates` of a step."""
        for one in updates:
            if isinstance(one, Method):
                one.after_step(self)
            else:
                one.step()

    def end_steps(self, count: int = 1, batch: Batch | None = None) -> None:
        """Count steps whose updates have all been run; `batch` is the batch of the last step."""
        self.batch = self.batch if batch is None else batch
        self.steps += count
        self._begun = True
        self._missed.called.add("after_step")
        if self.taps is not None:
            self.taps.clear()
            if len(self.taps.groups) < len(self.units.groups):  # some were unfrozen after the pass of this step
                self.taps.show(self.model, self.units.groups)

    def _finish(self, batch: tuple[Any, Any] | None, updates: Iterable[Optimizer | Method]) -> None:
        self._see(batch)
        check_unchanged(self.model, self._structure, self._place)
        self.notice_frozen(after_pass=True)
        self.update(updates)
        self.end_steps()

    def trained(self) -> list[Tensor]:
        """The parameters that the optimiser trains. Their gradients are cleared and clipped together."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    @property
    def optimizer(self) -> Optimizer:
        """The optimiser that trains the model. Your own loop must use this attribute: a method may replace it."""
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        replaced = getattr(self, "_optimizer", None)
        if replaced is optimizer:
            return
        self._optimizer = optimizer
        for hook in getattr(self, "_hooks", ()):
            hook.remove()
        self._hooks = [stepped.register_step_post_hook(self._saw_a_step) for stepped in optimizers_of(optimizer)]
        self._counted = optimizers_of(optimizer)[0]
        for one in optimizers_of(optimizer):  # one that was replaced before may be set again
            refusing = [key for key, hook in one._optimizer_step_pre_hooks.items() if hook is refuse_step]
            for key in refusing:
                del one._optimizer_step_pre_hooks[key]
        gone = optimizers_of(replaced) if replaced is not None else []
        for old in (old for old in gone if all(old is not kept for kept in optimizers_of(optimizer))):
            old.register_step_pre_hook(refuse_step)

    def _saw_a_step(self, optimizer: Optimizer, *arguments: object) -> None:
        self._begun = True  # the next begin() is a boundary, even if it is the first
        if optimizer is self._counted:  # several optimisers that are used like one make one step together
            self._missed.steps += 1

    def begin(self, task: Task | None = None) -> None:
        """Start a task. Methods act at this boundary, unless it is the first call and no step came before it."""
        check_unchanged(self.model, self._structure, self._place)
        check_task(task, self.methods)
        self.notice_frozen()
        self._missed.warn(self.acting)
        if self._begun and self.methods:
            check_unsharded(self.model)
        before = self.task, self.task_number
        self.task = task
        if self._begun:
            self.task_number += 1
            try:
                self._start_methods()
                for method in self._started:
                    method.at_boundary(self, task)
            except Exception:
                self.task, self.task_number = before  # so that the caller can mend the cause and begin it again
                raise
        self._begun = True
        if not self.scheduled:
            warn_of_rate_0(self.optimizer)

    def penalty(self, batch: tuple[Any, Any] | None = None) -> Tensor | float:
        """The sum of the methods' penalties, to be added to the loss.

        batch: the inputs and targets of the step, for methods that use them.
        """
        self._see(batch)
        self.notice_frozen(after_pass=True)
        self._missed.called.add("penalty")
        return sum((method.penalty(self) for method in self.acting("penalty")), start=0.0)

    def notice_frozen(self, *, after_pass: bool = False) -> None:
        """Update `parameters`, `units` and `taps` if layers were frozen or unfrozen.

        This runs at every step, so it must be cheap.

        after_pass: keep the activations of the current forward pass; units that the pass did not cover are added after the
            step.
        """
        now = trains_of(self._known)
        if now != self.trains:
            thawed = [one for one, trains, before in zip(self._known, now, self.trains, strict=True) if trains > before]
            for cached in ("units", "parameters"):
                self.__dict__.pop(cached, None)
            if self.taps is not None:
                seen = self.taps.inputs if after_pass else {}
                groups = [group for group in self.units.groups if not seen or group.name in seen]  # raises if there are none
                self.taps.show(self.model, groups)
            self.trains = now
            warn_of_untrained(self.model, self.optimizer, thawed)

    def _see(self, batch: tuple[Any, Any] | None) -> None:
        if batch is not None:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise TypeError(f"batch is a {type(batch).__name__}, not a pair: pass (inputs, targets)")
            self.batch = Batch(*batch)

    def acting(self, moment: Moment) -> Sequence[Method]:
        """The methods that act at this moment of the current task, in order."""
        return self._acting[moment]

    def evaluated(self) -> dict[str, nn.Module]:
        """The networks to evaluate, by name. The results of the first network count."""
        for method in self._started:
            networks = method.evaluated(self)
            if networks:
                return networks
        return {"model": self.model}

    # what methods use

    def loss(self, batch: Batch) -> Tensor:
        """The task's loss on a batch, without penalties."""
        loss = self.task.loss if self.task is not None else self._loss
        if loss is None:
            raise ValueError(
                "the learner has no loss: pass Learner(..., loss=torch.nn.functional.cross_entropy), or call begin(task)"
            )
        return loss(outputs_of(self.model, batch.inputs), batch.targets)

    @cached_property
    def units(self) -> Units:
        """The model's hidden units whose layers train."""
        found, groups = self._found
        trained = tuple(g for g, parameters in groups if all(parameter.requires_grad for parameter in parameters))
        if not trained:
            return find_units(self.model, self.example)  # raises, and names the frozen layers
        frozen = {group.name: FROZEN for group in found.groups if all(group is not one for one in trained)}
        return Units(trained, found.left_out | frozen, found.not_seen)

    @cached_property
    def _found(self) -> tuple[Units, list[tuple[UnitGroup, list[nn.Parameter]]]]:
        """All hidden units, and for each group the parameters that must train. The model is traced only once."""
        found, model = find_units(self.model, self.example, frozen=True), original(self.model)
        layers = [{slot.layer for slot in (*g.makers, *g.norms, *g.readers)} for g in found.groups]
        held = [[p for layer in names for p in model.get_submodule(layer).parameters(recurse=False)] for names in layers]
        return found, list(zip(found.groups, held, strict=True))

    def tap(self) -> Tap:
        """The activations of hidden units in the last training forward pass. The first call starts recording them."""
        if self.taps is None:
            self.taps = Tap(self.model, self.units.groups)
        return self.taps

    def reset_units(self, group: UnitGroup, chosen: Tensor) -> None:
        """Re-initialise units: sample their weights from the template's distribution and clear their optimiser state."""
        reset_checked_(
            self.model,
            group,
            chosen,
            template=self.template,
            generator=self.generator,
            optimizer=self.optimizer,
        )

    def will_reset_units(self, method: Method) -> None:
        """For a method's `start`: raise now if resetting a unit would fail later. Also starts recording the activations."""
        self.tap()
        self.template  # noqa: B018 - raises if no new weights can be drawn
        self.will_forget(method, written(self.model, self.units.groups), parts=True)

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Trainable parameters by name; a tensor with several names appears once."""
        return trainable(self.model)

    def first(self, name: str) -> Tensor:
        """The initial value of a parameter or buffer, on the model's device."""
        if name not in self.initial:
            raise KeyError(
                f"{name!r} is not among the run's initial weights: the model was changed since, or Learner(initial=...) is "
                "False or belongs to another model"
            )
        return self.initial[name]

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """A context for a method's own forward passes, in the precision of training.

        Buffers, modes, `taps` and torch's random state are restored when the context ends.
        """
        unheard = self.taps.paused() if self.taps is not None else nullcontext()
        with unheard, untouched(self.model), seeded(self._seed(), self.model), self.precision():
            yield

    def fresh(self) -> nn.Module:
        """A newly initialised model, drawn with the learner's randomness; no other random state changes."""
        return self._drawn(self._seed())

    def check_fresh(self) -> None:
        """Raise if `fresh` would fail, for methods that call it only after a whole task."""
        if not self._can_draw:
            self._drawn(self.seed ^ _TEMPLATE_SEED)
            self._can_draw = True

    def draw(self, make: Callable[[], nn.Module]) -> nn.Module:
        """Call `make` with the learner's randomness in place of torch's own; no other random state changes."""
        with seeded(self._seed(), self.model):
            return make()

    def data_generator(self) -> torch.Generator:
        """A generator for reading data: `task.batches(learner.data_generator())` does not change the order of training."""
        return torch.Generator().manual_seed(self._seed())

    def _seed(self) -> int:
        return int(torch.randint(2**62, (), generator=self.generator, device=self.device))

    @cached_property
    def template(self) -> nn.Module:
        """One newly initialised model for the whole run, the same after resuming: units are redrawn from its weights."""
        return self._drawn(self.seed ^ _TEMPLATE_SEED)

    def _drawn(self, seed: int) -> nn.Module:
        model, build = original(self.model), self.build
        with seeded(seed, self.model):
            drawn = built_like(model, build) if build is not None else reinitialised(model)
        return drawn.train(model.training)

    def forget(self, parameters: Iterable[Tensor]) -> None:
        """Clear the optimiser's state of whole parameters. If one of them cannot be cleared, raise and clear none.

        Call it before you write weights, so that an error leaves the weights unchanged.
        """
        held = self._held(parameters)
        for param in held:
            check_clearable(self.optimizer, param)
        for param in held:
            clear_state_(self.optimizer, param)

    def will_forget(self, method: Method, parameters: Iterable[Tensor], *, parts: bool = False) -> None:
        """For a method's `start`: raise now if `forget` will raise for these parameters once the optimiser has state.

        parts: whether single entries will be cleared, not whole parameters.
        """
        name, index = type(method).__name__, ... if parts else None
        instead = f", or pass {name}(clear_state=False)" if hasattr(method, "clear_state") else ""
        check_will_clear(self.optimizer, [(param, index) for param in self._held(parameters)], name, instead)

    def _held(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """The parameters of the optimiser that share memory with these."""
        wanted = {memory(parameter) for parameter in parameters}
        return [param for param in self.trained() if memory(param) in wanted]

    def model_changed(self) -> None:
        """For a method that changed the module tree: discard everything that was cached about the old modules."""
        self._structure = structure_of(original(self.model))
        self.__dict__.pop("template", None)
        self._can_draw = False
        for cached in ("_found", "units", "parameters"):
            self.__dict__.pop(cached, None)
        if self.taps is not None:
            groups = self.units.groups  # raises if there are none
            self.taps.close()
            self.taps = Tap(self.model, groups)
        self._known = list(self.model.parameters())
        self.trains = trains_of(self._known)

    # stop and resume

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs: tensors, numbers, lists and dicts, which load with weights_only=True.

        As in torch, the tensors are not copied: save the state, or call copy.deepcopy, before training continues.
        """
        return state_of(self)

    def load_state_dict(self, saved: Mapping[str, Any], task: Task | None = None) -> None:
        """Resume from a `state_dict`, in a new learner with the same kind of model, optimisers and methods.

        task: the current task when the state was saved; it holds functions, which a checkpoint cannot store.
        """
        resume_from(self, saved, task)

    def _claim_methods(self) -> None:
        for method in self.methods:
            check_acts(method)
            if method.taken:
                name = type(method).__name__
                raise ValueError(f"this {name} already belongs to a learner: make a new {name} for each learner")
        for method in self.methods:
            method.taken = True

    def _let_go(self) -> None:
        """Let another learner use the methods, because not all of them could be started."""
        if self.taps is not None:
            self.taps.close()
        for method in self.methods:
            method.taken, method.state = False, {}

    def _start_methods(self) -> None:
        for method in self.methods:
            self._start(method)

    def _start(self, method: Method) -> None:
        if method.from_task <= self.task_number and not any(started is method for started in self._started):
            method.start(self)
            self._missed.steps = 0  # the method could not act in earlier steps
            self._have_started([m for m in self.methods if m is method or any(s is m for s in self._started)])  # in order

    def _have_started(self, methods: list[Method]) -> None:
        self._started = methods
        self._acting = {moment: [m for m in methods if m.overrides(moment)] for moment in get_args(Moment)}
