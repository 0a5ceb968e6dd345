"""Lines of tables, from committed records; docs/results.py says which go where."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import correlation, mean, stdev
from typing import Any

from replastic.record import Run, find_runs, read
from replastic.report import best, gather
from replastic.report.curves import Moment, points_of
from replastic.report.estimates import Difference, holm, paired
from replastic.report.summary import Summary, summarise

RECORDS = Path(__file__).parent.parent / "experiments/results"
RESET = ("base", "FIRE", "FIRE, exact", "FIRE, everything", "FIRE, everything, exact", "S&P", "DASH", "full reset")
ITERATIONS = ("FIRE, steps=1", "FIRE, steps=5", "FIRE", "FIRE, steps=20", "FIRE, quintic", "FIRE, Muon's coefficients")
BY_STEP = (1, 2, 3, 4, 5, 7, 10, 15, 20)
COSTS = {"S&P": (0.002, 27), "FIRE": (0.06, 55), "DASH": (69, 2834)}  # published: seconds and MB, on a TITAN RTX
MOVED = "normalised_squared_frobenius_error"
SPANS = ((1, 10), (31, 40), (71, 80), (91, 100))  # tasks, counted from 1


@dataclass(frozen=True)
class Table:
    """Arms of an experiment beside what their paper has. `published`: None for arms that it does not have."""

    records: str
    published: Mapping[str, float | None]
    digits: int = 3
    metric: str = "test_accuracy"


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
    """The same in a few lines: arms across."""
    found = outcomes(table)
    arms = [arm for arm, published in table.published.items() if published is not None]
    return [
        "| | " + " | ".join(arms) + " |",
        "|---" * (len(arms) + 1) + "|",
        "| published | " + " | ".join(f"{table.published[arm]:.3f}" for arm in arms) + " |",
        "| here | " + " | ".join(f"{found[arm].mean:.3f}" for arm in arms) + " |",
        "| seeds here | " + " | ".join(f"{len(found[arm].last)}" for arm in arms) + " |",
    ]


def outcomes(table: Table) -> dict[str, Summary]:
    """Every arm's end, by its name."""
    ((study,), problems) = gather([RECORDS / table.records], metric=table.metric)
    assert not problems, problems
    return {one.arm: one for one in summarise(study)}


def runs_in(records: str) -> list[Run]:
    """All of a folder's runs."""
    return [read(folder) for folder in find_runs(RECORDS / records)]


def arms_in(*records: str, stopped: bool = False) -> dict[str, list[Run]]:
    """The runs of each arm, but for first tasks that arms share. stopped: also those that have not ended."""
    arms: dict[str, list[Run]] = {}
    for run in (run for one in records for run in runs_in(one) if run.config["tasks"] is None):
        assert stopped or run.status == "finished", run.folder
        assert run.seed not in [other.seed for other in arms.get(run.arm, [])], f"{run.arm}, seed {run.seed}: twice"
        arms.setdefault(run.arm, []).append(run)
    return arms


def swing(table: Table, arm: str) -> tuple[float, float]:
    """The least and the most of the last five epochs, of all seeds."""
    rows = [row for run in runs_in(table.records) if run.arm == arm for row in run.rows[-5:]]
    return min(row[table.metric] for row in rows), max(row[table.metric] for row in rows)


def last_epoch(table: Table, arm: str) -> dict[int, float]:
    """What the last epoch alone says, by seed."""
    return {run.seed: run.rows[-1][table.metric] for run in runs_in(table.records) if run.arm == arm}


def tested(table: Table, arm: str, baseline: str) -> list[str]:
    """Whether an arm differs from the baseline, seed by seed; p is adjusted for all arms that could be compared so."""
    said, others = [], [name for name in table.published if name != baseline]
    for over, figures in {
        "over the last five epochs": ends(table),
        "in the last epoch alone": {name: last_epoch(table, name) for name in table.published},
    }.items():
        one, adjusted = compared({name: (figures[name], figures[baseline]) for name in others})[arm]
        said.append(f"{over} {one.mean:+.4f} (p = {one.p:.2f}, adjusted {adjusted:.2f})")
    return [f"{arm} against {baseline}, by a paired t-test over {one.n} seeds: " + "; ".join(said) + "."]


