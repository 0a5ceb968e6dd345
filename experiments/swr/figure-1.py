"""Soft Weight Rescaling, figure 1: scaling a trained network with and without proportionality, and training on.

    python experiments/swr/figure-1.py --data DIR > figure-1.jsonl
    python experiments/swr/figure-1.py --quick           # seconds: the digits, a smaller network, few epochs

A network is trained for 100 epochs on CIFAR-10, all its layers are scaled by one factor, and it is trained for 50 more. With
proportionality (theorem 1) biases are scaled so that outputs keep their proportions, and the test accuracy right after it is
that from before; without it, weights and biases of a layer are scaled alike. A line of JSON for each network and factor:

    before   the best test accuracy of the first 100 epochs (the black line)
    scaled   right after scaling (dashed)
    after    the best of the additional epochs (solid)

The paper does not say which network the figure is of, by which factors, what becomes of biases without proportionality, nor
whether the optimiser is kept: here the CNN of appendix D.1, factors from 0.9 to 0.1 for each layer, biases scaled as weights
are, the weights of the last epoch, and a new Adam after scaling.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

import replastic as rp
from replastic.models import CNN
from replastic.train import Training, train
from replastic.workloads.images import ImageData, LabelledTask, load
from replastic.workloads.images.protocols import single

TRAINING = Training(renew_optimizer=False, optimizer="adam", learning_rate=1e-3, batch=256)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, scale, train on; write what comes out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny: whether it runs, not what it shows")
    parser.add_argument("--data", metavar="DIR", help="where data sets lie; else $REPLASTIC_DATA")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    if given.quick:
        data, options, epochs, factors, seeds = load("digits"), {"kernel": 3, "convolutions": 1}, (4, 2), (0.9, 0.5), (1,)
    else:
        data, options, epochs = load("cifar10", given.data), {}, (100, 50)
        factors, seeds = tuple(round(0.1 * tenths, 1) for tenths in range(9, 0, -1)), (1, 2, 3, 4, 5)
    data = data.to(given.device)
    for seed in seeds:
        for line in lines_of(data, options, epochs, factors, seed, given.device):
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


def lines_of(
    data: ImageData, options: dict[str, Any], epochs: tuple[int, int], factors: Sequence[float], seed: int, device: str
) -> Iterator[dict[str, Any]]:
    """The lines of one seed, each as soon as it is known."""
    channels, size, _ = data.shape
    first, more = (single(data, seed=seed, batch=TRAINING.batch, epochs=count)[0] for count in epochs)
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        model = CNN(channels, size, data.classes, **options).to(device)
    before = max(accuracies(model, first, seed)[1:])
    for factor in factors:
        for proportional in (False, True):
            scaled = copy.deepcopy(model)
            scale_(scaled, factor, proportional)
            right_after, *then = accuracies(scaled, more, seed)
            numbers = {"before": before, "scaled": right_after, "after": max(then)}
            yield {"seed": seed, "factor": factor, "proportional": proportional, **numbers}


def accuracies(model: nn.Module, task: LabelledTask, seed: int) -> list[float]:
    """Test accuracies before training and after each epoch of it."""
    learner = rp.Learner(model, TRAINING.make_optimizer(model), seed=seed)
    return [row.read()["test_accuracy"] for row in train(learner, [task], TRAINING, seed=seed)]


@torch.no_grad()
def scale_(model: nn.Module, factor: float, proportional: bool) -> None:
    """Scale every layer's weights by a factor, and biases by it too or, as theorem 1 has it, by the product so far."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    if proportional:
        rp.rescale_(model, [factor] * len(layers))
        return
    for layer in layers:
        for parameter in layer.parameters():
            parameter.mul_(factor)


if __name__ == "__main__":
    main()
