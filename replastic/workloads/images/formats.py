"""Readers of the files in which image data sets are published: idx, CIFAR's two versions, .npz, and trees of JPEG or PNG.

They do not trust the files. A size in a header is compared with the size of the file before memory is allocated; archives
are read in place, so that no member can be written anywhere; CIFAR's pickles are read without creating the objects that they
name. For a damaged file they raise a ValueError that begins with its path.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import lzma
import math
import pickle
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, ClassVar

import numpy as np

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm")

_PIECE = 2**20  # bytes: read at once
_DEFLATE_RATIO = 1032  # the highest compression ratio of deflate, and so of gzip and zip
_MOST_OF_TAR = 2**29  # bytes: CIFAR's archives hold 186 MB
_MOST_OF_ZIP = 2**32  # bytes: Tiny-ImageNet's archive holds 0.3 GB
_MOST_PIXELS = 2**26  # of one image: below this, pillow does not warn of a decompression bomb
_DECODERS = ("JPEG", "PNG", "BMP", "WEBP", "PPM")
_REPAIR = "replace it; if it was downloaded, delete it, and it is downloaded again"
_BYTE_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # of pillow, 8 bits a channel or fewer
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile, RuntimeError)

_Readable = IO[bytes] | gzip.GzipFile


@contextmanager
def _naming(where: object) -> Iterator[None]:
    """Turn errors of the standard library for damaged files into a ValueError that names the file.

    For zip files with a password or an unknown compression, the library raises a RuntimeError.
    """
    try:
        yield
    except _DAMAGE as error:
        raise ValueError(f"{where}: damaged ({error}): {_REPAIR}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # raised for a list of contents that points before the file's start
            raise
        raise ValueError(f"{where}: damaged (its list of contents is wrong): {_REPAIR}") from error


def _exactly(file: _Readable, size: int, where: object) -> bytearray:
    """Read `size` bytes up to the end of the file, in pieces, so that a wrong size does not allocate memory."""
    content = bytearray()
    while piece := file.read(min(_PIECE, size + 1 - len(content))):
        content += piece
    if len(content) != size:
        found = f"ends after {len(content)}" if len(content) < size else "has more"
        raise ValueError(f"{where}: its header promises {size} bytes, but it {found}: {_REPAIR}")
    return content


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """The bytes of an idx file, MNIST's format, gzipped or not: 0, 0, type, dimensions, sizes (big-endian), values."""
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"  # not from the name: some browsers unpack a file and keep the .gz
    with gzip.open(path) if zipped else path.open("rb") as file, _naming(path):
        head = file.read(4 + 4 * ndim)
        magic = bytes((0, 0, 8, ndim))  # 8: unsigned bytes
        if head[:4] != magic:
            raise ValueError(
                f"{path}: begins with {head[:4].hex(' ')}, not with {magic.hex(' ')}: it is not an idx file of bytes with "
                f"{ndim} dimension{'s' * (ndim > 1)}"
            )
        shape = tuple(int(size) for size in np.frombuffer(head[4:].ljust(4 * ndim, b"\0"), ">u4"))
        if 0 in shape:
            raise ValueError(f"{path}: has the shape {shape}: it is truncated or empty")
        _check_promise(path, math.prod(shape), zipped)
        return np.frombuffer(_exactly(file, math.prod(shape), path), np.uint8).reshape(shape)


def _check_promise(path: Path, promised: int, zipped: bool) -> None:
    most = path.stat().st_size * (_DEFLATE_RATIO if zipped else 1)
    if promised > most:
        raise ValueError(
            f"{path}: its header promises {promised} bytes, but a file of {path.stat().st_size} bytes holds at most {most}: "
            f"{_REPAIR}"
        )


class _Bounded:
    """A file that raises before it fills the memory."""

    def __init__(self, file: _Readable, path: Path) -> None:
        self.file, self.path, self.left = file, path, _MOST_OF_TAR

    def read(self, size: int) -> bytes:
        content = self.file.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise ValueError(f"{self.path}: contains more than {_MOST_OF_TAR} bytes: this is not the published archive")
        return content


