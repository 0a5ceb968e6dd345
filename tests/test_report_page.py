"""The page of a report says what it was given, loads nothing, and is worked by mouse, by keys and on a phone."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from replastic.listing import visible
from replastic.report.items import Arm, Bar, Bars, Chapter, Chart, Contents, Line, Table
from replastic.report.page import page

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "</script ><!--<script >alert(1)//",
    "\"><svg onload='alert(1)'>",
    "a\u2028b\u2029c & <!-- d -->",
    "\u202egnp.exe\u200f",
    "a name " + "that does not end " * 40,
    "x" * 300,
]
VOID = {"meta", "input", "line", "img", "br", "link"}


def line(arm: str, level: float, count: int = 12, label: str = "") -> Line:
    y = [level + 0.01 * i for i in range(count)]
    return Line(label or arm, range(1, count + 1), y, [v - 0.02 for v in y], [v + 0.02 for v in y], [5] * count, arm)


def small(names: tuple[str, ...] = ("train on", "FIRE", "ReDo")) -> Contents:
    """A chapter with one of everything."""
    first, second, third = names
    arms = [Arm(first, "5 finished", baseline=True), Arm(second, "4 finished, 1 diverged"), Arm(third, "", shown=False)]
    lines = [line(name, 0.2 * (number + 1)) for number, name in enumerate(names)]
    gap = Line(second, [1, 2, 3, 4], [0.5, math.nan, 0.7, 0.8], arm=second)
    frames = [(f"after task {task}", [line(name, number + task) for number, name in enumerate(names)]) for task in (1, 5)]
    rates = [Line(name, [1e-4, 1e-3, 1e-2], [3, 200, 0], [-1, 100, 0], [9, 300, 0], (), name) for name in names]
    layers = [line("", 1, label="layer 1"), line("", 2, label="layer 2")]
    nothing = Line(first, [1, 2], [math.nan, math.inf], arm=first)
    bars = [Bar(name, n + 1.5, n + 1.0, n + 2.0, 5) for n, name in enumerate(names)]
    rows = [[first, 0.4, 5, ""], [second, 0.25, 4, "1 diverged"], [third, None, 10, math.nan]]
    items = [
        Chart("accuracy", "Accuracy", "Over seeds.", "Results", "task", "accuracy", lines, whole=True, marks=[3, 6, 99]),
        Table("final", "Last tasks", "Means.", "Results", ["arm", "last", "n", "remark"], rows, [None, 3, 0, None]),
        Table("all", "Every row", "", "Results", ["a"], [["kept off the page"]], [None], shown=False),
        Chart("gap", "Gap", "One is missing.", "Measures", "task", "y", [gap]),
        Chart("rate", "Rate", "Both logarithmic.", "Measures", "rate", "y", rates, x_log=True, y_log=True),
        Chart("layers", "Layers", "", "Measures", "task", "y", layers),
        Chart("spectra", "Spectra", "One seed.", "Spectra", "rank", "value", frames=frames),
        Bars("hours", "Time", "Median.", "Cost", "hours", bars),
        Chart("empty", "Empty", "None finished.", "Other", "task", "y", [nothing]),
    ]
    about = "What is asked.\n\nHow it is answered."
    chapter = Chapter("labels", about, "FIRE is best.", arms, items, ["Few seeds."], [("Settings", "rate = 0.1\n<b>")])
    return Contents("A report", [chapter], [("Made", "today"), ("With", "replastic")], ["runs/7: no run.json"])


FILES = {"labels": [("figures/accuracy.svg", "as a drawing", "accuracy"), ("tables/a b#1.csv", "numbers", "")]}


class Reader(HTMLParser):
    """Elements with their attributes and the text inside them; that every tag is closed is checked on the way."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))

    def data(self) -> list[dict[str, Any]]:
        kinds = [attrs.get("type") for tag, attrs in self.tags if tag == "script"]
        texts = [text for tag, text in self.texts if tag == "script"]
        return [json.loads(text) for kind, text in zip(kinds, texts, strict=True) if kind == "application/json"]


def test_everything_that_was_given_stands_on_the_page() -> None:
    text = page(small(), FILES)
    words = " ".join(data for tag, data in Reader(text).texts if tag not in ("script", "style"))
    for said in ("A report", "today", "runs/7: no run.json", "labels", "FIRE is best.", "Few seeds.", "rate = 0.1\n<b>"):
        assert said in words
    for said in (
        "What is asked.",
        "How it is answered.",
        "4 finished, 1 diverged",
        "baseline",
        "Over seeds.",
        "layer 2",
    ):
        assert said in words
    assert "5 finished" not in words  # what went well is a hint on the button alone
    assert "kept off the page" not in text
    assert re.findall("<h3>(.*?)</h3>", text) == ["Results", "Measures", "Spectra", "Cost", "Other"]
    assert '<p class="about">What is asked.</p>' in text


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_text_whatever_they_are(name: str) -> None:
    contents = small((name, f"{name} 2", "ReDo"))
    chapter = contents.chapters[0]
    chapter = Chapter(name, name, name, chapter.arms, chapter.items, [name], [(name, name)])
    read = Reader(page(Contents(name, [chapter, chapter], [(name, name)], [name]), {name: [(name, name, "")]}))
    safe = Reader(page(small(), FILES))
    assert {tag for tag, _ in read.tags} == {tag for tag, _ in safe.tags}
    assert {key for _, attrs in read.tags for key in attrs} == {key for _, attrs in safe.tags for key in attrs}
    name = visible(name)  # what would turn the figures behind it around is escaped
    assert read.data()[0]["frames"][0][0]["label"] == name
    assert ("title", name) in read.texts
    hints = [attrs.get("title") for tag, attrs in read.tags if tag == "button" and attrs.get("data-arm") == "0"]
    assert hints == [f"{name}: 5 finished"] * 2


