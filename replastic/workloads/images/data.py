"""Data sets: `load("cifar10")` finds the published files, fetches them if they are not there, and reads them.

Files are looked for under `root`: the argument, else the environment variable REPLASTIC_DATA, else ~/.cache/replastic. They
are read in place, from a folder or an archive, and never unpacked. A download must have the published md5. Files that were
already there are compared with a hash of the published images and labels, and a difference is a warning.

Departures: FIRE's released code normalises the test images of CIFAR-100 with the mean and deviation of the test set. Here
both sets use those of the training set, as for all data, because test data must not influence how a model sees them.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...options import OptionError, check_options, nearest
from ..base import Place, root_of
from .formats import (
    IMAGE_SUFFIXES,
    Tree,
    channels_last,
    cifar_binary,
    cifar_pickle,
    decode_images,
    read_idx,
    read_members,
    read_npz,
)
from .published import (
    FIRST_LABELS,
    IDX_FILES,
    PUBLISHED,
    content_hash,
    fetch,
    find_archive,
    idx_files,
    lacking,
)
from .tasks import ImageData, Split, shuffled

_log = logging.getLogger(__name__)
_COUNTED_AT_ONCE = 2**24  # bytes of images
_ALTERED = "differs from the published {}: delete its files to download them again, or load yours as npz or folder"


def load(name: str, root: Place = None, *, download: bool = True, **options: object) -> ImageData:
    """A data set by its name in `DATA_SETS`, with the options of its function.

    download: fetch missing files. False: raise a FileNotFoundError with the places that were searched.

    >>> load("digits").shape
    (1, 8, 8)
    """
    if name not in DATA_SETS:
        raise OptionError(f"there is no data set {name!r}: {nearest(name, DATA_SETS)}")
    check_options(DATA_SETS[name], options, f"data set {name!r}", given=FROM_CALLER)
    return DATA_SETS[name](root, download=download, **options)


def mnist(root: Place = None, *, download: bool = True) -> ImageData:
    """MNIST: 70,000 handwritten digits of 28 x 28 grey pixels, 10 classes."""
    return _from_idx("mnist", root_of(root), download)


def fashion_mnist(root: Place = None, *, download: bool = True) -> ImageData:
    """Fashion-MNIST: 70,000 pieces of clothing of 28 x 28 grey pixels, 10 classes."""
    return _from_idx("fashion_mnist", root_of(root), download)


def cifar10(root: Place = None, *, download: bool = True) -> ImageData:
    """CIFAR-10: 60,000 photographs of 32 x 32 pixels, 10 classes; the Python or the binary version."""
    path = find_archive("cifar10", root_of(root), download)
    train = [f"data_batch_{number}" for number in range(1, 6)]
    return _from_cifar("cifar10", path, train, "test_batch", 10, key="labels", labels=1, use=0)


def cifar100(root: Place = None, *, download: bool = True, coarse: bool = False) -> ImageData:
    """CIFAR-100: 60,000 photographs of 32 x 32 pixels, 100 classes; coarse=True: the 20 groups of these classes."""
    path = find_archive("cifar100", root_of(root), download)
    key, classes = ("coarse_labels", 20) if coarse else ("fine_labels", 100)
    data = _from_cifar("cifar100", path, ["train"], "test", classes, key=key, labels=2, use=0 if coarse else 1)
    return replace(data, name="cifar100_coarse") if coarse else data


def tiny_imagenet(root: Place = None, *, download: bool = True, cache: bool = True) -> ImageData:
    """Tiny-ImageNet: 110,000 photographs of 64 x 64 pixels, 200 classes; its validation images are the test set.

    Labels number the classes by their sorted WordNet names. The published test images have no labels and are not read.

    cache: keep the decoded images, 1.4 GB, next to the files if that folder is writable; decoding takes half a minute.
    """
    path = find_archive("tiny_imagenet", root_of(root), download)
    with closing(Tree(path)) as tree:
        kept = path.with_name("tiny-imagenet-200.decoded.npz")
        classes = sorted(set(tree.lines("wnids.txt")))
        arrays = _recalled(kept, tree.fingerprint) if cache else None
        if path.is_file():
            _check_archive("tiny_imagenet", path)
        if arrays is None:
            arrays = _decode_tiny(tree, classes)
            if cache:
                _keep(kept, arrays | {"fingerprint": tree.fingerprint})
    train, test = (_split(arrays[f"x_{split}"], arrays[f"y_{split}"]) for split in ("train", "test"))
    return _as_published("tiny_imagenet", path, train, test, len(classes))


def digits(root: Place = None, *, download: bool = True) -> ImageData:
    """The 1,797 digits of 8 x 8 grey pixels that come with scikit-learn: split into 1,437 to train and 360 to test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError('the digits come with scikit-learn, which is missing: pip install "replastic[demo]"') from error
    images, labels = load_digits(return_X_y=True)
    images = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    everything = _split(images, labels)
    order = shuffled(len(everything), seed=0)
    return _of_splits("digits", everything.of(order[:1437]), everything.of(order[1437:]), 10)


