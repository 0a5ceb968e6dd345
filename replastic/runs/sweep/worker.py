"""A process that performs calls: a line of JSON in, a line of JSON out. Started by `Local`; ends when its input does."""

from __future__ import annotations

import os
import sys
import threading
from queue import SimpleQueue

from .call import perform


def main() -> None:
    """Perform one call after the other."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a run prints must not be taken for an answer
    calls = SimpleQueue[str]()
    threading.Thread(target=_listen, args=(calls,), daemon=True).start()
    while True:
        answers.write(perform(calls.get()) + "\n")
        answers.flush()


def _listen(calls: SimpleQueue[str]) -> None:
    """Take calls in. The end of the input means that the sweep is over or was killed, and nobody waits for this run."""
    for line in sys.stdin:
        calls.put(line)
    os._exit(0)  # in the middle of a step, if need be: records are whole at every moment


if __name__ == "__main__":
    main()
