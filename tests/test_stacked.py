"""A stack of learners becomes what each of them becomes alone.

Models are in float64 here, and equal means within 1e-9: a product of many matrices at once adds up in another order than one
of a single matrix, which moves the last digits, and nothing else may.
"""

import copy
import io
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import replastic as rp
from replastic.learner import IndexedTask
from replastic.learner.task import batches_of
from replastic.models import CNN, MLP
from replastic.train.stacked.methods import StackedL2
from replastic.train.stacked.network import Stack
from replastic.workloads.images.tasks import ImageData, LabelledTask, Split, labelled_task, shuffled

SAMPLES, BATCH, CLASSES = 23, 2, 4  # the last batch of an epoch is an odd one
Make = Callable[[], list[rp.Method]]

ARMS: dict[str, Make] = {
    "BP": list,
    "L2": lambda: [rp.L2(1e-2)],
    "ER": lambda: [rp.ER(1e-2, every=3)],
    "L2-ER": lambda: rp.l2_er(1e-2, 1e-2, every=3),
    "CBP": lambda: [rp.CBP(rate=0.05, maturity=4, decay=0.9)],
    "FIRE": lambda: [rp.FIRE()],
    "L2 from task 1": lambda: [rp.L2(1e-2, from_task=1)],
    "CBP and ER from task 1": lambda: [
        rp.CBP(rate=0.05, maturity=4, decay=0.9, from_task=1),
        rp.ER(1e-2, every=4, from_task=1),
    ],
    "ER and shrink": lambda: [rp.ER(1e-2, every=5, layers=1), rp.ShrinkAndPerturb()],
}


def data_on(device: torch.device, samples: int = SAMPLES, seed: int = 0) -> ImageData:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (samples, 4, 4, 1), generator=generator, dtype=torch.uint8)
    split = Split(images, torch.randint(CLASSES, (samples,), generator=generator))
    return ImageData("noise", split, split, CLASSES, (0.5,), (0.25,)).to(device)


def task_of(
    data: ImageData, seed: int, *, dtype: torch.dtype = torch.float64, batch: int = BATCH, **options
) -> LabelledTask:
    """Pixels in an order of the seed's, and labels, too; a seed of 0 leaves the pixels as they are."""
    device = data.train.labels.device
    labels = torch.randint(CLASSES, (len(data.train),), generator=torch.Generator().manual_seed(seed)).to(device)
    examples = data.examples(data.train, labels=labels)
    pixels = shuffled(16, seed).to(device) if seed else None
    examples = replace(examples, shift=examples.shift.to(dtype), scale=examples.scale.to(dtype), pixels=pixels)
    return labelled_task(f"seed {seed}", examples, {"train": examples}, batch=batch, epochs=2, **options)


def learner_of(
    methods: list[rp.Method], device: torch.device, seed: int = 0, *, dtype: torch.dtype = torch.float64, **options
) -> rp.Learner:
    torch.manual_seed(seed)
    model = MLP(16, [12, 9], CLASSES).to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.05, **options})
    return rp.Learner(model, optimizer, methods=methods, seed=seed)


def order_of(task: int, epoch: int, member: int) -> Tensor:
    return shuffled(SAMPLES, 100 * task + 10 * epoch + member)


def alone(learner: rp.Learner, order: Tensor, clip: float | None) -> dict[str, Tensor]:
    """An epoch as a loop of one's own would go through it."""
    task = learner.task
    assert isinstance(task, LabelledTask)
    assert task.correct is not None
    loss = right = torch.zeros((), dtype=torch.float64, device=learner.device)
    for chosen in order.to(learner.device).split(task.batch_size):
        inputs, targets = task.samples.batch(chosen)
        with torch.no_grad():
            right = right + task.correct(learner.model.eval()(inputs), targets).sum()
        learner.model.train()
        loss = loss + learner.step(inputs, targets, clip=clip) * len(chosen)
    return {"loss": loss / len(order), "online_accuracy": right / len(order)}


