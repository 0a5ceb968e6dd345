"""Continual Backpropagation: continually replace the few mature units that contribute least.

    u <- η u + (1 - η) · Σ_k mean|h_k| · Σ|w_k|      contribution utility, after every step
    age <- age + 1;  mature if age > m
    c <- c + ρ · (number of mature units);  replace the ⌊c⌋ mature units of least u/(1 - η^age);  c <- c - ⌊c⌋

in each layer. A replaced unit has fresh incoming weights, zero outgoing weights, age 0 and utility 0. The next layer reads
the unit's outputs h_k by columns of weights w_k. There is one column, or several if a channel is flattened into a linear
layer.

Dohare, Hernandez-Garcia, Lan, Rahman, Mahmood & Sutton: Loss of Plasticity in Deep Continual Learning, Nature 2024.

Departures from released code, each for a reason:
    - Activations are read after the norm and the activation function, as the next layer reads them. FIRE's port reads them
      before.
    - The running mean of |h| decays. In the ResNet version and in FIRE's port it is a sum that never decays.
    - Which layer reads a unit is traced through the model. FIRE's port goes by the order of modules, so it may take another
      layer's weights for the outgoing ones. The last hidden layer is included.
    - The least useful units are replaced. lop-jax replaces the most useful ones; its version for permuted MNIST adds |h| and
      |w_out|, does not draw new weights, and replaces a unit whatever the rate is.
    - The optimiser's moments of the replaced entries are cleared. Each unit has one age, even if its channel feeds
      many columns of a linear layer.
    - Replacements accrue at ρ times the number of mature units, as in the paper and the MLP version of its code. In the
      convolutional version they accrue at ρ times the number of all units of a layer, once one of them is mature.
    - As in the paper's rule, the mean activation is not transferred into the next layer's bias. The MLP version of its code
      does so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..learner import Learner, Method
from ..linalg.polar_factor import work_dtype
from ..units import Tap, UnitGroup, original
from .kept import units_in_books


def outgoing_magnitude(model: nn.Module, group: UnitGroup) -> Tensor:
    """(units, columns a unit): the sum of |w| over all weights that read each column."""
    first, *others = (
        torch.linalg.vector_norm(view, 1, list(range(slot.lead, view.ndim)), dtype=work_dtype(view.dtype)).flatten().float()
        for slot, view in ((slot, slot.view(slot.tensor(model).detach())) for slot in group.readers)
    )
    total = group.by_unit(first)
    for slot, channels, alike in zip(group.readers[1:], others, group.alike[1:], strict=True):
        if alike:
            total = total + group.by_unit(channels)
        else:  # it is not known which of the first reader's columns this one reads: count an equal share for each
            shares = (channels * (slot.units >= 0) / total.shape[1])[:, None].expand(-1, total.shape[1])
            # index_put_ adds up in a fixed order, index_add_ on the GPU does not
            total = total.index_put((slot.units.clamp_min(0),), shares, accumulate=True)
    return total


def contribution(model: nn.Module, group: UnitGroup, activity: Tensor) -> Tensor:
    """(units,): Σ mean|h| · Σ|w_out| over the columns of each unit; activity: mean|h| of the first reader's channels."""
    columns = group.by_unit(activity) * outgoing_magnitude(original(model), group)
    return columns.squeeze(1) if columns.shape[1] == 1 else columns.sum(1)


def contributions(model: nn.Module, groups: Sequence[UnitGroup], tap: Tap) -> Tensor:
    """(units of all groups,): what each unit contributes to the layers that read it."""
    return torch.cat([contribution(model, group, tap.mean_abs_by_channel(group.name).float()) for group in groups])


