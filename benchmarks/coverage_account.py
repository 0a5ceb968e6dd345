"""What the records of coverage.py say: what was reached and what was not, in tables and in words. Needs no torch."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs/performance.md"
START, END = "<!-- coverage -->\n", "<!-- end -->"

Row = dict[str, Any]


def in_a_line(problem: BaseException) -> str:
    text = re.sub(r"/[^ ']*?/site-packages/", "", " ".join(str(problem).split()))  # a record is of no one machine
    return f"{type(problem).__name__}: {text[:200]}"


def verdicts(row: Row) -> dict[str, bool]:
    """Of one row, what was reached."""
    single, half = row.get("float32", {}), row.get("bfloat16", {})
    return {
        "built": "not_built" not in row,
        "fired": "fired" in single and "fired" in half,
        "DfI ok": "fired" in single and not single["over"],
        "DfI ok, bfloat16": "fired" in half and not half["over"],
        "nothing silent": "fired" in single and not single["skips"] and not half.get("skips"),
        "kept": bool(single.get("kept") and half.get("kept")),
        "units found": "groups" in row.get("units", {}),
        "takes inputs": row.get("inputs") == "ok",
        "diagnosed": "findings" in row.get("diagnosis", {}),
    }


def problems(row: Row) -> list[tuple[str, str]]:
    """(group, detail) of everything that did not succeed."""
    if "not_built" in row:
        return [("does not build small", row["not_built"])]
    found: list[tuple[str, str]] = []
    if "ended" in row:
        found.append(("ENDED from outside, of time or memory", row["ended"]))
    for step in ("float32", "bfloat16", "units", "diagnosis"):
        result = row.get(step, {})
        if "crash" in result:
            found.append((f"CRASH in {step}", result["crash"]))
        if "error" in result:
            found.append((f"{step}: says that it cannot", result["error"]))
    for step in ("float32", "bfloat16"):
        result = row.get(step, {})
        found += [(f"SILENT SKIP in {step}", skip) for skip in result.get("skips", [])[:3]]
        if result.get("over"):
            found.append(
                (f"DfI/n of {step} over the aim", f"{result['worst']:.2g} of {result['of']}, {result['over']} weights")
            )
        if "kept" in result and not result["kept"]:
            found.append((f"{step}: storage, dtype or ties were not kept", ""))
    if row.get("inputs", "ok") != "ok":
        found.append(("no inputs that it takes were found", row["inputs"]))
    return found


def brief(row: Row) -> str:
    found = [group for group, _ in problems(row)]
    return f"{row['name']} {sum(row['seconds'].values()):.1f} s {'; '.join(found) or 'ok'}"


def table(records: Iterable[dict[str, Any]]) -> str:
    columns = list(verdicts({}))
    lines = [f"| source | tried | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for record in records:
        reached = [verdicts(row) for row in record["rows"]]
        counts = [str(sum(each[column] for each in reached)) for column in columns]
        lines.append(f"| {record['source']} | {len(reached)} | {' | '.join(counts)} |")
    return "\n".join(lines)


def worst(rows: Iterable[Row], dtype: str) -> Row | None:
    """The row with the largest DfI/n; one that is no number is the largest."""
    done = [row for row in rows if "fired" in row.get(dtype, {})]
    return max(done, key=lambda row: (math.isnan(row[dtype]["worst"]), row[dtype]["worst"]), default=None)


def account(record: dict[str, Any]) -> str:
    """Why weights were left alone, the worst deviations, and each failure in one line, by group."""
    rows = [row for row in record["rows"] if "not_built" not in row]
    lines = [f"{record['source']} {record['versions'].get(record['source'], '')}, {record['machine']}"]
    for dtype in ("float32", "bfloat16"):
        if (row := worst(rows, dtype)) is not None:
            found = row[dtype]
            lines.append(f"worst DfI/n in {dtype}: {found['worst']:.2g}, {row['name']}: {found['of']}")
    done = [row["float32"] for row in rows if "fired" in row.get("float32", {})]
    null = [found for found in done if found["null"]]
    lines.append(f"weights fired: {sum(f['fired'] for f in done)}, with null directions {sum(f['null'] for f in null)}")
    reasons: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for found in done:
        reasons.update(found["reasons"])
        unknown.update({name.partition(" ")[0]: count for name, count in found["unknown"].items()})
    lines.append(f"weights left alone: {sum(reasons.values())}")
    lines += [f"  {count:>6}  {reason}" for reason, count in reasons.most_common()]
    lines.append(
        "modules that are not known, by what they hold: " + ", ".join(f"{n} {c}" for n, c in unknown.most_common(40))
    )
    groups: dict[str, list[tuple[str, str]]] = {}
    for row in record["rows"]:
        for group, detail in problems(row):
            groups.setdefault(group, []).append((row["name"], detail))
    for group, listed in sorted(groups.items()):
        models = len({name for name, _ in listed})
        lines += ["", f"{group}: {models} model{'s'[: models != 1]}"]
        lines += [f"  {name}: {detail}" for name, detail in listed]
    return "\n".join(lines)


def write(record: dict[str, Any], target: Path) -> None:
    """A line for each model, so that two records can be compared."""
    rows = ",\n".join(f"  {json.dumps(row)}" for row in record["rows"])
    head = json.dumps({key: value for key, value in record.items() if key != "rows"}, indent=1)
    target.write_text(f'{head[:-2]},\n "rows": [\n{rows}\n ]\n}}\n')


def rendered(text: str) -> str:
    """The page with the table of the committed records."""
    head, start, rest = text.partition(START)
    _, end, tail = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the page has no place for the table: write {START.strip()} and below it {END}, each on a line")
    reached = {
        "built": "built",
        "fired": "fired",
        "DfI ok": "DfI ok, float32",
        "DfI ok, bfloat16": "DfI ok, bfloat16",
        "nothing silent": "nothing silent",
        "kept": "storage kept",
        "units found": "units found",
    }
    heads = ["source", "machine", "tried", *reached.values(), "diagnosed, of those that take inputs", "worst DfI/n, float32"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for path in sorted(RESULTS.glob("coverage-*.json")):
        record = json.loads(path.read_text())
        rows, missing = record["rows"], len(record.get("not looked at", []))
        found = [verdicts(row) for row in rows]
        most = worst(rows, "float32")
        cells = [
            f"{record['source']} {record['versions'].get(record['source'], '')}".strip(),
            record["machine"],
            f"{len(rows)} of {len(rows) + missing} looked at" if missing else str(len(rows)),
            *(str(sum(each[what] for each in found)) for what in reached),
            diagnosed(record),
            f"{most['float32']['worst']:.1g}" if most else "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return head + START + "\n".join(lines) + "\n" + END + tail


def diagnosed(record: dict[str, Any]) -> str:
    """Of how many models that take inputs `diagnose` came to an end; a record may have run it on some of them only."""
    if "--quick" in record["command"].split():
        return "-"
    run = [row for row in record["rows"] if "diagnosis" in row or row.get("ended", "").endswith("in diagnose")]
    without = sum(verdicts(row)["takes inputs"] and "diagnosis" not in row for row in record["rows"])
    counts = f"{sum(verdicts(row)['diagnosed'] for row in run)} of {len(run)}"
    return f"{counts}, not run on {without}" if without else counts
