"""What every method must hold to, on every kind of model and with every optimiser."""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic.learner import Method
from replastic.methods import METHODS
from replastic.methods.muon import muon
from tests.zoo import ZOO, Animal

TASKS, STEPS = 2, 4
# Convolutions, norms and buffers; and attention, an embedding and a tied head. The other models are for `make test`.
QUICK = ("cnn-bn", "gpt")


@dataclass(frozen=True)
class Case:
    """make: settings under which the method acts within eight steps. neutral: settings under which it changes nothing."""

    make: Callable[[], Any]
    neutral: Callable[[], Any] | None = None
    refuses: tuple[str, ...] = ()  # models for which there is nothing it could do
    idle: tuple[str, ...] = ()  # models on which there is nothing to do within these steps
    moves_storage: bool = False


CASES: dict[str, Case] = {
    "fire": Case(lambda: rp.FIRE()),
    "fire_on_alarm": Case(
        lambda: METHODS["fire_on_alarm"](every=1, looks=2, threshold=0),
        lambda: METHODS["fire_on_alarm"](every=1000),
        idle=("nature-cnn",),  # its batches have too few samples to look at
    ),
    "full_reset": Case(lambda: METHODS["full_reset"]()),
    "layer_reset": Case(lambda: METHODS["layer_reset"](), refuses=("gpt",)),  # its head is the embedding
    "shrink_and_perturb": Case(
        lambda: METHODS["shrink_and_perturb"](towards="fresh"), lambda: METHODS["shrink_and_perturb"](rate=0)
    ),
    "shrink_and_add_noise": Case(
        lambda: METHODS["shrink_and_add_noise"](), lambda: METHODS["shrink_and_add_noise"](shrink=1, sigma=0)
    ),
    "perturb_each_step": Case(lambda: METHODS["perturb_each_step"](), lambda: METHODS["perturb_each_step"](sigma=0)),
    "shrink_encoder": Case(lambda: METHODS["shrink_encoder"](), refuses=("mlp", "gpt", "simba")),
    "restore_norms": Case(lambda: METHODS["restore_norms"](biases=True)),
    "dash": Case(lambda: METHODS["dash"](), lambda: METHODS["dash"](floor=1)),
    "plasticity_injection": Case(
        lambda: METHODS["plasticity_injection"](), refuses=("gpt",), moves_storage=True
    ),  # the tied head of the GPT cannot be frozen alone
    "swr": Case(lambda: METHODS["swr"](0.1), lambda: METHODS["swr"](0)),
    "cbp": Case(lambda: METHODS["cbp"](0.1, maturity=2), lambda: METHODS["cbp"](0)),
    "redo": Case(lambda: METHODS["redo"](0.9, period=3), lambda: METHODS["redo"](period=1000)),
    "snr": Case(lambda: METHODS["snr"](0.3, longest=2, update_every=2), idle=("vit", "gpt")),  # GELU units always fire
    "hare_and_tortoise": Case(lambda: METHODS["hare_and_tortoise"](0.5, period=3)),
    "weight_clipping": Case(lambda: METHODS["weight_clipping"](0.5), lambda: METHODS["weight_clipping"](1e6)),
    "normalize_and_project": Case(lambda: METHODS["normalize_and_project"](), refuses=("mlp", "nature-cnn")),
    "er": Case(lambda: METHODS["er"](every=3), lambda: METHODS["er"](rate=0, every=3)),
    "l2_er": Case(lambda: METHODS["l2_er"](every=3)),
    "l2": Case(lambda: METHODS["l2"](0.1), lambda: METHODS["l2"](0)),
    "l2_init": Case(lambda: METHODS["l2_init"](0.1), lambda: METHODS["l2_init"](0)),
    "parseval": Case(lambda: METHODS["parseval"](0.1), lambda: METHODS["parseval"](0)),
    "spectral": Case(lambda: METHODS["spectral"](0.1), lambda: METHODS["spectral"](0)),
    "wasserstein": Case(lambda: METHODS["wasserstein"](0.1), lambda: METHODS["wasserstein"](0)),
    "muon": Case(lambda: METHODS["muon"]()),
}

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=3e-3),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
    "muon": lambda model: muon(model),
}


STOPS = (2, 5)  # in the midst of ER's window, SNR's histogram and the youth of CBP's units


