"""Methods beside each other, layers that are frozen on the way, and what people hand to a learner by mistake."""

import copy
import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import replastic as rp
from replastic.methods.grids import GRIDS, points
from tests.test_methods_conform import CASES, STEPS, Run
from tests.zoo import ZOO, ActorCritic

CE = nn.functional.cross_entropy


def made(name: str) -> list[Any]:
    methods = CASES[name].make()
    return methods if isinstance(methods, list) else [methods]


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "plasticity_injection"])
def test_injection_beside_another_method_works_or_is_refused_at_once(name: str, order: str) -> None:
    injection, others = made("plasticity_injection"), made(name)
    methods = [*injection, *others] if order == "before" else [*others, *injection]
    if all(method.tree_may_change for method in others):
        after = Run(ZOO["cnn-bn"], methods).until(2 * STEPS).weights()
        assert all(tensor.isfinite().all() for tensor in after.values())
    else:
        with pytest.raises(ValueError, match="would lose track of them"):
            Run(ZOO["cnn-bn"], methods)


@pytest.mark.parametrize(
    "pair", [("muon", "redo"), ("hare_and_tortoise", "swr"), ("l2", "l2"), ("cbp", "snr"), ("fire", "dash")]
)
def test_two_methods_together_do_the_same_twice(pair: tuple[str, str]) -> None:
    def weights() -> dict[str, torch.Tensor]:
        return Run(ZOO["cnn-bn"], [*made(pair[0]), *made(pair[1])]).until(2 * STEPS).weights()

    one, other = weights(), weights()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", CASES)
def test_a_layer_that_is_frozen_between_tasks_is_left_alone(name: str) -> None:
    run = Run(ZOO["cnn-bn"], CASES[name].make()).until(STEPS)
    frozen = run.model[5].requires_grad_(False)
    before = copy.deepcopy(frozen.state_dict())
    try:
        run.until(2 * STEPS)
    except (RuntimeError, ValueError) as error:  # either is right: going on without it, or saying so
        assert re.search("make a new Learner of the changed model|no hidden units", str(error))  # noqa: PT017
    after = getattr(run.model, "5").state_dict()
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())


def test_a_step_in_a_loop_of_ones_own_makes_the_first_begin_a_boundary() -> None:
    model, method = ZOO["mlp"].build(), rp.FIRE()
    learner = rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=method)
    inputs, targets = ZOO["mlp"].batch()
    CE(model(inputs), targets).backward()
    learner.optimizer.step()
    learner.begin()
    assert method.report is not None


def test_a_boundary_that_fails_can_be_begun_again_and_nothing_was_done_twice() -> None:
    model = ZOO["mlp"].build()
    learner = rp.Learner(model, torch.optim.Adam(model.parameters()), methods=[rp.ShrinkAndPerturb(0.5), rp.DASH()])
    task = rp.Task("a", lambda generator: [ZOO["mlp"].batch()], CE)
    learner.begin(task)
    learner.step(*ZOO["mlp"].batch())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"learner\.begin\(rp\.Task"):
        learner.begin()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert learner.task_number == 0


def test_a_method_that_could_not_start_may_be_used_again() -> None:
    method, linear = rp.CBP(), nn.Linear(3, 2)
    with pytest.raises(ValueError, match="no hidden units"):
        rp.Learner(linear, torch.optim.SGD(linear.parameters()), methods=method)
    model = ZOO["mlp"].build()
    rp.Learner(model, torch.optim.SGD(model.parameters()), methods=method)


def learner(methods: Any = (), **given: Any) -> rp.Learner:
    model = ZOO["mlp"].build()
    return rp.Learner(model, torch.optim.Adam(model.parameters()), methods=methods, **{"loss": CE, **given})


