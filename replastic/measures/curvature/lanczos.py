"""Lanczos' iteration with full reorthogonalisation.

From a unit vector q₁, AQ = QT + β·(a rest): Q's rows are an orthonormal basis of span{q₁, Aq₁, A²q₁, ...} and T is
tridiagonal, with α on its diagonal and β beside it. T's eigenvalues approximate those of A, from the ends of the spectrum
inwards. Without reorthogonalisation, rounding brings eigenvalues that were found back a second and a third time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..probe import NotMeasurable
from ..range import power_of_two
from .operators import SymmetricOperator, plainly

# β is rounding, and the space is exhausted, below this many eps of the largest |α|, β so far.
_BREAKDOWN = 32
# Steps between looks at β on an accelerator, where looking means waiting for it. What is made meanwhile is thrown away.
_LOOK_EVERY = 10


class Lanczos:
    """The iteration from one start vector, as far as `advance` was told to take it.

    apart: orthonormal rows that everything is kept orthogonal to, as to eigenvectors that are known.
    """

    def __init__(self, operator: SymmetricOperator, start: Tensor, capacity: int, apart: Tensor | None = None) -> None:
        self.operator = operator
        self.most = operator.size - (0 if apart is None else len(apart))
        self.apart = apart
        self.steps = 0
        self.exhausted = False  # the basis spans all that can be reached from the start: T's eigenvalues are A's
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
        """Take so many steps more, or fewer if the space is exhausted before."""
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
        """The length of what is left over after the last step; zero if nothing is."""
        return 0.0 if self.exhausted else float(self._betas[-1])

    @property
    def resolution(self) -> float:
        """How far T's eigenvalues may be off by rounding: eps of the largest, or the β that was taken for zero."""
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
        # Once against the last two, where nearly all there is to take away lies, then against all: twice is enough.
        rest = rest.sub(row * alpha)
        if at:
            rest.sub_(self._rows[at - 1] * self._betas[-1])
        rows = self._rows[: at + 1]
        overlaps = rows.mv(rest)
        rest.sub_(rows.mT.mv(overlaps))
        rest = self._outside(rest)
        scale = power_of_two(rest)  # a norm is of squares: those of large entries overflow, and those of small ones vanish
        rest = rest.div_(scale)
        norm = torch.linalg.vector_norm(rest)
        self._alphas.append(alpha + overlaps[-1])
        self._betas.append(norm * scale)
        self._next = rest / norm.clamp_min(torch.finfo(norm.dtype).tiny)
        self.steps += 1

    def _outside(self, vector: Tensor) -> Tensor:
        return vector if self.apart is None else vector - self.apart.mT.mv(self.apart.mv(vector))

    def _look(self) -> None:
        """See whether β has vanished at some step, and if so forget those behind it."""
        alphas, betas = torch.stack(self._alphas).abs(), torch.stack(self._betas)
        if not (alphas.isfinite().all() and betas.isfinite().all()):
            raise NotMeasurable(
                f"products with the operator are NaN or infinite in {betas.dtype}: look at the batch and the weights, or "
                "compute in float64, as with model.double()"
            )
        scale = torch.cummax(torch.maximum(alphas, betas), 0).values
        gone = (betas <= _BREAKDOWN * torch.finfo(betas.dtype).eps * scale).nonzero().flatten().tolist()
        if gone or self.steps == self.most:
            self.exhausted = True
            self.steps = gone[0] + 1 if gone else self.steps
            del self._alphas[self.steps :], self._betas[self.steps :]


def random_vector(operator: SymmetricOperator, generator: torch.Generator | None) -> Tensor:
    """Gaussian, so that no direction is preferred; the same numbers whatever the operator's dtype."""
    return torch.randn(operator.size, dtype=torch.float32, device=operator.device, generator=generator).to(operator.dtype)
