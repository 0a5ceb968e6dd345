"""How often is `rp.watch` wrong, and what is it worth to act when it says so?

Digits, 3,600 steps, as in examples/digits.py: either one task with the true labels all the time, or twelve tasks with new
random labels. Where a network loses its plasticity the alarm should come before a task has ended with less than half of the
best accuracy; where it does not, there should be none.

    python examples/watch.py            # 20 seeds, about 15 minutes on two cores; writes what examples/watch.txt has
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
NETWORKS: dict[str, tuple[Callable[[], nn.Module], bool]] = {  # activation function, and whether a layer norm is before it
    "ReLU": (nn.ReLU, False),
    "GELU": (nn.GELU, False),
    "Leaky ReLU": (nn.LeakyReLU, False),
    "tanh": (nn.Tanh, False),
    "layer norm, ReLU": (nn.ReLU, True),
}
Run = tuple[str, str, int]  # network, arm, seed
Result = tuple[list[float], list[int]]  # accuracy at the end of each task, and the steps at which there was an alarm
ARMS = ("true labels", "train on", "FIRE on alarm", "FIRE at boundaries")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    runs = list(itertools.product(NETWORKS, ARMS, range(options.seeds)))
    with ProcessPoolExecutor(options.jobs) as pool:
        results = dict(zip(runs, pool.map(run, runs), strict=True))
    print(table(results, options.seeds))


def table(results: dict[Run, Result], seeds: int) -> str:
    lines = [
        f"{'':<18}{'true labels':>12}  {'random labels':<40}accuracy in tasks 7 to 12, mean ± s.d., {seeds} seeds",
        f"{'network':<18}{'false alarms':>12}  {'lost':>8}{'in time':>9}{'too late':>10}{'needless':>10}"
        f"{'train on':>14}{'FIRE on alarm':>20}{'FIRE at boundaries':>20}",
    ]
    for network in NETWORKS:
        of = {arm: [results[network, arm, seed] for seed in range(seeds)] for arm in ARMS}
        false = sum(bool(alarms) for _, alarms in of["true labels"])
        verdicts = [verdict(*result) for result in of["train on"]]
        lost = sum(kind in ("in time", "too late") for kind in verdicts)
        late = {arm: [statistics.mean(accuracies[TASKS // 2 :]) for accuracies, _ in of[arm]] for arm in ARMS[1:]}
        spread = {arm: f"{statistics.mean(values):.2f} ±{statistics.pstdev(values):.2f}" for arm, values in late.items()}
        calls = statistics.mean(len(alarms) for _, alarms in of["FIRE on alarm"])
        lines.append(
            f"{network:<18}{f'{false} of {seeds}':>12}  {f'{lost} of {seeds}':>8}{verdicts.count('in time'):>9}"
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
    net = build(network)
    watcher = rp.watch(net, every=EVERY)
    accuracies: list[float] = []
    alarms: list[int] = []
    labels, optimizer = truth, torch.optim.Adam(net.parameters(), lr=3e-3)
    for task in range(TASKS):
        if arm != "true labels":
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


def build(network: str) -> nn.Sequential:
    activation, norm = NETWORKS[network]
    sizes = [64, WIDTH, WIDTH, WIDTH]
    hidden: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        hidden += [nn.Linear(a, b), *([nn.LayerNorm(b)] if norm else []), activation()]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, 10))


if __name__ == "__main__":
    main()
