"""Files of torch.save, Lightning and Stable-Baselines3: read as torch reads them, and changed nowhere but in the weights."""

import io
import os
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from replastic.checkpoint import CheckpointError, fire, inspect, open_checkpoint
from replastic.methods.fire import fire_
from tests.test_checkpoint_safetensors import FLOATS, check_only_weights_changed, same, small_net, values

FORMATS = {"zip": True, "legacy": False}


def save(content: Any, path: Path, zipped: bool = True) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


def load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def check_archive(content: bytes) -> None:
    """That every member is what its checksum says, in archives inside too."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        for name in archive.namelist():
            if name.endswith(".pth"):
                check_archive(archive.read(name))


def equal(one: Any, other: Any) -> bool:
    """Of nested containers, tensors bit for bit and strides too."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and same(one.detach(), other.detach()) and one.stride() == other.stride()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize("zipped", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("suffix", [".pt", ".bin"])
def test_a_fired_file_is_the_model_fired_and_differs_nowhere_else(
    tmp_path: Path, zipped: bool, dtype: torch.dtype, suffix: str
) -> None:
    model = small_net(dtype)
    more = {"ids": torch.arange(12).reshape(3, 4), "empty": torch.zeros(0, 4), "step": torch.tensor(3.0)}
    path = save({**model.state_dict(), **more}, tmp_path / f"a{suffix}", zipped)
    out = tmp_path / f"b{suffix}"
    check_only_weights_changed(fire(path, out))
    fire_(model)
    assert equal(load(out), {**model.state_dict(), **more})
    if zipped:
        check_archive(out.read_bytes())


@pytest.mark.parametrize("zipped", FORMATS.values(), ids=FORMATS)
def test_a_training_state_keeps_its_optimiser_and_all_else(tmp_path: Path, zipped: bool) -> None:
    model = small_net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, 6)).sum().backward()
    optimizer.step()
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "best": [0.5, None, True]}
    path = save(content, tmp_path / "a.pth", zipped)
    fired = fire(path, tmp_path / "b.pth")
    check_only_weights_changed(fired)
    assert set(fired.checkpoint.tensors) == set(model.state_dict())
    assert any("optimizer" in entry for entry in fired.checkpoint.beside)
    fire_(model)
    assert equal(load(tmp_path / "b.pth"), {**content, "model": model.state_dict()})


def test_averages_of_weights_stay_unless_asked_for(tmp_path: Path) -> None:
    model, average = small_net(), small_net()
    content = {"state_dict": model.state_dict(), "ema": average.state_dict()}
    path = save(content, tmp_path / "a.pt")
    fired = fire(path, tmp_path / "b.pt")
    check_only_weights_changed(fired)
    assert set(fired.checkpoint.tensors) == {*model.state_dict(), *(f"ema.{name}" for name in average.state_dict())}
    fire_(model)
    assert equal(load(tmp_path / "b.pt"), {**content, "state_dict": model.state_dict()})
    fire(path, tmp_path / "c.pt", where=["ema"])
    fire_(average)
    assert equal(load(tmp_path / "c.pt"), {**load(path), "ema": average.state_dict()})


BESIDE = {
    "optim": {"exp_avg": {}},
    "optimizer": {},
    "optimizer_state_dict": {},
    "actor_optimizers": {},
    "optim_state": {"exp_avg": {}},
    "lr_schedulers": {},
    "callbacks": {},
    "loops": {},
    "rng_states": {},
    "hyper_parameters": {},
    "hparams": {},
    "grad_scaler": {},
    "exp_avg": {},
    "exp_avg_sq": {},
    "momentum_buffer": {},
    "args": {},
    "config": {},
    "cfg": {},
}


@pytest.mark.parametrize("key", BESIDE)
@pytest.mark.parametrize("deep", [False, True])
def test_what_trainers_save_beside_weights_is_none_at_any_depth(tmp_path: Path, key: str, deep: bool) -> None:
    content = {"net": small_net().state_dict(), key: {**BESIDE[key], **small_net().state_dict()}}
    path = save({"agent": content} if deep else content, tmp_path / "a.pt")
    found = open_checkpoint(path)
    assert {*found.tensors} == {*content["net"]}
    assert any(entry.startswith(f"agent.{key} (" if deep else f"{key} (") for entry in found.beside)


