"""The report's page in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from replastic.listing import visible
from replastic.report.items import Chapter, Chart, Contents, Line, Table
from replastic.report.page import page
from tests.test_report_page import FILES, HOSTILE, small

pytestmark = pytest.mark.slow

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
    path.write_text(page(contents, {long: [(f"{long}/accuracy.svg", long, "accuracy")]}), encoding="utf-8")
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
        shown = visible(name)
        assert seen.arm(0).locator("bdi").text_content() == shown
        chart = seen.find("[data-name=accuracy] .plot")
        chart.press("End")
        assert seen.find(".tip bdi").all_text_contents() == ["FIRE", shown]
        seen.expect("[data-name=hours] rect.bar").to_have_count(2)
        seen.expect("img").to_have_count(0)


def test_without_scripts_the_words_and_tables_are_there(browser: Any, written: Path) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        bare = context.new_page()
        bare.goto(written.as_uri())
        assert bare.locator("noscript").is_visible()
        assert bare.locator(".scroll tbody tr").count() == 3


def test_names_stand_at_the_ends_of_lines_where_there_is_room(browser: Any, written: Path) -> None:
    with Seen(browser, written) as seen:
        names = seen.find("[data-name=accuracy] text.line-name")
        assert names.count() == EXPECTED_LINES["accuracy"]
        boxes = [names.nth(number).bounding_box() for number in range(names.count())]
        plot = seen.find("[data-name=accuracy] .plot svg").bounding_box()
        assert all(box["x"] + box["width"] <= plot["x"] + plot["width"] + 1 for box in boxes)
        tops = sorted(box["y"] for box in boxes)
        assert all(below - above >= 13 for above, below in pairwise(tops))
        for number in range(names.count()):
            arm = names.nth(number).get_attribute("data-arm")
            line = seen.find(f"[data-name=accuracy] path.line[data-arm='{arm}']")
            assert names.nth(number).evaluate("one => getComputedStyle(one).fill") == line.evaluate(
                "one => getComputedStyle(one).stroke"
            )
        seen.page.set_viewport_size({"width": 390, "height": 844})
        seen.expect("text.line-name").to_have_count(0)  # the legend has them


def test_a_table_that_is_wider_than_a_phone_shows_that_it_scrolls(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "wide.html"
    table = Table("t", "T", "", "S", [f"column {number}" for number in range(12)], [[0.5] * 12], [3] * 12)
    path.write_text(page(Contents("C", [Chapter("C", "", "", [], [table])]), {}), encoding="utf-8")
    with Seen(browser, path, viewport={"width": 390, "height": 844}) as seen:
        box = seen.find(".scroll")
        assert box.evaluate("one => one.scrollWidth > one.clientWidth")
        assert "gradient" in box.evaluate("one => getComputedStyle(one).backgroundImage")
        assert (
            box.evaluate("one => getComputedStyle(one).backgroundAttachment").split(", ") == ["local"] * 2 + ["scroll"] * 2
        )


@pytest.mark.parametrize(("last", "some"), [(8_000, {"2000", "8000"}), (30_000, {"10k", "30k"}), (4_000_000, {"1M", "4M"})])
def test_numbers_on_an_axis_are_those_of_the_curve(browser: Any, tmp_path: Path, last: int, some: set[str]) -> None:
    path = tmp_path / "tokens.html"
    curve = Chart("c", "C", "", "S", "tokens", "loss", [Line("base", [0, last // 2, last], [3.0, 2.0, 1.5])], whole=True)
    path.write_text(page(Contents("C", [Chapter("C", "", "", [], [curve])]), {}), encoding="utf-8")
    with Seen(browser, path) as seen:
        ticks = seen.find("[data-name=c] text.number").all_text_contents()
        assert some < {tick.replace(".0", "") for tick in ticks}, ticks
