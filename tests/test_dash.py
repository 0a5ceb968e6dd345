import copy

import pytest
import torch
from torch import nn

import replastic as rp
from replastic.methods.dash import DASH, alignment, mean_descent, shrink_axes
from tests.zoo import ZOO


def test_a_two_by_two_case_by_hand() -> None:
    weight = torch.tensor([[3.0, 4.0], [1.0, 0.0]], dtype=torch.float64)
    direction = torch.tensor([[4.0, 3.0], [0.0, 2.0]], dtype=torch.float64)
    # cos of the first row: (12 + 12)/(5·5) = 0.96; the second row is at right angles, so the floor holds.
    assert torch.allclose(alignment(weight, direction, (1,), 0.3).flatten(), torch.tensor([0.96, 0.3], dtype=torch.float64))


def test_a_convolution_has_a_cosine_for_each_kernel_and_a_bias_one_for_all() -> None:
    axes = shrink_axes(ZOO["nature-cnn"].build())
    assert axes["conv1.weight"] == (2, 3)
    assert axes["head.0.weight"] == (1,)
    assert axes["conv1.bias"] == (0,)
    weight, direction = torch.randn(5, 4, 3, 3), torch.randn(5, 4, 3, 3)
    scales = alignment(weight, direction, (2, 3), 0.1)
    assert scales.shape == (5, 4, 1, 1)
    expected = torch.cosine_similarity(weight[2, 1].flatten(), direction[2, 1].flatten(), dim=0).clamp(0.1, 1)
    assert torch.allclose(scales[2, 1].squeeze(), expected)


def test_a_one_by_one_convolution_is_kept_or_shrunk_to_the_floor() -> None:
    scales = alignment(torch.randn(6, 5, 1, 1), torch.randn(6, 5, 1, 1), (2, 3), 0.3)
    assert set(scales.flatten().mul(1000).round().int().tolist()) == {300, 1000}


def test_the_average_is_of_negative_gradients_newest_with_weight_alpha() -> None:
    model = ZOO["mlp"].build().double()
    batches = [(inputs.double(), targets) for inputs, targets in (ZOO["mlp"].batch(seed) for seed in range(3))]

    def loss(batch: rp.Batch) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets)

    found = mean_descent(model, dict(model.named_parameters()), batches, loss, alpha=0.3)
    expected = torch.zeros_like(model[1].weight)
    for inputs, targets in batches:
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(inputs), targets), [model[1].weight])
        expected = 0.7 * expected - 0.3 * gradient
    assert torch.allclose(found["1.weight"], expected)


def boundary(name: str, method: DASH, batches=None) -> tuple[nn.Module, nn.Module, rp.Learner]:
    animal = ZOO[name]
    model = animal.build()
    before = copy.deepcopy(model)
    learner = rp.Learner(model, torch.optim.Adam(model.parameters()), methods=method, loss=animal.loss)
    task = rp.Task("next", batches or (lambda generator: [animal.batch(seed) for seed in range(3)]), animal.loss)
    learner.begin(task), learner.begin(task)
    return before, model, learner


def test_rows_are_shrunk_and_norms_and_statistics_are_not_touched() -> None:
    before, model, _ = boundary("cnn-bn", DASH(floor=0.05))
    for name, tensor in before.state_dict().items():
        if "0.weight" in name or name.startswith(("5.", "7.")):
            assert model.state_dict()[name].norm() < tensor.norm()
        else:
            assert torch.equal(model.state_dict()[name], tensor)
    scales = model[5].weight / before[5].weight
    assert torch.allclose(scales, scales[:, :1].expand_as(scales), rtol=1e-4)


def test_no_gradient_is_left_behind_and_the_mode_stays() -> None:
    animal = ZOO["cnn-bn"]
    model = animal.build().eval()
    learner = rp.Learner(model, torch.optim.Adam(model.parameters()), methods=DASH())
    task = rp.Task("next", lambda generator: [animal.batch()], animal.loss)
    learner.begin(task), learner.begin(task)
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_parts_that_are_held_in_evaluation_stay_so_during_the_pass_and_after_it() -> None:
    animal = ZOO["cnn-bn"]
    model = animal.build()
    model[1].eval()
    learner = rp.Learner(model, torch.optim.Adam(model.parameters()), methods=DASH())
    modes = []
    model[1].register_forward_hook(lambda module, args, output: modes.append(module.training))
    task = rp.Task("next", lambda generator: [animal.batch()], animal.loss)
    learner.begin(task), learner.begin(task)
    assert modes == [False]
    assert [module.training for module in model] == [True, False, *[True] * (len(model) - 2)]


