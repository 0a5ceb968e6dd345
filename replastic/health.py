"""What is unhealthy in a model, for people: `diagnose`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from .measures import MEASURES, NotMeasurable, Probe, measure
from .measures.probe import Loss, Mode
from .methods import fire_
from .methods.fire import LayerReport
from .states import check_same_build, reinitialised, seeded
from .units import Example, original
from .weights import Where

_SHARE = 0.15  # of a layer's units that may be lost, more than in a new network
_FLAT = 1e3  # times its smaller side: a condition number that one in 500 square Gaussian matrices exceeds


@dataclass(frozen=True)
class Rule:
    """When a measure of a layer is bad news, compared with that of the same layer in a new network, and why."""

    measure: str
    problem: str
    unhealthy: Callable[[float, float], bool]
    number: str  # how to write the value
    phrase: str  # how to speak of it
    why: str
    kind: str  # of a kind only the first problem of a layer is named: the others are the same one seen differently


RULES = (
    Rule(
        "dead_fraction",
        "dead units",
        lambda value, new: value - new >= _SHARE,
        "{:.0%}",
        "{} of its units",
        "they give zero for every sample, so no gradient reaches their weights",
        "units",
    ),
    Rule(
        "saturated_fraction",
        "saturated units",
        lambda value, new: value - new >= _SHARE,
        "{:.0%}",
        "{} of its units",
        "their activation is flat on every sample, so hardly any gradient reaches their weights",
        "units",
    ),
    Rule(
        "dormant_fraction",
        "dormant units",
        lambda value, new: value - new >= _SHARE,
        "{:.0%}",
        "{} of its units",
        "they are faint beside the others of their layer and carry next to nothing on",
        "units",
    ),
    Rule(
        "effective_rank",
        "collapsed features",
        lambda value, new: value <= 0.15 * new,
        "{:.1f}",
        "effective rank {}",
        "samples look alike to the layers that read it, so what tells new ones apart is lost",
        "rank",
    ),
    Rule(
        "condition_number",
        "ill-conditioned weight",
        lambda value, new: value >= 10 * new,  # and _FLAT, below: it depends on the size
        "{:.2g}",
        "condition number {}",
        "some directions pass and others do not, forwards and in gradients",
        "spectrum",
    ),
    Rule(
        "weight_effective_rank",
        "low-rank weight",
        lambda value, new: value <= 0.5 * new,
        "{:.1f}",
        "effective rank {}",
        "a few directions have grown over all others",
        "spectrum",
    ),
    Rule(
        "spectral_norm",
        "grown weight",
        lambda value, new: value >= 10 * new,
        "{:.3g}",
        "spectral norm {}",
        "steps of the usual size no longer change what it computes",
        "size",
    ),
)
_MEASURED = tuple(rule.measure for rule in RULES)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with one layer."""

    layer: str
    problem: str
    value: float
    new: float | None  # the same in a new network
    fired: float | None  # the same after FIRE
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class LayerHealth:
    """The measures of one layer, by name, in this network, in a new one and in this one after FIRE."""

    name: str
    values: Mapping[str, float]
    new: Mapping[str, float]
    fired: Mapping[str, float]
    fire: LayerReport | None  # None: there is no weight here, or FIRE would leave it alone


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What `diagnose` found: `findings` in the order of the layers, and `layers` with all figures. `print` shows both."""

    findings: tuple[Finding, ...]
    layers: tuple[LayerHealth, ...]
    title: str
    notes: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __repr__(self) -> str:
        found = [str(finding) for finding in self.findings] or ["Nothing unhealthy was found."]
        return "\n".join([self.title, "", *_table(self), "", *found, *(f"Note: {note}" for note in self.notes)])


def diagnose(
    model: nn.Module,
    batch: Any,
    *,
    loss: Loss | None = None,
    mode: Mode | None = None,
    build: Callable[[], nn.Module] | None = None,
    where: Where = "everything",
    example: Example | None = None,
) -> Diagnosis:
    """What is unhealthy in a model, layer by layer, why, and what FIRE would change. `print` shows it as a table.

    The yardstick is the same network newly initialised, on the same batch: what is normal differs between architectures.
    Nothing of the model changes. For other measures or settings see `measure`.

    batch: inputs, or (inputs, targets); a few hundred samples of what is to be learnt next.
    loss: if given, with targets, weights that no gradient reaches are found, too.
    mode: "train" or "eval", for batch norms and dropout; None: as the model is.
    build: makes a newly initialised model; without it every layer is asked for its reset_parameters().
    where, example: see `select` and `find_units`.
    """
    probe = Probe(model, batch, loss=loss, mode=mode, where=where, example=example)
    notes: list[str] = []
    values = _by_layer(probe, notes)
    new = _yardstick(probe, build, notes)
    fire, fired = _what_fire_would_do(probe, notes)
    findings = _judge(values, new, fired, _sides(probe))
    if loss is not None:
        findings += _without_gradient(probe)
    order = {name: position for position, name in enumerate(values)}
    findings.sort(key=lambda finding: order.get(finding.layer, len(order)))
    layers = [LayerHealth(name, row, new.get(name, {}), fired.get(name, {}), fire.get(name)) for name, row in values.items()]
    title = f"{type(probe.model).__name__} in {probe.mode} mode, {probe.samples} samples"
    return Diagnosis(tuple(findings), tuple(layers), title, tuple(notes))


def _by_layer(probe: Probe, notes: list[str]) -> dict[str, dict[str, float]]:
    """Measures by layer, in the model's order; a family that cannot be had leaves a note."""
    rows: dict[str, dict[str, float]] = {_layer(weight.name): {} for weight in probe.weights}
    for family in ("weights", "units", "features"):
        try:
            found = measure(probe, [name for name in _MEASURED if MEASURES[name].family == family])
        except NotMeasurable as problem:
            notes.append(f"{family} could not be looked at: {problem}")
            continue
        for name, value in found.items():
            measured, _, layer = name.partition("/")
            if layer:
                rows.setdefault(_layer(layer), {})[measured] = value
    return rows


