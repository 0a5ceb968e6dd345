"""Files of torch.save, also those of Stable-Baselines3 and Lightning: their tensors and where they are.

Since 2020 such a file is a zip archive with a pickle, which has everything except the numbers, and one member per storage.
Before, it was a sequence of pickles followed by the storages; many older files on model hubs have this format.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from .pickled import Call, Named, Refused, StorageId, read_pickle
from .stored import CheckpointError, Stored, possible
from .zipped import Member, Stretch, members

_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,
}
# Bytes per entry in storages of quantised tensors, needed to find the next storage.
_QUANTISED = {"QInt8Storage": 1, "QUInt8Storage": 1, "QInt32Storage": 4}
_LEGACY_MAGIC, _LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001
_LATEST = 10  # archive version that torch reads
_DEEPEST = 64  # nested containers
_POLICY = "policy.pth"  # the weights in the archive of a Stable-Baselines3 agent
# Containers whose tensors are not weights but other state of trainers. Whole words, because networks have names like
# momentum_encoder and config_net.
_BESIDE = re.compile(
    r"(^|[^a-z])(optim|optimizers?|schedulers?|callbacks|loops|rng_states?|hyper_?parameters|hparams|scaler"
    r"|exp_avg|exp_avg_sq|momentum_buffer)([^a-z]|$)|^(args|config|cfg)$",
    re.IGNORECASE,
)
_MOMENT = re.compile(r"(max_)?exp_avg(_sq)?|momentum_buffer")  # tensors of an optimiser's state in other layouts
_AVERAGE = {"ema", "swa", "average", "averaged", "averages", "shadow", "teacher"}


@dataclass
class Contents:
    """The contents of one file."""

    format: str
    tensors: dict[str, Stored] = field(default_factory=dict)
    beside: list[str] = field(default_factory=list)  # descriptions of contents that are not weights
    checksums: list[Member] = field(default_factory=list)  # inner archives first; empty if the archive has no checksums


class _Tensor(NamedTuple):
    storage: StorageId
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def is_average(name: str) -> bool:
    """Whether a word of the name, as in "model_ema.0.weight", means that it is a mean of weights over training."""
    return not _AVERAGE.isdisjoint(re.split(r"[._]", name.lower()))


def read_archive(path: Path) -> Contents:
    """A zip archive of torch.save, or of Stable-Baselines3, which has one of those inside."""
    with open(path, "rb") as file:
        size = path.stat().st_size
        outer = members(file, 0, size, str(path))
        if _POLICY not in outer:
            contents = _read_saved(path, file, outer, str(path))
            contents.checksums = _with_checksums(outer)
            return contents
        policy = outer[_POLICY]
        what = f"{path}, {_POLICY}"
        if not policy.plain:
            raise CheckpointError(f"{what} is compressed, which is not supported: pack the archive again, as in zip -0")
        inner = members(file, policy.offset, policy.size, what)
        contents = _read_saved(path, file, inner, what)
        contents.format = "Stable-Baselines3"
        contents.checksums = [*_with_checksums(inner), *_with_checksums(outer)]
        contents.beside += [f"{name} (copied unchanged)" for name in outer if name != _POLICY]
        return contents


def _with_checksums(held: dict[str, Member]) -> list[Member]:
    """Members with a checksum to verify: none if all are 0, as written with `torch.serialization.set_crc32_options(False)`;
    compressed members are left out, because they would have to be unpacked."""
    return [member for member in held.values() if member.plain] if any(member.crc for member in held.values()) else []


def _read_saved(path: Path, file: BinaryIO, held: dict[str, Member], what: str) -> Contents:
    """The contents of a torch.save archive, from its members."""
    pickles = [name for name in held if name == "data.pkl" or name.endswith("/data.pkl")]
    if any(name.endswith("constants.pkl") for name in held):
        raise CheckpointError(
            f"{what}: it is a TorchScript program, not a file of weights: save its weights alone, as in "
            "torch.save(torch.jit.load(path).state_dict(), new_path)"
        )
    if not pickles and any(name.endswith(".npy") for name in held):
        raise CheckpointError(
            f"{what}: it is an archive of NumPy arrays, which is not supported: convert it with "
            "torch.save({name.replace('/', '.'): torch.from_numpy(array) for name, array in numpy.load(path).items()}, "
            "new_path), with the names and shapes of PyTorch: '0.weight' is (outputs, inputs)"
        )
    if len(pickles) != 1:
        raise CheckpointError(
            f"{what}: a zip archive with {len(pickles)} members data.pkl, where torch.save makes one, and without "
            f"{_POLICY}: pass a file of torch.save, Lightning or Stable-Baselines3"
        )
    prefix = pickles[0].removesuffix("data.pkl")
    outside = "data.pkl" if not prefix else next((name for name in held if not name.startswith(prefix)), None)
    if outside is not None:
        raise CheckpointError(
            f"{what}: its member {outside} is not in one folder with the others, as torch.save writes them"
        )
    order = held.get(f"{prefix}byteorder")
    if order is not None and _content(file, order, what) != b"little":
        raise CheckpointError(f"{what}: its numbers are big-endian: save it again on a little-endian machine")
    _check_records(file, {name.removeprefix(prefix): member for name, member in held.items()}, what)

    def locate(storage: StorageId, dtype: torch.dtype) -> int:
        member = held.get(f"{prefix}data/{storage.key}")
        if member is None or not member.plain:
            state = "is compressed" if member is not None else "is missing"
            raise CheckpointError(f"{what}: the member data/{storage.key}, which has a tensor, {state}")
        if member.size != storage.numel * dtype.itemsize:
            raise CheckpointError(
                f"{what}: data/{storage.key} has {member.size:,} bytes, but needs {storage.numel:,} entries of {dtype}: "
                "it is damaged"
            )
        return member.offset

    content = read_pickle(_stream(file, held[pickles[0]], what), what)
    return _contents(path, content, locate, what)


def _check_records(file: BinaryIO, held: dict[str, Member], what: str) -> None:
    """Raise if torch would refuse the archive's records, which it reads before the pickle."""
    name = ".data/version" if ".data/version" in held else "version"
    try:
        version = int(_content(file, held[name], what)) if name in held else 0
        for name, meant in ((".storage_alignment", int), (".data/serialization_id", bytes.decode)):
            if name in held:
                meant(_content(file, held[name], what))
    except ValueError as problem:
        if isinstance(problem, CheckpointError):
            raise
        raise CheckpointError(f"{what}: its member {name} cannot be read ({problem}): it is damaged") from problem
    if not 1 <= version <= _LATEST:
        raise CheckpointError(
            f"{what}: its version is {version or 'missing'}, but torch reads 1 to {_LATEST}: it is damaged"
        )


