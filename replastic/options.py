"""Check names and options from files against the arguments of the function that they are passed to."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class OptionError(ValueError):
    """An unknown name or an invalid option; the message has the valid ones."""


def check_options(
    made_by: Callable[..., Any], options: Mapping[str, Any], where: str, *, given: Sequence[str] = (), fixed: bool = True
) -> None:  # fmt: skip
    """Raise unless options are arguments of a function or class, with values of their types. `given`: arguments that are
    set elsewhere, and must not be set by options if they are `fixed`.

    >>> def fire(steps: int = 10): ...
    >>> check_options(fire, {"step": 5}, "[arms.FIRE]")
    Traceback (most recent call last):
    replastic.options.OptionError: [arms.FIRE] has the key 'step': did you mean 'steps'? (there is steps)
    """
    arguments = options_of(made_by, given if fixed else ())
    for option in options:
        if fixed and option in given:
            raise OptionError(f"{where} has the key {option!r}, which is set by the rest of the file: leave it out")
    check_keys(
        options, list(arguments), where, [name for name, (_, needed) in arguments.items() if needed and name not in given]
    )
    for option, value in options.items():
        check_type(value, arguments[option][0], f"{where} {option}")


def options_of(made_by: Callable[..., Any], given: Sequence[str] = ()) -> dict[str, tuple[Any, bool]]:
    """The arguments that a file may set: for each its type, and whether it is required."""
    hints = hints_of(made_by)
    return {
        name: (hints.get(name, Any), argument.default is argument.empty)
        for name, argument in inspect.signature(made_by).parameters.items()
        if name not in given and argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
    }


def hints_of(made_by: Callable[..., Any]) -> dict[str, Any]:
    """The types of the arguments. Those of a dataclass are resolved in the module that defines each field."""
    annotated: Any = made_by
    if inspect.isclass(made_by):
        fields = (
            {item.name for item in dataclasses.fields(made_by) if item.init} if dataclasses.is_dataclass(made_by) else {}
        )
        if fields != set(inspect.signature(made_by).parameters):
            annotated = made_by.__init__  # a class with an __init__ of its own
    try:
        return get_type_hints(annotated)
    except (AttributeError, NameError, SyntaxError, TypeError) as problem:
        raise OptionError(
            f"{made_by.__qualname__} has an annotation that cannot be looked up ({problem}): correct it, or import the name"
        ) from problem


def with_defaults(made_by: Callable[..., Any], options: Mapping[str, Any], given: Sequence[str] = ()) -> dict[str, Any]:
    """Options together with the defaults of the others. Values that JSON cannot represent become their repr()."""
    defaults = {
        name: _plain(argument.default)
        for name, argument in inspect.signature(made_by).parameters.items()
        if name not in given and argument.default is not argument.empty
    }
    return {**defaults, **options}


def _plain(value: Any) -> Any:
    """The value as JSON has it, without addresses, which differ from process to process."""

    def shown(value: Any) -> str:
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))

    try:
        return json.loads(json.dumps(value, default=shown))
    except (TypeError, ValueError):  # keys that are not strings
        return shown(value)


def check_keys(table: Mapping[str, Any], known: Sequence[str], where: str, required: Iterable[str] = ()) -> None:
    """Raise for an unknown key, and for a missing one that is required."""
    for key in table:
        if key not in known:
            raise OptionError(f"{where} has the key {key!r}: {nearest(key, known)}")
    for key in required:
        if key not in table:
            raise OptionError(f"{where} has no {key!r}, which has no default: add {key} = ...")


def nearest(given: str, known: Iterable[str]) -> str:
    """The known name that is most similar, and a list of all, as part of a message."""
    known = list(known)
    lower = {name.lower(): name for name in known}
    near = [lower[name] for name in difflib.get_close_matches(given.lower(), lower, n=1, cutoff=0.5)]
    shown = [repr(name) if "," in name or " " in name else name for name in known]
    listed = f"there {'is' if len(known) == 1 else 'are'} {', '.join(shown)}" if known else "nothing can be set here"
    return f"did you mean {near[0]!r}? ({listed})" if near else listed


def check_type(value: Any, kind: Any, where: str) -> None:
    """Raise unless a value has an annotated type. Records, which are JSON, have no dates and times."""
    if _has_dates(value):
        raise OptionError(f"{where} = {value!r}: write dates and times in quotes")
    if not _fits(value, kind):
        raise OptionError(f"{where} = {value!r}: must be {_described(kind)}")


def _has_dates(value: Any) -> bool:
    if isinstance(value, Mapping | list | tuple):
        return any(map(_has_dates, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, datetime.date | datetime.time)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a TOML value has an annotated type. Types that TOML does not have accept nothing."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is Literal:
        return value in inner
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if _is_list(origin):
        return isinstance(value, list | tuple) and all(_fits(one, inner[0]) for one in value)
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(_fits(one, inner[1]) for one in value.values())
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return inspect.isclass(kind) and isinstance(value, kind)


def _is_list(origin: Any) -> bool:
    """Whether an annotation accepts a TOML list, for example Sequence[int] or Iterable[str]."""
    return inspect.isclass(origin) and (origin is tuple or issubclass(list, origin))


def _described(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Union, UnionType):
        return " or ".join(_described(one) for one in inner if one is not type(None))
    if _is_list(origin):
        return f"a list, each {_described(inner[0])}"
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a string in quotes"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))
