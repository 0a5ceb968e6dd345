"""Write the tables and figures of docs/results.md, and those of README and docs/reproduce.md, from committed records.

python docs/results.py
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from replastic.record import Run, find_runs, read
from replastic.report import best, gather
from replastic.report.charts import chart
from replastic.report.contents import chapter
from replastic.report.curves import Moment
from replastic.report.estimates import holm, paired
from replastic.report.figures import draw
from replastic.report.summary import Summary, summarise, summary_lines

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "experiments/results"
PAGES = (ROOT / "docs/results.md", ROOT / "docs/reproduce.md", ROOT / "README.md")
ASSETS = ROOT / "docs/assets"


@dataclass(frozen=True)
class Table:
    """Arms of an experiment beside what their paper has. `published`: None for arms that it does not have."""

    records: str
    published: Mapping[str, float | None]
    digits: int = 3
    metric: str = "test_accuracy"


TABLES = {
    # Read off the paper's figure, to about .005.
    "warm-start-cifar10": Table(
        "fire-2a-cifar10",
        {"full reset": 0.847, "FIRE": 0.829, "FIRE, exact": None, "DASH": 0.826, "Parseval": 0.826, "S&P": 0.804,
         "L2 Init": 0.793, "Muon": 0.784, "SWR": None, "L2-ER": None, "ReDo": 0.779, "SNR": 0.775, "CBP": 0.775,
         "base": 0.778},
    ),
    "warm-start-cifar100": Table("fire-2a-cifar100", {"FIRE": 0.325, "base": 0.277}),
    "swr-table-1-mnist": Table(
        "swr-table-1-mnist", {"vanilla": 0.9789, "L2": 0.9795, "L2 Init": 0.9793, "SWR": 0.9822}, 4
    ),
    "swr-table-5-mnist": Table(
        "swr-table-5-mnist",
        {"vanilla": 0.9798, "L2": 0.9811, "L2 Init": 0.9811, "SWR": 0.9796, "SWR + re-init": 0.9829}, 4
    ),
}  # fmt: skip
RESET = ("base", "FIRE", "FIRE, exact", "FIRE, everything", "FIRE, everything, exact", "S&P", "DASH", "full reset")
SETTINGS = "fire-2a-cifar10-settings"
ITERATIONS = ("FIRE, steps=1", "FIRE, steps=5", "FIRE", "FIRE, steps=20", "FIRE, quintic", "FIRE, Muon's coefficients")
FIGURES: dict[str, tuple[Sequence[str], Moment, Sequence[str]]] = {  # records, moments, and which arms if not all
    "quick.png": (["quick"], "end", ()),
    "warm-start-cifar10.png": (["fire-2a-cifar10"], "last", ()),
    "iterations-cifar10.png": (["fire-5a-7-cifar10", "fire-2a-cifar10"], "last", ("base", "full reset", *ITERATIONS)),
    "alarm.png": (["watch-random-labels-mnist"], "end", ()),
}
BY_STEP = (1, 2, 3, 4, 5, 7, 10, 15, 20)
COSTS = {"S&P": (0.002, 27), "FIRE": (0.06, 55), "DASH": (69, 2834)}  # published: seconds and MB, on a TITAN RTX


@cache
def blocks() -> dict[str, list[str]]:
    """What stands between markers, line by line."""
    blocks = {name: lines(table) for name, table in TABLES.items()}
    blocks["swr-tested"] = tested(TABLES["swr-table-1-mnist"], "SWR", "vanilla")
    blocks["train-accuracy"] = train_accuracy("fire-2a-cifar10")
    blocks["after-the-reset"] = after_the_reset("fire-2a-cifar10")
    blocks["after-the-reset-in-training"] = after_the_reset("fire-5b-cifar10")
    blocks["after-the-reset-cifar100"] = after_the_reset("fire-2a-cifar100")
    blocks["iterations"] = iterations("fire-2a-cifar10", "fire-5a-7-cifar10")
    blocks["by-step"] = by_step("fire-6-cifar10")
    blocks["costs"] = costs()
    blocks["swr-figure-2-mnist"] = chosen("swr-figure-2-mnist")
    blocks["alarm"] = alarm("watch-random-labels-mnist")
    blocks["alarm-kept"] = alarm("watch-random-labels-mnist-kept")
    for kept in ("", "-kept"):
        blocks[f"alarm{kept}-moments"] = moments_of_alarms(f"watch-random-labels-mnist{kept}")
    blocks["settings"] = settings()
    blocks["times"] = times(folder.name for folder in sorted(RECORDS.iterdir()) if folder.is_dir())
    blocks["warm-start-short"] = short(TABLES["warm-start-cifar10"])
    blocks["quick"] = ["```text", *summary_lines(RECORDS / "quick")[0], "```"]
    return blocks


def rendered(text: str) -> str:
    """A page with what stands between its markers made anew."""
    for marker, block in blocks().items():
        start, end = f"<!-- {marker} -->\n", "<!-- end -->"
        before, found, after = text.partition(start)
        if found:
            text = f"{before}{start}" + "\n".join(block) + f"\n{end}{after.partition(end)[2]}"
    return text


def figure(name: str) -> bytes:
    """One picture, as the report draws it."""
    records, moment, wanted = FIGURES[name]
    studies = [gather([RECORDS / one])[0][0] for one in records]
    arms = {arm: runs for study in studies for arm, runs in study.arms.items() if not wanted or arm in wanted}
    study = replace(studies[0], arms=arms)
    shown = chart(study, study.metric, moment, "Accuracy", "mean")
    assert shown is not None
    with tempfile.TemporaryDirectory() as folder:
        paths = draw(shown, chapter(study).arms, Path(folder))
        return next(path for path in paths if path.suffix == ".png").read_bytes()


def lines(table: Table) -> list[str]:
    """Of each arm: published, here, over how many seeds, and how far single epochs swing."""
    found, digits = outcomes(table), table.digits
    rows = ["| | published | here | n | ± over seeds | last five epochs | the last | here - published |", "|---" * 8 + "|"]
    for arm, published in table.published.items():
        one = found[arm]
        spread = f"{one.spread:.{digits}f}" if len(one.last) > 1 else "-"
        told = [f"{published:.{digits}f}", f"{one.mean - published:+.{digits}f}"] if published is not None else ["-", "-"]
        low, high = swing(table, arm)
        rows.append(
            f"| {arm} | {told[0]} | **{one.mean:.{digits}f}** | {len(one.last)} | {spread} | "
            f"{low:.{digits}f} to {high:.{digits}f} | {mean(last_epoch(table, arm).values()):.{digits}f} | {told[1]} |"
        )
    return rows


def short(table: Table) -> list[str]:
    """The same in three lines: arms across."""
    found = outcomes(table)
    arms = [arm for arm, published in table.published.items() if published is not None]
    return [
        "| | " + " | ".join(arms) + " |",
        "|---" * (len(arms) + 1) + "|",
        "| published | " + " | ".join(f"{table.published[arm]:.3f}" for arm in arms) + " |",
        "| here | " + " | ".join(f"{found[arm].mean:.3f}" for arm in arms) + " |",
    ]


def outcomes(table: Table) -> dict[str, Summary]:
    """Every arm's end, by its name."""
    ((study,), problems) = gather([RECORDS / table.records], metric=table.metric)
    assert not problems, problems
    return {one.arm: one for one in summarise(study)}


