"""The provenance of a run: versions, machine, commit and command."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .schema import STAMPED, parsed

_PACKAGE = Path(__file__).resolve().parent.parent
STAMP = ".replastic-commit"  # next to the package, in a copy of a checkout that has no history
_PATIENCE = 5  # seconds that another program may take to answer, on a slow disk


def provenance() -> dict[str, Any]:
    """Plain values for JSON; unknown ones are None, and nothing raises.

    >>> import torch
    >>> provenance()["torch"] == torch.__version__
    True
    """
    import torch  # not at the top: it is not needed to read records

    return {
        "replastic": version_of("replastic"),
        **_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version_of("numpy"),
        "safetensors": version_of("safetensors"),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu": _cpu(),
        "cpus": cores(),
        "threads": torch.get_num_threads(),
        "gpu": _gpu(),
        "gpus": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "command": command(),
    }


def command() -> list[str]:
    """The command as typed: the name of the program, without its folder, and its arguments."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    return [program.parent.name if program.name == "__main__.py" else program.name, *sys.argv[1:]]


def cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:  # used from a checkout that was never installed
        return None


def stamp() -> None:
    """Write the commit next to the package, for copies of this checkout that are made without its history."""
    found = _of_git()
    if found is None:
        raise RuntimeError(f"{_PACKAGE.parent} is not a git checkout of replastic: stamp the checkout, then copy it")
    (_PACKAGE.parent / STAMP).write_text(f"{json.dumps({**found, 'sha256': _digest()})}\n")


def _stamped() -> dict[str, Any]:
    """The content of the stamp. The files differ from the commit if they did so then, or have changed since."""
    try:
        found = parsed((_PACKAGE.parent / STAMP).read_bytes(), STAMPED)
    except (OSError, ValueError):
        return {"commit": None, "dirty": None}
    return {"commit": found["commit"], "dirty": found["dirty"] or found["sha256"] != _digest()}


def _digest() -> str:
    """A checksum of the package's Python files and their names."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _commit() -> dict[str, Any]:
    return _of_git() or _stamped()


def _of_git() -> dict[str, Any] | None:
    """The commit of the checkout that holds this package, and whether files differ from it; None outside a checkout.

    Untracked files count only inside the package, so that results written into the checkout change nothing.
    """
    if _output("git", "ls-files", "--error-unmatch", "__init__.py") is None:
        # An installed package may be in the checkout of another project, in an environment that git ignores.
        return None
    changed = _output("git", "status", "--porcelain", "--untracked-files=no")
    unknown = _output("git", "ls-files", "--others", "--exclude-standard", ".")
    dirty = None if changed is None or unknown is None else bool(changed or unknown)
    return {"commit": _output("git", "rev-parse", "HEAD"), "dirty": dirty}


def _cpu() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or platform.machine() or None


def _gpu() -> str | None:
    """The name of the GPU. CUDA is not initialised for it: that takes memory on the GPU and forbids forking."""
    import torch

    if torch.cuda.is_initialized():
        return torch.cuda.get_device_name()
    names = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") if torch.cuda.device_count() else None
    return names.splitlines()[0].strip() if names else None


def _output(*command: str) -> str | None:
    """The output of a program, run in this package's folder; None if it is absent, fails or takes too long."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("GIT_")
    }  # which are set inside git's hooks
    environment["GIT_OPTIONAL_LOCKS"] = "0"  # reading must not block a commit
    try:
        done = subprocess.run(
            command,
            cwd=_PACKAGE,
            env=environment,
            capture_output=True,
            timeout=_PATIENCE,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        return done.stdout.decode(errors="replace").strip()
    except (OSError, subprocess.SubprocessError):
        return None
