"""Every measure by name: its formula, and the parts of a probe that it is computed from."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal

from torch import Tensor

from ..linalg import normalised_squared_frobenius_error, squared_frobenius_error
from ..units.unfolded import unfold
from . import curvature, features, gradients, units, weights
from .balance import balance_between_layers, layer_balance, pq_balancedness
from .lipschitz import lipschitz_bound
from .probe import NotMeasurable, Probe
from .range import power_of_two, value_of

Family = Literal["weights", "features", "units", "gradients", "curvature"]
Parts = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True, repr=False)
class Measure:
    """A formula, and the parts of a probe that it is computed from.

    formula: a function of tensors or of the probe; its keyword arguments with defaults are the measure's settings.
    parts: from a probe to the formula's arguments, by the name of the layer; "" stands for the whole model.
    overall: from the values and the parts to the value for the whole model, shown under the measure's bare name.
    cheap: whether it costs at most a forward pass and one decomposition of each matrix.
    infinite: whether infinity is a valid value, and not a sign of overflow.
    by_name: whether it must be requested by name. Such measures need a reference or a special kind of model, or repeat
        another measure as its authors compute it, so a family does not include them.
    """

    family: Family
    formula: Callable[..., Tensor | float]
    parts: Callable[[Probe], Parts]
    overall: Callable[[list[float], Parts], float] | None = None
    cheap: bool = True
    infinite: bool = False
    by_name: bool = False

    def __repr__(self) -> str:
        what = (inspect.getdoc(self.formula) or "").partition("\n")[0]
        settings = ", ".join(f"{key}={value!r}" for key, value in self.settings.items())
        return f"{self.family}: {what}" + (f" ({settings})" if settings else "")

    @property
    def settings(self) -> dict[str, Any]:
        """The formula's settings and their defaults."""
        known = inspect.signature(self.formula).parameters.values()
        return {parameter.name: parameter.default for parameter in known if parameter.default is not parameter.empty}

    def take(self, probe: Probe, settings: Mapping[str, Any]) -> dict[str, float]:
        """Values by layer; the key "" has the overall value."""
        probe.check_unchanged()
        parts = self.parts(probe)
        values: dict[str, float] = {}
        for name, arguments in parts.items():
            try:
                values[name] = self.value(*arguments, **settings)
            except NotMeasurable as problem:
                raise type(problem)(f"{name}: {problem}" if name else str(problem)) from problem
        if self.overall is None:
            return values
        return {"": self._checked(self.overall(list(values.values()), parts)), **values}

    def value(self, *arguments: Any, **settings: Any) -> float:
        """The formula's value, in float64 if float32 overflows; raises NotMeasurable if it is not a finite number."""
        return self._checked(value_of(self.formula, *arguments, **settings))

    def _checked(self, value: float) -> float:
        if math.isnan(value) or (math.isinf(value) and not self.infinite):
            raise NotMeasurable(f"the result is {value} even in float64: weights or activations are too large or not finite")
        return value


# The parts that measures are computed from


def _weights(probe: Probe) -> Parts:
    return {weight.name: (weight,) for weight in probe.weights}


def _unfolded(probe: Probe) -> dict[str, Tensor]:
    """Weights as the matrices (..., out, in) of spectra; for a convolution, its map from a patch to its outputs."""
    probe.weights  # noqa: B018 - raises for weights that are not finite
    parameters, found = unfold(probe.model, probe.where, frozen=True)
    return {one.name: one.read(parameters[one.parameter].detach()) for one in found}


def _matrices(probe: Probe) -> Parts:
    """All matrices of a weight, stacked as rows of one: sums over entries are those of the whole weight."""
    return {name: (matrices.flatten(0, -2),) for name, matrices in probe.once(_unfolded).items()}


def _reference(probe: Probe) -> Probe:
    probe.reference_probe.check_unchanged()
    return probe.reference_probe


def _matrices_and_reference(probe: Probe) -> Parts:
    then = _matrices(_reference(probe))
    return {name: (*now, then[name][0].to(now[0])) for name, now in _matrices(probe).items()}


def _reference_and_matrices(probe: Probe) -> Parts:
    """In the order of the squared Frobenius error: before, after."""
    return {name: (then, now) for name, (now, then) in _matrices_and_reference(probe).items()}


