"""A few steps of training on a model of the zoo, plain, or stopped and resumed."""

import io
from collections.abc import Callable

import torch
from torch import Tensor, nn

import replastic as rp
from tests.zoo import ZOO

Make = Callable[[], rp.Method | list[rp.Method]]


def learner_of(animal: str, methods: Make, seed: int = 0) -> rp.Learner:
    torch.manual_seed(seed)
    model = ZOO[animal].build()
    return rp.Learner(model, torch.optim.Adam(model.parameters(), lr=1e-2), methods=methods(), loss=ZOO[animal].loss)


def take_steps(learner: rp.Learner, animal: str, steps: int, start: int = 0) -> rp.Learner:
    for number in range(start, start + steps):
        learner.step(*ZOO[animal].batch(number))
    return learner


def weights(learner: rp.Learner) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}


def trained(animal: str, methods: Make, steps: int = 3) -> dict[str, Tensor]:
    return weights(take_steps(learner_of(animal, methods), animal, steps))


def stopped_and_resumed(animal: str, methods: Make, before: int, after: int) -> rp.Learner:
    """Through a file, into a learner whose own first weights and randomness are others."""
    file = io.BytesIO()
    torch.save(take_steps(learner_of(animal, methods), animal, before).state_dict(), file)
    file.seek(0)
    learner = learner_of(animal, methods, seed=99)
    learner.load_state_dict(torch.load(file, weights_only=True))
    return take_steps(learner, animal, after, start=before)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def finite(found: dict[str, Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in found.values())


def penalty_and_gradients(learner: rp.Learner) -> tuple[Tensor, dict[str, Tensor]]:
    """Of the methods' penalty alone, for every trainable parameter."""
    learner.model.zero_grad()
    penalty = learner.penalty()
    assert isinstance(penalty, Tensor)
    penalty.backward()
    zero = {name: torch.zeros_like(parameter) for name, parameter in learner.parameters.items()}
    return penalty.detach(), {n: p.grad if p.grad is not None else zero[n] for n, p in learner.parameters.items()}


def moved(model: nn.Module, by: float = 0.1, seed: int = 1) -> None:
    """Put every parameter somewhere else, as training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise.to(parameter), alpha=by)
