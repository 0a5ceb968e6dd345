"""FIRE, table 1: wall-clock time and GPU memory of Shrink & Perturb, FIRE and DASH on VGG-16 and Tiny-ImageNet.

    python experiments/fire/table-1.py | tee experiments/results/fire-table-1.jsonl
    python experiments/fire/table-1.py --quick      # a small network, few images: whether it runs, not what it costs

What a boundary costs does not depend on what weights and images show, so the network is nearly new and the images are
random: no data set is needed. DASH passes over all 100,000 images once, in batches of 256. A line of JSON for each method:
the median seconds of its boundaries, and the peak of the GPU's memory above what model, optimiser and images take (null on
a CPU).

The paper has, on a TITAN RTX: 0.002 s and 27 MB for Shrink & Perturb, 0.06 s and 55 MB for FIRE, 69 s and 2834 MB for DASH.
It does not say whether times and memory are of the method alone, as here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

import replastic as rp
from replastic.models import VGG
from replastic.workloads.images import ImageData, Split
from replastic.workloads.images.protocols import single

METHODS = {"S&P": rp.ShrinkAndPerturb, "FIRE": rp.FIRE, "DASH": rp.DASH}


def main(arguments: Sequence[str] | None = None) -> None:
    """Time a boundary with each method; write what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small network and few images")
    parser.add_argument("--trials", type=int, default=10, help="boundaries of each method")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    device = torch.device(given.device)
    options: dict[str, Any] = {"widths": [8] * 5, "hidden": [16, 16]} if given.quick else {}
    pixels = torch.randint(256, (256 if given.quick else 100_000, 64, 64, 3), dtype=torch.uint8)
    images = Split(pixels, torch.randint(200, (len(pixels),)))
    data = ImageData("random", images, images.of(torch.arange(1)), 200, (0.5,) * 3, (0.25,) * 3).to(device)
    for name, method in METHODS.items():
        seconds, memory = cost(method(), data, options, device, trials=2 if given.quick else given.trials)
        line = {"method": name, "seconds": statistics.median(seconds), "megabytes": memory, "trials": len(seconds)}
        line |= {"on": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU", "torch": torch.__version__}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def cost(
    method: rp.Method, data: ImageData, options: dict[str, Any], device: torch.device, *, trials: int
) -> tuple[list[float], float | None]:
    """Seconds of each boundary, after one that does not count, and the peak of memory that it adds, in MB."""
    model = VGG(data.classes, **options).to(device)
    learner = rp.Learner(model, torch.optim.Adam(model.parameters()), methods=[method], build=lambda: VGG(200, **options))
    (task,) = single(data, seed=0)
    learner.begin(task)
    inputs, targets = next(iter(task.batches(torch.Generator())))
    learner.step(inputs[:8], targets[:8])  # Adam's moments are to be there
    learner.begin(task)
    seconds, on_gpu = [], device.type == "cuda"
    held = torch.cuda.memory_allocated(device) if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(trials):
        if on_gpu:
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        learner.begin(task)
        if on_gpu:
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return seconds, (torch.cuda.max_memory_allocated(device) - held) / 1e6 if on_gpu else None


if __name__ == "__main__":
    main()
