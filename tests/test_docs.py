"""Numbers and names in README and docs are those of the records and the code."""

import ast
import dataclasses
import importlib.util
import inspect
import json
import math
import re
import statistics
import sys
from pathlib import Path

import matplotlib
import pytest
import torch

from replastic.measures import MEASURES
from replastic.methods import METHODS
from replastic.methods.grids import BEST, GRIDS
from replastic.weights import PRESETS
from replastic.workloads.images import PROTOCOLS

ROOT = Path(__file__).parent.parent


def load(path: str, monkeypatch: pytest.MonkeyPatch | None = None):
    if monkeypatch is not None:
        monkeypatch.syspath_prepend(str((ROOT / path).parent))  # scripts import their neighbours
    spec = importlib.util.spec_from_file_location(path.replace("/", "."), ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def between(text: str, marker: str) -> str:
    return text.split(f"<!-- {marker} -->\n")[1].split("<!-- end -->")[0].strip()


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_speed_tables_are_those_of_the_records(page: str) -> None:
    text = (ROOT / page).read_text()
    assert load("benchmarks/polar.py").rendered(text) == text
    assert "**" in text or "x |" in text  # the markers are not empty


def test_the_table_of_costs_is_that_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/performance.md").read_text()
    assert load("benchmarks/methods.py", monkeypatch).rendered(text) == text
    assert "| SWR |" in text


def test_where_matrices_are_decomposed_is_what_the_record_says(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/performance.md").read_text()
    assert load("benchmarks/effective_rank.py", monkeypatch).rendered(text) == text
    assert "| busy GPU |" in text


def test_the_page_of_methods_is_that_of_the_docstrings() -> None:
    page = load("docs/methods.py").rendered()
    assert (ROOT / "docs/methods.md").read_text() == page, "run python docs/methods.py"
    assert all(f"| `{name}` |" in page for name in METHODS)


def test_the_cost_of_measures_is_that_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/performance.md").read_text()
    assert load("benchmarks/measures.py", monkeypatch).rendered(text) == text
    assert "ResNet-18, norms in train mode" in text


def test_the_speed_of_training_is_that_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/performance.md").read_text()
    assert load("benchmarks/training.py", monkeypatch).rendered(text) == text
    assert "| 25 stacked |" in text


def test_the_time_that_a_report_takes_is_that_of_the_record() -> None:
    text = (ROOT / "docs/performance.md").read_text()
    assert load("benchmarks/report.py").rendered(text) == text
    assert "| the page |" in text


def test_what_a_large_checkpoint_takes_is_that_of_the_records() -> None:
    text = (ROOT / "docs/performance.md").read_text()
    assert load("benchmarks/checkpoint.py").rendered(text) == text
    assert "| 7b, 12.6 GiB |" in text
    assert "| project |" in text


def test_the_functions_that_the_benchmark_of_checkpoints_times_are_there() -> None:
    module = load("benchmarks/checkpoint.py")
    assert {part for part, owner, name in module.wrapped() if callable(getattr(owner, name))} == set(module.PARTS)


def test_the_table_of_architectures_is_that_of_the_records() -> None:
    text = (ROOT / "docs/performance.md").read_text()
    assert load("benchmarks/coverage_account.py").rendered(text) == text, "run python benchmarks/coverage.py --write-docs"
    assert all(f"| {source} " in text for source in ("transformers", "timm", "torchvision"))


def test_the_readmes_table_of_methods_is_that_of_the_code() -> None:
    text = (ROOT / "README.md").read_text()
    assert load("docs/methods.py").rendered_readme(text) == text, "run python docs/methods.py"
    assert all(f"`{name}`" in between(text, "methods") for name in METHODS)


@pytest.mark.parametrize("page", ["README.md", "docs/measures.md"])
def test_measures_and_what_examples_printed_are_shown_as_they_are(page: str) -> None:
    text = (ROOT / page).read_text()
    assert load("docs/measures.py").rendered(text) == text, "run python docs/measures.py"
    assert "dead units: 52% of its units" in text
    assert f"{len(MEASURES)} of them" in text or all(f"| `{name}`" in text for name in MEASURES)


def test_what_is_said_of_healthy_networks_is_what_was_printed() -> None:
    printed = (ROOT / "examples/healthy.txt").read_text()
    assert "0 of 42 networks have a finding." in printed
    assert printed.count("found: nothing") == 42
    assert "of 42 small networks" in (ROOT / "docs/measures.md").read_text()


def test_every_methods_file_says_what_it_departs_from() -> None:
    for name, made in METHODS.items():
        text = sys.modules[made.__module__].__doc__ or ""
        assert "\n    - " in text.partition("\nDepartures")[2], name


def test_the_grids_name_methods_and_fields_that_exist() -> None:
    for experiment, by_method in [*GRIDS.items(), *((f"{e}, {d}", m) for e, ds in BEST.items() for d, m in ds.items())]:
        for name, settings in by_method.items():
            for part in name.split("+"):
                assert part == "none" or part in METHODS, f"{experiment}: {part}"
            made = [METHODS[part] for part in name.split("+") if part in METHODS]
            fields = {field for method in made for field in _fields(method)} | {"learning_rate"}
            assert set(settings) <= fields, f"{experiment}: {name} has no {set(settings) - fields}"


def _fields(made) -> set[str]:
    if dataclasses.is_dataclass(made):
        return {field.name for field in dataclasses.fields(made) if field.init}
    return set(inspect.signature(made).parameters)


def test_the_example_of_methods_has_them_all_and_its_output_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    arms = load("examples/methods.py", monkeypatch).ARMS
    printed = (ROOT / "examples/methods.txt").read_text()
    assert set(arms) - {"train on"} == set(METHODS) - {"normalize_and_project", "shrink_encoder"}
    assert all(re.search(rf"^{re.escape(name)} ", printed, re.MULTILINE) for name in arms)


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
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#:]+)\)", prose):
            assert (page.parent / target).exists(), f"{page.name} links {target}"


def test_the_page_of_training_has_every_protocol() -> None:
    page = (ROOT / "docs/training.md").read_text()
    assert [name for name in PROTOCOLS if f"| `{name}` |" not in page] == []


def test_the_speeds_in_the_readme_are_those_of_the_record() -> None:
    record = json.loads((ROOT / "benchmarks/results/training-cuda.json").read_text())["images"]
    rates = {name: statistics.median(way["images a second"]) for name, way in record.items()}
    text = " ".join((ROOT / "README.md").read_text().split())
    one = rates["compiled graph, bfloat16"]
    assert f"trains at {round(one, -3):,.0f} images a second, {one / rates['plain']:.0f} times" in text
    assert f"and {one / rates['plain, 8 workers']:.1f} times as fast as that loop with eight workers" in text


def test_a_package_imports_only_from_those_above_it_in_the_table() -> None:
    lines = [line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("| `")]
    names = [re.findall(r"`([a-z_]+)(?:\.py|/)`", line.split("|")[1]) for line in lines]
    place = {name: number for number, row in enumerate(names) for name in row}
    assert place["linalg"] < place["weights"] < place["methods"] < place["checkpoint"] < place["cli"]
    parts = {path.stem for path in (ROOT / "replastic").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__", "__main__", "public", "moved"} <= place.keys()
    wrong = []
    for path in sorted((ROOT / "replastic").rglob("*.py")):
        inside = path.relative_to(ROOT / "replastic")
        mine = inside.parts[0].removesuffix(".py")
        for target in imported(path, inside.parts[:-1]):
            if mine in place and target in place and place[target] > place[mine]:
                wrong.append(f"{inside} imports {target}")
    assert wrong == []


def imported(path: Path, around: tuple[str, ...]) -> set[str]:
    """The package's own files and folders that a file imports, but for types alone."""
    tree = ast.parse(path.read_text())
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    for_types = {id(inner) for node in tests for line in node.body for inner in ast.walk(line)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and id(node) not in for_types:
            whole = [*around[: len(around) - node.level + 1], *(node.module or "").split(".")]
            named = [part for part in whole if part]
            found |= {named[0]} if named else {alias.name for alias in node.names}
    return found


@pytest.mark.slow
def test_the_results_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    results = load("docs/results.py", monkeypatch)
    for page in results.PAGES:
        text = page.read_text()
        assert results.rendered(text) == text, "run python docs/results.py"
    text = "".join(page.read_text() for page in results.PAGES)
    for marker in results.blocks():
        assert text.count(f"<!-- {marker} -->") == 1, marker
    assert len(between(text, "quick").splitlines()) == 13
    for marker, table in results.TABLES.items():
        assert all(f"| {arm} |" in between(text, marker) for arm in table.published)


def test_each_figure_has_a_file_and_a_page_and_shows_all_arms_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = load("docs/result_figures.py", monkeypatch)
    assert {path.name for path in (ROOT / "docs/assets").glob("*.png")} == set(figures.FIGURES), "run python docs/results.py"
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    for name in figures.FIGURES:
        dark = "-dark." in name  # for README's dark mode; the site inverts its pictures
        assert f'srcset="docs/assets/{name}"' in (ROOT / "README.md").read_text() if dark else f"](assets/{name})" in pages
        study, chart = figures.charted(name)
        lines = [*chart.lines, *(line for _, lines in chart.frames for line in lines)]
        assert {line.arm for line in lines if any(map(math.isfinite, line.y))} == set(study.arms), name


def test_the_gallery_has_every_example_and_the_pictures_of_their_output(monkeypatch: pytest.MonkeyPatch) -> None:
    page, gallery = (ROOT / "docs/gallery.md").read_text(), load("docs/gallery.py", monkeypatch)
    examples = [path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")]
    assert [name for name in examples if f"examples/{name}" not in page] == []
    pictures = {path.stem: path for path in (ROOT / "docs/assets/gallery").glob("*.svg")}
    assert set(pictures) == {*gallery.PICTURES, *gallery.NOTEBOOKS}
    assert [name for name in pictures if f"](assets/gallery/{name}.svg)" not in page] == []
    assert max(path.stat().st_size for path in pictures.values()) < 40_000
    pinned = re.search(r"^matplotlib==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    if matplotlib.__version__ == pinned[1]:  # another version draws other bytes
        for name, draw in gallery.PICTURES.items():
            assert pictures[name].read_text() == gallery.svg(draw), f"{name}.svg: run python docs/gallery.py"


def test_what_is_said_of_the_last_two_layers_is_in_their_tables() -> None:
    text = (ROOT / "docs/results-spectral-collapse.md").read_text()

    def ranks(marker: str, arm: str, at: int) -> list[str]:
        (row,) = [line for line in between(text, marker).splitlines() if line.startswith(f"| {arm} |")]
        return [cell.split(", ")[at] for cell in row.strip("| ").split(" | ")[-2:]]

    bp, reset, l2_er = ("/".join(ranks("incremental-cifar-last-layers", arm, 1)) for arm in ("BP", "RESET", "L2-ER"))
    prose = " ".join(text.split())
    assert f"it is {bp} against {reset} at task 5 (L2-ER {l2_er})" in prose
    first, last = (" and ".join(ranks("class-pairs-last-layers", "BP", at)) for at in (0, 3))
    assert f"falls from {first} to {last}," in prose
    assert f"collapses from {first} to {last} " in (ROOT / "docs/results.md").read_text()
