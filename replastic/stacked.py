"""Many learners of one shape, trained as one: `Stack`.

A small network in small batches keeps a GPU waiting: a step is dozens of kernels that take less time than their launch. The
weights of all members (runs of other seeds, other methods, other tasks) are therefore put into one tensor each,
(members, *shape), and every kernel works on all of them. On CUDA the whole step is recorded as a graph and replayed.
Compiled, it is few kernels: the gradient of a single sample is a product of two vectors, which never becomes a matrix.

    gradient <- ∇ loss + λ θ;  gradient <- gradient · min(1, clip/(‖gradient‖ + 1e-6));  θ <- θ - lr · gradient

for each member by itself: its own samples, λ, norm and learning rate. What comes out is what each learner alone would have
become, up to the order in which products are added up.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .capture import WARM_UP, beside
from .learner import Learner
from .methods.cbp import CBP
from .methods.er import ER
from .stacked_methods import Member, StackedCBP, StackedER, StackedSGD, Weights, acting, check_methods, check_optimizer
from .streams.images import Examples, ImageTask
from .task import Batch
from .units import original

# A gradient is computed twice, for its norm and for the step, and not kept in between, though it reads from four tensors.
_INLINE: dict[str, Any] = {"realize_reads_threshold": 16, "realize_opcount_threshold": 100}
_LOOKED_AT = 32  # samples on which the tasks' losses are compared


class Stack:
    """Learners whose models are built alike, on one device, trained by SGD, an epoch of an image task at a time.

    Between epochs every learner is as if it had been trained alone: test it, measure it, save and load it, have methods act
    at boundaries. Only `.grad` is not set. Methods that act in every step are L2, ER and CBP; others raise.

    Put members with the same methods next to one another: then nothing need be gathered for those methods.

    clip: the largest norm of each member's gradient of loss and penalties together. None: no limit.
    compiled: the step is what torch.compile makes of it, for which the first one waits.

    >>> from replastic.models import MLP
    >>> from replastic.methods import L2
    >>> models = [MLP(784, [32], 10) for _ in range(3)]
    >>> methods = [[], [], [L2(1e-3)]]
    >>> optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    >>> stack = Stack([Learner(m, o, methods=f) for m, o, f in zip(models, optimizers, methods)], clip=0.5)

    then, for every task of theirs, `stack.begin(tasks)` and `stack.epoch(orders)`.
    """

    def __init__(self, learners: Sequence[Learner], *, clip: float | None = None, compiled: bool = False) -> None:
        self.learners = list(learners)
        if not self.learners or len({id(learner) for learner in self.learners}) < len(self.learners):
            raise ValueError(f"Stack of {len(self.learners)} learners: give one or more, each once")
        if clip is not None and not clip > 0:
            raise ValueError(f"Stack(clip={clip!r}): give the largest norm of a gradient, above 0, or None")
        self.clip = clip
        self.members = [Member(row, learner) for row, learner in enumerate(self.learners)]
        self.device = self.learners[0].device
        self.model = _skeleton(original(self.learners[0].model), _linear_of_one if compiled else _linear)
        self.learn: Callable[[_Epoch, Tensor, Tensor], None] = _Epoch.learn
        if compiled:
            # The compiler gives up on a function that it has compiled in eight ways: every stack has one of its own.
            own = FunctionType(_Epoch.learn.__code__.replace(), _Epoch.learn.__globals__)
            self.learn = torch.compile(own, dynamic=False, fullgraph=True, options=_INLINE)
        for learner in self.learners:
            check_methods(learner.methods)
        self._check()
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._seen: list[ImageTask] = []  # tasks whose loss was found to be one and the same

    def begin(self, tasks: Sequence[ImageTask]) -> None:
        """Begin each member's task: for all but the first a boundary, at which methods act."""
        if len(tasks) != len(self.learners):
            raise ValueError(f"{len(tasks)} tasks for {len(self.learners)} learners: give one each")
        _checked_tasks(tasks)
        for learner, task in zip(self.learners, tasks, strict=True):
            learner.begin(task)

    def epoch(self, orders: Tensor) -> dict[str, Tensor]:
        """Go through each member's samples once in its order; the members' mean loss and, as "online_accuracy", the share of
        answers that were right before they were learnt from, both (members,) and on the device, where nobody waits for them.

        orders: (members, samples): numbers into the samples of each member's task, as `task.order(generator)` draws them.
        """
        tasks = _checked_tasks([learner.task for learner in self.learners])
        self._check()
        _check_orders(orders, tasks)
        for learner in self.learners:
            learner.model.train()
        with self._aside(), self._lent() as weights:
            if [*map(id, tasks)] != [*map(id, self._seen)]:
                _check_one_loss(self.model, weights, tasks)
                _check_all_used(self.model, weights, tasks[0])
                self._seen = tasks
            return _Epoch(self, weights, tasks, orders.to(self.device)).run()

    def _check(self) -> None:
        """A method may have changed a model at a boundary, or someone its optimiser."""
        _check_stackable(original(self.learners[0].model))
        for number, learner in enumerate(self.learners):
            _check_alike(original(self.learners[0].model), original(learner.model), number)
            check_optimizer(learner)
        if repr(self.model) != repr(original(self.learners[0].model)):
            raise RuntimeError("the models were changed since the stack was made: make a new Stack of their learners")

    @contextmanager
    def _lent(self) -> Iterator[Weights]:
        """Parameters and buffers of all members, by name, as (members, *shape).

        While this lasts each learner's are rows of them, so that whoever acts on a learner acts on the stack. Afterwards
        they are what they were before, with new values: a view of the stack would be saved with the whole of it.
        """
        several = [_tensors(original(learner.model)) for learner in self.learners]
        own = [{name: tensor.data for name, tensor in tensors.items()} for tensors in several]
        weights = {name: torch.stack([tensors[name] for tensors in own]) for name in several[0]}
        for name, weight in weights.items():
            for row, tensors in enumerate(several):
                tensors[name].data = weight[row]
            weight.requires_grad_(several[0][name].requires_grad)
        try:
            yield weights
        finally:
            with torch.no_grad():
                for row, tensors in enumerate(several):
                    for name, tensor in tensors.items():
                        tensor.data = own[row][name].copy_(weights[name][row])

    def _aside(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else beside(self._stream)


class _Epoch:
    """One pass of all members over their samples; a graph is of one epoch, whose samples, rates and methods it holds."""

    def __init__(self, stack: Stack, weights: Weights, tasks: Sequence[ImageTask], orders: Tensor) -> None:
        self.stack, self.weights, self.tasks, self.orders = stack, weights, tasks, orders
        members, device = len(stack.members), stack.device
        self.batch, self.task = tasks[0].batch, tasks[0]
        self.examples = _stacked_examples([task.examples for task in tasks])
        self.at = torch.zeros((), dtype=torch.int64, device=device)  # where in the order a replay stands
        self.within = torch.arange(self.batch, device=device)
        self.loss = torch.zeros(members, dtype=torch.float64, device=device)
        self.right = torch.zeros(members, dtype=torch.int64, device=device)
        self.trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
        cbp, er = acting(stack.members, CBP), acting(stack.members, ER)
        self.cbp = StackedCBP(stack.model, weights, cbp) if cbp else None
        self.er = StackedER(stack.model, weights, er, tasks, orders) if er else None
        self.rule = StackedSGD(stack.members, self.trained, stack.clip)
        self.graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> dict[str, Tensor]:
        samples, seen = self.orders.shape[1], 0
        try:
            for number in range(samples // self.batch):
                self._replayed(number)
                seen += self.batch
                self._between(seen)
            if seen < samples:  # the odd last batch
                self.learn(*_gather(self.examples, self.orders[:, seen:]))
                seen = samples
                self._between(seen)
        finally:
            self._finish(seen)
        accuracy = {"online_accuracy": self.right.double() / samples} if self.task.correct is not None else {}
        return {"loss": self.loss / samples, **accuracy}

    def _replayed(self, number: int) -> None:
        stream = self.stack._stream
        if stream is not None and number == WARM_UP:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                self._step()
        if self.graph is not None:
            self.graph.replay()
        else:
            self._step()

    def _step(self) -> None:
        """A step that needs nothing from the host: the counter is its own."""
        chosen = self.orders.index_select(1, self.within + self.at)
        self.stack.learn(self, *_gather(self.examples, chosen))
        self.at.add_(self.batch)

    def learn(self, inputs: Tensor, targets: Tensor) -> None:
        """One step of every member on its own samples, (members, batch, ...)."""
        trained = {name: weight.detach() for name, weight in self.trained.items()}
        fixed = {name: weight for name, weight in self.weights.items() if name not in trained}
        found = torch.vmap(torch.func.grad(self._one, has_aux=True))(trained, fixed, inputs, targets)
        gradients, (losses, right, activity) = found
        with torch.no_grad():
            self.rule.step_(_owned([*gradients.values()]))
            if self.cbp is not None:
                self.cbp.observe(activity)
            self.loss.add_(losses, alpha=targets.shape[1])
            self.right.add_(right)

    def _one(self, trained: Weights, fixed: Weights, inputs: Tensor, targets: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss of one member; and with it correct answers and, for CBP, the units' activity."""
        outputs = functional_call(self.stack.model, {**trained, **fixed}, (inputs,))
        loss, nothing = self.task.loss(outputs, targets), torch.zeros((), dtype=torch.int64, device=targets.device)
        right = self.task.correct(outputs, targets).sum() if self.task.correct is not None else nothing
        return loss, (loss, right, self.cbp.activity() if self.cbp is not None else nothing)

    def _between(self, seen: int) -> None:
        """What is rare, or for the host to decide, in the order of the methods."""
        if self.cbp is not None:
            self.cbp.replace()
        if self.er is not None:
            self.er.after_step(seen)

    def _finish(self, seen: int) -> None:
        self.rule.finish()
        if self.cbp is not None:
            self.cbp.finish()
        if self.er is not None:
            self.er.finish(seen)
        if seen:
            last = self.orders[:, (seen - 1) // self.batch * self.batch : seen]
            for learner, task, chosen in zip(self.stack.learners, self.tasks, last, strict=True):
                learner.trained_elsewhere(math.ceil(seen / self.batch), Batch(*task.examples.batch(chosen)))


def _owned(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Gradients that can be written to: autograd may hand out one tensor for two, or one number as many."""
    if torch.compiler.is_compiling():  # where copies that are not needed cost nothing
        return [gradient.clone() for gradient in gradients]
    seen: set[int] = set()
    owned: list[Tensor] = []
    for gradient in gradients:
        mine = gradient.is_contiguous() and gradient.data_ptr() not in seen
        seen.add(gradient.data_ptr())
        owned.append(gradient if mine else gradient.clone(memory_format=torch.contiguous_format))
    return owned


def _skeleton(model: nn.Module, linear: Callable[[nn.Linear, Tensor], Tensor]) -> nn.Module:
    """A copy of the model to be called with stacked weights; hooks on the model itself never see those."""
    skeleton = copy.deepcopy(model).train()
    for module in skeleton.modules():
        if type(module) is nn.Linear:
            module.forward = partial(linear, module)  # pyright: ignore[reportAttributeAccessIssue]
    return skeleton


def _linear(layer: nn.Linear, input: Tensor) -> Tensor:
    """As nn.Linear, with the weight on the left: vmapped, its own product makes gradients that lie transposed in memory,
    and adding those to weights costs several times what it should."""
    samples = input.reshape(-1, input.shape[-1])
    outputs = (layer.weight @ samples.mT).mT
    return (outputs if layer.bias is None else outputs + layer.bias).reshape(*input.shape[:-1], -1)


def _linear_of_one(layer: nn.Linear, input: Tensor) -> Tensor:
    """The same for a single sample in the words of a compiler: it makes one kernel of product and sum, and of the gradient,
    which is a product of two numbers at each place, nothing that is ever written to memory."""
    if input.numel() != input.shape[-1]:
        return _linear(layer, input)
    outputs = (layer.weight * input.reshape(1, -1)).sum(1)
    return (outputs if layer.bias is None else outputs + layer.bias).reshape(*input.shape[:-1], -1)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(itertools.chain(model.named_parameters(), model.named_buffers()))


def _stacked_examples(several: Sequence[Examples]) -> Examples:
    """The members' samples as one, with an axis of members in front of all but the images."""
    images = {examples.images.data_ptr(): examples.images for examples in several}
    starts = dict(zip(images, itertools.accumulate(map(len, images.values()), initial=0), strict=False))
    _, height, width, _ = several[0].images.shape
    straight = torch.arange(height * width, device=several[0].index.device)
    shuffled = any(examples.pixels is not None for examples in several)
    return Examples(
        torch.cat([*images.values()]) if len(images) > 1 else several[0].images,
        torch.stack([examples.index + starts[examples.images.data_ptr()] for examples in several]),
        torch.stack([examples.labels for examples in several]),
        shift=torch.stack([examples.shift for examples in several]),
        scale=torch.stack([examples.scale for examples in several]),
        pixels=torch.stack([straight if e.pixels is None else e.pixels for e in several]) if shuffled else None,
    )


def _gather(examples: Examples, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Each member's batch, (members, batch, ...): `Examples.batch` with an axis more."""
    rows = examples.index.gather(1, chosen)
    images = examples.images.index_select(0, rows.flatten())
    if examples.pixels is not None:  # (members, height · width): a pixel's channels move together
        channels = images.shape[-1]
        pixels = examples.pixels.view(len(rows), 1, -1, 1).expand(-1, rows.shape[1], -1, channels)
        images = images.view(*rows.shape, -1, channels).gather(2, pixels)
    images = images.view(*rows.shape, *examples.images.shape[1:]).permute(0, 1, 4, 2, 3)
    return (images - examples.shift.unsqueeze(1)) * examples.scale.unsqueeze(1), examples.labels.gather(1, chosen)


def _check_stackable(model: nn.Module) -> None:
    """Raise for what members cannot do side by side."""
    for name, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None:
            raise TypeError(
                f"{name!r} is a {type(module).__name__}, whose running statistics change as it trains: a stack takes layers "
                "without, such as LayerNorm. Train this model by itself"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p:
            raise TypeError(
                f"{name!r} is a {type(module).__name__}({module.p}), and members of a stack cannot each have their own "
                "random numbers in a step: set its p to 0, or train this model by itself"
            )
    pointers = [parameter.data_ptr() for parameter in model.parameters() if parameter.numel()]
    if len(set(pointers)) < len(pointers):
        raise TypeError("two parameters of the model are the same memory: tie them by being one, as in a.weight = b.weight")


def _check_alike(first: nn.Module, other: nn.Module, number: int) -> None:
    """Raise unless a learner's model is built like the first one's, and is where that is."""
    mine, theirs = (
        {name: (tuple(t.shape), t.dtype, t.device, t.requires_grad) for name, t in _tensors(model).items()}
        for model in (first, other)
    )
    for name in [*mine, *theirs]:
        if mine.get(name) != theirs.get(name):
            here, there = (", ".join(map(str, of[name][:3])) if name in of else "missing" for of in (mine, theirs))
            if here == there:
                here, there = ("trained" if of[name][3] else "frozen" for of in (mine, theirs))
            raise ValueError(
                f"{name!r} is {here} in learner 0 and {there} in learner {number}: stack learners whose models are built "
                "alike, on one device, with the same layers frozen"
            )
    for here, there in zip(repr(first).splitlines(), repr(other).splitlines(), strict=False):
        if here != there:
            raise ValueError(
                f"the model has {here.strip()!r} in learner 0 and {there.strip()!r} in learner {number}: stack learners "
                "whose models are built alike"
            )


def _checked_tasks(tasks: Sequence[object]) -> list[ImageTask]:
    """Image tasks of one size; what they show, and in which order, may differ."""
    known = [task for task in tasks if isinstance(task, ImageTask)]
    if len(known) < len(tasks):
        other = next(task for task in tasks if not isinstance(task, ImageTask))
        raise TypeError(
            f"a member's task is a {type(other).__name__}: a stack learns image tasks, which stack.begin(tasks) begins, or "
            "learner.load_state_dict(saved, task) when resuming"
        )
    sizes = [(task.batch, len(task.examples), tuple(task.examples.images.shape[1:])) for task in known]
    if len(set(sizes)) > 1:
        number = next(number for number, size in enumerate(sizes) if size != sizes[0])
        raise ValueError(
            f"learner 0 has batches of {sizes[0][0]} from {sizes[0][1]} images of {sizes[0][2]}, learner {number} of "
            f"{sizes[number][0]} from {sizes[number][1]} of {sizes[number][2]}: give all members tasks of one size"
        )
    return known


def _check_orders(orders: Tensor, tasks: Sequence[ImageTask]) -> None:
    if orders.ndim != 2 or len(orders) != len(tasks) or not orders.shape[1] or orders.dtype != torch.int64:
        raise ValueError(
            f"orders are {orders.dtype} of shape {tuple(orders.shape)}: give int64 ({len(tasks)} members, samples), as in "
            "torch.stack([task.order(generator) for task in tasks])"
        )
    samples = len(tasks[0].examples)
    if not orders.is_cuda and not 0 <= int(orders.min()) <= int(orders.max()) < samples:  # on a GPU nobody waits to look
        raise ValueError(f"orders go from {int(orders.min())} to {int(orders.max())}, and tasks have {samples} samples")


def _check_all_used(model: nn.Module, weights: Weights, task: ImageTask) -> None:
    """Raise if the loss does not depend on something that is to be trained, as in a layer that is not called."""
    mine = {name: weight[0].detach().requires_grad_(weight.requires_grad) for name, weight in weights.items()}
    inputs, targets = task.examples.batch(torch.arange(1, device=task.examples.index.device))
    loss = task.loss(functional_call(model, mine, (inputs,)), targets)
    trained = {name: weight for name, weight in mine.items() if weight.requires_grad}
    for name, gradient in zip(trained, torch.autograd.grad(loss, [*trained.values()], allow_unused=True), strict=True):
        if gradient is None:
            raise ValueError(f"the loss does not depend on {name!r}: freeze it with requires_grad_(False)")


@torch.no_grad()
def _check_one_loss(model: nn.Module, weights: Weights, tasks: Sequence[ImageTask]) -> None:
    """Raise unless the first task's loss and `correct`, called for all members at once, are what each member's own say."""
    examples = _stacked_examples([task.examples for task in tasks])
    chosen = torch.arange(min(_LOOKED_AT, len(tasks[0].examples)), device=examples.index.device)
    inputs, targets = _gather(examples, chosen.expand(len(tasks), -1))
    outputs = torch.vmap(lambda weights, inputs: functional_call(model, weights, (inputs,)))(weights, inputs)
    outputs.normal_(generator=torch.Generator(outputs.device).manual_seed(0))  # no class is out of the question
    for name in ("loss", "correct"):
        function = getattr(tasks[0], name)
        together = torch.vmap(function)(outputs, targets).double() if function is not None else None
        for number, task in enumerate(tasks):
            mine = getattr(task, name)
            alone = mine(outputs[number], targets[number]).double() if mine is not None else None
            same = alone is together if alone is None or together is None else torch.allclose(together[number], alone, 1e-4)
            if not same:
                raise ValueError(
                    f"the task {task.name!r} of learner {number} has another {name} than {tasks[0].name!r} of learner 0, in "
                    "which other classes count, for example: stack learners whose tasks have the same"
                )
