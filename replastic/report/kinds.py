"""What kind of figure a name stands for: whether lower is better, its set, and what it is called on an axis.

Rows name figures as "<set>_<kind>", such as "test_accuracy", "wikitext_loss" and "wikitext_bits".
"""

from __future__ import annotations

from collections.abc import Iterable

_LOWER = ("loss", "bits", "perplexity")
KINDS = (*_LOWER, "accuracy")
_UNITS = {"loss": "nats a token", "bits": "bits a byte"}  # of text
_TRAINED = ("", "online", "train")  # sets that are figures of training
_SPLITS = (*_TRAINED, "test", "validation", "full")  # sets that change with the task, or that are not held out


def is_lower_better(figure: str) -> bool:
    """Whether the figure is a loss, bits a byte or a perplexity."""
    return figure.endswith(_LOWER)


def heading_of(figure: str) -> str:
    """The heading above its charts."""
    return "Accuracy" if figure.endswith("accuracy") else "Loss" if is_lower_better(figure) else "Figures"


def is_figure(name: str) -> bool:
    """Whether a key of a row is a figure by which arms can be compared.

    >>> [name for name in ("test_accuracy", "wikitext_bits", "step", "path") if is_figure(name)]
    ['test_accuracy', 'wikitext_bits']
    """
    return name.endswith(KINDS)


def parts_of(figure: str) -> tuple[str, str]:
    """The set and the kind of a figure.

    >>> parts_of("openmix_loss"), parts_of("loss")
    (('openmix', 'loss'), ('', 'loss'))
    """
    of_set, _, kind = figure.rpartition("_")
    return of_set, kind


def is_of_training(figure: str) -> bool:
    """Whether the figure is taken on what the run trains on.

    >>> is_of_training("loss"), is_of_training("online_accuracy"), is_of_training("openmix_loss")
    (True, True, False)
    """
    return parts_of(figure)[0] in _TRAINED


def sets_of(names: Iterable[str], kind: str) -> list[str]:
    """The sets on which figures of this kind are taken, sorted: those with names of their own, which all tasks share.

    A row also has figures of further networks, each under that network's name: these are not sets.

    >>> sets_of(["loss", "test_loss", "b_loss", "a_loss", "a_bits", "slow_a_loss"], "loss")
    ['a', 'b']
    """
    found = {of_set for of_set, of_kind in map(parts_of, names) if of_kind == kind and of_set not in _SPLITS}
    return sorted(name for name in found if not any(name.endswith(f"_{other}") for other in (*found, *_SPLITS[1:])))


def in_words(figure: str) -> str:
    """The name of a figure as it is read: "train_accuracy" is train accuracy.

    >>> in_words("measures.effective_rank/head.1")
    'effective rank/head.1'
    """
    name, slash, place = figure.removeprefix("measures.").partition("/")
    return name.replace("_", " ") + slash + place


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def label_of(figure: str, *, of_text: bool) -> str:
    """What an axis is called. of_text: whether the figure is of tokens, which have units.

    >>> label_of("openmix_loss", of_text=True), label_of("wikitext_bits", of_text=True), label_of("test_loss", of_text=False)
    ('openmix loss (nats a token)', 'wikitext bits a byte', 'test loss')
    """
    of_set, kind = parts_of(figure)
    if not of_text or not is_figure(figure):
        return in_words(figure)
    name = in_words(of_set) or "training"
    if kind == "bits":
        return f"{name} {_UNITS[kind]}"
    return f"{name} {kind}" + (f" ({_UNITS[kind]})" if kind in _UNITS else "")


def short(count: float) -> str:
    """A number of tokens or steps, readable.

    >>> short(11364), short(90_112_000), short(9_035_582_198)
    ('11,364', '90.1 M', '9.04 G')
    """
    unit, letter = next((one for one in ((1e9, " G"), (1e6, " M")) if count >= one[0]), (1, ""))
    return f"{count / unit:.3g}{letter}" if letter else f"{count:,.0f}"
