"""What a learner was before a boundary or a checkpoint: `Before`."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..units import original
from .checks import optimizers_of
from .fresh import named_tensors

if TYPE_CHECKING:
    from .learner import Learner


class Before:
    """What a learner was before a boundary or a checkpoint, to restore if that fails.

    values: whether to keep a copy of all numbers. Without, tensors must not have been written to.
    """

    def __init__(self, learner: Learner, *, values: bool = True) -> None:
        self.learner, self.random = learner, learner.generator.get_state()
        self.states = [copy.deepcopy(method.state) if values else dict(method.state) for method in learner.methods]
        holders: list[Any] = [vars(learner), *map(vars, learner.methods)]  # dicts, of which the content is kept
        for module in original(learner.model).modules():
            holders += [vars(module), module._modules, module._parameters, module._buffers]
        for optimizer in optimizers_of(learner.optimizer):
            hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
            holders += [vars(optimizer), *hooks, optimizer.state, *optimizer.state.values(), *optimizer.param_groups]
        self.contents = [(held, {k: [*v] if type(v) is list else v for k, v in held.items()}) for held in holders]
        held = (value for _, content in self.contents for value in content.values()) if values else ()
        tensors = {id(value): value for value in held if isinstance(value, Tensor)}
        self.tensors = {key: (tensor, tensor.detach().clone(), tensor.grad) for key, tensor in tensors.items()}
        self.trains = [parameter for parameter in learner.model.parameters() if parameter.requires_grad]

    def differs(self) -> bool:
        """Whether the network has other tensors or other numbers now."""
        now = named_tensors(self.learner.model).values()
        return any(id(t) not in self.tensors or not torch.equal(t, self.tensors[id(t)][1]) for t in now)

    @torch.no_grad()
    def restore_(self) -> None:
        learner = self.learner
        if learner.taps is not None:
            learner.taps.close()
        for held, content in self.contents:
            held.clear()
            held.update(content)
        for method, state in zip(learner.methods, self.states, strict=True):
            method.state = state
        for tensor, value, gradient in self.tensors.values():
            tensor.copy_(value)
            tensor.grad = gradient
        learner.model.requires_grad_(False)
        for parameter in self.trains:
            parameter.requires_grad_(True)
        learner.generator.set_state(self.random)
        learner.model_changed()
