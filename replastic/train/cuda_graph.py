"""Training steps as a CUDA graph: a step is recorded once and replayed, so that no kernel waits for Python.

A replay reads nothing from the host: the order of an epoch's samples is in a tensor, and the graph itself advances a counter
into it. Updates that a graph cannot contain run between replays: an optimiser whose step needs the host, a method with
`Method.capturable` False, and all updates after them. A graph is of one task and one optimiser; after a boundary, where
methods may have replaced modules, it is recorded again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..learner import Batch, IndexedTask, Learner, Method, Task
from ..learner.checks import optimizers_of
from ..learner.task import outputs_of
from ..units import original
from .passes import Passes
from .settings import Training
from .step import Answer, EagerSteps, answer_of

_PIECE = 2  # steps between two runs' turns: few, because kernels of two runs overlap best if both have some queued
WARM_UP = 3  # real steps before a graph is recorded: libraries choose their kernels, optimisers make their state


class CompiledSteps(EagerSteps):
    """Eager steps of the model compiled by torch.compile, for devices without graphs.

    A loss that is a function of a module is compiled with the model, unless outputs are counted as well. A language model
    then has no copy of its logits in float32, the largest tensor of a step. Other losses may differ from task to task, and
    each would be compiled again.
    """

    path = "compiled"
    _compiled: Callable[..., Any] | None = None
    _with_loss: Callable[..., Tensor] | None = None

    def forward(self) -> Callable[..., Any]:
        """The compiled model, or the model itself while it has a tap, whose hooks would be compiled in."""
        if self.learner.taps is not None:
            return self.learner.model
        if self._compiled is None:
            self._compiled = torch.compile(original(self.learner.model), dynamic=False)
        return self._compiled

    def answer(self, task: Task, batch: Batch) -> tuple[Tensor, Any]:
        if self.learner.taps is not None or task.correct is not None or not _of_module(task.loss):
            return answer_of(self.forward(), task, batch)
        if self._with_loss is None:
            self._with_loss = torch.compile(_loss_of, dynamic=False)
        return self._with_loss(original(self.learner.model), task.loss, *batch), None


def _of_module(function: Callable[..., Any]) -> bool:
    """Whether a function is defined in a module, rather than by other code that may define another one in each task."""
    return isinstance(function, FunctionType) and "<" not in function.__qualname__


def _loss_of(model: nn.Module, loss: Callable[[Any, Any], Tensor], inputs: Any, targets: Any) -> Tensor:
    return loss(outputs_of(model, inputs), targets)


class CapturedSteps(EagerSteps):
    """Steps of indexed tasks, replayed on CUDA; `compiled`: of the model compiled by torch.compile.

    The smaller last batch of an epoch has a graph of its own, of the model that is not compiled: one step per epoch does not
    justify compiling. Other tasks run eagerly.
    """

    def __init__(self, learner: Learner, training: Training, *, compiled: bool) -> None:
        super().__init__(learner, training)
        self.compiler = CompiledSteps(learner, training) if compiled else None
        self.stream = torch.cuda.Stream(learner.device)
        self._recorded: _Recording | None = None
        self._rest: _Recording | None = None  # of an epoch's smaller last batch
        self._warm = 0

    @property
    def path(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How the last steps were run."""
        recorded, compiled = self._recorded, self.forward() is not self.learner.model
        return "eager" if recorded is None else f"{'compiled ' if compiled else ''}graph, {recorded.holds}"

    def forward(self) -> Callable[..., Any]:
        """The model, or the compiled model."""
        return self.compiler.forward() if self.compiler is not None else self.learner.model

    def recorded(self, task: Task, batch: Batch) -> tuple[Tensor, Any]:
        """`answer`, as it is recorded: of the compiled model, if there is one."""
        return (self.answer if self.compiler is None else self.compiler.answer)(task, batch)

    def pieces(self, task: Task, generator: torch.Generator) -> Iterator[dict[str, Tensor] | None]:
        return self._replayed(task, [task.order(generator)]) if self._records(task) else super().pieces(task, generator)

    def stretch(self, task: Task, passes: Passes, steps: int) -> Iterator[dict[str, Tensor] | None]:
        return self._replayed(task, passes.orders(steps)) if self._records(task) else super().stretch(task, passes, steps)

    def _records(self, task: Task) -> TypeGuard[IndexedTask]:
        if isinstance(task, IndexedTask) and all(map(_fits, self.learner.acting("penalty"))):
            return True
        self._recorded = self._rest = None
        return False

    def _replayed(self, task: IndexedTask, orders: Iterable[Tensor]) -> Iterator[dict[str, Tensor] | None]:
        """Steps on samples in these orders. Each but the last ends with a pass, whose last batch may be smaller."""
        learner, samples = self.learner, 0
        learner.model.train()
        with self._at_work():
            recording = self._recording_of(task)
            self.totals.clear()
            self.next_rate("epoch")
        for numbers in orders:
            whole, rest = divmod(len(numbers), task.batch_size)
            samples += len(numbers)
            with self._at_work():
                order = numbers.pin_memory().to(learner.device, non_blocking=True)
                recording.begin(order)
            for start in range(0, whole, _PIECE):
                with self._at_work():
                    for _ in range(start, min(start + _PIECE, whole)):
                        self._one(recording)
                yield None
            if rest:
                with self._at_work():
                    if self._rest is None:
                        self._rest = _Recording(self, task, rest, self.answer)
                    self._rest.begin(order[-rest:])
                    self._one(self._rest)
        with self._at_work():
            means = self.totals.means(samples, task.correct is not None)
        yield means

    def evaluate(self, task: Task, network: nn.Module) -> Mapping[str, float | Tensor]:
        if self._recorded is None or not self._recorded.is_of(task, self.learner) or network is not self.learner.model:
            return super().evaluate(task, network)
        with self._at_work():
            return self._recorded.evaluate(lambda: super(CapturedSteps, self).evaluate(task, network))

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._aside(), self.training.arithmetic(self.learner.device):
            yield

    def _aside(self) -> AbstractContextManager[Any]:
        """Switch to a stream other than the default one, on which a graph cannot be recorded."""
        current = torch.cuda.current_stream(self.learner.device)
        if current != torch.cuda.default_stream(self.learner.device):
            return torch.cuda.stream(current)
        return on_stream(self.stream)

    def _recording_of(self, task: IndexedTask) -> _Recording:
        self.learner.notice_frozen()
        known = self._recorded
        if known is None or not known.is_of(task, self.learner):
            self._recorded = self._rest = None  # first, to free their memory
            self._recorded = _Recording(self, task, task.batch_size, self.recorded)
            # A boundary may have added parameters for which the optimiser has no state yet. If a graph made the state, every
            # replay would make it again.
            self._warm = min(self._warm, WARM_UP - 1)
        assert self._recorded is not None
        return self._recorded

    def _one(self, recording: _Recording) -> None:
        self.learner.notice_frozen()
        if recording.trains != self.learner.trains:
            raise RuntimeError(
                "a layer was frozen or unfrozen during an epoch, but the recorded CUDA graph still trains the previous set "
                "of layers: do so between epochs, or train with path='eager'"
            )
        self.next_rate("step")  # into the tensors that the graph reads rates from
        if self._warm < WARM_UP or not recording.tried:
            self._warm += 1
            recording.run()
        elif recording.graph is None:
            recording.record()
        if recording.graph is not None:
            recording.replay()
        self._between(recording)

    def _between(self, recording: _Recording) -> None:
        """Make the updates that the graph does not contain, and end the step."""
        self.learner.batch = recording.batch
        self.learner.update(recording.eager)
        self.learner.end_steps()


