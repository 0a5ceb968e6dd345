"""A report as one HTML document that stands alone: it loads nothing, opens from a folder, and prints.

page.html has everything that can be read: words, tables, links, the legend. page*.js draw the figures from the numbers that
stand next to them as JSON, and page.css says how all of it looks. Names of runs and arms may be any text: Jinja escapes
them, and the scripts set them as text alone.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from ..extras import needed
from ..listing import visible
from .colours import Style, style, styles
from .items import Bars, Cell, Chapter, Chart, Contents, Line, Table, common_n

_HERE = Path(__file__).parent
_SCRIPTS = ("page_scale.js", "page_drawing.js", "page_chart.js", "page_bars.js", "page_table.js", "page.js")
GENERATOR = "replastic report"
_NOTHING = "–"
_Y_DIGITS, _X_DIGITS = 5, 9  # more than can be seen; steps and examples stay whole

Files = Mapping[str, Sequence[tuple[str, str, str]]]


def page(contents: Contents, files: Files) -> str:
    """The document. The first pair of contents.made stands at the top.

    files: for each chapter, the paths of its files relative to the page, what each one is, and the item that links it.
    """
    jinja2 = needed("jinja2", "report", "a report")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,  # HTML is of another type
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    inks, several = _Inks(), len(contents.chapters) > 1
    chapters = [
        _chapter(chapter, f"chapter-{number}", files.get(chapter.name, ()), inks, several=several)
        for number, chapter in enumerate(contents.chapters, 1)
    ]
    css, theme, script = _read("page.css") + inks.css(), _read("page_theme.js"), "\n".join(map(_read, _SCRIPTS))
    named = {name: found for name, found in files.items() if found}
    return environment.get_template("page.html").render(
        contents=contents,
        chapters=chapters,
        navigation=[chapter["navigation"] for chapter in chapters if chapter["navigation"]],
        files=[
            (name if len(named) > 1 or several else "", [(_link(path), path, what) for path, what, _ in found])
            for name, found in named.items()
        ],
        generator=GENERATOR,
        policy=_policy(css, theme, script),
        css=css,
        theme=theme,
        script=script,
    )


class _Inks:
    """The colours of a page, each a class, so that a theme or a printer changes them without drawing again."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}

    def name(self, of: Style) -> str:
        return self._names.setdefault((of.light, of.dark), f"ink-{len(self._names)}")

    def css(self) -> str:
        light = "".join(f".{name}{{--ink:{light}}}\n" for (light, _), name in self._names.items())
        dark = "".join(f':root[data-theme="dark"] .{name}{{--ink:{dark}}}\n' for (_, dark), name in self._names.items())
        return f"{light}@media screen{{\n{dark}}}\n"


def _chapter(
    chapter: Chapter, name: str, files: Sequence[tuple[str, str, str]], inks: _Inks, *, several: bool
) -> dict[str, Any]:
    """What the template shows of a chapter."""
    looks = [*styles(chapter.arms).values()]
    arms = [
        {
            **_look(of, inks),
            "name": arm.name,
            "baseline": arm.baseline,
            "ended": arm.ended,
            "unfinished": re.sub(r"\d+ finished", "", arm.ended).strip(),
            "hint": f"{arm.name}: {arm.ended}" if arm.ended else arm.name,
            "pressed": "true" if arm.shown else "false",
        }
        for arm, of in zip(chapter.arms, looks, strict=True)
    ]
    view = _Items({arm.name: number for number, arm in enumerate(chapter.arms)}, looks, inks)
    sections: dict[str, list[dict[str, Any]]] = {}
    for item in chapter.items:
        if not isinstance(item, Table) or item.shown:
            links = [(_link(path), PurePosixPath(path).suffix[1:]) for path, _, of in files if of == item.name]
            about = {"name": item.name, "title": item.title, "note": item.note, "links": links}
            sections.setdefault(item.section, []).append({**about, **view(item)})
    links = [(f"#{name}", chapter.name)] if several else []
    links += [(f"#{name}-{number}", section) for number, section in enumerate(sections, 1) if section]
    return {
        "id": name,
        "name": chapter.name,
        "says": chapter.says,
        "about": [part.strip() for part in re.split(r"\n\s*\n", chapter.about) if part.strip()],
        "cautions": chapter.cautions,
        "arms": arms,
        "sections": [(section, _columns(items), items) for section, items in sections.items()],
        "details": chapter.details,
        "navigation": links if several or len(links) > 1 else [],
    }


def _columns(items: Sequence[Mapping[str, Any]]) -> int:
    drawn = sum(item["kind"] != "table" for item in items)
    return drawn if drawn < 3 else 2 if drawn == 4 else 3


