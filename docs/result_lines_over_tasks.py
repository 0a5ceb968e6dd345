"""Lines of tables about many tasks one after the other, from committed records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from statistics import correlation, mean, median, stdev
from typing import Any

import torch
from result_lines import arms_in, as_row, ends_of_tasks, head, late, packed, runs_in

from replastic.measures.curvature import SpectralDensity
from replastic.record import Run
from replastic.record.packed import files_in
from replastic.report.curves import Moment, points_of


def over_tasks(
    arms: Mapping[str, Sequence[Run]],
    figure: str,
    spans: Sequence[tuple[int, int]],
    order: Iterable[str],
    published: Mapping[str, float] | None = None,
) -> list[str]:
    """Of each arm, means over the same tasks; an arm that was stopped has no later ones.

    spans: first and last of these tasks, counted from 1.
    """
    counted = [f"{first} to {last}" if first < last else f"{first}" for first, last in spans]
    names = ["tasks", "n", "trained", *counted, *(["800, published"] if published else [])]
    rows = head(names)
    for arm in order:
        ends = [ends_of_tasks(run, figure) for run in arms[arm]]
        trained = min(map(len, ends))
        cells = [
            f"{mean(seed[task] for seed in ends for task in range(first, last + 1)):.3f}" if trained >= last else "-"
            for first, last in spans
        ]
        told = [f"{published[arm]:.3f}"] if published else []
        rows.append(as_row([arm, f"{len(ends)}", f"{trained}", *cells, *told]))
    return rows


def late_in_tasks(
    arms: Mapping[str, Sequence[Run]],
    figure: str,
    tasks: Sequence[int],
    published: Mapping[str, float] | None = None,
) -> list[str]:
    """Of each arm what it comes to over the last five epochs of some tasks; best first by the last task that all have.

    published: of the last of `tasks`, where it is known.
    """
    found = {arm: [late(run, figure) for run in runs] for arm, runs in arms.items()}
    last = _last_of_all(found.values())
    shown = sorted({*tasks, last})
    rows = head(["task", *map(str, shown), f"mean of 2 to {last}", "n", *([f"{tasks[-1]}, published"] if published else [])])
    for arm, seeds in sorted(found.items(), key=lambda item: -mean(seed[last] for seed in item[1])):
        whole = {task: all(task in seed for seed in seeds) for task in shown}
        cells = {task: f"{mean(seed[task] for seed in seeds):.3f}" if whole[task] else "-" for task in shown}
        cells[last] = f"**{cells[last]}**"
        every = mean(seed[task] for seed in seeds for task in range(2, last + 1))
        told = [f"{published[arm]:.2f}" if arm in published else "-"] if published else []
        rows.append(as_row([arm, *cells.values(), f"{every:.3f}", f"{len(seeds)}", *told]))
    return rows


def around_boundaries(arms: Mapping[str, Sequence[Run]], figure: str, epochs: Sequence[int]) -> list[str]:
    """A figure in the epoch before a boundary, right after it, and after some epochs, over boundaries that all arms have.

    Best first, by the first of `epochs`.
    """
    ends = {arm: [ends_of_tasks(run, figure) for run in runs] for arm, runs in arms.items()}
    last = _last_of_all(ends.values())
    told = dict[str, tuple[float, dict[int, float]]]()
    for arm, runs in arms.items():
        before = mean(seed[task] for seed in ends[arm] for task in range(1, last))
        at = [{(row["task"] + 1, row["epoch"]): row[figure] for row in run.rows} for run in runs]
        told[arm] = (
            before,
            {epoch: mean(seed[task, epoch] for seed in at for task in range(2, last + 1)) for epoch in (0, *epochs)},
        )
    after = [f"after epoch {epoch}" for epoch in epochs]
    rows = head([f"{figure}, boundaries 1 to {last - 1}", "before", "right after", *after, "n"])
    for arm, (before, later) in sorted(told.items(), key=lambda item: -item[1][1][epochs[0]]):
        rows.append(as_row([arm, *(f"{value:.3f}" for value in (before, *later.values())), f"{len(arms[arm])}"]))
    return rows


def learnt(arms: Mapping[str, Sequence[Run]], tasks: Sequence[int]) -> list[str]:
    """Seed by seed: test accuracy late in tasks; of training images, at tasks' ends and in the worst task at its best."""
    of_ends = f"train, ends of tasks {tasks[0]} to {tasks[-1]}"
    rows = head(["", "seed", "test, all but the first task", "test, the last", of_ends, "train, best epoch of the worst"])
    for arm, run in ((arm, run) for arm, runs in arms.items() for run in sorted(runs, key=lambda run: run.seed)):
        tested, trained = [*late(run, "test_accuracy").values()], ends_of_tasks(run, "online_accuracy")
        best = dict[int, float]()
        for row in run.rows:
            best[row["task"]] = max(best.get(row["task"], 0.0), row.get("online_accuracy", 0.0))
        ends = ", ".join(f"{trained[task]:.3f}" for task in tasks)
        told = [f"{mean(tested[1:]):.3f}", f"{tested[-1]:.3f}", ends, f"{min(best.values()):.3f}"]
        rows.append(as_row([arm, f"{run.seed}", *told]))
    return rows


