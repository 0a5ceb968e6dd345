import pytest
import torch
from torch import nn

import replastic as rp
from replastic.methods.normalize_and_project import NormalizeAndProject, project_norms_
from tests.steps import finite, learner_of, moved, same, stopped_and_resumed, take_steps, trained, weights
from tests.zoo import ZOO


def test_every_weight_gets_its_first_norm_and_keeps_its_direction(device: torch.device) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4)).double().to(device)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=NormalizeAndProject())
    moved(model)
    before = weights(learner)
    learner.after_step()
    for name, now in weights(learner).items():
        if name in ("0.weight", "3.weight"):
            wanted = before[name] * (learner.first(name).norm() / before[name].norm())
            torch.testing.assert_close(now, wanted, rtol=1e-13, atol=0)
            assert not torch.allclose(now, before[name], rtol=1e-3)
        else:
            assert torch.equal(now, before[name])


def test_the_parts_of_a_fused_projection_keep_a_norm_each() -> None:
    learner = learner_of("gpt", NormalizeAndProject)
    name = "blocks.0.c_attn.weight"
    with torch.no_grad():
        learner.parameters[name].chunk(3)[0].mul_(5)
    learner.after_step()
    torch.testing.assert_close(weights(learner)[name], learner.first(name), rtol=1e-5, atol=1e-7)


def test_norms_stay_as_they_were_through_training() -> None:
    def drift(learner: rp.Learner) -> float:
        chosen = rp.select(learner.model).chosen
        ratios = [weight.parameter.norm() / learner.first(weight.name).norm() for weight in chosen]
        return max(abs(ratio.item() - 1) for ratio in ratios)

    assert drift(take_steps(learner_of("simba", NormalizeAndProject), "simba", 20)) < 1e-5
    assert drift(take_steps(learner_of("simba", list), "simba", 20)) > 0.05


def test_a_weight_that_is_or_was_zero_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3), nn.Linear(3, 2))
    nn.init.zeros_(model[3].weight)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=NormalizeAndProject())
    with torch.no_grad():
        model[0].weight.mul_(2)
        model[2].weight.zero_()
        model[3].weight.fill_(7)
    learner.after_step()
    torch.testing.assert_close(model[0].weight.detach(), learner.first("0.weight"))
    assert not model[2].weight.any()
    assert (model[3].weight == 7).all()


def test_where_leaves_the_rest_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    learner = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=NormalizeAndProject(where="0"))
    moved(model)
    head = model[2].weight.detach().clone()
    learner.after_step()
    assert model[0].weight.norm().item() == pytest.approx(learner.first("0.weight").norm().item())
    assert torch.equal(model[2].weight, head)


def test_a_model_without_norms_is_an_error_that_says_what_to_do() -> None:
    for animal in ("mlp", "nature-cnn"):
        with pytest.raises(ValueError, match=r"this one has none.*Put one before each nonlinearity"):
            learner_of(animal, NormalizeAndProject)
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 2))
    with pytest.raises(ValueError, match="this one has none"):
        rp.Learner(model, torch.optim.SGD(model.parameters()), methods=NormalizeAndProject())


def test_a_resumed_run_keeps_the_norms_of_the_run_that_was_stopped() -> None:
    resumed = stopped_and_resumed("resnet", NormalizeAndProject, before=3, after=3)
    assert same(weights(resumed), trained("resnet", NormalizeAndProject, steps=6))


@pytest.mark.parametrize("animal", [animal for animal in ZOO if animal not in ("mlp", "nature-cnn")])
def test_it_trains_every_model_of_the_zoo_that_has_norms(animal: str) -> None:
    held = trained(animal, NormalizeAndProject)
    assert finite(held)
    assert not same(trained(animal, list), held)


def test_wrong_input_says_what_was_expected() -> None:
    with pytest.raises(ValueError, match="one norm for each weight"):
        project_norms_([torch.ones(2, 2)], torch.ones(2))


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float32, 1e20), (torch.float32, 1e-30), (torch.float32, 1e-38), (torch.float64, 1e300), (torch.float64, 1e-300)],
)
def test_weights_whose_squares_are_beyond_the_dtype_are_left_unchanged(dtype: torch.dtype, scale: float) -> None:
    weight = torch.randn(30, 30, dtype=dtype) * scale
    before = weight.clone()
    project_norms_([weight], torch.tensor([7.0], dtype=dtype))
    assert torch.equal(weight, before)


def test_a_weight_whose_norm_no_number_holds_stays() -> None:
    huge = torch.full((30, 30), 1e38)
    project_norms_([huge], torch.tensor([7.0]))
    assert torch.equal(huge, torch.full((30, 30), 1e38))
    project_norms_([weight := torch.full((3, 3), 1e20)], torch.tensor([1e-30]))
    assert torch.equal(weight, torch.full((3, 3), 1e20))
