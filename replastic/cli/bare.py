"""`replastic` without the extra [cli]: help and `doctor`, which need the core alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..listing import aligned
from .doctor import report

COMMANDS = (
    "run",
    "sweep",
    "report",
    "compare",
    "best",
    "pack",
    "unpack",
    "inspect",
    "fire",
    "tokenize",
    "list",
    "show",
    "new-method",
    "doctor",
)
_NEEDED = 'need tyro and rich, which are missing here: pip install "replastic[cli]"'


def main(arguments: Sequence[str]) -> int:
    """Print the help or what `doctor` finds; refuse every other command with the line that installs what it needs."""
    if arguments and arguments[0] == "doctor" and not {"-h", "--help"} & {*arguments}:
        return report(print_line, print_table)
    if not arguments or {"-h", "--help"} & {*arguments}:
        print_line("usage: replastic doctor | --version | --help\n")
        print_line(f"The commands {', '.join(name for name in COMMANDS if name != 'doctor')}\n{_NEEDED}")
        return 0 if arguments else 2
    sys.stderr.write(f"replastic: commands other than doctor, --help and --version {_NEEDED}\n")
    return 2


def print_line(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text in columns, as the console does outside a terminal."""
    for line in aligned([columns, *rows], left=len(columns)):
        print_line(line)