@pytest.mark.parametrize("key", ["momentum_encoder", "hypernet", "config_net", "args_encoder", "gradnet", "callback_net"])
def test_networks_are_weights_though_their_names_are_like_those_of_other_things(tmp_path: Path, key: str) -> None:
    path = save({key: small_net().state_dict(), "b": small_net().state_dict()}, tmp_path / "a.pt")
    assert f"{key}.0.weight" in open_checkpoint(path).tensors


def test_moments_are_no_weights_wherever_they_are_kept(tmp_path: Path) -> None:
    moments = {"exp_avg": torch.randn(4, 6), "exp_avg_sq": torch.rand(4, 6), "momentum_buffer": torch.randn(4, 6)}
    path = save({"net": {"a.weight": torch.randn(4, 6)}, "state": {"a.weight": moments, 0: moments}}, tmp_path / "a.pt")
    assert {*open_checkpoint(path).tensors} == {"a.weight"}


@pytest.mark.parametrize(
    "prefix", ["ema_model.", "model_ema.", "net_ema.", "swa_model.module.", "teacher.", "outer.EMA.", "averaged_model."]
)
@pytest.mark.parametrize("kind", ["Lightning", "zip", "legacy", "safetensors"])
def test_averages_are_known_by_their_names_in_one_state_dict_too(tmp_path: Path, prefix: str, kind: str) -> None:
    model, average = small_net(), small_net()
    content = {
        **{f"net.{name}": held for name, held in model.state_dict().items()},
        **{f"{prefix}{name}": held for name, held in average.state_dict().items()},
    }
    path, out = tmp_path / f"a.{kind}", tmp_path / f"b.{kind}"
    if kind == "safetensors":
        save_file(content, path)
    else:
        held = {"state_dict": content, "pytorch-lightning_version": "2.0"} if kind == "Lightning" else content
        save(held, path, kind != "legacy")
    fired = fire(path, out)
    check_only_weights_changed(fired)
    assert {*fired.checkpoint.averages} == {name for name in content if name.startswith(prefix)}
    fire_(model)
    after = values(out)
    assert all(same(after[f"net.{name}"], held) for name, held in model.state_dict().items())
    assert all(same(after[f"{prefix}{name}"], held) for name, held in average.state_dict().items())


def test_averages_that_were_saved_alone_are_the_weights(tmp_path: Path) -> None:
    model = small_net()
    content = {f"ema_model.{name}": held for name, held in model.state_dict().items()}
    for more in ({}, {"step": torch.tensor(3), "initted": torch.tensor([True])}):
        path = save({**content, **more}, tmp_path / "a.pt")
        assert open_checkpoint(path).averages == ()
    assert open_checkpoint(save({"ema": model.state_dict()}, tmp_path / "c.pt")).averages == ()
    check_only_weights_changed(fire(path, tmp_path / "b.pt"))
    fire_(model)
    assert equal(load(tmp_path / "b.pt"), {**load(path), **{f"ema_model.{k}": v for k, v in model.state_dict().items()}})


def test_words_within_words_make_no_average(tmp_path: Path) -> None:
    names = ["schema.weight", "swag.weight", "teachers_pet.weight", "a.weight"]
    path = save({name: torch.randn(4, 6) for name in names}, tmp_path / "a.pt")
    assert open_checkpoint(path).averages == ()


@pytest.mark.slow
@pytest.mark.parametrize("zipped", FORMATS.values(), ids=FORMATS)
def test_a_compiled_model_has_the_names_of_the_plain_one(tmp_path: Path, zipped: bool) -> None:
    model = small_net()
    inner: Any = torch.compile(model)  # compiles nothing before it is called
    compiled = nn.ModuleDict({"net": inner})
    content = {"model": compiled.state_dict(), "iter_num": 3}
    assert "net._orig_mod.0.weight" in content["model"]
    path = save(content, tmp_path / "a.pt", zipped)
    fired = fire(path, tmp_path / "b.pt")
    check_only_weights_changed(fired)
    found = fired.checkpoint.tensors
    assert {*found} == {f"net.{name}" for name in model.state_dict()} == {stored.name for stored in found.values()}
    fire_(model)
    assert equal(load(tmp_path / "b.pt"), {**content, "model": compiled.state_dict()})


