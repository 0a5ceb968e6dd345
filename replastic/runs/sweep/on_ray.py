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
_STORE = 100 * 2**20  # bytes for results in a cluster of our own: they are short


class OnRay(Engine):
    """Uses the cluster that RAY_ADDRESS names or that this process is connected to, or else starts one on this machine.

    A cluster that it did not start keeps running. Its machines need this package, and the output folder at the same path.

    jobs: the number of concurrent runs, if the cluster has room; by default as many as it has room for.
    options: cpus, the cores that a run reserves (1), of which it uses `threads` of [run]; gpus, the GPUs of a run, which
        may be a fraction (1 if runs train on a GPU).
    """

    def __init__(self, jobs: int | None = None, *, device: str = "cpu", options: Mapping[str, Any] | None = None) -> None:
        options = options or {}
        check_engine_options("ray", options, _KNOWN)
        self.jobs, self.device = jobs, check_dealt_device("ray", device)
        self.cpus = options.get("cpus", 1)
        self.gpus = options.get("gpus", 1 if torch.device(device).type == "cuda" else 0)
        needed("ray.exceptions", "ray", 'on="ray"')
        self._ray = needed("ray", "ray", 'on="ray"')
        self._started, self._active = False, dict[Any, Call]()

    def __enter__(self) -> OnRay:
        if not self._ray.is_initialized():
            elsewhere = "RAY_ADDRESS" in os.environ
            own = {} if elsewhere else {"object_store_memory": _STORE, "include_dashboard": False}
            on_sigterm = signal.getsignal(signal.SIGTERM)
            self._ray.init(address="auto" if elsewhere else "local", log_to_driver=False, logging_level="error", **own)
            self._started = True
            if threading.current_thread() is threading.main_thread() and on_sigterm is not None:
                signal.signal(signal.SIGTERM, on_sigterm)  # Ray has replaced the caller's handler
        self._check_room()
        return self

    def run(self, calls: Sequence[Call]) -> Iterator[Outcome]:
        ray = self._ray
        # A run that died is continued when the sweep is run again, and not retried by Ray.
        remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)(perform)
        waiting = [dataclasses.replace(call, device=self.device) for call in calls]
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
        """Raise if a run asks for more than the cluster has: Ray would wait forever."""
        there = self._ray.cluster_resources()
        for kind, wanted in (("CPU", self.cpus), ("GPU", self.gpus)):
            if wanted > there.get(kind, 0):
                self.__exit__()
                option = f"{kind.lower()}s"
                raise OptionError(
                    f"a run asks for {option}={wanted}, and the Ray cluster has {there.get(kind, 0):g} in all: "
                    f"pass --engine {option}=N or another --device"
                )

    def __exit__(self, *exception: object) -> None:
        for task in self._active:
            self._ray.cancel(task, force=True)
        self._active.clear()
        if self._started:
            self._ray.shutdown()
            self._started = False
