"""Checks that learners and tasks can be trained as one `Stack`, with errors that name the difference."""

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
    """Raise for layers that a stack does not support."""
    for name, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None:
            raise TypeError(
                f"{name!r} is a {type(module).__name__}, whose running statistics change in training, which stacks do not "
                "support: use a layer such as LayerNorm, or train this model on its own"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p:
            raise TypeError(
                f"{name!r} is a {type(module).__name__}({module.p}), but members of a stack cannot have their own random "
                "numbers in a step: set p to 0, or train this model on its own"
            )
    pointers = [parameter.data_ptr() for parameter in model.parameters() if parameter.numel()]
    if len(set(pointers)) < len(pointers):
        raise TypeError("two parameters of the model share memory: tie them as one parameter, as in a.weight = b.weight")


def check_alike(first: nn.Module, other: nn.Module, number: int) -> None:
    """Raise unless a learner's model has the structure of the first one's, and is on the same device."""
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
                f"{name!r} is {here} in learner 0 and {there} in learner {number}: stack learners whose models have one "
                "structure, device and frozen layers"
            )
    for here, there in zip(repr(first).splitlines(), repr(other).splitlines(), strict=False):
        if here != there:
            raise ValueError(
                f"the model has {here.strip()!r} in learner 0 and {there.strip()!r} in learner {number}: stack learners "
                "whose models have the same structure"
            )


def checked_tasks(tasks: Sequence[object]) -> list[IndexedTask]:
    """Raise unless these are indexed tasks of one size; their samples may differ."""
    known = [task for task in tasks if isinstance(task, IndexedTask)]
    if len(known) < len(tasks):
        other = next(task for task in tasks if not isinstance(task, IndexedTask))
        raise TypeError(
            f"a member's task is a {type(other).__name__}, not an IndexedTask: begin indexed tasks with stack.begin(tasks), "
            "or resume with learner.load_state_dict(saved, task)"
        )
    sizes = [(task.batch_size, len(task), _shape_of(task)) for task in known]
    if len(set(sizes)) > 1:
        number = next(number for number, size in enumerate(sizes) if size != sizes[0])
        raise ValueError(
            f"learner 0 has batches of {sizes[0][0]} from {sizes[0][1]} samples of {sizes[0][2]}, learner {number} of "
            f"{sizes[number][0]} from {sizes[number][1]} of {sizes[number][2]}: pass tasks of one size"
        )
    return known


def _shape_of(task: IndexedTask) -> tuple[int, ...]:
    inputs, _ = task.batch(torch.zeros(1, dtype=torch.int64, device=task.samples.device))
    if not isinstance(inputs, Tensor):
        raise TypeError(f"task {task.name!r} has inputs of type {type(inputs).__name__}: a stack needs one tensor")
    return tuple(inputs.shape[1:])


def check_orders(orders: Tensor, tasks: Sequence[IndexedTask]) -> None:
    """Raise unless there is an order of samples for each member."""
    if orders.ndim != 2 or len(orders) != len(tasks) or not orders.shape[1] or orders.dtype != torch.int64:
        raise ValueError(
            f"orders are {orders.dtype} of shape {tuple(orders.shape)}: pass int64 ({len(tasks)} members, samples), as in "
            "torch.stack([task.order(generator) for task in tasks])"
        )
    samples = len(tasks[0])
    # Not on a GPU, where the check would wait for the device.
    if not orders.is_cuda and not 0 <= int(orders.min()) <= int(orders.max()) < samples:
        raise ValueError(f"orders go from {int(orders.min())} to {int(orders.max())}, but tasks have {samples} samples")


def check_all_used(model: nn.Module, weights: Weights, task: IndexedTask) -> None:
    """Raise if the loss does not depend on a parameter that trains, for example of a layer that is not called."""
    mine = {name: weight[0].detach().requires_grad_(weight.requires_grad) for name, weight in weights.items()}
    inputs, targets = task.batch(torch.arange(1, device=task.samples.device))
    loss = task.loss(functional_call(model, mine, (inputs,)), targets)
    trained = {name: weight for name, weight in mine.items() if weight.requires_grad}
    for name, gradient in zip(trained, torch.autograd.grad(loss, [*trained.values()], allow_unused=True), strict=True):
        if gradient is None:
            raise ValueError(f"the loss does not depend on {name!r}: freeze it with requires_grad_(False)")


@torch.no_grad()
def check_one_loss(model: nn.Module, weights: Weights, tasks: Sequence[IndexedTask]) -> None:
    """Raise unless the first task's loss and `correct`, vectorised over members, equal those of each member's own task."""
    chosen = torch.arange(min(_LOOKED_AT, len(tasks[0])), device=tasks[0].samples.device)
    inputs, targets = stacked_samples([task.samples for task in tasks]).batch(chosen.expand(len(tasks), -1))
    outputs = torch.vmap(lambda weights, inputs: functional_call(model, weights, (inputs,)))(weights, inputs)
    outputs.normal_(generator=torch.Generator(outputs.device).manual_seed(0))  # so that every class may have the largest
    for name in ("loss", "correct"):
        function = getattr(tasks[0], name)
        together = torch.vmap(function)(outputs, targets).double() if function is not None else None
        for number, task in enumerate(tasks):
            mine = getattr(task, name)
            alone = mine(outputs[number], targets[number]).double() if mine is not None else None
            same = alone is together if alone is None or together is None else torch.allclose(together[number], alone, 1e-4)
            if not same:
                raise ValueError(
                    f"the task {task.name!r} of learner {number} has another {name} than {tasks[0].name!r} of learner 0, "
                    "for example of other classes: stack learners whose tasks have the same"
                )