def test_a_compiled_and_a_plain_tensor_of_one_name_are_told_to_clash(tmp_path: Path) -> None:
    path = save({"a.weight": torch.ones(2, 2), "_orig_mod.a.weight": torch.ones(2, 2)}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"a\.weight is both in a\.pt and in a\.pt"):
        open_checkpoint(path)


@pytest.mark.filterwarnings("ignore")  # of torch, about quantised tensors
@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32], ids=str)
def test_quantised_tensors_of_a_legacy_file_are_set_aside(tmp_path: Path, dtype: torch.dtype) -> None:
    quantised = torch.quantize_per_tensor(torch.randn(3, 5), 0.1, 0, dtype)
    plain = {"a.weight": torch.randn(4, 6), "c.weight": torch.randn(4, 6), "d.weight": torch.randn(4, 6)}
    path = save({"a.weight": plain["a.weight"], "b": quantised, **plain}, tmp_path / "a.pt", zipped=False)
    found = values(path)
    assert equal(found, plain)
    assert any(entry.startswith("b (") for entry in open_checkpoint(path).beside)


@pytest.mark.parametrize("zipped", FORMATS.values(), ids=FORMATS)
def test_whole_parameters_may_be_stored(tmp_path: Path, zipped: bool) -> None:
    model = small_net()
    content: dict[str, Tensor] = OrderedDict(model.named_parameters())
    content["0.bias"] = content["0.bias"].detach().requires_grad_(True)
    path = save(content, tmp_path / "a.pt", zipped)
    check_only_weights_changed(fire(path, tmp_path / "b.pt"))
    fire_(model)
    found = load(tmp_path / "b.pt")
    assert all(same(found[name].detach(), held.detach()) for name, held in model.named_parameters())
    assert isinstance(found["0.weight"], nn.Parameter)
    assert found["0.bias"].requires_grad


def layouts() -> dict[str, Tensor]:
    """Of one (4, 6) matrix each, among numbers of others."""
    around = torch.randn(20, 30)
    return {
        "transposed": torch.randn(6, 4).T,
        "strided": torch.randn(8, 12)[::2, ::2],
        "sliced": around[3:7, 5:11],
        "offset": torch.randn(100)[7:31].view(4, 6),
        "sliced and transposed": around[10:16, 20:24].T,
    }