def folder(
    root: Place = None,
    *,
    download: bool = True,
    path: str = ".",
    size: int | Sequence[int] | None = None,
    grey: bool = False,
) -> ImageData:
    """Image files in folders train/<class> and test/<class>, at `path` under the root.

    Classes are numbered in the order of their sorted names. val/<class> is the validation set, or the test set if there is
    no test/<class>.

    size: resize all images to this many pixels, one number or (height, width); None: all must have the same size.
    grey: load one channel; False: three, also for grey images.
    """
    base, size = root_of(root) / path, _checked_size(size)
    found = {name: base / name for name in ("train", "test", "val") if (base / name).is_dir()}
    if "train" not in found or len(found) < 2:
        raise FileNotFoundError(
            f"no folder of images: looked for {base / 'train'} and {base / 'test'} or {base / 'val'}: put images into "
            f'{base / "train" / "<class>"}, or set path = "flowers" in [data], the folder of both'
        )
    names = sorted(place.name for place in _class_folders(found["train"]))
    splits = {name: _read_classes(place, names, size, grey) for name, place in found.items()}
    held_out = splits["test" if "test" in splits else "val"]
    validation = splits.get("val") if "test" in splits else None
    return _of_splits(base.resolve().name, splits["train"], held_out, len(names), validation)


def npz(
    root: Place = None,
    *,
    download: bool = True,
    path: str = ".",
    channels: str | None = None,
    classes: int | None = None,
) -> ImageData:
    """Arrays of an .npz file, at `path` under the root: x_train, y_train, x_test, y_test, and optionally x_val, y_val.

    The names train_images, train_labels and so on are also accepted. Images are bytes, (images, height, width), with
    channels last or first.

    channels: "first" or "last", if the shape is ambiguous.
    classes: the number of classes; None: one more than the largest label.
    """
    file = root_of(root) / path
    if not file.is_file():
        raise FileNotFoundError(
            f'no .npz file: looked for {file}: set path = "data.npz" in [data], or load("npz", root, path="data.npz")'
        )
    if not zipfile.is_zipfile(file):
        raise ValueError(
            f"[data] path = {path!r}: {file} is not an .npz file: write one with np.savez(path, x_train=..., ...)"
        )
    if classes is not None and (type(classes) is not int or classes < 1):
        raise ValueError(f"classes={classes!r}: pass the number of classes, or leave it out")
    pairs = {
        split: ((f"x_{split}", f"y_{split}"), (f"{split}_images", f"{split}_labels")) for split in ("train", "test", "val")
    }
    arrays = read_npz(file, [name for either in pairs.values() for pair in either for name in pair])
    found = {split: pair for split, either in pairs.items() for pair in either if arrays.keys() >= set(pair)}
    for split in ("train", "test"):
        if split not in found:
            wanted = " or ".join(" and ".join(pair) for pair in pairs[split])
            raise ValueError(
                f"{file}: lacks {wanted}: write it with np.savez(file, x_train=..., y_train=..., x_test=..., y_test=...)"
            )
    if classes is None:
        classes = 1 + max(int(arrays[labels].max(initial=0)) for _, labels in found.values())
    splits = {}
    for split, (images, labels) in found.items():
        pixels = channels_last(arrays[images], f"{file}: {images}", channels)
        splits[split] = _labelled(pixels, arrays[labels], f"{file}: {labels}", classes)
    return _of_splits(file.stem, splits["train"], splits["test"], classes, splits.get("val"))


