"""Data sets by name: where they are looked for, how they are fetched, and what becomes of files in the published formats."""

import functools
import gzip
import hashlib
import http.server
import inspect
import logging
import re
import sys
import threading
import types
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from replastic.workloads.images import data
from replastic.workloads.images.data import DATA_SETS, load
from replastic.workloads.images.published import PUBLISHED, content_hash

from .test_formats import idx, picture, python2_pickle, tar

DRAW = np.random.default_rng(0)
IDX = {
    "train-images-idx3-ubyte": DRAW.integers(0, 256, (6, 28, 28), dtype=np.uint8),
    "train-labels-idx1-ubyte": np.array([0, 1, 2, 9, 4, 5], np.uint8),
    "t10k-images-idx3-ubyte": DRAW.integers(0, 256, (3, 28, 28), dtype=np.uint8),
    "t10k-labels-idx1-ubyte": np.array([7, 8, 9], np.uint8),
}
PIXELS = DRAW.integers(0, 256, (12, 3072), dtype=np.uint8)  # two images for each of six batches


def packed(content: bytes) -> bytes:
    """The same bytes every time: gzip would note when it was."""
    return gzip.compress(content, mtime=0)


def write_idx(folder: Path, spell: Callable[[str], str] = str, **changes: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in IDX.items():
        content = idx(changes.get(name.split("-idx")[0].replace("-", "_"), array))
        (folder / spell(name)).write_bytes(packed(content) if spell(name).endswith(".gz") else content)


# names, options, roots


def test_every_data_set_has_a_line_that_describes_it_and_no_options_that_are_swallowed() -> None:
    for name, function in DATA_SETS.items():
        assert name == function.__name__
        first = (function.__doc__ or "").splitlines()[0]
        assert first.endswith(".")
        kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds
        assert "download" in inspect.signature(function).parameters


def test_unknown_names_and_options_are_errors_with_the_nearest_that_exists(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'cifar1O'.*'cifar10'"):
        load("cifar1O")
    with pytest.raises(ValueError, match=r"'zzz'.*mnist, .*npz"):
        load("zzz")
    with pytest.raises(ValueError, match=r"'cifar100'.*'corse'.*'coarse'"):
        load("cifar100", tmp_path, corse=True)
    with pytest.raises(ValueError, match=r"'cifar10'.*'coarse'"):
        load("cifar10", tmp_path, coarse=True)
    with pytest.raises(ValueError, match=r"coarse = 'no'.*true or false"):
        load("cifar100", tmp_path, coarse="no")


def test_the_root_is_what_is_given_or_else_the_variable_or_else_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path / "a" / "mnist")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("REPLASTIC_DATA", str(tmp_path / "a"))
    assert len(load("mnist", download=False).train) == 6
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "b" / "mnist")):
        load("mnist", tmp_path / "b", download=False)
    monkeypatch.delenv("REPLASTIC_DATA")
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "home" / ".cache" / "replastic" / "mnist")):
        load("mnist", download=False)


# MNIST and Fashion-MNIST


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "."), ("mnist", "mnist"), ("mnist", "MNIST/raw"),
        ("fashion_mnist", "."), ("fashion_mnist", "fashion-mnist"), ("fashion_mnist", "fashion_mnist"),
        ("fashion_mnist", "FashionMNIST/raw"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "spell",
    [str, "{}.gz".format, lambda name: name.replace("-idx", ".idx"), lambda name: name.replace("-idx", ".idx") + ".gz"],
)
def test_idx_files_are_found_in_every_usual_place_and_spelling(
    tmp_path: Path, name: str, folder: str, spell: Callable[[str], str]
) -> None:
    write_idx(tmp_path / folder, spell)
    read = load(name, tmp_path, download=False)
    assert (read.name, read.classes, read.shape) == (name, 10, (1, 28, 28))
    for split, prefix in ((read.train, "train"), (read.test, "t10k")):
        np.testing.assert_array_equal(split.images[..., 0], IDX[f"{prefix}-images-idx3-ubyte"])
        assert split.labels.tolist() == IDX[f"{prefix}-labels-idx1-ubyte"].tolist()
    assert (read.mean, read.std) == {"mnist": ((0.1307,), (0.3081,)), "fashion_mnist": ((0.2860,), (0.3530,))}[name]


