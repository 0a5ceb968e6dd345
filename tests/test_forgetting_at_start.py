"""Methods that clear an optimiser's state say when they start that they will not be able to, before there is any."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import ASGD, LBFGS, SGD, Adadelta, Adafactor, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RMSprop, Rprop
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from transformers.optimization import Adafactor as HuggingFaceAdafactor

import replastic as rp
from replastic.methods import METHODS
from replastic.train import Training
from replastic.train.step import EagerSteps
from tests.test_methods_conform import CASES
from tests.zoo import ZOO

CE = nn.functional.cross_entropy
Make = Callable[[Any], Optimizer]


class SignOfMomentum(Optimizer):
    """Somebody's own, with state of the weights' shape, and a mean for each row if `rows`."""

    def __init__(self, params: Any, lr: float, *, name: str = "exp_avg", rows: bool = False) -> None:
        super().__init__(params, {"lr": lr, "name": name, "rows": rows})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                like = param.mean(-1) if group["rows"] else param
                momentum = self.state[param].setdefault(group["name"], torch.zeros_like(like))
                momentum.lerp_(param.grad.mean(-1) if group["rows"] else param.grad, 0.1 + torch.rand(()) * 0)
                param.sub_(group["lr"] * (momentum[..., None] if group["rows"] else momentum).sign())


class OfAModel(SignOfMomentum):
    """One that cannot be made of parameters alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), 1e-3)


NEVER: dict[str, Make] = {
    "Rprop": lambda params: Rprop(params),
    "ASGD": lambda params: ASGD(params),
    "LBFGS": lambda params: LBFGS(params),
    "Adagrad": lambda params: Adagrad(params, initial_accumulator_value=0.1),
    "SignOfMomentum": lambda params: SignOfMomentum(params, 1e-3, name="slow"),
}
NOT_UNITS: dict[str, Make] = {
    "Adafactor": lambda params: Adafactor(params),
    "HuggingFaceAdafactor": lambda params: HuggingFaceAdafactor(params),
    "SignOfMomentum of rows": lambda params: SignOfMomentum(params, 1e-3, rows=True),
}
ALWAYS: dict[str, Make] = {
    "SGD": lambda params: SGD(params, 0.1),
    "SGD with dampening": lambda params: SGD(params, 0.1, momentum=0.9, dampening=0.5),
    "Adam": lambda params: Adam(params, amsgrad=True),
    "AdamW": lambda params: AdamW(params, torch.tensor(1e-3), fused=True),
    "NAdam": lambda params: NAdam(params),
    "RMSprop": lambda params: RMSprop(params, centered=True, momentum=0.9),
    "Adagrad": lambda params: Adagrad(params),
    "Adadelta": lambda params: Adadelta(params),
    "Adamax": lambda params: Adamax(params),
    "SignOfMomentum": lambda params: SignOfMomentum(params, 1e-3),
    "groups": lambda params: SignOfMomentum([{"params": [one]} for one in params], 1e-3),
}
UNITS = ["cbp", "redo", "snr"]
WHOLE: dict[str, dict[str, Any]] = {
    "fire": {},
    "fire_on_alarm": {},
    "full_reset": {},
    "layer_reset": {},
    "shrink_and_perturb": {},
    "shrink_and_add_noise": {},
    "dash": {"clear_state": True},
}


def learner_of(methods: Any, make: Make, model: nn.Module | None = None) -> rp.Learner:
    model = ZOO["mlp"].build() if model is None else model
    return rp.Learner(model, make(model.parameters()), methods=methods, loss=CE)


def refused(methods: Any, make: Make, model: nn.Module | None = None) -> str:
    with pytest.raises(TypeError) as caught:
        learner_of(methods, make, model)
    return str(caught.value)


@pytest.mark.parametrize("optimizer", [*NEVER, *NOT_UNITS])
@pytest.mark.parametrize("name", UNITS)
def test_unit_methods_say_at_once_which_optimisers_they_cannot_serve(name: str, optimizer: str) -> None:
    method = METHODS[name]()
    said = refused(method, (NEVER | NOT_UNITS)[optimizer])
    kind = optimizer.removeprefix("HuggingFace").partition(" ")[0]
    assert said.startswith(type(method).__name__)
    assert kind in said
    assert "torch.optim.SGD, Adam or AdamW" in said
    learner_of(method, ALWAYS["Adam"])  # nobody has taken it


@pytest.mark.parametrize("optimizer", NEVER)
@pytest.mark.parametrize("name", WHOLE)
def test_methods_of_whole_weights_say_so_too_unless_they_are_to_keep_the_state(name: str, optimizer: str) -> None:
    said = refused(METHODS[name](**WHOLE[name]), NEVER[optimizer])
    kind = type(METHODS[name]()).__name__
    assert said.startswith(kind)
    assert optimizer in said
    assert f"{kind}(clear_state=False)" in said
    learner_of(METHODS[name](**{**WHOLE[name], "clear_state": False}), NEVER[optimizer])


