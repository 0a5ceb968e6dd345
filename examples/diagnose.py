"""A network that has lost its plasticity, seen by `rp.diagnose`, and what there is to the loss: measures before and after.

python examples/diagnose.py            # half a minute; its output is in examples/diagnose.txt
"""

from __future__ import annotations

import copy

import torch
from digits import EPOCHS, SAMPLES, build, digits, train
from torch import nn

import replastic as rp
from replastic.measures import from_scratch_gap

TASKS = 6
MEASURES = [
    *("dead_fraction", "sign_entropy", "effective_rank", "deviation_from_isometry", "weight_growth", "lipschitz_bound"),
    *("gradient_collinearity", "gradient_rank", "hessian_top_eigenvalue", "hessian_epsilon_rank", "hessian_epsilon_mass"),
]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    order = torch.Generator().manual_seed(0)
    inputs, loss = digits(), nn.functional.cross_entropy
    net = build()
    first = copy.deepcopy(net)
    for _ in range(TASKS):
        train(net, inputs, torch.randint(10, (SAMPLES,), generator=order), order)
    labels = torch.randint(10, (SAMPLES,), generator=order)  # what is to be learnt next
    print(f"After {TASKS} tasks of random labels:\n\n{rp.diagnose(net, inputs)}\n")

    fired = copy.deepcopy(net)
    rp.fire_(fired)
    columns = {"new": copy.deepcopy(first), "trained on": net, "after FIRE": fired}
    taken = {
        name: rp.measure(rp.Probe(model, (inputs, labels), loss=loss, reference=first), MEASURES)
        for name, model in columns.items()
    }
    print(f"{'on the next task':<26}" + "".join(f"{name:>14}" for name in columns))
    for name in MEASURES:
        print(f"{name:<26}" + "".join(f"{values[name]:>14.4g}" for values in taken.values()))

    def batches(generator: torch.Generator) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(inputs[batch], labels[batch]) for batch in torch.randperm(SAMPLES, generator=generator).split(100)]

    def accuracy(model: nn.Module) -> dict[str, float]:
        return {"accuracy": (model(inputs).argmax(1) == labels).float().mean().item()}

    task = rp.Task("seven", batches, loss, accuracy)
    for name, model in (("trained on", net), ("after FIRE", fired)):
        gap = from_scratch_gap(
            model,
            task,
            build=build,
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
            steps=EPOCHS * SAMPLES // 100,
            seeds=(0, 1, 2),
        )
        print(f"\n{name}, against a new network:\n{gap}")


if __name__ == "__main__":
    main()
