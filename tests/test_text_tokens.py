"""Token files and plain text: what is read, and what is refused."""

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from replastic.options import OptionError
from replastic.workloads.text.tokens import byte_tokens, read_token_file, token_data, tokens_of, write_token_file
from tests.texts import CPU, END, ENTRIES, drawn, write


def changed_json(path: Path, **changes: Any) -> None:
    sidecar = path.with_suffix(".json")
    said = {**json.loads(sidecar.read_text()), **changes}
    sidecar.write_text(json.dumps({key: value for key, value in said.items() if value != "missing"}))


def test_what_was_written_is_read_back_and_lies_there_as_nanogpt_writes_it(tmp_path: Path) -> None:
    tokens = drawn(1001, 0)
    written = write(tmp_path / "a.bin", tokens)
    assert (tmp_path / "a.bin").read_bytes() == tokens.astype("<u2").tobytes()
    read = read_token_file(tmp_path / "a.bin")
    assert read == written
    assert (read.tokens, read.documents, read.end, read.vocabulary) == (1001, 20, END, ENTRIES)
    assert np.array_equal(np.concatenate(list(tokens_of(read))), tokens)
    assert {path.name for path in tmp_path.iterdir()} == {"a.bin", "a.json"}


def test_counts_that_are_known_after_the_last_chunk_are_asked_for_then(tmp_path: Path) -> None:
    seen: list[int] = []

    def chunks() -> Any:
        for chunk in (drawn(10, 1), drawn(5, 2)):
            seen.append(len(chunk))
            yield chunk

    made = write_token_file(
        tmp_path / "a.bin", chunks(), tokenizer="t", tokenizer_sha256="", vocabulary=ENTRIES, end=None,
        documents=lambda: len(seen), bytes=lambda: sum(seen), lengths=[1] * ENTRIES,
    )  # fmt: skip
    assert (made.documents, made.bytes, made.tokens) == (2, 15, 15)


def test_a_file_that_fails_while_it_is_written_leaves_the_one_before(tmp_path: Path) -> None:
    before = write(tmp_path / "a.bin", drawn(20, 1))
    with pytest.raises(OptionError, match="40 is not one of a vocabulary of 40"):
        write(tmp_path / "a.bin", np.array([1, ENTRIES], np.uint16))
    with pytest.raises(OptionError, match="65,537"):
        write(tmp_path / "a.bin", drawn(20, 2), vocabulary=65537, lengths=[1] * 65537)
    assert read_token_file(tmp_path / "a.bin") == before
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "other"}, "format 'other'"),
        ({"vocabulary": 65537, "lengths": [1] * 65537}, "vocabulary = 65,537"),
        ({"end": 40}, "end = 40"),
        ({"lengths": [1, 2]}, "lengths are not 40 whole"),
        ({"lengths": [1] * ENTRIES}, "0 of the end"),
        ({"lengths": [True] * ENTRIES}, "lengths are not 40 whole"),
        ({"tokens": 99}, "has 100 tokens, and a.json says 99"),
        ({"tokens": True}, "tokens = True"),
        ({"sha256": "missing"}, "has no 'sha256'"),
    ],
)
def test_a_json_that_cannot_be_meant_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    write(tmp_path / "a.bin", drawn(100, 0))
    changed_json(tmp_path / "a.bin", **changes)
    with pytest.raises(OptionError, match=said):
        read_token_file(tmp_path / "a.bin")


def test_an_odd_length_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write(path, drawn(100, 0))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(OptionError, match=r"a\.bin has 199 bytes, an odd number"):
        read_token_file(path)


def test_a_missing_file_or_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file .*a\.bin"):
        read_token_file(tmp_path / "a.bin")
    (tmp_path / "a.bin").write_bytes(b"\0\0")
    with pytest.raises(FileNotFoundError, match=r"no file .*a\.json.*tokenize"):
        read_token_file(tmp_path / "a.bin")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(OptionError, match=r"a\.json is not JSON"):
        read_token_file(tmp_path / "a.bin")
    (tmp_path / "a.npy").write_bytes(b"")
    with pytest.raises(OptionError, match=r"a\.npy is neither"):
        read_token_file(tmp_path / "a.npy")


