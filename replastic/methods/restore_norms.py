"""RestoreNorms: scale every weight back to the norm that it started with, and change nothing else.

    W <- W·‖W₀‖/‖W‖

The idea: weights grow while a network trains, and a layer with large weights learns slowly, because a step of the same size
turns it less. FIRE, Shrink & Perturb, DASH and resets all reduce norms. Each also changes something else: the singular
values, the directions, or what was learnt. This method changes only the norms, so a comparison with it shows how much of
another method's effect is due to norms. Directly before a norm layer, scaling does not change what the network computes in
training mode; a batch norm's running statistics keep the larger weights' scale until training has updated them.

to="fire" scales to the norms that FIRE's published steps leave, which are far from an isometry's in wide layers.
isometry=True replaces W by its nearest isometry before it is scaled. Together these arms combine old or equal singular
values with different norms, and separate the effect of the spectrum from the effect of the norm.

It is this project's own control and not from a paper. Normalize-and-Project has the same equation.

Departures from Normalize-and-Project, each for a reason:
    - It acts at boundaries and not after every step, like the remedies that it is compared with.
    - Models without norm layers are accepted. Their outputs change, as with the other remedies.
    - One factor scales a whole weight: all taps of a convolution and all gates of a recurrent layer. The parts of a fused
      weight, such as queries and keys, have a factor each.
    - A weight that started at zero, or is zero, is left unchanged: the first would stop learning, and the second has no
      direction.
    - Biases keep their values unless biases=True, which resets them to their initial values. Embeddings and the gains of
      norms are scaled only if `where` names them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from ..learner import Learner, Method, Task
from ..learner.fresh import named_tensors
from ..linalg.polar_factor import PolarOptions
from ..linalg.products import frobenius_norms
from ..weights import LeftAlone, Where, select
from ..weights.inventory import WeightMatrix
from ..weights.sharded import check_unsharded
from .boundary import (
    BoundaryReport,
    Optimizers,
    Written,
    check_finite,
    on_model,
    optimizer_entries,
    rewrite_,
    written_parts,
)
from .fire import fire_
from .first_weights import Initial, Seed, first_weights_of
from .reset import biases as biases_of


def norm_factor(weight: Tensor, first: Tensor) -> Tensor:
    """‖W₀‖/‖W‖ by Frobenius norms, in float64: 0 for a weight that started at zero, and not finite for one that is zero.

    >>> norm_factor(Tensor([[3.0, 4.0]]), Tensor([[0.0, 1.0]])).item()
    0.2
    """
    then, now = (frobenius_norms(one.reshape(1, -1, 1))[0] for one in (first, weight))
    return then / now


@on_model("rp.restore_norms_(model, optimizer=optimizer)")
def restore_norms_(
    model: nn.Module,
    *,
    where: Where = "everything",
    initial: Initial | None = None,
    biases: bool = False,
    optimizer: Optimizers = None,
    seed: Seed = 0,
) -> BoundaryReport:
    """Scale each selected weight of `model` to its initial Frobenius norm, in place, and report what changed.

    Call it when the data changes, before training continues. Invalid input raises before the first weight is written.

    where: the weights to scale; see `weights.select`. Embeddings and norms are scaled only if selected explicitly.
    initial: the initial weights: a newly initialised model with the same modules, or its state dict. None: the weights that
        `rp.remember(model)` stored, else new weights from the layers' own reset_parameters(), whose
        norms differ from the original ones by chance.
    biases: whether to reset the biases of the selected layers to their initial values.
    optimizer: the optimiser whose state of the changed weights is cleared; a list if several train the model.
    seed: the seed of new weights: an integer, or a torch.Generator. The same integer draws the same weights.

    >>> model, first = nn.Linear(3, 2), {"weight": Tensor([[1, 0, 0], [0, 1, 0]])}
    >>> report = restore_norms_(model, initial=first)
    >>> round(model.weight.norm().item(), 4), report.names
    (1.4142, ('weight',))
    """
    check_unsharded(model, for_good=biases)  # names of biases come from state_dict(), which holds copies in FSDP1
    selection = select(model, where)
    asked = {weight.name.partition(":")[0]: weight.parameter for weight in selection.chosen}
    tensors = named_tensors(model) if biases else {}
    shifts = {name: tensors[name] for name in biases_of(model, where)} if biases else {}
    check_finite(asked, " in the model: reload or reset these weights")
    first = first_weights_of(model, asked | shifts, initial, seed)
    views = {one.name: _view(one, one.parameter) for one in selection.chosen}
    factors = {
        one.name: norm_factor(views[one.name], _view(one, first.values[one.name.partition(":")[0]])).item()
        for one in selection.chosen
    }
    scaled = [one for one in selection.chosen if 0 < factors[one.name] < math.inf]
    zero = [
        LeftAlone(one.name, tuple(one.parameter.shape), "started at zero" if factors[one.name] == 0 else "is zero")
        for one in selection.chosen
        if one not in scaled
    ]
    written = [*written_parts(scaled), *(Written(name, [tensor]) for name, tensor in shifts.items())]
    entries = optimizer_entries(model, written, optimizer, every=True)

    def new(name: str, tensor: Tensor) -> Tensor:
        return tensor * factors[name] if name in factors else first.values[name]

    what = f"norms restored{', biases reset' if biases else ''}"
    rewritten = {one.name: views[one.name] for one in scaled} | shifts
    return rewrite_(what, rewritten, new, entries, first.source, (*selection.left_alone, *zero))


def _view(weight: WeightMatrix, tensor: Tensor) -> Tensor:
    """The part of a tensor of the weight's shape that the weight is: all of it unless it is a part of a fused weight."""
    return weight.layout.view(tensor.detach()) if weight.layout.part else tensor.detach()