def read_legacy(path: Path) -> Contents:
    """A file of torch.save from before 2020, when it did not make archives."""
    what, size = str(path), path.stat().st_size
    with open(path, "rb") as raw:
        file = io.BufferedReader(Stretch(raw, 0, size))
        try:
            magic = read_pickle(file, what)  # pyright: ignore[reportArgumentType]
        except Refused:  # that of torch.save is a number
            magic = None
        if magic != _LEGACY_MAGIC:
            raise CheckpointError(
                f"{what}: a pickle, but not of torch.save, such as scikit-learn or pickle.dump write. Loading it would run "
                "its code, so it was not loaded. For a PyTorch model, write torch.save(model.state_dict(), path); for "
                "another model, save its arrays, as in torch.save({'0.weight': torch.from_numpy(model.coefs_[0].T)}, path)"
            )
        version, system, content, keys = (
            read_pickle(file, what, legacy=True)  # pyright: ignore[reportArgumentType]
            for _ in range(4)
        )
        if version != _LEGACY_VERSION:
            raise CheckpointError(f"{what}: its version is {version!r}, but torch reads {_LEGACY_VERSION}: it is damaged")
        if not isinstance(system, dict) or system.get("little_endian") is not True or not isinstance(keys, list):
            raise CheckpointError(f"{what}: its numbers are big-endian, or it is damaged: save it again")
        kinds: dict[str, StorageId] = {}
        for storage in _storages(content):
            if kinds.setdefault(storage.key, storage)[:3] != storage[:3]:
                raise CheckpointError(f"{what}: its pickle contradicts itself about storage {storage.key}: it is damaged")
        starts: dict[str, int] = {}
        at = file.tell()
        for key in keys:
            file.seek(at)
            count = int.from_bytes(file.read(8), "little", signed=True)
            if not isinstance(key, str) or key not in kinds or count != kinds[key].numel or kinds[key].view_of is not None:
                named = key if isinstance(key, str) else f"under a {type(key).__name__}"
                raise CheckpointError(f"{what}: its storage {named} does not match the pickle: load it and save it again")
            starts[key] = at + 8
            kind = kinds[key].kind
            at += 8 + count * (_QUANTISED.get(kind.removeprefix("torch.")) or _dtype(kind, what).itemsize)
            if at > size:
                raise CheckpointError(f"{what}: it ends within storage {key}: it is truncated. Download it again")

    def locate(storage: StorageId, dtype: torch.dtype) -> int:
        if storage.key not in starts:
            raise CheckpointError(f"{what}: the storage {storage.key}, which has a tensor, is missing")
        return starts[storage.key]

    return _contents(path, content, locate, what)


