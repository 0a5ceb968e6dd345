import pytest
import torch
from torch import nn

from replastic.models import CNN, ResNet
from replastic.units.chain import links, output_layers
from tests.zoo import ZOO


def feeds(model: nn.Module, example: torch.Tensor | None = None) -> dict[str, str | None]:
    return {link.name: link.upstream for link in links(model, example)}


def test_a_sequence_is_a_chain() -> None:
    assert feeds(CNN(3, 8, 4, convolutions=1, kernel=3, norm="batch")) == {"0": None, "1": "0", "5": "1", "7": "5"}


def test_order_of_definition_does_not_matter() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.middle, self.first = nn.Linear(4, 2), nn.Linear(4, 4), nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))

    assert feeds(Backwards()) == {"first": None, "middle": "first", "last": "middle"}


def test_what_reads_a_residual_sum_has_no_single_layer_before_it() -> None:
    found = {link.name: link for link in links(ResNet(widths=[4, 8], blocks=[1, 1]))}
    assert found["blocks.0.norm2"].upstream == "blocks.0.conv2"
    assert found["blocks.1.conv1"].upstream is None
    assert found["blocks.0.conv1"].upstream == "stem.1"


def test_layers_in_code_that_cannot_be_traced_are_listed_too() -> None:
    model = ZOO["gpt"].build()
    expected = {name for name, m in model.named_modules() if isinstance(m, nn.Linear | nn.LayerNorm)}
    assert set(feeds(model)) == expected
    inputs, _ = ZOO["gpt"].batch()
    assert feeds(model, inputs)["blocks.0.c_attn"] == "blocks.0.attention_norm"


def test_a_layer_that_is_called_twice_has_no_single_layer_before_it() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(torch.relu(self.a(x)))

    assert feeds(Twice()) == {"a": None}


class Between(nn.Module):
    """Two layers, and something between them."""

    def __init__(self, between, width: int = 8) -> None:
        super().__init__()
        self.a, self.b, self.between = nn.Linear(3, 8), nn.Linear(width, 2), between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.between(self.a(x)))


def gated(x: torch.Tensor) -> torch.Tensor:
    gate, value = x.chunk(2, -1)
    return torch.relu(gate) * value


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize(
    ("between", "upstream"),
    [
        (lambda x: torch.relu(x) * 2, "a"),
        (lambda x: x / 3 + torch.relu(x), "a"),
        (lambda x: x * x, None),  # of degree two
        (lambda x: x / torch.relu(x), None),  # of degree none
        (lambda x: 1 / x, None),
        (lambda x: x + 1, None),
        (lambda x: 1 - x, None),
        (lambda x: torch.tanh(x), None),
        (lambda x: torch.nn.functional.pad(x, (0, 0)), "a"),
        (lambda x: torch.nn.functional.pad(x, (0, 0), value=1.0), None),
        (lambda x: x + x.size(0), None),
    ],
)
def test_a_layer_is_upstream_only_of_what_is_proportional_to_it(between, upstream: str | None, traced: bool) -> None:
    assert feeds(Between(between), None if traced else torch.ones(1, 3))["b"] == upstream


def test_a_fused_gate_is_of_degree_two() -> None:
    assert feeds(Between(gated, width=4), torch.ones(1, 3))["b"] is None


@pytest.mark.parametrize("attribute", ["mT", "T", "data"])
def test_an_attribute_that_is_a_tensor_comes_from_the_layers_before_it(attribute: str) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return getattr(self.c(self.a(x) + getattr(self.b(x), attribute)), attribute)

    assert feeds(Sum()) == {"a": None, "b": None, "c": None}
    assert output_layers(Sum()) == ["c"]
