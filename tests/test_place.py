"""Weights that live elsewhere than in their parameter's memory: methods gather and scatter them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import replastic as rp
from replastic.linalg.polar_factor import PolarOptions
from replastic.weights.inventory import take_inventory
from replastic.weights.place import Region, region_of
from replastic.weights.project import project_

from .zoo import GPT


class InFile:
    """A weight in a safetensors file, which is read and written there and nowhere else."""

    device = torch.device("cpu")

    def __init__(self, file: Path, name: str, like: Tensor) -> None:
        header = int.from_bytes(file.read_bytes()[:8], "little")
        start, stop = json.loads(file.read_bytes()[8 : 8 + header])[name]["data_offsets"]
        self.file, self.like = file, like
        self.region = Region(file, 8 + header + start, 8 + header + stop)

    def gather(self) -> Tensor:
        content = bytearray(self.file.read_bytes()[self.region.start : self.region.stop])
        return torch.frombuffer(content, dtype=self.like.dtype).view(self.like.shape)

    def scatter_(self, new: Tensor) -> None:
        with open(self.file, "r+b") as opened:
            opened.seek(self.region.start)
            opened.write(new.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def in_file(net: nn.Module, file: Path) -> nn.Module:
    """The same model, whose parameters are in a file; tied ones are two parameters of one place."""
    save_file({name: tensor.detach() for name, tensor in net.named_parameters()}, file)
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    for module in net.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = placed(file, names[id(parameter)], parameter)
    return net


def placed(file: Path, name: str, like: nn.Parameter) -> nn.Parameter:
    parameter = nn.Parameter(torch.empty_like(like, device="meta"))
    parameter.place = InFile(file, name, like.detach())  # pyright: ignore[reportAttributeAccessIssue]
    return parameter


def convolutions() -> nn.Module:
    grouped = nn.Conv2d(8, 8, 3, groups=4)
    return nn.Sequential(nn.Conv2d(3, 8, 3), grouped, nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Bilinear(4, 3, 5))


@pytest.mark.parametrize("make", [convolutions, GPT, lambda: GPT().bfloat16()])
@pytest.mark.parametrize("options", [{}, {"method": "exact"}, {"where": "paper_gpt"}, {"budget": 1}])
def test_a_weight_in_a_file_is_projected_as_one_in_memory_bit_for_bit(make, options: dict, tmp_path: Path) -> None:
    if make is convolutions and "where" in options:
        options = {"where": "*"}
    torch.manual_seed(0)
    net, same = make(), make()
    same.load_state_dict(net.state_dict())
    file = tmp_path / "weights.safetensors"
    stored = in_file(net, file)
    before = {name: tensor.clone() for name, tensor in load_file(file).items()}

    report, wanted = rp.fire_(stored, **options), rp.fire_(same, **options)

    after, expected = load_file(file), dict(same.named_parameters())
    assert report.layers == wanted.layers
    assert any(not torch.equal(before[name], after[name]) for name in after)
    assert all(torch.equal(after[name], expected[name]) for name in expected)


def test_nothing_is_written_to_a_file_if_one_weight_cannot_be_projected(tmp_path: Path) -> None:
    layers = [nn.Linear(4, 4) for _ in range(3)]
    net = nn.Sequential(*layers)
    with torch.no_grad():
        layers[2].weight[0, 0] = torch.nan
    for number in (0, 2):  # the one between is in memory
        file = tmp_path / f"{number}.safetensors"
        save_file({"weight": layers[number].weight.detach()}, file)
        layers[number].weight = placed(file, "weight", nn.Parameter(layers[number].weight))
    contents = {file: file.read_bytes() for file in tmp_path.iterdir()}
    between = layers[1].weight.detach().clone()

    with pytest.raises(ValueError, match=r"2\.weight: NaN"):
        rp.fire_(net)
    rp.fire_(net, where="0", optimizer=None)
    with pytest.raises(ValueError, match=r"1\.weight"):
        rp.fire_(net, where=["0", "1"], optimizer=torch.optim.SGD([layers[0].weight], lr=0.1))

    assert torch.equal(layers[1].weight, between)
    assert (tmp_path / "2.safetensors").read_bytes() == contents[tmp_path / "2.safetensors"]
    assert (tmp_path / "0.safetensors").read_bytes() != contents[tmp_path / "0.safetensors"]


def test_weights_in_a_file_are_identified_by_their_place(tmp_path: Path) -> None:
    net = in_file(GPT(), tmp_path / "weights.safetensors")
    found = {weight.name: weight for weight in take_inventory(net, elsewhere=True).weights}
    assert found["wte.weight"].tied_to == "lm_head.weight"
    places = {found[name].region for name in ("wte.weight", "wpe.weight", "blocks.0.fc.weight") if name in found}
    assert len(places) > 1
    assert all(region.where == tmp_path / "weights.safetensors" for region in places)


def test_other_functions_refuse_weights_that_live_elsewhere(tmp_path: Path) -> None:
    net = in_file(nn.Sequential(nn.Linear(4, 4)), tmp_path / "weights.safetensors")
    before = (tmp_path / "weights.safetensors").read_bytes()
    with pytest.raises(TypeError, match=r"0\.weight .*meta"):
        rp.select(net)
    with pytest.raises((TypeError, ValueError), match="meta"):
        rp.Learner(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert (tmp_path / "weights.safetensors").read_bytes() == before


def test_one_memory_seen_twice_is_one_region_and_parts_of_it_are_others() -> None:
    whole = torch.randn(6, 4)
    assert region_of(whole) == region_of(nn.Parameter(whole)) == region_of(whole.mT) == region_of(whole.view(24))
    assert len({region_of(part) for part in (whole, whole[:3], whole[3:], whole[:, 1:], torch.randn(6, 4))}) == 5


def test_tensors_without_an_address_are_identified_by_the_object() -> None:
    for device, shape in (("meta", (2, 2)), ("cpu", (0, 2))):
        one, other = torch.empty(shape, device=device), torch.empty(shape, device=device)
        assert region_of(one) == region_of(one) != region_of(other)


def test_parts_of_a_weight_in_a_file_may_be_in_several_batches(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(6, 5, 3))
    layer = nn.Conv2d(6, 5, 3)
    same = nn.Sequential(layer)
    same.load_state_dict(net.state_dict())
    stored = in_file(net, tmp_path / "weights.safetensors")
    for model in (stored, same):
        project_(take_inventory(model, elsewhere=True).weights, PolarOptions("exact"), budget=1)
    assert torch.equal(load_file(tmp_path / "weights.safetensors")["0.weight"], layer.weight)
