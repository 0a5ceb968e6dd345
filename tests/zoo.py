"""Small models of every kind that methods meet, each with a batch of data to learn from."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from replastic.models import CNN, MLP, ResNet


class ViT(nn.Module):
    """Pre-norm, queries, keys and values apart, a class token; as vit-pytorch names its parts."""

    def __init__(self, dim: int = 16, depth: int = 2, heads: int = 2, classes: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 4, stride=4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.positions = nn.Parameter(torch.randn(1, 5, dim))
        self.blocks = nn.ModuleList([Block(dim, heads, causal=False) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], dim=1) + self.positions
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens)[:, 0])


class GPT(nn.Module):
    """Fused attention projection, output head tied to the embedding, no biases."""

    def __init__(self, vocabulary: int = 11, dim: int = 16, depth: int = 2, heads: int = 2, context: int = 8) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, dim)
        self.wpe = nn.Embedding(context, dim)
        self.blocks = nn.ModuleList([Block(dim, heads, causal=True) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.attention_norm = nn.LayerNorm(dim)
        self.c_attn = nn.Linear(dim, 3 * dim, bias=not causal)
        self.c_proj = nn.Linear(dim, dim, bias=not causal)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.c_attn(self.attention_norm(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.c_proj(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


class NatureCNN(nn.Module):
    """The DQN network: three convolutions and two linear layers, with functional activations."""

    def __init__(self, actions: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 8, 8, stride=4)
        self.conv2 = nn.Conv2d(8, 16, 4, stride=2)
        self.conv3 = nn.Conv2d(16, 16, 3)
        self.head = nn.Sequential(nn.Linear(16 * 3 * 3, 32), nn.ReLU(), nn.Linear(32, actions))
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, frames: Tensor) -> Tensor:
        x = F.relu(self.conv1(frames / 255.0))
        x = F.relu(self.conv3(F.relu(self.conv2(x))))
        return self.head(x.view(x.size(0), -1))


class SimBa(nn.Module):
    """Residual MLP blocks behind a layer norm each, as SAC's critic."""

    def __init__(self, observations: int = 6, width: int = 16, blocks: int = 2, outputs: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(observations, width)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
                for _ in range(blocks)
            ]
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
        nn.init.orthogonal_(self.embed.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


class ActorCritic(nn.Module):
    """Two heads on one trunk; not in the zoo, because it has two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.pi, self.v = nn.Linear(3, 8), nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.body(x))
        return self.pi(hidden), self.v(hidden)


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class Animal:
    build: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], Tensor]
    targets: Callable[[torch.Generator], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy

    def batch(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return self.inputs(generator), self.targets(generator)


def _numbers(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(*shape, generator=generator)


def _classes(high: int, *shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randint(high, shape, generator=generator)


ZOO: dict[str, Animal] = {
    "mlp": Animal(lambda: MLP(6, [12, 10], 4), _numbers(8, 6), _classes(4, 8)),
    "cnn-bn": Animal(
        lambda: CNN(3, 8, 4, channels=6, convolutions=1, hidden=[12], kernel=3, norm="batch"),
        _numbers(8, 3, 8, 8),
        _classes(4, 8),
    ),
    "resnet": Animal(
        lambda: ResNet(classes=4, widths=[4, 8], blocks=[1, 1], hidden=[8]), _numbers(8, 3, 8, 8), _classes(4, 8)
    ),
    "vit": Animal(lambda: ViT(), _numbers(8, 3, 8, 8), _classes(4, 8)),
    "gpt": Animal(lambda: GPT(), _classes(11, 4, 8), _classes(11, 4, 8), token_loss),
    "nature-cnn": Animal(
        lambda: NatureCNN(), lambda g: torch.randint(256, (4, 4, 52, 52), generator=g).float(), _classes(4, 4)
    ),
    "simba": Animal(lambda: SimBa(), _numbers(8, 6), _classes(4, 8)),
}