def _last_of_all(arms: Iterable[Iterable[Mapping[int, float]]]) -> int:
    """The last task that every run has to its end."""
    return min(max(seed) for seeds in arms for seed in seeds)


def late_after_the_first(run: Run, figure: str) -> dict[int, float]:
    """Means over the last five epochs of each task but the first, which arms may share."""
    return {task: value for task, value in late(run, figure).items() if task > 1}


def ahead(
    arms: Mapping[str, Sequence[Run]],
    figure: str,
    pairs: Iterable[tuple[str, str]],
    by_task: Callable[[Run, str], Mapping[int, float]] = ends_of_tasks,
) -> list[str]:
    """In how many of the tasks that both have an arm is above another, with the same seed."""
    told = []
    for one, other in pairs:
        compared = list[bool]()
        for mine, theirs in ((a, b) for a in arms[one] for b in arms[other] if a.seed == b.seed):
            found = by_task(theirs, figure)
            compared += [value > found[task] for task, value in by_task(mine, figure).items() if task in found]
        told.append(f"{one} above {other} in {sum(compared)} of {len(compared)}")
    return [f"Task by task, by {figure}: {', '.join(told)}."]


def repeated(now: Mapping[str, Sequence[Run]], before: Mapping[str, Sequence[Run]], figure: str) -> list[str]:
    """How far apart the same arms with the same seed lie if they are trained twice, over the tasks after the first."""
    rows = head([f"{figure}, trained twice", "tasks", "on average", "without sign", "at most"])
    for arm, runs in before.items():
        apart = list[float]()
        for mine, theirs in ((a, b) for a in now[arm] for b in runs if a.seed == b.seed):
            found = late_after_the_first(theirs, figure)
            apart += [value - found[task] for task, value in late_after_the_first(mine, figure).items() if task in found]
        sizes = [abs(one) for one in apart]
        rows.append(as_row([arm, f"{len(apart)}", f"{mean(apart):+.3f}", f"{mean(sizes):.3f}", f"{max(sizes):.3f}"]))
    return rows


def inside(arms: Mapping[str, Sequence[Run]], tasks: Sequence[int], order: Iterable[str]) -> list[str]:
    """Dead units and effective rank at the end of some tasks, and the Hessian at their start; means over seeds."""
    columns: list[tuple[str, Moment, str]] = [
        ("dead_fraction", "end", ".3f"),
        ("effective_rank", "end", ".0f"),
        (RECORDED, "start", ".4f"),
        (RELEASED, "start", ".3f"),
        ("largest eigenvalue", "start", ".0f"),
    ]
    every = f"tasks {', '.join(map(str, tasks))}"
    names = ["dead units, share", "effective rank", "ε-rank, share", "the same as released", "largest eigenvalue"]
    rows = head([every, *names])
    rows += [as_row([arm, *(_at_tasks(arms[arm], tasks, *column) for column in columns)]) for arm in order]
    return rows