def _layer(name: str) -> str:
    """Of a weight's name that of its layer, and of its part if it has several: "attn.qkv.weight:key" is "attn.qkv:key"."""
    return name.replace(".weight", "").replace("weight", "model")


def _sides(probe: Probe) -> dict[str, int]:
    return {_layer(weight.name): min(weight.stack().sides) for weight in probe.weights}


def _yardstick(probe: Probe, build: Callable[[], nn.Module] | None, notes: list[str]) -> dict[str, dict[str, float]]:
    """The same measures of the same network, newly initialised."""
    try:
        with seeded(probe.seed, probe.model):
            fresh = reinitialised(probe.model) if build is None else original(build())
            if build is not None:
                check_same_build(probe.model, fresh)
                like = next(probe.model.parameters())
                fresh = fresh.to(like.device, like.dtype)
    except ValueError as problem:
        if build is not None:
            raise
        notes.append(f"there is no new network to compare with, so only shares of units are judged: {problem}")
        return {}
    return _by_layer(_twin(probe, fresh), [])


def _judge(
    values: Mapping[str, Mapping[str, float]],
    new: Mapping[str, Mapping[str, float]],
    fired: Mapping[str, Mapping[str, float]],
    sides: Mapping[str, int],
) -> list[Finding]:
    findings: list[Finding] = []
    lowest = 1.0  # share of the rank that is left in layers already named: what reads them cannot have more
    for layer, row in values.items():
        named: set[str] = set()
        for rule in RULES:
            value = row.get(rule.measure)
            normal = new.get(layer, {}).get(rule.measure, None if new or rule.kind != "units" else 0.0)
            if value is None or normal is None or rule.kind in named or not rule.unhealthy(value, normal):
                continue
            if rule.measure == "condition_number" and value < _FLAT * sides[layer]:
                continue
            if rule.kind == "rank":
                if value > 0.5 * lowest * normal:
                    continue
                lowest = value / normal
            named.add(rule.kind)
            after = fired.get(layer, {}).get(rule.measure)
            figures = [rule.phrase.format(rule.number.format(value))]
            figures += [f"in a new network {rule.number.format(normal)}"] if new else []
            figures += [f"after FIRE {rule.number.format(after)}"] if after is not None else []
            text = f"{layer}: {rule.problem}: {'; '.join(figures)}\n    {rule.why}"
            findings.append(Finding(layer, rule.problem, value, normal if new else None, after, text))
    return findings


