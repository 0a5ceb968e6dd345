"""`replastic doctor`: what is installed here, what is missing, and how to get it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, ClassVar

from ..record.provenance import cores, version_of
from .command import Command
from .shipped import experiments_folder

_FOR = {
    "cli": "this command line",
    "report": "reports and comparisons",
    "data": "fetching data sets, decoding images",
    "demo": "the digits of experiments/quick.toml",
    "text": "tokenize with GPT-2's tokenizer, or one of the library tokenizers",
    "ray": "sweep --on ray",
    "slurm": "sweep --on slurm",
    "live": "run --live tensorboard or wandb",
    "lightning": "the callback for Lightning",
    "hf": "the callback for Transformers' Trainer",
    "sb3": "the callback for Stable-Baselines3",
    "docs": "building the documentation",
    "test": "the tests",
}


@dataclass(kw_only=True)
class Doctor(Command):
    """Print versions, devices, optional extras, and what is missing."""

    name: ClassVar[str] = "doctor"

    def __call__(self) -> int:
        from .console import print_line, print_table

        return report(print_line, print_table)


def report(print_line: Callable[[str], None], print_table: Callable[..., Any]) -> int:
    """Print everything; returns the exit code. Needs neither tyro nor rich, so that it runs without the extra [cli]."""
    print_table(("", ""), [*_versions(), *_devices(), *_places()])
    print_line("")
    if extras := _extras():
        print_table(("extra", "for", "is", "to get it"), extras)
    else:
        print_line("Missing extras are listed once the package is installed: pip install -e .")
    problems = _problems()
    for problem in problems:
        print_line(f"\n{problem}")
    return 1 if problems else 0


def _versions() -> list[tuple[str, str]]:
    own = version_of("replastic") or "a checkout that is not installed"
    names = ("torch", "numpy", "safetensors")
    rows = [("python", platform.python_version()), ("replastic", own)]
    return rows + [(name, version_of(name) or "missing") for name in names]


def _devices() -> list[tuple[str, str]]:
    try:
        import torch
    except ImportError:
        return [("cpu", f"{cores()} cores")]
    rows = [("cpu", f"{cores()} cores, threads of torch: {torch.get_num_threads()}")]
    if not torch.cuda.is_available():
        built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built for the CPU alone"
        return [*rows, ("gpu", f"none; {built}")]
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        rows.append((f"cuda:{number}", f"{about.name}, {about.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"))
    return rows


def _places() -> list[tuple[str, str]]:
    try:
        from ..workloads.base import root_of
    except ImportError:  # without torch there are more urgent things to say
        return []
    folder = root_of(None)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    there = ", ".join(names[:12]) or ("empty" if folder.is_dir() else "not there yet")
    experiments = experiments_folder()
    return [
        ("data sets", f"{folder} ({there}); $REPLASTIC_DATA or --data change it"),
        ("experiments", str(experiments) if experiments else "none came with this installation"),
    ]


def _extras() -> list[tuple[str, str, str, str]]:
    """Every extra that the package declares, whether it is there, and how to get what is not."""
    rows = []
    for extra, needed in _needed().items():
        if extra == "dev":
            continue
        missing = [name for name in needed if version_of(name) is None]
        hint = f'{", ".join(missing)}: pip install "replastic[{extra}]"' if missing else ""
        rows.append((extra, _FOR.get(extra, ""), "missing" if missing else "there", hint))
    if rows and not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        rows.append(("", "tests of the report in a browser", "missing", "chromium, from your system's packages"))
    return rows


def _needed() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    try:
        declared = requires("replastic") or []
    except PackageNotFoundError:  # used from a checkout that was never installed
        declared = []
    for line in declared:
        requirement, _, marker = line.partition(";")
        extra = marker.partition("extra ==")[2].strip().strip("'\"")
        name = requirement.strip()
        for end in "<>=!~[ (":
            name = name.partition(end)[0]
        if extra and name != "replastic":
            found.setdefault(extra, []).append(name)
    return found


def _problems() -> list[str]:
    """What keeps the package from working, with what to type."""
    try:
        import torch
    except ImportError as problem:
        return [f"torch cannot be imported ({problem}): pip install torch"]
    found = []
    if torch.cuda.is_available():
        try:
            torch.ones(2, device="cuda").sum().item()
        except RuntimeError as problem:
            found.append(f"torch sees a GPU and cannot use it ({problem}): run with --device cpu")
    if not os.access(Path.cwd(), os.W_OK):
        found.append(f"nothing can be written in {Path.cwd()}: pass an --out elsewhere")
    return found
