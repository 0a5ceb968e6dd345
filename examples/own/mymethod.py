"""A method of your own: a dataclass whose fields are its settings, called at its moment."""

from dataclasses import dataclass

import torch

import replastic as rp


@dataclass
class HalfWayBack(rp.Method):
    """Pull every weight towards its initial value, at each boundary."""

    share: float = 0.5  # of the way back, in [0, 1]

    @torch.no_grad()
    def at_boundary(self, learner: rp.Learner, task: rp.Task | None) -> None:
        for name, parameter in learner.parameters.items():
            parameter.lerp_(learner.first(name), self.share)
