"""A newcomer's first try, measured: a small CNN without norms learns digits whose labels are permuted in each of ten tasks.

    python experiments/advice/permuted-labels.py > permuted-labels.jsonl     # five minutes on one core
    python experiments/advice/permuted-labels.py --quick                     # seconds: whether it runs, not what it shows

It is the network and the loop of the tutorial docs/tutorial-first-steps.md. Between two tasks an arm does one of these:

    nothing       trains on
    advised       runs `rp.diagnose` on the images until it advises calls, and makes these calls from then on
    when found    runs `rp.diagnose` each time, and makes the calls only if it advises them again
    FIRE          rp.fire_(model, optimizer=optimizer), as published
    S&P           rp.shrink_and_perturb_(model, rate=0.8, optimizer=optimizer)
    full reset    rp.reset_(model, optimizer=optimizer)

The first line has the commit and the command. Then a line of JSON for each arm and seed: the accuracy on the images learnt
at the end of each task, and how many calls were made at each boundary. The rules of the advice were chosen on
seeds 1 to 3, so the seeds here are others.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import nn

import replastic as rp
from replastic.record.provenance import provenance

SEEDS = (11, 12, 13, 14, 15)
SAMPLES, BATCH, EPOCHS, TASKS = 600, 60, 20, 10
ARMS = ("nothing", "advised", "when found", "FIRE", "S&P", "full reset")


def build() -> nn.Sequential:
    """Two convolutions and two linear layers, with ReLU and without norms."""
    convolutions = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))


def line_of(arm: str, seed: int, tasks: int, epochs: int) -> dict[str, object]:
    """Learn all tasks, doing what the arm does between them."""
    pixels, truth = (torch.tensor(part[:SAMPLES]) for part in load_digits(return_X_y=True))
    images = ((pixels - pixels.mean(0)) / (pixels.std(0) + 0.1)).float().view(-1, 1, 8, 8)
    draw = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    accuracies, made = list[float](), list[int]()
    calls: list[str] = []
    for task in range(tasks):
        if task > 0 and arm in ("advised", "when found"):
            if arm == "when found" or not calls:
                calls = [advice.do for advice in rp.diagnose(model, images).advice]
            made.append(len(calls))
            for call in calls:
                exec(call, {"rp": rp, "model": model, "optimizer": optimizer})
        elif task > 0 and arm == "FIRE":
            rp.fire_(model, optimizer=optimizer)
        elif task > 0 and arm == "S&P":
            rp.shrink_and_perturb_(model, rate=0.8, optimizer=optimizer, seed=100 * seed + task)
        elif task > 0 and arm == "full reset":
            rp.reset_(model, optimizer=optimizer, seed=100 * seed + task)
        labels = truth[torch.randperm(SAMPLES, generator=draw)]
        for _ in range(epochs):
            for batch in torch.randperm(SAMPLES, generator=draw).split(BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
                optimizer.step()
        with torch.no_grad():
            accuracies.append(round((model(images).argmax(1) == labels).float().mean().item(), 4))
    return {"arm": arm, "seed": seed, "accuracies": accuracies, "calls": made}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all; write a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed, two tasks of one epoch")
    quick = parser.parse_args(arguments).quick
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps({"provenance": provenance()}) + "\n")
    for seed in SEEDS[:1] if quick else SEEDS:
        for arm in ARMS:
            sys.stdout.write(json.dumps(line_of(arm, seed, 2 if quick else TASKS, 1 if quick else EPOCHS)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
