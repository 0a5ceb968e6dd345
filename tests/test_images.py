"""Images as tensors: what a batch is, in which order it comes, and how a model is tested on it."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import replastic.workloads.images.tasks as images_module
from replastic.learner import Learner
from replastic.methods import FIRE, ShrinkAndPerturb
from replastic.workloads.images import Examples, ImageData, LabelledTask, Split, labelled_task
from replastic.workloads.images.tasks import means

HEIGHT, WIDTH, CHANNELS = 3, 4, 2
FIRST_TEST, FIRST_VALIDATION = 1000, 2000  # an image's number tells which split it is from


def numbered(count: int, first: int = 0, shape: tuple[int, int, int] = (HEIGHT, WIDTH, CHANNELS)) -> Tensor:
    """Random images, each with its number in its first two pixels."""
    images = torch.randint(256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(first))
    numbers = torch.arange(first, first + count)
    images[:, 0, 0, 0], images[:, 0, 1, 0] = (numbers % 256).byte(), (numbers // 256).byte()
    return images


def make_data(
    train: int = 40, test: int = 20, classes: int = 5, *, validation: int = 0, device: torch.device | str = "cpu"
) -> ImageData:
    """Data in which every image can be recognised; the label of a sample is its number modulo the classes."""
    splits = [
        Split(numbered(count, first), torch.arange(first, first + count) % classes)
        for count, first in ((train, 0), (test, FIRST_TEST), (validation, FIRST_VALIDATION))
    ]
    data = ImageData("numbers", splits[0], splits[1], classes, (0.4, 0.6), (0.2, 0.3), splits[2] if validation else None)
    return data.to(device)


def bytes_of(images: Tensor, data: ImageData) -> Tensor:
    """Normalised images (batch, channels, height, width) as the bytes they were, (batch, height, width, channels)."""
    mean, std = (torch.tensor(values, device=images.device).view(-1, 1, 1) for values in (data.mean, data.std))
    return ((images * std + mean) * 255).round().byte().permute(0, 2, 3, 1)


def numbers_of(images: Tensor, data: ImageData) -> Tensor:
    """Which images these are."""
    pixels = bytes_of(images, data).long()
    return (pixels[:, 0, 0, 0] + 256 * pixels[:, 0, 1, 0]).cpu()


def numbers_in(examples: Examples, data: ImageData) -> Tensor:
    """Which images these examples are, in their order."""
    return numbers_of(examples.batch(torch.arange(len(examples), device=examples.labels.device))[0], data)


class Oracle(nn.Module):
    """Answers what its table says of an image's number, and keeps the numbers that it was asked about."""

    def __init__(self, data: ImageData, answers: Tensor, outputs: int | None = None) -> None:
        super().__init__()
        self.data, self.answers, self.outputs, self.asked = data, answers, outputs or data.classes, []

    def forward(self, images: Tensor) -> Tensor:
        numbers = numbers_of(images, self.data)
        self.asked.append(numbers.tolist())
        return F.one_hot(self.answers[numbers], self.outputs).float().to(images.device)


def all_of(data: ImageData) -> Examples:
    return data.examples(data.train)


def task_of(data: ImageData, batch: int = 7, allowed: Tensor | None = None) -> LabelledTask:
    tests = {"test": data.examples(data.test)}
    return labelled_task("all", all_of(data), tests, batch=batch, epochs=1, allowed=allowed)


def epoch(task: LabelledTask, data: ImageData, seed: int) -> list[int]:
    """The numbers of the images of one epoch, in the order in which they come."""
    batches = task.batches(torch.Generator().manual_seed(seed))
    return [number for images, _ in batches for number in numbers_of(images, data).tolist()]


# what a batch is


def test_a_batch_is_the_bytes_over_255_less_the_mean_over_the_deviation(device: torch.device) -> None:
    data = make_data(device=device)
    chosen = torch.tensor([3, 0, 39, 3], device=device)
    images, labels = all_of(data).batch(chosen)
    plain = data.train.images[chosen].permute(0, 3, 1, 2).float() / 255
    mean, std = torch.tensor([0.4, 0.6], device=device), torch.tensor([0.2, 0.3], device=device)
    expected = (plain - mean[:, None, None]) / std[:, None, None]
    # Values up to 3, and three roundings in each of the two forms.
    torch.testing.assert_close(images, expected, rtol=0, atol=2e-6)
    assert images.dtype == torch.float32
    assert labels.tolist() == [3, 0, 4, 3]


