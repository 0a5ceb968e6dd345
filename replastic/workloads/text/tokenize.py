"""Corpora of text to token files: in blocks, by several threads, in the order of the text."""

from __future__ import annotations

import logging
import re
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from ...listing import some
from ...options import OptionError
from ...record.files import explained
from ...record.provenance import cores
from ..base import root_of
from .documents import SUFFIXES, Block, Documents, blocks, documents_of
from .tokens import TokenFile, write_token_file
from .vocabularies import END, Tokenizer, load_tokenizer, one_thread_a_call

log = logging.getLogger("replastic")

Tell = Callable[[int, int, int], None]  # bytes of files that were read, of how many, bytes of text that were tokenized

_AHEAD = 2  # blocks a thread that are read before they are needed
_PIECE = 2**20  # tokens that are copied at once


def tokenize(
    corpora: Sequence[str | Path],
    out: str | Path,
    *,
    tokenizer: str,
    documents: Documents = "marked",
    end: str = END,
    vocabulary: str | Path | None = None,
    into: str | None = None,
    sources: Sequence[str | Path] = (),
    hold_out: float = 0.0,
    seed: int = 0,
    jobs: int | None = None,
    overwrite: bool = False,
    tell: Tell | None = None,
) -> list[TokenFile]:
    """Write the tokens of corpora to token files, each whole or not at all. They do not depend on the number of threads.

    corpora: .txt, .txt.xz or .txt.gz files, in UTF-8. Each becomes NAME.bin, or several files with `sources` and `hold_out`.
    tokenizer: gpt2, bytes, or the .json file of the library tokenizers.
    documents: what ends a document: a line <|endoftext|> ("marked"), each of the "lines", or each of the "files".
    end: the end-of-text token, which follows each document; "" for none.
    vocabulary: the folder of GPT-2's files; by default they are looked for next to the corpora and with the data sets.
    into: a name for one token file of all corpora.
    sources: for each corpus a file with a line for each document. Each source becomes a token file, NAME.SOURCE.bin.
    hold_out: share of the documents, drawn by `seed`, that become NAME.valid.bin; the others become NAME.train.bin.
    jobs: the number of threads; by default one a core.
    overwrite: replace token files that exist.
    tell: called with the progress.
    """
    paths, out = _checked_corpora(corpora), Path(out)
    if not 0 <= hold_out < 1:
        raise OptionError(f"--hold-out {hold_out}: pass a share of the documents, for example 0.01")
    for option, number in {"seed": seed, "jobs": jobs or 0}.items():
        if number < 0:
            raise OptionError(f"--{option} {number}: pass 0 or more")
    parts = _parts(paths, into, sources)
    splits = ("train", "valid") if hold_out else ("",)
    targets = [out / f"{'.'.join(filter(None, (part.name, split)))}.bin" for part in parts for split in splits]
    _check_targets(out, targets, overwrite)
    uses = load_tokenizer(tokenizer, end, _folders(vocabulary, paths))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out) as file:  # without a name: a killed command leaves nothing
        spool = _Spool(file)
        with one_thread_a_call():
            firsts = _fill(spool, paths, uses, documents, jobs or cores(), tell)
        sizes = spool.sizes()
        _warn_of_changes(spool, uses, sizes)
        chosen = [
            numbers for part in parts for numbers in _split(part, part.numbers(paths, firsts, sources), hold_out, seed)
        ]
        for target, numbers in zip(targets, chosen, strict=True):
            if not sizes.tokens[numbers].sum():
                raise ValueError(f"{target} would be empty: its {len(numbers):,} documents have no tokens")
        return [_written(target, spool, sizes, numbers, uses) for target, numbers in zip(targets, chosen, strict=True)]


# before the first write


def _checked_corpora(corpora: Sequence[str | Path]) -> list[Path]:
    if not corpora:
        raise OptionError("no corpus: pass .txt, .txt.xz or .txt.gz files")
    for path in map(Path, corpora):
        if not path.name.endswith(SUFFIXES):
            raise OptionError(f"{path}: a corpus is a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file, in UTF-8")
        _check_file(path)
    return [*map(Path, corpora)]


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is {'not a file' if path.exists() else 'not there'}: pass the path of a file")


def _folders(vocabulary: str | Path | None, corpora: Sequence[Path]) -> list[Path]:
    """Where GPT-2's files are looked for."""
    if vocabulary:
        return [Path(vocabulary)]
    root = root_of(None)
    return [*(path.parent for path in corpora), *(root / name for name in ("gpt2", "tokenizer", "."))]


