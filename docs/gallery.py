"""Draw the pictures of docs/gallery.md: from what the examples printed, and by running the notebooks.

python docs/gallery.py
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from replastic.report.colours import styles
from replastic.report.items import Arm

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/assets/gallery"
# The colours of reports: grey without a method, and each method in its own.
_LOOKS = styles(
    [
        Arm("plain", ""),
        *(Arm(name, "", method=name) for name in ("fire", "full_reset", "shrink_and_perturb", "restore_norms")),
    ]
)
_GREY, _FIRE, _RESET, _PERTURB, _ADVISED = (look.light for look in _LOOKS.values())
_OTHERS, _BEFORE, _ALARM = "#8a8fa3", "#c9ccd6", "#7fb8d8"  # of no method; of FIRE, too, but lighter
_ACCURACY = re.compile(r"(\d\.\d\d) ±(\d\.\d\d)")
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "replastic",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def printed(example: str) -> list[str]:
    """The lines that an example printed."""
    return (ROOT / f"examples/{example}.txt").read_text().splitlines()


def digits() -> Figure:
    """Accuracy over tasks of each arm of examples/digits.py."""
    lines = printed("digits")
    (head,) = [line for line in lines if line.startswith("accuracy in task")]
    tasks = [int(word) for word in head.split() if word.isdigit()]
    colours = {"train on": _GREY, "FIRE, published": _FIRE, "FIRE, exact": _FIRE, "new network": _RESET}
    figure, (axes,) = _figure()
    for arm, colour in colours.items():
        values = _ACCURACY.findall(next(line for line in lines if line.startswith(arm)))
        means, spreads = ([float(value[part]) for value in values] for part in (0, 1))
        axes.errorbar(tasks, means, spreads, color=colour, label=arm, capsize=2, linestyle=":" if "exact" in arm else "-")
    axes.set(xlabel="task", ylabel="train accuracy at its end", ylim=(0, 1.05))
    axes.legend(frameon=False, loc="lower left")
    return figure


def first_steps() -> Figure:
    """Accuracy over tasks of each arm of experiments/advice/permuted-labels.py, means and standard deviations over seeds."""
    record = ROOT / "experiments/results/advice-permuted-labels.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()[1:]]
    colours = {"advised": _ADVISED, "when found": _ADVISED, "S&P": _PERTURB, "full reset": _RESET, "FIRE": _FIRE}
    colours |= {"nothing": _GREY}
    figure, (axes,) = _figure()
    for arm, colour in colours.items():
        over_tasks = [*zip(*(line["accuracies"] for line in lines if line["arm"] == arm), strict=True)]
        means, spreads = [mean(task) for task in over_tasks], [stdev(task) for task in over_tasks]
        dashes = "--" if arm == "when found" else "-"
        axes.errorbar(range(1, len(means) + 1), means, spreads, color=colour, capsize=2, linestyle=dashes, elinewidth=0.6)
        lift = {"when found": 0.06, "S&P": 0.03, "full reset": -0.04}.get(arm, 0)  # so that names do not overlap
        axes.text(len(means) + 0.2, means[-1] + lift, arm, color=colour, va="center")
    axes.set(xlabel="task", ylabel="accuracy at the end of the task", ylim=(0, 1.05), xlim=(0.5, 12))
    axes.set_title("Doing what diagnose says keeps the network learning", fontsize=9, loc="left")
    axes.set_xticks(range(1, 11))
    return figure


def methods() -> Figure:
    """Accuracy in the last task of every method of examples/methods.py."""
    rows = {
        line.split()[0]: _ACCURACY.findall(line)[-1] for line in printed("methods") if line[:1].islower() and "±" in line
    }
    rows["plain training"] = rows.pop("train")
    names = sorted(rows, key=lambda name: float(rows[name][0]))
    figure, (axes,) = _figure(height=5.2)
    means, spreads = ([float(rows[name][part]) for name in names] for part in (0, 1))
    axes.barh(
        names,
        means,
        xerr=spreads,
        color=[_GREY if name == "plain training" else _FIRE if "fire" in name else _OTHERS for name in names],
    )
    axes.set(xlabel="train accuracy in task 12", xlim=(0, 1.05))
    axes.margins(y=0.01)
    return figure


def diagnose() -> Figure:
    """Measures of a new network, one that was trained on, and the same after FIRE."""
    words = [line.split() for line in printed("diagnose")]
    shown = {"dead_fraction": "dead units, share", "effective_rank": "effective rank", "gradient_rank": "gradient rank"}
    figure, parts = _figure(columns=3, height=2.2)
    for axes, (name, title) in zip(parts, shown.items(), strict=True):
        values = [float(cell) for cell in next(line[1:] for line in words if line[:1] == [name])]
        axes.bar(["new", "trained\non", "after\nFIRE"], values, color=[_RESET, _GREY, _FIRE])
        axes.set_title(title, fontsize=9)
    return figure


def watch() -> Figure:
    """Accuracy with and without FIRE at the alarms of a watch, by network."""
    rows = {line[:21].strip(): _ACCURACY.findall(line) for line in printed("watch") if len(_ACCURACY.findall(line)) == 3}
    figure, (axes,) = _figure(height=3)
    for number, (arm, colour) in enumerate(
        {"plain training": _GREY, "FIRE on alarm": _ALARM, "FIRE at boundaries": _FIRE}.items()
    ):
        places = [place + 0.26 * (number - 1) for place in range(len(rows))]
        means, spreads = ([float(values[number][part]) for values in rows.values()] for part in (0, 1))
        axes.bar(places, means, 0.24, yerr=spreads, color=colour, label=arm)
    axes.set_xticks(range(len(rows)), [name.replace(", ", ",\n") for name in rows], fontsize=7)
    axes.set(ylabel="accuracy in tasks 7 to 12", ylim=(0, 1.3))
    axes.legend(frameon=False, ncols=3, loc="upper center")
    return figure


def iterations() -> Figure:
    """Distance from an isometry and from the weight, after each step of FIRE."""
    lines = printed("iterations")
    figure, parts = _figure(columns=2, height=2.4)
    for axes, name, title in zip(
        parts, ("DfI per column", "SFE/|W|²"), ("deviation from isometry", "change (SFE)"), strict=True
    ):
        for number, line in enumerate(line for line in lines if name in line):
            values = [float(value) for value in re.findall(r"\d\.\d{3}", line)]
            axes.plot(range(1, 11), values, color=_FIRE, linestyle=("-", "--", ":")[number], label=f"layer {number + 1}")
        axes.set(xlabel="steps", title=title, ylim=(0, 1))
        axes.title.set_fontsize(9)
    parts[0].legend(frameon=False)
    return figure


def own() -> Figure:
    """First and last tasks of the arms of examples/own."""
    rows = [re.split(r"  +", line) for line in printed("own/own")[2:] if re.search(r"  3  ", line)]
    figure, (axes,) = _figure(height=2.4)
    for number, (label, colour) in enumerate({"first 3 tasks": _BEFORE, "last 3 tasks": _OTHERS}.items()):
        places = [place + 0.4 * (number - 0.5) for place in range(len(rows))]
        axes.bar(places, [float(row[1 + number]) for row in rows], 0.36, color=colour, label=label)
    axes.set_xticks(range(len(rows)), [row[0] for row in rows], fontsize=8)
    axes.set(ylabel="train accuracy", ylim=(0, 0.8))
    axes.legend(frameon=False, ncols=2)
    return figure


def of_notebook(name: str) -> Figure:
    """The last figure of a notebook, whose cells are run."""
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    notebook = json.loads((ROOT / f"examples/{name}.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{name}.ipynb", "exec"), names)
    return names["figure"]


PICTURES: dict[str, Callable[[], Figure]] = {
    "first-steps": first_steps,
    "digits": digits,
    "methods": methods,
    "diagnose": diagnose,
    "watch": watch,
    "iterations": iterations,
    "own": own,
}
NOTEBOOKS = ("own_loop", "own_checkpoint")


def svg(draw: Callable[[], Figure]) -> str:
    """A picture as SVG, the same bytes each time. The site inverts it in its dark mode."""
    with mpl.rc_context(_STYLE):
        out = io.StringIO()
        draw().savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _figure(columns: int = 1, height: float = 2.8) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(5.6, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    drawn = PICTURES | {name: lambda name=name: of_notebook(name) for name in NOTEBOOKS}
    for name, draw in drawn.items():
        (FOLDER / f"{name}.svg").write_text(svg(draw))
