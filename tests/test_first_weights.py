"""Where remedies take first weights from, and what `remember` leaves behind: nothing but the copy."""

import copy
import gc
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic.methods.first_weights import _REMEMBERED
from tests.zoo import ZOO


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4))


def moved(model: nn.Module, by: float = 1.0) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)
    return model


def copied(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


def same(model: nn.Module, values: Any) -> bool:
    return all(torch.equal(one, values[name]) for name, one in model.state_dict().items())


def test_what_is_passed_comes_before_what_was_remembered_and_that_before_a_draw() -> None:
    model = net()
    drawn = rp.reset_(copy.deepcopy(model))
    assert drawn.source == "drawn again with seed 0, because nothing was remembered"
    first = copied(model)
    rp.remember(model)
    moved(model)
    passed = copied(net())
    assert rp.reset_(model, passed).source == "the weights that were passed"
    assert same(model, passed)
    report = rp.reset_(model)
    assert report.source == "the weights that were remembered"
    assert same(model, first)
    assert f"first weights: {report.source}" in str(report)


def test_a_draw_follows_each_layers_own_law_and_its_seed() -> None:
    random = torch.get_rng_state()
    one, other, third = (moved(net()) for _ in range(3))
    torch.set_rng_state(random)
    rp.reset_(one, seed=5), rp.reset_(other, seed=5), rp.reset_(third, seed=6)
    assert torch.equal(torch.get_rng_state(), random)
    assert same(one, other.state_dict())
    assert not torch.equal(one[0].weight, third[0].weight)
    bound = 1 / 6**0.5  # of nn.Linear's uniform law
    assert bound * 0.9 < one[0].weight.abs().max() <= bound
    assert one[1].weight.eq(1).all()
    assert one[1].bias.eq(0).all()


def test_a_generator_is_advanced_and_two_of_one_seed_draw_alike() -> None:
    first, second = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    one, other = net(), net()
    rp.reset_(one, seed=first), rp.reset_(other, seed=second)
    assert same(one, other.state_dict())
    before = copied(one)
    rp.reset_(one, seed=first)
    assert not torch.equal(one[0].weight, before["0.weight"])


def test_only_the_parameters_that_are_written_need_a_law() -> None:
    model = ZOO["vit"].build()
    with pytest.raises(ValueError, match=r"cls_token, positions.*initial=first.*rp\.remember\(model\)"):
        rp.reset_(model)
    assert rp.reset_(model, where="head").names == ("head.weight", "head.bias")
    assert "patches.weight" in rp.restore_norms_(model).names
    rp.remember(model)
    first = copied(model)
    rp.reset_(moved(model))
    assert same(model, first)


def test_a_tied_head_is_drawn_under_its_second_name_too() -> None:
    model = ZOO["gpt"].build()
    before = model.wte.weight.clone()
    rp.reset_(model, where="paper_gpt")
    assert not torch.equal(model.wte.weight, before)


def test_remembering_leaves_no_trace_in_the_model() -> None:
    model = net()
    keys, attributes = list(model.state_dict()), set(vars(model))
    size = len(pickle.dumps(model))
    rp.remember(model)
    assert list(model.state_dict()) == keys
    assert set(vars(model)) == attributes
    assert len(pickle.dumps(model)) == size
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert rp.reset_(twin).source == "drawn again with seed 0, because nothing was remembered"  # it is another model
        rp.remember(twin)
        assert rp.reset_(twin).source == "the weights that were remembered"
    assert rp.reset_(model).source == "the weights that were remembered"


def test_the_copy_ends_with_its_model() -> None:
    gc.collect()
    before = len(_REMEMBERED)
    model = net()
    rp.remember(model)
    assert len(_REMEMBERED) == before + 1
    del model
    gc.collect()
    assert len(_REMEMBERED) == before


def test_the_copy_does_not_follow_training_and_the_last_one_counts() -> None:
    model = net()
    rp.remember(model)
    first = copied(model)
    rp.reset_(moved(model))
    assert same(model, first)
    rp.remember(moved(model))
    later = copied(model)
    rp.reset_(moved(model))
    assert same(model, later)


@pytest.mark.parametrize("wrap", [lambda model: torch.compile(model, backend="eager"), nn.DataParallel])
def test_a_wrapped_model_and_its_inner_model_share_what_was_remembered(wrap: Any) -> None:
    for inside in (False, True):
        model = net()
        wrapped = wrap(model)
        rp.remember(wrapped if inside else model)
        first = copied(model)
        for one in (model, wrapped):
            moved(model)
            assert rp.reset_(one).source == "the weights that were remembered"
            assert same(model, first)
            rp.reset_(one, copy.deepcopy(one.state_dict()))  # under the names of the wrapper
            rp.shrink_and_perturb_(one, 1, initial=first)  # and under those of the model
            assert same(model, first)
        moved(model)
        rp.reset_(copy.deepcopy(wrapped) if isinstance(wrapped, nn.DataParallel) else model)


def test_dtypes_and_devices_may_have_changed_since() -> None:
    model = net()
    rp.remember(model, "cpu")
    first = copied(model)
    model.bfloat16()
    rp.shrink_and_perturb_(moved(model), 1)
    assert torch.equal(model[0].weight, first["0.weight"].bfloat16())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_a_copy_in_main_memory_serves_a_model_on_a_gpu() -> None:
    model = net().cuda()
    rp.remember(model, "cpu")
    first = copied(model)
    rp.reset_(moved(model))
    assert same(model, first)


def test_a_model_of_another_build_than_it_was_is_refused_with_what_to_do() -> None:
    model = net()
    rp.remember(model)
    model[3] = nn.Linear(12, 7)
    before = copied(model)
    with pytest.raises(ValueError, match=r"remembered has no '3\.weight'.*\(7, 12\).*\(4, 12\).*initial=first"):
        rp.reset_(model)
    assert same(model, before)
    assert rp.reset_(model, where="0").names == ("0.weight", "0.bias")


def test_a_mask_among_the_buffers_may_be_infinite() -> None:
    model = net()
    model.register_buffer("mask", torch.full((2, 2), -torch.inf))
    assert "mask" in rp.reset_(model, copied(model)).names


def test_what_is_no_model_cannot_be_remembered() -> None:
    with pytest.raises(TypeError, match=r"got OrderedDict.*rp\.remember\(model\)"):
        rp.remember(net().state_dict())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"0\.weight is on the meta device"):
        rp.remember(net().to("meta"))