def tensors_of(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value.detach()]
    if isinstance(value, dict):
        return [tensor for key in sorted(value, key=str) for tensor in tensors_of(value[key])]
    if isinstance(value, list | tuple):
        return [tensor for entry in value for tensor in tensors_of(entry)]
    return [torch.tensor(float(value), dtype=torch.float64)] if isinstance(value, int | float) else []


def assert_same(one: object, other: object, tolerance: float = 1e-9) -> None:
    pairs = list(zip(tensors_of(one), tensors_of(other), strict=True))
    assert pairs
    for mine, theirs in pairs:
        assert mine.shape == theirs.shape
        # CBP's utilities are kept in float32: the last digit of a float64 may be what they are rounded up or down by.
        close = max(tolerance, 1e-6 if mine.dtype == torch.float32 else 0)
        assert torch.allclose(mine.double(), theirs.double(), rtol=close, atol=close)


def assert_same_learner(one: rp.Learner, other: rp.Learner) -> None:
    """Weights, momenta, methods' states, counts and, bit for bit, the state of the random numbers."""
    mine, theirs = one.state_dict(), other.state_dict()
    assert torch.equal(mine.pop("generator"), theirs.pop("generator"))
    assert_same(mine, theirs)
    assert one.steps == other.steps > 0
    assert_same(one.batch, other.batch)


def train(
    stack: Stack, singles: list[rp.Learner], tasks: list[list[LabelledTask]], first: int = 0
) -> tuple[list[dict[str, Tensor]], list[list[dict[str, Tensor]]]]:
    """The same tasks in the same orders for both, two epochs each."""
    stacked, each = [], []
    for number, several in enumerate(tasks, start=first):
        stack.begin(several)
        for learner, task in zip(singles, several, strict=True):
            learner.begin(task)
        for epoch in range(2):
            orders = torch.stack([order_of(number, epoch, member) for member in range(len(several))])
            stacked.append(stack.epoch(orders))
            each.append([alone(learner, order, stack.clip) for learner, order in zip(singles, orders, strict=True)])
    return stacked, each


def assert_same_figures(stacked: list[dict[str, Tensor]], each: list[list[dict[str, Tensor]]], tolerance=1e-9) -> None:
    for together, separate in zip(stacked, each, strict=True):
        for name in ("loss", "online_accuracy"):
            assert_same(together[name], torch.stack([figures[name] for figures in separate]), tolerance)


def both(makes: list[Make], device: torch.device, clip: float | None, options: list[dict] | None = None):
    """A stack, and the same learners by themselves."""
    settings = options or [{} for _ in makes]
    stacked, singles = (
        [learner_of(make(), device, seed, **set_) for seed, (make, set_) in enumerate(zip(makes, settings, strict=True))]
        for _ in range(2)
    )
    return Stack(stacked, clip=clip), singles


@pytest.mark.slow
@pytest.mark.parametrize(("arm", "clip"), [*zip(ARMS, itertools.cycle([None, 0.5]), strict=False)])  # all are clipped below
def test_a_stack_of_one_arm_with_several_seeds_is_the_same_as_separate_runs(arm: str, clip, device: torch.device) -> None:
    stack, singles = both([ARMS[arm]] * 3, device, clip)
    data = data_on(device)
    stacked, each = train(stack, singles, [[task_of(data, 10 * number + seed) for seed in range(3)] for number in range(3)])
    assert_same_figures(stacked, each)
    for mine, single in zip(stack.learners, singles, strict=True):
        assert_same_learner(mine, single)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"momentum": 0.9, "weight_decay": 1e-2}, {"weight_decay": 1e-2}])
