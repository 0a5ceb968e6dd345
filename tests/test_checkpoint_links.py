"""Links in a checkpoint's folder: which become files of the copy, and which are refused before anything is written."""

import os
from pathlib import Path

import pytest

from replastic.checkpoint import CheckpointError, fire, inspect
from replastic.cli import main
from tests.test_checkpoint_fire import contents, one_file, shards
from tests.test_checkpoint_safetensors import check_only_weights_changed


def hub(folder: Path, *, shared: bool = False) -> Path:
    """A snapshot in a cache as huggingface_hub lays it out, old, or with the store that repositories share."""
    real = shards(folder)
    repository = folder / "hub" / "models--some--model"
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, file in enumerate(sorted(real.iterdir())):
        blob = repository / "blobs" / f"{number:040}"
        if shared:
            store = folder / "hub" / "blobs"
            kept = store / "00" / f"{number:064}"
            kept.parent.mkdir(parents=True, exist_ok=True)
            (store / ".huggingface-shared-blobs").write_text("1\n")
            file.rename(kept)
            blob.symlink_to(os.path.relpath(kept, blob.parent))
        else:
            file.rename(blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    real.rmdir()
    return snapshot


def secret(folder: Path) -> Path:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "key.txt").write_text("private")
    return folder / "elsewhere" / "key.txt"


def check_refused(tmp_path: Path, path: Path, *said: str) -> None:
    before = {**contents(tmp_path), **dict.fromkeys(map(str, tmp_path.rglob("*")), b"")}
    for dry_run, out in ((False, tmp_path / "out"), (True, tmp_path / "out"), (True, None)):
        with pytest.raises(CheckpointError) as caught:
            fire(path, out, dry_run=dry_run)
        assert all(part in str(caught.value) for part in said), str(caught.value)
    assert {**contents(tmp_path), **dict.fromkeys(map(str, tmp_path.rglob("*")), b"")} == before


@pytest.mark.parametrize("absolute", [False, True])
def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path, absolute: bool) -> None:
    folder, key = shards(tmp_path), secret(tmp_path)
    target = str(key) if absolute else "../elsewhere/key.txt"
    (folder / "secret.txt").symlink_to(target)
    check_refused(tmp_path, folder, str(folder / "secret.txt"), target)
    inspect(folder)  # copies nothing


def test_a_chain_counts_by_its_end(tmp_path: Path) -> None:
    folder, key = shards(tmp_path), secret(tmp_path)
    (folder / "a.txt").symlink_to("b.txt")
    (folder / "b.txt").write_text("hers")
    assert (fire(folder, tmp_path / "first").out or folder).joinpath("a.txt").read_text() == "hers"
    (folder / "b.txt").unlink()
    (folder / "b.txt").symlink_to(key)
    check_refused(tmp_path, folder, "a.txt", str(key))


def test_a_link_out_and_back_stays_in_the_folder(tmp_path: Path) -> None:
    folder = shards(tmp_path)
    (tmp_path / "back").symlink_to(folder / "config.json")
    (folder / "other.json").symlink_to("../back")
    out = fire(folder, tmp_path / "out").out
    assert out is not None
    assert (out / "other.json").read_text() == "{}"
    assert not (out / "other.json").is_symlink()


def test_a_folder_whose_name_begins_alike_is_another(tmp_path: Path) -> None:
    folder = shards(tmp_path)
    (tmp_path / "model-private").mkdir()
    (tmp_path / "model-private" / "key.txt").write_text("private")
    (folder / "secret.txt").symlink_to("../model-private/key.txt")
    check_refused(tmp_path, folder, "secret.txt", "model-private")


