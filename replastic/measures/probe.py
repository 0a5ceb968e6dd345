"""The probe that measures are computed from: one model and one batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from ..learner.fresh import check_not_shared, named_tensors, plain, seeded, shape_difference, trainable
from ..linalg.polar_factor import work_dtype
from ..linalg.products import Precision, float32_convolutions, float32_precision
from ..units import Example, UnitGroup, Units, find_units, original
from ..units.chain import output_layers
from ..units.kinds import channels_last, has_rows_and_columns
from ..units.trace import untouched
from ..weights import Where, select
from ..weights.inventory import WeightMatrix
from ..weights.place import memory
from .batch import arguments, count_samples, inputs_and_targets, shown
from .not_measurable import NotApplicable as NotApplicable
from .not_measurable import NotMeasurable as NotMeasurable
from .seen import Seen, cut, in_order, look

Mode = Literal["train", "eval"]
Loss = Callable[[Any, Any], Tensor]
Result = TypeVar("Result")


class Probe:
    """One model and one batch. Values that several measures need (activations, gradients) are computed once, on demand.

    Measuring leaves the model unchanged: weights, gradients, buffers, mode, hooks and torch's random state. A compiled model
    is run as the module that was compiled. A probe belongs to the weights that it was made with: if they change (other than
    through .data, which cannot be noticed), using it again is an error; make a new one.

    batch: the inputs, or a pair (inputs, targets). Inputs are a tensor, a dict by the names in the model's forward, or a
        tuple of several inputs; for a tuple without targets, pass ((first, second), None).
    loss: a function of outputs and targets, a mean over samples; gradients and curvature are those of this loss.
    mode: "train" or "eval", for dropout and batch norms; None: the model's current mode. Dropout draws the same mask every
        time, from `seed`.
    reference: the same model at another time, for growth and distances: a module or its state dict.
    where: which weights are measured; see `weights.select`. Frozen weights are included.
    example: an input to run the model on once if its code cannot be traced; None: the batch's inputs.

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
            raise ValueError(f'mode={mode!r}: pass "train", "eval", or None to measure the model as it is')
        if loss is not None and (not callable(loss) or isinstance(loss, type)):
            raise TypeError(f"loss={loss!r}: pass a function, as in loss=torch.nn.functional.cross_entropy")
        if reference is not None and not isinstance(reference, nn.Module | Mapping):
            raise TypeError(f"reference is a {type(reference).__name__}: pass the model at another time, or its state dict")
        self.model = original(model)
        self.inputs, self.targets = inputs_and_targets(batch)
        self.samples = count_samples(self.inputs)
        self.loss, self.where, self.seed, self.example = loss, where, seed, example
        self.mode: Mode = mode or ("train" if self.model.training else "eval")
        self._reference = reference
        self._made_of = list(self.model.parameters())
        self._as_made = [(tensor, _version(tensor), memory(tensor)) for tensor in named_tensors(self.model).values()]
        self._kept: dict[tuple[Hashable, ...], Any] = {}

    def __repr__(self) -> str:
        targets = "" if self.targets is None else " with targets"
        return f"Probe({type(self.model).__name__} in {self.mode} mode, {self.samples} samples{targets})"

    def once(self, function: Callable[..., Result], *settings: Hashable) -> Result:
        """function(probe, *settings), computed on the first call and kept, for values that several measures use."""
        self.check_unchanged()
        if (function, settings) not in self._kept:
            self._kept[function, settings] = function(self, *settings)
        return self._kept[function, settings]

    def generator(self) -> torch.Generator:
        """A new generator with the probe's seed, on the device of the parameters."""
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        return torch.Generator(device).manual_seed(self.seed)

    # running the model

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context to run the model in, in the probe's mode: all changes are undone, and random numbers repeat."""
        self.check_unchanged()
        with torch.inference_mode(False), untouched(self.model):  # in inference mode nothing can be differentiated
            self.model.train(self.mode == "train")
            with seeded(self.seed, self.model):
                yield

    @contextmanager
    def differentiating(self, precision: Precision | None = None) -> Iterator[None]:
        """`running`, with gradients and without autocast, because derivatives of half-precision values are too coarse.

        precision: of float32 on CUDA, "ieee" or "tf32"; None keeps torch's settings.
        """
        devices = {torch.device("cpu"), *(parameter.device for parameter in self.model.parameters())}
        with self.running(), torch.enable_grad(), ExitStack() as stack:
            for device in devices:
                stack.enter_context(torch.autocast(device.type, enabled=False))
                stack.enter_context(float32_precision(precision, device))
                stack.enter_context(float32_convolutions(precision, device))
            yield

    def forward(self, inputs: Any = None) -> Any:
        """The model's outputs; call it within `running`."""
        inputs = self.inputs if inputs is None else inputs
        args, kwargs = arguments(inputs)
        return self.model(*args, **kwargs)

    def loss_of(self, outputs: Any, targets: Any = None) -> Tensor:
        """The loss; raises if there is none, or if it is not a finite scalar."""
        try:
            loss = self.require_loss()(outputs, self.targets if targets is None else targets)
        except TypeError as problem:
            raise NotMeasurable(
                f"the loss does not accept the model's output, a {type(outputs).__name__} ({problem}): pass one that "
                "does, as in loss=lambda outputs, targets: torch.nn.functional.cross_entropy(outputs.logits, targets)"
            ) from problem
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise NotMeasurable(f"the loss must be one number, but has {shown(loss)}: average it, as with reduction='mean'")
        if not loss.isfinite():
            raise NotMeasurable(f"the loss is {loss.item()}: the batch or the weights contain values that it cannot handle")
        return loss.squeeze()

    def require_loss(self) -> Loss:
        """The loss; raises if the probe has no loss or no targets."""
        if self.loss is None or self.targets is None:
            missing = "a loss" if self.loss is None else "targets"
            raise NotMeasurable(
                f"needs {missing}, but the probe has none: use Probe(model, (inputs, targets), "
                "loss=torch.nn.functional.cross_entropy)"
            )
        return self.loss

    def check_unchanged(self) -> None:
        """Raise if weights or buffers were written, moved or replaced since the probe was made."""
        replaced = [id(parameter) for parameter in self.model.parameters()] != [id(made) for made in self._made_of]
        if replaced or any(_version(t) != version or memory(t) != where for t, version, where in self._as_made):
            raise NotMeasurable("the model has changed since the probe was made: make a new Probe")

    # weights

    @cached_property
    def weights(self) -> tuple[WeightMatrix, ...]:
        """The weight matrices that `where` selects."""
        chosen = select(self.model, self.where, frozen=True).chosen
        _check_finite((weight.name, weight.parameter) for weight in chosen)
        return chosen

    def check_finite(self) -> None:
        """Raise if a parameter has NaN or infinite entries."""
        _check_finite(self.model.named_parameters())

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Trainable parameters by name, each tensor once; gradients and curvature are with respect to these."""
        try:
            return trainable(self.model)
        except ValueError as problem:
            raise NotMeasurable(str(problem)) from problem

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """Gradients of the batch's loss, by parameter; zero where it does not depend on one. `.grad` is unchanged."""
        parameters = self.parameters
        with self.differentiating():
            loss = self.loss_of(self.forward())
            if not loss.requires_grad:
                raise NotMeasurable("the loss depends on no trainable parameter: it was computed without gradients")
            found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
        return {name: gradient.detach() for name, gradient in zip(parameters, found, strict=True)}

    @cached_property
    def reference(self) -> nn.Module:
        """The model at another time, as a module."""
        given = self._reference
        if given is None:
            raise NotMeasurable(
                "needs the model at another time, but the probe has no reference: keep first = copy.deepcopy(model) and use "
                "Probe(model, batch, reference=first)"
            )
        mine = named_tensors(self.model)
        if isinstance(given, nn.Module):
            theirs = named_tensors(given)
        else:
            theirs = {plain(name): tensor for name, tensor in given.items() if isinstance(tensor, Tensor)}
        if difference := shape_difference(mine, theirs):
            raise NotMeasurable(
                f"reference is a different model: {difference} here. Pass this model at another time, or its state dict"
            )
        try:  # frozen parameters may be shared: they do not change
            check_not_shared({name: tensor for name, tensor in mine.items() if tensor.requires_grad}, theirs, "reference")
        except ValueError as problem:
            raise NotMeasurable(str(problem)) from problem
        if isinstance(given, nn.Module) and all(
            (one.device, one.dtype) == (theirs[name].device, theirs[name].dtype) for name, one in mine.items()
        ):
            return original(given)
        reference = copy.deepcopy(self.model)  # to hold the weights on this model's device and in its dtype
        with torch.no_grad():
            for name, tensor in named_tensors(reference).items():
                tensor.copy_(theirs[name])
        return reference

    @cached_property
    def reference_probe(self) -> Probe:
        """A probe of the reference, with the same batch and mode."""
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
        """The model's hidden units, found by tracing its code or, if that fails, by running it."""
        best: Units | None = None
        problem = None
        for example in [self.example] if self.example is not None else [None, self.inputs]:
            try:
                found = find_units(self.model, example, frozen=True)
            except ValueError as error:
                problem = error
                continue
            if best is None or _count(found) > _count(best):  # a run shows only one of several branches
                best = found
            if not found.not_seen:
                break
        if best is None:
            raise NotApplicable(str(problem)) from problem
        return best

    @property
    def groups(self) -> dict[str, UnitGroup]:
        """Groups of hidden units, by the name of the layer that makes them."""
        return {group.name: group for group in self.units.groups}

    @cached_property
    def activations(self) -> dict[str, Tensor]:
        """(samples, units) of each group, as the next layer reads them; positions and columns count as samples."""
        return {name: self._finite(f"activations of {name}", self._seen.tap.activations(name)) for name in self.groups}

    @cached_property
    def preactivations(self) -> dict[str, Tensor]:
        """(samples, units) of each group, before the activation function and after a norm, if one comes first.

        Groups whose units are products (gates), or are made by several layers, have no preactivations and are left out.
        """
        found = {
            name: self._finite(f"preactivations of {name}", in_order(group, self.model, self._seen.before[name].values))
            for name, group in self.groups.items()
            if name in self._seen.before
        }
        if not found:
            raise NotApplicable("needs units that one layer makes alone; those of this model are products (gates)")
        return found

    @cached_property
    def slopes(self) -> dict[str, Tensor]:
        """(samples, units): the mean |∂h/∂z| over positions, of activations h in preactivations z.

        Norms and dropout after the activation function are skipped: a batch norm makes Σh the same whatever z is. Columns
        that read the same z twice, as in a concatenated ReLU, are summed before the mean.
        """
        slopes: dict[str, Tensor] = {}
        wanted = self.preactivations
        with self.running(), torch.enable_grad():
            tap, cuts = cut(self.model, self.groups, self._seen, self.forward)
            for name in wanted:
                group, before, read = self.groups[name], cuts[name], tap.activations(name)
                total = read.sum(dtype=work_dtype(read.dtype))
                if total.requires_grad:
                    (slope,) = torch.autograd.grad(total, before, retain_graph=True, materialize_grads=True)
                else:
                    slope = torch.zeros_like(before)  # an activation function without a derivative, such as a step
                slope = slope.abs().to(total.dtype)
                by_unit = in_order(group, self.model, slope)  # (samples · positions of z, units)
                positions, rest = divmod(read.shape[0], self.samples)  # of h
                if rest or by_unit.shape[0] % self.samples:
                    raise NotMeasurable(
                        f"needs the same number of positions for every sample, but {name} has {read.shape[0]} in total"
                    )
                by_sample = by_unit.reshape(self.samples, -1, group.size).sum(1) / positions
                slopes[name] = self._finite(f"slopes of {name}", by_sample)
        return slopes

    @cached_property
    def features(self) -> dict[str, Tensor]:
        """(samples, channels): the activations of every group of units, and the inputs of output layers as "head:input".

        An output layer's input is left out if it is just the units of one group.
        """
        heads = {
            f"{name}:input".lstrip(":"): self._finite(
                f"inputs of {name}", channels_last(self.model.get_submodule(name), inputs)
            )
            for name, inputs in self._seen.heads.items()
        }
        found = {**(self.activations if self._seen.tap.groups else {}), **heads}
        if not found:
            raise NotApplicable(self._no_features)
        return found

    @cached_property
    def sample_features(self) -> dict[str, Tensor]:
        """The features with one row per sample that has all its positions: (samples, positions · channels)."""
        raw = {name: self._seen.tap.read(name) for name in self._seen.tap.groups}
        raw |= {f"{name}:input".lstrip(":"): inputs for name, inputs in self._seen.heads.items()}
        if not raw:
            raise NotApplicable(self._no_features)
        for name, inputs in raw.items():
            if inputs.shape[0] != self.samples:
                raise NotMeasurable(
                    f"needs features with samples on their first axis, but those of {name} have shape {tuple(inputs.shape)}"
                )
        return {name: self._finite(f"features of {name}", inputs.flatten(1)) for name, inputs in raw.items()}

    @cached_property
    def outputs(self) -> Any:
        """What the model returns for the batch."""
        return self._seen.outputs

    def _finite(self, what: str, values: Tensor) -> Tensor:
        values = values.to(work_dtype(values.dtype))
        if not values.isfinite().all():
            raise NotMeasurable(f"{what} for this batch are NaN or infinite: check the inputs and the weights")
        return values

    _no_features = "this model has neither hidden units nor an output layer that can be identified"

    @cached_property
    def _seen(self) -> Seen:
        try:
            groups = self.groups
        except NotMeasurable:
            groups = {}  # there may be features nevertheless; measures that need units raise this error
        with self.running():
            seen = look(self.model, groups, self._heads, self.forward)
        missed = [name for name in groups if name not in seen.tap.inputs]
        if missed:
            raise NotMeasurable(f"the model's units of {missed[0]} were not computed for this batch in {self.mode} mode")
        return seen

    @cached_property
    def _heads(self) -> list[str]:
        for example in [self.example] if self.example is not None else [None, self.inputs]:
            found = output_layers(self.model, example)
            if found:
                return [name for name in found if has_rows_and_columns(self.model.get_submodule(name))]
        return []


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _count(units: Units) -> int:
    return sum(group.size for group in units.groups)


def _check_finite(named: Iterable[tuple[str, Tensor]]) -> None:
    bad = [name for name, tensor in named if not tensor.isfinite().all()]
    if bad:
        raise NotMeasurable(f"{', '.join(bad[:3])}: NaN or infinite entries, which no measure takes: reload these weights")
