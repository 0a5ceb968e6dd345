"""Small models of every wiring that hidden units meet, with the units that each must have."""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from replastic.models import CNN, MLP, ResNet
from replastic.units import Slot, UnitGroup, reset_units_
from tests.zoo import GPT, NatureCNN, SimBa, ViT


class Code(nn.Module):
    """Layers by name, and a function of them and the inputs."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.code = forward

    def forward(self, x: Tensor) -> Any:
        return self.code(self, x)


@dataclass
class Case:
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    units: dict[str, tuple[int, int]]  # by name: how many, and how many columns each
    left_out: dict[str, str] = field(default_factory=dict)  # by layer: part of the reason
    needs_example: bool = False

    def model(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.build().double().eval()


def numbers(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def tokens(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(11, shape, generator=torch.Generator().manual_seed(1))


def seq(*layers: nn.Module) -> Callable[[], nn.Module]:
    """Each call makes new layers of the same build: `layers` are only a pattern."""
    return lambda: _anew(nn.Sequential(*layers))


def _anew(model: nn.Module) -> nn.Module:
    fresh = copy.deepcopy(model)
    for layer in fresh.modules():
        if callable(getattr(layer, "reset_parameters", None)):
            layer.reset_parameters()
    return fresh


def code(forward: Callable[..., Any], **layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: _anew(Code(forward, **layers))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0)
    )


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=11,
        max_position_embeddings=8,
    )
    return LlamaForCausalLM(config)


class SqueezeExcite(nn.Module):
    """With 1x1 convolutions, as in EfficientNet: the gate of channel i belongs to unit i."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.squeeze = nn.Conv2d(6, 4, 1)
        self.excite = nn.Conv2d(4, 6, 1)
        self.conv2 = nn.Conv2d(6, 5, 3)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        gate = self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1))))
        return self.head(F.relu(self.conv2(x * gate.tanh())).mean((2, 3)))


def _squeeze_by_linear(m: Any, x: Tensor) -> Tensor:
    x = F.relu(m.conv1(x))
    gate = torch.sigmoid(m.excite(F.relu(m.squeeze(x.mean((2, 3))))))
    return m.head(F.relu(m.conv2(x * gate.view(-1, 6, 1, 1))).flatten(1))


def _dense(m: Any, x: Tensor) -> Tensor:
    a = F.relu(m.a(x))
    b = F.relu(m.b(a))
    c = F.relu(m.c(torch.cat([a, b], 1)))
    return m.head(torch.cat([a, b, c], dim=1).mean([2, 3]))


def _convnext(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    y = m.dw(x).permute(0, 2, 3, 1)
    y = m.down(F.gelu(m.up(m.norm(y)))).permute(0, 3, 1, 2)
    return m.head((x + y).mean((-2, -1)))


def _unet(m: Any, x: Tensor) -> Tensor:
    a = F.relu(m.a(x))
    b = F.relu(m.b(F.max_pool2d(a, 2)))
    up = F.interpolate(b, scale_factor=2.0)
    return m.out(F.relu(m.c(torch.cat([up, a], 1))))


def _actor_critic(m: Any, x: Tensor) -> dict[str, Tensor]:
    h = torch.tanh(m.trunk(x))
    return {"logits": m.actor(h), "value": m.critic(h).squeeze(-1)}


def _critic(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.features(x))
    return m.q(F.relu(m.fc(torch.cat([h, x[:, :2]], -1))))


def _branches(m: Any, x: Tensor) -> Tensor:
    x = m.net(x)
    return x if x.sum() > 0 else -x


def _no_view(m: Any, x: Tensor) -> Tensor:
    x = F.relu(m.conv(x))
    return m.fc2(F.relu(m.fc1(x.view(-1, 4 * 6 * 6))))


def _inplace(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    x.relu_()
    x = m.b(x)
    F.relu_(x)
    return m.c(F.dropout(x, 0.5, m.training))


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3))))


def _chunked(m: Any, x: Any) -> Any:
    gate, up = m.gate_up(x).chunk(2, dim=-1)
    return m.down(up * F.gelu(gate))


def conv(*sizes: int, **options: Any) -> nn.Module:
    return nn.Conv2d(*sizes, **options)


IMAGES = numbers(4, 3, 8, 8)
STREAM = "residual stream"

