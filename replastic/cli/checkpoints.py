"""`replastic inspect` and `replastic fire`: checkpoints, without the model's code."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from tyro.conf import Positional, UseAppendAction, arg

from ..options import OptionError
from .command import Command
from .console import console, print_line, print_table, print_text

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, Fired, Inspection
    from ..checkpoint.firing import Tell
    from ..checkpoint.inspecting import MatrixReport
    from ..checkpoint.skeleton import Skeleton
    from ..weights import LeftAlone

_REASONS = 8  # that are listed of what was left alone, each with how many it holds for


@dataclass(kw_only=True)
class _OfCheckpoint(Command):
    when_stopped: ClassVar[str] = "stopped; nothing was written"

    path: Positional[Annotated[str, arg(metavar="PATH")]]
    """A .safetensors, .pt, .pth, .bin or .ckpt file, the .zip of an agent, the index of a sharded one, or its folder."""
    where: UseAppendAction[Annotated[list[str], arg(metavar="WEIGHTS")]] = field(default_factory=list)
    """Which weights: a preset such as queries_and_keys, a name, or a pattern such as "*.mlp.*"; several times for more."""
    device: Annotated[str, arg(metavar="DEVICE")] = "cpu"
    """Where to compute: cpu, cuda or cuda:1."""

    def _check_device(self) -> str:
        import torch

        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as problem:
            said = str(problem).splitlines()[0]
            raise OptionError(f"--device {self.device} cannot be used here ({said}): give cpu, cuda or cuda:1") from problem
        return self.device


@dataclass(kw_only=True)
class Inspect(_OfCheckpoint):
    """Look at every matrix of a checkpoint: how far from an isometry, how much rank is left, how far it has moved."""

    name: ClassVar[str] = "inspect"

    reference: Annotated[str, arg(metavar="PATH")] = ""
    """An earlier checkpoint of the same network, in any format."""
    by: Literal["rank", "deviation", "condition", "norm", "distance"] = "rank"
    """What is worst: rank is the least effective rank beside a random matrix's."""
    rows: Annotated[int, arg(metavar="N")] = 20
    """How many matrices to show, worst first; 0: all."""
    json: bool = False
    """Print everything as JSON, and nothing else."""

    def __call__(self) -> int:
        from ..checkpoint import inspect

        with _progress(quiet=self.json) as tell:
            found = inspect(
                self.path,
                reference=self.reference or None,
                where=self.where or None,
                by=self.by,
                device=self._check_device(),
                tell=tell,
            )
        if self.json:
            print_line(json.dumps(_as_json(found), indent=1))
            return 0
        print_text(_heading(found.checkpoint, found.skeleton))
        for sentence in found.summary:
            print_text(f"- {sentence}")
        shown = found.matrices[: self.rows or None]
        print_line("")
        _print_matrices(shown, with_distance=found.reference is not None)
        if len(shown) < len(found.matrices):
            print_text(f"... and {len(found.matrices) - len(shown)} more: --rows 0 shows all.")
        print_text(
            "\nDfI/col: deviation from isometry, 0 after exact FIRE. Rank: effective rank, in brackets that of a random "
            "matrix of these sides. Condition: largest over smallest stretch."
        )
        _print_left_alone(found.left_alone)
        if found.without_reference:
            print_text(f"not in the reference: {_some(found.without_reference)}")
        return 0


@dataclass(kw_only=True)
class Fire(_OfCheckpoint):
    """Write a copy of a checkpoint with its weight matrices at their nearest isometries, rescaled."""

    name: ClassVar[str] = "fire"

    out: Annotated[str, arg(metavar="OUT", aliases=["-o"])] = ""
    """The new checkpoint: a file, or a folder if PATH is one."""
    method: Literal["published", "exact"] = "published"
    """published: Newton-Schulz steps, as in the paper; exact: the polar factor itself."""
    steps: Annotated[int, arg(metavar="N")] = 10
    """Of the published method."""
    in_place: bool = False
    """Replace PATH itself, instead of writing OUT."""
    dry_run: bool = False
    """Say what would be changed and what left alone, and write nothing."""

    def __call__(self) -> int:
        from ..checkpoint import fire

        if not (self.out or self.in_place or self.dry_run):
            raise OptionError(f"where is the new checkpoint to go? {_suggested(self.path)}, or --in-place, or --dry-run")
        with _progress(quiet=self.dry_run) as tell:
            done = fire(
                self.path,
                self.out or None,
                in_place=self.in_place,
                dry_run=self.dry_run,
                where=self.where or "everything",
                method=self.method,
                steps=self.steps,
                device=self._check_device(),
                tell=tell,
            )
        print_text(_heading(done.checkpoint, done.skeleton))
        if done.report is None:
            _print_plan(done)
        else:
            _print_report(done)
        _print_left_alone(done.selection.left_alone)
        if done.copied:
            print_text(f"target networks, now copies of their own: {_some(done.copied)}")
        if done.checkpoint.beside:
            print_text(f"no weights, copied as they are: {_some(done.checkpoint.beside)}")
        if done.out is not None:
            print_line(f"written: {done.out}")
        return 0


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Tell]:
    """A bar on a terminal; elsewhere nothing, as what comes in the end is what is read."""
    from rich import progress as bars

    if quiet or not console().is_terminal:
        yield lambda done, of, name: None
        return
    with bars.Progress(
        bars.BarColumn(20),
        bars.MofNCompleteColumn(),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.description}", markup=False),
        console=console(),
        transient=True,
    ) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, of, name: bar.update(task, completed=done, total=of, description=name)