def test_dropout_in_the_pass_does_not_move_the_random_state() -> None:
    model = nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.5), nn.Linear(12, 4))
    learner = rp.Learner(model, torch.optim.Adam(model.parameters()), methods=DASH())
    task = rp.Task("next", lambda generator: [ZOO["mlp"].batch()], nn.functional.cross_entropy)
    rng = torch.get_rng_state()
    learner.begin(task), learner.begin(task)
    assert torch.equal(torch.get_rng_state(), rng)


def test_an_optimiser_that_cannot_be_cleared_is_found_out_before_weights_are_written() -> None:
    model = ZOO["mlp"].build()
    adam = torch.optim.Adam(model.parameters())
    learner = rp.Learner(model, adam, methods=DASH(clear_state=True))
    task = rp.Task("next", lambda generator: [ZOO["mlp"].batch()], nn.functional.cross_entropy)
    learner.begin(task)
    learner.step(*ZOO["mlp"].batch())
    adam.state[model[5].weight]["strange"] = torch.ones(4)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TypeError, match="strange"):
        learner.begin(task)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_the_order_of_training_is_not_disturbed() -> None:
    drawn: list[torch.Generator] = []

    def batches(generator: torch.Generator) -> list:
        drawn.append(generator)
        return [ZOO["mlp"].batch(int(torch.randint(9, (), generator=generator)))]

    rng = torch.get_rng_state()
    _, _, learner = boundary("mlp", DASH(), batches)
    assert drawn[0] is not learner.generator
    torch.manual_seed(0)
    assert torch.equal(rng, torch.get_rng_state())


def test_a_task_without_batches_and_no_task_are_errors_that_change_nothing() -> None:
    model = ZOO["mlp"].build()
    learner = rp.Learner(model, torch.optim.Adam(model.parameters()), methods=DASH())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"rp\.Task"):
        learner.begin()
    learner.begin(rp.Task("first", lambda generator: [], nn.functional.cross_entropy))
    with pytest.raises(ValueError, match=r"batches\(generator\) yielded"):
        learner.begin(rp.Task("empty", lambda generator: [], nn.functional.cross_entropy))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_bad_settings_say_what_is_expected() -> None:
    with pytest.raises(ValueError, match="alpha must be above 0"):
        DASH(alpha=0)
    with pytest.raises(ValueError, match="floor must be between 0 and 1"):
        DASH(floor=1.5)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        (torch.float32, 1e38),
        (torch.float32, 1e-30),
        (torch.float64, 1e300),
        (torch.float64, 1e-300),
        (torch.bfloat16, 2.0**124),
    ],
)
def test_cosines_do_not_depend_on_the_scale(dtype: torch.dtype, scale: float) -> None:
    weight, direction = torch.randn(2, 20, 30).clamp(-3, 3).to(dtype).unbind()
    expected = alignment(weight, direction, (1,), 0.0)
    assert expected.count_nonzero() > 5
    found = alignment(weight * scale, direction * scale, (1,), 0.0)
    assert torch.allclose(found, expected, rtol=1e-5 if dtype != torch.bfloat16 else 2e-2, atol=1e-6)
    mixed = alignment(weight * scale, direction, (1,), 0.0)
    assert torch.allclose(mixed, expected, rtol=1e-5 if dtype != torch.bfloat16 else 2e-2, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [(0.02, 1e-6), (300.0, 300.0)])
def test_cosines_in_half_precision_are_those_of_float32(dtype: torch.dtype, size: tuple[float, float]) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 256, generator=generator)
    direction = weight + torch.randn(4, 256, generator=generator)
    weight, direction = (weight * size[0]).to(dtype), (direction * size[1]).to(dtype)
    found = alignment(weight, direction, (1,), 0.0)
    assert found.dtype == dtype
    assert torch.allclose(found.float(), alignment(weight.float(), direction.float(), (1,), 0.0), atol=4e-3)
