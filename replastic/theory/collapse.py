"""Theorems on spectral collapse: dead units and the Hessian's rank, which units stay dead, how large R is.

He, Guo, Prakash, Tiwari, Tao, Serapio, Greenwald & Konidaris: Spectral Collapse Drives Loss of Plasticity in Deep Continual
Learning, section 6 and appendix B. The networks have two layers, W₁ (H, I), b₁, W₂ (O, H), b₂, with ReLU between them;
weights are (out, in), as PyTorch stores them. Everything is computed in float64.

Departures, where the printed form does not hold or needs further assumptions:
    - Theorem 6.2 counts units with preactivations of exactly 0 as dead. There ReLU has no derivative; torch uses 0,
      and with that the theorem holds.
    - Lemma B.1 assumes that a ball of radius e around a point of the ball of radius r has the share (e/r)^I of it (equation
      15). Near the boundary, where most of a ball's volume is if I is large, much of the small ball lies outside. A ball of
      radius e/2 lies inside, so that
          Δ ≤ 2r (log(2N/δ)/N)^(1/I),    p ≥ 1 - 2exp(log N - N (γ/(2‖w‖r))^I)
      hold. γ must be a constant: a margin that is computed from the same random points is not.
    - Theorem 6.5 compares the number of dead units that persist with n - m, the number of live units needed, where m is the
      number that may be dead. But a task is trainable if k_d + Σξ ≤ m, not if Σξ ≤ n - m. With S = Σξ, by Cantelli,
          P(trainable) ≤ P(S ≤ m - k_d) ≤ Var S / (Var S + (μ - m + k_d)²)    if μ > m - k_d
      k_d, which the paper does not define, counts units outside of S that are dead for every shift.
    - The proof of 6.5 uses Var S = Σp(1 - p), which is that of independent units. By definition 6.4 all depend on one Δ: ξⱼ
      is 1 if Δ ≤ γⱼ/‖wⱼ‖. Then Var S = Σᵢⱼ min(pᵢ, pⱼ) - pᵢpⱼ, which is up to k times as large.
    - Theorem B.3 compares the gradients at a new and an old sample as if they had the same label (equations 32 to 34). Here
      the change of labels is a separate term: without it, new labels of old inputs would change nothing. The paper does not
      define d(X, X'); the proof needs a largest distance, such as the Hausdorff distance.
    - Corollary B.4: equation 35 has λᵢ(R) for λᵢ(G). Equations 38 to 40 are about the smallest positive eigenvalue of H,
      which may come from R where G has a zero, and can be arbitrarily small. Weyl's inequality gives, for r = rank G,
          λ_r(H + 2qI) ≥ λ_r(G) - ‖R‖₂ + 2q
      and the conclusion (2q > ‖R‖₂ - λ_r(G) keeps r eigenvalues positive) follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..measures.constants import spectral_norm
from .bound import Bound
from .dense import Curvature, Form, Loss, chain, curvature, in_float64, output_curvature

Dependence = Literal["common", "independent"]

# The paper's two losses of outputs z and labels y (vectors; a class is a one-hot vector), with the Lipschitz constant of
# their gradients in z: that of softmax is 1/2, attained where two classes share all of the probability.
_LOSSES: dict[str, tuple[Loss, float]] = {
    "squared": (lambda z, y: (z - y).square().sum(1).mean() / 2, 1.0),
    "cross_entropy": (lambda z, y: -(y * torch.log_softmax(z, 1)).sum(1).mean(), 0.5),
}


# theorem 6.2


def dead_units(weight: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    """Definition 6.1: which units of a ReLU layer are 0 for all inputs, one bool per unit.

    >>> dead_units(torch.tensor([[1.0], [1.0]]), torch.tensor([0.0, -3.0]), torch.tensor([[1.0], [2.0]]))
    tensor([False,  True])
    """
    return margins(weight, bias, inputs) >= 0


def hessian_rank(weights: Sequence[Tensor], biases: Sequence[Tensor], inputs: Tensor, targets: Tensor, loss: Loss) -> Bound:
    """Theorem 6.2: k dead units of a two-layer ReLU network reduce the Hessian's rank by k(I + O + 1).

        rank(∇²L) ≤ P - k(I + O + 1),    P = H(I + 1) + O(H + 1)

    loss: a mean over samples. The rank is the number of eigenvalues above P·2e-16 times the largest, in float64.
    """
    (first, second), x = chain(weights, inputs)
    hessian = curvature(weights, biases, inputs, targets, loss).hessian
    dead = int(dead_units(first, biases[0].detach().double(), x).sum())
    values = torch.linalg.eigvalsh(hessian)
    rank = int((values.abs() > _null(values)).sum())
    return Bound(float(rank), float(len(hessian) - dead * (first.shape[1] + second.shape[0] + 1)), "upper")


def most_dead_units(inputs: int, hidden: int, outputs: int, rank: float) -> float:
    """Theorem 6.2, solved for k: m = (P - ρ)/(I + O + 1), the most dead units with which a Hessian of rank ρ is possible.

    >>> most_dead_units(inputs=2, hidden=4, outputs=1, rank=9)
    2.0
    """
    parameters = hidden * (inputs + 1) + outputs * (hidden + 1)
    return (parameters - rank) / (inputs + outputs + 1)


# lemma 6.3 and definition 6.4


def hausdorff_distance(inputs: Tensor, others: Tensor) -> Tensor:
    """Δ = max over the points of either set of the distance to the nearest point of the other; rows are points.

    >>> hausdorff_distance(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [5.0]]))
    tensor(4.)
    """
    if inputs.ndim != 2 or others.ndim != 2 or inputs.shape[1] != others.shape[1] or not len(inputs) or not len(others):
        raise ValueError(
            f"sets of shapes {tuple(inputs.shape)} and {tuple(others.shape)}: pass one row per point, of the same length"
        )
    # By differences: inner products lose half of the digits for points that are close together.
    distances = torch.cdist(inputs, others, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.maximum(distances.amin(1).amax(), distances.amin(0).amax())


def margins(weight: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    """γⱼ = -max over inputs of the preactivation: 0 or more for a dead unit, below 0 for a live one."""
    return -torch.nn.functional.linear(inputs, weight, bias).amax(0)


def stay_dead(weight: Tensor, bias: Tensor | None, inputs: Tensor, shifted: Tensor) -> Tensor:
    """Definition 6.4: which units are certain to be dead on `shifted`, γⱼ ≥ Δ‖wⱼ‖, one bool per unit."""
    return margins(weight, bias, inputs) >= hausdorff_distance(inputs, shifted) * weight.norm(dim=1)


def shifted_preactivation(weight: Tensor, bias: Tensor | None, inputs: Tensor, shifted: Tensor) -> Bound:
    """Lemma 6.3 (equation 11), for the unit that is nearest to its bound, dead or not.

    max over shifted inputs of the preactivation ≤ -γⱼ + Δ‖wⱼ‖
    """
    weight, inputs, shifted = in_float64([weight, inputs, shifted])
    bias = None if bias is None else bias.double()
    values = -margins(weight, bias, shifted)
    bounds = hausdorff_distance(inputs, shifted) * weight.norm(dim=1) - margins(weight, bias, inputs)
    unit = int((bounds - values).argmin())
    sizes = torch.nn.functional.linear(inputs.abs(), weight.abs(), None if bias is None else bias.abs())
    return Bound(float(values[unit]), float(bounds[unit]), "upper", scale=float(sizes.max()))


# lemma B.1


def largest_shift(samples: int, dimension: int, *, radius: float = 1.0, delta: float = 0.05, form: Form = "proved") -> float:
    """Lemma B.1: a bound on the Hausdorff distance of two sets of N points, uniform in a ball, with probability 1 - δ.

    Δ ≤ 2r (log(2N/δ)/N)^(1/I)    proved, and never more than 2r
    Δ ≤ r (log(2N/δ)/N)^(1/I)     printed, and false
    """
    _check_points(samples, dimension, radius)
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta}: pass a probability between 0 and 1, as in delta=0.05")
    share = (math.log(2 * samples / delta) / samples) ** (1 / dimension)
    return radius * share if form == "printed" else 2 * radius * min(share, 1.0)


def persistence(threshold: float, samples: int, dimension: int, *, radius: float = 1.0, form: Form = "proved") -> float:
    """Lemma B.1: a lower bound on the probability that a dead unit stays dead; 0 where the lemma gives none.

        p ≥ 1 - 2exp(log N - N (c/2r)^I),    c = γ/‖w‖, a constant    proved
        p ≥ 1 - 2exp(log N - N (c/r)^I)                               printed, and false

    threshold: c, the shift up to which the unit is certain to stay dead.
    """
    if threshold < 0:
        raise ValueError(f"threshold={threshold}: γ/‖w‖ of a dead unit is 0 or more; if it is below 0, the unit is alive")
    _check_points(samples, dimension, radius)
    share = threshold / (radius if form == "printed" else 2 * radius)
    if share >= 1 and form == "proved":
        return 1.0  # no two points of the ball are farther apart
    power = min(share, 1.0) ** dimension
    return max(0.0, 1 - 2 * math.exp(min(0.0, math.log(samples) - samples * power)))


def _check_points(samples: int, dimension: int, radius: float) -> None:
    if samples < 1 or dimension < 1 or not radius > 0:
        raise ValueError(
            f"samples={samples}, dimension={dimension}, radius={radius}: pass 1 or more samples and dimensions, and a "
            "positive radius"
        )


# theorem 6.5


def trainability(
    probabilities: Tensor,
    allowed: float,
    *,
    already_dead: int = 0,
    dependence: Dependence = "common",
) -> Bound:
    """Theorem 6.5: an upper bound on the probability that few enough units stay dead for the next task to be trainable.

        P(S ≤ m - k_d) ≤ Var S / (Var S + (μ - m + k_d)²)    if μ = Σp > m - k_d, else 1

    The value is the exact P(S ≤ m - k_d), which bounds the probability of being trainable.

    probabilities: p of each dead unit, its probability of staying dead.
    allowed: m, from `most_dead_units`.
    already_dead: k_d, further units that are dead for every shift.
    dependence: "common" if all units depend on one shift, by definition 6.4; "independent" as in the proof.
    """
    p = probabilities.detach().double().flatten()
    if not len(p) or (p < 0).any() or (p > 1).any():
        raise ValueError("probabilities must be numbers between 0 and 1, one or more: those of dead units to stay dead")
    room = allowed - already_dead
    if dependence == "common":  # ξⱼ = 1 if u ≤ pⱼ for one uniform u, so S ≤ s if u exceeds the (s + 1)-th largest p
        most = math.floor(room) if math.isfinite(room) else len(p)
        ordered = p.sort(descending=True).values
        value = 0.0 if most < 0 else 1.0 if most >= len(p) else 1 - float(ordered[most])
        variance = float((torch.minimum(p[:, None], p) - p[:, None] * p).sum())
    elif dependence == "independent":
        value, variance = _at_most(p, room), float((p * (1 - p)).sum())
    else:
        raise ValueError(f'dependence={dependence!r}: pass "common" or "independent"')
    return Bound(value, _cantelli(variance, float(p.sum()) - room), "upper", scale=1.0)


def printed_trainability(probabilities: Tensor, units: int, allowed: float) -> float:
    """Theorem 6.5 as printed, which is not a bound: Σp(1 - p) / (Σp - (n - m))²."""
    p = probabilities.detach().double().flatten()
    return float((p * (1 - p)).sum()) / (float(p.sum()) - (units - allowed)) ** 2


def _cantelli(variance: float, above: float) -> float:
    """An upper bound on P(S ≤ E S - above)."""
    if above <= 0:
        return 1.0
    return variance / (variance + above**2) if variance > 0 else 0.0  # impossible; above**2 may round to 0


def _at_most(probabilities: Tensor, most: float) -> float:
    """P(S ≤ most) for a sum S of independent indicators, by convolution."""
    law = torch.zeros(len(probabilities) + 1, dtype=torch.float64, device=probabilities.device)
    law[0] = 1
    for p in probabilities:
        stay, rise = law * (1 - p), law * p
        law = stay + torch.cat([rise.new_zeros(1), rise[:-1]])
    return float(law[: max(0, math.floor(most) + 1)].sum()) if most < len(probabilities) else 1.0


# theorem B.3 and corollary B.4


def residual_norm(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    old: tuple[Tensor, Tensor],
    new: tuple[Tensor, Tensor],
    loss: Literal["squared", "cross_entropy"] = "cross_entropy",
    *,
    form: Form = "proved",
) -> Bound:
    """Theorem B.3: the residual R = ∇²L - G on a new task, before it is learnt, of a ReLU network of any depth.

        ‖R‖₂ ≤ √O Γ (max_old ‖∇ℓ‖ + L_f L_g Δ + D)    proved
        ‖R‖₂ ≤ √O Γ (max_old ‖∇ℓ‖ + L_f L_g Δ)        printed, and false if labels change

    with Γ the largest ‖∇²z‖₂ of an output on the new inputs, L_f = Π‖W‖₂, L_g the constant of the loss's gradient (1 for
    half the squared error, 1/2 for cross-entropy), Δ the Hausdorff distance of the inputs, and D the largest ‖y - y'‖ of a
    new sample and its nearest old sample: in both losses, a change of labels moves the gradient by that much.

    old, new: (inputs, labels); labels are vectors (samples, outputs), or classes.
    """
    if loss not in _LOSSES:
        raise ValueError(f"loss={loss!r}: pass one of {', '.join(map(repr, _LOSSES))}, which the theorem covers")
    outputs = weights[-1].shape[0]
    (x, y), (new_x, new_y) = _vectors(old, outputs), _vectors(new, outputs)
    function, smoothness = _LOSSES[loss]
    there = curvature(weights, biases, new_x, new_y, function)
    before = float(curvature(weights, biases, x, y, function).gradients.norm(dim=1).max())
    lipschitz = math.prod(map(spectral_norm, weights))
    nearest = torch.cdist(new_x, x, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
    moved = 0.0 if form == "printed" else float((new_y - y[nearest]).norm(dim=1).max())
    rate = before + lipschitz * smoothness * float(hausdorff_distance(x, new_x)) + moved
    bound = math.sqrt(outputs) * output_curvature(weights, biases, new_x) * rate
    return Bound(spectral_norm(there.residual), bound, "upper", scale=spectral_norm(there.hessian))


def smallest_kept_eigenvalue(found: Curvature, q: float = 0.0) -> Bound:
    """Corollary B.4 (Weyl): the r-th largest eigenvalue of H + 2qI, where r = rank G and q‖θ‖² is added to the loss.

        λ_r(H + 2qI) ≥ λ_r(G) - ‖R‖₂ + 2q

    found: the result of `hessian_parts`.
    """
    of_gauss_newton = torch.linalg.eigvalsh(found.gauss_newton).flip(0)
    rank = int((of_gauss_newton > _null(of_gauss_newton)).sum())
    if not rank:
        raise ValueError("the Gauss-Newton matrix is 0: it has no positive eigenvalue to keep")
    of_hessian = torch.linalg.eigvalsh(found.hessian).flip(0)
    bound = float(of_gauss_newton[rank - 1]) - spectral_norm(found.residual) + 2 * q
    return Bound(float(of_hessian[rank - 1]) + 2 * q, bound, "lower", scale=spectral_norm(found.hessian))


def hessian_parts(
    weights: Sequence[Tensor], biases: Sequence[Tensor | None], inputs: Tensor, targets: Tensor, loss: Loss
) -> Curvature:
    """H and G of a small ReLU network, with their terms; R is `.residual`."""
    return curvature(weights, biases, inputs, targets, loss)


def _vectors(batch: tuple[Tensor, Tensor], outputs: int) -> tuple[Tensor, Tensor]:
    inputs, labels = batch
    if not labels.is_floating_point():
        labels = torch.nn.functional.one_hot(labels, outputs)
    if labels.shape != (len(inputs), outputs):
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} for {len(inputs)} samples and {outputs} outputs: pass classes, or one "
            "row of numbers per sample"
        )
    return inputs.detach().double(), labels.double()


def _null(eigenvalues: Tensor) -> Tensor:
    """The size up to which eigenvalues are rounding."""
    return len(eigenvalues) * torch.finfo(eigenvalues.dtype).eps * eigenvalues.abs().max()