@pytest.mark.parametrize("target", ["nowhere.txt", "loop.txt", "../elsewhere/nowhere.txt"])
def test_a_link_to_nowhere_is_not_lost_silently(tmp_path: Path, target: str) -> None:
    folder = shards(tmp_path)
    (folder / "loop.txt").symlink_to(target)
    check_refused(tmp_path, folder, str(folder / "loop.txt"), target)
    inspect(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("inside", [True, False])
def test_weights_that_are_a_link_to_nowhere_are_named(tmp_path: Path, name: str, inside: bool) -> None:
    (tmp_path / name).symlink_to("../blobs/0123")
    for act in (inspect, lambda path: fire(path, tmp_path / "out")):
        with pytest.raises((CheckpointError, FileNotFoundError), match=rf"{name} is a link to ../blobs/0123"):
            act(tmp_path if inside else tmp_path / name)


def test_links_to_folders_stay_behind_as_folders_do(tmp_path: Path) -> None:
    folder, key = shards(tmp_path), secret(tmp_path)
    (folder / "logs").symlink_to(key.parent)
    (folder / "self").symlink_to(".")
    out = fire(folder, tmp_path / "out").out
    assert out is not None
    assert sorted(contents(out)) == sorted(file.name for file in folder.iterdir() if not file.is_dir())


def test_weights_elsewhere_are_refused_in_a_folder_and_followed_by_their_own_name(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    folder, real = tmp_path / "model", one_file(tmp_path / "scratch")
    folder.mkdir()
    (folder / "a.pt").symlink_to(real)
    check_refused(tmp_path, folder, str(folder / "a.pt"), str(real))
    with pytest.raises(CheckpointError, match="scratch"):
        fire(folder, in_place=True)
    check_only_weights_changed(fire(folder / "a.pt", tmp_path / "out.pt"))


def test_in_place_only_what_is_written_counts(tmp_path: Path) -> None:
    folder, key = shards(tmp_path), secret(tmp_path)
    (folder / "secret.txt").symlink_to(key)
    fire(folder, in_place=True)
    assert (folder / "secret.txt").is_symlink()
    assert key.read_text() == "private"


def test_shards_elsewhere_are_refused_by_their_index_too(tmp_path: Path) -> None:
    folder = shards(tmp_path)
    shard = folder / "model-00002-of-00002.safetensors"
    shard.rename(tmp_path / "moved.safetensors")
    shard.symlink_to("../moved.safetensors")
    check_refused(tmp_path, folder / "model.safetensors.index.json", str(shard), "../moved.safetensors")


def test_a_folder_may_be_reached_through_links_and_dots(tmp_path: Path) -> None:
    folder = shards(tmp_path)
    (folder / "other.json").symlink_to("config.json")
    (folder / "third.json").symlink_to(folder / "config.json")
    (tmp_path / "way").symlink_to(tmp_path)
    (tmp_path / "short").symlink_to("way/model")
    for number, path in enumerate((tmp_path / "short", tmp_path / "way" / "model", folder / ".." / "model")):
        check_only_weights_changed(fire(path, tmp_path / f"out{number}"))
    (folder / "secret.txt").symlink_to(secret(tmp_path))
    check_refused(tmp_path, tmp_path / "short", "secret.txt", "key.txt")


def test_hard_links_are_files(tmp_path: Path) -> None:
    folder, key = shards(tmp_path), secret(tmp_path)
    os.link(key, folder / "same.txt")
    out = fire(folder, tmp_path / "out").out
    assert out is not None
    (out / "same.txt").write_text("changed")
    assert key.read_text() == "private"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("way", ["folder", "link", "index"])
def test_a_snapshot_of_a_hub_cache_is_copied_whole(tmp_path: Path, shared: bool, way: str) -> None:
    snapshot = hub(tmp_path, shared=shared)
    (tmp_path / "short").symlink_to(snapshot)
    path = {"folder": snapshot, "link": tmp_path / "short", "index": snapshot / "model.safetensors.index.json"}[way]
    before = contents(tmp_path / "hub")
    fired = fire(path, tmp_path / "out")
    check_only_weights_changed(fired)
    assert fired.out is not None
    expected = sorted(file.name for file in snapshot.iterdir())
    assert sorted(contents(fired.out)) == [name for name in expected if way != "index" or name != "config.json"]
    assert not any(file.is_symlink() for file in fired.out.iterdir())
    assert contents(tmp_path / "hub") == before


def test_a_folder_of_a_snapshot_is_copied_too(tmp_path: Path) -> None:
    snapshot = hub(tmp_path)
    unet = snapshot / "unet"
    unet.mkdir()
    for file in [*snapshot.iterdir()]:
        if file.is_symlink():
            (unet / file.name).symlink_to(f"../{os.readlink(file)}")
            file.unlink()
    check_only_weights_changed(fire(unet, tmp_path / "out"))


@pytest.mark.parametrize(
    "target",
    [
        "elsewhere/key.txt",
        "hub/models--other--model/blobs/key.txt",
        "hub/models--some--model/key.txt",
        "hub/models--some--model/blobs/key.txt",  # a link itself
        "hub/blobs/key.txt",  # not a store of the hub's client
    ],
)
def test_a_snapshot_has_no_way_out_of_its_cache(tmp_path: Path, target: str) -> None:
    snapshot, key = hub(tmp_path), secret(tmp_path)
    place = tmp_path / target
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.parent.parent == snapshot.parent.parent:
        place.symlink_to(key)
    else:
        place.write_text("private")
    (snapshot / "secret.txt").symlink_to(os.path.relpath(place, snapshot))
    check_refused(tmp_path, snapshot, "secret.txt", "key.txt")


def test_blobs_that_are_a_link_are_not_those_of_a_cache(tmp_path: Path) -> None:
    snapshot, key = hub(tmp_path), secret(tmp_path)
    blobs = snapshot.parent.parent / "blobs"
    (snapshot / "secret.txt").symlink_to("../../blobs/key.txt")
    for file in [*blobs.iterdir()]:
        file.rename(key.parent / file.name)
    blobs.rmdir()
    blobs.symlink_to(key.parent)
    check_refused(tmp_path, snapshot, "blobs")


def test_folders_named_as_a_cache_only_nearly_are_none(tmp_path: Path) -> None:
    snapshot = hub(tmp_path)
    (tmp_path / "hub" / "models--some--model").rename(tmp_path / "hub" / "mine")
    check_refused(tmp_path, tmp_path / "hub" / "mine" / "snapshots" / snapshot.name, "blobs")


def test_out_that_is_a_loop_is_there_already(tmp_path: Path) -> None:
    (tmp_path / "b.pt").symlink_to("b.pt")
    with pytest.raises(FileExistsError, match="exists already"):
        fire(one_file(tmp_path), tmp_path / "b.pt")


def test_the_command_says_it_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, key = shards(tmp_path), secret(tmp_path)
    (folder / "secret.txt").symlink_to(key)
    assert main(["fire", str(folder), "-o", str(tmp_path / "out")]) != 0
    said = capsys.readouterr().err.replace("\n", "")
    assert "secret.txt" in said
    assert "key.txt" in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()
