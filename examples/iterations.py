"""What ten Newton-Schulz steps do to a trained network, step by step (figure 6 of the FIRE paper, on digits).

With the singular values σ of a weight everything about the published iteration is known from the scalar recurrence
x <- 1.5x - 0.5x³, x_0 = σ/‖σ‖: after k steps, with the layer's scale s, SFE_k = Σ(σ - s·x_k)² and DfI_k = Σ(x_k² - 1)².
The paper's figure shows SFE highest after the first step and falling from there. That is so while s·x_k lies below σ.

    python examples/iterations.py
"""

from __future__ import annotations

import itertools

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import replastic as rp

STEPS = 10


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net, accuracy = trained_network()
    print(f"A network of 64-256-256-10 units, trained on 1,400 digits; test accuracy {accuracy:.3f} on 397 others.\n")
    print(f"{'':<12}{'':>16}" + "".join(f"{f'k={k}':>9}" for k in range(1, STEPS + 1)))
    for weight in rp.select(net).chosen:
        sigma = torch.linalg.svdvals(weight.stack().gather().double())
        sfe, dfi = every_step(sigma, weight.scale)
        norm, lowest = float(sigma.square().sum()), 1 + sfe.index(min(sfe))
        falls = all(after <= before for before, after in itertools.pairwise(sfe))
        verdict = (
            "SFE falls from the first step on, as in the figure" if falls else f"SFE falls until k={lowest}, then rises"
        )
        print(f"{weight.name:<12}{'SFE/|W|²':>16}" + "".join(f"{value / norm:>9.3f}" for value in sfe))
        print(f"{'':<12}{'DfI per column':>16}" + "".join(f"{value / len(sigma):>9.3f}" for value in dfi))
        print(f"{'':<12}σ from {sigma.min():.2f} to {sigma.max():.2f}, scale {weight.scale:.2f}: {verdict}\n")


def every_step(sigma: Tensor, scale: float) -> tuple[list[float], list[float]]:
    """SFE and DfI after 1 to STEPS steps, from the singular values alone."""
    x, sfe, dfi = sigma / sigma.norm(), [], []
    for _ in range(STEPS):
        x = 1.5 * x - 0.5 * x**3
        sfe.append(float((sigma - scale * x).square().sum()))
        dfi.append(float((x.square() - 1).square().sum()))
    return sfe, dfi


def trained_network() -> tuple[nn.Module, float]:
    images, targets = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32)
    inputs, labels = (pixels - pixels.mean(0)) / (pixels.std(0) + 0.1), torch.tensor(targets)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(100):
        for batch in torch.randperm(1400).split(100):
            loss = nn.functional.cross_entropy(net(inputs[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return net, (net(inputs[1400:]).argmax(1) == labels[1400:]).float().mean().item()


if __name__ == "__main__":
    main()
