"""A readable diagnosis of what is unhealthy in a model: `diagnose`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..learner.fresh import built_like, reinitialised, seeded
from ..listing import some
from ..measures import MEASURES, NotMeasurable, Probe, measure
from ..measures.probe import Loss, Mode
from ..methods.fire import LayerReport, fire_
from ..optim import as_list
from ..units import Example
from ..units.chain import output_layers
from ..units.flow import ALONE, OUTPUT
from ..weights import Where
from ..weights.sharded import check_unsharded
from .advice import FEWEST, Advice, on_optimizer, on_samples, remedies, unknown_kind
from .result import Diagnosis, Finding, LayerHealth
from .rules import FLAT, GROWN, RULES

_DRAWS = 5  # new networks: the worst of several is still normal


_MEASURED = tuple(dict.fromkeys(rule.measure for rule in RULES))


def diagnose(
    model: nn.Module,
    batch: Any,
    *,
    loss: Loss | None = None,
    mode: Mode | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    build: Callable[[], nn.Module] | None = None,
    where: Where = "everything",
    example: Example | None = None,
) -> Diagnosis:
    """Find what is unhealthy in a model, layer by layer, and what to do about it; `print` shows it with a table.

    The model is compared with five newly initialised networks of the same architecture on the same batch, because what is
    normal differs between architectures. The model is not changed. For other measures or settings see `measure`.

    batch: inputs, or (inputs, targets); a few hundred samples of the data to be learnt next.
    loss: with a loss and targets, weights without a gradient are found as well.
    mode: "train" or "eval", for batch norms and dropout; None: the model's current mode.
    optimizer: the optimiser that trains the model; its learning rates and, with a loss, its state are checked as well.
    build: a function that makes a newly initialised model; without it, every layer's reset_parameters() is called.
    where, example: see `select` and `find_units`.
    """
    check_unsharded(model, for_good=True)  # FIRE runs on a copy, and FSDP models cannot be copied
    with torch.inference_mode(False):
        probe = Probe(model, batch, loss=loss, mode=mode, where=where, example=example)
        _check_runs(probe)
        return _diagnose(probe, build, as_list(optimizer))


def _check_runs(probe: Probe) -> None:
    """Raise if the model cannot be run on the batch."""
    try:
        with probe.running(), torch.no_grad():
            probe.forward()
    except (IndexError, RuntimeError, TypeError, ValueError) as problem:
        if isinstance(problem, torch.OutOfMemoryError):
            raise
        shapes = [tuple(one.shape) for one in _tensors(probe.inputs)]
        shown = ", ".join(map(str, shapes)) or type(probe.inputs).__name__
        raise ValueError(
            f"the model could not be run on the batch, whose inputs have shape {shown}: {problem}. Pass "
            "rp.diagnose(model, inputs) or (inputs, targets), with inputs as in training"
        ) from problem


def _counted(probe: Probe) -> int:
    """The number of samples; of text, of tokens, since a unit may be on for each of them."""
    first = next(iter(_tensors(probe.inputs)), None)
    text = first is not None and first.ndim == 2 and not first.is_floating_point() and not first.is_complex()
    return first.numel() if text and first is not None else probe.samples


def _tensors(inputs: Any) -> list[Tensor]:
    parts = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple | list) else [inputs]
    return [one for one in parts if isinstance(one, Tensor)]


def _diagnose(probe: Probe, build: Callable[[], nn.Module] | None, optimizers: Sequence[Optimizer]) -> Diagnosis:
    notes: list[str] = []
    values = _by_layer(probe, notes)
    notes += _not_looked_at(probe)
    new = _yardstick(probe, build, notes)
    fire, fired = _what_fire_would_do(probe, notes)
    shapes = {_layer(weight.name): (weight.stack().rows, weight.stack().columns) for weight in probe.weights}
    findings = _judge(values, new, fired, shapes)
    counted, remedy = _counted(probe), list[Advice]()
    enough = counted >= FEWEST
    if findings and enough:
        remedy += _remedy(probe, findings, lambda after: _judge(after, new, {}, shapes), notes)
    gradients = _gradients(probe) if optimizers and not remedy else {}  # a remedy clears the state of what it changes
    advice = [*on_samples(counted), *on_optimizer(optimizers, gradients, probe.model.parameters()), *remedy]
    if probe.loss is not None:
        findings += _without_gradient(probe, notes)
    order = {name: position for position, name in enumerate(values)}
    findings.sort(key=lambda finding: order.get(finding.layer, len(order)))
    layers = [LayerHealth(name, row, new.get(name, {}), fired.get(name, {}), fire.get(name)) for name, row in values.items()]
    title = f"{type(probe.model).__name__} in {probe.mode} mode, {probe.samples} samples"
    return Diagnosis(tuple(findings), tuple(layers), title, tuple(notes), tuple(advice), enough)


def _gradients(probe: Probe) -> dict[Tensor, Tensor]:
    """The gradients of the batch's loss, by parameter; none without a loss."""
    try:
        return {probe.parameters[name]: gradient for name, gradient in probe.gradients.items()}
    except NotMeasurable:
        return {}