def test_likely_mistakes_are_answered_with_what_to_type() -> None:
    model = ZOO["mlp"].build()
    adam = torch.optim.Adam(model.parameters())
    for wrong, message in (
        (lambda: rp.Learner(model, adam, build=lambda: model).fresh(), "returned the model that is being trained"),
        (
            lambda: rp.Learner(model, torch.optim.Adam(ZOO["mlp"].build().parameters())),
            r"make it from model\.parameters\(\)",
        ),
        (lambda: learner(loss=nn.CrossEntropyLoss), r"write loss=CrossEntropyLoss\(\)"),
        (lambda: learner(loss="cross_entropy"), "loss is a str"),
        (lambda: learner(build=model), r"build=lambda: MyModel\(\)"),
        (lambda: learner("cbp"), r"rp\.FIRE\(\)"),
        (lambda: learner([rp.l2_er]), r"write l2_er\(\)"),
        (lambda: learner().begin([1]), r"rp\.Task\(name, batches"),
        (lambda: rp.L2("1e-4"), "strength must be a number, not a str"),
        (lambda: rp.L2(True), "strength must be a number, not a bool"),
        (lambda: rp.ReDo(period=1.5), "period must be a whole number"),
        (lambda: learner(rp.FIRE(where="convs")), "neither a preset"),
        (lambda: learner(rp.LayerReset(where="zz")), "neither a preset"),
        (lambda: points("fire/warmstart"), "fire/warmstart.*fire/warm_start"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            wrong()


def test_a_method_without_a_moment_is_refused() -> None:
    @dataclass
    class Typo(rp.Method):
        def at_boundry(self, learner: rp.Learner, task: rp.Task | None) -> None: ...

    with pytest.raises(TypeError, match=r"would do nothing .did you mean at_boundary"):
        learner(Typo())


def test_a_dtype_that_is_changed_under_a_learner_is_noticed() -> None:
    changed = learner(rp.L2())
    changed.model.double()
    with pytest.raises(RuntimeError, match=r"dtype was changed from torch\.float32 to torch\.float64"):
        changed.begin()


def test_going_on_with_other_settings_warns() -> None:
    saved = learner(rp.CBP(0.1)).state_dict()
    with pytest.warns(UserWarning, match=r"CBP\(.*rate=0\.1.*CBP\(.*rate=0\.9"):
        learner(rp.CBP(0.9)).load_state_dict(saved)


def test_inputs_by_name_are_given_by_name() -> None:
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)

    def loss(output: Any, targets: torch.Tensor) -> torch.Tensor:
        return CE(output.logits.flatten(0, 1), targets.flatten())

    method = rp.ReDo(0.5, period=1)
    given = rp.Learner(model, torch.optim.Adam(model.parameters()), methods=method, loss=loss)  # it knows its own law
    before = model.transformer.h[0].mlp.c_fc.weight.clone()
    tokens = torch.randint(11, (2, 8))
    given.step({"input_ids": tokens}, tokens)
    assert ((model.transformer.h[0].mlp.c_fc.weight - before).abs() > 2e-3).any()  # twice Adam's step: units were recycled
    std = given.fresh().transformer.h[0].attn.c_attn.weight.std().item()
    assert std == pytest.approx(config.initializer_range, rel=0.2)


def test_grouped_queries_are_no_obstacle() -> None:
    config = LlamaConfig(
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        hidden_size=16,
        intermediate_size=24,
        vocab_size=32,
    )
    groups = rp.find_units(LlamaForCausalLM(config), {"input_ids": torch.zeros(1, 4, dtype=torch.long)}).groups
    assert [group.size for group in groups] == [24]


def test_all_heads_of_an_mlp_are_its_head() -> None:
    model = ActorCritic()
    before = copy.deepcopy(model.state_dict())
    given = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=rp.LayerReset())
    given.begin(), given.begin()
    changed = {
        name.partition(".")[0] for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])
    }
    assert changed == {"pi", "v"}


def test_a_frozen_backbone_survives_a_full_reset() -> None:
    model = ZOO["cnn-bn"].build()
    model[0].requires_grad_(False), model[1].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    given = rp.Learner(
        model, torch.optim.SGD(model[5].parameters()), methods=rp.FullReset("fresh"), build=ZOO["cnn-bn"].build
    )
    with torch.no_grad():
        model[1].running_mean.add_(1)
        before["1.running_mean"].add_(1)
    given.begin(), given.begin()
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith(("0.", "1.")))
    assert not torch.equal(after["5.weight"], before["5.weight"])


def test_the_tortoise_moves_in_half_precision() -> None:
    model = nn.Linear(2, 1, bias=False).bfloat16()
    with torch.no_grad():
        model.weight.zero_()
    method = rp.HareAndTortoise(0.999, period=10_000)
    given = rp.Learner(model, torch.optim.SGD(model.parameters()), methods=method)
    with torch.no_grad():
        model.weight.fill_(1)
    for _ in range(2000):
        given.after_step()
    expected = 1 - 0.999**2000
    assert method.tortoise(given).weight.float().mean().item() == pytest.approx(expected, abs=4e-3)  # bfloat16 at 0.86


@pytest.mark.parametrize("method", [lambda: rp.Parseval(0.1), lambda: rp.SpectralRegularisation(), lambda: rp.L2Init()])
def test_penalties_are_the_same_under_autocast(method: Any) -> None:
    def gradient(autocast: bool) -> torch.Tensor:
        torch.manual_seed(0)
        given = learner(method())
        with torch.no_grad():
            given.model[1].weight.mul_(2)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            penalty = given.penalty()
        penalty.backward()
        return given.model[1].weight.grad

    assert torch.equal(gradient(True), gradient(False))


def test_every_point_of_a_grid_can_be_made() -> None:
    for experiment in GRIDS:
        for name, settings in points(experiment):
            settings = {key: value for key, value in settings.items() if key != "learning_rate"}
            if name != "none" and "+" not in name:
                assert rp.METHODS[name](**settings)