@pytest.mark.parametrize("zipped", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("layout", layouts())
def test_a_view_is_fired_and_what_lies_around_it_stays(tmp_path: Path, layout: str, zipped: bool) -> None:
    weight = layouts()[layout]
    path = save({"a.weight": weight, "a.bias": torch.zeros(4)}, tmp_path / "a.pt", zipped)
    check_only_weights_changed(fire(path, tmp_path / "b.pt", where=["a"]))
    found = load(tmp_path / "b.pt")
    assert found["a.weight"].stride() == weight.stride()
    assert found["a.weight"].storage_offset() == weight.storage_offset()
    before, after = (torch.empty(0).set_(held.untyped_storage()).clone() for held in (weight, found["a.weight"]))
    for whole in (before, after):
        whole.as_strided(weight.shape, weight.stride(), weight.storage_offset()).zero_()
    assert same(before, after)
    layer = nn.Linear(6, 4)
    layer.load_state_dict({"weight": weight, "bias": torch.zeros(4)})
    fire_(layer)
    assert same(found["a.weight"].contiguous(), layer.weight.detach())


def test_parts_of_one_storage_are_fired_each(tmp_path: Path) -> None:
    fused = torch.randn(8, 6)
    names = {"a.weight": fused[:4], "b.weight": fused[4:], "a.bias": torch.zeros(4), "b.bias": torch.zeros(4)}
    path = save(names, tmp_path / "a.pt")
    check_only_weights_changed(fire(path, tmp_path / "b.pt"))
    found = load(tmp_path / "b.pt")
    for name in ("a.weight", "b.weight"):
        layer = nn.Linear(6, 4)
        layer.load_state_dict({"weight": names[name], "bias": torch.zeros(4)})
        fire_(layer)
        assert same(found[name], layer.weight.detach())


@pytest.mark.parametrize("zipped", FORMATS.values(), ids=FORMATS)
def test_a_tied_weight_is_fired_once_and_both_names_see_it(tmp_path: Path, zipped: bool) -> None:
    weight = torch.randn(4, 6)
    content = {"a.weight": weight, "a.bias": torch.zeros(4), "b.weight": weight.view(4, 6), "b.bias": torch.ones(4)}
    path = save(content, tmp_path / "a.pt", zipped)
    fired = fire(path, tmp_path / "b.pt")
    check_only_weights_changed(fired)
    assert len(fired.selection.chosen) == 1
    layer = nn.Linear(6, 4)
    layer.load_state_dict({"weight": weight, "bias": torch.zeros(4)})
    fire_(layer)
    found = load(tmp_path / "b.pt")
    assert same(found["a.weight"], layer.weight.detach())
    assert found["a.weight"].data_ptr() == found["b.weight"].data_ptr()


def test_expanded_tensors_are_set_aside(tmp_path: Path) -> None:
    content = {"a.weight": torch.randn(1, 6).expand(4, 6), "b.weight": torch.randn(4, 6), "b.bias": torch.zeros(4)}
    content["windows"] = torch.arange(9.0).unfold(0, 4, 1)
    path = save(content, tmp_path / "a.pt")
    found = open_checkpoint(path)
    assert set(found.tensors) == {"b.weight", "b.bias"}
    assert all(any(entry.startswith(name) for entry in found.beside) for name in ("a.weight", "windows"))
    check_only_weights_changed(fire(path, tmp_path / "b.pt"))


def test_what_is_no_plain_tensor_is_set_aside(tmp_path: Path) -> None:
    content = {
        "a.weight": torch.randn(4, 6),
        "a.bias": torch.zeros(4),
        "sparse": torch.eye(3).to_sparse(),
        "negative": torch.complex(torch.ones(3, 3), torch.ones(3, 3)).conj().imag,
        "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
    }
    path = save(content, tmp_path / "a.pt")
    found = open_checkpoint(path)
    assert set(found.tensors) == {"a.weight", "a.bias"}
    for name in ("sparse", "negative", "conjugate"):
        assert any(entry.startswith(name) for entry in found.beside), name
    check_only_weights_changed(fire(path, tmp_path / "b.pt"))


@pytest.mark.parametrize("zipped", FORMATS.values(), ids=FORMATS)
def test_every_dtype_is_read_as_torch_reads_it(tmp_path: Path, zipped: bool) -> None:
    kinds = [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64, torch.complex64, torch.int8, torch.bool]
    kinds = kinds if zipped else kinds[4:]  # torch itself does not load the newer ones from legacy files
    held = {str(kind): torch.randint(0, 2, (64,), dtype=torch.uint8).view(kind) for kind in [*kinds, *FLOATS]}
    held = {name.removeprefix("torch."): tensor for name, tensor in held.items()}
    path = save(held, tmp_path / "a.pt", zipped)
    found = values(path)
    assert found.keys() == held.keys()
    assert all(same(found[name], tensor) for name, tensor in load(path).items())


def test_names_stay_apart_where_two_containers_would_give_the_same(tmp_path: Path) -> None:
    path = save({"model": {"step": torch.randn(2, 2)}, "step": torch.zeros(3)}, tmp_path / "a.pt")
    assert {name: stored.shape for name, stored in open_checkpoint(path).tensors.items()} == {
        "model.step": (2, 2),
        "step": (3,),
    }
    for clash in (
        {"a": {"b.c": torch.ones(2)}, "a.b": {"c": torch.ones(2)}},
        {1: {"a": torch.ones(2)}, "1": {"a": torch.ones(3)}},
    ):
        with pytest.raises(CheckpointError, match="two of its tensors are called"):
            open_checkpoint(save(clash, tmp_path / "b.pt"))


@pytest.mark.parametrize("zipped", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(
    "content", [3, "text", None, [], {}, torch.ones(3), [torch.ones(3)], {1: torch.ones(2)}, {2, 3}], ids=str
)
def test_a_file_without_named_tensors_says_so(tmp_path: Path, content: Any, zipped: bool) -> None:
    with pytest.raises(CheckpointError, match=r"a\.pt has no tensor"):
        open_checkpoint(save(content, tmp_path / "a.pt", zipped))


def test_names_need_not_be_ascii(tmp_path: Path) -> None:
    model = nn.ModuleDict({"größe": nn.Linear(3, 4), "層": nn.Linear(4, 3)})
    path = save(model.state_dict(), tmp_path / "a.pt")
    check_only_weights_changed(fire(path, tmp_path / "b.pt"))
    fire_(model)
    assert equal(load(tmp_path / "b.pt"), dict(model.state_dict()))


@pytest.mark.filterwarnings("ignore")  # Lightning advises on loaders' workers and loggers
def test_a_checkpoint_of_lightning_goes_back_into_its_trainer(tmp_path: Path) -> None:
    import lightning.pytorch as lightning

    class Net(lightning.LightningModule):
        def __init__(self, width: int = 6) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = small_net()

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    def trainer(epochs: int) -> Any:
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False, "logger": False}
        return lightning.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, default_root_dir=tmp_path, **quiet)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 6)), batch_size=4)
    first = trainer(1)
    first.fit(Net(), data)
    path, out = tmp_path / "a.ckpt", tmp_path / "b.ckpt"
    first.save_checkpoint(path)
    fired = fire(path, out)
    assert fired.checkpoint.format == "Lightning"
    check_only_weights_changed(fired)
    check_archive(out.read_bytes())
    model = Net.load_from_checkpoint(path)
    fire_(model)
    again = Net.load_from_checkpoint(out)
    assert equal(dict(again.state_dict()), dict(model.state_dict()))
    before, after = load(path), load(out)
    assert all(equal(before[key], after[key]) for key in before if key != "state_dict")
    second = trainer(2)
    second.fit(Net(), data, ckpt_path=out)
    assert second.global_step == 4


