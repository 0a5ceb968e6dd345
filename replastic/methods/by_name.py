"""Methods as files name them: "fire", or "mine.py:Mine" for one of your own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from ..learner import Method
from ..options import OptionError
from ..own_code import OwnCode, from_own_code, own_code
from . import METHODS


def code_of_method(name: Any, folder: str | Path = ".") -> OwnCode | None:
    """The user's own file that a name stands for, seen from `folder`; None for a name of METHODS."""
    if not isinstance(name, str):
        raise OptionError(f"name = {name!r}: write the name of one method; several are methods = [{{ name = ... }}, ...]")
    return own_code(name, METHODS, folder, "mine.py:Mine")


def method_by_name(name: str, code: OwnCode | None = None) -> Callable[..., Any]:
    """A method's class, or the function that returns a list of methods."""
    return METHODS[name] if code is None else from_own_code(code, name, "method", _is_method)


def _is_method(value: Any) -> bool:
    return (isinstance(value, type) and issubclass(value, Method)) or isinstance(value, FunctionType)
