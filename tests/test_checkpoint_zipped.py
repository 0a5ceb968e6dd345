"""Archives that say two things, claim what they do not hold, or are damaged: `zipped` refuses them, and unpacks nothing."""

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from replastic.checkpoint import fire, inspect, open_checkpoint
from tests.test_checkpoint_hostile import DATA, GOOD, MIB, archive, check_refused


def rewritten(path: Path, change: Callable[[bytearray], None]) -> Path:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    return path


def table(content: bytearray, number: int = 0) -> int:
    """Where the archive's table has its entry of a member."""
    at = struct.unpack_from("<I", content, len(content) - 22 + 16)[0]
    for _ in range(number):
        at += 46 + sum(struct.unpack_from("<3H", content, at + 28))
    return at


def put(content: bytearray, at: int, form: str, value: int) -> None:
    struct.pack_into(form, content, at, value)


ZIPS: dict[str, tuple[Callable[[bytearray], None], str]] = {
    "encrypted": (lambda c: put(c, table(c) + 8, "<H", 1), "compressed"),
    "compressed in the table alone": (lambda c: put(c, table(c) + 10, "<H", 8), "packed in two ways"),
    "compressed where it lies alone": (lambda c: put(c, 8, "<H", 8), "packed in two ways"),
    "another name where it lies": (lambda c: c.__setitem__(slice(30, 31), b"b"), "called otherwise"),
    "another size where it lies": (lambda c: put(c, 18, "<I", 3), "two sizes"),
    "another size in the table": (lambda c: put(c, table(c) + 20, "<I", 3), "two sizes|claims two"),
    "another checksum in the table": (lambda c: put(c, table(c) + 16, "<I", 3), "two checksums"),
    "a size beyond the file": (lambda c: put(c, table(c) + 20, "<Q", 2**31 * (2**32 + 1)), "after the file"),
    "a member beyond the file": (lambda c: put(c, table(c) + 42, "<I", 2**31), "not where|not a whole"),
    "two members at one place": (lambda c: put(c, table(c, 1) + 42, "<I", 0), "called otherwise"),
    "a table of absurd size": (lambda c: put(c, len(c) - 10, "<I", 2**32 - 1), "whole"),
    "a table beyond the file": (lambda c: put(c, len(c) - 6, "<I", 2**32 - 2), "whole"),
    "a table that is not where it should be": (lambda c: put(c, table(c), "<I", 0), "whole"),
}


@pytest.mark.parametrize("case", ZIPS)
def test_an_archive_that_says_two_things_is_refused(tmp_path: Path, case: str) -> None:
    change, said = ZIPS[case]
    check_refused(rewritten(archive(tmp_path / "a.pt"), change), said, most=2 * MIB)


def test_members_that_lie_in_each_other_are_refused(tmp_path: Path) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as file:
        file.writestr("a/data/0", DATA)
    path = archive(tmp_path / "a.pt", more={"a/more": inner.getvalue()})

    def change(content: bytearray) -> None:
        put(content, table(content, 2) + 42, "<I", content.index(inner.getvalue()))  # into the member after it

    check_refused(rewritten(path, change), "overlap")


def test_claims_of_zip64_are_held_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {"a/data.pkl": GOOD, "a/data/0": DATA}.items():
            with file.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                member.write(content)
    assert inspect(path).matrices
    content = path.read_bytes()
    end = content[-22:]
    at, size = struct.unpack("<I", end[16:20])[0], struct.unpack("<I", end[12:16])[0]
    for claimed in (size, 2**62, 2**64 - 1):
        record = b"PK\x06\x06" + struct.pack("<Q2H2I4Q", 44, 45, 45, 0, 0, 2, 2, claimed, at)
        locator = b"PK\x06\x07" + struct.pack("<IQI", 0, len(content) - 22, 1)
        path.write_bytes(content[:-22] + record + locator + end[:12] + b"\xff" * 8 + b"\0\0")
        if claimed == size:
            assert inspect(path).matrices
        else:
            check_refused(path, "whole", most=2 * MIB)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt")
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("a/data/0", bytes(24))
    check_refused(path, "one name")


def test_compressed_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for packed, said in (("a/data.pkl", "data.pkl is compressed"), ("a/data/0", "data/0.*is compressed")):
        with zipfile.ZipFile(path, "w") as file:
            for name, content in {"a/data.pkl": GOOD, "a/data/0": DATA}.items():
                file.writestr(name, content, zipfile.ZIP_DEFLATED if name == packed else zipfile.ZIP_STORED)
        check_refused(path, said)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("a/data.pkl", "w") as member:
        for _ in range(64):
            member.write(bytes(MIB))
    check_refused(path, "compressed", most=2 * MIB)
    inner = path.read_bytes()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("policy.pth", inner)
    check_refused(path, r"policy\.pth is compressed", most=2 * MIB)


def test_archives_go_one_into_the_other_once(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip")
    for _ in range(2):
        content = path.read_bytes()
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("policy.pth", content)
        if _ == 0:
            assert open_checkpoint(path).format == "Stable-Baselines3"
    check_refused(path, "0 members data.pkl")


@pytest.mark.parametrize("name", ["../out", "/replastic-out", "a/../../out", "..\\out", "a\0b"])
def test_nothing_is_unpacked_wherever_a_member_would_go(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    path = archive(folder / "a.pt", more={name.replace("\0", "_"): b"harm"})
    if "\0" in name:
        rewritten(path, lambda c: c.__setitem__(slice(None), c.replace(b"a_b", b"a\0b")))
    assert inspect(path).matrices
    fire(path, folder / "b.pt", where=["a.weight"])
    assert {entry.name for entry in tmp_path.rglob("*")} == {"in", "a.pt", "b.pt"}
    assert not Path("/replastic-out").exists()


@pytest.mark.parametrize("damage", [False, True])
@pytest.mark.parametrize("computed", [True, False])
def test_a_checksum_that_was_wrong_before_is_known(tmp_path: Path, damage: bool, computed: bool) -> None:
    path, before = tmp_path / "a.pt", torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(computed)
    try:
        torch.save({"a.weight": torch.randn(4, 6), "b.weight": torch.randn(4, 6)}, path)
    finally:
        torch.serialization.set_crc32_options(before)
    found = open_checkpoint(path)
    at = found.tensors["a.weight"].offset
    if damage:
        rewritten(path, lambda content: content.__setitem__(at, content[at] ^ 1))
    with open(path, "rb") as file:
        intact = {member.name: member.intact(file) for member in found.checksums[path] if member.size}
    assert intact == {name: computed and not (damage and name == "a/data/0") for name in intact}
    assert "a/data/0" in intact
