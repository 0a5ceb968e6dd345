"""Read a pickle without running it.

A pickle is a program, and loading it runs it. Here its instructions are interpreted, but imports and calls are replaced by
placeholders (`Named`, `Call`), so that the result has dicts, lists, numbers and strings, and the storage of each tensor. The
accepted instructions and names are those of `torch.load(weights_only=True)`; a file that it refuses is refused here, and the
error names the object.

`torch.load(weights_only=True)` under FakeTensorMode cannot replace this: it accepts tensors that reach beyond their storage,
gives no offsets for files from before 2020, and names only the first object that it refuses. It also calls the classes that
the user has declared safe, and has no bound on time: a dict of 30,000 keys with one hash took it 6 seconds.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from ..listing import some
from .stored import CheckpointError

LONGEST = 2**26  # bytes of a pickle; names and shapes of a million tensors need less
MOST_STEPS = 2**23  # instructions, enough for a quarter of a million tensors
_LONGEST_KEY = 64  # entries of a tuple that is a dict's key
_MOST_ODD_KEYS = 10_000  # keys that are neither strings nor small numbers; each entry of a tuple counts


class Named(NamedTuple):
    """A function or class that the pickle names, such as "torch._utils._rebuild_tensor_v2"."""

    path: str


@dataclass(eq=False)
class Call:
    """A call that the pickle asks for, which is not made."""

    function: str
    arguments: tuple[Any, ...]


class StorageId(NamedTuple):
    """A pickle's reference to a storage: its type, key and number of entries."""

    kind: str
    key: str
    numel: int
    view_of: Any = None  # in very old files: (key, offset, size) if it is a part of another storage


