"""One call at a boundary: what every function of that kind holds to, on every kind of model."""

import copy
import gc
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic.learner import Method
from tests.zoo import ZOO, Animal

STEPS = 2


@dataclass(frozen=True)
class Call:
    """make: the call, on a model with its first weights. method: what does the same in a Learner."""

    make: Callable[..., Any]
    method: Callable[[], Method]
    example: str  # what an error shows
    refuses: tuple[str, ...] = ()
    takes_first: bool = True
    finite: bool = True  # whether it needs finite weights


def with_data(model: nn.Module, animal: Animal, first: Any, **options: Any) -> rp.BoundaryReport:
    return rp.dash_(model, [animal.batch(10 + seed) for seed in range(STEPS)], loss=animal.loss, **options)


def noisy(model: nn.Module, animal: Animal, first: Any, **options: Any) -> rp.BoundaryReport:
    return rp.shrink_and_add_noise_(model, seed=torch.Generator().manual_seed(0), **options)


CALLS: dict[str, Call] = {
    "fire_": Call(lambda m, a, f, **o: rp.fire_(m, **o), lambda: rp.FIRE(), "", takes_first=False),
    "fire_ and biases": Call(
        lambda m, a, f, **o: rp.fire_(m, biases=True, initial=f, **o), lambda: rp.FIRE(biases=True), ""
    ),
    "reset_": Call(lambda m, a, f, **o: rp.reset_(m, f, **o), lambda: rp.FullReset(), "rp.reset_(model,", finite=False),
    "reset_ of the head": Call(
        lambda m, a, f, **o: rp.reset_(m, f, where="head", **o),
        lambda: rp.LayerReset(to="initial"),
        "rp.reset_(model,",
        refuses=("gpt",),
        finite=False,
    ),
    "reset_ of biases": Call(
        lambda m, a, f, **o: rp.reset_(m, f, only="biases", **o),
        lambda: rp.LayerReset("everything", "initial", only="biases"),
        "rp.reset_(model,",
        finite=False,
    ),
    "shrink_and_perturb_": Call(
        lambda m, a, f, **o: rp.shrink_and_perturb_(m, 0.3, initial=f, **o),
        lambda: rp.ShrinkAndPerturb(0.3),
        "rp.shrink_and_perturb_(model,",
    ),
    "shrink_and_perturb_ and biases": Call(
        lambda m, a, f, **o: rp.shrink_and_perturb_(m, 0.3, initial=f, biases=True, **o),
        lambda: rp.ShrinkAndPerturb(0.3, biases=True),
        "rp.shrink_and_perturb_(model,",
    ),
    "shrink_and_add_noise_": Call(
        noisy, lambda: rp.ShrinkAndAddNoise(), "rp.shrink_and_add_noise_(model,", takes_first=False
    ),
    "restore_norms_": Call(
        lambda m, a, f, **o: rp.restore_norms_(m, initial=f, **o), lambda: rp.RestoreNorms(), "rp.restore_norms_(model,"
    ),
    "restore_norms_ and biases": Call(
        lambda m, a, f, **o: rp.restore_norms_(m, initial=f, biases=True, **o),
        lambda: rp.RestoreNorms(biases=True),
        "rp.restore_norms_(model,",
    ),
    "dash_": Call(with_data, lambda: rp.DASH(clear_state=True), "rp.dash_(model, batches,", takes_first=False),
    "inject_plasticity_": Call(
        lambda m, a, f, **o: rp.inject_plasticity_(m, initial=f, **o),
        lambda: rp.PlasticityInjection(to="initial"),
        "rp.inject_plasticity_(model,",
        refuses=("gpt",),  # its head is the embedding
        finite=False,
    ),
}
IN_PLACE = [name for name in CALLS if name != "inject_plasticity_"]


def pairs(names: Any = CALLS) -> list[tuple[str, str]]:
    return [(name, model) for name in names for model in ZOO if model not in CALLS[name].refuses]