def _contents(path: Path, content: Any, locate: Callable[[StorageId, torch.dtype], int], what: str) -> Contents:
    """The tensors of a pickle's content, by name. If there are several state dicts, their names are prefixes."""
    contents = Contents("Lightning" if isinstance(content, dict) and "pytorch-lightning_version" in content else "PyTorch")
    dicts: dict[tuple[str, ...], dict[str, _Tensor]] = {}
    for place, name, tensor in _walk(content, what, contents.beside):
        held = dicts.setdefault(place, {})
        if name in held:
            raise CheckpointError(f"{what}: two of its tensors are called {'.'.join((*place, name))}")
        held[name] = tensor
    main = [
        place
        for place, held in dicts.items()
        if not is_average(".".join(place))
        and any(len(tensor.shape) > 1 and tensor.dtype.is_floating_point for tensor in held.values())
    ]
    others = {".".join((*place, own)) for place, held in dicts.items() if [place] != main for own in held}
    short = len(main) == 1 and not others & dicts[main[0]].keys()
    for place, held in dicts.items():
        prefix = () if short and [place] == main else place
        for own, tensor in held.items():
            name = ".".join((*prefix, own))
            if name in contents.tensors:
                raise CheckpointError(f"{what}: two of its tensors are called {name}")
            stored = _stored(path, name, tensor, locate, what)
            if stored.overlaps:
                contents.beside.append(f"{name} (some of its entries share memory, as in an expanded tensor)")
                continue
            contents.tensors[name] = stored
    return contents


def _walk(content: Any, what: str, beside: list[str]) -> Iterator[tuple[tuple[str, ...], str, _Tensor]]:
    """All tensors in dicts as (path of the dict, key, tensor), in the file's order.

    Every container is visited once, although a pickle may reference it in many places or in itself.
    """
    waiting: list[tuple[tuple[str, ...], Any]] = [((), content)]
    seen: set[int] = set()
    while waiting:
        place, value = waiting.pop()
        if id(value) in seen or not isinstance(value, dict | list | tuple):
            continue
        if len(place) > _DEEPEST:
            raise CheckpointError(f"{what}: it has more than {_DEEPEST} nested containers, which no file of weights has")
        seen.add(id(value))
        if isinstance(value, dict) and {"state", "param_groups"} <= value.keys():
            beside.append(f"{'.'.join(place) or 'the file'} (an optimiser's state, which belongs to the old weights)")
            continue
        inner: list[tuple[tuple[str, ...], Any]] = []
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            name = str(key) if isinstance(key, str | int | float) else type(key).__name__
            if isinstance(item, Call) and _MOMENT.fullmatch(name):
                beside.append(f"{'.'.join((*place, name))} (part of an optimiser's state)")
            elif isinstance(item, Call):
                tensor = _tensor(item, what)
                if tensor is not None and isinstance(key, str):
                    yield place, name, tensor
                elif "tensor" in item.function and isinstance(key, str):
                    beside.append(f"{'.'.join((*place, name))} (made by {item.function}: not a plain tensor)")
            elif isinstance(item, dict | list | tuple) and item:
                if isinstance(key, str) and _BESIDE.search(name):
                    beside.append(f"{'.'.join((*place, name))} (copied unchanged)")
                else:
                    inner.append(((*place, name), item))
        waiting += reversed(inner)