def _heading(checkpoint: Checkpoint, bones: Skeleton) -> str:
    size = sum(file.stat().st_size for file in checkpoint.files)
    files = f" in {len(checkpoint.files)} shards" if len(checkpoint.files) > 1 else ""
    names = ", ".join(f"{family} ({count})" for family, count in bones.families.items() if family)
    known = f"layers known by name: {names}" if names else "no layer is known by its name, only by its shape"
    return f"{checkpoint.path}: {checkpoint.format}, {len(checkpoint.tensors)} tensors{files}, {_size(size)}; {known}"


def _size(count: int) -> str:
    power = min(int(math.log(max(count, 1), 1024)), 4)
    return f"{count / 1024**power:.{0 if power == 0 else 1}f} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _print_matrices(reports: tuple[MatrixReport, ...], *, with_distance: bool) -> None:
    from ..checkpoint.inspecting import shown_condition

    columns = ["matrix", "kind", "out x in", "norm", "DfI/col", "rank (random)", "condition", "distance"]
    rows = []
    for one in reports:
        sides = f"{one.matrices} x " * (one.matrices > 1) + f"{one.sides[0]}x{one.sides[1]}"
        if one.bad:
            figures = [f"{one.bad:,} NaN or inf", "", "", "", ""]
        else:
            figures = [
                f"{one.norm:.3g}",
                "-" if one.deviation is None else f"{one.deviation:.2g}",
                f"{one.effective_rank:.1f} ({one.random_rank:.1f})",
                shown_condition(one),
                "-" if one.distance is None else f"{one.distance:.2g}",
            ]
        rows.append([_short(one.name), one.role or one.kind, sides, *figures][: 8 if with_distance else 7])
    columns = columns[: 8 if with_distance else 7]
    print_table(columns, rows, right=range(2, len(columns)))


def _print_plan(done: Fired) -> None:
    weights = done.selection.chosen
    print_text(f"FIRE would change {len(weights)} weights, and nothing is written:")
    rows = []
    for weight in weights:
        stack = weight.stack()
        sides = f"{stack.count} x {stack.rows}x{stack.columns}"
        rows.append((_short(weight.name), weight.role or weight.kind, sides, f"{weight.scale_of(stack):.3g}"))
    print_table(("weight", "kind", "matrices, out x in", "scale"), rows, right=(2, 3))


def _print_report(done: Fired) -> None:
    assert done.report is not None
    options, layers = done.report.options, done.report.layers
    how = f"{options.steps} steps" if options.method == "published" else options.method
    print_text(f"FIRE, {how}: {len(layers)} weights. DfI per column: 0 is an isometry. SFE: squared change.")
    rows = [
        (
            _short(layer.name),
            f"{layer.matrices} x {layer.shape[0]}x{layer.shape[1]}",
            f"{layer.dfi_before:.3g}",
            f"{layer.dfi_after:.2g}",
            f"{layer.sfe_normalised:.3g}",
            layer.note,
        )
        for layer in layers
    ]
    columns = ("weight", "matrices", "DfI/col", "after", "SFE/|W|²", "")
    notes = any(layer.note for layer in layers)
    print_table(columns[: 5 + notes], [row[: 5 + notes] for row in rows], right=(1, 2, 3, 4))


def _print_left_alone(left: tuple[LeftAlone, ...]) -> None:
    """By reason, as a large model has hundreds of weights and few reasons."""
    by_reason: dict[str, list[str]] = {}
    for weight in left:
        by_reason.setdefault(weight.reason, []).append(weight.name)
    for reason, names in list(by_reason.items())[:_REASONS]:
        print_text(f"left alone: {_some(names)}: {reason}")
    if len(by_reason) > _REASONS:
        print_text(f"left alone for other reasons: {sum(len(n) for n in list(by_reason.values())[_REASONS:])} weights")


def _short(name: str) -> str:
    """Nearly all are called weight: room for what tells them apart."""
    whole, colon, part = name.partition(":")
    return whole.removesuffix(".weight") + colon + part


def _some(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _suggested(path: str) -> str:
    given = Path(path)
    name = f"{given}-fired" if given.is_dir() else str(given.with_name(f"{given.stem}-fired{given.suffix}"))
    return f"-o {os.path.normpath(name)}"


def _as_json(found: Inspection) -> dict[str, Any]:
    return {
        "path": str(found.checkpoint.path),
        "format": found.checkpoint.format,
        "files": [file.name for file in found.checkpoint.files],
        "tensors": len(found.checkpoint.tensors),
        "families": found.skeleton.families,
        "reference": None if found.reference is None else str(found.reference),
        "summary": list(found.summary),
        "matrices": [{key: _plain(value) for key, value in dataclasses.asdict(report).items()} for report in found.matrices],
        "left_alone": [dataclasses.asdict(weight) for weight in found.left_alone],
        "without_reference": list(found.without_reference),
        "no_weights": list(found.checkpoint.beside),
    }


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