@dataclass
class _Part:
    """A token file before it is split: the documents of some corpora, or those of one source among them."""

    name: str
    corpora: list[int]
    of_source: list[np.ndarray] = field(default_factory=list)  # for each corpus, which documents are of the source

    def numbers(self, paths: Sequence[Path], firsts: Sequence[int], sources: Sequence[str | Path]) -> np.ndarray:
        """The numbers of its documents. firsts: those of the first document of each corpus, and of all documents."""
        numbers = []
        for place, corpus in enumerate(self.corpora):
            documents = np.arange(firsts[corpus], firsts[corpus + 1])
            if self.of_source:
                mine = self.of_source[place]
                if len(mine) != len(documents):
                    raise ValueError(
                        f"{sources[corpus]} has {len(mine):,} lines, but {paths[corpus]} has {len(documents):,} documents: "
                        "pass a file with a line for each document, and what ends a document, with --documents"
                    )
                documents = documents[mine]
            numbers.append(documents)
        return np.concatenate(numbers)


def _parts(paths: Sequence[Path], into: str | None, sources: Sequence[str | Path]) -> list[_Part]:
    if into is not None and not _is_name(into):
        raise OptionError(f"--into {into}: pass a name for a file, without its folder and ending")
    if sources and len(sources) != len(paths):
        raise OptionError(f"{len(sources)} files of sources, {len(paths)} corpora: pass --sources for each, in their order")
    stems = [next(path.name.removesuffix(end) for end in SUFFIXES if path.name.endswith(end)) for path in paths]
    groups = [_Part(into, [*range(len(paths))])] if into else [_Part(stem, [at]) for at, stem in enumerate(stems)]
    if not sources:
        return groups
    named = [np.array(_read_sources(Path(path))) for path in sources]
    return [
        _Part(f"{group.name}.{source}", group.corpora, [named[corpus] == source for corpus in group.corpora])
        for group in groups
        for source in sorted({str(name) for corpus in group.corpora for name in np.unique(named[corpus])})
    ]


def _read_sources(path: Path) -> list[str]:
    _check_file(path)
    names: list[str] = []
    for block in blocks(path, "lines", cuts=False):
        names += [line.decode(errors="replace").rstrip("\r\n") for line in documents_of(block, "lines")]
    if not names:
        raise ValueError(f"{path} is empty: pass a file with a line for each document")
    for number, name in enumerate(names, 1):
        if not _is_name(name):
            raise ValueError(
                f"{path}, line {number}: {name!r} becomes part of a file's name: use letters, digits, _, - and ."
            )
    return names


def _is_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", name) is not None


