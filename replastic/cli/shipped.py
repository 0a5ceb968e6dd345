"""The experiments that come with the package, by name."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from ..options import OptionError

_PACKAGE = Path(__file__).resolve().parent.parent


def experiments_folder() -> Path | None:
    """Where their files lie: in an installed package inside it, in a checkout beside it."""
    for folder in (_PACKAGE / "experiments", _PACKAGE.parent / "experiments"):
        if (folder / "quick.toml").is_file():
            return folder
    return None


def shipped() -> dict[str, Path]:
    """Every experiment: "fire/figure-2a-cifar10" is one, "quick" another."""
    folder = experiments_folder()
    if folder is None:
        return {}
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.toml"))}


def experiment_file(given: str) -> Path:
    """A file that exists, or the one that comes with the package under this name."""
    path = Path(given)
    if path.is_file():
        return path
    known = shipped()
    if given in known:
        return known[given]
    if path.is_dir():
        raise OptionError(f"{given} is a folder: give a file, as in {given.rstrip('/')}/mine.toml")
    alike = get_close_matches(given, known, n=1)
    hint = f"did you mean {alike[0]!r}?" if alike else "give a TOML file"
    more = "; `replastic list experiments` has those that come along" if known else ""
    raise OptionError(f"there is no file {given}: {hint}{more}")
