"""What it takes to inspect and fire a large checkpoint: time and memory, beside a copy and beside loading it whole.

    python benchmarks/checkpoint.py --size 1b --device cpu       # minutes on two cores
    python benchmarks/checkpoint.py --size 7b --device cuda      # writes 13.5 GB, twice
    python benchmarks/checkpoint.py --write-docs                 # the table in docs/performance.md, from committed records

The checkpoint has the names, shapes and shards of a Llama in bfloat16, and random numbers. Every arm is a process of its
own, and its memory is the most that it ever held, less what it held after importing torch and replastic.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/performance.md"
RESULTS = ROOT / "benchmarks/results"
SIZES = {  # hidden, intermediate, layers, vocabulary
    "tiny": (64, 160, 2, 100),
    "1b": (2048, 5504, 16, 32000),
    "7b": (4096, 11008, 32, 32000),
}
LAYERS_PER_SHARD = 8
ARMS = {
    "copy": "a copy of the files, and nothing else",
    "fire": "`replastic fire`, published",
    "exact": "`replastic fire --method exact`",
    "loaded": "the same by loading every shard whole, firing, saving",
    "inspect": "`replastic inspect`",
}


def write_checkpoint(folder: Path, size: str) -> None:
    import torch
    from safetensors.torch import save_file

    hidden, inner, layers, words = SIZES[size]
    shapes = {f"self_attn.{letter}_proj": (hidden, hidden) for letter in "qkvo"}
    shapes |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
    torch.manual_seed(0)
    folder.mkdir()
    where: dict[str, str] = {}
    shards = layers // min(LAYERS_PER_SHARD, layers)
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        held = {}
        for layer in range(number * layers // shards, (number + 1) * layers // shards):
            for name, shape in shapes.items():
                held[f"model.layers.{layer}.{name}.weight"] = (torch.randn(shape) * 0.02).bfloat16()
            held[f"model.layers.{layer}.input_layernorm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
        if number == 0:
            held["model.embed_tokens.weight"] = (torch.randn(words, hidden) * 0.02).bfloat16()
        if number == shards - 1:
            held["lm_head.weight"] = (torch.randn(words, hidden) * 0.02).bfloat16()
        save_file(held, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(held, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def run_arm(arm: str, path: Path, out: Path, device: str, steps: int) -> dict[str, Any]:
    """In a process of its own."""
    import torch

    import replastic as rp

    _ = rp.checkpoint  # names come when they are used, and their imports are not what is measured
    torch.zeros(1, device=device)
    before = _held("VmRSS")
    start = time.perf_counter()
    if arm == "copy":
        shutil.copytree(path, out)
    elif arm == "inspect":
        rp.checkpoint.inspect(path, device=device)
    elif arm == "loaded":
        _by_loading(path, out, device, steps)
    else:
        options: dict[str, Any] = {"method": "exact"} if arm == "exact" else {"steps": steps}
        rp.checkpoint.fire(path, out, device=device, **options)
    seconds = time.perf_counter() - start
    most = _held("VmHWM")
    return {"seconds": seconds, "bytes": most - before, "total": most}


def _held(what: str) -> int:
    """VmRSS: now; VmHWM: at most. Not getrusage, whose maximum may be that of the process that started this one."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise OSError("this benchmark reads memory from /proc, which is not there")


def _by_loading(path: Path, out: Path, device: str, steps: int) -> None:
    """What one would write: the same arithmetic on shards that are loaded whole."""
    from safetensors.torch import load_file, save_file

    import replastic as rp

    out.mkdir()
    for file in sorted(path.glob("*.safetensors")):
        held = load_file(file)
        for name, weight in held.items():
            if "_proj" in name or name == "lm_head.weight":
                factor = rp.linalg.polar(weight.to(device), method="published", steps=steps)
                weight.copy_(factor * (weight.shape[0] / weight.shape[1]) ** 0.5)
        save_file(held, out / file.name, metadata={"format": "pt"})


def measured(size: str, device: str, steps: int, arms: list[str], folder: str | None) -> dict[str, Any]:
    from replastic.record.provenance import provenance

    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=folder) as work:
        path = Path(work) / "model"
        subprocess.run([sys.executable, __file__, "--child", "write", str(path), "", "--size", size], check=True)
        total = sum(file.stat().st_size for file in path.iterdir())
        for arm in arms:
            out = Path(work) / arm
            command = [
                sys.executable,
                __file__,
                "--child",
                arm,
                str(path),
                str(out),
                "--device",
                device,
                "--steps",
                str(steps),
            ]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            figures[arm] = json.loads(done.stdout.splitlines()[-1])
            print(f"{arm:8} {figures[arm]['seconds']:8.1f} s {figures[arm]['bytes'] / 2**30:8.2f} GiB", flush=True)
            shutil.rmtree(out, ignore_errors=True)
    made = provenance()
    kept = {key: made[key] for key in ("cpu", "cpus", "gpu", "python", "torch") if key in made}
    largest = max(SIZES[size][1], SIZES[size][3]) * SIZES[size][0] * 2
    return {
        "size": size,
        "device": device,
        "steps": steps,
        "file": total,
        "largest": largest,
        "hardware": kept,
        "arms": figures,
    }


def rendered(text: str) -> str:
    """The page with its table made anew from the records."""
    rows = ["| checkpoint | on | arm | time | beside a copy | memory | with torch |", "|---" * 7 + "|"]
    for record in sorted(RESULTS.glob("checkpoint-*.json")):
        found = json.loads(record.read_text())
        copied = found["arms"]["copy"]["seconds"]
        for arm, figures in found["arms"].items():
            own, all_in_all = (f"{figures[key] / 2**30:.2f} GiB" for key in ("bytes", "total"))
            rows.append(
                f"| {found['size']}, {found['file'] / 2**30:.1f} GiB | {found['device']}, {found['steps']} step"
                f"{'s'[: found['steps'] != 1]} | {ARMS[arm]} | {figures['seconds']:.0f} s | "
                f"{figures['seconds'] / copied:.1f}x | {own} | {all_in_all} |"
            )
    start, end = "<!-- checkpoint -->\n", "<!-- end -->"
    head, _, rest = text.partition(start)
    return head + start + "\n".join(rows) + "\n" + end + rest.partition(end)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="1b")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--folder", help="where to write the files; else the system's place for such")
    parser.add_argument("--out", help="the record to write; else benchmarks/results/checkpoint-SIZE-DEVICE.json")
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write_docs:
        PAGE.write_text(rendered(PAGE.read_text()))
    elif given.child:
        arm, path, out = given.child
        if arm == "write":
            write_checkpoint(Path(path), given.size)
        else:
            print(json.dumps(run_arm(arm, Path(path), Path(out), given.device, given.steps)))
    else:
        found = measured(given.size, given.device, given.steps, given.arms, given.folder)
        record = Path(given.out) if given.out else RESULTS / f"checkpoint-{given.size}-{given.device}.json"
        record.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
