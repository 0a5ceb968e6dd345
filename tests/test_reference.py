"""The reference in docs/api/: every public name, once, as the code has it."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import replastic as rp
from tests.test_docs import load

ROOT = Path(__file__).parent.parent
PAGES = "".join(path.read_text() for path in sorted((ROOT / "docs/api").glob("*.md")))
# Namespaces that README and docs name, and in which every name without an underscore is public.
EXPORTING = ("checkpoint", "diagnosis", "learner", "linalg", "measures", "measures.curvature", "record", "report", "train")


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    for library in ("lightning", "stable_baselines3", "transformers"):
        pytest.importorskip(library, reason=f"the page of integrations needs {library}")
    return load("docs/api.py", monkeypatch)


@pytest.mark.slow
def test_the_pages_are_those_of_the_code(reference: Any) -> None:
    pages = reference.rendered()
    assert {path.name for path in (ROOT / "docs/api").iterdir()} == {*pages}
    for name, text in pages.items():
        assert (ROOT / "docs/api" / name).read_text() == text, "run python docs/api.py"


def test_every_public_name_of_the_package_has_one_entry() -> None:
    names = [name for name in rp.__all__ if not isinstance(getattr(rp, name), ModuleType)]
    assert len(names) > 50
    assert {name: count for name in names if (count := PAGES.count(f'<a id="rp.{name}"></a>')) != 1} == {}


@pytest.mark.parametrize("namespace", EXPORTING)
def test_every_name_of_a_namespace_has_one_entry(namespace: str) -> None:
    """Under this path, or under a shorter one, which then names it."""
    module = importlib.import_module(f"replastic.{namespace}")
    names = [name for name in vars(module) if not name.startswith("_") and not isinstance(getattr(module, name), ModuleType)]
    missing = []
    for name in names:
        path = f"rp.{namespace}.{name}"
        entries = PAGES.count(f'<a id="{path}"></a>')
        also = any(f"`{path}`" in line for line in PAGES.splitlines() if "Also: " in line)
        if entries + also != 1:
            missing.append(path)
    assert missing == []
    assert names


@pytest.mark.slow
def test_a_name_that_is_added_is_missed(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def new_measure() -> None:
        """Measure something new."""

    new_measure.__module__ = "replastic.measures.units"
    monkeypatch.setattr(sys.modules["replastic.public"], "new_measure", new_measure, raising=False)
    assert "rp.new_measure()" in reference.rendered()["measures.md"]
    assert "rp.new_measure" not in PAGES
    new_measure.__module__ = "replastic.options"
    with pytest.raises(ValueError, match=r"rp\.new_measure.*PAGES"):
        reference.rendered()


def test_docstrings_become_prose_items_equations_and_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    load("docs/api.py", monkeypatch)  # puts docs/ on the path
    made = importlib.import_module("api_docstrings")
    text = (
        "Change *all* W_l.\n\n    W <- s · W\n\nrate: how much,\n    in [0, 1]\n# known: stays\n\n>>> change_(1)\n2\n\n"
        "where: one of\n    a name      of a weight"
    )
    assert made.paragraphs(text, {"rate", "where"}) == [
        "Change \\*all\\* W\\_l.",
        "```text\nW <- s · W\n```",
        "- `rate`: how much, in \\[0, 1\\]",
        "\\# known: stays",
        "```pycon\n>>> change_(1)\n2\n```",
        "- `where`: one of",
        "```text\na name      of a weight\n```",
    ]

    def change_(model: "rp.Learner", *, rate: float = 0.5, kind: type = int) -> "int | None": ...

    assert made.signature("rp.change_", change_) == (
        "rp.change_(model: rp.Learner, *, rate: float = 0.5, kind: type = int) -> int | None"
    )
    wide = made.signature("rp." + "change_" * 10, change_)
    assert wide.splitlines()[1:3] == ["    model: rp.Learner,", "    *,"]
