"""What the files of a run hold, checked once, where they are read. Writers write this; further keys may be there."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ENDINGS = ("finished", "diverged", "failed")
_DEEPEST = 100  # lists and tables in each other; Python's own functions end at some 1000
_DIGITS = 300  # of a whole number; with 309 it is larger than every float
_MANY_DIGITS = re.compile(rf"\d{{{_DIGITS + 1}}}")
_MANY_DIGITS_IN_BYTES = re.compile(_MANY_DIGITS.pattern.encode())
_MOST_TASKS = 10**7
_MOST = 10**15  # epochs, steps, lines, bytes: floats count further


@dataclass(frozen=True)
class _Is:
    """A plain value, in words and as a check."""

    said: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_spectrum(value: Any) -> bool:
    parts = [value.get(key) for key in ("nodes", "weights")] if isinstance(value, dict) else []
    lists = [part for part in parts if isinstance(part, list) and all(type(item) is float for item in part)]
    return len(lists) == 2 and len(lists[0]) == len(lists[1])


def _whole(most: int) -> _Is:
    return _Is(f"a whole number from 0 to {most:,}", lambda value: type(value) is int and 0 <= value <= most)


ANYTHING = _Is("anything", lambda value: True)
_NULL = _Is("null", lambda value: value is None)
TEXT = _Is("a text", lambda value: isinstance(value, str))
_INTEGER = _Is("a whole number", lambda value: type(value) is int)
_NUMBER = _Is("a number", _is_number)
_FIGURE = _Is("a number or null", lambda value: value is None or _is_number(value))
_SECONDS = _Is("a number of seconds", lambda value: _is_number(value) and 0 <= value < math.inf)
_COUNT = _whole(_MOST)
_FLAG = _Is("true or false", lambda value: type(value) is bool)
_SPECTRUM = _Is("nodes and as many weights", _is_spectrum)

# A dict is a table: keys that end in "?" may be missing, "*x" stands for all keys that end in x. [kind] is a list of such
# values, and a tuple has the kinds of which one must fit.
MARK = {"lines": _COUNT, "bytes": _COUNT, "sha256": TEXT}
RUN = {
    "format": TEXT,
    "config": {"grid?": (_NULL, {"arm": TEXT, "point": {}})},
    "about?": {
        "name?": TEXT,
        "about?": TEXT,
        "metric?": TEXT,
        "tasks?": _whole(_MOST_TASKS),
        "epochs?": (_COUNT, [_COUNT]),
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
    "step?": _COUNT,
    "*accuracy": _FIGURE,
    "*loss": _FIGURE,
    "measures?": {"*not_measured": {"*": TEXT}, "*hessian_spectrum": _SPECTRUM},
}
TIME = _SECONDS
RESUME = {"rows": _COUNT}
NOTE = {"position": {"*": _COUNT}, "seconds": _SECONDS, "rows": MARK, "times": MARK}
STATE = {"learner": {"steps": _COUNT, "task_number": _INTEGER, "seed": _INTEGER}, "random": {}}  # of a run's checkpoint
LOCK = {"pid": _COUNT, "host": TEXT}
STAMPED = {"commit": TEXT, "dirty": _FLAG, "sha256": TEXT}  # of a copy of a checkout
PACK = {"format": TEXT, "files": _COUNT}  # the first line of a packed file, then one of these for each file in it
PACKED_FILE = {"path": TEXT, "text": TEXT}
SNAPSHOT = {
    "format": TEXT,
    "note": ANYTHING,
    "state": ANYTHING,
    "tensors": {"bytes": _COUNT, "sha256": TEXT},
    "sha256": TEXT,
}
Kind = Any


def parsed(text: bytes | str, kind: Kind) -> Any:
    """What a text of JSON says; ValueError with what is wrong if it is not of this kind, or nobody could work with it."""
    many = _MANY_DIGITS.search(text) if isinstance(text, str) else _MANY_DIGITS_IN_BYTES.search(text)
    value = loaded(text, parse_int=_int) if many else loaded(text)
    marks = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    if sum(map(text.count, marks)) > _DEEPEST and _is_deep(value, _DEEPEST):  # pyright: ignore[reportArgumentType]
        raise ValueError(f"lists or tables lie in each other more than {_DEEPEST} deep")
    check(value, kind)
    return value


def written(value: Any, kind: Kind, what: str) -> str:
    """As a text of JSON that can be read back; ValueError if `what` is not of this kind."""
    text = json.dumps(value)
    try:
        parsed(text, kind)
    except ValueError as error:
        raise ValueError(f"{what} was not written: {error}") from error
    return text


def loaded(text: bytes | str, **options: Any) -> Any:
    """What a text of JSON says, whatever that is."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("lists or tables lie in each other too deep to be read") from None


def check(value: Any, kind: Kind, path: str = "") -> None:
    """ValueError that says where a value is not of its kind."""
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
        raise ValueError(f"a whole number has {len(digits)} digits")
    return int(digits)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
