"""Methods as files name them: "fire", or "mine.py:Mine" for one of your own."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..method import Method
from ..options import OptionError, nearest
from . import METHODS


def method_by_name(name: str) -> Callable[..., Any]:
    """A method's class, or the function that returns a list of methods.

    name: of METHODS; or a Python file, from the folder that the command is typed in, a colon, and a name in it. The file is
        run: name only files that you trust.
    """
    if name in METHODS:
        return METHODS[name]
    file, colon, what = str(name).rpartition(":")
    if not colon:
        raise OptionError(f'name = {name!r}: {nearest(str(name), METHODS)}; or give one of your own, as in "mine.py:Mine"')
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise OptionError(f"name = {name!r}: there is no Python file {file}, seen from {Path.cwd()}")
    module = _module(path.resolve())
    found = getattr(module, what, None)
    if found is None or not callable(found):
        own = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, Method)]
        own = [key for key in own if vars(module)[key].__module__ == module.__name__]
        raise OptionError(f"name = {name!r}: {file} has no {what!r}; its methods are {', '.join(own) or 'none'}")
    return found


def code_of(name: str) -> dict[str, str]:
    """For the record of a method of one's own, what its file said: one that was changed since is another method."""
    if name in METHODS:
        return {}
    return {"sha256": hashlib.sha256(Path(name.rpartition(":")[0]).read_bytes()).hexdigest()}


def _module(path: Path) -> Any:
    """The file as a module, once in a process: classes of two loads would not be the same."""
    name = f"replastic_own_{path.stem}_{abs(hash(str(path)))}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as problem:
            del sys.modules[name]
            raise OptionError(f"{path} cannot be imported: {type(problem).__name__}: {problem}") from problem
    return sys.modules[name]
