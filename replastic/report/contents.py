"""The content of a report for each experiment: its result, cautions, and what it was made with."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..record import Run
from ..record.files import leaves
from .accuracy import accuracy, after_boundaries, other_figures
from .comparison import Compared, centre_for, compare, comparison_table
from .cost import cost
from .curves import can_smooth, curves, odd
from .estimates import ENOUGH, Centre
from .gathering import Study, family_of, plain_arms
from .idle import chosen_baseline, idle
from .items import Arm, Bars, Chapter, Chart, Table
from .kinds import is_lower_better, parts_of, sets_of
from .measured import measured
from .sensitivity import sensitivity, set_aside
from .sets import all_sets, drawn
from .spectra import spectra
from .starts import starts
from .summary import counted

_FIXED = ("data", "model", "protocol", "measures")  # parts of a configuration that all arms of an experiment share
_LEVEL = 0.05  # p below which arms are called different
_MACHINE = ("host", "platform", "cpu", "cpus", "threads", "gpu", "gpus", "cuda", "cudnn")


def chapter(study: Study, *, centre: Centre | None = None, smooth: int = 0) -> Chapter:
    """The chapter of an experiment. centre: of curves; by default what the number of seeds allows."""
    kind, compared, (aside, not_chosen) = centre or centre_for(study), compare(study), set_aside(study)
    items: list[Chart | Bars | Table] = [*starts(study), *accuracy(study, kind, smooth), comparison_table(study, compared)]
    items += all_sets(study)
    items += after_boundaries(study, kind)
    items += measured(study, kind, smooth)
    items += spectra(study)
    items += sensitivity(study)
    items += cost(study)
    items += other_figures(study, kind, smooth)
    items.append(_runs_table(study))
    arms = [
        Arm(
            arm,
            counted([run.status for run in runs.values()]),
            arm == study.baseline_of(arm),
            arm not in aside,
            _method_of(runs),
            family_of(next(iter(runs.values()))),
        )
        for arm, runs in study.arms.items()
    ]
    cautions = list(_cautions(study, smooth=smooth, aside=aside, not_chosen=not_chosen))
    return Chapter(
        study.name,
        study.about.strip(),
        _says(study, compared, aside),
        arms,
        items,
        cautions,
        _details(study),
    )


def _method_of(runs: Mapping[int, Run]) -> str:
    """The name of an arm's first method; "" without one."""
    methods = next((run.config.get("methods") for run in runs.values()), None)
    first = methods[0] if isinstance(methods, list) and methods else {}
    return str(first.get("name", "")) if isinstance(first, dict) else ""


def _says(study: Study, compared: Sequence[Compared], aside: Collection[str] = ()) -> str:
    """The result in a sentence or two: the best arm and the baseline, or the baseline and the next best arm."""
    done = [one for one in compared if one.summary.arm not in aside and not math.isnan(one.summary.mean)]
    if not done:
        some = any(one.summary.last for one in compared)
        return f"No run has a {study.metric} that is a number." if some else "No run has finished yet."
    best, tasks = done[0], done[0].summary.tasks
    where = f"in the last {tasks} tasks" if tasks > 1 else "in the last task"
    most = "lowest" if is_lower_better(study.metric) else "highest"
    text = f"{best.summary.arm} has the {most} {study.metric} {where}: {_with_spread(best)}."
    name = study.baseline_of(best.summary.arm) or study.baseline
    base = next((one for one in done if one.summary.arm == name), None)
    others = [one for one in done[1:] if study.baseline_of(one.summary.arm) == name]
    if base is None or not (others if base is best else done[1:]):
        return text
    other, differs = (others[0], others[0]) if base is best else (base, best)
    text += f" {other.summary.arm} has {_with_spread(other)}"
    gap = differs.difference
    if gap is None or math.isnan(differs.p):
        return text + "."
    interval = f"{gap.mean:+.3f}, 95 % interval {gap.low:+.3f} to {gap.high:+.3f}"
    tests = sum(not math.isnan(one.p) for one in compared)
    told = f": too few for {tests} comparisons" if gap.p < _LEVEL else ": not distinguishable"
    told = told if differs.p >= _LEVEL else ""
    p = "p < 0.001" if differs.p < 0.001 else f"p = {differs.p:.3f}"
    p += f" (adjusted for {tests} arms)" if tests > 1 else ""
    return f"{text}, a difference of {interval}, {p} over {gap.n} seeds{told}."


def _with_spread(one: Compared) -> str:
    n, left_out = len(one.summary.last), f"; {counted(one.summary.others)}" if one.summary.others else ""
    spread = "" if math.isnan(one.summary.spread) else f" ± {one.summary.spread:.3f}"
    return f"{one.summary.mean:.3f}{spread} (n = {n}{left_out})"


