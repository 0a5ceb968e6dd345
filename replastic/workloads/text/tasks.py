"""Tasks of text: windows of tokens, drawn from corpora in an order that has no state, and fixed windows to test on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...learner import IndexedTask
from ...learner.task import outputs_of
from ...options import nearest
from ..base import in_evaluation
from .tokens import TokenData

_LOGITS_AT_ONCE = 2**29  # in a test: 2 GiB in float32, and as much again for their loss
Draw = Literal["random", "passes"]
Sources = str | Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of `context` tokens and the next one, at equal distances. Inputs are the tokens, targets the next of each."""

    data: TokenData
    context: int
    first: int
    count: int
    stride: int

    def __len__(self) -> int:
        return self.count

    @property
    def device(self) -> torch.device:
        return self.data.tokens.device

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets, int64 (batch, context)."""
        found = self.data.windows(self.first + chosen * self.stride, self.context + 1)
        return found[:, :-1], found[:, 1:]


@dataclass(frozen=True, eq=False)
class TextData:
    """The corpora of an experiment, and how windows are drawn from them. Protocols make tasks of it.

    context: tokens that a model sees at once.
    draw: "random": windows start anywhere, with replacement; "passes": they do not overlap, and each comes once in a pass
        over its corpus, which begins at a random offset.
    test_windows: the first windows of each test set; None: all.
    at_once: windows that are tested together, or fewer if their logits are many.
    """

    tokens: TokenData
    context: int
    draw: Draw = "random"
    test_windows: int | None = None
    at_once: int = 16

    def __post_init__(self) -> None:
        if not isinstance(self.context, int) or self.context < 1:
            raise ValueError(f"context = {self.context!r}: set the tokens of a window, 1 or more")
        if self.draw not in get_args(Draw):
            raise ValueError(f'windows = {self.draw!r}: set "random" or "passes"')
        if self.test_windows is not None and self.test_windows < 1:
            raise ValueError(f"test_windows = {self.test_windows}: set 1 or more, or leave it out")
        for table, several in (("train", self.tokens.train), ("test", self.tokens.test)):
            for name, where in several.items():
                if len(where) <= self.context:
                    raise ValueError(
                        f"{table}.{name} has {len(where):,} tokens, and a window of context = {self.context:,} needs "
                        f"{self.context + 1:,}: name more text, or set a shorter context"
                    )

    @property
    def corpora(self) -> list[str]:
        """Names of what can be learnt from."""
        return [*self.tokens.train]

    def tests(self) -> dict[str, Windows]:
        """The windows of each test set, which do not overlap."""
        found = {}
        for name, where in self.tokens.test.items():
            count = (len(where) - 1) // self.context
            found[name] = Windows(
                self.tokens, self.context, where.start, min(count, self.test_windows or count), self.context
            )
        return found

    def task(self, name: str, sources: Sources, *, batch: int, steps: int) -> TextTask:
        """A task that learns from a corpus, or from several by weight, and is tested on all sets.

        sources: the name of a corpus, or weights by name, which sum to 1: the share of windows from each.
        """
        weights = self._weights(name, sources)
        if not isinstance(batch, int) or batch < 1:
            raise ValueError(f"batch={batch!r}: set the windows of a step, a whole number, 1 or more")
        corpora = {one: self.tokens.train[one] for one in weights}
        held = sum(_windows_in(where, self.context) for where in corpora.values())
        if self.draw == "passes" and held < batch:
            raise ValueError(
                f"{name}: {', '.join(weights)} has {held} windows, and batch = {batch}: name more text, or set a "
                'smaller batch, or windows = "random"'
            )
        drawing = Drawing(corpora, tuple(weights.values()), self.draw, self.context, max(held // batch, 1) * batch)
        samples = Windows(self.tokens, self.context, 0, len(self.tokens.tokens) - self.context, 1)
        tests, most = self.tests(), _LOGITS_AT_ONCE // (self.context * self.tokens.vocabulary)
        evaluate = partial(losses, tests, max(min(self.at_once, most), 1))

        def batches(generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
            order = drawing.order(generator).to(samples.device)
            return (samples.batch(chosen) for chosen in order.split(batch))

        return TextTask(
            name, batches, next_token_loss, evaluate, steps=steps, batch_size=batch,
            samples=samples, tests=tests, drawing=drawing,
        )  # fmt: skip

    def _weights(self, name: str, sources: Sources) -> dict[str, float]:
        weights = {sources: 1.0} if isinstance(sources, str) else sources
        if not isinstance(weights, Mapping) or not weights:
            raise ValueError(
                f"{name}: sources = {sources!r}: set the name of a corpus, or weights, as in {{ {self.corpora[0]} = 1.0 }}"
            )
        for one, weight in weights.items():
            if one not in self.tokens.train:
                raise ValueError(f"{name}: sources = {one!r}: {nearest(one, self.corpora)}")
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 1:
                raise ValueError(
                    f"{name}: the weight of {one} is {weight!r}: set a share of the windows, above 0 and at most 1"
                )
        if abs(sum(weights.values()) - 1) > 1e-6:  # decimals of shares, as people write them, may not sum to 1 exactly
            said = " + ".join(f"{weight:g}" for weight in weights.values())
            raise ValueError(f"{name}: the weights of sources sum to {said} = {sum(weights.values()):g}: make them sum to 1")
        return dict(weights)


@dataclass(frozen=True)
class Drawing:
    """How the windows of a pass are drawn.

    corpora, weights: where the corpora lie in the tensor of tokens, and the share of windows from each.
    windows: in a pass; a multiple of the batch, so that every batch is whole.
    """

    corpora: Mapping[str, range]
    weights: Sequence[float]
    draw: Draw
    context: int
    windows: int

    def order(self, generator: torch.Generator) -> Tensor:
        """Where the windows of a pass start: first the corpus of each window is drawn, then its place in the corpus."""
        corpora, device = list(self.corpora.values()), generator.device
        if len(corpora) == 1:
            return self._starts(corpora[0], self.windows, generator)
        ends = torch.tensor(self.weights, dtype=torch.float64, device=device).cumsum(0)[:-1]
        drawn = torch.rand(self.windows, generator=generator, dtype=torch.float64, device=device)
        chosen = torch.bucketize(drawn, ends, right=True)
        starts = torch.empty(self.windows, dtype=torch.int64, device=device)
        for number, corpus in enumerate(corpora):
            mine = (chosen == number).nonzero().flatten()
            starts[mine] = self._starts(corpus, len(mine), generator)
        return starts

    def drawn(self, starts: Tensor) -> dict[str, int]:
        """How many of these windows are of each corpus."""
        return {name: int(((starts >= where.start) & (starts < where.stop)).sum()) for name, where in self.corpora.items()}

    def _starts(self, corpus: range, count: int, generator: torch.Generator) -> Tensor:
        """Where `count` windows of a corpus start."""
        size, device = self.context, generator.device
        if self.draw == "random":
            return corpus.start + torch.randint(len(corpus) - size, (count,), generator=generator, device=device)
        found, left = [torch.empty(0, dtype=torch.int64, device=device)], count
        while left > 0:  # a share of a mixture may be more than the corpus holds: then another pass over it begins
            offset = int(torch.randint(min(size, len(corpus) - size), (1,), generator=generator, device=device))
            windows = (len(corpus) - 1 - offset) // size
            order = torch.randperm(windows, generator=generator, device=device)[:left]
            found.append(corpus.start + offset + order * size)
            left -= len(order)
        return torch.cat(found)


@dataclass(frozen=True, eq=False)
class TextTask(IndexedTask):
    """A task of windows. A sample's number is where its window starts in the tensor of tokens."""

    samples: Windows = field(kw_only=True)
    tests: Mapping[str, Windows] = field(kw_only=True)
    drawing: Drawing = field(kw_only=True)

    def __len__(self) -> int:
        return self.drawing.windows

    @property
    def figures(self) -> list[str]:
        """The names of what `evaluate` returns."""
        return [f"{name}_{figure}" for name in self.tests for figure in ("loss", "bits")]

    def order(self, generator: torch.Generator) -> Tensor:
        return self.drawing.order(generator)

    def row(self, steps: int, orders: Sequence[Tensor]) -> dict[str, Any]:
        """The tokens of all steps so far, and how many windows of each corpus were drawn since the row before."""
        tokens = steps * self.batch_size * self.samples.context
        return {"tokens": tokens, **({"drawn": self.drawing.drawn(torch.cat(list(orders)))} if orders else {})}


