import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau

import replastic as rp
from replastic.optim import Together, as_one, check_clearable, clear_state_, entry_state, holds, swap_


def pair(seed: int = 0) -> tuple[nn.Module, Muon, AdamW]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    muon = Muon([net[0].weight], lr=0.05)
    adam = AdamW([{"params": [net[0].bias, net[2].bias], "weight_decay": 0.0}, {"params": [net[2].weight]}], lr=0.01)
    return net, muon, adam


def train(net: nn.Module, *optimizers: Optimizer, steps: int = 3, seed: int = 0) -> list[float]:
    generator, losses = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        inputs, targets = torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)
        loss = nn.functional.cross_entropy(net(inputs), targets)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


def values(net: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in net.parameters()]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_together_they_train_as_they_do_apart() -> None:
    net, *several = pair()
    other, *apart = pair()
    before = values(net)
    assert train(net, Together(several)) == train(other, *apart)
    assert same(values(net), values(other))
    assert not any(torch.equal(a, b) for a, b in zip(values(net), before, strict=True))


def test_groups_and_state_are_those_of_the_optimisers() -> None:
    net, muon, adam = pair()
    both = Together([muon, adam])
    train(net, both)
    assert [id(group) for group in both.param_groups] == [id(group) for o in (muon, adam) for group in o.param_groups]
    assert len(both.state) == 4
    assert both.state[net[0].weight] is muon.state[net[0].weight]
    assert both.state[net[2].bias] is adam.state[net[2].bias]
    assert {id(param) for param in both.state} == {id(param) for param in net.parameters()}
    assert net[0].weight in both.state
    del both.state[net[2].bias]
    assert net[2].bias not in adam.state
    both.state[net[2].bias] = {"exp_avg": torch.zeros(3)}
    assert list(adam.state[net[2].bias]) == ["exp_avg"]


def test_looking_at_the_state_of_an_unstepped_parameter_makes_none() -> None:
    net, muon, adam = pair()
    both = Together([muon, adam])
    assert both.state.get(net[0].weight, {}) == {}
    clear_state_(both, net[2].weight)
    assert entry_state(both, net[0].weight) == []
    assert len(muon.state) == len(adam.state) == 0


def test_zero_grad_reaches_every_parameter() -> None:
    net, muon, adam = pair()
    both = Together([muon, adam])
    net(torch.ones(2, 4)).sum().backward()
    both.zero_grad(set_to_none=False)
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in net.parameters())
    both.zero_grad()
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_closure_is_called_once_with_gradients() -> None:
    net, muon, adam = pair()
    both, calls = Together([muon, adam]), []

    def closure() -> Tensor:
        calls.append(1)
        both.zero_grad()
        loss = net(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    before = values(net)
    with torch.no_grad():
        loss = both.step(closure)
    assert len(calls) == 1
    assert loss.item() > 0
    assert not same(values(net), before)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: LambdaLR(o, lambda step: 1 / (1 + step)),
        lambda o: CosineAnnealingLR(o, T_max=10),
        lambda o: OneCycleLR(o, max_lr=[0.1, 0.2, 0.3], total_steps=10, cycle_momentum=False),
    ],
)
def test_a_scheduler_on_all_is_a_scheduler_on_each(make: Any) -> None:
    net, muon, adam = pair()
    both = Together([muon, adam])
    scheduler = make(both)
    first = [group["lr"] for group in both.param_groups]
    for _ in range(3):
        train(net, both, steps=1)
        scheduler.step()
    now = [group["lr"] for optimizer in (muon, adam) for group in optimizer.param_groups]
    assert now == scheduler.get_last_lr()
    assert all(a != b for a, b in zip(now, first, strict=True))


def test_a_scheduler_goes_on_after_a_state_dict_is_loaded() -> None:
    net, muon, adam = pair()
    both = Together([muon, adam])
    scheduler = LambdaLR(both, lambda step: 0.5**step)
    train(net, both, steps=1)
    both.load_state_dict(copy.deepcopy(both.state_dict()))  # torch puts new dicts in the place of an optimiser's groups
    adam.load_state_dict(copy.deepcopy(adam.state_dict()))  # also behind its back
    scheduler.step()
    assert [group["lr"] for group in [*muon.param_groups, *adam.param_groups]] == [0.025, 0.005, 0.005]
    plateau = ReduceLROnPlateau(both, patience=0, factor=0.1)
    plateau.step(1.0)
    plateau.step(2.0)
    assert muon.param_groups[0]["lr"] == pytest.approx(0.0025)


def test_clearing_reaches_the_right_optimiser_and_only_there() -> None:
    net, muon, adam = pair()
    both = Together([muon, adam])
    train(net, both)
    clear_state_(both, net[0].weight)
    clear_state_(both, net[2].weight, index=1)
    assert not muon.state[net[0].weight]["momentum_buffer"].any()
    moments = adam.state[net[2].weight]["exp_avg"]
    assert not moments[1].any()
    assert moments[[0, 2]].all()
    assert adam.state[net[2].bias]["step"] == 3


