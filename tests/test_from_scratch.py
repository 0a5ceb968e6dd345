"""The gap between a model that is trained on and a new one."""

import copy
import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from replastic.learner import Task
from replastic.learner.fresh import reinitialised
from replastic.measures.from_scratch import FromScratchGap, from_scratch_gap
from replastic.models import MLP

Batches = Iterator[tuple[Tensor, Tensor]]


def build() -> nn.Module:
    return MLP(6, [16], 3)


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.5)


def data(device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(48, 6, generator=generator)
    return inputs.to(device), (inputs @ torch.randn(6, 3, generator=generator)).argmax(1).to(device)


def make_task(device: torch.device | str = "cpu", evaluated: bool = True) -> Task:
    inputs, targets = data(device)

    def batches(generator: torch.Generator) -> Batches:
        for chosen in torch.randperm(48, generator=generator).split(16):
            yield inputs[chosen], targets[chosen]

    def evaluate(model: nn.Module) -> dict[str, float]:
        assert not model.training
        return {"accuracy": (model(inputs).argmax(1) == targets).float().mean().item()}

    return Task("teacher", batches, F.cross_entropy, evaluate if evaluated else None)


def damaged() -> nn.Module:
    """All hidden units dead."""
    torch.manual_seed(0)
    net = build()
    net[1].bias.data.fill_(-100)
    return net


def test_a_model_with_dead_units_is_behind_a_new_one() -> None:
    found = from_scratch_gap(damaged(), make_task(), build=build, optimizer=sgd, steps=40, seeds=(0, 1, 2))
    assert max(found.gap["accuracy"]) < -0.2
    assert found.mean["accuracy"] == pytest.approx(sum(found.gap["accuracy"]) / 3)
    assert found.spread["accuracy"] == pytest.approx(float(torch.tensor(found.gap["accuracy"]).std()), rel=1e-5)
    assert min(found.fresh["accuracy"]) > 0.8


@pytest.mark.parametrize("make", [build, with_dropout])
def test_a_new_model_has_no_gap_to_itself(make, device: torch.device) -> None:
    torch.manual_seed(7)
    net = make().to(device)
    found = from_scratch_gap(net, make_task(device), build=make, optimizer=sgd, steps=10, seeds=(7,))
    assert found.gap == {"accuracy": (0.0,)}
    assert found.continued_losses == found.fresh_losses
    assert len(found.fresh_losses[0]) == 10


def test_without_a_build_every_layer_is_initialised_anew() -> None:
    with torch.random.fork_rng():
        other = build()
        torch.manual_seed(3)
        net = reinitialised(other)
    assert from_scratch_gap(net, make_task(), optimizer=sgd, steps=5, seeds=(3,)).gap == {"accuracy": (0.0,)}
    found = from_scratch_gap(damaged(), make_task(), optimizer=sgd, steps=40)
    assert found.mean["accuracy"] < -0.2
    assert math.isnan(found.spread["accuracy"])


def test_without_evaluate_the_mean_loss_over_the_batches_is_compared() -> None:
    net = build()
    found = from_scratch_gap(net, make_task(evaluated=False), build=build, optimizer=sgd, steps=2)
    assert list(found.gap) == ["mean_loss"]
    trained = copy.deepcopy(net)
    losses: list[float] = []
    for (inputs, targets), _ in zip(make_task().batches(torch.Generator().manual_seed(0)), range(2), strict=False):
        loss = F.cross_entropy(trained(inputs), targets)
        losses.append(loss.item())
        slopes = torch.autograd.grad(loss, list(trained.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(trained.parameters(), slopes, strict=True):
                parameter.sub_(slope, alpha=0.5)
    assert found.continued_losses[0] == pytest.approx(losses, rel=1e-6)
    # batches of one size: the mean of their losses is that of all samples
    expected = F.cross_entropy(trained(data()[0]), data()[1]).item()
    assert found.continued["mean_loss"][0] == pytest.approx(expected, rel=1e-5)


def test_the_model_and_the_random_state_stay_as_they_were() -> None:
    net = with_dropout().eval()
    net[0].weight.grad = torch.ones(16, 6)
    before, random = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    from_scratch_gap(net, make_task(), build=with_dropout, optimizer=sgd, steps=3)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(net[0].weight.grad, torch.ones(16, 6))
    assert not net.training


def test_it_can_be_repeated_to_the_last_bit() -> None:
    net = with_dropout()
    one, other = (
        from_scratch_gap(net, make_task(), build=with_dropout, optimizer=torch.optim.Adam, steps=7, seeds=(1, 2))
        for _ in range(2)
    )
    assert one == other
    alone = from_scratch_gap(net, make_task(), build=with_dropout, optimizer=torch.optim.Adam, steps=7, seeds=(2,))
    assert alone.continued_losses[0] == one.continued_losses[1]
    assert one.continued_losses[0] != one.continued_losses[1]


def test_both_models_see_the_same_batches_and_new_passes_follow_old_ones() -> None:
    seen: list[float] = []
    task = make_task()

    def batches(generator: torch.Generator) -> Batches:
        for inputs, targets in task.batches(generator):
            seen.append(float(inputs.sum()))
            yield inputs, targets

    from_scratch_gap(build(), Task("seen", batches, F.cross_entropy, task.evaluate), build=build, optimizer=sgd, steps=7)
    assert len(seen) == 14
    assert seen[:7] == seen[7:]
    assert sorted(seen[:3]) != sorted(seen[3:6])  # another order, so other batches


def test_its_table_can_be_read() -> None:
    found = FromScratchGap(
        "digits", 100, (0, 1), {"accuracy": (0.25, 0.35)}, {"accuracy": (0.9, 0.92)}, ((1.0,), (1.0,)), ((1.0,), (1.0,))
    )
    assert str(found) == (
        "digits: 100 steps, 2 seeds   trained on  from scratch            gap\n"
        "accuracy                    0.3 ±0.0707  0.91 ±0.0141  -0.61 ±0.0566"
    )
    one = FromScratchGap("digits", 1, (0,), {"loss": (2.0,)}, {"loss": (1.5,)}, ((1.0,),), ((1.0,),))
    assert str(one).splitlines()[1].split() == ["loss", "2", "1.5", "0.5"]


def test_what_cannot_be_compared_is_named() -> None:
    net, task = build(), make_task()
    for steps in (0, -1, 1.5):
        with pytest.raises(ValueError, match="steps="):
            from_scratch_gap(net, task, optimizer=sgd, steps=steps)  # pyright: ignore
    for seeds in ((), (1, 1)):
        with pytest.raises(ValueError, match="seeds="):
            from_scratch_gap(net, task, optimizer=sgd, steps=1, seeds=seeds)
    with pytest.raises(ValueError, match="clip=0"):
        from_scratch_gap(net, task, optimizer=sgd, steps=1, clip=0)
    with pytest.raises(TypeError, match=r"Task\(name, batches, loss, evaluate\)"):
        from_scratch_gap(net, [task], optimizer=sgd, steps=1)  # pyright: ignore
    with pytest.raises(TypeError, match=r"needs a torch\.nn\.Module"):
        from_scratch_gap("net", task, optimizer=sgd, steps=1)  # pyright: ignore
    with pytest.raises(ValueError, match="the model that is being trained"):
        from_scratch_gap(net, task, build=lambda: net, optimizer=sgd, steps=1)
    with pytest.raises(ValueError, match=r"build\(\) makes a different model"):
        from_scratch_gap(net, task, build=lambda: MLP(6, [17], 3), optimizer=sgd, steps=1)
    with pytest.raises(ValueError, match="task 'empty' has no batches"):
        from_scratch_gap(net, Task("empty", lambda generator: [], F.cross_entropy), optimizer=sgd, steps=1)
    unreduced = Task("wide", task.batches, lambda u, t: F.cross_entropy(u, t, reduction="none"))
    with pytest.raises(ValueError, match="the loss has shape"):
        from_scratch_gap(net, unreduced, optimizer=sgd, steps=1)


def test_an_optimiser_of_the_models_own_parameters_is_refused_before_it_moves_them() -> None:
    net = build()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ValueError, match=r"optimizer\(parameters\) returned"):
        from_scratch_gap(net, make_task(), build=build, optimizer=lambda _: sgd(list(net.parameters())), steps=3)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("figures", "error", "message"),
    [
        ({"accuracy": math.nan}, ValueError, "accuracy of task 'odd' is not a number"),
        ({}, TypeError, "figures by name"),
        (0.5, TypeError, "figures by name"),
    ],
)
def test_figures_that_are_none_are_refused(figures, error, message) -> None:
    task = Task("odd", make_task().batches, F.cross_entropy, lambda model: figures)
    with pytest.raises(error, match=message):
        from_scratch_gap(build(), task, optimizer=sgd, steps=1)


def test_figures_that_come_and_go_are_refused() -> None:
    names = iter(["a", "b"])
    task = Task("odd", make_task().batches, F.cross_entropy, lambda model: {next(names): 1.0})
    with pytest.raises(ValueError, match=r"task\.evaluate returned"):
        from_scratch_gap(build(), task, optimizer=sgd, steps=1)
