"""Where a changed checkpoint goes: what is refused before anything is written."""

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from replastic.checkpoint import fire
from tests.test_checkpoint_fire import KINDS, contents, one_file, shards
from tests.test_checkpoint_safetensors import check_only_weights_changed


def leave(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """A disk with so many bytes left."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**40, 2**40 - free, free))


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = one_file(tmp_path)
    (tmp_path / "there.pt").write_bytes(b"mine")
    (tmp_path / "folder").mkdir()
    before = contents(tmp_path)
    for out, said in (
        (tmp_path / "there.pt", "exists already"),
        (path, "in_place=True"),
        (tmp_path / "folder" / ".." / "a.pt", "in_place=True"),
        (tmp_path / "folder", r"did you mean .*folder.a\.pt"),
    ):
        with pytest.raises(FileExistsError, match=said):
            fire(path, out)
    folder = shards(tmp_path)
    with pytest.raises(FileExistsError, match="exists already"):
        fire(folder, tmp_path / "folder")
    assert {name: held for name, held in contents(tmp_path).items() if not name.startswith("model")} == before


def test_the_name_of_the_copy_must_say_its_format(tmp_path: Path) -> None:
    path = one_file(tmp_path)
    for name in ("b.safetensors", "b", "b.pth", "b.pt.bak"):
        with pytest.raises(ValueError, match=r"suffix must be \.pt"):
            fire(path, tmp_path / name)
    with pytest.raises(ValueError, match="one of them"):
        fire(path, tmp_path / "b.pt", in_place=True)
    with pytest.raises(ValueError, match=r"a-fired\.pt"):
        fire(path)
    assert [*contents(tmp_path)] == ["a.pt"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_place", [False, True])
def test_without_room_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, in_place: bool) -> None:
    path = KINDS[kind](tmp_path)
    before = contents(tmp_path)
    leave(monkeypatch, 100)
    out = None if in_place else tmp_path / "new" / "folder" / f"out{path.suffix}"
    for dry_run in (True, False):
        with pytest.raises(OSError, match="has 100 free"):
            fire(path, out, in_place=in_place, dry_run=dry_run)
    assert contents(tmp_path) == before
    assert not (tmp_path / "new").exists()


def test_what_lies_beside_the_weights_needs_no_room_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shards(tmp_path)
    (path / "tokenizer.json").write_bytes(bytes(10**6))
    leave(monkeypatch, 10**6)
    fire(path, in_place=True)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_folder_that_may_not_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    path = one_file(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OSError, match="is not writable"):
        fire(path, tmp_path / "b.pt", dry_run=dry_run)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_file_on_the_way_is_named(tmp_path: Path, dry_run: bool) -> None:
    path = one_file(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(OSError, match=r"a\.pt is not a folder"):
        fire(path, path / "folder" / "b.pt", dry_run=dry_run)
    assert contents(tmp_path) == before


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    path = one_file(tmp_path)
    check_only_weights_changed(fire(path, tmp_path / "new" / "folder" / "b.pt"))


def test_a_file_that_appears_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    path, out = one_file(tmp_path), tmp_path / "b.pt"

    def meanwhile(done: int, of: int, name: str) -> None:
        out.write_text("somebody else's")

    with pytest.raises(FileExistsError, match="in the meantime"):
        fire(path, out, tell=meanwhile)
    assert out.read_text() == "somebody else's"
    assert sorted(contents(tmp_path)) == ["a.pt", "b.pt"]


def test_a_link_to_nowhere_is_something_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "b.pt").symlink_to(tmp_path / "nowhere.pt")
    with pytest.raises(FileExistsError, match="exists already"):
        fire(one_file(tmp_path), tmp_path / "b.pt")


def test_a_folder_does_not_get_the_name_of_a_file(tmp_path: Path) -> None:
    path = shards(tmp_path)
    for name in ("x.safetensors", "x.json"):
        with pytest.raises(ValueError, match=r"looks like a file.*model-fired"):
            fire(path, tmp_path / name)
