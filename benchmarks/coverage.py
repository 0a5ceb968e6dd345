"""Over how many architectures do `fire_`, `find_units` and `diagnose` do what they say, and why not over the others?

    python benchmarks/coverage.py                              # what can be imported; a record for each source
    python benchmarks/coverage.py --source transformers        # one of transformers, timm, torchvision
    python benchmarks/coverage.py --only 'llama*' --jobs 1     # some of it, nothing written unless with --json FILE
    python benchmarks/coverage.py --write-docs                 # the table in docs/performance.md, from committed records

Of Transformers, every type that AutoModel knows, from its default configuration made small: all widths divided by one
factor, few layers and experts, a small vocabulary, small images. A type that builds from none of the factors, or is not
small then, is counted as not built, with the error. Of timm the smallest model of each module, of torchvision of each
family; none has pretrained weights. Inputs are made from what the model says of them; a model that takes none of those tried
is looked at without inputs, and `diagnose` is not counted against it. `diagnose` compares with one new network here instead
of five, which take most of its time.

What is checked of each model:

    crash           an exception that is no error of replastic's own (one that its code raises as ValueError or TypeError)
    silent skip     a parameter of two or more axes, no bias, that is neither fired nor in `report.left_alone`; one that is
                    listed as fired and was not, or only in part; one that was changed and is not listed
    kept            storage, strides, dtype, shape and ties of all parameters
    DfI/n           ‖WᵀW/s² - I‖²/n of the worst matrix, computed here in float64 from the weights as stored: below 1e-6 in
                    float32. In bfloat16 rounding alone gives up to (2u + u²·sqrt(n))², u = 2⁻⁸, about 6e-5: below the sum.
                    Null directions of a matrix (most are zero at initialisation) stay null and are left out; such weights
                    are counted.

Each model has its own time limit, and on the CPU a limit on memory; both are enforced from outside.

coverage_models.py makes the models, coverage_processes.py keeps the limits, coverage_account.py says what records hold.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import fnmatch
import math
import os
import platform
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from coverage_account import PAGE, RESULTS, Row, account, in_a_line, rendered, table, write
from coverage_models import SOURCES, Built, Inputs, NotBuilt
from coverage_processes import run, work
from torch import Tensor, nn

from replastic import diagnose, find_units, fire_
from replastic.diagnosis import diagnosis as health
from replastic.weights import select
from replastic.weights.select import WeightMatrix

AIM = 1e-6  # of DfI/n in float32
UNIT = {torch.float32: 0.0, torch.bfloat16: 2.0**-8}  # unit roundoff; float32's own, 2⁻²⁴, is far below the aim


def examine(built: Built, tell: Callable[[str], None] = lambda stage: None, quick: bool = False) -> Row:
    """All checks of one model; `tell` is called before each, so that a killed process leaves word of where it was."""
    model = built.model.float().eval()
    size = sum(parameter.numel() for parameter in model.parameters())
    row: Row = {"parameters": size, "note": built.note, "inputs": built.problem or "ok"}
    tell("units")
    row["units"] = outcome(lambda: units_of(model, built.inputs))
    if built.inputs is not None and not quick:
        tell("diagnose")
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with patch.object(health, "_DRAWS", 1):
            row["diagnosis"] = outcome(lambda: {"findings": len(diagnose(model, built.inputs).findings)})
        changed = [name for name, tensor in model.state_dict().items() if not same(tensor, before[name])]
        if changed:
            row["diagnosis"] = {"crash": f"diagnose changed {changed[0]}"}
    half = copy.deepcopy(model).to(torch.bfloat16)
    tell("fire")
    row["float32"] = outcome(lambda: fired(model))
    tell("fire in bfloat16")
    row["bfloat16"] = outcome(lambda: fired(half))
    return row


def outcome(action: Callable[[], Row]) -> Row:
    """What came of it; else, under "error", what replastic says is wrong, or, under "crash", any other exception."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return action()
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        own = "replastic" in Path(where.filename).parts and (where.line or "").startswith("raise")
        if own and isinstance(problem, ValueError | TypeError):
            return {"error": in_a_line(problem)}
        return {"crash": f"{in_a_line(problem)} (at {Path(where.filename).name}:{where.lineno})"}


def units_of(model: nn.Module, inputs: Inputs | None) -> Row:
    found = find_units(model, inputs)
    return {"groups": len(found.groups), "left_out": len(found.left_out), "units": sum(group.size for group in found.groups)}


