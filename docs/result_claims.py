"""The table of all claims, from claims.toml. What an entry says of records, arms, seeds and tests is checked.

An entry of claims.toml is one claim of a paper:

    id        F1 to F41 of FIRE, E1 to E27 of Spectral Collapse, S1 to S25 of SWR
    claim     what the paper says, shortened
    of        the paper's evidence, linked to `page` if there is one
    verdict   one of VERDICTS
    scale     one of SCALES
    found     what decides the verdict; its decimal numbers stand on the page, or in the tests
    runs      of which records it is: each record in `in` has `n` seeds of each of `arms`; of "one | other", which is one arm
              under two names, all of them together have n
    tests     FILE::NAME of tests that settle it
    files     other records, for example of benchmarks
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from result_lines import RECORDS, as_row, head, packed

from replastic.record import find_runs
from replastic.record.reading import read_run

ROOT = Path(__file__).parent.parent
VERDICTS = {
    "holds": "the records or tests agree with it, at the scale that is named",
    "holds in part": "some of its statements or settings hold; others do not, or were not run",
    "does not hold": "the records or tests are against it, at the scale that is named",
    "open": "something was run, and it cannot decide",
    "false as printed": "a counterexample is a test; a corrected statement is proved and tested",
    "not run": "there is no record",
}
SCALES = ("paper's size", "shortened", "substituted", "theory", "cost", "-")
PAPERS = {"F": "FIRE", "E": "Spectral collapse", "S": "SWR"}
MOST_WORDS = 25  # in a cell


@cache
def claims() -> list[dict[str, Any]]:
    """All entries, checked."""
    entries = tomllib.loads((ROOT / "docs/claims.toml").read_text())["claim"]
    wrong = [f"{entry['id']}: {problem}" for entry in entries for problem in problems(entry)]
    assert not wrong, "claims.toml is not what records and tests say:\n" + "\n".join(wrong)
    return entries


def problems(entry: Mapping[str, Any]) -> Iterator[str]:
    """What an entry says that is not so."""
    if entry["verdict"] not in VERDICTS:
        yield f"verdict = {entry['verdict']!r}: write one of {', '.join(VERDICTS)}"
    if entry["scale"] not in SCALES:
        yield f"scale = {entry['scale']!r}: write one of {', '.join(SCALES)}"
    settled = any(entry.get(kind) for kind in ("runs", "tests", "files"))
    if settled == (entry["verdict"] == "not run") or settled == (entry["scale"] == "-"):
        given = f"verdict = {entry['verdict']!r}, scale = {entry['scale']!r}"
        yield f"{given}, and {'some' if settled else 'no'} records or tests"
    if entry["verdict"] == "false as printed" and not entry.get("tests"):
        yield "false as printed needs the test with the counterexample"
    for runs in entry.get("runs", []):
        yield from wrong_runs(runs["in"], runs["arms"], runs["n"])
    for test in entry.get("tests", []):
        file, _, name = test.partition("::")
        if not (ROOT / file).is_file() or f"\ndef {name}(" not in (ROOT / file).read_text():
            yield f"there is no test {test}"
    for file in entry.get("files", []):
        if not (ROOT / file).is_file():
            yield f"there is no file {file}"


def strays(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Decimal numbers in "found" that are neither on the linked page nor in a test. For pages that are written."""
    return [
        f"{entry['id']}: {number} is not on the page of the claim, nor in its tests"
        for entry in entries
        for number in decimals(entry.get("found", ""))
        if number not in known_numbers(entry)
    ]


def known_numbers(entry: Mapping[str, Any]) -> set[float]:
    """The decimal numbers of what an entry refers to."""
    pages = [f"docs/{entry['page'].partition('#')[0]}"] if "page" in entry else []
    tests = [test.partition("::")[0] for test in entry.get("tests", [])]
    return {number for source in (*pages, *tests) for number in written_in(source)}


@cache
def written_in(file: str) -> frozenset[float]:
    """The decimal numbers of a file; none if there is no such file."""
    return frozenset(decimals((ROOT / file).read_text()) if (ROOT / file).is_file() else [])