def _check_targets(out: Path, targets: Sequence[Path], overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is not a folder: pass a folder with -o")
    twice = [target.name for target, times in Counter(targets).items() if times > 1]
    if twice:
        raise OptionError(f"{some(twice)} would be written twice: rename a corpus, or join them with --into NAME")
    there = [str(path) for target in targets for path in (target, target.with_suffix(".json")) if path.exists()]
    if there and not overwrite:
        raise FileExistsError(f"{some(there)} exist already: pass another folder, or --overwrite")


# tokens


class _Encoded(NamedTuple):
    tokens: np.ndarray
    counts: np.ndarray  # tokens of each document
    bytes: np.ndarray  # of text of each document
    spelt: int  # bytes of text that the tokens stand for
    cut: bool  # whether the last document continues


def _encoded(block: Block, documents: Documents, tokenizer: Tokenizer, lengths: np.ndarray) -> _Encoded:
    found = documents_of(block, documents)
    try:
        texts = [text.decode() for text in found]
    except UnicodeDecodeError:
        raise _not_utf8(block) from None
    tokens, counts = tokenizer.encode(texts)
    spelt = int(lengths[tokens].sum())
    if tokenizer.end is not None:
        whole = len(found) - block.cut
        tokens = np.insert(tokens, np.cumsum(counts)[:whole], tokenizer.end)
        counts[:whole] += 1
    return _Encoded(tokens, counts, np.array([*map(len, found)], np.int64), spelt, block.cut)


def _not_utf8(block: Block) -> ValueError:
    try:
        block.data.decode()
    except UnicodeDecodeError as problem:
        place, byte = block.offset + problem.start, block.data[problem.start]
        return ValueError(
            f"{block.path} is not UTF-8: byte {place:,} of its text, 0x{byte:02x} ({problem.reason}): convert it to UTF-8"
        )
    raise AssertionError("the documents of a block are parts of it between characters")


class _Sizes(NamedTuple):
    tokens: np.ndarray  # of each document
    bytes: np.ndarray
    ends: np.ndarray  # the place after its last token


class _Spool:
    """All tokens in a file, and the sizes of all documents in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.spelt = file, 0
        self._counts: list[np.ndarray] = []
        self._bytes: list[np.ndarray] = []
        self._cut = False

    def add(self, new: _Encoded) -> int:
        """Append the tokens of a block; returns the number of documents that begin in it."""
        with explained("no token file was written"):
            self.file.write(new.tokens.astype("<u2", copy=False).data)
        begun = int(self._cut)  # documents that began in another block
        if begun:
            self._counts[-1][-1] += new.counts[0]
            self._bytes[-1][-1] += new.bytes[0]
        if len(new.counts) > begun:
            self._counts.append(new.counts[begun:])
            self._bytes.append(new.bytes[begun:])
        self.spelt += new.spelt
        self._cut = new.cut
        return len(new.counts) - begun

    def sizes(self) -> _Sizes:
        counts = np.concatenate(self._counts)
        return _Sizes(counts, np.concatenate(self._bytes), np.cumsum(counts))

    def read(self, begin: int, end: int) -> Iterator[np.ndarray]:
        for at in range(begin, end, _PIECE):
            self.file.seek(2 * at)
            yield np.frombuffer(self.file.read(2 * (min(at + _PIECE, end) - at)), "<u2")


def _fill(
    spool: _Spool, paths: Sequence[Path], tokenizer: Tokenizer, documents: Documents, jobs: int, tell: Tell | None
) -> list[int]:
    """Tokenize all corpora into the spool; returns the number of the first document of each, and of all documents."""
    lengths = np.array(tokenizer.lengths, np.int64)
    before = [0, *accumulate(path.stat().st_size for path in paths)]
    counts, text = [0] * len(paths), 0

    def encoded(block: Block) -> _Encoded:
        return _encoded(block, documents, tokenizer, lengths)

    every = ((number, block) for number, path in enumerate(paths) for block in blocks(path, documents, cuts=tokenizer.cuts))
    with ThreadPoolExecutor(jobs) as pool:
        for number, block, made in _in_order(pool, encoded, every, _AHEAD * jobs):
            counts[number] += spool.add(made)
            text += len(block.data)
            if tell is not None:
                tell(before[number] + block.read, before[-1], text)
    empty = [str(path) for path, count in zip(paths, counts, strict=True) if not count]
    if empty:
        raise ValueError(f"{some(empty)} has no documents, because it is empty: leave it out")
    return [0, *accumulate(counts)]


def _in_order(
    pool: ThreadPoolExecutor, call: Callable[[Block], _Encoded], work: Iterable[tuple[int, Block]], ahead: int
) -> Iterator[tuple[int, Block, _Encoded]]:
    """What calls in parallel return, in the order of the work. The tokenizers release Python's lock."""
    waiting: deque[tuple[int, Block, Future[_Encoded]]] = deque()
    for number, block in work:
        waiting.append((number, block, pool.submit(call, block)))
        if len(waiting) > ahead:
            number, block, made = waiting.popleft()
            yield number, block, made.result()
    while waiting:
        number, block, made = waiting.popleft()
        yield number, block, made.result()


# token files


def _warn_of_changes(spool: _Spool, tokenizer: Tokenizer, sizes: _Sizes) -> None:
    text = int(sizes.bytes.sum())
    if spool.spelt != text:
        log.warning(
            f"{tokenizer.name} changes the text: its tokens stand for {spool.spelt:,} bytes, the documents have {text:,}. "
            "Bits a byte will be those of the changed text"
        )


def _split(part: _Part, numbers: np.ndarray, hold_out: float, seed: int) -> list[np.ndarray]:
    if not hold_out:
        return [numbers]
    count = round(hold_out * len(numbers))
    if not 0 < count < len(numbers):
        raise ValueError(
            f"--hold-out {hold_out} of the {len(numbers):,} documents of {part.name} is {count}, but both parts need one or "
            "more: pass another share, write lines <|endoftext|> between documents, or pass --documents lines if each is one"
        )
    order = np.argsort(np.random.PCG64(seed).random_raw(len(numbers)), kind="stable")
    return [numbers[np.sort(order[count:])], numbers[np.sort(order[:count])]]


def _written(target: Path, spool: _Spool, sizes: _Sizes, numbers: np.ndarray, tokenizer: Tokenizer) -> TokenFile:
    def chunks() -> Iterator[np.ndarray]:
        """Documents that follow each other are read together."""
        for together in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
            first, last = together[0], together[-1]
            yield from spool.read(int(sizes.ends[first] - sizes.tokens[first]), int(sizes.ends[last]))

    return write_token_file(
        target,
        chunks(),
        tokenizer=tokenizer.name,
        tokenizer_sha256=tokenizer.sha256,
        vocabulary=tokenizer.vocabulary,
        end=tokenizer.end,
        documents=len(numbers),
        bytes=int(sizes.bytes[numbers].sum()),
        lengths=tokenizer.lengths,
    )
