"""find_units: every unit that it names is one, and what is none is left out with a reason."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, weight_norm

from replastic.models import CNN, MLP
from replastic.units import find_units
from tests.architectures import CASES, IMAGES, Case, Code, assert_units_are_right, code, conv, numbers, seq

ROWS = numbers(4, 6)


def sizes(found: Any) -> dict[str, tuple[int, int]]:
    return {group.name: (group.size, group.columns.shape[1]) for group in found.groups}


@pytest.mark.parametrize("example", [False, True], ids=["symbolic", "example"])
@pytest.mark.parametrize("name", CASES)
def test_the_units_of_each_architecture_are_found(name: str, example: bool) -> None:
    case = CASES[name]
    if case.needs_example and not example:
        pytest.skip("its widths are seen only in a run")
    found = find_units(case.model(), case.inputs() if example else None)
    assert sizes(found) == case.units
    for layer, reason in case.left_out.items():
        assert reason in found.left_out[layer]
    assert not (example and found.not_seen)


@pytest.mark.parametrize("name", CASES)
def test_units_are_private_and_silent_ones_can_be_started_anew_without_a_trace(name: str) -> None:
    case = CASES[name]
    model, template = case.model(0), case.model(1)
    warm_up(model, case)
    for group in find_units(model, case.inputs() if case.needs_example else None).groups:
        assert_units_are_right(model, template, case.inputs(), group)


def warm_up(model: nn.Module, case: Case) -> None:
    """Running statistics unlike those of a new model."""
    inputs = case.inputs()
    model.train()
    with torch.no_grad():
        model(**inputs) if isinstance(inputs, dict) else model(inputs)
    model.eval()


def _padded(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.a(x))
    return m.b(F.pad(h, (0, 0, 0, 0, 1, 1)))


def _leaks(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.a(x))
    return m.b(h) + m.c(h.T).sum()


def _second_argument(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(F.relu(h)) + m.c(torch.pow(x[:, :1].abs(), h.abs()))


def _attends(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.a(x))
    return m.b(h) + m.attention(x, h, h)[0][..., :3]


def _joins_positions(m: Any, x: Tensor) -> Tensor:
    return m.c(torch.cat([F.relu(m.a(x)), F.relu(m.b(x))], 1).flatten(1))


def _rows_of_channels(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.a(x))
    return m.b(h.view(x.shape[0] * 4, -1)).view(x.shape[0], -1)


def _mixes_samples(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.a(x))
    return m.b(h - h.mean(0))


def _statement(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h.add_(x[:, :4])
    return m.b(F.relu(h))


def _masks(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.a(x))
    return m.b(h) + h.eq(0).to(h.dtype)[:, :3]


def _broadcasts(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.a(x))  # (4, 4, 4, 4)
    return m.b(h * F.relu(m.c(x.flatten(2))))  # (4, 4, 4): its channels lie along the height of the other


def _shifted(m: Any, x: Tensor) -> Tensor:
    h = torch.tanh(m.a(x))
    return m.b(h[..., 1:] * h[..., :-1])


def _gate_of_one(m: Any, x: Tensor) -> Tensor:
    return m.b(F.relu(m.a(x)) * m.gate(x))


def _token(m: Any, x: Tensor) -> Tensor:
    return m.b(F.relu(m.a(x))[:, 0])


def _first_channel(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.a(x))
    return m.b(h) * h[:, :1]


def _width_norm(m: Any, x: Tensor) -> Tensor:
    return m.b(F.relu(m.norm(m.a(x))))


def _stacked(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.a(x))
    return m.b(torch.stack([h, h], 1).flatten(1)) + m.c(torch.where(h > 0, h, -h))


def _partly_depthwise(m: Any, x: Tensor) -> Tensor:
    h = torch.cat([m.stem(x) + x, m.a(x)], 1)
    return m.b(F.relu(m.dw(h)))


def _writes_slices(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.a(x))
    kept = torch.zeros(x.shape[0], 8, dtype=x.dtype)
    kept[:, :4] = h
    return m.b(h) + m.c(kept)


class _Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy()[:, ::-1].copy())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0].flip(1)


def _hides(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.a(x))
    return m.b(h) + m.c(_Opaque.apply(h))


def _disables(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.a(x))
    with torch._C.DisableTorchFunction():
        hidden = h.flip(1)
    return m.b(h) + m.c(hidden)


def _numpy(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.a(x))
    return m.b(h) * float(h.numpy()[0, 0])


TRAPS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "channels are padded": (code(_padded, a=conv(3, 4, 3), b=conv(6, 2, 3)), IMAGES),
    "transposed by .T": (code(_leaks, a=nn.Linear(6, 4), b=nn.Linear(4, 3), c=nn.Linear(4, 2)), ROWS),
    "an exponent": (code(_second_argument, a=nn.Linear(6, 4), b=nn.Linear(4, 3), c=nn.Linear(4, 3)), ROWS),
    "keys of attention": (
        code(_attends, a=nn.Linear(6, 6), b=nn.Linear(6, 3), attention=nn.MultiheadAttention(6, 1, batch_first=True)),
        numbers(4, 5, 6),
    ),
    "positions side by side": (
        code(_joins_positions, a=nn.Linear(3, 4), b=nn.Linear(3, 4), c=nn.Linear(16, 2)),
        numbers(4, 2, 3),
    ),
    "channels become samples": (code(_rows_of_channels, a=conv(3, 4, 3), b=nn.Linear(36, 2)), IMAGES),
    "means over samples": (code(_mixes_samples, a=nn.Linear(6, 4), b=nn.Linear(4, 3)), ROWS),
    "added in a statement": (code(_statement, a=nn.Linear(6, 4), b=nn.Linear(4, 3)), ROWS),
    "compared": (code(_masks, a=nn.Linear(6, 4), b=nn.Linear(4, 3)), ROWS),
    "broadcast along another axis": (
        code(_broadcasts, a=conv(3, 4, 3), b=conv(4, 2, 3), c=nn.Sequential(nn.Conv1d(3, 4, 1), nn.AdaptiveAvgPool1d(4))),
        numbers(4, 3, 6, 6),
    ),
    "a product with the neighbour": (code(_shifted, a=nn.Linear(6, 5), b=nn.Linear(4, 3)), ROWS),
    "one gate for all": (code(_gate_of_one, a=nn.Linear(6, 4), gate=nn.Linear(6, 1), b=nn.Linear(4, 3)), ROWS),
    "the first token": (code(_token, a=nn.Linear(6, 4), b=nn.Linear(4, 3)), numbers(4, 5, 6)),
    "the first channel is read": (code(_first_channel, a=nn.Linear(6, 4), b=nn.Linear(4, 3)), ROWS),
    "a norm over the width": (code(_width_norm, a=conv(3, 6, 3), norm=nn.LayerNorm(6), b=conv(6, 2, 3)), IMAGES),
    "stacked": (code(_stacked, a=nn.Linear(6, 4), b=nn.Linear(8, 3), c=nn.Linear(4, 3)), ROWS),
    "half of a depthwise input is a stream": (
        code(_partly_depthwise, stem=conv(3, 3, 1), a=conv(3, 3, 1), dw=conv(6, 6, 3, groups=6), b=conv(6, 2, 1)),
        IMAGES,
    ),
    "written into slices": (code(_writes_slices, a=nn.Linear(6, 4), b=nn.Linear(4, 3), c=nn.Linear(8, 3)), ROWS),
    "an autograd function": (code(_hides, a=nn.Linear(6, 4), b=nn.Linear(4, 3), c=nn.Linear(4, 3)), ROWS),
    "code that torch does not show": (code(_disables, a=nn.Linear(6, 4), b=nn.Linear(4, 3), c=nn.Linear(4, 3)), ROWS),
    "numpy": (code(_numpy, a=nn.Linear(6, 4), b=nn.Linear(4, 3)), ROWS),
    "pooling that takes channels for height": (
        seq(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv1d(2, 2, 2)),
        numbers(4, 3, 8),
    ),
    "padding that reaches the channels": (seq(conv(3, 4, 3), nn.ConstantPad3d(1, 1.0), conv(6, 2, 3)), IMAGES),
    "a linear layer along the width": (seq(conv(3, 6, 3), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)), IMAGES),
    "an instance norm on rows": (seq(nn.Linear(6, 4), nn.InstanceNorm1d(4, affine=True), nn.Linear(4, 2)), ROWS),
    "softmax": (seq(nn.Linear(6, 4), nn.Softmax(-1), nn.Linear(4, 2)), ROWS),
    "shuffled pixels": (seq(conv(3, 8, 1), nn.PixelShuffle(2), conv(2, 2, 1)), IMAGES),
    "channels shuffled": (seq(conv(3, 8, 1), nn.ChannelShuffle(2), nn.ReLU(), conv(8, 2, 1)), IMAGES),
    "an LSTM": (
        code(lambda m, x: m.b(m.lstm(F.relu(m.a(x)))[0]), a=nn.Linear(6, 4), lstm=nn.LSTM(4, 4), b=nn.Linear(4, 2)),
        numbers(4, 5, 6),
    ),
    "GLU along another axis": (seq(conv(3, 6, 3), nn.GLU(), conv(6, 2, 3)), IMAGES),
}


@pytest.mark.parametrize("example", [False, True], ids=["symbolic", "example"])
@pytest.mark.parametrize("name", TRAPS)
def test_what_is_hard_to_follow_is_right_or_left_out(name: str, example: bool) -> None:
    build, inputs = TRAPS[name]
    model, template = (Case(build, inputs, {}).model(seed) for seed in (0, 1))
    with torch.no_grad():
        model(inputs())  # so that it is a model at all
    try:
        groups = find_units(model, inputs() if example else None).groups
    except ValueError:
        groups = ()
    for group in groups:
        assert_units_are_right(model, template, inputs(), group)


def net(change: Callable[[Any], object] = lambda m: None, **others: nn.Module) -> nn.Module:
    layers = {"a": nn.Linear(6, 5), "b": nn.Linear(5, 5), "c": nn.Linear(5, 5), "d": nn.Linear(5, 3)} | others
    model = Code(lambda m, x: m.d(F.relu(m.c(F.relu(m.b(F.relu(m.a(x))))))), **layers).double()
    change(model)
    return model


class Standardised(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight - self.weight.mean(1, keepdim=True), self.bias)


class Noisy(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.sigma = nn.Parameter(torch.ones_like(self.weight))


UNUSABLE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "frozen": (lambda: net(lambda m: m.b.requires_grad_(False)), "is frozen"),
    "frozen bias": (lambda: net(lambda m: m.b.bias.requires_grad_(False)), "is frozen"),
    "tied": (lambda: net(_tie, table=nn.Embedding(5, 5)), "shares a weight"),
    "tied by storage": (lambda: net(_tie_storage, table=nn.Embedding(5, 5)), "shares a weight"),
    "weight_norm": (lambda: net(b=parametrizations.weight_norm(nn.Linear(5, 5))), "is parametrised"),
    "spectral_norm": (lambda: net(b=parametrizations.spectral_norm(nn.Linear(5, 5))), "is parametrised"),
    "orthogonal": (lambda: net(b=parametrizations.orthogonal(nn.Linear(5, 5))), "is parametrised"),
    "old weight_norm": (lambda: net(b=_old_weight_norm()), "is parametrised"),
    "pruned bias": (lambda: net(b=prune.random_unstructured(nn.Linear(5, 5), "bias", amount=2)), "is parametrised"),
    "code of its own": (lambda: net(b=Standardised(5, 5)), "whose own forward"),
    "weights of its own": (lambda: net(b=Noisy(5, 5)), "whose own forward"),
}


def _tie(model: Any) -> None:
    model.table.weight = model.b.weight


def _tie_storage(model: Any) -> None:
    model.table.weight.data = model.b.weight.data


def _old_weight_norm() -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return weight_norm(nn.Linear(5, 5))


@pytest.mark.parametrize("example", [False, True], ids=["symbolic", "example"])
@pytest.mark.parametrize("name", UNUSABLE)
def test_units_of_a_layer_that_cannot_be_reset_are_left_out(name: str, example: bool) -> None:
    build, reason = UNUSABLE[name]
    found = find_units(build(), ROWS() if example else None)
    assert set(sizes(found)) <= {"c"}  # a is read by b, b made by it
    assert reason in found.left_out["a"]
    assert reason in found.left_out["b"]
    assert found.left_out["a"] == f"is read by b, which {found.left_out['b']}"


def _twice(m: Any, x: Tensor) -> Tensor:
    return m.d(F.relu(m.c(F.relu(m.b(F.relu(m.b(F.relu(m.a(x)))))))))


def _by_hand(m: Any, x: Tensor) -> Tensor:
    return m.d(F.relu(m.c(F.relu(m.b(F.relu(m.a(x)))) + F.linear(x[:, :5], m.b.weight))))


@pytest.mark.parametrize("example", [False, True], ids=["symbolic", "example"])
@pytest.mark.parametrize(
    ("forward", "reason"), [(_twice, "is called more than once"), (_by_hand, "shares a weight with another layer")]
)
def test_units_of_a_layer_that_is_used_twice_are_left_out(forward: Any, reason: str, example: bool) -> None:
    layers = {"a": nn.Linear(6, 5), "b": nn.Linear(5, 5), "c": nn.Linear(5, 5), "d": nn.Linear(5, 3)}
    found = find_units(Code(forward, **layers).double(), ROWS() if example else None)
    assert list(sizes(found)) == ["c"]
    assert found.left_out == {"a": f"is read by b, which {reason}", "b": reason, "d": "is an output of the model"}


class TwoHeads(nn.Module):
    """`forward` acts; the value is another method's."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 5)
        self.hidden = nn.Linear(5, 4)
        self.actor = nn.Linear(4, 3)
        self.critic = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.actor(F.relu(self.hidden(F.relu(self.trunk(x)))))


