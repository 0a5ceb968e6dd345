"""What a reader must know of arms that did nothing: methods that never acted, and rows that are those of the baseline."""

from __future__ import annotations

from collections.abc import Iterator

from .gathering import Study, plain_arms


def idle(study: Study) -> Iterator[str]:
    """A sentence for each arm whose methods never acted, or whose rows are identical to the baseline's."""
    for arm, runs in study.arms.items():
        reasons = dict.fromkeys(reason for run in runs.values() for reason in run.never_acted)
        if reasons:
            seeds = sum(bool(run.never_acted) for run in runs.values())
            yield f"{arm}: {'; '.join(reasons)} ({seeds} of {len(runs)} seeds)."
    for arm, runs in study.arms.items():
        baseline = study.baseline_of(arm)
        base = study.arms.get(baseline or "", {})
        pairs = [(run.rows, base[seed].rows) for seed, run in runs.items() if seed in base and run.status == "finished"]
        same = sum(ours == theirs for ours, theirs in pairs)
        if arm != baseline and same:
            which = f"in {same} of {len(pairs)} seeds" if len(pairs) > 1 else "in its only seed"
            yield f"Rows of {arm} are identical to those of {baseline} {which}: what is set for {arm} changed nothing."


def chosen_baseline(study: Study) -> str:
    """Which arm the others are compared with, and why."""
    if study.baseline is None:
        return "Every arm has a method, so no baseline was chosen: name one with --baseline."
    plain, baseline = plain_arms(study.arms), study.baseline_name
    if study.baseline not in plain:
        return f"The baseline is {baseline}."
    bases = {study.baseline_of(arm) for arm in study.arms}
    others = ", ".join(arm for arm in plain if arm not in bases)
    others = f"; no method acts in {others} either" if others else ""
    return f"The baseline is {baseline}, an arm without a method{others}: --baseline chooses another."