@pytest.mark.filterwarnings("ignore")  # of gymnasium and Stable-Baselines3
@pytest.mark.parametrize("kind", ["DQN", "PPO"])
def test_an_agent_of_stable_baselines_loads_as_it_did(tmp_path: Path, kind: str) -> None:
    import stable_baselines3 as library

    options: dict[str, Any] = (
        {"learning_starts": 8, "buffer_size": 50} if kind == "DQN" else {"n_steps": 16, "batch_size": 8}
    )
    agent = getattr(library, kind)("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8, 8]}, device="cpu", **options)
    agent.learn(16)
    path, out = tmp_path / "a.zip", tmp_path / "b.zip"
    agent.save(path)
    fired = fire(path, out)
    assert fired.checkpoint.format == "Stable-Baselines3"
    check_only_weights_changed(fired)
    check_archive(out.read_bytes())
    again = type(agent).load(out, device="cpu")
    before, after = agent.policy.state_dict(), again.policy.state_dict()
    chosen = {weight.name for weight in fired.selection.chosen}
    assert equal(
        {k: v for k, v in before.items() if k not in chosen and k not in fired.copied},
        {k: v for k, v in after.items() if k not in chosen and k not in fired.copied},
    )
    assert equal(agent.policy.optimizer.state_dict(), again.policy.optimizer.state_dict())
    if kind == "DQN":
        assert all(same(after[f"q_net_target.{name}"], held) for name, held in again.policy.q_net.state_dict().items())
        fire_(agent.policy.q_net)
        assert equal(dict(agent.policy.q_net.state_dict()), dict(again.policy.q_net.state_dict()))
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out) as new:
        assert old.namelist() == new.namelist()
        assert all(old.read(name) == new.read(name) for name in old.namelist() if name != "policy.pth")


KINDS = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float64, torch.complex64]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Views of all sorts, that do not overlap with themselves."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    whole = torch.randint(0, 100, shape).to(draw(st.sampled_from(KINDS)))
    if shape and draw(st.booleans()):
        axis = draw(st.integers(0, len(shape) - 1))
        whole = whole.movedim(axis, 0)[draw(st.integers(0, 1)) :: draw(st.integers(1, 2))]
    if draw(st.booleans()):
        whole = whole.mT if whole.ndim > 1 else whole
    return nn.Parameter(whole) if whole.is_floating_point() and draw(st.booleans()) else whole


