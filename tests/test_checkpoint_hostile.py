"""Files that are damaged, or made to harm: each is refused in words, nothing of it runs, and none takes time or memory."""

import builtins
import json
import os
import pickle
import random
import resource
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from replastic.checkpoint import CheckpointError, inspect, open_checkpoint, pickled
from tests.test_checkpoint_safetensors import small_net, values

MIB = 2**20


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def numbers(values: Any) -> bytes:
    return b"(" + b"".join(number(value) if isinstance(value, int) else value for value in values) + b"t"


def tensor(
    shape: Any = (2, 3),
    stride: Any = (3, 1),
    *,
    offset: Any = 0,
    numel: Any = 6,
    kind: str = "torch\nFloatStorage",
    key: str = "0",
    made: str = "torch._utils\n_rebuild_tensor_v2",
) -> bytes:
    """The instructions that make a tensor."""
    storage = b"(" + text("storage") + f"c{kind}\n".encode() + text(key) + text("cpu") + numbers([numel])[1:-1] + b"tQ"
    return (
        f"c{made}\n(".encode()
        + storage
        + numbers([offset])[1:-1]
        + numbers(shape)
        + numbers(stride)
        + b"\x89Ntr"[:-1]
        + b"R"
    )


def state_dict(*pairs: tuple[str, bytes]) -> bytes:
    return b"\x80\x02}(" + b"".join(text(name) + value for name, value in pairs) + b"u."


GOOD = state_dict(("a.weight", tensor()))
DATA = torch.arange(6.0).numpy().tobytes()


def archive(path: Path, program: bytes = GOOD, *, more: dict[str, bytes] | None = None, data: bytes = DATA) -> Path:
    """As torch.save makes it, around a pickle of one's own."""
    members = {"a/data.pkl": program, "a/byteorder": b"little", "a/data/0": data, "a/version": b"3\n", **(more or {})}
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def legacy(path: Path, program: bytes = GOOD, keys: bytes = b"\x80\x02](U\x010e.", data: bytes | None = None) -> Path:
    """As torch.save made it before 1.6."""
    magic, version = pickle.dumps(0x1950A86A20F9469CFC6C, 2), pickle.dumps(1001, 2)
    system = pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2}}, 2)
    program = program.replace(b"tQ", b"NtQ")  # a storage is said to be no view of another
    path.write_bytes(magic + version + system + program + keys + (struct.pack("<q", 6) + DATA if data is None else data))
    return path


WAYS: dict[str, Callable[..., Path]] = {"zip": archive, "legacy": legacy}


@contextmanager
def little_memory(most: int = 16 * MIB) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def check_refused(path: Path, said: str = "", *, most: int = 16 * MIB) -> str:
    with little_memory(most), pytest.raises((CheckpointError, FileNotFoundError), match=said or None) as raised:
        inspect(path)
    message = str(raised.value)
    assert path.name in message
    assert len(message) < 5000
    return message


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_is_made_here_by_hand_is_what_torch_loads(tmp_path: Path, way: Callable[..., Path]) -> None:
    path = way(tmp_path / "a.pt")
    assert torch.load(path, weights_only=True)["a.weight"].equal(values(path)["a.weight"])
    assert inspect(path).matrices