def last_two_layers(
    arms: Mapping[str, Sequence[Run]], layers: tuple[str, str], tasks: Sequence[int], order: Iterable[str]
) -> list[str]:
    """Dead units and effective rank at the end of some tasks, in the last two hidden layers alone; means over seeds."""
    columns: list[tuple[str, Moment, str]] = [
        (f"{figure}/{layer}", "end", digits)
        for figure, digits in (("dead_fraction", ".2f"), ("effective_rank", ".0f"))
        for layer in layers
    ]
    names = [f"{name}, {place}" for name in ("dead units, share", "effective rank") for place in ("last but one", "last")]
    rows = head([f"tasks {', '.join(map(str, tasks))}", *names])
    return rows + [as_row([arm, *(_at_tasks(arms[arm], tasks, *column) for column in columns)]) for arm in order]


def _at_tasks(runs: Sequence[Run], tasks: Sequence[int], figure: str, moment: Moment, digits: str) -> str:
    """A measure in some tasks, one after the other; a mean over seeds."""
    found = [measured(run, figure, moment) for run in runs]
    seen = [[one[task] for one in found if task in one] for task in tasks]
    return ", ".join(f"{mean(values):{digits}}" if values else "-" for values in seen)


def measured(run: Run, figure: str, moment: Moment) -> dict[int, float]:
    """A measure at the start or end of tasks, where it was taken; tasks are counted from 1."""
    if figure in _OF_SPECTRUM:
        assert moment == "start", moment
        starts = {row["task"] + 1: row.get("measures", {}) for row in run.rows if row["epoch"] == 0}
        spectra = {task: found["hessian_spectrum"] for task, found in starts.items() if "hessian_spectrum" in found}
        return {task: _OF_SPECTRUM[figure](spectrum) for task, spectrum in spectra.items()}
    return dict(points_of(run, f"measures.{figure}", moment))


def _mass_as_released(spectrum: Mapping[str, Any]) -> float:
    return _of_density(tuple(spectrum["nodes"]), tuple(spectrum["weights"]), spectrum.get("resolution", 0.0))


@cache
def _of_density(nodes: tuple[float, ...], weights: tuple[float, ...], resolution: float) -> float:
    at, shares = (torch.tensor([values], dtype=torch.float64) for values in (nodes, weights))
    return SpectralDensity(at, shares, len(nodes), resolution).epsilon_mass_as_released().value


RECORDED, RELEASED = "hessian_epsilon_mass", "hessian_epsilon_mass_as_released"
_OF_SPECTRUM: Mapping[str, Callable[[Mapping[str, list[float]]], float]] = {  # what nodes and weights at the start tell
    "largest eigenvalue": lambda spectrum: max(spectrum["nodes"]),
    RELEASED: _mass_as_released,
}


def shares_and_ends(runs: Iterable[Run], figure: str, share: str = RECORDED) -> list[tuple[int, float, float]]:
    """Of each task that has both: the ε-rank of the Hessian at its start, as a share, and a figure at its end."""
    found = []
    for run in runs:
        ends = ends_of_tasks(run, figure)
        shares = measured(run, share, "start")
        found += [(task, share, ends[task]) for task, share in shares.items() if task in ends]
    return found


def curvature_and_accuracy(arms: Mapping[str, Sequence[Run]], figure: str) -> list[str]:
    """How well the share of the Hessian's eigenvalues that are not small, at a task's start, tells its accuracy.

    Without first tasks, in which all arms begin with the same network; with them it is said, too.
    """
    of_arms, pairs, firsts = _pairs(arms, figure, RECORDED)
    _, released, firsts_released = _pairs(arms, figure, RELEASED)
    r, with_firsts = correlation(*zip(*pairs, strict=True)), correlation(*zip(*pairs, *firsts, strict=True))
    within = ", ".join(f"{arm} {correlation(*zip(*several, strict=True)):.2f}" for arm, several in of_arms.items())
    as_released = correlation(*zip(*released, strict=True))
    with_firsts_released = correlation(*zip(*released, *firsts_released, strict=True))
    return [
        f"Over {len(pairs)} tasks of all arms, ε-rank at the start and {figure} correlate with r = {r:.2f} "
        f"(R² = {r * r:.2f}); within arms {within}; of all arms with their first tasks {with_firsts:.2f}. With the ε-rank "
        f"as released r = {as_released:.2f}, and {with_firsts_released:.2f} with first tasks; {_medians(pairs, released)}."
    ]


