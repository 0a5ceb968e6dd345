"""The colour and dash of each arm, on the page and in every figure: a method has the same colour everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .items import Arm

# Distinguishable also with red-green colour blindness (after Okabe and Ito), each with a contrast of 3 to 1 or better: the
# first on white, the second on black.
_COLOURS = (
    ("#0072b2", "#4aa8e0"),  # blue
    ("#d55e00", "#f28a3c"),  # vermilion
    ("#00805f", "#2fc49a"),  # green
    ("#b0509a", "#e08fce"),  # purple
    ("#8a6d00", "#e0c040"),  # mustard
    ("#5b5bd6", "#a3a3ff"),  # violet
    ("#a61b29", "#ff7f8a"),  # red
    ("#107e8f", "#5fd0e0"),  # teal
)
_DASHES = ((), (6, 3), (2, 2), (8, 3, 2, 3))  # when there are more arms than colours
_GREY = ("#555555", "#b0b0b0")  # of training without a method
DARK = dict((*_COLOURS, _GREY))  # the dark version of each colour
_OF_METHODS = {  # colour and dash, by their places
    "fire": (0, 0), "fire_on_alarm": (0, 1),
    "full_reset": (1, 0), "layer_reset": (1, 1), "plasticity_injection": (1, 2),
    "shrink_and_perturb": (2, 0), "shrink_and_add_noise": (2, 1), "perturb_each_step": (2, 2), "shrink_encoder": (2, 3),
    "swr": (3, 0), "restore_norms": (3, 1), "hare_and_tortoise": (3, 2), "muon": (3, 3),
    "dash": (4, 0), "parseval": (4, 1), "normalize_and_project": (4, 2),
    "l2_init": (5, 0), "l2": (5, 1), "wasserstein": (5, 2), "weight_clipping": (5, 3),
    "l2_er": (6, 0), "er": (4, 3), "spectral": (6, 2),
    "cbp": (7, 0), "redo": (7, 1), "snr": (7, 2),
}  # fmt: skip


class Style(NamedTuple):
    """The look of a line: its colour on light paper and on a dark screen, and its dashes in points."""

    light: str
    dark: str
    dash: tuple[int, ...]


def style(number: int) -> Style:
    """The style of a line that belongs to no arm, by its place."""
    return Style(*_COLOURS[number % len(_COLOURS)], _DASHES[number // len(_COLOURS) % len(_DASHES)])


def styles(arms: Sequence[Arm]) -> dict[str, Style]:
    """The style of each arm, by its name: the colour of its method, and grey without one.

    Arms of one colour differ in their dashes; those of one family, which differ in where they start, look the same.
    """
    first = {arm.family or arm.name: arm for arm in reversed(arms)}
    found = _styles(list(reversed(first.values())))
    return {arm.name: found[first[arm.family or arm.name].name] for arm in arms}


def _styles(arms: Sequence[Arm]) -> dict[str, Style]:
    places = [(colour, dash) for dash in range(len(_DASHES)) for colour in range(len(_COLOURS))]
    meant = [_OF_METHODS.get(arm.method, (None, 0)) if arm.method else (-1, 0) for arm in arms]
    free = [place for place in places if place[0] not in {colour for colour, _ in meant}]  # colours of no method here
    found, taken = {}, set[tuple[int, int]]()
    for arm, (colour, dash) in zip(arms, meant, strict=True):
        own = [] if colour is None else [(colour, (dash + more) % len(_DASHES)) for more in range(len(_DASHES))]
        place = next((place for place in [*own, *free, *places] if place not in taken), places[len(found) % len(places)])
        taken.add(place)
        found[arm.name] = Style(*(_GREY if place[0] < 0 else _COLOURS[place[0]]), _DASHES[place[1]])
    return found
