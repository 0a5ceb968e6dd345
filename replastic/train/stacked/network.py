"""`Stack`: many learners of one shape, trained as one batched model.

A small network with small batches leaves a GPU idle: a step is dozens of kernels, each shorter than its launch. Each weight
of all members (runs that differ in seed, method or task) is therefore stacked into one tensor, (members, *shape), and every
kernel works on all members. On CUDA the whole step is recorded as a graph and replayed. Compiled, a step is a few kernels:
the gradient of a single sample is a product of two vectors, which never becomes a matrix.

    gradient <- ∇ loss + λ θ;  gradient <- gradient · min(1, clip/(‖gradient‖ + 1e-6));  θ <- θ - lr · gradient

for each member by itself: its own samples, λ, norm and learning rate. The result is that of training each learner alone, up
to the order of summation. A stack computes all updates itself and cannot call `Learner.backward` and `apply`;
tests/test_stacked.py compares the two.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...learner import Batch, IndexedTask, Learner
from ...methods.cbp import CBP
from ...methods.er import ER
from ...units import original
from ..cuda_graph import WARM_UP, on_stream
from .checks import check_alike, check_all_used, check_one_loss, check_orders, check_stackable, checked_tasks, tensors_of
from .methods import Member, StackedCBP, StackedER, StackedSGD, Weights, acting, check_methods, check_optimizer
from .rank_one import OPTIONS, RankOne
from .samples import marked, of_any_number, stacked_samples

# A gradient is computed twice, for its norm and for the step, and not stored in between, although it reads four tensors.
_INLINE: dict[str, Any] = {"realize_reads_threshold": 16, "realize_opcount_threshold": 100}


class Stack:
    """Learners with models of the same build on one device, trained together by SGD, one epoch of an indexed task at a time.

    Between epochs every learner is as if it had been trained alone: it can be tested, measured, saved and loaded, and
    methods act at boundaries. Only `.grad` is not set. Of methods that act in every step, L2, ER and CBP are supported;
    others raise.

    Put members with the same methods next to one another, so that these methods need not gather their weights.

    clip: the largest norm of each member's gradient, penalties included. None: no limit.
    compiled: whether to compile the step by torch.compile; the first step waits for the compiler.

    >>> from replastic.models import MLP
    >>> from replastic.methods import L2
    >>> models = [MLP(784, [32], 10) for _ in range(3)]
    >>> methods = [[], [], [L2(1e-3)]]
    >>> optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    >>> stack = Stack([Learner(m, o, methods=f) for m, o, f in zip(models, optimizers, methods)], clip=0.5)

    Then call `stack.begin(tasks)` for each round of tasks and `stack.epoch(orders)` for each epoch.
    """

    def __init__(self, learners: Sequence[Learner], *, clip: float | None = None, compiled: bool = False) -> None:
        self.learners = list(learners)
        if not self.learners or len({id(learner) for learner in self.learners}) < len(self.learners):
            raise ValueError(f"Stack of {len(self.learners)} learners: pass one or more, each once")
        if clip is not None and not clip > 0:
            raise ValueError(f"Stack(clip={clip!r}): pass the largest norm of a gradient, above 0, or None")
        self.clip = clip
        self.members = [Member(row, learner) for row, learner in enumerate(self.learners)]
        self.device = self.learners[0].device
        self.model = _skeleton(original(self.learners[0].model))
        self.rank_one = RankOne(self.model) if compiled else None
        self.step: Callable[[_Epoch], None] = _Epoch.step
        self.step_of_rank_one = self.step
        if compiled:
            self.step = _compiled(_Epoch.step, _INLINE, self.device)
            self.step_of_rank_one = _compiled(_Epoch.step, OPTIONS, self.device)
        for learner in self.learners:
            check_methods(learner.methods)
            learner.scheduled = True
        self._check()
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._seen: list[IndexedTask] = []  # tasks that were found to have the same loss

    def begin(self, tasks: Sequence[IndexedTask]) -> None:
        """Begin each member's task. All but the first are boundaries, at which methods act."""
        if len(tasks) != len(self.learners):
            raise ValueError(f"{len(tasks)} tasks for {len(self.learners)} learners: pass one each")
        checked_tasks(tasks)
        for learner, task in zip(self.learners, tasks, strict=True):
            learner.begin(task)

    def epoch(self, orders: Tensor) -> dict[str, Tensor]:
        """Go through each member's samples once, in its order.

        Returns each member's mean loss and, as "online_accuracy", its accuracy on each batch before the step that learns
        from it. Both are (members,) and on the device, so that the host need not wait for them.

        orders: (members, samples): indices of the samples of each member's task, as `task.order(generator)` draws them.
        """
        tasks = checked_tasks([learner.task for learner in self.learners])
        self._check()
        check_orders(orders, tasks)
        for learner in self.learners:
            learner.model.train()
        with self._aside(), self._lent() as weights:
            if [*map(id, tasks)] != [*map(id, self._seen)]:
                check_one_loss(self.model, weights, tasks)
                check_all_used(self.model, weights, tasks[0])
                self._seen = tasks
            return _Epoch(self, weights, tasks, orders.to(self.device)).run()

    def _check(self) -> None:
        """Check everything again, because a method may have changed a model, or the caller an optimiser."""
        check_stackable(original(self.learners[0].model))
        for number, learner in enumerate(self.learners):
            learner.notice_frozen()
            check_alike(original(self.learners[0].model), original(learner.model), number)
            check_optimizer(learner)
        if repr(self.model) != repr(original(self.learners[0].model)):
            raise RuntimeError("the models were changed after the stack was made: make a new Stack of their learners")

    @contextmanager
    def _lent(self) -> Iterator[Weights]:
        """Parameters and buffers of all members, by name, stacked as (members, *shape).

        Inside this context each learner's tensors are rows of the stacked ones, so that a change of the learner changes the
        stack. Afterwards they use their own memory again, because saving a view would save the whole stack.
        """
        members = [tensors_of(original(learner.model)) for learner in self.learners]
        own = [{name: tensor.data for name, tensor in tensors.items()} for tensors in members]
        weights = {name: torch.stack([tensors[name] for tensors in own]) for name in members[0]}
        for name, weight in weights.items():
            for row, tensors in enumerate(members):
                tensors[name].data = weight[row]
            weight.requires_grad_(members[0][name].requires_grad)
        try:
            yield weights
        finally:
            with torch.no_grad():
                for row, tensors in enumerate(members):
                    for name, tensor in tensors.items():
                        tensor.data = own[row][name].copy_(weights[name][row])

    def _aside(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else on_stream(self._stream)


class _Epoch:
    """One pass of all members over their samples. A graph lasts one epoch, with its samples, rates and methods."""

    def __init__(self, stack: Stack, weights: Weights, tasks: Sequence[IndexedTask], orders: Tensor) -> None:
        self.stack, self.weights, self.tasks, self.orders = stack, weights, tasks, orders
        members, device = len(stack.members), stack.device
        self.batch, self.task = tasks[0].batch_size, tasks[0]
        self.samples = stacked_samples([task.samples for task in tasks])
        self.at = torch.zeros(members, 1, dtype=torch.int64, device=device)  # position in the order
        self.within = torch.arange(self.batch, device=device)
        self.loss = torch.zeros(members, dtype=torch.float64, device=device)
        self.right = torch.zeros(members, dtype=torch.float64, device=device)
        self.trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
        self.rule = StackedSGD(stack.members, self.trained, stack.clip)
        if stack.rank_one is not None:
            self.samples, self.orders = of_any_number(self.samples), marked(orders, 1)
        one = stack.rank_one
        self.rank_one = one if one is not None and self.rule.plain and one.applies(weights, tasks[0]) else None
        self.taken = stack.step if self.rank_one is None else stack.step_of_rank_one
        cbp, er = acting(stack.members, CBP), acting(stack.members, ER)
        self.cbp = StackedCBP(stack.model, weights, cbp) if cbp else None
        self.er = StackedER(stack.model, weights, er, tasks, orders) if er else None
        self.graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> dict[str, Tensor]:
        samples, seen = self.orders.shape[1], 0
        try:
            for number in range(samples // self.batch):
                self._replayed(number)
                seen += self.batch
                self._between(seen)
            if seen < samples:  # the smaller last batch
                self.learn(*self.samples.batch(self.orders[:, seen:]))
                seen = samples
                self._between(seen)
        finally:
            self._finish(seen)
        accuracy = {"online_accuracy": self.right / samples} if self.task.correct is not None else {}
        return {"loss": self.loss / samples, **accuracy}

    def _replayed(self, number: int) -> None:
        stream = self.stack._stream
        if stream is not None and number == WARM_UP:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                self.taken(self)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.taken(self)

    def step(self) -> None:
        """A step that reads nothing from the host: it advances its own counter, one for each member."""
        self.learn(*self.samples.batch(self.orders.gather(1, self.at + self.within)))
        self.at.add_(self.batch)

    def learn(self, inputs: Tensor, targets: Tensor) -> None:
        """One step of every member on its own samples, (members, batch, ...)."""
        asked = self.trained if self.rank_one is None else self.rank_one.biases
        fixed = {name: weight.detach() for name, weight in self.weights.items()}
        wanted = {name: fixed.pop(name) for name in asked}
        found = torch.vmap(torch.func.grad(self._one, has_aux=True))(wanted, fixed, inputs, targets)
        gradients, (losses, right, activity, seen) = found
        with torch.no_grad():
            if self.rank_one is None:
                self.rule.step_(_owned([*gradients.values()]))
            else:
                norms = self.rank_one.norms(self.trained, gradients, seen, self.rule.l2)
                self.rule.step_(self.rank_one.gradients(self.trained, gradients, seen), norms)
            if self.cbp is not None:
                self.cbp.observe(activity)
            self.loss.add_(losses, alpha=targets.shape[1])
            self.right.add_(right)

    def _one(self, wanted: Weights, fixed: Weights, inputs: Tensor, targets: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """One member's loss, number of correct answers, unit activity for CBP, and layer inputs for `RankOne`."""
        if self.rank_one is not None:
            self.rank_one.listen()
        outputs = functional_call(self.stack.model, {**wanted, **fixed}, (inputs,))
        loss, nothing = self.task.loss(outputs, targets), torch.zeros((), dtype=torch.int64, device=targets.device)
        right = self.task.correct(outputs, targets).sum() if self.task.correct is not None else nothing
        activity = self.cbp.activity() if self.cbp is not None else nothing
        return loss, (loss, right, activity, self.rank_one.heard() if self.rank_one is not None else {})

    def _between(self, seen: int) -> None:
        """Updates that are rare or that the host decides on, in the order of the methods."""
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
                learner.end_steps(math.ceil(seen / self.batch), Batch(*task.batch(chosen)))


def _owned(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Gradients that can be written to: autograd may return one tensor for two weights, or an expanded one."""
    if torch.compiler.is_compiling():  # the compiler removes copies that are not needed
        return [gradient.clone() for gradient in gradients]
    seen: set[int] = set()
    owned: list[Tensor] = []
    for gradient in gradients:
        mine = gradient.is_contiguous() and gradient.data_ptr() not in seen
        seen.add(gradient.data_ptr())
        owned.append(gradient if mine else gradient.clone(memory_format=torch.contiguous_format))
    return owned


def _compiled(step: Callable[[_Epoch], None], options: dict[str, Any], device: torch.device) -> Callable[[_Epoch], None]:
    """Compile a copy of the function for each stack, because torch.compile gives up on one that it compiled eight times."""
    own = FunctionType(step.__code__.replace(), step.__globals__)
    if device.type == "cpu" and torch.__version__ < "2.13":
        # Kernels that torch 2.11 fuses for a CPU may read a weight after its update. CUDA is not affected.
        options = {**options, "max_fusion_size": 1}
    return torch.compile(own, dynamic=False, fullgraph=True, options=options)


def _skeleton(model: nn.Module) -> nn.Module:
    """A copy of the model, to be called with stacked weights, so that hooks on the model itself do not see them."""
    skeleton = copy.deepcopy(model).train()
    for module in skeleton.modules():
        if type(module) is nn.Linear:
            module.forward = partial(_linear, module)  # pyright: ignore[reportAttributeAccessIssue]
    return skeleton


def _linear(layer: nn.Linear, input: Tensor) -> Tensor:
    """nn.Linear with the weight on the left: under vmap the usual product makes gradients that are transposed in memory,
    and adding those to weights is several times slower."""
    samples = input.reshape(-1, input.shape[-1])
    outputs = (layer.weight @ samples.mT).mT
    return (outputs if layer.bias is None else outputs + layer.bias).reshape(*input.shape[:-1], -1)
