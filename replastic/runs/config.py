"""An experiment as a strict TOML file: what may stand in it, and what it means.

    name = "FIRE, figure 2a"
    seeds = [1, 2, 3]

    [data]
    name = "cifar10"

    [model]
    name = "resnet"

    [protocol]
    name = "warm_start"
    epochs = [1000, 100]

    [training]
    renew_optimizer = true
    learning_rate = 1e-3

    [arms.base]

    [arms.FIRE]
    name = "fire"
    steps = 10

Options next to a `name` are the arguments of what is named. A key that nothing uses is an error with the nearest valid name.
"""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..learner import Method
from ..listing import one_line
from ..methods import METHODS
from ..methods.by_name import code_of_method, method_by_name
from ..options import OptionError, check_keys, check_options, check_type, nearest
from ..own_code import OwnCode
from ..train import Training
from ..train.measuring import Measuring
from ..workloads.base import Workload, workload_of_kind
from .starts import Start, chosen_starts, starts_of
from .threads import Computing

Table = Mapping[str, Any]
_FIRST_LINES = {"arms": "[arms.base], for training without any method", "training": "[training], and renew_optimizer = true"}
_HINTS = {  # by what tomllib says
    "Invalid value": '; text stands in quotes, as in name = "digits"',
    "at the end of a table declaration": '; a name such as S&P stands in quotes, as in [arms."S&P"]',
}
_LONGEST = 255  # bytes of a name; a folder is named after an arm


@dataclass(frozen=True)
class Arm:
    """One way of training: methods by name with their settings, and what of [training] is different.

    grid_of, point: of an arm that is a point of a grid, the name of the grid, and the values.
    code: by name, the files of methods that are not of this library.
    start, start_of: of an arm of a file with [starts], where its runs start, and its name without that.
    family: names that stand for this arm and others: of a grid, and of an arm with all its starts.
    keeps: the starts at which it keeps snapshots for other arms.
    """

    methods: tuple[tuple[str, Table], ...] = ()
    training: Table = field(default_factory=dict)
    grid_of: str = ""
    point: Table = field(default_factory=dict)
    code: Mapping[str, OwnCode] = field(default_factory=dict)
    start: Start | None = None
    start_of: str = ""
    family: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoints:
    """When a run is saved. It has no influence on results.

    minutes: from one save to the next, at a row.
    boundaries: also at the end of every task.
    """

    minutes: float = 10.0
    boundaries: bool = True

    def __post_init__(self) -> None:
        if not self.minutes >= 0:
            raise ValueError(f"checkpoints: minutes = {self.minutes} must be 0 or more")


@dataclass(frozen=True)
class Experiment:
    """All of a file. workload: what its tables of data, model and the like say."""

    name: str
    seeds: tuple[int, ...]
    workload: Workload
    training: Training
    arms: Mapping[str, Arm]
    measures: tuple[Measuring, ...] = ()
    about: str = ""
    metric: str = "test_accuracy"
    share_first_task: bool = True
    checkpoints: Checkpoints = Checkpoints()
    starts: Mapping[str, Start] = field(default_factory=dict)
    computing: Computing = field(default_factory=Computing)

    def located(self, root: str | Path | None) -> Experiment:
        """With the files of its data found, as a record names them; FileNotFoundError if one is missing."""
        return dataclasses.replace(self, workload=self.workload.located(root))


def read(path: str | Path, changes: Sequence[str] = ()) -> Experiment:
    """The experiment in a TOML file; `changes` such as "training.batch=128" stand above what it says."""
    path = Path(path)
    try:
        text = path.read_bytes().decode()
    except OSError as problem:
        raise OptionError(f"{path}: {problem.strerror or problem}; pass the path of an experiment's TOML file") from problem
    except UnicodeDecodeError as problem:
        raise OptionError(f"{path} is not UTF-8 text: pass the path of an experiment's TOML file") from problem
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as problem:  # also numbers of thousands of digits, and lists in each other
        hints = (hint for said, hint in _HINTS.items() if said in str(problem))
        raise OptionError(f"{path}: {problem}{next(hints, '')}") from problem
    for change in changes:
        _change(table, change)
    try:
        return parse(table, folder=path.parent)
    except OptionError as problem:
        changed = "".join(f" --set {change}" for change in changes)
        raise OptionError(f"{path}{' with' * bool(changed)}{changed}: {problem}") from problem


