"""Methods in Lightning's Trainer."""

import copy
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import replastic as rp
from replastic.integrations import lightning as integration
from replastic.integrations.lightning import PlasticityCallback
from replastic.learner import Learner, Method

# Lightning advises on loaders' workers, on loggers, and on callbacks of a checkpoint that were not made anew.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Net(L.LightningModule):
    def __init__(self, optimizer: Callable[..., Any] = torch.optim.Adam, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        self.make, self.options = optimizer, {"lr": 1e-2, **options}
        self.losses: list[float] = []

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters(), **self.options)


class Spy(L.Callback):
    """What the model and the optimiser are at the start of each batch: before the other callback acts, or after it."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, Tensor]] = {}
        self.momenta: dict[int, dict[str, Tensor]] = {}
        self.at_epoch_end: list[dict[str, Tensor]] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.weights[trainer.global_step] = copied(pl_module)
        state = trainer.optimizers[0].state
        names = {parameter: name for name, parameter in pl_module.named_parameters()}
        self.momenta[trainer.global_step] = {names[p]: s["exp_avg"].clone() for p, s in state.items() if "exp_avg" in s}

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.at_epoch_end.append(copied(pl_module))


def copied(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


def loader(seed: int = 0, samples: int = 32, batch_size: int = 8) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 4, generator=generator)
    return DataLoader(TensorDataset(inputs, torch.randint(2, (samples,), generator=generator)), batch_size=batch_size)


def trainer_of(*callbacks: Any, **options: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    return L.Trainer(**{**quiet, "enable_checkpointing": False, "callbacks": list(callbacks), **options})


def trained(callback: Any, model: Any = None, **options: Any) -> Any:
    model = Net() if model is None else model
    trainer_of(callback, **{"max_epochs": 3, **options}).fit(model, loader())
    return model


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        ({"at_steps": [2, 5]}, [(2, "step 2"), (5, "step 5")]),
        ({"every_steps": 5}, [(5, "step 5"), (10, "step 10")]),
        ({"at_epochs": 2}, [(8, "epoch 2")]),
        ({"every_epochs": 1}, [(4, "epoch 1"), (8, "epoch 2")]),
        ({"at_steps": 4, "every_epochs": 1}, [(4, "step 4, epoch 1"), (8, "epoch 2")]),
        ({"at_steps": [12, 13], "at_epochs": [3]}, []),  # after the last step nothing would be trained any more
        ({}, []),
    ],
)
def test_boundaries_come_once_each_where_they_were_asked_for_and_none_after_the_last_step(
    moments: dict[str, Any], expected: list[tuple[int, str]]
) -> None:
    callback = PlasticityCallback(rp.FIRE(), **moments)
    trained(callback)
    assert callback.boundaries == expected


def test_weights_are_fired_as_by_a_call_and_momenta_forgotten_before_the_next_batch_trains() -> None:
    before, after, callback = Spy(), Spy(), PlasticityCallback(rp.FIRE(), at_steps=3)
    model = Net()
    trainer_of(before, callback, after, max_epochs=2).fit(model, loader())
    expected = Net()
    expected.load_state_dict(before.weights[3])
    rp.fire_(expected)
    assert same(after.weights[3], expected.state_dict())
    assert not same(before.weights[3], after.weights[3])
    for name, momenta in after.momenta[3].items():
        assert torch.equal(momenta, before.momenta[3][name]) == name.endswith("bias")
        assert bool(momenta.any()) == name.endswith("bias")
    others = [step for step in before.weights if step != 3]
    assert all(same(before.weights[step], after.weights[step]) for step in others)
    assert not same(after.weights[3], before.weights[4])  # and then it is trained on
    assert all(torch.tensor(model.losses).isfinite())


def test_what_is_there_at_the_end_of_an_epoch_is_trained_and_not_yet_fired() -> None:
    plain, fired = Spy(), Spy()
    trained(plain, max_epochs=1)
    callback = PlasticityCallback(rp.FIRE(), every_epochs=1)
    model = Net()
    trainer_of(callback, fired, max_epochs=2).fit(model, loader())
    assert same(plain.at_epoch_end[0], fired.at_epoch_end[0])
    assert not same(fired.weights[4], fired.at_epoch_end[0])
    assert same(model.state_dict(), fired.at_epoch_end[1])


def test_a_second_fit_with_other_data_begins_with_a_boundary_and_one_with_the_same_does_not() -> None:
    callback, model = PlasticityCallback(rp.FIRE()), Net()
    trainer, data = trainer_of(callback, max_epochs=1), loader()
    trainer.fit(model, data)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, data)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(model, DataLoader(data.dataset, batch_size=4, shuffle=True))  # another loader of the same
    assert callback.boundaries == []
    trainer.fit_loop.max_epochs = 5
    trainer.fit(model, loader(1))
    assert callback.boundaries == [(16, "new data")]
    another = trainer_of(callback, max_epochs=1)
    another.fit(model, loader(2))
    assert callback.boundaries == [(16, "new data"), (0, "new data")]


def test_other_data_are_no_boundary_if_that_is_not_wanted() -> None:
    callback, model = PlasticityCallback(rp.FIRE(), at_steps=100, on_new_data=False), Net()
    for seed in range(2):
        trainer_of(callback, max_epochs=1).fit(model, loader(seed))
    assert callback.boundaries == []


@pytest.mark.parametrize("anew", [False, True])
def test_reloaded_loaders_are_new_data_if_their_data_set_is_another(anew: bool) -> None:
    kept = loader().dataset

    class Reloading(Net):
        def train_dataloader(self) -> Any:
            return {"one": DataLoader(loader(self.current_epoch).dataset if anew else kept, batch_size=8)}

        def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
            return super().training_step(batch["one"], batch_idx)

    callback = PlasticityCallback(rp.FIRE())
    trainer_of(callback, max_epochs=3, reload_dataloaders_every_n_epochs=1).fit(Reloading())
    assert callback.boundaries == ([(4, "new data"), (8, "new data")] if anew else [])


def test_moments_are_counted_as_the_trainer_does_and_anew_in_a_new_one() -> None:
    callback, model, data = PlasticityCallback(rp.FIRE(), at_steps=3), Net(), loader()
    trainer = trainer_of(callback, max_steps=3)
    trainer.fit(model, data)
    assert callback.boundaries == []  # it is due, but nothing has trained since
    trainer.fit_loop.epoch_loop.max_steps = 6
    trainer.fit(model, data)
    assert callback.boundaries == [(3, "step 3")]
    trainer_of(callback, max_steps=5).fit(model, data)
    assert callback.boundaries == [(3, "step 3"), (3, "step 3")]


def test_code_that_knows_can_say_when_the_data_change_and_accumulated_gradients_are_stepped_first() -> None:
    callback = PlasticityCallback(rp.FIRE())

    class Knowing(L.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 0 and trainer.current_epoch == 1:
                callback.boundary()
                callback.boundary()

    spy, model = Spy(), Net()
    trainer_of(callback, spy, Knowing(), max_epochs=2, accumulate_grad_batches=2).fit(model, loader())
    assert callback.boundaries == [(3, "by hand")]
    trainer_of(callback, Knowing(), max_epochs=2).fit(model, loader())
    assert callback.boundaries[1:] == [(0, "new data"), (5, "by hand")]


def test_said_before_the_first_fit_it_fires_a_model_that_was_trained_elsewhere() -> None:
    callback, spy, model = PlasticityCallback(rp.FIRE()), Spy(), Net()
    expected = Net()
    rp.fire_(expected)
    callback.boundary()
    trainer_of(callback, spy, max_epochs=1).fit(model, loader())
    assert callback.boundaries == [(0, "by hand")]
    assert same(spy.weights[0], expected.state_dict())


def test_a_method_that_needs_tasks_gets_the_one_that_is_said() -> None:
    callback, data, model = PlasticityCallback(rp.DASH(), on_new_data=False), loader(), Net()
    with pytest.raises(ValueError, match="DASH needs the data"):
        callback.boundary()
    for number in range(2):
        task = rp.Task(str(number), batches=lambda generator: data, loss=nn.functional.cross_entropy)
        callback.boundary(task)
        trainer_of(callback, max_epochs=1).fit(model, data)
        assert callback.learner.task is task
    assert len(callback.boundaries) == 2


@dataclass
class Noting(Method):
    """Writes down what it is called with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.calls: list[Any] = []

    def at_boundary(self, learner: Learner, task: Any) -> None:
        self.calls.append("boundary")

    def penalty(self, learner: Learner) -> Tensor:
        self.calls.append("penalty")
        return 0.0 * next(iter(learner.parameters.values())).sum()

    def after_step(self, learner: Learner) -> None:
        self.calls.append(None if learner.batch is None else learner.batch.inputs)


