"""What do measures cost: a product with the Hessian and a spectral density, compared with packages for them, and `watch`?

    python benchmarks/measures.py                 # on what the machine has; writes benchmarks/results/measures-<device>.json
    python benchmarks/measures.py --only mlp      # one case, nothing written
    python benchmarks/measures.py --write-docs    # the table of docs, from the committed records

curvlinops and hessian-eigenthings are taken if they can be imported, and the record says so if not; what they cannot do is
in the record as their error. All have the same network, data, dtype and settings of torch. Products are timed in turn within
each round and medians compared; the first round is left out. A density is order 100 from one random vector, as a user would
ask for it: setting up included, with reorthogonalisation here and in hessian-eigenthings, without in curvlinops. On CUDA
convolutions are in TF32, as is torch's default, for all; "here, IEEE" is without.

`watch` is timed in blocks of a hundred steps of Adam, one look in each, in turn with blocks without it.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from polar import CUDA, DEVICE, RESULTS, duration, hardware, synchronise
from torch import Tensor, nn

from replastic import watch
from replastic.measures.curvature import hessian, spectral_density
from replastic.measures.probe import Mode, Probe
from replastic.models import MLP, ResNet

PAGE = Path(__file__).parent.parent / "docs/performance.md"
ORDER = 100
OURS, REDONE, IEEE = "here", "here, graph redone", "here, IEEE"
LOSS = nn.CrossEntropyLoss()
LOOK_EVERY = 100
BATCH = {"cpu": 64, "cuda": 256}  # of the steps that are watched


@dataclass(frozen=True)
class Case:
    title: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    samples: int
    mode: Mode = "eval"


def small_resnet() -> nn.Module:
    return ResNet(widths=(8, 16, 32, 64), hidden=(64,))


CASES: dict[str, dict[str, Case]] = {
    "cuda": {
        "mlp": Case("MLP 3x1000", lambda: MLP(784, [1000] * 3, 10), (784,), 2000),
        "resnet-eval": Case("ResNet-18, norms in eval mode", lambda: ResNet(), (3, 32, 32), 2000),
        "resnet-train": Case("ResNet-18, norms in train mode", lambda: ResNet(), (3, 32, 32), 2000, "train"),
    },
    "cpu": {
        "mlp": Case("MLP 3x100", lambda: MLP(784, [100] * 3, 10), (784,), 2000),
        "resnet-eval": Case("ResNet-18 at 1/8 width, norms in eval mode", small_resnet, (3, 32, 32), 100),
        "resnet-train": Case("ResNet-18 at 1/8 width, norms in train mode", small_resnet, (3, 32, 32), 100, "train"),
    },
}

Product = Callable[[Tensor], Tensor]
Make = Callable[[nn.Module, tuple[Tensor, Tensor]], Any]  # an operator


def probe_of(model: nn.Module, data: tuple[Tensor, Tensor]) -> Probe:
    return Probe(model, data, loss=LOSS)


def curvlinops_operator(model: nn.Module, data: tuple[Tensor, Tensor]) -> Any:
    from curvlinops import HessianLinearOperator  # pyright: ignore[reportMissingImports]

    parameters = list(model.parameters())
    return HessianLinearOperator(model, LOSS, parameters, [data], check_deterministic=False)  # a check of two products


def curvlinops_density(operator: Any) -> None:
    from curvlinops.papyan2020traces.spectrum import (  # pyright: ignore[reportMissingImports]
        lanczos_approximate_spectrum,
    )

    lanczos_approximate_spectrum(operator, ORDER, boundaries=(-1.0, 1.0))  # given, so that it spends no products on them


def eigenthings_operator(model: nn.Module, data: tuple[Tensor, Tensor]) -> Any:
    from hessian_eigenthings import HessianOperator, supervised_loss  # pyright: ignore[reportMissingImports]

    return HessianOperator(model, [data], supervised_loss(LOSS))


def eigenthings_density(operator: Any) -> None:
    from hessian_eigenthings import spectral_density as theirs  # pyright: ignore[reportMissingImports]

    theirs(operator, num_runs=1, lanczos_steps=ORDER, seed=0)


# How to make an operator, multiply with it, and take a density of it.
WAYS: dict[str, tuple[Make, Callable[[Any], Product], Callable[[Any], object]]] = {
    OURS: (
        lambda model, data: hessian(probe_of(model, data)),
        lambda o: o.product,
        lambda o: spectral_density(o, order=ORDER),
    ),
    REDONE: (
        lambda model, data: hessian(probe_of(model, data), keep_graph=False),
        lambda o: o.product,
        lambda o: spectral_density(o, order=ORDER),
    ),
    "curvlinops": (curvlinops_operator, lambda o: lambda v: o @ v, curvlinops_density),
    "hessian-eigenthings": (eigenthings_operator, lambda o: o.matvec, eigenthings_density),
}
if CUDA:
    WAYS[IEEE] = (
        lambda model, data: hessian(probe_of(model, data), precision="ieee"),
        lambda o: o.product,
        lambda o: spectral_density(o, order=ORDER),
    )


def attempt(action: Callable[[], Any]) -> tuple[Any, str | None]:
    """What came of it, or what was said: peers may be missing, refuse a model, or run out of memory."""
    try:
        return action(), None
    except (ImportError, RuntimeError, ValueError, TypeError) as problem:
        return None, f"{type(problem).__name__}: {str(problem).partition(chr(10))[0][:200]}"


def seconds(action: Callable[[], object]) -> float:
    synchronise()
    start = time.perf_counter()
    action()
    synchronise()
    return time.perf_counter() - start


def measure(case: Case, rounds: int, block: int, density: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = case.build().to(DEVICE).train(case.mode == "train")
    data = (torch.randn(case.samples, *case.shape, device=DEVICE), torch.randint(10, (case.samples,), device=DEVICE))
    found = time_products(model, data, rounds, block)
    for name, way in found.items():
        if density and "product_ms" in way and name not in (REDONE, IEEE):
            way |= take_density(name, model, data)
    size = sum(parameter.numel() for parameter in model.parameters())
    return {"title": case.title, "parameters": size, "samples": case.samples, "ways": found}


def time_products(model: nn.Module, data: tuple[Tensor, Tensor], rounds: int, block: int) -> dict[str, dict[str, Any]]:
    vector = torch.randn(sum(parameter.numel() for parameter in model.parameters()), device=DEVICE)
    found: dict[str, dict[str, Any]] = {name: {} for name in WAYS}
    products: dict[str, Product] = {}
    results: dict[str, Tensor] = {}
    for name, (make, multiply, _) in WAYS.items():
        made, problem = attempt(lambda make=make, multiply=multiply: multiply(make(copy.deepcopy(model), data)))
        if problem is None:
            products[name] = made
            results[name], problem = attempt(lambda made=made: made(vector))
        if problem is not None:
            found[name]["problem"] = problem
            products.pop(name, None)
    times: dict[str, list[float]] = {name: [] for name in products}
    for _ in range(rounds + 1):
        for name, product in products.items():
            times[name].append(seconds(lambda product=product: [product(vector) for _ in range(block)]) / block)
    for name, (_, *values) in times.items():
        found[name]["product_ms"] = 1e3 * statistics.median(values)
        found[name]["spread"] = (max(values) - min(values)) / statistics.median(values)
        found[name]["differs"] = float((results[name] - results[OURS]).norm() / results[OURS].norm())
    return found


def take_density(name: str, model: nn.Module, data: tuple[Tensor, Tensor]) -> dict[str, Any]:
    make, _, take = WAYS[name]
    copied = copy.deepcopy(model)  # in train mode, peers write into the statistics of batch norms
    gc.collect()
    before = 0
    if CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    taken, problem = attempt(lambda: seconds(lambda: take(make(copied, data))))
    found: dict[str, Any] = {"density_s": taken} if problem is None else {"density_problem": problem}
    if CUDA:
        found["density_peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return found


def errors() -> dict[str, float | str]:
    """Of float32 products with a dense Hessian of 138 parameters, that in float64 by torch.func: ‖H - H*‖/‖H*‖."""
    torch.manual_seed(0)
    model = MLP(6, [8, 6], 4, activation="tanh").to(DEVICE)
    data = (torch.randn(50, 6, device=DEVICE), torch.randint(4, (50,), device=DEVICE))
    exact = copy.deepcopy(model).double()
    names = dict(exact.named_parameters())

    def loss(vector: Tensor) -> Tensor:
        pieces = vector.split([parameter.numel() for parameter in names.values()])
        moved = {name: piece.view(names[name].shape) for name, piece in zip(names, pieces, strict=True)}
        return LOSS(torch.func.functional_call(exact, moved, (data[0].double(),)), data[1])

    expected = torch.func.hessian(loss)(torch.cat([p.detach().flatten() for p in names.values()]))
    found: dict[str, float | str] = {}
    for name, (make, multiply, _) in WAYS.items():
        unit = torch.eye(len(expected), device=DEVICE)

        def columns(make: Make = make, multiply: Callable[[Any], Product] = multiply, unit: Tensor = unit) -> Tensor:
            product = multiply(make(model, data))
            return torch.stack([product(row) for row in unit])

        matrix, problem = attempt(columns)
        found[name] = float((matrix.double() - expected).norm() / expected.norm()) if problem is None else problem
    return found


def watched(case: Case, rounds: int) -> dict[str, float]:
    """What `watch` adds to a hundred steps, one look among them: the median over pairs of blocks, and their quartiles."""
    torch.manual_seed(0)
    batch = BATCH[DEVICE.type]
    data = (torch.randn(batch, *case.shape, device=DEVICE), torch.randint(10, (batch,), device=DEVICE))
    times: dict[bool, list[float]] = {False: [], True: []}
    models = {on: case.build().to(DEVICE) for on in times}
    optimizers = {on: torch.optim.Adam(model.parameters()) for on, model in models.items()}
    watcher = watch(models[True], every=LOOK_EVERY)

    inside: list[float] = []  # of should_restore, which waits for the device when it looks

    def steps(on: bool) -> None:
        for _ in range(LOOK_EVERY):
            optimizers[on].zero_grad()
            LOSS(models[on](data[0]), data[1]).backward()
            optimizers[on].step()
            if on:
                start = time.perf_counter()
                watcher.should_restore()
                inside[-1] += time.perf_counter() - start

    for _ in range(rounds + 1):
        inside.append(0.0)
        for on in times:
            times[on].append(seconds(lambda on=on: steps(on)))
    ratios = [with_it / plain for plain, with_it in zip(times[False][1:], times[True][1:], strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "step_ms": 1e3 * statistics.median(times[False][1:]) / LOOK_EVERY,
        "added": statistics.median(ratios) - 1,
        "spread": quarters[2] - quarters[0],
        "inside": statistics.median(spent / taken for spent, taken in zip(inside[1:], times[True][1:], strict=True)),
    }


def table(record: dict[str, Any]) -> str:
    made = record["hardware"]
    lines = [f"{made['device']}, torch {made['torch']}{record['precision']}:", ""]
    heads = list(dict.fromkeys(name for case in record["cases"].values() for name in case["ways"]))
    lines += ["| Hessian of | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for case in record["cases"].values():
        ways = case["ways"]
        title = f"{case['title']}, {case['samples']:,} samples"
        lines.append(f"| {title}: a product | " + " | ".join(cell(ways, name, "product_ms", 1) for name in heads) + " |")
        if any("density_s" in way for way in ways.values()):
            lines.append(f"| {title}: density | " + " | ".join(cell(ways, name, "density_s", 1e3) for name in heads) + " |")
        if any("density_peak_mib" in way for way in ways.values()):
            peaks = [f"{ways[name]['density_peak_mib']:,.0f} MiB" if "density_s" in ways[name] else "-" for name in heads]
            lines.append(f"| {title}: its peak memory | " + " | ".join(peaks) + " |")
    wrong = [f"{record['errors'][name]:.0e}" if isinstance(record["errors"][name], float) else "-" for name in heads]
    lines.append("| MLP of 138 parameters: relative error | " + " | ".join(wrong) + " |")
    if record["watch"]:
        lines += ["", "| `watch(model, every=100)` | a step | adds | between quartiles | inside |", "|---|---|---|---|---|"]
        for title, row in record["watch"].items():
            inside = f"{100 * row['inside']:.2f} %" if "inside" in row else "-"
            cells = [title, duration(row["step_ms"]), f"{100 * row['added']:.1f} %", f"{100 * row['spread']:.1f} %", inside]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(ways: dict[str, dict[str, Any]], name: str, key: str, to_ms: float) -> str:
    if key not in ways[name]:
        return "-"
    text = duration(to_ms * ways[name][key])
    return text if name == OURS or key not in ways[OURS] else f"{text}, **{ways[name][key] / ways[OURS][key]:.2f}x**"


def rendered(text: str) -> str:
    """A page with what stands between its markers made anew from the records."""
    start, marker, rest = text.partition("<!-- measures -->\n")
    if not marker:
        return text
    records = [RESULTS / f"measures-{kind}.json" for kind in ("cuda", "cpu")]
    block = "\n\n".join(table(json.loads(path.read_text())) for path in records if path.exists())
    return start + marker + block + "\n" + rest[rest.index("<!-- end -->") :]


def steps_of(cases: dict[str, Case]) -> list[Case]:
    return [
        replace(case, title=case.title.partition(",")[0] + f", batches of {BATCH[DEVICE.type]}")
        for case in cases.values()
        if case.mode == "eval"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    cases = CASES[DEVICE.type]
    parser.add_argument("--only", nargs="*", choices=cases, help="cases to measure; writes no record")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--block", type=int, default=5 if CUDA else 1, help="products that are timed together")
    parser.add_argument("--watch-rounds", type=int, default=15, help="pairs of blocks for `watch`")
    parser.add_argument("--only-watch", action="store_true", help="measure `watch` and put it into the record that is there")
    parser.add_argument("--no-density", action="store_true", help="products alone; writes no record")
    parser.add_argument("--write-docs", action="store_true", help="only write the table of docs")
    arguments = parser.parse_args()
    if arguments.write_docs:
        PAGE.write_text(rendered(PAGE.read_text()))
        return
    target = RESULTS / f"measures-{DEVICE.type}.json"
    if arguments.only_watch:
        record = json.loads(target.read_text())
        record["watch"] = {case.title: watched(case, arguments.watch_rounds) for case in steps_of(cases)}
        target.write_text(json.dumps(record, indent=1) + "\n")
        print(table(record))
        return
    measured: dict[str, Any] = {}
    for key in arguments.only or cases:
        measured[key] = measure(cases[key], arguments.rounds, arguments.block, not arguments.no_density)
        gc.collect()
        print(f"{cases[key].title} done", flush=True)
    record = {
        "command": "python benchmarks/measures.py",
        "hardware": hardware(),
        "precision": ", convolutions in TF32, which is torch's default, unless said" if CUDA else "",
        "order": ORDER,
        "cases": measured,
        "errors": errors(),
        "watch": {} if arguments.only else {case.title: watched(case, arguments.watch_rounds) for case in steps_of(cases)},
    }
    print("\n" + table(record))
    for case in measured.values():
        for name, way in case["ways"].items():
            for key in ("problem", "density_problem"):
                if key in way:
                    print(f"{case['title']}, {name}: {way[key]}")
    if not arguments.only and not arguments.no_density:
        target.write_text(json.dumps(record, indent=1) + "\n")
        print(f"\nwritten to {target}")


if __name__ == "__main__":
    main()
