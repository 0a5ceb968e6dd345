"""`replastic inspect` and `replastic fire`: checkpoints, without the model's code."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from tyro.conf import Positional, UseAppendAction, arg

from ..listing import one_line, some
from ..options import OptionError
from .command import Command
from .console import as_typed, console, print_line, print_table, print_text

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, Fired, Inspection
    from ..checkpoint.finite import Tell
    from ..checkpoint.inspecting import MatrixReport
    from ..checkpoint.skeleton import Skeleton
    from ..weights import LeftAlone

_REASONS = 8  # listed for unchanged weights
_WIDE = 110  # columns of a terminal that has room for long names
_FAR = 0.5  # ten published steps bring DfI per column below this, unless directions are missing


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
            have = ", ".join(["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))])
            raise OptionError(f"--device {self.device} cannot be used here: pass one of {have}") from problem
        return self.device


@dataclass(kw_only=True)
class Inspect(_OfCheckpoint):
    """Inspect every matrix of a checkpoint: its distance from an isometry, its rank, and how far it has moved."""

    name: ClassVar[str] = "inspect"

    reference: Annotated[str, arg(metavar="PATH")] = ""
    """An earlier checkpoint of the same network, in any format."""
    by: Literal["rank", "deviation", "condition", "norm", "distance"] = "rank"
    """What to sort by; rank is the effective rank relative to that of a random matrix."""
    rows: Annotated[int, arg(metavar="N")] = 20
    """How many matrices to show, worst first; 0: all."""
    json: bool = False
    """Print everything as JSON, and nothing else."""

    def __call__(self) -> int:
        from ..checkpoint import inspect

        if self.rows < 0:
            raise OptionError(f"--rows {self.rows}: pass how many to show, or 0 for all")
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
        if found.matrices:
            shown = found.matrices[: self.rows or None]
            print_line("")
            _print_matrices(shown, with_distance=found.reference is not None)
            if len(shown) < len(found.matrices):
                print_text(f"... and {len(found.matrices) - len(shown)} more: --rows 0 shows all.")
            print_text(
                "\nnorm: the size of the weight, in brackets that of a new one, as torch initialises it. rank: in how many "
                "directions it acts, in effect; in brackets that of a random matrix of this shape. condition: how much more "
                "its strongest direction is stretched than its weakest. DfI/col: deviation from isometry; 0 if it stretches "
                "all directions alike, by as much as FIRE sets."
            )
        _print_left_alone("not inspected", found.left_alone)
        if found.without_reference:
            print_text(f"not in the reference: {some(found.without_reference)}")
        if found.advice:
            print_line("\nWhat to do")
        for number, advice in enumerate(found.advice, 1):
            print_text(f"  {number}. {advice.do}\n     {advice.why} ({advice.evidence})")
        return 0


@dataclass(kw_only=True)
class Fire(_OfCheckpoint):
    """Write a copy of a checkpoint in which each weight matrix is its nearest isometry, rescaled."""

    name: ClassVar[str] = "fire"

    out: Annotated[str, arg(metavar="OUT", aliases=["-o"])] = ""
    """The new checkpoint: a file, or a folder if PATH is a folder or an index."""
    method: Literal["published", "exact"] = "published"
    """published: Newton-Schulz steps, as in the paper; exact: the polar factor itself."""
    steps: Annotated[int, arg(metavar="N")] = 10
    """Number of steps of the published method."""
    in_place: bool = False
    """Replace PATH itself, instead of writing OUT."""
    dry_run: bool = False
    """Show which weights would change and which would not, and write nothing."""
    ignore_checksums: bool = False
    """Also accept an archive with wrong checksums: damaged parts are copied unchanged, and their checksums stay wrong."""

    def __call__(self) -> int:
        from ..checkpoint import fire
        from ..checkpoint.copying import suggested

        if not (self.out or self.in_place or self.dry_run):
            there = suggested(Path(self.path))
            raise OptionError(f"no place for the new checkpoint: pass -o {there}, --in-place or --dry-run")
        if self.out and self.in_place:
            raise OptionError("-o and --in-place: pass one of them")
        if self.method == "exact" and self.steps != 10:
            raise OptionError("--method exact takes as many steps as it needs: --steps belongs to --method published")
        with _progress() as tell:
            done = fire(
                self.path,
                self.out or None,
                in_place=self.in_place,
                dry_run=self.dry_run,
                where=self.where or "everything",
                method=self.method,
                steps=self.steps,
                device=self._check_device(),
                ignore_checksums=self.ignore_checksums,
                tell=tell,
            )
        print_text(_heading(done.checkpoint, done.skeleton))
        if done.report is None:
            _print_plan(done)
        else:
            _print_report(done)
        copied = set(done.copied)
        _print_left_alone("unchanged", [w for w in done.selection.left_alone if w.name.partition(":")[0] not in copied])
        if copied:
            print_text(f"target networks become copies of the fired ones: {some(done.copied)}")
        if done.not_finite:
            print_text(f"NaN or infinite entries, copied unchanged: {some(done.not_finite)}")
        if done.wrong_checksums:
            print_text(f"wrong checksums, which stay wrong: {some(done.wrong_checksums)}")
        if done.checkpoint.beside:
            print_text(f"not weights: {some(done.checkpoint.beside)}")
        if done.momenta and done.out is not None:
            print_text(f"Reset the optimiser: its state was copied unchanged ({some(done.momenta)}).")
        if done.out is not None:
            print_line(f"written: {done.out}")
        return 0


@contextmanager
def _progress(*, quiet: bool = False) -> Iterator[Tell]:
    """A bar on a terminal; nothing elsewhere, where only the result is read."""
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
        yield lambda done, of, name: bar.update(task, completed=done, total=of, description=one_line(name))


def _heading(checkpoint: Checkpoint, bones: Skeleton) -> str:
    size = sum(file.stat().st_size for file in checkpoint.files)
    files = f" in {len(checkpoint.files)} shards" if len(checkpoint.files) > 1 else ""
    names = ", ".join(f"{family} ({count})" for family, count in bones.families.items() if family)
    known = f"layers known by name: {names}" if names else "no name is known, so layers are told by their shapes"
    held = f"{_counted(len(checkpoint.tensors), 'tensor')}{files}, {_size(size)}"
    return f"{checkpoint.path}: {checkpoint.format}, {held}; {known}"


def _size(count: int) -> str:
    power = min(int(math.log(max(count, 1), 1024)), 4)
    return f"{count / 1024**power:.{0 if power == 0 else 1}f} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _print_matrices(reports: tuple[MatrixReport, ...], *, with_distance: bool) -> None:
    from ..checkpoint.advising import new_norm
    from ..checkpoint.inspecting import shown_condition

    name = _shortener([one.name for one in reports])
    columns = ["matrix", "kind", "out x in", "norm (new)", "DfI/col", "rank (random)", "condition", "distance"]
    rows = []
    for one in reports:
        sides = f"{one.matrices} x " * (one.matrices > 1) + f"{one.sides[0]}x{one.sides[1]}"
        if one.bad:
            figures = [f"{one.bad:,} NaN or inf", "", "", "", ""]
        else:
            figures = [
                f"{one.norm:.3g}" + ("" if math.isnan(new_norm(one)) else f" ({new_norm(one):.3g})"),
                "-" if one.deviation is None else f"{one.deviation:.2g}",
                f"{one.effective_rank:.1f} ({one.random_rank:.1f})",
                shown_condition(one),
                "-" if one.distance is None else f"{one.distance:.2g}",
            ]
        rows.append([name(one.name), one.role or one.kind, sides, *figures][: 8 if with_distance else 7])
    columns = columns[: 8 if with_distance else 7]
    if _narrow():  # a name says most of what the kind does
        columns, rows = [columns[0], *columns[2:]], [[row[0], *row[2:]] for row in rows]
    print_table(columns, rows, right=range(columns.index("out x in"), len(columns)))


def _print_plan(done: Fired) -> None:
    weights = done.selection.chosen
    print_text(f"FIRE would change {_counted(len(weights), 'weight')}; nothing is written:")
    name = _shortener([weight.name for weight in weights])
    rows = []
    for weight in weights:
        stack = weight.stack()
        sides = f"{stack.count} x {stack.rows}x{stack.columns}"
        rows.append((name(weight.name), weight.role or weight.kind, sides, f"{weight.scale_of(stack):.3g}"))
    print_table(("weight", "kind", "matrices, out x in", "scale"), rows, right=(2, 3))


def _print_report(done: Fired) -> None:
    assert done.report is not None
    options, layers = done.report.options, done.report.layers
    how = f"{options.steps} steps" if options.method == "published" else options.method
    print_text(f"FIRE, {how}: {_counted(len(layers), 'weight')}. DfI per column: 0 is an isometry. SFE: squared change.")
    name = _shortener([layer.name for layer in layers])
    rows = [
        (
            name(layer.name),
            f"{layer.matrices} x {layer.shape[0]}x{layer.shape[1]}",
            f"{layer.dfi_before:.3g}",
            f"{layer.dfi_after:.2g}",
            f"{layer.sfe_normalised:.3g}",
        )
        for layer in layers
    ]
    print_table(("weight", "matrices", "DfI/col", "after", "SFE/|W|²"), rows, right=(1, 2, 3, 4))
    for layer in layers:
        if layer.note:
            print_text(f"{layer.name}: {layer.note}")
    far = [layer.name for layer in layers if layer.dfi_after > _FAR]
    if far:
        print_text(
            f"Still far from an isometry (DfI/col over {_FAR}): {some(far)}. Directions that are zero, or nearly, stay so: "
            "FIRE keeps the directions of a matrix, and a layer that has lost some needs new weights."
        )
    if any(layer.sfe_normalised > 1 for layer in layers):
        print_text(
            "SFE/|W|² over 1: the weight was smaller than the isometry that replaces it, so it moves by more than its own "
            "norm. Check what the network can still do before you continue training."
        )


def _print_left_alone(what: str, left: Sequence[LeftAlone]) -> None:
    """Grouped by reason, because a large model has hundreds of weights and few reasons."""
    by_reason: dict[str, list[str]] = {}
    for weight in left:
        by_reason.setdefault(weight.reason, []).append(weight.name)
    for reason, names in list(by_reason.items())[:_REASONS]:
        print_text(f"{what}: {some(names)}: {as_typed(reason)}")
    if len(by_reason) > _REASONS:
        rest = sum(map(len, list(by_reason.values())[_REASONS:]))
        print_text(f"{what}, for other reasons: {_counted(rest, 'weight')}")


def _narrow() -> bool:
    return console().is_terminal and console().width < _WIDE


def _shortener(names: Sequence[str]) -> Callable[[str], str]:
    """Names without "weight", in which nearly all end; on a narrow terminal also without their common beginning."""
    parts = [name.split(".")[:-1] for name in names] if _narrow() else []
    same = takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False)) if len(parts) > 1 else ()
    begin = "".join(f"{level[0]}." for level in same)
    if begin:
        print_line(f"All names begin with {begin}")

    def short(name: str) -> str:
        whole, colon, part = name.removeprefix(begin).partition(":")
        return whole.removesuffix(".weight") + colon + part

    return short


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s'[: number != 1]}"


def _as_json(found: Inspection) -> dict[str, Any]:
    return {
        "path": str(found.checkpoint.path),
        "format": found.checkpoint.format,
        "files": [file.name for file in found.checkpoint.files],
        "tensors": len(found.checkpoint.tensors),
        "families": found.skeleton.families,
        "reference": None if found.reference is None else str(found.reference),
        "summary": list(found.summary),
        "advice": [dataclasses.asdict(one) for one in found.advice],
        "matrices": [{key: _plain(value) for key, value in dataclasses.asdict(report).items()} for report in found.matrices],
        "not_finite": found.not_finite,
        "wrong_checksums": list(found.wrong_checksums),
        "left_alone": [dataclasses.asdict(weight) for weight in found.left_alone],
        "without_reference": list(found.without_reference),
        "no_weights": list(found.checkpoint.beside),
    }


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
