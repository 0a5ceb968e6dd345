"""Figures show the arms that are shown, in their colours, and are the same each time."""

import math
import re
import subprocess
import sys
import threading
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replastic.report.colours import style, styles
from replastic.report.items import Arm, Bar, Bars, Chart, Line

pytest.importorskip("matplotlib")
from matplotlib import image, rc_context

from replastic.report.figure_layout import SIZE
from replastic.report.figure_names import MOST_NAMED
from replastic.report.figures import draw

ARMS = [
    Arm("nothing", "", baseline=True),
    Arm("fire", "", method="fire"),
    Arm("redo", "", shown=False, method="swr"),
    Arm("cbp", "", method="cbp"),
]
WIDTH = 1280


def line(arm: str, y: Sequence[float] = (0.1, 0.4, 0.3), **more: Any) -> Line:
    return Line(arm, list(range(len(y))), y, arm=arm, **more)


def chart(lines: Sequence[Line] = (), **more: Any) -> Chart:
    given = {"title": "A title", "x_label": "task", "y_label": "accuracy", **more}
    return Chart("some-chart", note="a note", section="", lines=lines, **given)


def bars(values: Sequence[Bar], **more: Any) -> Bars:
    return Bars("some-bars", more.pop("title", "A title"), "a note", "", "accuracy", values)


