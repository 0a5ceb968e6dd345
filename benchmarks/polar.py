"""How fast is fire_, and how much memory does it take, compared with the plain loop anyone would write from the paper?

    python benchmarks/polar.py                    # on what the machine has; writes benchmarks/results/polar-<device>.json
    python benchmarks/polar.py --only resnet18    # one network, nothing written
    python benchmarks/polar.py --write-docs       # the tables of README and docs, from the committed records

Every method is timed in turn within each round, on weights restored before it, and medians are compared: what disturbs the
machine disturbs all of them. Times are of the whole call a user makes, its checks and its report included. The yardstick
is `plain_loop`: IEEE float32, no synchronisation inside.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import replastic as rp

RESULTS = Path(__file__).parent / "results"
PAGES = [Path(__file__).parent.parent / page for page in ("docs/performance.md", "README.md")]
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
STEPS = 10


def plain_loop(model: nn.Module) -> None:
    """Algorithm 1 and appendix C as they stand: layer by layer, slice by slice, queries, keys and values apart."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            out, into, height, width = module.weight.shape
            for row in range(height):
                for column in range(width):
                    module.weight[:, :, row, column] = newton_schulz(module.weight[:, :, row, column])
            module.weight *= math.sqrt(out / into) / (height * width)
        elif isinstance(module, nn.Linear):
            for block in module.weight.chunk(3) if name.endswith("c_attn") else [module.weight]:
                out, into = block.shape
                block.copy_(math.sqrt(out / into) * newton_schulz(block))


def newton_schulz(x: Tensor) -> Tensor:
    wide = x.shape[1] > x.shape[0]
    x = x.T if wide else x
    x = x / x.norm()
    for _ in range(STEPS):
        a = x.T @ x
        x = 1.5 * x - 0.5 * (x @ a)
    return x.T if wide else x


def fire(method: str, precision: str | None = None) -> Callable[[nn.Module], object]:
    where = lambda model: "paper_gpt" if hasattr(model, "lm_head") else "everything"  # noqa: E731
    return lambda model: rp.fire_(model, method=method, precision=precision, where=where(model))  # pyright: ignore[reportArgumentType]


METHODS: dict[str, Callable[[nn.Module], object]] = {
    "loop": plain_loop,
    "published": fire("published", "ieee"),
    **({"published, TF32": fire("published", "tf32")} if CUDA else {}),
    "exact": fire("exact"),
    **({"fast": fire("fast")} if CUDA else {}),
}


def mlp() -> nn.Module:
    return linears((784, 1000), (1000, 1000), (1000, 1000), (1000, 10))


def vit_tiny_queries_and_keys() -> nn.Module:
    return linears(*[(192, 192)] * 24)


def resnet18() -> nn.Module:
    shapes = [(3, 64, 3), *[(64, 64, 3)] * 4]
    for into, out in ((64, 128), (128, 256), (256, 512)):
        shapes += [(into, out, 3), *[(out, out, 3)] * 3, (into, out, 1)]
    return nn.Sequential(convolutions(*shapes), linears((512, 512), (512, 10)))


def vgg16() -> nn.Module:
    channels = [3, 64, 64, 128, 128, 256, 256, 256, *[512] * 6]
    shapes = [(into, out, 3) for into, out in itertools.pairwise(channels)]
    return nn.Sequential(convolutions(*shapes), linears((2048, 4096), (4096, 4096), (4096, 200)))


def small_convolutions() -> nn.Module:
    """54 convolutions of 8 to 64 channels, as in the small residual networks of reinforcement learning and CIFAR."""
    shapes = [(3, 8, 3)]
    for into, out in ((8, 8), (8, 16), (16, 32), (32, 64)):
        shapes += [(into, out, 3), *[(out, out, 3)] * 12]
    return nn.Sequential(convolutions(*shapes), linears((64, 10)))


class GPT(nn.Module):
    """The matrices of GPT-2 small: fused attention, and an output head tied to the embedding."""

    def __init__(self, width: int = 768, depth: int = 12, vocabulary: int = 50304) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "c_attn": nn.Linear(width, 3 * width, bias=False),
                    "c_proj": nn.Linear(width, width, bias=False),
                    "up": nn.Linear(width, 4 * width, bias=False),
                    "down": nn.Linear(4 * width, width, bias=False),
                }
            )
            for _ in range(depth)
        )
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight


def llama_layer() -> nn.Module:
    """One of the 32 layers of a 7B model; the stack is generated layer by layer, so that it need not fit."""
    return linears(*[(4096, 4096)] * 4, (4096, 11008), (4096, 11008), (11008, 4096))


MODELS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "mlp": ("MLP 3x1000", mlp),
    "vit": ("ViT-Tiny, q and k", vit_tiny_queries_and_keys),
    "small": ("54 small convolutions", small_convolutions),
    "resnet18": ("ResNet-18 (CIFAR)", resnet18),
    "vgg16": ("VGG-16, 4096 head", vgg16),
    "gpt": ("GPT-124M", GPT),
}
LLAMA = ("llama", "7B-like stack, 32 layers")


