"""Mistakes that are easily made are answered with what was passed, what was expected, and what to write instead."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import replastic as rp
from replastic.checkpoint import CheckpointError, fire, inspect
from replastic.options import OptionError
from replastic.runs import execute
from replastic.runs.config import read


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 5))


def test_inputs_of_a_wrong_shape_are_named_with_their_shape() -> None:
    with pytest.raises(ValueError, match=r"\(64, 7\).*rp.diagnose\(model, inputs\)"):
        rp.diagnose(model(), torch.randn(64, 7))


@pytest.mark.parametrize(
    ("inputs", "targets", "named"), [(np.zeros, torch.zeros, "inputs"), (torch.zeros, np.zeros, "targets")]
)
def test_arrays_of_numpy_are_to_be_tensors(inputs, targets, named: str) -> None:
    net = model()
    learner = rp.Learner(net, torch.optim.SGD(net.parameters(), 0.1), methods=rp.FIRE(), loss=F.cross_entropy)
    with pytest.raises(TypeError, match=rf"torch.from_numpy\({named}\)"):
        learner.step(inputs((4, 10)), targets(4))


def test_a_setting_that_a_method_lacks_is_answered_with_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"FIRE\(step=5\).*'steps'"):
        rp.FIRE(step=5)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="maturity"):
        rp.CBP(maturty=5)  # pyright: ignore[reportCallIssue]


HEAD = 'name = "t"\nseeds = [1]\n[data]\nname = "digits"\n[model]\nname = "mlp"\nhidden = [8]\n'
PROTOCOL = '[protocol]\nname = "continual"\nchunks = 2\nepochs = 1\n'
TRAINING = "[training]\nrenew_optimizer = true\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HEAD.replace('"digits"', "digits") + PROTOCOL + TRAINING, "line 4.*quotes"),
        (HEAD + PROTOCOL + TRAINING, r"no \[arms\].*\[arms.base\]"),
        (HEAD + PROTOCOL + "[arms.base]\n", r"no \[training\].*renew_optimizer"),
        (HEAD + TRAINING + "[arms.base]\n", r"no \[protocol\]"),
    ],
)
def test_a_file_without_quotes_or_tables_is_told_what_to_write(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(OptionError, match=told):
        read(tmp_path / "t.toml")


def test_a_network_that_does_not_fit_into_memory_is_said_to_be_too_large(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t.toml").write_text(HEAD + PROTOCOL + TRAINING + "[arms.base]\n")
    experiment = read(tmp_path / "t.toml", ["model.hidden=[10000000, 10000000]"])
    assert execute.run(experiment, tmp_path / "out", device="cpu") == {"base/seed-1": "not opened"}
    assert "400,000 GB" in caplog.text
    assert "[model]" in caplog.text
    assert "Allocator" not in caplog.text


def test_an_onnx_graph_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"\x08\x08\x12\x07pytorch" + bytes(50))
    with pytest.raises(CheckpointError, match=r"ONNX.*exported from"):
        inspect(path)


def test_the_optimiser_of_a_fired_file_is_named_once(tmp_path: Path) -> None:
    net = model()
    torch.save({"model": net.state_dict(), "optimizer": {"state": {0: torch.zeros(3)}}}, tmp_path / "c.pt")
    done = fire(tmp_path / "c.pt", tmp_path / "out.pt")
    assert done.momenta == ("optimizer",)
