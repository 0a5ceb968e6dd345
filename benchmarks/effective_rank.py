"""Where should ER's matrices be decomposed: on the GPU, or on the CPU with the way there and back?

    nvidia-cuda-mps-control -d                        # the GPU is shared through MPS, as between runs side by side
    python benchmarks/effective_rank.py               # needs a GPU; writes benchmarks/results/effective-rank-cuda.json
    python benchmarks/effective_rank.py --write-docs  # the table of docs, from the committed record

Gram matrices of rectified Gaussian features in float64, as `effective_rank` takes them apart. The CPU has one thread, as in
runs side by side. "busy GPU": another process multiplies large matrices meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from polar import CUDA, RESULTS, duration, hardware
from torch import Tensor

PAGE = Path(__file__).parent.parent / "docs/performance.md"
RECORD = RESULTS / "effective-rank-cuda.json"
ROWS = (32, 64, 100, 128, 256, 500)
COUNTS = (3, 30)
ROUNDS = 5
LOAD = """
import torch
matrix = torch.randn(4096, 4096, device="cuda")
(matrix @ matrix).sum().item()
print("busy", flush=True)
while True:
    matrix @ matrix
"""


def on_gpu(grams: Tensor) -> None:
    torch.linalg.eigh(grams)


def on_cpu(grams: Tensor) -> None:
    for found in torch.linalg.eigh(grams.cpu()):
        found.to(grams.device)


def milliseconds(action: Callable[[Tensor], None], grams: Tensor) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    action(grams)
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def measure() -> list[dict[str, Any]]:
    """Both ways in turn within each round; medians, the first round left out."""
    torch.manual_seed(0)
    found: list[dict[str, Any]] = []
    for rows in ROWS:
        for count in COUNTS:
            features = torch.randn(count, rows, 2 * rows, dtype=torch.float64, device="cuda").relu()
            grams = features @ features.mT
            times = [(milliseconds(on_gpu, grams), milliseconds(on_cpu, grams)) for _ in range(ROUNDS + 1)][1:]
            gpu, cpu = (statistics.median(way) for way in zip(*times, strict=True))
            found.append({"rows": rows, "matrices": count, "gpu_ms": gpu, "cpu_ms": cpu})
    return found


@contextmanager
def busy_gpu() -> Iterator[None]:
    other = subprocess.Popen([sys.executable, "-c", LOAD], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        if other.stdout.readline().strip() != b"busy":
            raise RuntimeError("the process that was to keep the GPU busy has failed: see its message above")
        yield
    finally:
        other.kill()
        other.wait()


def table(record: dict[str, Any]) -> str:
    made = record["hardware"]
    heads = ["rows", "matrices", "GPU", "CPU and copies", "busy GPU", "CPU and copies"]
    lines = [f"{made['device']}, torch {made['torch']}:", "", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for alone, busy in zip(record["alone"], record["busy"], strict=True):
        cells = [str(alone["rows"]), str(alone["matrices"])]
        for row in (alone, busy):
            cells += [duration(row["gpu_ms"]), f"{duration(row['cpu_ms'])}, **{row['gpu_ms'] / row['cpu_ms']:.2f}x**"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rendered(text: str) -> str:
    """A page with what stands between its markers made anew from the record."""
    start, marker, rest = text.partition("<!-- effective-rank -->\n")
    if not marker:
        return text
    return start + marker + table(json.loads(RECORD.read_text())) + "\n" + rest[rest.index("<!-- end -->") :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--write-docs", action="store_true", help="only write the table of docs")
    if parser.parse_args().write_docs:
        PAGE.write_text(rendered(PAGE.read_text()))
        return
    if not CUDA:
        parser.error("this compares a GPU with the CPU of the same machine, and there is no GPU here")
    torch.set_num_threads(1)
    alone = measure()
    with busy_gpu():
        busy = measure()
    record = {"hardware": hardware(), "alone": alone, "busy": busy}
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
