"""`replastic list` and `replastic show`: methods, measures and the like, from their docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from tyro.conf import Positional, arg

from ..options import OptionError, hints_of, nearest
from .command import Command
from .console import print_line, print_table
from .shipped import shipped

What = Literal["methods", "measures", "data", "protocols", "models", "experiments"]


@dataclass(kw_only=True)
class List(Command):
    """List the names that can be used in files and in code, one per line."""

    name: ClassVar[str] = "list"

    what: Positional[Annotated[What, arg(metavar="methods|measures|data|protocols|models|experiments")]]
    """What to list."""

    def __call__(self) -> int:
        print_table(("name", ""), list(_listed(self.what).items()))
        return 0


def _listed(what: What) -> dict[str, str]:
    """Names with a description of each."""
    if what == "experiments":
        return _experiments()
    if what in _REGISTRIES:
        module, registry = _REGISTRIES[what]
        known = getattr(import_module(module, __package__), registry)
    else:
        from ..workloads.base import WORKLOADS, workload_of_kind

        catalogues = [workload_of_kind(kind).catalogue() for kind in WORKLOADS]
        known = {name: made for catalogue in catalogues for name, made in catalogue.get(what, {}).items()}
    return {name: str(made).rstrip(".") if what == "measures" else first_sentence(made) for name, made in known.items()}


def _experiments() -> dict[str, str]:
    found = shipped()
    if not found:
        raise OptionError("no experiments came with this installation: install replastic from a wheel or a checkout")
    return {name: str(tomllib.loads(path.read_text(encoding="utf-8"))["name"]) for name, path in found.items()}


_REGISTRIES = {
    "methods": ("..methods", "METHODS"),
    "measures": ("..measures", "MEASURES"),
}


def first_sentence(made: Any) -> str:
    """The first line of a docstring, without the full stop."""
    return (inspect.getdoc(made) or "").partition("\n")[0].rstrip(".")


@dataclass(kw_only=True)
class Show(Command):
    """Show a method: its equation, paper, settings, and where it departs from released code."""

    name: ClassVar[str] = "show"

    method: Positional[Annotated[str, arg(metavar="METHOD")]]
    """A name from `replastic list methods`."""

    def __call__(self) -> int:
        from ..methods import METHODS

        if self.method not in METHODS:
            raise OptionError(f"there is no method {self.method!r}: {nearest(self.method, METHODS)}")
        made = METHODS[self.method]
        print_line(inspect.getdoc(sys.modules[made.__module__]) or "")
        print_line(f"\n{made.__name__}: {inspect.getdoc(made)}\n")
        print_table(("setting", "default", ""), settings(made))
        print_line(f'\nIn code: rp.METHODS["{self.method}"](); in an experiment\'s file: name = "{self.method}"')
        return 0


def settings(made: Callable[..., Any]) -> list[tuple[str, str, str]]:
    """Every setting of a method: its name, its default, and its comment in the source."""
    comments = _comments(made)
    signature = inspect.signature(made)
    hints = hints_of(made)
    rows = []
    for name, argument in signature.parameters.items():
        default = "required" if argument.default is argument.empty else repr(argument.default)
        choices = get_args(hints.get(name)) if get_origin(hints.get(name)) is Literal else ()
        said = [comments.get(name, ""), f"one of {', '.join(map(repr, choices))}" if choices else ""]
        rows.append((name, default, "; ".join(filter(None, said))))
    return rows


def _comments(made: Callable[..., Any]) -> dict[str, str]:
    """The comments of fields, including inherited ones."""
    kinds = [kind for kind in inspect.getmro(made) if dataclasses.is_dataclass(kind)] if inspect.isclass(made) else [made]
    found: dict[str, str] = {}
    for kind in reversed(kinds):
        for line in inspect.getsource(kind).splitlines():
            name, colon, rest = line.strip().partition(":")
            if colon and name.isidentifier() and "  # " in rest:
                found[name] = rest.partition("  # ")[2]
    return found