FROM_CALLER = ("root", "download")  # arguments that are not options of a set
DATA_SETS: dict[str, Callable[..., ImageData]] = {
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tiny_imagenet": tiny_imagenet,
    "digits": digits,
    "folder": folder,
    "npz": npz,
}


def _from_idx(name: str, root: Path, download: bool) -> ImageData:
    folders = [root / place for place in PUBLISHED[name].places]
    found = [idx_files(folder) for folder in folders]
    chosen = next((files for files in found if len(files) == len(IDX_FILES)), None)
    if chosen is None:
        fetch(name, folders[0], [lacking(*pair) for pair in zip(folders, found, strict=True)], download)
        chosen = idx_files(folders[0])
    splits = []
    for images, labels in (IDX_FILES[:2], IDX_FILES[2:]):
        pixels = read_idx(chosen[images], 3)[..., None]
        splits.append(_labelled(pixels, read_idx(chosen[labels], 1), chosen[labels], 10))
    for other, first in FIRST_LABELS.items():
        if other != name and splits[0].labels[:10].tolist() == first:
            raise ValueError(
                f"{chosen[IDX_FILES[1]]}: is a file of {other}, not of {name}. Both data sets use these file names: put "
                f"{name} in {folders[0]}"
            )
    return _as_published(name, chosen[IDX_FILES[0]].parent, splits[0], splits[1], 10)


def _from_cifar(
    name: str, path: Path, train: list[str], test: str, classes: int, *, key: str, labels: int, use: int
) -> ImageData:  # fmt: skip
    binary = "bin" in path.name
    names = [f"{batch}.bin" if binary else batch for batch in (*train, test)]
    content = read_members(path, names)
    splits = []
    for batch in names:
        where, raw = path / batch, content.pop(batch)
        pixels, numbers = cifar_binary(raw, where, labels, use) if binary else cifar_pickle(raw, where, key)
        splits.append(_labelled(pixels, numbers, where, classes))
    together = Split(torch.cat([split.images for split in splits[:-1]]), torch.cat([split.labels for split in splits[:-1]]))
    return _as_published(name, path, together, splits[-1], classes)


def _decode_tiny(tree: Tree, classes: list[str]) -> dict[str, np.ndarray]:
    numbers = {name: number for number, name in enumerate(classes)}
    train = [name for name in tree.names if name.startswith("train/") and name.lower().endswith((".jpeg", ".jpg"))]
    owners = [name.split("/")[1] for name in train]
    annotations = [line.split("\t")[:2] for line in tree.lines("val/val_annotations.txt")]
    if wrong := (set(owners) | {line[-1] for line in annotations}) ^ set(classes):
        one = min(wrong)
        fault = "is not a class of wnids.txt" if one not in numbers else "has no images in train"
        raise ValueError(f"{tree.path}: {one!r} {fault}: unpack or download the whole archive again")
    test, present = [f"val/images/{line[0]}" for line in annotations], set(tree.names)
    if missing := [name for name in test if name not in present]:
        raise ValueError(
            f"{tree.path}: lacks {missing[0]}, which val_annotations.txt names: download the whole archive again"
        )
    return {
        "x_train": decode_images(train, tree.read, tree.path, size=None),
        "y_train": np.array([numbers[owner] for owner in owners]),
        "x_test": decode_images(test, tree.read, tree.path, size=None),
        "y_test": np.array([numbers[line[1]] for line in annotations]),
    }


def _recalled(kept: Path, fingerprint: np.ndarray) -> dict[str, np.ndarray] | None:
    """The images that were decoded earlier from the same files, if any."""
    if not kept.is_file():
        return None
    try:
        arrays = read_npz(kept, ("fingerprint", "x_train", "y_train", "x_test", "y_test"))
    except (ValueError, OSError) as error:
        _log.warning("images are decoded again: %s", error)
        return None
    return arrays if len(arrays) == 5 and np.array_equal(arrays["fingerprint"], fingerprint) else None