def _windows_in(corpus: range, context: int) -> int:
    """The windows of a corpus that do not overlap, whatever their offset; at least one."""
    return max((len(corpus) - context) // context, 1)


def next_token_loss(outputs: Any, targets: Tensor) -> Tensor:
    """The mean loss of a token, in nats."""
    return F.cross_entropy(_logits(outputs), targets.flatten())


def _logits(outputs: Tensor) -> Tensor:
    """Logits (tokens, vocabulary), in float32 or better."""
    return outputs.flatten(0, -2).to(torch.promote_types(outputs.dtype, torch.float32))


@torch.no_grad()
def losses(tests: Mapping[str, Windows], at_once: int, model: nn.Module) -> dict[str, float | Tensor]:
    """Of each set, "<name>_loss" in nats a token and "<name>_bits" in bits a byte of text.

    The end of a text counts in the loss. It has no bytes, and is left out of both sums of the bits.
    """
    found: dict[str, float | Tensor] = {}
    with in_evaluation(model):
        for name, windows in tests.items():
            data, size = windows.data, windows.context
            everything = torch.arange(len(windows), device=windows.device)
            total = torch.zeros(2, dtype=torch.float64, device=windows.device)  # of all tokens, and of those with bytes
            length = torch.zeros((), dtype=torch.int64, device=windows.device)
            for chosen in everything.split(at_once):
                inputs, targets = windows.batch(chosen)
                outputs = outputs_of(model, inputs)
                nats = F.cross_entropy(_logits(outputs), targets.flatten(), reduction="none").double()
                within = nats if data.end is None else nats * (targets.flatten() != data.end)
                total += torch.stack([nats.sum(), within.sum()])
                length += data.lengths[targets].sum()
            found[f"{name}_loss"] = total[0] / (len(windows) * size)
            found[f"{name}_bits"] = total[1] / (math.log(2) * length)
    return found
