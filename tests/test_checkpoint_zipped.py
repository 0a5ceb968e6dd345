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
    "encrypted": (lambda c: put(c, table(c) + 8, "<H", 1), "encrypted"),
    "a patch": (lambda c: put(c, table(c, 1) + 8, "<H", 0x20), "encrypted, or a patch"),
    "strongly encrypted": (lambda c: put(c, table(c, 3) + 8, "<H", 0x40), "encrypted"),
    "masked": (lambda c: put(c, table(c, 3) + 8, "<H", 0x2000), "encrypted"),
    "a folder with numbers in it": (lambda c: put(c, table(c, 2) + 38, "<I", 0x10), "a folder"),
    "a member on another disk": (lambda c: put(c, table(c, 2) + 34, "<H", 1), "another disk"),
    "an archive of several disks": (lambda c: put(c, len(c) - 18, "<H", 1), "other disks"),
    "a table on another disk": (lambda c: put(c, len(c) - 16, "<H", 1), "other disks"),
    "entries on other disks": (lambda c: put(c, len(c) - 14, "<H", 3), "other disks"),
    "more entries than the table has": (lambda c: put(c, len(c) - 12, "<H", 5), "other disks"),
    "compressed in the table alone": (lambda c: put(c, table(c) + 10, "<H", 8), "two compression methods"),
    "compressed where it lies alone": (lambda c: put(c, 8, "<H", 8), "two compression methods"),
    "another name where it lies": (lambda c: c.__setitem__(slice(30, 31), b"b"), "another name"),
    "another size where it lies": (lambda c: put(c, 18, "<I", 3), "two sizes"),
    "another size in the table": (lambda c: put(c, table(c) + 20, "<I", 3), "two sizes"),
    "another checksum in the table": (lambda c: put(c, table(c) + 16, "<I", 3), "two checksums"),
    "a size beyond the file": (lambda c: put(c, table(c) + 20, "<Q", 2**31 * (2**32 + 1)), "beyond the file"),
    "a member beyond the file": (lambda c: put(c, table(c) + 42, "<I", 2**31), "not at its position|not a complete"),
    "two members at one place": (lambda c: put(c, table(c, 1) + 42, "<I", 0), "another name"),
    "a table of absurd size": (lambda c: put(c, len(c) - 10, "<I", 2**32 - 1), "complete"),
    "a table beyond the file": (lambda c: put(c, len(c) - 6, "<I", 2**32 - 2), "complete"),
    "a table that is not where it should be": (lambda c: put(c, table(c), "<I", 0), "complete"),
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
        for name, content in {"a/data.pkl": GOOD, "a/data/0": DATA, "a/version": b"3\n"}.items():
            with file.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                member.write(content)
    assert inspect(path).matrices
    content = path.read_bytes()
    end = content[-22:]
    at, size = struct.unpack("<I", end[16:20])[0], struct.unpack("<I", end[12:16])[0]
    for claimed in (size, 2**62, 2**64 - 1):
        record = b"PK\x06\x06" + struct.pack("<Q2H2I4Q", 44, 45, 45, 0, 0, 3, 3, claimed, at)
        locator = b"PK\x06\x07" + struct.pack("<IQI", 0, len(content) - 22, 1)
        path.write_bytes(content[:-22] + record + locator + end[:12] + b"\xff" * 8 + b"\0\0")
        if claimed == size:
            assert inspect(path).matrices
        else:
            check_refused(path, "complete", most=2 * MIB)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt")
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("a/data/0", bytes(24))
    check_refused(path, "same name")


def test_compressed_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for packed, said in (("a/data.pkl", "data.pkl is compressed"), ("a/data/0", "data/0.*is compressed")):
        with zipfile.ZipFile(path, "w") as file:
            for name, content in {"a/data.pkl": GOOD, "a/data/0": DATA, "a/version": b"3\n"}.items():
                file.writestr(name, content, zipfile.ZIP_DEFLATED if name == packed else zipfile.ZIP_STORED)
        check_refused(path, said)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("a/data.pkl", "w") as member:
        for _ in range(64):
            member.write(bytes(MIB))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("a/version", b"3")
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


@pytest.mark.parametrize("name", ["../out", "/replastic-out", "..\\out", "b/data/0", "A/data/1", "data.pk"])
def test_members_outside_the_folder_of_the_others_are_refused_as_torch_does(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "a.pt", more={name: b"harm"})
    check_refused(path, "one folder")
    with pytest.raises(RuntimeError, match="subdirectory"):
        torch.load(path, weights_only=True)


@pytest.mark.parametrize("version", ["0", "11", "", "three", None])
def test_versions_that_torch_does_not_read_are_refused(tmp_path: Path, version: str | None) -> None:
    path = archive(tmp_path / "a.pt", more={"a/version": (version or "").encode()})
    if version is None:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("a/data.pkl", GOOD)
            file.writestr("a/data/0", DATA)
    check_refused(path, "version")
    with pytest.raises(RuntimeError):
        torch.load(path, weights_only=True)


@pytest.mark.parametrize("name", ["a/../../out", "a/..\\out", "a/c\0b"])
def test_nothing_is_unpacked_wherever_a_member_would_go(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    path = archive(folder / "a.pt", more={name.replace("\0", "_"): b"harm"})
    if "\0" in name:
        rewritten(path, lambda c: c.__setitem__(slice(None), c.replace(b"c_b", b"c\0b")))
    assert inspect(path).matrices
    fire(path, folder / "b.pt", where=["a.weight"])
    assert {entry.name for entry in tmp_path.rglob("*")} == {"in", "a.pt", "b.pt"}
    assert not Path("/replastic-out").exists()
