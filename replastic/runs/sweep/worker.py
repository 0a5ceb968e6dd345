"""A process that performs calls, pickled from its input to its output. Started by `Local`; ends when its input does."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from queue import SimpleQueue

from .call import Call, perform


def main() -> None:
    """Perform one call after the other."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a run prints must not be taken for an answer
    calls = SimpleQueue[Call]()
    threading.Thread(target=_listen, args=(calls,), daemon=True).start()
    while True:
        pickle.dump(perform(calls.get()), answers)
        answers.flush()


def _listen(calls: SimpleQueue[Call]) -> None:
    """Receive calls. When the input ends, the sweep is over or was killed, and its workers must not train on."""
    try:
        while True:
            calls.put(pickle.load(sys.stdin.buffer))
    except EOFError:
        os._exit(0)  # in the middle of a step, if need be: records are whole at every moment
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main()
