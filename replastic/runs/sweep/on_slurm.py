"""Runs as jobs of a SLURM cluster, through submitit."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from ...extras import needed
from ...options import OptionError
from ...record.provenance import cores
from .call import Call, Outcome, killed, perform
from .engine import Engine, check_dealt_device, check_engine_options

_OPTIONS = {  # our names, with types and submitit's names
    "time": (int, "timeout_min"),
    "cpus": (int, "cpus_per_task"),
    "gpus": (int, "gpus_per_node"),
    "memory": (float, "mem_gb"),
    "partition": (str, "slurm_partition"),
    "account": (str, "slurm_account"),
    "qos": (str, "slurm_qos"),
    "constraint": (str, "slurm_constraint"),
}
_KNOWN = {"cluster": Literal["slurm", "local", "debug"], **{key: kind for key, (kind, _) in _OPTIONS.items()}}
_DAY = 24 * 60  # minutes
_LOOK_AGAIN = {"slurm": 2.0, "local": 0.1, "debug": 0.0}  # seconds; submitit itself asks SLURM less often


class OnSlurm(Engine):
    """Jobs of SLURM, one array per wave. The sweep waits until they have ended, so start it in tmux.

    A job that times out or is preempted is put back into the queue and continues from its last checkpoint, at most three
    times. Logs are in the folder `.jobs` of the output folder.

    jobs: the largest number of concurrent jobs.
    options: partition, account, qos and constraint as in sbatch; time in minutes (a day), cpus that a run reserves (1),
        of which it uses `threads` of [run], gpus (1 if runs train on a GPU), memory in GB. cluster="local" is submitit's
        stand-in for SLURM on this machine, with the same files and processes; "debug" runs all in this process.
    """

    def __init__(
        self,
        folder: str | Path,
        jobs: int | None = None,
        *,
        device: str = "cpu",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        options = {"time": _DAY, "cpus": 1, **(options or {})}
        check_engine_options("slurm", options, _KNOWN)
        self.cluster = options.pop("cluster", "slurm")
        self.device = check_dealt_device("slurm", device)
        if torch.device(device).type == "cuda":
            options.setdefault("gpus", 1)
        self.cpus = options["cpus"]
        self.jobs = jobs if self.cluster == "slurm" else jobs or max(1, cores() // self.cpus)
        needed("submitit.core.utils", "slurm", 'on="slurm"')
        submitit = needed("submitit", "slurm", 'on="slurm"')
        if self.cluster == "slurm" and shutil.which("sbatch") is None:
            raise OptionError(
                'on="slurm": there is no sbatch on this machine; start the sweep on the login node, or use '
                "--on local (--engine cluster=local tests the jobs without SLURM)"
            )
        self._executor = submitit.AutoExecutor(Path(folder) / ".jobs", cluster=self.cluster)
        self._executor.update_parameters(
            name="replastic",
            **{_OPTIONS[key][1]: value for key, value in options.items()},
            **({"slurm_array_parallelism": jobs} if jobs else {}),
        )
        self._lost = submitit.core.utils.UncompletedJobError
        self._active: list[tuple[Call, Any]] = []

    def run(self, calls: Sequence[Call]) -> Iterator[Outcome]:
        waiting = [dataclasses.replace(call, device=self.device) for call in calls]
        while waiting or self._active:
            # SLURM has a queue of its own, and its arrays limit how many jobs run at once.
            room = len(waiting) if self.cluster == "slurm" else (self.jobs or 1) - len(self._active)
            if waiting and room:
                self._submit(waiting[:room])
                waiting = waiting[room:]
            done = [entry for entry in self._active if entry[1].done()]
            for entry in done:
                self._active.remove(entry)
                yield self._outcome(*entry)
            if not done:
                time.sleep(_LOOK_AGAIN[self.cluster])

    def _submit(self, calls: Sequence[Call]) -> None:
        with self._executor.batch():
            jobs = [self._executor.submit(Job(), call) for call in calls]
        self._active += zip(calls, jobs, strict=True)

    def _outcome(self, call: Call, job: Any) -> Outcome:
        try:
            return job.result()
        except self._lost:
            return killed(call, f"job {job.job_id} ended without an answer ({job.state}): see {job.paths.stderr}")

    def __exit__(self, *exception: object) -> None:
        for _, job in self._active:
            job.cancel(check=False)
        self._active.clear()


class Job:
    """`perform`, as a job that submitit may stop and put back into the queue."""

    def __call__(self, call: Call) -> Outcome:
        return perform(call)

    def checkpoint(self, call: Call) -> Any:
        """What to run next time: the same, since the run's folder has its last checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, call)
