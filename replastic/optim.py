"""Optimiser state: clear the entries of weights that were reset, and only those; treat several optimisers as one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

# State that starts at zero and has one entry for each weight, in torch's optimisers and most others.
_ZERO_AT_START = {
    "momentum_buffer",  # SGD, Muon, RMSprop
    "exp_avg",  # Adam and its kin
    "exp_avg_sq",
    "max_exp_avg_sq",
    "exp_inf",  # Adamax
    "square_avg",  # RMSprop, Adadelta
    "acc_delta",
    "grad_avg",
    "sum",  # Adagrad, unless it has an initial accumulator
    "row_var",  # Adafactor
    "col_var",
    "variance",
    "exp_avg_sq_row",  # Hugging Face's Adafactor
    "exp_avg_sq_col",
}
# State of a whole parameter, and its initial value.
_COUNTERS = {"step": 0, "mu_product": 1, "RMS": 0}  # NAdam; Hugging Face's Adafactor


@torch.no_grad()
def clear_state_(optimizer: Optimizer, param: Tensor, index: Any = None) -> None:
    """Clear the optimiser's state of `param`, or of the entries `param[index]`, in place.

    Momenta and second moments become zero. With index=None the step count becomes zero, too, so that the parameter trains
    as if it were new to the optimiser. With an index the step count stays, because all entries of a tensor share it. Adam
    then no longer corrects its bias, and the first update of a cleared entry is at most (1-b1)/sqrt(1-b2) ≈ 3.2 rates.
    Tensors keep their storage, so captured CUDA graphs and fused kernels stay valid. The exception is SGD with dampening,
    whose buffer is removed: SGD recognises the first gradient, which it does not dampen, by the missing buffer. A
    parameter that has not been stepped has no state, so nothing is cleared.

    index: anything that indexes `param`: a row, a slice, a tensor of indices, a mask of its shape.

    >>> weight = torch.nn.Parameter(torch.ones(3, 2))
    >>> optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    >>> weight.sum().backward(); optimizer.step()
    >>> clear_state_(optimizer, weight, index=1)
    >>> optimizer.state[weight]["momentum_buffer"]
    tensor([[1., 1.],
            [0., 0.],
            [1., 1.]])
    """
    check_clearable(optimizer, param, index)
    group = _group_of(optimizer, param)
    state = optimizer.state.get(param, {})
    for key, value in state.items():
        if value is None:
            continue
        if key in _COUNTERS:
            if index is None:
                start = _COUNTERS[key]
                state[key] = value.fill_(start) if isinstance(value, Tensor) else start
        elif index is not None:
            value[index.to(value.device) if isinstance(index, Tensor) else index] = 0
        elif key == "momentum_buffer" and group.get("dampening"):
            state[key] = None
        else:
            value.zero_()


def check_clearable(optimizer: Optimizer, param: Tensor, index: Any = None) -> None:
    """Raise unless `clear_state_` with these arguments would succeed. Nothing is changed."""
    why, instead = _obstacle(optimizer, param, index) or ("", "")
    if why:
        raise TypeError(f"{why}: {instead}")


def _obstacle(optimizer: Optimizer, param: Tensor, index: Any) -> tuple[str, str] | None:
    """Why the present state of a parameter cannot be cleared, and what to do instead."""
    if isinstance(optimizer, Together):
        optimizer = optimizer.trainer_of(param)
    name = type(optimizer).__name__
    for attribute in ("optim", "optimizer", "base_optimizer"):
        inner = getattr(optimizer, attribute, None)
        if isinstance(inner, Optimizer) and inner.state is not optimizer.state:
            return f"{name} keeps its state in another optimiser", f"pass that, as in optimizer.{attribute}"
    if isinstance(optimizer, torch.optim.LBFGS):
        return "LBFGS keeps the state of all parameters in one vector", "create a new optimiser"
    _group_of(optimizer, param)
    for key, value in optimizer.state.get(param, {}).items():
        if key in _COUNTERS or value is None:
            continue
        starts_elsewhere = key == "sum" and optimizer.defaults.get("initial_accumulator_value")
        if key not in _ZERO_AT_START or starts_elsewhere:
            advice = "create a new optimiser, or del optimizer.state[param] if the optimiser then creates it again"
            return f"{name} keeps {key!r}, whose initial value is not known", advice
        kind = type(value).__name__
        if kind not in ("Tensor", "Parameter", "DTensor"):
            return f"{name}'s {key!r} is a {kind}, not a plain tensor", "create a new optimiser"
        if index is not None and (kind == "DTensor" or value.shape != param.shape):
            shapes = f"of shape {tuple(value.shape)} for weights of shape {tuple(param.shape)}"
            advice = "clear the whole parameter with index=None"
            return f"{name}'s {key!r} is a {kind} {shapes}, whose single entries cannot be cleared", advice
    return None


def check_will_clear(optimizer: Optimizer, entries: Iterable[tuple[Tensor, Any]], who: str, instead: str = "") -> None:
    """Raise if `clear_state_` of these (parameter, index) will fail once the optimiser has stepped. The error names `who`.

    If a parameter has no state yet, the check steps a small parameter with an optimiser of the same class and settings. An
    optimiser that cannot be constructed this way is assumed to be clearable.
    """
    tried: set[tuple[int, int, bool]] = set()
    for param, index in entries:
        problem = _obstacle(optimizer, param, index)
        group = _group_of(optimizer, param)
        known = (id(group), param.ndim, index is None)
        if problem is None and not optimizer.state.get(param) and known not in tried:
            tried.add(known)
            problem = _obstacle_of_a_like(optimizer, param, group, index)
        if problem is not None:
            raise TypeError(
                f"{who} clears the optimiser's state of the weights that it changes, and {problem[0]}: train with "
                f"torch.optim.SGD, Adam or AdamW{instead}"
            )


def _obstacle_of_a_like(optimizer: Optimizer, param: Tensor, group: dict[str, Any], index: Any) -> tuple[str, str] | None:
    kind = type(optimizer.trainer_of(param) if isinstance(optimizer, Together) else optimizer)
    small = torch.ones((2,) * param.ndim, dtype=param.dtype, device=param.device, requires_grad=True)
    small.grad = torch.ones_like(small)
    try:
        settings = {key: group[key] for key in inspect.signature(kind).parameters if key in group and key != "params"}
        with torch.random.fork_rng([]):
            like = kind([small], **settings)
            with _no_global_hooks():
                like.step()
    except Exception:  # the constructor and step of a user's optimiser may need anything
        return None
    return _obstacle(like, small, None if index is None else ...)


@contextmanager
def _no_global_hooks() -> Iterator[None]:
    """Hide steps from the hooks that torch calls for every optimiser, for example counters of steps."""
    both: Any = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
    before = [dict(hooks) for hooks in both]
    for hooks in both:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, known in zip(both, before, strict=True):
            hooks.update(known)


def entry_state(optimizer: Optimizer, param: Tensor) -> list[Tensor]:
    """The state tensors that have one number for each entry of `param`; [] if the optimiser does not train `param`."""
    if not holds(optimizer, param):
        return []
    check_clearable(optimizer, param, index=...)
    state = optimizer.state.get(param, {})
    return [value for key, value in state.items() if key not in _COUNTERS and isinstance(value, Tensor)]


def holds(optimizer: Optimizer, param: Tensor) -> bool:
    """Whether the optimiser trains this parameter."""
    return any(held is param for group in optimizer.param_groups for held in group["params"])


def _group_of(optimizer: Optimizer, param: Tensor) -> dict[str, Any]:
    for group in optimizer.param_groups:
        for held in group["params"]:
            if held is param:
                return group
    raise ValueError(
        f"the optimiser does not hold this parameter of shape {tuple(param.shape)}: pass the optimiser that trains it"
    )


def swap_(optimizer: Optimizer, old: Tensor, new: Tensor) -> None:
    """Let the optimiser train `new` instead of `old`. The state of `old` is dropped."""
    group = _group_of(optimizer, old)
    params, known = group["params"], optimizer.state.pop(old, {})
    params[next(index for index, param in enumerate(params) if param is old)] = new
    if group.get("fused") and known.get("momentum_buffer") is not None:
        # Fused SGD needs buffers for all parameters or for none; a buffer of zeros has the same effect as none.
        optimizer.state[new]["momentum_buffer"] = torch.zeros_like(new)


class Together(Optimizer):
    """Several optimisers that can be used as one: merged groups, merged state, one `state_dict`.

    The parameter groups are the optimisers' own, so a scheduler that sets a learning rate here sets it in the optimiser.

    >>> body, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
    >>> both = Together([torch.optim.SGD(body.parameters(), lr=0.1), torch.optim.Adam(head.parameters())])
    >>> [group["lr"] for group in both.param_groups]
    [0.1, 0.001]
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        nested = [one.optimizers if isinstance(one, Together) else [one] for one in optimizers]
        self.optimizers = [optimizer for several in nested for optimizer in several]
        held = [param for group in self.param_groups for param in group["params"]]
        if len(set(map(id, held))) < len(held):
            raise ValueError("two of the optimisers hold the same parameter: pass each parameter to only one of them")
        super().__init__(self.param_groups, {})
        self.state = _MergedState(self)  # type: ignore[assignment]
        self.defaults = {key: value for optimizer in self.optimizers for key, value in optimizer.defaults.items()}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The groups of all optimisers, read at each access: an optimiser that loads a state dict replaces its groups."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Do nothing: torch's constructor sets an empty list, which add_param_group would fill."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if all(param_group is not group for group in self.param_groups):
            raise TypeError("which of the optimisers trains this group? Call add_param_group of one in .optimizers")

    def trainer_of(self, param: Tensor) -> Optimizer:
        """The optimiser that trains this parameter."""
        for optimizer in self.optimizers:
            if holds(optimizer, param):
                return optimizer
        raise ValueError(
            f"none of the optimisers holds this parameter of shape {tuple(param.shape)}: add the optimiser that trains it"
        )

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # type: ignore[override]
        saved = state_dict.get("optimizers", [state_dict])
        if len(saved) != len(self.optimizers):
            raise ValueError(
                f"the checkpoint has {len(saved)} optimisers, not {len(self.optimizers)} as here: create the same ones"
            )
        for number, (optimizer, state) in enumerate(zip(self.optimizers, saved, strict=True)):  # check all, then load
            theirs, mine = ([len(g["params"]) for g in groups] for groups in (state["param_groups"], optimizer.param_groups))
            if theirs != mine:
                name = type(optimizer).__name__
                raise ValueError(f"optimiser {number} ({name}) has groups of {mine} parameters, the checkpoint of {theirs}")
        for optimizer, state in zip(self.optimizers, saved, strict=True):
            optimizer.load_state_dict(state)