def test_penalty_and_after_step_come_once_for_each_step_of_the_optimiser_with_its_last_batch() -> None:
    noting, data = Noting(), loader(samples=40)
    trainer_of(PlasticityCallback([noting], at_steps=2), max_epochs=1, accumulate_grad_batches=2).fit(Net(), data)
    batches = [inputs for inputs, _ in data]
    assert [call for call in noting.calls if isinstance(call, str)] == ["penalty", "penalty", "boundary", "penalty"]
    seen = [call for call in noting.calls if isinstance(call, Tensor)]
    assert all(torch.equal(inputs, batches[number]) for inputs, number in zip(seen, (1, 3, 4), strict=True))


def test_a_batch_that_is_no_pair_is_not_shown() -> None:
    class Named(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
            return super().training_step((batch["x"], batch["y"]), batch_idx)

    noting = Noting()
    rows = [{"x": torch.randn(4), "y": torch.tensor(1)} for _ in range(8)]
    trainer_of(PlasticityCallback(noting), max_epochs=1).fit(Named(), DataLoader(rows, batch_size=4))
    assert noting.calls == ["penalty", None, "penalty", None]


def test_a_batch_that_the_module_skips_is_no_step() -> None:
    class Skipping(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
            return None if batch_idx % 2 else super().training_step(batch, batch_idx)

    callback, plain = PlasticityCallback([rp.L2(0.1), rp.CBP(maturity=1, rate=0.2)]), Skipping()
    trained(callback, plain, max_epochs=1)
    assert callback.learner.steps == 2


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_penalty_trains_as_one_that_stands_in_the_loss_and_is_clipped_with_it(accumulated: int) -> None:
    methods = [lambda: rp.L2(0.1), lambda: rp.Parseval(0.05)]
    callback, data = PlasticityCallback([make() for make in methods]), loader()
    model = Net(torch.optim.SGD, lr=0.1, momentum=0.9)
    trainer_of(callback, max_epochs=3, accumulate_grad_batches=accumulated, gradient_clip_val=0.05).fit(model, data)
    other = Net()
    sgd = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    learner = rp.Learner(other, sgd, methods=[make() for make in methods])
    for _ in range(3):
        for number, (inputs, targets) in enumerate(data):
            (nn.functional.cross_entropy(other(inputs), targets) / accumulated).backward()
            if (number + 1) % accumulated == 0:
                penalty = learner.penalty()
                assert isinstance(penalty, Tensor)
                penalty.backward()
                assert nn.utils.clip_grad_norm_(other.parameters(), 0.05) > 0.05  # it does clip
                sgd.step()
                sgd.zero_grad()
                learner.after_step((inputs, targets))
    assert callback.learner.steps == learner.steps == 12 // accumulated
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)  # the same sums, perhaps in another order


class WithoutLoss(Net):
    """Only the penalty moves it."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        return 0.0 * self(batch[0]).float().sum()


@pytest.mark.parametrize("fused", [False, True])
def test_a_penalty_is_as_strong_where_float16_gradients_are_scaled(fused: bool) -> None:
    model = WithoutLoss(torch.optim.SGD, lr=0.1, fused=fused)
    before = copied(model)
    precision = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    trained(PlasticityCallback(rp.L2(0.5)), model, max_epochs=1, plugins=[precision])
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, before[name] * (1 - 0.1 * 0.5) ** 4, rtol=1e-5, atol=0)  # four roundings


def test_a_step_that_the_scaler_skips_is_none() -> None:
    class Overflowing(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
            loss = super().training_step(batch, batch_idx)
            return loss if loss is None or batch_idx else loss * torch.inf

    callback = PlasticityCallback(rp.ReDo(period=100))
    precision = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    trained(callback, Overflowing(), max_epochs=1, plugins=[precision])
    assert callback.learner.steps == 3


def test_several_methods_act_each_at_its_own_moment() -> None:
    methods = [rp.FIRE(), rp.ReDo(period=3), rp.L2(1e-3), rp.HareAndTortoise(period=5)]
    callback = PlasticityCallback(methods, every_epochs=1)
    model = trained(callback)
    assert len(callback.boundaries) == 2
    assert callback.learner.steps == 12
    assert methods[1].state["step"] == 12
    assert methods[0].report is not None
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_two_callbacks_act_beside_each_other_and_one_that_stands_twice_is_refused() -> None:
    first = PlasticityCallback(rp.FIRE(where=["net.0.weight"]), at_steps=2)
    second = PlasticityCallback(rp.FIRE(where=["net.2.weight"]), at_steps=5)
    trainer_of(first, second, max_epochs=2).fit(Net(), loader())
    assert (first.boundaries, second.boundaries) == ([(2, "step 2")], [(5, "step 5")])
    with pytest.raises(RuntimeError, match="state_key"):
        trainer_of(first, PlasticityCallback(rp.FIRE(), at_steps=2))


def test_an_optimiser_that_is_several_is_served() -> None:
    class WithMuon(Net):
        def configure_optimizers(self) -> Any:
            return rp.muon(self)

    callback = PlasticityCallback([rp.FIRE(), rp.L2(1e-3)], at_steps=2)
    model = trained(callback, WithMuon())
    assert callback.boundaries == [(2, "step 2")]
    assert callback.learner.steps == 12
    assert all(torch.tensor(model.losses).isfinite())


def methods_with_memory() -> list[Method]:
    return [rp.CBP(rate=0.2, maturity=2), rp.ShrinkAndPerturb(), rp.L2Init(1e-3)]


@pytest.mark.parametrize("saved_at", ["end", "epoch end", "mid epoch"])
def test_a_resumed_run_goes_on_bit_for_bit(saved_at: str, tmp_path: Path) -> None:
    def callback() -> Any:
        return PlasticityCallback(methods_with_memory(), every_epochs=2, at_steps=7)

    data, whole, straight = loader(), Net(), callback()
    if saved_at == "mid epoch":  # there Lightning begins the loader anew: let all its batches be the same
        inputs, targets = next(iter(data))
        data = DataLoader(TensorDataset(inputs.repeat(4, 1), targets.repeat(4)), batch_size=8)
    saving = ModelCheckpoint(tmp_path, filename="kept", every_n_epochs=2, save_top_k=1)
    every = ModelCheckpoint(tmp_path, filename="mid", every_n_train_steps=7, save_top_k=1)
    trainer_of(straight, max_epochs=5).fit(whole, data)
    assert straight.boundaries == [(7, "step 7"), (8, "epoch 2"), (16, "epoch 4")]

    trainer = trainer_of(callback(), saving, every, max_epochs=2, enable_checkpointing=True)
    trainer.fit(Net(), data)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    path = tmp_path / {"end": "end.ckpt", "epoch end": "kept.ckpt", "mid epoch": "mid.ckpt"}[saved_at]
    assert torch.load(path, weights_only=True)["callbacks"][straight.state_key]["attached"]["learner"]["steps"]

    resumed, again = callback(), Net()
    trainer_of(resumed, max_epochs=5).fit(again, data, ckpt_path=path, weights_only=True)
    assert resumed.boundaries == straight.boundaries
    assert resumed.learner.steps == straight.learner.steps == 20
    assert same(again.state_dict(), whole.state_dict())


class Adversaries(Net):
    """Two optimisers, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = nn.Linear(4, 2)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer, model in zip(self.optimizers(), (self.net, self.other), strict=True):  # pyright: ignore
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(self.net.parameters()), torch.optim.SGD(self.other.parameters(), 0.1)]