class Runs:
    """A pickle of it calls a function when it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "builtins.exec", "os.mkdir"])
def test_nothing_that_a_pickle_asks_for_is_run(tmp_path: Path, way: Callable[..., Path], protocol: int, name: str) -> None:
    mark = tmp_path / "ran"
    harm = {
        "os.system": Runs(os.system, f"touch {mark}"),
        "builtins.eval": Runs(builtins.eval, f"open({str(mark)!r}, 'w')"),
        "builtins.exec": Runs(builtins.exec, f"open({str(mark)!r}, 'w')"),
        "os.mkdir": Runs(os.mkdir, str(mark)),
    }[name]
    program = pickle.dumps({"a": harm}, protocol)
    message = check_refused(way(tmp_path / "a.pt", program), "refuses")
    assert not mark.exists()
    if protocol == 2:  # as torch.save has it; other protocols have instructions that are refused as such
        assert name.replace("os.", "posix.") in message
    pickle.loads(program)
    assert mark.exists()


def test_all_objects_that_are_refused_are_named(tmp_path: Path) -> None:
    program = b"\x80\x02](cown.code\nOne\ncown.code\nTwo\ncown.code\nThree\ncown.code\nFour\ncown.code\nOne\ne."
    assert "own.code.One, own.code.Two, own.code.Three and 1 more" in check_refused(archive(tmp_path / "a.pt", program))


def test_names_do_not_reach_the_terminal_as_they_are(tmp_path: Path) -> None:
    assert check_refused(archive(tmp_path / "a.pt", b"\x80\x02cos\n\x1b[2Jsystem\n.")).isprintable()
    content = {"\x1b[2J": torch.eye(2).to_sparse(), "a.weight": torch.ones(2, 2), "a.bias": torch.ones(2)}
    torch.save(content, tmp_path / "b.pt")
    assert all(entry.isprintable() for entry in open_checkpoint(tmp_path / "b.pt").beside)


def test_messages_quote_files_without_their_escape_sequences(tmp_path: Path) -> None:
    harm = "\x1b]0;pwned\x07\n\u202e"
    check_printable(archive(tmp_path / "a.pt", state_dict(("a.weight", tensor(key=harm)))))
    check_printable(legacy(tmp_path / "b.pt", state_dict(("a.weight", tensor(key=harm))), b"\x80\x02].", b""))
    header = json.dumps({harm: {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "c.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    check_printable(tmp_path / "c.safetensors")
    (tmp_path / "d.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    index = tmp_path / "d.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {harm: "d.safetensors"}}))
    check_printable(index)


def check_printable(path: Path) -> None:
    message = check_refused(path)
    assert message.isprintable()
    assert r"\x1b]0;pwned\x07\n\u202e" in message


def test_messages_are_short_however_long_a_name_is(tmp_path: Path) -> None:
    check_refused(archive(tmp_path / "a.pt", state_dict(("a.weight", tensor(key="a" * MIB)))), "is missing")


INSTRUCTIONS = {
    "STACK_GLOBAL": text("os") + text("system") + b"\x93",
    "INST": b"(" + text("true") + b"ios\nsystem\n",
    "OBJ": b"(cos\nsystem\n" + text("true") + b"o",
    "EXT1": b"\x82\x01",
    "EXT4": b"\x84\x01\x00\x00\x00",
    "NEWOBJ_EX": b"ctorch\nSize\n)}\x92",
    "PERSID": b"P0\n",
    "DUP": b"}2",
    "POP": b"}}0",
    "LONG4": b"\x8b\x01\x00\x00\x00\x01",
    "BINBYTES": b"B\x01\x00\x00\x00a",
    "BYTEARRAY8": b"\x96\x01\x00\x00\x00\x00\x00\x00\x00a",
    "NEXT_BUFFER": b"\x97",
    "MEMOIZE": b"}\x94",
    "FRAME": b"\x95\x01\x00\x00\x00\x00\x00\x00\x00}",
    "INT": b"I1\n",
    "STRING": b"S'a'\n",
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_instructions_that_torch_refuses_are_refused(tmp_path: Path, way: Callable[..., Path], instruction: str) -> None:
    path = way(tmp_path / "a.pt", b"\x80\x02" + INSTRUCTIONS[instruction] + b".")
    check_refused(path, f"instruction {instruction}|system")
    with pytest.raises(Exception):  # noqa: B017, PT011
        torch.load(path, weights_only=True)


def nested(depth: int) -> bytes:
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


def laughs(opening: bytes, joined: bytes, levels: int = 60) -> bytes:
    """Each level holds the one before twice."""
    body = b"\x80\x02" + opening + b"q\x00"
    for _ in range(levels):
        body += joined + b"q\x00"
    return body


LISTS = laughs(b"]", b"](h\x00h\x00e")
# All have one hash, so that a dict compares each with all before.
COLLIDING = [number(k * (2**61 - 1)) for k in range(2, 20_002)]
TUPLES = laughs(b")", b"h\x00\x86")
MANY_PAIRS = b"](" + b"".join(number(n) + b"N\x86" for n in range(20_000)) + b"e"

PROGRAMS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cannot be read"),
    "no end": (b"\x80\x02}", "cannot be read"),
    "memory that was never filled": (b"\x80\x02j\xff\xff\xff\x7f.", "cannot be read"),
    "memory at a large index": (b"\x80\x02}r\xff\xff\xff\xff.", "no tensor"),
    "a text longer than the file": (b"\x80\x02X\xff\xff\xff\x02a.", "cannot be read"),
    "a text longer than anything": (b"\x80\x02X\xff\xff\xff\xffa.", "longer than"),
    "a number longer than the file": (b"\x80\x02\x8a\xffa.", "cannot be read"),
    "a long number longer than memory": (b"\x80\x02\x8b\xff\xff\xff\x7fa.", "longer than"),
    "bytes longer than memory": (b"\x80\x02\x8e" + b"\xff" * 7 + b"\x7fa.", "longer than"),
    "a negative length": (b"\x80\x02\x8b\xff\xff\xff\xffa.", "cannot be read"),
    "lists in lists": (nested(100_000), "nested"),
    "tuples in tuples": (b"\x80\x02)" + b"\x85" * 100_000 + b".", "nested"),
    "calls in calls": (b"\x80\x02" + b"ctorch\nSize\n" * 20_000 + b")R" + b"\x85R" * 19_999 + b".", "no tensor"),
    "a tuple of tuples as key": (b"\x80\x02})" + b"\x85" * 100_000 + b"Ns.", "key"),
    "a tuple of all tuples as key": (b"\x80\x02}" + TUPLES[2:] + b"Ns.", "key"),
    "a tuple of all tuples as key of a call": (
        b"\x80\x02ccollections\nOrderedDict\n](" + TUPLES[2:] + b"N\x86e\x85R.",
        "key",
    ),
    "keys of one hash": (b"\x80\x02}(" + b"".join(key + b"N" for key in COLLIDING) + b"u.", "10,000 keys"),
    "keys of one hash, one by one": (b"\x80\x02}" + b"".join(key + b"Ns" for key in COLLIDING) + b".", "10,000 keys"),
    "keys of one hash in a call": (
        b"\x80\x02ccollections\nOrderedDict\n](" + b"".join(key + b"N\x86" for key in COLLIDING) + b"e\x85R.",
        "10,000 keys",
    ),
    "tuples of one hash": (b"\x80\x02}(" + b"".join(key + b"\x85N" for key in COLLIDING) + b"u.", "10,000 keys"),
    "long tuples as keys": (b"\x80\x02}(" + (b"(" + b"N" * 60 + b"tN") * 200 + b"u.", "10,000 keys"),
    "many plain keys": (b"\x80\x02}(" + b"".join(number(k) + b"N" for k in range(-9000, 9000)) + b"u.", "no tensor"),
    "a list that holds itself": (b"\x80\x02]q\x00h\x00a.", "no tensor"),
    "a dict that holds itself": (b"\x80\x02}q\x00" + text("a") + b"h\x00s.", "no tensor"),
    "a list of all lists": (LISTS[:2] + b"(" + LISTS[2:] + b"t.", "no tensor"),
    "a tuple of all tuples": (TUPLES + b".", "no tensor"),
    "dicts of many pairs, over and over": (
        b"\x80\x02" + MANY_PAIRS + b"q\x00" + b"(" + b"ccollections\nOrderedDict\nh\x00\x85R" * 5000 + b"t.",
        "instructions",
    ),
    "a key that is a list": (b"\x80\x02}]Ns.", "cannot be read"),
    "a key without a value": (b"\x80\x02}(Nu.", "cannot be read"),
    "a dict filled as a list": (b"\x80\x02}Na.", "fills a dict as a list"),
    "a list filled as a dict": (b"\x80\x02]NNs.", "fills a list as a dict"),
    "a call of a dict": (b"\x80\x02})R.", "not a function"),
    "a call without arguments": (b"\x80\x02ctorch\nSize\nNR.", "not a function"),
    "attributes of a list": (b"\x80\x02]}b.", "attributes"),
    "an empty stack": (b"\x80\x02R.", "cannot be read"),
    "a mark that was never set": (b"\x80\x02e.", "cannot be read"),
    "two objects": (b"\x80\x02}}.", "one object"),
    "an open mark": (b"\x80\x02(}.", "one object"),
    "an unknown instruction": (b"\x80\x02\xf0.", "cannot be read"),
    "a line without end": (b"\x80\x02c" + b"a" * 10_000, "cannot be read"),
    "text that is not UTF-8": (b"\x80\x02U\x01\xff.", "cannot be read"),
    "a storage that is a number": (b"\x80\x02K\x01Q.", "not a storage"),
    "a storage that is a module": (
        b"\x80\x02(" + text("module") + b"ctorch\nSize\n" + text("0") * 2 + b"K\x01tQ.",
        "not a storage",
    ),
}


LONG = [case for case, (program, _) in PROGRAMS.items() if len(program) > 50_000]  # read by the same code either way


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "case"), [(way, case) for case in PROGRAMS for way in WAYS if way == "zip" or case not in LONG]
)
def test_a_pickle_that_is_none_of_weights_is_refused_soon(tmp_path: Path, way: str, case: str) -> None:
    program, said = PROGRAMS[case]
    if way == "zip":
        # A hundred thousand lists that were asked for take their room, and so do eight million steps of making dicts.
        check_refused(archive(tmp_path / "a.pt", program), said, most=200 * MIB if case in LONG else 4 * MIB)
    else:
        check_refused(legacy(tmp_path / "a.pt", program, b"\x80\x02].", b""), f"{said}|one object|cannot be read")


@pytest.mark.slow
def test_a_pickle_of_many_mebibytes_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "a.pt", b"\x80\x02" + text("a" * 70 * MIB) + b".")
    check_refused(path, "longer than 67,108,864 bytes")
    monkeypatch.setattr(pickled, "MOST_STEPS", 10_000)
    check_refused(archive(tmp_path / "b.pt", b"\x80\x02(" + b"}" * 20_000 + b"t."), "more than 10,000 instructions")
    monkeypatch.setattr(pickled, "LONGEST", 10_000)
    check_refused(archive(tmp_path / "c.pt", b"\x80\x02" + text("a" * 1000) * 100 + b"."), "longer than 10,000 bytes")


HUGE = 2**60
TENSORS: dict[str, tuple[dict[str, Any], str]] = {
    "a storage of absurd size": ({"numel": HUGE}, "bytes, but|not match the pickle"),
    "a storage beyond counting": ({"numel": 2**200}, "not a storage"),
    "a storage of negative size": ({"numel": -6}, "not a storage"),
    "a storage larger than the file": ({"numel": 7}, "bytes, but|not match the pickle"),
    "a storage smaller than the file's": ({"numel": 5}, "bytes, but|not match the pickle"),
    "a storage whose size is text": ({"numel": text("6")}, "not a storage"),
    "a negative offset": ({"offset": -1}, "invalid offset"),
    "an absurd offset": ({"offset": HUGE}, "beyond its storage"),
    "an offset beyond counting": ({"offset": 2**64}, "invalid offset"),
    "an offset that is a fraction": ({"offset": b"G?\xf0\x00\x00\x00\x00\x00\x00"}, "invalid offset"),
    "one entry too far": ({"offset": 1}, "beyond its storage"),
    "strides beyond the storage": ({"stride": (4, 1)}, "beyond its storage"),
    "negative strides": ({"stride": (-3, 1)}, "invalid offset"),
    "absurd strides": ({"stride": (2**62, 2**62)}, "beyond its storage"),
    "an absurd shape": ({"shape": (2**40, 2**40), "stride": (0, 0)}, "invalid offset"),
    "a large shape in one entry": ({"shape": (2**28, 2**28), "stride": (0, 0)}, "share memory"),
    "entries that overlap": ({"shape": (4, 3), "stride": (1, 1)}, "share memory"),
    "an empty shape of absurd sides": ({"shape": (0, 2**62, 2**62), "stride": (1, 1, 1)}, "invalid offset"),
    "a hundred axes": ({"shape": (1,) * 100, "stride": (1,) * 100}, "invalid offset"),
    "fewer strides than axes": ({"stride": (1,)}, "invalid offset"),
    "a negative shape": ({"shape": (-2, 3)}, "invalid offset"),
    "a shape of texts": ({"shape": (text("2"), 3)}, "invalid offset"),
    "a storage of objects": ({"kind": "collections\nOrderedDict"}, "not a known number type"),
    "a storage of a kind that torch lacks": ({"kind": "torch\nFooStorage"}, "torch.FooStorage"),
    "a storage of another module": ({"kind": "os\nFloatStorage"}, "os.FloatStorage"),
    "a storage that is not there": ({"key": "1"}, "missing|not match the pickle"),
    "a storage with a path for a name": ({"key": "../../../etc/passwd"}, "missing|not match the pickle"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("case", TENSORS)
def test_a_tensor_that_cannot_be_where_it_is_said_to_be_is_refused(
    tmp_path: Path, way: Callable[..., Path], case: str
) -> None:
    given, said = TENSORS[case]
    check_refused(way(tmp_path / "a.pt", state_dict(("a.weight", tensor(**given)))), said, most=2 * MIB)


LEGACIES: dict[str, tuple[dict[str, Any], str]] = {
    "a list as key": ({"keys": b"\x80\x02](]e."}, "not match the pickle"),
    "keys that are no list": ({"keys": b"\x80\x02}."}, "damaged"),
    "no keys": ({"keys": b"\x80\x02]."}, "missing"),
    "a negative size": ({"data": struct.pack("<q", -6) + DATA}, "not match the pickle"),
    "an absurd size": ({"data": struct.pack("<q", 2**62) + DATA}, "not match the pickle"),
    "no data": ({"data": b""}, "not match the pickle"),
    "half the data": ({"data": struct.pack("<q", 6) + DATA[:10]}, "truncated"),
    "two sizes of one storage": (
        {"program": state_dict(("a.weight", tensor()), ("b.weight", tensor((9, 9), (9, 1), numel=81)))},
        "contradicts itself about storage 0",
    ),
}


@pytest.mark.parametrize("case", LEGACIES)
def test_a_legacy_file_whose_parts_do_not_fit_is_refused(tmp_path: Path, case: str) -> None:
    given, said = LEGACIES[case]
    check_refused(legacy(tmp_path / "a.pt", **given), said, most=2 * MIB)


def files(folder: Path) -> dict[str, Path]:
    """A small whole file of each format."""
    from safetensors.torch import save_file

    model = small_net()
    found = {
        name: folder / f"a-{name}{suffix}"
        for name, suffix in {"zip": ".pt", "legacy": ".pth", "safetensors": ".safetensors", "agent": ".zip"}.items()
    }
    torch.save(model.state_dict(), found["zip"])
    torch.save({"model": model.state_dict(), "epoch": 3}, found["legacy"], _use_new_zipfile_serialization=False)
    save_file(model.state_dict(), found["safetensors"], metadata={"format": "pt"})
    with zipfile.ZipFile(found["agent"], "w") as file:
        file.writestr("data", "{}")
        file.write(found["zip"], "policy.pth")
    return found


FILES = ["zip", "legacy", "safetensors", "agent"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, name: str) -> None:
    path = files(tmp_path)[name]
    whole = path.read_bytes()
    inspect(path)
    for part in [*(len(whole) * part // 20 for part in range(20)), len(whole) - 1]:
        path.write_bytes(whole[:part])
        check_refused(path)


def structure_of(path: Path) -> list[int]:
    """The bytes that are not numbers of a tensor."""
    held = open_checkpoint(path).tensors.values() if path.suffix != ".json" else ()
    numbers = [range(stored.offset, stored.offset + stored.span) for stored in held]
    return [at for at in range(path.stat().st_size) if not any(at in stretch for stretch in numbers)]


def damaged(whole: bytes, structure: list[int], chance: random.Random) -> bytes:
    """With a few bytes changed: half of the changes are in the structure, where damage matters."""
    content = bytearray(whole)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = min(chance.choice((chance.randrange(len(content)), chance.choice(structure))), len(content) - 1)
        match chance.randrange(5):
            case 0:
                content[at] ^= 1 << chance.randrange(8)
            case 1:
                content[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                content[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 3:
                del content[at : at + chance.randrange(1, 9)]
            case _:
                length = chance.choice((2, 4, 8))
                content[at : at + length] = chance.choice((b"\xff", b"\x7f", b"\0")) * length
    return bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_damage_of_any_kind_is_refused_or_harmless(tmp_path: Path, name: str) -> None:
    path = files(tmp_path)[name]
    whole, chance = path.read_bytes(), random.Random(name)
    outcomes: dict[str, int] = {"opened": 0, "refused": 0}
    structure = structure_of(path)
    tracemalloc.start()
    try:
        for round in range(250):
            path.write_bytes(damaged(whole, structure, chance))
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of pickletools, about escapes
                    inspect(path) if round % 4 == 0 else open_checkpoint(path)
                outcomes["opened"] += 1
            except ValueError:
                outcomes["refused"] += 1
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()
    assert min(outcomes.values()) > 20, outcomes


def test_files_of_other_kinds_are_told_apart(tmp_path: Path) -> None:
    def made(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    for suffix in (".pt", ".safetensors", ".zip"):
        check_refused(made(f"a{suffix}", b""), "is empty: save")
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
        check_refused(made(f"b{suffix}", pointer), "git lfs pull")
    check_refused(made("c.pt", b"epoch,loss\n1,0.5\n"), "neither safetensors nor")
    check_refused(made("d.safetensors", b"epoch,loss\n1,0.5\n"), "not a safetensors file")
    check_refused(made("e.pt", pickle.dumps([1, 2], 2)), "not of torch.save")
    for protocol in (2, 4, 5):
        check_refused(made("f.pkl", pickle.dumps({"a": Runs(os.getpid)}, protocol)), r"not of torch.save.*torch\.from_numpy")
    check_refused(tmp_path / "absent.pt", "there is no file")
    with zipfile.ZipFile(tmp_path / "g.zip", "w") as file:
        file.writestr("readme.txt", "hello")
    check_refused(tmp_path / "g.zip", "0 members data.pkl")
    for save in (numpy.savez, numpy.savez_compressed):
        save(tmp_path / "k.npz", a=numpy.ones((2, 2)))
        check_refused(tmp_path / "k.npz", r"NumPy.*replace\('/', '\.'\): torch\.from_numpy")
    numpy.save(tmp_path / "l.npy", numpy.ones((2, 2)))
    check_refused(tmp_path / "l.npy", r"NumPy.*torch\.from_numpy")
    check_refused(made("m.gguf", b"GGUF\3\0\0\0" + bytes(64)), "GGUF.*converted from")
    check_refused(made("n.h5", b"\x89HDF\r\n\x1a\n" + bytes(64)), "HDF5")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(nn.Linear(2, 2)).save(tmp_path / "h.pt")
    check_refused(tmp_path / "h.pt", "TorchScript")
    check_refused(archive(tmp_path / "i.pt", more={"a/byteorder": b"big"}), "big-endian")
    check_refused(archive(tmp_path / "j.pt", more={"b/data.pkl": GOOD}), "2 members data.pkl")


def test_folders_without_one_set_of_weights_are_refused(tmp_path: Path) -> None:
    check_refused(tmp_path, "no file of weights")
    (tmp_path / "checkpoint-10").mkdir()
    archive(tmp_path / "checkpoint-10" / "model.pt")
    check_refused(tmp_path, "one of its folders: checkpoint-10")
    archive(tmp_path / "optimizer.pt")
    check_refused(tmp_path, "no file of weights")
    archive(tmp_path / "a.pt")
    assert open_checkpoint(tmp_path).tensors
    archive(tmp_path / "b.pt")
    check_refused(tmp_path, "a.pt, b.pt")


def test_what_is_neither_file_nor_folder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    check_refused(tmp_path / "pipe.pt", "neither a file nor a folder")


def test_sizes_that_are_claimed_take_no_memory_of_the_process(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cases: list[dict[str, Any]] = [
        {"numel": HUGE},
        {"shape": (2**28, 2**28), "stride": (0, 0)},
        {"shape": (0, 2**50), "stride": (1, 1)},
    ]
    for given in cases:
        path = archive(tmp_path / "a.pt", state_dict(("a.weight", tensor(**given)), ("b.weight", tensor())))
        try:
            inspect(path)
        except CheckpointError:
            assert given == {"numel": HUGE}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB
