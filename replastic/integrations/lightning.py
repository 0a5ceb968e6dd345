"""Methods in Lightning's Trainer: a callback.

    callback = PlasticityCallback(rp.FIRE())
    trainer = Trainer(callbacks=[callback], max_epochs=5)
    trainer.fit(model, first)
    trainer.fit_loop.max_epochs = 10
    trainer.fit(model, second)  # other data than before: FIRE comes before its first batch

Lightning has two packages, `lightning` and `pytorch_lightning`, and a Trainer accepts only callbacks of its own package.
This callback is of the package that is imported already, or of both; if neither is, of the one that is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.optim import Optimizer

from ..extras import needed
from ..learner import Task
from ..learner.checks import acts_in_steps, check_task
from .callback import DataCallback

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    _PACKAGES = ("lightning.pytorch", "pytorch_lightning")

    def _base() -> type:
        packages = [sys.modules[name] for name in _PACKAGES if sys.modules.get(name) is not None]
        if not packages:
            try:
                packages = [needed(_PACKAGES[0], "lightning", "the Lightning callback")]
            except ImportError as missing:
                try:
                    packages = [needed(_PACKAGES[1], "lightning", "the Lightning callback")]
                except ImportError:
                    raise missing from None
        return type("Callback", tuple(package.Callback for package in packages), {})

    Callback = _base()

_SHARDING = {"FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy", "XLAFSDPStrategy"}


class _Counts(NamedTuple):
    """The progress of a trainer: steps of the optimiser, and finished epochs."""

    steps: int
    epochs: int


class PlasticityCallback(DataCallback, Callback):
    """Methods that act while a Lightning Trainer trains, on `learner`; `boundaries` lists when.

    There is a boundary when the data changes. Methods act at the start of the next batch and never after the last one, so
    the network that is validated and saved was trained after it was changed. Moments that coincide are one boundary. Code
    that knows when the data changes calls `callback.boundary()`.

    methods: one or several, as in `Learner`.
    at_steps, every_steps: steps of the optimiser, as in `trainer.global_step`. With several optimisers Lightning counts the
        steps of each. A new Trainer counts from zero.
    at_epochs, every_epochs: finished epochs. A new Trainer counts from zero.
    on_new_data: whether there is a boundary when the data set is another object: `fit` is called again with other data, or
        loaders are reloaded. A hook that creates its data set each time creates another object. A data set that was changed
        in place is not noticed, nor is another sampler, or other data after a resume in a new process: call `boundary()`.
    build: creates a newly initialised LightningModule.
    example, seed: as in `Learner`.

    Together with Lightning:
        - Gradients of penalties are added once per step of the optimiser, after accumulation and unscaling (float16) and
          before clipping. They are not part of the loss that is logged. `after_step` is also called once per step, with
          the batch if it is a pair of inputs and targets. A skipped step does not count. With manual optimisation Lightning
          does not report steps, so only methods that act at boundaries can be used.
        - Checkpoints have the methods' state, from which `fit(ckpt_path=...)` resumes. It is found by the names of the
          methods and by the moments, so do not change these. Lightning cannot load a checkpoint after Plasticity
          Injection, which has changed the model's modules.
        - Lightning creates new optimisers in every `fit`. Within one, FIRE clears the momenta of weights that it changes.
        - DDP: methods do the same in every process, without communication. CBP, DASH, ER, ReDo, SNR and FIREOnAlarm, which
          depend on the batches of a process, are refused, and so is PlasticityInjection, which changes modules. FSDP,
          DeepSpeed and model parallelism are refused, because no process holds whole weights. If processes are spawned or
          forked, the callback's state ends with them: use one `fit`.
    """

    _passed: _Counts | None = None  # counts up to which moments have been checked
    _by_hand = False
    _task: Task | None = None
    _data: list[Any] | None = None  # what was trained on last
    _stepped = False  # whether the optimiser made a step in this batch
    _hooks: Sequence[Any] = ()

    def boundary(self, task: Task | None = None) -> None:
        """The data changes now: the methods act before the next batch trains, in this `fit` or the next one.

        Before the first `fit` it means that the model was trained elsewhere.
        """
        check_task(task, self._attached.methods)
        self._by_hand, self._task = True, task

    # what Lightning calls

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check_loop(trainer, pl_module)
        self._attached.check_processes(trainer.world_size)
        # Not earlier: now Lightning has created the optimisers, and loaded their state from a checkpoint.
        self._attached.attach(pl_module, trainer.optimizers)
        for hook in self._hooks:
            hook.remove()
        self._hooks = [optimizer.register_step_post_hook(self._saw_a_step) for optimizer in trainer.optimizers]
        now = _counts(trainer)
        if self._passed is None or now.steps < self._passed.steps:
            self._passed = now  # the first Trainer, or a new one

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._stepped = False
        if pl_module.automatic_optimization and batch_idx % trainer.accumulate_grad_batches:
            return  # gradients of the present weights are waiting for their step
        why = self._due(trainer)
        if why:
            self._act(trainer.global_step, why, self._task, learnt=self._by_hand)
            self._by_hand, self._task = False, None

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if _has_gradients(optimizer):
            self._attached.add_penalty_(_scale(trainer, optimizer))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._stepped:
            pair = batch if isinstance(batch, tuple | list) and len(batch) == 2 else None
            self._attached.after_step(tuple(pair) if pair is not None else None)  # pyright: ignore[reportArgumentType]
            self._stepped = False

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._attached.warn_if_idle(self.moments)

    @property
    def state_key(self) -> str:
        """The key of the callback's state in a checkpoint: the names of its methods, and its moments."""
        names = [type(method).__name__ for method in self._attached.methods]
        return self._generate_state_key(methods=names, **self.moments.chosen())

    def state_dict(self) -> dict[str, Any]:
        passed = None if self._passed is None else list(self._passed)
        return {"attached": self._attached.state_dict(), "passed": passed, "by_hand": self._by_hand}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._attached.load_state_dict(state_dict["attached"])
        self._passed = None if state_dict["passed"] is None else _Counts(*state_dict["passed"])
        self._by_hand = self._by_hand or state_dict["by_hand"]

    def _due(self, trainer: Trainer) -> str:
        """Why there is a boundary now; empty if there is not."""
        assert self._passed is not None
        before, now = self._passed, _counts(trainer)
        data, known = list(_data_sets(trainer.train_dataloader)), self._data
        self._passed, self._data = _Counts(max(before.steps, now.steps), max(before.epochs, now.epochs)), data
        reasons = {
            "by hand": self._by_hand,
            "new data": self.on_new_data and known is not None and list(map(id, known)) != list(map(id, data)),
            f"step {now.steps}": self.moments.between_steps(before.steps, now.steps),
            f"epoch {now.epochs}": self.moments.between_epochs(before.epochs, now.epochs),
        }
        return ", ".join(reason for reason, holds in reasons.items() if holds)

    def _saw_a_step(self, optimizer: Optimizer, *arguments: object) -> None:
        # Where training_step returned None, Lightning calls step() without gradients.
        self._stepped = self._stepped or _has_gradients(optimizer)

    def _check_loop(self, trainer: Trainer, pl_module: LightningModule) -> None:
        sharding = _SHARDING.intersection(kind.__name__ for kind in type(trainer.strategy).__mro__)
        if sharding:
            raise TypeError(
                f"the Trainer uses {sharding.pop()}, where no process holds whole weights: train with DDP, or change the "
                "whole model before training, as with rp.fire_(model)"
            )
        in_steps = [type(method).__name__ for method in self._attached.methods if acts_in_steps(method)]
        if in_steps and not pl_module.automatic_optimization:
            raise ValueError(
                f"{', '.join(in_steps)} acts in every step, but with manual optimisation Lightning does not report steps: "
                "use automatic optimisation, or an rp.Learner in your module, whose penalty() and after_step() you call"
            )


def _counts(trainer: Trainer) -> _Counts:
    return _Counts(trainer.global_step, trainer.current_epoch)


def _data_sets(loaders: Any) -> Iterator[Any]:
    """The data set of a loader, or those of lists and dicts of loaders; an iterable without a data set stands for itself."""
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if isinstance(loaders, tuple | list):
        for loader in loaders:
            yield from _data_sets(loader)
    else:
        yield getattr(loaders, "dataset", loaders)


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def _scale(trainer: Trainer, optimizer: Optimizer) -> float:
    """The factor that gradients still have: Lightning has unscaled them, unless the optimiser does so in its step."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler.get_scale() if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False) else 1.0