def read_members(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """The contents of the wanted files in a folder or a .tar.gz, by their names without folders; all must exist."""
    found = _read_folder(path, wanted) if path.is_dir() else _read_tar(path, wanted)
    if missing := [name for name in wanted if name not in found]:
        raise ValueError(f"{path}: lacks {', '.join(missing)}: unpack or download the whole archive again")
    return found


def _read_folder(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    files = [path / name for name in wanted if (path / name).is_file()]
    if sum(file.stat().st_size for file in files) > _MOST_OF_TAR:
        raise ValueError(f"{path}: contains more than {_MOST_OF_TAR} bytes: these are not the published files")
    return {file.name: file.read_bytes() for file in files}


def _read_tar(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    found = {}
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    with _naming(path), gzip.open(path) if zipped else path.open("rb") as file:
        # A stream ("r|") is read once from start to end, in pieces whose size does not depend on a header.
        bounded: Any = _Bounded(file, path)
        with tarfile.open(fileobj=bounded, mode="r|", bufsize=_PIECE) as archive:
            for member in archive:
                _check_member(path, member.name, plain=member.isfile() or member.isdir())
                name = PurePosixPath(member.name).name
                if not member.isfile() or name not in wanted:
                    continue
                if name in found:
                    raise ValueError(f"{path}: contains two files {name}: download the published archive")
                content = archive.extractfile(member)
                found[name] = content.read() if content else b""
    return found


def _check_member(path: Path, name: str, *, plain: bool) -> None:
    pure = PurePosixPath(name.replace("\\", "/"))
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError(f"{path}: its member {name!r} points out of the archive: do not use it, download the published one")
    if not plain:
        raise ValueError(f"{path}: its member {name!r} is a link or a device: do not use it, download the published archive")


def cifar_binary(content: bytes, where: object, labels: int, use: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of CIFAR's binary version: for each image its label bytes, one of which is used, and 3072 pixels."""
    record = labels + 3072
    if not content or len(content) % record:
        raise ValueError(
            f"{where}: has {len(content)} bytes, not a multiple of {record}, the size of an image with its "
            f"label{'s' * (labels > 1)}: it is truncated or another file; download it again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return _planes_last(records[:, labels:]), records[:, use].astype(np.int64)


def _planes_last(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


class _PickledDtype:
    def __init__(self, code: object) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Ignore the byte order and similar attributes, which single bytes do not have."""


class _PickledArray:
    values: np.ndarray | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        # Other shapes can take forever to multiply or print: a tuple may contain another twice, and that one a third twice.
        if not isinstance(shape, tuple) or len(shape) > 2 or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
            raise pickle.UnpicklingError("it has an array whose shape is not one or two sizes")
        if not isinstance(dtype, _PickledDtype) or dtype.code not in ("u1", "|u1", "uint8"):
            raise pickle.UnpicklingError("it has an array that is not of unsigned bytes")
        if not isinstance(content, bytes) or math.prod(shape) != len(content):
            raise pickle.UnpicklingError(f"it has an array of shape {shape} with another number of entries")
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


_NAMES = """
    PROTO FRAME STOP MARK MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET NONE NEWTRUE NEWFALSE INT BININT BININT1
    BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE
    BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS
    EMPTY_DICT SETITEM SETITEMS GLOBAL STACK_GLOBAL REDUCE BUILD
"""
_INSTRUCTIONS = b"".join(getattr(pickle, name) for name in _NAMES.split())


class _CifarUnpickler(pickle._Unpickler):
    """Reads dicts, lists, numbers, strings and arrays of bytes, and creates nothing else.

    Keys must be strings: hashing a tuple visits all of its content, and a few bytes can nest the same tuples many times.
    The accepted names are those with which numpy writes an array. Placeholders replace them, because numpy's own functions
    would allocate memory, or create objects, as the file says. The base is pickle's Python version, because the one in C
    allocates as much memory as a number in the file says.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if code in _INSTRUCTIONS
    }
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._fill([key, value])

    def load_setitems(self) -> None:
        self._fill(self.pop_mark())

    def load_build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _PickledArray | _PickledDtype):
            raise pickle.UnpicklingError(f"it sets attributes of a {type(self.stack[-1]).__name__}")
        self.stack[-1].__setstate__(state)

    dispatch |= {pickle.SETITEM[0]: load_setitem, pickle.SETITEMS[0]: load_setitems, pickle.BUILD[0]: load_build}

    def _fill(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or not all(isinstance(key, str | bytes) for key in items[::2]):
            raise pickle.UnpicklingError("it has a key that is not a string")
        target.update(zip(items[::2], items[1::2], strict=True))

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("numpy.core.multiarray", "_reconstruct"): self._array,
            ("numpy._core.multiarray", "_reconstruct"): self._array,
            ("numpy", "ndarray"): "ndarray",
            ("numpy", "dtype"): self._dtype,
            ("_codecs", "encode"): self._encode,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it uses {module}.{name}, which CIFAR's files do not contain: do not use it")
        return known[module, name]

    def _array(self, *_: object) -> _PickledArray:
        return _PickledArray()

    def _dtype(self, code: object, *_: object) -> _PickledDtype:
        return _PickledDtype(code)

    def _encode(self, text: str, encoding: str = "latin1") -> bytes:
        """Bytes, as Python 3 writes them to a pickle that Python 2 can read."""
        if encoding not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError("it has bytes in an encoding other than latin1")
        return text.encode("latin1")


def cifar_pickle(content: bytes, where: object, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Images, and the labels under a key, of CIFAR's Python version: a pickle, which is read without running it."""
    try:
        batch = _CifarUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # pickle's documentation: damaged input may raise any error
        raise ValueError(f"{where}: is not a batch of CIFAR ({error or type(error).__name__})") from error
    if not isinstance(batch, dict):
        raise ValueError(f"{where}: is a pickled {type(batch).__name__}, but a batch of CIFAR is a dict")
    images, labels = (batch.get(name.encode(), batch.get(name)) for name in ("data", key))
    if not isinstance(images, _PickledArray) or images.values is None or images.values.shape[1:] != (3072,):
        raise ValueError(f'{where}: has no array "data" of shape (images, 3072)')
    if not isinstance(labels, list) or not all(type(label) is int and abs(label) < 2**31 for label in labels):
        raise ValueError(f'{where}: has no list "{key}" of integers')
    if len(labels) != len(images.values):
        raise ValueError(f"{where}: has {len(images.values)} images and {len(labels)} labels")
    return _planes_last(images.values), np.array(labels, np.int64)


def read_npz(path: Path, keys: Collection[str]) -> dict[str, np.ndarray]:
    """The arrays of an .npz file with these names, if present; without objects, and none larger than the file allows."""
    found = {}
    with _naming(path), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for key in keys:
            if key in members:
                found[key] = _read_npy(path, archive, members[key])
    return found


def _read_npy(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    where = f"{path}: {info.filename}"
    try:
        with archive.open(info) as file:
            version = np.lib.format.read_magic(file)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = header(file)
            if dtype.kind not in "iu":
                raise ValueError(
                    f"it contains {dtype}, but images and labels must be integers; load floats with a function of your "
                    'own, as in [data] name = "mydata.py:load"'
                )
            size = math.prod(shape) * dtype.itemsize
            _check_promise(path, size, zipped=True)
            content = _exactly(file, size, where)
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{where}: {error}") from error
    values = np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
    return values.astype(dtype.newbyteorder("="), copy=False)


def channels_last(images: np.ndarray, where: object, channels: str | None) -> np.ndarray:
    """Images as bytes (images, height, width, channels), from images with channels last, first, or without channels.

    channels: "first", "last", or None: the axis of size 1 or 3.
    """
    if channels not in (None, "first", "last"):
        raise ValueError(f'channels={channels!r}: pass "first" or "last"')
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape:
        raise ValueError(
            f"{where}: is {images.dtype} of shape {images.shape}: images are bytes, uint8 of shape (images, height, width), "
            "with the channels last or first if there are any"
        )
    if images.ndim == 3:
        return images[..., None]
    if channels is None:
        first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
        if first == last:
            raise ValueError(f'{where}: has the shape {images.shape}: set channels="first" or channels="last"')
        channels = "first" if first else "last"
    return images.transpose(0, 2, 3, 1) if channels == "first" else images


class Tree:
    """Named files in a folder or a .zip. `fingerprint` changes when one of the files does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._archive = None if path.is_dir() else self._open_zip()
        stamps = self._walk() if self._archive is None else self._list(self._archive)
        self.names = sorted(stamps)
        lines = "\n".join(f"{name}\t{stamps[name]}" for name in self.names)
        self.fingerprint = np.frombuffer(hashlib.sha256(lines.encode(errors="surrogateescape")).digest(), np.uint8)

    def _open_zip(self) -> zipfile.ZipFile:
        with _naming(self.path):
            return zipfile.ZipFile(self.path)

    def _walk(self) -> dict[str, str]:
        files = ((file, file.stat()) for file in self.path.rglob("*") if file.is_file())
        return {file.relative_to(self.path).as_posix(): f"{status.st_size} {status.st_mtime_ns}" for file, status in files}

    def _list(self, archive: zipfile.ZipFile) -> dict[str, str]:
        infos = [info for info in archive.infolist() if not info.filename.endswith("/")]
        for info in infos:
            _check_member(self.path, info.filename, plain=not stat.S_ISLNK(info.external_attr >> 16))
        if sum(info.file_size for info in infos) > _MOST_OF_ZIP:
            raise ValueError(f"{self.path}: contains more than {_MOST_OF_ZIP} bytes: this is not the published archive")
        self._infos = {info.filename.removeprefix(self.path.stem + "/"): info for info in infos}
        return {name: f"{info.file_size} {info.CRC}" for name, info in self._infos.items()}

    def read(self, name: str) -> bytes:
        """A file's content; from an archive at most the size in its list of contents."""
        if self._archive is None:
            return (self.path / name).read_bytes()
        with _naming(f"{self.path}: {name}"):
            return self._archive.read(self._infos[name])

    def lines(self, name: str) -> list[str]:
        """The lines of a text file that are not empty."""
        if name not in self.names:
            raise ValueError(f"{self.path}: lacks {name}: unpack or download the whole archive again")
        return [line for line in self.read(name).decode(errors="replace").splitlines() if line.strip()]

    def close(self) -> None:
        if self._archive is not None:
            self._archive.close()


def decode_images(
    names: Sequence[str], read: Callable[[str], bytes], where: Path, *, size: tuple[int, int] | None, grey: bool = False
) -> np.ndarray:
    """Image files as one array (images, height, width, channels).

    size: resize all to (height, width); None: all must have the size of the first.
    """
    images: np.ndarray | None = None
    for number, name in enumerate(names):
        image = _decoded(read(name), where / name, "L" if grey else "RGB", size)
        if images is None:
            images = np.empty((len(names), *image.shape), np.uint8)
        if image.shape != images.shape[1:]:
            (height, width), (first_height, first_width) = image.shape[:2], images.shape[1:3]
            raise ValueError(
                f"{where / name}: has {width} x {height} pixels, but {where / names[0]} has {first_width} x {first_height}: "
                f"use images of one size, or set size={min(first_height, first_width)} to resize all"
            )
        images[number] = image
    if images is None:
        raise ValueError(f"{where}: contains no images ({', '.join(IMAGE_SUFFIXES)})")
    return images


def _decoded(content: bytes, where: Path, mode: str, size: tuple[int, int] | None) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError('images are decoded with pillow, which is not installed: pip install "replastic[data]"') from error
    try:
        with Image.open(io.BytesIO(content), formats=_DECODERS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels are more than {_MOST_PIXELS}")
            if image.mode not in _BYTE_MODES:
                raise ValueError(f"pixels of kind {image.mode!r} do not fit in bytes")
            converted = image.convert(mode)
            if size is not None and converted.size != (size[1], size[0]):
                converted = converted.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            pixels = np.asarray(converted)
    except Exception as error:  # decoders raise many kinds of errors: OSError, SyntaxError, struct.error, ...
        raise ValueError(f"{where}: cannot be read as an image ({error})") from error
    return pixels[:, :, None] if mode == "L" else pixels
