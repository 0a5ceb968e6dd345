"""The tables of docs that benchmarks/training.py measures, from its committed records."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from polar import RESULTS

PAGE = Path(__file__).parent.parent / "docs/performance.md"


def rendered(page: str) -> str:
    """The page with the tables of the committed records."""
    paths = [RESULTS / f"training-{kind}.json" for kind in ("cuda", "cpu")]
    tables = [table(json.loads(path.read_text())) for path in paths if path.exists()]
    before, _, rest = page.partition("<!-- training -->\n")
    _, end, after = rest.partition("<!-- end -->")
    return before + "<!-- training -->\n" + "\n\n".join(tables) + "\n" + end + after


def table(record: dict[str, Any]) -> str:
    on = record["hardware"]
    lines = [f"{on['device']}, torch {on['torch']}, {record['network']}, transforms by {record['transforms']}:", ""]
    lines += rates(record["images"])
    if "small" in record:
        lines += ["", "The same with the CNN of Soft Weight Rescaling:", "", *rates(record["small"])]
    lines += ["", "| permuted MNIST, batches of one | steps a second, all runs | against one alone |", "|---|---|---|"]
    alone = middle(record["online"]["alone, eager"]["steps a second"])[0]
    for name, way in record["online"].items():
        rate, spread = middle(way["steps a second"])
        lines.append(f"| {name} | {rate:,.0f} ({spread}) | **{rate / alone:.1f}x** |")
    return "\n".join(lines)


def rates(ways: dict[str, Any]) -> list[str]:
    crowd = next(name for name in ways if name.startswith("plain, "))
    lines = [f"| | images a second | against plain | against {crowd} | first epoch |", "|---|---|---|---|---|"]
    for name, way in ways.items():
        rate, spread = middle(way["images a second"])
        ratios = [rate / middle(ways[other]["images a second"])[0] for other in ("plain", crowd)]
        first = f"{way['first epoch, seconds']:.1f} s"
        lines.append(f"| {name} | {rate:,.0f} ({spread}) | **{ratios[0]:.2f}x** | {ratios[1]:.2f}x | {first} |")
    return lines


def middle(rates: list[float]) -> tuple[float, str]:
    return statistics.median(rates), f"{min(rates):,.0f} to {max(rates):,.0f}"
