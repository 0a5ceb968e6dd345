"""Checksums of archives: damage is said by `inspect` and refused by `fire`, each byte is looked at once."""

from __future__ import annotations

import random
import zipfile
import zlib
from pathlib import Path

import pytest
import torch
from torch import nn

from replastic.checkpoint import CheckpointError, fire, inspect, open_checkpoint
from replastic.checkpoint.checksums import Watched
from replastic.checkpoint.zipped import Member
from replastic.cli import main
from tests.test_checkpoint_fire import contents, deep_net, one_file
from tests.test_checkpoint_safetensors import check_only_weights_changed

BIG = 50_000  # bytes of a member that is read in several blocks


def training_state(folder: Path) -> Path:
    """Weights, counters that are whole numbers, and an optimiser's state, each in members of its own."""
    net = nn.Sequential(*deep_net(), nn.BatchNorm1d(6))
    adam = torch.optim.Adam(net.parameters())
    net(torch.randn(3, 6)).sum().backward()
    adam.step()
    torch.save({"model": net.state_dict(), "optimizer": adam.state_dict()}, folder / "a.pt")
    return folder / "a.pt"


def agent(folder: Path) -> Path:
    """An archive in an archive, with something that is compressed next to it."""
    torch.save(deep_net().state_dict(), folder / "policy.pth")
    torch.save(torch.randn(5), folder / "other.pth")
    with zipfile.ZipFile(folder / "a.zip", "w") as file:
        file.writestr("data", "{}" * 100, zipfile.ZIP_DEFLATED)
        for name in ("policy.pth", "other.pth"):
            file.write(folder / name, name)
            (folder / name).unlink()
    return folder / "a.zip"


def damaged(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1  # the least bit of a number: a number like any other
    path.write_bytes(content)


MEMBERS = {
    "a weight": "data/0",
    "a whole number that is only copied": "data/14",
    "an optimiser's state that is only copied": "data/20",
    "what torch reads of it nowhere": ".format_version",
}


@pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)
def test_damage_is_refused_before_anything_is_written_and_said_by_inspect(tmp_path: Path, member: str) -> None:
    path = training_state(tmp_path)
    damaged(path, open_member(path, member).offset)
    torch.load(path)  # torch does not look at checksums
    before = contents(tmp_path)
    for out in (tmp_path / "new" / "folder" / "b.pt", None):
        for dry_run in (True, False):
            with pytest.raises(CheckpointError, match=rf"a\.pt: a/{member} of a\.pt: .*ignore_checksums=True"):
                fire(path, out, in_place=out is None, dry_run=dry_run)
    assert contents(tmp_path) == before
    assert not (tmp_path / "new").exists()
    found = inspect(path)
    assert found.wrong_checksums == (f"a/{member} of a.pt",)
    assert f"a/{member} of a.pt" in found.summary[0]
    assert not any("None of" in sentence for sentence in found.summary)
    fired = fire(path, tmp_path / "b.pt", ignore_checksums=True)
    assert fired.wrong_checksums == found.wrong_checksums
    check_only_weights_changed(fired)
    with zipfile.ZipFile(tmp_path / "b.pt") as archive:
        assert archive.testzip() == f"a/{member}"


def open_member(path: Path, name: str) -> Member:
    return next(member for member in open_checkpoint(path).checksums[path] if member.name == f"a/{name}")


def test_a_whole_file_is_fired_and_its_copy_is_whole(tmp_path: Path) -> None:
    for path in (training_state(tmp_path), agent(tmp_path)):
        fired = fire(path, tmp_path / f"b{path.suffix}")
        assert fired.wrong_checksums == inspect(path).wrong_checksums == inspect(fired.out or path).wrong_checksums == ()