def parse(table: Table, *, folder: str | Path = ".") -> Experiment:
    """The experiment that a table, as read from TOML, describes. folder: where the paths of a user's own files start."""
    kind = table.get("kind", "images")
    check_type(kind, str, "kind")
    workload = workload_of_kind(kind)
    known = ["name", "about", "kind", "seeds", "metric", "share_first_task", *workload.tables, "training", "measures",
             "checkpoints", "starts", "run", "arms"]  # fmt: skip
    check_keys(table, known, "the file", ["name", "seeds"])
    for key in (*workload.tables, "training", "arms"):
        if key not in table:
            raise OptionError(f"the file has no [{key}]: write {_FIRST_LINES.get(key, f'[{key}]')}")
    plain = {"name": str, "about": str, "seeds": list[int], "metric": str, "share_first_task": bool}
    for key, expected in plain.items():
        if key in table:
            check_type(table[key], expected, key)
    _check_name(table["name"], "name")
    seeds = table["seeds"]
    if not seeds or len(set(seeds)) < len(seeds) or not all(0 <= seed < 2**63 for seed in seeds):
        raise OptionError(f"seeds = {seeds!r}: list at least one, each once, 0 or more")
    own = {key: _table(table[key], f"[{key}]") for key in workload.tables}
    training = made(Training, _table(table["training"], "[training]"), "[training]")
    starts = _starts(table)
    return Experiment(
        name=table["name"],
        seeds=tuple(seeds),
        workload=workload.parse(own, Path(folder)),
        training=training,
        measures=_measures(table.get("measures", [])),
        about=table.get("about", ""),
        metric=table.get("metric", "test_accuracy"),
        share_first_task=table.get("share_first_task", True),
        checkpoints=made(Checkpoints, _table(table.get("checkpoints", {}), "[checkpoints]"), "[checkpoints]"),
        starts=starts,
        computing=made(Computing, _table(table.get("run", {}), "[run]"), "[run]"),
        arms=_arms(_table(table["arms"], "[arms]"), training, starts, folder),
    )


def _starts(table: Table) -> dict[str, Start]:
    if "starts" not in table:
        return {}
    given = _table(table["starts"], "[starts]")
    for name in given:
        _check_name(name, "[starts] name")
    if not given:
        raise OptionError('[starts] has none: write best = { lowest = "loss" }, or "10 epochs" = { at = 10 }')
    if not table.get("share_first_task", True):
        raise OptionError("[starts] are points of a first task that runs share, and share_first_task = false: leave one out")
    return starts_of(given)


def _measures(given: Any) -> tuple[Measuring, ...]:
    """One [measures], or several [[measures]] at moments of their own."""
    tables = given if isinstance(given, list) else [given]
    if not all(isinstance(one, Mapping) for one in tables):
        raise OptionError(f'measures = {given!r}: write [measures], and below it names = ["dormant_fraction"]')
    return tuple(made(Measuring, _table(one, "[measures]"), "[measures]") for one in tables)


def _arms(table: Table, training: Training, starts: Mapping[str, Start], folder: str | Path) -> dict[str, Arm]:
    arms: dict[str, Arm] = {}
    for name, given in table.items():
        _check_name(name, "[arms] name")
        where = f"[arms.{name}]"
        arm = dict(_table(given, where))
        changed, grid = _table(arm.pop("training", {}), where + " training"), _table(arm.pop("grid", {}), where + " grid")
        trained = made(Training, {**vars(training), **changed}, where + " training")
        if starts and trained.stacked:
            raise OptionError(
                f'{where} path = "{trained.path}" trains runs together from their first step on, and with [starts] they '
                'start later: set path = "auto", or leave [starts] out'
            )
        begins = chosen_starts(arm, starts, where)
        if "methods" in arm:
            check_keys(arm, ["methods", "training", "grid"], where)
            if not isinstance(arm["methods"], list):
                raise OptionError(f'{where} methods: write a list, as in methods = [{{ name = "fire" }}]')
            tables = [dict(_table(entry, where)) for entry in arm["methods"]]
        else:
            tables = [arm] if arm else []
        for label, values in _points(grid, where):
            chosen = [{**entry, **values} for entry in tables[:1]] + tables[1:]
            if values and not tables:
                raise OptionError(f"{where} grid: there is no method whose settings it could be of")
            plain = f"{name}, {label}" if label else name
            made_of = [_method(entry, where, folder) for entry in chosen]
            for start in begins:
                suffix = f", {start.name}" if start is not None and not start.skips else ""
                full = plain + suffix
                _check_name(full, f"{where} name with its point")
                if full in arms:
                    raise OptionError(f"[arms] has {full!r} twice: name arms and points of grids differently")
                arms[full] = Arm(
                    tuple((method, settings) for method, settings, _ in made_of),
                    dict(changed),
                    grid_of=name + suffix if values else "",
                    point=values,
                    code={method: code for method, _, code in made_of if code is not None},
                    start=start,
                    start_of=plain if start is not None else "",
                    family=tuple({one: None for one in (name, plain, name + suffix) if one != full}),
                )
    unused = [name for name in starts if all(arm.start != starts[name] for arm in arms.values())]
    if arms and unused:
        raise OptionError(f"[starts] {unused[0]!r}: no arm starts there: leave it out, or add it to the starts of an arm")
    if not arms:
        raise OptionError("[arms] has none: write [arms.base] for training without any method")
    return arms


