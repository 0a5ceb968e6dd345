"""The page of a report says what it was given, loads nothing, and is worked by mouse, by keys and on a phone."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


FILES = {"labels": [("figures/accuracy.svg", "as a drawing"), ("tables/a b#1.csv", "numbers")]}


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
    read = Reader(page(Contents(name, [chapter, chapter], [(name, name)], [name]), {name: [(name, name)]}))
    safe = Reader(page(small(), FILES))
    assert {tag for tag, _ in read.tags} == {tag for tag, _ in safe.tags}
    assert {key for _, attrs in read.tags for key in attrs} == {key for _, attrs in safe.tags for key in attrs}
    assert read.data()[0]["frames"][0][0]["label"] == name
    assert ("title", name) in read.texts
    hints = [attrs.get("title") for tag, attrs in read.tags if tag == "button" and attrs.get("data-arm") == "0"]
    assert hints == [f"{name}: 5 finished"] * 2


def test_what_is_no_text_at_all_is_replaced() -> None:
    assert "a?b" in page(Contents("a\udc80b", []), {}).encode().decode()


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
        assert f'href="{link}"' in page(small(), {"labels": [(path, "")]})


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
    text = page(Contents("t", [Chapter("c", "", "", [], charts)]), {"c": [("labels-effective-rank.png", "")]})
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


# From here on in a browser.

EXPECTED_LINES = {"accuracy": 2, "gap": 1, "rate": 2, "layers": 2, "spectra": 2, "empty": 0}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright works the page: pip install playwright")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the path: install one to test the page")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(small(), FILES), encoding="utf-8")
    return path


class Seen:
    """A page in a window, and what it did unasked."""

    def __init__(self, browser: Any, path: Path, **window: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **window})
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.expect(".plot svg").to_have_count(self.page.locator(".plot").count())

    def __enter__(self) -> Seen:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        requests, complaints = self.requests, self.complaints
        self.context.close()
        if kind is None:
            assert complaints == []
            assert len(requests) == 1

    def find(self, selector: str) -> Any:
        return self.page.locator(selector)

    def expect(self, selector: str) -> Any:
        from playwright.sync_api import expect

        return expect(self.page.locator(selector))

    def arm(self, number: int) -> Any:
        return self.find(f"button.arm[data-arm='{number}']")

    def cells(self, column: int) -> list[str]:
        return self.find(f".scroll tbody td:nth-child({column})").all_text_contents()


def test_every_chart_is_drawn(browser: Any, written: Path) -> None:
    with Seen(browser, written) as seen:
        for name, count in EXPECTED_LINES.items():
            seen.expect(f"[data-name={name}] path.line").to_have_count(count)
        for path in seen.find("path.line").all():
            assert re.fullmatch(r"(M-?[\d.]+,-?[\d.]+(L-?[\d.]+,-?[\d.]+)*)+", path.get_attribute("d"))
        assert seen.find("[data-name=gap] path.line").get_attribute("d").count("M") == 2
        seen.expect("[data-name=empty] .plot").to_have_text("nothing to draw")
        seen.expect("[data-name=accuracy] line.mark").to_have_count(2)
        seen.expect("[data-name=hours] rect.bar").to_have_count(2)
        seen.expect("[data-name=hours] path.range").to_have_count(2)
        seen.expect("[data-name=layers] .key li").to_have_count(2)
        ticks = seen.find("[data-name=rate] text.number").all_text_contents()
        assert {"10⁻⁴", "10⁻³", "10", "100"} < set(ticks)  # the last has no place on a logarithmic axis
        assert "NaN" not in seen.page.content()


def test_toggling_an_arm_hides_it_everywhere_and_fits_the_axes(browser: Any, written: Path) -> None:
    with Seen(browser, written) as seen:
        ticks = seen.find("[data-name=accuracy] text.number").all_text_contents()
        seen.expect(".plot [data-arm='1']").not_to_have_count(0)
        seen.arm(1).click()
        assert seen.arm(1).get_attribute("aria-pressed") == "false"
        seen.expect(".plot [data-arm='1']").to_have_count(0)
        seen.expect(".plot [data-arm='0']").not_to_have_count(0)
        seen.expect("tr[data-arm='1']").to_have_class("dimmed")
        seen.expect(".count").to_have_text("1 of 3")
        assert seen.find("[data-name=accuracy] text.number").all_text_contents() != ticks
        seen.arm(1).press("Space")
        seen.expect(".plot [data-arm='1']").not_to_have_count(0)
        seen.find("[data-change=invert]").click()
        seen.expect("[data-name=hours] rect.bar").to_have_count(1)
        seen.expect("[data-name=spectra] path.line[data-arm='2']").to_have_count(1)
        seen.find("[data-change=none]").click()
        seen.expect("[data-name=accuracy] .plot").to_have_text("nothing to draw: its arms are hidden")
        seen.expect("[data-name=layers] path.line").to_have_count(2)
        seen.find("[data-change=all]").click()
        seen.expect("[data-name=accuracy] path.line").to_have_count(3)
        assert [seen.arm(number).get_attribute("aria-pressed") for number in range(3)] == ["true"] * 3


def test_keys_move_the_cursor_and_say_what_it_reads(browser: Any, written: Path) -> None:
    with Seen(browser, written) as seen:
        chart = seen.find("[data-name=accuracy] .plot")
        chart.focus()
        assert (chart.get_attribute("role"), chart.get_attribute("aria-label")) == ("img", "Accuracy Over seeds.")
        chart.press("ArrowRight")
        seen.expect(".tip strong").to_have_text("task 1 · n = 5")
        chart.press("ArrowRight")
        seen.expect(".tip strong").to_have_text("task 2 · n = 5")
        read = seen.find(".tip td").all_text_contents()
        assert read == ["FIRE", "0.41", "0.39 to 0.43", "train on", "0.21", "0.19 to 0.23"]
        seen.expect("[aria-live]").to_have_text("task 2 · n = 5: FIRE 0.41 0.39 to 0.43; train on 0.21 0.19 to 0.23")
        seen.expect(".cursor circle").to_have_count(2)
        chart.press("End")
        seen.expect(".tip strong").to_have_text("task 12 · n = 5")
        chart.press("ArrowRight")
        chart.press("ArrowLeft")
        seen.expect(".tip strong").to_have_text("task 11 · n = 5")
        chart.press("Home")
        seen.expect(".tip strong").to_have_text("task 1 · n = 5")
        chart.press("Escape")
        seen.expect(".tip").to_be_hidden()
        seen.expect(".cursor circle").to_have_count(0)
        seen.find("[data-name=empty] .plot").press("ArrowRight")
        seen.expect(".tip").to_be_hidden()


def test_the_pointer_reads_the_nearest_place(browser: Any, written: Path) -> None:
    with Seen(browser, written) as seen:
        chart = seen.find("[data-name=accuracy] .plot")
        box = chart.bounding_box()
        chart.hover(position={"x": box["width"] - 16, "y": 60})
        seen.expect(".tip strong").to_have_text("task 12 · n = 5")
        seen.expect(".tip .near bdi").to_have_text("FIRE")
        chart.hover(position={"x": box["width"] - 16, "y": box["height"] - 60})
        seen.expect(".tip .near bdi").to_have_text("train on")
        seen.find("h1").hover()
        seen.expect(".tip").to_be_hidden()
        seen.arm(0).hover()
        seen.expect("[data-name=accuracy] path.line.faint").to_have_count(1)
        seen.find("h1").hover()
        seen.expect(".faint").to_have_count(0)


def test_headings_sort_and_nothing_stays_last(browser: Any, written: Path) -> None:
    with Seen(browser, written) as seen:
        heads = seen.find(".scroll th")
        seen.find(".scroll th button").nth(1).click()
        assert heads.nth(1).get_attribute("aria-sort") == "descending"
        assert seen.cells(2) == ["0.400", "0.250", "–"]
        seen.find(".scroll th button").nth(1).press("Enter")
        assert heads.nth(1).get_attribute("aria-sort") == "ascending"
        assert seen.cells(2) == ["0.250", "0.400", "–"]
        seen.find(".scroll th button").nth(2).click()
        assert seen.cells(3) == ["10", "5", "4"]
        seen.find(".scroll th button").nth(0).click()
        assert seen.cells(1) == ["FIRE", "ReDo", "train on"]
        assert [heads.nth(n).get_attribute("aria-sort") for n in range(4)] == ["ascending", "none", "none", "none"]


def test_the_slider_chooses_a_frame_and_keeps_the_axes(browser: Any, written: Path) -> None:
    with Seen(browser, written) as seen:
        path, ticks = seen.find("[data-name=spectra] path.line").first, seen.find("[data-name=spectra] text.number")
        before, axes = path.get_attribute("d"), ticks.all_text_contents()
        slider = seen.page.get_by_role("slider", name="Shown")
        slider.press("ArrowRight")
        seen.expect("[data-name=spectra] output").to_have_text("after task 5")
        assert slider.get_attribute("aria-valuetext") == "after task 5"
        assert path.get_attribute("d") != before
        assert ticks.all_text_contents() == axes


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_is_the_systems_until_it_is_chosen_and_paper_is_light(browser: Any, written: Path, scheme: str) -> None:
    other = {"light": "dark", "dark": "light"}
    with Seen(browser, written, color_scheme=scheme) as seen:
        shade = "getComputedStyle(document.body).backgroundColor"
        seen.expect("html").to_have_attribute("data-theme", scheme)
        seen.page.emulate_media(color_scheme=other[scheme])
        seen.expect("html").to_have_attribute("data-theme", other[scheme])
        button = seen.find("#theme")
        for choice in ("light", "dark"):
            button.click()
            seen.expect("#theme").to_have_text(f"Theme: {choice}")
            seen.expect("html").to_have_attribute("data-theme", choice)
        dark = seen.page.evaluate(shade)
        ink = seen.page.evaluate("getComputedStyle(document.querySelector('path.line')).stroke")
        seen.page.emulate_media(media="print")
        assert seen.page.evaluate(shade) == "rgb(255, 255, 255)" != dark
        assert seen.page.evaluate("getComputedStyle(document.querySelector('path.line')).stroke") != ink
        seen.expect("#theme").to_be_hidden()
        seen.page.emulate_media(media="screen")
        button.click()
        seen.expect("#theme").to_have_text("Theme: auto")


def test_a_phone_has_no_page_to_scroll_sideways(browser: Any, tmp_path: Path) -> None:
    path, long = tmp_path / "report.html", HOSTILE[-1]
    given = small((long, HOSTILE[-2], "ReDo")).chapters[0]
    chapter = Chapter(long, long, long, given.arms, given.items, [long], [(long, long)])
    contents = Contents(long, [chapter, chapter], [(long, long)], [long])
    path.write_text(page(contents, {long: [(f"{long}/accuracy.svg", long)]}), encoding="utf-8")
    with Seen(browser, path, viewport={"width": 390, "height": 844}, has_touch=True) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        chart = seen.find("[data-name=accuracy] .plot").first
        chart.tap()
        seen.expect(".tip").to_be_visible()
        for summary in seen.find("summary").all():
            summary.click()
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        seen.expect("[data-name=gap] svg >> nth=0").to_have_attribute("width", re.compile(r"^3\d\d$"))
        seen.page.set_viewport_size({"width": 844, "height": 390})
        seen.expect("[data-name=spectra] svg >> nth=0").to_have_attribute("width", re.compile(r"^7\d\d$"))
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_table_of_results_fits_on_paper(browser: Any, tmp_path: Path) -> None:
    columns = [
        "arm",
        "first 10 tasks",
        "last 10 tasks",
        "±",
        "low",
        "high",
        "IQM",
        "n",
        "difference",
        "its low",
        "its high",
        "p",
    ]
    rows = [[f"arm {number}", *[-0.1234] * (len(columns) - 1)] for number in range(9)]
    table = Table("final", "How it ended", "Means.", "Results", columns, rows, [None, *[3] * (len(columns) - 1)])
    path = tmp_path / "report.html"
    path.write_text(page(Contents("wide", [Chapter("wide", "", "", [], [table])]), {}), encoding="utf-8")
    with Seen(browser, path, viewport={"width": 720, "height": 1000}) as seen:
        seen.page.emulate_media(media="print")
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 720


@pytest.mark.parametrize("name", HOSTILE[:6])
def test_a_browser_sees_hostile_names_as_text(browser: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(small((name, "FIRE", "ReDo")), FILES), encoding="utf-8")
    with Seen(browser, path) as seen:
        assert seen.arm(0).locator("bdi").text_content() == name
        chart = seen.find("[data-name=accuracy] .plot")
        chart.press("End")
        assert seen.find(".tip bdi").all_text_contents() == ["FIRE", name]
        seen.expect("[data-name=hours] rect.bar").to_have_count(2)
        seen.expect("img").to_have_count(0)


def test_without_scripts_the_words_and_tables_are_there(browser: Any, written: Path) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        bare = context.new_page()
        bare.goto(written.as_uri())
        assert bare.locator("noscript").is_visible()
        assert bare.locator(".scroll tbody tr").count() == 3
