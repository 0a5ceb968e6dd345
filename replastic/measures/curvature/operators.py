"""Symmetric matrices that are defined by their products with vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

DENSE_LIMIT = 10_000  # rows; as a float64 matrix 0.8 GB, and ten thousand products


class SymmetricOperator:
    """A symmetric matrix (size, size), defined by its product with a flat vector (size,).

    around: makes a context that products are computed in. Code that computes several enters it once, with `plainly`.

    >>> operator = SymmetricOperator(3, lambda vector: 2 * vector, torch.float64, torch.device("cpu"))
    >>> operator.product(torch.ones(3, dtype=torch.float64))
    tensor([2., 2., 2.], dtype=torch.float64)
    """

    def __init__(
        self,
        size: int,
        product: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
        device: torch.device,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        if size < 1:
            raise ValueError(f"size={size}: an operator has 1 row or more")
        self.size, self.dtype, self.device = size, dtype, device
        self._product, self._around, self._inside = product, around, False

    def __repr__(self) -> str:
        return f"SymmetricOperator({self.size} x {self.size}, {self.dtype}, {self.device})"

    def product(self, vector: Tensor) -> Tensor:
        """The matrix times a vector."""
        if vector.shape != (self.size,) or vector.dtype != self.dtype:
            raise ValueError(
                f"a vector of shape {tuple(vector.shape)} in {vector.dtype}: pass one of shape ({self.size},) in "
                f"{self.dtype}"
            )
        with self.within():
            return self._product(vector)

    __call__ = __matmul__ = product  # hessian(vector), hessian @ vector

    @contextmanager
    def within(self) -> Iterator[None]:
        """The context that products are computed in; entering it again within does nothing."""
        if self._inside:
            yield
            return
        with self._around():
            self._inside = True
            try:
                yield
            finally:
                self._inside = False


@contextmanager
def plainly(operator: SymmetricOperator) -> Iterator[None]:
    """A context to compute with vectors in: without gradients and autocast."""
    with operator.within(), torch.no_grad(), torch.autocast(operator.device.type, enabled=False):
        yield


def from_matrix(matrix: Tensor) -> SymmetricOperator:
    """A matrix as an operator.

    >>> from_matrix(torch.eye(2)).product(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    if matrix.ndim != 2 or not torch.equal(matrix, matrix.mT):
        raise ValueError(f"needs a symmetric matrix, got one of shape {tuple(matrix.shape)}: pass (A + A.T) / 2")
    return SymmetricOperator(len(matrix), matrix.mv, matrix.dtype, matrix.device)


def dense(operator: SymmetricOperator) -> Tensor:
    """The matrix itself, by a product with every unit vector: for small operators and for checks."""
    if operator.size > DENSE_LIMIT:
        raise ValueError(
            f"the operator has {operator.size} rows, and at most {DENSE_LIMIT} can be made dense: "
            "use top_eigenvalues, spectral_density or hutch_plus_plus, which need only products"
        )
    matrix = torch.empty(operator.size, operator.size, dtype=operator.dtype, device=operator.device)
    unit = torch.zeros(operator.size, dtype=operator.dtype, device=operator.device)
    with plainly(operator):
        for column in range(operator.size):
            unit[column] = 1
            matrix[:, column] = operator.product(unit)
            unit[column] = 0
    return matrix


def hessian_of(loss: Tensor, parameters: Sequence[Tensor]) -> SymmetricOperator:
    """∂²L/∂θ² of a scalar that was computed from the parameters; the operator keeps its graph.

    Pearlmutter: Fast Exact Multiplication by the Hessian, Neural Computation 1994.

    >>> theta = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> dense(hessian_of((theta**3).sum(), [theta]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    if loss.numel() != 1:
        raise ValueError(f"the loss must be one number, but has shape {tuple(loss.shape)}: average it, as with .mean()")
    if not loss.requires_grad:
        raise ValueError("the loss was computed without a graph: compute it outside of torch.no_grad()")
    parameters = list(parameters)
    dtype, device = common_dtype(parameters), parameters[0].device
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)

    def product(vector: Tensor) -> Tensor:
        with torch.autocast(device.type, enabled=False):
            made = second_derivative(gradients, parameters, split(vector, parameters), keep=True)
            return flat(made, parameters, dtype)

    return SymmetricOperator(sum(parameter.numel() for parameter in parameters), product, dtype, device)


def second_derivative(
    gradients: Sequence[Tensor | None], parameters: Sequence[Tensor], vectors: Sequence[Tensor], *, keep: bool
) -> tuple[Tensor | None, ...]:
    """∂⟨g, v⟩/∂θ; None for parameters that it does not depend on, for example if the loss is linear in them."""
    pairs = [(g, v) for g, v in zip(gradients, vectors, strict=True) if g is not None and g.requires_grad]
    if not pairs:
        return (None,) * len(parameters)
    outputs, weights = zip(*pairs, strict=True)
    return torch.autograd.grad(outputs, parameters, weights, retain_graph=keep, allow_unused=True)


def common_dtype(parameters: Sequence[Tensor]) -> torch.dtype:
    """The dtype of a flat vector of all parameters; raises for less than float32."""
    if not parameters:
        raise ValueError("parameters is empty: pass those to differentiate with respect to")
    low = [parameter.dtype for parameter in parameters if torch.finfo(parameter.dtype).bits < 32]
    if low:
        raise ValueError(f"parameters are in {low[0]}, too coarse for second derivatives: use model.float()")
    dtype = parameters[0].dtype
    for parameter in parameters[1:]:
        dtype = torch.promote_types(dtype, parameter.dtype)
    return dtype


def split(vector: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """A flat vector as tensors of the parameters' shapes; views, unless dtypes differ."""
    pieces = vector.split([parameter.numel() for parameter in parameters])
    return [piece.view(p.shape).to(p.dtype) for piece, p in zip(pieces, parameters, strict=True)]


def flat(tensors: Sequence[Tensor | None], parameters: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Tensors of the parameters' shapes as one vector, with zeros for None."""
    filled = [torch.zeros_like(p) if t is None else t for t, p in zip(tensors, parameters, strict=True)]
    return torch.cat([tensor.reshape(-1).to(dtype) for tensor in filled])
