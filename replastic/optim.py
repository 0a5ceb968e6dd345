"""Surgery on optimisers: whoever resets weights clears exactly those entries, and nothing else; several look like one."""

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
    "sum",  # Adagrad, unless it was given an initial accumulator
    "row_var",  # Adafactor
    "col_var",
    "variance",
    "exp_avg_sq_row",  # Hugging Face's Adafactor
    "exp_avg_sq_col",
}
# State of the parameter as a whole, and what it starts from.
_COUNTERS = {"step": 0, "mu_product": 1, "RMS": 0}  # NAdam; Hugging Face's Adafactor


@torch.no_grad()
def clear_state_(optimizer: Optimizer, param: Tensor, index: Any = None) -> None:
    """Forget what the optimiser remembers of `param`, or of the entries `param[index]`, in place.

    Momenta and second moments go to zero, and with index=None the step count too: the parameter then trains on as if the
    optimiser had never seen it. With an index the step count stays, because a tensor's entries share it: Adam's bias
    correction is then spent, and the first update of a cleared entry is up to (1-b1)/sqrt(1-b2) ≈ 3.2 learning rates.
    Tensors keep their storage, so captured CUDA graphs and fused kernels stay valid; only SGD with dampening loses its
    buffer, because it tells the first gradient, which it does not dampen, by there being none. A parameter that has not
    been stepped has no state, and nothing happens.

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
    """Raise unless `clear_state_` with these arguments will succeed; changes nothing."""
    why, instead = _obstacle(optimizer, param, index) or ("", "")
    if why:
        raise TypeError(f"{why}: {instead}")


def _obstacle(optimizer: Optimizer, param: Tensor, index: Any) -> tuple[str, str] | None:
    """Why what is known of a parameter now cannot be cleared, and what to do instead."""
    if isinstance(optimizer, Together):
        optimizer = optimizer.trainer_of(param)
    name = type(optimizer).__name__
    for attribute in ("optim", "optimizer", "base_optimizer"):
        inner = getattr(optimizer, attribute, None)
        if isinstance(inner, Optimizer) and inner.state is not optimizer.state:
            return f"{name} keeps its state in another optimiser", f"pass that, as in optimizer.{attribute}"
    if isinstance(optimizer, torch.optim.LBFGS):
        return "LBFGS remembers all parameters as one vector", "create a new optimiser instead"
    _group_of(optimizer, param)
    for key, value in optimizer.state.get(param, {}).items():
        if key in _COUNTERS or value is None:
            continue
        starts_elsewhere = key == "sum" and optimizer.defaults.get("initial_accumulator_value")
        if key not in _ZERO_AT_START or starts_elsewhere:
            advice = "create a new optimiser instead, or del optimizer.state[param] if it makes state when it is missing"
            return f"{name} keeps {key!r}, and how that starts is not known", advice
        kind = type(value).__name__
        if kind not in ("Tensor", "Parameter", "DTensor"):
            return f"{name}'s {key!r} is a {kind}, not a plain tensor", "create a new optimiser instead"
        if index is not None and (kind == "DTensor" or value.shape != param.shape):
            of = f"of shape {tuple(value.shape)} for weights of shape {tuple(param.shape)}"
            advice = "clear the whole parameter with index=None"
            return f"{name}'s {key!r} is a {kind} {of}, of which single entries cannot be cleared", advice
    return None


def check_will_clear(optimizer: Optimizer, entries: Iterable[tuple[Tensor, Any]], who: str, instead: str = "") -> None:
    """Raise, for `who`, if `clear_state_` of these (parameter, index) will not succeed once the optimiser has stepped.

    If a parameter has no state yet, a small parameter is stepped with an optimiser of the same class and settings. An
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
                f"{who} clears what the optimiser remembers of weights that it changes, and {problem[0]}: train with "
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
    except Exception:  # somebody's own constructor and step may want anything
        return None
    return _obstacle(like, small, None if index is None else ...)


@contextmanager
def _no_global_hooks() -> Iterator[None]:
    """Steps made here are not seen by hooks that torch calls for every optimiser, such as counters of steps."""
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
    """The tensors of the optimiser's state that hold one number for each entry of `param`; none if it does not train it."""
    if not holds(optimizer, param):
        return []
    check_clearable(optimizer, param, index=...)
    state = optimizer.state.get(param, {})
    return [value for key, value in state.items() if key not in _COUNTERS and isinstance(value, Tensor)]