def linears(*shapes: tuple[int, int]) -> nn.Module:
    return nn.Sequential(*(nn.Linear(into, out, bias=False) for into, out in shapes))


def convolutions(*shapes: tuple[int, int, int]) -> nn.Module:
    return nn.Sequential(*(nn.Conv2d(into, out, size, bias=False) for into, out, size in shapes))


def trained_like(build: Callable[[], nn.Module]) -> nn.Module:
    model = build().to(DEVICE)
    make_trained_like_(model)
    return model


def make_trained_like_(model: nn.Module) -> None:
    """Gaussian init plus a low-rank update with a power-law spectrum: outliers on top, as in trained layers."""
    for parameter in model.parameters():
        out, into = parameter.shape[:2]
        taps = parameter[0, 0].numel()
        rank = min(out, into, 16)
        spectrum = 3 / math.sqrt(taps) / torch.arange(1, rank + 1, device=parameter.device)
        left = torch.randn(taps, out, rank, device=parameter.device) / math.sqrt(out)
        right = torch.randn(taps, rank, into, device=parameter.device) / math.sqrt(into)
        update = ((left * spectrum) @ right).permute(1, 2, 0).reshape(parameter.shape)
        parameter.normal_(std=1 / math.sqrt(into * taps)).add_(update)


def synchronise() -> None:
    if CUDA:
        torch.cuda.synchronize()


def timed(run: Callable[[nn.Module], object], model: nn.Module) -> tuple[float, object]:
    synchronise()
    start = time.perf_counter()
    result = run(model)
    synchronise()
    return time.perf_counter() - start, result


def restore_(model: nn.Module, weights: list[Tensor]) -> None:
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        parameter.copy_(weight)


def measure(key: str, rounds: int) -> dict[str, Any]:
    model = trained_like(MODELS[key][1])
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    reports: dict[str, object] = {}
    for turn in range(rounds + 1):  # the first round warms up
        for name, run in METHODS.items():
            restore_(model, weights)
            elapsed, reports[name] = timed(run, model)
            if turn:
                seconds[name].append(elapsed)
    result = summary(MODELS[key][0], seconds, {name: peak_of(key, name) for name in METHODS})
    for name, report in reports.items():
        if isinstance(report, rp.FireReport):
            result["methods"][name]["redone"] = sum(figures.redone for figures in report.figures())
    return result


def measure_llama(layers: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    peaks = dict.fromkeys(METHODS, 0)
    model = llama_layer().to(DEVICE)
    for turn in range(layers + 1):
        make_trained_like_(model)
        weights = [parameter.detach().clone() for parameter in model.parameters()]
        for name, run in METHODS.items():
            restore_(model, weights)
            if turn:
                seconds[name].append(timed(run, model)[0])
            else:
                peaks[name] = peak(run, model)
    result = summary(LLAMA[1], seconds, peaks)
    for row in result["methods"].values():
        row["ms"] *= layers
    return result


def summary(title: str, seconds: dict[str, list[float]], peaks: dict[str, int]) -> dict[str, Any]:
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "title": title,
        "rounds": len(seconds["loop"]),
        "methods": {
            name: {
                "ms": 1e3 * medians[name],
                "spread": (max(seconds[name]) - min(seconds[name])) / medians[name],
                "speedup": medians["loop"] / medians[name],
                "peak_mib": peaks[name] / 2**20,
            }
            for name in METHODS
        },
    }


def peak_of(key: str, name: str) -> int:
    """Peak extra memory of one call; on the CPU in a process of its own, so that no cache of an earlier call hides it."""
    if CUDA:
        return peak(METHODS[name], trained_like(MODELS[key][1]))
    command = [sys.executable, __file__, "--peak-of", key, name]
    # Large blocks straight from the system: otherwise the allocator's reuse of freed blocks would count as no memory.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()[-1])


def peak(run: Callable[[nn.Module], object], model: nn.Module) -> int:
    run(linears((8, 8)).to(DEVICE))  # libraries take memory of their own at the first call
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(model)
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = memory("VmRSS")
    run(model)
    return memory("VmHWM") - before


