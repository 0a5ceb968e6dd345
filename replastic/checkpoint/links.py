"""Which links in a checkpoint's folder are copied as files: those within the folder, or within its Hugging Face cache."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from .stored import CheckpointError, printable

_REPOSITORY = re.compile(r"(models|datasets|spaces)--.+")
_STORE = ".huggingface-shared-blobs"  # in the folder of blobs that a cache's repositories share


def check_links(files: Iterable[Path], named: Path) -> None:
    """Raise if one of the files is a link that leads out of its folder, or nowhere. `named`, the path that the caller
    passed, may lead anywhere."""
    for file in files:
        if file == named or not file.is_symlink():
            continue
        try:
            end = Path(os.path.realpath(file, strict=True))
        except OSError as problem:
            raise CheckpointError(f"{lost(file)}: restore its target, or delete the link") from problem
        if not any(end.is_relative_to(home) for home in _homes(Path(os.path.realpath(file.parent)))):
            raise CheckpointError(
                f"{_shown(file)}, outside the folder ({printable(str(end))}). It may not belong to the checkpoint, and "
                "would be copied. If it does, replace the link by the file itself; if not, delete the link, or pass the "
                "file of weights instead of its folder"
            )


def lost(link: Path) -> str:
    """A message that a link is dangling or a loop."""
    return f"{_shown(link)}, which leads nowhere"


def _shown(link: Path) -> str:
    return printable(f"{link} is a link to {os.readlink(link)}")


def _homes(folder: Path) -> Iterator[Path]:
    """Where the targets of links may be: in the folder, and for a snapshot in a Hugging Face cache, also where the cache
    keeps the files of this repository and those that repositories share."""
    yield folder
    for above in folder.parents:
        if above.name == "snapshots" and _REPOSITORY.fullmatch(above.parent.name):
            yield above.parent / "blobs"
            store = above.parent.parent / "blobs"
            if (store / _STORE).is_file():
                yield store
