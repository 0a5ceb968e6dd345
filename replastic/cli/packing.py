"""`replastic pack` and `unpack`: a folder of runs as one file, and back. Neither needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from .command import Command
from .console import print_line


@dataclass(kw_only=True)
class Pack(Command):
    """Pack a folder of runs into one file, which compare, report and best can read."""

    name: ClassVar[str] = "pack"

    folder: Positional[Annotated[str, arg(metavar="DIR")]]
    """The folder of the runs. It is not changed."""
    out: Annotated[str, arg(metavar="FILE.jsonl.gz", aliases=["-o"])]
    """The file to write, which must not exist. Checkpoints are left out."""

    def __call__(self) -> int:
        from ..record import find_runs, pack

        left_out = pack(self.folder, self.out)
        size = Path(self.out).stat().st_size
        print_line(f"{self.out} holds {len(find_runs(self.out))} runs in {size:,} bytes, and was checked.")
        if left_out:
            runs = len({Path(path).parent for path in left_out})
            print_line(f"Left out: the checkpoints of {runs} runs. Without these, runs cannot be resumed.")
        return 0


@dataclass(kw_only=True)
class Unpack(Command):
    """Restore the folder from which a packed file was made, byte for byte."""

    name: ClassVar[str] = "unpack"

    file: Positional[Annotated[str, arg(metavar="FILE.jsonl.gz")]]
    """A file from `replastic pack`. It is not changed."""
    out: Annotated[str, arg(metavar="DIR", aliases=["-o"])]
    """The folder to write, which must be new or empty."""

    def __call__(self) -> int:
        from ..record import find_runs, unpack

        unpack(self.file, self.out)
        print_line(f"{self.out} holds {len(find_runs(self.out))} runs.")
        return 0