def test_a_wrong_hash_and_a_token_beyond_the_vocabulary_are_found_when_tokens_are_read(tmp_path: Path) -> None:
    file = write(tmp_path / "a.bin", drawn(100, 0))
    tokens = drawn(100, 0)
    tokens[30] = 38 if tokens[30] != 38 else 37
    tokens.tofile(file.path)
    with pytest.raises(OptionError, match=f"a.json says {file.sha256[:16]}"):
        token_data({"a": [file]}, {}, CPU)
    tokens[60] = ENTRIES
    tokens.tofile(file.path)
    with pytest.raises(OptionError, match=r"a\.bin has the token 40 at 60, .* has 40 entries"):
        token_data({"a": [file]}, {}, CPU)


def test_tokens_above_32767_survive_their_signed_storage(tmp_path: Path) -> None:
    tokens = np.array([0, 32767, 32768, 50256, 65535], np.uint16)
    file = write(
        tmp_path / "a.bin", tokens, vocabulary=65536, end=50256, bytes=4, lengths=[int(i != 50256) for i in range(65536)]
    )
    data = token_data({"a": [file]}, {}, CPU)
    assert data.tokens.dtype == torch.int16
    assert data.windows(torch.tensor([0, 2]), 3).tolist() == [[0, 32767, 32768], [32768, 50256, 65535]]
    assert data.bytes_of(range(5)) == 4


def test_files_of_a_corpus_follow_each_other_in_one_tensor(tmp_path: Path) -> None:
    files = {name: write(tmp_path / f"{name}.bin", drawn(count, count)) for name, count in (("x", 30), ("y", 20), ("z", 10))}
    data = token_data({"a": [files["x"], files["y"]], "b": [files["z"]]}, {"b": [files["z"]]}, CPU)
    assert (data.train, data.test) == ({"a": range(50), "b": range(50, 60)}, {"b": range(60, 70)})
    assert data.tokens.tolist() == [*drawn(30, 30), *drawn(20, 20), *drawn(10, 10), *drawn(10, 10)]


def test_files_of_different_tokenisers_are_refused(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a.bin", drawn(30, 0)), write(tmp_path / "b.bin", drawn(30, 1), tokenizer_sha256="cd34")
    with pytest.raises(OptionError, match=r"a\.bin was made with .*ab12.*b\.bin with .*cd34"):
        token_data({"a": [one], "b": [other]}, {}, CPU)
    (tmp_path / "c.txt").write_text("text")
    with pytest.raises(OptionError, match=r"c\.txt with .*'bytes' \(257 entries\)"):
        token_data({"a": [one]}, {"c": [read_token_file(tmp_path / "c.txt")]}, CPU)


@pytest.mark.parametrize(
    ("text", "tokens", "documents", "length"),
    [
        (b"", [], 0, 0),
        (b"ab\ncd\n", [97, 98, 10, 99, 100, 10], 1, 6),
        (b"ab\n<|endoftext|>\nc\n<|endoftext|>\n", [97, 98, 256, 99, 256], 2, 3),
        (b"ab\n<|endoftext|>", [97, 98, 256], 1, 2),
        (b"ab\r\n<|endoftext|>\r\nc", [97, 98, 256, 99], 2, 3),
        (b"<|endoftext|>\n<|endoftext|>\n", [256, 256], 2, 0),
        (b"a <|endoftext|>\n", [*b"a <|endoftext|>\n"], 1, 16),
        ("é".encode(), [195, 169], 1, 2),
    ],
)
def test_plain_text_is_its_bytes_and_the_ends_of_documents(
    text: bytes, tokens: list[int], documents: int, length: int
) -> None:
    found = byte_tokens(text)
    assert (found[0].tolist(), *found[1:]) == (tokens, documents, length)


def test_packed_text_reads_as_plain_text_does(tmp_path: Path) -> None:
    text = "Ein Bär.\n<|endoftext|>\nThe end".encode()
    for name, packed in (("t.txt", text), ("t.txt.xz", lzma.compress(text)), ("t.txt.gz", gzip.compress(text))):
        (tmp_path / name).write_bytes(packed)
        file = read_token_file(tmp_path / name)
        assert (file.vocabulary, file.end, file.documents, file.bytes, file.tokens) == (257, 256, 2, 16, 17)
        assert np.concatenate(list(tokens_of(file))).tolist() == [*"Ein Bär.".encode(), 256, *b"The end"]
    (tmp_path / "t.txt.xz").write_bytes(b"not xz")
    with pytest.raises(OptionError, match=r"t\.txt\.xz cannot be unpacked"):
        read_token_file(tmp_path / "t.txt.xz")
