"""Continual pretraining with the Transformers' Trainer: a small GPT-2 learns one language, then another.

A language is a random table of which token follows which. After the first, the same Trainer is given texts of the second.
Plain: it trains on. FIRE: a callback puts the weights at their nearest isometries when the data change.

    python examples/with_transformers.py
"""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, logging

import replastic as rp
from replastic.integrations.transformers import PlasticityCallback

TOKENS, LENGTH, TEXTS, SEEDS = 16, 16, 256, 2
STEPS = 40  # in each language
ARMS = {"train on": None, "FIRE": 5, "new model": None}  # steps of FIRE's iteration


class Language(Dataset):
    """Texts in which each token is drawn by the one before it."""

    def __init__(self, language: int, split: int) -> None:
        table = torch.randn(TOKENS, TOKENS, generator=torch.Generator().manual_seed(language)).mul(2).softmax(1)
        draw = torch.Generator().manual_seed(1000 * split + language)
        rows = [torch.randint(TOKENS, (TEXTS,), generator=draw)]
        while len(rows) < LENGTH:
            rows.append(torch.multinomial(table[rows[-1]], 1, generator=draw)[:, 0])
        self.texts = torch.stack(rows, 1)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.texts[index], "labels": self.texts[index]}


def losses(arm: str, seed: int) -> tuple[float, float]:
    """On unseen texts of the second and of the first language, when both were learnt one after the other."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=TOKENS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    first, second = 2 * seed, 2 * seed + 1
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=32, learning_rate=1e-2, seed=seed, use_cpu=True,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(model, args, train_dataset=Language(first, split=0))
        trainer.remove_callback(PrinterCallback)
        steps = ARMS[arm]
        if steps is not None:
            trainer.add_callback(PlasticityCallback(rp.FIRE(steps=steps)))
        if arm != "new model":
            trainer.train()
        trainer.train_dataset = Language(second, split=0)
        trainer.train()  # other data than before: the callback acts before the first step
        second_loss, first_loss = (trainer.evaluate(Language(one, split=1))["eval_loss"] for one in (second, first))
        return second_loss, first_loss


def main() -> None:
    logging.set_verbosity_error()
    print(f"Loss on unseen texts after {STEPS} steps in each language, mean of {SEEDS} seeds.\n")
    print(f"{'':<12}{'second language':>18}{'first':>10}")
    for arm in ARMS:
        second, first = torch.tensor([losses(arm, seed) for seed in range(SEEDS)]).mean(0).tolist()
        print(f"{arm:<12}{second:>18.3f}{first:>10.3f}", flush=True)
    print("\nWhere training on beats a new model, no plasticity was lost, and there is nothing for FIRE to restore.")


if __name__ == "__main__":
    main()
