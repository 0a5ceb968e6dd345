"""Token files, plain text as bytes, and what is read from them: one flat tensor on the device.

A token file is `NAME.bin`, flat little-endian uint16 as nanoGPT writes it, with `NAME.json` next to it. Plain text (`.txt`,
`.txt.xz`, `.txt.gz`) is read with a vocabulary of 256 bytes and the end-of-text: documents end with a line `<|endoftext|>`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...options import OptionError, check_type
from ...record.files import part_of, sync_folder, write_synced
from .documents import SUFFIXES, marked

FORMAT = "replastic tokens 1"
MOST = 2**16  # entries of a vocabulary: tokens are uint16
_OPENED: Mapping[str, Callable[[bytes], bytes]] = {"": bytes, ".xz": lzma.decompress, ".gz": gzip.decompress}
_AT_ONCE = 2**24  # tokens on their way from a file to the device
_AGAIN = "write the tokens again with `replastic tokenize`"


@dataclass(frozen=True)
class TokenFile:
    """What `NAME.json` says of the tokens in `path`, or what was found in a plain text.

    end: the token of the end of a text, None if there is none. bytes: of the text, in UTF-8, ends not counted.
    lengths: the bytes of each entry of the vocabulary; 0 of the end.
    """

    path: Path
    tokenizer: str
    tokenizer_sha256: str
    vocabulary: int
    end: int | None
    tokens: int
    documents: int
    bytes: int
    sha256: str  # of the file at `path`
    lengths: tuple[int, ...]

    @property
    def is_text(self) -> bool:
        """Whether it is a plain text."""
        return self.path.suffix != ".bin"


def read_token_file(path: str | Path) -> TokenFile:
    """What there is in a token file, `NAME.bin`, or in a plain text; OptionError if it cannot be meant.

    A token file's hash is compared when its tokens are read (`tokens_of`).
    """
    path = Path(path)
    if path.suffix == ".bin":
        return _from_json(path)
    if not path.name.endswith(SUFFIXES):
        raise OptionError(f"{path} is neither a token file (.bin) nor a text ({', '.join(SUFFIXES)}): name one of these")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    return _text_file(path, path.stat().st_size, path.stat().st_mtime_ns)


def write_token_file(
    path: str | Path,
    chunks: Iterable[np.ndarray],
    *,
    tokenizer: str,
    tokenizer_sha256: str,
    vocabulary: int,
    end: int | None,
    documents: int | Callable[[], int],
    bytes: int | Callable[[], int],
    lengths: Sequence[int],
) -> TokenFile:
    """Write tokens, uint16, to `path` and what they are to the JSON next to it: both, or none of them.

    documents, bytes: numbers, or functions that are called after the last chunk.
    """
    path, hashed, count = Path(path), hashlib.sha256(), 0
    sidecar = path.with_suffix(".json")
    if path.suffix != ".bin":
        raise OptionError(f"{path}: name a token file NAME.bin")
    parts = part_of(path), part_of(sidecar)

    def pieces() -> Iterator[memoryview]:
        nonlocal count
        for chunk in chunks:
            if chunk.dtype != np.uint16:
                raise TypeError(f"tokens are {chunk.dtype}: write uint16, as in tokens.astype(np.uint16)")
            if len(chunk) and int(chunk.max()) >= vocabulary:
                raise OptionError(f"{path}: the token {int(chunk.max())} is not one of a vocabulary of {vocabulary}")
            piece = np.ascontiguousarray(chunk, "<u2").data.cast("B")
            hashed.update(piece)
            count += len(chunk)
            yield piece

    try:
        write_synced(parts[0], pieces())
        of_text = documents() if callable(documents) else documents, bytes() if callable(bytes) else bytes
        digest, lengths = hashed.hexdigest(), tuple(lengths)
        made = TokenFile(path, tokenizer, tokenizer_sha256, vocabulary, end, count, *of_text, digest, lengths)
        said = {"format": FORMAT, **{name: value for name, value in asdict(made).items() if name != "path"}}
        _check(said, path, 2 * count)
        write_synced(parts[1], [json.dumps(said).encode()])
        sidecar.unlink(missing_ok=True)  # so that no JSON ever lies next to the tokens of another
        parts[0].replace(path)
        parts[1].replace(sidecar)
        sync_folder(path.parent)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return made


def _from_json(path: Path) -> TokenFile:
    sidecar = path.with_suffix(".json")
    for file in (path, sidecar):
        if not file.is_file():
            more = "" if file is path else ": it says what the tokens are, and `replastic tokenize` writes both"
            raise FileNotFoundError(f"there is no file {file}{more}")
    try:
        said = json.loads(sidecar.read_bytes())
    except (ValueError, RecursionError) as problem:
        raise OptionError(
            f"{sidecar} is not JSON ({problem}): write the tokens again with `replastic tokenize`"
        ) from problem
    _check(said, path, path.stat().st_size)
    said = {key: said[key] for key in _KEYS if key != "format"}
    return TokenFile(path, **{**said, "lengths": tuple(said["lengths"])})


_KEYS = {
    "format": str, "tokenizer": str, "tokenizer_sha256": str, "vocabulary": int, "end": int | None, "tokens": int,
    "documents": int, "bytes": int, "sha256": str, "lengths": list,
}  # fmt: skip


def _check(said: Any, path: Path, size: int) -> None:
    """Raise unless a JSON describes a token file of so many bytes."""
    where = path.with_suffix(".json")
    if not isinstance(said, Mapping) or said.get("format") != FORMAT:
        found = said.get("format") if isinstance(said, Mapping) else type(said).__name__
        raise OptionError(f'{where} has the format {found!r}: "{FORMAT}" is expected, which `replastic tokenize` writes')
    for key, kind in _KEYS.items():
        if key not in said:
            raise OptionError(f"{where} has no {key!r}: {_AGAIN}")
        if key != "lengths":  # which are too many to be shown
            check_type(said[key], kind, f"{where}: {key}")
    vocabulary, end, lengths = said["vocabulary"], said["end"], said["lengths"]
    if not 1 <= vocabulary <= MOST:
        raise OptionError(f"{where}: vocabulary = {vocabulary:,}, and tokens of 16 bits have 1 to {MOST:,}")
    if end is not None and not 0 <= end < vocabulary:
        raise OptionError(f"{where}: end = {end} is not one of a vocabulary of {vocabulary:,}")
    whole = isinstance(lengths, list | tuple) and all(type(length) is int and length >= 0 for length in lengths)
    if not whole or len(lengths) != vocabulary or (end is not None and lengths[end]):
        raise OptionError(
            f"{where}: lengths are not {vocabulary:,} whole numbers: write the bytes of each entry of the vocabulary, 0 of "
            "the end of a text"
        )
    if size % 2:
        raise OptionError(f"{path} has {size:,} bytes, an odd number, and each token has two: copy or write the file again")
    if size != 2 * said["tokens"]:
        raise OptionError(
            f"{path} has {size // 2:,} tokens, and {where.name} says {said['tokens']:,}: copy or write both again"
        )


def tokens_of(file: TokenFile) -> Iterator[np.ndarray]:
    """All tokens, uint16, a piece at a time; after the last one, OptionError if the file's hash is not the known one."""
    if file.is_text:
        packed = file.path.read_bytes()
        if hashlib.sha256(packed).hexdigest() != file.sha256:
            raise OptionError(
                f"{file.path} has changed since the experiment was read: run the command again, with a new --out"
            )
        tokens, _, _ = byte_tokens(_unpacked(file.path, packed))
        yield from (tokens[at : at + _AT_ONCE] for at in range(0, len(tokens), _AT_ONCE))
        return
    digest, at = hashlib.sha256(), 0
    with open(file.path, "rb") as opened:
        while read := opened.read(2 * _AT_ONCE):
            digest.update(read)
            piece = np.frombuffer(read, "<u2", count=len(read) // 2)
            if len(piece) and int(piece.max()) >= file.vocabulary:
                place = int((piece >= file.vocabulary).argmax())
                raise OptionError(
                    f"{file.path} has the token {piece[place]} at {at + place:,}, and its vocabulary "
                    f"has {file.vocabulary:,} entries: {_AGAIN}"
                )
            at += len(piece)
            yield piece
    if digest.hexdigest() != file.sha256:
        raise OptionError(
            f"{file.path} has the SHA-256 {digest.hexdigest()[:16]}..., and {file.path.with_suffix('.json').name} says "
            f"{file.sha256[:16]}...: the file has changed or is damaged; copy or write both again"
        )


@lru_cache(maxsize=64)
def _text_file(path: Path, size: int, changed: int) -> TokenFile:
    """What there is in a plain text. size, changed: of the file, so that another version of it is read again."""
    packed = path.read_bytes()
    tokens, documents, length = byte_tokens(_unpacked(path, packed))
    digest = hashlib.sha256(packed).hexdigest()
    return TokenFile(path, "bytes", "", 257, 256, len(tokens), documents, length, digest, (*[1] * 256, 0))


def _unpacked(path: Path, packed: bytes) -> bytes:
    try:
        return _OPENED["" if path.suffix == ".txt" else path.suffix](packed)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as problem:
        raise OptionError(f"{path} cannot be unpacked ({problem}): copy or pack the file again") from problem


def byte_tokens(text: bytes) -> tuple[np.ndarray, int, int]:
    r"""A text as bytes, uint16, with 256 for the end of each document; the number of documents, and of bytes of text.

    The line that ends a document, and the line break before it, are not part of the text.

    >>> byte_tokens(b"ab\n<|endoftext|>\nc\n")
    (array([ 97,  98, 256,  99,  10], dtype=uint16), 2, 4)
    """
    ended, rest = marked(text)
    end = np.array([256], np.uint16)
    pieces = [piece for document in ended for piece in (_values(document), end)]
    return np.concatenate([*pieces, _values(rest)]), len(ended) + bool(rest), sum(map(len, ended)) + len(rest)


def _values(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8).astype(np.uint16)


@dataclass(frozen=True, eq=False)
class TokenData:
    """All corpora and sets of an experiment in one tensor.

    tokens: int16 (tokens,), the bit patterns of uint16, which few operations accept; read them as in `windows`.
    train, test: where each corpus and each set lies in it.
    lengths: int64 (vocabulary,), the bytes of each entry.
    """

    tokens: Tensor
    train: Mapping[str, range]
    test: Mapping[str, range]
    tokenizer: str
    vocabulary: int
    end: int | None
    lengths: Tensor

    def windows(self, starts: Tensor, size: int) -> Tensor:
        """The `size` tokens from each start on, int64 (starts, size)."""
        within = torch.arange(size, device=self.tokens.device)
        return self.tokens[starts[:, None] + within].to(torch.int64) & 0xFFFF

    def bytes_of(self, where: range) -> int:
        """The bytes of the text in a part of the tokens."""
        pieces = self.tokens[where.start : where.stop].split(_AT_ONCE)
        return sum(int(self.lengths[piece.to(torch.int64) & 0xFFFF].sum()) for piece in pieces)


def token_data(
    train: Mapping[str, Sequence[TokenFile]], test: Mapping[str, Sequence[TokenFile]], device: torch.device
) -> TokenData:
    """Read corpora and sets by name, each one file or several in a row, onto the device."""
    files = [file for of in (train, test) for several in of.values() for file in several]
    first = files[0]
    for file in files:
        if (file.tokenizer_sha256, file.vocabulary, file.end) != (first.tokenizer_sha256, first.vocabulary, first.end):
            raise OptionError(
                f"{first.path} was made with the tokeniser {_tokenizer(first)}, and {file.path} with {_tokenizer(file)}: "
                "use one for all files, as in `replastic tokenize ... --tokenizer gpt2`"
            )
    tokens = torch.empty(sum(file.tokens for file in files), dtype=torch.int16, device=device)
    found, at = (dict[str, range](), dict[str, range]()), 0
    for of, where in zip((train, test), found, strict=True):
        for name, several in of.items():
            begin = at
            for piece in (piece for file in several for piece in tokens_of(file)):
                tokens[at : at + len(piece)].copy_(torch.from_numpy(piece.astype(np.uint16).view(np.int16)))
                at += len(piece)
            where[name] = range(begin, at)
    lengths = torch.tensor(first.lengths, device=device)
    return TokenData(tokens, *found, first.tokenizer, first.vocabulary, first.end, lengths)


def _tokenizer(file: TokenFile) -> str:
    digest = f", SHA-256 {file.tokenizer_sha256[:12]}..." if file.tokenizer_sha256 else ""
    return f"{file.tokenizer!r} ({file.vocabulary:,} entries{digest})"
