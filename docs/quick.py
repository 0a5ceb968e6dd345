"""Write the README's figure and table of the quick experiment from its committed records.

python docs/quick.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from replastic.report import gather
from replastic.report.charts import chart
from replastic.report.contents import chapter
from replastic.report.figures import draw
from replastic.report.summary import summary_lines

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "experiments/results/quick"
README = ROOT / "README.md"
ASSETS = ROOT / "docs/assets"


def rendered(text: str) -> str:
    """README.md with the table."""
    before, _, rest = text.partition("<!-- quick -->\n")
    table = "\n".join(["```text", *summary_lines(RECORDS)[0], "```"])
    return before + "<!-- quick -->\n" + table + "\n<!-- end -->" + rest.partition("<!-- end -->")[2]


def figure() -> bytes:
    """The picture on top, as the report draws it."""
    ((study,), _) = gather([RECORDS])
    shown = chart(study, study.metric, "end", "Accuracy", "mean")
    assert shown is not None
    with tempfile.TemporaryDirectory() as folder:
        paths = draw(shown, chapter(study).arms, Path(folder))
        return next(path for path in paths if path.suffix == ".png").read_bytes()


if __name__ == "__main__":
    README.write_text(rendered(README.read_text()))
    (ASSETS / "quick.png").write_bytes(figure())
