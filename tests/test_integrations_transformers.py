"""Methods in real runs of the Transformers' Trainer."""

import copy
import dataclasses
import shutil
import subprocess
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from accelerate.utils import DistributedType
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import replastic as rp
from replastic.integrations.transformers import FILE, PlasticityCallback

pytestmark = pytest.mark.slow

CONFIG = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 32, "n_positions": 8, "bos_token_id": 0, "eos_token_id": 0}


class Tokens(Dataset):
    def __init__(self, seed: int, size: int = 16) -> None:
        self.rows = torch.randint(32, (size, 8), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield Tokens(0)[0]


class Watch(TrainerCallback):
    """Weights, momenta and what was done, at each event: put before and after the callback, it sees what that did."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, Any]] = []

    def _look(self, event: str, state, model, optimizer) -> None:
        model = copy.deepcopy(model)
        memory = {id(p): {k: v.clone() for k, v in s.items()} for p, s in optimizer.state.items()}
        self.seen.append((event, state.global_step, (model, memory)))

    def on_step_begin(self, args, state, control, *, model, optimizer, **others) -> None:
        self._look("begin", state, model, optimizer)

    def on_train_end(self, args, state, control, *, model, optimizer, **others) -> None:
        self._look("end", state, model, optimizer)

    def at(self, step: int, event: str = "begin"):
        return next(what for name, number, what in self.seen if (name, number) == (event, step))


def gpt() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**CONFIG, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def trainer_of(model, folder, callbacks, data=None, **settings) -> Trainer:
    defaults = {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
    }
    args = TrainingArguments(str(folder), use_cpu=True, report_to=[], **{**defaults, **settings})
    return Trainer(model, args, train_dataset=Tokens(0) if data is None else data, callbacks=callbacks)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def fired(report: rp.FireReport | None) -> set[str]:
    assert report is not None
    return {name.partition(":")[0] for name in report.names}


def test_fire_acts_once_after_the_step_that_was_given_and_before_the_next(tmp_path) -> None:
    before, after, method = Watch(), Watch(), rp.FIRE()
    callback = PlasticityCallback(method, at_steps=[2])
    model = gpt()
    trainer_of(model, tmp_path, [before, callback, after]).train()
    assert callback.boundaries == [(2, "step 2")]
    for step in (0, 1, 3):
        assert same(before.at(step)[0], after.at(step)[0])
    expected = before.at(2)[0]
    rp.fire_(expected)
    assert same(expected, after.at(2)[0])
    assert not same(after.at(2)[0], after.at(3)[0])  # training goes on


def test_momenta_of_fired_weights_are_cleared_in_the_trainers_optimiser_and_others_kept(tmp_path) -> None:
    before, after, method = Watch(), Watch(), rp.FIRE()
    model = gpt()
    trainer_of(model, tmp_path, [before, PlasticityCallback(method, at_steps=2), after]).train()
    names, had, has = fired(method.report), before.at(2)[1], after.at(2)[1]
    assert len(names) == 8
    for name, parameter in model.named_parameters():
        assert had[id(parameter)]["exp_avg"].any()
        for key, value in has[id(parameter)].items():
            assert not value.any() if name in names else torch.equal(value, had[id(parameter)][key]), (name, key)


def test_nothing_is_done_after_the_last_step(tmp_path) -> None:
    plain, model = gpt(), gpt()
    callback = PlasticityCallback(rp.FIRE(), at_steps=4, every_epochs=1, every_steps=4)
    trainer_of(plain, tmp_path, []).train()
    trainer_of(model, tmp_path, [callback]).train()
    assert callback.boundaries == []
    assert same(plain, model)


def test_epochs_and_periods_of_steps(tmp_path) -> None:
    callback = PlasticityCallback(rp.FIRE(), every_steps=3, at_epochs=[1])
    trainer_of(gpt(), tmp_path, [callback], max_steps=8).train()  # of 4 in an epoch
    assert callback.boundaries == [(3, "step 3"), (4, "epoch 1"), (6, "step 6")]


def test_an_epoch_that_is_cut_short_is_a_finished_one(tmp_path) -> None:
    class Cut(TrainerCallback):
        def on_step_end(self, args, state, control, **others) -> None:
            control.should_epoch_stop = state.global_step == 2

    callback = PlasticityCallback(rp.FIRE(), every_epochs=1)
    trainer_of(gpt(), tmp_path, [callback, Cut()], max_steps=12).train()  # 2, 4 and 4 of them
    assert callback.boundaries == [(2, "epoch 1"), (6, "epoch 2")]


def test_other_data_in_the_next_call_of_train_are_a_boundary_and_the_same_data_are_none(tmp_path) -> None:
    before, after, method = Watch(), Watch(), rp.FIRE()
    callback = PlasticityCallback(method)
    model = gpt()
    trainer = trainer_of(model, tmp_path, [before, callback, after])
    trainer.train()
    optimizer = trainer.optimizer
    trainer.train()
    assert callback.boundaries == []
    trained = copy.deepcopy(model)
    trainer.train_dataset = Tokens(1)
    for watch in (before, after):
        watch.seen.clear()
    trainer.train()
    assert callback.boundaries == [(0, "new data")]
    assert same(before.at(0)[0], trained)
    rp.fire_(trained)
    assert same(after.at(0)[0], trained)
    assert trainer.optimizer is optimizer  # kept by the Trainer, so its momenta matter
    names = fired(method.report)
    for name, parameter in model.named_parameters():
        assert before.at(0)[1][id(parameter)]["exp_avg"].any()
        assert bool(after.at(0)[1][id(parameter)]["exp_avg"].any()) == (name not in names)


def test_a_new_optimiser_between_two_calls_is_followed(tmp_path) -> None:
    callback = PlasticityCallback(rp.FIRE(), at_steps=2)
    trainer = trainer_of(gpt(), tmp_path, [callback])
    trainer.train()
    trainer.optimizer = trainer.lr_scheduler = None
    trainer.train_dataset = Tokens(1)
    trainer.train()
    assert callback.learner.optimizer is trainer.optimizer.optimizer
    assert callback.boundaries == [(2, "step 2"), (0, "new data"), (2, "step 2")]


@pytest.mark.filterwarnings("ignore:training has ended")
def test_new_data_can_be_ignored(tmp_path) -> None:
    callback = PlasticityCallback(rp.FIRE(), on_new_data=False, at_steps=1000)
    trainer = trainer_of(gpt(), tmp_path, [callback])
    trainer.train()
    trainer.train_dataset = Tokens(1)
    trainer.train()
    assert callback.boundaries == []


def test_data_sets_with_the_same_fingerprint_are_the_same(tmp_path) -> None:
    callback = PlasticityCallback(rp.FIRE())
    trainer = trainer_of(gpt(), tmp_path, [callback])
    marks = ["one", "one", "two"]
    for mark in marks:
        trainer.train_dataset = Tokens(0)
        trainer.train_dataset._fingerprint = mark  # type: ignore[attr-defined]
        trainer.train()
    assert callback.boundaries == [(0, "new data")]


def test_streams_without_a_length(tmp_path) -> None:
    callback = PlasticityCallback(rp.FIRE(), every_steps=2)
    trainer = trainer_of(gpt(), tmp_path, [callback], Endless())
    trainer.train()
    trainer.train()
    trainer.train_dataset = Endless()
    trainer.train()
    assert callback.boundaries == [(2, "step 2"), (2, "step 2"), (0, "new data"), (2, "step 2")]


def test_by_hand_before_training_a_model_that_was_pretrained_elsewhere(tmp_path) -> None:
    after, model = Watch(), gpt()
    expected = copy.deepcopy(model)
    rp.fire_(expected)
    callback = PlasticityCallback(rp.FIRE())
    callback.boundary()
    trainer_of(model, tmp_path, [callback, after]).train()
    assert callback.boundaries == [(0, "by hand")]
    assert same(after.at(0)[0], expected)


def test_by_hand_between_two_calls_comes_once_also_if_the_data_are_new(tmp_path) -> None:
    callback, model = PlasticityCallback(rp.FIRE()), gpt()
    trainer = trainer_of(model, tmp_path, [callback])
    trainer.train()
    was = copy.deepcopy(model)
    callback.boundary()
    assert same(was, model)
    trainer.train_dataset = Tokens(1)
    trainer.train()
    assert callback.boundaries == [(0, "by hand")]


def test_gradient_accumulation_counts_steps_of_the_optimiser(tmp_path) -> None:
    before, after = Watch(), Watch()
    callback = PlasticityCallback([rp.FIRE(), rp.ReDo(period=100)], at_steps=[1, 2])
    trainer_of(
        gpt(), tmp_path, [before, callback, after], gradient_accumulation_steps=2, per_device_train_batch_size=2
    ).train()
    assert callback.boundaries == [(1, "step 1"), (2, "step 2")]
    assert callback.learner.steps == 4
    assert len(before.seen) == 5


def test_a_penalty_is_that_which_is_added_to_the_loss_by_hand(tmp_path) -> None:
    class Penalised(Trainer):
        def compute_loss(self, model, inputs, *rest, **others):
            loss = super().compute_loss(model, inputs, *rest, **others)
            decay = 0.5 * sum((parameter**2).sum() for parameter in model.parameters())
            return loss + 0.1 * decay / self.args.gradient_accumulation_steps

    ours, theirs, plain = gpt(), gpt(), gpt()
    settings = {
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 2,
        "learning_rate": 0.1,
    }
    trainer_of(ours, tmp_path, [PlasticityCallback(rp.L2(0.1))], **settings).train()
    trainer_of(plain, tmp_path, [], **settings).train()
    reference = trainer_of(theirs, tmp_path, [], **settings)
    reference.__class__ = Penalised
    reference.train()
    for name, value in theirs.state_dict().items():
        # The same sum in another order: float32's rounding, four steps of it.
        torch.testing.assert_close(ours.state_dict()[name], value, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(plain.transformer.wte.weight, ours.transformer.wte.weight, atol=1e-4)


def test_penalties_are_added_after_clipping(tmp_path) -> None:
    seen = []

    class Norms(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, *, model, **others) -> None:
            seen.append(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).item())

    trainer_of(gpt(), tmp_path, [Norms(), PlasticityCallback(rp.L2(10.0)), Norms()], max_grad_norm=1e-3, max_steps=1).train()
    assert seen[0] == pytest.approx(1e-3, rel=1e-2)  # torch adds 1e-6 to the norm that it divides by
    assert seen[1] > 1


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_in_float16_penalties_are_added_to_gradients_that_are_unscaled(
    clip: float, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gradients(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, *, model, optimizer, **others) -> None:
            assert optimizer.scaler.get_scale() > 1000
            self.seen = [parameter.grad.clone() for parameter in model.parameters()]

    model, before, after = gpt(), Gradients(), Gradients()
    was = [parameter.detach().clone() for parameter in model.parameters()]
    callbacks = [before, PlasticityCallback(rp.L2(0.1)), after]
    trainer = trainer_of(model, tmp_path, callbacks, max_steps=1, max_grad_norm=clip)
    # What fp16=True does, which Accelerate allows on a GPU only.
    monkeypatch.setattr(trainer.accelerator, "scaler", torch.amp.GradScaler("cpu"))
    monkeypatch.setattr(trainer.accelerator, "native_amp", True)
    monkeypatch.setattr(trainer.accelerator.state, "_mixed_precision", "fp16")
    trainer.train()
    for value, alone, both in zip(was, before.seen, after.seen, strict=True):
        torch.testing.assert_close(both, alone + 0.1 * value, atol=1e-7, rtol=1e-6)  # rounding of one sum


def test_several_methods_together_and_all_of_their_moments(tmp_path) -> None:
    callback = PlasticityCallback([rp.FIRE(), rp.L2Init(1e-2), rp.CBP(maturity=1, rate=0.5), rp.ReDo(period=2)], at_steps=2)
    model = gpt()
    trainer_of(model, tmp_path, [callback]).train()
    assert callback.boundaries == [(2, "step 2")]
    assert callback.learner.steps == 4
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_tied_head_is_left_alone_by_default_and_fired_once_as_in_the_paper(tmp_path) -> None:
    for where, there in (("everything", False), ("paper_gpt", True)):
        before, after, method = Watch(), Watch(), rp.FIRE(where=where)
        model = gpt()
        trainer_of(model, tmp_path, [before, PlasticityCallback(method, at_steps=2), after]).train()
        assert ("lm_head.weight" in fired(method.report)) == there
        old, new = before.at(2)[0], after.at(2)[0]
        assert torch.equal(old.transformer.wte.weight, new.transformer.wte.weight) != there
        assert model.lm_head.weight is model.transformer.wte.weight
        rp.fire_(old, where=where)
        assert same(old, new)


def test_mixed_precision_and_units_that_are_drawn_anew(tmp_path) -> None:
    callback = PlasticityCallback([rp.FIRE(), rp.ReDo(threshold=10.0, period=2)], at_steps=2)
    trainer_of(gpt(), tmp_path, [callback], bf16=True).train()  # a model in mixed precision cannot be copied
    assert callback.boundaries == [(2, "step 2")]


def adapted(**settings) -> peft.PeftModel:
    return peft.get_peft_model(gpt(), peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, **settings))


def test_a_frozen_base_with_adapters_is_refused_before_training(tmp_path) -> None:
    model = adapted()
    was = copy.deepcopy(model)
    with pytest.raises(ValueError, match=r"selects no weight matrix.*low-rank|frozen.*PEFT.*modules_to_save"):
        trainer_of(model, tmp_path, [PlasticityCallback(rp.FIRE(), at_steps=2)]).train()
    assert same(model, was)


def test_modules_that_are_trained_whole_are_fired_and_adapters_and_base_are_not(tmp_path) -> None:
    before, after, method = Watch(), Watch(), rp.FIRE()
    model = adapted(modules_to_save=["mlp.c_fc"])
    trainer_of(model, tmp_path, [before, PlasticityCallback(method, at_steps=2), after]).train()
    names = fired(method.report)
    assert len(names) == 2
    assert all("mlp.c_fc.modules_to_save" in name for name in names)
    old, new = before.at(2)[0].state_dict(), after.at(2)[0].state_dict()
    for name, value in new.items():
        assert torch.equal(value, old[name]) == (name not in names), name
    assert any("lora_A" in name for name in new)


@dataclasses.dataclass
class Drawing(rp.Method):
    """Noise at every step, and a count: what a resume must bring back is both."""

    def start(self, learner) -> None:
        self.state["steps"] = 0

    def after_step(self, learner) -> None:
        self.state["steps"] += 1
        for parameter in learner.parameters.values():
            noise = torch.randn(parameter.shape, generator=learner.generator)
            parameter.data.add_(noise, alpha=1e-3 * self.state["steps"])


METHODS = {
    "fire": lambda: [rp.FIRE()],
    "redo": lambda: [rp.FIRE(), rp.ReDo(threshold=0.9, period=3)],
    "cbp": lambda: [rp.CBP(maturity=1, rate=0.3), rp.L2Init(1e-2)],
    "drawing": lambda: [Drawing()],
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("stop", [2, 4, 5])
def test_a_resumed_run_is_the_uninterrupted_one(name: str, stop: int, tmp_path) -> None:
    moments = {"at_steps": [2, 5], "at_epochs": [1]}  # epoch 1 ends at step 4
    settings = {"max_steps": 8, "save_strategy": "steps", "save_steps": 1}
    whole, resumed = gpt(), gpt()
    uninterrupted = PlasticityCallback(METHODS[name](), **moments)
    trainer_of(whole, tmp_path, [uninterrupted], **settings).train()
    callback = PlasticityCallback(METHODS[name](), **moments)
    trainer = trainer_of(resumed, tmp_path, [callback], **settings)
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{stop}"))
    assert callback.boundaries == uninterrupted.boundaries == [(2, "step 2"), (4, "epoch 1"), (5, "step 5")]
    assert same(whole, resumed)
    ours, theirs = callback.learner, uninterrupted.learner
    assert torch.equal(ours.generator.get_state(), theirs.generator.get_state())
    remembered = [[learner.initial, *(method.state for method in learner.methods)] for learner in (ours, theirs)]
    torch.testing.assert_close(*remembered, rtol=0, atol=0)
    assert not list(tmp_path.rglob("*.part"))


def test_a_boundary_that_was_due_when_the_checkpoint_was_saved_is_made_after_the_resume(tmp_path) -> None:
    class Hand(TrainerCallback):
        def on_step_end(self, args, state, control, **others) -> None:
            if state.global_step == 2:
                callback.boundary()

    callback = PlasticityCallback(rp.FIRE())
    settings = {"save_strategy": "steps", "save_steps": 2}
    trainer_of(gpt(), tmp_path, [Hand(), callback], **settings).train()
    again = PlasticityCallback(rp.FIRE())
    trainer_of(gpt(), tmp_path, [again], **settings).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.boundaries == callback.boundaries == [(2, "by hand")]


def test_a_checkpoint_elsewhere_is_named_to_the_callback(tmp_path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 5}
    trainer_of(gpt(), tmp_path / "run", [PlasticityCallback(Drawing())], **settings).train()
    trainer_of(gpt(), tmp_path / "other", [PlasticityCallback(Drawing())], Tokens(1), **settings).train()
    folder = tmp_path / "moved"
    shutil.copytree(tmp_path / "run" / "checkpoint-2", folder)
    with pytest.raises(FileNotFoundError, match="saved with this callback"):
        PlasticityCallback(Drawing()).resume_from(tmp_path)
    for named in (True, False):
        callback = PlasticityCallback(Drawing())
        trainer = trainer_of(gpt(), tmp_path / "other", [callback], max_steps=5)
        if named:
            callback.resume_from(folder)
            trainer.train(resume_from_checkpoint=str(folder))
            assert callback.learner.steps == 5
        else:  # the other run's checkpoint-2 is not taken for it
            with pytest.warns(UserWarning, match=r"step 2.*resume_from\(folder\)"):
                trainer.train(resume_from_checkpoint=str(folder))
            assert callback.learner.steps == 3


def test_a_missing_file_is_warned_of_only_if_a_method_remembers_something(tmp_path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 2}
    trainer_of(gpt(), tmp_path, [], **settings).train()
    folder = str(tmp_path / "checkpoint-2")
    with pytest.warns(UserWarning, match=FILE):
        trainer_of(gpt(), tmp_path, [PlasticityCallback(rp.ReDo())], **settings).train(resume_from_checkpoint=folder)
    callback = PlasticityCallback(rp.FIRE(), at_steps=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="training resumes at step")
        trainer_of(gpt(), tmp_path, [callback], **settings).train(resume_from_checkpoint=folder)
    assert callback.boundaries == [(2, "step 2")]


def test_a_run_whose_modules_were_changed_is_not_resumed(tmp_path) -> None:
    def run() -> Trainer:
        model = GPT2LMHeadModel(GPT2Config(**CONFIG, tie_word_embeddings=False))
        callback = PlasticityCallback(rp.PlasticityInjection(head="lm_head"), at_steps=2)
        return trainer_of(model, tmp_path, [callback], save_strategy="steps", save_steps=1)

    run().train()
    run().train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))  # saved before the boundary
    with pytest.raises(ValueError, match="PlasticityInjection had changed the model's modules"):
        run().train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


def test_the_file_is_safe_to_load(tmp_path) -> None:
    trainer_of(gpt(), tmp_path, [PlasticityCallback(rp.CBP())], save_strategy="steps", save_steps=4).train()
    saved = torch.load(tmp_path / "checkpoint-4" / FILE, weights_only=True)
    assert saved["due"] is None
    assert not {"model", "optimizer"} & set(saved["attached"]["learner"])  # the Trainer saves those


def test_wrong_inputs_raise_when_the_callback_is_made() -> None:
    with pytest.raises(ValueError, match="methods is empty"):
        PlasticityCallback([])
    with pytest.raises(ValueError, match="at_steps"):
        PlasticityCallback(rp.FIRE(), at_steps=[0])
    with pytest.raises(ValueError, match="every_epochs"):
        PlasticityCallback(rp.FIRE(), every_epochs=0)
    with pytest.raises(ValueError, match=r"DASH.*on_new_data=False.*callback.boundary"):
        PlasticityCallback(rp.DASH())
    by_hand = PlasticityCallback(rp.DASH(), on_new_data=False)
    with pytest.raises(ValueError, match="DASH needs the data"):
        by_hand.boundary()
    with pytest.raises(RuntimeError, match="training has not started"):
        by_hand.learner  # noqa: B018


def test_what_a_method_asks_for_is_checked_before_the_first_step(tmp_path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        trainer_of(gpt(), tmp_path, [PlasticityCallback(rp.FIRE(where="nowhere"))]).train()
    with pytest.raises(ValueError, match="belongs to the loop"):
        trainer_of(gpt(), tmp_path, [PlasticityCallback(rp.UseMuon())]).train()
    callback = PlasticityCallback(rp.FIRE())
    trainer_of(gpt(), tmp_path, [callback]).train()
    with pytest.raises(ValueError, match="another model"):
        trainer_of(gpt(), tmp_path, [callback]).train()


def test_a_method_that_needs_batches_says_that_the_trainer_shows_none(tmp_path) -> None:
    with pytest.raises(TypeError, match="ER needs the inputs") as caught:
        trainer_of(gpt(), tmp_path, [PlasticityCallback(rp.ER())]).train()
    assert "batches" in caught.value.__notes__[0]


def begin(callback: PlasticityCallback, model: nn.Module, **settings) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    kind = settings.pop("kind", DistributedType.NO)
    optimizer.accelerator_state = SimpleNamespace(distributed_type=kind)  # type: ignore[attr-defined]
    args = SimpleNamespace(world_size=settings.get("world_size", 1), n_gpu=0)
    state = SimpleNamespace(global_step=0, epoch=0)
    callback.on_train_begin(args, state, None, model=model, optimizer=optimizer)


@pytest.fixture
def _one_process():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("kind", [DistributedType.FSDP, DistributedType.DEEPSPEED])
def test_sharding_by_the_trainer_is_refused(kind: DistributedType) -> None:
    with pytest.raises(TypeError, match=rf"{kind.value}.*rp.fire_\(model\)"):
        begin(PlasticityCallback(rp.L2()), gpt(), kind=kind)


@pytest.mark.usefixtures("_one_process")
def test_sharded_weights_are_refused_and_ddp_is_unwrapped() -> None:
    model = gpt()
    callback = PlasticityCallback(rp.FIRE())
    begin(callback, DistributedDataParallel(model), world_size=2)
    assert callback.learner.model is model
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(TypeError, match=r"FSDP2.*train with DistributedDataParallel"):
        begin(PlasticityCallback(rp.L2()), model)


def test_a_compiled_model_is_unwrapped() -> None:
    callback, model = PlasticityCallback(rp.FIRE()), gpt()
    begin(callback, torch.compile(model))  # type: ignore[arg-type]
    assert callback.learner.model is model


def test_methods_of_activations_are_refused_where_processes_see_different_ones() -> None:
    with pytest.raises(ValueError, match="ReDo with 2 processes"):
        begin(PlasticityCallback(rp.ReDo()), gpt(), world_size=2)


def test_steps_that_the_scaler_skipped_are_none() -> None:
    callback, model = PlasticityCallback(Drawing()), gpt()
    begin(callback, model)
    for skipped in (True, False):
        callback.on_step_end(None, None, None, optimizer=SimpleNamespace(step_was_skipped=skipped))
    assert callback.learner.steps == 1


def test_a_missing_package_is_named() -> None:
    code = "import sys; sys.modules['transformers'] = None; import replastic.integrations.transformers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install "replastic[hf]"' in done.stderr


def test_without_a_moment_to_come_there_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"FIRE would never act: with on_new_data=False .*every_steps"):
        PlasticityCallback(rp.FIRE(), on_new_data=False)
