"""Old paths of modules: each works for one release and warns."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import replastic
from replastic.moved import MOVED

PACKAGE = Path(replastic.__file__).parent


def below(new: str) -> list[str]:
    """A module, and all modules in it."""
    place = PACKAGE.joinpath(*new.split("."))
    inside = sorted(place.rglob("*.py")) if place.is_dir() else []
    names = [".".join(path.relative_to(place).with_suffix("").parts) for path in inside if path.name != "__init__.py"]
    return ["", *(f".{name}" for name in names)]


OLD = [(f"replastic.{old}{end}", f"replastic.{new}{end}") for old, new in MOVED.items() for end in below(new)]


@pytest.mark.parametrize(("old", "new"), OLD)
def test_an_old_path_gives_the_module_that_took_its_place_and_warns(
    old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"^{old} has moved: import {new}$") as caught:
        module = importlib.import_module(old)
    assert caught[-1].filename.endswith("importlib/__init__.py")  # who imports it, not the machinery in between
    present = importlib.import_module(new)
    names = [name for name in vars(present) if not name.startswith("__")]
    assert names
    assert all(getattr(module, name) is getattr(present, name) for name in names)
    assert set(names) <= set(dir(module))


@pytest.mark.slow
def test_old_paths_work_in_every_form_of_import() -> None:
    program = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
import replastic as rp
from replastic.streams import load
from replastic.training import Training
from replastic.measures import bounds
from replastic.measures.bounds.fire import Bound
import replastic.streams.protocols
from replastic import health, streams
assert rp.streams.load is load is streams.load is rp.workloads.images.load
assert rp.train.Training is Training
assert rp.theory.Bound is Bound is bounds.Bound
assert replastic.streams.protocols.PROTOCOLS is rp.workloads.images.PROTOCOLS
assert health.diagnose is rp.diagnose
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_old_paths_that_stayed_in_place_give_what_they_gave() -> None:
    from replastic.learner import Learner
    from replastic.train import train
    from replastic.weights import PRESETS, select

    assert not any(isinstance(value, ModuleType) for value in (Learner, train, PRESETS, select))


@pytest.mark.filterwarnings("ignore:replastic.streams has moved:DeprecationWarning")
@pytest.mark.parametrize("name", ["replastic.streams.nothing", "replastic.streaming", "replastic.stream"])
def test_a_path_that_never_was_is_not_found(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=name):
        importlib.import_module(name)
