"""Zip archives: where each member's bytes and checksums are in the file.

Nothing is unpacked. An archive may be an uncompressed member of another.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import BinaryIO

from .stored import CheckpointError

_BLOCK = 2**22
_LOCAL, _CENTRAL, _DESCRIPTOR = b"PK\x03\x04", b"PK\x01\x02", b"PK\x07\x08"
_END, _END64, _LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_HAS_DESCRIPTOR = 0x08
_UNREADABLE = 0x01 | 0x20 | 0x40 | 0x2000  # flags of a member that is encrypted, a patch, or masked
_FOLDER = 0x10  # attribute of a folder; torch reads nothing from it and returns uninitialised memory
_IN_EXTRA = 0xFFFFFFFF  # marks a size that is stored in the extra field, in eight bytes


@dataclass(frozen=True)
class Member:
    """One file of an archive.

    offset, size: position and number of its stored bytes.
    plain: whether they are not compressed.
    crc: the checksum of its content, according to the archive.
    checksums: the positions of that checksum, two or more.
    """

    name: str
    offset: int
    size: int
    plain: bool
    crc: int
    checksums: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.offset + self.size

    def mend(self, file: BinaryIO) -> None:
        """Write the checksum of the present content."""
        crc = struct.pack("<I", self.checksum(file))
        for place in self.checksums:
            file.seek(place)
            file.write(crc)

    def checksum(self, file: BinaryIO) -> int:
        """The checksum of the present content."""
        crc, left = 0, self.size
        file.seek(self.offset)
        while left:
            block = file.read(min(_BLOCK, left))
            if not block:
                raise CheckpointError(f"{self.name}: the file ends within it")
            crc, left = zlib.crc32(block, crc), left - len(block)
        return crc


class Stretch(io.RawIOBase):
    """A range of a file's bytes as a read-only file."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self.file, self.offset, self.size, self.at = file, offset, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise OSError("before the start of the file")
        self.at = start + offset
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        count = max(0, min(len(buffer), self.size - self.at))
        self.file.seek(self.offset + self.at)
        got = self.file.readinto(memoryview(buffer)[:count])  # type: ignore[attr-defined]
        self.at += got
        return got


def members(file: BinaryIO, offset: int, size: int, what: str) -> dict[str, Member]:
    """The members of an archive at these bytes of a file; raises if they are inconsistent."""
    stretch = Stretch(file, offset, size)
    try:
        with zipfile.ZipFile(stretch) as archive:
            infos, start = archive.infolist(), archive.start_dir
        places = _places(stretch, start, infos)
        found = [_member(stretch, info, place, what) for info, place in zip(infos, places, strict=True)]
    except (zipfile.BadZipFile, struct.error, ValueError, OSError, EOFError, NotImplementedError, RuntimeError) as problem:
        if isinstance(problem, CheckpointError):
            raise
        raise CheckpointError(f"{what}: it is not a complete zip archive ({problem}): download it again") from problem
    by_name = {member.name: member for member in found}
    if len({name.lower() for name in by_name}) < len(found):  # torch ignores case in names of members
        raise CheckpointError(f"{what}: two of its members have the same name, so readers may disagree on its content")
    end, before = 0, ""
    for member, info in sorted(zip(found, infos, strict=True), key=lambda pair: pair[1].header_offset):
        if info.header_offset < end:
            raise CheckpointError(f"{what}: its members {before} and {member.name} overlap")
        end, before = member.end, member.name
    if end > start:
        raise CheckpointError(f"{what}: its member {before} overlaps with the archive's table")
    return {
        name: Member(name, m.offset + offset, m.size, m.plain, m.crc, tuple(place + offset for place in m.checksums))
        for name, m in by_name.items()
    }


