"""Modules that have moved: their old paths work for one release, with a warning that names the new one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

MOVED = {
    "measures.bounds": "theory",
    "streams.images": "workloads.images.tasks",
    "allocator": "train.allocator",
    "capture": "train.cuda_graph",
    "chain": "units.chain",
    "config": "runs.config",
    "experiment": "runs.execute",
    "guards": "learner.checks",
    "health": "diagnosis.diagnosis",
    "health_rules": "diagnosis.rules",
    "inventory": "weights.inventory",
    "layers": "weights.layers",
    "live": "runs.live",
    "measuring": "train.measuring",
    "method": "learner.method",
    "projection": "weights.project",
    "resuming": "learner.resume",
    "running": "runs.run",
    "running_stacked": "runs.run_stacked",
    "sharded": "weights.sharded",
    "silence": "learner.missed_calls",
    "stacked": "train.stacked.network",
    "stacked_checks": "train.stacked.checks",
    "stacked_methods": "train.stacked.methods",
    "stacked_rank_one": "train.stacked.rank_one",
    "stacked_samples": "train.stacked.samples",
    "states": "learner.fresh",
    "steps": "train.step",
    "streams": "workloads.images",
    "sweep": "runs.sweep",
    "task": "learner.task",
    "train_stacked": "train.stacked.loop",
    "training": "train.settings",
    "unfolded": "units.unfolded",
    "watching": "measures.watch",
}


def moved_to(old: str) -> str | None:
    """Where a module is now.

    >>> moved_to("replastic.streams.protocols")
    'replastic.workloads.images.protocols'
    """
    package, _, path = old.partition(".")
    for key, new in MOVED.items():
        if package == "replastic" and (path == key or path.startswith(f"{key}.")):
            return f"replastic.{new}{path[len(key) :]}"
    return None


class _OldPaths(MetaPathFinder, Loader):
    """Makes a module for an old path whose attributes are those of the module that took its place."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = moved_to(fullname)
        found = find_spec(new) if new else None
        if found is None:
            return None
        return ModuleSpec(fullname, self, is_package=found.submodule_search_locations is not None)

    def exec_module(self, module: ModuleType) -> None:
        new = moved_to(module.__name__)
        assert new is not None
        warnings.warn(f"{module.__name__} has moved: import {new}", DeprecationWarning, stacklevel=2)
        present = import_module(new)
        vars(module).update(__getattr__=lambda name: getattr(present, name), __dir__=lambda: dir(present))


def install() -> None:
    """Let old paths be imported. After all other finders, which know every module that exists."""
    if not any(isinstance(finder, _OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(_OldPaths())
