"""The base of all commands: a dataclass whose fields are its arguments, and whose call returns the exit code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(kw_only=True)
class Command:
    """name: as typed. when_stopped: printed after Ctrl-C.

    The first line of the docstring is the help text; slow imports belong in the call.
    """

    name: ClassVar[str]
    when_stopped: ClassVar[str] = "stopped"

    traceback: bool = False
    """Show the traceback of an error."""

    def __call__(self) -> int:
        raise NotImplementedError
