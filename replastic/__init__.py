"""Measure how a network loses its ability to learn, and restore it.

>>> import torch, replastic as rp
>>> model = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
>>> report = rp.fire_(model)
"""

from importlib import import_module as _import_module
from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from .moved import install as _install

if _TYPE_CHECKING:
    from .public import *  # noqa: F403

try:
    __version__ = _version("replastic")
except _PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"


_install()


def __getattr__(name: str) -> _Any:
    """A module of the package or a public name, imported on first use, so that reports and help do not import torch."""
    if name == "__all__":
        return _public_names()
    if name.isidentifier() and not name.startswith("_"):
        if _find_spec(f"{__name__}.{name}"):
            return _import_module(f".{name}", __name__)
        public = _import_module(".public", __name__)
        if hasattr(public, name):
            return globals().setdefault(name, getattr(public, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({"__version__", *_public_names()})


def _public_names() -> list[str]:
    return [name for name in vars(_import_module(".public", __name__)) if not name.startswith("_")]