def drawn(item: Chart | Bars, folder: Path, arms: Sequence[Arm] = ARMS) -> tuple[list[str], np.ndarray]:
    """The texts of the SVG file, and the pixels of the PNG file. A warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg, png = draw(item, arms, folder)
    assert (svg, png) == (folder / f"{item.name}.svg", folder / f"{item.name}.png")
    texts = [element.text or "" for element in ET.parse(svg).iter("{http://www.w3.org/2000/svg}text")]
    return texts, (image.imread(png)[:, :, :3] * 255).round().astype(int)


def parts(colour: str) -> np.ndarray:
    return np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)])


def pixels(picture: np.ndarray, colour: str | np.ndarray, within: int = 0) -> int:
    wanted = parts(colour) if isinstance(colour, str) else colour
    return int((abs(picture - wanted) <= within).all(axis=2).sum())


def colour(number: int) -> str:
    return styles(ARMS)[ARMS[number].name].light


def test_shown_arms_have_their_colours_and_hidden_ones_are_not_there(tmp_path: Path) -> None:
    texts, picture = drawn(
        chart([line(arm.name, [0.1 * number, 0.5, 0.2 * number]) for number, arm in enumerate(ARMS)]), tmp_path
    )
    assert min(pixels(picture, colour(number)) for number in (0, 1, 3)) > 500
    assert pixels(picture, colour(2)) == 0
    assert pixels(picture, "#ffffff") > picture.shape[0] * picture.shape[1] / 2
    assert {"A title", "task", "accuracy", "nothing", "fire", "cbp"} <= set(texts)
    assert not {"redo", "a note"} & set(texts)


def test_lines_of_nobody_have_the_colours_of_their_order(tmp_path: Path) -> None:
    lines = [Line(f"layer {number}", [0, 1], [number, number]) for number in range(3)]
    _, picture = drawn(chart(lines), tmp_path)
    assert min(pixels(picture, style(number).light) for number in range(3)) > 500


def test_a_band_is_a_paler_colour(tmp_path: Path) -> None:
    plain = drawn(chart([line("fire", [0, 1])]), tmp_path)[1]
    banded = drawn(chart([line("fire", [0, 1], low=[-0.5, 0.5], high=[0.5, 1.5])]), tmp_path)[1]
    pale = 0.86 * 255 + 0.14 * parts(colour(1))
    assert pixels(plain, pale, within=2) < 1000  # a line's soft edges
    assert pixels(banded, pale, within=2) > 100_000


def test_a_band_of_very_many_points_keeps_its_peaks_in_a_small_file(tmp_path: Path) -> None:
    high = np.full(50_000, 1.0)
    high[12_345] = 3.0
    y = [0.5] * 50_000
    flat, peak = (line("fire", y, low=[0.0] * 50_000, high=edge) for edge in (high.clip(max=1), high))
    for item in (flat, peak):
        texts, _ = drawn(chart([item]), tmp_path)
        assert ("3.0" in texts) == (item is peak)
        assert (tmp_path / "some-chart.svg").stat().st_size < 200_000


def test_what_is_not_a_number_is_a_gap_and_a_point_between_gaps_is_a_dot(tmp_path: Path) -> None:
    whole = [0.5] * 21
    gap = [math.nan if 5 <= place < 10 or 11 <= place < 16 else 0.5 for place in range(21)]
    count, less = (pixels(drawn(chart([line("fire", y)]), tmp_path)[1], colour(1)) for y in (whole, gap))
    assert 0.4 * count < less < 0.75 * count
    alone = [math.nan] * 20 + [0.5]
    ends = line("cbp", [0.5] + [math.nan] * 20)
    picture = drawn(chart([line("fire", alone), ends]), tmp_path)[1]
    key = drawn(chart([line("fire", alone), ends]), tmp_path)[1][-200:]
    assert pixels(picture, colour(1)) - pixels(key, colour(1)) > 20


@pytest.mark.parametrize("item", [chart(), chart([line("redo")]), chart([line("fire", [math.nan] * 3)]), bars([]),
                                  bars([Bar("fire", math.nan, math.nan, math.nan, 0)]), chart(frames=[("task 1", [])]),
                                  chart([line("fire", [-1, 0, math.inf])], y_log=True)])  # fmt: skip
def test_where_there_is_nothing_the_figure_says_so(item: Chart | Bars, tmp_path: Path) -> None:
    assert drawn(item, tmp_path)[0] == ["A title", "nothing to draw"]


def test_log_axes_do_without_what_is_not_positive(tmp_path: Path) -> None:
    below = Line(
        "fire", [0, 1e-5, 1e-3, 1, 10], [1, 0, -1, 1e-6, 100], [-1, -1, -1, -1, 50], [2, 2, 2, 1e-3, 200], arm="fire"
    )
    texts, picture = drawn(chart([below], x_log=True, y_log=True, marks=[0, -1, 2]), tmp_path)
    assert {"10⁻⁶", "10²", "10⁻⁵", "10¹"} <= set(texts)
    assert pixels(picture, colour(1)) > 200
    assert not any("$" in text or "mathdefault" in text for text in texts)


@pytest.mark.parametrize(
    "y", [[1e308, -1e308, 1], [5e-324, 1e-320, 1e-310], [1e299, -1e299], [3, 3, 3], [0, 0], [-1e-17, 1e9]]
)
@pytest.mark.parametrize("log", [False, True])
def test_odd_numbers_are_drawn(y: list[float], log: bool, tmp_path: Path) -> None:
    drawn(chart([line("fire", y), line("cbp", [1, 2])], y_log=log), tmp_path)
    drawn(bars([Bar("fire", value, -value, math.inf, 1) for value in y]), tmp_path)


def test_whole_numbers_have_whole_ticks(tmp_path: Path) -> None:
    whole, _ = drawn(chart([line("fire", [1000, 2000, 3000])], whole=True), tmp_path)
    assert whole[:4] == ["0", "1", "2", "1000"]
    broken, _ = drawn(chart([line("fire", [1000, 2000, 3000])]), tmp_path)
    assert broken[:2] == ["0.00", "0.25"]


def test_marks_are_drawn_unless_they_are_too_many(tmp_path: Path) -> None:
    def size(marks: list[float]) -> int:
        svg, _ = draw(chart([line("fire", [0.5] * 100)], marks=marks), ARMS, tmp_path)
        return svg.stat().st_size

    assert size([10.5, 20.5]) > size([])
    assert size([float(mark) for mark in range(61)]) == size([])
    assert size([-50, 1000, math.nan]) == size([])


HOSTILE = [
    "<script>1</script>",
    r"$\frac{$",
    "costs $1 or $2",
    "_nolegend_",
    "&amp; ]]>",
    "名前 😀 אבג",
    "{x} %s",
]


def test_names_of_others_are_shown_as_they_are(tmp_path: Path) -> None:
    arms = [Arm(name, "") for name in HOSTILE]
    for name in HOSTILE:
        items = [
            chart([line(arm) for arm in HOSTILE], title=name, x_label=name, y_label=name),
            chart(frames=[(name, [line(arm) for arm in HOSTILE])], title=name),
            bars([Bar(arm, 1, 0.5, 2, 3) for arm in HOSTILE], title=name),
        ]
        for item in items:
            assert set(HOSTILE) <= set(drawn(item, tmp_path, arms)[0])
            assert b"<script" not in (tmp_path / f"{item.name}.svg").read_bytes()


def test_what_xml_cannot_hold_is_left_out(tmp_path: Path) -> None:
    texts, _ = drawn(chart([line("a\x00b\x1b[31m\ud800\ufffe\u202ec\nd")], title="two\nlines"), tmp_path)
    assert {"a b [31m c d", "two lines"} <= set(texts)


@pytest.mark.parametrize("letter", ["n", "W ", "名"])
def test_long_names_are_cut_and_the_figure_stays_as_wide_as_it_is(letter: str, tmp_path: Path) -> None:
    arms = [Arm(letter * 500 + f" arm {number}", "") for number in range(25)]
    lines = [line(arm.name, [number, number + 1]) for number, arm in enumerate(arms)]
    long = {"title": letter * 500, "x_label": letter * 500, "y_label": letter * 500}
    for item in (
        chart(lines, **long),
        chart(frames=[(f"{letter * 300} {number}", lines) for number in range(3)], **long),
        bars([Bar(arm.name, number, number, number, 1) for number, arm in enumerate(arms)], title=letter * 500),
    ):
        texts, picture = drawn(item, tmp_path, arms)
        assert picture.shape[1] == WIDTH
        assert picture.shape[0] < 2 * WIDTH
        assert max(map(len, texts)) < 150
        assert all(any(text.endswith(f" {number}") for text in texts) for number in range(25))
        assert (picture[:, -8:] > 250).all()  # nothing runs over the edge
        assert (picture[:, :8] > 250).all()


def test_many_arms_differ_by_colour_or_dash(tmp_path: Path) -> None:
    arms = [Arm(f"arm {number}", "") for number in range(25)]
    texts, picture = drawn(chart([line(arm.name, [number, 1]) for number, arm in enumerate(arms)]), tmp_path, arms)
    assert {arm.name for arm in arms} <= set(texts)
    assert min(pixels(picture, style(number).light) for number in range(8)) > 500
    assert (tmp_path / "some-chart.svg").read_text().count("stroke-dasharray: 6,3") >= 16


def test_frames_are_a_panel_for_each_arm_that_is_shown(tmp_path: Path) -> None:
    frames = [(f"task {task}", [line(arm.name, [1, 0.5 / (1 + task)]) for arm in ARMS]) for task in range(3)]
    texts, picture = drawn(chart(frames=frames), tmp_path)
    assert {"nothing", "fire", "cbp", "task 0", "task 1", "task 2"} <= set(texts)
    assert "redo" not in texts
    assert texts.count("fire") == 1
    assert pixels(picture, "#440154") > 1000  # viridis begins with it
    assert (tmp_path / "some-chart.svg").read_text().count('id="axes_') == 3


def test_frames_of_nobody_are_one_panel_and_of_many_some_are_named(tmp_path: Path) -> None:
    frames = [(f"task {task}", [Line("", [1, 2], [task, 2 * task])]) for task in range(200)]
    texts, _ = drawn(chart(frames=frames), tmp_path)
    named = [text for text in texts if text.startswith("task ")]
    assert (tmp_path / "some-chart.svg").read_text().count('id="axes_') == 1
    assert named[0] == "task 0"
    assert named[-1] == "task 199"
    assert len(named) == 10
    assert (tmp_path / "some-chart.svg").stat().st_size < 60_000


def test_bars_have_values_and_colours_in_the_order_given(tmp_path: Path) -> None:
    values = [Bar("cbp", 0.5, 0.4, 0.6, 3), Bar("redo", 0.9, 0.9, 0.9, 3), Bar("fire", -0.25, -0.3, math.nan, 2)]
    texts, picture = drawn(bars([*values, Bar("nothing", math.nan, math.nan, math.nan, 0)]), tmp_path)
    assert [text for text in texts if text in {"cbp", "fire", "nothing", "redo"}] == ["cbp", "fire", "nothing"]
    assert {"0.500  n = 3", "−0.250  n = 2", "–", "accuracy"} <= {text.replace("\xa0", " ") for text in texts}
    long, short = (pixels(picture, colour(number)) for number in (3, 1))
    assert long == pytest.approx(2 * short, rel=0.1)  # less the whiskers
    assert pixels(picture, colour(2)) == 0


@pytest.mark.parametrize("item", [
    chart([line(arm.name, [0.1, 0.2, 0.3], low=[0, 0.1, 0.2], high=[0.2, 0.3, 0.4]) for arm in ARMS], marks=[1]),
    chart(frames=[(f"task {task}", [line(arm.name) for arm in ARMS]) for task in range(3)], y_log=True),
    bars([Bar(arm.name, 0.5, 0.4, 0.6, 3) for arm in ARMS]),
])  # fmt: skip
def test_files_are_the_same_byte_for_byte_whatever_the_users_settings_are(item: Chart | Bars, tmp_path: Path) -> None:
    first = [path.read_bytes() for path in draw(item, ARMS, tmp_path)]
    with rc_context({"text.usetex": True, "lines.linewidth": 9, "svg.hashsalt": None, "figure.facecolor": "black"}):
        second = [path.read_bytes() for path in draw(item, ARMS, tmp_path)]
    assert first == second
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{item.name}.png", f"{item.name}.svg"]


def test_settings_are_given_back_and_threads_do_not_disturb_one_another(tmp_path: Path) -> None:
    from matplotlib import rcParams

    before = dict(rcParams)
    item = chart([line(arm.name) for arm in ARMS])
    folders = [tmp_path / str(number) for number in range(3)]
    threads = []
    for folder in folders:
        folder.mkdir()
        threads.append(threading.Thread(target=draw, args=(item, ARMS, folder)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len({(folder / "some-chart.svg").read_bytes() for folder in folders}) == 1
    assert dict(rcParams) == before


def run(code: str) -> None:
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True)


def test_figures_are_drawn_without_torch_pyplot_or_a_display(tmp_path: Path) -> None:
    run(
        "import sys, pathlib, replastic.report.figures as figures\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)\n"
        "from replastic.report.items import Chart, Line\n"
        "chart = Chart('a', 'a', '', '', 'x', '名', lines=[Line('名', [0, 1], [0, 1])])\n"
        f"figures.draw(chart, [], pathlib.Path({str(tmp_path)!r}))\n"
        "assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)"
    )


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'a figure needs matplotlib, which is missing: pip install "replastic\[report\]"'):
        draw(chart(), ARMS, tmp_path)


def heights(svg: Path) -> dict[str, float]:
    """The heights of texts that have a place of their own, by their words."""
    found = {}
    for element in ET.parse(svg).iter("{http://www.w3.org/2000/svg}text"):
        place = re.search(r"translate\([-\d.]+ ([-\d.]+)\)|[xy]=", str(element.attrib))
        found[element.text or ""] = float(place[1] or 0) if place else float(element.get("y", 0))
    return found


def test_names_stand_at_the_ends_of_lines_in_their_order_and_not_over_each_other(tmp_path: Path) -> None:
    arms = [Arm(f"arm {number}", "", method=f"of {number}") for number in range(6)]
    draw(chart([line(arm.name, [0.5, 0.1, 0.3 + number / 1000]) for number, arm in enumerate(arms)]), arms, tmp_path)
    at = heights(tmp_path / "some-chart.svg")
    places = [at[arm.name] for arm in arms]
    assert places == sorted(places, reverse=True)  # the last arm ends highest
    assert min(above - below for above, below in pairwise(places)) > SIZE


def test_more_names_than_fit_next_to_a_panel_are_in_a_key(tmp_path: Path) -> None:
    arms = [Arm(f"arm {number}", "", method=f"of {number}") for number in range(MOST_NAMED + 1)]
    texts, _ = drawn(chart([line(arm.name) for arm in arms]), tmp_path, arms)
    assert {arm.name for arm in arms} <= set(texts)
    labelled = heights(tmp_path / "some-chart.svg")
    assert min(labelled[arm.name] for arm in arms) > labelled["task"]  # below the axis


def test_a_dark_figure_has_light_ink_and_no_background(tmp_path: Path) -> None:
    item = chart([line(arm.name, [0.1, 0.5, 0.2]) for arm in ARMS])
    svg, png = draw(item, ARMS, tmp_path, dark=True)
    assert (svg.name, png.name) == ("some-chart-dark.svg", "some-chart-dark.png")
    picture = (image.imread(png) * 255).round().astype(int)
    assert picture[0, 0, 3] == 0
    assert picture[..., 3].max() == 255
    ink = picture[picture[..., 3] == 255][:, :3]
    for arm, look in styles(ARMS).items():
        shown = {one.name for one in ARMS if one.shown}
        assert ((ink == parts(look.dark)).all(axis=1).sum() > 20) == (arm in shown)
    text = svg.read_text()
    for colour_of_light_paper in ("#222222", "#444444", *(look.light for look in styles(ARMS).values())):
        assert colour_of_light_paper not in text