class _Items:
    """Makes what the template shows of a chapter's items. numbers: of its arms, by name."""

    def __init__(self, numbers: Mapping[str, int], styles: Sequence[Style], inks: _Inks) -> None:
        self._numbers, self._styles, self._inks = numbers, styles, inks

    def __call__(self, item: Chart | Bars | Table) -> dict[str, Any]:
        if isinstance(item, Table):
            return self._table(item)
        label = " ".join(filter(None, [item.title, item.note]))
        if isinstance(item, Chart):  # with keys, a chart's cursor says what it has
            return {"kind": "chart", "label": label, **self._chart(item)}
        label = " ".join([label, *(f"{bar.arm}: {bar.value:.4g}." for bar in item.bars)])
        return {"kind": "bars", "label": label, "legend": [], "frames": [], "data": self._bars(item)}

    def _chart(self, chart: Chart) -> dict[str, Any]:
        """Its numbers, and a legend of the lines that do not belong to an arm."""
        frames = chart.frames or [("", chart.lines)]
        styles: dict[str, Style] = {}  # of lines that do not belong to an arm
        for _, lines in frames:
            for order, line in enumerate(lines):
                if line.arm not in self._numbers:
                    styles.setdefault(line.label, style(order))
        grids: dict[tuple[Any, ...], int] = {}  # arms mostly share their x
        data = {
            "x": chart.x_label,
            "y": chart.y_label,
            "xLog": chart.x_log,
            "yLog": chart.y_log,
            "whole": chart.whole,
            "marks": _numbers(chart.marks, _X_DIGITS),
            "frames": [[self._line(line, styles, grids) for line in lines] for _, lines in frames],
            "labels": [label for label, _ in chart.frames],
        }
        data["grids"] = [list(grid) for grid in grids]
        legend = [{**_look(of, self._inks), "label": label} for label, of in styles.items()]
        return {"data": data, "legend": legend, "frames": data["labels"]}

    def _line(self, line: Line, styles: Mapping[str, Style], grids: dict[tuple[Any, ...], int]) -> dict[str, Any]:
        number = self._numbers.get(line.arm, -1)
        of = self._styles[number] if number >= 0 else styles[line.label]
        every = {int(n) for n in line.n}
        return {
            "label": visible(line.label),
            "arm": number,
            **_look(of, self._inks),
            "x": grids.setdefault(tuple(_numbers(line.x, _X_DIGITS)), len(grids)),
            "y": _numbers(line.y),
            "low": _numbers(line.low),
            "high": _numbers(line.high),
            "n": every.pop() if len(every) == 1 else [int(n) for n in line.n],
        }

    def _bars(self, bars: Bars) -> dict[str, Any]:
        known = [(order, self._numbers.get(bar.arm, -1), bar) for order, bar in enumerate(bars.bars)]
        return {
            "label": bars.label,
            "bars": [
                {
                    "label": visible(bar.arm),
                    "arm": number,
                    "ink": self._inks.name(self._styles[number] if number >= 0 else style(order)),
                    "value": _number(bar.value),
                    "low": _number(bar.low),
                    "high": _number(bar.high),
                    "n": bar.n,
                }
                for order, number, bar in known
            ],
        }

    def _table(self, table: Table) -> dict[str, Any]:
        of_arms = bool(table.columns) and table.columns[0].lower() == "arm"
        with_n = common_n(table.rows) is None
        rows = [
            (
                self._numbers.get(row[0]) if of_arms else None,
                [
                    (_sorted_as(value), *_cell(value, digits, with_n), isinstance(value, Cell) and value.best)
                    for value, digits in zip(row, table.digits, strict=True)
                ],
            )
            for row in table.rows
        ]
        return {"kind": "table", "columns": table.columns, "digits": table.digits, "rows": rows}


def _look(of: Style, inks: _Inks) -> dict[str, str]:
    return {"ink": inks.name(of), "dash": " ".join(map(str, of.dash))}


def _link(path: str) -> str:
    return "./" + quote(path, safe="/", errors="replace")  # so that it names neither a scheme nor a host


def _cell(value: Any, digits: int | None, with_n: bool) -> tuple[str | None, str]:
    """A name, or None and a number."""
    if isinstance(value, Cell):
        return None, value.text(digits or 0, with_n=with_n)
    if value is None or (_is_number(value) and math.isnan(value)):
        return None, _NOTHING
    if digits is None or not _is_number(value):
        return str(value), ""
    shown = f"{value:.{digits}f}" if math.isfinite(value) else "∞" if value > 0 else "-∞"
    return None, shown.replace("-", "−")


def _sorted_as(value: Any) -> Any:
    value = value.mean if isinstance(value, Cell) else value
    return value if _is_number(value) and math.isfinite(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _numbers(values: Iterable[float], digits: int = _Y_DIGITS) -> list[float | int | None]:
    return [_number(value, digits) for value in values]


def _number(value: float | None, digits: int = _Y_DIGITS) -> float | int | None:
    """Rounded and as short as possible; None for what JSON does not have as a number."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _policy(css: str, *scripts: str) -> str:
    """Nothing may be loaded, and only these scripts may run."""
    allowed = " ".join(map(_hash, scripts))
    rest = "img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; style-src {_hash(css)}; script-src {allowed}; {rest}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
