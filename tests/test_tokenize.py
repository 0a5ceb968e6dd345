"""Token files made of text: the same tokens whatever the number of threads, and nothing written if anything is wrong."""

import gzip
import lzma
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replastic.cli import main
from replastic.options import OptionError
from replastic.workloads.text import documents as documents_module
from replastic.workloads.text.documents import blocks, documents_of
from replastic.workloads.text.tokenize import tokenize
from replastic.workloads.text.tokens import TokenFile, read_token_file, tokens_of
from tests.test_sweep import hears_signals

END = "<|endoftext|>"
WORDS = [
    "the",
    "of",
    "loss",
    "network,",
    "plasticity",
    "FIRE's",
    "weight–decay",
    "naïve",
    "漢字",
    "0.5",
    "\t",
    "(a)",
    "",
    "b",
]
GPT2 = os.environ.get("REPLASTIC_GPT2_FILES")  # a folder with vocab.bpe and encoder.json


def texts(count: int, seed: int = 0) -> list[str]:
    """Documents of several lengths, some of them empty."""
    draw = random.Random(seed)
    return [
        "\n".join(" ".join(draw.choices(WORDS, k=draw.randrange(12))) for _ in range(draw.randrange(1, 6)))
        for _ in range(count)
    ]


def marked(documents: Sequence[str]) -> str:
    return "".join(f"{text}\n{END}\n" for text in documents)