@dataclass
class CBP(Method):
    """Continual Backpropagation after every step."""

    rate: float = 1e-4  # ρ: the fraction of mature units that is replaced in each step
    maturity: int = 1000  # m: the number of steps in which a new unit is not replaced
    decay: float = 0.99  # η: the decay rate of the utility
    needs_first: ClassVar[bool] = False
    books: ClassVar[tuple[str, ...]] = ("maturity",)
    one_process: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("rate", 0 <= self.rate <= 1, "between 0 and 1")
        self.require("maturity", self.maturity >= 0, "a number of steps, 0 or more")
        self.require("decay", 0 <= self.decay < 1, "at least 0 and below 1")

    def start(self, learner: Learner) -> None:
        learner.will_reset_units(self)
        self.state["step"] = 0
        self.units(learner)

    def units(self, learner: Learner) -> Sequence[UnitGroup]:
        """The units that train. The state of the others is kept under "frozen"."""
        if "mature" in self.state and "clock" not in self.state:  # an old checkpoint, in which all groups had one clock
            self.state["clock"] = [self.state["step"] for _ in self.state["mature"]]
        return units_in_books(self, learner, self._opened)

    def _opened(self, groups: Sequence[UnitGroup]) -> dict[str, Any]:
        units = torch.cat([group.columns[:, 0] for group in groups])
        return {
            "utility": torch.zeros_like(units, dtype=torch.float32),
            "age": torch.zeros_like(units),
            # The number of mature units is tracked on the host: all units that are born in a step mature m steps later.
            "owed": [0.0 for _ in groups],  # c: the number of replacements that are due, with its fraction
            "mature": [0 for _ in groups],
            "young": [[[0, group.size]] for group in groups],  # (step of birth, number of units)
            "clock": [0 for _ in groups],  # steps in which the group trained
        }

    def after_step(self, learner: Learner) -> None:
        groups, tap = self.units(learner), learner.tap()
        if groups:
            utility, age = self.state["utility"], self.state["age"]
            utility.lerp_(contributions(learner.model, groups, tap), 1 - self.decay)
            age += 1
            self.replace(learner, utility, age)

    def replace(self, learner: Learner, utility: Tensor, age: Tensor) -> None:
        """Replace the units that are due after this step. utility and age, (units of all groups,), are written to."""
        self.state["step"] += 1
        groups, sizes = self.units(learner), list(self.state["units"].values())
        due = [self._due(number) for number in range(len(groups))]
        parts = zip(groups, due, utility.split(sizes), age.split(sizes), strict=True)
        # The last layer first: where two neighbouring units are replaced, the zeros between them are written last.
        for group, count, useful, old in reversed(list(parts)) if any(due) else ():
            if count:
                chosen = least_useful(useful, old, count, self.maturity, self.decay)
                learner.reset_units(group, chosen)
                useful.index_fill_(0, chosen, 0)
                old.index_fill_(0, chosen, 0)

    def never_acted(self) -> str:
        if "clock" not in self.state or self.state.get("frozen"):
            return ""
        sizes, clocks = list(self.state["units"].values()), self.state["clock"]
        ages = zip(self.state["age"].split(sizes), clocks, strict=True)
        if any(bool((age < clock).any()) for age, clock in ages):
            return ""  # a unit that was replaced is younger than its layer
        steps = max(clocks, default=0)
        reason = f"maturity is {self.maturity}" if steps <= self.maturity else f"rate = {self.rate:g} is too low for it"
        return f"CBP replaced no unit in {steps} steps: {reason}"

    def _due(self, number: int) -> int:
        """The number of units of a group to replace in this step; updates the counts."""
        self.state["clock"][number] += 1
        young, step = self.state["young"][number], self.state["clock"][number]
        while young and step - young[0][0] > self.maturity:
            self.state["mature"][number] += young.pop(0)[1]
        self.state["owed"][number] += self.rate * self.state["mature"][number]
        due = min(int(self.state["owed"][number]), self.state["mature"][number])
        if due:
            self.state["owed"][number] -= due
            self.state["mature"][number] -= due
            young.append([step, due])
        return due


def least_useful(utility: Tensor, age: Tensor, count: int, maturity: int, decay: float) -> Tensor:
    """Indices of the `count` mature units of least utility, which is corrected for its start at zero.

    >>> least_useful(torch.tensor([0.3, 0.1, 0.2]), torch.tensor([9, 1, 9]), 1, maturity=5, decay=0.9)
    tensor([2])
    """
    corrected = utility / (1 - decay ** age.clamp_min(1).float())
    return corrected.masked_fill(age <= maturity, torch.inf).topk(count, largest=False).indices
