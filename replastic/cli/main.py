"""Parse the command line, run the command, and turn errors into a sentence and an exit code.

Exit codes: 0 success; 1 a run failed, diverged or was killed, or a record cannot be read; 2 the input is wrong; 129, 130 and
143 stopped by SIGHUP, Ctrl-C or SIGTERM; 141 the output was closed, as by `head`.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Union

from .. import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `replastic`; returns the exit code. Arguments that cannot be parsed are a SystemExit with code 2."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--version"]:
        sys.stdout.write(f"replastic {__version__}\n")
        return 0
    try:
        import rich  # noqa: F401
        import tyro  # noqa: F401
    except ImportError:
        from .bare import main as without_extra

        return without_extra(given)
    from .console import Handler, console

    command = _parsed(given)
    handler = Handler()
    log = logging.getLogger("replastic")
    log.addHandler(handler)
    before = log.level
    log.setLevel(logging.INFO)
    try:
        with _stopped_by_signals():
            return _performed(command)
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        console().file.flush()


def _performed(command: Any) -> int:
    """The exit code of a command, and what went wrong as a sentence."""
    from ..options import OptionError
    from .console import as_it_is, as_typed, console, error_console

    try:
        return command()
    except KeyboardInterrupt as stopped:
        try:
            error_console().print(command.when_stopped)
            console().file.flush()
        except OSError:  # after SIGHUP the terminal is gone
            _print_no_more()
        return 128 + (stopped.number if isinstance(stopped, _Stopped) else signal.SIGINT)
    except BrokenPipeError:  # for example piped into `head`
        _print_no_more()
        return 141
    except (OptionError, ImportError, OSError, RuntimeError, ValueError) as problem:
        if command.traceback:
            raise
        said = as_typed(str(problem))
        if isinstance(problem, PermissionError):
            said = f"{problem.filename} cannot be read or written: pass another folder"
        error_console().print(as_it_is(f"replastic {command.name}: {said}"), soft_wrap=True)
        return 2


class _Stopped(KeyboardInterrupt):
    """A signal that ends a command as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command like Ctrl-C, unless they have another handler, as under nohup."""
    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    in_main = threading.current_thread() is threading.main_thread()
    mine = [number for number in known if in_main and signal.getsignal(number) == signal.SIG_DFL]

    last = -math.inf

    def stop(number: int, frame: object) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > 1:  # seconds; signals often come together, and one is enough
            raise _Stopped(number)

    for number in mine:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def _print_no_more() -> None:
    """Close the output; otherwise Python would report the error again at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parsed(arguments: Sequence[str]) -> Any:
    import tyro

    from . import commands

    kinds = [Annotated[kind, tyro.conf.subcommand(kind.name)] for kind in commands.ALL]
    config = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    about = "Measure how networks lose their ability to learn, restore it, and compare the remedies."
    any_of: Any = Union[tuple(kinds)]  # noqa: UP007
    return tyro.cli(any_of, prog="replastic", description=about, args=arguments, config=config)