class Trained:
    """A model of the zoo that has trained for two steps."""

    def __init__(self, name: str, methods: Any = ()) -> None:
        self.animal = animal = ZOO[name]
        torch.manual_seed(0)
        self.model = animal.build()
        self.first = copy.deepcopy(self.model.state_dict())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.learner = rp.Learner(self.model, self.optimizer, methods=methods, loss=animal.loss, build=animal.build)
        self.learner.begin(rp.Task("first", lambda generator: [], animal.loss))
        for seed in range(STEPS):
            self.learner.step(*animal.batch(seed))

    def call(self, name: str, **options: Any) -> Any:
        return CALLS[name].make(self.model, self.animal, self.first, **options)

    def all(self) -> dict[str, Tensor]:
        """Copies of all that a call may write: weights, buffers, and the optimiser's state by the parameter's name."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        state = {
            f"{names[parameter]} {key}": value.clone()
            for parameter, entry in self.optimizer.state.items()
            for key, value in entry.items()
            if parameter in names
        }
        return {name: value.clone() for name, value in self.model.state_dict().items()} | state


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def written_by(report: Any) -> set[str]:
    """Names of the parameters and buffers that a report says were written."""
    names = {layer.name for layer in report.layers} if isinstance(report, rp.FireReport) else set(report.names)
    if isinstance(report, rp.FireReport) and report.biases is not None:
        names |= set(report.biases.names)
    return {name.partition(":")[0] for name in names}


@pytest.mark.parametrize(("name", "model"), pairs(IN_PLACE))
def test_a_call_writes_what_its_report_says_and_nothing_else(name: str, model: str) -> None:
    trained = Trained(model)
    with torch.no_grad():  # training does not move all of them
        for parameter in trained.model.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
            parameter.grad = torch.ones_like(parameter)
    places = {key: (one.data_ptr(), one.stride(), one.dtype) for key, one in trained.model.state_dict().items()}
    modes = [module.training for module in trained.model.modules()]
    before, random = trained.all(), torch.get_rng_state()
    report = trained.call(name, optimizer=trained.optimizer)
    after = trained.all()
    written = written_by(report)
    weights = {key for key in changed(before, after) if " " not in key}
    tied = {"wte.weight", "lm_head.weight"} if "lm_head.weight" in before else set()
    assert weights - tied == written - tied
    assert bool(weights & tied) == bool(written & tied)
    forgotten = {key.partition(" ")[0] for key in changed(before, after) if " " in key}
    parameters = {key for key, _ in trained.model.named_parameters()}
    assert forgotten == written & parameters
    for key in forgotten:
        assert not any(after[f"{key} {entry}"].any() for entry in ("step", "exp_avg", "exp_avg_sq"))
    assert {key: (one.data_ptr(), one.stride(), one.dtype) for key, one in trained.model.state_dict().items()} == places
    assert [module.training for module in trained.model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is not None and parameter.grad.eq(1).all() for parameter in trained.model.parameters())
    assert len(str(report).splitlines()) > len(written)


@pytest.mark.parametrize(("name", "model"), pairs())
def test_a_call_does_what_its_method_does_bit_for_bit(name: str, model: str) -> None:
    one, other = Trained(model), Trained(model, CALLS[name].method())
    if name == "shrink_and_add_noise_":
        other.learner.generator.manual_seed(0)
    batches = [one.animal.batch(10 + seed) for seed in range(STEPS)]
    before = one.all()
    one.call(name, optimizer=one.optimizer)
    other.learner.begin(rp.Task("second", lambda generator: batches, one.animal.loss))
    assert changed(one.all(), other.all()) == set()
    assert one.all().keys() != before.keys() or changed(before, one.all())
    for _ in range(2):  # the optimisers train on alike
        for trained in (one, other):
            trained.learner.model_changed()
            trained.learner.step(*one.animal.batch(7))
    assert changed(one.all(), other.all()) == set()


@pytest.mark.parametrize("name", CALLS)
def test_all_or_nothing_whatever_is_wrong(name: str) -> None:
    call = CALLS[name]

    def refused(trained: Trained, error: type[Exception], words: str, **options: Any) -> None:
        before, modules = trained.all(), dict(trained.model.named_modules())
        with pytest.raises(error, match=words):
            trained.call(name, **{"optimizer": trained.optimizer, **options})
        assert all(before[key].nan_to_num(7).equal(value.nan_to_num(7)) for key, value in trained.all().items())
        assert dict(trained.model.named_modules()) == modules

    if call.finite:
        trained = Trained("nature-cnn")
        trained.model.head[2].weight.data[0, 0] = torch.nan  # of the last layer, so that all others come before it
        refused(trained, ValueError, r"head\.2\.weight: NaN")
    if call.takes_first:
        trained = Trained("nature-cnn")
        trained.first["head.2.weight"][0, 0] = torch.inf
        trained.first["head.2.bias"][0] = torch.inf
        refused(trained, ValueError, r"head\.2\.(weight|bias).*: NaN or infinite entries in initial")
        trained = Trained("nature-cnn")
        trained.first = Trained("mlp").first
        refused(trained, ValueError, "initial has no '(conv1|head)")
        trained = Trained("nature-cnn")
        trained.first = trained.model.state_dict()
        refused(trained, ValueError, r"initial holds the model's own.*copy\.deepcopy")
        trained.first = 3  # type: ignore[assignment]
        refused(trained, TypeError, "initial is a int")
    trained = Trained("nature-cnn")
    for layer in trained.model.head[2].weight, trained.model.head[2].bias:
        trained.optimizer.state[layer]["strange"] = torch.ones(4)
    if name != "inject_plasticity_":  # which drops the state as a whole
        refused(trained, TypeError, "strange")
    refused(Trained("nature-cnn"), ValueError, "hold", optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters()))
    refused(Trained("nature-cnn"), TypeError, r"Optimizer.*got str", optimizer="adam")
    refused(Trained("nature-cnn"), TypeError, "got the class SGD", optimizer=torch.optim.SGD)
    refused(Trained("nature-cnn"), ValueError, "hold|empty", optimizer=[])


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.example])
def test_what_is_not_a_model_is_answered_with_the_call(name: str) -> None:
    call, trained = CALLS[name], Trained("mlp")
    for wrong in (
        trained.first,
        list(trained.model.parameters()),
        None,
        trained.learner,
        SimpleNamespace(model=trained.model),
    ):
        with pytest.raises(TypeError) as caught:
            call.make(wrong, trained.animal, trained.first)
        assert f"got {type(wrong).__name__}" in str(caught.value)
        assert call.example in str(caught.value)
        assert (".model" in str(caught.value)) == hasattr(wrong, "model")
    with pytest.raises(TypeError, match=f"optimiser.*{call.example}".replace("(", r"\(")):
        trained.call(name, optimiser=None)
    with pytest.raises(ValueError, match=r"weight.* is on the meta device"):
        call.make(copy.deepcopy(trained.model).to("meta"), trained.animal, trained.first)
    with pytest.raises(ValueError, match=r"1\.weight has no shape"):
        call.make(nn.Sequential(nn.Linear(6, 4), nn.LazyLinear(4)), trained.animal, trained.first)


def test_a_lazy_layer_that_is_not_selected_does_not_matter_to_fire() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.LazyLinear(4))
    report = rp.fire_(model, where="0", optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert [layer.name for layer in report.layers] == ["0.weight"]


def test_old_calls_on_tensors_are_answered_with_the_new_ones() -> None:
    model: Any = ZOO["mlp"].build()
    with pytest.raises(TypeError, match=r"got generator: Write rp\.shrink_and_perturb_\(model, rate="):
        rp.shrink_and_perturb_(model.parameters(), list(model.parameters()), 0.5)
    with pytest.raises(TypeError, match=r"got dict: Write rp\.dash_\(model, batches, loss="):
        rp.dash_(dict(model.named_parameters()), {}, {}, 0.3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'source'.* Write rp\.reset_\(model"):
        rp.reset_(model, source=ZOO["mlp"].build())  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "name", [name for name in IN_PLACE if name not in ("reset_ of the head", "reset_ of biases", "dash_")]
)
def test_a_where_that_selects_nothing_is_refused(name: str) -> None:
    trained = Trained("nature-cnn")
    before = trained.all()
    if name == "reset_":
        with pytest.raises(ValueError, match="'convs'"):
            rp.reset_(trained.model, trained.first, where="convs")
    else:
        with pytest.raises(ValueError, match="'convs'"):
            trained.call(name, where="convs", optimizer=trained.optimizer)
    assert changed(before, trained.all()) == set()


@pytest.mark.parametrize("name", IN_PLACE)
def test_frozen_parameters_stay_and_most_reports_name_them(name: str) -> None:
    trained = Trained("nature-cnn")
    trained.model.conv2.requires_grad_(False)
    before = trained.all()
    report = trained.call(name, optimizer=trained.optimizer)
    after = changed(before, trained.all())
    assert after
    assert not any(key.startswith("conv2") for key in after)
    listed = {one.name for one in report.left_alone}
    if name in ("fire_", "fire_ and biases", "restore_norms_", "restore_norms_ and biases"):
        assert "conv2.weight" in listed
    elif name not in ("reset_ of the head", "reset_ of biases", "dash_"):
        assert {"conv2.weight", "conv2.bias"} <= listed
        assert "skipped: conv2.weight (16, 8, 4, 4): is frozen" in str(report)


@pytest.mark.parametrize("name", ["reset_", "shrink_and_perturb_", "shrink_and_add_noise_", "restore_norms_"])
def test_a_tied_weight_is_written_once(name: str) -> None:
    trained = Trained("gpt")
    options: dict[str, Any] = {"where": ["everything", "embeddings"]} if name == "restore_norms_" else {}
    versions = trained.model.wte.weight._version
    report = trained.call(name, optimizer=trained.optimizer, **options)
    assert trained.model.wte.weight._version == versions + 1
    assert trained.model.lm_head.weight is trained.model.wte.weight
    assert report.cleared.count("wte.weight") == 1


@pytest.mark.parametrize("name", IN_PLACE)
def test_half_precision_and_channels_last_are_kept(name: str) -> None:
    animal = ZOO["cnn-bn"]
    model = animal.build().bfloat16().to(memory_format=torch.channels_last)
    first = {key: value + 1 for key, value in model.float().state_dict().items()}
    model.bfloat16()
    before = {key: (one.data_ptr(), one.stride(), one.dtype, one.clone()) for key, one in model.state_dict().items()}
    half = Animal(animal.build, lambda g: animal.inputs(g).bfloat16(), animal.targets, animal.loss)
    CALLS[name].make(model, half, first)
    after = {key: (one.data_ptr(), one.stride(), one.dtype) for key, one in model.state_dict().items()}
    assert after == {key: facts[:3] for key, facts in before.items()}
    assert any(not torch.equal(one, before[key][3]) for key, one in model.state_dict().items())
    assert all(one.isfinite().all() for one in model.state_dict().values())


@pytest.mark.parametrize("name", CALLS)
def test_a_kept_report_keeps_no_model_alive_and_is_of_its_moment(name: str) -> None:
    trained = Trained("nature-cnn")
    report = trained.call(name)
    text = str(report)
    late = Trained("nature-cnn")
    again = late.call(name)
    with torch.no_grad():
        for parameter in late.model.parameters():
            parameter.mul_(3)  # training continues before the report is read
    assert str(again) == text
    gone = weakref.ref(trained.model)
    del trained
    gc.collect()
    assert gone() is None
    assert str(report) == text


def test_the_report_says_what_changed_by_how_much_and_what_was_cleared() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    first = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    report = rp.shrink_and_perturb_(model, 0.8, initial=first, optimizer=optimizer)
    change = report.changes[0]
    assert (change.name, change.shape) == ("0.weight", (2, 2))
    assert (change.norm_before, change.norm_after, change.distance) == pytest.approx((5, 1, 4))
    assert report.cleared == ("0.weight", "0.bias")
    lines = str(report).splitlines()
    assert "rate 0.8" in lines[0]
    assert "4 tensors" in lines[0]
    assert lines[2].split() == ["0.weight", "2x2", "5", "1", "4"]
    assert lines[-2] == "first weights: the weights that were passed"
    assert "SGD" in lines[-1]
    assert "2 of them" in lines[-1]
    assert str(rp.shrink_and_perturb_(model, 0.8)).splitlines()[-1] == "optimizer: none was passed"
    assert rp.shrink_and_perturb_(model, 0).names == ()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m, d: rp.shrink_and_perturb_(m, 1.5), ValueError, r"rate=1\.5.* between 0 and 1"),
        (lambda m, d: rp.shrink_and_add_noise_(m, -1), ValueError, "shrink=-1"),
        (lambda m, d: rp.shrink_and_add_noise_(m, 1, -1), ValueError, "sigma=-1"),
        (lambda m, d: rp.shrink_and_perturb_(m, seed="a"), TypeError, r"seed is a str.*torch\.Generator"),  # type: ignore[arg-type]
        (lambda m, d: rp.reset_(m, only="bias"), ValueError, "only='bias'.*\"biases\""),  # type: ignore[arg-type]
        (lambda m, d: rp.reset_(m, where="haed"), ValueError, "'haed'"),
        (lambda m, d: rp.dash_(m, [], loss=nn.functional.cross_entropy), ValueError, "batches yielded none"),
        (lambda m, d: rp.dash_(m, d), TypeError, r"'loss'.* rp\.dash_\(model, batches, loss="),
        (lambda m, d: rp.dash_(m, d, loss=nn.CrossEntropyLoss), TypeError, "CrossEntropyLoss"),
        (lambda m, d: rp.dash_(m, lambda: d, loss=nn.functional.cross_entropy), TypeError, "batches is a function"),
        (lambda m, d: rp.dash_(m, d[0][0], loss=nn.functional.cross_entropy), TypeError, "batches is a Tensor"),
        (lambda m, d: rp.dash_(m, [d[0][0]], loss=nn.functional.cross_entropy), TypeError, "yielded a Tensor"),
        (lambda m, d: rp.dash_(m, d, loss=nn.functional.cross_entropy, floor=2), ValueError, "floor must be between"),
        (lambda m, d: rp.dash_(m, [(d[0][0] / 0, d[0][1])], loss=nn.functional.cross_entropy), ValueError, "gradients"),
        (lambda m, d: rp.inject_plasticity_(m, "haed"), ValueError, "'haed'"),
        (lambda m, d: rp.inject_plasticity_(m, optimizer=torch.optim.SGD(m[1].parameters())), ValueError, "head '5'"),
    ],
)
def test_bad_input_changes_nothing_and_says_what_to_pass(call: Any, error: type[Exception], words: str) -> None:
    trained = Trained("mlp")
    before, random = trained.all(), torch.get_rng_state()
    with pytest.raises(error, match=words):
        call(trained.model, [trained.animal.batch()])
    assert changed(before, trained.all()) == set()
    assert torch.equal(torch.get_rng_state(), random)


def test_the_head_is_asked_for_by_one_word_unless_a_module_of_that_name_is_another() -> None:
    model = nn.Sequential()
    for name, layer in [("conv", nn.Conv2d(3, 4, 3)), ("hidden", nn.Linear(4, 4)), ("head", nn.Linear(4, 2))]:
        model.add_module(name, layer)
    with pytest.raises(ValueError, match=r"where='head'.*'hidden\.weight', 'head\.weight'.* where='head\.\*'"):
        rp.reset_(model, where="head")
    assert rp.reset_(model, where="head.*").names == ("head.weight", "head.bias")
    assert rp.reset_(ZOO["mlp"].build(), where="head").names == ("5.weight", "5.bias")


def test_an_injected_head_trains_in_place_of_the_old_one_and_can_be_followed_by_another() -> None:
    trained = Trained("nature-cnn")
    frames = trained.animal.batch()[0]
    before = trained.model(frames)
    for count in range(1, 3):
        report = rp.inject_plasticity_(trained.model, "head", initial=trained.first, optimizer=trained.optimizer)
        assert torch.equal(trained.model(frames), before)
        assert torch.equal(trained.model.head.new[0].weight, trained.first["head.0.weight"])
        assert report.names[0] == "head.new.0.weight"
        held = {id(parameter) for group in trained.optimizer.param_groups for parameter in group["params"]}
        assert {id(one) for one in trained.model.parameters() if one.requires_grad} == held
        assert sum(name.endswith(".copy") for name, _ in trained.model.named_modules()) == count
    trained.model(frames).sum().backward()
    assert all(parameter.grad is None for parameter in trained.model.head.old.parameters())


def test_without_an_optimiser_the_new_head_is_left_to_the_next_one() -> None:
    trained = Trained("mlp")
    trained.model[5].weight.grad = torch.ones_like(trained.model[5].weight)
    report = rp.inject_plasticity_(trained.model)
    assert report.cleared == ()
    assert "5.new.weight" in str(report)
    assert all(parameter.grad is None for parameter in trained.model[5].parameters())


def test_biases_are_reset_exactly_while_weights_are_mixed() -> None:
    trained = Trained("nature-cnn")
    for name in ("conv1.bias", "head.0.bias"):
        trained.first[name] += 0.5
    before = trained.all()
    rp.shrink_and_perturb_(trained.model, 0.5, where="conv*", initial=trained.first, biases=True)
    now = trained.model.state_dict()
    assert torch.equal(now["conv1.bias"], trained.first["conv1.bias"])
    assert torch.equal(now["head.0.bias"], before["head.0.bias"])
    assert torch.allclose(now["conv1.weight"], 0.5 * (before["conv1.weight"] + trained.first["conv1.weight"]))
    assert set(rp.fire_(trained.model, biases=True, initial=trained.first).biases.names) >= {"conv1.bias", "head.0.bias"}
    assert torch.equal(trained.model.head[0].bias, trained.first["head.0.bias"])
    with pytest.raises(ValueError, match="bias"):
        rp.shrink_and_perturb_(nn.Linear(3, 3, bias=False), biases=True)


@pytest.mark.parametrize("model", ["mlp", "vit", "nature-cnn"])
def test_fire_with_biases_is_fire_and_a_reset_of_biases(model: str) -> None:
    one = Trained(model, rp.FIRE(biases=True))
    two = Trained(model, [rp.FIRE(), rp.LayerReset("everything", "initial", only="biases")])
    plain = Trained(model, rp.FIRE())
    for trained in (one, two, plain):
        trained.learner.begin()
    assert changed(one.all(), two.all()) == set()
    assert changed(one.all(), plain.all()) != set()
    assert rp.FIRE(biases=True).needs_first
    assert not rp.FIRE().needs_first


def test_a_pass_for_dash_with_dropout_is_repeatable_and_leaves_the_random_state() -> None:
    def model() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.5), nn.Linear(12, 4)).eval()

    one, other, third = model(), model(), model()
    data, random = [ZOO["mlp"].batch()], torch.get_rng_state()
    for net, seed in ((one, 0), (other, 0), (third, 1)):
        rp.dash_(net, data, loss=nn.functional.cross_entropy, seed=seed)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(one[0].weight, other[0].weight)
    assert not torch.equal(one[0].weight, third[0].weight)
    assert not one.training


class Transposed(nn.Module):
    """An autoencoder whose decoder is a view of its encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4, bias=False), nn.Linear(4, 6, bias=False)
        self.decoder.weight = nn.Parameter(self.encoder.weight.data.t())

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x).relu())


