"""A training step written out by hand, and every form of it that the package has.

Captured steps are compared with eager ones in test_capture.py, and stacks, which cannot call a learner's step, in
test_stacked.py.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic import Learner, Method, Task
from replastic.integrations.attached import Attached
from replastic.learner import Batch
from replastic.measures import from_scratch_gap
from replastic.models import MLP
from replastic.models.parts import Norm
from replastic.train import Training, train

CE = nn.functional.cross_entropy
CLIP = 0.05  # below the norm of every step here
METHODS: dict[str, Callable[[], list[Method]]] = {
    "none": list,
    "regularisers": lambda: [rp.L2(0.1), rp.Parseval(0.1)],
    "the batch": lambda: [rp.ER(0.1, every=2)],
    "weights": lambda: [rp.SWR(0.1)],
    "units": lambda: [rp.CBP(0.5, maturity=2)],
    "several": lambda: [rp.ER(0.1, every=3), rp.SWR(0.1), rp.L2(0.1), rp.CBP(0.5, maturity=2), rp.WeightClipping(1.0)],
}
BATCHES = [(torch.randn(12, 6), torch.randint(4, (12,))) for _ in range(7)]
TASK = Task("one", lambda generator: BATCHES, CE)


def learner_of(methods: list[Method], norm: Norm = "batch") -> Learner:
    torch.manual_seed(0)
    model = MLP(6, (9, 8), 4, norm=norm)
    return Learner(model, torch.optim.Adam(model.parameters(), lr=0.03), methods=methods, loss=CE)


def by_hand(learner: Learner) -> list[Tensor]:
    model, optimizer, losses = learner.model, learner.optimizer, []
    for inputs, targets in BATCHES:
        loss = CE(model(inputs), targets)
        penalties = [method.penalty(learner) for method in learner.methods if method.overrides("penalty")]
        optimizer.zero_grad()
        (loss + sum(penalties)).backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), CLIP) > CLIP
        optimizer.step()
        learner.batch = Batch(inputs, targets)
        for method in learner.methods:
            method.after_step(learner)
        losses.append(loss.detach())
    return losses


def by_step(learner: Learner) -> list[Tensor]:
    return [learner.step(*batch, clip=CLIP) for batch in BATCHES]


def by_halves(learner: Learner) -> list[Tensor]:
    losses = []
    for inputs, targets in BATCHES:
        losses.append(learner.backward(CE(learner.model(inputs), targets), clip=CLIP))
        learner.apply((inputs, targets))
    return losses


def by_moments(learner: Learner) -> list[Tensor]:
    """A loop that calls backward() and the optimiser itself."""
    losses = []
    for inputs, targets in BATCHES:
        losses.append(CE(learner.model(inputs), targets))
        learner.optimizer.zero_grad()
        (losses[-1] + learner.penalty((inputs, targets))).backward()
        nn.utils.clip_grad_norm_(learner.trained(), CLIP)
        learner.optimizer.step()
        learner.after_step()
    return losses


def by_train(learner: Learner) -> list[Tensor]:
    (_, row) = train(learner, [TASK], Training(renew_optimizer=False, clip=CLIP, path="eager"))
    return [torch.tensor(row.read()["loss"])]


FORMS = {"step": by_step, "backward and apply": by_halves, "penalty and after_step": by_moments, "train": by_train}


def check_same(one: nn.Module, other: nn.Module, rtol: float = 0, atol: float = 0) -> None:
    for (name, mine), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("methods", METHODS)
@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_step_that_is_written_by_hand(form: str, methods: str) -> None:
    expected, learner = learner_of(METHODS[methods]()), learner_of(METHODS[methods]())
    losses, found = by_hand(expected), FORMS[form](learner)
    check_same(learner.model, expected.model)
    if len(found) > 1:
        assert torch.equal(torch.stack(found), torch.stack(losses))
    else:
        assert found[0].item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-6)
    assert learner.steps == len(BATCHES)
    assert learner.taps is None or not learner.taps.inputs


@pytest.mark.parametrize("methods", METHODS)
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_attached_to_a_loop_that_scales_its_loss_it_is_the_same_step(scale: float, methods: str) -> None:
    expected, other = learner_of(METHODS[methods](), norm="none"), learner_of([], norm="none")
    by_hand(expected)
    model, optimizer = other.model, other.optimizer
    attached = Attached(METHODS[methods]() or rp.FIRE())
    attached.attach(model, optimizer)
    for inputs, targets in BATCHES:
        optimizer.zero_grad()
        (scale * CE(model(inputs), targets)).backward()
        attached.add_penalty_(scale)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= scale
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        attached.after_step((inputs, targets))
    exact = methods != "regularisers"  # else the gradients of two penalties and a loss are added up in another order
    check_same(model, expected.model, *(() if exact else (1e-4, 1e-5)))


def test_a_compiled_step_is_the_same_step() -> None:
    expected, learner = (learner_of(METHODS["weights"](), norm="none") for _ in range(2))
    by_hand(expected)
    rows = list(train(learner, [TASK], Training(renew_optimizer=False, clip=CLIP, path="compiled")))
    assert rows[-1].known["path"] == "compiled"
    check_same(learner.model, expected.model, 1e-4, 1e-5)


def loss_that_tells(outputs: Tensor, targets: Tensor) -> Tensor:
    return CE(outputs, targets) + (1.0 if torch.compiler.is_compiling() else 0.0)


@pytest.mark.slow
def test_a_loss_is_compiled_if_it_is_a_function_of_a_module_and_nothing_else_needs_the_outputs() -> None:
    def of_this_task(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss_that_tells(outputs, targets)

    def correct(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.argmax(1) == targets

    def loss_of(task: Task, path: Any) -> float:
        return [*train(learner_of([]), [task], Training(renew_optimizer=False, path=path))][-1].read()["loss"]

    eager = loss_of(Task("eager", lambda generator: BATCHES, loss_that_tells), "eager")
    compiled = Task("compiled", lambda generator: BATCHES, loss_that_tells)
    assert loss_of(compiled, "compiled") == pytest.approx(eager + 1, rel=1e-5)
    for task in (
        Task("its own", lambda generator: BATCHES, of_this_task),
        Task("counts", lambda generator: BATCHES, loss_that_tells, correct=correct),
    ):
        assert loss_of(task, "compiled") == pytest.approx(eager, rel=1e-5)


def test_a_comparison_with_a_new_network_takes_the_same_steps() -> None:
    expected = learner_of([])
    start, ends = copy.deepcopy(expected.model), []
    losses = by_hand(expected)
    task = Task("one", lambda generator: BATCHES, CE, lambda model: {"end": float(len(ends.append(model) or ends))})
    gap = from_scratch_gap(
        start, task, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.03), steps=len(BATCHES), clip=CLIP
    )
    assert gap.continued_losses == (tuple(torch.stack(losses).tolist()),)
    check_same(ends[0], expected.model)


@pytest.mark.parametrize("methods", ["none", "regularisers", "the batch", "weights"])
def test_micro_batches_add_up_to_their_batch(methods: str) -> None:
    expected, learner = (learner_of(METHODS[methods](), norm="none") for _ in range(2))
    losses, found = by_hand(expected), []

    def parts(inputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        for part in range(3):
            yield CE(learner.model(inputs[part::3]), targets[part::3]) / 3

    for batch in BATCHES:
        found.append(learner.backward(parts(*batch), batch, clip=CLIP))
        learner.apply()
    torch.testing.assert_close(torch.stack(found), torch.stack(losses), rtol=1e-4, atol=1e-5)
    check_same(learner.model, expected.model, 1e-3, 1e-4)
    assert learner.steps == len(BATCHES)


def test_each_micro_batch_is_backpropagated_before_the_next_is_computed() -> None:
    learner = learner_of([rp.L2(0.1)])
    before, norms = learner.step(*BATCHES[0]), []  # leaves gradients that must not count

    def parts() -> Iterator[Tensor]:
        for batch in itertools.islice(BATCHES, 3):
            gradients = [parameter.grad for parameter in learner.model.parameters() if parameter.grad is not None]
            norms.append(sum(float(gradient.abs().sum()) for gradient in gradients))
            yield CE(learner.model(batch[0]), batch[1])

    loss = learner.backward(parts())
    assert norms[0] == 0 < norms[1] != norms[2]
    assert not loss.requires_grad
    assert loss > before


@pytest.mark.parametrize("method", [rp.SWR(0.1), rp.L2(0.1)])
def test_without_a_loss_there_is_no_step(method: Method) -> None:
    learner = learner_of([copy.deepcopy(method)])
    with pytest.raises(ValueError, match="backward"):
        learner.backward(iter([]))


@pytest.mark.parametrize(
    ("loss", "clip", "says"),
    [
        (lambda outputs: 1.5, None, "float"),
        (lambda outputs: outputs, None, r"\(12, 4\)"),
        (lambda outputs: outputs.detach().sum(), None, "requires_grad_"),
        (lambda outputs: outputs.sum(), -1.0, r"clip=-1\.0"),
        (lambda outputs: outputs.sum(), 0, "clip=0"),
    ],
)
def test_what_has_no_gradient_or_no_norm_is_refused(loss: Callable[[Tensor], Any], clip: float | None, says: str) -> None:
    learner = learner_of([])
    with pytest.raises((TypeError, ValueError), match=says):
        learner.backward(loss(learner.model(BATCHES[0][0])), clip=clip)


def test_steps_are_counted_and_methods_called_where_an_epoch_is_over_at_once() -> None:
    """As a stack does, which makes the updates of many learners by itself."""
    learner = learner_of(METHODS["weights"]())
    learner.end_steps(5, Batch(*BATCHES[0]))
    assert (learner.steps, learner.batch) == (5, BATCHES[0])
    learner.begin()
    assert learner.task_number == 1
