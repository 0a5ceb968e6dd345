"""What to do about what `inspect` found: calls in order, each with its reason and the evidence for it.

A file shows weights and no units, and not which code uses them. So the first advice is to ask the network itself, and the
calls are advised only for architectures that they were measured on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..diagnosis.advice import Advice, remedies, unknown_kind
from ..diagnosis.rules import GROWN

if TYPE_CHECKING:
    from .inspecting import Inspection, MatrixReport

_CHECKPOINTS, _REMEDIES = "docs/checkpoints.md#inspect", "docs/remedies.md"


def new_norm(report: MatrixReport) -> float:
    """The norm that torch's initialisation gives a layer of this shape; NaN for other kinds, for example embeddings."""
    outputs = {"linear": report.sides[0], "convolution": report.shape[0]}.get(report.kind)
    return math.sqrt(outputs / 3) if outputs else math.nan


def grown(report: MatrixReport) -> bool:
    """Whether a weight is much larger than when it was new."""
    return report.norm >= GROWN * new_norm(report)


def advise(found: Inspection, unhealthy: bool) -> list[Advice]:
    """What to do, the most urgent first. unhealthy: whether weights have lost directions or have grown."""
    if found.wrong_checksums:
        why = "the file is damaged or was changed, so whatever else it shows may not be what was saved"
        return [Advice("download or copy the file again, then inspect it again", why, _CHECKPOINTS)]
    if found.not_finite:
        why = "no remedy brings back a value that is NaN or infinite"
        return [Advice("train on from an earlier checkpoint, and inspect it first", why, _CHECKPOINTS)]
    if not found.matrices:
        return []
    ask = Advice(
        "print(rp.diagnose(model, batch, optimizer=optimizer))",
        "with the model's code and a few hundred samples: dead units and collapsed features cannot be seen in a file",
        "docs/tutorial-checkpoint.md",
    )
    if not unhealthy:
        return [ask]
    model = found.skeleton.model
    unknown = unknown_kind(model) or next((f"layers of {name}" for name in found.skeleton.families if name), "")
    if unknown:
        why = f"the network has {unknown}, and no remedy was measured with these"
        return [ask, Advice("compare remedies on your own data before you rely on one", why, _REMEDIES)]
    batch_norms = any(name.endswith("running_var") for name in found.checkpoint.tensors)
    steps = remedies(model, None, ())[0].advice
    if batch_norms:
        call = 'rp.fire_(model, method="exact", optimizer=optimizer)'
        why = "each weight becomes the nearest one that passes all directions alike; batch norm takes its norm away"
        steps = (Advice(call, why, f"{_REMEDIES}#networks-with-batch-norm"),)
    return [ask, *steps]
