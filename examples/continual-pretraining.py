"""Two stages of pretraining with the Transformers' Trainer: a small GPT-2 learns a novel by heart, then Shakespeare.

The Trainer keeps its optimiser from one `train()` to the next and creates a new schedule. A kept optimiser also keeps the
peak rate and the weight decay of the first stage: others in the arguments have no effect. `second_stage` changes the rate,
or drops the optimiser. A method acts through the callback before the first step of the second stage.

    python examples/continual-pretraining.py            # 5 minutes; its output is in examples/continual-pretraining.txt
    python examples/continual-pretraining.py --seeds 1
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, logging

import replastic as rp
from replastic.integrations.transformers import PlasticityCallback

FOLDER = Path(__file__).parent.parent / "experiments/text"
LENGTH, BATCH, SHARE = 64, 16, 0.1  # SHARE: of the novel in the second stage
STEPS, RATES = (500, 200), (3e-3, 2e-3)  # of the two stages
SETS = {"Shakespeare": "shakespeare-valid", "novel": "austen-valid"}


class Arm(NamedTuple):
    """What happens between the stages."""

    method: Callable[[], rp.Method] | None = None
    keeps_optimizer: bool = False
    first_stage: bool = True


ARMS = {
    "train on": Arm(keeps_optimizer=True),
    "new optimiser": Arm(),
    "FIRE": Arm(lambda: rp.FIRE(steps=5, where="paper_gpt")),
    "FIRE, kept optimiser": Arm(lambda: rp.FIRE(steps=5, where="paper_gpt"), keeps_optimizer=True),
    "norms restored": Arm(lambda: rp.RestoreNorms(where="paper_gpt")),
    "new model": Arm(first_stage=False),
}


class Windows(Dataset):
    """Windows of one file of text, with bytes as tokens; or of several, each with its share of the windows."""

    def __init__(self, shares: dict[str, float], count: int, seed: int) -> None:
        draw, self.rows = torch.Generator().manual_seed(seed), []
        for name, share in shares.items():
            text = torch.tensor(list((FOLDER / f"{name}.txt").read_bytes()))
            starts = torch.randint(len(text) - LENGTH, (round(share * count),), generator=draw)
            self.rows += [text[start : start + LENGTH] for start in starts.tolist()]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def trainer_of(arm: Arm, seed: int, folder: str) -> Trainer:
    """The first stage's Trainer. The callback sees both stages, and acts where the data changes."""
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    args = TrainingArguments(
        folder, max_steps=STEPS[0], per_device_train_batch_size=BATCH, learning_rate=RATES[0], weight_decay=0.1,
        adam_beta2=0.95, lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs={"min_lr_rate": 0.1}, warmup_steps=0.1,
        seed=seed, use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    data = Windows({"austen-train": 1}, BATCH * STEPS[0], seed)
    trainer = Trainer(GPT2LMHeadModel(config), args, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    if arm.method is not None:
        trainer.add_callback(PlasticityCallback(arm.method()))
    return trainer


def second_stage(trainer: Trainer, arm: Arm, seed: int) -> None:
    """Train on other data, with a schedule of its own length and peak."""
    args = trainer.args
    args.max_steps, args.learning_rate = STEPS[1], RATES[1]
    if not arm.keeps_optimizer:
        trainer.optimizer = None  # the Trainer creates another one, with the rate of its arguments
    elif isinstance(trainer.optimizer, Optimizer):
        for group in trainer.optimizer.param_groups:
            group["initial_lr"] = RATES[1]  # the peak of the next schedule, which is otherwise the first stage's
    shares = {"shakespeare-train": 1 - SHARE, "austen-train": SHARE}
    trainer.train_dataset = Windows(shares, BATCH * STEPS[1], 1000 + seed)
    trainer.train()  # the callback acts before the first step


def losses(arm: Arm, seed: int) -> list[float]:
    """In nats a byte, on texts that neither stage has."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(arm, seed, folder)
        if arm.first_stage:
            trainer.train()
        second_stage(trainer, arm, seed)
        return [trainer.evaluate(Windows({name: 1}, 256, seed=0))["eval_loss"] for name in SETS.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    print(f"Loss in nats a byte after {STEPS[0]} steps on the novel and {STEPS[1]} on Shakespeare with {SHARE:.0%} of the")
    print(f"novel, on held-out text, mean ± s.d., n = {seeds} seeds.\n")
    print(f"{'between the stages':<24}" + "".join(f"{name:>18}" for name in SETS))
    for name, arm in ARMS.items():
        values = zip(*(losses(arm, seed) for seed in range(seeds)), strict=True)
        cells = [f"{statistics.mean(one):.3f} ±{statistics.pstdev(one):.3f}" for one in values]
        print(f"{name:<24}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
