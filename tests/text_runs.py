"""Runs of language experiments with made-up rows: tasks in steps, figures by set, tokens and windows drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from replastic.record import Run

from .records import Row, run_of

A_STEP = 32 * 512  # tokens
ABOUT = {"name": "figure 3", "metric": "openmix_loss", "tasks": 2, "unit": "steps"}
STARTS = {"best": 2000, "125 epochs": 11_000, "250 epochs": 22_000}  # steps
METHODS = {"FIRE": "fire", "S&P": "shrink_and_perturb", "norm only": "restore_norms"}
SHIFTS = {"base": 0.0, "FIRE": -0.03, "S&P": -0.02, "norm only": -0.029}  # of the loss at the end
STAGES = [{"sources": "wikitext", "steps": 22_000}, {"sources": {"openmix": 0.99, "wikitext": 0.01}, "steps": 4000}]


def text_rows(
    first: int, *, seed: int = 1, shift: float = 0.0, steps: int = 4000, every: int = 500, sets: Sequence[str] = ()
) -> list[Row]:
    """Rows of two stages, the first of this many steps; 0: the second alone."""
    rows: list[Row] = []
    for task, length in ((0, first), (1, steps)):
        if not length:
            continue
        before = first * task
        for at in range(0, length + 1, every):
            share = at / length
            wikitext = (
                (3.2 - 1.2 * min(at, 2000) / 2000 + 0.6 * max(0, at - 2000) / 20_000) if task == 0 else 2.9 + 0.2 * share
            )
            openmix = 4.6 - 0.4 * min(at, 2000) / 2000
            if task == 1:  # the end depends on the arm and on the seed, and a little on the first task
                openmix = 4.2 - (1.1 - shift * (1 + 0.03 * seed) - 0.001 * (first / 2000) * (shift == 0)) * share
            losses = {"wikitext": wikitext + 0.01 * seed, "openmix": openmix + 0.012 * seed}
            losses |= dict.fromkeys(sets, losses["openmix"] + 0.1)
            drawn = {"wikitext": 32 * every} if task == 0 else {"openmix": 32 * every - 160 - seed, "wikitext": 160 + seed}
            rows.append(
                {
                    "task": task, "at": at, "of": length, "unit": "steps", "step": before + at,
                    "tokens": (before + at) * A_STEP,
                    **({"name": f"stage {task + 1}"} if at == 0 else {"path": "eager", "loss": openmix, "drawn": drawn}),
                    **{f"{name}_loss": value for name, value in losses.items()},
                    **{f"{name}_bits": value / 2.9 for name, value in losses.items()},
                }
            )  # fmt: skip
    return rows


def text_run(arm: str, seed: int, *, start: str | None = None, shift: float | None = None, **given: Any) -> Run:
    """A run of an arm from a start of STARTS, from "none", or of an experiment without starts."""
    length = 0 if start == "none" else STARTS[start or "250 epochs"] + (500 * (seed % 2) if start == "best" else 0)
    sets = given.pop("sets", ())
    shift = SHIFTS.get(arm, 0.01) if shift is None else shift
    config: dict[str, Any] = {} if start is None else {"start": {"arm": arm, "name": start}}
    name = f"{arm}, {start}" if start not in (None, "none") else arm
    methods = [] if arm in ("base", "full reset") else [{"name": METHODS.get(arm, arm)}]
    config |= {"kind": "text", "protocol": {"name": "stages", "stages": STAGES}, "methods": methods}
    rows = text_rows(length, seed=seed, shift=shift, sets=sets)
    about: Mapping[str, Any] = {**ABOUT, "lengths": [length, 4000], **given.pop("about", {})}
    return run_of(name, seed, rows, about=about, **config, **given)


def from_starts(arms: Sequence[str] = ("base", "FIRE"), seeds: Sequence[int] = (1, 2, 3), **given: Any) -> list[Run]:
    """These arms from each start, and one without."""
    runs = [text_run(arm, seed, start=start, **given) for arm in arms for start in STARTS for seed in seeds]
    return runs + [text_run("full reset", seed, start="none", **given) for seed in seeds]