def _remedy(
    probe: Probe,
    findings: Sequence[Finding],
    judge: Callable[[Mapping[str, Mapping[str, float]]], list[Finding]],
    notes: list[str],
) -> Sequence[Advice]:
    """The mildest remedy that leaves nothing unhealthy in a copy of the model, or the strongest that there is."""
    unknown = unknown_kind(probe.model)
    if unknown:
        notes.append(
            f"no remedy is advised, because the model has {unknown}, and none was measured with these: docs/remedies.md "
            "says what is known, and how to compare remedies on your own data"
        )
        return ()
    chosen, left = None, [*findings]
    try:
        units = probe.units
    except NotMeasurable:
        units = None
    for remedy in remedies(probe.model, units, [one.layer for one in findings if one.problem == "zero weight"]):
        copied = copy.deepcopy(probe.model)
        try:
            remedy.apply_(copied)
        except (TypeError, ValueError) as problem:
            notes.append(f"{remedy.advice[-1].do} would be advised, but it fails: {problem}")
            break
        left, chosen = judge(_by_layer(_twin(probe, copied), [])), remedy
        if not left:
            break
    if chosen is None:
        return ()
    if left:
        still = some(f"{one.layer} ({one.problem})" for one in left)
        notes.append(f"tried on a copy, what to do leaves {still} unhealthy: if accuracy stays low, reset the model")
    return chosen.advice


@torch.no_grad()
def _by_layer(probe: Probe, notes: list[str]) -> dict[str, dict[str, float]]:
    """Measures by layer, in the model's order; those that cannot be computed leave a note."""
    rows: dict[str, dict[str, float]] = {_layer(weight.name): {} for weight in probe.weights}
    problems: dict[str, list[str]] = {}
    for name in _MEASURED:
        entry = MEASURES[name]
        try:
            parts = entry.parts(probe)
        except NotMeasurable as problem:
            problems.setdefault(str(problem), []).append(name)
            continue
        for layer, arguments in parts.items():
            try:
                rows.setdefault(_layer(layer), {})[name] = entry.value(*arguments)
            except NotMeasurable as problem:  # the other layers are still measured
                problems.setdefault(f"{_layer(layer)}: {problem}", []).append(name)
    notes += [f"{', '.join(names)} could not be computed: {problem}" for problem, names in problems.items()]
    return rows


def _not_looked_at(probe: Probe) -> list[str]:
    """Notes on hidden layers whose units could not be found, so that dead units there go unnoticed."""
    try:
        left_out = probe.units.left_out
    except NotMeasurable:
        return []  # which has left its own note
    parts = ALONE in left_out.values()  # then a run shows which of them makes the outputs
    outputs = output_layers(probe.model, probe.example if probe.example is not None else probe.inputs) if parts else []
    layers: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        if reason != OUTPUT and name not in outputs:
            layers.setdefault(reason, []).append(name)
    if not layers:
        return []
    told = [f"{some(names)}: {reason}" for reason, names in [*layers.items()][:3]]
    more = sum(len(names) for names in [*layers.values()][3:])
    return [f"dead units were not searched for in {'; '.join(told)}" + (f"; and in {more} more" if more else "")]


def _layer(name: str) -> str:
    """The name of a weight's layer, with the part if it has several: "attn.qkv.weight:key" becomes "attn.qkv:key"."""
    whole, colon, part = name.replace("._orig_mod", "").partition(":")
    layer = "" if whole == "weight" else whole.removesuffix(".weight")
    return f"{layer or 'model'}{colon}{part}"


