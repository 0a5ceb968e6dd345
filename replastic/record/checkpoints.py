"""Find and load the checkpoints of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .packed import Packed
from .schema import NOTE, check


def load_newest(there: list[Path]) -> tuple[Any, dict[str, Any]]:
    """State and note of the last of these checkpoints; if it is damaged, a ValueError that says what to do."""
    from . import snapshot  # imports torch, which is not needed to read records

    newest = there[-1]
    try:
        state, note = snapshot.load(newest)
        check(note, NOTE, "its note")
        return state, note
    except ValueError as error:
        hint = f"there is no older one: delete {newest} to start the run again"
        if there[1:]:
            hint = f"{there[-2].name} is older: delete {newest} to continue from it"
        raise ValueError(f"the newest checkpoint, {newest.name}, is damaged; {hint}. {error}") from error


def checkpoints_of(folder: Path) -> list[Path]:
    """A run's checkpoints, oldest first."""
    found = (folder / "checkpoints").glob("*")
    return sorted((path for path in found if re.fullmatch(r"\d{6,}", path.name)), key=lambda path: int(path.name))


def load_checkpoint(folder: str | Path | Packed) -> tuple[dict[str, Any], Any]:
    """Position and state of a run's last checkpoint, from which other runs may start."""
    there = checkpoints_of(Path(str(folder)))
    if not there:
        raise FileNotFoundError(f"{folder} has no checkpoint: pass the folder of a saved run (packed files have none)")
    state, note = load_newest(there)
    return note["position"], state