def against(figures: Mapping[str, Mapping[int, float]], arm: str, others: Iterable[str], digits: int) -> list[str]:
    """How an arm differs from others, seed by seed; p is adjusted for their number."""
    found = compared({other: (figures[arm], figures[other]) for other in others})
    told = [f"{other} {one.mean:+.{digits}f} (p = {adjusted:.2g})" for other, (one, adjusted) in found.items()]
    (seeds,) = {one.n for one, _ in found.values()}
    return [f"{arm} against {', '.join(told)}; paired t-tests over {seeds} seeds, adjusted for {len(told)} comparisons."]


def compared(pairs: Mapping[str, tuple[Mapping[int, float], Mapping[int, float]]]) -> dict[str, tuple[Difference, float]]:
    """Of each pair its difference, seed by seed, and p as adjusted for all of them."""
    found = {name: paired(*pair) for name, pair in pairs.items()}
    return dict(zip(found, zip(found.values(), holm([one.p for one in found.values()]), strict=True), strict=True))


def ends(table: Table) -> dict[str, dict[int, float]]:
    """What every arm comes to over its last five epochs, by seed."""
    return {name: dict(one.last) for name, one in outcomes(table).items()}


def after_the_reset(records: str) -> list[str]:
    """What is measured at the start of the second task; means over seeds."""
    rows = [
        "| right after | n | test accuracy | largest Hessian eigenvalue | DfI | SFE, all layers | SFE, mean over layers |",
        "|---" * 7 + "|",
    ]
    arms = arms_in(records)
    for arm in (arm for arm in RESET if arm in arms):
        starts = [start_of_second(run) for run in arms[arm]]
        found = [start["measures"] for start in starts]
        moved = [value for one in found for name, value in one.items() if name.startswith(f"{MOVED}/")]
        shown = [
            f"{len(starts)}",
            f"{mean(start['test_accuracy'] for start in starts):.2f}",
            *(f"{mean(one[name] for one in found):.2g}" for name in ("hessian_top_eigenvalue", "deviation_from_isometry")),
            *(f"{mean(values):.2f}" for values in ([one[MOVED] for one in found], moved)),
        ]
        rows.append("| " + " | ".join([arm, *shown]) + " |")
    return rows


def iterations(*records: str) -> list[str]:
    """FIRE by the number of steps and by coefficients: what comes out at the end, and how far from an isometry it began.

    With the seeds alone that all of them have.
    """
    rows = ["| | here | n | last five epochs | right after the reset: DfI | SFE |", "|---" * 6 + "|"]
    arms = arms_in(*records)
    seeds = set.intersection(*({run.seed for run in arms[arm]} for arm in ITERATIONS))
    arms = {arm: [run for run in arms[arm] if run.seed in seeds] for arm in ITERATIONS}
    for arm in ITERATIONS:
        last = [row["test_accuracy"] for run in arms[arm] for row in run.rows[-5:]]
        found = [start_of_second(run)["measures"] for run in arms[arm]]
        rows.append(
            f"| {arm if arm != 'FIRE' else 'FIRE, steps=10'} | **{mean(last):.3f}** | {len(found)} | {min(last):.3f} to "
            f"{max(last):.3f} | {mean(one['deviation_from_isometry'] for one in found):.2g} | "
            f"{mean(one[MOVED] for one in found):.3f} |"
        )
    return rows


def renamed(names: Mapping[str, Iterable[str]], *records: str) -> dict[str, dict[int, Run]]:
    """Runs by what an arm is called here, and by seed. names: what each is called in the records."""
    found, arms = arms_in(*records), dict[str, dict[int, Run]]()
    for name, called in names.items():
        runs = [run for one in called for run in found[one]]
        arms[name] = {run.seed: run for run in runs}
        assert len(arms[name]) == len(runs), f"{name}: a seed is there twice"
    return arms


def end_of(run: Run) -> float:
    """Test accuracy over the last five epochs."""
    return mean(row["test_accuracy"] for row in run.rows[-5:])


def by_seed(arms: Mapping[str, Mapping[int, Run]]) -> list[str]:
    """What comes out of each seed, and how far from an isometry, and from where it was, it began: means over its seeds."""
    seeds = sorted({seed for runs in arms.values() for seed in runs})
    columns = ["", *(f"seed {seed}" for seed in seeds), "mean", "n", "right after the reset: DfI", "SFE"]
    rows = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, runs in arms.items():
        starts = [start_of_second(run)["measures"] for run in runs.values()]
        shown = [
            *(f"{end_of(runs[seed]):.3f}" if seed in runs else "-" for seed in seeds),
            f"**{mean(map(end_of, runs.values())):.3f}**",
            f"{len(runs)}",
            f"{mean(one['deviation_from_isometry'] for one in starts):.2g}",
            f"{mean(one[MOVED] for one in starts):.2f}",
        ]
        rows.append(f"| {name} | " + " | ".join(shown) + " |")
    return rows


