"""The functions and tensor methods of torch, by name and by what they do: what every reader of a graph starts from."""

from __future__ import annotations


def names(text: str) -> frozenset[str]:
    """A set of names, written as one text with spaces."""
    return frozenset(text.split())


CASTS = names("float half bfloat16 double to type type_as contiguous clone detach cuda cpu")
SHAPES = names("size dim len ndimension numel nelement is_floating_point get_device stride")
SHAPE_ATTRIBUTES = names("shape ndim dtype device is_cuda requires_grad layout")
SUMS = names("add iadd sub isub")
PRODUCTS = names("mul imul multiply")
ARITHMETIC = SUMS | PRODUCTS | names("div truediv maximum minimum")
CONCATENATIONS = names("cat concat concatenate")
AVERAGE_POOLS = names("avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d")
MAX_POOLS = frozenset(name.replace("avg", "max") for name in AVERAGE_POOLS)
POOLS = AVERAGE_POOLS | MAX_POOLS
DROPOUTS = names("dropout dropout1d dropout2d dropout3d feature_dropout")  # alpha_dropout also shifts
# f(cx) = c·f(x) for c > 0: exactly, or nearly for the smooth relatives of ReLU.
RECTIFIERS = names("relu leaky_relu gelu silu elu celu mish hardswish")
