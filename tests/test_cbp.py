import importlib

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic.methods.cbp import CBP, contributions, least_useful, outgoing_magnitude
from replastic.models import MLP
from replastic.units import Tap, find_units
from tests.zoo import ZOO, ActorCritic


def learner_of(model: nn.Module, method: CBP, lr: float = 0.0) -> rp.Learner:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return rp.Learner(model, optimizer, methods=method, loss=nn.functional.cross_entropy)


def test_contribution_is_mean_activation_times_outgoing_weights() -> None:
    model = ZOO["cnn-bn"].build()
    inputs, _ = ZOO["cnn-bn"].batch()
    group = find_units(model).groups[0]
    with Tap(model, [group]) as tap:
        model(inputs)
    channels = nn.Sequential(*list(model)[:4])(
        inputs
    )  # conv, norm, relu, pool; its 3 x 3 positions are columns of the linear layer
    expected = (channels.abs().mean(0).flatten() * model[5].weight.abs().sum(0)).view(6, -1).sum(1)
    assert torch.allclose(contributions(model, [group], tap), expected, rtol=1e-5)


def test_a_column_counts_by_its_own_activation_and_its_own_weights() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(4, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2)[:, :, None, None])
        model[3].weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
    with Tap(model, find_units(model).groups) as tap:
        model(torch.tensor([[[[1.0, 0.0]], [[1.0, 0.0]]]]))  # where the second channel is active nothing reads it
    assert contributions(model, list(tap.groups.values()), tap).tolist() == [1, 0]


class Flat(nn.Module):
    """A convolution's channels, flattened in some way and read by one linear layer or two."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, columns = how, {"one position": 3, "adaptive": 12}.get(how, 27)
        self.conv, self.pool, self.small = nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(columns, 4)
        self.other = nn.Linear({"pooled apart": 3, "turned apart": 27}.get(how, columns), 2)

    def seen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What each head reads."""
        h = self.conv(x).relu()
        if self.how == "one position":
            h = h.mean((2, 3))
        elif self.how == "adaptive":
            h = self.small(h)
        elif self.how != "no pooling":
            h = self.pool(h)
        if self.how == "channels last":
            h = h.permute(0, 2, 3, 1)
        flat = h.flatten(1)
        if self.how == "turned apart":
            return flat, h.permute(0, 2, 3, 1).flatten(1)
        return flat, h.mean((2, 3)) if self.how == "pooled apart" else flat

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.seen(x)
        return self.head(first), self.other(second)

    def owner(self, columns: int) -> Tensor:
        """Whose each column of a head is."""
        per = columns // 3
        return torch.arange(3).repeat(per) if self.how == "channels last" else torch.arange(3).repeat_interleave(per)


@pytest.mark.parametrize(
    "how", ["no pooling", "pooled", "adaptive", "one position", "channels last", "pooled apart", "turned apart"]
)
def test_channels_are_found_in_the_columns_that_read_them(how: str) -> None:
    torch.manual_seed(0)
    model = Flat(how).double()
    x = torch.randn(5, 2, *([5, 5] if how == "no pooling" else [8, 8]), dtype=torch.float64)
    with Tap(model, find_units(model, x).groups) as tap:
        model(x)
    first, second = (seen.abs().mean(0) for seen in model.seen(x))
    weights = [head.weight.abs().sum(0) for head in (model.head, model.other)]
    expected = torch.zeros(3, dtype=torch.float64).index_add(0, model.owner(len(first)), first * weights[0])
    if how == "turned apart":  # its columns lie elsewhere: the mean of all of them stands for each
        owner = torch.arange(3).repeat(9)
        second = torch.zeros(3, dtype=torch.float64).index_add(0, model.owner(27), first / 9)[owner]
    else:
        owner = model.owner(len(second))
    expected = expected.index_add(0, owner, second * weights[1])
    (group,) = tap.groups.values()
    torch.testing.assert_close(contributions(model, [group], tap).double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["mlp", "resnet", "vit", "gpt", "simba"])
def test_units_of_one_column_have_the_product_of_two_numbers_bit_for_bit(name: str) -> None:
    model = ZOO[name].build()
    with Tap(model, find_units(model).groups) as tap:
        model(ZOO[name].batch()[0])
    for group in tap.groups.values():
        assert group.columns.shape[1] == 1
        (reader,) = group.readers
        view = reader.view(reader.tensor(model).detach())
        outgoing = torch.linalg.vector_norm(view, 1, list(range(reader.lead, view.ndim))).flatten()
        assert torch.equal(contributions(model, [group], tap), tap.mean_abs(group.name) * group.total(outgoing))


def test_outgoing_weights_of_all_readers_count() -> None:
    model = ActorCritic()
    expected = model.pi.weight.abs().sum(0) + model.v.weight.abs().sum(0)
    assert torch.allclose(outgoing_magnitude(model, find_units(model).groups[0])[:, 0], expected)


def test_the_lowest_utility_mature_units_are_chosen() -> None:
    utility, age = torch.tensor([5.0, 1.0, 2.0, 3.0]), torch.tensor([50, 3, 50, 50])
    assert least_useful(utility, age, 2, maturity=10, decay=0.99).tolist() == [2, 3]