_Pairs = list[tuple[float, float]]  # an ε-rank, and an accuracy


def _pairs(arms: Mapping[str, Sequence[Run]], figure: str, share: str) -> tuple[dict[str, _Pairs], _Pairs, _Pairs]:
    """ε-ranks and accuracies without first tasks, by arm and together, and those of first tasks."""
    firsts, of_arms = _Pairs(), dict[str, _Pairs]()
    for arm, runs in arms.items():
        for task, found, end in shares_and_ends(runs, figure, share):
            (firsts if task == 1 else of_arms.setdefault(arm, [])).append((found, end))
    return of_arms, [pair for several in of_arms.values() for pair in several], firsts


def _medians(recorded: _Pairs, released: _Pairs) -> str:
    before, after = (median(share for share, _ in pairs) for pairs in (recorded, released))
    return f"its median is {after:.2g}, and {before:.2g} as recorded"


def learnt_with(arms: Mapping[str, Sequence[Run]], figure: str, above: float, enough: float, small: float) -> list[str]:
    """With which ε-ranks at their start tasks are learnt well, first ones among them."""
    counts = dict[str, list[float]]()
    for share in (RECORDED, RELEASED):
        found = [pair for runs in arms.values() for _, *pair in shares_and_ends(runs, figure, share)]
        counts[share] = [rank for rank, end in found if end > above]
        measured_tasks = len(found)
    many = sum(rank >= enough for rank in counts[RELEASED])
    return [
        f"Of all {measured_tasks} measured tasks, first ones among them, {len(counts[RELEASED])} end with a {figure} above "
        f"{above:g}. With the ε-rank as released {many} of these have {enough:g} or more and "
        f"{len(counts[RELEASED]) - many} less; as recorded {sum(rank < small for rank in counts[RECORDED])} are below "
        f"{small:g}."
    ]


def curvature_and_gain(
    arms: Mapping[str, Sequence[Run]], figure: str, over: str, spans: Sequence[tuple[int, int]]
) -> list[str]:
    """The same where tasks become harder: accuracy counts as what an arm has over another, of the same seed and task."""
    others = {run.seed: late(run, figure) for run in arms[over]}
    arms = {arm: runs for arm, runs in arms.items() if arm != over}

    def pairs_of(share: str, first: int, last: int) -> _Pairs:
        pairs = _Pairs()
        for run in (run for runs in arms.values() for run in runs):
            ends, shares = late(run, figure), measured(run, share, "start")
            known = shares.keys() & ends.keys() & others[run.seed].keys() & set(range(first, last + 1))
            pairs += [(shares[task], ends[task] - others[run.seed][task]) for task in known]
        return pairs

    told, released = list[str](), list[str]()
    for first, last in spans:
        pairs, as_released = pairs_of(RECORDED, first, last), pairs_of(RELEASED, first, last)
        r = correlation(*zip(*pairs, strict=True))
        told.append(
            f"over tasks {first} to {last} with r = {r:.2f} (R² = {r * r:.2f}; {len(pairs)} tasks of {len(arms)} arms)"
        )
        released.append(f"{correlation(*zip(*as_released, strict=True)):.2f} ({_medians(pairs, as_released)})")
    return [
        f"ε-rank at the start, and {figure} minus that of {over}, correlate {', '.join(told)}. With the ε-rank as released "
        f"r = {' and '.join(released)}."
    ]


def alarm(records: str) -> list[str]:
    """FIRE told of boundaries, and told of none: accuracy at the ends of tasks."""
    alarms = json.loads(files_in(packed(records))["alarms.json"])
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


def moments_of_alarms(records: str) -> list[str]:
    """How far into a task most alarms came."""
    (length,) = {
        run.rows[-1]["step"] // (run.rows[-1]["task"] + 1) for run in runs_in(records) if run.arm == "FIRE on alarm"
    }
    alarms = json.loads(files_in(packed(records))["alarms.json"])["FIRE on alarm"].values()
    within = Counter(step % length for steps in alarms for step in steps)
    ((moment, often),) = within.most_common(1)
    return [f"{often} of {within.total()} alarms came {moment} steps into a task."]
