"""Readers against files that are written here in the published formats, whole, damaged and hostile."""

import gzip
import io
import pickle
import re
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from replastic.workloads.images import formats

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
LABELS = [3, 0, 9, 3]


def packed(content: bytes) -> bytes:
    """The same bytes every time: gzip would note when it was."""
    return gzip.compress(content, mtime=0)


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def python2_pickle(pixels: np.ndarray, **lists: list[int]) -> bytes:
    """A batch as Python 2 and numpy 1 wrote it, opcode by opcode: byte strings throughout, protocol 2."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    raw = b"T" + struct.pack("<i", pixels.size) + pixels.tobytes()
    shape = number(pixels.shape[0]) + number(pixels.shape[1]) + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
    array += b"(" + number(1) + shape + dtype + b"\x89" + raw + b"tb"
    content = b"\x80\x02}(" + text(b"batch_label") + text(b"training batch 1 of 5") + text(b"data") + array
    for name, values in lists.items():
        content += text(name.encode()) + b"](" + b"".join(map(number, values)) + b"e"
    return content + b"u."


DOUBLED = b"q\0h\0\x86" * 60  # makes of the tuple on top one with 2**60 entries in it
ARRAY = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(tR"  # an empty array, before its state


def tar(path: Path, members: dict[str, bytes], *special: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in special:
            archive.addfile(info)
    return path


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


# idx


@pytest.mark.parametrize("write", [bytes, gzip.compress])
@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_idx_files_are_read_gzipped_or_not_whatever_their_name(
    tmp_path: Path, write: Callable[[bytes], bytes], name: str
) -> None:
    array = np.arange(2 * 3 * 5, dtype=np.uint8).reshape(2, 3, 5)
    (tmp_path / name).write_bytes(write(idx(array)))
    np.testing.assert_array_equal(formats.read_idx(tmp_path / name, 3), array)


GOOD = idx(np.arange(30, dtype=np.uint8).reshape(2, 3, 5))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x89PNG" + GOOD[4:], "89 50 4e 47.* 00 00 08 03"),
        (idx(np.arange(30, dtype=np.uint8)), "idx .* 3 dimensions"),
        (b"", "begins with"),
        (GOOD[:9], "shape"),
        (GOOD[:-1], " 30 bytes.* 29"),
        (GOOD + b"x", " 30 bytes.* more"),
        (GOOD[:4] + b"\xff" * 12, f" {(2**32 - 1) ** 3} bytes.* at most"),
        (packed(GOOD)[:-9], "damaged"),
        (packed(GOOD[:-1]), " 30 bytes.* 29"),
        (packed(GOOD + b"x"), " 30 bytes.* more"),
        (packed(GOOD[:4] + b"\xff" * 12), f" {(2**32 - 1) ** 3} bytes.* at most"),
        (packed(GOOD)[:-8] + b"\0" * 8, "damaged .*CRC"),
        (b"\x1f\x8bnothing that was ever packed", "damaged"),
    ],
)
def test_damaged_idx_files_are_named_with_what_is_wrong(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=f"{tmp_path / 'file'}: .*{says}"):
        formats.read_idx(tmp_path / "file", 3)


def test_a_gzip_bomb_is_not_inflated_past_what_its_header_promises(tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(packed(GOOD + bytes(50_000_000)))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"\bmore\b"):
        formats.read_idx(tmp_path / "bomb", 3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_a_promise_takes_no_memory_before_it_is_kept(tmp_path: Path) -> None:
    # 1.6 MB of incompressible bytes could hold 1.6 GB if they were zeros, which is what the header claims.
    noise = np.random.default_rng(0).bytes(1_600_000)
    (tmp_path / "boast").write_bytes(packed(bytes((0, 0, 8, 1)) + struct.pack(">I", 1_600_000_000) + noise))
    tracemalloc.start()
    with pytest.raises(ValueError, match="1600000"):
        formats.read_idx(tmp_path / "boast", 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000


# archives


def test_members_of_an_archive_are_read_without_writing_anything(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar.gz", {"./top/one": b"1", "top/other": b"x", "top/two": b"22"})
    assert formats.read_members(path, ["two", "one"]) == {"one": b"1", "two": b"22"}
    assert [file.name for file in tmp_path.iterdir()] == ["a.tar.gz"]


@pytest.mark.parametrize(
    ("members", "extra", "says"),
    [
        ({"one": b"1", "../one": b"2"}, [], "'../one' points out of the archive"),
        ({"one": b"1", "top/../../x": b"2"}, [], "points out of the archive"),
        ({"/etc/one": b"1"}, [], "'/etc/one' points out"),
        ({"one": b"1"}, [special("s", tarfile.SYMTYPE, "/etc/passwd")], "'s' is a link or a device"),
        ({}, [special("one", tarfile.SYMTYPE, "/etc/passwd")], "'one' is a link or a device"),
        ({"one": b"1"}, [special("h", tarfile.LNKTYPE, "../one")], "'h' is a link or a device"),
        ({"one": b"1"}, [special("d", tarfile.CHRTYPE)], "'d' is a link or a device"),
        ({"one": b"1"}, [special("p", tarfile.FIFOTYPE)], "'p' is a link or a device"),
        ({"a/one": b"1", "b/one": b"2"}, [], "two files one"),
        ({"other": b"1"}, [], "lacks one"),
    ],
)
def test_hostile_and_incomplete_archives_are_refused(
    tmp_path: Path, members: dict[str, bytes], extra: list[tarfile.TarInfo], says: str
) -> None:
    path = tar(tmp_path / "a.tar.gz", members, *extra)
    with pytest.raises(ValueError, match=f"a.tar.gz: .*{says}"):
        formats.read_members(path, ["one"])


def test_archives_cut_short_are_damaged(tmp_path: Path) -> None:
    whole = tar(tmp_path / "a.tar.gz", {"one": np.random.default_rng(0).bytes(100_000)})
    content = whole.read_bytes()
    for cut in (10, 100, 50_000, len(content) - 4):
        whole.write_bytes(content[:cut])
        with pytest.raises(ValueError, match=r"a.tar.gz: damaged"):
            formats.read_members(whole, ["one"])
    unzipped = gzip.decompress(content)
    whole.write_bytes(unzipped[:50_000])
    with pytest.raises(ValueError, match=r"a.tar.gz: damaged"):
        formats.read_members(whole, ["one"])


def test_archives_and_folders_that_would_fill_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "_MOST_OF_TAR", 2**21)
    path = tar(tmp_path / "a.tar.gz", {"one": b"1", "other": bytes(2**22)})
    with pytest.raises(ValueError, match=r"a.tar.gz: .*2097152 bytes"):
        formats.read_members(path, ["one"])
    (tmp_path / "one").write_bytes(bytes(2**22))
    with pytest.raises(ValueError, match="more than"):
        formats.read_members(tmp_path, ["one"])


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "..\\x"])
def test_a_zip_with_members_outside_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(ValueError, match=r"a.zip: .*out of the archive"):
        formats.Tree(tmp_path / "a.zip")


def test_a_zip_with_links_or_too_much_in_it_or_damage_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(ValueError, match="link"):
        formats.Tree(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("b/x", bytes(1000))
    with monkeypatch.context() as patch:
        patch.setattr(formats, "_MOST_OF_ZIP", 999)
        with pytest.raises(ValueError, match=r"b.zip: .*999 bytes"):
            formats.Tree(tmp_path / "b.zip")
    content = bytearray((tmp_path / "b.zip").read_bytes())
    (tmp_path / "c.zip").write_bytes(content[:-30])
    with pytest.raises(ValueError, match=r"c.zip: damaged"):
        formats.Tree(tmp_path / "c.zip")
    content[500] ^= 1
    (tmp_path / "b.zip").write_bytes(content)
    with pytest.raises(ValueError, match=r"b.zip: x: damaged .*CRC"):
        formats.Tree(tmp_path / "b.zip").read("x")


def test_a_zip_whose_list_of_contents_points_before_its_start_is_damaged(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x", b"content")
    content = (tmp_path / "a.zip").read_bytes()
    start = content.rindex(b"PK\x05\x06") + 16  # where the end of the file says that the list begins
    (tmp_path / "a.zip").write_bytes(content[:start] + struct.pack("<I", 1000) + content[start + 4 :])
    with pytest.raises(ValueError, match=r"a.zip.*: damaged"):
        formats.Tree(tmp_path / "a.zip").read("x")


def test_a_tree_is_the_same_as_folder_and_as_zip_and_its_fingerprint_follows_its_files(tmp_path: Path) -> None:
    base = tmp_path / "top"
    (base / "in").mkdir(parents=True)
    (base / "in" / "file").write_text("one\n\ntwo\n")
    with zipfile.ZipFile(tmp_path / "top.zip", "w") as archive:
        archive.write(base / "in" / "file", "top/in/file")
    trees = [formats.Tree(base), formats.Tree(tmp_path / "top.zip")]
    for tree in trees:
        assert tree.names == ["in/file"]
        assert tree.lines("in/file") == ["one", "two"]
        with pytest.raises(ValueError, match="absent"):
            tree.lines("absent")
        tree.close()
    (base / "in" / "file").write_text("another")
    assert formats.Tree(base).fingerprint.tolist() != trees[0].fingerprint.tolist()


# CIFAR


def test_a_pickle_of_python_2_is_read() -> None:
    content = python2_pickle(PIXELS, labels=LABELS)
    images, labels = formats.cifar_pickle(content, "file", "labels")
    np.testing.assert_array_equal(images, PIXELS.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    assert labels.tolist() == LABELS
    reference = pickle.loads(content, encoding="bytes")  # what the authors' page says to do, with all its trust
    np.testing.assert_array_equal(reference[b"data"], PIXELS)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_pickle_of_python_3_is_read(protocol: int, order: str) -> None:
    data = np.asfortranarray(PIXELS) if order == "F" else PIXELS
    content = pickle.dumps({"data": data, "labels": LABELS}, protocol=protocol)
    images, labels = formats.cifar_pickle(content, "file", "labels")
    np.testing.assert_array_equal(images[1, 2, 3], PIXELS.reshape(-1, 3, 32, 32)[1, :, 2, 3])
    assert labels.tolist() == LABELS


class Hostile:
    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call, self.arguments


def test_a_pickle_is_never_obeyed(tmp_path: Path) -> None:
    import os

    touched = tmp_path / "touched"
    for call, arguments in (
        (os.system, (f"touch {touched}",)),
        (eval, (f"open({str(touched)!r}, 'w')",)),
        (np.load, ("x",)),
    ):
        content = pickle.dumps({"data": PIXELS, "labels": LABELS, "x": Hostile(call, *arguments)}, protocol=2)
        with pytest.raises(ValueError, match=r"file: .*CIFAR"):
            formats.cifar_pickle(content, "file", "labels")
    assert not touched.exists()


@pytest.mark.parametrize(
    "name", ["numpy\nndarray.tofile", "numpy\nload", "builtins\ngetattr", "numpy.core.multiarray\nscalar", "_codecs\ndecode"]
)
def test_a_pickle_reaches_nothing_beside_the_names_of_an_array(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(name.replace("\n", "."))):
        formats.cifar_pickle(b"\x80\x02c" + name.encode() + b"\n.", "file", "labels")


def test_a_pickle_cannot_change_what_stands_in_for_numpy() -> None:
    # BUILD with a pair sets attributes: here on the stand-in of _reconstruct.
    for state in (b"(N}X\x0c\x00\x00\x00__defaults__Nst", b"}X\x0c\x00\x00\x00__defaults__Ns"):
        with pytest.raises(ValueError, match="attributes of a method"):
            formats.cifar_pickle(ARRAY[:-3] + state + b"b.", "file", "labels")
    formats.cifar_pickle(python2_pickle(PIXELS, labels=LABELS), "file", "labels")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (python2_pickle(PIXELS, labels=LABELS)[:-5000], "is not a batch of CIFAR"),
        (b"", "is not a batch of CIFAR"),
        (b"<html>not found</html>", "is not a batch of CIFAR"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**50) + b"x.", "is not a batch of CIFAR"),
        (b"\x80\x02]r" + struct.pack("<I", 2**27) + b".", "pickled list"),  # a place in the memo that costs 2 GB in C
        (pickle.dumps([1]), "pickled list"),
        # 2**60 entries in a few hundred bytes, to be hashed, printed or multiplied
        (b"\x80\x02})" + DOUBLED + b"Ns.", "key .* string"),
        (b"\x80\x02}()" + DOUBLED + b"Nu.", "key .* string"),
        (b"\x80\x02()" + DOUBLED + b"Nd.", "is not a batch of CIFAR"),
        (b"\x80\x02\x8f()" + DOUBLED + b"\x90.", "is not a batch of CIFAR"),
        (ARRAY + b"(K\x01)" + DOUBLED + b"\x85NNNtb.", "array whose shape"),
        (b"\x80\x02c_codecs\nencode\nU\x01a)" + DOUBLED + b"\x86R.", "latin1"),
        (pickle.dumps({"labels": LABELS}), 'has no array "data"'),
        (pickle.dumps({"data": PIXELS[:, :-1], "labels": LABELS}, protocol=2), 'has no array "data"'),
        (pickle.dumps({"data": PIXELS.astype(float), "labels": LABELS}, protocol=2), "unsigned bytes"),
        (pickle.dumps({"data": PIXELS.astype(object), "labels": LABELS}, protocol=2), "unsigned bytes"),
        (python2_pickle(PIXELS, labels=LABELS).replace(b"J\x00\x0c\x00\x00", b"J\xff\xff\xff\x7f"), "array of shape"),
        (python2_pickle(PIXELS, labels=LABELS[:-1]), "has 4 images and 3 labels"),
        (python2_pickle(PIXELS, fine_labels=LABELS), 'has no list "labels"'),
        (pickle.dumps({"data": PIXELS, "labels": ["0"] * 4}, protocol=2), 'has no list "labels" of'),
        (pickle.dumps({"data": PIXELS, "labels": [2**80] * 4}, protocol=2), 'has no list "labels" of'),
    ],
)
def test_damaged_pickles_are_named_with_what_is_wrong(content: bytes, says: str) -> None:
    tracemalloc.start()
    with pytest.raises(ValueError, match=f"^file: .*({says})"):
        formats.cifar_pickle(content, "file", "labels")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


@pytest.mark.parametrize(("labels", "use"), [(1, 0), (2, 0), (2, 1)])
def test_the_binary_version_is_read(labels: int, use: int) -> None:
    numbers = np.array([[3, 1], [0, 2], [9, 3], [3, 4]], np.uint8)[:, :labels]
    content = np.concatenate([numbers, PIXELS], 1).tobytes()
    images, read = formats.cifar_binary(content, "file", labels, use)
    np.testing.assert_array_equal(images, PIXELS.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    assert read.tolist() == numbers[:, use].tolist()
    for damaged in (content[:-1], b""):
        with pytest.raises(ValueError, match=f"file: .*{len(damaged)} bytes"):
            formats.cifar_binary(damaged, "file", labels, use)


# npz


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_an_npz_are_read_in_any_layout(tmp_path: Path, save: Callable[..., None]) -> None:
    arrays = {"a": np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(3, 4)), "b": np.arange(3, dtype=">i8")}
    save(tmp_path / "x.npz", **arrays, text=np.array("left alone"))
    read = formats.read_npz(tmp_path / "x.npz", ["a", "b", "absent"])
    assert read.keys() == {"a", "b"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype.isnative


def test_damaged_and_hostile_npz_files_are_named_with_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.array([Hostile(print, "x")], dtype=object))
    with pytest.raises(ValueError, match=r"x.npz: a.npy: .*object"):
        formats.read_npz(path, ["a"])
    np.savez(path, a=np.zeros(3))
    with pytest.raises(ValueError, match=r"x.npz: a.npy: .*float64"):
        formats.read_npz(path, ["a"])
    for shape, says in (
        ((2**40,), f"{2**40} bytes"),
        ((50,), " 50 bytes.* 5"),
        ((4,), "has more"),
    ):
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", header.getvalue() + bytes(5))
        with pytest.raises(ValueError, match=rf"x.npz.*{says}"):
            formats.read_npz(path, ["a"])
    for content in (b"no zip", path.read_bytes()[:-20]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"x.npz: damaged"):
            formats.read_npz(path, ["a"])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", b"no array")
    with pytest.raises(ValueError, match=r"x.npz: a.npy: "):
        formats.read_npz(path, ["a"])


def test_channels_come_last_from_wherever_they_were() -> None:
    images = np.arange(2 * 5 * 4 * 3, dtype=np.uint8).reshape(2, 5, 4, 3)
    first = images.transpose(0, 3, 1, 2)
    for given, channels in ((images, None), (first, None), (images, "last"), (first, "first")):
        np.testing.assert_array_equal(formats.channels_last(given, "file", channels), images)
    assert formats.channels_last(images[..., 0], "file", None).shape == (2, 5, 4, 1)
    with pytest.raises(ValueError, match='channels="first"'):
        formats.channels_last(np.zeros((2, 3, 3, 3), np.uint8), "file", None)
    with pytest.raises(ValueError, match="channels="):
        formats.channels_last(np.zeros((2, 5, 5, 5), np.uint8), "file", None)
    with pytest.raises(ValueError, match="float32"):
        formats.channels_last(images.astype(np.float32), "file", None)
    with pytest.raises(ValueError, match=r'channels=3.*"first" or "last"'):
        formats.channels_last(images, "file", 3)  # pyright: ignore[reportArgumentType]


# image files


def picture(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def decode(*contents: bytes, size: tuple[int, int] | None = None, grey: bool = False) -> np.ndarray:
    files = {f"{number}.png": content for number, content in enumerate(contents)}
    return formats.decode_images(list(files), files.__getitem__, Path("in"), size=size, grey=grey)


def test_pictures_are_decoded_exactly_and_grey_ones_get_three_channels() -> None:
    colour = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    images = decode(picture(colour), picture(colour[..., 0]))
    np.testing.assert_array_equal(images[0], colour)
    np.testing.assert_array_equal(images[1], np.repeat(colour[..., :1], 3, axis=2))
    assert decode(picture(colour[..., 0]), grey=True).shape == (1, 4, 5, 1)


def test_pictures_of_different_sizes_are_an_error_that_names_both_unless_they_are_resized() -> None:
    one, other = picture(np.zeros((4, 5, 3), np.uint8)), picture(np.full((6, 7, 3), 9, np.uint8))
    with pytest.raises(ValueError, match=r"in/1.png: .*7 x 6.*in/0.png.*5 x 4.*size=4"):
        decode(one, other)
    images = decode(one, other, size=(2, 3))
    assert images.shape == (2, 2, 3, 3)
    assert images[1].min() == images[1].max() == 9


def test_damaged_absurd_and_unsuitable_pictures_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = picture(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8), "JPEG")
    for damaged in (whole[: len(whole) // 2], b"", b"GIF89a", whole[:20]):
        with pytest.raises(ValueError, match=r"in/0.png: "):
            decode(damaged)
    with pytest.raises(ValueError, match="bytes"):
        decode(picture(np.zeros((4, 4), np.uint16)))
    monkeypatch.setattr(formats, "_MOST_PIXELS", 15)
    with pytest.raises(ValueError, match=r"4 x 4.*\b15\b"):
        decode(picture(np.zeros((4, 4, 3), np.uint8)))


def test_without_pillow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(ImportError, match=r'pip install "replastic\[data\]"'):
        decode(b"x")
