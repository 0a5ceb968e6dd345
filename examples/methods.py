"""Every method on one stream: twelve tasks of 1,000 handwritten digits with new random labels, as in digits.py.

    python examples/methods.py            # all of them, about six minutes on two cores
    python examples/methods.py cbp l2     # some

Settings are the papers' where those act within 300 steps a task, else as stated below; nothing was tuned on the result.
It is a toy: it shows that each method does what it should, not which is best.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from digits import EPOCHS, SAMPLES, SEEDS, TASKS, build, dead_units, digits, mean_and_spread
from torch import Tensor, nn

import replastic as rp

SHOWN = (1, 2, 4, 8, 12)
WITHOUT = {"normalize_and_project", "shrink_encoder"}  # they need norms, or convolutions, and this network has neither
ARMS: dict[str, Callable[[], Any]] = {
    "train on": lambda: [],
    **{name: method for name, method in rp.METHODS.items() if name not in WITHOUT},
    "fire_on_alarm": lambda: rp.FIREOnAlarm(every=50),  # as in watch.py
    "perturb_each_step": lambda: [rp.PerturbEachStep(1e-4), rp.L2(1e-4)],  # the benchmark's values for permuted MNIST
    "cbp": lambda: rp.CBP(maturity=100),  # as for permuted MNIST; 1000 steps are three tasks here
    "redo": lambda: rp.ReDo(period=100),
    "hare_and_tortoise": lambda: rp.HareAndTortoise(0.99, period=100),  # ten epochs
    "er": lambda: rp.ER(every=5),
    "l2_er": lambda: rp.l2_er(every=5),
}


def main() -> None:
    torch.set_num_threads(1)
    chosen = sys.argv[1:] or list(ARMS)
    unknown = [name for name in chosen if name not in ARMS]
    if unknown:
        sys.exit(f"{unknown[0]!r} is not one of {', '.join(ARMS)}")
    start = time.perf_counter()
    print(f"{'accuracy in task':<20}" + "".join(f"{task:>12}" for task in SHOWN) + f"{'dead units':>12}")
    for name in chosen:
        runs = [run(ARMS[name](), seed) for seed in range(SEEDS)]
        cells = [mean_and_spread([accuracies[task - 1] for accuracies, _ in runs]) for task in SHOWN]
        dead = statistics.mean(dead for _, dead in runs)
        print(f"{name:<20}" + "".join(f"{cell:>12}" for cell in cells) + f"{dead:>12.0%}", flush=True)
    print(f"\nMean ± standard deviation over {SEEDS} seeds; 0.1 is chance. {time.perf_counter() - start:.0f} s")


def run(methods: Any, seed: int) -> tuple[list[float], float]:
    """Accuracy at the end of each task, and the share of dead units at the end."""
    torch.manual_seed(seed)
    order = torch.Generator().manual_seed(seed)  # the same tasks and batches for every arm
    inputs, net, accuracies = digits(), build(), []
    learner = rp.Learner(net, torch.optim.Adam(net.parameters(), lr=3e-3), methods=methods, build=build, seed=seed)
    for number in range(TASKS):
        task = random_labels(number, inputs, torch.randint(10, (SAMPLES,), generator=order))
        learner.forget(learner.parameters.values())  # new for each task, in every arm
        learner.begin(task)
        for batch in task.batches(order):
            learner.step(*batch)
        assert task.evaluate is not None
        tested = next(iter(learner.evaluated().values()))
        accuracies.append(task.evaluate(tested)["accuracy"])
    return accuracies, dead_units(net, inputs)


def random_labels(number: int, inputs: Tensor, labels: Tensor) -> rp.Task:
    def batches(generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(EPOCHS):
            for batch in torch.randperm(SAMPLES, generator=generator).split(100):
                yield inputs[batch], labels[batch]

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"accuracy": (model(inputs).argmax(1) == labels).float().mean().item()}

    return rp.Task(str(number), batches, nn.functional.cross_entropy, evaluate)


if __name__ == "__main__":
    main()
