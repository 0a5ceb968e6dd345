"""Loss of plasticity in a minute, and what one call does about it.

A small network learns one task after another: the same 1,000 handwritten digits, each time with new random labels, so that
every task is as hard as the first and nothing learnt before helps. A network that stays plastic fits each as well as the
first. Trained on without care it fits less and less, until it cannot learn at all.

    python examples/digits.py
"""

from __future__ import annotations

import itertools
import statistics
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import replastic as rp

TASKS, EPOCHS, SEEDS, SAMPLES, WIDTH = 12, 30, 3, 1000, 100
SHOWN = (1, 2, 4, 6, 8, 12)  # tasks in the table
ARMS = {
    "train on": "nothing is done between tasks",
    "FIRE, published": "rp.fire_(net) between tasks",
    "FIRE, exact": 'rp.fire_(net, method="exact") between tasks',
    "new network": "everything is forgotten between tasks",
}


def main() -> None:
    torch.set_num_threads(1)  # matrices this small gain nothing from a second
    start = time.perf_counter()
    print(f"{TASKS} tasks, each {SAMPLES} digits with new random labels, {EPOCHS} epochs; {SEEDS} seeds.\n")
    print(f"{'accuracy in task':<16}" + "".join(f"{task:>12}" for task in SHOWN) + f"{'dead units':>13}")
    reports: list[rp.FireReport | None] = []
    for arm in ARMS:
        runs = [run(arm, seed) for seed in range(SEEDS)]
        cells = [mean_and_spread([accuracies[task - 1] for accuracies, _, _ in runs]) for task in SHOWN]
        dead = statistics.mean(dead for _, dead, _ in runs)
        print(f"{arm:<16}" + "".join(f"{cell:>12}" for cell in cells) + f"{dead:>13.0%}", flush=True)
        reports.append(runs[0][2])
    print("\nAccuracy on the labels to be learnt at the end of a task, mean ± standard deviation over seeds; 0.1 is chance.")
    print("Dead units: hidden units that are zero for every digit after the last task.")
    for arm, what in ARMS.items():
        print(f"  {arm:<16}  {what}")
    print("\nWhat the last call of FIRE, exact did (seed 0). DfI: how far from an isometry; SFE: how far the weight moved.")
    print(reports[list(ARMS).index("FIRE, exact")])
    print(f"\n{time.perf_counter() - start:.0f} s")


def run(arm: str, seed: int) -> tuple[list[float], float, rp.FireReport | None]:
    """Accuracy at the end of each task, share of dead units at the end, and the last report of `fire_`."""
    torch.manual_seed(seed)
    order = torch.Generator().manual_seed(seed)  # the same tasks and batches for every arm
    inputs = digits()
    net, report, accuracies = build(), None, []
    for task in range(TASKS):
        labels = torch.randint(10, (SAMPLES,), generator=order)
        if task and arm == "new network":
            net = build()
        elif task and arm.startswith("FIRE"):
            report = rp.fire_(net, method="exact" if arm == "FIRE, exact" else "published")
        train(net, inputs, labels, order)
        with torch.no_grad():
            accuracies.append((net(inputs).argmax(1) == labels).float().mean().item())
    return accuracies, dead_units(net, inputs), report


def digits() -> Tensor:
    images, _ = load_digits(return_X_y=True)
    pixels = torch.tensor(images[:SAMPLES], dtype=torch.float32)
    return (pixels - pixels.mean(0)) / (pixels.std(0) + 0.1)


def build() -> nn.Sequential:
    sizes = [64, WIDTH, WIDTH, WIDTH]
    hidden = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, 10))


def train(net: nn.Module, inputs: Tensor, labels: Tensor, order: torch.Generator) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)  # new for each task, in every arm
    for _ in range(EPOCHS):
        for batch in torch.randperm(SAMPLES, generator=order).split(100):
            loss = nn.functional.cross_entropy(net(inputs[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def dead_units(net: nn.Sequential, inputs: Tensor) -> float:
    shares, x = [], inputs
    for layer in net:
        x = layer(x)
        if isinstance(layer, nn.ReLU):
            shares.append((x == 0).all(0).float().mean().item())
    return statistics.mean(shares)


def mean_and_spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ±{statistics.stdev(values):.2f}"


if __name__ == "__main__":
    main()