def by_step(records: str) -> list[str]:
    """DfI and SFE after so many steps; means over seeds."""
    arms = arms_in(records)
    rows = ["| steps | " + " | ".join(map(str, BY_STEP)) + " |", "|---" * (len(BY_STEP) + 1) + "|"]
    for label, name, digits in (
        ("DfI", "deviation_from_isometry", ".2g"),
        ("SFE", "squared_frobenius_error", ".0f"),
        ("SFE, normalised", MOVED, ".3f"),
    ):
        shown = [mean(start_of_second(run)["measures"][name] for run in arms[f"FIRE, steps={steps}"]) for steps in BY_STEP]
        rows.append(f"| {label} | " + " | ".join(f"{figure:{digits}}" for figure in shown) + " |")
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
            "| " + " | ".join(f"{one.mean:.3f}" for one in found.values()) + " |",
            "| " + " | ".join(f"n = {len(one.last)}" for one in found.values()) + " |"]  # fmt: skip


def settings(records: str) -> list[str]:
    """The points that were tried for arms without published settings."""
    chosen = {one.arm for one in best(RECORDS / records).values()}
    rows = ["| | validation | test |", "|---|---|---|"]
    for run in runs_in(records):
        if not run.config.get("grid"):
            continue
        means = [mean(row[f"{split}_accuracy"] for row in run.rows[-5:]) for split in ("validation", "test")]
        mark = "**" if run.arm in chosen else ""
        rows.append(f"| {mark}{run.arm}{mark} | " + " | ".join(f"{figure:.3f}" for figure in means) + " |")
    return rows


def chosen(records: str, *, all_tasks: bool = False) -> list[str]:
    """Arms, and of those that are grids the point that held-out images choose.

    all_tasks: also how all tasks ended, and with how many seeds better than those of plain training.
    """
    points = {one.arm: (name, one.point) for name, one in best(RECORDS / records).items()}
    arms = arms_in(records)
    grids = {arm for arm, runs in arms.items() if runs[0].config.get("grid")}
    more = ["ends of all tasks", "above vanilla there"] if all_tasks else []
    names = ["arm", "chosen of the grid", "here", "n", "± over seeds", *more]
    rows = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for name, one in outcomes(Table(records, {})).items():
        if name in points or name not in grids:
            arm, point = points.get(name, (name, {}))
            said = ", ".join(f"{key} {value:g}" for key, value in point.items()) or "-"
            spread = f"{one.spread:.4f}" if len(one.last) > 1 else "-"
            if all_tasks:
                ends, plain = (
                    {run.seed: mean(ends_of_tasks(run, "test_accuracy").values()) for run in arms[of]}
                    for of in (name, "vanilla")
                )
                above = sum(end > plain[seed] for seed, end in ends.items())
                more = [f"{mean(ends.values()):.4f}", "-" if name == "vanilla" else f"{above} of {len(ends)} seeds"]
            rows.append("| " + " | ".join([arm, said, f"**{one.mean:.4f}**", f"{len(one.last)}", spread, *more]) + " |")
    return rows


def alarm(records: str) -> list[str]:
    """FIRE told of boundaries, and told of none: accuracy at the ends of tasks."""
    alarms = json.loads((RECORDS / records / "alarms.json").read_text())
    rows = ["| | the last two tasks | ± over seeds | n | all tasks | the worst task | resets |", "|---" * 7 + "|"]
    found = {
        arm: [[*ends_of_tasks(run, "train_accuracy").values()] for run in runs] for arm, runs in arms_in(records).items()
    }
    for arm, seeds in sorted(found.items(), key=lambda item: -mean(ends[-1] + ends[-2] for ends in item[1])):
        late, every = [mean(ends[-2:]) for ends in seeds], [end for ends in seeds for end in ends]
        resets = mean(len(steps) for steps in alarms[arm].values()) if arm in alarms else len(seeds[0]) - 1
        rows.append(
            f"| {arm} | **{mean(late):.3f}** | {stdev(late):.3f} | {len(late)} | {mean(every):.3f} | {min(every):.2f} | "
            f"{0 if arm == 'base' else resets:g} |"
        )
    return rows


def ends_of_tasks(run: Run, figure: str) -> dict[int, float]:
    """What is known at the end of each task; tasks are counted from 1."""
    return dict(points_of(run, figure, "end"))


