"""FIRE's theorems: bounds in terms of SFE and DfI (Han et al., ICLR 2026, section 3 and appendix A).

    SFE = Σ‖W - W~‖²_F,    DfI = ‖WᵀW - I‖²_F,    ε = √DfI,    ν = 1 + ε

The paper's weights are (in, out), H = σ(HW). Functions here take weights as PyTorch stores them, (out, in), so that W is
`weight.T`. Networks are chains of linear layers without biases, and everything is computed in float64.

Departures, where the printed form does not hold or needs further assumptions:
    - Theorem 1 needs σ(0) = 0 (equation 11 uses ‖σ(A)‖ ≤ L‖A‖). For any Lipschitz activation, with xₖ, which bounds ‖Hᵏ‖,
          ‖C - C~‖ ≤ 4/m √(Σⱼ cⱼ²) √SFE,   cⱼ = (Π_{k>j} LₖBₖ) Lⱼ xⱼ₋₁,   x₀ = ‖Z‖,   xₖ = LₖBₖxₖ₋₁ + |σₖ(0)|√(n dₖ)
      which is the printed form if σ(0) = 0.
    - Lemma 2 uses ‖relu(A)‖₂ ≤ ‖A‖₂, which is true for the Frobenius norm and not for the spectral norm: relu of
      [[1, 1], [1, -1]] has 1.62, the matrix itself 1.41. For white Gaussian inputs and an orthogonal layer of d units the
      largest eigenvalue is 1/2 + (d - 1)/2π, not at most 1. For k ≥ 1,
          λmax(Σ_Hk) ≤ tr(Σ_Z) Πⱼ≤ₖ νⱼ
      holds, and theorem 2, with gₖ for these bounds and g₀ = λmax(Σ_Z), becomes, for white inputs or not,
          ‖∇²L‖₂ ≤ β Σₖ gₖ₋₁ Π_{j>k} νⱼ + γ Σ_{k<l} √gₖ₋₁ Π_{j>k, j≠l} √νⱼ
      As printed, it fails for orthogonal layers, where it should be tight; so does corollary 1.
    - Corollary 1 drops the term in γ and writes ≲. It bounds the Gauss-Newton part for every γ, which is the Hessian if
      γ = 0.
    - Theorem 3 divides by the smallest positive eigenvalue "on the subspace where My ≠ 0", where x is perpendicular to the
      kernel of Σ_Φ but y = Sx need not be perpendicular to that of M. The claim still holds: SMS has the positive
      eigenvalues of M^½ S² M^½, which are at least (1 - ε)η_d. That W's polar factor has orthonormal columns, and so in ≥
      out, follows from ε < 1.
    - Theorem 4 needs an activation that is not zero everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..linalg import deviation_from_isometry, polar
from ..measures.constants import spectral_norm
from .bound import Bound
from .dense import Activation, Curvature, Form, Loss, chain, curvature, in_float64

_WHITE = 1e-6  # largest distance from the identity at which a covariance counts as white
_RANK = 1e-12  # times the largest: above it, eigenvalues of a covariance count as positive
_CEILING = 1e-9  # rounding, by which the bound of a rank may exceed an integer


# theorem 1


def covariance_change(
    weights: Sequence[Tensor],
    others: Sequence[Tensor],
    inputs: Tensor,
    *,
    activations: Activation | Sequence[Activation] = torch.relu,
    lipschitz: float | Sequence[float] = 1.0,
) -> Bound:
    """Theorem 1: SFE bounds the distance of two networks' normalised feature covariances, C = HHᵀ/‖H‖².

        ‖C - C~‖_F ≤ 4‖Z‖/m (ΠLₖ) (ΠBₖ) √(Σ1/Bⱼ²) √SFE,    m = min(‖H‖, ‖H~‖),    Bₖ = max(‖Wₖ‖₂, ‖W~ₖ‖₂)

    This is the root of the printed form; if σ(0) is not 0, the form under Departures is used.

    activations: one for all layers, or one per layer, including the last.
    lipschitz: their Lipschitz constants, one for all or one per layer.
    """
    change = _Change(weights, others, inputs, activations, lipschitz)
    size, rates = change.inputs, []
    for number, (norm, constant) in enumerate(zip(change.norms, change.constants, strict=True)):
        behind = math.prod(change.norms[number + 1 :]) * math.prod(change.constants[number + 1 :])
        rates.append(behind * constant * size)
        size = constant * norm * size + change.at_zero[number]
    return change.bounded_by(math.hypot(*rates))


def covariance_change_uniform(
    weights: Sequence[Tensor],
    others: Sequence[Tensor],
    inputs: Tensor,
    *,
    activations: Activation | Sequence[Activation] = torch.relu,
) -> Bound:
    """Theorem 1 for activations with constants of at most 1 and σ(0) = 0, and with one S ≥ Bⱼ for all layers.

    ‖C - C~‖_F ≤ 4‖Z‖/m √l S^(l-1) √SFE
    """
    change = _Change(weights, others, inputs, activations, 1.0)
    if any(change.at_zero):
        raise ValueError("an activation is not 0 at 0, which this form of theorem 1 needs: use covariance_change")
    layers = len(change.norms)
    return change.bounded_by(change.inputs * math.sqrt(layers) * max(change.norms) ** (layers - 1))


class _Change:
    """The terms of both forms of theorem 1."""

    def __init__(
        self,
        weights: Sequence[Tensor],
        others: Sequence[Tensor],
        inputs: Tensor,
        activations: Activation | Sequence[Activation],
        lipschitz: float | Sequence[float],
    ) -> None:
        (old, z), new = chain(weights, inputs), in_float64(others)
        if [weight.shape for weight in old] != [weight.shape for weight in new]:
            raise ValueError("the networks have weights of different shapes: theorem 1 compares one architecture")
        functions = [activations] * len(old) if callable(activations) else list(activations)
        self.constants = [float(lipschitz)] * len(old) if isinstance(lipschitz, int | float) else list(lipschitz)
        if not len(functions) == len(self.constants) == len(old):
            raise ValueError(
                f"{len(functions)} activations and {len(self.constants)} constants for {len(old)} layers: pass one per layer"
            )
        self.inputs = float(z.norm())
        self.norms = [max(spectral_norm(one), spectral_norm(other)) for one, other in zip(old, new, strict=True)]
        zero = torch.zeros((), dtype=z.dtype, device=z.device)
        widths = [weight.shape[0] for weight in old]
        self.at_zero = [
            abs(float(function(zero))) * math.sqrt(len(z) * width) for function, width in zip(functions, widths, strict=True)
        ]
        self.sfe = sum(float((one - other).square().sum()) for one, other in zip(old, new, strict=True))
        features = [_features(layers, functions, z) for layers in (old, new)]
        self.smaller = min(float(made.norm()) for made in features)
        if not self.smaller > 0:
            raise ValueError("a network's features are all 0 for these inputs, so their covariance is undefined")
        one, other = (made @ made.T / made.square().sum() for made in features)
        self.distance = float((one - other).norm())

    def bounded_by(self, rate: float) -> Bound:
        """The bound on covariances that follows from ‖H - H~‖ ≤ rate·√SFE."""
        return Bound(self.distance, 4 / self.smaller * rate * math.sqrt(self.sfe), "upper", scale=1.0)


def _features(weights: Sequence[Tensor], functions: Sequence[Activation], inputs: Tensor) -> Tensor:
    made = inputs
    for weight, function in zip(weights, functions, strict=True):
        made = function(made @ weight.T)
    return made


# lemmas 1 and 2, theorem 2


def squared_spectral_norm(weight: Tensor) -> Bound:
    """Lemma 1: ‖W‖₂² ≤ 1 + √DfI.

    >>> squared_spectral_norm(torch.eye(3)).slack
    0.0
    """
    (matrix,) = in_float64([weight])
    return Bound(spectral_norm(matrix) ** 2, _nu(matrix), "upper")


def feature_covariance(weights: Sequence[Tensor], inputs: Tensor, *, form: Form = "proved") -> Bound:
    """Lemma 2: λmax of the covariance (second moments) of a ReLU network's last features, with a ReLU after each layer.

    λmax(Σ_H) ≤ tr(Σ_Z) Πν        proved
    λmax(Σ_H) ≤ λmax(Σ_Z) Πν      printed, and false
    """
    layers, z = chain(weights, inputs)
    made = _features(layers, [torch.relu] * len(layers), z)
    first = spectral_norm(z) ** 2 if form == "printed" else float(z.square().sum())
    return Bound(spectral_norm(made) ** 2 / len(z), first / len(z) * math.prod(map(_nu, layers)), "upper")


def hessian_norm(weights: Sequence[Tensor], inputs: Tensor, targets: Tensor, loss: Loss, *, form: Form = "proved") -> Bound:
    """Theorem 2: the layers' DfI bounds the Hessian's spectral norm, in a ReLU network with a linear last layer.

        ‖∇²L‖₂ ≤ β Σₖ gₖ₋₁ Π_{j>k} νⱼ + γ Σ_{k<l} √gₖ₋₁ Π_{j>k, j≠l} √νⱼ    proved; g as under Departures
        ‖∇²L‖₂ ≤ β Σₖ Π_{j≠k} νⱼ + 2γ Σ_{k<l} Π_{j≠k,l} νⱼ                  printed, for white inputs, and false

    loss: a mean over samples; β and γ are the largest ‖∇²ℓ‖₂ and ‖∇ℓ‖ in the outputs, over these samples.
    """
    parts = _Parts(weights, inputs, targets, loss, form)
    return Bound(spectral_norm(parts.found.hessian), parts.gauss_newton + parts.remainder, "upper", parts.scale)


def gauss_newton_norm(
    weights: Sequence[Tensor], inputs: Tensor, targets: Tensor, loss: Loss, *, form: Form = "proved"
) -> Bound:
    """Lemma 4 and corollary 1: the first term of theorem 2 bounds the Gauss-Newton part, which is the Hessian if γ = 0."""
    parts = _Parts(weights, inputs, targets, loss, form)
    return Bound(spectral_norm(parts.found.gauss_newton), parts.gauss_newton, "upper")


def remainder_norm(
    weights: Sequence[Tensor], inputs: Tensor, targets: Tensor, loss: Loss, *, form: Form = "proved"
) -> Bound:
    """Lemma 5: the second term of theorem 2 bounds the rest of the Hessian, R = ∇²L - G."""
    parts = _Parts(weights, inputs, targets, loss, form)
    return Bound(spectral_norm(parts.found.residual), parts.remainder, "upper", parts.scale)


class _Parts:
    """The Hessian of a network and the two terms of theorem 2."""

    def __init__(self, weights: Sequence[Tensor], inputs: Tensor, targets: Tensor, loss: Loss, form: Form) -> None:
        layers, z = chain(weights, inputs)
        self.found: Curvature = curvature(layers, [None] * len(layers), z, targets, loss)
        self.scale = spectral_norm(self.found.gauss_newton)
        beta = float(torch.linalg.matrix_norm(self.found.curvatures, 2).max())
        gamma = float(self.found.gradients.norm(dim=1).max())
        nu = [_nu(layer) for layer in layers]
        if form == "printed":
            check_white(z)
            self.gauss_newton = beta * sum(_product(nu, {k}) for k in range(len(nu)))
            pairs = [(k, other) for other in range(len(nu)) for k in range(other)]
            self.remainder = 2 * gamma * sum(_product(nu, {k, other}) for k, other in pairs)
            return
        total = float(z.square().sum()) / len(z)
        growth = [spectral_norm(z) ** 2 / len(z)] + [total * math.prod(nu[:k]) for k in range(1, len(nu))]
        self.gauss_newton = beta * sum(growth[k] * math.prod(nu[k + 1 :]) for k in range(len(nu)))
        self.remainder = gamma * sum(
            math.sqrt(growth[k] * _product(nu[k + 1 :], {other - k - 1})) for other in range(len(nu)) for k in range(other)
        )


def _product(values: Sequence[float], without: set[int]) -> float:
    return math.prod(value for number, value in enumerate(values) if number not in without)


# theorem 3


def effective_rank(weight: Tensor, inputs: Tensor, delta: float = 0.01) -> Bound:
    """Theorem 3, left: DfI < 1 keeps many singular values of the features ZW (before an activation) large.

        srank_δ ≥ ⌈(1 - δ)d / (δ √((1 + ε)/(1 - ε)) √(η₁/η_d) + 1 - δ)⌉

    with the d positive eigenvalues η of QᵀΣ_Z Q, Q the polar factor of W.
    """
    matrix, z = _checked(weight, inputs, delta)
    q = polar(matrix)
    eigenvalues = torch.linalg.eigvalsh(q.T @ (z.T @ z / len(z)) @ q)
    eigenvalues = eigenvalues[eigenvalues > _RANK * eigenvalues[-1]]
    if not len(eigenvalues):
        raise ValueError("the features are all 0 for these inputs, so they have no rank")
    spread = math.sqrt(float(eigenvalues[-1] / eigenvalues[0]))
    return _rank_bound(matrix, z, delta, len(eigenvalues), spread)


def effective_rank_white(weight: Tensor, inputs: Tensor, delta: float = 0.01) -> Bound:
    """Theorem 3, right: the same for white inputs, Σ_Z = I, where d is the number of outputs and η₁ = η_d."""
    matrix, z = _checked(weight, inputs, delta)
    check_white(z)
    return _rank_bound(matrix, z, delta, matrix.shape[1], 1.0)


def _checked(weight: Tensor, inputs: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """The weight as (in, out) and the inputs; raises if theorem 3 does not apply."""
    (matrix,), z = chain([weight], inputs)
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta}: pass the share of the spectrum to leave out, as in delta=0.01")
    _epsilon_below_one(matrix.T)
    return matrix.T, z


def _rank_bound(matrix: Tensor, inputs: Tensor, delta: float, rank: int, spread: float) -> Bound:
    epsilon = _epsilon_below_one(matrix)
    ratio = math.sqrt((1 + epsilon) / (1 - epsilon)) * spread
    least = (1 - delta) * rank / (delta * ratio + 1 - delta)
    values = torch.linalg.svdvals(inputs @ matrix)
    values = values[: int((values > math.sqrt(_RANK) * values[0]).sum())]
    # The smallest k whose share is at least 1 - δ: one more than the number of shares below.
    held = int((values.cumsum(0) / values.sum() < (1 - delta) * (1 - _CEILING)).sum()) + 1
    return Bound(float(held), float(math.ceil(least - _CEILING)), "lower")


# theorem 4


def activity(weight: Tensor) -> tuple[Bound, Bound]:
    """Theorem 4: the least and the largest activity score of a layer's units, for inputs z ~ N(0, I).

        √((1 - ε)/(1 + ε)) ≤ sⱼ ≤ √((1 + ε)/(1 - ε)),    sⱼ = E|σ(⟨z, wⱼ⟩)| / mean = ‖wⱼ‖ / mean‖w‖

    for every nonzero activation with σ(αt) = ασ(t), α ≥ 0: the expectation is exact, and no inputs are needed.

    >>> [bound.slack for bound in activity(torch.eye(3))]
    [0.0, 0.0]
    """
    (matrix,) = in_float64([weight])
    epsilon = _epsilon_below_one(matrix.T)
    scores = matrix.norm(dim=1) / matrix.norm(dim=1).mean()
    least = math.sqrt((1 - epsilon) / (1 + epsilon))
    return Bound(float(scores.min()), least, "lower"), Bound(float(scores.max()), 1 / least, "upper")


def dormancy_threshold(weight: Tensor, tau: float = 0.025) -> Bound:
    """Corollary 2: no unit is τ-dormant, sⱼ ≥ τ for all j, if DfI ≤ ((1 - τ²)/(1 + τ²))²; else an error.

    tau: 0.025 is that of Sokar et al.; DfI may then be up to 0.9975.
    """
    if not 0 < tau < 1:
        raise ValueError(f"tau={tau}: pass a share of the mean activity between 0 and 1, as in tau=0.025")
    (matrix,) = in_float64([weight])
    most, given = largest_deviation(tau), float(deviation_from_isometry(matrix.T))
    if given > most:
        raise ValueError(f"DfI is {given:.4g}, but corollary 2 needs at most {most:.4g}")
    return Bound(activity(matrix)[0].value, tau, "lower")


def largest_deviation(tau: float = 0.025) -> float:
    """Corollary 2: the DfI up to which no unit is τ-dormant.

    >>> round(largest_deviation(0.025), 4)
    0.9975
    """
    return ((1 - tau**2) / (1 + tau**2)) ** 2


# shared


def whitened(inputs: Tensor) -> Tensor:
    """ZΣ^(-1/2) with Σ = ZᵀZ/n, in float64: inputs that theorems 2 and 3 call white. Means are not subtracted.

    >>> z = whitened(torch.randn(8, 3))
    >>> torch.allclose(z.T @ z / 8, torch.eye(3, dtype=z.dtype))
    True
    """
    (z,) = in_float64([inputs])
    if len(z) < z.shape[1]:
        raise ValueError(f"{len(z)} samples of {z.shape[1]} features cannot be white: pass more samples")
    values, vectors = torch.linalg.eigh(z.T @ z / len(z))
    if values[0] <= _RANK * values[-1]:
        raise ValueError("the inputs lie in a subspace and cannot be white: drop features that depend on others")
    return z @ (vectors / values.sqrt()) @ vectors.T


def check_white(inputs: Tensor) -> None:
    """Raise unless ZᵀZ/n is the identity."""
    covariance = inputs.T @ inputs / len(inputs)
    away = spectral_norm(covariance - torch.eye(len(covariance), dtype=inputs.dtype, device=inputs.device))
    if away > _WHITE:
        raise ValueError(
            f"the inputs are not white: ZᵀZ/n is {away:.3g} from the identity. Pass fire.whitened(inputs), or use a form "
            "that needs no whitening"
        )


def _epsilon_below_one(matrix: Tensor) -> float:
    epsilon = math.sqrt(float(deviation_from_isometry(matrix)))
    if epsilon >= 1:
        more = f": at most {matrix.shape[0]} of {matrix.shape[1]} columns can be orthonormal with {matrix.shape[0]} inputs"
        raise ValueError(
            f"√DfI is {epsilon:.4g}, but the theorem needs less than 1{more if matrix.shape[1] > matrix.shape[0] else ''}"
        )
    return epsilon


def _nu(weight: Tensor) -> float:
    return 1 + math.sqrt(float(deviation_from_isometry(weight.T)))