@pytest.mark.parametrize("name", ["data/0", ".data/serialization_id", "other.pth"])
def test_damage_in_an_archive_in_an_archive_is_found(tmp_path: Path, name: str) -> None:
    path = agent(tmp_path)
    members = {member.name: member for member in open_checkpoint(path).checksums[path]}
    held = members.get(name) or members[f"policy/{name}"]
    damaged(path, held.end - 1)
    names = [held.name] if name == "other.pth" else ["policy.pth", held.name]
    assert inspect(path).wrong_checksums == tuple(f"{name} of a.zip" for name in names)
    with pytest.raises(CheckpointError, match=name):
        fire(path, tmp_path / "b.zip")
    fire(path, tmp_path / "b.zip", ignore_checksums=True)
    assert inspect(tmp_path / "b.zip").wrong_checksums == tuple(f"{name} of b.zip" for name in names)


def test_a_damaged_reference_is_said(tmp_path: Path) -> None:
    path = one_file(tmp_path)
    other = tmp_path / "other.pt"
    other.write_bytes(path.read_bytes())
    damaged(other, open_member(other, "data/0").offset)
    assert inspect(path, reference=other).wrong_checksums == ("a/data/0 of other.pt",)


def test_a_file_that_torch_wrote_without_checksums_is_taken_as_it_is(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        path = one_file(tmp_path)
    finally:
        torch.serialization.set_crc32_options(before)
    with zipfile.ZipFile(path) as archive:
        assert {info.CRC for info in archive.infolist()} == {0}
    assert inspect(path).wrong_checksums == ()
    check_only_weights_changed(fire(path, tmp_path / "b.pt"))
    with zipfile.ZipFile(tmp_path / "b.pt") as archive:
        assert {info.CRC for info in archive.infolist()} == {0}
    torch.load(tmp_path / "b.pt")


def test_the_command_has_the_same_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = one_file(tmp_path)
    damaged(path, open_member(path, "data/1").offset)
    assert main(["fire", str(path), "-o", str(tmp_path / "b.pt")]) != 0
    assert "--ignore-checksums" in capsys.readouterr().err
    assert main(["fire", str(path), "-o", str(tmp_path / "b.pt"), "--ignore-checksums"]) == 0
    assert "a/data/1 of a.pt" in capsys.readouterr().out
    assert main(["inspect", str(path), "--json"]) == 0
    assert '"wrong_checksums": [\n  "a/data/1 of a.pt"\n ]' in capsys.readouterr().out


class Counting:
    """A file that counts the bytes that are read of it."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at, self.count = content, 0, 0

    def seek(self, at: int) -> None:
        self.at = at

    def read(self, count: int) -> bytes:
        found = self.content[self.at : self.at + count]
        self.at, self.count = self.at + len(found), self.count + len(found)
        return found

    def readinto(self, buffer: memoryview) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


def member(content: bytes, name: str, start: int, end: int) -> Member:
    return Member(name, start, end - start, True, zlib.crc32(content[start:end]), ())


@pytest.mark.parametrize("order", ["as it lies", "backwards", "some"])
def test_checksums_are_taken_of_what_is_read_in_any_order(order: str) -> None:
    content, chance = random.Random(0).randbytes(4 * BIG), random.Random(1)
    inner = [member(content, str(n), 100 + n * BIG, 50 + (n + 1) * BIG) for n in range(3)]
    all_of_them = [*inner, member(content, "around", 90, 3 * BIG + 100), member(content, "after", 3 * BIG + 200, 4 * BIG)]
    for wrong in (None, *all_of_them):
        held = [Member(m.name, m.offset, m.size, True, m.crc ^ (m is wrong), ()) for m in all_of_them]
        file = Counting(content)
        watched = Watched(file, held)  # pyright: ignore[reportArgumentType]
        pieces = [(m.offset + at, min(7000, m.size - at)) for m in inner for at in range(0, m.size, 7000)]
        if order == "backwards":
            pieces.reverse()
        if order == "some":
            pieces = chance.sample(pieces, 10)
        for at, count in pieces:
            watched.seek(at)
            piece = bytearray(count)
            assert watched.readinto(memoryview(piece)) == count
            assert piece == content[at : at + count]
        assert [m.name for m in watched.wrong()] == ([] if wrong is None else [wrong.name])
        # In the order in which it lies each byte is read once; at worst, once more for each archive around it.
        assert file.count < (len(content) + 100 if order == "as it lies" else 3 * len(content))