def test_all_arms_in_one_stack_are_the_same_as_separate_runs(options: dict, device: torch.device) -> None:
    # Apart on purpose: members with the same methods are then not neighbours.
    makes = [ARMS[name] for name in (*ARMS, *ARMS)]
    several = [{**options, "lr": 0.02 + 0.01 * number} if number % 2 else {} for number in range(len(makes))]
    stack, singles = both(makes, device, 0.5, several)
    data = data_on(device)
    tasks = [[task_of(data, 20 * number + member) for member in range(len(makes))] for number in range(2)]
    stacked, each = train(stack, singles, tasks)
    assert_same_figures(stacked, each)
    for mine, single in zip(stack.learners, singles, strict=True):
        assert_same_learner(mine, single)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "batch", "options"),
    [
        (ARMS, 1, {}),
        (["L2-ER"], 1, {}),
        (["BP", "L2-ER", "CBP"], BATCH, {}),
        (["BP", "L2"], 1, {"momentum": 0.9, "weight_decay": 1e-2}),
    ],
)
def test_a_compiled_stack_is_the_same_as_separate_runs(
    names: Iterable[str], batch: int, options: dict, device: torch.device
) -> None:
    makes = [ARMS[name] for name in names]
    stacked, singles = ([learner_of(make(), device, seed, **options) for seed, make in enumerate(makes)] for _ in range(2))
    data = data_on(device)
    tasks = [[task_of(data, 20 * number + member, batch=batch) for member in range(len(makes))] for number in range(2)]
    figures = train(Stack(stacked, clip=0.5, compiled=True), singles, tasks)
    assert_same_figures(*figures)
    for mine, single in zip(stacked, singles, strict=True):
        assert_same_learner(mine, single)


@pytest.mark.slow
@pytest.mark.parametrize(("clip", "strength"), [(None, 1e-2), (1e3, 1e-2), (0.5, 3.0)])
def test_single_samples_are_clipped_by_the_norm_of_loss_and_penalty_in_a_compiled_stack(
    clip: float | None, strength: float, device: torch.device
) -> None:
    makes = [list, lambda: [rp.L2(strength)], list, lambda: [rp.L2(strength / 2)]]
    stacked, singles = ([learner_of(make(), device, seed) for seed, make in enumerate(makes)] for _ in range(2))
    stack, data = Stack(stacked, clip=clip, compiled=True), data_on(device)
    figures = train(stack, singles, [[task_of(data, member, batch=1) for member in range(len(makes))]])
    assert_same_figures(*figures)
    for mine, single in zip(stacked, singles, strict=True):
        assert_same_learner(mine, single)


