"""Which weights a method acts on: `select(model, where)`, which everything that changes weights uses."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from torch import Tensor, nn

from ..listing import some
from .inventory import Inventory, Unavailable, WeightMatrix, take_inventory
from .inventory import matrices as matrices
from .layers import Kind

Ask = str | Callable[[WeightMatrix], bool]
Where = Ask | Iterable[Ask]


@dataclass(frozen=True)
class LeftAlone:
    """A weight that a selection skips although a user might expect it there, and the reason."""

    name: str
    shape: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Selection:
    """The result of `select`: the matrices to act on, and the selected weights that are skipped."""

    chosen: tuple[WeightMatrix, ...]
    left_alone: tuple[LeftAlone, ...]


_ORDINARY: tuple[Kind, ...] = ("linear", "convolution", "recurrent", "bilinear")

PRESETS: dict[str, tuple[str, Callable[[Kind, str | None], bool]]] = {
    "everything": ("every matrix but embeddings and norms", lambda kind, role: kind in _ORDINARY),
    "linears": ("linear layers, attention projections included", lambda kind, role: kind == "linear"),
    "convolutions": ("convolutions of any dimension", lambda kind, role: kind == "convolution"),
    "queries_and_keys": ("query and key projections of attention", lambda kind, role: role in ("query", "key")),
    "embeddings": ("embedding tables, also those tied to an output head", lambda kind, role: kind == "embedding"),
    "norms": ("gains of normalisation layers, each a 1 x 1 matrix", lambda kind, role: kind == "norm"),
    "paper_cnn": ("FIRE's choice for ResNet and VGG: everything", lambda kind, role: kind in _ORDINARY),
    "paper_vit": ("FIRE's choice for ViT: queries_and_keys", lambda kind, role: role in ("query", "key")),
    "paper_gpt": ("FIRE's choice for GPT: linears and the tied head", lambda kind, role: kind in ("linear", "tied_head")),
    "paper_dqn": ("FIRE's choice for DQN: convolutions", lambda kind, role: kind == "convolution"),
    "paper_sac": ("FIRE's choice for SAC: linears", lambda kind, role: kind == "linear"),
}


def select(model: nn.Module, where: Where = "everything", *, frozen: bool = False, elsewhere: bool = False) -> Selection:
    """The weight matrices of `model` that `where` selects, each tensor once, and the skipped weights with the reason.

    where: one of these, or a list of them (their union):
        a preset's name      "everything", "queries_and_keys", ... (`weights.PRESETS`); "preset:name" if a module is named so
        a glob over names    "encoder.*", "*.mlp.*.weight", "*:value" (a part of a fused weight)
        a name               the name of a weight, or of the module that holds it
        a predicate          called with each `WeightMatrix`
    Embeddings and norms are selected only by their preset or their own name, not by a glob or a predicate that matches
    them. A weight tied to an embedding counts as an embedding, except in the preset "paper_gpt".
    frozen: whether weights that do not train may be selected, for callers that only read.
    elsewhere: whether weights in a `weights.place.Place` may be selected, for callers that gather and scatter them.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}: pass the model itself")
    return choose(take_inventory(model, frozen=frozen, elsewhere=elsewhere), where)


def choose(found: Inventory, where: Where) -> Selection:
    """`select` from an inventory that was already taken."""
    asks = list(where) if isinstance(where, Iterable) and not isinstance(where, str) else [where]
    tests = [_test(ask, found) for ask in asks]

    for weight in found.broken:
        if any(test(weight) for test in tests):
            raise TypeError(f"{weight.name} {weight.reason}")
    chosen = [weight for weight in found.weights if any(test(weight) for test in tests)]
    wanted = [weight for weight in found.skipped if any(test(weight) for test in tests)]
    if any(callable(ask) for ask in asks):  # a predicate takes a WeightMatrix, which these are not
        wanted = [*found.skipped, *found.broken]
    left_alone = [LeftAlone(weight.name, weight.shape, weight.reason) for weight in wanted]
    left_alone += _unasked_embeddings(asks, found, chosen, wanted)
    if not chosen:
        raise ValueError(_nothing(where, left_alone, found))
    _check_no_overlap(chosen)
    return Selection(tuple(chosen), tuple(left_alone))