@pytest.mark.parametrize("kind", ["as stored", "from channels first", "pixels shuffled"])
def test_a_batch_has_its_channels_last_in_memory(kind: str, device: torch.device) -> None:
    data = make_data(device=device)
    examples = all_of(data)
    if kind == "from channels first":
        stored = data.train.images.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
        assert not stored.is_contiguous()
        examples = Examples(stored, examples.index, examples.labels, examples.shift, examples.scale)
    if kind == "pixels shuffled":
        order = torch.randperm(HEIGHT * WIDTH, device=device)
        examples = Examples(data.train.images, examples.index, examples.labels, examples.shift, examples.scale, order)
    images, _ = examples.batch(torch.arange(5, device=device))
    assert images.shape == (5, CHANNELS, HEIGHT, WIDTH)
    assert images.is_contiguous(memory_format=torch.channels_last)
    if kind == "from channels first":
        assert numbers_of(images, data).tolist() == [0, 1, 2, 3, 4]


def test_examples_are_the_indexed_samples_under_their_own_or_given_labels() -> None:
    data = make_data()
    index = torch.tensor([7, 2, 30])
    images, labels = data.examples(data.train, index).batch(torch.tensor([2, 0]))
    assert numbers_of(images, data).tolist() == [30, 7]
    assert labels.tolist() == [0, 2]
    _, labels = data.examples(data.train, index, torch.tensor([4, 4, 1])).batch(torch.tensor([2, 0]))
    assert labels.tolist() == [1, 4]


def test_an_index_and_labels_from_the_cpu_serve_data_on_any_device(device: torch.device) -> None:
    data = make_data(device=device)
    examples = data.examples(data.train, torch.tensor([5, 9]), torch.tensor([1, 0]))
    images, labels = examples.batch(torch.tensor([1], device=device))
    assert images.device.type == labels.device.type == device.type
    assert numbers_of(images, data).tolist() == [9]
    assert labels.tolist() == [0]


def test_tasks_share_the_images_in_memory() -> None:
    data = make_data()
    part = data.examples(data.train, torch.tensor([1, 2]))
    assert part.images.data_ptr() == all_of(data).images.data_ptr() == data.train.images.data_ptr()


# in which order


@settings(max_examples=30, deadline=None)
@given(samples=st.integers(1, 30), batch=st.integers(1, 35), seed=st.integers(0, 2**40))
def test_an_epoch_has_every_sample_once_in_batches_of_equal_size_but_the_last(samples: int, batch: int, seed: int) -> None:
    data = make_data(train=samples)
    pieces = [*task_of(data, batch).batches(torch.Generator().manual_seed(seed))]
    found = [numbers_of(images, data) for images, _ in pieces]
    assert sorted(torch.cat(found).tolist()) == list(range(samples))
    assert [len(numbers) for numbers in found] == [batch] * (samples // batch) + [samples % batch] * (samples % batch > 0)
    for numbers, (_, labels) in zip(found, pieces, strict=True):
        assert labels.tolist() == (numbers % 5).tolist()


def test_the_order_comes_from_the_generator_alone_and_leaves_torchs_own_alone(device: torch.device) -> None:
    data = make_data(device=device)
    task = task_of(data)
    first = epoch(task, data, seed=3)
    before = torch.get_rng_state()
    assert epoch(task_of(data, batch=11), data, seed=3) == first
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert epoch(task, data, seed=3) == first
    assert epoch(task, data, seed=4) != first
    assert epoch(task_of(make_data()), make_data(), seed=3) == first  # wherever the data lie


def test_epochs_of_one_generator_differ_and_an_unfinished_one_does_not_change_the_next() -> None:
    data = make_data()
    task = task_of(data)
    whole, broken_off = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    first = [numbers_of(images, data).tolist() for images, _ in task.batches(whole)]
    assert numbers_of(next(iter(task.batches(broken_off)))[0], data).tolist() == first[0]
    second = [numbers_of(images, data).tolist() for images, _ in task.batches(whole)]
    assert second != first
    assert [numbers_of(images, data).tolist() for images, _ in task.batches(broken_off)] == second


def test_order_is_the_order_of_the_batches(device: torch.device) -> None:
    data = make_data(device=device)
    task = task_of(data)
    order = task.order(torch.Generator().manual_seed(5))
    assert order.device.type == "cpu"  # where the generator is
    assert order.tolist() == epoch(task, data, seed=5)


def test_a_generator_of_the_device_serves_as_well(device: torch.device) -> None:
    data = make_data(device=device)
    batches = task_of(data).batches(torch.Generator(device).manual_seed(0))
    assert sorted(number for images, _ in batches for number in numbers_of(images, data).tolist()) == list(range(40))


def test_learners_with_different_methods_see_the_samples_in_the_same_order() -> None:
    data = make_data()
    tasks = [task_of(data), task_of(data)]

    def seen_with(methods: list[Any], seed: int, peek: bool) -> list[list[int]]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 5))
        learner = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), methods=methods, seed=seed)
        generator, numbers = torch.Generator().manual_seed(42), []
        for task in tasks:
            learner.begin(task)
            if peek:
                next(iter(task.batches(learner.data_generator())))
            for images, labels in task.batches(generator):
                numbers.append(numbers_of(images, data).tolist())
                learner.step(images, labels)
        return numbers

    plain = seen_with([], seed=0, peek=False)
    assert len({tuple(numbers) for numbers in plain}) == 12
    assert seen_with([FIRE()], seed=1, peek=False) == plain
    assert seen_with([ShrinkAndPerturb()], seed=2, peek=True) == plain


