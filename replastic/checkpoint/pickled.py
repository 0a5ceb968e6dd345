"""What a pickle says, without doing it.

A pickle is a program: to load one is to run it. Here its instructions are followed with everything that would be imported
or called replaced by a note of it, so that dicts, lists, numbers and strings come out as they are, and of a tensor which
storage it lies in. The instructions and names that are accepted are those of `torch.load(weights_only=True)`; a file that
it refuses is refused here, and the error names the object.

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

LONGEST = 2**26  # bytes of pickle that are read: names and shapes of a million tensors take less
MOST_STEPS = 2**23  # instructions that are followed: a quarter of a million tensors take as many
_LONGEST_KEY = 64  # entries of a tuple that is a key
_MOST_ODD_KEYS = 10_000  # that are neither texts nor small numbers; the entries of a tuple count each


class Named(NamedTuple):
    """A function or class that the pickle names, as "torch._utils._rebuild_tensor_v2"."""

    path: str


@dataclass(eq=False)
class Call:
    """A call that the pickle asks for, and that nobody makes."""

    function: str
    arguments: tuple[Any, ...]


class StorageId(NamedTuple):
    """What stands in a pickle for a storage: which type, under which key, how many entries."""

    kind: str
    key: str
    numel: int
    view_of: Any = None  # of very old files: (key, offset, size) if it is a part of another


class Refused(CheckpointError):
    """The pickle holds what `weights_only=True` does not load."""


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_AS_IT_STANDS = ("BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "LONG1")
_EMPTY = {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_DICTS = ("collections.OrderedDict", "collections.Counter")
# How many arguments torch's functions take, at least and at most, and what the first one is: another call is an error there.
_ARGUMENTS = {
    "torch._utils._rebuild_tensor": (4, 4, StorageId),
    "torch._utils._rebuild_tensor_v2": (6, 7, StorageId),
    "torch._utils._rebuild_tensor_v3": (7, 8, StorageId),
    "torch._utils._rebuild_parameter": (3, 3, Call),
    "torch._utils._rebuild_parameter_with_state": (4, 4, Call),
    "torch._tensor._rebuild_from_type_v2": (4, 4, Named),
}
_NEVER = ("os", "posix", "nt", "sys")  # modules that torch refuses also where the user has added them


def read_pickle(file: BinaryIO, what: str, *, legacy: bool = False) -> Any:
    """The next pickle of a file, as dicts, lists, tuples, numbers, strings, `Named`, `Call` and `StorageId`.

    what: of which file messages speak.
    legacy: whether it is of a file from before 2020, whose storages have one more entry.
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
            f"{what}: it holds {some(name[:200] for name in refused)}, which torch.load(weights_only=True) refuses, because "
            "to load it is to run its code. Nothing was loaded. Where the file comes from a source that you trust, save the "
            "weights alone, as in torch.save(model.state_dict(), path)"
        )
    if len(reader.stack) != 1 or reader.marks:
        raise CheckpointError(f"{what}: its pickle does not end with one object: it is damaged")
    return reader.stack[0]


class _Reader:
    """The stack and memory of a pickle's program."""

    def __init__(self, what: str, legacy: bool) -> None:
        self.what, self.legacy = what, legacy
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memory: dict[int, Any] = {}
        self.left = MOST_STEPS
        self.odd_keys = 0

    def spend(self, steps: int) -> None:
        """So that a short file cannot ask for endless work, or for much memory."""
        self.left -= steps
        if self.left < 0:
            raise CheckpointError(
                f"{self.what}: its pickle takes more than {MOST_STEPS:,} instructions: it holds more than weights"
            )

    def follow(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name == "PROTO":
            return
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _AS_IT_STANDS:
            stack.append(argument)
        elif name == "SHORT_BINSTRING":  # of Python 2, whose strings are bytes
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
            stack.pop()  # attributes of an OrderedDict, or the state of a call: none of it is a weight
            if not isinstance(stack[-1], dict | Call):
                raise CheckpointError(
                    f"{self.what}: its pickle gives a {type(stack[-1]).__name__} attributes: it is damaged"
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
            raise Refused(f"{self.what}: its pickle calls a {type(function).__name__}, which is no function")
        if function.path in _DICTS:
            pairs = arguments[0] if arguments else ()
            self.spend(8 * len(pairs))  # a list that is named again takes no room in the file, and a dict of it takes memory
            return self._fill({}, pairs.items() if isinstance(pairs, dict) else pairs)
        least, most, first = _ARGUMENTS.get(function.path, (0, len(arguments), object))
        if not least <= len(arguments) <= most or (arguments and not isinstance(arguments[0], first)):
            raise CheckpointError(f"{self.what}: its pickle calls {function.path} with other arguments: it is damaged")
        return Call(function.path, arguments)

    def _fill(self, held: dict[Any, Any], pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        """To take a tuple's hash is to go through all that is in it, so keys that hold others without end are not taken.

        Numbers can be chosen so that all have one hash, and then each is compared with all before it. Texts cannot, and
        numbers below 2**60 are their own hashes; of other keys there may be a few.
        """
        for key, value in pairs:
            if isinstance(key, tuple) and (len(key) > _LONGEST_KEY or any(isinstance(item, tuple) for item in key)):
                raise CheckpointError(f"{self.what}: its pickle has a key that is a tuple of many others: it is damaged")
            if not (key is None or isinstance(key, str) or (isinstance(key, int) and abs(key) < 2**60)):
                self.odd_keys += max(1, len(key)) if isinstance(key, tuple) else 1
                if self.odd_keys > _MOST_ODD_KEYS:
                    raise CheckpointError(
                        f"{self.what}: its pickle has more than {_MOST_ODD_KEYS:,} keys that are neither texts nor small "
                        "numbers: it holds more than weights"
                    )
            held[key] = value
        return held

    def _storage(self, pid: Any) -> StorageId:
        match pid:
            case ("storage", Named(path=kind), str() as key, str(), int() as numel, *rest) if (
                0 <= numel < 2**63 and len(rest) == self.legacy
            ):
                return StorageId(kind, key, numel, rest[0] if rest else None)
        raise CheckpointError(f"{self.what}: its pickle refers to something outside that is no storage: it is damaged")


class _Limited:
    """A file of which no more than `LONGEST` bytes are read or asked for: no length that a pickle claims takes memory."""

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
    """Of GLOBAL's argument; protocol 2 writes the names of Python 2."""
    from torch._weights_only_unpickler import IMPORT_MAPPING, NAME_MAPPING  # pyright: ignore[reportPrivateImportUsage]

    module, _, name = argument.partition(" ")
    if (module, name) in NAME_MAPPING:
        module, name = NAME_MAPPING[module, name]
    return f"{IMPORT_MAPPING.get(module, module)}.{name}"


def _allowed() -> frozenset[str]:
    """Names that torch's own weights-only loader accepts, with those that the user has added by add_safe_globals."""
    from torch._weights_only_unpickler import _get_allowed_globals, _get_user_allowed_globals

    added = (name for name in _get_user_allowed_globals() if name.rpartition(".")[0] not in _NEVER)
    return frozenset(_get_allowed_globals()) | frozenset(added)