def _method(entry: Table, where: str, folder: str | Path) -> tuple[str, Table, OwnCode | None]:
    if "name" not in entry:
        raise OptionError(f"{where} has no name: set one of {', '.join(METHODS)}")
    try:
        code = code_of_method(entry["name"], folder)
        kind = method_by_name(entry["name"], code)
    except OptionError as problem:
        raise OptionError(f"{where} {problem}") from problem
    name, settings = entry["name"], {key: value for key, value in entry.items() if key != "name"}
    check_options(kind, settings, f"{where} {name}")
    try:
        built = kind(**settings)  # what it says of its settings it says now
    except (TypeError, ValueError) as problem:
        raise OptionError(f"{where}: {problem}") from problem
    if not all(isinstance(one, Method) for one in (built if isinstance(built, list) else [built])):
        raise OptionError(
            f"{where} name = {name!r} gives {type(built).__name__} {built!r}: name a subclass of replastic.Method"
        )
    return name, settings, code


def _points(grid: Table, where: str) -> list[tuple[str, dict[str, Any]]]:
    """Every point of a grid, with a name; of an empty one, the one point."""
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise OptionError(f"{where} grid: {key} = {values!r}; write a list of values")
    points = itertools.product(*grid.values())
    named = (dict(zip(grid, values, strict=True)) for values in points)
    return [(", ".join(f"{key}={value}" for key, value in point.items()), point) for point in named]


# Names and options, checked against what they are for


def made(kind: type[Any], table: Table, where: str) -> Any:
    """A dataclass of settings from a table."""
    check_options(kind, table, where)
    try:
        return kind(**table)
    except ValueError as problem:
        raise OptionError(str(problem)) from problem


def _check_name(name: str, where: str) -> None:
    """Raise for a name that a folder could not have, or a terminal would not show."""
    shown, size = one_line(name), len(name.encode(errors="replace"))
    short = shown if len(shown) <= 60 else f"{shown[:57]}..."
    if shown != name:
        raise OptionError(f'{where} = "{short}" has characters that are not shown: write it without control characters')
    if size > _LONGEST:
        raise OptionError(f'{where} = "{short}" has {size:,} bytes: shorten it to {_LONGEST} or fewer')


def _table(given: Any, where: str) -> Table:
    if not isinstance(given, Mapping):
        raise OptionError(f"{where} is {given!r}: make it a table")
    return given


def _change(table: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    try:
        named = tomllib.loads(f"{key} = 0")
    except (ValueError, RecursionError) as problem:
        raise OptionError(
            f'--set {change!r}: write it as section.key=value, as in training.batch=128 or arms."S&P".rate=0.5'
        ) from problem
    if not equals:
        raise OptionError(f"--set {change!r}: write it as section.key=value, as in training.batch=128")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()  # words need no quotes on a command line
    path = []
    while isinstance(named, dict):
        path.append(next(iter(named)))
        named = named[path[-1]]
    if path[0] == "arms" and len(path) > 1 and path[1] not in table.get("arms", {}):
        raise OptionError(f"--set {change!r}: [arms] has no {path[1]!r}; {nearest(path[1], table.get('arms', {}))}")
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise OptionError(f"--set {change!r}: {part} is not a table of the file")
    table[path[-1]] = value