@pytest.mark.parametrize(
    "call",
    [
        lambda model: rp.shrink_and_perturb_(model, 0.5),
        lambda model: rp.shrink_and_add_noise_(model, 0.5, 0),
        lambda model: rp.dash_(model, [(torch.ones(3, 6), torch.ones(3, 6))], loss=nn.functional.mse_loss),
    ],
)
def test_a_weight_and_its_transpose_are_not_changed_twice(call: Callable[[nn.Module], Any]) -> None:
    model = Transposed()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"encoder\.weight and decoder\.weight share memory"):
        call(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_one_of_two_views_can_be_chosen() -> None:
    model = Transposed()
    before = model.encoder.weight.detach().clone()
    rp.shrink_and_add_noise_(model, 0.5, 0, where="encoder")
    assert torch.equal(model.encoder.weight, before / 2)


def test_buffers_of_eight_bits_are_reported() -> None:
    model = nn.Linear(3, 2)
    model.register_buffer("scale", torch.ones(3).to(torch.float8_e4m3fn))
    change = next(one for one in rp.reset_(model).changes if one.name == "scale")
    assert (change.norm_before, change.distance) == (pytest.approx(3**0.5), 0)


@pytest.mark.parametrize("call", [rp.reset_, rp.shrink_and_perturb_, rp.restore_norms_])
def test_first_weights_without_values_are_refused(call: Callable[..., Any]) -> None:
    with torch.device("meta"):
        first = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"'weight' on the meta device"):
        call(nn.Linear(3, 2), initial=first)


def test_noise_is_drawn_from_a_seed_and_finite() -> None:
    model = nn.Linear(3, 2)
    before = copy.deepcopy(model.state_dict())
    for options in ({"seed": None}, {"seed": 1.5}, {"sigma": math.inf}):
        with pytest.raises((TypeError, ValueError), match=r"NoneType|float|sigma=inf"):
            rp.shrink_and_add_noise_(model, **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_all_parts_and_names_of_what_was_cleared_are_reported() -> None:
    model = nn.MultiheadAttention(8, 2)
    report = rp.restore_norms_(model, optimizer=torch.optim.Adam(model.parameters()))
    assert report.cleared == report.names
    assert len(report.names) == 4  # queries, keys, values and the projection
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    report = rp.reset_(tied, optimizer=torch.optim.Adam(tied.parameters()))
    assert set(report.cleared) == set(report.names) == {"0.weight", "0.bias", "1.weight", "1.bias"}
