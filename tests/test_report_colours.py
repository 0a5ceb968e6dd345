"""Colours: one for each method wherever it is shown, and grey for training without one."""

import numpy as np
import pytest

from replastic.methods import METHODS
from replastic.report.colours import _COLOURS, _GREY, _OF_METHODS, styles
from replastic.report.contents import chapter
from replastic.report.items import Arm

from .records import arm_of, study_of


def test_a_method_has_its_colour_in_every_experiment_and_the_baseline_is_grey() -> None:
    alone = styles([Arm("base", "", baseline=True), Arm("FIRE", "", method="fire")])
    many = styles([Arm(name, "", method=name) for name in ("dash", "swr", "fire")] + [Arm("BP", "", baseline=True)])
    assert alone["FIRE"] == many["fire"]
    assert alone["base"] == many["BP"]
    assert alone["base"][:2] == _GREY
    assert len(set(many.values())) == 4


def test_a_chosen_baseline_keeps_the_colour_of_its_method() -> None:
    found = styles([Arm("full reset", "", baseline=True, method="full_reset"), Arm("base", "")])
    assert found["full reset"].light == styles([Arm("reset", "", method="full_reset")])["reset"].light
    assert found["base"][:2] == _GREY


def test_arms_of_one_method_differ_in_their_dashes_and_then_in_their_colours() -> None:
    found = styles([Arm(f"FIRE {steps}", "", method="fire") for steps in range(7)] + [Arm("swr", "", method="swr")])
    assert len(set(found.values())) == 8
    assert [look.light for look in found.values()].count(_COLOURS[0][0]) == 4
    assert [look.light for look in found.values()].count(_COLOURS[3][0]) == 1  # what is left over does not take SWR's


def test_every_method_has_a_place_of_its_own() -> None:
    missing = set(METHODS) - set(_OF_METHODS)
    assert not missing
    assert len(set(_OF_METHODS.values())) == len(_OF_METHODS)


def test_arms_of_a_report_know_their_method() -> None:
    arms = chapter(study_of(*arm_of("base"), *arm_of("fire", 0.1))).arms
    assert [arm.method for arm in arms] == ["", "fire"]


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


DEUTERANOPIA = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])  # Machado et al. 2009
PROTANOPIA = np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]])


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("sight", [DEUTERANOPIA, PROTANOPIA, np.eye(3)])
def test_the_first_colours_differ_for_colour_blind_readers(sight: np.ndarray, theme: int) -> None:
    seen = [sight @ linear(one[theme]) for one in (*_COLOURS[:4], _GREY)]
    gaps = [abs(a - b).max() for number, a in enumerate(seen) for b in seen[:number]]
    assert min(gaps) > 0.05