def holds(optimizer: Optimizer, param: Tensor) -> bool:
    """Whether the optimiser trains this parameter."""
    return any(held is param for group in optimizer.param_groups for held in group["params"])


def _group_of(optimizer: Optimizer, param: Tensor) -> dict[str, Any]:
    if not holds(optimizer, param):
        raise ValueError(
            f"the optimiser does not hold this parameter of shape {tuple(param.shape)}: pass the optimiser that trains it"
        )
    return next(group for group in optimizer.param_groups if any(held is param for held in group["params"]))


def swap_(optimizer: Optimizer, old: Tensor, new: Tensor) -> None:
    """Have the optimiser train `new` in the place of `old`, of which it forgets everything."""
    group = _group_of(optimizer, old)
    params, known = group["params"], optimizer.state.pop(old, {})
    params[next(index for index, param in enumerate(params) if param is old)] = new
    if group.get("fused") and known.get("momentum_buffer") is not None:
        # Fused SGD takes all buffers or none; a buffer of zeros is as good as none.
        optimizer.state[new]["momentum_buffer"] = torch.zeros_like(new)


class Together(Optimizer):
    """Several optimisers that look like one: merged groups, merged state, one `state_dict`.

    Their groups are the same objects, so a learning rate that a scheduler sets here is set there.

    >>> body, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
    >>> both = Together([torch.optim.SGD(body.parameters(), lr=0.1), torch.optim.Adam(head.parameters())])
    >>> [group["lr"] for group in both.param_groups]
    [0.1, 0.001]
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        nested = [given.optimizers if isinstance(given, Together) else [given] for given in optimizers]
        self.optimizers = [optimizer for several in nested for optimizer in several]
        held = [param for group in self.param_groups for param in group["params"]]
        if len(set(map(id, held))) < len(held):
            raise ValueError("two of the optimisers hold the same parameter: each is to be trained by one")
        super().__init__(self.param_groups, {})
        self.state = _MergedState(self)  # type: ignore[assignment]
        self.defaults = {key: value for optimizer in self.optimizers for key, value in optimizer.defaults.items()}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Read anew each time: an optimiser that loads a state dict replaces its groups."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Nothing: torch's constructor sets an empty list, to be filled by add_param_group."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if all(param_group is not group for group in self.param_groups):
            raise TypeError("which optimiser is to train this group? Call add_param_group of that one of .optimizers")

    def trainer_of(self, param: Tensor) -> Optimizer:
        """The one of the optimisers that trains this parameter."""
        for optimizer in self.optimizers:
            if holds(optimizer, param):
                return optimizer
        raise ValueError(f"none of the optimisers holds this parameter of shape {tuple(param.shape)}: add the one that does")

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
            raise ValueError(f"the checkpoint has {len(saved)} optimisers, and there are {len(self.optimizers)} here")
        for number, (optimizer, state) in enumerate(zip(self.optimizers, saved, strict=True)):  # all, before one is loaded
            theirs, mine = ([len(g["params"]) for g in groups] for groups in (state["param_groups"], optimizer.param_groups))
            if theirs != mine:
                name = type(optimizer).__name__
                raise ValueError(f"optimiser {number} ({name}) has groups of {mine} parameters, the checkpoint of {theirs}")
        for optimizer, state in zip(self.optimizers, saved, strict=True):
            optimizer.load_state_dict(state)


def as_list(optimizer: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
    """What was given as `optimizer`: none, one or several."""
    several = [] if optimizer is None else list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    for given in several:
        if not hasattr(given, "param_groups"):
            raise TypeError(f"optimizer={given!r} is no optimiser: pass the object that trains the model, or a list of them")
    return several


def as_one(optimizer: Optimizer | Sequence[Optimizer]) -> Optimizer:
    """The optimiser itself, or several of them as one."""
    several = as_list(optimizer)
    if not several:
        raise ValueError("optimizer=[] holds no optimiser: pass the one that trains the model")
    return several[0] if len(several) == 1 else Together(several)


class _MergedState(MutableMapping[Tensor, Any]):
    """The state of several optimisers by parameter: each entry lives in the optimiser that trains it."""

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
