"""Methods as files name them: "fire", or "mine.py:Mine" for one of your own."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ..learner import Method
from ..options import OptionError, nearest
from . import METHODS


@dataclass(frozen=True)
class OwnCode:
    """The file of a method of one's own, as it was when it was named: one that was changed since is another method."""

    path: str  # absolute
    sha256: str


def own_code(name: Any, folder: str | Path = ".") -> OwnCode | None:
    """The code that a name stands for; None for a name of METHODS.

    name: a Python file, seen from `folder`, a colon, and a name in it.
    """
    if not isinstance(name, str):
        raise OptionError(f"name = {name!r}: give the name of one method; several are methods = [{{ name = ... }}, ...]")
    if name in METHODS:
        return None
    file, colon, _ = name.rpartition(":")
    if not colon:
        raise OptionError(f'name = {name!r}: {nearest(name, METHODS)}; or give one of your own, as in "mine.py:Mine"')
    path = (Path(folder) / file).resolve()
    if path.suffix != ".py" or not path.is_file():
        raise OptionError(f"name = {name!r}: there is no Python file {path}")
    return OwnCode(str(path), hashlib.sha256(path.read_bytes()).hexdigest())


def method_by_name(name: str, code: OwnCode | None = None) -> Callable[..., Any]:
    """A method's class, or the function that returns a list of methods. A file is run: name only files that you trust."""
    if code is None:
        return METHODS[name]
    module, what = _module(code), name.rpartition(":")[2]
    found = getattr(module, what, None)
    if not (isinstance(found, type) and issubclass(found, Method)) and not isinstance(found, FunctionType):
        own = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, Method)]
        own = [key for key in own if vars(module)[key].__module__ == module.__name__]
        raise OptionError(f"name = {name!r}: {code.path} has no method {what!r}; its methods are {', '.join(own) or 'none'}")
    return found


def _module(code: OwnCode) -> ModuleType:
    """The file as a module, once in a process for each of its versions; never another version than was named."""
    name = f"replastic_own_{Path(code.path).stem}_{code.sha256[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    source = Path(code.path).read_bytes()
    if hashlib.sha256(source).hexdigest() != code.sha256:
        raise OptionError(f"{code.path} has changed since the experiment was read: type the command again, with a new --out")
    module = ModuleType(name)
    module.__file__ = code.path
    sys.modules[name] = module  # dataclasses look themselves up there
    sys.path.insert(0, str(Path(code.path).parent))  # for what lies beside it
    done = False
    try:
        exec(compile(source, code.path, "exec"), vars(module))
        done = True
    except Exception as problem:
        raise OptionError(f"{code.path} cannot be imported: {type(problem).__name__}: {problem}") from problem
    finally:
        with suppress(ValueError):
            sys.path.remove(str(Path(code.path).parent))
        if not done:
            del sys.modules[name]
    return module