def _weight_spectra(probe: Probe) -> Parts:
    return {name: (weights.singular_values(matrices),) for name, matrices in probe.once(_unfolded).items()}


def _feature_spectra(probe: Probe) -> Parts:
    return {name: (weights.singular_values(values),) for name, values in probe.features.items()}


def _scaled_feature_spectra(probe: Probe) -> Parts:
    spectra = probe.once(_feature_spectra)
    return {name: (values / math.sqrt(len(probe.features[name])),) for name, (values,) in spectra.items()}


def _sample_features_and_reference(probe: Probe) -> Parts:
    then = _reference(probe).sample_features
    return {name: (now, then[name]) for name, now in probe.sample_features.items()}


def _gram(probe: Probe) -> Parts:
    return {"": (probe.once(gradients.sample_gradient_gram),)}


def _by_layer(attribute: str) -> Callable[[Probe], Parts]:
    """Each tensor of one of the probe's dictionaries, such as `activations`."""
    return lambda probe: {name: (values,) for name, values in getattr(probe, attribute).items()}


def _whole(probe: Probe) -> Parts:
    return {"": (probe,)}


def _balance(probe: Probe) -> Parts:
    """Over all pairs of layers."""
    found = balance_between_layers(probe)
    return {"mean": (found.mean,), "largest": (found.largest,)}


@wraps(layer_balance)
def _layer_balance(value: float) -> float:
    return value


# From layers to the whole model


def _mean(values: list[float], parts: Parts) -> float:
    return sum(values) / len(values)


def _over(combine: Callable[[list[float]], float]) -> Callable[[list[float], Parts], float]:
    return lambda values, parts: combine(values)


def _norm(values: list[float], parts: Parts) -> float:
    return math.hypot(*values)


def _mean_of_units(values: list[float], parts: Parts) -> float:
    """The mean over layers, weighted by their number of units."""
    sizes = [values.shape[1] for (values,) in parts.values()]
    return sum(value * size for value, size in zip(values, sizes, strict=True)) / sum(sizes)


def _growth(values: list[float], parts: Parts) -> float:
    now, then = zip(*parts.values(), strict=True)
    return _norm_of(now) / _norm_of(then)


def _distance(values: list[float], parts: Parts) -> float:
    return _norm_of([now - then for now, then in parts.values()]) / _norm_of([then for _, then in parts.values()])


def _normalised_error(values: list[float], parts: Parts) -> float:
    before = [before for before, _ in parts.values()]
    return sum(_squared_frobenius_error(*pair) for pair in parts.values()) / _norm_of(before) ** 2


@wraps(normalised_squared_frobenius_error)
def _normalised_squared_frobenius_error(before: Tensor, after: Tensor) -> Tensor:
    return weights.relative_distance(after, before).square()  # it refuses to compare with zeros


@wraps(squared_frobenius_error)
def _squared_frobenius_error(before: Tensor, after: Tensor) -> float:
    scale = power_of_two(before, after)
    return float(squared_frobenius_error(before / scale, after / scale)) * float(scale) ** 2


def _norm_of(matrices: Any) -> float:
    return math.hypot(*(value_of(weights.frobenius_norm, matrix) for matrix in matrices))


def _of_spectrum(
    family: Literal["weights", "features"],
    formula: Callable[..., Tensor],
    of_spectrum: Callable[..., Tensor],
    over: Callable[[Tensor], Tensor] = lambda value: value,
    overall: Callable[[list[float], Parts], float] = _mean,
    parts: Callable[[Probe], Parts] | None = None,
    infinite: bool = False,
) -> Measure:
    """`formula`, from singular values that several measures share; `over` combines the values of several matrices."""
    spectra = {"weights": _weight_spectra, "features": _feature_spectra}[family]

    @wraps(formula)
    def taken(values: Tensor, **settings: Any) -> Tensor:
        return over(of_spectrum(values, **settings))

    return Measure(family, taken, parts or (lambda probe: probe.once(spectra)), overall, infinite=infinite)