def runs_in(records: str) -> list[Run]:
    """All of a folder's runs."""
    return [read(folder) for folder in find_runs(RECORDS / records)]


def of_one_seed(records: str) -> list[Run]:
    """Its runs but for shared first tasks, where tables are made for a single seed."""
    runs = [run for run in runs_in(records) if run.config["tasks"] is None]
    assert len({run.seed for run in runs}) == 1, f"{records} has several seeds now: have their means in its tables"
    return runs


def swing(table: Table, arm: str) -> tuple[float, float]:
    """The least and the most of the last five epochs, of all seeds."""
    rows = [row for run in runs_in(table.records) if run.arm == arm for row in run.rows[-5:]]
    return min(row[table.metric] for row in rows), max(row[table.metric] for row in rows)


def last_epoch(table: Table, arm: str) -> dict[int, float]:
    """What the last epoch alone says, by seed."""
    return {run.seed: run.rows[-1][table.metric] for run in runs_in(table.records) if run.arm == arm}


def tested(table: Table, arm: str, baseline: str) -> list[str]:
    """Whether an arm differs from the baseline, seed by seed; p is adjusted for all arms that could be compared so."""
    found, said = outcomes(table), []
    for over, figures in {
        "over the last five epochs": {name: dict(found[name].last) for name in table.published},
        "in the last epoch alone": {name: last_epoch(table, name) for name in table.published},
    }.items():
        others = {name: paired(figures[name], figures[baseline]) for name in table.published if name != baseline}
        adjusted = dict(zip(others, holm([one.p for one in others.values()]), strict=True))
        one = others[arm]
        said.append(f"{over} {one.mean:+.4f} (p = {one.p:.2f}, adjusted {adjusted[arm]:.2f})")
    return [f"{arm} against {baseline}, by a paired t-test over {one.n} seeds: " + "; ".join(said) + "."]