def test_a_set_of_another_size_than_published_is_read_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path)
    with caplog.at_level(logging.WARNING):
        load("mnist", tmp_path)
        assert re.search(r"6 \+ 3 images.*mnist has 60000 \+ 10000", caplog.text)
        caplog.clear()
        expected = content_hash(
            *(IDX[f"{split}-{kind}"] for split in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
        )
        monkeypatch.setitem(PUBLISHED, "mnist", replace(PUBLISHED["mnist"], samples=(6, 3), content=(expected,)))
        load("mnist", tmp_path)
        assert not caplog.text


@pytest.mark.parametrize("part", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"])
def test_files_that_were_there_before_are_compared_with_what_was_published(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    names = [f"{split}-{kind}" for split in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    expected = content_hash(*(IDX[name] for name in names))
    monkeypatch.setitem(PUBLISHED, "mnist", replace(PUBLISHED["mnist"], samples=(6, 3), content=(expected,)))
    changed = IDX[part].copy()
    changed.flat[0] ^= 1
    write_idx(tmp_path, "{}.gz".format, **{part.partition("-idx")[0].replace("-", "_"): changed})
    with caplog.at_level(logging.WARNING):
        load("mnist", tmp_path, download=False)
    assert str(tmp_path) in caplog.text
    assert expected in caplog.text


def test_the_archive_of_tiny_imagenet_is_compared_with_its_published_md5(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tiny(tmp_path, packed=True)
    with caplog.at_level(logging.WARNING):
        load("tiny_imagenet", tmp_path)
    assert "expected 90528d7ca1a48142e341f4ef8d21d0de" in caplog.text


def test_labels_that_do_not_fit_the_images_or_the_classes_are_named(tmp_path: Path) -> None:
    write_idx(tmp_path, train_labels=np.arange(5, dtype=np.uint8))
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte: .*\(5,\).*\b6 images"):
        load("mnist", tmp_path)
    write_idx(tmp_path, t10k_labels=np.array([0, 10, 1], np.uint8))
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte: .*0 to 10\b.*0 to 9\b"):
        load("mnist", tmp_path)
    write_idx(tmp_path, t10k_images=np.zeros((3, 8, 8), np.uint8))
    with pytest.raises(ValueError, match=r"test.*\(8, 8, 1\).*train.*\(28, 28, 1\)"):
        load("mnist", tmp_path)


def test_the_files_of_one_set_are_not_taken_for_the_other_that_has_the_same_names(tmp_path: Path) -> None:
    images = np.zeros((10, 28, 28), np.uint8)
    write_idx(tmp_path, train_images=images, train_labels=np.array([5, 0, 4, 1, 9, 2, 1, 3, 1, 4], np.uint8))
    assert len(load("mnist", tmp_path).train) == 10
    with pytest.raises(ValueError, match=r"\bmnist\b.*\bfashion_mnist\b"):
        load("fashion_mnist", tmp_path)


def test_an_incomplete_folder_is_passed_over_and_the_error_says_what_it_lacks(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=r"mnist: .*t10k-labels-idx1-ubyte\[.gz\]\n") as caught:
        load("mnist", tmp_path, download=False)
    for place in (tmp_path / "MNIST" / "raw", tmp_path):
        assert f"{place / 'train-images-idx3-ubyte'}[.gz] and the other three" in str(caught.value)
    write_idx(tmp_path / "MNIST" / "raw")
    assert len(load("mnist", tmp_path, download=False).test) == 3


# CIFAR


def cifar_files(kind: str, binary: bool) -> dict[str, bytes]:
    suffix, files = ".bin" * binary, {}
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"] if kind == "10" else ["train", "test"]
    for number, name in enumerate(names):
        chunk = PIXELS[2 * number : 2 * number + 2]
        fine, coarse = [number, 9 - number], [number, 19]
        if binary:
            columns = [fine] if kind == "10" else [coarse, fine]
            files[name + suffix] = np.concatenate([np.array(columns, np.uint8).T, chunk], 1).tobytes()
        elif kind == "10":
            files[name] = python2_pickle(chunk, labels=fine)
        else:
            files[name] = python2_pickle(chunk, fine_labels=fine, coarse_labels=coarse)
    return files


def write_cifar(root: Path, kind: str, binary: bool, packed: bool, files: dict[str, bytes] | None = None) -> Path:
    files = cifar_files(kind, binary) if files is None else files
    folder = {"10": ("cifar-10-batches-py", "cifar-10-batches-bin"), "100": ("cifar-100-python", "cifar-100-binary")}[kind][
        binary
    ]
    if packed:
        return tar(
            root / f"cifar-{kind}-{'binary' if binary else 'python'}.tar.gz", {f"{folder}/{n}": c for n, c in files.items()}
        )
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / folder / name).write_bytes(content)
    return root / folder


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("binary", [False, True])
def test_both_versions_of_cifar10_are_read_from_folders_and_archives(tmp_path: Path, binary: bool, packed: bool) -> None:
    path = write_cifar(tmp_path, "10", binary, packed)
    for root in (tmp_path, path):
        read = load("cifar10", root, download=False)
        images = PIXELS.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(read.train.images, images[:10])
        np.testing.assert_array_equal(read.test.images, images[10:])
        assert read.train.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
        assert read.test.labels.tolist() == [5, 4]
        assert (read.classes, read.mean, read.std) == (10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
        assert read.train.images.is_contiguous()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("binary", [False, True])
def test_both_versions_of_cifar100_are_read_with_fine_or_coarse_labels(tmp_path: Path, binary: bool, packed: bool) -> None:
    write_cifar(tmp_path, "100", binary, packed)
    fine, coarse = load("cifar100", tmp_path, download=False), load("cifar100", tmp_path, download=False, coarse=True)
    assert (fine.name, fine.classes, fine.train.labels.tolist(), fine.test.labels.tolist()) == (
        "cifar100",
        100,
        [0, 9],
        [1, 8],
    )
    assert (coarse.name, coarse.classes) == ("cifar100_coarse", 20)
    assert (coarse.train.labels.tolist(), coarse.test.labels.tolist()) == ([0, 19], [1, 19])
    assert fine.mean == coarse.mean == (0.5071, 0.4865, 0.4409)
    assert fine.std == (0.2673, 0.2564, 0.2762)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("binary", [False, True])
def test_a_batch_that_is_missing_cut_short_or_wrongly_labelled_is_named(tmp_path: Path, binary: bool, packed: bool) -> None:
    name = "data_batch_3" + ".bin" * binary
    whole = cifar_files("10", binary)
    write_cifar(tmp_path, "10", binary, packed, {n: c for n, c in whole.items() if n != name})
    with pytest.raises(ValueError, match=f"cifar-10.*{name}"):
        load("cifar10", tmp_path)
    write_cifar(tmp_path, "10", binary, packed, whole | {name: whole[name][:-7]})
    with pytest.raises(ValueError, match=f"cifar-10.*{name}: .*(bytes|batch)"):
        load("cifar10", tmp_path)
    wrong = np.concatenate([[[12], [0]], PIXELS[:2]], 1).astype(np.uint8).tobytes() if binary else None
    write_cifar(tmp_path, "10", binary, packed, whole | {name: wrong or python2_pickle(PIXELS[:2], labels=[12, 0])})
    with pytest.raises(ValueError, match=rf"{name}: .*0 to 12\b.*0 to 9\b"):
        load("cifar10", tmp_path)


# Tiny-ImageNet


def write_tiny(root: Path, packed: bool = False, **changes: bytes | None) -> Path:
    files: dict[str, bytes | None] = {"wnids.txt": b"n02\nn01\n", "words.txt": b"n01\tcat\n"}
    for number, wnid in enumerate(("n01", "n02")):
        for image in range(2):
            pixels = np.full((64, 64, 3), 100 * number + 10 * image, np.uint8)
            files[f"train/{wnid}/images/{wnid}_{image}.JPEG"] = picture(pixels, "JPEG")
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b""
        files[f"val/images/val_{number}.JPEG"] = picture(np.full((64, 64), 50 * number, np.uint8), "JPEG")  # some are grey
    files["val/val_annotations.txt"] = b"val_0.JPEG\tn02\t0\t0\t1\t1\nval_1.JPEG\tn01\t0\t0\t1\t1\n"
    files["test/images/test_0.JPEG"] = b"is not read"
    files |= changes
    base = root / "tiny-imagenet-200"
    if packed:
        with zipfile.ZipFile(base.with_suffix(".zip"), "w") as archive:
            for name, content in files.items():
                if content is not None:
                    archive.writestr(f"tiny-imagenet-200/{name}", content)
        return base.with_suffix(".zip")
    for name, content in files.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            (base / name).write_bytes(content)
    return base


@pytest.mark.parametrize("packed", [False, True])
def test_tiny_imagenet_is_read_from_its_folder_and_its_archive(tmp_path: Path, packed: bool) -> None:
    write_tiny(tmp_path, packed)
    for cache in (False, True, True):
        read = load("tiny_imagenet", tmp_path, download=False, cache=cache)
        assert (read.classes, read.shape, len(read.train), len(read.test)) == (2, (3, 64, 64), 4, 2)
        assert read.train.labels.tolist() == [0, 0, 1, 1]  # in the order of the sorted names, not of wnids.txt
        assert read.test.labels.tolist() == [1, 0]
        assert (read.train.images[:, 0, 0, 0].int() - torch.tensor([0, 10, 100, 110])).abs().max() <= 2  # JPEG is not exact
        assert (read.test.images[:, 5, 5].int() - torch.tensor([[0], [50]])).abs().max() <= 2
        assert read.mean == (0.4802, 0.4481, 0.3975)
        assert (tmp_path / "tiny-imagenet-200.decoded.npz").exists() == cache


def test_decoded_images_are_kept_and_made_anew_when_the_files_change_or_the_copy_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, kept = write_tiny(tmp_path), tmp_path / "tiny-imagenet-200.decoded.npz"
    first = load("tiny_imagenet", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(data, "decode_images", None)  # would be called in vain
        assert torch.equal(load("tiny_imagenet", tmp_path).train.images, first.train.images)
    kept.write_bytes(kept.read_bytes()[:-100])
    assert torch.equal(load("tiny_imagenet", tmp_path).train.images, first.train.images)
    (base / "train/n01/images/n01_0.JPEG").write_bytes(picture(np.full((64, 64, 3), 255, np.uint8), "JPEG"))
    assert load("tiny_imagenet", tmp_path).train.images[0].min() > 250
    assert not list(tmp_path.glob("*.part"))


def test_where_nothing_can_be_written_tiny_imagenet_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(data.tempfile, "NamedTemporaryFile", refuse)
    assert len(load("tiny_imagenet", tmp_path).train) == 4
    monkeypatch.undo()
    monkeypatch.setattr(data.np, "savez", refuse)  # as when the disk is full half-way
    assert len(load("tiny_imagenet", tmp_path).train) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-imagenet-200"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"wnids.txt": None}, "lacks wnids.txt"),
        ({"wnids.txt": b"n01\nn02\nn03\n"}, "'n03' has no images"),
        ({"wnids.txt": b"n01\n"}, "'n02' .* wnids.txt"),
        ({"val/val_annotations.txt": b"val_0.JPEG\tn09\nval_1.JPEG\tn01\n"}, "'n09' .* wnids.txt"),
        ({"val/val_annotations.txt": b"val_0.JPEG\n"}, "'val_0.JPEG' .* wnids.txt"),
        ({"val/images/val_1.JPEG": None}, "val/images/val_1.JPEG.* val_annotations.txt"),
        ({"val/val_annotations.txt": b""}, "no images"),
        ({"train/n02/images/n02_1.JPEG": b"\xff\xd8\xff no picture"}, "n02_1.JPEG: "),
    ],
)
def test_what_is_wrong_with_tiny_imagenet_is_said(
    tmp_path: Path, changes: dict[str, bytes | None], says: str, packed: bool
) -> None:
    write_tiny(tmp_path, packed, **changes)
    with pytest.raises(ValueError, match=f"tiny-imagenet-200.*{says}"):
        load("tiny_imagenet", tmp_path)


# digits, folders, npz


def test_the_digits_are_bytes_and_always_split_alike() -> None:
    pytest.importorskip("sklearn")
    read = load("digits")
    assert (len(read.train), len(read.test), read.classes, read.shape) == (1437, 360, 10, (1, 8, 8))
    assert set(read.train.images.unique().tolist()) <= {round(value * 255 / 16) for value in range(17)}
    assert int(read.train.images.max()) == 255
    everything = torch.cat([read.train.images, read.test.images]).flatten(1)
    assert len(everything.unique(dim=0)) == 1797  # all are different, so none is in both
    assert hashlib.sha256(read.test.labels.numpy().tobytes()).hexdigest().startswith("c8eb975c3c91cd1f")
    assert read.mean[0] == pytest.approx(read.train.images.double().mean().item() / 255, rel=1e-12)


def write_folder(root: Path, *names: str, shape: tuple[int, ...] = (4, 5, 3)) -> None:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(picture(np.full(shape, number, np.uint8)))


def test_a_folder_of_images_is_read_with_its_classes_in_sorted_order(tmp_path: Path) -> None:
    write_folder(tmp_path / "pets", "train/dog/1.png", "train/cat/2.PNG", "train/cat/deep/er.png", "val/dog/1.png")
    (tmp_path / "pets/train/cat/notes.txt").write_text("not an image")
    (tmp_path / "pets/train/.hidden").mkdir()
    read = load("folder", tmp_path, path="pets")
    assert (read.name, read.classes, read.shape, read.validation) == ("pets", 2, (3, 4, 5), None)
    assert read.train.labels.tolist() == [0, 0, 1]
    assert read.train.images[:, 0, 0, 0].tolist() == [1, 2, 0]
    assert (read.test.labels.tolist(), int(read.test.images.max())) == ([1], 3)
    write_folder(tmp_path / "pets", "test/cat/1.png")
    read = load("folder", tmp_path / "pets")
    assert read.validation is not None
    assert (read.test.labels.tolist(), read.validation.labels.tolist()) == ([0], [1])
    assert load("folder", tmp_path / "pets", grey=True, size=8).shape == (1, 8, 8)
    assert load("folder", tmp_path / "pets", size=[6, 7]).shape == (3, 6, 7)


def test_what_is_wrong_with_a_folder_of_images_is_said(tmp_path: Path) -> None:
    write_folder(tmp_path, "train/cat/1.png", "train/dog/1.png")
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/train.*{tmp_path}/test.*{tmp_path}/val"):
        load("folder", tmp_path)
    write_folder(tmp_path, "test/cow/1.png")
    with pytest.raises(ValueError, match=r"test/cow: .* cat, dog"):
        load("folder", tmp_path)
    (tmp_path / "test/cow").rename(tmp_path / "test/cat")
    (tmp_path / "train/empty").mkdir()
    with pytest.raises(ValueError, match=r"train/empty: .*\(.png"):
        load("folder", tmp_path)
    (tmp_path / "train/empty").rmdir()
    write_folder(tmp_path, "test/dog/1.png", shape=(8, 9, 3))
    with pytest.raises(ValueError, match=r"test/dog/1.png: .*9 x 8.*test/cat/1.png.*5 x 4"):
        load("folder", tmp_path)
    write_folder(tmp_path, "test/cat/1.png", shape=(8, 9, 3))
    with pytest.raises(ValueError, match=r"test.*\(8, 9, 3\).*train.*\(4, 5, 3\)"):
        load("folder", tmp_path)
    for size in (0, [1, 2, 3], [4.0, 4], True):
        with pytest.raises(ValueError, match=r"size ?="):
            load("folder", tmp_path, size=size)
    (tmp_path / "train/cat/2.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"train/cat/2.png: "):
        load("folder", tmp_path, size=4)


@pytest.mark.parametrize("names", [("x_{}", "y_{}"), ("{}_images", "{}_labels")])
@pytest.mark.parametrize("layout", ["NHW", "NHWC", "NCHW"])
def test_arrays_of_an_npz_become_a_data_set(tmp_path: Path, names: tuple[str, str], layout: str) -> None:
    shape = {"NHW": (4, 5, 6), "NHWC": (4, 5, 6, 3), "NCHW": (4, 3, 5, 6)}[layout]
    images, arrays = DRAW.integers(0, 256, shape, dtype=np.uint8), {}
    for split, labels in (("train", np.array([0, 1, 2, 0])), ("test", np.array([[1], [0], [4], [2]], np.uint8))):
        arrays |= {names[0].format(split): images, names[1].format(split): labels}
    np.savez(tmp_path / "mine.npz", **arrays)
    read = load("npz", tmp_path, path="mine.npz")
    assert (read.name, read.classes, read.shape) == ("mine", 5, (1 if layout == "NHW" else 3, 5, 6))
    assert read.test.labels.tolist() == [1, 0, 4, 2]
    last = images[..., None] if layout == "NHW" else images.transpose(0, 2, 3, 1) if layout == "NCHW" else images
    np.testing.assert_array_equal(read.train.images, last)
    np.testing.assert_allclose(read.mean, last.mean((0, 1, 2)) / 255, rtol=1e-12)
    np.testing.assert_allclose(read.std, last.std((0, 1, 2)) / 255, rtol=1e-12)
    assert load("npz", tmp_path / "mine.npz", classes=9).classes == 9


def test_what_is_wrong_with_an_npz_is_said(tmp_path: Path) -> None:
    good = {f"{kind}_{split}": array for split in ("train", "test")
            for kind, array in (("x", np.zeros((2, 4, 4), np.uint8)), ("y", np.array([0, 1])))}  # fmt: skip

    def check(says: str, options: dict[str, object] | None = None, **changes: np.ndarray | None) -> None:
        np.savez(tmp_path / "x.npz", **{k: v for k, v in (good | changes).items() if v is not None})
        with pytest.raises(ValueError, match=rf"x\.npz.*{says}"):
            load("npz", tmp_path, path="x.npz", **(options or {}))

    check("x_test and y_test or test_images and test_labels.*np.savez", y_test=None)
    check(r"y_train: has labels of shape \(3,\) for 2 images", y_train=np.arange(3))
    check("y_train: .* -1 to 0", y_train=np.array([-1, 0]))
    check("y_train: .* 0 to 1, .* 0 to 0", options={"classes": 1})
    check("x_test: is int64 of shape", x_test=np.zeros((2, 4, 4), np.int64))
    check("float64.*mydata.py:load", x_test=np.zeros((2, 4, 4)))
    check("object", y_test=np.array([0, None]))
    for classes in (0, 2.0, True):
        with pytest.raises(ValueError, match=r"classes ?="):
            load("npz", tmp_path, path="x.npz", classes=classes)
    with pytest.raises(FileNotFoundError, match="load"):
        load("npz", tmp_path)


def test_a_channel_that_does_not_vary_is_left_unscaled() -> None:
    images = torch.zeros(2, 3, 3, 2, dtype=torch.uint8)
    images[0, ..., 1] = 255
    assert data.mean_and_std(images) == ((0.0, 0.5), (1.0, 0.5))


def test_statistics_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.from_numpy(PIXELS.reshape(12, 32, 32, 3))
    whole = data.mean_and_std(images)
    monkeypatch.setattr(data, "_COUNTED_AT_ONCE", 5000)
    assert data.mean_and_std(images) == whole


# fetching


def fake_pooch(monkeypatch: pytest.MonkeyPatch, retrieve: Callable[..., object]) -> None:
    module = types.ModuleType("pooch")
    monkeypatch.setattr(module, "retrieve", retrieve, raising=False)
    monkeypatch.setitem(sys.modules, "pooch", module)


def test_missing_files_are_fetched_with_their_hash_and_present_ones_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def retrieve(*, url: str, known_hash: str, fname: str, path: Path) -> None:
        asked.append((url, known_hash))
        path.mkdir(parents=True, exist_ok=True)
        (path / fname).write_bytes(packed(idx(IDX[fname.removesuffix(".gz")])))

    fake_pooch(monkeypatch, retrieve)
    assert len(load("mnist", tmp_path).train) == 6
    first = "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz"
    assert (len(asked), asked[0]) == (4, (first, "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"))
    load("mnist", tmp_path)
    assert len(asked) == 4
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz").unlink()
    load("mnist", tmp_path)
    assert len(asked) == 5


def test_every_published_set_has_a_hash_for_each_file_and_is_looked_for_where_it_is_put(tmp_path: Path) -> None:
    for name, published in PUBLISHED.items():
        assert all(len(md5) == 32 and int(md5, 16) for md5 in published.files.values())
        assert all(address.startswith("http") and address.endswith("/") for address in published.addresses)
        assert len(published.files) == 4 or set(published.files) <= set(published.places), name


def test_when_fetching_fails_the_error_has_the_reason_and_every_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(**_: object) -> None:
        raise ConnectionError("no route to host")

    def forged(**_: object) -> None:
        raise ValueError("MD5 hash does not match")

    for retrieve, reason in ((offline, "no route to host"), (forged, "MD5 hash does not match")):
        fake_pooch(monkeypatch, retrieve)
        with pytest.raises(FileNotFoundError, match=reason) as caught:
            load("cifar10", tmp_path)
        for place in ("cifar-10-batches-py", "cifar-10-batches-bin", "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"):
            assert str(tmp_path / place) in str(caught.value)
            assert str(tmp_path / "cifar10" / place) in str(caught.value)
        for address in PUBLISHED["cifar10"].addresses:
            assert address in str(caught.value)
        assert f"Put cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/ into {tmp_path}" in str(caught.value)


def test_without_pooch_or_with_download_false_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(**_: object) -> None:
        pytest.fail("fetched all the same")

    fake_pooch(monkeypatch, never)
    with pytest.raises(FileNotFoundError, match="download=False"):
        load("tiny_imagenet", tmp_path, download=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(FileNotFoundError, match=r'pooch.*pip install "replastic\[data\]"'):
        load("tiny_imagenet", tmp_path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    folder = tmp_path / "served"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()
        thread.join()


def test_pooch_fetches_from_the_second_address_when_the_first_has_nothing_or_something_else(
    tmp_path: Path, server: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pooch")
    folder, address = server
    archive = write_cifar(folder, "10", binary=False, packed=True)
    (folder / "forged").mkdir()
    (folder / "forged" / archive.name).write_bytes(b"<html>please log in</html>")
    published = replace(
        PUBLISHED["cifar10"],
        addresses=(address + "absent/", address + "forged/", address),
        files={archive.name: hashlib.md5(archive.read_bytes()).hexdigest()},
    )
    monkeypatch.setitem(PUBLISHED, "cifar10", published)
    assert len(load("cifar10", tmp_path / "data").train) == 10
    assert (tmp_path / "data" / archive.name).read_bytes() == archive.read_bytes()
    monkeypatch.setitem(PUBLISHED, "cifar10", replace(published, addresses=published.addresses[:2]))
    with pytest.raises(FileNotFoundError, match=r"404.*forged.*hash"):
        load("cifar10", tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())
