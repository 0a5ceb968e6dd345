"""`replastic new-method`: a method of your own to begin with, and its test."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from ..options import OptionError
from .command import Command
from .console import print_line

_METHOD = '''"""{title}: say the idea in a sentence.

    θ <- θ₀ + (1 - rate) (θ - θ₀)        at every boundary; write your update here

Who proposed it, and where.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import replastic as rp


@dataclass
class {kind}(rp.Method):
    """Pull every weight towards its first value, at every boundary."""

    rate: float = 0.5  # between 0, which changes nothing, and 1, which sets all weights back

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("rate", 0 <= self.rate <= 1, "between 0 and 1")

    # One of three moments, or several: at_boundary(learner, task) when the data is about to change; penalty(learner), a
    # scalar that is added to the loss; after_step(learner), after every step of the optimiser.
    @torch.no_grad()
    def at_boundary(self, learner: rp.Learner, task: rp.Task | None) -> None:
        if self.rate:
            learner.forget(learner.parameters.values())  # momenta of weights that are moved pull the wrong way
        for name, parameter in learner.parameters.items():
            parameter.lerp_(learner.first(name), self.rate)
'''
_TEST = '''"""What {kind} promises."""

import copy
import sys
from pathlib import Path

import pytest
import torch

import replastic as rp

sys.path.insert(0, str(Path(__file__).parent))
from {name} import {kind}


def untrained(method: rp.Method, seed: int = 0) -> rp.Learner:
    """A small learner."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return rp.Learner(model, optimizer, methods=[method], loss=torch.nn.functional.cross_entropy, seed=seed)


def trained(method: rp.Method, steps: int = 5) -> rp.Learner:
    """The same behind its first boundary, with a few steps on either side."""
    learner = untrained(method)
    for _ in range(2):
        learner.begin()
        for _ in range(steps):
            learner.step(torch.randn(16, 8), torch.randint(4, (16,)))
    return learner


def weights(learner: rp.Learner) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in learner.parameters.values()])


def test_it_changes_something() -> None:
    assert not torch.equal(weights(trained({kind}())), weights(trained({kind}(rate=0.0))))


def test_at_a_rate_of_one_all_weights_are_the_first_ones() -> None:
    learner = trained({kind}(rate=1.0))
    learner.begin()
    for name, parameter in learner.parameters.items():
        torch.testing.assert_close(parameter, learner.first(name))


def test_the_same_seed_gives_the_same_run() -> None:
    assert torch.equal(weights(trained({kind}())), weights(trained({kind}())))


def test_it_goes_on_from_a_checkpoint_as_if_it_had_not_stopped() -> None:
    whole = trained({kind}())
    resumed = untrained({kind}(), seed=1)  # another network: all that it knows it has from the checkpoint
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    for learner in (whole, resumed):
        generator = torch.Generator().manual_seed(1)
        for _ in range(2):
            learner.step(torch.randn(16, 8, generator=generator), torch.randint(4, (16,), generator=generator))
            learner.begin()
    assert torch.equal(weights(whole), weights(resumed))


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_a_rate_that_means_nothing_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        {kind}(rate=rate)
'''


@dataclass(kw_only=True)
class NewMethod(Command):
    """Write a method of your own to begin with, and its test."""

    name: ClassVar[str] = "new-method"

    method: Positional[Annotated[str, arg(metavar="NAME")]]
    """As in soft_reset: the file's name; the class will be SoftReset."""
    folder: Annotated[str, arg(metavar="DIR")] = "."
    """Where to write them."""

    def __call__(self) -> int:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", self.method).lower()
        if not name.isidentifier() or keyword.iskeyword(name):
            raise OptionError(f"{self.method!r} is no name for a Python file: give letters and _, as in soft_reset")
        if find_spec(name) is not None and not (Path(self.folder) / f"{name}.py").exists():
            raise OptionError(f"there is a module {name!r} already, which the file would hide: choose another name")
        kind = "".join(part.capitalize() for part in name.split("_"))
        folder = Path(self.folder)
        if folder.exists() and not folder.is_dir():
            raise OptionError(f"--folder {folder} is a file: give a folder, which may be new")
        files = {folder / f"{name}.py": _METHOD, folder / f"test_{name}.py": _TEST}
        for path in files:
            if path.exists():
                raise OptionError(f"{path} is there already: delete it, or choose another name; nothing was written")
        folder.mkdir(parents=True, exist_ok=True)
        for path, template in files.items():
            text = template.format(title=name.replace("_", " ").capitalize(), kind=kind, name=name)
            path.write_text(text, encoding="utf-8")
        method, test = files
        print_line(f"{method}: a method that works; make it yours")
        print_line(f"{test}: run it with  pytest {test}")
        print_line(f'In an experiment\'s file beside them:\n\n[arms.mine]\nname = "{name}.py:{kind}"\nrate = 0.5')
        return 0