def test_with_manual_optimisation_boundaries_come_by_the_trainers_count_of_all_optimisers() -> None:
    callback = PlasticityCallback(rp.FIRE(), at_steps=5)
    trained(callback, Adversaries())
    assert callback.boundaries == [(6, "step 6")]  # two at a time


@pytest.mark.parametrize("method", [rp.L2(), rp.CBP()])
def test_with_manual_optimisation_methods_that_act_in_steps_are_refused(method: Method) -> None:
    with pytest.raises(ValueError, match="manual optimisation"):
        trained(PlasticityCallback([rp.FIRE(), method]), Adversaries())


def test_strategies_that_shard_weights_are_refused() -> None:
    class FSDPStrategy:
        pass

    class Ours(FSDPStrategy):
        pass

    callback = PlasticityCallback(rp.FIRE())
    with pytest.raises(TypeError, match="FSDPStrategy, where no process holds whole weights"):
        callback.on_train_start(SimpleNamespace(strategy=Ours()), Net())


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"methods": rp.FIRE}, TypeError, r"write FIRE\(\)"),
        ({"methods": []}, ValueError, "methods is empty"),
        ({"methods": rp.FIRE(), "every_steps": 0}, ValueError, "every_steps=0"),
        ({"methods": rp.FIRE(), "at_epochs": [0]}, ValueError, "at_epochs .*0"),
        ({"methods": [rp.FIRE(), rp.FullReset()], "on_new_data": False}, ValueError, "FIRE, FullReset would never act"),
        ({"methods": rp.DASH()}, ValueError, "DASH needs the data"),
        ({"methods": rp.DASH(), "on_new_data": False, "every_steps": 5}, ValueError, "DASH needs the data"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        PlasticityCallback(**arguments)


def test_methods_that_act_in_steps_need_no_boundary() -> None:
    callback = PlasticityCallback(rp.L2(), on_new_data=False)
    trained(callback, max_epochs=1)
    assert callback.learner.steps == 4


def test_a_model_with_nothing_to_fire_is_refused_before_it_is_trained() -> None:
    model = Net()
    with pytest.raises(ValueError, match="conv"):
        trained(PlasticityCallback(rp.FIRE(where=["conv"])), model)
    assert model.losses == []


def test_a_callback_is_of_one_model() -> None:
    callback = PlasticityCallback(rp.FIRE())
    trained(callback, max_epochs=1)
    with pytest.raises(ValueError, match="make a new one for each model"):
        trained(callback, max_epochs=1)


def loaded_anew() -> ModuleType:
    """The module as if it were imported for the first time."""
    spec = importlib.util.spec_from_file_location("replastic.integrations.anew", integration.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_other_package_of_lightning_is_served_too() -> None:
    other = pytest.importorskip("pytorch_lightning")

    class Theirs(other.LightningModule):
        training_step, forward, configure_optimizers = Net.training_step, Net.forward, Net.configure_optimizers

        def __init__(self) -> None:
            super().__init__()
            self.net, self.make, self.options, self.losses = Net().net, torch.optim.Adam, {"lr": 1e-2}, []

    callback = loaded_anew().PlasticityCallback(rp.FIRE(), at_steps=2)
    assert isinstance(callback, L.Callback)  # both are imported, so it is of both
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    other.Trainer(max_epochs=1, callbacks=callback, enable_checkpointing=False, **quiet).fit(Theirs(), loader())
    assert callback.boundaries == [(2, "step 2")]


def test_where_only_the_other_package_is_installed_the_callback_is_of_that(monkeypatch: pytest.MonkeyPatch) -> None:
    other = pytest.importorskip("pytorch_lightning")
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    assert issubclass(loaded_anew().PlasticityCallback, other.Callback)
    monkeypatch.delitem(sys.modules, "pytorch_lightning")  # installed, and not imported yet
    kind = loaded_anew().PlasticityCallback
    assert issubclass(kind, sys.modules["pytorch_lightning"].Callback)
    assert not issubclass(kind, L.Callback)


def test_without_lightning_the_import_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(ImportError, match=r"the Lightning callback needs lightning.*replastic\[lightning\]"):
        loaded_anew()


class Leaving(L.Callback):
    """Has each process leave its weights in a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        torch.save(
            (copied(pl_module), [*map(tuple, trainer.callbacks[0].boundaries)]), self.folder / f"{trainer.global_rank}.pt"
        )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")
def test_processes_that_train_together_stay_the_same(tmp_path: Path) -> None:
    callback = PlasticityCallback([rp.FIRE(), rp.ShrinkAndPerturb(), rp.L2(1e-2)], every_epochs=1)
    trainer = trainer_of(callback, Leaving(tmp_path), max_epochs=2, devices=2, strategy="ddp_fork")
    trainer.fit(Net(), loader())
    (one, boundaries), (other, theirs) = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert same(one, other)
    assert boundaries == theirs == [(2, "epoch 1")]


def test_processes_that_would_drift_apart_are_refused() -> None:
    callback = PlasticityCallback(rp.ReDo())
    with pytest.raises(ValueError, match="ReDo with 2 processes"):
        callback.on_train_start(SimpleNamespace(strategy=object(), world_size=2), Net())


def test_the_example_runs_and_shows_both_arms_from_the_same_start(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[1] / "examples" / "with_lightning.py"
    spec = importlib.util.spec_from_file_location("with_lightning", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main(tasks=2, epochs=3, samples=200)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    plain, fired = (next(row for row in rows if row[: len(name)] == name) for name in (["train", "on"], ["FIRE"]))
    assert plain[-2] == fired[-2]  # nothing is fired in the first task
    callback = PlasticityCallback(rp.FIRE())
    example.run([callback], tasks=3, epochs=1, samples=200)
    assert [why for _, why in callback.boundaries] == ["new data", "new data"]
