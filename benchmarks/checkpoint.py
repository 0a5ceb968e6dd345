"""What it takes to inspect and fire a large checkpoint: time and memory, compared with a copy and with loading it whole.

    python benchmarks/checkpoint.py --size 1b --device cpu       # minutes on two cores
    python benchmarks/checkpoint.py --size 7b --device cuda      # writes 13.5 GB, twice
    python benchmarks/checkpoint.py --size 0.4b --steps 1 --parts 5    # where the time of `replastic fire` goes, five times
    python benchmarks/checkpoint.py --write-docs                 # the tables in docs/performance.md, from committed records

The checkpoint has the names, shapes and shards of a Llama in bfloat16, and random numbers. Every arm is a process of its
own, and its memory is the most that it ever held, less what it held after importing torch and replastic.

With `--parts`, functions of the package are wrapped in timers. A part's time is what is spent in its functions and in no
function of another part that they call; on a GPU a part ends when the GPU has finished. A plain copy of the files is
timed in the same process, before and after.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/performance.md"
RESULTS = ROOT / "benchmarks/results"
SIZES = {  # hidden, intermediate, layers, vocabulary
    "tiny": (64, 160, 2, 100),
    "0.4b": (1536, 4096, 12, 32000),
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
REST = "the rest"
# A part of `replastic fire`, and the functions that it is spent in: a module or class, and names of which the first that is
# there is taken.
PARTS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "open the files, and find the layers": (
        ("replastic.checkpoint.firing", ("open_checkpoint",)),
        ("replastic.checkpoint.firing", ("skeleton",)),
    ),
    "read everything, and search it for NaN": (("replastic.checkpoint.firing", ("faults_of", "not_finite")),),
    "copy the files": (("shutil", ("copy",)),),
    "read the weights": (("replastic.checkpoint.stored:Stored", ("read",)),),
    "to the device and back": (("replastic.checkpoint.firing", ("_project",)),),
    "project": (
        ("replastic.checkpoint.firing", ("project_",)),
        ("replastic.weights.project:Account", ("figures",)),
    ),
    "write the weights, and wait for the disk": (
        ("replastic.checkpoint.stored:Stored", ("write",)),
        ("os", ("fsync",)),
    ),
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


class Timers:
    """Seconds by part, while wrapped functions run. The clock of one part stands while another runs within it."""

    def __init__(self, synchronise: Callable[[], object]) -> None:
        self.seconds = dict.fromkeys((*PARTS, REST), 0.0)
        self.synchronise = synchronise
        self.running = [REST]
        self.since = time.perf_counter()

    def lap(self) -> None:
        """Book what has passed on the part that runs."""
        self.synchronise()
        now = time.perf_counter()
        self.seconds[self.running[-1]] += now - self.since
        self.since = now

    def wrap(self, owner: Any, name: str, part: str) -> None:
        real = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            self.lap()
            self.running.append(part)
            try:
                return real(*arguments, **options)
            finally:
                self.lap()
                self.running.pop()

        setattr(owner, name, timed)


def wrapped() -> Iterator[tuple[str, Any, str]]:
    """Every function of `PARTS`: its part, and what holds it by what name."""
    for part, places in PARTS.items():
        for place, names in places:
            module, _, held = place.partition(":")
            owner: Any = importlib.import_module(module)
            owner = getattr(owner, held) if held else owner
            there = [name for name in names if hasattr(owner, name)]
            if not there:
                raise AttributeError(f"{place} has none of {names}: write in PARTS what it is called now")
            yield part, owner, there[0]


def run_parts(path: Path, out: Path, device: str, steps: int) -> dict[str, float]:
    """In a process of its own: seconds of `fire` by part, and of a copy of the files."""
    import torch

    import replastic as rp

    fire = rp.checkpoint.fire
    torch.zeros(1, device=device)
    copies = [_seconds_of_a_copy(path, out.with_name("before"))]
    timers = Timers(torch.cuda.synchronize if device.startswith("cuda") else lambda: None)
    for part, owner, name in wrapped():
        timers.wrap(owner, name, part)
    timers.lap()
    timers.seconds[REST] = 0.0
    fire(path, out, device=device, steps=steps)
    timers.lap()
    copies.append(_seconds_of_a_copy(path, out.with_name("after")))
    return {**timers.seconds, "whole": sum(timers.seconds.values()), "copy": statistics.mean(copies)}


def _seconds_of_a_copy(path: Path, out: Path) -> float:
    start = time.perf_counter()
    shutil.copytree(path, out, copy_function=shutil.copyfile)
    seconds = time.perf_counter() - start
    shutil.rmtree(out)
    return seconds


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
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=folder) as work:
        path, total = _written(Path(work), size)
        for arm in arms:
            figures[arm] = _child(arm, path, Path(work) / arm, device, steps)
            print(f"{arm:8} {figures[arm]['seconds']:8.1f} s {figures[arm]['bytes'] / 2**30:8.2f} GiB", flush=True)
    largest = max(SIZES[size][1], SIZES[size][3]) * SIZES[size][0] * 2
    return {
        "size": size,
        "device": device,
        "steps": steps,
        "file": total,
        "largest": largest,
        "hardware": _hardware(),
        "arms": figures,
    }


def measured_parts(size: str, device: str, steps: int, runs: int, folder: str | None) -> dict[str, Any]:
    made, loads = [], []
    with tempfile.TemporaryDirectory(dir=folder) as work:
        path, total = _written(Path(work), size)
        for number in range(runs):
            loads.append([round(load, 2) for load in os.getloadavg()])
            made.append(_child("parts", path, Path(work) / "parts", device, steps))
            print(f"{number + 1} of {runs}: {made[-1]['whole']:.1f} s", flush=True)
    return {
        "command": f"python benchmarks/checkpoint.py --size {size} --device {device} --steps {steps} --parts {runs}",
        "size": size,
        "device": device,
        "steps": steps,
        "file": total,
        "hardware": _hardware(),
        "loads": loads,  # of the machine over 1, 5 and 15 minutes, as each run begins
        "runs": made,
    }


def _written(work: Path, size: str) -> tuple[Path, int]:
    """Where the checkpoint is, and its bytes."""
    path = work / "model"
    subprocess.run([sys.executable, __file__, "--child", "write", str(path), "", "--size", size], check=True)
    return path, sum(file.stat().st_size for file in path.iterdir())


def _child(arm: str, path: Path, out: Path, device: str, steps: int) -> dict[str, Any]:
    """What a process of its own measures."""
    command = [sys.executable, __file__, "--child", arm, str(path), str(out), "--device", device, "--steps", str(steps)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    shutil.rmtree(out, ignore_errors=True)
    return json.loads(done.stdout.splitlines()[-1])


def _hardware() -> dict[str, Any]:
    from replastic.record.provenance import provenance

    made = provenance()
    return {key: made[key] for key in ("cpu", "cpus", "gpu", "python", "torch") if key in made}


def rendered(text: str) -> str:
    """The page with its tables made from the records."""
    return _replaced(_replaced(text, "checkpoint", _arms_table()), "fire-parts", _parts_table())


def _arms_table() -> list[str]:
    rows = ["| checkpoint | on | arm | time | against a copy | memory | with torch |", "|---" * 7 + "|"]
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
    return rows


def _parts_table() -> list[str]:
    rows = ["| part of `replastic fire` | median | least to most | share, median |", "|---" * 4 + "|"]
    for record in sorted(RESULTS.glob("fire-parts-*.json")):
        runs = json.loads(record.read_text())["runs"]
        for part in (*PARTS, REST, "whole"):
            seconds = [run[part] for run in runs]
            share = statistics.median(run[part] / run["whole"] for run in runs)
            rows.append(
                f"| {part} | {statistics.median(seconds):.2f} s | {min(seconds):.2f} s to {max(seconds):.2f} s | "
                f"{100 * share:.1f} % |"
            )
        copies = [run["copy"] for run in runs]
        rows.append(
            f"| a copy of the files, and nothing else | {statistics.median(copies):.2f} s | {min(copies):.2f} s to "
            f"{max(copies):.2f} s | |"
        )
    return rows


def _replaced(text: str, marker: str, rows: list[str]) -> str:
    start, end = f"<!-- {marker} -->\n", "<!-- end -->"
    head, _, rest = text.partition(start)
    return head + start + "\n".join(rows) + "\n" + end + rest.partition(end)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="1b")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--folder", help="where to write the files; else the system's place for such")
    parser.add_argument("--parts", type=int, metavar="N", help="measure where the time of `replastic fire` goes, N times")
    parser.add_argument("--out", help="the record to write; else checkpoint-SIZE-DEVICE.json or fire-parts-DEVICE.json")
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write_docs:
        PAGE.write_text(rendered(PAGE.read_text()))
    elif given.child:
        arm, path, out = given.child
        if arm == "write":
            write_checkpoint(Path(path), given.size)
        elif arm == "parts":
            print(json.dumps(run_parts(Path(path), Path(out), given.device, given.steps)))
        else:
            print(json.dumps(run_arm(arm, Path(path), Path(out), given.device, given.steps)))
    elif given.parts:
        found = measured_parts(given.size, given.device, given.steps, given.parts, given.folder)
        _save(found, given.out or RESULTS / f"fire-parts-{given.device}.json")
    else:
        found = measured(given.size, given.device, given.steps, given.arms, given.folder)
        _save(found, given.out or RESULTS / f"checkpoint-{given.size}-{given.device}.json")


def _save(found: dict[str, Any], record: str | Path) -> None:
    Path(record).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
