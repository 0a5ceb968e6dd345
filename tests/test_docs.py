"""Numbers and names in README and docs are those of the records and the code."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from replastic.weights import PRESETS

ROOT = Path(__file__).parent.parent


def load(path: str):
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def between(text: str, marker: str) -> str:
    return text.split(f"<!-- {marker} -->\n")[1].split("<!-- end -->")[0].strip()


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_speed_tables_are_those_of_the_records(page: str) -> None:
    text = (ROOT / page).read_text()
    assert load("benchmarks/polar.py").rendered(text) == text
    assert "**" in text or "x |" in text  # the markers are not empty


def test_the_readmes_demo_is_what_the_demo_printed() -> None:
    printed = (ROOT / "examples/digits.txt").read_text()
    shown = re.search(r"```\n(accuracy in task.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1] in printed


def test_the_readmes_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    model = torch.nn.Sequential()
    model.add_module("encoder", torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8, 8)))
    model.add_module("attention", torch.nn.MultiheadAttention(8, 2))
    model.add_module("head", torch.nn.Linear(8, 4))
    names = {"model": model, "optimizer": torch.optim.Adam(model.parameters()), "matrix": torch.randn(5, 3)}
    for block in blocks:
        exec(block, names)
    assert torch.allclose(names["q"].T @ names["q"], torch.eye(3), atol=1e-6)


def test_the_presets_are_all_explained() -> None:
    expected = "\n".join(f'| `"{name}"` | {what} |' for name, (what, _) in PRESETS.items())
    assert between((ROOT / "docs/fire.md").read_text(), "presets") == "| preset | |\n|---|---|\n" + expected


def test_the_table_of_deviations_is_the_examples() -> None:
    shown = between((ROOT / "docs/fire.md").read_text(), "deviation").splitlines()[2:]
    example = load("examples/deviation.py")
    torch.manual_seed(0)
    columns = [example.deviations(width) for width in example.WIDTHS[:3]]  # the wide ones take minutes
    for line, steps, values in zip(shown, example.STEPS, zip(*columns, strict=True), strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[0] == f"{steps} steps"
        for cell, value in zip(cells[1:], values, strict=False):
            assert float(cell) == pytest.approx(value, rel=0.06)  # two digits


def test_every_page_that_is_linked_exists() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links {target}"
