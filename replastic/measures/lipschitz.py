"""An upper bound on how much a model can stretch: its Lipschitz constant in l2, layer by layer along its graph.

    ‖f(x) - f(y)‖ ≤ K‖x - y‖,    K = Π‖W‖₂ for a chain with 1-Lipschitz activations

which is corollary 2.1 of Soft Weight Rescaling (appendix B; Gouk, Frank, Pfahringer & Cree 2021). In a graph
constants multiply along a path, add where paths are added, and are the root of their squares' sum where they are
concatenated. The bound is far above the true constant of a deep network, but never below it.

    linear            ‖W‖₂
    convolution       the smaller of two bounds, both exact for kernels of one tap:
                      √(Σ over classes of (Σ over its taps ‖W_tap‖₂)²): taps that differ modulo the stride read different
                      inputs; and √windows·‖W_unfolded‖₂, for as many windows as one input can be in
    activation        the largest |slope|, as 1.129 of GELU and 1/4 of a sigmoid
    batch norm        max |γ|/√(variance + ε), in eval mode
    max-pooling       √windows
    averages, sums, padding, copies, selections and moves of axes: √(largest row sum · largest column sum) of the matrix
                      with entries ≥ 0 that they are; 1 for a permutation
    CReLU             1: (relu(a) - relu(b))² + (relu(-a) - relu(-b))² ≤ (a - b)²

The constant is of inputs of the batch's shape. Hooks are trusted to change no outputs. What has no constant, or none that
is known here, is an error that names the layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import batchnorm, conv, dropout, instancenorm, padding, pooling

from ..units.kinds import is_leaf
from ..units.shapes import name_of
from .probe import NotMeasurable, Probe


def lipschitz_bound(probe: Probe) -> float:
    """K with ‖f(x) - f(y)‖ ≤ K‖x - y‖ for all inputs of the batch's shape, in the probe's mode.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid(), nn.Linear(2, 2))
    >>> for layer in (net[0], net[2]):
    ...     _ = nn.init.eye_(layer.weight)
    >>> lipschitz_bound(Probe(net, torch.randn(4, 2)))
    0.25
    """
    probe.check_finite()
    with probe.running(), torch.no_grad():
        model = nn.Sequential(probe.model) if is_leaf(probe.model) else probe.model
        try:
            graph = _Tracer().trace(model)
        except Exception as error:  # any code may stand in forward, so any error may come out of it
            problem = str(error).partition("\n")[0].partition(". ")[0]
            raise NotMeasurable(
                f"torch.fx cannot follow the code of {type(model).__name__} ({problem}): one run would not show what it "
                "does to other inputs"
            ) from error
        walk = _Walk(fx.GraphModule(model, graph))
        walk.run(*_in_order(graph, probe.inputs))
        return walk.found


@torch.no_grad()
def product_of_spectral_norms(matrices: Sequence[Tensor]) -> float:
    """Π‖W‖₂: the Lipschitz constant of a chain of linear layers is at most this (equation 13 of Soft Weight Rescaling).

    >>> product_of_spectral_norms([2 * torch.eye(3), torch.diag(torch.tensor([3.0, 1.0, 1.0]))])
    6.0
    """
    return math.prod(_spectral(matrix) for matrix in matrices)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(m)


def _in_order(graph: fx.Graph, inputs: Any) -> list[Any]:
    """The model's arguments, as its graph lists them; copies, because layers may work in place."""
    names = [str(node.target) for node in graph.nodes if node.op == "placeholder"]
    if not isinstance(inputs, Mapping):
        return [inputs.clone()]
    unknown = [name for name in inputs if name not in names]
    if unknown:
        raise NotMeasurable(f"the inputs hold {unknown[0]!r}, and the model takes {', '.join(names)}")
    last = max(names.index(name) for name in inputs)
    given = [inputs.get(name) for name in names[: last + 1]]
    return [value.clone() if isinstance(value, Tensor) else value for value in given]


class _Refused(Exception):
    """Why a call has no constant."""


Read = Callable[[int, str, Any], Any]  # an argument, by its position or its name, or a default


