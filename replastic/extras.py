"""Optional packages: imported where they are used, with an error that names the extra to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def needed(module: str, extra: str, what: str) -> Any:
    """A module of an optional package.

    >>> needed("nowhere.to.be.found", "report", "a report")
    Traceback (most recent call last):
    ImportError: a report needs nowhere, which is missing: pip install "replastic[report]"
    """
    try:
        return import_module(module)
    except ImportError as missing:
        package = module.partition(".")[0]
        raise ImportError(f'{what} needs {package}, which is missing: pip install "replastic[{extra}]"') from missing