@pytest.mark.parametrize("optimizer", [*ALWAYS, *NOT_UNITS])
@pytest.mark.parametrize("name", WHOLE)
def test_state_of_rows_is_no_matter_for_methods_of_whole_weights(name: str, optimizer: str) -> None:
    learner_of(METHODS[name](**WHOLE[name]), (ALWAYS | NOT_UNITS)[optimizer])


@pytest.mark.parametrize("optimizer", ALWAYS)
@pytest.mark.parametrize("name", UNITS)
def test_an_optimiser_with_state_of_the_weights_shape_is_served_and_nothing_of_it_changes(name: str, optimizer: str) -> None:
    torch.manual_seed(0)
    model = ZOO["mlp"].build()
    trainer = ALWAYS[optimizer](model.parameters())
    before, weights = copy.deepcopy(trainer.state_dict()), copy.deepcopy(model.state_dict())
    rng = torch.get_rng_state()
    learner = rp.Learner(model, trainer, methods=CASES[name].make(), loss=CE)
    assert torch.equal(torch.get_rng_state(), rng)
    assert str(trainer.state_dict()) == str(before)
    assert all(torch.equal(one, weights[key]) for key, one in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    for step in range(6):
        learner.step(*ZOO["mlp"].batch(step))


def test_an_optimiser_that_cannot_be_tried_is_taken_on_trust() -> None:
    model = ZOO["mlp"].build()
    learner = rp.Learner(model, OfAModel(model), methods=rp.CBP(0.5, maturity=1), loss=CE)
    for step in range(4):
        learner.step(*ZOO["mlp"].batch(step))


@pytest.mark.parametrize("name", [*UNITS, *WHOLE])
def test_a_method_that_begins_later_says_so_when_it_begins(name: str) -> None:
    learner = learner_of(METHODS[name](**WHOLE.get(name, {}), from_task=1), NEVER["ASGD"])
    data = [ZOO["mlp"].batch()]
    tasks = [rp.Task(str(number), lambda generator: data, CE) for number in range(2)]
    learner.begin(tasks[0])
    learner.step(*data[0])
    before = copy.deepcopy(learner.model.state_dict())
    for _ in range(2):
        with pytest.raises(TypeError, match="ASGD"):
            learner.begin(tasks[1])
    assert learner.task_number == 0
    assert all(torch.equal(one, before[key]) for key, one in learner.model.state_dict().items())


def test_of_several_optimisers_those_count_that_train_what_is_cleared() -> None:
    class WithScale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.scale = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.scale(self.head(self.body(x).relu()).softmax(-1))

    def together(*layers: str) -> Callable[[WithScale], list[Optimizer]]:
        """Adafactor and ASGD for these, Adam for the rest."""

        def made(model: WithScale) -> list[Optimizer]:
            odd = {layer: model.get_submodule(layer).parameters() for layer in layers}
            rest = [one for name, one in model.named_parameters() if name.partition(".")[0] not in layers]
            kinds = [Adafactor, ASGD]
            return [Adam(rest), *(kind(params) for kind, params in zip(kinds, odd.values(), strict=False))]

        return made

    def learner(methods: Any, *layers: str) -> rp.Learner:
        model = WithScale()
        return rp.Learner(model, together(*layers)(model), methods=methods, loss=CE)

    for method in (rp.CBP, rp.ReDo, rp.SNR):
        learner(method(), "scale")
        for layer in ("body", "head"):
            with pytest.raises(TypeError, match=rf"^{method.__name__} .*Adafactor"):
                learner(method(), layer)
    learner(rp.LayerReset(where="body"), "head", "scale")
    with pytest.raises(TypeError, match=r"^LayerReset .*ASGD"):
        learner(rp.LayerReset(where="scale"), "head", "scale")


def test_a_part_of_a_weight_is_not_a_whole_weight() -> None:
    learner_of(rp.FIRE(where="linears"), NOT_UNITS["Adafactor"], ZOO["gpt"].build())
    said = refused(rp.FIRE(where="queries_and_keys"), NOT_UNITS["Adafactor"], ZOO["gpt"].build())
    assert "Adafactor" in said


def test_an_optimiser_that_cannot_be_renewed_is_refused_before_training() -> None:
    learner = learner_of([], NEVER["ASGD"])
    with pytest.raises(TypeError, match=r"^Training .*ASGD.*renew_optimizer=False"):
        EagerSteps(learner, Training(renew_optimizer=True))
    EagerSteps(learner, Training(renew_optimizer=False))


def test_trying_an_optimiser_calls_no_global_hooks() -> None:
    seen: list[str] = []
    hooks = [
        register_optimizer_step_pre_hook(lambda *arguments: seen.append("before")),
        register_optimizer_step_post_hook(lambda *arguments: seen.append("after")),
    ]
    try:
        learner = learner_of([METHODS["cbp"]()], Adam)
        assert not seen
        learner.step(*ZOO["mlp"].batch())
        assert seen == ["before", "after"]
    finally:
        for hook in hooks:
            hook.remove()