class Refused(CheckpointError):
    """The pickle has an object that `weights_only=True` refuses."""


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_AS_IT_STANDS = ("BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "LONG1")
_EMPTY = {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_DICTS = ("collections.OrderedDict", "collections.Counter")
# Minimum and maximum number of arguments of torch's functions, and the type of the first; other calls fail in torch.
_ARGUMENTS = {
    "torch._utils._rebuild_tensor": (4, 4, StorageId),
    "torch._utils._rebuild_tensor_v2": (6, 7, StorageId),
    "torch._utils._rebuild_tensor_v3": (7, 8, StorageId),
    "torch._utils._rebuild_parameter": (3, 3, Call),
    "torch._utils._rebuild_parameter_with_state": (4, 4, Call),
    "torch._tensor._rebuild_from_type_v2": (4, 4, Named),
}
_NEVER = ("os", "posix", "nt", "sys")  # modules that torch refuses even if the user has added them


def read_pickle(file: BinaryIO, what: str, *, legacy: bool = False) -> Any:
    """The next pickle of a file, as dicts, lists, tuples, numbers, strings, `Named`, `Call` and `StorageId`.

    what: the file's name in messages.
    legacy: whether the file is from before 2020, whose storages have one more entry.
    """
    allowed = _allowed()
    refused: dict[str, None] = {}
    reader = _Reader(what, legacy)
    try:
        for operation, argument, _ in pickletools.genops(_Limited(file, what)):  # pyright: ignore[reportArgumentType]
            reader.spend(1)
            if operation.name == "GLOBAL":
                path = _todays_name(str(argument))
                if path not in allowed:
                    refused.setdefault(path)
                reader.stack.append(Named(path))
            elif operation.name == "STOP":
                break
            else:
                reader.follow(operation.name, argument)
    except CheckpointError:
        if not refused:
            raise
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        RecursionError,
        OverflowError,
        MemoryError,
        AttributeError,
    ) as problem:
        if not refused:
            raise CheckpointError(f"{what}: its pickle cannot be read ({problem}): it is damaged") from problem
    if refused:
        raise Refused(
            f"{what}: it contains {some(name[:200] for name in refused)}, which torch.load(weights_only=True) refuses: "
            "loading it would run its code. Nothing was loaded. If you trust the source of the file, load it yourself with "
            "torch.load(path, weights_only=False), and save only the weights with torch.save(model.state_dict(), new_path)"
        )
    if len(reader.stack) != 1 or reader.marks:
        raise CheckpointError(f"{what}: its pickle does not end with one object: it is damaged")
    return reader.stack[0]


class _Reader:
    """The stack and memory of a pickle that is being interpreted."""

    def __init__(self, what: str, legacy: bool) -> None:
        self.what, self.legacy = what, legacy
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memory: dict[int, Any] = {}
        self.left = MOST_STEPS
        self.odd_keys = 0

    def spend(self, steps: int) -> None:
        """Count steps, so that a short file cannot take unlimited time or memory."""
        self.left -= steps
        if self.left < 0:
            raise CheckpointError(
                f"{self.what}: its pickle takes more than {MOST_STEPS:,} instructions: it has more than weights"
            )

    def follow(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name == "PROTO":
            return
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _AS_IT_STANDS:
            stack.append(argument)
        elif name == "SHORT_BINSTRING":  # from Python 2, whose strings are bytes
            stack.append(argument.encode("latin-1").decode("utf-8"))
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "MARK":
            self.marks.append(stack)
            self.stack = []
        elif name == "TUPLE":
            items = self._since_mark()
            self.stack.append(tuple(items))
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else self._since_mark()
            self._last(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(), stack.pop()][::-1] if name == "SETITEM" else self._since_mark()
            self._fill(self._last(dict), zip(items[::2], items[1::2], strict=True))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memory[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memory[argument])
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = stack.pop(), stack.pop()
            stack.append(self._call(function, arguments))
        elif name == "BUILD":
            stack.pop()  # attributes of an OrderedDict, or the state of a call: not weights
            if not isinstance(stack[-1], dict | Call):
                raise CheckpointError(
                    f"{self.what}: its pickle sets attributes of a {type(stack[-1]).__name__}: it is damaged"
                )
        elif name == "BINPERSID":
            stack.append(self._storage(stack.pop()))
        else:
            raise Refused(f"{self.what}: its pickle has the instruction {name}, which torch.load(weights_only=True) refuses")

    def _since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def _last(self, kind: type[Any]) -> Any:
        if type(self.stack[-1]) is not kind:
            raise CheckpointError(f"{self.what}: its pickle fills a {type(self.stack[-1]).__name__} as a {kind.__name__}")
        return self.stack[-1]

    def _call(self, function: Any, arguments: Any) -> Any:
        if not isinstance(function, Named) or not isinstance(arguments, tuple):
            raise Refused(f"{self.what}: its pickle calls a {type(function).__name__}, which is not a function")
        if function.path in _DICTS:
            pairs = arguments[0] if arguments else ()
            self.spend(8 * len(pairs))  # a reference to a list takes no room in the file, but its dict takes memory
            return self._fill({}, pairs.items() if isinstance(pairs, dict) else pairs)
        least, most, first = _ARGUMENTS.get(function.path, (0, len(arguments), object))
        if not least <= len(arguments) <= most or (arguments and not isinstance(arguments[0], first)):
            raise CheckpointError(f"{self.what}: its pickle calls {function.path} with wrong arguments: it is damaged")
        return Call(function.path, arguments)

    def _fill(self, held: dict[Any, Any], pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        """Fill a dict, and refuse keys that take too long.

        Hashing a tuple visits all of its content, so nested tuples are refused. Numbers can be chosen with equal hashes, so
        that each is compared with all before it; strings cannot, and numbers below 2**60 are their own hashes. Of other
        keys, a limited number is accepted.
        """
        for key, value in pairs:
            if isinstance(key, tuple) and (len(key) > _LONGEST_KEY or any(isinstance(item, tuple) for item in key)):
                raise CheckpointError(f"{self.what}: its pickle has a key that is a long or nested tuple: it is damaged")
            if not (key is None or isinstance(key, str) or (isinstance(key, int) and abs(key) < 2**60)):
                self.odd_keys += max(1, len(key)) if isinstance(key, tuple) else 1
                if self.odd_keys > _MOST_ODD_KEYS:
                    raise CheckpointError(
                        f"{self.what}: its pickle has more than {_MOST_ODD_KEYS:,} keys that are neither strings nor small "
                        "numbers: it has more than weights"
                    )
            held[key] = value
        return held

    def _storage(self, pid: Any) -> StorageId:
        match pid:
            case ("storage", Named(path=kind), str() as key, str(), int() as numel, *rest) if (
                0 <= numel < 2**63 and len(rest) == self.legacy
            ):
                return StorageId(kind, key, numel, rest[0] if rest else None)
        raise CheckpointError(f"{self.what}: its pickle has a reference that is not a storage: it is damaged")


class _Limited:
    """A file that reads at most `LONGEST` bytes, so that lengths in a pickle cannot take memory."""

    def __init__(self, file: BinaryIO, what: str) -> None:
        self.file, self.what, self.left = file, what, LONGEST
        self.at = file.tell()
        self.end = file.seek(0, io.SEEK_END)
        file.seek(self.at)

    def read(self, count: int) -> bytes:
        self._take(count)
        return self._passed(self.file.read(min(count, max(0, self.end - self.at))))

    def readline(self) -> bytes:
        line = self.file.readline(4096)
        self._take(len(line))
        return self._passed(line)

    def tell(self) -> int:
        return self.at

    def _passed(self, content: bytes) -> bytes:
        self.at += len(content)
        return content

    def _take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise CheckpointError(f"{self.what}: its pickle is longer than {LONGEST:,} bytes, or claims to be")


def _todays_name(argument: str) -> str:
    """The present name for GLOBAL's argument; protocol 2 writes the names of Python 2."""
    from torch._weights_only_unpickler import IMPORT_MAPPING, NAME_MAPPING  # pyright: ignore[reportPrivateImportUsage]

    module, _, name = argument.partition(" ")
    if (module, name) in NAME_MAPPING:
        module, name = NAME_MAPPING[module, name]
    return f"{IMPORT_MAPPING.get(module, module)}.{name}"


def _allowed() -> frozenset[str]:
    """Names that torch's weights-only loader accepts, including those that the user added with add_safe_globals."""
    from torch._weights_only_unpickler import _get_allowed_globals, _get_user_allowed_globals

    added = (name for name in _get_user_allowed_globals() if name.rpartition(".")[0] not in _NEVER)
    return frozenset(_get_allowed_globals()) | frozenset(added)
