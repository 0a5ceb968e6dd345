"""What learners and tasks must have in common to be trained as one `Stack`; what cannot be is an error that says why."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...learner import IndexedTask
from .methods import Weights
from .samples import stacked_samples

_LOOKED_AT = 32  # samples on which the tasks' losses are compared


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return dict(itertools.chain(model.named_parameters(), model.named_buffers()))


def check_stackable(model: nn.Module) -> None:
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


def check_alike(first: nn.Module, other: nn.Module, number: int) -> None:
    """Raise unless a learner's model is built like the first one's, and is where that is."""
    mine, theirs = (
        {name: (tuple(t.shape), t.dtype, t.device, t.requires_grad) for name, t in tensors_of(model).items()}
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


def checked_tasks(tasks: Sequence[object]) -> list[IndexedTask]:
    """Indexed tasks of one size; what they show, and in which order, may differ."""
    known = [task for task in tasks if isinstance(task, IndexedTask)]
    if len(known) < len(tasks):
        other = next(task for task in tasks if not isinstance(task, IndexedTask))
        raise TypeError(
            f"a member's task is a {type(other).__name__}: a stack learns indexed tasks, which stack.begin(tasks) begins, "
            "or learner.load_state_dict(saved, task) when resuming"
        )
    sizes = [(task.batch_size, len(task), _shape_of(task)) for task in known]
    if len(set(sizes)) > 1:
        number = next(number for number, size in enumerate(sizes) if size != sizes[0])
        raise ValueError(
            f"learner 0 has batches of {sizes[0][0]} from {sizes[0][1]} samples of {sizes[0][2]}, learner {number} of "
            f"{sizes[number][0]} from {sizes[number][1]} of {sizes[number][2]}: give all members tasks of one size"
        )
    return known


def _shape_of(task: IndexedTask) -> tuple[int, ...]:
    inputs, _ = task.batch(torch.zeros(1, dtype=torch.int64, device=task.samples.device))
    if not isinstance(inputs, Tensor):
        raise TypeError(f"task {task.name!r} has inputs of type {type(inputs).__name__}: a stack learns from single tensors")
    return tuple(inputs.shape[1:])


def check_orders(orders: Tensor, tasks: Sequence[IndexedTask]) -> None:
    """Raise unless there are samples in an order for each member."""
    if orders.ndim != 2 or len(orders) != len(tasks) or not orders.shape[1] or orders.dtype != torch.int64:
        raise ValueError(
            f"orders are {orders.dtype} of shape {tuple(orders.shape)}: give int64 ({len(tasks)} members, samples), as in "
            "torch.stack([task.order(generator) for task in tasks])"
        )
    samples = len(tasks[0])
    if (
        not orders.is_cuda and not 0 <= int(orders.min()) <= int(orders.max()) < samples
    ):  # on a GPU, looking would wait for the device
        raise ValueError(f"orders go from {int(orders.min())} to {int(orders.max())}, and tasks have {samples} samples")


def check_all_used(model: nn.Module, weights: Weights, task: IndexedTask) -> None:
    """Raise if the loss does not depend on something that is to be trained, as in a layer that is not called."""
    mine = {name: weight[0].detach().requires_grad_(weight.requires_grad) for name, weight in weights.items()}
    inputs, targets = task.batch(torch.arange(1, device=task.samples.device))
    loss = task.loss(functional_call(model, mine, (inputs,)), targets)
    trained = {name: weight for name, weight in mine.items() if weight.requires_grad}
    for name, gradient in zip(trained, torch.autograd.grad(loss, [*trained.values()], allow_unused=True), strict=True):
        if gradient is None:
            raise ValueError(f"the loss does not depend on {name!r}: freeze it with requires_grad_(False)")


@torch.no_grad()
def check_one_loss(model: nn.Module, weights: Weights, tasks: Sequence[IndexedTask]) -> None:
    """Raise unless the first task's loss and `correct`, called for all members at once, are what each member's own say."""
    chosen = torch.arange(min(_LOOKED_AT, len(tasks[0])), device=tasks[0].samples.device)
    inputs, targets = stacked_samples([task.samples for task in tasks]).batch(chosen.expand(len(tasks), -1))
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
