"""Tokenizers: bytes, GPT-2's from its two published files, and files of the library `tokenizers`."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...extras import needed
from ...listing import some
from ...options import OptionError
from .documents import END_OF_TEXT
from .tokens import MOST

END = END_OF_TEXT.decode()
GPT2_FILES = {  # SHA-256
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}
# As tiktoken writes the rule for words of GPT-2's release.
_GPT2_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

Encode = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Tokenizer:
    """encode: documents as one array of uint16, and the number of tokens of each document. Special tokens are text there.

    lengths: the bytes of each entry of the vocabulary, 0 for end-of-text. end: the number of end-of-text, if documents end
    with it. cuts: whether a document may be cut before the white space after a word, without a change of its tokens.
    """

    name: str
    sha256: str  # of its file; "" for bytes
    end: int | None
    lengths: list[int]
    cuts: bool
    encode: Encode

    @property
    def vocabulary(self) -> int:
        return len(self.lengths)


def load_tokenizer(name: str, end: str = END, folders: Sequence[Path] = ()) -> Tokenizer:
    """The tokenizer `gpt2`, `bytes`, or that of a file. folders: where the files of GPT-2 are looked for.

    end: the end-of-text token; "" for none.
    """
    if name in ("gpt2", "bytes") and end not in (END, ""):
        raise OptionError(f"--end {end}: the end-of-text token of {name} is {END}; leave --end out, or pass '' for none")
    if name == "gpt2":
        return _gpt2(bool(end), folders)
    if name == "bytes":
        return Tokenizer("bytes", "", 256 if end else None, [1] * 256 + [0], True, _encode_bytes)
    if not name.endswith(".json"):
        raise OptionError(f"--tokenizer {name}: pass gpt2, bytes, or the .json file of the library tokenizers")
    return _from_file(Path(name), end)


def _encode_bytes(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), np.uint8).astype(np.uint16), np.array([*map(len, encoded)], np.int64)


def _gpt2(ends: bool, folders: Sequence[Path]) -> Tokenizer:
    tiktoken = needed("tiktoken", "text", "the tokenizer gpt2")
    path = _gpt2_files(folders)["encoder.json"]  # the numbers of its entries are the ranks of the merges in vocab.bpe
    written = _byte_of_character()
    ranks = {
        bytes(map(written.__getitem__, entry)): number
        for entry, number in json.loads(path.read_bytes()).items()
        if entry != END
    }
    end = len(ranks)
    encoding = tiktoken.Encoding("gpt2", pat_str=_GPT2_WORDS, mergeable_ranks=ranks, special_tokens={END: end})

    def encode(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if any(END in text for text in texts):
            encoded = [np.array(encoding.encode_ordinary(text), np.uint16) for text in texts]
            return np.concatenate(encoded), np.array([*map(len, encoded)], np.int64)
        # One call for all documents: special tokens are found first, and each part between them is encoded alone.
        tokens = encoding.encode_to_numpy("".join([text + END for text in texts]), allowed_special={END}).astype(np.uint16)
        is_end = tokens == end
        return tokens[~is_end], np.diff(np.flatnonzero(is_end), prepend=-1) - 1

    lengths = [len(entry) for entry, _ in sorted(ranks.items(), key=lambda item: item[1])]
    return Tokenizer("gpt2", GPT2_FILES[path.name], end if ends else None, [*lengths, 0], True, encode)


def _gpt2_files(folders: Sequence[Path]) -> dict[str, Path]:
    """Both files, from the first folder that has one of them."""
    for folder in folders:
        files = {name: folder / name for name in GPT2_FILES}
        missing = [name for name, file in files.items() if not file.is_file()]
        if len(missing) == len(files):
            continue
        if missing:
            raise FileNotFoundError(f"{folder} lacks {missing[0]}: {_published()}")
        for name, file in files.items():
            found = hashlib.sha256(file.read_bytes()).hexdigest()
            if found != GPT2_FILES[name]:
                raise ValueError(f"{file} is another file, with SHA-256 {found}: {_published()}")
        return files
    looked = ", ".join(map(str, dict.fromkeys(folders)))
    raise FileNotFoundError(f"the files of the tokenizer gpt2 are not in {looked}: {_published()}")


def _published() -> str:
    files = " and ".join(f"{name} (SHA-256 {sha256})" for name, sha256 in GPT2_FILES.items())
    return f"it needs {files}, published by OpenAI with GPT-2; put both into one folder, and pass it with --vocabulary"


def _byte_of_character() -> dict[str, int]:
    """How GPT-2's files write bytes: those that are not printed as characters from 256 on."""
    shown = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + number): byte for number, byte in enumerate(hidden)}


