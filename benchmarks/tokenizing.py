"""How fast is `replastic tokenize` with GPT-2's tokenizer, compared with one process of tiktoken?

    python benchmarks/tokenizing.py corpus.txt.xz --vocabulary DIR    # writes benchmarks/results/tokenizing-cpu.json

The reference is what people write: read the text, split it into documents, `encode_ordinary` each, write uint16. Both take
turns within each round, start with the tokenizer's files and end with the token file; medians are compared. Neither includes
the start of Python. On a machine with other work to do, compare the CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from replastic.extras import needed
from replastic.record.provenance import cores, provenance
from replastic.workloads.text.tokenize import tokenize
from replastic.workloads.text.vocabularies import END

RESULT = Path(__file__).parent / "results/tokenizing-cpu.json"
AIM = 1.8  # times the reference, on two cores


def reference(corpus: Path, vocabulary: Path, out: Path) -> bytes:
    names = "tiktoken", "tiktoken.load", "tiktoken_ext.openai_public"
    tiktoken, loading, public = (needed(name, "text", "the reference") for name in names)
    os.environ["TIKTOKEN_CACHE_DIR"] = ""  # no copies of the files
    ranks = loading.data_gym_to_mergeable_bpe_ranks(str(vocabulary / "vocab.bpe"), str(vocabulary / "encoder.json"))
    gpt2 = tiktoken.Encoding("gpt2", pat_str=public.r50k_pat_str, mergeable_ranks=ranks, special_tokens={END: 50256})
    with lzma.open(corpus, "rt", encoding="utf-8", newline="") as file:
        text = file.read()
    tokens = [
        token for one in text.removesuffix(f"\n{END}\n").split(f"\n{END}\n") for token in [*gpt2.encode_ordinary(one), 50256]
    ]
    np.array(tokens, np.uint16).tofile(out)
    return out.read_bytes()


def ours(corpus: Path, vocabulary: Path, out: Path, jobs: int) -> bytes:
    (made,) = tokenize([corpus], out, tokenizer="gpt2", vocabulary=vocabulary, jobs=jobs, overwrite=True)
    return made.path.read_bytes()


def timed(call: Callable[[], bytes]) -> tuple[dict[str, float], bytes]:
    start, cpu = time.perf_counter(), time.process_time()
    made = call()
    return {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu}, made


def measured(corpus: Path, vocabulary: Path, rounds: int, jobs: int) -> dict[str, Any]:
    names = "one process of tiktoken", f"replastic tokenize, {jobs} threads"
    times: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    made: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        calls = (
            lambda: reference(corpus, vocabulary, Path(folder) / "reference.bin"),
            lambda: ours(corpus, vocabulary, Path(folder), jobs),
        )
        for _ in range(rounds):
            made.clear()
            for name, call in zip(names, calls, strict=True):
                taken, tokens = timed(call)
                times[name].append(taken)
                made.append(tokens)
                print(f"{name}: {taken['seconds']:.2f} s, {taken['cpu']:.2f} s of CPU, load {os.getloadavg()[0]:.1f}")
            assert made[0] == made[1], "the tokens differ"
    middle = [{key: statistics.median(one[key] for one in times[name]) for key in ("seconds", "cpu")} for name in names]
    ratio = {key: middle[0][key] / middle[1][key] for key in ("seconds", "cpu")}
    print(f"{ratio['seconds']:.2f}x as fast (aim {AIM}x on two cores), with {1 / ratio['cpu']:.2f}x the CPU time")
    about = provenance()
    hardware = {key: about[key] for key in ("cpu", "cpus", "python", "numpy")}
    return {"hardware": hardware, "corpus": corpus.name, "tokens": len(made[0]) // 2, "times": times, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpora", nargs="+", type=Path, metavar="CORPUS.txt.xz")
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=cores())
    given = parser.parse_args()
    found = [measured(corpus, given.vocabulary, given.rounds, given.jobs) for corpus in given.corpora]
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
