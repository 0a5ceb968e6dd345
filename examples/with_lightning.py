"""FIRE in Lightning's Trainer: one callback, nothing else changes.

A small network learns one task after another: the same handwritten digits, each time with new random labels. With every call
of `fit` there are other data, and the callback fires the network before the first batch of them trains.

    python examples/with_lightning.py
"""

from __future__ import annotations

import logging
import warnings

import lightning.pytorch as L
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import replastic as rp
from replastic.integrations.lightning import PlasticityCallback

TASKS, EPOCHS, SAMPLES, WIDTH = 6, 30, 1000, 100


class Digits(L.LightningModule):
    """A network with three hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        hidden = [layer for inputs in (64, WIDTH, WIDTH) for layer in (nn.Linear(inputs, WIDTH), nn.ReLU())]
        self.net = nn.Sequential(*hidden, nn.Linear(WIDTH, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def run(callbacks: list[L.Callback], tasks: int = TASKS, epochs: int = EPOCHS, samples: int = SAMPLES) -> list[float]:
    """Accuracy on the labels to be learnt, at the end of each task."""
    torch.manual_seed(0)  # the same network, labels and batches, whatever the callbacks do
    pixels = torch.tensor(load_digits(return_X_y=True)[0][:samples], dtype=torch.float32)
    inputs, model, accuracies = (pixels - pixels.mean(0)) / (pixels.std(0) + 0.1), Digits(), []
    for _ in range(tasks):
        labels = torch.randint(10, (samples,))
        trainer = L.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=callbacks, barebones=True)
        trainer.fit(model, DataLoader(TensorDataset(inputs, labels), batch_size=100, shuffle=True))
        with torch.no_grad():
            accuracies.append((model.net(inputs).argmax(1) == labels).float().mean().item())
    return accuracies


def main(tasks: int = TASKS, epochs: int = EPOCHS, samples: int = SAMPLES) -> None:
    """Both arms, as a table."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    torch.set_num_threads(1)  # matrices this small gain nothing from a second
    print(f"{tasks} tasks, each {samples} digits with new random labels, {epochs} epochs; one seed.\n")
    print(f"{'accuracy in task':<18}" + "".join(f"{task:>6}" for task in range(1, tasks + 1)))
    for arm, callbacks in {"train on": [], "FIRE": [PlasticityCallback(rp.FIRE())]}.items():
        accuracies = run(callbacks, tasks, epochs, samples)
        print(f"{arm:<18}" + "".join(f"{accuracy:>6.2f}" for accuracy in accuracies), flush=True)
    print("\nAccuracy on the labels to be learnt at the end of each task; 0.1 is chance.")


if __name__ == "__main__":
    main()