def after_the_reset(records: str) -> list[str]:
    """What is measured at the start of the second task."""
    rows = [
        "| right after | test accuracy | largest Hessian eigenvalue | DfI | SFE, all layers | SFE, mean over layers |",
        "|---|---|---|---|---|---|",
    ]
    reset = [run for run in of_one_seed(records) if run.arm in RESET]
    for run in sorted(reset, key=lambda run: RESET.index(run.arm)):
        start = start_of_second(run)
        found = start["measures"]
        moved = [value for name, value in found.items() if name.startswith("normalised_squared_frobenius_error/")]
        figures = (found[name] for name in ("hessian_top_eigenvalue", "deviation_from_isometry"))
        error = found["normalised_squared_frobenius_error"]
        shown = [
            f"{start['test_accuracy']:.2f}",
            *(f"{figure:.2g}" for figure in figures),
            f"{error:.2f}",
            f"{mean(moved):.2f}",
        ]
        rows.append("| " + " | ".join([run.arm, *shown]) + " |")
    return rows


def iterations(*records: str) -> list[str]:
    """FIRE by the number of steps and by coefficients: what comes out at the end, and how far from an isometry it began."""
    rows = ["| | here | last five epochs | right after the reset: DfI | SFE |", "|---|---|---|---|---|"]
    runs = {run.arm: run for one in records for run in of_one_seed(one)}
    for arm in ITERATIONS:
        last = [row["test_accuracy"] for row in runs[arm].rows[-5:]]
        found = start_of_second(runs[arm])["measures"]
        rows.append(
            f"| {arm if arm != 'FIRE' else 'FIRE, steps=10'} | **{mean(last):.3f}** | {min(last):.3f} to {max(last):.3f} | "
            f"{found['deviation_from_isometry']:.2g} | {found['normalised_squared_frobenius_error']:.3f} |"
        )
    return rows


def by_step(records: str) -> list[str]:
    """DfI and SFE after so many steps."""
    runs = {run.arm: start_of_second(run)["measures"] for run in of_one_seed(records)}
    shown = [runs[f"FIRE, steps={steps}"] for steps in BY_STEP]
    rows = ["| steps | " + " | ".join(map(str, BY_STEP)) + " |", "|---" * (len(BY_STEP) + 1) + "|"]
    for label, name, digits in (
        ("DfI", "deviation_from_isometry", ".2g"),
        ("SFE", "squared_frobenius_error", ".0f"),
        ("SFE, normalised", "normalised_squared_frobenius_error", ".3f"),
    ):
        rows.append(f"| {label} | " + " | ".join(f"{found[name]:{digits}}" for found in shown) + " |")
    return rows


def costs() -> list[str]:
    """Time and memory of a boundary, beside what is published."""
    rows = ["| | seconds, published | here | MB, published | here |", "|---|---|---|---|---|"]
    for line in map(json.loads, (RECORDS / "fire-table-1.jsonl").read_text().splitlines()):
        seconds, megabytes = COSTS[line["method"]]
        rows.append(f"| {line['method']} | {seconds} | {line['seconds']:.2g} | {megabytes} | {line['megabytes']:.0f} |")
    return rows


def start_of_second(run: Run) -> Mapping[str, Any]:
    """The row right after the first boundary."""
    return next(row for row in run.rows if (row["task"], row["epoch"]) == (1, 0))


def train_accuracy(records: str) -> list[str]:
    """Of each arm, in the last five epochs."""
    found = outcomes(Table(records, {}, metric="train_accuracy"))
    return ["| " + " | ".join(found) + " |", "|---" * len(found) + "|",
            "| " + " | ".join(f"{one.mean:.3f}" for one in found.values()) + " |"]  # fmt: skip


