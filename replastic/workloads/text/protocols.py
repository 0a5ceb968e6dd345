"""Protocols of text: how corpora become a stream of tasks, whose lengths are in steps.

Each is a function of the data that returns a list of tasks. All tasks are tested on all sets of `[data.test]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


PROTOCOLS = {"stages": stages}
