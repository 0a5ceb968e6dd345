"""What measures look at: one model, one batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..chain import output_layers
from ..inventory import WeightMatrix
from ..linalg.polar_factor import work_dtype
from ..states import memory, named_tensors, plain
from ..units import Example, Tap, UnitGroup, Units, find_units, original
from ..units.kinds import affine
from ..units.trace import untouched
from ..weights import Where, select

Mode = Literal["train", "eval"]
Loss = Callable[[Any, Any], Tensor]


class NotMeasurable(ValueError):
    """A measure that cannot be taken of this probe, and what it would need."""


class Probe:
    """One model and one batch. What several measures need (activations, gradients) is computed once, when it is asked for.

    Whatever is measured, the model stays as it was: weights, gradients, buffers, mode, hooks and torch's random state. A
    compiled model is run as the module it was made from. A probe is of the weights at the time it was made: if they change,
    asking it for more is an error, and a new one is to be made.

    batch: the inputs (a tensor, or a dict by name), or a pair (inputs, targets).
    loss: of outputs and targets, a mean over samples: what gradients and curvature are of.
    mode: how dropout and batch norms are to behave, "train" or "eval"; None: as the model is. Dropout draws the same mask
        every time, from `seed`.
    reference: the same model at another time, for growth and distances: a module, or its state dict.
    where: which weights count; see `weights.select`. Frozen ones do.
    example: an input to run the model on once if its code cannot be traced; None: the batch's own inputs.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> probe = Probe(net, (torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])), loss=nn.functional.cross_entropy)
    >>> {name: tuple(values.shape) for name, values in probe.activations.items()}
    {'0': (5, 4)}
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        *,
        loss: Loss | None = None,
        mode: Mode | None = None,
        reference: nn.Module | Mapping[str, Tensor] | None = None,
        where: Where = "everything",
        example: Example | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"Probe needs a torch.nn.Module, got {type(model).__name__}: pass the model itself")
        if mode not in (None, "train", "eval"):
            raise ValueError(f'mode={mode!r}: give "train", "eval", or None to measure the model as it is')
        if loss is not None and not callable(loss):
            raise TypeError(f"loss={loss!r}: give a function, as in loss=torch.nn.functional.cross_entropy")
        self.model = original(model)
        self.inputs, self.targets = _pair(batch)
        self.samples = _samples(self.inputs)
        self.loss, self.where, self.seed, self.example = loss, where, seed, example
        self.mode: Mode = mode or ("train" if self.model.training else "eval")
        self._reference = reference
        self._versions = [(tensor, tensor._version) for tensor in named_tensors(self.model).values()]

    def __repr__(self) -> str:
        targets = "" if self.targets is None else " with targets"
        return f"Probe({type(self.model).__name__} in {self.mode} mode, {self.samples} samples{targets})"

    # running the model

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the model in here, in the probe's mode: it leaves no trace, and random numbers are the same every time."""
        self.check_unchanged()
        with untouched(self.model):
            self.model.train(self.mode == "train")
            torch.default_generator.manual_seed(self.seed)
            for device in {parameter.device for parameter in self.model.parameters() if parameter.is_cuda}:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(self.seed)
            yield

    def forward(self, inputs: Any = None) -> Any:
        """The model's outputs; call it within `running`."""
        inputs = self.inputs if inputs is None else inputs
        return self.model(**inputs) if isinstance(inputs, Mapping) else self.model(inputs)

    def loss_of(self, outputs: Any, targets: Any = None) -> Tensor:
        """The loss, checked: given, a scalar, and finite."""
        loss = self.require_loss()(outputs, self.targets if targets is None else targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            given = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise NotMeasurable(f"the loss is to be one number, and is of {given}: average it, as with reduction='mean'")
        if not loss.isfinite():
            raise NotMeasurable(f"the loss is {loss.item()}: the batch, or the weights, hold values that it cannot take")
        return loss.squeeze()

    def require_loss(self) -> Loss:
        """The loss, if it and the targets were given."""
        if self.loss is None or self.targets is None:
            missing = "a loss" if self.loss is None else "targets"
            raise NotMeasurable(
                f"needs {missing}, and the probe has none: Probe(model, (inputs, targets), "
                "loss=torch.nn.functional.cross_entropy)"
            )
        return self.loss

    def check_unchanged(self) -> None:
        """Raise if weights or buffers were written since the probe was made."""
        if any(tensor._version != version for tensor, version in self._versions):
            raise NotMeasurable("the model has changed since the probe was made: make a new Probe of it")

    # weights

    @cached_property
    def weights(self) -> tuple[WeightMatrix, ...]:
        """The weight matrices that `where` chooses."""
        chosen = select(self.model, self.where, frozen=True).chosen
        bad = [weight.name for weight in chosen if not weight.parameter.isfinite().all()]
        if bad:
            raise NotMeasurable(f"{', '.join(bad[:3])}: NaN or infinite entries, which no measure of weights allows")
        return chosen

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """What trains, by name, each tensor once: what gradients and curvature are with respect to."""
        found: dict[tuple[object, ...], tuple[str, nn.Parameter]] = {}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                found.setdefault(memory(parameter), (plain(name), parameter))
        if not found:
            raise NotMeasurable("this model has no trainable parameters: call requires_grad_(True) on it")
        return dict(found.values())

    @cached_property
    def reference(self) -> nn.Module:
        """The model at another time, as a module."""
        given = self._reference
        if given is None:
            raise NotMeasurable(
                "needs the model at another time, and the probe has none: keep first = copy.deepcopy(model) and give "
                "Probe(model, batch, reference=first)"
            )
        if isinstance(given, nn.Module):
            reference = original(given)
        else:
            reference = copy.deepcopy(self.model)
            reference.load_state_dict({plain(name): tensor for name, tensor in given.items()})
        mine, theirs = named_tensors(self.model), named_tensors(reference)
        other = [name for name in {**mine, **theirs} if name not in mine or name not in theirs]
        other += [name for name in mine if name in theirs and mine[name].shape != theirs[name].shape]
        if other:
            raise NotMeasurable(
                f"reference is another model: {other[0]!r} is not the same in both. Give this one's own past"
            )
        return reference

    @cached_property
    def reference_probe(self) -> Probe:
        """The reference, on the same batch and in the same mode."""
        return Probe(
            self.reference,
            (self.inputs, self.targets),
            loss=self.loss,
            mode=self.mode,
            where=self.where,
            example=self.example,
            seed=self.seed,
        )

    # units and features

    @cached_property
    def units(self) -> Units:
        """The model's hidden units, found in its code or, if that cannot be read, by running it."""
        found = problem = None
        for example in [self.example] if self.example is not None else [None, self.inputs]:
            try:
                found = find_units(self.model, example, frozen=True)
            except ValueError as error:
                problem = error
                continue
            if not found.not_seen:
                break
        if found is None:
            raise NotMeasurable(str(problem)) from problem
        return found

    @property
    def groups(self) -> dict[str, UnitGroup]:
        """Groups of hidden units by the name of the layer that makes them."""
        return {group.name: group for group in self.units.groups}

    @cached_property
    def activations(self) -> dict[str, Tensor]:
        """(samples, units) of each group, as the next layer reads them; positions and columns count as samples."""
        return {name: self._finite(name, self._seen.tap.activations(name)) for name in self._units_of_seen}

    @cached_property
    def preactivations(self) -> dict[str, Tensor]:
        """(samples, units) of each group, before the activation function and behind a norm that stands before it.

        Groups that are products of several layers (gates) have no such thing, and are not here.
        """
        found = {
            name: self._finite(name, _in_order(group, self.model, self._seen.before[name]))
            for name, group in self.groups.items()
            if name in self._seen.before
        }
        if not found:
            raise NotMeasurable("needs units that one layer makes; those of this model are products of several (gates)")
        return found

    @cached_property
    def slopes(self) -> dict[str, Tensor]:
        """(samples, units): the mean |∂h/∂z| over positions, of activations h in preactivations z."""
        slopes: dict[str, Tensor] = {}
        seen = self._look(cut=True)
        for name in self.preactivations:
            group, cut = self.groups[name], seen.cuts[name]
            read = seen.tap.activations(name).float()
            (slope,) = torch.autograd.grad(read.sum(), cut, allow_unused=True, retain_graph=True)
            slope = torch.zeros_like(cut) if slope is None else slope
            by_unit = _in_order(group, self.model, slope.abs())  # (samples · positions of z, units)
            positions = read.shape[0] // self.samples  # of h: pooling leaves fewer than z has
            slopes[name] = by_unit.reshape(self.samples, -1, group.size).sum(1) / positions
        return slopes

    @cached_property
    def features(self) -> dict[str, Tensor]:
        """(samples, channels): the activations of every group of units and, as "head:input", what output layers read."""
        heads = {
            f"{name}:input": self._finite(f"{name}:input", _channels_last(self.model, name, inputs))
            for name, inputs in self._seen.heads.items()
        }
        found = {**(self.activations if self._units_of_seen else {}), **heads}
        if not found:
            raise NotMeasurable(self._no_features)
        return found

    @cached_property
    def sample_features(self) -> dict[str, Tensor]:
        """The same as one row for each sample, with all its positions: (samples, positions · channels)."""
        raw = {name: self._seen.tap.read(name) for name in self._units_of_seen}
        raw |= {f"{name}:input": inputs for name, inputs in self._seen.heads.items()}
        if not raw:
            raise NotMeasurable(self._no_features)
        for name, inputs in raw.items():
            if inputs.shape[0] != self.samples:
                raise NotMeasurable(
                    f"needs features with samples on their first axis, and those of {name} are {tuple(inputs.shape)}"
                )
        return {name: self._finite(name, inputs.flatten(1)) for name, inputs in raw.items()}

    @cached_property
    def outputs(self) -> Any:
        """What the model returns for the batch."""
        return self._seen.outputs

    def _finite(self, name: str, values: Tensor) -> Tensor:
        values = values.to(work_dtype(values.dtype))
        if not values.isfinite().all():
            raise NotMeasurable(f"the activations of {name} hold NaN or infinite values: look at the batch and the weights")
        return values

    _no_features = "this model has neither hidden units nor a layer that is known to make its output"

    @cached_property
    def _units_of_seen(self) -> list[str]:
        return list(self._seen.tap.groups)

    @cached_property
    def _seen(self) -> _Seen:
        with torch.no_grad():
            return self._look()

    def _look(self, cut: bool = False) -> _Seen:
        """Run the model once and keep what measures of units and features need.

        cut: have every group's preactivations begin a graph of their own, for derivatives of what is computed from them.
        """
        try:
            groups = self.groups
        except NotMeasurable:
            groups = {}  # features may be there all the same; who needs units asks for them and gets the error
        read = {group.readers[0].layer for group in groups.values()}
        heads = [name for name in self._heads if name not in read]
        with self.running(), torch.set_grad_enabled(cut):
            tap = Tap(self.model, list(groups.values()), detach=not cut, always=True, compiled=False)
            seen = _Seen(tap)
            for name, group in groups.items():
                _watch_preactivations(self.model, name, group, seen, cut)
            for name in heads:
                _watch_inputs(self.model, name, seen)
            seen.outputs = self.forward()
            tap.close()
        return seen

    @cached_property
    def _heads(self) -> list[str]:
        for example in [self.example] if self.example is not None else [None, self.inputs]:
            found = output_layers(self.model, example)
            if found:
                return found
        return []


@dataclass
class _Seen:
    """What one run of the model showed."""

    tap: Tap
    before: dict[str, Tensor] = field(default_factory=dict)  # preactivations by group
    cuts: dict[str, Tensor] = field(default_factory=dict)  # the same, as leaves of a graph
    heads: dict[str, Tensor] = field(default_factory=dict)  # inputs of output layers
    outputs: Any = None


def _watch_preactivations(model: nn.Module, name: str, group: UnitGroup, seen: _Seen, cut: bool) -> None:
    """Keep what the group's layer makes or, if a norm takes exactly that, what the norm makes of it."""
    makers = {slot.layer for slot in group.makers}
    if len(makers) > 1:
        return

    def made(layer: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        seen.before[name] = output.detach().clone()  # a copy: the activation function may work in place
        return keep(output)

    def normed(layer: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        # What stands behind the activation function is given something else than the layer made.
        if name in seen.before and torch.equal(args[0].detach(), seen.before[name]):
            seen.before[name] = output.detach().clone()
            return keep(output)
        return None

    def keep(output: Tensor) -> Tensor | None:
        if not cut:
            return None
        seen.cuts[name] = output.detach().requires_grad_()
        return seen.cuts[name].clone()  # a leaf must not be written to in place

    model.get_submodule(next(iter(makers))).register_forward_hook(made)
    for norm in dict.fromkeys(slot.layer for slot in group.norms):
        model.get_submodule(norm).register_forward_hook(normed)


def _watch_inputs(model: nn.Module, name: str, seen: _Seen) -> None:
    def keep(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.heads[name] = (args[0] if args else next(iter(kwargs.values()))).detach()

    model.get_submodule(name).register_forward_pre_hook(keep, with_kwargs=True)


def _in_order(group: UnitGroup, model: nn.Module, made: Tensor) -> Tensor:
    """A layer's outputs as (samples, units) in the group's order of units."""
    slot = group.makers[0]
    channels = _channels_last(model, slot.layer, made)
    order = torch.argsort(slot.units, stable=True)[(slot.units < 0).sum() :]
    return channels[:, order]


def _channels_last(model: nn.Module, layer: str, values: Tensor) -> Tensor:
    """Inputs or outputs of a layer as (samples, channels)."""
    positions = affine(model.get_submodule(layer)).positions
    values = values if positions is None else values.movedim(-positions - 1, -1)
    return values.reshape(-1, values.shape[-1])


def _pair(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, tuple | list):
        if len(batch) != 2:
            raise TypeError(f"a batch of {len(batch)} parts: give the inputs, or a pair (inputs, targets)")
        return batch[0], batch[1]
    return batch, None


def _samples(inputs: Any) -> int:
    tensors = [value for value in inputs.values() if isinstance(value, Tensor)] if isinstance(inputs, Mapping) else [inputs]
    if not tensors or not isinstance(tensors[0], Tensor) or not tensors[0].ndim:
        raise TypeError(f"the inputs are a {type(inputs).__name__}: give a tensor of samples, or a dict of them by name")
    if not len(tensors[0]):
        raise NotMeasurable("the batch has no samples")
    for tensor in tensors:
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise NotMeasurable("the inputs hold NaN or infinite values")
    return len(tensors[0])