def settings() -> list[str]:
    """The points that were tried for arms without published settings."""
    chosen = {one.arm for one in best(RECORDS / SETTINGS).values()}
    rows = ["| | validation | test |", "|---|---|---|"]
    for run in runs_in(SETTINGS):
        if not run.config.get("grid"):
            continue
        means = [mean(row[f"{split}_accuracy"] for row in run.rows[-5:]) for split in ("validation", "test")]
        mark = "**" if run.arm in chosen else ""
        rows.append(f"| {mark}{run.arm}{mark} | " + " | ".join(f"{figure:.3f}" for figure in means) + " |")
    return rows


def chosen(records: str) -> list[str]:
    """Arms, and of those that are grids the point that held-out images choose."""
    points = {one.arm: (name, one.point) for name, one in best(RECORDS / records).items()}
    grids = {run.arm for run in runs_in(records) if run.config.get("grid")}
    rows = ["| | chosen of the grid | here | n | ± over seeds |", "|---|---|---|---|---|"]
    for name, one in outcomes(Table(records, {})).items():
        if name in points or name not in grids:
            arm, point = points.get(name, (name, {}))
            said = ", ".join(f"{key} {value:g}" for key, value in point.items()) or "-"
            rows.append(f"| {arm} | {said} | **{one.mean:.4f}** | {len(one.last)} | {one.spread:.4f} |")
    return rows


def alarm(records: str) -> list[str]:
    """FIRE told of boundaries, and told of none: accuracy at the ends of tasks."""
    alarms = json.loads((RECORDS / records / "alarms.json").read_text())
    rows = ["| | the last two tasks | ± over seeds | n | all tasks | the worst task | resets |", "|---" * 7 + "|"]
    found: dict[str, list[list[float]]] = {}
    for run in (run for run in runs_in(records) if run.config["tasks"] is None):
        last = {row["task"]: row["train_accuracy"] for row in run.rows}  # the last row of each task
        found.setdefault(run.arm, []).append([*last.values()])
    for arm, seeds in sorted(found.items(), key=lambda item: -mean(ends[-1] + ends[-2] for ends in item[1])):
        late, every = [mean(ends[-2:]) for ends in seeds], [end for ends in seeds for end in ends]
        resets = mean(len(steps) for steps in alarms[arm].values()) if arm in alarms else len(seeds[0]) - 1
        rows.append(
            f"| {arm} | **{mean(late):.3f}** | {stdev(late):.3f} | {len(late)} | {mean(every):.3f} | {min(every):.2f} | "
            f"{0 if arm == 'base' else resets:g} |"
        )
    return rows


def moments_of_alarms(records: str) -> list[str]:
    """How far into a task most alarms came."""
    (length,) = {
        run.rows[-1]["step"] // (run.rows[-1]["task"] + 1) for run in runs_in(records) if run.arm == "FIRE on alarm"
    }
    alarms = json.loads((RECORDS / records / "alarms.json").read_text())["FIRE on alarm"].values()
    within = Counter(step % length for steps in alarms for step in steps)
    ((moment, often),) = within.most_common(1)
    return [f"{often} of {within.total()} alarms came {moment} steps into a task."]


def times(folders: Iterable[str]) -> list[str]:
    """How long all runs of a folder took together: the time in which one of them, or several, went on."""
    rows = ["| records | runs | time | on |", "|---|---|---|---|"]
    for name in folders:
        runs = runs_in(name)
        starts = [datetime.fromisoformat(json.loads((run.folder / "run.json").read_text())["started"]) for run in runs]
        spans = sorted((start, start + timedelta(seconds=run.times[-1])) for start, run in zip(starts, runs, strict=True))
        went, until = timedelta(), spans[0][0]
        for start, end in spans:
            went += max(end - max(start, until), timedelta())
            until = max(until, end)
        minutes = went.total_seconds() / 60
        machines = {f"{run.provenance['gpu'] or run.provenance['cpu']}, torch {run.provenance['torch']}" for run in runs}
        rows.append(f"| `{name}` | {len(runs)} | {minutes:.0f} min | {'; '.join(sorted(machines))} |")
    return rows


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
    for name in FIGURES:
        (ASSETS / name).write_bytes(figure(name))