def test_young_units_are_not_held_to_have_low_utility_because_they_are_young() -> None:
    # In every step of its life the old one contributed 0.5, the young one 1: its average has not come as far.
    age = torch.tensor([200, 20])
    utility = (1 - 0.99 ** age.float()) * torch.tensor([0.5, 1.0])
    assert utility[0] > utility[1]
    assert least_useful(utility, age, 1, maturity=10, decay=0.99).tolist() == [0]


@pytest.mark.slow
def test_units_are_replaced_at_the_stated_rate_over_ten_thousand_steps() -> None:
    rate, maturity, steps, sizes = 1e-3, 100, 10_000, [40, 20]
    model = MLP(3, sizes, 2)
    method = CBP(rate, maturity)
    learner = learner_of(model, method)
    tap = learner.tap()
    generator = torch.Generator().manual_seed(0)
    replaced, lowest = [0, 0], 0
    for _ in range(steps):
        for group, size in zip(learner.units.groups, sizes, strict=True):
            width = group.columns.numel()
            tap.inputs[group.name] = torch.rand(2, width, generator=generator)
            assert width == size
        ages = method.state["age"].clone()
        learner.after_step()
        young = method.state["age"] == 0
        assert (ages[young] + 1 > maturity).all()  # only mature units
        for number, part in enumerate(young.split(sizes)):
            replaced[number] += int(part.sum())
        lowest += int(young.any())
    for count, size in zip(replaced, sizes, strict=True):
        # A unit spends its first m steps safe: of n units, n - ρ·m·n/(1 + ρ·m) are mature at a time.
        mature = size / (1 + rate * maturity)
        assert count == pytest.approx(rate * mature * (steps - maturity), abs=size * rate * maturity + 2)
    assert lowest > 100
    assert method.state["mature"] == [int((part > maturity).sum()) for part in method.state["age"].split(sizes)]


def test_the_unit_of_least_utility_is_the_one_that_goes() -> None:
    model = MLP(3, [6], 2)
    method = CBP(rate=0.2, maturity=3)  # of six mature units 1.2 are due: one, in the first step in which they are mature
    learner = learner_of(model, method)
    tap = learner.tap()
    with torch.no_grad():
        model[3].weight.fill_(1)
    activations = torch.tensor([[6.0, 5.0, 1.0, 4.0, 3.0, 2.0]])
    for _ in range(4):
        tap.inputs["1"] = activations
        before = model[1].weight.clone()
        learner.after_step()
    changed = (model[1].weight != before).any(1).nonzero().flatten().tolist()
    assert changed == [2]
    assert model[3].weight[:, 2].eq(0).all()
    assert method.state["utility"][2] == 0
    assert method.state["age"].tolist() == [4, 4, 0, 4, 4, 4]


def test_utility_and_age_of_replaced_units_start_at_zero_and_moments_are_cleared() -> None:
    model = ZOO["nature-cnn"].build()
    optimizer = torch.optim.Adam(model.parameters())
    method = CBP(rate=0.2, maturity=1)
    learner = rp.Learner(model, optimizer, methods=method, build=ZOO["nature-cnn"].build, loss=nn.functional.cross_entropy)
    for seed in range(2):
        learner.step(*ZOO["nature-cnn"].batch(seed))
    new = method.state["age"] == 0
    assert new.any()
    assert method.state["utility"][new].eq(0).all()
    start = 0
    for group in learner.units.groups:
        chosen = new[start : start + group.size].nonzero().flatten()
        for slot in (*group.makers, *group.readers):
            view = slot.view(optimizer.state[slot.tensor(model)]["exp_avg"])
            for unit in chosen.tolist():
                at = (slot.units == unit).nonzero().flatten()
                assert view[at].eq(0).all()
        start += group.size


def test_bad_settings_say_what_is_expected() -> None:
    with pytest.raises(ValueError, match=r"CBP\(rate=2\): rate must be between 0 and 1"):
        CBP(2)
    with pytest.raises(ValueError, match="maturity must be a number of steps"):
        CBP(maturity=-1)


@pytest.mark.parametrize("method", [CBP(0.5, maturity=0), rp.ReDo(1e9, period=1), rp.SNR(0.5, longest=2, update_every=1)])
def test_resets_within_steps_do_not_look_for_sharded_weights_again(
    method: rp.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ZOO["mlp"].build()
    learner = rp.Learner(model, torch.optim.Adam(model.parameters()), methods=method, loss=nn.functional.cross_entropy)
    checked: list[nn.Module] = []
    resets: list[object] = []
    for place in ("learner.learner", "units.reset", "methods.redo"):
        monkeypatch.setattr(
            f"replastic.{place}.check_unsharded", lambda model, **options: checked.append(model), raising=False
        )
    for place in ("learner.learner", "methods.redo"):
        original = importlib.import_module("replastic.units.reset").reset_checked_
        monkeypatch.setattr(
            f"replastic.{place}.reset_checked_", lambda *a, original=original, **k: (resets.append(a), original(*a, **k))
        )
    for number in range(8):
        learner.step(*ZOO["mlp"].batch(number))
    assert resets
    assert not checked