@torch.no_grad()
def fired(model: nn.Module) -> Row:
    """What exact FIRE does to a model, in place, checked against the model itself and not only against the report."""
    named = dict(model.named_parameters(remove_duplicate=False))
    before = {name: tensor.clone() for name, tensor in [*named.items(), *model.named_buffers()]}
    shapes, ties = storage(model), tied(named)
    chosen = select(model).chosen
    report = fire_(model, method="exact")
    skips = silent_skips(named, before, report, ties)
    left = {holder for weight in report.left_alone for holder in held_by(weight.name, named)}
    changed = [name for name, buffer in model.named_buffers() if not same(buffer, before[name])]
    skips += [f"{name}: a buffer, was changed" for name in changed]
    figures = deviations(chosen)
    reasons = Counter(general(weight.reason) for weight in report.left_alone)
    unknown = Counter(
        f"{match[1]}.{weight.name.rpartition('.')[2]} {weight.shape}"
        for weight in report.left_alone
        if (match := re.match(r"belongs to (\w+),", weight.reason)) and sum(size > 1 for size in weight.shape) > 1
    )
    return {
        "fired": len(report.layers),
        "left_alone": sum(reasons.values()),
        "left_entries": sum(named[name].numel() for name in left),
        "reasons": dict(reasons),
        "unknown": dict(unknown.most_common(12)),
        "skips": skips,
        "kept": storage(model) == shapes and tied(dict(model.named_parameters(remove_duplicate=False))) == ties,
        **figures,
    }


def storage(model: nn.Module) -> list[tuple[object, ...]]:
    return [
        (name, id(p), p.data_ptr(), p.dtype, tuple(p.shape), p.stride(), p.requires_grad)
        for name, p in model.named_parameters(remove_duplicate=False)
    ]


def tied(named: dict[str, nn.Parameter]) -> dict[str, list[str]]:
    """For each parameter, all names of its memory."""
    by_memory: dict[tuple[object, ...], list[str]] = {}
    for name, parameter in named.items():
        by_memory.setdefault((parameter.data_ptr() or id(parameter), parameter.numel()), []).append(name)
    return {name: names for names in by_memory.values() for name in names}


def silent_skips(
    named: dict[str, nn.Parameter], before: dict[str, Tensor], report: Any, ties: dict[str, list[str]]
) -> list[str]:
    """Parameters of which a report does not say what happened to them, each with what is wrong."""
    entries: Counter[str] = Counter()  # of each parameter, how many the report says were fired
    was_isometry: set[str] = set()
    for layer in report.layers:
        whole = layer.name.partition(":")[0]
        entries[whole] += layer.matrices * math.prod(layer.shape)
        if layer.dfi_before < AIM or layer.sfe_normalised < AIM:
            was_isometry.add(whole)
    left = {holder for weight in report.left_alone for holder in held_by(weight.name, named)}
    problems: list[str] = []
    for name, parameter in named.items():
        names = ties[name]
        listed = [other for other in names if other in entries]
        alone = any(other in left for other in names)
        equal = same(parameter, before[name])
        nonzero = bool(before[name].any())
        if listed and equal and nonzero and not was_isometry.intersection(listed):
            problems.append(f"{name}: is listed as fired, and was not changed")
        if not listed and not equal:
            problems.append(f"{name}: is not listed as fired, and was changed")
        if listed and sum(entries[other] for other in listed) < parameter.numel() and not alone:
            problems.append(f"{name}: {sum(entries[other] for other in listed)} of {parameter.numel()} entries are listed")
        bias = "bias" in name.rpartition(".")[2]
        if parameter.ndim >= 2 and not bias and not listed and not alone:
            problems.append(f"{name}: neither fired nor listed as left alone")
    return problems


def held_by(listed: str, named: Iterable[str]) -> list[str]:
    """The parameters behind a name in a report: itself without its part, or what a parametrised weight is computed from."""
    whole = listed.partition(":")[0]
    module, dot, attribute = whole.rpartition(".")
    made_from = f"{module}{dot}parametrizations.{attribute}.", f"{whole}_"
    return [whole] if whole in named else [name for name in named if name.startswith(made_from)]


def deviations(chosen: Iterable[WeightMatrix]) -> Row:
    """The worst DfI/n of all matrices, how many weights are over the aim, and how many have null directions."""
    worst, of, null, over = 0.0, "", 0, 0
    for weight in chosen:
        stack = weight.stack()
        matrix = stack.gather().double()
        matrix = matrix.reshape(-1, *matrix.shape[-2:]) / weight.scale_of(stack)
        matrix = matrix.mT if matrix.shape[-2] < matrix.shape[-1] else matrix
        n = matrix.shape[-1]
        gram = matrix.mT @ matrix
        full = gram.diagonal(dim1=-2, dim2=-1).sum(-1) > n - 0.5  # each null direction takes one from an isometry's trace
        off = (gram - torch.eye(n, dtype=gram.dtype, device=gram.device)).square().sum((-2, -1)) / n
        off = torch.where(full, off, off_but_for_null(gram)) if not full.all() else off
        null += not bool(full.all())
        value = float(off.max())
        u = UNIT[weight.parameter.dtype]
        over += not value <= AIM + (2 * u + u * u * math.sqrt(n)) ** 2
        if not (math.isnan(worst) or value <= worst):
            worst, of = value, weight.name
    return {"worst": worst, "of": of, "null": null, "over": over}


