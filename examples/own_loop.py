"""FIRE in a plain PyTorch loop: one line where the data changes.

python examples/own_loop.py
"""

from __future__ import annotations

import torch
from torch import nn

import replastic as rp

STEPS, CHANGE = 200, 100


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    teacher = torch.randn(16, 4)
    for step in range(STEPS):
        if step == CHANGE:
            teacher = torch.randn(16, 4)  # from now on other labels are right
            print(rp.fire_(model, optimizer=optimizer))  # the line; it also clears Adam's momenta of these weights
        inputs = torch.randn(64, 16)
        targets = (inputs @ teacher).argmax(1)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % (STEPS // 4) == 0:
            print(f"step {step + 1:>4}  loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
