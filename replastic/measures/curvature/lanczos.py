"""The Lanczos iteration with full reorthogonalisation.

From a unit vector q₁, AQ = QT + β·(a residual): Q's rows are an orthonormal basis of span{q₁, Aq₁, A²q₁, ...} and T is
tridiagonal, with α on its diagonal and β next to it. T's eigenvalues approximate those of A, first at the ends of the
spectrum. Without reorthogonalisation, rounding would make eigenvalues appear several times.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..probe import NotMeasurable
from ..range import power_of_two
from .operators import SymmetricOperator, plainly

# β is rounding, and the space is exhausted, if β is below this many eps times the largest |α|, β so far.
_BREAKDOWN = 32
# Steps between checks of β on an accelerator, where a check waits for it. Steps after the end are discarded.
_LOOK_EVERY = 10


class Lanczos:
    """The iteration from one start vector, continued by `advance`.

    apart: orthonormal rows that all vectors are kept orthogonal to, for example known eigenvectors.
    """

    def __init__(self, operator: SymmetricOperator, start: Tensor, capacity: int, apart: Tensor | None = None) -> None:
        self.operator = operator
        self.most = operator.size - (0 if apart is None else len(apart))
        self.apart = apart
        self.steps = 0
        self.exhausted = False  # the basis spans the whole Krylov space: T's eigenvalues are A's
        self._rows = torch.empty(
            max(1, min(capacity, self.most)), operator.size, dtype=operator.dtype, device=operator.device
        )
        self._alphas: list[Tensor] = []
        self._betas: list[Tensor] = []
        self._next = start.to(operator.dtype)
        with plainly(operator):
            for _ in range(2):
                self._next = self._outside(self._next)
                self._next = self._next / torch.linalg.vector_norm(self._next)

    def advance(self, steps: int) -> None:
        """Take more steps, or fewer if the space is exhausted before."""
        target = min(self.steps + steps, self.most)
        with plainly(self.operator):
            while self.steps < target and not self.exhausted:
                self._step()
                if self.operator.device.type == "cpu" or self.steps % _LOOK_EVERY == 0 or self.steps == target:
                    self._look()

    @property
    def basis(self) -> Tensor:
        """(steps, size): orthonormal rows."""
        return self._rows[: self.steps]

    @property
    def beta(self) -> float:
        """The norm of the residual after the last step; zero if the space is exhausted."""
        return 0.0 if self.exhausted else float(self._betas[-1])

    @property
    def resolution(self) -> float:
        """The error of T's eigenvalues from rounding: eps times the largest, or the β that was taken for zero."""
        largest = float(torch.stack([*self._alphas, *self._betas]).abs().amax())
        vanished = float(self._betas[-1]) if self.exhausted else 0.0
        return max(torch.finfo(self._next.dtype).eps * largest, vanished)

    def eigh(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues of T, ascending, and its eigenvectors as columns: float64, on the CPU."""
        alphas = torch.stack(self._alphas).double().cpu()
        betas = torch.stack(self._betas).double().cpu()[:-1]
        return torch.linalg.eigh(torch.diag(alphas) + torch.diag(betas, 1) + torch.diag(betas, -1))

    def _step(self) -> None:
        at = self.steps
        if at == len(self._rows):
            self._rows = torch.cat([self._rows, torch.empty_like(self._rows)])[: self.most]
        row = self._rows[at].copy_(self._next)
        rest = self.operator.product(row)
        alpha = torch.dot(row, rest)
        # Orthogonalise against the last two rows, which have nearly all of the overlap, then against all: twice is enough.
        rest = rest.sub(row * alpha)
        if at:
            rest.sub_(self._rows[at - 1] * self._betas[-1])
        rows = self._rows[: at + 1]
        overlaps = rows.mv(rest)
        rest.sub_(rows.mT.mv(overlaps))
        rest = self._outside(rest)
        scale = power_of_two(rest)  # squares of large entries would overflow, and those of small ones vanish
        rest = rest.div_(scale)
        norm = torch.linalg.vector_norm(rest)
        self._alphas.append(alpha + overlaps[-1])
        self._betas.append(norm * scale)
        self._next = rest / norm.clamp_min(torch.finfo(norm.dtype).tiny)
        self.steps += 1

    def _outside(self, vector: Tensor) -> Tensor:
        return vector if self.apart is None else vector - self.apart.mT.mv(self.apart.mv(vector))

    def _look(self) -> None:
        """Check whether β has vanished at some step, and if so drop the steps after it."""
        alphas, betas = torch.stack(self._alphas).abs(), torch.stack(self._betas)
        if not (alphas.isfinite().all() and betas.isfinite().all()):
            raise NotMeasurable(
                f"products with the operator are NaN or infinite in {betas.dtype}: check the batch and the weights, or "
                "compute in float64, as with model.double()"
            )
        scale = torch.cummax(torch.maximum(alphas, betas), 0).values
        gone = (betas <= _BREAKDOWN * torch.finfo(betas.dtype).eps * scale).nonzero().flatten().tolist()
        if gone or self.steps == self.most:
            self.exhausted = True
            self.steps = gone[0] + 1 if gone else self.steps
            del self._alphas[self.steps :], self._betas[self.steps :]


def random_vector(operator: SymmetricOperator, generator: torch.Generator | None) -> Tensor:
    """A Gaussian vector, so that no direction is preferred; the same numbers for every dtype."""
    return torch.randn(operator.size, dtype=torch.float32, device=operator.device, generator=generator).to(operator.dtype)
