"""`measure`: several measures of a probe at once."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .catalogue import MEASURES
from .probe import NotApplicable, NotMeasurable, Probe


def measure(
    probe: Probe | Mapping[str, Probe],
    names: str | Iterable[str] = "cheap",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, float]:
    """Measures of a probe, by flat names: "dormant_fraction/layer1.conv1", and "dormant_fraction" for the whole model.

    probe: a probe, or several by name, for example {"train": probe, "test": test_probe}: names then begin with "train/" and
        "test/".
    names: measures (`MEASURES` lists them), families ("weights", "features", "units", "gradients", "curvature"), or "cheap"
        for all that need at most a forward pass. Measures that need a reference or a special kind of model, or repeat
        another measure as its authors compute it, must be named.
    settings: changes to the defaults, by measure: {"dormant_fraction": {"tau": 0.1}}.

    Raises NotMeasurable, with the measure and what it needs, if a measure cannot be computed, or if its result is not finite
    or only rounding. The condition number of a singular matrix is infinite, and not an error. If you ask for a family,
    measures that do not apply to this kind of model are skipped with a warning.
    """
    if isinstance(probe, Mapping):
        taken = {label: measure(one, names, settings) for label, one in probe.items()}
        return {f"{label}/{name}": value for label, values in taken.items() for name, value in values.items()}
    if not isinstance(probe, Probe):
        raise TypeError(f"measure needs a Probe, got {type(probe).__name__}: write measure(Probe(model, batch), names)")
    settings = settings or {}
    if not isinstance(names, str | Iterable):
        raise TypeError(f"names is a {type(names).__name__}: pass the names of measures or of a family")
    asked = [names] if isinstance(names, str) else list(names)
    chosen = chosen_measures(asked)
    check_settings(settings, chosen)
    found: dict[str, float] = {}
    for name in chosen:
        try:
            with torch.inference_mode(False), torch.no_grad():
                values = MEASURES[name].take(probe, settings.get(name, {}))
        except NotApplicable as problem:
            if name in asked:
                raise NotApplicable(f"{name}: {problem}") from problem
            warnings.warn(f"{name} is left out: {problem}", stacklevel=2)
            continue
        except NotMeasurable as problem:
            raise NotMeasurable(f"{name}: {problem}") from problem
        found |= {f"{name}/{layer}" if layer else name: value for layer, value in values.items()}
    if not found:
        raise NotApplicable(f"nothing of {', '.join(asked)} applies to this model: {', '.join(chosen)} do not")
    return found


def chosen_measures(asked: Iterable[str]) -> list[str]:
    """The measures that names and families stand for."""
    families = {entry.family for entry in MEASURES.values()}
    chosen: dict[str, None] = {}
    for ask in asked:
        if ask in MEASURES:
            chosen[ask] = None
        elif ask in families or ask == "cheap":
            for name, entry in MEASURES.items():
                if not entry.by_name and (entry.family == ask or (ask == "cheap" and entry.cheap)):
                    chosen[name] = None
        else:
            raise ValueError(_unknown(str(ask), sorted(families)))
    if not chosen:
        raise ValueError("names is empty: pass names of measures, a family, or 'cheap'")
    return list(chosen)


def _unknown(ask: str, families: list[str]) -> str:
    measured, slash, _ = ask.partition("/")
    if slash and measured in MEASURES:
        return f"{ask!r}: values of layers come with their measure. Write measure(probe, {measured!r})[{ask!r}]"
    near = difflib.get_close_matches(ask, MEASURES, n=3, cutoff=0.6) or [name for name in MEASURES if ask in name]
    known = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(MEASURES)}"
    return f"{ask!r} is not a measure; {known}{'' if near else ','} and the families {', '.join(families)} and 'cheap'"


def check_settings(settings: Mapping[str, Mapping[str, Any]], chosen: list[str]) -> None:
    """Raise for settings that no chosen measure takes."""
    for name, given in settings.items():
        if name not in chosen:
            raise ValueError(f"settings has {name!r}, which is not measured; the measures are {', '.join(chosen)}")
        unknown = [key for key in given if key not in MEASURES[name].settings]
        if unknown:
            known = ", ".join(f"{key}={value!r}" for key, value in MEASURES[name].settings.items()) or "none"
            raise ValueError(f"{name} has no setting {unknown[0]!r}; it has {known}")
