"""What does each method cost: the time and memory it adds to a training step, and how long a boundary takes?

    python benchmarks/methods.py                  # on what the machine has; writes benchmarks/results/methods-<device>.json
    python benchmarks/methods.py --add            # keeps the runs that are in it, and adds one
    python benchmarks/methods.py --only mlp       # one network, nothing written
    python benchmarks/methods.py --write-docs     # the tables of docs, from the committed records

The yardstick is a plain `learner.step` (Adam, batches of 256) in the same run. On the GPU whole steps are timed in blocks,
plain and with each method in turn, and medians compared: what the host adds while the device works counts as nothing, as it
does for a user. On the CPU, where a step of ResNet-18 takes seconds and its noise would drown the difference, the time spent
inside the method is taken: its hooks, and the gradient of its penalty. Units are mature from the first step on and what is
done every so many steps is done within the measured ones, so that all costs are seen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from polar import CUDA, DEVICE, RESULTS, duration, hardware, synchronise
from torch import Tensor, nn

import replastic as rp
from replastic import methods as m
from replastic.linalg.effective_rank import effective_rank, effective_rank_of_spectrum
from replastic.models import MLP, ResNet

PAGE = Path(__file__).parent.parent / "docs/performance.md"
BATCH = 256
STEPS_OF_A_TASK = 100 * 196  # 100 epochs of 50,000 images

NETWORKS: dict[str, tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": ("MLP 3x1000", lambda: MLP(784, [1000, 1000, 1000], 10), (784,)),
    "resnet18": ("ResNet-18", lambda: ResNet(), (3, 32, 32)),
}
AIM = 0.10  # of a plain step, for those marked so
STEP_METHODS: dict[str, tuple[Callable[[], Any], bool]] = {
    "SWR": (lambda: m.SWR(), True),
    "CBP": (lambda: m.CBP(maturity=0), True),
    "ReDo, every 100 steps": (lambda: m.ReDo(period=100), True),
    "SNR": (lambda: m.SNR(), True),
    "Hare & Tortoise": (lambda: m.HareAndTortoise(), True),
    "weight clipping": (lambda: m.WeightClipping(), True),
    "Normalize-and-Project": (lambda: m.NormalizeAndProject(), True),
    "L2": (lambda: m.L2(), True),
    "L2 Init": (lambda: m.L2Init(), True),
    "Parseval": (lambda: m.Parseval(), True),
    "noise each step": (lambda: m.PerturbEachStep(), False),
    "spectral": (lambda: m.SpectralRegularisation(), False),
    "Wasserstein": (lambda: m.WassersteinInit(), False),
    "ER, every 5 steps": (lambda: m.ER(every=5, layers=2), False),
    "L2-ER, every 5 steps": (lambda: m.l2_er(every=5, layers=2), False),
    "Muon": (lambda: m.UseMuon(), False),
}
BOUNDARY_METHODS: dict[str, Callable[[], Any]] = {
    "FIRE, published": lambda: m.FIRE(),
    "FIRE, exact": lambda: m.FIRE(method="exact"),
    "full reset": lambda: m.FullReset(),
    "layer reset": lambda: m.LayerReset(),
    "Shrink & Perturb": lambda: m.ShrinkAndPerturb(),
    "DASH, for 10 batches": lambda: m.DASH(),
    "Plasticity Injection": lambda: m.PlasticityInjection(),
}
EVERY = {"ReDo, every 100 steps": 100, "ER, every 5 steps": 5, "L2-ER, every 5 steps": 5}


class Bench:
    """A learner with one batch of data."""

    def __init__(self, network: str, methods: Any) -> None:
        _, build, shape = NETWORKS[network]
        torch.manual_seed(0)
        model = build().to(DEVICE)
        self.batches = [
            (torch.randn(BATCH, *shape, device=DEVICE), torch.randint(10, (BATCH,), device=DEVICE)) for _ in range(10)
        ]
        self.inputs, self.targets = self.batches[0]
        optimizer = torch.optim.Adam(model.parameters())
        loss = nn.functional.cross_entropy
        self.learner = rp.Learner(model, optimizer, methods=methods, build=build, loss=loss)
        self.task = rp.Task("next", lambda generator: self.batches, loss)
        self.learner.begin(self.task)

    def steps(self, count: int) -> float:
        """Seconds for so many steps."""
        synchronise()
        start = time.perf_counter()
        for step in range(count):
            self.learner.step(*self.batches[step % len(self.batches)])
        synchronise()
        return time.perf_counter() - start

    def boundary(self) -> float:
        synchronise()
        start = time.perf_counter()
        self.learner.begin(self.task)
        synchronise()
        return time.perf_counter() - start


def on_gpu(network: str, rounds: int, block: int) -> dict[str, Any]:
    """Added time of whole steps, and added peak memory."""
    made = {"plain": [], **{name: make() for name, (make, _) in STEP_METHODS.items() if applies(name, network)}}
    Bench(network, []).steps(3)  # libraries take memory of their own at the first call
    benches: dict[str, Bench] = {}
    memory: dict[str, int] = {}
    for name, methods in made.items():
        before = torch.cuda.memory_allocated()
        benches[name] = Bench(network, methods)
        benches[name].steps(block)  # convolutions try algorithms with large workspaces in their first steps
        torch.cuda.reset_peak_memory_stats()
        benches[name].steps(max(block, EVERY.get(name, 1)))
        memory[name] = torch.cuda.max_memory_allocated() - before
    seconds: dict[str, list[float]] = {name: [] for name in benches}
    for _ in range(rounds):
        for name, bench in benches.items():
            steps = max(block, EVERY.get(name, 1))
            seconds[name].append(bench.steps(steps) / steps)
    plain = statistics.median(seconds["plain"])
    return {
        "plain_ms": 1e3 * plain,
        "steps": {
            name: {
                "added": statistics.median(values) / plain - 1,
                "spread": (max(values) - min(values)) / plain,
                "added_mib": (memory[name] - memory["plain"]) / 2**20,
            }
            for name, values in seconds.items()
            if name != "plain"
        },
        "captured": captured(network, rounds, block),
    }


def captured(network: str, rounds: int, block: int) -> dict[str, float]:
    """The same within a captured CUDA graph, for the methods that can be."""
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    keep: list[Bench] = []
    for name, make in {"plain": lambda: [], **{n: f for n, (f, _) in STEP_METHODS.items()}}.items():
        if name != "plain" and (not applies(name, network) or not getattr(make(), "capturable", False)):
            continue
        bench = Bench(network, make())
        for group in bench.learner.optimizer.param_groups:
            group["capturable"] = True
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):  # pyright: ignore[reportArgumentType]
            bench.steps(3)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            bench.learner.step(bench.inputs, bench.targets)
        graphs[name] = graph
        keep.append(bench)
    seconds: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds + 1):
        for name, graph in graphs.items():
            synchronise()
            start = time.perf_counter()
            for _ in range(block):
                graph.replay()
            synchronise()
            seconds[name].append((time.perf_counter() - start) / block)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    return {"plain_ms": 1e3 * medians["plain"]} | {n: v / medians["plain"] - 1 for n, v in medians.items() if n != "plain"}


def on_cpu(network: str, rounds: int) -> dict[str, Any]:
    """Time spent inside each method, as a share of a plain step."""
    plain_bench = Bench(network, [])
    plain_bench.steps(1)
    plain_seconds = [plain_bench.steps(1) for _ in range(rounds)]
    rows: dict[str, dict[str, float]] = {}
    for name, (make, _) in STEP_METHODS.items():
        if not applies(name, network) or name == "Muon":
            continue
        bench = Bench(network, make())
        bench.steps(1)
        inside = [seconds_inside(bench, EVERY.get(name, 1)) for _ in range(rounds)]
        plain_seconds.append(plain_bench.steps(1))
        rows[name] = {"seconds": statistics.median(inside), "range": max(inside) - min(inside)}
    if "Muon" in STEP_METHODS:
        bench = Bench(network, STEP_METHODS["Muon"][0]())
        bench.steps(1)
        whole = [bench.steps(1) - plain_bench.steps(1) for _ in range(rounds)]
        rows["Muon"] = {"seconds": statistics.median(whole), "range": max(whole) - min(whole)}
    plain = statistics.median(plain_seconds)
    return {
        "plain_ms": 1e3 * plain,
        "steps": {name: {"added": r["seconds"] / plain, "spread": r["range"] / plain} for name, r in rows.items()},
    }


def seconds_inside(bench: Bench, every: int) -> float:
    """Of one step on average: the penalty with its gradient, and what comes after the step."""
    learner = bench.learner
    loss = learner.loss(rp.Batch(bench.inputs, bench.targets))
    learner.optimizer.zero_grad()
    loss.backward()  # fills the taps, and the gradients that a penalty's are added to
    start = time.perf_counter()
    penalty = learner.penalty()
    if isinstance(penalty, Tensor):
        penalty.backward()
    spent = time.perf_counter() - start
    learner.optimizer.step()
    activations = dict(learner.taps.inputs) if learner.taps is not None else {}
    for _ in range(every):
        if learner.taps is not None:
            learner.taps.inputs.update(activations)
        start = time.perf_counter()
        learner.after_step((bench.inputs, bench.targets))
        spent += (time.perf_counter() - start) / every
    return spent


def boundaries(network: str, rounds: int) -> dict[str, float]:
    """Milliseconds of a boundary."""
    found: dict[str, float] = {}
    for name, make in BOUNDARY_METHODS.items():
        seconds = []
        for turn in range(rounds + 1):
            bench = Bench(network, make())
            bench.steps(1)
            elapsed = bench.boundary()
            if turn:
                seconds.append(elapsed)
        found[name] = 1e3 * statistics.median(seconds)
    return found


def effective_ranks(rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of the effective rank of features and its gradient: by the smaller Gram matrix, and by an SVD."""

    def by_svd(features: Tensor) -> Tensor:
        return effective_rank_of_spectrum(torch.linalg.svdvals(features))

    found: dict[str, dict[str, float]] = {}
    for samples, width in ((100, 1000), (1280, 512), (1280, 1000)):
        features = torch.relu(torch.randn(samples, width, device=DEVICE)).requires_grad_()
        seconds: dict[str, list[float]] = {"gram": [], "svd": []}
        for _ in range(rounds + 1):
            for name, rank in (("gram", effective_rank), ("svd", by_svd)):
                synchronise()
                start = time.perf_counter()
                torch.autograd.grad(rank(features), [features])
                synchronise()
                seconds[name].append(time.perf_counter() - start)
        found[f"{samples} x {width}"] = {name: 1e3 * statistics.median(values[1:]) for name, values in seconds.items()}
    return found