def _cautions(
    study: Study, *, smooth: int, aside: Collection[str], not_chosen: Mapping[str, str]
) -> Iterator[str]:  # fmt: skip
    finished = [sum(run.status == "finished" for run in runs.values()) for runs in study.arms.values()]
    fewest = min(filter(None, finished), default=0)  # arms without a finished run are not in tables
    where = " in some arms" * (max(finished) > fewest)
    if fewest == 1:
        yield f"1 seed{where}: how much another seed would differ is unknown."
    elif 1 < fewest < ENOUGH:
        yield f"{fewest} seeds{where}: intervals over this few are too narrow, and only a large difference can be found."
    unfinished = Counter(run.status for run in study.runs if run.status != "finished")
    if unfinished:
        ended = counted(list(unfinished.elements()))
        yield f"Not finished: {ended}. They are in curves up to where they stopped, and not in tables." + (
            " An arm without its diverged runs looks better than it is." if unfinished["diverged"] else ""
        )
    if len({frozenset(runs) for runs in study.arms.values()}) > 1:
        yield "Arms have different seeds: means are over the seeds of each arm, differences over the seeds that both have."
    for path, values in _differing(study.runs, _FIXED):
        if path.startswith("measures"):
            yield "Runs differ in their measures, and so in the time that these took."
        else:
            yield f"Runs differ in {path}, which no arm sets: {', '.join(values)}. They are not comparable."
    for arm, runs in study.arms.items():
        for path, values in _differing(runs.values(), ("training", "methods", "grid")):
            yield f"Seeds of {arm} differ in {path}: {', '.join(values)}. They are not comparable."
    for key, name in (
        ("commit", "versions of the code"),
        ("torch", "versions of torch"),
        ("gpu", "GPUs"),
        ("cpu", "processors"),
    ):
        values = {str(run.provenance.get(key)) for run in study.runs}
        if len(values) > 1:
            yield f"Runs were made with different {name}: {', '.join(sorted(values))}."
    if any(run.provenance.get("dirty") for run in study.runs):
        yield "Some runs were made with code that had uncommitted changes."
    for name, (count, reason) in _not_measured(study).items():
        yield f"{name} could not be measured in {count} row{'s' * (count > 1)}, for example: {reason}"
    yield from idle(study)
    plain = {family_of(next(iter(study.arms[arm].values()))) for arm in plain_arms(study.arms)}
    if study.baseline is None or len(plain) > 1:
        yield chosen_baseline(study)
    held_out = "a validation set" if sets_of([study.metric], parts_of(study.metric)[1]) else "validation images"
    if aside:
        yield f"Of each grid only the best point on {held_out} is shown at first."
    for grid, reason in not_chosen.items():
        yield (
            f"No point of {grid} was chosen on {held_out}, and the best one here is chosen by the result itself. "
            f"The reason: {reason}."
        )
    if smooth:
        yield (
            f"Curves are smoothed over {odd(smooth)} points; tables are not."
            if any(can_smooth(curves(study, study.metric, moment), smooth) for moment in ("end", "epoch"))
            else f"No curve of {study.metric} has {odd(smooth)} points to be smoothed over."
        )


def _not_measured(study: Study) -> dict[str, tuple[int, str]]:
    """For each measure that could not be taken in some rows: the number of these rows, and the first reason."""
    found: dict[str, tuple[int, str]] = {}
    for run in study.runs:
        for row in run.rows:
            for key, reasons in row.get("measures", {}).items():
                if key.endswith("not_measured"):
                    for name, reason in reasons.items():
                        count, first = found.get(key.removesuffix("not_measured") + name, (0, str(reason)))
                        found[key.removesuffix("not_measured") + name] = count + 1, first
    return found


def _differing(runs: Iterable[Run], parts: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The settings in some parts of the configuration that differ between runs, with their values."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for part in parts:
            for path, value in leaves(run.config.get(part), part):
                found.setdefault(path, {})[value] = None
    for path, values in found.items():
        if len(values) > 1:
            yield path, list(values)


def _runs_table(study: Study) -> Table:
    rows = [
        [
            run.arm,
            run.seed,
            run.status,
            len(run.rows),
            run.times[-1] if run.times else None,
            _last_line(run),
            str(run.folder),
        ]
        for run in study.runs
    ]
    columns = ("arm", "seed", "status", "rows", "seconds", "reason", "folder")
    return Table("runs", "Runs", "Every run.", "Runs", columns, rows, (None, 0, None, 0, 1, None, None), shown=False)


def _last_line(run: Run) -> str | None:
    return (run.reason.strip().splitlines() or [None])[-1]


def _details(study: Study) -> list[tuple[str, str]]:
    first = study.runs[0]
    common = {part: first.config[part] for part in _FIXED if part in first.config}
    arms = {
        arm: {"methods": config.get("methods"), "training": config.get("training")}
        for arm, runs in study.arms.items()
        for config in [next(iter(runs.values())).config]
    }
    windows = drawn(study)
    ended = [f"{run.folder}: {run.status}: {_last_line(run)}" for run in study.runs if run.status in ("failed", "diverged")]
    details = [
        ("Data, model and protocol", json.dumps(common, indent=1, ensure_ascii=False)),
        ("Methods and training of each arm", json.dumps(arms, indent=1, ensure_ascii=False)),
        ("Versions", _table_of(study, lambda key: key not in (*_MACHINE, "command"))),
        ("Machines", _table_of(study, lambda key: key in _MACHINE)),
        ("Commands", "\n".join(dict.fromkeys(shlex.join(run.provenance.get("command") or []) for run in study.runs))),
        ("Seeds", "\n".join(f"{arm}: {', '.join(map(str, runs))}" for arm, runs in study.arms.items())),
        *([("Windows drawn from each corpus", windows)] if windows else []),
    ]
    return [*details, ("Runs that failed or diverged", "\n".join(ended))] if ended else details


def _table_of(study: Study, wanted: Any) -> str:
    """What runs were made with: each value once, with the number of runs that have it if they differ."""
    lines = []
    keys = dict.fromkeys(key for run in study.runs for key in run.provenance if wanted(key))
    for key in keys:
        values = Counter(str(run.provenance.get(key)) for run in study.runs)
        shown = values.most_common()
        counts = ", ".join(f"{value} ({n} run{'s' * (n > 1)})" for value, n in shown)
        lines.append(f"{key}: " + (shown[0][0] if len(shown) == 1 else counts))
    return "\n".join(lines)
