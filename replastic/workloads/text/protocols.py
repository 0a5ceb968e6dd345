"""Protocols of text: how corpora become a stream of tasks, whose lengths are in steps.

Each is a function of the data that returns a list of tasks. All tasks are tested on all sets of `[data.test]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...options import check_keys, check_type
from .tasks import TextData, TextTask

Table = Mapping[str, Any]


def stages(data: TextData, *, seed: int, batch: int, stages: Sequence[Table]) -> list[TextTask]:
    """One task for each stage, which has sources (a corpus, or weights of several), steps, and a name if it is to have one.

    Continual pretraining is two of them, as in figure 3 of FIRE: one corpus, then a mixture of it and another.
    """
    if not stages:
        raise ValueError("stages = [] has none: write [[protocol.stages]] with sources and steps for each")
    tasks = []
    for number, stage in enumerate(stages, start=1):
        where = f"stages, number {number}"
        check_keys(stage, ["sources", "steps", "name"], where, ["sources", "steps"])
        check_type(stage["steps"], int, f"{where}: steps")
        sources = stage["sources"]
        name = stage.get("name", " + ".join(sources) if isinstance(sources, Mapping) else str(sources))
        check_type(name, str, f"{where}: name")
        tasks.append(data.task(name, sources, batch=batch, steps=stage["steps"]))
    return tasks


def domains(
    data: TextData,
    *,
    seed: int,
    batch: int,
    steps: int,
    rounds: int = 1,
    domains: Sequence[str] | None = None,
    probe: str | None = None,
    probe_steps: int | None = None,
) -> list[TextTask]:
    """One corpus after the other, each as often as there are rounds, and at the end one that never came: the probe.

    How well the probe is learnt says how plastic the network is after the stream.

    steps: of each task; probe_steps: of the probe, if another number.
    domains: the corpora of the stream; None: all but the probe. Each round has its own order, drawn from the seed.
    """
    names = [name for name in data.corpora if name != probe] if domains is None else list(domains)
    if probe in names or len(set(names)) < len(names) or not names:
        raise ValueError(
            f"domains = {names!r}, probe = {probe!r}: name corpora, each once, and a probe that is none of them"
        )
    if rounds < 1:
        raise ValueError(f"rounds = {rounds}: set 1 or more")
    if probe is None and probe_steps is not None:
        raise ValueError(f"probe_steps = {probe_steps}, and there is no probe: name one, or leave it out")
    draw = torch.Generator().manual_seed(seed)
    tasks = []
    for number in range(1, rounds + 1):
        order = torch.randperm(len(names), generator=draw).tolist()
        tasks += [data.task(f"{names[one]} {number}", names[one], batch=batch, steps=steps) for one in order]
    if probe is not None:
        tasks.append(data.task(f"{probe} (probe)", probe, batch=batch, steps=steps if probe_steps is None else probe_steps))
    return tasks


PROTOCOLS = {"stages": stages, "domains": domains}
