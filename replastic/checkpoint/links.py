"""Which links in a checkpoint's folder may become files of a copy: those that stay in it, or in the cache that it is of."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from .stored import CheckpointError, printable

_REPOSITORY = re.compile(r"(models|datasets|spaces)--.+")
_STORE = ".huggingface-shared-blobs"  # in the folder of blobs that a cache's repositories share


def check_links(files: Iterable[Path], named: Path) -> None:
    """Raise if one of the files is a link that leads out of its folder, or nowhere. `named` itself may lead anywhere: it is
    what was asked for."""
    for file in files:
        if file == named or not file.is_symlink():
            continue
        try:
            end = Path(os.path.realpath(file, strict=True))
        except OSError as problem:
            raise CheckpointError(f"{lost(file)}: put back what it points to, or delete the link") from problem
        if not any(end.is_relative_to(home) for home in _homes(Path(os.path.realpath(file.parent)))):
            raise CheckpointError(
                f"{_shown(file)}, outside of the folder ({printable(str(end))}). It may have nothing to do with the "
                "checkpoint, and would be copied. If it belongs to it, put the file itself in the link's place; if not, "
                "delete the link, or pass the file of weights rather than its folder"
            )


def lost(link: Path) -> str:
    """In words, that a link is dangling or a loop."""
    return f"{_shown(link)}, which leads nowhere"


def _shown(link: Path) -> str:
    return printable(f"{link} is a link to {os.readlink(link)}")


def _homes(folder: Path) -> Iterator[Path]:
    """Where files of this folder may be. In a snapshot of a Hugging Face cache that is also where the cache keeps the
    content of the same repository, and of files that repositories share."""
    yield folder
    for above in folder.parents:
        if above.name == "snapshots" and _REPOSITORY.fullmatch(above.parent.name):
            yield above.parent / "blobs"
            store = above.parent.parent / "blobs"
            if (store / _STORE).is_file():
                yield store