# validation


def test_images_as_pixels_go_from_0_to_1_and_are_otherwise_the_same() -> None:
    data = make_data()
    inputs, labels = data.as_pixels().examples(data.train).batch(torch.arange(40))
    assert torch.allclose(inputs.permute(0, 2, 3, 1) * 255, data.train.images.float(), atol=1e-4)
    assert torch.equal(labels, data.train.labels)


@settings(max_examples=20, deadline=None)
@given(samples=st.integers(1, 39), seed=st.integers(0, 1000))
def test_held_out_images_and_those_still_learnt_are_all_training_images_each_once(samples: int, seed: int) -> None:
    data = make_data()
    held = data.hold_out(samples, seed)
    assert held.validation is not None
    kept, apart = (numbers_in(held.examples(split), held) for split in (held.train, held.validation))
    assert len(apart) == samples
    assert sorted(kept.tolist() + apart.tolist()) == list(range(40))
    assert torch.equal(held.train.labels, kept % 5)
    assert torch.equal(held.validation.labels, apart % 5)
    assert len(data.train) == 40
    assert data.validation is None
    assert torch.equal(held.test.images, data.test.images)


def test_the_seed_alone_decides_what_is_held_out(device: torch.device) -> None:
    def chosen(seed: int, device: torch.device | str) -> Tensor:
        held = make_data(device=device).hold_out(10, seed)
        assert held.validation is not None
        return held.validation.images.cpu()

    assert torch.equal(chosen(1, "cpu"), chosen(1, device))
    assert not torch.equal(chosen(1, "cpu"), chosen(2, "cpu"))


@pytest.mark.parametrize("samples", [0, 40, -1, 0.5])
def test_holding_out_none_or_all_is_an_error(samples: Any) -> None:
    with pytest.raises(ValueError, match=rf"validation={samples}: .*\b40\b"):
        make_data().hold_out(samples, 0)


def test_holding_out_twice_is_an_error_because_the_first_would_be_lost() -> None:
    with pytest.raises(ValueError, match=r"numbers.*\b10 validation"):
        make_data().hold_out(10, 0).hold_out(5, 0)


# how a model is tested


def network() -> nn.Sequential:
    """With layers that do otherwise in training."""
    return nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(24, 5))


@pytest.mark.parametrize("at_once", [1, 7, 20, 1000])
def test_accuracy_is_that_of_a_plain_loop_in_evaluation_mode(
    at_once: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images_module, "_EVALUATED_AT_ONCE", at_once)  # 20 samples: 7 leaves a last batch of 6
    data = make_data(device=device)
    torch.manual_seed(1)  # with 0 the new network is right nowhere
    model = network().to(device).train()
    with torch.no_grad():
        model(all_of(data).batch(torch.arange(40, device=device))[0])  # running statistics that are not those of a new layer
    found = task_of(data).evaluate(model)  # type: ignore[misc]

    right = 0
    model.eval()
    for number in range(20):
        image, label = data.examples(data.test).batch(torch.tensor([number], device=device))
        right += int(model(image).argmax(1) == label)
    assert 0 < right < 20
    value = found["test_accuracy"]
    assert isinstance(value, Tensor)
    assert value.device.type == device.type
    assert float(value) == pytest.approx(right / 20, abs=1e-7)


