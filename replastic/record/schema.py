"""The contents of a run's files, checked once, when they are read. Files may have further keys."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ENDINGS = ("finished", "diverged", "failed")
_DEEPEST = 100  # levels of nested lists and tables; Python's own functions fail at about 1000
_DIGITS = 300  # of an integer; one with 309 digits is larger than any float
_MANY_DIGITS = re.compile(rb"\d{%d}" % (_DIGITS + 1))
_MOST_TASKS = 10**7
_MOST = 10**15  # epochs, steps, lines, bytes; a float still counts these exactly


@dataclass(frozen=True)
class _Is:
    """A kind of plain value: its description and its check."""

    said: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_spectrum(value: Any) -> bool:
    parts = [value.get(key) for key in ("nodes", "weights")] if isinstance(value, dict) else []
    lists = [part for part in parts if isinstance(part, list) and all(type(item) is float for item in part)]
    return len(lists) == 2 and len(lists[0]) == len(lists[1])


def _whole(most: int) -> _Is:
    return _Is(f"an integer from 0 to {most:,}", lambda value: type(value) is int and 0 <= value <= most)


ANYTHING = _Is("anything", lambda value: True)
_NULL = _Is("null", lambda value: value is None)
TEXT = _Is("a text", lambda value: isinstance(value, str))
_INTEGER = _Is("an integer", lambda value: type(value) is int)
_FIGURE = _Is("a number or null", lambda value: value is None or _is_number(value))
_SECONDS = _Is("a number of seconds", lambda value: _is_number(value) and 0 <= value < math.inf)
_COUNT = _whole(_MOST)
_FLAG = _Is("true or false", lambda value: type(value) is bool)
_SPECTRUM = _Is("nodes and as many weights", _is_spectrum)

# A dict describes a table: keys that end in "?" are optional, and "*x" stands for all keys that end in x. [kind] is a list
# of values of one kind; a value described by a tuple must be of one of its kinds.
_POSITION = {"task?": _COUNT, "epoch?": _COUNT, "at?": _COUNT, "of?": _COUNT, "unit?": TEXT, "*": (TEXT, _COUNT)}
MARK = {"lines": _COUNT, "bytes": _COUNT, "sha256": TEXT}
RUN = {
    "format": TEXT,
    "config": {"grid?": (_NULL, {"arm": TEXT, "point": {}}), "start?": {"arm": TEXT, "name": TEXT}},
    "about?": {
        "name?": TEXT,
        "about?": TEXT,
        "metric?": TEXT,
        "tasks?": _whole(_MOST_TASKS),
        "epochs?": (_COUNT, [_COUNT]),
        "lengths?": (_COUNT, [_COUNT]),
        "unit?": TEXT,
    },
    "arm": TEXT,
    "seed": _INTEGER,
    "started?": TEXT,
    "provenance": {"command?": (_NULL, [TEXT])},
}
END = {"status": _Is(" or ".join(ENDINGS), lambda value: value in ENDINGS), "reason": TEXT, "rows": MARK, "times": MARK}
ROW = {
    "task?": _whole(_MOST_TASKS - 1),
    "epoch?": _COUNT,
    "at?": _COUNT,
    "of?": _COUNT,
    "unit?": TEXT,
    "step?": _COUNT,
    "*accuracy": _FIGURE,
    "*loss": _FIGURE,
    "measures?": {"*not_measured": {"*": TEXT}, "*hessian_spectrum": _SPECTRUM},
}
TIME = _SECONDS
RESUME = {"rows": _COUNT}
NOTE = {"position": _POSITION, "seconds": _SECONDS, "rows": MARK, "times": MARK}
STATE = {"learner": {"steps": _COUNT, "task_number": _INTEGER, "seed": _INTEGER}, "random": {}}  # in a run's checkpoint
LOCK = {"pid": _COUNT, "host": TEXT}
STAMPED = {"commit": TEXT, "dirty": _FLAG, "sha256": TEXT}  # next to a copy of a checkout
PACK = {"format": TEXT, "files": _COUNT}  # the first line of a packed file; each further line is a PACKED_FILE
PACKED_FILE = {"path": TEXT, "text": TEXT}
SNAPSHOT = {
    "format": TEXT,
    "note": ANYTHING,
    "state": ANYTHING,
    "tensors": {"bytes": _COUNT, "sha256": TEXT},
    "sha256": TEXT,
}
Kind = Any


def parsed(text: bytes, kind: Kind) -> Any:
    """Parse JSON; ValueError says what is wrong if the value is not of this kind, too deeply nested or too large."""
    value = loaded(text, parse_int=_int) if _MANY_DIGITS.search(text) else loaded(text)
    if text.count(b"[") + text.count(b"{") > _DEEPEST and _is_deep(value, _DEEPEST):
        raise ValueError(f"lists or tables are nested more than {_DEEPEST} levels deep")
    check(value, kind)
    return value


def written(value: Any, kind: Kind, what: str) -> str:
    """JSON that can be read back; ValueError, which names `what`, if the value is not of this kind."""
    text = json.dumps(value)
    try:
        parsed(text.encode(), kind)
    except ValueError as error:
        raise ValueError(f"{what} was not written: {error}") from error
    return text


def loaded(text: bytes, **options: Any) -> Any:
    """Parse JSON without checking the value."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("lists or tables are nested too deep to be read") from None


def check(value: Any, kind: Kind, path: str = "") -> None:
    """Raise a ValueError with the place at which a value is not of its kind."""
    if isinstance(kind, tuple):
        kind = next((one for one in kind[:-1] if _fits(value, one)), kind[-1])
    if isinstance(kind, _Is):
        if not kind.holds(value):
            raise ValueError(f"{path or 'it'} is {_shown(value)}, not {kind.said}")
    elif isinstance(kind, list):
        _check_type(value, list, "a list", path)
        for number, item in enumerate(value):
            check(item, kind[0], f"{path}[{number}]")
    else:
        _check_table(value, kind, path)


def _check_table(value: Any, kinds: Mapping[str, Kind], path: str) -> None:
    _check_type(value, dict, "a table", path)
    inside = f"{path}." * bool(path)
    for name, kind in kinds.items():
        key = name.removesuffix("?")
        if name.startswith("*"):
            for found in value:
                if found.endswith(name[1:]):
                    check(value[found], kind, inside + _shown(found))
        elif key in value:
            check(value[key], kind, inside + key)
        elif key == name:
            raise ValueError(f"it has no {inside}{key}")


def _check_type(value: Any, wanted: type, said: str, path: str) -> None:
    if type(value) is not wanted:
        raise ValueError(f"{path or 'it'} is {_shown(value)}, not {said}")


def _fits(value: Any, kind: Kind) -> bool:
    try:
        check(value, kind)
    except ValueError:
        return False
    return True


def _is_deep(value: Any, left: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    return not left or any(_is_deep(item, left - 1) for item in (value.values() if isinstance(value, dict) else value))


def _int(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits")
    return int(digits)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
