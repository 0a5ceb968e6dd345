"""Two stages with Transformers' Trainer: what the example does, and what its page says that the Trainer does."""

import math
import re
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_cosine_schedule_with_warmup,
)

import replastic as rp
from replastic.integrations.transformers import PlasticityCallback

from .test_examples_loops import load

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
EXAMPLE = load("continual-pretraining")
CONFIG = {"n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 16, "n_positions": 8, "bos_token_id": 0, "eos_token_id": 0}


class Stages(TrainerCallback):
    """Of every stage: the optimiser, its momenta before the first step, and the learning rate of every step."""

    def __init__(self) -> None:
        self.optimizers: list[Any] = []
        self.momenta: list[dict[str, Tensor]] = []
        self.rates: list[list[float]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, *, optimizer: Any, **others: Any) -> None:
        self.optimizers.append(optimizer)
        self.rates.append([])

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, *, model: Any, optimizer: Any, **others: Any
    ) -> None:
        if not self.rates[-1]:
            found = [(name, optimizer.state[parameter]) for name, parameter in model.named_parameters()]
            self.momenta.append({name: memory["exp_avg"].clone() for name, memory in found if "exp_avg" in memory})
        self.rates[-1].append(optimizer.param_groups[0]["lr"])


def stages_of(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Trainer, Stages]:
    """An arm of the example, trained for a few steps in each stage."""
    monkeypatch.setattr(EXAMPLE, "STEPS", (20, 10))
    arm, stages = EXAMPLE.ARMS[name], Stages()
    trainer = EXAMPLE.trainer_of(arm, 0, str(folder))
    trainer.add_callback(stages)
    if arm.first_stage:
        trainer.train()
    EXAMPLE.second_stage(trainer, arm, 0)
    return trainer, stages


def callback_of(trainer: Trainer) -> PlasticityCallback:
    (found,) = [one for one in trainer.callback_handler.callbacks if isinstance(one, PlasticityCallback)]
    return found


def schedule(steps: int, peak: float) -> list[float]:
    """A tenth of warm-up from 0, then a cosine to a tenth of the peak."""
    warm = math.ceil(steps / 10)
    falls = [0.55 + 0.45 * math.cos(math.pi * (step - warm) / (steps - warm)) for step in range(warm, steps)]
    return [peak * part for part in [*(step / warm for step in range(warm)), *falls]]


@pytest.mark.parametrize("name", EXAMPLE.ARMS)
def test_the_second_stage_has_a_schedule_of_its_own_length_and_peak(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, stages = stages_of(name, tmp_path, monkeypatch)
    expected = [schedule(20, EXAMPLE.RATES[0]), schedule(10, EXAMPLE.RATES[1])]
    if not EXAMPLE.ARMS[name].first_stage:
        del expected[0]
    assert stages.rates == [pytest.approx(rates) for rates in expected]


@pytest.mark.parametrize("name", ["FIRE", "FIRE, kept optimiser", "norms restored"])
def test_methods_act_once_where_the_data_changes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = stages_of(name, tmp_path, monkeypatch)
    assert callback_of(trainer).boundaries == [(0, "new data")]


def test_a_kept_optimiser_loses_the_momenta_of_fired_weights_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, stages = stages_of("FIRE, kept optimiser", tmp_path, monkeypatch)
    assert stages.optimizers[0] is stages.optimizers[1]
    names = {name.partition(":")[0] for name in callback_of(trainer).learner.methods[0].report.names}
    assert len(names) == 9  # four of each block, and the head, which is the embedding
    fired = (names - {"lm_head.weight"}) | {"transformer.wte.weight"}
    before, after = stages.momenta
    assert before == {}
    assert fired < after.keys()
    assert {name for name, momentum in after.items() if not momentum.any()} == fired


@pytest.mark.parametrize("name", ["new optimiser", "FIRE", "norms restored"])
def test_a_new_optimiser_remembers_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, stages = stages_of(name, tmp_path, monkeypatch)
    assert stages.optimizers[0] is not stages.optimizers[1]
    assert not any(momentum.any() for momentum in stages.momenta[1].values())


def test_the_example_prints_a_row_for_each_arm_and_its_output_is_committed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    committed = (ROOT / "examples/continual-pretraining.txt").read_text()
    rows = re.compile(r"^(\S.*?)  +(\d\.\d{3}) ±\d\.\d{3}  +(\d\.\d{3}) ±\d\.\d{3}$", re.MULTILINE)
    assert f"after {EXAMPLE.STEPS[0]} steps on the novel and {EXAMPLE.STEPS[1]} on Shakespeare" in committed
    assert [row[0] for row in rows.findall(committed)] == list(EXAMPLE.ARMS)
    monkeypatch.setattr(EXAMPLE, "STEPS", (4, 2))
    monkeypatch.setattr(sys, "argv", ["continual-pretraining.py", "--seeds", "1"])
    threads = torch.get_num_threads()
    try:
        EXAMPLE.main()
    finally:
        torch.set_num_threads(threads)
    found = rows.findall(capsys.readouterr().out)
    assert [row[0] for row in found] == list(EXAMPLE.ARMS)
    assert len({row[1] for row in found}) > 3  # the arms differ


def test_what_the_page_says_of_the_examples_output_is_in_it() -> None:
    lines = (ROOT / "examples/continual-pretraining.txt").read_text().splitlines()
    assert "n = 3 seeds" in lines[1]
    found = {line[:24].strip(): [float(value) for value in re.findall(r"\d\.\d+", line)] for line in lines[4:]}
    assert min(found, key=lambda name: found[name][0]) in ("train on", "new optimiser")
    for one, other in (("train on", "new optimiser"), ("FIRE", "FIRE, kept optimiser")):
        for column in (0, 2):  # means; the spread follows each
            assert abs(found[one][column] - found[other][column]) < min(found[one][column + 1], found[other][column + 1])


def plain(folder: Path, *, own_schedule: bool = False, **settings: Any) -> tuple[Trainer, Stages]:
    """A Trainer without methods after its first stage: a cosine from 1e-2 over five steps."""
    torch.manual_seed(0)
    model, stages = GPT2LMHeadModel(GPT2Config(**CONFIG)), Stages()
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(16, (16, 8))]
    args = TrainingArguments(
        str(folder), use_cpu=True, report_to=[], disable_tqdm=True, learning_rate=1e-2, max_steps=5,
        **{"lr_scheduler_type": "cosine", "save_strategy": "no", **settings},
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2) if own_schedule else None
    cosine = get_cosine_schedule_with_warmup(optimizer, 0, 5) if optimizer is not None else None
    trainer = Trainer(model, args, train_dataset=rows, callbacks=[stages], optimizers=(optimizer, cosine))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer, stages


