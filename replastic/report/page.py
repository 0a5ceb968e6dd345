"""A report as one HTML document that stands alone: it loads nothing, opens from a folder, and prints.

Python writes everything that can be read: words, tables, links, the legend. page*.js draw the figures from the numbers that
stand beside them as JSON, and page.css says how all of it looks. Names of runs and arms are anybody's text: they are escaped
here, and the scripts set them as text alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from numbers import Real
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from ..listing import visible
from .colours import Style, style
from .items import Arm, Bars, Chapter, Chart, Contents, Line, Table

_HERE = Path(__file__).parent
_SCRIPTS = ("page_scale.js", "page_drawing.js", "page_chart.js", "page_bars.js", "page_table.js", "page.js")
GENERATOR = "replastic report"
_NOTHING = "–"
_Y_DIGITS, _X_DIGITS = 5, 9  # more than can be seen; steps and examples stay whole

Files = Mapping[str, Sequence[tuple[str, str]]]


def page(contents: Contents, files: Files) -> str:
    """The document. files: by chapter, paths relative to where it will stand and what each is; they are linked to.

    A file that is called as an item is, or something-item, is also linked below that item. The first pair of contents.made
    stands at the top.
    """
    inks = _Inks()
    named = [(f"chapter-{number}", chapter) for number, chapter in enumerate(contents.chapters, 1)]
    chapters = [_Chapter(chapter, name, files.get(chapter.name, ()), inks) for name, chapter in named]
    body = [chapter.html(contents.title) for chapter in chapters]  # before the head, which has the inks that were asked for
    css = _read("page.css") + inks.css()
    theme, script = _read("page_theme.js"), "\n".join(map(_read, _SCRIPTS))
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(css, theme, script)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f'<meta name="generator" content="{GENERATOR}">',
        f"<title>{_e(contents.title)}</title>",
        f"<style>{css}</style>",
        f"<script>{theme}</script>",
        "</head>",
        "<body>",
        _header(contents, chapters),
        "<main>",
        *body,
        "</main>",
        _footer(contents, files),
        f'<script type="module">{script}</script>',
        "</body>",
        "</html>",
        "",
    ]
    return "\n".join(lines)


class _Inks:
    """The colours that a page uses, each a class, so that a theme or a printer changes them without drawing anew."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}

    def name(self, of: Style) -> str:
        return self._names.setdefault((of.light, of.dark), f"ink-{len(self._names)}")

    def css(self) -> str:
        light = "".join(f".{name}{{--ink:{light}}}\n" for (light, _), name in self._names.items())
        dark = "".join(f':root[data-theme="dark"] .{name}{{--ink:{dark}}}\n' for (_, dark), name in self._names.items())
        return f"{light}@media screen{{\n{dark}}}\n"