def decimals(text: str) -> list[float]:
    """Numbers with a point: 1.5, .5, 0.500 and 2.5e5, without their sign."""
    return [float(number) for number in re.findall(r"(?<![\w.])\d*\.\d+(?:e[+-]?\d+)?", text)]


def wrong_runs(records: Sequence[str], arms: Sequence[str], n: int) -> Iterator[str]:
    """What records do not have of these arms."""
    missing = [record for record in records if not recorded(record)]
    if missing:
        yield f"there is no record {', '.join(missing)} in experiments/results"
        return
    for arm in arms:
        names = arm.split(" | ")
        for group in [records] if len(names) > 1 else [[record] for record in records]:
            found = {seed for record in group for name in names for seed in recorded(record).get(name, ())}
            if len(found) != n:
                yield f"n = {n}, but {', '.join(group)} has {len(found)} seeds of {arm}"


@cache
def recorded(record: str) -> Mapping[str, set[int]]:
    """The seeds of each arm of a record; of a script's record, its trials. Empty if there is no such record."""
    found: dict[str, set[int]] = {}
    if packed(record).is_file():
        for run in map(read_run, find_runs(packed(record))):
            if run["config"]["tasks"] is None:  # else a first task that arms share
                found.setdefault(run["arm"], set()).add(run["seed"])
    elif (RECORDS / f"{record}.jsonl").is_file():
        for line in map(json.loads, (RECORDS / f"{record}.jsonl").read_text().splitlines()):
            if "trials" in line:
                found[line["method"]] = set(range(line["trials"]))
            else:
                found.setdefault("proportional" if line["proportional"] else "alike", set()).add(line["seed"])
    return found


def blocks() -> dict[str, list[str]]:
    """What docs/claims.md takes from here."""
    found = {f"claims-{paper.lower().replace(' ', '-')}": table(letter) for letter, paper in PAPERS.items()}
    return found | {"claims-counted": counted(), "claims-verdicts": meanings()}


def table(letter: str) -> list[str]:
    """The claims of one paper."""
    rows = head(["", "claim", "paper", "verdict", "n", "scale", "found here", "settled by"])
    for entry in claims():
        if entry["id"].startswith(letter):
            of = f"[{entry['of']}]({entry['page']})" if "page" in entry else entry["of"]
            cells = [entry["id"], entry["claim"], of, f"**{entry['verdict']}**", seeds(entry), entry["scale"]]
            rows.append(as_row([*cells, entry.get("found", "-"), settled_by(entry)]))
    return rows


def seeds(entry: Mapping[str, Any]) -> str:
    """How many seeds each of an entry's arms has, most first."""
    return ", ".join(map(str, sorted({runs["n"] for runs in entry.get("runs", [])}, reverse=True))) or "-"


def settled_by(entry: Mapping[str, Any]) -> str:
    """The names of records, tests and files."""
    records = dict.fromkeys(record for runs in entry.get("runs", []) for record in runs["in"])
    tests = [test.partition("::")[2] for test in entry.get("tests", [])]
    files = [Path(file).name for file in entry.get("files", [])]
    return ", ".join(f"`{name}`" for name in (*records, *tests, *files)) or "-"


def counted() -> list[str]:
    """How many claims of each paper have which verdict."""
    found = Counter((entry["id"][0], entry["verdict"]) for entry in claims())
    rows = head(["", *VERDICTS, "all"])
    for letter, paper in PAPERS.items():
        numbers = [found[letter, verdict] for verdict in VERDICTS]
        rows.append(as_row([paper, *(f"{number}" for number in (*numbers, sum(numbers)))]))
    numbers = [sum(found[letter, verdict] for letter in PAPERS) for verdict in VERDICTS]
    return [*rows, as_row(["all", *(f"{number}" for number in (*numbers, sum(numbers)))])]


def meanings() -> list[str]:
    """What each verdict says."""
    return [*head(["verdict", "what it says"]), *(as_row([f"**{name}**", what]) for name, what in VERDICTS.items())]


def words(cell: str) -> int:
    """How many words a reader sees in a cell of a table: links count by their text, and a name counts as one word."""
    return len(re.sub(r"\]\([^)]*\)", "]", cell).split())
