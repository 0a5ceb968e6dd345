"""The interface of all engines: where runs are trained, and with which resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from ...options import OptionError, check_keys, check_type
from .call import Call, Outcome


class Engine(AbstractContextManager["Engine"], Protocol):
    """Trains runs. On exit, also by Ctrl-C, it ends those that are still running; all of them can be continued later."""

    def run(self, calls: Sequence[Call]) -> Iterator[Outcome]:
        """Perform all calls, in any order; yields the outcome of each as soon as it is known.

        A run that dies ends no other run: its outcome is "killed".
        """
        ...


def check_engine_options(on: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise for an option that an engine does not have, or whose value has the wrong type."""
    check_keys(given, list(known), f"--engine (on={on!r})")
    for key, value in given.items():
        check_type(value, known[key], f"--engine {key}")


def check_dealt_device(on: str, device: str) -> str:
    """The device of a run whose GPU is chosen by a scheduler."""
    if torch.device(device).index is not None:
        raise OptionError(f'device={device!r}: on={on!r} assigns GPUs itself; pass "cuda"')
    return device
