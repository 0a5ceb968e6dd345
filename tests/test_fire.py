import copy
import math
import weakref

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic.linalg import PolarOptions, polar, smaller_side_deviation
from replastic.linalg.batches import Batch, MatrixStack
from replastic.linalg.polar_factor import polar_batch
from tests.test_polar import plain_loop, relative_error


class Net(nn.Module):
    """A little of everything, with shapes that share batches and shapes that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3)
        self.body = nn.Sequential(nn.Conv2d(16, 16, 3, bias=False), nn.BatchNorm2d(16), nn.Conv2d(16, 32, 3, groups=2))
        self.attention = nn.MultiheadAttention(32, 4)
        self.rnn = nn.GRU(32, 24)
        self.tokens = nn.Embedding(11, 24)
        self.head = nn.Linear(24, 10)


def fired_by_hand(weight: Tensor, project) -> Tensor:
    """Appendix C for a linear or a convolution, one matrix at a time."""
    if weight.ndim == 2:
        return project(weight) * math.sqrt(weight.shape[0] / weight.shape[1])
    out, into, height, width = weight.shape
    result = torch.empty_like(weight)
    for row in range(height):
        for column in range(width):
            result[:, :, row, column] = project(weight[:, :, row, column])
    return result * math.sqrt(out / into) / (height * width)


@pytest.mark.parametrize("method", ["published", "exact"])
def test_fire_is_appendix_c(method: str, device: torch.device) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 5), nn.Conv2d(8, 16, 1), nn.Linear(16, 6), nn.Linear(6, 40)).to(
        device
    )
    before = copy.deepcopy(net)
    rp.fire_(net, method=method)

    def project(matrix: Tensor) -> Tensor:
        return plain_loop(matrix.double(), 10, (1.5, -0.5, 0)).float() if method == "published" else polar(matrix)

    for old, new in zip(before, net, strict=True):
        assert relative_error(new.weight.detach(), fired_by_hand(old.weight.detach(), project)) < 3e-6
        assert torch.equal(new.bias, old.bias)


def test_the_report_says_what_was_done(device: torch.device) -> None:
    net = Net().to(device)
    before = {weight.name: weight.stack().gather().clone() for weight in rp.select(net).chosen}
    report = rp.fire_(net, method="exact")
    assert [layer.name for layer in report.layers] == list(before)
    for layer, weight in zip(report.layers, rp.select(net).chosen, strict=True):
        old, new = before[layer.name].double(), weight.stack().gather().double()
        columns = layer.matrices * min(layer.shape)
        assert layer.matrices == math.prod(old.shape[:-2])
        assert layer.shape == tuple(old.shape[-2:])
        assert layer.sfe == pytest.approx(float((old - new).square().sum()), rel=1e-5)
        assert layer.sfe_normalised == pytest.approx(layer.sfe / float(old.square().sum()), rel=1e-5)
        expected = float(smaller_side_deviation(old / layer.scale).sum()) / columns
        assert layer.dfi_before == pytest.approx(expected, rel=1e-5)
        assert layer.dfi_after < 1e-12 < layer.dfi_before
    assert {weight.name for weight in report.left_alone} == {"tokens.weight"}


def test_the_report_prints_as_a_table() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 8), nn.Embedding(3, 2))
    net[0].weight.data.zero_()
    lines = str(rp.fire_(net)).splitlines()
    assert lines[0].startswith("FIRE, 10 steps: 2 weights, 2 matrices (DfI")
    assert lines[1].split()[:2] == ["weight", "matrices"]
    assert lines[2].startswith("0.weight")
    assert lines[2].endswith("1 all-zero, unchanged")
    assert "8x4" in lines[3]
    assert lines[4].startswith("skipped: 2.weight (3, 2): embedding")


def test_the_report_is_of_the_weights_at_the_time(device: torch.device) -> None:
    net = nn.Linear(6, 6).to(device)
    report = rp.fire_(net, method="exact")
    with torch.no_grad():
        net.weight.add_(1)  # training goes on before anyone reads the report
    assert report.layers[0].dfi_after < 1e-12


@pytest.mark.parametrize("method", ["published", "exact", "fast"])
def test_storage_strides_and_everything_else_are_kept(method: str, device: torch.device) -> None:
    net = Net().to(device).to(memory_format=torch.channels_last)
    net.head.weight = nn.Parameter(torch.randn(24, 10, device=device).T)  # not contiguous
    net.head.weight.grad = torch.ones_like(net.head.weight)
    before = {
        name: (p.data_ptr(), p.stride(), p.dtype, p.requires_grad, p.detach().clone()) for name, p in net.named_parameters()
    }
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    changed = {layer.name.partition(":")[0] for layer in rp.fire_(net, method=method).layers}
    for name, parameter in net.named_parameters():
        pointer, stride, dtype, requires_grad, old = before[name]
        assert (parameter.data_ptr(), parameter.stride()) == (pointer, stride)
        assert (parameter.dtype, parameter.requires_grad) == (dtype, requires_grad)
        assert torch.equal(parameter, old) == (name not in changed)
    assert changed == {name for name in before if "weight" in name and name not in ("body.1.weight", "tokens.weight")}
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in net.named_buffers())
    assert torch.equal(net.head.weight.grad, torch.ones_like(net.head.weight))


def test_channels_last_gives_the_same_weights(device: torch.device) -> None:
    net = Net().to(device)
    other = copy.deepcopy(net).to(memory_format=torch.channels_last)
    rp.fire_(net)
    rp.fire_(other)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(net.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("spoil", "arguments", "error", "message"),
    [
        (lambda net: net.head.weight.data.fill_(float("nan")), {}, ValueError, "head.weight: NaN or infinite"),
        (lambda net: net.rnn.weight_hh_l0.data[3].fill_(float("inf")), {}, ValueError, "rnn.weight_hh_l0: NaN"),
        (lambda net: None, {"steps": 0}, ValueError, "steps >= 1"),
        (lambda net: None, {"steps": 10**9}, ValueError, "steps=1000000000.* 1 to 1000"),
        (lambda net: None, {"where": "convs"}, ValueError, "did you mean"),
        (lambda net: None, {"where": "decoder.*"}, ValueError, "selects no weight matrix"),
        (lambda net: None, {"method": "svd"}, ValueError, '"exact"'),
        (lambda net: None, {"rank": "raise", "method": "exact"}, ValueError, "all or nothing"),
        (
            lambda net: setattr(net, "codes", nn.Linear(3, 3, dtype=torch.float32)),
            {"optimizer": "other"},
            ValueError,
            "stem.weight",
        ),
        (lambda net: net.to("meta"), {}, TypeError, "stem.weight is on the meta device"),
    ],
)
def test_bad_input_leaves_the_model_bit_identical(spoil, arguments: dict, error: type[Exception], message: str) -> None:
    net = Net()
    spoil(net)
    before = copy.deepcopy(net.state_dict())
    if arguments.get("optimizer") == "other":
        arguments = {"optimizer": torch.optim.Adam(Net().parameters())}
    with pytest.raises(error, match=message):
        rp.fire_(net, **arguments)
    for name, value in net.state_dict().items():
        assert value.is_meta or torch.equal(value.nan_to_num(7), before[name].nan_to_num(7))


def test_huge_finite_weights_are_not_taken_for_infinite() -> None:
    net = nn.Linear(40, 40)
    net.weight.data.mul_(1e30)
    assert rp.fire_(net, method="exact").layers[0].dfi_after < 1e-11


@pytest.mark.parametrize("method", ["published", "exact", "fast"])
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float64, 2.0**1022), (torch.float64, 2.0**-1040), (torch.float32, 2.0**126), (torch.float32, 2.0**-140)],
)
def test_weights_at_the_ends_of_the_number_range_are_fired_as_any(dtype: torch.dtype, scale: float, method: str) -> None:
    net = nn.Sequential(nn.Linear(30, 12), nn.Conv2d(3, 8, 3), nn.Conv1d(6, 6, 5, groups=6), nn.LSTM(4, 6)).to(dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(scale)
    plain = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(scale**-0.5).mul_(scale**-0.5)  # one factor could be beyond the dtype
    before = [parameter.detach().clone() for parameter in net.parameters()]
    report, expected = rp.fire_(net, method=method), rp.fire_(plain, method=method)
    for parameter, other, old in zip(net.parameters(), plain.parameters(), before, strict=True):
        assert torch.allclose(parameter, other, rtol=1e-5) if parameter.ndim > 1 else torch.equal(parameter, old)
    for layer, same in zip(report.layers, expected.layers, strict=True):
        assert layer.dfi_after == pytest.approx(same.dfi_after, rel=1e-5, abs=1e-10)
        assert layer.sfe > 1 or scale < 1
        # What a float64 cannot hold is infinite, and the report says so.
        assert ("beyond float64" in layer.note) == (dtype == torch.float64)
        if scale > 1:
            assert layer.sfe_normalised == pytest.approx(1)
            assert layer.dfi_before == math.inf or dtype == torch.float32
        else:
            assert layer.dfi_before == pytest.approx(1)
            (fired,) = (weight.stack().gather() for weight in rp.select(net).chosen if weight.name == layer.name)
            assert layer.sfe == pytest.approx(float(fired.double().square().sum()), rel=1e-5)
            assert layer.sfe_normalised > 1e70


def test_a_tied_weight_is_fired_once() -> None:
    net = nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 9))
    net[1].weight = net[0].weight
    expected = polar(net[0].weight.detach(), "published", steps=2)
    report = rp.fire_(net, steps=2)  # twice would be four steps
    assert torch.allclose(net[0].weight, expected, atol=1e-6)
    assert [layer.note for layer in report.layers] == ["same tensor as 1.weight"]


def test_the_gpt_preset_fires_the_tied_head_as_the_authors_do() -> None:
    net = nn.ModuleDict({"wte": nn.Embedding(50, 8), "lm_head": nn.Linear(8, 50, bias=False)})
    net["lm_head"].weight = net["wte"].weight
    expected = math.sqrt(50 / 8) * polar(net["wte"].weight.detach())
    with pytest.raises(ValueError, match=r"tied to wte\.weight"):
        rp.fire_(net)
    rp.fire_(net, where="paper_gpt", method="exact")
    assert torch.allclose(net["wte"].weight, expected, atol=1e-6)


def trained(net: nn.Module | nn.Parameter, make) -> torch.optim.Optimizer:
    parameters = list(net.parameters()) if isinstance(net, nn.Module) else net
    optimizer = make(parameters)
    for _ in range(2):
        for parameter in parameters if isinstance(parameters, list) else [parameters]:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return optimizer


def test_the_optimiser_forgets_what_was_fired_and_nothing_else() -> None:
    net = nn.ModuleDict({"qkv": nn.Linear(6, 18), "proj": nn.Linear(6, 6), "free": nn.Linear(6, 6)})
    optimizer = trained(net, torch.optim.AdamW)
    before = copy.deepcopy(optimizer.state_dict()["state"])
    rp.fire_(net, where=["*:query", "*:key", "proj"], optimizer=optimizer)
    after = optimizer.state_dict()["state"]
    names = [name for name, _ in net.named_parameters()]
    for index, name in enumerate(names):
        for key in ("exp_avg", "exp_avg_sq"):
            old, new = before[index][key], after[index][key]
            if name == "qkv.weight":
                assert not new[:12].any()
                assert torch.equal(new[12:], old[12:])
            elif name == "proj.weight":
                assert not new.any()
            else:
                assert torch.equal(new, old)
        assert after[index]["step"] == (0 if name == "proj.weight" else 2)


def test_muon_and_sgd_forget_their_momentum() -> None:
    for make in (lambda p: torch.optim.Muon(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)):
        net = nn.Sequential(nn.Linear(5, 7, bias=False), nn.Linear(7, 3, bias=False))
        optimizer = trained(net, make)
        rp.fire_(net, where="0", optimizer=optimizer)
        assert not optimizer.state[net[0].weight]["momentum_buffer"].any()
        assert optimizer.state[net[1].weight]["momentum_buffer"].all()


def test_a_compiled_model_is_fired_under_its_own_names(device: torch.device) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
    compiled = torch.compile(net, backend="eager")
    x = torch.randn(5, 6, device=device)
    before = compiled(x)
    report = rp.fire_(compiled, method="exact")
    assert [layer.name for layer in report.layers] == ["0.weight", "2.weight"]
    assert torch.equal(compiled(x), net(x))
    assert not torch.allclose(compiled(x), before)


def test_autocast_changes_nothing(device: torch.device) -> None:
    net = Net().to(device)
    other = copy.deepcopy(net)
    rp.fire_(net, method="exact")
    with torch.autocast(device.type, dtype=torch.bfloat16):
        report = rp.fire_(other, method="exact")
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    assert all(layer.dfi_after < 1e-12 for layer in report.layers)


def test_half_precision_is_reported_as_it_is_stored(device: torch.device) -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.Conv2d(8, 6, 3)).to(device, torch.bfloat16)
    report = rp.fire_(net, method="exact")
    for layer, weight in zip(report.layers, rp.select(net).chosen, strict=True):
        stored = weight.stack().gather().double() / layer.scale
        expected = float(smaller_side_deviation(stored).sum()) / (layer.matrices * min(layer.shape))
        assert layer.dfi_after == pytest.approx(expected, rel=1e-3)
        assert 1e-7 < layer.dfi_after < 1e-4  # bfloat16 has 8 bits


def test_dtypes_may_be_mixed_in_a_model() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, dtype=torch.bfloat16), nn.Linear(8, 8, dtype=torch.float64))
    report = rp.fire_(net, method="exact")
    assert [layer.dfi_after < bound for layer, bound in zip(report.layers, (1e-12, 1e-4, 1e-12), strict=True)] == [True] * 3


def test_a_budget_bounds_the_batches_and_changes_nothing_else(device: torch.device) -> None:
    net = Net().to(device)
    other = copy.deepcopy(net)
    rp.fire_(net)
    rp.fire_(other, budget=1)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    with pytest.raises(ValueError, match="budget=-3"):
        rp.fire_(net, budget=-3)


@pytest.mark.parametrize("method", ["published", "exact", "fast"])
def test_padding_a_matrix_into_a_larger_batch_changes_nothing(method: str, device: torch.device) -> None:
    small, wide, full = (torch.randn(shape, device=device) for shape in ((2, 9, 5), (7, 12), (20, 16)))
    written = [torch.empty_like(matrix) for matrix in (small, wide, full)]
    options = PolarOptions(method)
    read = Batch([(0, MatrixStack(small)), (1, MatrixStack(wide)), (2, MatrixStack(full))], 20, 16)
    write = Batch([(index, MatrixStack(matrix)) for index, matrix in enumerate(written)], 20, 16)
    write.scatter_(polar_batch(read.gather(torch.float32), options, read.sizes).factor)
    for found, matrix in zip(written, (small, wide, full), strict=True):
        assert relative_error(found, polar(matrix, method)) < 1e-6


def test_rank_complete_revives_dead_units() -> None:
    net = nn.Linear(12, 8)
    net.weight.data[3] = 0
    kept = copy.deepcopy(net)
    assert "1 null direction, partial" in str(rp.fire_(kept, method="exact"))
    assert kept.weight.detach()[3].abs().max() < 1e-14
    rp.fire_(net, method="exact", rank="complete")
    assert net.weight.detach()[3].norm().item() == pytest.approx(math.sqrt(8 / 12), rel=1e-5)


def test_a_float64_weight_gets_all_of_its_scale() -> None:
    net = nn.Linear(3, 2, dtype=torch.float64)
    rp.fire_(net, method="exact")
    assert torch.linalg.svdvals(net.weight.detach()).sub(math.sqrt(2 / 3)).abs().max() < 1e-15


def test_torchs_default_dtype_and_device_do_not_matter() -> None:
    net = nn.Linear(6, 5)
    expected = math.sqrt(5 / 6) * polar(net.weight.detach())
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    try:
        report = rp.fire_(net, method="exact")
        assert report.layers[0].dfi_after < 1e-12
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert torch.allclose(net.weight, expected, atol=1e-7)


def test_inside_an_autocast_region_the_next_forward_sees_the_new_weights(device: torch.device) -> None:
    net, x = nn.Linear(16, 16).to(device), torch.randn(4, 16, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        before = net(x)
        rp.fire_(net, method="exact")
        after = net(x)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert torch.equal(after, net(x))
    assert not torch.equal(after, before)


def test_several_optimisers_are_cleared_each_for_its_own() -> None:
    net = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    muon = trained(net[0].weight, lambda p: torch.optim.Muon([p], lr=0.1))
    adam = trained(net[1].weight, lambda p: torch.optim.Adam([p]))
    with pytest.raises(ValueError, match=r"1\.weight.* list"):
        rp.fire_(net, optimizer=muon)
    rp.fire_(net, optimizer=[muon, adam])
    assert not muon.state[net[0].weight]["momentum_buffer"].any()
    assert not adam.state[net[1].weight]["exp_avg"].any()


def test_two_parameters_on_one_memory_are_both_forgotten() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    net[1].weight = nn.Parameter(net[0].weight.data)
    optimizer = trained(net, torch.optim.Adam)
    rp.fire_(net, optimizer=optimizer)
    assert not any(optimizer.state[layer.weight]["exp_avg"].any() for layer in net)


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (
            lambda net: setattr(net[1], "weight", nn.Parameter(torch.ones(1, 6).expand(6, 6))),
            TypeError,
            r"1\.weight is expanded",
        ),
        (
            lambda net: setattr(net[1], "weight", nn.Parameter(torch.ones(16).as_strided((6, 6), (2, 1)))),
            TypeError,
            r"1\.weight is .* overlaps itself",
        ),
        (lambda net: setattr(net[1], "weight", nn.Parameter(torch.ones(36))), TypeError, r"1\.weight has one axis"),
        (
            lambda net: setattr(net[1], "weight", nn.Parameter(torch.eye(6).to_sparse())),
            TypeError,
            r"1\.weight is stored as",
        ),
        (lambda net: setattr(net[1], "weight", nn.Parameter(net[0].weight.data[:4])), ValueError, "share memory"),
        (lambda net: setattr(net[1], "weight", nn.Parameter(net[0].weight.data.T)), ValueError, "share memory"),
    ],
)
def test_weights_that_cannot_be_written_are_refused_before_any_is(spoil, error: type[Exception], message: str) -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    before = net[0].weight.detach().clone()
    spoil(net)
    with pytest.raises(error, match=message):
        rp.fire_(net)
    assert torch.equal(net[0].weight, before)


def test_a_weight_that_is_frozen_under_another_name_is_left_alone() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6))
    net[1].weight = nn.Parameter(net[0].weight.data, requires_grad=False)
    before = net[0].weight.detach().clone()
    report = rp.fire_(net)
    assert torch.equal(net[0].weight, before)
    assert [weight.name for weight in report.left_alone] == ["0.weight"]
    assert report.names == ("2.weight",)


def test_state_that_cannot_be_cleared_is_found_out_before_a_weight_is_written() -> None:
    net = nn.Linear(4, 4)
    for make, message in (
        (lambda p: torch.optim.Rprop(p), "Rprop keeps"),
        (lambda p: torch.optim.LBFGS(p), "LBFGS"),
    ):
        optimizer = make(net.parameters())
        for parameter in net.parameters():
            parameter.grad = torch.randn_like(parameter)
        if not isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step()
        before = net.weight.detach().clone()
        with pytest.raises(TypeError, match=message):
            rp.fire_(net, optimizer=optimizer)
        assert torch.equal(net.weight, before)


def test_a_kept_report_keeps_no_model_alive() -> None:
    net = nn.Linear(4, 4)
    storage = weakref.ref(net.weight)
    report = rp.fire_(net)
    del net
    assert storage() is None
    assert report.layers[0].matrices == 1
