"""The notebooks in examples/: committed without outputs, and all their cells run, in order, without a network."""

import contextlib
import io
import json
import socket
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_there_are_notebooks_and_the_gallery_links_each() -> None:
    gallery = (ROOT / "docs/gallery.md").read_text()
    assert len(NOTEBOOKS) >= 2
    assert [path.name for path in NOTEBOOKS if f"examples/{path.name}" not in gallery] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path: Path) -> None:
    notebook = read(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert "%" not in (cell["source"][0][:1] if cell["cell_type"] == "code" else "")  # plain Python, as the test runs it


def run(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], str]:
    """The names that the cells leave, and what they print."""
    pytest.importorskip("sklearn", reason="the notebooks need scikit-learn: pip install scikit-learn")
    plt.switch_backend("agg")

    def refuse(*address: Any) -> None:
        raise AssertionError(f"{path.name} connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    names: dict[str, Any] = {"__name__": "__main__"}
    threads = torch.get_num_threads()
    with contextlib.redirect_stdout(io.StringIO()) as printed, torch.random.fork_rng():
        for cell in read(path)["cells"]:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{path.name}:{cell['id']}", "exec"), names)
    torch.set_num_threads(threads)
    plt.close("all")
    return names, printed.getvalue()


@pytest.mark.slow
def test_the_loop_loses_plasticity_and_fire_restores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names, printed = run(ROOT / "examples/own_loop.ipynb", monkeypatch)
    assert all(reached[0] > 0.8 for _, reached in names["plain"])
    assert all(reached[-1] < 0.5 for _, reached in names["plain"])
    assert all(min(reached) > 0.8 for _, reached in names["fired"])
    assert not names["diagnosis"].healthy
    assert "dead units" in printed
    assert len(names["axes"].lines) == 2 * names["SEEDS"] + 1


@pytest.mark.slow
def test_the_restored_checkpoint_learns_more_than_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    names, printed = run(ROOT / "examples/own_checkpoint.ipynb", monkeypatch)
    ends = {name: [curve[-1] for curve in curves] for name, curves in names["curves"].items()}
    assert max(ends["old checkpoint"]) < min(ends["restored checkpoint"]) - 0.1
    assert not names["diagnosis"].healthy
    assert {path.name for path in names["folder"].iterdir()} == {"trained.safetensors", "restored.safetensors"}
    assert "FIRE, 10 steps: 4 weights" in printed
