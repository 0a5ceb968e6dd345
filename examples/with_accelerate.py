"""FIRE and others in a loop with Accelerate: methods get the plain model and the plain optimiser.

Accelerate wraps both. `accelerator.unwrap_model(model)` is the model itself, `optimizer.optimizer` what it is trained by.
Every process does the same, so under DDP all keep the same weights, except with methods that look at batches, as CBP does:
see docs/learner.md. Sharded weights (FSDP, DeepSpeed) are not supported.

    python examples/with_accelerate.py      or: accelerate launch examples/with_accelerate.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import replastic as rp

TASKS, SAMPLES, EPOCHS = 3, 512, 4


def task(seed: int) -> DataLoader:
    draw = torch.Generator().manual_seed(seed)
    inputs, teacher = torch.randn(SAMPLES, 16, generator=draw), torch.randn(16, 4, generator=draw)
    return DataLoader(TensorDataset(inputs, (inputs @ teacher).argmax(1)), batch_size=32, shuffle=True)


def main() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=3e-3))
    # With FIRE alone, rp.fire_(accelerator.unwrap_model(model), optimizer=optimizer.optimizer) would do.
    methods = [rp.FIRE(), rp.L2(1e-4)]
    learner = rp.Learner(accelerator.unwrap_model(model), optimizer.optimizer, methods=methods)
    loss = torch.tensor(torch.nan)
    for number in range(TASKS):
        batches = accelerator.prepare(task(number))
        learner.begin()  # the first is no boundary; at the others FIRE acts
        for _ in range(EPOCHS):
            for inputs, targets in batches:
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(inputs), targets)
                    # Accelerate divides by the number of micro-batches, so this is one penalty for each step.
                    accelerator.backward(loss + learner.penalty())
                    optimizer.step()
                    optimizer.zero_grad()
                    if accelerator.sync_gradients:
                        learner.after_step((inputs, targets))
        accelerator.print(f"task {number + 1}: loss {loss.item():.3f} after {learner.steps} steps")


if __name__ == "__main__":
    main()