class _Chapter:
    """A chapter on the page: its words, its legend, and its items below their headings."""

    def __init__(self, chapter: Chapter, name: str, files: Sequence[tuple[str, str]], inks: _Inks) -> None:
        self.chapter, self.name, self._inks = chapter, name, inks
        self._styles = [style(number, baseline=arm.baseline) for number, arm in enumerate(chapter.arms)]
        self._numbers = {arm.name: number for number, arm in enumerate(chapter.arms)}
        names = sorted((item.name for item in chapter.items), key=len, reverse=True)
        self._files: dict[str, list[str]] = {}
        for path, _ in files:
            stem = f"-{PurePosixPath(path).stem}"
            item = next((name for name in names if stem.endswith(f"-{name}")), "")
            self._files.setdefault(item, []).append(path)
        self.sections: dict[str, list[Chart | Bars | Table]] = {}
        for item in chapter.items:
            if not isinstance(item, Table) or item.shown:
                self.sections.setdefault(item.section, []).append(item)

    def html(self, title: str) -> str:
        """title: of the whole, which is not said again."""
        chapter = self.chapter
        heading = f'<h2 id="{self.name}-title"><bdi>{_e(chapter.name)}</bdi></h2>'
        lines = [
            f'<article class="chapter" id="{self.name}" aria-label="{_e(chapter.name)}">',
            heading if chapter.name != title else "",
            f'<p class="says">{_e(chapter.says)}</p>' if chapter.says else "",
            *(f'<p class="about">{_e(text)}</p>' for text in _paragraphs(chapter.about)),
            _notes("caution", "Cautions", chapter.cautions),
            self._legend() if chapter.arms else "",
        ]
        for number, (section, items) in enumerate(self.sections.items(), 1):
            drawn = sum(not isinstance(item, Table) for item in items)
            columns = drawn if drawn < 3 else 2 if drawn == 4 else 3
            lines += [
                f'<section id="{self.name}-{number}">',
                f"<h3>{_e(section)}</h3>" if section else "",
                f'<div class="items columns-{columns}">',
                *map(self._item, items),
                "</div>",
                "</section>",
            ]
        for heading, text in chapter.details:
            lines.append(f"<details><summary>{_e(heading)}</summary><pre>{_e(text)}</pre></details>")
        return "\n".join(filter(None, [*lines, "</article>"]))

    def _legend(self) -> str:
        buttons = [self._button(number, arm) for number, arm in enumerate(self.chapter.arms)]
        changes = [f'<button type="button" data-change="{change}">{change}</button>' for change in ("all", "none", "invert")]
        return (
            '<div class="legend" role="group" aria-label="Arms: shown or hidden">'
            f'<div class="arms">{"".join(buttons)}</div>'
            f'<div class="changes"><span class="count"></span>{"".join(changes)}</div></div>'
        )

    def _button(self, number: int, arm: Arm) -> str:
        baseline = '<span class="mark">baseline</span>' if arm.baseline else ""
        unfinished = bool(re.sub(r"\d+ finished", "", arm.ended).strip())
        ended = f'<span class="ended">{_e(arm.ended)}</span>' if unfinished else ""
        hint = f"{arm.name}: {arm.ended}" if arm.ended else arm.name
        return (
            f'<button type="button" class="arm" data-arm="{number}" title="{_e(hint)}" '
            f'aria-pressed="{"true" if arm.shown else "false"}">'
            f"{self._swatch(self._styles[number])}<bdi>{_e(arm.name)}</bdi>{baseline}{ended}</button>"
        )

    def _swatch(self, of: Style) -> str:
        return (
            f'<svg class="swatch {self._inks.name(of)}" viewBox="0 0 26 8" aria-hidden="true">'
            f'<line x1="1" y1="4" x2="25" y2="4" stroke-dasharray="{_dash(of)}"/></svg>'
        )

    def _item(self, item: Chart | Bars | Table) -> str:
        if isinstance(item, Table):
            return self._table(item)
        if isinstance(item, Bars):
            kind, data, extra, reached = "bars", self._bars(item), "", ""
            heard = [f"{bar.arm}: {bar.value:.4g}." for bar in item.bars]
        else:
            kind, reached, heard = "chart", ' tabindex="0"', []  # with keys, a chart's cursor says what it has
            data, extra = self._chart(item)
        label = " ".join(filter(None, [item.title, item.note, *heard]))
        return "\n".join(
            [
                f'<figure class="{kind}" data-name="{_e(item.name)}">',
                f"<h4>{_e(item.title)}</h4>",
                extra,
                f'<div class="plot" role="img"{reached} aria-label="{_e(label)}"></div>',
                self._caption(item),
                f'<script type="application/json">{_json(data)}</script>',
                "</figure>",
            ]
        )

    def _caption(self, item: Chart | Bars | Table) -> str:
        links = " ".join(_link(path, PurePosixPath(path).suffix[1:]) for path in self._files.get(item.name, ()))
        links = f'<span class="links">{links}</span>' if links else ""
        return f"<figcaption>{_e(item.note)} {links}</figcaption>" if item.note or links else ""

    def _chart(self, chart: Chart) -> tuple[dict[str, Any], str]:
        """Its numbers; and what stands between its title and its frame: whose the lines are, which frame is seen."""
        frames = chart.frames or [("", chart.lines)]
        styles: dict[str, Style] = {}  # of lines that are no arm's
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
        keys = [f"<li>{self._swatch(of)}<bdi>{_e(label)}</bdi></li>" for label, of in styles.items()]
        extra = [f'<ul class="key">{"".join(keys)}</ul>'] if keys else []
        if chart.frames:
            extra.append(
                f'<label class="frame"><span>Shown</span><input type="range" min="0" max="{len(frames) - 1}" step="1"'
                f' value="0" autocomplete="off"><output>{_e(frames[0][0])}</output></label>'
            )
        return data, "\n".join(extra)

    def _line(self, line: Line, styles: Mapping[str, Style], grids: dict[tuple[Any, ...], int]) -> dict[str, Any]:
        number = self._numbers.get(line.arm, -1)
        of = self._styles[number] if number >= 0 else styles[line.label]
        every = {int(n) for n in line.n}
        return {
            "label": visible(line.label),
            "arm": number,
            "ink": self._inks.name(of),
            "dash": _dash(of),
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

    def _table(self, table: Table) -> str:
        numeric = ["" if digits is None else ' class="number"' for digits in table.digits]
        heads = [
            f'<th scope="col" aria-sort="none"{kind}><button type="button">{_e(column)}</button></th>'
            for column, kind in zip(table.columns, numeric, strict=True)
        ]
        of_arms = bool(table.columns) and table.columns[0].lower() == "arm"
        rows = []
        for row in table.rows:
            number = self._numbers.get(row[0]) if of_arms else None
            cells = [
                f"<td{kind}{_sorted_as(value)}>{_cell(value, digits)}</td>"
                for value, digits, kind in zip(row, table.digits, numeric, strict=True)
            ]
            whose = "" if number is None else f' data-arm="{number}"'
            rows.append(f"<tr{whose}>{''.join(cells)}</tr>")
        return "\n".join(
            [
                f'<figure class="table" data-name="{_e(table.name)}">',
                f"<h4>{_e(table.title)}</h4>",
                f'<div class="scroll" role="region" tabindex="0" aria-label="{_e(table.title)}">',
                f"<table><thead><tr>{''.join(heads)}</tr></thead>",
                "<tbody>",
                *rows,
                "</tbody></table></div>",
                self._caption(table),
                "</figure>",
            ]
        )


def _header(contents: Contents, chapters: Sequence[_Chapter]) -> str:
    made = "".join(f"{_e(heading)} <bdi>{_e(value)}</bdi>" for heading, value in contents.made[:1])
    return "\n".join(
        [
            '<header class="top">',
            f'<div><h1>{_e(contents.title)}</h1><p class="made">{made}</p></div>',
            '<button type="button" id="theme" hidden>theme</button>',
            "</header>",
            _nav(chapters),
            '<noscript><p class="notes caution">The figures on this page are drawn by a script, and scripts are off here. '
            "The same figures are in the folder “figures” beside this page.</p></noscript>",
            _notes("problem", "Records that could not be read", contents.problems),
        ]
    )


def _nav(chapters: Sequence[_Chapter]) -> str:
    rows = []
    for one in chapters:
        links = [f'<a class="to" href="#{one.name}">{_e(one.chapter.name)}</a>'] if len(chapters) > 1 else []
        links += [f'<a href="#{one.name}-{n}">{_e(section)}</a>' for n, section in enumerate(one.sections, 1) if section]
        rows.append(f"<li>{' '.join(links)}</li>" if len(links) > 1 or len(chapters) > 1 else "")
    return f'<nav aria-label="Contents"><ul>{"".join(rows)}</ul></nav>' if any(rows) else ""


def _footer(contents: Contents, files: Files) -> str:
    lines = ['<footer class="end">']
    if contents.made:
        pairs = (f"<div><dt>{_e(heading)}</dt><dd>{_e(value)}</dd></div>" for heading, value in contents.made)
        lines.append(f"<h2>How this was made</h2><dl>{''.join(pairs)}</dl>")
    several = {name: found for name, found in files.items() if found}
    if several:
        lines.append("<h2>Files</h2>")
    for name, found in several.items():
        lines.append(f"<h3><bdi>{_e(name)}</bdi></h3>" if len(several) > 1 or len(contents.chapters) > 1 else "")
        lines.append(f'<ul class="files">{"".join(f"<li>{_link(path, path)} {_e(what)}</li>" for path, what in found)}</ul>')
    return "\n".join([*lines, "</footer>"])


def _notes(kind: str, heading: str, notes: Sequence[str]) -> str:
    if not notes:
        return ""
    points = "".join(f"<li>{_e(note)}</li>" for note in notes)
    return f'<div class="notes {kind}" role="note"><strong>{_e(heading)}</strong><ul>{points}</ul></div>'


def _paragraphs(text: str) -> Iterator[str]:
    return (part.strip() for part in re.split(r"\n\s*\n", text) if part.strip())


def _link(path: str, text: str) -> str:
    address = "./" + quote(path, safe="/", errors="replace")  # so that it names neither a scheme nor a host
    return f'<a href="{address}">{_e(text)}</a>'


def _cell(value: Any, digits: int | None) -> str:
    if value is None or (_is_number(value) and math.isnan(value)):
        return _NOTHING
    if digits is None or not _is_number(value):
        return f"<bdi>{_e(str(value))}</bdi>"
    shown = f"{value:.{digits}f}" if math.isfinite(value) else "∞" if value > 0 else "-∞"
    return shown.replace("-", "−")


def _sorted_as(value: Any) -> str:
    return f' data-value="{value}"' if _is_number(value) and math.isfinite(value) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _dash(of: Style) -> str:
    return " ".join(map(str, of.dash))


def _numbers(values: Iterable[float], digits: int = _Y_DIGITS) -> list[float | int | None]:
    return [_number(value, digits) for value in values]


def _number(value: float | None, digits: int = _Y_DIGITS) -> float | int | None:
    """Rounded, as short as JSON can have it; None for what is no number there."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _json(value: Any) -> str:
    """As text that no parser of HTML sees a tag in. Whatever is not ASCII is escaped as well, line separators among it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _policy(css: str, *scripts: str) -> str:
    """Nothing may be loaded, and nothing may run but these."""
    allowed = " ".join(map(_hash, scripts))
    rest = "img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; style-src {_hash(css)}; script-src {allowed}; {rest}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _e(text: str) -> str:
    return escape(visible(text), quote=True)