def test_what_is_no_text_at_all_is_replaced() -> None:
    assert r"a\udc80b" in page(Contents("a\udc80b", []), {}).encode().decode()


def test_nothing_is_loaded_and_nothing_else_may_run() -> None:
    text = page(small(), FILES)
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}  # the name of a language
    read = Reader(text)
    assert not [key for _, attrs in read.tags for key in attrs if key in ("src", "style") or key.startswith("on")]
    assert "@import" not in text
    assert "url(" not in text
    assert "innerHTML" not in text
    (policy,) = (attrs["content"] or "" for _, attrs in read.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, attrs in read.tags:
        if tag == "a":
            assert re.match(r"#chapter-|\./", attrs["href"] or "")
    links = {"javascript:alert(1)": "./javascript%3Aalert%281%29", "//host/a": ".///host/a", "a b#1": "./a%20b%231"}
    for path, link in links.items():
        assert f'href="{link}"' in page(small(), {"labels": [(path, "", "")]})


def test_what_is_not_finite_is_null_and_numbers_are_short() -> None:
    lines = [Line("a", np.array([1.0, 123456.0, 3.5]), np.array([math.nan, math.inf, 1 / 3]), n=np.array([3, 3, 2]))]
    chart = Chart("c", "C", "", "S", "x", "y", [*lines, *lines])
    (data,) = Reader(page(Contents("t", [Chapter("c", "", "", [], [chart])]), {})).data()
    assert data["grids"] == [[1, 123456, 3.5]]  # once, for both
    assert [one["y"] for one in data["frames"][0]] == [[None, None, 0.33333]] * 2
    assert data["frames"][0][0]["n"] == [3, 3, 2]
    assert data["frames"][0][0]["ink"] == data["frames"][0][1]["ink"]  # of one label


def test_tables_have_their_decimals_and_an_en_dash_for_nothing() -> None:
    text = page(small(), FILES)
    assert '<td class="number" data-value="0.25">0.250</td><td class="number" data-value="4">4</td>' in text
    assert '<td class="number">–</td><td class="number" data-value="10">10</td><td>–</td>' in text
    rows = [[-1.5, math.inf, "<i>", True]]
    table = Table("t", "T", "", "S", ["a", "b", "c", "d"], rows, [1, 2, 2, None])
    text = page(Contents("t", [Chapter("c", "", "", [], [table])]), {})
    assert '<td class="number" data-value="-1.5">−1.5</td><td class="number">∞</td>' in text
    assert '<td class="number"><bdi>&lt;i&gt;</bdi></td><td><bdi>True</bdi></td>' in text


def test_files_are_linked_at_their_figures_and_at_the_end() -> None:
    text = page(small(), FILES)
    assert '<span class="links"><a href="./figures/accuracy.svg">svg</a></span>' in text
    assert '<li><a href="./tables/a%20b%231.csv">tables/a b#1.csv</a> numbers</li>' in text
    charts = [Chart(name, name, "", "S", "x", "y") for name in ("rank", "effective-rank")]
    text = page(
        Contents("t", [Chapter("c", "", "", [], charts)]), {"c": [("labels-effective-rank.png", "", "effective-rank")]}
    )
    assert text.count('<span class="links">') == 1
    assert '<figure class="chart" data-name="rank">' in text.partition('<span class="links">')[0]
    assert "<h4>effective-rank</h4>" in text.partition('<span class="links">')[0]


def test_a_report_without_anything_is_a_page() -> None:
    Reader(page(Contents("empty", []), {}))
    Reader(page(Contents("empty", [Chapter("a", "", "", [], [])]), {"a": []}))


def test_a_large_report_stays_small() -> None:
    generator = np.random.default_rng(0)
    arms = [Arm(f"arm {number}", "8 finished") for number in range(25)]

    def noisy(arm: str) -> Line:
        y = generator.random(300)
        return Line(arm, range(300), y, y - 0.1, y + 0.1, [8] * 300, arm)

    charts = [Chart(f"c{n}", "C", "", "S", "x", "y", [noisy(arm.name) for arm in arms]) for n in range(10)]
    assert len(page(Contents("t", [Chapter("c", "", "", arms, charts)]), {})) < 2.5e6