def applies(name: str, network: str) -> bool:
    return not (name == "Normalize-and-Project" and network == "mlp")  # it needs norms


def table(record: dict[str, Any]) -> str:
    """Medians over runs, with their range: host and device are not the same from one run to the next."""
    runs = record["runs"]
    networks, ranks = runs[0]["networks"], runs[0]["effective_ranks"]
    titles = [network["title"] for network in networks.values()]
    made = runs[0]["hardware"]
    many = f", {len(runs)} runs: median (least to most)" if len(runs) > 1 else ""
    lines = [f"{made['device']}, torch {made['torch']}{many}:", ""]
    with_graphs = any("captured" in network for network in networks.values())
    heads = [h for title in titles for h in ([title, "in a graph", "MiB"] if with_graphs else [title])]
    lines += ["| added to a step | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    plain: list[str] = []
    for key in networks:
        plain.append(spread([run["networks"][key]["plain_ms"] for run in runs], duration))
        if with_graphs:
            plain += [spread([run["networks"][key]["captured"]["plain_ms"] for run in runs], duration), ""]
    lines.append("| a plain step | " + " | ".join(plain) + " |")
    for name, (_, aimed) in STEP_METHODS.items():
        cells: list[str] = []
        for key, network in networks.items():
            measured = name in network["steps"]
            rows = [run["networks"][key]["steps"][name] for run in runs] if measured else []
            cells.append(share([row["added"] for row in rows], aimed))
            if with_graphs:
                found = [run["networks"][key]["captured"].get(name) for run in runs]
                cells.append(share([added for added in found if added is not None], aimed))
                cells.append(f"{statistics.median(row['added_mib'] for row in rows):.0f}" if rows else "-")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| a boundary | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for name in BOUNDARY_METHODS:
        cells = []
        for key in networks:
            milliseconds = [run["networks"][key]["boundaries"][name] for run in runs]
            task = STEPS_OF_A_TASK * statistics.median(run["networks"][key]["plain_ms"] for run in runs)
            cells.append(f"{spread(milliseconds, duration)}, {100 * statistics.median(milliseconds) / task:.3f} %")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| effective rank and its gradient | " + " | ".join(ranks) + " |", "|---" * (len(ranks) + 1) + "|"]
    for how, title in (("gram", "smaller Gram matrix, float64"), ("svd", "SVD, float32")):
        times = [spread([run["effective_ranks"][size][how] for run in runs], duration) for size in ranks]
        lines.append(f"| {title} | " + " | ".join(times) + " |")
    return "\n".join(lines)


def share(added: list[float], aimed: bool) -> str:
    if not added:
        return "-"
    text = spread(added, lambda value: f"{100 * value:.1f} %")
    return f"**{text}**" if aimed and statistics.median(added) > AIM else text


def spread(values: list[float], shown: Callable[[float], str]) -> str:
    middle = shown(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({shown(min(values))} to {shown(max(values))})"


def rendered(text: str) -> str:
    """A page with what stands between its markers made anew from the records."""
    for kind in ("cpu", "cuda"):
        block = table(json.loads((RESULTS / f"methods-{kind}.json").read_text()))
        start, marker, rest = text.partition(f"<!-- methods-{kind} -->\n")
        if marker:
            text = start + marker + block + "\n" + rest[rest.index("<!-- end -->") :]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", choices=NETWORKS, help="networks to measure; writes no record")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block", type=int, default=20, help="steps that are timed together, on the GPU")
    parser.add_argument("--add", action="store_true", help="keep the runs that the record has, and add this one")
    parser.add_argument("--write-docs", action="store_true", help="only write the tables of docs")
    arguments = parser.parse_args()
    if arguments.write_docs:
        PAGE.write_text(rendered(PAGE.read_text()))
        return
    networks: dict[str, Any] = {}
    for key in arguments.only or NETWORKS:
        measured = on_gpu(key, arguments.rounds, arguments.block) if CUDA else on_cpu(key, arguments.rounds)
        networks[key] = {"title": NETWORKS[key][0], **measured, "boundaries": boundaries(key, 3 if CUDA else 2)}
        print(f"{NETWORKS[key][0]} done", flush=True)
    run = {"hardware": hardware(), "networks": networks, "effective_ranks": effective_ranks(arguments.rounds)}
    target = RESULTS / f"methods-{DEVICE.type}.json"
    before = json.loads(target.read_text())["runs"] if arguments.add and target.exists() else []
    record = {"command": "python benchmarks/methods.py", "batch": BATCH, "runs": [*before, run]}
    print("\n" + table(record))
    if not arguments.only:
        target.write_text(json.dumps(record, indent=1) + "\n")
        print(f"\nwritten to {target}")


if __name__ == "__main__":
    main()
