"""Write the generated blocks of docs/measures.md and README: the table of measures, and the output of the examples.

python docs/measures.py
"""

from __future__ import annotations

import inspect
from pathlib import Path

from replastic.measures import MEASURES
from replastic.measures.catalogue import Measure

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "docs/measures.md", ROOT / "README.md")


def rendered(text: str) -> str:
    """The page with its marked blocks generated again."""
    rows = ["| `rp.measure(probe, ...)` | | of | settings |", "|---|---|---|---|"]
    for name, entry in MEASURES.items():
        rows.append(f"| `{name}`{_marks(entry)} | {_first(entry)} | {entry.family} | {_settings(entry)} |")
    for marker, block in {
        "table": "\n".join(rows),
        "diagnosis": f"```text\n{_printed('diagnose')}\n```",
        "diagnosed": f"```text\n{_printed('diagnose').partition(chr(10) * 2 + 'on the next task')[0]}\n```",
        "watch": f"```text\n{_printed('watch')}\n```",
    }.items():
        start, end = f"<!-- {marker} -->\n", "<!-- end -->"
        before, found, after = text.partition(start)
        if not found:
            continue
        text = f"{before}{start}{block}\n{end}{after.partition(end)[2]}"
    return text


def _printed(example: str) -> str:
    return (ROOT / f"examples/{example}.txt").read_text().strip("\n")  # a head may begin with spaces


def _first(entry: Measure) -> str:
    """The first sentence, which has the formula."""
    line = (inspect.getdoc(entry.formula) or "").partition("\n")[0].rstrip(".:")
    return line.replace("|", "\\|")


def _marks(entry: Measure) -> str:
    return " *" * entry.by_name + " †" * (not entry.cheap)


def _settings(entry: Measure) -> str:
    return ", ".join(f"`{key}={value!r}`" for key, value in entry.settings.items())


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
