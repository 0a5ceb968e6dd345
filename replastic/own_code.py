"""A user's own code, named in an experiment's file as "mynet.py:MyNet": found, imported once, and never run unnoticed.

The record of a run has the SHA-256 of each file that is named, and a file that has changed since is refused. What such a
file imports is not part of the hash. To name a file is to run it: name only files that you trust.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .options import OptionError, check_options, nearest, options_of


@dataclass(frozen=True)
class OwnCode:
    """A file and its content's hash when it was named."""

    path: str  # absolute
    sha256: str


def own_code(name: Any, known: Iterable[str], folder: str | Path, example: str) -> OwnCode | None:
    """The file that a name such as "mynet.py:MyNet" stands for; None if the name is one of `known`.

    folder: where relative paths start. example: a name as a user may write it, for the error.
    """
    known = list(known)
    if not isinstance(name, str):
        raise OptionError(f"name = {name!r}: write a text in quotes, one of {', '.join(known)} or one like {example!r}")
    if name in known:
        return None
    file, colon, _ = name.rpartition(":")
    if not colon:
        own = f"; for code of your own write {example!r}"
        raise OptionError(f"name = {name!r}: {nearest(name, known)}{own}")
    path = (Path(folder) / file).resolve()
    if path.suffix != ".py" or not path.is_file():
        raise OptionError(f"name = {name!r}: there is no Python file {path}")
    return OwnCode(str(path), hashlib.sha256(path.read_bytes()).hexdigest())


def from_own_code(code: OwnCode, name: str, kind: str, fits: Callable[[Any], bool] = callable) -> Any:
    """The class or function that stands behind the colon of `name`, in the file of `code`.

    kind: the word for it in errors, such as "method". fits: whether a value is one.
    """
    module, what = _module(code), name.rpartition(":")[2]
    found = getattr(module, what, None)
    if found is not None and not fits(found) and not inspect.isclass(found):
        raise OptionError(
            f"name = {name!r}: {what!r} is {type(found).__name__} in {code.path}: name a class or a function that makes the "
            f"{kind}"
        )
    if not fits(found):
        mine = {key: value for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
        own = [key for key, value in mine.items() if fits(value)]
        raise OptionError(f"name = {name!r}: {code.path} has no {kind} {what!r}; its {kind}s are {', '.join(own) or 'none'}")
    return found


def check_own_options(
    made_by: Callable[..., Any], options: Mapping[str, Any], where: str, offered: Sequence[str], *, fixed: bool = True
) -> None:
    """Raise unless a file's options fit a user's own function, which is also passed what is offered and it names.

    fixed: the file must not set what is offered; else the file's value is passed instead.
    """
    missing = [name for name, (_, needed) in options_of(made_by, offered).items() if needed and name not in options]
    if missing:
        raise OptionError(
            f"{where} has an argument {missing[0]!r} without a default that nothing sets: write {missing[0]} = ... in the "
            f"file, or use what is offered, which is {', '.join(offered)}"
        )
    check_options(made_by, options, where, given=offered, fixed=fixed)


def call_own_code(
    code: OwnCode, name: str, made_by: Callable[..., Any], options: Mapping[str, Any], offered: Mapping[str, Any]
) -> Any:  # fmt: skip
    """Call a user's own function with a file's options and with those of the offered arguments that it names."""
    takes = options_of(made_by)
    passed = {**{key: value for key, value in offered.items() if key in takes}, **options}
    missing = [key for key, (_, needed) in takes.items() if needed and key not in passed]
    if missing:
        raise OptionError(
            f"{code.path}: {name.rpartition(':')[2]} has an argument {missing[0]!r} without a default that nothing sets: "
            f"write {missing[0]} = ... in the file, or use what these data offer, which is {', '.join(offered)}"
        )
    try:
        return made_by(**passed)
    except Exception as problem:
        shown = ", ".join(f"{key}={_short(value)}" for key, value in passed.items())
        raise OptionError(
            f"{_place(code, problem)}: {name.rpartition(':')[2]}({shown}) raised {_said(problem)}"
        ) from problem


def _module(code: OwnCode) -> ModuleType:
    """The file as a module, once in a process for each of its versions; never another version than was named."""
    digest = hashlib.sha256(f"{code.path}\n{code.sha256}".encode(errors="surrogateescape")).hexdigest()
    name = f"replastic_own_{Path(code.path).stem}_{digest[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    try:
        source = Path(code.path).read_bytes()
    except OSError as problem:
        raise OptionError(f"{code.path} cannot be read any more: {problem.strerror or problem}") from problem
    if hashlib.sha256(source).hexdigest() != code.sha256:
        raise OptionError(f"{code.path} has changed since the experiment was read: run the command again, with a new --out")
    module = ModuleType(name)
    module.__file__ = code.path
    sys.modules[name] = module  # dataclasses look themselves up there
    folder = str(Path(code.path).parent)
    sys.path.insert(0, folder)  # for the modules next to the file
    done = False
    try:
        exec(compile(source, code.path, "exec"), vars(module))
        done = True
    except (Exception, SystemExit) as problem:
        raise OptionError(f"{_place(code, problem)} cannot be imported: {_said(problem)}") from problem
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)  # functions import when they are called; behind all others, it hides no module
        if not done:
            del sys.modules[name]
    return module


def _place(code: OwnCode, problem: BaseException) -> str:
    """The file, and the line of it that an error comes from, if there is one."""
    lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == code.path]
    if isinstance(problem, SyntaxError) and problem.filename == code.path:
        lines = [problem.lineno]
    return f"{code.path}, line {lines[-1]}" if lines else code.path


def _said(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"<{type(value).__name__}>"
