"""Write what pages take from committed records: results, claims, README, reproduce.md, the list of records.

python docs/results.py
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import result_advice
import result_claims
from result_differences import against, against_vanilla, alarm_against_the_clock, differences, in_chunks
from result_figures import FIGURES, figure
from result_lines import (
    Table,
    after_the_reset,
    arms_in,
    as_factors,
    at_epochs,
    by_factor,
    by_seed,
    by_step,
    chosen,
    chosen_arms,
    costs,
    end_of,
    ends,
    ends_of_tasks,
    iterations,
    lines,
    packed,
    renamed,
    settings,
    short,
    train_accuracy,
)
from result_lines_over_tasks import (
    ahead,
    alarm,
    around_boundaries,
    curvature_and_accuracy,
    curvature_and_gain,
    inside,
    last_two_layers,
    late_after_the_first,
    late_in_tasks,
    learnt,
    learnt_with,
    moments_of_alarms,
    over_tasks,
    repeated,
)
from result_times import at_full_size, listed_records, times

from replastic.record import Run
from replastic.report import best
from replastic.report.best import best_points
from replastic.report.summary import summary_lines

ROOT = Path(__file__).parent.parent
PAGES = (
    *sorted((ROOT / "docs").glob("results-*.md")),
    *(
        ROOT / page
        for page in (
            "docs/language.md",
            "docs/remedies.md",
            "docs/tutorial-first-steps.md",
            "docs/claims.md",
            "docs/reproduce.md",
            "README.md",
            "experiments/results/README.md",
        )
    ),
)
ASSETS = ROOT / "docs/assets"

TABLES = {
    # Read off the paper's figure, to about .005.
    "warm-start-cifar10": Table(
        "fire-2a-cifar10",
        {"full reset": 0.847, "FIRE": 0.829, "FIRE, exact": None, "DASH": 0.826, "Parseval": 0.826, "S&P": 0.804,
         "L2 Init": 0.793, "Muon": 0.784, "SWR": None, "L2-ER": None, "ReDo": 0.779, "SNR": 0.775, "CBP": 0.775,
         "base": 0.778},
    ),
    "warm-start-cifar100": Table(
        "fire-2a-cifar100",
        {"full reset": 0.358, "DASH": 0.362, "FIRE, everything, exact": None, "S&P": 0.325, "FIRE, exact": None,
         "FIRE": 0.325, "FIRE, everything": None, "base": 0.277},
    ),
    "swr-table-1-mnist": Table(
        "swr-table-1-mnist", {"vanilla": 0.9789, "L2": 0.9795, "L2 Init": 0.9793, "SWR": 0.9822}, 4
    ),
    "swr-table-1-cifar10": Table(
        "swr-table-1-cifar10", {"vanilla": 0.6500, "L2": 0.7119, "L2 Init": 0.7041, "SWR": 0.7158}, 4
    ),
    "swr-table-1-cifar100": Table(
        "swr-table-1-cifar100", {"vanilla": 0.3283, "L2": 0.3882, "L2 Init": 0.3881, "SWR": 0.3914}, 4
    ),
    "swr-table-1-cifar100-bn": Table(
        "swr-table-1-cifar100-bn", {"vanilla": 0.3234, "L2": 0.4222, "L2 Init": 0.4030, "SWR": 0.4129}, 4
    ),
    "swr-table-5-mnist": Table(
        "swr-table-5-mnist",
        {"vanilla": 0.9798, "L2": 0.9811, "L2 Init": 0.9811, "SWR": 0.9796, "SWR + re-init": 0.9829}, 4
    ),
    "swr-table-5-cifar10": Table(
        "swr-table-5-cifar10",
        {"vanilla": 0.6571, "L2": 0.7304, "L2 Init": 0.7286, "SWR": 0.6925, "SWR + re-init": 0.7269}, 4
    ),
    "swr-table-5-cifar100": Table(
        "swr-table-5-cifar100",
        {"vanilla": 0.3490, "L2": 0.3949, "L2 Init": 0.4048, "SWR": 0.3599, "SWR + re-init": 0.4133}, 4
    ),
    "swr-table-5-cifar100-bn": Table(
        "swr-table-5-cifar100-bn",
        {"vanilla": 0.3483, "L2": 0.4532, "L2 Init": 0.4341, "SWR": 0.4240, "SWR + re-init": 0.4451}, 4
    ),
}  # fmt: skip
SHRINKING = {  # what the arms are called in the records of several experiments
    "FIRE, one step": ("FIRE, steps=1", "FIRE, 1 step"),
    "full reset": ("full reset",),
    "FIRE, ten steps": ("FIRE",),
    "layers times 0.1": ("shrink, shrink=0.1",),
    "S&P": ("S&P",),
    "base": ("base",),
}
PERMUTED = {"L2-ER": 0.950, "CBP": 0.938, "L2": 0.926, "BP": 0.876, "ER": 0.876}  # read off the figure, at task 800
INCREMENTAL = {"L2-ER": 0.55, "L2": 0.52, "RESET": 0.48, "CBP": 0.37, "BP": 0.35, "ER": 0.32}  # read off, at task 20
STRONG_L2 = "L2 at 1e-3"


@cache
def blocks() -> dict[str, list[str]]:
    """What stands between markers, line by line."""
    return {name: lines(table) for name, table in TABLES.items()} | of_fire() | of_l2_er() | of_swr() | of_all()


def of_fire() -> dict[str, list[str]]:
    """What docs/results-fire.md has beside tables of figure 2a."""
    of_classes, chunks = arms_in("fire-2c-cifar100", stopped=True), arms_in("biases-chunks-cifar100")
    in_chunks = {arm: [run for run in runs if run.seed == 1] for arm, runs in chunks.items()}
    continual, tasks, others = "fire-2b-cifar10", (1, 2, 4, 6, 8), ("base", "full reset", "S&P", "DASH", "Parseval")
    shrunk = renamed(SHRINKING, "fire-2a-cifar10", "fire-5a-7-cifar10", "fire-shrinking-cifar10")
    warm, quick_or_slow = arms_in("fire-2a-cifar10"), ("full reset", "FIRE", "DASH", "Parseval", "L2 Init", "S&P", "base")
    later = {arm: [run for run in warm[arm] if run.seed > 1] for arm in ("FIRE", "Parseval")}
    again = {"FIRE, again": arms_in("fire-2a-cifar10-again", stopped=True)["FIRE"]}
    blocks = {
        "warm-start-tested": against(
            ends(TABLES["warm-start-cifar10"]),
            "FIRE",
            ("DASH", "FIRE, exact", "Parseval", "S&P", "full reset", "CBP", "base"),
            3,
        ),
        "warm-start-cbp": against(ends(TABLES["warm-start-cifar10"]), "CBP", ("base",), 3),
        "warm-start-again": at_epochs(later | again, "test_accuracy", (10, 20, 30, 40), 3),
        "warm-start-short": short(TABLES["warm-start-cifar10"]),
        "warm-start-epochs": at_epochs({arm: warm[arm] for arm in quick_or_slow}, "test_accuracy", (10, 20, 30, 60, 100), 3),
        "settings": settings("fire-2a-cifar10-settings"),
        "train-accuracy": train_accuracy("fire-2a-cifar10"),
        "train-accuracy-cifar100": train_accuracy("fire-2a-cifar100"),
        "continual-cifar10": late_in_tasks(arms_in(continual), "test_accuracy", tasks),
        "continual-cifar10-ahead": ahead(
            arms_in(continual), "test_accuracy", [("FIRE", other) for other in others], late_after_the_first
        ),
        "continual-cifar10-train": late_in_tasks(arms_in(continual), "train_accuracy", tasks),
        "continual-cifar10-drops": around_boundaries(arms_in("fire-2b-cifar10-drops"), "test_accuracy", (1, 2, 3, 5)),
        "classes-cifar100": late_in_tasks(of_classes, "full_accuracy", (1, 2, 5, 10, 15, 20)),
        "classes-cifar100-ahead": ahead(
            of_classes, "full_accuracy", [("FIRE", other) for other in others], late_after_the_first
        ),
        "classes-cifar100-drops": around_boundaries(of_classes, "full_accuracy", (1, 2, 5, 10)),
        "classes-cifar100-drops-so-far": around_boundaries(of_classes, "test_accuracy", (1, 2, 5, 10)),
        "chunks-cifar100": late_in_tasks(in_chunks, "test_accuracy", (1, 2, 3, 4, 5, 7, 10)),
        "chunks-cifar100-seeds": learnt(chunks, (7, 8, 9, 10)),
        "chunks-cifar100-tested": against(ends(Table("biases-chunks-cifar100", {})), "FIRE, first biases", ("FIRE",), 3),
        "chunks-cifar100-drops": around_boundaries(in_chunks, "test_accuracy", (10, 100)),
        "after-the-reset": after_the_reset("fire-2a-cifar10"),
        "after-the-reset-in-training": after_the_reset("fire-5b-cifar10"),
        "after-the-reset-cifar100": after_the_reset("fire-2a-cifar100"),
        "iterations": iterations("fire-2a-cifar10", "fire-5a-7-cifar10"),
        "shrinking": by_seed(shrunk),
        "shrinking-tested": against(
            {arm: {seed: end_of(run) for seed, run in runs.items()} for arm, runs in shrunk.items()},
            "FIRE, one step",
            ("FIRE, ten steps", "full reset"),
            3,
        ),
        "shrinking-factors": as_factors(shrunk["FIRE, one step"].values()),
        "by-step": by_step("fire-6-cifar10"),
        "costs": costs(),
    }
    for kept in ("", "-kept"):
        blocks[f"alarm{kept}"] = alarm(f"watch-random-labels-mnist{kept}")
        blocks[f"alarm{kept}-tested"] = alarm_against_the_clock(f"watch-random-labels-mnist{kept}")
        blocks[f"alarm{kept}-moments"] = moments_of_alarms(f"watch-random-labels-mnist{kept}")
    return blocks


def of_l2_er() -> dict[str, list[str]]:
    """What docs/results-spectral-collapse.md has."""
    blocks, spans = dict[str, list[str]](), ((1, 10), (31, 40), (71, 80), (81, 90), (91, 100))
    for records, pairs in (
        ("permuted-mnist", [("L2-ER", "BP"), ("L2-ER", "ER")]),
        (
            "permuted-mnist-as-released",
            [*(("L2-ER", other) for other in ("CBP", "L2", "BP", "ER")), ("CBP", "BP"), ("L2", "BP"), ("ER", "BP")],
        ),
    ):
        arms = arms_in(records, stopped=True)
        blocks[records] = over_tasks(arms, "online_accuracy", spans, PERMUTED, PERMUTED)
        blocks[f"{records}-test"] = over_tasks(arms, "test_accuracy", spans, PERMUTED)
        blocks[f"{records}-inside"] = inside(arms, (31, 71, 91), PERMUTED)
        blocks[f"{records}-curvature"] = curvature_and_accuracy(arms, "online_accuracy")
        for of in ("online", "test"):
            blocks[f"{records}-ahead-{of}"] = ahead(arms, f"{of}_accuracy", pairs)
    before = arms_in("permuted-mnist-before", stopped=True)
    blocks["permuted-mnist-before-inside"] = inside(before, (31, 71), before)
    return blocks | of_class_pairs() | of_incremental_cifar()


def of_class_pairs() -> dict[str, list[str]]:
    """What that page has on the stand-in for Continual ImageNet."""
    arms, order = arms_in("class-pairs-cifar100", stopped=True), ("L2", "BP", "CBP", "L2-ER", "ER")
    spans = ((1, 10), (11, 20), (21, 30), (51, 60), (91, 100))
    level = [("CBP", "BP"), ("BP", "CBP"), ("L2", "BP"), ("BP", "L2")]
    below = [("BP", "L2-ER"), ("BP", "ER"), ("L2-ER", "ER")]
    return {
        "class-pairs": over_tasks(arms, "test_accuracy", spans, order),
        "class-pairs-train": over_tasks(arms, "online_accuracy", spans, order),
        "class-pairs-ahead": ahead(arms, "test_accuracy", level + below),
        "class-pairs-ahead-train": ahead(arms, "online_accuracy", level, ends_from_task_61),
        "class-pairs-inside": inside(arms, (31, 51, 91), order),
        "class-pairs-last-layers": last_two_layers(arms, ("10", "12"), (1, 31, 61, 91), order),
        "class-pairs-curvature": curvature_and_accuracy(arms, "test_accuracy"),
        "class-pairs-learnt-with": learnt_with(arms, "test_accuracy", 0.8, 0.5, 0.05),
    }


def of_incremental_cifar() -> dict[str, list[str]]:
    """What that page has on classes that are added."""
    arms, spans = arms_in("incremental-cifar"), ((1, 5), (6, 10), (11, 15), (16, 20))
    before = arms_in("incremental-cifar-before", stopped=True)
    with_control = arms | {STRONG_L2: arms_in("incremental-cifar-l2")["L2"]}
    against_new = [(arm, "RESET") for arm in with_control if arm != "RESET"]
    return {
        "incremental-cifar": late_in_tasks(with_control, "test_accuracy", (1, 5, 10, 15, 20), INCREMENTAL),
        "incremental-cifar-ahead": ahead(with_control, "test_accuracy", against_new, late_after_the_first),
        "incremental-cifar-ahead-last": ahead(with_control, "test_accuracy", against_new, ends_after_the_first),
        "incremental-cifar-before": repeated(arms, before, "test_accuracy"),
        "incremental-cifar-train": over_tasks(with_control, "online_accuracy", spans, [*INCREMENTAL, STRONG_L2]),
        "incremental-cifar-inside": inside(with_control, (5, 10, 20), [*INCREMENTAL, STRONG_L2]),
        "incremental-cifar-last-layers": last_two_layers(
            with_control, ("head.1", "head.3"), (1, 5, 10, 20), [*INCREMENTAL, STRONG_L2]
        ),
        "incremental-cifar-curvature": curvature_and_gain(arms, "test_accuracy", "RESET", ((2, 10), (2, 20))),
    }


def ends_after_the_first(run: Run, figure: str) -> dict[int, float]:
    """What is known at the end of all tasks but the first."""
    return {task: value for task, value in ends_of_tasks(run, figure).items() if task > 1}


def ends_from_task_61(run: Run, figure: str) -> dict[int, float]:
    """What is known at the end of later tasks."""
    return {task: value for task, value in ends_of_tasks(run, figure).items() if task > 60}


def of_swr() -> dict[str, list[str]]:
    """What docs/results-swr.md has."""
    return of_swr_tables() | of_swr_figures() | of_swr_chunks()


def of_swr_tables() -> dict[str, list[str]]:
    """What that page has on tables 1 and 5, beside these."""
    regularised = ("vanilla", "L2", "L2 Init")
    blocks = {
        "swr-table-1-mnist-against": differences(TABLES["swr-table-1-mnist"], "SWR", regularised),
        "swr-table-5-mnist-against": differences(TABLES["swr-table-5-mnist"], "SWR + re-init", (*regularised, "SWR")),
    }
    decayed = {name: arms_in(f"swr-table-5-{name}") for name in ("cifar10", "cifar100", "cifar100-bn")}
    for name in decayed:
        one, five = TABLES[f"swr-table-1-{name}"], TABLES[f"swr-table-5-{name}"]
        blocks[f"swr-table-1-{name}-against"] = differences(one, "SWR", regularised)
        blocks[f"swr-table-5-{name}-against"] = differences(five, "SWR + re-init", (*regularised, "SWR"))
        blocks[f"swr-table-5-{name}-without"] = against(ends(five), "SWR", ("vanilla",), 4)
    around = (100, 110, 150, 160, 200)  # epochs: the learning rate falls after 100 and 150
    reinit = {f"`{name}`, {arm}": runs[arm] for name, runs in decayed.items() for arm in ("SWR", "SWR + re-init")}
    blocks["swr-losses"] = at_epochs(reinit, "loss", around, 2)
    tried = {
        "as in table 5": [run for run in decayed["cifar10"]["SWR"] if run.seed == 1],
        "weights drawn by Kaiming's rule": arms_in("swr-table-5-cifar10-kaiming")["SWR"],
        "a coefficient of 1e-4": arms_in("swr-table-5-cifar10-rate")["SWR"],
    }
    blocks["swr-tried-test_accuracy"] = at_epochs(tried, "test_accuracy", around, 3)
    blocks["swr-tried-loss"] = at_epochs(tried, "loss", around, 2)
    drawn = {
        "as torch does": arms_in("swr-table-1-cifar100-bn"),
        "by Kaiming's rule": arms_in("swr-table-1-cifar100-bn-kaiming", stopped=True),
    }
    tried_with_norms = {
        f"{arm}, weights drawn {how}": [run for run in runs[arm] if run.seed == 1]
        for arm in (*regularised, "SWR")
        for how, runs in drawn.items()
    }
    blocks["swr-tried-bn"] = at_epochs(tried_with_norms, "test_accuracy", (20, 60, 100, 130, 160), 3)
    return blocks


def of_swr_figures() -> dict[str, list[str]]:
    """What that page has on figures 1, 2 and 5."""
    blocks = {f"swr-figure-2-{name}": chosen(f"swr-figure-2-{name}") for name in ("mnist", "cifar10", "cifar100")}
    points = {grid: one.arm for grid, one in best(packed("swr-figure-2-mnist")).items()}
    blocks["swr-figure-2-against"] = against(
        ends(Table("swr-figure-2-mnist", {})),
        points["SWR"],
        ("vanilla", points["S&P"], points["L2 Init"], "without warm start"),
        4,
    )
    blocks["swr-figure-2-lost"] = against(ends(Table("swr-figure-2-mnist", {})), "without warm start", ("vanilla",), 4)
    points = {grid: one.arm for grid, one in best(packed("swr-figure-2-cifar10")).items()}
    fresh, ended = "without warm start", ends(Table("swr-figure-2-cifar10", {}))
    regularised = [points[grid] for grid in ("L2", "L2 Init", "SWR")]
    pairs = {points["SWR"]: regularised[:2], fresh: ["vanilla", *regularised]}
    pairs |= {reset: ["vanilla", fresh] for reset in (points["S&P"], "head reset")}
    blocks["swr-figure-2-cifar10-against"] = [f"- {against(ended, arm, to, 4)[0]}" for arm, to in pairs.items()]
    blocks["swr-figure-1"] = by_factor()
    balanced, epochs = arms_in("swr-figure-5"), (0, 1, 10, 50, 100)
    blocks["swr-figure-5-balance"] = at_epochs(balanced, "measures.pq_balancedness", epochs, 2)
    blocks["swr-figure-5-accuracy"] = at_epochs(balanced, "test_accuracy", epochs, 3)
    blocks["swr-figure-5-against"] = against(ends(Table("swr-figure-5", {})), "SWR", ("vanilla",), 3)
    return blocks


def of_swr_chunks() -> dict[str, list[str]]:
    """What that page has on figures 3 and 4, in which data comes in ten chunks."""
    blocks = dict[str, list[str]]()
    for number in (3, 4):
        blocks[f"swr-figure-{number}-mnist"] = chosen(f"swr-figure-{number}-mnist", all_tasks=True)
        blocks[f"swr-figure-{number}-against"] = against_vanilla(f"swr-figure-{number}-mnist", 4)
    for name in ("cifar10", "cifar10-before"):
        blocks[f"swr-figure-4-{name}"] = chosen(f"swr-figure-4-{name}", all_tasks=True)
    held_back = [
        f"{arm}={point}" for arm in ("SWR, rate", "L2, strength", "L2 Init, strength") for point in (0.001, 0.01, 0.1)
    ]
    every, thirds = arms_in("swr-figure-4-cifar10"), ((1, 4), (5, 7), (8, 10))
    chunks = {arm: every[arm] for arm in dict.fromkeys([*held_back, *chosen_arms("swr-figure-4-cifar10")])}
    blocks["swr-figure-4-cifar10-drops"] = around_boundaries(chunks, "test_accuracy", (1, 5, 10, 100))
    blocks["swr-figure-4-cifar10-against"] = [
        *against_vanilla("swr-figure-4-cifar10", 4),
        *in_chunks(chunks, "SWR, rate=0.01", ("L2, strength=0.001", "L2 Init, strength=0.001", "S&P, rate=0.6"), 4),
        *in_chunks(chunks, "SWR, rate=0.001", ("L2, strength=0.001", "L2 Init, strength=0.001"), 4),
    ]
    blocks["swr-figure-4-cifar10-train"] = over_tasks(chunks, "online_accuracy", thirds, chunks)
    harder = chosen_arms("swr-figure-4-cifar100")
    blocks["swr-figure-4-cifar100"] = late_in_tasks(harder, "test_accuracy", (1, 2, 3, 4, 5, 7, 10))
    blocks["swr-figure-4-cifar100-drops"] = around_boundaries(harder, "test_accuracy", (10, 100))
    blocks["swr-figure-4-cifar100-train"] = over_tasks(harder, "online_accuracy", ((1, 1), (2, 4), (5, 7), (8, 10)), harder)
    every = arms_in("swr-figure-3-cifar10", stopped=True)  # L2 and L2 Init were, in their seventh task
    ended = best_points(run for runs in every.values() for run in runs if run.status == "finished")
    gathered = chosen_arms("swr-figure-3-cifar10", after=6) | {one.arm: every[one.arm] for one in ended.values()}
    blocks["swr-figure-3-cifar10"] = late_in_tasks(gathered, "test_accuracy", (1, 2, 4, 6, 8, 10))
    blocks["swr-figure-3-cifar10-drops"] = around_boundaries(gathered, "test_accuracy", (10, 100))
    blocks["swr-figure-3-cifar10-train"] = over_tasks(gathered, "online_accuracy", ((1, 3), (4, 6), (7, 10)), gathered)
    return blocks


def of_all() -> dict[str, list[str]]:
    """What is of no paper's page."""
    return (
        result_claims.blocks()
        | result_advice.blocks()
        | {
            "records": listed_records(),
            "times": times(),
            "at-full-size": at_full_size(),
        }
        | {name: ["```text", *summary_lines(packed(name))[0], "```"] for name in ("quick", "text-quick")}
    )


def rendered(text: str) -> str:
    """A page with what stands between its markers made again."""
    for marker, block in blocks().items():
        start, end = f"<!-- {marker} -->\n", "<!-- end -->"
        before, found, after = text.partition(start)
        if found:
            text = f"{before}{start}" + "\n".join(block) + f"\n{end}{after.partition(end)[2]}"
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
    for name in FIGURES:
        (ASSETS / name).write_bytes(figure(name))
    wrong = result_claims.strays(result_claims.claims())
    assert not wrong, "claims.toml has numbers that pages and tests have not:\n" + "\n".join(wrong)
