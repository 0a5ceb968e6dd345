"""What there is, and what is missing: list, show and doctor."""

from typing import Any

import pytest

from replastic.cli import main
from replastic.measures import MEASURES
from replastic.methods import METHODS
from replastic.models import MODELS
from replastic.workloads import images, text


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("methods", METHODS),
        ("measures", MEASURES),
        ("data", images.DATA_SETS),
        ("models", MODELS),
        ("protocols", {**images.PROTOCOLS, **text.PROTOCOLS}),
    ],
)
def test_list_has_every_name_with_what_it_is(what: str, names: Any, capsys: Any) -> None:
    assert main(["list", what]) == 0
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()[1:]}
    assert set(lines) == set(names)
    assert all(len(text) > 10 for text in lines.values())


def test_list_has_the_experiments(capsys: Any) -> None:
    assert main(["list", "experiments"]) == 0
    said = capsys.readouterr().out
    assert "fire/figure-2a-cifar10 " in said
    assert "quick " in said


@pytest.mark.parametrize("method", METHODS)
def test_show_has_the_paper_the_departures_and_every_setting(method: str, capsys: Any) -> None:
    assert main(["show", method]) == 0
    said = capsys.readouterr().out
    assert "Departures" in said
    assert "from_task" in said or method in ("l2_er", "shrink_encoder")
    assert f'name = "{method}"' in said


def test_show_of_an_unknown_method_names_the_nearest(capsys: Any) -> None:
    assert main(["show", "fier"]) == 2
    assert "there is no method 'fier': did you mean 'fire'?" in capsys.readouterr().err


def test_doctor_names_versions_devices_and_what_is_missing(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    import torch

    assert torch.__version__ in said
    assert "gpu" in said or "cuda:0" in said
    monkeypatch.setattr("replastic.cli.doctor.version_of", lambda name: None if name == "submitit" else "1.0")
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert 'submitit: pip install "replastic[slurm]"' in said
    assert "matplotlib: pip" not in said