def _keep(kept: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write to a temporary file and rename it, so that another process reads all of it or nothing."""
    part = None
    try:
        with tempfile.NamedTemporaryFile(dir=kept.parent, suffix=".part", delete=False) as file:
            part = Path(file.name)
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
        part.chmod(0o644)  # temporary files are private, and data is shared
        part.replace(kept)
    except OSError as error:
        _log.info("decoded images were not saved: %s", error)
        if part is not None:
            part.unlink(missing_ok=True)


def _class_folders(place: Path) -> list[Path]:
    return sorted(inside for inside in place.iterdir() if inside.is_dir() and not inside.name.startswith("."))


def _read_classes(place: Path, names: list[str], size: tuple[int, int] | None, grey: bool) -> Split:
    files: list[str] = []
    labels: list[int] = []
    for owner in _class_folders(place):
        if owner.name not in names:
            raise ValueError(f"{owner}: the training images have no class of this name, only {', '.join(names)}")
        inside = sorted(
            file.relative_to(place).as_posix() for file in owner.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES
        )
        if not inside:
            raise ValueError(f"{owner}: contains no images ({', '.join(IMAGE_SUFFIXES)}): add some, or remove the folder")
        files += inside
        labels += [names.index(owner.name)] * len(inside)
    return _split(
        decode_images(files, lambda name: (place / name).read_bytes(), place, size=size, grey=grey), np.array(labels)
    )


def _checked_size(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    both = [size, size] if isinstance(size, int) else list(size)
    if len(both) != 2 or not all(type(side) is int and side > 0 for side in both):
        raise ValueError(f"size={size!r}: pass a number of pixels, or two: size=[height, width]")
    return both[0], both[1]


def _split(images: np.ndarray, labels: np.ndarray) -> Split:
    return Split(torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels.astype(np.int64)))


def _labelled(images: np.ndarray, labels: np.ndarray, where: object, classes: int) -> Split:
    """Images with labels from a file, which are checked."""
    if labels.shape[1:] == (1,):
        labels = labels[:, 0]
    if labels.shape != images.shape[:1] or not len(labels):
        raise ValueError(f"{where}: has labels of shape {labels.shape} for {len(images)} images: each image needs one label")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"{where}: has labels from {labels.min()} to {labels.max()}, but classes are 0 to {classes - 1}")
    return _split(images, labels)


def _as_published(name: str, path: Path, train: Split, test: Split, classes: int) -> ImageData:
    published = PUBLISHED[name]
    if (len(train), len(test)) != published.samples:
        found = f"{len(train)} + {len(test)}"
        _log.warning("%s: has %s images, but the published %s has %d + %d", path, found, name, *published.samples)
    elif published.content:
        found = content_hash(*(array.numpy() for split in (train, test) for array in (split.images, split.labels)))
        if found not in published.content:
            _log.warning(
                "%s: %s, SHA-256 %s, expected %s", path, _ALTERED.format(name), found, " or ".join(published.content)
            )
    return ImageData(name, train, test, classes, published.mean, published.std)


def _check_archive(name: str, path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != (expected := PUBLISHED[name].files[path.name]):
        _log.warning("%s: %s, md5 %s, expected %s", path, _ALTERED.format(name), found, expected)


def _of_splits(name: str, train: Split, test: Split, classes: int, validation: Split | None = None) -> ImageData:
    mean, std = mean_and_std(train.images)
    return ImageData(name, train, test, classes, mean, std, validation)


def mean_and_std(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel, in [0, 1]. Byte values are counted, so that sums are exact in any order.

    A constant channel gets a deviation of 1, so that it is not scaled.
    """
    values = torch.arange(256, dtype=torch.float64) / 255
    count = torch.zeros(images.shape[-1], 256, dtype=torch.int64)
    for chunk in images.cpu().split(max(1, _COUNTED_AT_ONCE // max(1, images[0].numel()))):
        for channel in range(len(count)):
            count[channel] += torch.bincount(chunk[..., channel].flatten(), minlength=256)
    share = count.double() / count.sum(1, keepdim=True)  # (channels, 256)
    mean = share @ values
    std = (share * (values - mean[:, None]) ** 2).sum(1).sqrt()
    return tuple(mean.tolist()), tuple(torch.where(std > 0, std, 1.0).tolist())
