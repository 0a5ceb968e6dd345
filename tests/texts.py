"""Small experiments with text: files of tokens, and a TOML table that names them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from replastic.runs.config import Experiment, parse
from replastic.workloads.text import TextData, TokenFile, write_token_file
from replastic.workloads.text.tokens import token_data

CPU = torch.device("cpu")
ENTRIES, END = 40, 39

TABLE: dict[str, Any] = {
    "kind": "text",
    "name": "text",
    "seeds": [0],
    "metric": "b_loss",
    "data": {
        "context": 8,
        "train": {"a": "a.bin", "b": ["b_1.bin", "b_2.bin"]},
        "test": {"a": "a_valid.bin", "b": "b_valid.bin"},
    },
    "model": {"name": "gpt", "layers": 1, "heads": 2, "width": 16},
    "protocol": {
        "name": "stages",
        "stages": [{"sources": "a", "steps": 12}, {"sources": {"a": 0.25, "b": 0.75}, "steps": 8}],
    },
    "training": {
        "renew_optimizer": True,
        "optimizer": "adamw",
        "learning_rate": 1e-2,
        "betas": [0.9, 0.95],
        "weight_decay": 0.1,
        "decay": "matrices",
        "batch": 8,
        "rate_per": "step",
        "warmup": 0.1,
        "anneal": "cosine",
        "evaluate_every": 4,
    },
    "arms": {"base": {}},
}  # fmt: skip


def drawn(count: int, seed: int, entries: int = END) -> np.ndarray:
    """Tokens at random, with an end of a text here and there."""
    tokens = np.random.default_rng(seed).integers(0, entries, count).astype(np.uint16)
    tokens[49::50] = END
    return tokens


def write(path: Path, tokens: np.ndarray, **changes: Any) -> TokenFile:
    """A token file of a made-up tokeniser: entry n has n % 4 + 1 bytes."""
    lengths = [number % 4 + 1 for number in range(ENTRIES)]
    lengths[END] = 0
    size = int(np.array(lengths)[np.minimum(tokens, END)].sum())
    said = {
        "tokenizer": "made up", "tokenizer_sha256": "ab12", "vocabulary": ENTRIES, "end": END,
        "documents": int((tokens == END).sum()), "bytes": size, "lengths": lengths,
    }  # fmt: skip
    return write_token_file(path, [tokens], **{**said, **changes})


def corpora(folder: Path) -> Path:
    """A folder with the files that TABLE names."""
    for seed, (name, count) in enumerate(
        {"a": 1000, "b_1": 700, "b_2": 500, "a_valid": 120, "b_valid": 200}.items()
    ):  # fmt: skip
        write(folder / f"{name}.bin", drawn(count, seed))
    return folder


def changed(changes: Mapping[str, Any]) -> dict[str, Any]:
    """TABLE with other values by keys such as "data.context"."""
    table = copy.deepcopy(TABLE)
    for key, value in changes.items():
        *path, last = key.split(".")
        inner = table
        for part in path:
            inner = inner[part]
        inner[last] = value
    return table


def experiment(folder: Path, changes: Mapping[str, Any] | None = None) -> Experiment:
    return parse(changed(changes or {}), folder=folder)


def data_of(files: Mapping[str, Sequence[TokenFile]], tests: Mapping[str, Sequence[TokenFile]], **settings: Any) -> TextData:
    return TextData(token_data(files, tests, CPU), **settings)
