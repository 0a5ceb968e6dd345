import pytest
import torch
from torch import nn

import replastic as rp
from replastic.methods.muon import Muon, UseMuon, hidden_matrices, muon, orthogonalised
from replastic.models import MLP, ResNet
from tests.zoo import ZOO


@pytest.mark.parametrize("shape", [(16, 16), (32, 8), (8, 32)])
def test_a_matrix_is_updated_as_by_torchs_own(shape: tuple[int, int]) -> None:
    start, gradients = torch.randn(shape), [torch.randn(shape) for _ in range(4)]
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    ours = Muon([mine], lr=0.1, weight_decay=0.01)
    torchs = torch.optim.Muon([theirs], lr=0.1, momentum=0.95, weight_decay=0.01, nesterov=True, adjust_lr_fn="original")
    for gradient in gradients:
        mine.grad, theirs.grad = gradient.clone(), gradient.clone()
        ours.step(), torchs.step()
    moved = (theirs - start).norm()
    assert (mine - theirs).norm() < 0.03 * moved  # torch iterates in bfloat16


def test_singular_values_of_an_update_are_near_one() -> None:
    values = torch.linalg.svdvals(orthogonalised(torch.randn(24, 60)))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_a_convolution_is_one_matrix_out_by_in_times_kernel() -> None:
    weight = nn.Parameter(torch.randn(6, 4, 3, 3))
    flat = nn.Parameter(weight.detach().flatten(1).clone())
    gradient = torch.randn_like(weight)
    weight.grad, flat.grad = gradient, gradient.flatten(1)
    Muon([weight]).step(), Muon([flat]).step()
    assert torch.allclose(weight.flatten(1), flat, atol=1e-6)


def test_hidden_matrices_are_those_between_input_and_output() -> None:
    assert hidden_matrices(MLP(6, [12, 10], 4)) == ["3.weight"]
    resnet = hidden_matrices(ResNet(widths=[4, 8], blocks=[1, 1], hidden=[8]))
    assert "stem.0.weight" not in resnet
    assert "head.3.weight" not in resnet
    assert {"blocks.0.conv1.weight", "blocks.1.shortcut.0.weight", "head.1.weight"} <= set(resnet)
    assert "blocks.0.c_attn.weight" in hidden_matrices(ZOO["gpt"].build())  # its input layer is the embedding
    assert "lm_head.weight" not in hidden_matrices(ZOO["gpt"].build())


@pytest.mark.parametrize("name", ZOO)
def test_every_parameter_is_trained_by_one_of_the_two(name: str) -> None:
    model = ZOO[name].build()
    held = [id(p) for group in muon(model).param_groups for p in group["params"]]
    assert sorted(held) == sorted({id(parameter) for parameter in model.parameters()})


def test_the_published_rates() -> None:
    groups = muon(MLP(6, [12, 10], 4)).param_groups
    assert [group["lr"] for group in groups] == [1e-2, 1e-3]
    assert groups[1]["betas"] == (0.9, 0.95)
    assert [group["weight_decay"] for group in groups] == [0, 0]


def test_as_a_method_it_takes_over_from_its_first_task_on() -> None:
    model = MLP(6, [12, 10], 4)
    learner = rp.Learner(
        model, torch.optim.Adam(model.parameters()), methods=UseMuon(from_task=1), loss=nn.functional.cross_entropy
    )
    learner.begin()
    assert isinstance(learner.optimizer, torch.optim.Adam)
    learner.begin()
    before = model[3].weight.clone()
    learner.step(*ZOO["mlp"].batch())
    values = torch.linalg.svdvals((model[3].weight - before) / 1e-2)
    assert values[:8].min() > 0.6  # an orthogonalised step, of the rank that a batch of eight gives


def test_a_run_that_changed_to_muon_can_be_resumed() -> None:
    def started() -> rp.Learner:
        torch.manual_seed(0)
        model = MLP(6, [12, 10], 4)
        adam = torch.optim.Adam(model.parameters())
        return rp.Learner(model, adam, methods=UseMuon(from_task=1), loss=nn.functional.cross_entropy)

    whole = started()
    for seed in range(4):
        if seed % 2 == 0:
            whole.begin()
        whole.step(*ZOO["mlp"].batch(seed))
    resumed = started()
    resumed.load_state_dict(whole.state_dict())
    for learner in (whole, resumed):
        learner.step(*ZOO["mlp"].batch(9))
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))


def test_the_optimiser_it_replaced_says_so_when_it_is_stepped() -> None:
    model = MLP(6, [12, 10], 4)
    adam = torch.optim.Adam(model.parameters())
    learner = rp.Learner(model, adam, methods=UseMuon())
    with pytest.raises(RuntimeError, match=r"call learner\.optimizer\.step\(\)"):
        adam.step()
    learner.optimizer.step()


def test_it_trains_what_the_optimiser_before_it_trained() -> None:
    model = MLP(6, [12, 10], 4)
    learner = rp.Learner(model, torch.optim.Adam(model[3].parameters()), methods=UseMuon(), loss=nn.functional.cross_entropy)
    before = model[1].weight.clone()
    learner.step(*ZOO["mlp"].batch())
    assert torch.equal(model[1].weight, before)
    assert len(learner.optimizer.param_groups[0]["params"]) == 1


def test_bad_input_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="two or more axes"):
        Muon([nn.Parameter(torch.zeros(3))])
    with pytest.raises(ValueError, match="use AdamW"):
        muon(nn.Linear(3, 2))
    with pytest.raises(ValueError, match="'nope'"):
        muon(MLP(6, [12, 10], 4), adam_only=["nope"])
    with pytest.raises(ValueError, match="momentum must be"):
        UseMuon(momentum=1.0)


def test_a_rate_that_is_a_tensor_does_what_a_number_does() -> None:
    """As a captured step needs it: nothing is read from the device."""
    torch.manual_seed(0)
    first, second = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.empty(6, 4))
    second.data.copy_(first)
    number = Muon([first], lr=0.01, weight_decay=0.1)
    tensor = Muon([second], lr=torch.tensor(0.01), weight_decay=0.1, capturable=True)
    for _ in range(3):
        first.grad = torch.randn(6, 4)
        second.grad = first.grad.clone()
        number.step()
        tensor.step()
    assert torch.allclose(first, second)
    with pytest.raises(ValueError, match="capturable=True"):
        Muon([first], lr=0.01, capturable=True)


@pytest.mark.parametrize("frozen", ["0", "6"])
def test_hidden_layers_stay_hidden_when_the_first_or_the_last_is_frozen(frozen: str) -> None:
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(4, 4), nn.ReLU())), nn.Linear(4, 2))
    model.get_submodule(frozen).requires_grad_(False)
    matrices, rest = (group["params"] for group in muon(model).param_groups)
    assert [id(matrix) for matrix in matrices] == [id(model[2].weight), id(model[4].weight)]
    assert all(parameter.requires_grad for parameter in rest)


def test_an_update_from_a_huge_gradient_is_finite() -> None:
    matrix = torch.randn(6, 5, dtype=torch.float64)
    assert orthogonalised(matrix * 1e200).isfinite().all()
    assert orthogonalised(matrix.float() * 1e30).isfinite().all()