def test_a_kept_optimiser_keeps_its_peak_rate_and_decay_whatever_the_arguments_say(tmp_path: Path) -> None:
    trainer, stages = plain(tmp_path, weight_decay=0.1)
    trainer.args.learning_rate, trainer.args.weight_decay, trainer.args.max_steps = 1e-3, 0.5, 4
    trainer.train()
    assert stages.optimizers[0] is stages.optimizers[1]
    assert stages.rates[1] == pytest.approx([5e-3 * (1 + math.cos(math.pi * step / 4)) for step in range(4)])
    assert trainer.optimizer is not None
    assert trainer.optimizer.param_groups[0]["weight_decay"] == 0.1
    for group in trainer.optimizer.param_groups:
        group["initial_lr"] = 1e-3
    trainer.train()
    assert stages.rates[2][0] == pytest.approx(1e-3)
    trainer.optimizer = None
    trainer.args.learning_rate = 1e-4
    trainer.train()
    assert stages.rates[3][0] == pytest.approx(1e-4)
    assert trainer.optimizer.param_groups[0]["weight_decay"] == 0.5


def test_a_schedule_that_was_passed_continues_after_its_end_until_it_is_dropped(tmp_path: Path) -> None:
    trainer, stages = plain(tmp_path, own_schedule=True)
    trainer.train()
    assert stages.rates[0] == sorted(stages.rates[0], reverse=True)
    assert stages.rates[1] == sorted(stages.rates[1])
    assert stages.rates[1][0] == pytest.approx(0, abs=1e-9)
    trainer.lr_scheduler = None
    trainer.train()
    assert stages.rates[2][0] == pytest.approx(1e-2)


def test_the_step_starts_again_so_that_checkpoints_of_two_stages_have_the_same_name(tmp_path: Path) -> None:
    trainer, _ = plain(tmp_path / "one", save_strategy="steps", save_steps=5)
    trainer.args.output_dir = str(tmp_path / "two")
    trainer.train()
    assert [path.parent.name for path in sorted(tmp_path.glob("*/checkpoint-5"))] == ["one", "two"]


def test_the_published_schedule_has_the_rates_that_the_page_names() -> None:
    page = (ROOT / "docs/continual-pretraining.md").read_text()
    for step, rate in ((30_000, "4.93e-4"), (60_000, "2.40e-4")):
        value = 6e-5 + (6e-4 - 6e-5) * (1 + math.cos(math.pi * (step - 2000) / (97_282 - 2000))) / 2
        assert f"{value * 1e4:.2f}e-4" == rate
        assert rate in page


def test_a_merged_base_is_frozen_and_refused_until_it_may_be_trained() -> None:
    adapter = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    merged = peft.get_peft_model(GPT2LMHeadModel(GPT2Config(**CONFIG)), adapter).merge_and_unload()
    with pytest.raises(ValueError, match=r"requires_grad_\(True\)"):
        rp.fire_(merged)
    merged.requires_grad_(True)
    assert rp.fire_(merged).names
