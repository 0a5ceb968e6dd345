"""How long a report of many runs takes, and how large its page is: 200 runs of 1,000 rows each.

    python benchmarks/report.py                # a minute, most of it to write the records
    python benchmarks/report.py --write-docs   # the table in docs/performance.md, from the committed record

Beside it stands the least that any report must do: to parse the rows.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from replastic.record import Record
from replastic.record.provenance import provenance
from replastic.report import report

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/performance.md"
RESULT = ROOT / "benchmarks/results/report-cpu.json"
ARMS, SEEDS, TASKS, EPOCHS = 20, 10, 100, 9  # with the boundary's, 1,000 rows a run
MEASURES = ("dormant_fraction", "effective_rank", "deviation_from_isometry", "hessian_top_eigenvalue")
AIM_SECONDS, AIM_MB = 20, 10


def write_run(out: Path, arm: int, seed: int) -> None:
    """Figures that look like those of a run: they fall from task to task, arms by different amounts, with noise."""
    draw = random.Random(f"{arm} {seed}")
    methods = [{"name": "redo", "threshold": 0.01 * arm}] if arm else []
    config = {"data": {"name": "none"}, "methods": methods, "training": {}, "tasks": None, "grid": None}
    about = {"name": "Two hundred runs", "metric": "test_accuracy", "tasks": TASKS, "epochs": EPOCHS}
    name = f"arm {arm}" if arm else "base"
    with Record.open(out / name / f"seed-{seed}", config=config, seed=seed, arm=name, about=about) as record:
        for task in range(TASKS):
            for epoch in range(EPOCHS + 1):
                level = 0.9 - 0.004 * task * (1 - arm / ARMS) - 0.5 * math.exp(-epoch)
                row: dict[str, Any] = {"task": task, "epoch": epoch, "step": 50 * (task * EPOCHS + epoch)}
                for split in ("train", "test"):
                    row[f"{split}_accuracy"] = level + draw.gauss(0, 0.02)
                if epoch:
                    row |= {"loss": 1.5 - level, "online_accuracy": level + draw.gauss(0, 0.02)}
                if epoch in (0, EPOCHS):
                    row["measures"] = {measure: draw.random() for measure in MEASURES}
                record.add(row)
        record.end("finished")


def seconds_to_parse(out: Path) -> float:
    start = time.perf_counter()
    for path in out.glob("*/*/rows.jsonl"):
        for line in path.read_text().splitlines():
            json.loads(line)
    return time.perf_counter() - start


def measured(rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "runs"
        for arm in range(ARMS):
            for seed in range(SEEDS):
                write_run(out, arm, seed)
        times, parsing, page = [], [], Path()
        for number in range(rounds):
            parsing.append(seconds_to_parse(out))
            start = time.perf_counter()
            page = report(out, Path(folder) / f"page-{number}").page
            times.append(time.perf_counter() - start)
            print(f"report {times[-1]:.1f} s; parsing alone {parsing[-1]:.1f} s")
        size = page.stat().st_size / 1e6
        figures = sum(path.stat().st_size for path in page.parent.rglob("*") if path.is_file()) / 1e6
    print(f"page {size:.2f} MB; with figures and tables {figures:.1f} MB")
    made = provenance()
    hardware = {key: made[key] for key in ("cpu", "cpus", "python", "numpy")}
    return {"hardware": hardware, "seconds": times, "parsing": parsing, "page MB": size, "all MB": figures}


def rendered(page: str) -> str:
    """The page with the table of the committed record."""
    record = json.loads(RESULT.read_text())
    times, parsing = record["seconds"], record["parsing"]
    shown = f"{sorted(times)[len(times) // 2]:.1f} s ({min(times):.1f} to {max(times):.1f})"
    lines = [
        f"{record['hardware']['cpu']}, {record['hardware']['cpus']} cores, {len(times)} rounds:",
        "",
        "| 200 runs of 1,000 rows | measured | aim |",
        "|---|---|---|",
        f"| the whole report | {shown} | below {AIM_SECONDS} s |",
        f"| to parse the rows, alone | {sorted(parsing)[len(parsing) // 2]:.1f} s | |",
        f"| the page | {record['page MB']:.1f} MB | below {AIM_MB} MB |",
        f"| with figures and tables | {record['all MB']:.1f} MB | |",
    ]
    before, _, rest = page.partition("<!-- report -->\n")
    return before + "<!-- report -->\n" + "\n".join(lines) + "\n<!-- end -->" + rest.partition("<!-- end -->")[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write-docs", action="store_true")
    given = parser.parse_args()
    if given.write_docs:
        PAGE.write_text(rendered(PAGE.read_text()))
        return
    RESULT.write_text(json.dumps(measured(given.rounds), indent=1) + "\n")


if __name__ == "__main__":
    main()
