"""Does `rp.diagnose` cry wolf? Small networks trained on the digits in the ordinary way should have no finding.

python examples/healthy.py            # a minute; its output is in examples/healthy.txt
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import Optimizer
from watch import NETWORKS

import replastic as rp

TRAINED, SEEDS, EPOCHS = 1200, 2, 20
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], Optimizer]] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, 3e-3),
    "Adam, weight decay": lambda parameters: torch.optim.Adam(parameters, 1e-3, weight_decay=1e-3),
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
}


def main() -> None:
    torch.set_num_threads(1)
    images, truth = (torch.tensor(part) for part in load_digits(return_X_y=True))
    pixels = images.float()
    inputs = (pixels - pixels.mean(0)) / (pixels.std(0) + 0.1)
    networks = findings = 0
    for name, build in NETWORKS.items():
        for optimizer, make in OPTIMIZERS.items():
            for seed in range(SEEDS):
                torch.manual_seed(seed)
                net = build()
                train(net, make(net.parameters()), inputs, truth)
                with torch.no_grad():
                    accuracy = (net.eval()(inputs[TRAINED:]).argmax(1) == truth[TRAINED:]).float().mean().item()
                found = rp.diagnose(net, inputs[:600]).findings
                networks, findings = networks + 1, findings + bool(found)
                text = "; ".join(f"{finding.layer}: {finding.problem}" for finding in found) or "nothing"
                print(f"{name:<18}{optimizer:<20}seed {seed}   test accuracy {accuracy:.2f}   found: {text}", flush=True)
    print(f"\n{findings} of {networks} networks have a finding.")


def train(net: nn.Module, optimizer: Optimizer, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    for _ in range(EPOCHS):
        for batch in torch.randperm(TRAINED).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs[batch]), labels[batch]).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