def as_list(optimizer: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
    """The argument `optimizer` (None, one optimiser, or several) as a list."""
    several = [] if optimizer is None else list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    for one in several:
        if not hasattr(one, "param_groups"):
            got = f"the class {one.__name__}" if isinstance(one, type) else type(one).__name__
            raise TypeError(f"optimizer must be a torch.optim.Optimizer or a list of them, got {got}: pass the one in use")
    return several


def as_one(optimizer: Optimizer | Sequence[Optimizer]) -> Optimizer:
    """The optimiser itself, or several optimisers as a `Together`."""
    several = as_list(optimizer)
    if not several:
        raise ValueError("optimizer=[] is empty: pass the optimiser that trains the model")
    return several[0] if len(several) == 1 else Together(several)


class _MergedState(MutableMapping[Tensor, Any]):
    """The states of several optimisers, by parameter: each entry is that of the optimiser that trains the parameter."""

    def __init__(self, together: Together) -> None:
        self.together = together

    def _of(self, param: Tensor) -> Any:
        return self.together.trainer_of(param).state

    def get(self, param: Tensor, default: Any = None) -> Any:  # type: ignore[override]
        return self._of(param).get(param, default)  # [] would make an entry, as torch's state is a defaultdict

    def __getitem__(self, param: Tensor) -> Any:
        return self._of(param)[param]

    def __setitem__(self, param: Tensor, value: Any) -> None:
        self._of(param)[param] = value

    def __delitem__(self, param: Tensor) -> None:
        del self._of(param)[param]

    def __contains__(self, param: object) -> bool:
        return any(param in optimizer.state for optimizer in self.together.optimizers)

    def __iter__(self) -> Iterator[Tensor]:
        return (param for optimizer in self.together.optimizers for param in optimizer.state)

    def __len__(self) -> int:
        return sum(len(optimizer.state) for optimizer in self.together.optimizers)