@pytest.mark.parametrize("example", [False, True], ids=["symbolic", "example"])
def test_units_that_a_head_beside_the_traced_code_may_read_are_left_out(example: bool) -> None:
    found = find_units(TwoHeads().double(), ROWS() if example else None)
    assert list(sizes(found)) == ["hidden"]  # within the critic, its own units of that width are read
    assert found.left_out["trunk"] == "may be read by critic.0, which the traced code does not call"
    assert found.left_out["critic.2"] == "is not called by the code that was traced"


def test_agents_without_a_forward_have_the_units_of_their_parts() -> None:
    agent = nn.Module()
    agent.actor = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    agent.critic = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
    found = find_units(agent)
    assert sizes(found) == {"actor.0": (5, 1), "critic.0": (4, 1)}
    assert "forward" in found.not_seen[""]


class Messy(nn.Module):
    """Code that keeps and counts things, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("nothing", None)
        self.kept: dict[str, Any] = {}
        self.calls: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.last = h = F.relu(self.norm(self.a(x)))
        self.kept["h"] = h
        self.calls.append(h)
        return self.b(F.dropout(h * 2.0, 0.5, self.training)) + torch.rand(3, dtype=torch.float64) + torch.ones(3).double()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("example", [False, True], ids=["symbolic", "example"])
def test_looking_leaves_the_model_and_random_numbers_as_they_were(example: bool, training: bool) -> None:
    model = Messy().double().train(training)
    model.a.weight.grad = torch.ones_like(model.a.weight)
    attributes = [dict(vars(module)) for module in model.modules()]
    buffers, versions = dict(model.named_buffers()), [b._version for b in model.buffers()]
    state, random, call = copy.deepcopy(model.state_dict()), torch.get_rng_state(), nn.Module.__call__
    find_units(model, ROWS() if example else None)
    assert [vars(module) for module in model.modules()] == attributes
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert [b._version for b in model.buffers()] == versions
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert not model.kept
    assert not model.calls
    assert torch.equal(random, torch.get_rng_state())
    assert nn.Module.__call__ is call
    assert model.training == training
    assert torch.equal(model.a.weight.grad, torch.ones_like(model.a.weight))
    assert model.b.weight.grad is None


@pytest.mark.parametrize("example", [False, True], ids=["symbolic", "example"])
def test_looking_leaves_the_model_as_it_was_even_if_its_code_fails(example: bool) -> None:
    def fails(m: Any, x: Tensor) -> Tensor:
        m.count += 1
        raise KeyError("no")

    model = Code(fails, net=nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)))
    model.register_buffer("count", torch.zeros(()))
    call = nn.Module.__call__
    if example:
        with pytest.raises(KeyError):
            find_units(model, ROWS())
    else:
        assert sizes(find_units(model)) == {"net.0": (5, 1)}
    assert model.count == 0
    assert nn.Module.__call__ is call


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        (nn.Sequential(), ValueError, "no linear or convolutional layer"),
        (nn.Linear(3, 2), ValueError, "no linear or convolutional layer"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), ValueError, "1 is an output"),
        (nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2)), ValueError, r"0.weight.*lazy"),
        (nn.LSTM(3, 4), ValueError, "no hidden units"),
        (lambda x: x, TypeError, "pass the model itself"),
    ],
)
def test_a_model_without_units_is_an_error_that_says_what_to_do(model: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        find_units(model)


def test_a_list_is_no_example() -> None:
    with pytest.raises(TypeError, match="a tensor, a tuple of inputs, or a dict by name"):
        find_units(MLP(6, [5], 3), [torch.randn(4, 6)])  # type: ignore[arg-type]


@pytest.mark.parametrize("example", [False, True], ids=["symbolic", "example"])
def test_compiled_models_have_the_units_of_the_model_itself(example: bool) -> None:
    model = MLP(6, [7, 5], 3).double()
    inputs = ROWS() if example else None
    assert sizes(find_units(torch.compile(model, backend="eager"), inputs)) == CASES["mlp"].units
    model.compile(backend="eager")
    assert sizes(find_units(model, inputs)) == CASES["mlp"].units
    whole = nn.Sequential(MLP(6, [7, 5], 4).double(), nn.ReLU(), nn.Linear(4, 2).double())
    whole[0].compile(backend="eager")
    assert set(sizes(find_units(whole, inputs))) >= {"0.1", "0.3"}


def test_a_product_of_neighbours_makes_them_all_one_unit() -> None:
    found = find_units(Code(_shifted, a=nn.Linear(6, 5), b=nn.Linear(4, 3)))
    assert sizes(found) == {"a": (1, 4)}


def test_wrapped_for_several_devices_the_units_are_the_same() -> None:
    assert sizes(find_units(nn.DataParallel(MLP(6, [7, 5], 3)))) == {"module.1": (7, 1), "module.3": (5, 1)}


def test_a_group_says_what_makes_and_what_reads_it() -> None:
    found = find_units(CNN(3, 8, 4, channels=5, convolutions=1, kernel=3, hidden=[7], norm="batch"))
    assert repr(found).splitlines() == [
        "5 units: 0 -> 1 -> 5",
        "7 units: 5 -> 7",
        "no units: 7: is an output of the model",
    ]
    assert [str(slot) for slot in found.groups[0].norms] == ["1.weight", "1.bias", "1.running_mean", "1.running_var"]


def test_squeezed_and_excited_units_are_read_behind_their_gate() -> None:
    group = find_units(CASES["squeeze-excite"].model()).groups[0]
    assert [str(slot) for slot in group.readers] == ["conv2.weight", "squeeze.weight"]
    assert [str(slot) for slot in group.makers] == ["conv1.weight", "conv1.bias", "excite.weight", "excite.bias"]


def test_units_are_found_before_there_are_weights() -> None:
    with torch.device("meta"):
        assert sizes(find_units(MLP(6, [7, 5], 3))) == CASES["mlp"].units


def test_parts_of_computed_sizes_are_followed_where_a_run_shows_them() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        left, right = torch.split(F.relu(m.a(x)), (x.shape[-1], x.shape[-1]), dim=-1)
        return m.c(F.relu(m.b(left + right)))

    model = code(forward, a=nn.Linear(6, 12), b=nn.Linear(6, 5), c=nn.Linear(5, 2))()
    symbolic = find_units(model)
    assert [group.name for group in symbolic.groups] == ["b"]
    assert "computed" in symbolic.left_out["a"]
    assert find_units(model, torch.randn(3, 6)).groups[-1].name == "b"


def test_a_frozen_model_is_told_so_once() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).requires_grad_(False)
    with pytest.raises(ValueError, match=r"no hidden units \(0 is frozen: requires_grad_\(True\) lets it train"):
        find_units(model)


def test_an_input_helps_where_a_shape_is_not_known() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.o = nn.Linear(2, 6), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.o(torch.relu(self.a(x)).amax(1))

    with pytest.raises(ValueError, match=r"amax, which is not followed.*example=inputs"):
        find_units(Pooled())
    assert sizes(find_units(Pooled(), torch.randn(4, 5, 2))) == {"a": (6, 1)}


@pytest.mark.parametrize("move", ["cpu", "detach", "contiguous"])
def test_units_are_followed_where_their_values_are_moved_or_copied(move: str) -> None:
    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(getattr(self.a(x).relu(), move)())

    assert [group.name for group in find_units(Moved()).groups] == ["a"]