def _test(ask: object, found: Inventory) -> Callable[[WeightMatrix | Unavailable], bool]:
    """One element of `where`, as a test on weights."""
    if isinstance(ask, nn.Module | Tensor):
        raise TypeError(f"where holds a {type(ask).__name__}: pass its name instead, as in where='encoder.0'")
    if callable(ask):
        return lambda weight: isinstance(weight, WeightMatrix) and weight.kind in _ORDINARY and bool(ask(weight))
    if not isinstance(ask, str):
        raise TypeError(f"where={ask!r}: pass a preset's name, a glob, a weight's name, a predicate, or a list of these")
    if ask in PRESETS and ask in found.modules:
        raise ValueError(f"where={ask!r} is a preset and a module of this model: write '{ask}.*' or 'preset:{ask}'")
    if ask.removeprefix("preset:") in PRESETS:
        rule = PRESETS[ask.removeprefix("preset:")][1]
        return lambda weight: rule(weight.kind, weight.role)
    if any(sign in ask for sign in "*?["):
        return lambda w: w.kind in _ORDINARY and any(fnmatch.fnmatchcase(form, ask) for form in _forms(w))
    everything = [*found.weights, *found.skipped, *found.broken]
    if ask not in found.modules and not any(ask in _forms(weight) for weight in everything):
        near = difflib.get_close_matches(ask, [*PRESETS, *(weight.name for weight in everything)], n=3, cutoff=0.5)
        raise ValueError(
            f"where={ask!r} is neither a preset ({', '.join(PRESETS)}) nor the name of a weight or module of this model"
            + (f"; did you mean {' or '.join(map(repr, near))}?" if near else f"; a pattern would be '*{ask}*'")
        )
    inside = f"{ask}."
    return lambda w: ask in _forms(w) or (w.kind in _ORDINARY and any(n.startswith(inside) for n in _names(w)))


def _names(weight: WeightMatrix | Unavailable) -> tuple[str, ...]:
    return (weight.name, *weight.also_named)


def _forms(weight: WeightMatrix | Unavailable) -> list[str]:
    """All names of a weight: with the part, without it, and those of the modules that hold it."""
    wholes = [name.partition(":")[0] for name in _names(weight)]
    return [*_names(weight), *wholes, *(whole.rpartition(".")[0] for whole in wholes)]


def _unasked_embeddings(
    asks: Sequence[object], found: Inventory, chosen: list[WeightMatrix], wanted: list[Unavailable]
) -> list[LeftAlone]:
    """Embeddings that are skipped although linear layers were asked for, or a glob matches them."""

    def meant(ask: object, weight: WeightMatrix | Unavailable) -> bool:
        if not isinstance(ask, str):
            return False
        rule = PRESETS.get(ask.removeprefix("preset:"))
        return rule[1]("linear", None) if rule else any(fnmatch.fnmatchcase(form, ask) for form in _forms(weight))

    taken, asked = {weight.region for weight in chosen}, {id(weight) for weight in wanted}
    frozen = [
        LeftAlone(weight.name, weight.shape, weight.reason)
        for weight in found.skipped
        if weight.kind == "embedding" and id(weight) not in asked and any(meant(ask, weight) for ask in asks)
    ]
    return frozen + [
        LeftAlone(
            weight.name,
            tuple(weight.parameter.shape),
            f"output head tied to {weight.tied_to}: ask for it by name, or as the paper did with where='paper_gpt'"
            if weight.kind == "tied_head"
            else "embedding: ask for it by name, or with where=['everything', 'embeddings']",
        )
        for weight in found.weights
        if weight.kind in ("embedding", "tied_head") and weight.region not in taken and any(meant(a, weight) for a in asks)
    ]


def _nothing(where: Where, left_alone: list[LeftAlone], found: Inventory) -> str:
    start = f"where={where!r} selects no weight matrix of this model"
    if left_alone:
        listed = some((f"{weight.name}: {weight.reason}" for weight in left_alone), "; ")
        return f"{start} that may be changed ({listed})"
    names = [weight.name for weight in found.weights if weight.kind in _ORDINARY]
    if not names:
        return f"{start}: it has no linear, convolutional, recurrent or attention layer"
    near = difflib.get_close_matches(where, names, n=3, cutoff=0.5) if isinstance(where, str) else []
    listed = ", ".join(near or names[:5])
    return f"{start}; it has {len(names)}, such as {listed}: pass one of these names, a glob, or where='everything'"


def _check_no_overlap(chosen: list[WeightMatrix]) -> None:
    """Raise if two chosen weights would write the same memory."""
    spans = [(str(w.region.where), w.region.start, w.region.stop, w.name.partition(":")[0]) for w in chosen]
    there, end, before = "", 0, ""  # of the earlier spans, the one that ends last: a span that overlaps any overlaps it
    for where, start, stop, name in sorted(spans, key=itemgetter(0, 1)):
        if name != before and where == there and start < end:
            raise ValueError(f"{before} and {name} share memory, read in two ways: choose one of them")
        there, end, before = max((there, end, before), (where, stop, name))
