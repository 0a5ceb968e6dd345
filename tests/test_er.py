import copy

import pytest
import torch
from torch import nn

import replastic as rp
from replastic.linalg.effective_rank import effective_rank
from replastic.methods.er import ER, l2_er
from replastic.methods.l2 import L2
from replastic.models import CNN, MLP
from tests.zoo import ZOO


def learner_of(model: nn.Module, methods, lr: float = 0.0) -> rp.Learner:
    return rp.Learner(model, torch.optim.SGD(model.parameters(), lr=lr), methods=methods, loss=nn.functional.cross_entropy)


def test_one_step_is_plain_gradient_ascent_on_the_mean_rank_of_all_the_batches() -> None:
    model = MLP(6, [12, 10], 4).double()
    reference = copy.deepcopy(model)
    learner = learner_of(model, ER(rate=0.1, every=2))
    batches = [ZOO["mlp"].batch(seed) for seed in range(2)]
    for inputs, targets in batches:
        learner.step(inputs.double(), targets)
    inputs = torch.cat([inputs for inputs, _ in batches]).double()
    first = torch.relu(reference[1](inputs))
    second = torch.relu(reference[3](first))
    mean = (effective_rank(first) + effective_rank(second)) / 2
    mean.backward()
    for name, parameter in reference.named_parameters():
        if name.startswith("5"):
            assert parameter.grad is None  # the output layer has no part in it
            assert torch.equal(model.get_parameter(name), parameter)
        else:
            assert torch.allclose(model.get_parameter(name), parameter + 0.1 * parameter.grad, rtol=1e-10)


@pytest.mark.parametrize("methods", [lambda: ER(0.05, every=2), lambda: l2_er(0.05, 1e-3, every=2)])
def test_the_measured_rank_rises(methods) -> None:
    def rank(with_methods: list) -> float:
        torch.manual_seed(0)
        model = MLP(16, [32, 32], 4)
        generator = torch.Generator().manual_seed(1)
        learner = learner_of(model, with_methods, lr=0.05)
        for _ in range(100):
            inputs = torch.randn(16, 16, generator=generator)
            learner.step(inputs, torch.randint(4, (16,), generator=generator))
        probe = torch.randn(128, 16, generator=generator)
        with torch.no_grad():
            return effective_rank(nn.Sequential(*list(model)[:5])(probe)).item()

    assert rank(methods()) > rank([]) + 1


def test_which_layers_is_an_argument() -> None:
    model = CNN(3, 8, 4, convolutions=1, kernel=3, channels=4, hidden=[12, 10, 8])
    tapped = {}
    for layers in ("all", 2, ["0"]):
        method = ER(layers=layers)
        learner_of(copy.deepcopy(model), method)
        tapped[str(layers)] = list(method._tap.groups)
    assert tapped == {"all": ["4", "6", "8"], "2": ["6", "8"], "['0']": ["0"]}
    with pytest.raises(ValueError, match=r"layers=\['9'\].*0, 4, 6, 8"):
        learner_of(copy.deepcopy(model), ER(layers=["9"]))


def test_a_network_without_dense_hidden_layers_is_an_error() -> None:
    model = CNN(3, 8, 4, convolutions=1, kernel=3, hidden=[])
    with pytest.raises(ValueError, match=r"ER\(layers="):
        learner_of(model, ER())


def test_running_statistics_and_taps_are_left_alone() -> None:
    model = ZOO["cnn-bn"].build()
    plain = copy.deepcopy(model)
    learner, other = learner_of(model, ER(rate=0.0, every=1)), learner_of(plain, [])
    inputs, targets = ZOO["cnn-bn"].batch()
    learner.step(inputs, targets), other.step(inputs, targets)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), plain.buffers(), strict=True))
    assert learner.taps is None
    assert model[0].weight.grad is not None


def test_its_passes_leave_no_trace_in_taps_and_random_state() -> None:
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 4))
    learner = learner_of(model, ER(every=2))
    tap = learner.tap()
    inputs, targets = ZOO["mlp"].batch()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    seen, rng = tap.activations("0").clone(), torch.get_rng_state()
    learner.methods[0].state["inputs"] = [torch.zeros(3, 6)]
    learner.batch = rp.Batch(inputs, targets)
    learner.methods[0].after_step(learner)
    assert torch.equal(tap.activations("0"), seen)
    assert torch.equal(torch.get_rng_state(), rng)


def test_its_passes_are_in_the_precision_of_training() -> None:
    seen = []
    model = MLP(6, [12, 10], 4)
    model.register_forward_hook(lambda module, inputs, outputs: seen.append(outputs.dtype))
    learner = rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.0), methods=[ER(rate=1e-2, every=1)])
    learner.precision = lambda: torch.autocast("cpu", torch.bfloat16)
    before = [parameter.clone() for parameter in model.parameters()]
    learner.after_step((torch.randn(8, 6), torch.randint(4, (8,))))
    assert seen == [torch.bfloat16]
    moved = [not torch.equal(was, is_) for was, is_ in zip(before, model.parameters(), strict=True)]
    assert any(moved)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_what_was_gathered_in_one_task_is_not_used_in_the_next() -> None:
    learner = learner_of(MLP(6, [12], 4), ER(every=3))
    learner.begin()
    learner.step(*ZOO["mlp"].batch())
    learner.begin()
    assert learner.methods[0].state["inputs"] == []


def test_samples_of_two_shapes_are_an_error_that_says_what_to_do() -> None:
    learner = learner_of(MLP(6, [12], 4), ER(every=3))
    learner.step(*ZOO["mlp"].batch())
    with pytest.raises(ValueError, match=r"shapes \(6,\) and \(5,\).*every=1"):
        learner.after_step((torch.zeros(2, 5), None))


def test_the_optimisers_momentum_does_not_see_the_step() -> None:
    model = MLP(6, [12], 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    learner = rp.Learner(model, optimizer, methods=ER(1.0, every=1), loss=nn.functional.cross_entropy)
    plain = copy.deepcopy(model)
    other = torch.optim.SGD(plain.parameters(), lr=0.0, momentum=0.9)
    inputs, targets = ZOO["mlp"].batch()
    learner.step(inputs, targets)
    nn.functional.cross_entropy(plain(inputs), targets).backward()
    other.step()
    assert not torch.equal(model[1].weight, plain[1].weight)
    assert torch.equal(optimizer.state[model[1].weight]["momentum_buffer"], other.state[plain[1].weight]["momentum_buffer"])


def test_l2_er_is_the_two_under_one_name() -> None:
    made = l2_er(rate=1e-4, strength=1e-2, every=12, layers=2, from_task=1)
    assert made == [ER(1e-4, 12, 2, from_task=1), L2(1e-2, from_task=1)]


def test_a_loop_that_does_not_say_its_batch_is_told_how() -> None:
    learner = learner_of(MLP(6, [12], 4), ER())
    with pytest.raises(TypeError, match=r"learner\.after_step\(\(inputs, targets\)\)"):
        learner.after_step()