# Layers with several matrices (groups of a convolution, gates of a recurrent layer) have one value: norms and distances are
# those of the whole weight, spectral norm and condition number are the largest, ranks and deviations the mean.
MEASURES: dict[str, Measure] = {
    "deviation_from_isometry": Measure("weights", weights.layer_deviation, _weights, _mean),
    "weight_norm": Measure("weights", weights.frobenius_norm, _matrices, _norm),
    "weight_growth": Measure("weights", weights.norm_growth, _matrices_and_reference, _growth, by_name=True),
    "weight_distance": Measure("weights", weights.relative_distance, _matrices_and_reference, _distance, by_name=True),
    "squared_frobenius_error": Measure(
        "weights", _squared_frobenius_error, _reference_and_matrices, _over(sum), by_name=True
    ),
    "normalised_squared_frobenius_error": Measure(
        "weights", _normalised_squared_frobenius_error, _reference_and_matrices, _normalised_error, by_name=True
    ),
    "spectral_norm": _of_spectrum(
        "weights", weights.spectral_norm, weights.spectral_norm_of_spectrum, Tensor.amax, _over(max)
    ),
    "condition_number": _of_spectrum(
        "weights", weights.condition_number, weights.condition_number_of_spectrum, Tensor.amax, _over(max), infinite=True
    ),
    "weight_stable_rank": _of_spectrum("weights", weights.stable_rank, weights.stable_rank_of_spectrum, Tensor.mean),
    "weight_effective_rank": _of_spectrum(
        "weights", features.effective_rank, weights.effective_rank_of_spectrum, Tensor.mean
    ),
    "lipschitz_bound": Measure("weights", lipschitz_bound, _whole, cheap=False, by_name=True),
    "layer_balance": Measure("weights", _layer_balance, _balance, by_name=True),
    "pq_balancedness": Measure("weights", pq_balancedness, _whole, cheap=False, by_name=True),
    "effective_rank": _of_spectrum("features", features.effective_rank, weights.effective_rank_of_spectrum),
    "srank": _of_spectrum("features", features.srank, features.srank_of_spectrum),
    "threshold_rank": _of_spectrum(
        "features", features.threshold_rank, features.threshold_rank_of_spectrum, parts=_scaled_feature_spectra
    ),
    "stable_rank": _of_spectrum("features", weights.stable_rank, weights.stable_rank_of_spectrum),
    "feature_norm": Measure("features", features.feature_norm, _by_layer("features"), _mean),
    "feature_covariance_distance": Measure(
        "features", features.feature_covariance_distance, _sample_features_and_reference, _mean, by_name=True
    ),
    "smallest_activity": Measure("units", units.smallest_activity, _by_layer("activations"), _over(min)),
    "dormant_fraction": Measure("units", units.dormant_fraction, _by_layer("activations"), _mean_of_units),
    "dead_fraction": Measure("units", units.dead_fraction, _by_layer("activations"), _mean_of_units),
    "margin_dead_fraction": Measure("units", units.margin_dead_fraction, _by_layer("preactivations"), _mean_of_units),
    "saturated_fraction": Measure("units", units.saturated_fraction, _by_layer("slopes"), _mean_of_units),
    "sign_entropy": Measure("units", units.sign_entropy, _by_layer("preactivations"), _mean_of_units),
    "gradient_norm": Measure("gradients", gradients.gradient_norm, _by_layer("gradients"), _norm, cheap=False),
    "gradient_rank": Measure("gradients", gradients.gradient_rank, _gram, cheap=False),
    "gradient_collinearity": Measure("gradients", gradients.gradient_collinearity, _gram, cheap=False),
    "hessian_top_eigenvalue": Measure("curvature", curvature.hessian_top_eigenvalue, _whole, cheap=False),
    "hessian_trace": Measure("curvature", curvature.hessian_trace, _whole, cheap=False),
    "hessian_epsilon_rank": Measure("curvature", curvature.hessian_epsilon_rank, _whole, cheap=False),
    "hessian_epsilon_mass": Measure("curvature", curvature.hessian_epsilon_mass, _whole, cheap=False),
    "hessian_epsilon_mass_as_released": Measure(
        "curvature", curvature.hessian_epsilon_mass_as_released, _whole, cheap=False, by_name=True
    ),
    "gauss_newton_top_eigenvalue": Measure("curvature", curvature.gauss_newton_top_eigenvalue, _whole, cheap=False),
    "kronecker_rank_sum": Measure("curvature", curvature.kronecker_rank_sum, _whole, cheap=False, by_name=True),
}