class Used(nn.Module):
    """Linear layers, and one that is used in another way than to be called once."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(16, 9), nn.Linear(9, 9), nn.Linear(9, CLASSES)
        self.norm = nn.LayerNorm(9) if how == "norm" else nn.Identity()
        self.other = nn.Linear(9, 9, bias=how != "no bias")
        self.how = how
        if how == "tied":
            self.other.weight = self.inner.weight
        if how == "frozen weight":
            self.other.weight.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.inner(self.first(inputs.flatten(1)).relu())).relu()
        if self.how == "called twice":
            hidden = self.inner(hidden).relu()
        if self.how == "read":
            hidden = hidden @ self.inner.weight
        return self.last(self.other(hidden).relu())


def using(how: str, device: torch.device, methods: list[rp.Method], seed: int = 0) -> rp.Learner:
    torch.manual_seed(seed)
    model = Used(how).to(device, torch.float64)
    return rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.05), methods=methods, seed=seed)


@pytest.mark.parametrize("how", ["once", "called twice", "tied", "read", "norm", "no bias", "frozen weight"])
def test_layers_that_are_called_once_and_nothing_else_have_gradients_of_rank_one(how: str, device: torch.device) -> None:
    stack, task = Stack([using(how, device, [])], compiled=True), task_of(data_on(device), 1, batch=1)
    assert stack.rank_one is not None
    with stack._lent() as weights:
        assert stack.rank_one.applies(weights, task) is (how == "once")
        assert not stack.rank_one.applies(weights, replace(task, batch_size=2))
        with torch.no_grad():
            assert stack.rank_one.applies(weights, task) is (how == "once")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["once", "called twice"])
def test_a_compiled_stack_learns_the_same_however_its_layers_are_used(how: str, device: torch.device) -> None:
    makes = [list, ARMS["L2"]]
    stacked, singles = ([using(how, device, make(), seed) for seed, make in enumerate(makes)] for _ in range(2))
    stack, data = Stack(stacked, clip=0.3, compiled=True), data_on(device)
    figures = train(stack, singles, [[task_of(data, member, batch=1) for member in range(2)]])
    assert_same_figures(*figures)
    for mine, single in zip(stacked, singles, strict=True):
        assert_same_learner(mine, single)


def test_the_norm_of_loss_and_penalty_is_exact_in_float32(device: torch.device) -> None:
    """Also where the penalty is as large as the gradient and against it."""
    torch.manual_seed(0)
    model = MLP(784, [300], 10).to(device)
    learner = rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=[rp.L2(1e-3)])
    stack = Stack([learner], clip=0.5, compiled=True)
    l2 = StackedL2(stack.members, next(model.parameters()))
    assert stack.rank_one is not None
    stack.rank_one.layers = ["1"]
    weight = 30 * torch.randn(300, 784, device=device) / (300 * 784) ** 0.5
    v, bias = torch.randn(784, device=device), torch.zeros(300, device=device)
    y = weight @ v
    for against in (0.0, 0.5, 1.0, 2.0):
        u = -against * 1e-3 * y / v.square().sum()  # at 1 the nearest to -λ W that a product of vectors can come
        gradient = torch.cat([u.double()[:, None] * v.double() + 1e-3 * weight.double(), u.double()[:, None]], 1)
        trained = {"1.weight": weight[None], "1.bias": bias[None]}
        found = stack.rank_one.norms(trained, {"1.bias": u[None]}, {"1": (v[None], y[None])}, l2)
        assert found.item() == pytest.approx(gradient.norm().item(), rel=1e-6)


@pytest.mark.slow
def test_a_compiled_stack_takes_tasks_of_many_sizes(device: torch.device) -> None:
    """Which is not to compile for each of them."""
    stack = Stack([learner_of([], device, seed) for seed in range(2)], compiled=True)
    with torch._dynamo.config.patch(recompile_limit=2):
        for samples in range(5, 12):
            stack.begin([task_of(data_on(device, samples), 1, batch=1)] * 2)
            stack.epoch(torch.arange(samples).expand(2, -1))


@pytest.mark.slow
def test_a_process_may_compile_many_stacks(device: torch.device) -> None:
    data = data_on(device)
    with torch._dynamo.config.patch(recompile_limit=2):
        for members in range(1, 5):
            learners = [learner_of([], device, seed) for seed in range(members)]
            stack = Stack(learners, compiled=True)
            stack.begin([task_of(data, 0, batch=1)] * members)
            stack.epoch(order_of(0, 0, 0)[:5].expand(members, -1))


def test_units_are_really_replaced_and_effective_rank_steps_taken(device: torch.device) -> None:
    makes = [list, ARMS["CBP"], ARMS["ER"], ARMS["L2"], ARMS["FIRE"]]
    stack = Stack([learner_of(make(), device) for make in makes])
    task = task_of(data_on(device), 1)
    first = [copy.deepcopy(learner.model.state_dict()) for learner in stack.learners]
    assert all(torch.equal(a, b) for other in first for a, b in zip(first[0].values(), other.values(), strict=True))
    for number in range(2):
        stack.begin([task] * len(makes))
        stack.epoch(order_of(number, 0, 0).expand(len(makes), -1))
    method = stack.learners[1].methods[0]
    assert method.state["step"] == 24
    assert (method.state["age"] < 24).any()
    plain = stack.learners[0].model[1].weight
    assert all(not torch.allclose(learner.model[1].weight, plain) for learner in stack.learners[1:])


def test_clipping_is_of_each_members_own_gradient(device: torch.device) -> None:
    stack, singles = both([list, lambda: [rp.L2(50.0)]], device, 0.1)
    task = task_of(data_on(device), 1)
    train(stack, singles, [[task, task]])
    free = Stack([learner_of([], device, 0)], clip=None)
    free.begin([task])
    for epoch in range(2):
        free.epoch(order_of(0, epoch, 0)[None])
    assert not torch.allclose(free.learners[0].model[1].weight, stack.learners[0].model[1].weight)  # it does clip
    for mine, single in zip(stack.learners, singles, strict=True):
        assert_same_learner(mine, single)


def test_learning_rates_are_read_at_every_epoch_and_may_lie_on_the_device(device: torch.device) -> None:
    stack, singles = both([list, list], device, None)
    data = data_on(device)
    tasks = [[task_of(data, 3), task_of(data, 4)]]
    train(stack, singles, tasks)
    for learner in (*stack.learners, *singles):
        learner.optimizer.param_groups[0]["lr"] = torch.tensor(0.2, dtype=torch.float64, device=device)
    train(stack, singles, tasks, first=1)
    for mine, single in zip(stack.learners, singles, strict=True):
        assert_same_learner(mine, single)


def test_parameter_groups_have_rates_of_their_own_and_frozen_parameters_stay(device: torch.device) -> None:
    def learner() -> rp.Learner:
        torch.manual_seed(0)
        model = MLP(16, [12, 9], CLASSES).to(device, torch.float64)
        model[3].weight.requires_grad_(False)
        groups = [
            {"params": [model[1].weight], "lr": 0.1, "momentum": 0.5},
            {"params": [model[1].bias, model[3].bias, model[5].weight, model[5].bias]},
        ]
        return rp.Learner(model, torch.optim.SGD(groups, lr=0.01), methods=[rp.L2(1e-2)])

    stack, singles = Stack([learner(), learner()], clip=0.5), [learner(), learner()]
    data = data_on(device)
    stacked, each = train(stack, singles, [[task_of(data, 3), task_of(data, 4)]])
    assert_same_figures(stacked, each)
    for mine, single in zip(stack.learners, singles, strict=True):
        assert_same_learner(mine, single)


def test_layers_that_are_frozen_between_epochs_are_so_in_a_stack(device: torch.device) -> None:
    arms = [ARMS[name] for name in ("L2-ER", "CBP")]
    stack, singles = both(arms, device, 0.5)
    data = data_on(device)
    tasks = [task_of(data, member) for member in range(len(arms))]
    train(stack, singles, [tasks])
    for epoch, (layer, trains) in enumerate([("1", False), ("1", True), ("5", False)]):
        kept = [learner.model.get_parameter("1.weight").clone() for learner in stack.learners]
        for learner in (*stack.learners, *singles):
            learner.model.get_submodule(layer).requires_grad_(trains)
        orders = torch.stack([order_of(1, epoch, member) for member in range(len(arms))])
        stack.epoch(orders)
        for learner, order in zip(singles, orders, strict=True):
            alone(learner, order, stack.clip)
        for mine, single, before in zip(stack.learners, singles, kept, strict=True):
            assert torch.equal(mine.model.get_parameter("1.weight"), before) == (epoch == 0)
            assert_same_learner(mine, single)


def test_convolutions_are_stacked_as_well(device: torch.device) -> None:
    def learner(seed: int, methods: list[rp.Method]) -> rp.Learner:
        torch.manual_seed(seed)
        model = CNN(1, 4, CLASSES, convolutions=1, kernel=3, channels=4, hidden=[12, 10]).to(device, torch.float64)
        return rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.05), methods=methods, seed=seed)

    arms = [list, ARMS["CBP"], ARMS["L2-ER"]]
    stacked, singles = ([learner(seed, make()) for seed, make in enumerate(arms)] for _ in range(2))
    stack, data = Stack(stacked, clip=0.5), data_on(device)
    train(stack, singles, [[task_of(data, 10 * number + seed) for seed in range(3)] for number in range(2)])
    for mine, single in zip(stack.learners, singles, strict=True):
        assert_same_learner(mine, single)


def test_members_may_learn_from_different_images(device: torch.device) -> None:
    stack, singles = both([list, ARMS["ER"], list], device, None)
    one, other = data_on(device), data_on(device, seed=7)
    stacked, each = train(stack, singles, [[task_of(one, 1), task_of(other, 1), task_of(other, 0)]])
    assert_same_figures(stacked, each)
    for mine, single in zip(stack.learners, singles, strict=True):
        assert_same_learner(mine, single)


def test_single_samples_and_float32_come_close_to_separate_runs(device: torch.device) -> None:
    """Batches of one, as online permuted MNIST has them. float32 has 7 digits, of which some are lost in 46 steps."""
    makes = [list, ARMS["L2"], ARMS["ER"], ARMS["CBP"]]
    stack, singles = both(makes, device, 0.5, [{"dtype": torch.float32, "lr": 0.01}] * len(makes))
    data = data_on(device)
    tasks = [[task_of(data, member, dtype=torch.float32, batch=1) for member in range(len(makes))]]
    stacked, each = train(stack, singles, tasks)
    assert_same_figures(stacked, each, 1e-3)
    for mine, single in zip(stack.learners, singles, strict=True):
        assert_same(mine.model.state_dict(), single.model.state_dict(), 1e-4)
        assert mine.model[1].weight.dtype == torch.float32


@pytest.mark.parametrize("when", ["before the stack is made", "after"])
def test_stopped_and_resumed_in_a_new_stack_is_the_same_as_never_stopped(when: str, device: torch.device) -> None:
    makes = [ARMS[name] for name in ARMS]
    data = data_on(device)
    tasks = [[task_of(data, 20 * number + member) for member in range(len(makes))] for number in range(2)]
    orders = [[torch.stack([order_of(n, e, m) for m in range(len(makes))]) for e in range(2)] for n in range(2)]
    first = Stack([learner_of(make(), device, seed, momentum=0.5) for seed, make in enumerate(makes)], clip=0.5)
    first.begin(tasks[0])
    first.epoch(orders[0][0])
    first.epoch(orders[0][1])
    first.begin(tasks[1])
    first.epoch(orders[1][0])
    saved = []
    for learner in first.learners:
        file = io.BytesIO()
        torch.save(learner.state_dict(), file)
        file.seek(0)
        saved.append(torch.load(file, weights_only=True))
    first.epoch(orders[1][1])

    learners = [learner_of(make(), device, 99, momentum=0.5) for make in makes]
    stack = Stack(learners, clip=0.5) if when == "after" else None
    for learner, state, task in zip(learners, saved, tasks[1], strict=True):
        learner.load_state_dict(state, task)
    stack = stack or Stack(learners, clip=0.5)
    stack.epoch(orders[1][1])
    for mine, other in zip(stack.learners, first.learners, strict=True):
        assert_same_learner(mine, other)


def test_a_member_is_evaluated_and_measured_as_the_separate_learner_is(device: torch.device) -> None:
    stack, singles = both([list, ARMS["CBP"]], device, 0.5)
    data = data_on(device)
    tasks = [task_of(data, 1), task_of(data, 2)]
    train(stack, singles, [tasks])
    for mine, single, task in zip(stack.learners, singles, tasks, strict=True):
        assert task.evaluate is not None
        assert task.evaluate(mine.model) == task.evaluate(single.model)
        inputs, _ = task.samples.batch(torch.arange(5, device=device))
        assert torch.allclose(mine.model(inputs), single.model(inputs), rtol=1e-9, atol=1e-9)


def test_between_epochs_a_learner_holds_its_own_memory_and_no_more(device: torch.device) -> None:
    learners = [learner_of(ARMS["CBP"](), device, seed, momentum=0.9) for seed in range(3)]
    stack = Stack(learners)
    stack.begin([task_of(data_on(device), 1)] * 3)
    pointers = [parameter.data_ptr() for parameter in learners[1].model.parameters()]
    momenta = None
    for epoch in range(2):
        stack.epoch(torch.stack([order_of(0, epoch, member) for member in range(3)]))
        assert [parameter.data_ptr() for parameter in learners[1].model.parameters()] == pointers
        state = learners[1].optimizer.state[learners[1].model[1].weight]["momentum_buffer"]
        assert momenta in (None, state.data_ptr())
        momenta = state.data_ptr()
        for tensor in (*learners[1].model.parameters(), state, learners[1].methods[0].state["utility"]):
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    assert learners[1].taps is not None
    assert not learners[1].taps.inputs


def test_what_was_learnt_before_something_went_wrong_stays_with_the_learners(device: torch.device) -> None:
    stack = Stack([learner_of(ARMS["CBP"](), device, momentum=0.9)])
    task = task_of(data_on(device), 1)
    stack.begin([task])
    learner, steps = stack.learners[0], 0
    before = learner.model[1].weight.detach().clone()

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    learner.reset_units = interrupted  # pyright: ignore
    with pytest.raises(KeyboardInterrupt):
        stack.epoch(order_of(0, 0, 0)[None])
    assert steps < learner.steps < 12
    assert not torch.equal(before, learner.model[1].weight)
    weight = learner.model[1].weight
    for tensor in (weight, learner.optimizer.state[weight]["momentum_buffer"]):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_the_step_of_a_boundary_follows_an_epoch_of_a_learner_that_never_began(device: torch.device) -> None:
    """A learner that was resumed into a task knows of no begin(), but it has taken steps."""
    learner = learner_of(ARMS["FIRE"](), device)
    task = task_of(data_on(device), 1)
    learner.load_state_dict(copy.deepcopy(learner.state_dict()), task)
    stack = Stack([learner])
    stack.epoch(order_of(0, 0, 0)[None])
    stack.begin([task])
    assert learner.task_number == 1


def test_models_that_are_not_alike_are_an_error_that_names_what_differs(device: torch.device) -> None:
    def learner(model: nn.Module) -> rp.Learner:
        model = model.to(device)
        return rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.1))

    with pytest.raises(ValueError, match=r"'1.weight'.*\(12, 16\).*learner 0.*\(8, 16\).*learner 1"):
        Stack([learner(MLP(16, [12], 4)), learner(MLP(16, [8], 4))])
    with pytest.raises(ValueError, match=r"ReLU\(\).*learner 0.*Tanh\(\).*learner 1"):
        Stack([learner(MLP(16, [12], 4)), learner(MLP(16, [12], 4, activation="tanh"))])
    with pytest.raises(ValueError, match=r"float32.*learner 0.*float64.*learner 1"):
        Stack([learner(MLP(16, [12], 4)), learner(MLP(16, [12], 4).double())])
    frozen = learner(MLP(16, [12], 4))
    frozen.model[1].bias.requires_grad_(False)
    with pytest.raises(ValueError, match=r"'1.bias'.*learner 0.*frozen.*learner 1"):
        Stack([learner(MLP(16, [12], 4)), frozen])
    with pytest.raises(TypeError, match=r"'1'.*BatchNorm1d"):
        Stack([learner(nn.Sequential(nn.Linear(16, 4), nn.BatchNorm1d(4)))])
    with pytest.raises(TypeError, match=r"'1'.*Dropout\(0.5\).*\bp\b.*\b0\b"):
        Stack([learner(nn.Sequential(nn.Linear(16, 4), nn.Dropout(0.5)))])
    with pytest.raises(ValueError, match=r"\b0 learners"):
        Stack([])
    with pytest.raises(ValueError, match=r"\b2 learners"):
        Stack([frozen, frozen])
    with pytest.raises(ValueError, match=r"clip=0"):
        Stack([frozen], clip=0)


def test_optimisers_and_methods_that_cannot_be_stacked_are_an_error_that_says_to_train_alone() -> None:
    model = MLP(16, [12], 4)
    adam = rp.Learner(model, torch.optim.Adam(model.parameters()))
    with pytest.raises(TypeError, match=r"SGD.*\bAdam\b"):
        Stack([adam])
    nesterov = learner_of([], torch.device("cpu"), momentum=0.9, nesterov=True)
    with pytest.raises(ValueError, match="nesterov=True"):
        Stack([nesterov])
    part = rp.Learner(model, torch.optim.SGD(model[1].parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"'3\.weight'"):
        Stack([part])
    with pytest.raises(TypeError, match="ReDo"):
        Stack([learner_of([rp.ReDo()], torch.device("cpu"))])
    with pytest.raises(TypeError, match="L2Init"):
        Stack([learner_of([rp.L2Init()], torch.device("cpu"))])
    with pytest.raises(ValueError, match="ER, CBP"):
        Stack([learner_of([rp.ER(), rp.CBP()], torch.device("cpu"))])


def test_tasks_that_cannot_be_stacked_are_an_error() -> None:
    device = torch.device("cpu")
    stack = Stack([learner_of([], device, seed) for seed in range(2)])
    data = data_on(device)
    one = task_of(data, 1)
    with pytest.raises(TypeError, match=r"NoneType.*stack\.begin"):
        stack.epoch(torch.zeros(2, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"\b1 task.*\b2 learners"):
        stack.begin([one])
    with pytest.raises(TypeError, match=r"\bTask\b.*stack\.begin\(tasks\)"):
        stack.begin([one, rp.Task("plain", one.batches, one.loss)])  # pyright: ignore
    with pytest.raises(ValueError, match=r"\b2\b.*\b23\b.*learner 1\b.*\b3\b.*\b23\b"):
        stack.begin([one, task_of(data, 1, batch=3)])
    assert all(learner.task is None for learner in stack.learners)  # none was begun
    stack.begin([one, task_of(data, 1, allowed=torch.tensor([True, True, True, False]))])
    with pytest.raises(ValueError, match=r"'seed 1'.*learner 1\b.*'seed 1'.*learner 0\b"):
        stack.epoch(torch.zeros(2, 5, dtype=torch.int64))


def test_orders_of_another_shape_or_out_of_range_are_an_error() -> None:
    stack = Stack([learner_of([], torch.device("cpu"), seed) for seed in range(2)])
    stack.begin([task_of(data_on(torch.device("cpu")), 1)] * 2)
    for orders in (torch.zeros(5).long(), torch.zeros(3, 5).long(), torch.zeros(2, 5), torch.zeros(2, 0).long()):
        with pytest.raises(ValueError, match=r"orders.*int64.*\(2 members, samples\)"):
            stack.epoch(orders)
    with pytest.raises(ValueError, match=r"orders.*\b0\b.*\b23\b.*\b23 samples"):
        stack.epoch(torch.arange(24).expand(2, -1))


def test_a_method_that_changes_the_models_modules_is_found_out_at_the_next_epoch() -> None:
    stack = Stack([learner_of([rp.PlasticityInjection()], torch.device("cpu"))])
    task = task_of(data_on(torch.device("cpu")), 1)
    orders = order_of(0, 0, 0)[None]
    stack.begin([task])
    stack.epoch(orders)
    stack.begin([task])
    with pytest.raises(RuntimeError, match=r"models.*stack"):
        stack.epoch(orders)


class Rows:
    """Samples that are no images: rows of numbers."""

    def __init__(self, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.inputs, self.targets = torch.randn(20, 6, generator=draw), torch.randint(3, (20,), generator=draw)
        self.device = self.inputs.device

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[chosen], self.targets[chosen]


def test_a_stack_learns_samples_that_are_no_images_as_each_learner_alone_does() -> None:
    def task_of_rows(seed: int) -> IndexedTask:
        rows, loss = Rows(seed), nn.functional.cross_entropy
        return IndexedTask("rows", batches_of(rows, 3), loss, samples=rows, tests={}, batch_size=3)

    def learner(seed: int) -> rp.Learner:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
        return rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=rp.L2(1e-3))

    together, alone = ([learner(seed) for seed in (1, 2)] for _ in range(2))
    tasks = [task_of_rows(3), task_of_rows(4)]
    stack = Stack(together)
    stack.begin(tasks)
    stack.epoch(torch.stack([task.order(torch.Generator().manual_seed(5)) for task in tasks]))
    for single, task, mine in zip(alone, tasks, together, strict=True):
        single.begin(task)
        for inputs, targets in task.batches(torch.Generator().manual_seed(5)):
            single.step(inputs, targets)
        for here, there in zip(mine.model.parameters(), single.model.parameters(), strict=True):
            assert torch.allclose(here, there, atol=1e-6)  # up to the order of sums