def off_but_for_null(gram: Tensor) -> Tensor:
    """DfI/n of matrices that FIRE leaves null in some directions: squares of singular values are to be 0 or 1, not all 0."""
    squares = torch.linalg.eigvalsh(gram)
    off = torch.where(squares > 0.5, (squares - 1).square(), squares.square()).mean(-1)
    untouched = (squares.amax(-1) <= 0.5) & (gram != 0).any(-1).any(-1)
    return torch.where(untouched, torch.inf, off)


def same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(
        torch.equal(one, other) or (torch.equal(one.isnan(), other.isnan()) and bool(((one == other) | one.isnan()).all()))
    )


def general(reason: str) -> str:
    """A reason without the names in it, for counting."""
    reason = re.sub(r"^belongs to \w+,", "belongs to a module,", reason)
    reason = re.sub(r"tied to \S+:", "tied to an embedding:", reason)
    return re.sub(r"(projection|query_key_value) of \w+,", r"\1 of a module,", reason)


def look_at(source: str, name: str, device: str, tell: Callable[[str], None], quick: bool) -> Row:
    """One row: build and examine a model."""
    times: dict[str, float] = {}

    def stage(what: str) -> None:
        times[what] = time.perf_counter()
        tell(what)

    stage("build")
    row: Row = {"name": name}
    try:
        built = SOURCES[source].build(name, torch.device(device))
    except NotBuilt as problem:
        row["not_built"] = str(problem)
    else:
        row |= examine(built, stage, quick)
    ends = [*list(times.values())[1:], time.perf_counter()]
    return row | {"seconds": {what: round(end - at, 1) for (what, at), end in zip(times.items(), ends, strict=True)}}


def covered(source: str, names: list[str], device: str, jobs: int, limit: float, quick: bool = False) -> list[Row]:
    """A row for each name, in order."""
    command = [sys.executable, __file__, "--source", source, "--device", device, "--work", *["--quick"] * quick]
    return run(names, lambda name, tell: look_at(source, name, device, tell, quick), command, jobs, limit)


def versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("torch", "transformers", "timm", "torchvision"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found | {"python": platform.python_version()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--source", choices=SOURCES, help="without it, all that can be imported")
    parser.add_argument("--only", metavar="PATTERN", help="names to look at, as in 'llama*'; writes no record")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--jobs", type=int, default=min(os.cpu_count() or 1, 8), help="processes; 0: all in this one, no limits"
    )
    parser.add_argument("--limit", type=float, default=60, help="seconds for one model")
    parser.add_argument(
        "--quick", action="store_true", help="without diagnose, which takes most of the time; writes no record"
    )
    parser.add_argument("--json", type=Path, help="where to write the record; with several sources, of the last one")
    parser.add_argument("--write-docs", action="store_true", help="only write the table of docs")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        torch.set_num_threads(1)
        source, device, quick = arguments.source, arguments.device, arguments.quick
        work(lambda name, tell: look_at(source, name, device, tell, quick), limited=device == "cpu")
        return
    if arguments.write_docs:
        PAGE.write_text(rendered(PAGE.read_text()))
        return
    records: list[dict[str, Any]] = []
    for source in [arguments.source] if arguments.source else SOURCES:
        try:
            import_module(source)
            names = SOURCES[source].names()
        except Exception as problem:  # a torchvision of another torch's build fails with a RuntimeError
            print(f"{source} is left out, for it cannot be imported: {in_a_line(problem)}")
            continue
        names = [name for name in names if fnmatch.fnmatchcase(name, arguments.only or "*")]
        start = time.perf_counter()
        rows = covered(source, names, arguments.device, arguments.jobs, arguments.limit, arguments.quick)
        on = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else f"{arguments.jobs} CPU processes"
        record = {
            "command": f"python benchmarks/coverage.py --source {source}{' --quick' * arguments.quick}",
            "source": source,
            "versions": versions(),
            "machine": f"{on}, {platform.machine()}",
            "seconds": round(time.perf_counter() - start),
            "not looked at": [name for name in names if name not in {row["name"] for row in rows}],
            "rows": rows,
        }
        records.append(record)
        target = arguments.json or (None if arguments.only or arguments.quick else RESULTS / f"coverage-{source}.json")
        if target is not None:
            write(record, target)
            print(f"written to {target}")
    for record in records:
        print("\n" + account(record))
    print("\n" + table(records))


if __name__ == "__main__":
    main()
