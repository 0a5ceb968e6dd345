"""Published data sets: where to download them, where to look for their files, and how to fetch them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@dataclass(frozen=True)
class Published:
    """A data set as published. Mean and deviation are those of its training images."""

    places: tuple[str, ...]  # under the root, in the order in which they are searched
    addresses: tuple[str, ...]  # tried in this order
    files: dict[str, str]  # md5 by name
    content: tuple[str, ...]  # `content_hash` of train and test, for each kind of labels; none if pixels depend on a decoder
    samples: tuple[int, int]  # train, test
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _idx_md5(*sums: str) -> dict[str, str]:
    return {f"{name}.gz": md5 for name, md5 in zip(IDX_FILES, sums, strict=True)}


_TORONTO = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
PUBLISHED = {
    "mnist": Published(
        ("mnist", "MNIST/raw", "."),
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        _idx_md5(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        ("06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16",),
        (60000, 10000), (0.1307,), (0.3081,),
    ),
    "fashion_mnist": Published(
        ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "."),
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        _idx_md5(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        ("ca3ab2a37f845e1b8ae23cab1b51749a3011ba3bf1d9016176d75cbaabac376f",),
        (60000, 10000), (0.2860,), (0.3530,),
    ),
    "cifar10": Published(
        ("cifar-10-batches-py", "cifar-10-batches-bin", "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"),
        _TORONTO, {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
        ("80387ddb9a0edf3fc4a964ee3770296169bb26a651050df20035579673099660",),
        (50000, 10000), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616),
    ),
    "cifar100": Published(
        ("cifar-100-python", "cifar-100-binary", "cifar-100-python.tar.gz", "cifar-100-binary.tar.gz"),
        _TORONTO, {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
        (
            "84b86054909012b11f3c2443ad844f6353586312facc59cd4b8385c15ada0166",
            "a57e43271627678355e99e24c2625f5de7e29401a079791f3b6a74ce3aedf20c",  # coarse labels
        ),
        (50000, 10000), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762),
    ),
    "tiny_imagenet": Published(
        ("tiny-imagenet-200", "tiny-imagenet-200.zip"),
        ("http://cs231n.stanford.edu/",), {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
        (),
        (100000, 10000), (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821),
    ),
}  # fmt: skip
# Both sets use the same file names. Their first labels show which of the two a file belongs to.
FIRST_LABELS = {"mnist": [5, 0, 4, 1, 9, 2, 1, 3, 1, 4], "fashion_mnist": [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]}


def content_hash(*arrays: np.ndarray) -> str:
    """SHA-256 of images and labels as bytes, whether they come from archives, folders or repacked files."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, np.uint8).data)
    return digest.hexdigest()


def find_archive(name: str, root: Path, download: bool) -> Path:
    """The path of an archive, or of the folder that it was unpacked to."""
    places = [base / place for base in (root, root / name) for place in PUBLISHED[name].places]
    places = [root] if root.name in PUBLISHED[name].places else places
    present = [place for place in places if place.exists()]
    return present[0] if present else fetch(name, places[0].parent, list(map(str, places)), download)[0]


def fetch(name: str, folder: Path, looked: Sequence[str], download: bool) -> list[Path]:
    """The published files in a folder; missing ones are downloaded to it."""
    published, reason = PUBLISHED[name], "download=False"
    if download:
        try:
            import pooch

            for file, md5 in published.files.items():
                if not (folder / file).exists():  # another version may be the user's own, and is not replaced
                    _retrieve(pooch.retrieve, published.addresses, file, md5, folder)
            return [folder / file for file in published.files]
        except ImportError:
            reason = 'pooch, which downloads it, is not installed: pip install "replastic[data]"'
        except OSError as error:
            reason = f"the download failed: {error}"
    raise FileNotFoundError(
        f"{name} was not found, and {reason}. Looked for\n  "
        + "\n  ".join(looked)
        + f"\nPut {', '.join(published.files)} from "
        f'{published.addresses[0]} into {folder}, or pass its folder, as in load("{name}", "path/to/it") or REPLASTIC_DATA'
    )


def _retrieve(
    retrieve: Callable[..., object], addresses: Sequence[str], file: str, md5: str, folder: Path
) -> None:  # fmt: skip
    failures = []
    for address in addresses:
        try:
            retrieve(url=address + file, known_hash=f"md5:{md5}", fname=file, path=folder)
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong md5 is a ValueError
            failures.append(f"{address}{file}: {error}")
        else:
            return
    raise OSError("; ".join(failures))


def idx_files(folder: Path) -> dict[str, Path]:
    """The files in MNIST's format in a folder, by either spelling of their names."""
    spelt = {name: (name, name.replace("-idx", ".idx")) for name in IDX_FILES}
    files = ((name, folder / (s + gz)) for name, spellings in spelt.items() for s in spellings for gz in (".gz", ""))
    return {name: file for name, file in files if file.is_file()}


def lacking(folder: Path, found: Collection[str]) -> str:
    """The missing files, as text."""
    missing = [f"{name}[.gz]" for name in IDX_FILES if name not in found]
    return f"{folder}: lacks {', '.join(missing)}" if found else f"{folder / missing[0]} and the other three"