def write(path: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes({".xz": lzma.compress, ".gz": gzip.compress}.get(path.suffix, bytes)(data))
    return path


def tokens(file: TokenFile | Path) -> list[int]:
    return np.concatenate([*tokens_of(read_token_file(file.path if isinstance(file, TokenFile) else file))]).tolist()


def library(**options: Any) -> Any:
    """An untrained tokenizer of the library, byte-level as that of GPT-2."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(**options))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level vocabulary of 400 entries."""
    made, tokenizers = library(), pytest.importorskip("tokenizers")
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<pad>", END], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts(200), trainer)
    path = tmp_path_factory.mktemp("vocabulary") / "small.json"
    made.save(str(path))
    return path


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda size: monkeypatch.setattr(documents_module, "_BLOCK", size)


def expected(vocabulary: Path, documents: Sequence[str]) -> list[int]:
    """The tokens of whole documents, one after another, as the library itself makes them."""
    made = pytest.importorskip("tokenizers").Tokenizer.from_file(str(vocabulary))
    end = made.token_to_id(END)
    made.encode_special_tokens = True
    return [token for text in documents for token in [*made.encode(text, add_special_tokens=False).ids, end]]


# tokens


@pytest.mark.parametrize("size", [1, 7, 64, 2**20])
@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_tokens_depend_neither_on_threads_nor_on_blocks(
    jobs: int, size: int, vocabulary: Path, tmp_path: Path, small_blocks: Any
) -> None:
    made = texts(30)
    corpus = write(tmp_path / "corpus.txt.xz", marked(made))
    small_blocks(size)
    (file,) = tokenize([corpus], tmp_path / "out", tokenizer=str(vocabulary), jobs=jobs)
    assert tokens(file) == expected(vocabulary, made)
    assert (file.documents, file.bytes) == (30, sum(len(text.encode()) for text in made))
    assert file.path == tmp_path / "out/corpus.bin"


SPACES = " \n\t\r\x85\xa0\u1680\u2003\u2028\u202f\u205f\u3000"


@given(st.text(st.sampled_from(f"{SPACES}ab1,.'s<|>é漢\u200b\U0001f600"), max_size=60), st.integers(1, 9))
def test_a_document_that_is_cut_has_the_tokens_of_the_whole(tmp_path_factory: Any, text: str, size: int) -> None:
    """Cuts must never lie where a word, or a stretch of white space, would be another one without what comes before."""
    words = pytest.importorskip("tokenizers").pre_tokenizers.ByteLevel(add_prefix_space=False)

    def split(part: str) -> list[str]:
        return [word for word, _ in words.pre_tokenize_str(part)]

    path = write(tmp_path_factory.getbasetemp() / "cuts.txt", text)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(documents_module, "_BLOCK", size)
        parts = [block.data.decode() for block in blocks(path, "files", cuts=True)]
    assert "".join(parts) == text
    assert [word for part in parts for word in split(part)] == split(text)


def test_a_long_document_is_read_in_parts(tmp_path: Path, small_blocks: Any) -> None:
    corpus = write(tmp_path / "novel.txt", "call me Ishmael. " * 5000)
    small_blocks(1000)
    assert max(len(block.data) for block in blocks(corpus, "marked", cuts=True)) < 2000
    (whole,) = blocks(corpus, "marked", cuts=False)
    assert len(whole.data) == 85_000


@pytest.mark.parametrize("name", ["bytes", "vocabulary"])
def test_tokens_decode_to_the_text(name: str, tmp_path: Path, small_blocks: Any, request: Any) -> None:
    made = texts(20)
    small_blocks(50)
    path = str(request.getfixturevalue("vocabulary")) if name == "vocabulary" else "bytes"
    (file,) = tokenize([write(tmp_path / "corpus.txt.gz", marked(made))], tmp_path, tokenizer=path)
    if name == "bytes":
        text = "".join(f"\0{END}\0" if token == 256 else bytes([token]).decode("latin1") for token in tokens(file))
        decoded = text.encode("latin1").decode()
    else:
        decoded = pytest.importorskip("tokenizers").Tokenizer.from_file(path).decode(tokens(file), skip_special_tokens=False)
        decoded = decoded.replace(END, f"\0{END}\0")
    assert decoded == "".join(f"{text}\0{END}\0" for text in made)
    lengths = np.array(file.lengths)
    assert lengths[file.end] == 0
    assert lengths[tokens(file)].sum() == file.bytes


@pytest.mark.parametrize(
    ("documents", "text", "found"),
    [
        ("marked", f"a\nb\n{END}\n\n{END}\n{END}\nc\n{END}\n", ["a\nb", "", "", "c"]),
        ("marked", f"{END}\na", ["", "a"]),
        ("marked", f"a\n{END}\nb\n", ["a", "b\n"]),  # nothing ends it, not even its line break
        ("marked", f"a\n{END}", ["a"]),
        ("marked", f"a\r\n{END}\r\nb\r\n{END}\r\n", ["a", "b"]),
        ("marked", f"a {END}\n{END} b\n x{END}y\n{END}\n", [f"a {END}\n{END} b\n x{END}y"]),  # text within a line is text
        ("lines", f"a\n\n {END}\n{END}\nb", ["a\n", "\n", f" {END}\n", f"{END}\n", "b"]),
        ("files", f"a\n{END}\nb", [f"a\n{END}\nb"]),
        ("files", "", [""]),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 14, 1000])
def test_what_ends_a_document(
    documents: Any, text: str, found: list[str], size: int, tmp_path: Path, small_blocks: Any
) -> None:
    small_blocks(size)
    corpus = write(tmp_path / "corpus.txt", text)
    read = [one for block in blocks(corpus, documents, cuts=False) for one in documents_of(block, documents)]
    assert [one.decode() for one in read] == found
    (file,) = tokenize([corpus], tmp_path, tokenizer="bytes", documents=documents)  # with cuts
    assert tokens(file) == [token for one in found for token in [*one.encode(), 256]]
    assert (file.documents, file.bytes) == (len(found), sum(len(one.encode()) for one in found))


def test_special_tokens_within_the_text_are_text(vocabulary: Path, tmp_path: Path) -> None:
    text = f"a <pad> and {END} within a line"
    (file,) = tokenize([write(tmp_path / "corpus.txt", marked([text]))], tmp_path, tokenizer=str(vocabulary))
    assert tokens(file).count(0) == 0
    assert tokens(file).count(1) == 1
    assert np.array(file.lengths)[tokens(file)].sum() == len(text)


def test_no_end_of_text_where_none_is_wanted(tmp_path: Path) -> None:
    (file,) = tokenize([write(tmp_path / "corpus.txt", f"ab\n{END}\nc")], tmp_path, tokenizer="bytes", end="")
    assert tokens(file) == [*b"abc"]
    assert (file.end, file.documents, file.vocabulary) == (None, 2, 257)


# token files


def test_the_documents_of_each_source_become_a_token_file(tmp_path: Path, small_blocks: Any) -> None:
    small_blocks(3)
    first = write(tmp_path / "one.txt.xz", marked(["a", "bb", "", "ccc"]))
    second = write(tmp_path / "two.txt", marked(["d", "e"]))
    named = [write(tmp_path / "1.txt.xz", "x\ny\nx\nx\n"), write(tmp_path / "2.txt", "z\nx")]
    files = tokenize([first, second], tmp_path / "each", tokenizer="bytes", sources=named)
    assert {file.path.name: tokens(file) for file in files} == {
        "one.x.bin": [97, 256, 256, 99, 99, 99, 256],
        "one.y.bin": [98, 98, 256],
        "two.x.bin": [101, 256],
        "two.z.bin": [100, 256],
    }
    joined = tokenize([first, second], tmp_path / "both", tokenizer="bytes", sources=named, into="all", end="")
    assert [file.path.name for file in joined] == ["all.x.bin", "all.y.bin", "all.z.bin"]
    assert [bytes(tokens(file)) for file in joined] == [b"accce", b"bb", b"d"]
    assert [(file.documents, file.bytes) for file in joined] == [(4, 5), (1, 2), (1, 1)]


def test_documents_are_held_out_by_seed(tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus.txt", marked([chr(at) for at in range(0x100, 0x164)]))

    def held_out(name: str, **options: Any) -> list[set[str]]:
        files = tokenize([corpus], tmp_path / name, tokenizer="bytes", hold_out=0.1, end="", **options)
        assert [file.path.name for file in files] == ["corpus.train.bin", "corpus.valid.bin"]
        both = [bytes(tokens(file)).decode() for file in files]
        assert ["".join(sorted(text)) for text in both] == both  # in the order of the text
        return [set(text) for text in both]

    train, valid = held_out("first")
    assert (len(train), len(valid), len(train | valid)) == (90, 10, 100)
    assert held_out("again", seed=0, jobs=2) == [train, valid]
    assert held_out("other", seed=1) != [train, valid]


def test_sources_are_held_out_one_by_one(tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus.txt", marked([*"abcd", *"ABCD"]))
    named = write(tmp_path / "names.txt", "low\n" * 4 + "up\n" * 4)
    files = tokenize([corpus], tmp_path / "out", tokenizer="bytes", sources=[named], hold_out=0.25, end="")
    found = {file.path.name: bytes(tokens(file)).decode() for file in files}
    assert sorted(found["corpus.low.train.bin"] + found["corpus.low.valid.bin"]) == [*"abcd"]
    assert sorted(found["corpus.up.train.bin"] + found["corpus.up.valid.bin"]) == [*"ABCD"]
    assert len(found["corpus.up.valid.bin"]) == 1


def test_each_file_is_a_document_of_one_token_file(tmp_path: Path) -> None:
    corpora = [write(tmp_path / f"{name}.txt", name * 2) for name in "abc"]
    (file,) = tokenize(corpora, tmp_path / "out", tokenizer="bytes", documents="files", into="books")
    assert tokens(file) == [97, 97, 256, 98, 98, 256, 99, 99, 256]
    assert file.path.name == "books.bin"


def test_progress_is_told_up_to_the_end(tmp_path: Path, small_blocks: Any) -> None:
    corpora = [write(tmp_path / "a.txt.xz", "word " * 999), write(tmp_path / "b.txt", "word " * 999)]
    told: list[tuple[int, int, int]] = []
    small_blocks(1000)
    tokenize(corpora, tmp_path, tokenizer="bytes", tell=lambda *at: told.append(at))
    size = sum(path.stat().st_size for path in corpora)
    assert told == sorted(told)
    assert len(told) > 5
    assert told[-1] == (size, size, 2 * 4995)


# GPT-2


def test_without_the_files_of_gpt2_their_names_hashes_and_publisher_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tiktoken")
    monkeypatch.setenv("REPLASTIC_DATA", str(tmp_path / "data"))
    corpus = write(tmp_path / "corpus.txt", "a")
    with pytest.raises(FileNotFoundError) as raised:
        tokenize([corpus], tmp_path / "out", tokenizer="gpt2")
    said = str(raised.value)
    for fact in (
        "vocab.bpe",
        "encoder.json",
        "1ce1664773c5",
        "196139668be6",
        "OpenAI",
        "--vocabulary",
        str(tmp_path / "data"),
    ):
        assert fact in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["--vocabulary", "corpus", "data"])
def test_other_files_named_as_those_of_gpt2_are_refused(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tiktoken")
    folder = {"--vocabulary": tmp_path / "passed", "corpus": tmp_path, "data": tmp_path / "data/gpt2"}[place]
    monkeypatch.setenv("REPLASTIC_DATA", str(tmp_path / "data"))
    folder.mkdir(parents=True, exist_ok=True)
    options = {"vocabulary": folder} if place == "--vocabulary" else {}
    corpus = write(tmp_path / "corpus.txt", "a")
    (folder / "vocab.bpe").write_text("#version: 0.2\n")
    with pytest.raises(FileNotFoundError, match=r"lacks encoder\.json"):
        tokenize([corpus], tmp_path / "out", tokenizer="gpt2", **options)
    (folder / "encoder.json").write_text("{}")
    with pytest.raises(ValueError, match=r"vocab\.bpe is another file, with SHA-256 [0-9a-f]{64}"):
        tokenize([corpus], tmp_path / "out", tokenizer="gpt2", **options)


@pytest.mark.skipif(not GPT2, reason="$REPLASTIC_GPT2_FILES names no folder with vocab.bpe and encoder.json")
def test_gpt2_makes_the_tokens_of_tiktoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: Any) -> None:
    tiktoken, loading = pytest.importorskip("tiktoken"), pytest.importorskip("tiktoken.load")
    public = pytest.importorskip("tiktoken_ext.openai_public")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    monkeypatch.setattr(loading, "read_file", lambda path: Path(path).read_bytes())  # older versions need a package for it
    ranks = loading.data_gym_to_mergeable_bpe_ranks(f"{GPT2}/vocab.bpe", f"{GPT2}/encoder.json")
    plain = tiktoken.Encoding("gpt2", pat_str=public.r50k_pat_str, mergeable_ranks=ranks, special_tokens={END: 50256})
    made = [*texts(50), f"text, not an {END}", "", " \n\n  \n ", "naïve 漢字\u3000 x" * 50]
    for size in (40, 2**20):
        small_blocks(size)
        (file,) = tokenize(
            [write(tmp_path / "corpus.txt", marked(made))], tmp_path, tokenizer="gpt2", vocabulary=GPT2, overwrite=True
        )
        assert tokens(file) == [token for text in made for token in [*plain.encode_ordinary(text), 50256]]
    assert (file.vocabulary, file.end) == (50257, 50256)
    assert list(file.lengths) == [*(len(plain.decode_single_token_bytes(token)) for token in range(50256)), 0]


# files of the library tokenizers


def test_the_end_of_text_of_a_file_is_named(tmp_path: Path) -> None:
    made = library(vocab={"a": 0, "b": 1, "</s>": 2}, merges=[])
    made.add_special_tokens(["</s>"])
    made.save(str(tmp_path / "t.json"))
    corpus = write(tmp_path / "corpus.txt", f"ab\n{END}\nb")
    with pytest.raises(OptionError, match=r"t\.json has no token <\|endoftext\|>.*--end.*</s>"):
        tokenize([corpus], tmp_path / "out", tokenizer=str(tmp_path / "t.json"))
    (file,) = tokenize([corpus], tmp_path / "out", tokenizer=str(tmp_path / "t.json"), end="</s>")
    assert tokens(file) == [0, 1, 2, 1, 2]
    with pytest.raises(OptionError, match="--end </s>"):
        tokenize([corpus], tmp_path / "bytes", tokenizer="bytes", end="</s>")


def test_a_vocabulary_beyond_16_bits_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    for size, fits in ((65_536, True), (65_537, False)):
        made = library(vocab={"a": 0, **{f"b{at}": at for at in range(1, size)}}, merges=[])
        made.save(str(tmp_path / "large.json"))
        corpus = write(tmp_path / "corpus.txt", "aa")
        if fits:
            (file,) = tokenize([corpus], tmp_path / "out", tokenizer=str(tmp_path / "large.json"), end="")
            assert (tokens(file), file.vocabulary) == ([0, 0], 65_536)
            continue
        with pytest.raises(ValueError, match=r"65,537 entries.*16 bits"):
            tokenize([corpus], tmp_path / "out", tokenizer=str(tmp_path / "large.json"), end="", overwrite=True)


def test_a_tokenizer_that_changes_the_text_is_warned_of(tmp_path: Path, caplog: Any) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "the": 1, "loss": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["[UNK]"])
    made.save(str(tmp_path / "t.json"))
    (file,) = tokenize(
        [write(tmp_path / "corpus.txt", "the loss rises")], tmp_path, tokenizer=str(tmp_path / "t.json"), end=""
    )
    assert tokens(file) == [1, 2, 0]
    assert "t.json changes the text" in caplog.text
    assert "the documents have 14" in caplog.text


def test_the_bytes_of_entries_that_are_not_byte_level(tmp_path: Path, caplog: Any) -> None:
    """As in the files of Llama: spaces are written ▁, and bytes as <0x0A>."""
    tokenizers = pytest.importorskip("tokenizers")
    names = ["<0x0A>", "▁the", "é", "▁", END, *(f"<0x{byte:02X}>" for byte in range(256) if byte != 10)]
    vocab = {name: number for number, name in enumerate(names)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], byte_fallback=True, fuse_unk=True, ignore_merges=True))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    made.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    )
    made.save(str(tmp_path / "t.json"))
    (file,) = tokenize([write(tmp_path / "corpus.txt", "é the\n the")], tmp_path, tokenizer=str(tmp_path / "t.json"))
    assert file.lengths[:5] == (1, 4, 2, 1, 0)
    assert np.array(file.lengths)[tokens(file)].sum() == file.bytes == 11
    assert not caplog.text


