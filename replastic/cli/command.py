"""What all commands are: a dataclass whose fields are its arguments, and a call that returns the exit code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(kw_only=True)
class Command:
    """name: as it is typed. when_stopped: what Ctrl-C is answered with.

    The docstring's first line is its help; imports that take time stand in the call.
    """

    name: ClassVar[str]
    when_stopped: ClassVar[str] = "stopped"

    traceback: bool = False
    """Show where an error came from."""

    def __call__(self) -> int:
        raise NotImplementedError