CASES: dict[str, Case] = {
    "mlp": Case(lambda: MLP(6, [7, 5], 3), numbers(4, 6), {"1": (7, 1), "3": (5, 1)}, {"5": "output"}),
    "mlp-crelu": Case(lambda: MLP(6, [7, 5], 3, activation="crelu"), numbers(4, 6), {"1": (7, 2), "3": (5, 2)}),
    "mlp-batch-norm": Case(lambda: MLP(6, [7, 5], 3, norm="batch"), numbers(4, 6), {"1": (7, 1), "4": (5, 1)}),
    "mlp-layer-norm": Case(lambda: MLP(6, [7, 5], 3, norm="layer"), numbers(4, 6), {"1": (7, 1), "4": (5, 1)}),
    "in-place": Case(
        code(_inplace, a=nn.Linear(6, 7), b=nn.Linear(7, 5), c=nn.Linear(5, 3)), numbers(4, 6), {"a": (7, 1), "b": (5, 1)}
    ),
    "hand-written-gelu": Case(
        code(lambda m, x: m.b(_gelu(m.a(x))), a=nn.Linear(6, 7), b=nn.Linear(7, 3)), numbers(4, 6), {"a": (7, 1)}
    ),
    "keyword-inputs": Case(
        code(lambda m, x: m.b(input=F.relu(input=m.a(input=x))), a=nn.Linear(6, 7), b=nn.Linear(7, 3)),
        numbers(4, 6),
        {"a": (7, 1)},
    ),
    "cnn-batch-norm": Case(
        lambda: CNN(3, 14, 4, channels=6, convolutions=2, kernel=3, hidden=[7], norm="batch"),
        numbers(4, 3, 14, 14),
        {"0": (6, 1), "4": (6, 4), "9": (7, 1)},
    ),
    "cnn-crelu": Case(
        lambda: CNN(3, 8, 4, channels=5, convolutions=1, kernel=3, hidden=[7], activation="crelu"),
        IMAGES,
        {"0": (5, 2 * 9), "4": (7, 2)},
    ),
    "cnn-group-norm": Case(
        lambda: CNN(3, 8, 4, channels=4, convolutions=1, kernel=3, hidden=[7], norm="group"),
        IMAGES,
        {"0": (4, 9), "5": (7, 1)},
    ),
    "layer-norm-over-images": Case(
        seq(nn.Conv2d(3, 4, 3), nn.LayerNorm([4, 6, 6]), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)), IMAGES, {"0": (4, 36)}
    ),
    "view": Case(
        code(_no_view, conv=nn.Conv2d(3, 4, 3), fc1=nn.Linear(144, 5), fc2=nn.Linear(5, 2)),
        IMAGES,
        {"conv": (4, 36), "fc1": (5, 1)},
    ),
    "norm-behind-flatten": Case(
        seq(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.BatchNorm1d(144), nn.ReLU(), nn.Linear(144, 2)), IMAGES, {"0": (4, 36)}
    ),
    "conv1d": Case(
        seq(nn.Conv1d(3, 4, 3), nn.PReLU(4), nn.AvgPool1d(2), nn.Conv1d(4, 5, 2), nn.ELU(), nn.Flatten(), nn.Linear(10, 2)),
        numbers(4, 3, 8),
        {"0": (4, 1), "3": (5, 2)},
    ),
    "pool-and-squeeze": Case(
        code(
            lambda m, x: m.fc(F.adaptive_avg_pool2d(F.relu(m.a(x)), 1).squeeze(-1).squeeze(-1)),
            a=nn.Conv2d(3, 4, 3),
            fc=nn.Linear(4, 2),
        ),
        IMAGES,
        {"a": (4, 1)},
    ),
    "pool-and-index": Case(
        code(lambda m, x: m.fc(F.relu(m.a(x)).amax(3, keepdim=True)[:, :, 0, 0]), a=nn.Conv2d(3, 4, 3), fc=nn.Linear(4, 2)),
        IMAGES,
        {"a": (4, 1)},
    ),
    "linear-on-sequences-flattened": Case(
        seq(nn.Linear(3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(20, 5), nn.ReLU(), nn.Linear(5, 2)),
        numbers(4, 5, 3),
        {"0": (4, 5), "3": (5, 1)},
    ),
    "linear-on-sequences-viewed": Case(
        code(lambda m, x: m.b(F.relu(m.a(x)).view(x.size(0), -1)), a=nn.Linear(3, 4), b=nn.Linear(20, 2)),
        numbers(4, 5, 3),
        {"a": (4, 5)},
    ),
    "resnet": Case(
        lambda: ResNet(classes=4, widths=[4, 8], blocks=[1, 1], hidden=[7]),
        IMAGES,
        {"blocks.0.conv1": (4, 1), "blocks.1.conv1": (8, 1), "head.1": (7, 1)},
        {"stem.0": STREAM, "blocks.0.conv2": STREAM, "blocks.1.shortcut.0": STREAM},
    ),
    "vit": Case(ViT, IMAGES, {"blocks.0.mlp.0": (64, 1), "blocks.1.mlp.0": (64, 1)}),
    "gpt": Case(GPT, tokens(3, 8), {"blocks.0.mlp.0": (64, 1), "blocks.1.mlp.0": (64, 1)}),
    "gpt2": Case(
        gpt2,
        lambda: {"input_ids": tokens(3, 8)()},
        {"transformer.h.0.mlp.c_fc": (32, 1), "transformer.h.1.mlp.c_fc": (32, 1)},
    ),
    "llama": Case(
        llama,
        lambda: {"input_ids": tokens(3, 8)(), "use_cache": False},
        {"model.layers.0.mlp.gate_proj": (12, 1), "model.layers.1.mlp.gate_proj": (12, 1)},
    ),
    "torch-transformer": Case(
        seq(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), nn.Linear(8, 2)),
        numbers(4, 5, 8),
        {"0.linear1": (12, 1)},
    ),
    "gated": Case(
        code(
            lambda m, x: m.down(F.silu(m.gate(x)) * m.up(x)), gate=nn.Linear(6, 7), up=nn.Linear(6, 7), down=nn.Linear(7, 3)
        ),
        numbers(4, 6),
        {"gate": (7, 1)},
    ),
    "fused-gate": Case(
        code(
            _chunked,
            gate_up=nn.Linear(6, 14),
            down=nn.Linear(7, 3),
        ),
        numbers(4, 6),
        {"gate_up": (7, 1)},
    ),
    "fused-gate-split": Case(
        code(
            lambda m, x: (lambda h: m.down(torch.tanh(h[..., :7]) * h[..., 7:]))(m.gate_up(x)),
            gate_up=nn.Linear(6, 14),
            down=nn.Linear(7, 3),
        ),
        numbers(4, 5, 6),
        {"gate_up": (7, 1)},
    ),
    "glu": Case(seq(nn.Conv2d(3, 8, 3), nn.GLU(1), nn.Conv2d(4, 2, 3)), IMAGES, {"0": (4, 1)}),
    "depthwise": Case(
        seq(
            nn.Conv2d(3, 4, 1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 8, 3, groups=4),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 5, 1),
        ),
        IMAGES,
        {"0": (4, 2)},
    ),
    "grouped": Case(
        seq(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 2, 1)),
        IMAGES,
        {"0": (6, 1), "2": (4, 1)},
    ),
    "grouped-transposed": Case(
        seq(
            nn.Conv2d(3, 6, 3),
            nn.ReLU(),
            nn.ConvTranspose2d(6, 8, 3, groups=2),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 8, 2, groups=8),
            nn.Tanh(),
            nn.ConvTranspose2d(8, 2, 2),
        ),
        IMAGES,
        {"0": (6, 1), "2": (8, 1)},
    ),
    "nature-cnn": Case(
        NatureCNN, numbers(2, 4, 52, 52), {"conv1": (8, 1), "conv2": (16, 1), "conv3": (16, 9), "head.0": (32, 1)}
    ),
    "simba": Case(SimBa, numbers(4, 6), {"blocks.0.1": (64, 1), "blocks.1.1": (64, 1)}, {"embed": STREAM}),
    "actor-critic": Case(
        code(_actor_critic, trunk=nn.Linear(6, 7), actor=nn.Linear(7, 3), critic=nn.Linear(7, 1)),
        numbers(4, 6),
        {"trunk": (7, 1)},
        {"actor": "output", "critic": ""},
    ),
    "dense": Case(
        code(_dense, a=conv(3, 4, 3), b=conv(4, 5, 3, padding=1), c=conv(9, 6, 3, padding=1), head=nn.Linear(15, 2)),
        IMAGES,
        {"a": (4, 1), "b": (5, 1), "c": (6, 1)},
    ),
    "unet": Case(
        code(_unet, a=conv(3, 4, 3, padding=1), b=conv(4, 5, 3, padding=1), c=conv(9, 6, 3), out=conv(6, 2, 1)),
        IMAGES,
        {"a": (4, 1), "b": (5, 1), "c": (6, 1)},
    ),
    "squeeze-excite": Case(SqueezeExcite, IMAGES, {"conv1": (6, 1), "squeeze": (4, 1), "conv2": (5, 1)}),
    "squeeze-excite-by-linear": Case(
        code(
            _squeeze_by_linear,
            conv1=conv(3, 6, 3, padding=1),
            squeeze=nn.Linear(6, 4),
            excite=nn.Linear(4, 6),
            conv2=conv(6, 5, 3),
            head=nn.Linear(180, 2),
        ),
        IMAGES,
        {"squeeze": (4, 1), "conv2": (5, 36)},
        {"conv1": "", "excite": "reshape"},
    ),
    "convnext": Case(
        code(
            _convnext,
            stem=conv(3, 4, 2, stride=2),
            dw=conv(4, 4, 3, padding=1, groups=4),
            norm=nn.LayerNorm(4),
            up=nn.Linear(4, 9),
            down=nn.Linear(9, 4),
            head=nn.Linear(4, 2),
        ),
        IMAGES,
        {"up": (9, 1)},
        {"stem": STREAM, "down": STREAM},
    ),
    "critic-with-actions": Case(
        code(_critic, features=nn.Linear(6, 7), fc=nn.Linear(9, 5), q=nn.Linear(5, 1)),
        numbers(4, 6),
        {"features": (7, 1), "fc": (5, 1)},
        needs_example=True,
    ),
    "branches-on-data": Case(
        code(_branches, net=nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3))),
        numbers(4, 6),
        {"net.0": (7, 1)},
    ),
    "names": Case(
        lambda: nn.Sequential(OrderedDict(first=nn.Linear(6, 7), act=nn.SELU(), last=nn.Linear(7, 3))),
        numbers(4, 6),
        {"first": (7, 1)},
    ),
}


