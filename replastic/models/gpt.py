"""GPT, a causal language model, in the form of nanoGPT: pre-norm blocks, GELU, a head tied to the token embedding.

Radford et al.: Language Models are Unsupervised Multitask Learners, 2019. FIRE trains the one of nanoGPT's sizes with 124M
parameters: 12 blocks of width 768, context 1024, without biases and dropout, which are the defaults here.

Modules have nanoGPT's names, so that its checkpoints load. Queries, keys and values are one layer, `c_attn`, in this order;
where="paper_gpt" selects its three parts, the other three layers of each block, and the tied head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .parts import check_sizes

_MULTIPLE = 64  # of the vocabulary's padded size: matrix products are faster then
_STD = 0.02  # of first weights


class GPT(nn.Module):
    """A causal language model: tokens, int64 (batch, tokens), to logits (batch, tokens, padded vocabulary).

    The vocabulary is padded to a multiple of 64, and every padded entry has a logit, as in the published model: GPT-2's
    50,257 tokens have 50,304 logits. No target is a padded entry, so training lowers these logits; to sample, take
    logits[..., :vocabulary].

    context: the most tokens that fit in a sequence.
    width: of the residual stream; a multiple of `heads`. MLPs have 4 · width hidden units.
    biases: whether linear layers and layer norms have them.
    dropout: of embeddings, attention weights, and what each block adds.
    tied: whether the head's weight is that of the token embedding.

    >>> model = GPT(257, 16, layers=2, heads=2, width=32)
    >>> model(torch.zeros(3, 16, dtype=torch.int64)).shape
    torch.Size([3, 16, 320])
    """

    def __init__(
        self,
        vocabulary: int,
        context: int,
        *,
        layers: int = 12,
        heads: int = 12,
        width: int = 768,
        biases: bool = False,
        dropout: float = 0.0,
        tied: bool = True,
    ) -> None:
        super().__init__()
        check_sizes(vocabulary=vocabulary, context=context, layers=layers, heads=heads, width=width)
        if width % heads:
            raise ValueError(f"width={width} is not a multiple of heads={heads}: pass a width that is")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout}: pass a probability from 0 to below 1")
        self.layers = layers
        padded = -(-vocabulary // _MULTIPLE) * _MULTIPLE
        self.transformer = Transformer(padded, context, layers, heads, width, biases, dropout)
        self.lm_head = nn.Linear(width, padded, bias=False)
        if tied:
            self.lm_head.weight = self.transformer.wte.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw all weights from N(0, 0.02²), those that write to the residual stream with 1/sqrt(2 · layers) of that."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
            else:
                nn.init.normal_(parameter, std=_STD / math.sqrt(2 * self.layers) if ".c_proj." in name else _STD)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.lm_head(self.transformer(tokens))


class Transformer(nn.Module):
    """Embeddings of tokens and positions, blocks, and a last norm."""

    def __init__(
        self, entries: int, context: int, layers: int, heads: int, width: int, biases: bool, dropout: float
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(entries, width)
        self.wpe = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.Sequential(*[Block(width, heads, biases, dropout) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width, bias=biases)

    def forward(self, tokens: Tensor) -> Tensor:
        size, context = tokens.shape[1], self.wpe.num_embeddings
        if isinstance(size, int) and size > context:  # it is not a number while the model is traced
            raise ValueError(f"{size} tokens in a row, and the context is {context}: pass tokens[:, :{context}]")
        x = self.wte(tokens) + self.wpe(torch.arange(size, device=tokens.device))
        return self.ln_f(self.h(self.drop(x)))


class Block(nn.Module):
    """Attention and an MLP, each added to the residual stream."""

    def __init__(self, width: int, heads: int, biases: bool, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, bias=biases)
        self.attn = Attention(width, heads, biases, dropout)
        self.ln_2 = nn.LayerNorm(width, bias=biases)
        self.mlp = MLP(width, biases, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Attention(nn.Module):
    """Multi-head self-attention, in which no token sees a later one."""

    def __init__(self, width: int, heads: int, biases: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.c_attn = nn.Linear(width, 3 * width, bias=biases)
        self.c_proj = nn.Linear(width, width, bias=biases)
        self.resid_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.c_attn(x).chunk(3, dim=-1)  # indexed, not unpacked: torch.fx cannot iterate over what it traces
        q, k, v = (parts[at].unflatten(-1, (self.heads, -1)).transpose(1, 2) for at in range(3))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        return self.resid_dropout(self.c_proj(mixed.transpose(1, 2).flatten(2)))


class MLP(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, width: int, biases: bool, dropout: float) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=biases)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * width, width, bias=biases)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))