@settings(max_examples=20, deadline=None)
@given(samples=st.integers(1, 40), data_seed=st.integers(0, 100))
def test_accuracy_is_the_share_of_right_answers(samples: int, data_seed: int) -> None:
    data = make_data(test=samples)
    answers = torch.randint(5, (FIRST_TEST + samples,), generator=torch.Generator().manual_seed(data_seed))
    right = int((answers[FIRST_TEST:] == data.test.labels).sum())
    oracle = Oracle(data, answers)
    found = task_of(data).evaluate(oracle)  # type: ignore[misc]
    assert {name: round(float(value) * samples, 4) for name, value in found.items()} == {"test_accuracy": right}
    assert [number for asked in oracle.asked for number in asked] == list(range(FIRST_TEST, FIRST_TEST + samples))


@pytest.mark.parametrize("training", [True, False])
def test_testing_leaves_every_module_in_its_mode_and_all_state_and_randomness_as_they_were(training: bool) -> None:
    data, model = make_data(), network().train(training)
    model[1].train(not training)  # a norm that was frozen by itself
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    task_of(data).evaluate(model)  # type: ignore[misc]
    assert [module.training for module in model] == [training, not training, *[training] * 4]
    assert model.training is training
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_test_that_fails_leaves_the_modes_as_they_were() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Linear(3, 3)).train()
    model[0].eval()
    with pytest.raises(RuntimeError):
        task_of(make_data()).evaluate(model)  # type: ignore[misc]
    assert [model.training, *(module.training for module in model)] == [True, False, True]


def test_testing_on_nothing_is_an_error() -> None:
    data = make_data()
    nothing = data.examples(data.test, torch.tensor([], dtype=torch.int64))
    with pytest.raises(ValueError, match="test"):
        means(network(), nothing, {"accuracy": lambda outputs, targets: (outputs.argmax(1) == targets).sum()})
    with pytest.raises(ValueError, match=r"'all'.*test.*\b40\b"):
        labelled_task("all", all_of(data), {"test": nothing}, batch=7, epochs=1)


# classes that do not count


def test_classes_that_are_not_allowed_change_neither_loss_nor_accuracy_and_get_no_gradient(device: torch.device) -> None:
    data = make_data(device=device)
    allowed = torch.tensor([True, False, True, True, False], device=device)
    task = task_of(data, allowed=allowed)
    outputs = torch.randn(6, 5, device=device)
    targets = torch.tensor([0, 2, 3, 0, 2, 3], device=device)
    huge = outputs.clone()
    huge[:, 1], huge[:, 4] = 1e30, 1e4
    huge.requires_grad_()
    loss = task.loss(huge, targets)
    loss.backward()
    assert huge.grad is not None
    assert not huge.grad[:, ~allowed].any()
    assert huge.grad[:, allowed].all()
    # The same as a network that has the other outputs only; the order of three additions may differ.
    places = torch.tensor([0, -1, 1, 2, -1], device=device)[targets]
    torch.testing.assert_close(loss.detach(), F.cross_entropy(outputs[:, allowed], places))
    assert task.correct is not None
    assert torch.equal(task.correct(huge, targets), outputs[:, allowed].argmax(1) == places)

    open_task = task_of(data)
    assert open_task.correct is not None
    assert open_task.loss(huge, targets) > 1e29
    assert not open_task.correct(huge, targets).any()


def test_samples_of_a_class_that_is_not_allowed_are_never_right() -> None:
    data = make_data()
    task = task_of(data, allowed=torch.tensor([True, True, False, True, True]))
    found = task.evaluate(Oracle(data, torch.arange(3000) % 5))  # type: ignore[misc]
    assert float(found["test_accuracy"]) == pytest.approx(16 / 20)