names = st.text("abcé_0", min_size=1, max_size=4)
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(min_size=1, max_size=5)
)
keys = names | st.integers() | st.tuples(st.integers(), names)
contents = st.recursive(
    tensors() | plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(names, inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=15,
)


def named(content: Any, place: tuple[str, ...] = ()) -> list[tuple[str, Tensor]]:
    """Tensors that are values of dicts under a str, by full name."""
    found: list[tuple[str, Tensor]] = []
    pairs = content.items() if isinstance(content, dict) else enumerate(content)
    for key, item in pairs:
        if isinstance(item, Tensor) and isinstance(key, str):
            found.append((".".join((*place, key)), item))
        elif isinstance(item, dict | list | tuple):
            found += named(item, (*place, str(key) if isinstance(key, str | int) else "tuple"))
    return found


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(content=st.dictionaries(names, contents, min_size=1, max_size=5), zipped=st.booleans())
def test_what_torch_loads_is_opened_with_the_same_values(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any], zipped: bool
) -> None:
    path = save(content, tmp_path_factory.mktemp("a") / "a.pt", zipped)
    loaded = named(load(path))
    if len({name for name, _ in loaded}) < len(loaded) or not loaded:
        with pytest.raises(CheckpointError, match=r"two of its tensors|no tensor"):
            open_checkpoint(path)
        return
    found = values(path)
    # One state dict among others has its own names: those are the ends of the full ones.
    assert len(found) == len(loaded)
    for full, tensor in loaded:
        name = full if full in found else next(short for short in found if full.endswith(f".{short}"))
        assert same(found[name], tensor.detach()), name
        assert open_checkpoint(path).tensors[name].stride == tensor.stride() or tensor.numel() < 2


class Own:
    """A class that is nobody's but the user's."""


@pytest.mark.parametrize("zipped", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"a": Own()}, f"{__name__}.Own"),
        ({"a": Path("b")}, "pathlib."),
        ({"a": sys.intern}, "sys.intern"),
        ({"a": nn.Linear(2, 2)}, "torch.nn.modules.linear.Linear"),
        ({"a": range(3)}, "range"),
        ({"a": frozenset([1])}, "frozenset"),
        ({"a": slice(1)}, "slice"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value["a"]).__name__,
)
def test_what_torch_refuses_is_refused_and_named(tmp_path: Path, content: Any, named: str, zipped: bool) -> None:
    path = save({**content, "b.weight": torch.ones(2, 2)}, tmp_path / "a.pt", zipped)
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        load(path)
    with pytest.raises(CheckpointError, match=r"a\.pt: it contains .*weights_only=True\) refuses") as raised:
        inspect(path)
    assert named in str(raised.value)


def test_what_the_user_has_declared_safe_is_accepted(tmp_path: Path) -> None:
    path = save({"a": Own(), "b.weight": torch.ones(2, 2)}, tmp_path / "a.pt")
    with torch.serialization.safe_globals([Own]):
        load(path)
        assert [*open_checkpoint(path).tensors] == ["b.weight"]
    with pytest.raises(CheckpointError, match="Own"):
        open_checkpoint(path)


def test_what_torch_never_takes_cannot_be_declared_safe(tmp_path: Path) -> None:
    path = save({"a": os.getcwd, "b.weight": torch.ones(2, 2)}, tmp_path / "a.pt")
    with torch.serialization.safe_globals([os.getcwd]):
        with pytest.raises(Exception, match="blocked"):
            load(path)
        with pytest.raises(CheckpointError, match=r"getcwd.* refuses"):
            open_checkpoint(path)


def test_dicts_that_python_2_pickled_are_read(tmp_path: Path) -> None:
    """There an OrderedDict is a call with a list of pairs, and a str is bytes."""
    import struct

    def text(value: str) -> bytes:
        return b"U" + bytes([len(value.encode())]) + value.encode()

    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu")
    tensor += b"K\x06NtQK\x00K\x02K\x03\x86K\x03K\x01\x86\x89ccollections\nOrderedDict\n)RtR"
    pairs = b"]](" + text("größe") + tensor + b"ea"
    body = b"\x80\x02ccollections\nOrderedDict\n" + pairs + b"\x85R."
    path = save({"a": torch.ones(2, 3)}, tmp_path / "a.pt", zipped=False)
    raw = path.read_bytes()
    start = raw.index(b"\x80\x02", raw.index(b"little_endian"))
    rest = b"\x80\x02](" + text("0") + b"e." + struct.pack("<q", 6) + torch.arange(6.0).numpy().tobytes()
    path.write_bytes(raw[:start] + body + rest)
    assert same(load(path)["größe"], values(path)["größe"])
    assert values(path)["größe"].tolist() == [[0, 1, 2], [3, 4, 5]]