def _from_file(path: Path, end: str) -> Tokenizer:
    tokenizers = needed("tokenizers", "text", f"the tokenizer {path.name}")
    content = path.read_bytes()
    try:
        library, described = tokenizers.Tokenizer.from_buffer(content), json.loads(content)
    except Exception as problem:  # the library raises nothing more specific
        raise ValueError(f"{path} is not a file of the library tokenizers ({problem})") from problem
    if described["model"].get("dropout"):
        raise ValueError(f'{path} drops merges at random: write "dropout": null in it, or the tokens differ from run to run')
    size = max(library.get_vocab().values(), default=-1) + 1
    if size > MOST:
        raise ValueError(f"{path} has {size:,} entries, but token files hold numbers of 16 bits: at most {MOST:,} entries")
    number = library.token_to_id(end) if end else None
    if end and number is None:
        special = [token.content for token in library.get_added_tokens_decoder().values() if token.special]
        raise OptionError(
            f"{path} has no token {end}: pass its end-of-text token with --end (special tokens: {some(special) or 'none'}), "
            "or '' for none"
        )
    if end:
        library.add_special_tokens([end])  # in case the file does not call it special; its number stays
    library.encode_special_tokens = True  # as text
    library.no_truncation()
    library.no_padding()

    def encode(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        encoded = [np.array(one.ids, np.uint16) for one in library.encode_batch_fast([*texts], add_special_tokens=False)]
        return np.concatenate(encoded), np.array([*map(len, encoded)], np.int64)

    sha256 = hashlib.sha256(content).hexdigest()
    return Tokenizer(path.name, sha256, number, _lengths(library, described, size), _has_words_of_gpt2(described), encode)


def _has_words_of_gpt2(described: dict[str, Any]) -> bool:
    words = described["pre_tokenizer"] or {}
    return (
        described["normalizer"] is None
        and words.get("type") == "ByteLevel"
        and words.get("use_regex", True)
        and not words["add_prefix_space"]
        and all(token["special"] for token in described["added_tokens"])
    )


def _lengths(library: Any, described: dict[str, Any], size: int) -> list[int]:
    """The bytes of text of each entry: in a byte-level vocabulary its characters, else what it adds to decoded text."""
    added = library.get_added_tokens_decoder()
    decoder = described["decoder"] or {}
    kinds = {one["type"] for one in decoder.get("decoders", [decoder]) if one}
    byte = re.compile("<0x[0-9A-F]{2}>" if "ByteFallback" in kinds else "(?!)")
    lengths = [0] * size
    for entry, number in library.get_vocab().items():
        if number in added:
            lengths[number] = 0 if added[number].special else len(entry.encode())
        elif "ByteLevel" in kinds or byte.fullmatch(entry):
            lengths[number] = len(entry) if "ByteLevel" in kinds else 1
        else:
            once, twice = library.decode_batch([[number], [number, number]], skip_special_tokens=False)
            lengths[number] = len(twice.encode()) - len(once.encode())
    return lengths


@contextmanager
def one_thread_a_call() -> Iterator[None]:
    """Keep the library `tokenizers` from starting threads of its own: documents are shared among threads already."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