class _Recording:
    """The graph of a step on a batch of one size, and the tensors that it reads."""

    def __init__(self, steps: CapturedSteps, task: IndexedTask, batch: int, answer: Answer) -> None:
        learner, device = steps.learner, steps.learner.device
        self.steps, self.task, self.optimizer, self.answer = steps, task, learner.optimizer, answer
        self.trains, self.task_number = learner.trains, learner.task_number
        self.order = torch.empty(len(task), dtype=torch.int64, device=device)
        self.at = torch.zeros((), dtype=torch.int64, device=device)
        self.within = torch.arange(batch, device=device)
        self.tried = False  # a first step without a graph lets libraries choose their kernels for this batch size
        updates = learner.updates()
        self.captured = list(itertools.takewhile(_fits, updates))
        self.eager = updates[len(self.captured) :]  # made between replays
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batch: Batch | None = None
        self._seen: dict[str, Tensor] = {}
        self._gradients: list[Tensor | None] = []
        self._tested = False
        self._tests: torch.cuda.CUDAGraph | None = None
        self._figures: dict[str, Tensor] = {}

    def is_of(self, task: Task, learner: Learner) -> bool:
        """Whether the recorded step is still valid: same task and optimiser, same layers frozen, no boundary in between.

        A boundary counts even if the same task is begun again, because methods start and replace modules there.
        """
        begun = self.task is task and self.task_number == learner.task_number
        return begun and self.optimizer is learner.optimizer and self.trains == learner.trains

    @property
    def holds(self) -> str:
        """Which part of a step is in the graph."""
        if not self.captured:
            return "gradients"
        return "whole step" if not self.eager else "all but " + ", ".join(type(method).__name__ for method in self.eager)

    def begin(self, order: Tensor) -> None:
        """Go through the samples in this order, from the next step."""
        self.order[: len(order)].copy_(order)
        self.at.zero_()

    def run(self) -> None:
        """One step, without the updates that are left to the host."""
        steps, learner, size = self.steps, self.steps.learner, len(self.within)
        self.tried = True
        chosen = self.order.index_select(0, self.within + self.at * size)
        self.batch = Batch(*self.task.batch(chosen))
        loss, right = steps.gradients(self.task, self.batch, self.answer)
        learner.update(self.captured)
        steps.totals.add(loss, right, size)
        self.at.add_(1)

    def record(self) -> None:
        learner = self.steps.learner
        learner.optimizer.zero_grad(set_to_none=True)  # so that the graph allocates gradients in its own memory
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream(learner.device)):
            self.run()
        self._seen = dict(learner.taps.inputs) if learner.taps is not None else {}
        self._gradients = [parameter.grad for parameter in learner.trained()]

    def replay(self) -> None:
        """Run the graph and show its gradients and activations, which are in the same memory at every replay."""
        assert self.graph is not None
        learner = self.steps.learner
        self.graph.replay()
        if self.eager:  # a step on a batch of another size has replaced .grad
            for parameter, gradient in zip(learner.trained(), self._gradients, strict=True):
                parameter.grad = gradient
        if learner.taps is not None:
            learner.taps.inputs.update(self._seen)

    def evaluate(self, figures_of: Callable[[], Mapping[str, Any]]) -> dict[str, Tensor]:
        """Evaluate the model in a graph of its own; returns copies, because the next replay overwrites the figures."""
        if not self._tested:  # libraries choose their kernels for these batches, which they cannot do while recording
            self._tested = True
            return dict(figures_of())
        if self._tests is None:
            self._tests = torch.cuda.CUDAGraph()
            # A step needs none of its activations afterwards, so that evaluation can use their memory. The next step then
            # overwrites the figures, of which copies are returned.
            pool = None if self.graph is None else self.graph.pool()
            stream = torch.cuda.current_stream(self.steps.learner.device)
            with torch.cuda.graph(self._tests, pool=pool, stream=stream):
                self._figures = dict(figures_of())
        self._tests.replay()
        return {name: figure.clone() for name, figure in self._figures.items()}


def capturable(optimizer: Optimizer) -> bool:
    """Whether an optimiser's step can be part of a graph: its rates and counters are on the device."""
    return all(
        isinstance(group["lr"], Tensor)
        and (group.get("capturable") or (isinstance(one, torch.optim.SGD) and group["fused"]))
        for one in optimizers_of(optimizer)
        for group in one.param_groups
    )


def _fits(update: Optimizer | Method) -> bool:
    return update.capturable if isinstance(update, Method) else capturable(update)


@contextmanager
def on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Work on another stream, in order with work on the current one before and after."""
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        current.wait_stream(stream)
