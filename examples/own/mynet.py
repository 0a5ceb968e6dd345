"""A network of your own: any nn.Module. What its arguments name is passed: `inputs` and `outputs` follow from the data."""

from torch import Tensor, nn


class MyNet(nn.Module):
    """A network for rows of numbers, with one residual block."""

    def __init__(self, inputs: int, outputs: int, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.block = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.last = nn.Linear(width, outputs)

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.first(features).relu()
        return self.last((hidden + self.block(hidden)).relu())
