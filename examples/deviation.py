"""How far from an isometry the published iteration ends, by width and number of steps (the table in docs/fire.md).

python examples/deviation.py
"""

from __future__ import annotations

import torch

WIDTHS, STEPS = (64, 192, 512, 1024, 4096), (5, 10, 15, 20)


def main() -> None:
    torch.manual_seed(0)
    columns = [deviations(width) for width in WIDTHS]
    for row, steps in enumerate(STEPS):
        print(f"| {steps} steps | " + " | ".join(f"{column[row]:.2g}" for column in columns) + " |")


def deviations(width: int) -> list[float]:
    """DfI per column after each of STEPS, for one Gaussian matrix: its singular values follow x <- 1.5x - 0.5x³."""
    sigma = torch.linalg.svdvals(torch.randn(width, width))
    x, found = (sigma / sigma.norm()).double(), []
    for step in range(1, max(STEPS) + 1):
        x = 1.5 * x - 0.5 * x**3
        if step in STEPS:
            found.append(float((x.square() - 1).square().mean()))
    return found


if __name__ == "__main__":
    main()