class Run:
    """Two short tasks on a model of the zoo."""

    def __init__(self, animal: Animal, methods: Any, optimizer: str = "adam", device: torch.device | None = None) -> None:
        self.animal, self.device = animal, device or torch.device("cpu")
        torch.manual_seed(1)
        self.model = animal.build().to(self.device)
        self.learner = rp.Learner(self.model, OPTIMIZERS[optimizer](self.model), methods=methods, build=animal.build)
        self.done = 0

    def task(self, number: int) -> rp.Task:
        def batches(generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
            order = torch.randperm(STEPS, generator=generator).tolist()
            return [self.batch(10 * number + at) for at in order]

        return rp.Task(str(number), batches, self.animal.loss)

    def batch(self, seed: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.animal.batch(seed)
        return inputs.to(self.device), targets.to(self.device)

    def until(self, step: int) -> "Run":
        while self.done < step:
            if self.done % STEPS == 0:
                self.learner.begin(self.task(self.done // STEPS))
            self.learner.step(*self.batch(self.done))
            self.done += 1
        return self

    def with_methods(self, methods: Any) -> "Run":
        self.learner = rp.Learner(self.model, OPTIMIZERS["adam"](self.model), methods=methods, build=self.animal.build)
        return self

    def begin_twice(self) -> None:
        self.learner.begin(self.task(0))
        self.learner.begin(self.task(1))

    def weights(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}


@cache
def without_methods(model: str, device: torch.device) -> dict[str, Tensor]:
    return Run(ZOO[model], [], device=device).until(TASKS * STEPS).weights()


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def pairs() -> list[Any]:
    return [
        pytest.param(name, model, id=f"{name}-{model}", marks=() if model in QUICK else pytest.mark.slow)
        for name, case in CASES.items()
        for model in ZOO
        if model not in case.refuses
    ]


def test_every_method_is_here() -> None:
    assert CASES.keys() == METHODS.keys()


def test_the_models_are_tiny() -> None:
    for animal in ZOO.values():
        assert sum(parameter.numel() for parameter in animal.build().parameters()) < 50_000


@pytest.mark.parametrize("name", METHODS)
def test_a_method_acts_at_some_moment(name: str) -> None:
    made = CASES[name].make()
    for method in made if isinstance(made, list) else [made]:
        moments = ("start", "at_boundary", "penalty", "after_step")
        assert any(getattr(type(method), moment) is not getattr(Method, moment) for moment in moments)


@pytest.mark.parametrize(("name", "model"), pairs())
def test_a_method_acts_on_any_model_and_keeps_its_tensors(name: str, model: str, device: torch.device) -> None:
    case, animal = CASES[name], ZOO[model]
    run = Run(animal, case.make(), device=device)
    before = {key: (tensor.data_ptr(), tensor.dtype, tensor.stride()) for key, tensor in run.model.state_dict().items()}
    rng = torch.get_rng_state()
    after = run.until(TASKS * STEPS).weights()
    assert torch.equal(torch.get_rng_state(), rng)  # data order, dropout: nobody else's randomness was touched
    assert all(tensor.isfinite().all() for tensor in after.values())
    if not case.moves_storage:
        assert {k: (t.data_ptr(), t.dtype, t.stride()) for k, t in run.model.state_dict().items()} == before
    assert same(after, without_methods(model, device)) == (model in case.idle)  # it did something
    assert same(after, Run(animal, case.make(), device=device).until(TASKS * STEPS).weights())  # and does so again


def stops() -> list[Any]:
    """Each method with each optimiser, and each of both at both steps; not all three with each other."""
    return [
        pytest.param(name, optimizer, STOPS[(row + column) % 2], marks=() if optimizer == "adam" else pytest.mark.slow)
        for row, name in enumerate(CASES)
        for column, optimizer in enumerate(OPTIMIZERS)
    ]


@pytest.mark.parametrize(("name", "optimizer", "stop"), stops())
def test_stop_and_resume_is_bit_exact(name: str, optimizer: str, stop: int, device: torch.device) -> None:
    case, animal = CASES[name], ZOO["cnn-bn"]
    whole = Run(animal, case.make(), optimizer, device).until(TASKS * STEPS)
    first = Run(animal, case.make(), optimizer, device).until(stop)
    file = io.BytesIO()
    torch.save(first.learner.state_dict(), file)
    file.seek(0)
    second = Run(animal, case.make(), optimizer, device)
    second.learner.load_state_dict(torch.load(file, weights_only=True), second.task(stop // STEPS))
    second.done = stop
    second.until(TASKS * STEPS)
    assert same(second.weights(), whole.weights())
    networks = {key: network.state_dict() for key, network in whole.learner.evaluated().items()}
    resumed = {key: network.state_dict() for key, network in second.learner.evaluated().items()}
    assert networks.keys() == resumed.keys()
    assert all(same(networks[key], resumed[key]) for key in networks)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures a CUDA graph")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if getattr(case.make(), "capturable", False)])
def test_a_capturable_method_does_the_same_within_a_captured_graph(name: str) -> None:
    def started() -> tuple[rp.Learner, tuple[Tensor, Tensor]]:
        torch.manual_seed(1)
        animal = ZOO["cnn-bn"]
        model = animal.build().cuda()
        adam = torch.optim.Adam(model.parameters(), lr=3e-3, capturable=True)
        learner = rp.Learner(model, adam, methods=CASES[name].make(), build=animal.build, loss=animal.loss)
        inputs, targets = animal.batch()
        return learner, (inputs.cuda(), targets.cuda())

    def train(learner: rp.Learner, batch: tuple[Tensor, Tensor], steps: int) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(steps):
                learner.step(*batch)
        torch.cuda.current_stream().wait_stream(stream)

    eager, batch = started()
    train(eager, batch, 6)
    captured, batch = started()
    train(captured, batch, 3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step(*batch)
    for _ in range(3):
        graph.replay()
    for one, other in zip(eager.model.state_dict().values(), captured.model.state_dict().values(), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)  # cuBLAS may choose other algorithms while it is captured


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.neutral])
@pytest.mark.parametrize("model", ["mlp", "cnn-bn"])
def test_neutral_settings_change_nothing(name: str, model: str) -> None:
    neutral = CASES[name].neutral
    assert neutral is not None
    assert same(Run(ZOO[model], neutral()).until(8).weights(), Run(ZOO[model], []).until(8).weights())


@pytest.mark.parametrize(("name", "model"), [(name, model) for name, case in CASES.items() for model in case.refuses])
def test_a_method_that_cannot_act_says_so_and_changes_nothing(name: str, model: str) -> None:
    run = Run(ZOO[model], [])
    before = run.weights()
    with pytest.raises(ValueError, match=r"\w \w"):
        run.with_methods(CASES[name].make()).begin_twice()
    assert same(run.weights(), before)


@pytest.mark.parametrize("name", CASES)
def test_a_method_from_task_one_leaves_task_zero_alone(name: str) -> None:
    made = CASES[name].make()
    for method in made if isinstance(made, list) else [made]:
        method.from_task = 1
    run, plain = Run(ZOO["cnn-bn"], made), Run(ZOO["cnn-bn"], [])
    assert same(run.until(STEPS).weights(), plain.until(STEPS).weights())
    assert not same(run.until(2 * STEPS).weights(), plain.until(2 * STEPS).weights())


@pytest.mark.parametrize("name", CASES)
def test_a_method_runs_in_float64(name: str) -> None:
    animal = ZOO["cnn-bn"]
    model = animal.build().double()
    learner = rp.Learner(model, OPTIMIZERS["adam"](model), methods=CASES[name].make(), build=animal.build, loss=animal.loss)
    for step in range(5):
        inputs, targets = animal.batch(step)
        loss = learner.step(inputs.double(), targets)
    assert math.isfinite(loss.item())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


def _flat(methods: Any) -> list[Method]:
    return methods if isinstance(methods, list) else [methods]


def _needs_first(case: Case) -> bool:
    return any(method.needs_first for method in _flat(case.make()))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not _needs_first(case)])
def test_a_method_that_says_so_does_without_the_first_weights(name: str) -> None:
    methods = _flat(CASES[name].make())
    kept, dropped = (Run(ZOO["resnet"], []) for _ in range(2))
    kept.with_methods(CASES[name].make()).until(TASKS * STEPS)
    optimizer = OPTIMIZERS["adam"](dropped.model)
    dropped.learner = rp.Learner(dropped.model, optimizer, methods=methods, build=ZOO["resnet"].build, initial=False)
    dropped.until(TASKS * STEPS)
    for mine, other in zip(dropped.model.parameters(), kept.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_methods_that_leave_the_first_weights_alone_say_so() -> None:
    free = {name for name, case in CASES.items() if not _needs_first(case)}
    assert {"fire", "l2", "cbp", "redo", "snr", "er", "l2_er", "dash", "parseval", "spectral"} <= free
    assert "l2_init" not in free
