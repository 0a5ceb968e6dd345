"""ViT-Tiny for 32x32 images: patches of 4x4, twelve blocks of width 192, as FIRE uses it on CIFAR-100.

Dosovitskiy et al.: An Image is Worth 16x16 Words, ICLR 2021, in the form of the vit-pytorch library: layer norms before and
after the patch embedding, pre-norm blocks, and a norm before the classifier, which reads the class token. There is no
dropout. Class token and positions are drawn from N(0, 1); everything else has torch's default initialisation.

Queries, keys and values are separate layers, as FIRE's choice of weights for ViT needs: where="paper_vit" selects `to_q` and
`to_k` of each block. They have no biases, which follows from the paper's 5.37 M parameters for 100 classes (with biases
there would be 5.38 M). All other linear layers have one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .parts import Activation, check_sizes, make_activation, width_after


class ViT(nn.Module):
    """A vision transformer.

    size: height and width of the images; a multiple of `patch`.
    dim: width of the residual stream. heads, head_dim: number and width of attention heads. mlp: hidden units per block.

    >>> sum(parameter.numel() for parameter in ViT().parameters())
    5373700
    """

    def __init__(
        self,
        classes: int = 100,
        *,
        image_channels: int = 3,
        size: int = 32,
        patch: int = 4,
        dim: int = 192,
        depth: int = 12,
        heads: int = 3,
        head_dim: int = 64,
        mlp: int = 768,
        activation: Activation = "gelu",
    ) -> None:
        super().__init__()
        check_sizes(patch=patch, dim=dim, depth=depth, heads=heads, head_dim=head_dim, mlp=mlp, classes=classes)
        if size % patch or size < patch:
            raise ValueError(
                f"images of {size}x{size} cannot be cut into patches of {patch}x{patch}: pass a patch that divides {size}"
            )
        if activation == "crelu":
            raise ValueError("activation='crelu' doubles axis 1, the tokens of a transformer: pass another activation")
        inputs = image_channels * patch * patch
        self.patch = patch
        self.embed = nn.Sequential(nn.LayerNorm(inputs), nn.Linear(inputs, dim), nn.LayerNorm(dim))
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.positions = nn.Parameter(torch.empty(1, 1 + (size // patch) ** 2, dim))
        self.blocks = nn.Sequential(*[Block(dim, heads, head_dim, mlp, activation) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw the class token and the positions. Layers have a reset_parameters() of their own."""
        nn.init.normal_(self.cls_token)
        nn.init.normal_(self.positions)

    def forward(self, images: Tensor) -> Tensor:
        # (batch, channels, rows, patch, columns, patch) -> (batch, rows · columns, patch · patch · channels)
        cut = images.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))
        tokens = self.embed(cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2))
        tokens = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1) + self.positions
        return self.head(self.norm(self.blocks(tokens)[:, 0]))


class Block(nn.Module):
    """Attention and an MLP, each added to the residual stream."""

    def __init__(self, dim: int, heads: int, head_dim: int, mlp: int, activation: Activation) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, head_dim)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, mlp), make_activation(activation), nn.Linear(width_after(activation, mlp), dim)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        return tokens + self.mlp(self.mlp_norm(tokens))


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_k = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_v = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_out = nn.Linear(heads * head_dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        made = (layer(tokens) for layer in (self.to_q, self.to_k, self.to_v))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in made)  # (batch, heads, tokens, head_dim)
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