def _yardstick(probe: Probe, build: Callable[[], nn.Module] | None, notes: list[str]) -> dict[str, dict[str, float]]:
    """The same measures of newly initialised networks: the worst of several draws."""
    draws: list[dict[str, dict[str, float]]] = []
    for draw in range(_DRAWS):
        try:
            with seeded(probe.seed + draw, probe.model):
                fresh = reinitialised(probe.model) if build is None else built_like(probe.model, build)
        except ValueError as problem:
            if build is not None:
                raise
            told = str(problem).partition(" Pass a function")[0]
            notes.append(
                f"there is no new network to compare with, so only shares of units are judged. {told} Pass "
                "diagnose(..., build=...) a function that makes the model"
            )
            return {}
        draws.append(_by_layer(_twin(probe, fresh), []))
    worst = {rule.measure: rule.worst for rule in RULES}
    return {
        layer: {name: worst[name](draw[layer][name] for draw in draws if name in draw.get(layer, {})) for name in row}
        for layer, row in draws[0].items()
    }


def _judge(
    values: Mapping[str, Mapping[str, float]],
    new: Mapping[str, Mapping[str, float]],
    fired: Mapping[str, Mapping[str, float]],
    shapes: Mapping[str, tuple[int, int]],
) -> list[Finding]:
    findings: list[Finding] = []
    collapsed: list[str] = []
    for layer, row in values.items():
        named: set[str] = set()
        for rule in RULES:
            value = row.get(rule.measure)
            normal = new.get(layer, {}).get(rule.measure, None if new or rule.kind != "units" else 0.0)
            if value is None or normal is None or rule.kind in named or not rule.unhealthy(value, normal):
                continue
            if rule.measure == "condition_number":
                # Columns of constant inputs decay to zero harmlessly, so require a lower rank as well.
                rank, rank_then = (one.get("weight_effective_rank", math.nan) for one in (row, new[layer]))
                if value < FLAT * min(shapes[layer]) or not rank <= 0.75 * rank_then:
                    continue
            if rule.problem == "grown weight" and value < GROWN * math.sqrt(shapes[layer][0] / 3):
                continue  # a head that begins with tiny weights grows to the usual size
            named.add(rule.kind)
            if rule.kind == "rank":
                collapsed.append(layer)
                if len(collapsed) > 1:  # layers after a collapsed one collapse, too: report the first
                    continue
            after = fired.get(layer, {}).get(rule.measure)
            figures = [rule.phrase.format(rule.number.format(value))]
            figures += [f"in new networks {rule.number.format(normal)}"] if new else []
            if after is not None:
                still = "still " if rule.unhealthy(after, normal) else ""
                figures.append(f"after FIRE {still}{rule.number.format(after)}")
            text = f"{layer}: {rule.problem}: {'; '.join(figures)}\n    {rule.why}"
            findings.append(Finding(layer, rule.problem, value, normal if new else None, after, text))
    return [_with_others(finding, collapsed) for finding in findings]


def _with_others(finding: Finding, collapsed: list[str]) -> Finding:
    """The finding of collapsed features, with the later layers that it may explain."""
    if finding.problem != "collapsed features" or len(collapsed) < 2:
        return finding
    return replace(finding, text=f"{finding.text}; the same is true of {', '.join(collapsed[1:])}")


def _without_gradient(probe: Probe, notes: list[str]) -> list[Finding]:
    probe.require_loss()
    try:
        norms = measure(probe, "gradient_norm")
    except NotMeasurable as problem:
        notes.append(f"weights without a gradient were not searched for: {problem}")
        return []
    names = dict.fromkeys(weight.name.partition(":")[0] for weight in probe.weights)
    return [
        Finding(_layer(name), "no gradient", 0.0, None, None, f"{_layer(name)}: no gradient: it is zero for this batch")
        for name in names
        if norms.get(f"gradient_norm/{name}") == 0
    ]


def _what_fire_would_do(probe: Probe, notes: list[str]) -> tuple[dict[str, LayerReport], dict[str, dict[str, float]]]:
    """FIRE's report on a copy, and the measures of that copy, by layer."""
    copied = copy.deepcopy(probe.model)
    try:
        report = fire_(copied, where=probe.where)
    except ValueError as problem:
        notes.append(f"FIRE would change nothing: {problem}")
        return {}, {}
    notes += [f"FIRE would skip {weight.name}: {weight.reason}" for weight in report.left_alone]
    return {_layer(layer.name): layer for layer in report.layers}, _by_layer(_twin(probe, copied), [])


def _twin(probe: Probe, model: nn.Module) -> Probe:
    """A probe of another model on the same batch."""
    return Probe(model, (probe.inputs, probe.targets), mode=probe.mode, where=probe.where, example=probe.example)
