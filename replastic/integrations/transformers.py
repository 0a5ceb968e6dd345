"""Methods in the Trainer of Hugging Face Transformers: a callback for continual pretraining and finetuning.

callback = PlasticityCallback(rp.FIRE(steps=5))
trainer = Trainer(model, args, train_dataset=first, callbacks=[callback])
trainer.train()
trainer.train_dataset = second
trainer.train()  # other data than before: FIRE comes before its first step
"""

from __future__ import annotations

import copy
import json
import math
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from ..extras import needed
from ..learner import Task
from ..learner.checks import check_task
from ..record.files import part_of
from ..units import original
from ..weights.inventory import unusable
from ..weights.sharded import check_unsharded
from .callback import DataCallback

_transformers = needed("transformers", "hf", "the Transformers callback")
_data_loader = needed("accelerate.data_loader", "hf", "the Transformers callback")

FILE = "plasticity.pt"  # in every checkpoint of the Trainer
_NEW_DATA = "new data"
_SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")


class _Due(NamedTuple):
    """A boundary that comes before the next step."""

    why: str
    task: Task | None = None


class PlasticityCallback(DataCallback, _transformers.TrainerCallback):
    """Methods that act while a `transformers.Trainer` trains, on `learner`; `boundaries` lists when.

    There is a boundary when the data changes. Methods act before the next step trains and never after the last one, so the
    Trainer evaluates and saves a network that was trained after it was changed. `callback.boundary()` adds a boundary
    before the next step; before the first `train()` it means that the model was pretrained elsewhere.

    methods: one or several, as in `Learner`.
    at_steps, every_steps: steps of the optimiser, as in `state.global_step`, which restarts in every `train()`.
    at_epochs, every_epochs: finished epochs, which restart, too.
    on_new_data: whether there is a boundary when `train()` is called again with another data set. This means another object
        or, for Hugging Face's data sets, another fingerprint. A data set that was changed in place is not noticed, nor is
        another one after a resume or in another process: call `boundary()`.
    build: creates a newly initialised model. None: for a Transformers model, one of its class and config.
    example, seed: as in `Learner`.

    Together with the Trainer:
        - The optimiser is kept from one `train()` to the next, with its momenta; FIRE clears those of the weights that it
          changes. The Trainer creates a new schedule of the learning rate.
        - Gradients of penalties are added once per step of the optimiser, after the Trainer has unscaled (float16) and
          clipped the gradients of its loss. So penalties are not clipped, and not part of the loss that it logs.
        - A step that the Trainer skips, because float16 gradients overflowed, does not count for methods.
        - Callbacks do not see batches: ER does not work here, and DASH needs `boundary(rp.Task(...))`.
        - PEFT: adapters and frozen weights are skipped. Methods act on weights that train whole, as by modules_to_save.
        - Several processes (DDP): methods do the same in every process. CBP, DASH, ER, ReDo, SNR and FIREOnAlarm, which
          depend on the batches of a process, are refused, and so is PlasticityInjection, which changes modules. FSDP and
          DeepSpeed are refused, because no process holds whole weights.
        - Checkpoints have the methods' state in plasticity.pt, from which a run resumes. For a checkpoint outside of the
          Trainer's output_dir, call `callback.resume_from(folder)` before `train(resume_from_checkpoint=folder)`. The
          Trainer cannot load a checkpoint after Plasticity Injection, which has changed the model's modules.
    """

    _due: _Due | None = None
    _data: object = None  # what the last train() trained on
    _passed = (0, 0)  # steps and epochs whose moments have come
    _epochs = 0  # finished ones, also those that were cut short
    _folder: Path | None = None

    def boundary(self, task: Task | None = None) -> None:
        """The data changes now: the methods act before the next step, in this `train()` or the next one."""
        check_task(task, self._attached.methods)
        self._due = _Due("by hand", task)

    def resume_from(self, folder: str | Path) -> None:
        """Name the checkpoint of the next `train(resume_from_checkpoint=...)`, which callbacks are not told."""
        if not (Path(folder) / FILE).is_file():
            raise FileNotFoundError(f"{folder} has no {FILE}: pass a checkpoint that was saved with this callback")
        self._folder = Path(folder)

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        train_dataloader: Any = None,
        **others: Any,
    ) -> None:
        self._attached.check_processes(max(args.world_size, args.n_gpu))
        self._attach(_unwrapped(model), optimizer)
        data, resumed = _data_of(train_dataloader), state.global_step > 0
        if resumed:
            self._resume(args, state)
        elif self.on_new_data and self._due is None and self._data is not None and not _same(data, self._data):
            self._due = _Due(_NEW_DATA)
        self._data = data
        # A checkpoint is saved before the boundary that comes after its last step.
        self._passed = (state.global_step - 1, math.ceil(state.epoch) - 1) if resumed else (0, 0)
        self._epochs = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        now = (state.global_step, max(int(state.epoch or 0), self._epochs))
        if self._due is None and self.moments.between_steps(self._passed[0], now[0]):
            self._due = _Due(f"step {now[0]}")
        if self._due is None and self.moments.between_epochs(self._passed[1], now[1]):
            self._due = _Due(f"epoch {now[1]}")
        self._passed = now
        if self._due is not None:
            # Only "new data" follows a train() that the learner has seen. Otherwise there were steps before this callback.
            self._act(state.global_step, *self._due, learnt=self._due.why != _NEW_DATA)
            self._due = None

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._attached.add_penalty_()

    def on_step_end(self, args: Any, state: Any, control: Any, *, optimizer: Any = None, **others: Any) -> None:
        if getattr(optimizer, "step_was_skipped", False):
            return
        try:
            self._attached.after_step()
        except TypeError as error:
            if self.learner.batch is None:
                error.add_note("The Trainer does not pass batches to callbacks: use another loop for this method.")
            raise

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._epochs = math.ceil(state.epoch or 0)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._attached.warn_if_idle(self.moments)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if not args.should_save:
            return
        path = _checkpoint(args, state) / FILE
        part = part_of(path)
        due = None if self._due is None else self._due.why
        try:
            torch.save({"attached": self._attached.state_dict(), "due": due}, part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def _attach(self, model: nn.Module, optimizer: Any) -> None:
        _refuse_sharded(model, optimizer)
        if self._attached.build is None and isinstance(model, _transformers.PreTrainedModel):
            self._attached.build = lambda: type(model)(copy.deepcopy(model.config))
        try:
            self._attached.attach(model, optimizer)
        except ValueError as error:
            if getattr(model, "peft_config", None) is None:
                raise
            raise ValueError(
                f"{error}. This is a PEFT model: methods act only on weights that train whole, not on adapters or the "
                "frozen base. Name modules in modules_to_save, or train the model itself"
            ) from error

    def _resume(self, args: Any, state: Any) -> None:
        given = args.resume_from_checkpoint
        places = [self._folder, Path(given) if given else None, _checkpoint(args, state)]
        self._folder = None
        folder = next((place for place in places if place is not None and _is_of(place, state)), None)
        if folder is not None and (folder / FILE).is_file():
            saved = torch.load(folder / FILE, map_location="cpu", weights_only=True)
            self._refuse_changed_modules(saved["attached"]["boundaries"])
            self._attached.load_state_dict(saved["attached"])
            if self._due is None and saved["due"] is not None:
                self._due = _Due(saved["due"])
        elif any(method.state or method.needs_first for method in self.learner.methods):
            warnings.warn(
                f"training resumes at step {state.global_step}, but {_checkpoint(args, state)} has no {FILE}, so "
                "methods start without their state. If the checkpoint is elsewhere, call callback.resume_from(folder) first",
                stacklevel=2,
            )

    def _refuse_changed_modules(self, boundaries: list[Any]) -> None:
        changing = [type(method).__name__ for method in self.learner.methods if method.overrides("rebuild")]
        if changing and boundaries:
            raise ValueError(
                f"{changing[0]} had changed the model's modules when this checkpoint was saved, and the Trainer has loaded "
                "it into unchanged ones: such a run cannot be resumed. Train it in one run, or without this method"
            )


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _is_of(folder: Path, state: Any) -> bool:
    """Whether the Trainer's state was read from this folder: output_dir may have another run's checkpoint of this step."""
    path = folder / "trainer_state.json"
    if not path.is_file():
        return False
    there = json.loads(path.read_text())
    return there["global_step"] == state.global_step and json.dumps(there["log_history"]) == json.dumps(state.log_history)


def _unwrapped(model: nn.Module) -> nn.Module:
    inner = original(model)
    return _unwrapped(inner.module) if isinstance(inner, DataParallel | DistributedDataParallel) else inner


def _refuse_sharded(model: nn.Module, optimizer: Any) -> None:
    kind = getattr(getattr(optimizer, "accelerator_state", None), "distributed_type", None)
    name = getattr(kind, "value", None)
    instead = "train with DDP, or act on the whole model before training, as with rp.fire_(model)"
    if name in _SHARDED:
        raise TypeError(f"the Trainer uses {name}, where no process holds whole weights: {instead}")
    check_unsharded(model, for_good=True)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and type(parameter.data) is not Tensor:
            raise TypeError(f"{name} {unusable(parameter)}. Here: {instead}")


def _data_of(loader: Any) -> object:
    data: Any = getattr(loader, "dataset", None)
    return data.dataset if isinstance(data, _data_loader.IterableDatasetShard) else data


def _same(data: object, other: object) -> bool:
    """Whether two data sets are the same. Hugging Face's are created again for each `train()`, with the same fingerprint."""
    mark = getattr(data, "_fingerprint", None)
    return data is other or (mark is not None and mark == getattr(other, "_fingerprint", None))