def _tensor(call: Call, what: str) -> _Tensor | None:
    """The tensor that a call would make; None if it is not a plain tensor."""
    function, arguments = call.function, call.arguments
    for _ in range(8):  # at most a parameter around a class around a tensor
        match function, arguments:
            case "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state", (Call() as inner, *_):
                function, arguments = inner.function, inner.arguments
            case "torch._tensor._rebuild_from_type_v2", (Named(path=made), Named(path=kind), tuple() as given, *_):
                if kind not in ("torch.nn.parameter.Parameter", "torch.Tensor"):
                    return None
                function, arguments = made, given
            case _:
                break
    shape = arguments[2] if len(arguments) > 2 else None
    shape = shape.arguments[0] if isinstance(shape, Call) and shape.function == "torch.Size" and shape.arguments else shape
    match function, arguments:
        case ("torch._utils._rebuild_tensor_v2", (_, _, _, _, _, _, dict() as flags, *_)) | (
            "torch._utils._rebuild_tensor_v3",
            (_, _, _, _, _, _, _, dict() as flags, *_),
        ) if flags:
            return None  # its values are the conjugates or negatives of the stored ones
        case "torch._utils._rebuild_tensor_v3", (StorageId() as storage, offset, _, stride, _, _, Named(path=path), *_):
            dtype = getattr(torch, path.removeprefix("torch."), None)
        case "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2", (
            StorageId() as storage,
            offset,
            _,
            stride,
            *_,
        ):
            dtype = _dtype(storage.kind, what)
        case _:
            return None
    numbers = [offset, *(shape if isinstance(shape, tuple) else [None]), *(stride if isinstance(stride, tuple) else [None])]
    whole = all(type(number) is int and 0 <= number < 2**63 for number in numbers)
    gradient, hooks = (*arguments[4:6], False, None)[:2]
    trained = isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
    if (
        not whole
        or not isinstance(gradient, bool)
        or not isinstance(hooks, dict | None)
        or (gradient and not trained)
        or not isinstance(shape, tuple)
        or not isinstance(dtype, torch.dtype)
        or len(shape) != len(stride)
        or not possible(shape)
    ):
        raise CheckpointError(f"{what}: a tensor in its pickle has an invalid offset, shape, stride or flag: it is damaged")
    return _Tensor(storage, offset, shape, stride, dtype)


def _stored(path: Path, name: str, tensor: _Tensor, locate: Callable[[StorageId, torch.dtype], int], what: str) -> Stored:
    kind = _dtype(tensor.storage.kind, what)
    start = locate(tensor.storage, kind)
    begin = tensor.offset * tensor.dtype.itemsize if 0 not in tensor.shape else 0  # an empty slice may start anywhere
    stored = Stored(name, path, start + begin, tensor.dtype, tensor.shape, tensor.stride)
    if stored.offset + stored.span > start + tensor.storage.numel * kind.itemsize:
        raise CheckpointError(
            f"{what}: {name} {tensor.shape} with strides {tensor.stride} reaches beyond its storage: it is damaged"
        )
    return stored


def _dtype(kind: str, what: str) -> torch.dtype:
    dtype = _DTYPES.get(kind.rpartition(".")[2])
    if dtype is None:
        raise CheckpointError(f"{what}: it has a {kind}, which is not a known number type: load it and save it again")
    return dtype


def _storages(content: Any) -> Iterator[StorageId]:
    """Every storage that the content refers to."""
    waiting, seen = [content], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, StorageId):
            yield value
        elif isinstance(value, dict | list | tuple | Call) and id(value) not in seen:
            seen.add(id(value))
            inner = value.arguments if isinstance(value, Call) else [*value.values()] if isinstance(value, dict) else value
            waiting += inner


def _stream(file: BinaryIO, member: Member, what: str) -> Any:
    if not member.plain:
        raise CheckpointError(f"{what}: its member {member.name} is compressed, which torch.save does not do")
    return io.BufferedReader(Stretch(file, member.offset, member.size))


def _content(file: BinaryIO, member: Member, what: str) -> bytes:
    return _stream(file, member, what).read(64)
