"""Measure how a network loses its ability to learn, and give it back.

>>> import torch, replastic as rp
>>> model = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
>>> report = rp.fire_(model)
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .public import *  # noqa: F403

try:
    __version__ = version("replastic")
except PackageNotFoundError:  # used from a checkout that was never installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    """A module of the package, or a public name. Not before it is asked for: reports and help do without torch."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec(f"{__name__}.{name}"):
        return import_module(f".{name}", __name__)
    public = import_module(".public", __name__)
    if not hasattr(public, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(public, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *vars(import_module(".public", __name__))})