def memory(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def hardware() -> dict[str, str]:
    if CUDA:
        name = torch.cuda.get_device_name()
    else:
        model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        name = f"{model[1] if model else platform.processor()}, {torch.get_num_threads()} threads"
    return {"device": name, "torch": torch.__version__, "python": platform.python_version()}


def table(record: dict[str, Any]) -> str:
    """Times, then peak extra memory, as two tables."""
    names = list(next(iter(record["networks"].values()))["methods"])
    rule = "|---" * (len(names) + 1) + "|"
    times = ["| network | plain loop | " + " | ".join(names[1:]) + " |", rule]
    peaks = ["| peak extra MiB | plain loop | " + " | ".join(names[1:]) + " |", rule]
    for network in record["networks"].values():
        rows = network["methods"]
        cells = [network["title"], duration(rows["loop"]["ms"])]
        cells += [f"{duration(rows[name]['ms'])}, **{rows[name]['speedup']:.2f}x**" for name in names[1:]]
        times.append("| " + " | ".join(cells) + " |")
        peaks.append(f"| {network['title']} | " + " | ".join(f"{rows[name]['peak_mib']:.0f}" for name in names) + " |")
    made = record["hardware"]
    made_on = f"{made['device']}, torch {made['torch']}, Python {made['python']}:"
    return "\n".join([made_on, "", *times, "", *peaks])


def duration(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:.1f} s" if milliseconds >= 1e4 else f"{milliseconds:.4g} ms"


AIMS: dict[str, dict[str, dict[str, float]]] = {
    "cuda": {
        "published, TF32": {"small": 20, "resnet18": 20, "vgg16": 8, "gpt": 5, "llama": 5.5},
        "exact": {"resnet18": 5, "vgg16": 1.4, "gpt": 1.6, "llama": 1.8},
    },
    "cpu": {
        "published": {"small": 3, "resnet18": 1, "vgg16": 1, "gpt": 2},
        "exact": {"resnet18": 1, "vgg16": 1.1, "gpt": 2.5},
    },
}


def aims(records: dict[str, dict[str, Any]]) -> str:
    """What was aimed at next to what the records say, with every miss marked."""
    lines = ["| | aim | measured | peak extra MiB, bound and measured |", "|---|---|---|---|"]
    for device, methods in AIMS.items():
        for method, networks in methods.items():
            for key, aim in networks.items():
                network = records[device]["networks"][key]
                rows = network["methods"]
                speed, memory = rows[method]["speedup"], rows[method]["peak_mib"]
                bound = max(2 * rows["loop"]["peak_mib"], 256)
                fast, small = ("" if ok else ", **missed**" for ok in (round(speed, 2) >= aim, memory <= bound))
                what = f"{'H200' if device == 'cuda' else 'CPU'}, {method}, {network['title']}"
                lines.append(f"| {what} | {aim:g}x | {speed:.2f}x{fast} | {bound:.0f}, {memory:.0f}{small} |")
    return "\n".join(lines)


def headline(records: dict[str, dict[str, Any]]) -> str:
    """A few columns for the README."""
    columns = {
        "H200, published": ("cuda", "published"),
        "published, TF32": ("cuda", "published, TF32"),
        "exact": ("cuda", "exact"),
        "2 CPU cores, published": ("cpu", "published"),
        "exact ": ("cpu", "exact"),
    }
    lines = ["| | " + " | ".join(name.strip() for name in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for key in ("mlp", "small", "resnet18", "vgg16", "gpt", "llama"):
        cells = [records["cuda"]["networks"][key]["title"]]
        for device, method in columns.values():
            found = records[device]["networks"].get(key)
            cells.append(f"{found['methods'][method]['speedup']:.1f}x" if found else "-")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rendered(text: str) -> str:
    """A page with what stands between its markers made anew from the records."""
    records = {kind: json.loads((RESULTS / f"polar-{kind}.json").read_text()) for kind in ("cpu", "cuda")}
    blocks = {f"polar-{kind}": table(record) for kind, record in records.items()}
    blocks |= {"aims": aims(records), "headline": headline(records)}
    for name, block in blocks.items():
        start, marker, rest = text.partition(f"<!-- {name} -->\n")
        if marker:
            text = start + marker + block + "\n" + rest[rest.index("<!-- end -->") :]
    return text


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", choices=[*MODELS, LLAMA[0]], help="networks to measure; writes no record")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write-docs", action="store_true", help="only write the tables of README and docs")
    parser.add_argument("--peak-of", nargs=2, metavar=("NETWORK", "METHOD"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if CUDA:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    if arguments.peak_of:
        key, name = arguments.peak_of
        print(peak(METHODS[name], trained_like(MODELS[key][1])))
        return
    if arguments.write_docs:
        for page in PAGES:
            page.write_text(rendered(page.read_text()))
        return
    networks: dict[str, Any] = {}
    record = {"command": "python benchmarks/polar.py", "hardware": hardware(), "networks": networks}
    for key in arguments.only or [*MODELS, *([LLAMA[0]] if CUDA else [])]:
        networks[key] = measure_llama(32) if key == LLAMA[0] else measure(key, arguments.rounds)
        print(table({**record, "networks": {key: networks[key]}}).splitlines()[4], flush=True)
    print("\n" + table(record))
    if not arguments.only:
        target = RESULTS / f"polar-{DEVICE.type}.json"
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(record, indent=1) + "\n")
        print(f"\nwritten to {target}")


if __name__ == "__main__":
    main()
