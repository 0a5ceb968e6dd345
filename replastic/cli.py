"""The command line: `replastic run`, `replastic sweep`, `replastic best`.

Exit codes: 0 all has finished; 1 something failed, diverged or was killed; 2 the input is wrong; 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from . import experiment
from .options import OptionError
from .summary import aligned, summarise, summary_table
from .sweep import Outcome, best, sweep
from .sweep.sweeping import ENGINES


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `replastic`; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(arguments[:1] if arguments[:1] == ["run"] else arguments)
    try:
        if given.command == "run":  # which has a parser of its own, as `python -m replastic.experiment`
            return experiment.main(arguments[1:], prog="replastic run")
        return _sweep(given) if given.command == "sweep" else _best(given)
    except (OptionError, ImportError, OSError, RuntimeError, ValueError) as problem:
        print(f"replastic {given.command}: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="replastic", description="Measure and undo the loss of plasticity.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="run an experiment in this process", add_help=False)
    one = commands.add_parser("sweep", help="run an experiment as independent runs, on this machine or on many")
    experiment.add_arguments(one)
    one.add_argument("--on", default="local", metavar="ENGINE", help=f"{', '.join(ENGINES)}; local if not given")
    one.add_argument("--jobs", type=int, metavar="N", help="runs side by side; else one for each core, or for each GPU")
    one.add_argument(
        "--engine", action="append", default=[], metavar="KEY=VALUE", help="the engine's own, as in partition=gpu time=240"
    )
    one = commands.add_parser("best", help="the best point of each grid, by the validation images")
    one.add_argument("out", metavar="DIR", help="where runs were kept")
    return parser


def _sweep(given: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    outcomes = sweep(
        given.file,
        given.out,
        on=given.on,
        jobs=given.jobs,
        arms=given.arm,
        seeds=given.seed,
        device=given.device,
        root=given.data,
        changes=given.set,
        retry=given.retry,
        options=dict(map(_option, given.engine)),
        tell=lambda outcome: print(f"{outcome.arm}, seed {outcome.seed}: {outcome.status}", flush=True),
    )
    _print_outcomes(outcomes)
    _print_summary(given.out)
    return 0 if all(outcome.status == "finished" for outcome in outcomes) else 1


def _print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Per arm how many ended how; then what went wrong, with the last line of its reason."""
    rows = []
    for arm in dict.fromkeys(outcome.arm for outcome in outcomes):
        counts = Counter(outcome.status for outcome in outcomes if outcome.arm == arm)
        rows.append((arm, ", ".join(f"{count} {status}" for status, count in counts.items())))
    print()
    _print_table(("arm", "runs"), rows)
    for outcome in outcomes:
        if outcome.status != "finished":
            lines = outcome.reason.strip().splitlines() or [""]
            print(f"\n{outcome.folder}: {outcome.status}\n  {lines[-1]}")
    if any(outcome.status == "failed" for outcome in outcomes):
        print("\nTracebacks are in end.json of each folder; --retry goes on with what has failed.")


def _print_summary(out: str) -> None:
    found = summarise(out)
    if found:
        print()
        for line in summary_table(found):
            print(line)


def _best(given: argparse.Namespace) -> int:
    found = best(given.out)
    rows = []
    for name, one in found.items():
        point = ", ".join(f"{key}={value}" for key, value in one.point.items())
        rows.append((name, point, one.figure, f"{one.score:.4f}", f"{one.spread:.4f}", str(one.n)))
    _print_table(("arm", "best point", "figure", "mean", "deviation", "n"), rows)
    return 0


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for line in aligned(head, rows):
        print(line)


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise OptionError(f"--engine {text!r}: write it as key=value, as in partition=gpu")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()  # words need no quotes on a command line


if __name__ == "__main__":
    sys.exit(main())
