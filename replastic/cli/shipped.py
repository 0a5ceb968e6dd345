"""The experiments that come with the package, by name."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from ..options import OptionError

_PACKAGE = Path(__file__).resolve().parent.parent


def experiments_folder() -> Path | None:
    """The folder of their files: inside an installed package, or next to the package in a checkout."""
    for folder in (_PACKAGE / "experiments", _PACKAGE.parent / "experiments"):
        if (folder / "quick.toml").is_file():
            return folder
    return None


def shipped() -> dict[str, Path]:
    """All experiments by name, for example "quick" and "fire/figure-2a-cifar10"."""
    folder = experiments_folder()
    if folder is None:
        return {}
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.toml"))}


def experiment_file(given: str) -> Path:
    """An existing file, or the file that comes with the package under this name."""
    path = Path(given)
    if path.is_file():
        return path
    known = shipped()
    if given in known:
        return known[given]
    if path.is_dir():
        raise OptionError(f"{given} is a folder: pass a file, for example {given.rstrip('/')}/mine.toml")
    alike = get_close_matches(given, known, n=1)
    hint = f"did you mean {alike[0]!r}?" if alike else "pass a TOML file"
    more = "; `replastic list experiments` lists those of the package" if known else ""
    raise OptionError(f"there is no file {given}: {hint}{more}")
