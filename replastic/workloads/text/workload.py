"""The workload of text: [data], [model] and [protocol] of an experiment's file with `kind = "text"`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ...learner import Learner, Method, Task
from ...models import FROM_TOKENS, build_language_model, models_for
from ...options import OptionError, check_keys, check_type, with_defaults
from ...own_code import OwnCode
from ..base import described, on_device, path_of
from ..named import (
    FROM_RUN,
    NamedWorkload,
    Registry,
    Table,
    check_model,
    named,
    of_table,
    same_random_numbers,
    try_model,
)
from .protocols import PROTOCOLS
from .tasks import Draw, TextData, TextTask
from .tokens import TokenData, TokenFile, read_token_file, token_data

if TYPE_CHECKING:
    from ...train import Training

_MODELS = models_for(FROM_TOKENS)
_TABLES = ("train", "test")
Files = Mapping[str, tuple[str, ...]]  # paths as the file has them, by the name of a corpus or a set


@dataclass(frozen=True)
class TextWorkload(NamedWorkload):
    """Corpora to learn from, sets to test on, and a model and a protocol by name.

    draw: `windows` of the file.
    code: the users' own files, by the table that names one.
    folder: where the experiment's file lies, absolute; relative paths start there.
    found: the files of tokens, by their path as it is in the experiment's file; None: not looked for yet.
    """

    context: int
    train: Files
    test: Files
    model: tuple[str, Table]
    protocol: tuple[str, Table]
    draw: Draw = "random"
    test_windows: int | None = None
    code: Mapping[str, OwnCode] = field(default_factory=dict)
    folder: str = "."
    found: Mapping[str, TokenFile] | None = None
    kind: str = "text"
    tables: ClassVar[tuple[str, ...]] = ("data", "model", "protocol")
    registries: ClassVar[Mapping[str, Registry]] = {"model": _MODELS, "protocol": PROTOCOLS}

    @classmethod
    def catalogue(cls) -> dict[str, Registry]:
        return {"protocols": PROTOCOLS, "models": _MODELS}

    @classmethod
    def parse(cls, tables: Table, folder: Path) -> Self:
        data, code = tables["data"], dict[str, OwnCode]()
        check_keys(data, ["context", "windows", "test_windows", *_TABLES], "[data]", ["context", *_TABLES])
        for key, kind in {"context": int, "windows": Draw, "test_windows": int}.items():
            if key in data:
                check_type(data[key], kind, f"[data] {key}")
        return cls(
            context=data["context"],
            train=_files(data["train"], "train"),
            test=_files(data["test"], "test"),
            model=named(tables["model"], "model", _MODELS, FROM_TOKENS, folder, code, fixed=False),
            protocol=named(tables["protocol"], "protocol", PROTOCOLS, FROM_RUN, folder, code),
            draw=data.get("windows", "random"),
            test_windows=data.get("test_windows"),
            code=code,
            folder=str(folder.resolve()),
        )

    def located(self, root: str | Path | None) -> Self:
        if self.found is not None:
            return self
        found = {}
        for table in _TABLES:
            for name, paths in getattr(self, table).items():
                for path in paths:
                    found[path] = read_token_file(path_of(path, Path(self.folder), root, f"[data.{table}] {name}"))
        return dataclasses.replace(self, found=found)

    def config(self) -> dict[str, Any]:
        try:
            found = self.located(None).found or {}
        except (OSError, ValueError):  # `load` says so; what is not there has no hash
            found = {}

        def shown(table: str) -> dict[str, Any]:
            return {
                name: [{"path": path, **({"sha256": found[path].sha256} if path in found else {})} for path in paths]
                for name, paths in getattr(self, table).items()
            }

        (model, of_model), (protocol, of_protocol) = self.model, self.protocol
        return {
            "data": {
                "context": self.context,
                "windows": self.draw,
                **({"test_windows": self.test_windows} if self.test_windows is not None else {}),
                **({"tokenizer": next(iter(found.values())).tokenizer} if found else {}),
                **{table: shown(table) for table in _TABLES},
            },
            "model": {"name": model, **with_defaults(self.made_by("model"), of_model, FROM_TOKENS), **self.digest("model")},
            "protocol": {
                "name": protocol,
                **with_defaults(self.made_by("protocol"), of_protocol, FROM_RUN),
                **self.digest("protocol"),
            },
        }

    def load(self, *, device: torch.device, root: str | Path | None = None) -> TextData:
        found = self.located(root).found or {}
        train, test = (
            tuple((name, tuple(found[path] for path in paths)) for name, paths in getattr(self, table).items())
            for table in _TABLES
        )
        with of_table("data"):
            return TextData(_loaded(train, test, device), self.context, self.draw, self.test_windows)

    def build(
        self,
        *,
        seed: int,
        training: Training,
        methods: Sequence[Method],
        device: torch.device,
        root: str | Path | None = None,
        tasks: int | None = None,
    ) -> tuple[Learner, Sequence[Task]]:
        data = self.load(device=device, root=root)
        at_once = math.ceil(training.batch / training.accumulate)  # which fits into memory in training
        data = dataclasses.replace(data, at_once=at_once)
        stream = self.stream(data, seed, training.batch)

        def made() -> nn.Module:
            return self._model(data.tokens.vocabulary)

        with of_table("model"):
            model = on_device(made, seed, device)
        if self.code:
            names = f"[model] name = {self.model[0]!r} and windows of tokens"
            try_model(model, stream[0], device, partial(_wrong, data.tokens.vocabulary), names)
        learner = Learner(model, training.make_optimizer(model), methods=methods, build=made, seed=seed)
        return learner, stream[:tasks]

    def figures(self, task: Task, learner: Learner) -> Collection[str]:
        return ["loss", *task.figures] if isinstance(task, TextTask) else super().figures(task, learner)

    def _model(self, vocabulary: int) -> nn.Module:
        name, options = self.model
        offered = {"vocabulary": vocabulary, "context": self.context}
        if "model" not in self.code:
            for key, least in offered.items():  # a model may have room for more than the data needs
                if options.get(key, least) < least:
                    raise OptionError(f"{key} = {options[key]:,}, and the data has {key} {least:,}: leave it out of [model]")
            return build_language_model(name, **{**offered, **options})
        with same_random_numbers(torch.initial_seed()):  # torch's was just set to it; each new network has another
            model = self.called("model", offered)
        check_model(model, f"[model] name = {name!r} returned")
        return model


def _wrong(vocabulary: int, inputs: Any, outputs: Any) -> str | None:
    """What is wrong with a model's outputs for windows, if anything."""
    expected = f"return logits {(*inputs.shape, vocabulary)}, of each token's next one"
    if not isinstance(outputs, Tensor) or outputs.shape[:-1] != inputs.shape or outputs.shape[-1] < vocabulary:
        return f"outputs are {described(outputs)}: {expected}"
    return None


def _files(given: Any, table: str) -> Files:
    """Paths by name, from a table of paths and lists of paths."""
    where = f"[data.{table}]"
    if not isinstance(given, Mapping) or not given:
        raise OptionError(f'{where} is {given!r}: name a file for each corpus, as in wikitext = "wikitext2_{table}.bin"')
    found = {}
    for name, paths in given.items():
        check_type(paths, str | list[str], f"{where} {name}")
        found[name] = (paths,) if isinstance(paths, str) else tuple(paths)
        if not found[name]:
            raise OptionError(f"{where} {name} = []: name at least one file")
    return found


Several = tuple[tuple[str, tuple[TokenFile, ...]], ...]


@lru_cache(maxsize=1)
def _loaded(train: Several, test: Several, device: torch.device) -> TokenData:
    """The tokens on the device, once for all runs that follow each other or train side by side."""
    return token_data(dict(train), dict(test), device)