def test_what_each_optimiser_refuses_is_refused_together() -> None:
    one, two, three = (nn.Parameter(torch.ones(2)) for _ in range(3))
    both = Together([Adagrad([one], initial_accumulator_value=0.1), Adagrad([two]), torch.optim.LBFGS([three])])
    for param in (one, two):
        param.grad = torch.ones(2)
    for optimizer in both.optimizers[:2]:
        optimizer.step()
    clear_state_(both, two)
    assert not both.state[two]["sum"].any()
    with pytest.raises(TypeError, match="Adagrad keeps 'sum'"):
        check_clearable(both, one)
    with pytest.raises(TypeError, match="LBFGS"):
        clear_state_(both, three)
    with pytest.raises(ValueError, match=r"holds this parameter of shape \(5,\)"):
        clear_state_(both, nn.Parameter(torch.ones(5)))


def test_entry_state_is_one_number_for_each_entry() -> None:
    net, muon, adam = pair()
    both = Together([muon, adam])
    train(net, both)
    assert [tensor.shape for tensor in entry_state(both, net[0].weight)] == [(6, 4)]
    found = entry_state(both, net[2].weight)
    assert {id(tensor) for tensor in found} == {id(adam.state[net[2].weight][key]) for key in ("exp_avg", "exp_avg_sq")}
    assert entry_state(both, nn.Parameter(torch.ones(2))) == []


def test_state_that_is_not_one_number_for_each_entry_is_refused() -> None:
    param = nn.Parameter(torch.randn(3, 2))
    optimizer = torch.optim.Adafactor([param])
    param.grad = torch.randn(3, 2)
    optimizer.step()
    with pytest.raises(TypeError, match="index=None"):
        entry_state(optimizer, param)


def test_a_swapped_in_parameter_trains_in_the_place_and_with_the_settings_of_the_old() -> None:
    net, muon, adam = pair()
    both, old = Together([muon, adam]), net[2].bias
    net(torch.ones(1, net[0].in_features)).sum().backward()
    both.step()
    new = nn.Parameter(torch.ones_like(old))
    at = [param is old for group in both.param_groups for param in group["params"]].index(True)
    swap_(both, old, new)
    assert [param is new for group in both.param_groups for param in group["params"]].index(True) == at
    assert not holds(both, old)
    assert old not in adam.state
    both.zero_grad()
    new.grad = torch.ones_like(new)
    both.step()
    assert torch.allclose(new, torch.tensor(0.99))  # Adam's first step is the learning rate; no weight decay in this group
    with pytest.raises(ValueError, match="does not hold"):
        swap_(both, nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2)))


def test_a_group_is_not_added_to_nobody() -> None:
    _, muon, adam = pair()
    both, new = Together([muon, adam]), nn.Parameter(torch.ones(3))
    with pytest.raises(TypeError, match=r"\.optimizers"):
        both.add_param_group({"params": [new]})
    adam.add_param_group({"params": [new], "lr": 0.5})
    assert holds(both, new)
    assert both.param_groups[-1]["lr"] == 0.5


def test_a_checkpoint_of_all_resumes_bit_for_bit() -> None:
    net, *several = pair()
    both = Together(several)
    train(net, both)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "both": both.state_dict()}, file)
    expected = train(net, both, seed=1)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other, *more = pair(seed=5)
    resumed = Together(more)
    other.load_state_dict(saved["net"])
    resumed.load_state_dict(saved["both"])
    assert train(other, resumed, seed=1) == expected
    assert same(values(net), values(other))


def test_a_checkpoint_that_does_not_fit_changes_nothing() -> None:
    net, muon, adam = pair()
    both = Together([muon, adam])
    train(net, both)
    saved = copy.deepcopy(both.state_dict())
    train(net, both)
    before = muon.state[net[0].weight]["momentum_buffer"].clone()
    with pytest.raises(ValueError, match="has 1 optimisers, not 2"):
        both.load_state_dict(adam.state_dict())
    saved["optimizers"][1]["param_groups"].pop()
    with pytest.raises(ValueError, match=r"1 \(AdamW\) has groups of \[2, 1\] parameters, the checkpoint of \[2\]"):
        both.load_state_dict(saved)
    assert torch.equal(muon.state[net[0].weight]["momentum_buffer"], before)


def test_one_optimiser_stays_itself_and_mistakes_are_named() -> None:
    net, muon, adam = pair()
    assert as_one(adam) is adam
    assert as_one([adam]) is adam
    assert isinstance(as_one((muon, adam)), Together)
    with pytest.raises(ValueError, match="hold the same parameter"):
        as_one([adam, SGD([net[0].bias], lr=0.1)])
    with pytest.raises(ValueError, match=r"optimizer=\[\]"):
        as_one([])
    with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer.*got (Sequential|str)"):
        as_one([adam, net])
    with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer.*got (Sequential|str)"):
        as_one("adam")


def test_fire_clears_through_it() -> None:
    net, muon, adam = pair()
    both = Together([muon, adam])
    train(net, both)
    rp.fire_(net, where="0", optimizer=both)
    assert not muon.state[net[0].weight]["momentum_buffer"].any()
    assert adam.state[net[2].weight]["exp_avg"].all()


def test_together_may_hold_together() -> None:
    net, muon, adam = pair()
    extra = nn.Parameter(torch.ones(2))
    nested = Together([Together([muon, adam]), Adam([extra])])
    train(net, nested)
    clear_state_(nested, net[0].weight)
    assert not muon.state[net[0].weight]["momentum_buffer"].any()
    nested.load_state_dict(copy.deepcopy(nested.state_dict()))
    assert len(nested.param_groups) == 4
