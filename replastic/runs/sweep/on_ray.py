"""Runs as tasks of a Ray cluster."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ...extras import needed
from ...options import OptionError
from .call import Call, Outcome, killed, perform
from .engine import Engine, check_dealt_device, check_engine_options

_KNOWN = {"cpus": int, "gpus": float}
_STORE = 100 * 2**20  # bytes that a cluster of our own keeps for results: they are short


class OnRay(Engine):
    """The cluster that RAY_ADDRESS names or that this process is connected to, else one of our own on this machine.

    Another's cluster is left as it was. Its machines need this package, and the output folder at the same path.

    jobs: runs side by side, if the cluster has room; else as many as it has room for.
    options: cpus, the cores of a run and the threads that it takes (1); gpus, the GPUs of a run, also a part of one (1, if
        it is to be trained on one).
    """

    def __init__(self, jobs: int | None = None, *, device: str = "cpu", options: Mapping[str, Any] | None = None) -> None:
        options = options or {}
        check_engine_options("ray", options, _KNOWN)
        self.jobs, self.device = jobs, check_dealt_device("ray", device)
        self.cpus = options.get("cpus", 1)
        self.gpus = options.get("gpus", 1 if torch.device(device).type == "cuda" else 0)
        self._ray = _import_ray()
        self._started, self._active = False, dict[Any, Call]()

    def __enter__(self) -> OnRay:
        if not self._ray.is_initialized():
            elsewhere = "RAY_ADDRESS" in os.environ
            own = {} if elsewhere else {"object_store_memory": _STORE, "include_dashboard": False}
            on_sigterm = signal.getsignal(signal.SIGTERM)
            self._ray.init(address="auto" if elsewhere else "local", log_to_driver=False, logging_level="error", **own)
            self._started = True
            if threading.current_thread() is threading.main_thread() and on_sigterm is not None:
                signal.signal(signal.SIGTERM, on_sigterm)  # Ray has put its own in the place of the caller's
        self._check_room()
        return self

    def run(self, calls: Sequence[Call]) -> Iterator[Outcome]:
        ray = self._ray
        # A run that died goes on when the sweep is run again, not behind its back.
        remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)(perform)
        waiting = [dataclasses.replace(call, device=self.device, threads=self.cpus) for call in calls]
        while waiting or self._active:
            while waiting and len(self._active) < (self.jobs or len(calls)):
                call = waiting.pop(0)
                self._active[remote.remote(call)] = call
            (done, *_), _ = ray.wait(list(self._active), num_returns=1)
            call = self._active.pop(done)
            try:
                outcome = ray.get(done)
            except ray.exceptions.RayError as problem:
                outcome = killed(call, f"its task was lost: {str(problem).strip().splitlines()[0]}")
            yield outcome

    def _check_room(self) -> None:
        """What no machine has would be waited for without end."""
        there = self._ray.cluster_resources()
        for kind, wanted in (("CPU", self.cpus), ("GPU", self.gpus)):
            if wanted > there.get(kind, 0):
                self.__exit__()
                option = f"{kind.lower()}s"
                raise OptionError(
                    f"a run is to have {option}={wanted}, and the Ray cluster has {there.get(kind, 0):g} in all: "
                    f"give --engine {option}=N or another --device"
                )

    def __exit__(self, *exception: object) -> None:
        for task in self._active:
            self._ray.cancel(task, force=True)
        self._active.clear()
        if self._started:
            self._ray.shutdown()
            self._started = False


def _import_ray() -> Any:
    needed("ray.exceptions", "ray", 'on="ray"')
    return needed("ray", "ray", 'on="ray"')
