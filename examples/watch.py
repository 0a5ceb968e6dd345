"""How often is `rp.watch` wrong, and what is it worth to act when it says so?

Digits, 3,600 steps, as in examples/digits.py: one task with the true labels all the time; or twelve tasks with true labels,
in each of which all images are moved by another random vector, of one or two standard deviations in every pixel; or twelve
with new random labels. Where a network loses its plasticity the alarm should come before a task ended with less than half
of the best accuracy; where it does not, there should be none.

    python examples/watch.py            # 20 seeds, about 40 minutes on two cores; its output is in examples/watch.txt
    python examples/watch.py --seeds 2
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch
from digits import EPOCHS, SAMPLES, TASKS, WIDTH, digits
from sklearn.datasets import load_digits
from torch import nn

import replastic as rp

EVERY = 50


def mlp(activation: Callable[[], nn.Module], norm: Callable[[int], nn.Module] | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise([64, WIDTH, WIDTH, WIDTH]):
        layers += [nn.Linear(a, b), *([norm(b)] if norm else []), activation()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def cnn() -> nn.Sequential:
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    head = [nn.Flatten(), nn.Linear(32 * 4 * 4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)]
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *convolutions, *head)


NETWORKS: dict[str, Callable[[], nn.Sequential]] = {
    "ReLU": lambda: mlp(nn.ReLU),
    "GELU": lambda: mlp(nn.GELU),
    "Leaky ReLU": lambda: mlp(nn.LeakyReLU),
    "tanh": lambda: mlp(nn.Tanh),
    "layer norm, ReLU": lambda: mlp(nn.ReLU, nn.LayerNorm),
    "batch norm, ReLU": lambda: mlp(nn.ReLU, nn.BatchNorm1d),
    "CNN, ReLU": cnn,
}
Run = tuple[str, str, int]  # network, arm, seed
Result = tuple[list[float], list[int]]  # accuracy at the end of each task, and the steps at which there was an alarm
MOVED = {"moved by 1": 1.0, "moved by 2": 2.0}
TRUE = ("true labels", *MOVED)
RANDOM = ("train on", "FIRE on alarm", "FIRE at boundaries")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", choices=NETWORKS)
    options = parser.parse_args()
    networks = [options.only] if options.only else list(NETWORKS)
    runs: list[Run] = list(itertools.product(networks, TRUE + RANDOM, range(options.seeds)))
    with ProcessPoolExecutor(options.jobs) as pool:
        results = dict(zip(runs, pool.map(run, runs), strict=True))
    print(table(results, networks, options.seeds))


def table(results: dict[Run, Result], networks: list[str], seeds: int) -> str:
    lines = [
        f"{'':<18}{'true labels: false alarms':>36}  {'random labels':<37}"
        f"accuracy in tasks 7 to 12, mean ± s.d., {seeds} seeds",
        f"{'network':<18}{'one task':>12}{'moved by 1':>12}{'by 2':>12}  "
        f"{'lost':>8}{'in time':>9}{'too late':>10}{'needless':>10}"
        f"{'train on':>14}{'FIRE on alarm':>20}{'FIRE at boundaries':>20}",
    ]
    for network in networks:
        of = {arm: [results[network, arm, seed] for seed in range(seeds)] for arm in TRUE + RANDOM}
        false = [f"{sum(verdict(*result) == 'needless' for result in of[arm])} of {seeds}" for arm in TRUE]
        verdicts = [verdict(*result) for result in of["train on"]]
        lost = sum(kind in ("in time", "too late") for kind in verdicts)
        late = {arm: [statistics.mean(accuracies[TASKS // 2 :]) for accuracies, _ in of[arm]] for arm in RANDOM}
        spread = {arm: f"{statistics.mean(values):.2f} ±{statistics.pstdev(values):.2f}" for arm, values in late.items()}
        calls = statistics.mean(len(alarms) for _, alarms in of["FIRE on alarm"])
        lines.append(
            f"{network:<18}{false[0]:>12}{false[1]:>12}{false[2]:>12}  "
            f"{f'{lost} of {seeds}':>8}{verdicts.count('in time'):>9}"
            f"{verdicts.count('too late'):>10}{verdicts.count('needless'):>10}{spread['train on']:>14}"
            f"{spread['FIRE on alarm'] + f' ({calls:.1f})':>20}{spread['FIRE at boundaries'] + f' ({TASKS - 1})':>20}"
        )
    explained = f"""
lost: seeds in which a task ended with less than half of the best accuracy; in time: the first alarm came before the end of
the first such task; too late: it did not; needless: an alarm though nothing was lost within the twelve tasks. In brackets:
calls of FIRE. {TASKS} tasks of {EPOCHS * SAMPLES // 100} steps each, a look every {EVERY} steps."""
    return "\n".join([*lines, explained])


def verdict(accuracies: list[float], alarms: list[int]) -> str:
    steps = EPOCHS * SAMPLES // 100
    ended = [(task + 1) * steps for task, accuracy in enumerate(accuracies) if accuracy < max(accuracies) / 2]
    if not ended:
        return "needless" if alarms else "none"
    return "in time" if alarms and alarms[0] <= ended[0] else "too late"


def run(which: Run) -> Result:
    network, arm, seed = which
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    order = torch.Generator().manual_seed(seed)
    inputs, truth = digits(), torch.tensor(load_digits(return_X_y=True)[1][:SAMPLES])
    net = NETWORKS[network]()
    watcher = rp.watch(net, every=EVERY)
    accuracies: list[float] = []
    alarms: list[int] = []
    labels, optimizer = truth, torch.optim.Adam(net.parameters(), lr=3e-3)
    for task in range(TASKS):
        if arm in MOVED:
            inputs = digits() + MOVED[arm] * torch.randn(64, generator=order)
        if arm in RANDOM:
            labels = torch.randint(10, (SAMPLES,), generator=order)
            optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        if arm == "FIRE at boundaries" and task:
            rp.fire_(net)
        for _ in range(EPOCHS):
            for batch in torch.randperm(SAMPLES, generator=order).split(100):
                loss = nn.functional.cross_entropy(net(inputs[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if watcher.should_restore():
                    alarms.append(watcher.calls)
                    if arm == "FIRE on alarm":
                        rp.fire_(net, optimizer=optimizer)
        with torch.no_grad():
            accuracies.append((net(inputs).argmax(1) == labels).float().mean().item())
    return accuracies, alarms


if __name__ == "__main__":
    main()
