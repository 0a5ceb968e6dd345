"""Verify the checksums of an archive's members while they are read for other purposes."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import BinaryIO

from .zipped import Member

_BLOCK = 2**22


class Watched:
    """A file that updates the checksums of members as they are read, each byte once; `wrong` reads the remaining bytes.

    Tensors are mostly read in the order of the file. Where they are not, skipped bytes are read for the checksum alone.
    """

    def __init__(self, file: BinaryIO, members: Iterable[Member]) -> None:
        self.file, self.at = file, 0
        ordered = sorted(members, key=lambda member: member.offset)
        self._around = [member for member, after in pairwise(ordered) if after.offset < member.end]  # inner archives
        self._members = [member for member in ordered if member not in self._around]
        self._starts = [member.offset for member in self._members]
        self._taken = {member: (0, member.offset) for member in ordered}  # the CRC so far, and where it ends

    def seek(self, offset: int) -> int:
        self.at = offset
        return offset

    def readinto(self, buffer: memoryview) -> int:
        self.file.seek(self.at)
        got = self.file.readinto(buffer)  # type: ignore[attr-defined]
        at = bisect_right(self._starts, self.at) - 1
        for member in (*self._members[max(at, 0) : at + 1], *self._around):
            if member.offset <= self.at < member.end:
                self._pass(member, self.at, buffer[:got])
        self.at += got
        return got

    def wrong(self) -> list[Member]:
        """The members whose content does not match their checksum."""
        for member in self._taken:
            self._catch_up(member, member.end)
        return [member for member, (crc, _) in self._taken.items() if crc != member.crc]

    def _pass(self, member: Member, start: int, content: memoryview) -> None:
        self._catch_up(member, start)
        crc, end = self._taken[member]
        new = content[end - start : member.end - start]
        if len(new):
            self._taken[member] = zlib.crc32(new, crc), end + len(new)

    def _catch_up(self, member: Member, end: int) -> None:
        crc, at = self._taken[member]
        self.file.seek(at)
        while at < end:
            block = self.file.read(min(_BLOCK, end - at))
            if not block:
                return  # the file became shorter after it was opened; its checksum will differ
            crc, at = zlib.crc32(block, crc), at + len(block)
            self._taken[member] = crc, at
