"""Documents of `.txt`, `.txt.xz` and `.txt.gz` files, read in blocks: what is in memory does not grow with the file."""

from __future__ import annotations

import gzip
import lzma
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

Documents = Literal["marked", "lines", "files"]
SUFFIXES = (".txt", ".txt.xz", ".txt.gz")
END_OF_TEXT = b"<|endoftext|>"

_BLOCK = 2**19  # bytes of text: some tens of milliseconds of work
# The search is fast, since it begins with text and not with the condition that a line begins there.
_LINE = re.compile(rb"<\|endoftext\|>(?<![^\n]<\|endoftext\|>)\r?(\n|\Z)")
# A character that is not white space, then a space or a line break. Looked behind for: the white space of Unicode that has
# several bytes in UTF-8; the first class has none that has one.
_CUT = re.compile(
    rb"[!-~\x80-\xff](?<!\xc2[\x85\xa0])(?<!\xe1\x9a\x80)(?<!\xe2\x80[\x80-\x8a\xa8\xa9\xaf])(?<!\xe2\x81\x9f)(?<!\xe3\x80\x80)"
    rb"(?=[ \n])"
)
_NEAR = 2**12  # bytes at the end of a block in which a place for a cut is looked for


@dataclass(frozen=True)
class Block:
    """Text that ends with a document, or at a cut within one, which continues in the next block."""

    path: Path
    data: bytes
    offset: int  # of its first byte, in the text of the file
    cut: bool
    read: int  # bytes of the file, compressed as it is


def blocks(path: Path, documents: Documents, *, cuts: bool) -> Iterator[Block]:
    """The text of a file. cuts: also end a block within a document that is longer than a block.

    A cut lies before the white space after a word, where GPT-2's rule for words always begins a new one.
    """
    with _opened(path) as (text, file):
        buffer, offset, looked = bytearray(), 0, 0
        while piece := _read(text, path, offset + len(buffer)):
            buffer += piece
            at = _last_end(buffer, documents, looked)
            cut = not at and cuts
            if cut:
                at = _last_cut(buffer)
            if at:
                yield Block(path, bytes(buffer[:at]), offset, cut, file.tell())
                del buffer[:at]
                offset += at
            looked = max(0, len(buffer) - len(END_OF_TEXT) - 1)  # the line of a mark may be there in part
        if buffer or documents == "files":
            yield Block(path, bytes(buffer), offset, False, file.tell())


def documents_of(block: Block, documents: Documents) -> list[bytes]:
    r"""The documents of a block, the last one in part if the block ends at a cut.

    A mark takes the line break before it along. Lines keep theirs.

    >>> documents_of(Block(Path(), b"a\nb\n<|endoftext|>\nc\n", 0, False, 0), "marked")
    [b'a\nb', b'c\n']
    """
    data = block.data
    if block.cut or documents == "files":
        return [data]
    if documents == "lines":
        *lines, rest = data.split(b"\n")
        return [line + b"\n" for line in lines] + ([rest] if rest else [])
    found, rest = marked(data)
    return [*found, rest] if rest else found


def marked(text: bytes) -> tuple[list[bytes], bytes]:
    """The documents that a mark ends, each without it, and what follows the last mark."""
    found, start = [], 0
    for mark in _LINE.finditer(text):
        found.append(text[start : mark.start()].removesuffix(b"\n").removesuffix(b"\r"))
        start = mark.end()
    return found, text[start:]


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The text of a file and the file itself, whose position says how much of it was read."""
    with open(path, "rb") as file:
        if path.suffix == ".xz":
            with lzma.open(file) as text:
                yield text, file
        elif path.suffix == ".gz":
            with gzip.open(file) as text:
                yield text, file  # pyright: ignore[reportReturnType]
        else:
            yield file, file


def _read(text: IO[bytes], path: Path, position: int) -> bytes:
    try:
        return text.read(_BLOCK)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as problem:
        raise ValueError(
            f"{path}: damaged after {position:,} bytes of text ({problem}): replace it with a whole copy"
        ) from problem


def _last_end(buffer: bytearray, documents: Documents, looked: int) -> int:
    """Where the last document that ends in the buffer ends; 0 if none does. looked: there is none before it."""
    if documents == "files":
        return 0
    if documents == "lines":
        return buffer.rfind(b"\n", looked) + 1
    at = len(buffer)
    while (at := buffer.rfind(END_OF_TEXT, looked, at)) >= 0:
        mark = _LINE.match(buffer, at)
        if mark and mark[1]:  # without its line break, the line may continue
            return mark.end()
    return 0


def _last_cut(buffer: bytearray) -> int:
    ends = [found.end() for found in _CUT.finditer(buffer, max(0, len(buffer) - _NEAR))]
    return ends[-1] if ends else 0