@pytest.mark.parametrize("outputs", [1, 4])
def test_a_model_with_another_number_of_outputs_than_classes_is_an_error_where_they_are_masked(outputs: int) -> None:
    task = task_of(make_data(), allowed=torch.ones(5, dtype=torch.bool))
    with pytest.raises(ValueError, match=rf"\b{outputs} outputs.*\b5 classes"):
        task.loss(torch.zeros(3, outputs), torch.zeros(3, dtype=torch.int64))


# bad input


GOOD = torch.zeros(4, 3, 3, 1, dtype=torch.uint8)
LABELS = torch.arange(4)


@pytest.mark.parametrize(
    ("images", "labels", "says"),
    [
        (GOOD.float(), LABELS, r"images are torch.float32 of shape \(4, 3, 3, 1\): .* bytes"),
        (GOOD[..., 0], LABELS, r"shape \(4, 3, 3\): .* bytes \(samples, height, width, channels\)"),
        (GOOD, LABELS[:3], r"labels are torch.int64 of shape \(3,\) for 4 images"),
        (GOOD, LABELS.int(), r"labels are torch.int32 .* one int64 each"),
        (GOOD, LABELS[:, None], r"of shape \(4, 1\)"),
        (GOOD, LABELS.to("meta"), "images are on cpu and labels on meta"),
    ],
)
def test_images_or_labels_of_the_wrong_kind_are_an_error(images: Tensor, labels: Tensor, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Split(images, labels)


def small_data(**changed: Any) -> ImageData:
    split = Split(GOOD, LABELS)
    settings: dict[str, Any] = {"name": "four", "train": split, "test": split, "classes": 4, "mean": (0.0,), "std": (1.0,)}
    return ImageData(**(settings | changed))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"classes": 3}, "four: train labels go from 0 to 3, and there are 3 classes"),
        ({"test": Split(GOOD, LABELS + 1)}, "test labels go from 1 to 4, and there are 4"),
        ({"validation": Split(GOOD, LABELS - 1)}, "validation labels go from -1 to 2"),
        ({"mean": (0.0, 0.0)}, "2 means and 1 deviations for 1 channels"),
        ({"std": (1.0, 1.0, 1.0)}, "1 means and 3 deviations for 1 channels"),
        ({"std": (0.0,)}, r"std=\(0.0,\).* positive number"),
        ({"std": (float("nan"),)}, "positive number"),
        ({"test": Split(GOOD[:, :2], LABELS)}, r"test images are \(2, 3, 1\) on cpu, .* train images \(3, 3, 1\) on cpu"),
        ({"test": Split(GOOD.expand(4, 3, 3, 3), LABELS)}, r"test images are \(3, 3, 3\)"),
        ({"test": Split(GOOD.to("meta"), LABELS.to("meta"))}, "on meta, .* train images .* on cpu: .*all splits"),
    ],
)
def test_data_that_do_not_fit_together_are_an_error(changed: dict[str, Any], says: str) -> None:
    small_data()
    with pytest.raises(ValueError, match=says):
        small_data(**changed)


def test_a_task_without_samples_or_with_a_batch_of_none_is_an_error() -> None:
    data = make_data()
    with pytest.raises(ValueError, match="'none'"):
        labelled_task("none", data.examples(data.train, torch.tensor([], dtype=torch.int64)), {}, batch=1, epochs=1)
    for batch in (0, -1, 2.5):
        with pytest.raises(ValueError, match=rf"batch={batch}:"):
            labelled_task("all", all_of(data), {}, batch=batch, epochs=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="epochs=0"):
        labelled_task("all", all_of(data), {}, batch=1, epochs=0)


def test_data_tell_their_shape_and_move_with_all_their_splits(device: torch.device) -> None:
    data = make_data(validation=5).to(device)
    assert data.shape == (CHANNELS, HEIGHT, WIDTH)
    assert [*data.splits()] == ["train", "validation", "test"]
    assert {split.images.device.type for split in data.splits().values()} == {device.type}
    assert {split.labels.device.type for split in data.splits().values()} == {device.type}
    assert [len(split) for split in data.splits().values()] == [40, 5, 20]


def test_data_and_tasks_are_compared_as_the_objects_they_are() -> None:
    data = make_data()
    copy = Split(data.train.images.clone(), data.train.labels.clone())
    assert data.train != copy  # and no "truth value of a tensor is ambiguous"
    assert data in [make_data(), data]
    assert len({task_of(data), task_of(data)}) == 2