@dataclass
class RestoreNorms(Method):
    """Scale every weight to its initial norm, at every boundary."""

    where: Where = "everything"
    to: Literal["initial", "fresh", "fire"] = "initial"  # "fresh": norms of new weights; "fire": norms after FIRE
    biases: bool = False  # whether to reset biases to their initial values
    fire_steps: int = 5  # for to="fire": the steps of FIRE as published; 10 for vision and RL
    isometry: bool = False  # whether to replace each matrix by its nearest isometry before scaling
    clear_state: bool = True  # clear the optimiser's momenta of the changed weights

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("to", self.to in ("initial", "fresh", "fire"), '"initial", "fresh" or "fire"')
        PolarOptions("published", self.fire_steps)  # raises for a number of steps that cannot be meant

    def start(self, learner: Learner) -> None:
        chosen = select(learner.model, self.where).chosen  # raises now, not after the first task, if it is empty
        named = named_tensors(learner.model) if self.biases else {}
        shifts = [named[name] for name in biases_of(learner.model, self.where)] if self.biases else []
        if self.clear_state:
            parts = list(written_parts(chosen))
            learner.will_forget(self, [one for part in parts if part.mask is None for one in part.tensors] + shifts)
            learner.will_forget(self, [one for part in parts if part.mask is not None for one in part.tensors], parts=True)
        if self.to == "fresh":
            learner.check_fresh()

    def at_boundary(self, learner: Learner, task: Task | None) -> None:
        first = self._first(learner)
        if self.isometry:
            fire_(learner.model, method="exact", where=self.where)
        restore_norms_(
            learner.model,
            where=self.where,
            initial=first,
            biases=self.biases,
            optimizer=learner.optimizer if self.clear_state else None,
        )

    def _first(self, learner: Learner) -> Initial:
        """The weights whose norms are to be restored."""
        if self.to != "fire":
            return learner.fresh() if self.to == "fresh" else learner.initial
        named = {one.name.partition(":")[0]: one.parameter.detach() for one in select(learner.model, self.where).chosen}
        before = {name: tensor.clone() for name, tensor in named.items()}
        fire_(learner.model, steps=self.fire_steps, where=self.where)
        fired = {name: tensor.clone() for name, tensor in named.items()}
        for name, tensor in named.items():
            tensor.copy_(before[name])
        return {**learner.initial, **fired}
