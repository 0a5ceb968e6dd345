"""Loops of one's own that forget to tell the learner something, or train with what it cannot."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import replastic as rp
from replastic import Learner, Task
from replastic.models import MLP
from replastic.train import Training, train


def mlp() -> nn.Module:
    return MLP(6, (5, 5), 4)


def train_silently(learner: Learner, steps: int) -> None:
    for _ in range(steps):
        learner.optimizer.zero_grad()
        learner.model(torch.randn(5, 6)).square().mean().backward()
        learner.optimizer.step()


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (rp.ReDo, r"made 20 steps, and learner\.after_step\(\) was never called, so ReDo did nothing"),
        (rp.L2, r"made 20 steps, and learner\.penalty\(\) was never called, so L2 did nothing"),
    ],
)
def test_a_loop_that_forgets_a_method_is_told_once(method: type[rp.Method], says: str) -> None:
    model = mlp()
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=[rp.FIRE(), method()])
    learner.begin()
    train_silently(learner, 20)
    with pytest.warns(UserWarning, match=says):
        learner.begin()
    train_silently(learner, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.begin()


def test_steps_from_before_a_method_began_are_not_counted() -> None:
    model = mlp()
    learner = Learner(
        model, torch.optim.SGD(model.parameters(), lr=0.1), methods=[rp.FIRE(), rp.L2(from_task=1)], loss=F.cross_entropy
    )
    train_silently(learner, 50)
    learner.begin()
    train_silently(learner, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.begin()


def test_steps_of_several_optimisers_are_counted_once() -> None:
    model = mlp()
    first, *others = model.parameters()
    learner = Learner(
        model, [torch.optim.SGD([first], lr=0.1), torch.optim.SGD(others, lr=0.1)], methods=[rp.FIRE(), rp.ReDo()]
    )
    learner.optimizer = learner.optimizer  # as some do after a scheduler; it adds no steps
    train_silently(learner, 9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.begin()
    train_silently(learner, 1)
    with pytest.warns(UserWarning, match="made 10 steps"):
        learner.begin()


@pytest.mark.parametrize("method", [rp.ReDo, rp.L2])
def test_a_loop_that_does_not_is_not(method: type[rp.Method]) -> None:
    model = mlp()
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=method(), loss=F.cross_entropy)
    for _ in range(20):
        learner.step(torch.randn(5, 6), torch.randint(4, (5,)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.begin()


@pytest.mark.parametrize("beside", [False, True])
def test_an_optimiser_that_wants_a_closure_is_refused_by_name(beside: bool) -> None:
    model = mlp()
    first, *others = model.parameters()
    lbfgs = torch.optim.LBFGS([first] if beside else model.parameters())
    optimizer = [lbfgs, torch.optim.Adam(others)] if beside else lbfgs
    learner = Learner(model, optimizer, loss=F.cross_entropy)
    batch = torch.randn(5, 6), torch.randint(4, (5,))
    with pytest.raises(TypeError, match="LBFGS needs a closure"):
        learner.step(*batch)
    task = Task("one", lambda generator: [batch], F.cross_entropy, epochs=1)
    with pytest.raises(TypeError, match="LBFGS needs a closure"):
        list(train(learner, [task], Training(renew_optimizer=False)))