def outputs(model: nn.Module, inputs: Any) -> Tensor:
    """All that the model returns, as one row."""
    with torch.no_grad():
        result = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    parts = list(result.values()) if isinstance(result, dict) else [result]
    return torch.cat([part.flatten() for part in parts if isinstance(part, Tensor)])


def coupled(model: nn.Module, group: UnitGroup) -> bool:
    """Whether a norm takes its statistics over the units: then each of them moves the others, whoever reads it."""
    mixing = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    return any(isinstance(model.get_submodule(slot.layer), mixing) for slot in group.norms)


@torch.no_grad()
def change(model: nn.Module, slots: Iterable[Slot], mask: Tensor, write: Callable[[Tensor], Tensor]) -> None:
    """Write to the entries of some units, one unit at a time and by plain indexing."""
    for slot in slots:
        view = slot.view(slot.tensor(model))
        for number, at in enumerate(itertools.product(*map(range, view.shape[: slot.lead]))):
            unit = int(slot.units[number])
            if unit >= 0 and mask[unit]:
                view[at] = write(view[at])


def assert_units_are_right(model: nn.Module, template: nn.Module, inputs: Any, group: UnitGroup) -> None:
    """The two properties that make a unit one.

    Private: with its outgoing weights at zero, nothing it computes reaches the outputs. So all that reads it is known.
    Silent: a unit that is zero can be started anew and the outputs stay. So nothing but its own is written to.
    Under a layer or group norm, both hold of what the norm writes for the unit.
    """
    generator = torch.Generator().manual_seed(3)
    mask = torch.rand(group.size, generator=generator) < 0.5
    mask[0], mask[-1] = True, group.size == 1
    affine = [slot for slot in group.norms if slot.attribute in ("weight", "bias")]
    made = [*affine] if coupled(model, group) else [*group.makers, *affine]

    def noise(entries: Tensor) -> Tensor:
        return entries + 3 * torch.randn(entries.shape, generator=generator, dtype=entries.dtype)

    noisy = copy.deepcopy(model)
    change(noisy, made, mask, noise)
    assert (outputs(noisy, inputs) - outputs(model, inputs)).abs().max() > 1e-6, "the units do not matter at all"

    private = copy.deepcopy(model)
    reset_units_(private, group, mask, template=template, generator=generator)
    before = outputs(private, inputs)
    change(private, made, mask, noise)
    torch.testing.assert_close(outputs(private, inputs), before, rtol=0, atol=1e-12)

    if not coupled(model, group):
        silent = copy.deepcopy(model)
        change(silent, made, mask, torch.zeros_like)
        before = outputs(silent, inputs)
        reset_units_(silent, group, mask, template=template, generator=generator)
        torch.testing.assert_close(outputs(silent, inputs), before, rtol=0, atol=1e-12)