def test_merges_that_are_dropped_at_random_are_refused(tmp_path: Path) -> None:
    library(vocab={"a": 0}, merges=[], dropout=0.1).save(str(tmp_path / "t.json"))
    with pytest.raises(ValueError, match="dropout"):
        tokenize([write(tmp_path / "corpus.txt", "a")], tmp_path, tokenizer=str(tmp_path / "t.json"), end="")


def test_the_environment_is_as_it_was(vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    tokenize([write(tmp_path / "corpus.txt", "a")], tmp_path, tokenizer=str(vocabulary))
    assert "TOKENIZERS_PARALLELISM" not in os.environ


# what is wrong, and what is then there


def test_invalid_utf_8_is_named_with_file_and_byte(tmp_path: Path, small_blocks: Any) -> None:
    good = write(tmp_path / "good.txt", "words " * 100)
    bad = write(tmp_path / "bad.txt.xz", ("é " * 100).encode() + b"caf\xe9 au lait")
    small_blocks(64)
    with pytest.raises(ValueError, match=r"bad\.txt\.xz is not UTF-8: byte 303 of its text, 0xe9"):
        tokenize([good, bad], tmp_path / "out", tokenizer="bytes", jobs=2)
    assert [*(tmp_path / "out").iterdir()] == []


@pytest.mark.parametrize("suffix", [".xz", ".gz"])
def test_a_damaged_file_is_named(suffix: str, tmp_path: Path) -> None:
    corpus = write(tmp_path / f"corpus.txt{suffix}", random.Random(0).randbytes(9999).hex())
    corpus.write_bytes(corpus.read_bytes()[:-4000])
    with pytest.raises(ValueError, match=rf"corpus\.txt\{suffix}: damaged"):
        tokenize([corpus], tmp_path / "out", tokenizer="bytes")
    assert [*(tmp_path / "out").iterdir()] == []


def refusals(tmp_path: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """Arguments, and what the error must name."""
    write(tmp_path / "a.txt", marked(["a", "b"]))
    write(tmp_path / "empty.txt", "")
    write(tmp_path / "a.json", "{}")
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "other").mkdir()
    write(tmp_path / "other/a.txt", "a")
    write(tmp_path / "three.txt", "x\ny\nz\n")
    write(tmp_path / "path.txt", "x\n../y\n")
    return {
        "no corpus": ({"corpora": []}, "no corpus"),
        "missing": ({"corpora": ["b.txt"]}, r"b\.txt is not there"),
        "folder": ({"corpora": ["folder.txt"]}, r"folder\.txt is not a file"),
        "another format": ({"corpora": ["a.json"]}, r"a\.json.*\.txt\.xz"),
        "empty": ({"corpora": ["a.txt", "empty.txt"]}, r"empty\.txt has no documents"),
        "one name twice": ({"corpora": ["a.txt", "other/a.txt"]}, r"a\.bin.*--into"),
        "unknown tokenizer": ({"tokenizer": "gpt3"}, "--tokenizer gpt3"),
        "no vocabulary": ({"tokenizer": str(tmp_path / "none.json")}, r"none\.json"),
        "not a vocabulary": ({"tokenizer": str(tmp_path / "a.json")}, r"a\.json is not"),
        "more sources": ({"sources": ["three.txt"]}, r"three\.txt has 3 lines.*a\.txt has 2 documents"),
        "empty sources": ({"sources": ["empty.txt"]}, r"empty\.txt is empty"),
        "too few files of sources": ({"corpora": ["a.txt", "three.txt"], "sources": ["three.txt"]}, "1 files of sources"),
        "a source that is a path": ({"sources": ["path.txt"]}, r"path\.txt, line 2"),
        "all held out": ({"hold_out": 0.9}, "--hold-out 0.9 of the 2 documents"),
        "none held out": ({"hold_out": 0.01}, "--hold-out 0.01 of the 2 documents.* --documents lines"),
        "no share": ({"hold_out": 1.0}, "--hold-out 1.0"),
        "no name": ({"into": "a/b"}, "--into a/b"),
        "negative": ({"jobs": -1}, "--jobs -1"),
    }


@pytest.mark.parametrize("case", [
    "no corpus", "missing", "folder", "another format", "empty", "one name twice", "unknown tokenizer", "no vocabulary",
    "not a vocabulary", "more sources", "empty sources", "too few files of sources", "a source that is a path",
    "all held out", "none held out", "no share", "no name", "negative",
])  # fmt: skip
def test_what_is_wrong_is_named_and_nothing_is_written(case: str, tmp_path: Path) -> None:
    if case in ("no vocabulary", "not a vocabulary"):
        pytest.importorskip("tokenizers")
    cases = refusals(tmp_path)
    arguments, said = cases[case]
    arguments = {"corpora": ["a.txt"], "tokenizer": "bytes", **arguments}
    for name in ("corpora", "sources"):
        arguments[name] = [tmp_path / one for one in arguments.get(name, [])]
    corpora, out = arguments.pop("corpora"), tmp_path / "out"
    with pytest.raises((ValueError, OSError), match=said):
        tokenize(corpora, out, **arguments)
    assert not out.exists() or not [*out.iterdir()]


def test_token_files_are_only_replaced_on_request(tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus.txt", "a")
    tokenize([corpus], tmp_path / "out", tokenizer="bytes")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    write(corpus, "bb")
    with pytest.raises(FileExistsError, match=r"corpus\.bin.*--overwrite"):
        tokenize([corpus], tmp_path / "out", tokenizer="bytes")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    (file,) = tokenize([corpus], tmp_path / "out", tokenizer="bytes", overwrite=True)
    assert tokens(file) == [98, 98, 256]
    with pytest.raises(FileExistsError, match=r"corpus\.txt is not a folder"):
        tokenize([corpus], corpus, tokenizer="bytes")


@pytest.mark.parametrize(("name", "package"), [("gpt2", "tiktoken"), ("small.json", "tokenizers")])
def test_without_the_extra_the_error_names_it(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    write(tmp_path / "small.json", "{}")
    path = str(tmp_path / name) if name.endswith(".json") else name
    with pytest.raises(ImportError, match=rf'{package}.*pip install "replastic\[text\]"'):
        tokenize([write(tmp_path / "corpus.txt", "a")], tmp_path / "out", tokenizer=path)


# the command


def test_the_command_prints_what_it_wrote(tmp_path: Path, capsys: Any) -> None:
    corpus = write(tmp_path / "corpus.txt.xz", marked(["words"] * 2000))
    out = tmp_path / "out"
    assert main(["tokenize", str(corpus), "-o", str(out), "--tokenizer", "bytes", "--hold-out", "0.25", "--jobs", "2"]) == 0
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert said[1:] == [
        [str(out / "corpus.train.bin"), "9,000", "1,500", "7,500", "0.833"],
        [str(out / "corpus.valid.bin"), "3,000", "500", "2,500", "0.833"],
    ]
    assert main(["tokenize", str(corpus), "-o", str(out), "--tokenizer", "bytes", "--hold-out", "0.25"]) == 2
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_stopped_leaves_no_token_file(how: signal.Signals, vocabulary: Path, tmp_path: Path) -> None:
    corpus, out = write(tmp_path / "corpus.txt", marked(texts(1000)) * 300), tmp_path / "out"  # many seconds of work
    command = [sys.executable, "-m", "replastic", "tokenize", str(corpus), "-o", str(out), "--tokenizer", str(vocabulary)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=hears_signals) as going:
        try:
            until = time.monotonic() + 60
            while not out.exists():
                assert time.monotonic() < until
                time.sleep(0.01)
            time.sleep(0.5)
            assert going.poll() is None
            going.send_signal(how)
            _, said = going.communicate(timeout=60)
        finally:
            going.kill()
    assert going.returncode == (-9 if how == signal.SIGKILL else 128 + how)
    assert [*out.iterdir()] == []
    if how != signal.SIGKILL:
        assert said.startswith("stopped")
