"""What is forgotten next to what is learnt, on all sets that tasks share; and what was drawn from each corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .gathering import Study
from .items import Cell, Table, marked, over_seeds
from .kinds import KINDS, capital, is_lower_better, label_of, parts_of, sets_of
from .summary import Summary, summarise

_SECTION = "All sets"


def all_sets(study: Study) -> list[Table]:
    """A table for each kind of figure that is taken on several sets: in the first and in the last tasks."""
    own = parts_of(study.metric)[1]
    made = (_table(study, kind) for kind in sorted(KINDS, key=lambda kind: kind != own))
    return [table for table in made if table is not None]


def _table(study: Study, kind: str) -> Table | None:
    sets = sets_of({name for run in study.runs for row in run.rows[-1:] for name in row}, kind)
    if len(sets) < 2:
        return None
    found = [_summaries(study, f"{name}_{kind}") for name in sets]
    arms = [one.arm for one in summarise(study)]
    tasks = max((one.tasks for of in found for one in of.values()), default=1)
    which = "task" if tasks == 1 else f"{tasks} tasks"
    rows = [[arm, *(cell for of in found for cell in _cells(of.get(arm)))] for arm in arms]
    if not any(isinstance(cell, Cell) for row in rows for cell in row):
        return None
    lower = is_lower_better(kind)
    said = label_of(kind, of_text=study.counts_tokens).removeprefix("training ")
    note = (
        f"{capital(said)}: mean ± standard deviation {over_seeds(rows)}, in the first {which} and in the last. "
        f"What is {'higher' if lower else 'lower'} in the last was forgotten. Bold: the "
        f"{'lowest' if lower else 'highest'} on each set in the last {which}."
    )
    columns = ["arm", *(f"{name}, {when} {which}" for name in sets for when in ("first", "last"))]
    digits = (None, *[3] * (len(columns) - 1))
    title = f"Forgetting and learning: {said.partition(' (')[0]} on each set"
    rows = marked(rows, lower=lower, columns=range(2, len(columns), 2))
    return Table(f"sets-{kind}", title, note, _SECTION, columns, rows, digits)


def _summaries(study: Study, figure: str) -> dict[str, Summary]:
    """Of the arms whose runs all have the figure."""
    found = {}
    for arm in study.arms:
        try:
            (found[arm],) = summarise(replace(study.only([arm]), metric=figure))
        except ValueError:  # a run was made before the set was added
            continue
    return found


def _cells(one: Summary | None) -> Sequence[Cell | None]:
    if one is None or not one.last:
        return None, None
    first = Cell(*one.of_first, len(one.first)) if one.first else None
    return first, Cell(one.mean, one.spread, len(one.last))


def drawn(study: Study) -> str:
    """The windows that were drawn from each corpus in each task, and the asked weights if the protocol names them."""
    lines = []
    for task, by_seed in sorted(_counted(study).items()):
        asked = _asked(study.runs[0].config.get("protocol"), task)
        counts = sum(by_seed.values(), Counter())
        total = sum(counts.values())
        shares = [
            f"{name} {100 * count / total:.2f} %" + (f" (asked: {100 * asked[name]:.2f} %)" if name in asked else "")
            for name, count in counts.most_common()
        ]
        seeds = f"{len(by_seed)} seed{'s' * (len(by_seed) > 1)}"
        lines.append(f"task {task + 1}: {', '.join(shares)}, of {total:,} windows over {seeds}")
    return "\n".join(lines)


def _counted(study: Study) -> dict[int, dict[int, Counter[str]]]:
    """By task and seed, in the run that got furthest: arms of one seed see the same windows."""
    found: dict[int, dict[int, Counter[str]]] = {}
    for run in study.runs:
        of_run: dict[int, Counter[str]] = {}
        for row in run.rows:
            if isinstance(windows := row.get("drawn"), Mapping):
                of_run.setdefault(row["task"], Counter()).update(windows)
        for task, counts in of_run.items():
            known = found.setdefault(task, {}).get(run.seed, Counter())
            found[task][run.seed] = max(known, counts, key=Counter.total)
    return found


def _asked(protocol: Any, task: int) -> dict[str, float]:
    """The weights that a protocol of stages asks for; nothing where it has another form, or one corpus alone."""
    stages = protocol.get("stages") if isinstance(protocol, Mapping) else None
    sources = stages[task].get("sources") if isinstance(stages, list) and task < len(stages) else None
    return dict(sources) if isinstance(sources, Mapping) else {}
