"""Tables of what following the advice of `diagnose` does, from the records of experiments/advice."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from result_lines import RECORDS, as_row, head

ARMS = ("nothing", "advised", "FIRE", "full reset")
OF_THE_OPTIMISER = ("learning rate 0", "large gradients remembered")


def blocks() -> dict[str, list[str]]:
    """What docs/remedies.md and docs/tutorial-first-steps.md have from these records."""
    faults = recorded("advice-faults")
    by_network = {
        name: [line for line in faults if line["network"] == name] for name in dict.fromkeys(each(faults, "network"))
    }
    return {
        **{
            f"advice-{name.lower().replace(', ', '-').replace(' ', '-')}": by_fault(lines)
            for name, lines in by_network.items()
        },
        "advice-optimiser": by_fault([line for line in faults if line["fault"] in OF_THE_OPTIMISER], of="network"),
        "advice-first-steps": over_tasks(recorded("advice-permuted-labels")),
    }


def recorded(name: str) -> list[dict[str, Any]]:
    """The lines of a record, without the first, which has the provenance."""
    return [json.loads(line) for line in (RECORDS / f"{name}.jsonl").read_text().splitlines()[1:]]


def each(lines: Iterable[Mapping[str, Any]], key: str) -> list[Any]:
    """One value of each line."""
    return [line[key] for line in lines]


def by_fault(lines: Sequence[Mapping[str, Any]], of: str = "fault") -> list[str]:
    """Mean accuracies over the epochs of the next task; how much the advice adds, with its spread over seeds."""
    shown = [line for line in lines if of != "fault" or line["fault"] not in OF_THE_OPTIMISER]
    rows = head([*(["fault", "network"] if of == "network" else ["fault"]), *ARMS, "advised - nothing", "calls", "n"])
    for network, fault in dict.fromkeys(zip(each(shown, "network"), each(shown, "fault"), strict=True)):
        here = [line for line in shown if (line["network"], line["fault"]) == (network, fault)]
        means = {arm: [mean(line["accuracies"]) for line in here if line["arm"] == arm] for arm in ARMS}
        gains = [advised - nothing for advised, nothing in zip(means["advised"], means["nothing"], strict=True)]
        cells = [f"{mean(means[arm]):.3f}" for arm in ARMS]
        names = [fault, network] if of == "network" else [fault]
        rows.append(as_row([*names, *cells, f"{mean(gains):+.3f} ± {stdev(gains):.3f}", calls_of(here), f"{len(gains)}"]))
    return rows


def calls_of(lines: Iterable[Mapping[str, Any]]) -> str:
    """What was advised, in short: each list of calls that some seed got, the most frequent first."""
    lists = Counter(tuple(line["calls"]) for line in lines if line["arm"] == "advised")
    return " or ".join("; ".join(map(in_short, calls)) or "none" for calls, _ in lists.most_common())


def in_short(call: str) -> str:
    """A call without what all of them have."""
    if call.startswith("for group"):
        return "the rate is set"
    if "clear_state_" in call:
        return "`clear_state_`"
    name, _, options = call.removeprefix("rp.").removesuffix(")").partition("(")
    options = options.removeprefix("model, ").removesuffix("optimizer=optimizer").removesuffix(", ")
    return f"`{name}({re.sub(r'where=.*', 'where=...', options)})`"


def over_tasks(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Accuracies at the ends of the first task and of the last three; means over seeds."""
    rows = head(["between tasks", "task 1", "mean of tasks 8 to 10", "± over seeds", "n"])
    for arm in dict.fromkeys(each(lines, "arm")):
        first = [line["accuracies"][0] for line in lines if line["arm"] == arm]
        last = [mean(line["accuracies"][-3:]) for line in lines if line["arm"] == arm]
        rows.append(as_row([arm, f"{mean(first):.3f}", f"{mean(last):.3f}", f"{stdev(last):.3f}", f"{len(last)}"]))
    return rows
