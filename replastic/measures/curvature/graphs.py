"""Hessian and Gauss-Newton matrices of a probe's loss, as operators.

A product with the Hessian differentiates the gradient. If the gradient's graph is kept, nothing else is needed, which takes
two thirds of the time of building the graph again for each product. If the graph of the whole batch does not fit into
memory, each product goes through the batch in chunks, whose graphs are built, differentiated and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...learner.fresh import seeded
from ...linalg.products import Precision
from ..probe import NotApplicable, NotMeasurable, Probe
from .chunks import Chunk, chunks_of, whole
from .double_backward import FastDoubleBackward
from .operators import SymmetricOperator, common_dtype, flat, second_derivative, split

CPU_BUDGET = 4 * 2**30  # bytes of kept graphs
CUDA_SHARE = 0.5  # of free memory; the rest is for intermediate results of products and for Lanczos vectors
_TRIAL = 16  # samples whose graph is measured to estimate that of the batch


def hessian(
    probe: Probe, *, chunk: int | None = None, keep_graph: bool | None = None, precision: Precision | None = None
) -> SymmetricOperator:
    """∂²L/∂θ² of the probe's loss in its trainable parameters, flat in the order of `probe.parameters`.

    chunk: number of samples to differentiate at a time; None: all, or as many as fit into memory. Chunks need a loss that is
        a mean or a sum over samples, and a model whose samples do not affect each other: batch norms must be in "eval" mode.
        With dropout, chunks draw other masks than the whole batch.
    keep_graph: whether to keep graphs between products; None: if they fit into memory.
    precision: of float32 on CUDA, "ieee" or "tf32"; None: torch's settings, which by default use TF32 (three digits) for
        convolutions but not for matrix products.

    Pearlmutter: Fast Exact Multiplication by the Hessian, Neural Computation 1994.
    """
    return _operator(probe, _HessianGraph, chunk, keep_graph, precision)


def gauss_newton(
    probe: Probe, *, chunk: int | None = None, keep_graph: bool | None = None, precision: Precision | None = None
) -> SymmetricOperator:
    """JᵀH_zJ: J is the derivative of the outputs z in the parameters, H_z the Hessian of the loss in z.

    chunk, keep_graph, precision: as for `hessian`.

    Schraudolph: Fast Curvature Matrix-Vector Products for Second-Order Gradient Descent, Neural
    Computation 2002.
    """
    return _operator(probe, _GaussNewtonGraph, chunk, keep_graph, precision)


class _HessianGraph:
    """The graph of the gradient of one chunk's loss."""

    def __init__(self, probe: Probe, chunk: Chunk, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        with FastDoubleBackward(channels_last=probe.once(takes_channels_last)):
            loss = probe.loss_of(probe.forward(chunk.inputs), chunk.targets) * chunk.weight
        self.gradients = gradients_of(loss, parameters)

    def product(self, vectors: Sequence[Tensor], keep: bool) -> Sequence[Tensor | None]:
        return second_derivative(self.gradients, self.parameters, vectors, keep=keep)


class _GaussNewtonGraph:
    """The graphs of one chunk's outputs, of Jᵀu as a linear function of u, and of the gradient of the loss in outputs.

    Jv is the derivative of ⟨Jᵀu, v⟩ in u.
    """

    def __init__(self, probe: Probe, chunk: Chunk, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        with FastDoubleBackward(linear=True, channels_last=probe.once(takes_channels_last)):
            self.outputs = probe.forward(chunk.inputs)
        if not isinstance(self.outputs, Tensor):
            raise NotApplicable(
                f"the Gauss-Newton matrix needs a model with one tensor of outputs, but this one returns a "
                f"{type(self.outputs).__name__}: use the Hessian"
            )
        self.cut = self.outputs.detach().requires_grad_()
        self.gradient = gradients_of(probe.loss_of(self.cut, chunk.targets) * chunk.weight, [self.cut])
        self.u = torch.zeros_like(self.cut, requires_grad=True)
        self.back = torch.autograd.grad(self.outputs, parameters, self.u, create_graph=True, allow_unused=True)

    def product(self, vectors: Sequence[Tensor], keep: bool) -> Sequence[Tensor | None]:
        (forward,) = second_derivative(self.back, [self.u], vectors, keep=True)
        if forward is None:
            return [None] * len(self.parameters)
        (curved,) = second_derivative(self.gradient, [self.cut], [forward], keep=keep)
        if curved is None:  # a loss that is linear in the outputs
            return [None] * len(self.parameters)
        return torch.autograd.grad(self.outputs, self.parameters, curved, retain_graph=keep, allow_unused=True)


_Graph = _HessianGraph | _GaussNewtonGraph


def gradients_of(loss: Tensor, variables: list[Tensor]) -> Sequence[Tensor | None]:
    """Gradients with their graph; None for variables that the loss does not depend on."""
    if not loss.requires_grad:
        raise NotMeasurable("the loss is not connected to the parameters: the code of the model or of the loss detaches it")
    return torch.autograd.grad(loss, variables, create_graph=True, allow_unused=True)


@contextmanager
def differentiable(probe: Probe, precision: Precision | None = None) -> Iterator[None]:
    """A context in which the model's outputs can be differentiated twice, in full precision."""
    try:
        common_dtype(list(probe.parameters.values()))
    except ValueError as problem:
        raise NotMeasurable(str(problem)) from problem
    with sdpa_kernel(SDPBackend.MATH), probe.differentiating(precision):  # fused attention has no second derivative
        yield


def takes_channels_last(probe: Probe) -> bool:
    """Whether the model runs with images in channels_last format; `view` in its code may refuse it."""
    if not all(parameter.is_cuda for parameter in probe.parameters.values()):
        return False
    try:
        with probe.running(), torch.no_grad(), FastDoubleBackward(channels_last=True):
            probe.forward()
    except RuntimeError:
        return False
    return True


def _operator(
    probe: Probe,
    make: Callable[[Probe, Chunk, list[Tensor]], _Graph],
    chunk: int | None,
    keep_graph: bool | None,
    precision: Precision | None,
) -> SymmetricOperator:
    if not isinstance(probe, Probe):
        raise TypeError(
            f"needs a Probe, got {type(probe).__name__}: write hessian(Probe(model, (inputs, targets), "
            "loss=torch.nn.functional.cross_entropy))"
        )
    probe.require_loss()
    parameters: list[Tensor] = list(probe.parameters.values())
    chunks, keep = _plan(probe, lambda part: make(probe, part, parameters), chunk, keep_graph)
    dtype = common_dtype(parameters)
    kept: list[_Graph] = []
    if keep:
        with differentiable(probe, precision):
            kept = [make(probe, part, parameters) for part in chunks]

    def product(vector: Tensor) -> Tensor:
        vectors = split(vector, parameters)
        total: Tensor | None = None
        # If graphs are built again for each product, dropout must draw the same masks each time.
        with torch.enable_grad(), nullcontext() if kept else seeded(probe.seed, probe.model):
            for at, part in enumerate(chunks):
                graph = kept[at] if kept else make(probe, part, parameters)
                made = flat(graph.product(vectors, keep), parameters, dtype)
                total = made if total is None else total.add_(made)
        assert total is not None
        return total

    size = sum(parameter.numel() for parameter in parameters)
    return SymmetricOperator(size, product, dtype, parameters[0].device, lambda: differentiable(probe, precision))


def _plan(probe: Probe, make: Callable[[Chunk], _Graph], chunk: int | None, keep: bool | None) -> tuple[list[Chunk], bool]:
    """The chunks, and whether their graphs are kept."""
    with differentiable(probe):
        chunks = [whole(probe)] if chunk is None else chunks_of(probe, chunk)
        if keep is not None:
            return chunks, keep
        # Measure the graph of the first few samples; for a count of bytes, batch norm may use these alone.
        few = whole(probe)
        try:
            some = few.first(_TRIAL)
            size = _graph_bytes(lambda: make(some), probe)
            few = some
        except (NotMeasurable, RuntimeError, ValueError):  # a loss that needs all samples, or that fails for the first few
            size = _graph_bytes(lambda: make(few), probe)
        bytes_each = size / few.samples
        budget = memory_budget(next(iter(probe.parameters.values())).device)
        if bytes_each * probe.samples <= budget:
            return chunks, True
        if chunk is not None:
            return chunks, False
        try:
            return chunks_of(probe, max(1, int(budget / bytes_each))), False
        except NotMeasurable:  # samples affect each other, so the batch cannot be split
            return chunks, False


def memory_budget(device: torch.device) -> float:
    """Bytes that kept graphs may take."""
    if device.type != "cuda":
        return CPU_BUDGET
    free, _ = torch.cuda.mem_get_info(device)
    return CUDA_SHARE * (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def _graph_bytes(build: Callable[[], _Graph], probe: Probe) -> int:
    """Bytes that a graph holds in addition to the model, each storage once."""
    held: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a node that held its own output would never be freed

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        graph = build()
    for parameter in probe.model.parameters():
        held.pop(parameter.untyped_storage().data_ptr(), None)
    del graph
    return sum(held.values())