def over_tasks(
    records: str,
    figure: str,
    order: Iterable[str],
    published: Mapping[str, float] | None = None,
) -> list[str]:
    """Of each arm, means over the same tasks; an arm that was stopped has no later ones."""
    counted = [f"{first} to {last}" for first, last in SPANS]
    names = ["tasks", "n", "trained", *counted, *(["800, published"] if published else [])]
    rows = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    arms = arms_in(records, stopped=True)
    for arm in order:
        ends = [ends_of_tasks(run, figure) for run in arms[arm]]
        trained = min(map(len, ends))
        cells = [
            f"{mean(seed[task] for seed in ends for task in range(first, last + 1)):.3f}" if trained >= last else "-"
            for first, last in SPANS
        ]
        told = [f"{published[arm]:.3f}"] if published else []
        rows.append("| " + " | ".join([arm, f"{len(ends)}", f"{trained}", *cells, *told]) + " |")
    return rows


def ahead(records: str, figure: str, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """In how many of the tasks that both have an arm is above another, with the same seed."""
    arms, told = arms_in(records, stopped=True), []
    for one, other in pairs:
        compared = list[bool]()
        for mine, theirs in ((a, b) for a in arms[one] for b in arms[other] if a.seed == b.seed):
            ends = ends_of_tasks(theirs, figure)
            compared += [value > ends[task] for task, value in ends_of_tasks(mine, figure).items() if task in ends]
        told.append(f"{one} above {other} in {sum(compared)} of {len(compared)}")
    return [f"Task by task, by {figure}: {', '.join(told)}."]


def inside(records: str, order: Iterable[str]) -> list[str]:
    """Dead units and effective rank at the end of some tasks, and the Hessian at their start; means over seeds."""
    tasks = [first for first, _ in SPANS if first > 1]
    every = f"tasks {', '.join(map(str, tasks))}"
    rows = [f"| {every} | dead units, share | effective rank | ε-rank, share | largest eigenvalue |", "|---" * 5 + "|"]
    arms = arms_in(records, stopped=True)
    for arm in order:
        told = []
        for figure, moment, digits in (
            ("dead_fraction", "end", ".3f"),
            ("effective_rank", "end", ".0f"),
            ("hessian_epsilon_mass", "start", ".4f"),
            ("largest eigenvalue", "start", ".0f"),
        ):
            found = [measured(run, figure, moment) for run in arms[arm]]
            seen = [[one[task] for one in found if task in one] for task in tasks]
            told.append(", ".join(f"{mean(values):{digits}}" if values else "-" for values in seen))
        rows.append(f"| {arm} | " + " | ".join(told) + " |")
    return rows


def measured(run: Run, figure: str, moment: Moment) -> dict[int, float]:
    """A measure at the start or end of tasks, where it was taken; tasks are counted from 1."""
    if figure == "largest eigenvalue":
        starts = {row["task"] + 1: row.get("measures", {}) for row in run.rows if row["epoch"] == 0}
        return {
            task: max(found["hessian_spectrum"]["nodes"]) for task, found in starts.items() if "hessian_spectrum" in found
        }
    return dict(points_of(run, f"measures.{figure}", moment))


def curvature_and_accuracy(records: str, figure: str) -> list[str]:
    """How well the share of the Hessian's eigenvalues that are not small, at a task's start, tells its accuracy.

    Without first tasks, in which all arms begin with the same network; with them it is said, too.
    """
    firsts, of_arms = [], dict[str, list[tuple[float, float]]]()
    for arm, run in ((arm, run) for arm, runs in arms_in(records, stopped=True).items() for run in runs):
        ends = ends_of_tasks(run, figure)
        for task, share in measured(run, "hessian_epsilon_mass", "start").items():
            if task in ends:
                (firsts if task == 1 else of_arms.setdefault(arm, [])).append((share, ends[task]))
    pairs = [pair for several in of_arms.values() for pair in several]
    r, with_firsts = correlation(*zip(*pairs, strict=True)), correlation(*zip(*pairs, *firsts, strict=True))
    within = ", ".join(f"{arm} {correlation(*zip(*several, strict=True)):.2f}" for arm, several in of_arms.items())
    return [
        f"Over {len(pairs)} tasks of all arms, ε-rank at the start and {figure} correlate with r = {r:.2f} "
        f"(R² = {r * r:.2f}); within arms {within}; of all arms with their first tasks {with_firsts:.2f}."
    ]


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