class _Walk(fx.Interpreter):
    """Runs a graph, for the shapes, and finds for every value the constant of its dependence on the inputs."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False  # an error is to say what is wrong with the model, not with the graph
        self.constants: dict[fx.Node, float] = {}
        self.found = math.nan

    def run_node(self, n: fx.Node) -> Any:
        # Before it runs: it may write over what it is given.
        self.constants[n] = constant = self._constant(n)
        before = [(node, value, value._version) for node, held in self.env.items() for value in _tensors(held)]
        result = super().run_node(n)
        for node, value, version in before:
            if value._version != version:  # written to, in place; what is not the same view may hold old values as well
                same = isinstance(result, Tensor) and _view(result) == _view(value)
                self.constants[node] = constant if same else math.hypot(constant, self.constants[node])
        return result

    def _constant(self, n: fx.Node) -> float:
        if n.op == "placeholder":
            return 1.0
        if n.op == "get_attr":
            return 0.0
        sources = [node for node in n.all_input_nodes if self.constants[node]]
        if n.op == "output":
            self.found = math.hypot(*(self.constants[node] for node in sources))
            return self.found
        if not sources:
            return 0.0
        try:
            if n.op == "call_module":
                return self._of_module(n, sources)
            return self._of_function(n, sources)
        except _Refused as problem:
            call = name_of(n.target)
            if n.op == "call_module":
                call = f"{n.target} ({type(self.module.get_submodule(str(n.target))).__name__})"
            raise NotMeasurable(f"no Lipschitz constant of {call}: {problem}") from None

    def _of_module(self, n: fx.Node, sources: list[fx.Node]) -> float:
        layer = self.module.get_submodule(str(n.target))
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if len(sources) != 1 or len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
            raise _Refused(_reason(layer) or "it reads more than one tensor")
        return _layer(layer, args[0]) * self.constants[sources[0]]

    def _of_function(self, n: fx.Node, sources: list[fx.Node]) -> float:
        name = name_of(n.target)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if name in _SHAPES or (name == "getattr" and args[1] in ("shape", "ndim", "device", "dtype")):
            return 0.0
        if name in ("cat", "concat", "concatenate", "stack"):
            # Of each one it holds, as often as it does: a tensor beside itself is twice as long.
            held = cast(list[fx.Node], n.args[0] if n.args else n.kwargs["tensors"])
            crelu = _crelu(n, self.module)
            return self.constants[crelu] if crelu else math.hypot(*(self.constants[node] for node in held))
        if name in _BINARY:
            return self._of_two(name, n, args, kwargs)
        if name in _LIKE:  # of the other one only the shape counts
            sources = [node for node in sources if node is n.args[0]]
        if len(sources) != 1 or n.args[:1] != (sources[0],):
            raise _Refused(f"it combines {len(sources)} values that depend on the input" if sources[1:] else _HOW)
        rate = self.constants[sources[0]]
        if name in ("linear", "conv1d", "conv2d", "conv3d"):
            return _functional(name, args, kwargs) * rate

        def read(position: int, keyword: str, default: Any) -> Any:
            return args[position] if len(args) > position else kwargs.get(keyword, default)

        def again(value: Tensor) -> Any:
            function: Callable[..., Any] = cast(Any, n.target)
            if n.op == "call_method":
                return getattr(value, str(n.target).rstrip("_"))(*args[1:], **kwargs)
            return function(value, *args[1:], **kwargs)

        if name == "getattr":
            name = args[1]
        if name == "getitem" and isinstance(args[0], tuple | list):
            return rate
        if not isinstance(args[0], Tensor):
            raise _Refused(_HOW)
        return _unary(name, read, args[0], again) * rate

    def _of_two(self, name: str, n: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
        if len(args) != 2:
            raise _Refused("it is to be called with two values, by position")
        rates = [self.constants[arg] if isinstance(arg, fx.Node) else 0.0 for arg in n.args]
        if name != "matmul":  # a value that is broadcast is there several times
            entries = math.prod(torch.broadcast_shapes(*(arg.shape for arg in args if isinstance(arg, Tensor))))
            rates = [rate and rate * math.sqrt(entries / max(arg.numel(), 1)) for rate, arg in zip(rates, args, strict=True)]
        if name in ("add", "iadd", "sub", "isub"):
            return rates[0] + rates[1] * abs(kwargs.get("alpha", 1))
        if name in ("maximum", "minimum"):
            return math.hypot(*rates)
        if all(rates):
            raise _Refused("a product of two values that both depend on the input grows with them")
        fixed = args[1] if rates[0] else args[0]
        if name == "matmul":
            if fixed.ndim != 2:
                raise _Refused("it is a product with something else than one matrix")
            return max(rates) * _spectral(fixed)
        if name in ("mul", "imul", "multiply"):
            return max(rates) * _largest(fixed)
        if rates[1] or kwargs.get("rounding_mode"):
            raise _Refused("it divides by what depends on the input, or rounds")
        least = float(fixed.abs().min()) if isinstance(fixed, Tensor) else abs(fixed)
        if not least:
            raise _Refused("it divides by 0")
        return rates[0] / least


def _tensors(value: Any) -> list[Tensor]:
    held = value if isinstance(value, tuple | list) else [value]
    return [one for one in held if isinstance(one, Tensor)]


def _view(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_HOW = "it is not one that is known here"
_SHAPES = _names("size dim ndimension numel nelement len is_floating_point")
_LIKE = _names("view_as reshape_as expand_as type_as")
_BINARY = _names("add iadd sub isub mul imul multiply div truediv itruediv divide maximum minimum matmul")
_KEPT = _names("detach clone contiguous to float double half bfloat16 type type_as cuda cpu")
# Linear maps whose matrices have no entry below 0 (padding with a number is one up to a shift).
_POSITIVE = _names(
    """
    flatten view reshape view_as reshape_as unflatten permute transpose swapaxes swapdims movedim moveaxis t T mT squeeze
    unsqueeze expand expand_as broadcast_to repeat repeat_interleave tile chunk split tensor_split unbind narrow select
    index_select getitem flip roll mean sum avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d pad pixel_shuffle pixel_unshuffle channel_shuffle unfold fold diagonal tril triu
    """
)
_POSITIVE_MODULES = (
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.Fold, nn.Unfold),
    *(pooling._AvgPoolNd, pooling._AdaptiveAvgPoolNd, padding._ConstantPadNd, padding._ReflectionPadNd),
    *(padding._ReplicationPadNd, padding._CircularPadNd),
)
# The largest |slope| of activations. Those of GELU are at √2 and, in its approximation, nearby; those without a formula are
# rounded up.
_SLOPES = {
    **dict.fromkeys(_names("relu relu6 tanh hardtanh softsign logsigmoid softplus tanhshrink softshrink"), 1.0),
    **dict.fromkeys(_names("abs absolute neg negative sin cos atan arctan clamp clip clamp_min clamp_max amax amin"), 1.0),
    **{"sigmoid": 1 / 4, "hardsigmoid": 1 / 6, "hardswish": 3 / 2, "silu": 1.0998394, "mish": 1.0884982},
    **{"selu": 1.0507009873554805 * 1.6732632423543772, "softmax": 1 / 2, "softmin": 1 / 2},
}
_GELU = {"none": (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi), "tanh": 1.1289931}
_INTERPOLATIONS = ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "area")


def _layer(layer: nn.Module, x: Tensor) -> float:
    """The constant of a layer."""
    known = next(kind for kind in type(layer).__mro__ if kind.__module__.startswith("torch.nn."))
    inner = "_conv_forward"  # where subclasses of convolutions do what they do with the weight
    if type(layer).forward is not known.forward or getattr(type(layer), inner, None) is not getattr(known, inner, None):
        raise _Refused("it has a forward of its own")
    if isinstance(layer, nn.Linear):
        return _spectral(layer.weight)
    if isinstance(layer, conv._ConvNd):
        if layer.padding_mode != "zeros":
            raise _Refused(f"padding_mode={layer.padding_mode!r} reads inputs again at the borders; 'zeros' is known")
        # A transposed convolution is the transpose of a convolution with this weight, and has its norm.
        return _convolution(layer.weight, layer.stride, layer.dilation, layer.groups)
    if isinstance(layer, batchnorm._BatchNorm):
        if layer.training or layer.running_var is None:
            raise _Refused("a batch norm that takes the batch's own statistics has none: give Probe(..., mode='eval')")
        gains = (layer.running_var.double() + layer.eps).rsqrt()
        return float((gains if layer.weight is None else gains * layer.weight.double().abs()).max())
    if isinstance(layer, dropout._DropoutNd):
        if layer.training and layer.p:
            raise _Refused("it is random: give Probe(..., mode='eval')")
        return 1.0
    if isinstance(layer, _POSITIVE_MODULES):
        return _schur(layer, x)
    names = {nn.Upsample: "interpolate", nn.Softmax2d: "softmax", nn.LogSoftmax: "log_softmax"}
    name = names.get(known) or known.__name__.lower().replace("adaptivemax", "adaptive_max_").replace("maxpool", "max_pool")

    def read(position: int, keyword: str, default: Any) -> Any:
        return getattr(layer, keyword, default)

    problem = _reason(layer)
    if problem:
        raise _Refused(problem)
    return _unary(name, read, x, layer)


def _unary(name: str, read: Read, x: Tensor, call: Callable[[Tensor], Any]) -> float:
    """The constant of a function of one tensor."""
    if name in _SLOPES:
        return _SLOPES[name]
    if name in _KEPT:
        return 1.0
    if name in _POSITIVE or (name == "interpolate" and read(3, "mode", "nearest") in _INTERPOLATIONS):
        return _schur(call, x)
    if name == "gelu":
        return _GELU[read(1, "approximate", "none")]
    if name == "leaky_relu" or name == "leakyrelu":
        return max(1.0, abs(read(1, "negative_slope", 0.01)))
    if name == "elu":
        return max(1.0, abs(read(1, "alpha", 1.0)))
    if name == "celu" and read(1, "alpha", 1.0) > 0:
        return 1.0
    if name == "prelu":
        return max(1.0, _largest(read(1, "weight", None)))
    if name == "log_softmax":  # I - 1pᵀ is largest where p is one class
        dim = read(1, "dim", None)
        return math.sqrt(x.shape[dim] if dim is not None else max(x.shape))
    if "dropout" in name:
        if read(2, "training", True) and read(2, "train", True):
            raise _Refused("it is random: give Probe(..., mode='eval'), and training=self.training in the model's code")
        return 1.0
    if name.startswith("max_pool") and not read(6, "return_indices", False):
        kernel = _each(read(1, "kernel_size", None), int(name[-2]))
        stride = read(2, "stride", None) or kernel
        classes = _classes(kernel, _each(stride, len(kernel)), _each(read(4, "dilation", 1), len(kernel)))
        return math.sqrt(int(classes.bincount().max()))
    if name.startswith("adaptive_max_pool") and not read(2, "return_indices", False):
        axes = int(name[-2])
        sizes = zip(x.shape[-axes:], _each(read(1, "output_size", None), axes), strict=True)
        return math.sqrt(math.prod(_adaptive_windows(before, after or before) for before, after in sizes))
    raise _Refused(_FUNCTION_REASONS.get(name, _HOW))


def _reason(layer: nn.Module) -> str:
    """Why layers of this kind have no constant, if that is known."""
    norms = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm, instancenorm._InstanceNorm)
    if isinstance(layer, norms):
        return _FUNCTION_REASONS["layer_norm"]
    if isinstance(layer, nn.MultiheadAttention):
        return _FUNCTION_REASONS["scaled_dot_product_attention"]
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return "it reads indices, which are not near or far"
    if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        return "a recurrent layer's grows with the length of the sequence"
    return ""


_FUNCTION_REASONS = {
    **dict.fromkeys(
        ("layer_norm", "group_norm", "rms_norm", "instance_norm", "batch_norm", "normalize"),
        "a norm divides by the size of its input, and is as steep as it likes near one of size 0",
    ),
    "scaled_dot_product_attention": "attention multiplies values by a function of them, and grows with its input",
    "glu": "a product of two values that both depend on the input grows with them",
    **dict.fromkeys(("item", "tolist"), "code that computes with its numbers is not followed"),
}


def _crelu(n: fx.Node, module: nn.Module) -> fx.Node | None:
    """The value x of cat([relu(x), relu(-x)])."""
    parts = n.args[0] if n.args else None
    if name_of(n.target) == "stack" or not isinstance(parts, Sequence) or len(parts) != 2:
        return None
    read = [part.args[0] for part in parts if isinstance(part, fx.Node) and _is_relu(part, module)]
    for x, other in (read, read[::-1]) if len(read) == 2 else ():
        if isinstance(x, fx.Node) and isinstance(other, fx.Node) and name_of(other.target) == "neg" and other.args[0] is x:
            return x
    return None


def _is_relu(node: fx.Node, module: nn.Module) -> bool:
    if len(node.args) != 1 or node.kwargs:
        return False
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        return type(layer) is nn.ReLU and not layer.inplace
    return name_of(node.target) == "relu" and not str(getattr(node.target, "__name__", node.target)).endswith("_")


def _functional(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """Of F.linear and F.conv2d and its kin, with weights that do not depend on the input."""
    if kwargs.get("weight") is None and len(args) < 2:
        raise _Refused(_HOW)
    weight = kwargs["weight"] if "weight" in kwargs else args[1]
    if name == "linear":
        return _spectral(weight)
    stride, dilation, groups = (
        args[at] if len(args) > at else kwargs.get(key, 1) for at, key in ((3, "stride"), (5, "dilation"), (6, "groups"))
    )
    return _convolution(weight, _each(stride, weight.ndim - 2), _each(dilation, weight.ndim - 2), groups)


def _convolution(weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int) -> float:
    """The smaller of the two bounds, for the group with the largest."""
    grouped = weight.detach().double().unflatten(0, (groups, -1))  # (groups, out, in, *kernel)
    classes = _classes(grouped.shape[3:], stride, dilation).to(weight.device)
    taps = torch.linalg.matrix_norm(grouped.flatten(3).movedim(-1, 1), 2)  # (groups, taps)
    sums = taps.new_zeros(groups, int(classes.max()) + 1).index_add(1, classes, taps)
    unfolded = torch.linalg.matrix_norm(grouped.flatten(2), 2) * math.sqrt(int(classes.bincount().max()))
    return float(torch.minimum(sums.norm(dim=1), unfolded).max())


def _classes(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """For each tap of a kernel, its class: taps of two classes never read the same input, and one input is in as many
    windows as there are taps in its class, at most."""
    residues = [
        tuple(tap * d % s for tap, d, s in zip(taps, dilation, stride, strict=True))
        for taps in product(*(range(size) for size in kernel))
    ]
    numbers = {residue: number for number, residue in enumerate(dict.fromkeys(residues))}
    return torch.tensor([numbers[residue] for residue in residues])


def _adaptive_windows(before: int, after: int) -> int:
    """In how many windows of adaptive pooling one of `before` positions can be."""
    counts = [0] * before
    for window in range(after):
        for at in range(window * before // after, -((window + 1) * before // -after)):
            counts[at] += 1
    return max(counts)


def _each(value: int | Sequence[int], axes: int) -> Sequence[int]:
    return [value] * axes if isinstance(value, int) else list(value) * (axes if len(value) == 1 else 1)


def _schur(function: Callable[[Tensor], Any], x: Tensor) -> float:
    """√(‖T‖_∞ ‖T‖₁) ≥ ‖T‖₂ of a linear map with entries of 0 or more: its row sums are T1, its column sums Tᵀ1."""
    with torch.enable_grad():
        ones = torch.ones_like(x, dtype=torch.float64, requires_grad=True)
        rows = _joined(function(ones.clone())) - _joined(function(torch.zeros_like(ones)))
        (columns,) = torch.autograd.grad(rows.sum(), ones)
    return math.sqrt(float(rows.max()) * float(columns.max()))


def _joined(values: Any) -> Tensor:
    return values.flatten() if isinstance(values, Tensor) else torch.cat([value.flatten() for value in values])


def _largest(value: Tensor | float) -> float:
    return float(value.detach().abs().max()) if isinstance(value, Tensor) else abs(value)


def _spectral(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix.detach().double(), 2))
