"""Write a report: a folder with a page, figures and tables."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from .. import __version__
from ..extras import needed
from ..options import OptionError
from ..record.files import write_whole
from ..record.provenance import command
from .contents import chapter
from .estimates import Centre
from .figures import draw
from .gathering import gather
from .items import Chapter, Contents, Table
from .page import GENERATOR, page
from .tables import write


class Written(NamedTuple):
    """The page, its sentence on each experiment, and the records that could not be read."""

    page: Path
    says: list[str]
    problems: list[str]


def report(
    folders: Iterable[str | Path] | str | Path,
    out: str | Path,
    *,
    metric: str | None = None,
    baseline: str | None = None,
    centre: Centre | None = None,
    smooth: int = 0,
) -> Written:
    """Write index.html, figures/ (PNG and SVG) and tables/ (CSV) into a folder; returns what was made.

    folders: folders of runs; a report may have several experiments.
    metric: the figure by which arms are compared, instead of the one in their file. baseline: the arm with which others
        are compared.
    centre: of curves, "mean" or "interquartile mean"; by default the latter if every arm has five seeds or more.
    smooth: the number of points of a Savitzky-Golay filter that smooths curves, which are labelled so; 0: no smoothing.
        Tables are never smoothed.
    """
    for package in ("matplotlib", "scipy", "jinja2"):
        needed(package, "report", "a report")
    if smooth and smooth < 3:
        raise OptionError(f"--smooth {smooth}: pass 3 points or more, or 0")
    place = Path(out)
    if place.exists() and not place.is_dir():
        raise OptionError(f"-o {out} is not a folder: pass a folder, which may be new")
    folders = [folders] if isinstance(folders, str | Path) else list(folders)
    if place.resolve() in {Path(folder).resolve() for folder in folders}:
        raise OptionError(f"-o {out} is the folder of the runs: pass another one, for example -o {place}-page")
    studies, problems = gather(folders, metric=metric, baseline=baseline)
    chapters = [_named(chapter(study, centre=centre, smooth=smooth)) for study in studies]
    for name in ("figures", "tables"):
        (place / name).mkdir(parents=True, exist_ok=True)
    prefixes = [f"{name}-" for name in _slugs(one.name for one in chapters)] if len(chapters) > 1 else [""]
    files = {one.name: _write_files(one, place, prefix) for one, prefix in zip(chapters, prefixes, strict=True)}
    title = chapters[0].name if len(chapters) == 1 else f"{len(chapters)} experiments"
    made = [
        ("Made", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("With", f"replastic {__version__}"),
        ("By", shlex.join(command())),
    ]
    path = place / "index.html"
    _clear_old_files(path, {place / file for several in files.values() for file, *_ in several})
    write_whole(path, page(Contents(title, chapters, made, problems), files).encode())
    return Written(path, [f"{one.name}: {one.says}" for one in chapters], problems)


def _clear_old_files(page: Path, new: Collection[Path]) -> None:
    """Delete the figures and tables of an earlier report, which would look like those of the new page."""
    if page.exists() and GENERATOR in page.read_text(encoding="utf-8", errors="replace")[:4000]:
        for pattern in ("figures/*.svg", "figures/*.png", "tables/*.csv"):
            for old in set(page.parent.glob(pattern)) - set(new):
                old.unlink()


def _named(one: Chapter) -> Chapter:
    """The chapter with names for files in its items. A figure and a table may share a name: their folders differ."""
    tables = [item for item in one.items if isinstance(item, Table)]
    others = [item for item in one.items if not isinstance(item, Table)]
    names = {
        id(item): name
        for several in (tables, others)
        for item, name in zip(several, _slugs(item.name for item in several), strict=True)
    }
    return replace(one, items=[replace(item, name=names[id(item)]) for item in one.items])


def _write_files(one: Chapter, place: Path, prefix: str) -> list[tuple[str, str, str]]:
    """Write the figures and tables of an experiment; returns their paths relative to the page, titles and items' names."""
    files = []
    for item in one.items:
        named = replace(item, name=prefix + item.name)
        paths = [write(named, place / "tables")] if isinstance(named, Table) else draw(named, one.arms, place / "figures")
        files += [(path.relative_to(place).as_posix(), item.title, item.name) for path in paths]
    return files


def _slugs(names: Iterable[str]) -> list[str]:
    """Distinct names for files, of letters, digits and dashes.

    >>> _slugs(["Warm start", "warm-start", "<>"])
    ['warm-start', 'warm-start-2', 'item']
    """
    taken: dict[str, None] = {}
    for name in names:
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "item"
        tries = itertools.chain([slug], (f"{slug}-{number}" for number in itertools.count(2)))
        taken[next(one for one in tries if one not in taken)] = None
    return list(taken)