def _places(stretch: Stretch, start: int, infos: list[zipfile.ZipInfo]) -> list[int]:
    """The position of each member's CRC in the archive's table; raises if the end record describes another table."""
    places, at = [], start
    for _ in infos:
        stretch.seek(at)
        header = stretch.read(46)
        if not header or header[:4] != _CENTRAL:
            raise zipfile.BadZipFile("its table is damaged")
        places.append(at + 16)
        at += 46 + sum(struct.unpack("<3H", header[28:34]))
    _check_end(stretch, at, (0, 0, len(infos), len(infos), at - start, start))
    return places


def _check_end(stretch: Stretch, at: int, table: tuple[int, ...]) -> None:
    """Raise unless the end record matches the table: its disk (twice), number of entries (twice), size and position.

    zipfile does not check most of this; torch refuses an archive in several parts.
    """
    long = None
    if _read(stretch, at, 4) == _END64:
        long = struct.unpack("<2I4Q", _read(stretch, at + 16, 40))
        sizes = _read(stretch, at + 4, 8) + _read(stretch, at + 56, 20)
        if sizes != struct.pack("<Q4sIQI", 44, _LOCATOR64, 0, at, 1):
            raise zipfile.BadZipFile("its end is damaged")
        at += 76
    signature, *short = struct.unpack("<4s4H2I", _read(stretch, at, 20))
    most = (0xFFFF,) * 4 + (0xFFFFFFFF,) * 2  # the number is in the longer record
    agree = all(n == true or (long and n == full) for n, true, full in zip(short, table, most, strict=True))
    if signature != _END or not agree or long not in (None, table):
        raise zipfile.BadZipFile("its end record describes another table, or parts on other disks")


def _member(stretch: Stretch, info: zipfile.ZipInfo, place: int, what: str) -> Member:
    stretch.seek(info.header_offset)
    header = stretch.read(30)
    if not header or len(header) < 30 or header[:4] != _LOCAL:
        raise zipfile.BadZipFile(f"{info.filename} is not at its position in the table")
    method, size, *lengths = struct.unpack("<H8xI4x2H", header[8:])
    name = stretch.read(lengths[0]) or b""
    if name.decode("utf-8" if info.flag_bits & 0x800 else "cp437") != info.orig_filename:
        raise CheckpointError(f"{what}: its member {info.filename} has another name in its own header: it was tampered with")
    if method != info.compress_type:
        raise CheckpointError(f"{what}: its member {info.filename} has two compression methods: it was tampered with")
    for wrong, said in (
        (info.flag_bits & _UNREADABLE, "is encrypted, or a patch of another file"),
        (info.external_attr & _FOLDER and info.file_size, "is marked as a folder"),
        (info.volume, "is on another disk"),
    ):
        if wrong:
            raise CheckpointError(
                f"{what}: its member {info.filename} {said}, which torch.save never writes: download it again"
            )
    data = info.header_offset + 30 + sum(lengths)
    if data + info.compress_size > stretch.size:
        raise zipfile.BadZipFile(f"{info.filename} would end beyond the file")
    plain = info.compress_type == zipfile.ZIP_STORED
    if plain and info.compress_size != info.file_size:
        raise zipfile.BadZipFile(f"{info.filename} has two sizes")
    checksums = [place]
    if info.flag_bits & _HAS_DESCRIPTOR:
        stretch.seek(data + info.compress_size)
        following = stretch.read(8) or b""
        checksums.append(data + info.compress_size + (4 if following[:4] == _DESCRIPTOR else 0))
    else:
        checksums.append(info.header_offset + 14)
        if size not in (info.compress_size, _IN_EXTRA):
            raise CheckpointError(f"{what}: its member {info.filename} has two sizes: it was tampered with")
    stored = [int.from_bytes(_read(stretch, at, 4), "little") for at in checksums]
    if any(crc != info.CRC for crc in stored):
        raise CheckpointError(f"{what}: its member {info.filename} has two checksums: it is damaged")
    return Member(info.filename, data, info.compress_size, plain, info.CRC, tuple(checksums))


def _read(stretch: Stretch, at: int, count: int) -> bytes:
    stretch.seek(at)
    return stretch.read(count) or b""