def _without_gradient(probe: Probe) -> list[Finding]:
    norms = measure(probe, "gradient_norm")
    names = dict.fromkeys(weight.name.partition(":")[0] for weight in probe.weights)
    return [
        Finding(_layer(name), "no gradient", 0.0, None, None, f"{_layer(name)}: no gradient: the loss does not depend on it")
        for name in names
        if norms.get(f"gradient_norm/{name}") == 0
    ]


def _what_fire_would_do(probe: Probe, notes: list[str]) -> tuple[dict[str, LayerReport], dict[str, dict[str, float]]]:
    """By layer: the report of FIRE on a copy, and the measures of that copy."""
    copied = copy.deepcopy(probe.model)
    try:
        report = fire_(copied, where=probe.where)
    except ValueError as problem:
        notes.append(f"FIRE would change nothing: {problem}")
        return {}, {}
    notes += [f"FIRE would leave {weight.name} alone: {weight.reason}" for weight in report.left_alone]
    return {_layer(layer.name): layer for layer in report.layers}, _by_layer(_twin(probe, copied), [])


def _twin(probe: Probe, model: nn.Module) -> Probe:
    """Another model on the same batch."""
    return Probe(model, (probe.inputs, probe.targets), mode=probe.mode, where=probe.where, example=probe.example)


_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("dead", "dead_fraction", "{:.0%}"),
    ("dormant", "dormant_fraction", "{:.0%}"),
    ("saturated", "saturated_fraction", "{:.0%}"),
    ("feature rank", "effective_rank", "{:.1f}"),
    ("weight rank", "weight_effective_rank", "{:.1f}"),
    ("condition", "condition_number", "{:.2g}"),
    ("norm", "spectral_norm", "{:.3g}"),
)


def _table(diagnosis: Diagnosis) -> list[str]:
    """A row for each layer; in brackets what a new network has, and an asterisk where something was found."""
    named = {finding.layer for finding in diagnosis.findings}
    header = ["", "layer", *(title for title, _, _ in _COLUMNS), "DfI/col, fired", "SFE/|W|²"]
    rows = [header]
    for layer in diagnosis.layers:
        cells = ["*" if layer.name in named else "", layer.name]
        for _, measured, shown in _COLUMNS:
            now, then = layer.values.get(measured), layer.new.get(measured)
            cell = "" if now is None else shown.format(now)
            cells.append(cell if then is None or now is None else f"{cell} ({shown.format(then)})")
        if layer.fire is None:
            cells += ["", ""]
        else:
            cells += [f"{layer.fire.dfi_before:.2g} -> {layer.fire.dfi_after:.2g}", f"{layer.fire.sfe_normalised:.3g}"]
        rows.append(cells)
    kept = [column for column in range(len(header)) if column < 2 or any(row[column] for row in rows[1:])]
    dead, saturated = header.index("dead"), header.index("saturated")
    if all(row[dead] == row[saturated] for row in rows[1:]):  # as with ReLU
        kept = [column for column in kept if column != saturated]
    widths = {column: max(len(row[column]) for row in rows) for column in kept}
    lines = []
    for row in rows:
        cells = [row[column].ljust(widths[column]) if column < 2 else row[column].rjust(widths[column]) for column in kept]
        lines.append("  ".join(cells).rstrip())
    return [
        *lines,
        "",
        "In brackets: the same network newly initialised. DfI/col: deviation from isometry, now and after ten published",
        "steps of FIRE; SFE/|W|²: how far these move the weight.",
    ]
