import pytest
import torch
from torch import nn

import replastic as rp
from replastic.methods.hare_and_tortoise import HareAndTortoise, follow_
from tests.steps import finite, learner_of, moved, same, stopped_and_resumed, take_steps, trained, weights
from tests.zoo import ZOO


def test_the_tortoise_is_the_running_average_of_parameters_and_float_buffers() -> None:
    learner = learner_of("cnn-bn", lambda: HareAndTortoise(decay=0.9, period=100))
    average = {name: tensor.double() for name, tensor in weights(learner).items()}
    for step in range(5):
        take_steps(learner, "cnn-bn", 1, start=step)
        for name, tensor in weights(learner).items():
            average[name] = 0.9 * average[name] + 0.1 * tensor if tensor.is_floating_point() else tensor
    tortoise = learner.evaluated()["tortoise"].state_dict()
    assert tortoise["1.num_batches_tracked"] == 5
    for name, tensor in tortoise.items():
        torch.testing.assert_close(tensor.double(), average[name].double(), rtol=1e-5, atol=1e-7)
    assert not torch.allclose(tortoise["0.weight"], learner.first("0.weight"))


def test_the_hare_is_set_back_every_period_and_keeps_a_copy() -> None:
    def hare_and_tortoise(steps: int) -> tuple[dict, dict]:
        learner = take_steps(learner_of("cnn-bn", lambda: HareAndTortoise(0.9, period=3)), "cnn-bn", steps)
        return weights(learner), learner.evaluated()["tortoise"].state_dict()

    for steps in (3, 6):
        assert same(*hare_and_tortoise(steps))
    for steps in (2, 4, 5):
        assert not same(*hare_and_tortoise(steps))  # if memory were shared, they would be one


def test_the_optimisers_state_and_the_weights_storage_are_kept() -> None:
    learner = learner_of("mlp", lambda: HareAndTortoise(0.9, period=2))
    storage = [parameter.data_ptr() for parameter in learner.model.parameters()]
    twin = take_steps(learner_of("mlp", list), "mlp", 2)
    take_steps(learner, "mlp", 2)
    assert storage == [parameter.data_ptr() for parameter in learner.model.parameters()]
    momenta, others = (list(of.optimizer.state.values()) for of in (learner, twin))
    assert all(torch.equal(mine["exp_avg"], theirs["exp_avg"]) for mine, theirs in zip(momenta, others, strict=True))
    assert momenta[0]["step"] == 2


def test_until_the_first_reset_the_hare_trains_as_if_alone() -> None:
    assert same(trained("cnn-bn", list, 4), trained("cnn-bn", lambda: HareAndTortoise(period=5), 4))
    assert not same(trained("cnn-bn", list, 5), trained("cnn-bn", lambda: HareAndTortoise(period=5), 5))


def test_evaluated_networks_are_the_tortoise_first_and_in_the_models_mode() -> None:
    learner = take_steps(learner_of("cnn-bn", lambda: HareAndTortoise(0.5)), "cnn-bn", 2)
    learner.model.eval()
    networks = learner.evaluated()
    assert list(networks) == ["tortoise", "hare"]
    assert networks["hare"] is learner.model
    assert not networks["tortoise"].training
    inputs, _ = ZOO["cnn-bn"].batch()
    assert not torch.equal(networks["tortoise"](inputs), networks["hare"](inputs))
    learner.model.train()
    before = {name: tensor.clone() for name, tensor in networks["tortoise"].state_dict().items()}
    take_steps(learner, "cnn-bn", 2)
    assert same(before, dict(networks["tortoise"].state_dict()))
    assert learner.evaluated()["tortoise"].training


def test_a_tied_tensor_is_averaged_once_and_stays_tied() -> None:
    learner = take_steps(learner_of("gpt", lambda: HareAndTortoise(0.9, period=2)), "gpt", 3)
    tortoise = learner.evaluated()["tortoise"]
    assert tortoise.lm_head.weight is tortoise.wte.weight
    assert [name for name in learner.methods[0].state["tortoise"] if name in ("wte.weight", "lm_head.weight")] == [
        "wte.weight"
    ]


class Counter(nn.Module):
    """A layer that puts a new tensor in its buffer's place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = self.mean + 1
        return self.linear(x)


def test_a_buffer_that_is_replaced_is_still_followed() -> None:
    model = Counter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = rp.Learner(model, optimizer, methods=HareAndTortoise(0.5, period=2), loss=nn.functional.mse_loss)
    learner.step(torch.ones(1, 2), torch.zeros(1, 2))
    learner.step(torch.ones(1, 2), torch.zeros(1, 2))
    assert model.mean.tolist() == [1.25, 1.25]  # 0.5·(0.5·0 + 0.5·1) + 0.5·2


def test_what_another_method_adds_to_the_model_joins_the_tortoise() -> None:
    learner = learner_of("mlp", lambda: HareAndTortoise(0.5))
    learner.model.append(nn.Linear(4, 4))
    learner.optimizer.add_param_group({"params": list(learner.model[-1].parameters())})
    learner.model_changed()
    start = learner.model[-1].weight.detach().clone()
    take_steps(learner, "mlp", 1)
    tortoise = learner.evaluated()["tortoise"]
    torch.testing.assert_close(tortoise[-1].weight, learner.model[-1].weight)  # where the hare was when it was first seen
    take_steps(learner, "mlp", 1)
    assert not torch.allclose(learner.evaluated()["tortoise"][-1].weight, learner.model[-1].weight)
    assert not torch.allclose(learner.model[-1].weight, start)


@pytest.mark.parametrize("animal", ["cnn-bn", "gpt"])
@pytest.mark.parametrize("before", [2, 3, 4])
def test_a_resumed_run_is_the_uninterrupted_one(animal: str, before: int) -> None:
    def make() -> rp.Method:
        return HareAndTortoise(0.9, period=3)

    resumed = stopped_and_resumed(animal, make, before=before, after=7 - before)
    straight = take_steps(learner_of(animal, make), animal, 7)
    assert same(weights(resumed), weights(straight))
    assert same(dict(resumed.evaluated()["tortoise"].state_dict()), dict(straight.evaluated()["tortoise"].state_dict()))


@pytest.mark.parametrize("animal", ZOO)
def test_it_trains_every_model_of_the_zoo(animal: str) -> None:
    held = trained(animal, lambda: HareAndTortoise(0.9, period=2))
    assert finite(held)
    assert not same(trained(animal, list), held)


def test_decay_zero_is_the_hare_itself() -> None:
    learner = take_steps(learner_of("cnn-bn", lambda: HareAndTortoise(0.0)), "cnn-bn", 2)
    assert same(weights(learner), dict(learner.evaluated()["tortoise"].state_dict()))
    slow = [torch.zeros(3), torch.tensor(1)]
    follow_(slow, [torch.ones(3), torch.tensor(5)], 1.0)
    assert slow[0].tolist() == [0, 0, 0]
    assert slow[1] == 5


def test_moving_the_model_by_hand_moves_the_average_with_it() -> None:
    learner = learner_of("mlp", lambda: HareAndTortoise(0.5))
    first = weights(learner)
    moved(learner.model, by=1.0)
    learner.after_step()
    for name, tensor in learner.evaluated()["tortoise"].state_dict().items():
        torch.testing.assert_close(tensor, (first[name] + weights(learner)[name]) / 2)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"decay": 1.5}, "decay must be at least 0 and below 1"),
        ({"period": 0}, "period must be a number of steps, 1 or more"),
    ],
)
def test_wrong_input_says_what_was_expected(given: dict, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        HareAndTortoise(**given)
