"""Protocols: every sample where it belongs, in an order that the seed decides."""

import dataclasses
import itertools
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from replastic.workloads.images import PROTOCOLS, ImageData, LabelledTask, Split
from tests.test_images import FIRST_TEST, FIRST_VALIDATION, HEIGHT, WIDTH, Oracle, bytes_of, make_data, numbered, numbers_in

SMALL: dict[str, dict[str, Any]] = {
    "single": {"epochs": 2},
    "warm_start": {"fraction": 0.25, "epochs": [3, 2]},
    "continual": {"chunks": 4, "epochs": 2},
    "class_incremental": {"phases": 3, "epochs": 2},
    "permuted_pixels": {"tasks": 3, "batch": 8},
    "random_labels": {"tasks": 3, "samples": 30, "epochs": 2},
    "class_pairs": {"tasks": 4, "epochs": 2},
    "label_noise": {"noise": [0.5, 0.25, 0.0], "epochs": [1, 2, 3]},
}
TESTS_TRAINING = ["single", "warm_start", "continual", "class_incremental", "permuted_pixels", "class_pairs", "label_noise"]
TRUTH = torch.arange(3000) % 5  # the label of each number in `make_data`
ANY_SEED = st.integers(0, 2**31)


def stream_of(name: str, data: ImageData, seed: int = 0, **changed: Any) -> list[LabelledTask]:
    return PROTOCOLS[name](data, seed=seed, **(SMALL[name] | changed))


def learnt(task: LabelledTask, data: ImageData) -> list[int]:
    """The numbers of the samples that a task learns."""
    return numbers_in(task.samples, data).tolist()


def asked_of(task: LabelledTask, data: ImageData) -> dict[str, list[int]]:
    """The numbers of the samples that a task is tested on, by the name of the figure."""
    oracle = Oracle(data, TRUTH)
    assert task.evaluate is not None
    names = [*task.evaluate(oracle)]
    return dict(zip(names, oracle.asked, strict=True))


def accuracies(task: LabelledTask, model: nn.Module) -> dict[str, float]:
    assert task.evaluate is not None
    return {name: float(value) for name, value in task.evaluate(model).items()}


def contents(stream: list[LabelledTask]) -> list[Any]:
    """All that a stream's seed decides, to be compared."""
    return [
        (
            task.name,
            task.epochs,
            task.samples.index.tolist(),
            task.samples.labels.tolist(),
            None if task.samples.pixels is None else task.samples.pixels.tolist(),
            [labels.tolist() for _, labels in task.batches(torch.Generator().manual_seed(7))],
        )
        for task in stream
    ]


# what holds for all


def test_every_protocol_has_a_small_case() -> None:
    assert [*SMALL] == [*PROTOCOLS]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_seed_alone_decides_the_tasks(name: str, device: torch.device) -> None:
    before = torch.get_rng_state()
    first = contents(stream_of(name, make_data(), seed=3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(123)
    assert contents(stream_of(name, make_data(device=device), seed=3)) == first
    assert (contents(stream_of(name, make_data(), seed=4)) == first) is (name == "single")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_stream_gives_the_same_batches_however_often_and_in_whatever_order_its_tasks_are_used(name: str) -> None:
    stream = stream_of(name, make_data())
    assert contents(stream[::-1])[::-1] == contents(stream)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_what_is_learnt_is_training_data_and_what_is_tested_on_is_not(name: str) -> None:
    data = make_data(validation=10)
    for task in stream_of(name, data):
        if task.samples.pixels is not None:
            continue  # its own test reads shuffled images
        assert set(learnt(task, data)) <= set(range(40))
        assert len(set(learnt(task, data))) == len(task.samples)
        splits = asked_of(task, data) if name != "class_pairs" else {}  # likewise
        for figure, first, last in [
            ("test_accuracy", FIRST_TEST, FIRST_TEST + 20),
            ("full_accuracy", FIRST_TEST, FIRST_TEST + 20),
            ("validation_accuracy", FIRST_VALIDATION, FIRST_VALIDATION + 10),
        ]:
            assert set(splits.get(figure, [])) <= set(range(first, last))


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("validation", [0, 10])
def test_figures_are_named_after_what_they_are_of(name: str, validation: int) -> None:
    data = make_data(validation=validation)
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 5))
    expected = {"test_accuracy"} | ({"validation_accuracy"} if validation else set())
    expected |= {"full_accuracy"} if name == "class_incremental" else set()
    if name == "random_labels":
        expected = {"train_accuracy"}
    assert all(accuracies(task, model).keys() == expected for task in stream_of(name, data))
    if name in TESTS_TRAINING:
        stream = stream_of(name, data, train_accuracy=True)
        assert all(accuracies(task, model).keys() == expected | {"train_accuracy"} for task in stream)


@pytest.mark.parametrize("name", [name for name in TESTS_TRAINING if name not in ("permuted_pixels", "class_pairs")])
def test_the_training_figure_is_of_the_very_samples_that_are_learnt(name: str) -> None:
    data = make_data()
    for task in stream_of(name, data, train_accuracy=True):
        assert asked_of(task, data)["train_accuracy"] == learnt(task, data)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_model_can_learn_and_be_tested_where_the_data_lie(name: str, device: torch.device) -> None:
    data = make_data(validation=10, device=device)
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 5)).to(device)
    options = {"masked": True} if name == "class_incremental" else {}
    for task in stream_of(name, data, **options):
        images, labels = next(iter(task.batches(torch.Generator().manual_seed(0))))
        assert images.device.type == labels.device.type == device.type
        loss = task.loss(model(images), labels)
        assert loss.isfinite()
        assert all(0 <= value <= 1 for value in accuracies(task, model).values())


@pytest.mark.parametrize("name", PROTOCOLS)
def test_batches_have_the_size_asked_for(name: str) -> None:
    for task in stream_of(name, make_data(), batch=3):
        sizes = [len(labels) for _, labels in task.batches(torch.Generator())]
        assert set(sizes[:-1]) <= {3}
        assert sum(sizes) == len(task.samples)
        assert task.batch_size == 3


# one task, and warm start


def test_single_is_one_task_of_all_training_data() -> None:
    data = make_data()
    (task,) = stream_of("single", data)
    assert learnt(task, data) == list(range(40))
    assert torch.equal(task.samples.labels, TRUTH[:40])
    assert task.epochs == 2
    assert asked_of(task, data) == {"test_accuracy": list(range(FIRST_TEST, FIRST_TEST + 20))}
    assert accuracies(task, Oracle(data, TRUTH)) == {"test_accuracy": 1.0}


@settings(max_examples=30, deadline=None)
@given(samples=st.integers(2, 60), fraction=st.floats(0.05, 0.95), seed=ANY_SEED)
def test_warm_start_sees_a_part_of_the_right_size_and_then_everything(samples: int, fraction: float, seed: int) -> None:
    data = make_data(train=samples)
    assume(0 < round(fraction * samples) < samples)
    part, whole = stream_of("warm_start", data, seed, fraction=fraction)
    first = learnt(part, data)
    assert len(first) == len(set(first)) == round(fraction * samples)
    assert sorted(learnt(whole, data)) == list(range(samples))
    assert set(first) < set(learnt(whole, data))
    for task in (part, whole):
        assert torch.equal(task.samples.labels, TRUTH[learnt(task, data)])
    assert (part.epochs, whole.epochs) == (3, 2)


def test_the_part_that_is_seen_first_is_a_random_one() -> None:
    data = make_data()
    parts = [frozenset(learnt(stream_of("warm_start", data, seed)[0], data)) for seed in range(20)]
    assert len(set(parts)) > 15
    assert frozenset.union(*parts) == set(range(40))


# chunks


@settings(max_examples=30, deadline=None)
@given(samples=st.integers(1, 40), part=st.floats(0, 1), seed=ANY_SEED)
def test_chunks_are_disjoint_of_equal_size_and_cover_everything(samples: int, part: float, seed: int) -> None:
    data, chunks = make_data(train=samples), max(1, round(part * samples))
    limited = [learnt(task, data) for task in stream_of("continual", data, seed, chunks=chunks, access="limited")]
    assert len(limited) == chunks
    assert sorted(number for chunk in limited for number in chunk) == list(range(samples))  # each once
    sizes = [len(chunk) for chunk in limited]
    assert max(sizes) - min(sizes) <= 1
    full = [learnt(task, data) for task in stream_of("continual", data, seed, chunks=chunks)]
    for number, seen in enumerate(full):
        assert seen == [sample for chunk in limited[: number + 1] for sample in chunk]


def test_chunks_keep_their_labels_and_come_in_random_order() -> None:
    data = make_data()
    for task in stream_of("continual", data, access="limited"):
        assert torch.equal(task.samples.labels, TRUTH[learnt(task, data)])
        assert sorted(learnt(task, data)) != list(range(min(learnt(task, data)), max(learnt(task, data)) + 1))
    assert [task.name for task in stream_of("continual", data)] == ["chunk 1", "chunk 2", "chunk 3", "chunk 4"]


# classes, one after the other


@settings(max_examples=25, deadline=None)
@given(classes=st.integers(1, 8), part=st.floats(0, 1), seed=ANY_SEED, masked=st.booleans())
def test_each_phase_has_all_samples_of_the_classes_so_far_and_no_other(
    classes: int, part: float, seed: int, masked: bool
) -> None:
    data = make_data(train=24, test=16, classes=classes)
    phases = max(1, round(part * classes))
    stream = stream_of("class_incremental", data, seed, phases=phases, masked=masked)
    assert len(stream) == phases
    before: set[int] = set()
    added: list[int] = []
    for task in stream:
        seen = set(task.samples.labels.tolist())
        assert before < seen
        added.append(len(seen - before))
        assert task.new is not None
        assert set(task.new.nonzero().flatten().tolist()) == seen - before
        assert learnt(task, data) == [number for number in range(24) if number % classes in seen]
        assert torch.equal(task.samples.labels, torch.tensor(learnt(task, data)) % classes)
        everything = list(range(FIRST_TEST, FIRST_TEST + 16))
        of_seen = [n for n in everything if n % classes in seen]
        oracle = Oracle(data, torch.arange(3000) % classes)
        assert task.evaluate is not None
        assert [*task.evaluate(oracle)] == ["test_accuracy", "full_accuracy"]
        assert oracle.asked == [of_seen, everything]
        assert task.name == f"{len(seen)} classes"
        before = seen
    assert before == set(range(classes))
    assert max(added) - min(added) <= 1


def test_seen_accuracy_is_on_seen_classes_and_full_accuracy_on_all() -> None:
    data = make_data()
    task = stream_of("class_incremental", data, phases=5)[1]
    seen = task.samples.labels.unique()
    knows = torch.where(torch.isin(TRUTH, seen), TRUTH, (TRUTH + 1) % 5)  # right on what was seen, wrong elsewhere
    assert accuracies(task, Oracle(data, knows)) == {"test_accuracy": 1.0, "full_accuracy": pytest.approx(0.4)}
    assert accuracies(task, Oracle(data, (TRUTH + 1) % 5))["full_accuracy"] == 0


@pytest.mark.parametrize("masked", [True, False])
def test_outputs_of_classes_to_come_count_only_if_they_are_not_masked(masked: bool, device: torch.device) -> None:
    data = make_data(device=device)
    task = stream_of("class_incremental", data, phases=5, masked=masked)[1]
    seen = task.samples.labels.unique().tolist()
    unseen = [number for number in range(5) if number not in seen]
    _, labels = task.samples.batch(torch.arange(16, device=device))
    assert set(labels.tolist()) == set(seen)
    outputs = torch.randn(16, 5, device=device)
    louder = outputs.clone()
    louder[:, unseen] = 1e6
    louder.requires_grad_()
    loss = task.loss(louder, labels)
    loss.backward()
    assert louder.grad is not None
    assert task.correct is not None
    if masked:
        assert torch.equal(loss.detach(), task.loss(outputs, labels))
        assert torch.equal(task.correct(louder, labels), task.correct(outputs, labels))
        assert not louder.grad[:, unseen].any()
        assert louder.grad[:, seen].all()
    else:
        assert loss > 1e5
        assert not task.correct(louder, labels).any()
        assert louder.grad[:, unseen].any()


def test_masks_open_with_the_classes_until_all_count() -> None:
    data = make_data()
    for task in stream_of("class_incremental", data, phases=5, masked=True):
        seen = task.samples.labels.unique().tolist()
        outputs = torch.zeros(1, 5, requires_grad=True)
        task.loss(outputs, torch.tensor([seen[0]])).backward()
        assert outputs.grad is not None
        assert outputs.grad.nonzero()[:, 1].tolist() == (seen if len(seen) > 1 else [])


def test_masked_full_accuracy_counts_samples_of_unseen_classes_as_wrong() -> None:
    data = make_data()
    task = stream_of("class_incremental", data, phases=5, masked=True)[0]
    assert accuracies(task, Oracle(data, TRUTH)) == {"test_accuracy": 1.0, "full_accuracy": pytest.approx(0.2)}


# shuffled pixels


def _keep(kept: list[Tensor], module: nn.Module, inputs: tuple[Tensor]) -> None:
    kept.append(inputs[0])


@pytest.mark.parametrize("channels", [1, 3])
def test_undoing_a_permutation_gives_the_images_of_training_and_test_alike(channels: int, device: torch.device) -> None:
    def split(count: int, first: int) -> Split:
        return Split(numbered(count, first, (HEIGHT, WIDTH, channels)), torch.arange(count) % 5)

    # Channels are normalised apart, so a pixel that lost its colour would come out otherwise.
    mean, std = ((0.1, 0.5, 0.9)[:channels], (0.2, 0.5, 0.8)[:channels])
    data = ImageData("colours", split(12, 0), split(6, FIRST_TEST), 5, mean, std).to(device)
    for task in stream_of("permuted_pixels", data, train_accuracy=True):
        order = task.samples.pixels
        assert order is not None
        assert sorted(order.tolist()) == list(range(HEIGHT * WIDTH))
        assert order.tolist() != list(range(HEIGHT * WIDTH))
        given_images: list[Tensor] = []
        model = nn.Sequential(nn.Flatten(), nn.Linear(channels * HEIGHT * WIDTH, 5)).to(device)
        model.register_forward_pre_hook(partial(_keep, given_images))
        assert [*accuracies(task, model)] == ["test_accuracy", "train_accuracy"]
        learnt_images, labels = task.samples.batch(torch.arange(12, device=device))
        assert torch.equal(labels, data.train.labels)
        for images, original in [
            (learnt_images, data.train.images),
            (given_images[0], data.test.images),
            (given_images[1], data.train.images),
        ]:
            found = bytes_of(images, data)
            assert not torch.equal(found, original)
            undone = found.flatten(1, 2)[:, order.argsort()].view_as(found)
            assert torch.equal(undone, original)


def test_every_task_has_a_permutation_of_its_own_and_all_of_the_data() -> None:
    data = make_data()
    stream = stream_of("permuted_pixels", data, tasks=10)
    assert len({tuple(task.samples.pixels.tolist()) for task in stream if task.samples.pixels is not None}) == 10
    assert all(torch.equal(task.samples.index, torch.arange(40)) for task in stream)
    assert all(torch.equal(task.samples.labels, TRUTH[:40]) for task in stream)


def test_a_longer_stream_begins_with_the_shorter_one() -> None:
    for name in ("permuted_pixels", "random_labels", "class_pairs"):
        data = make_data()
        assert contents(stream_of(name, data, tasks=5))[:2] == contents(stream_of(name, data, tasks=2))


# random labels


def test_random_labels_are_new_ones_for_the_same_images() -> None:
    data = make_data()
    stream = stream_of("random_labels", data, tasks=5)
    assert len({tuple(learnt(task, data)) for task in stream}) == 1
    assert len(set(learnt(stream[0], data))) == 30
    assert len({tuple(task.samples.labels.tolist()) for task in stream}) == 5
    for task in stream:
        answers = TRUTH.clone()
        answers[learnt(task, data)] = task.samples.labels
        assert accuracies(task, Oracle(data, answers)) == {"train_accuracy": 1.0}
        assert accuracies(task, Oracle(data, TRUTH))["train_accuracy"] < 0.6
    assert len(stream_of("random_labels", data, samples=None)[0].samples) == 40
    assert len(stream_of("random_labels", data, samples=40)[0].samples) == 40


def test_random_labels_are_uniform_and_know_nothing_of_the_true_ones() -> None:
    data = make_data(train=500)
    labels = torch.stack([task.samples.labels for task in stream_of("random_labels", data, samples=500, tasks=20)])
    truth = TRUTH[learnt(stream_of("random_labels", data, samples=500)[0], data)]
    # 10,000 draws: counts of 2000 with a deviation of 40, those of pairs 400 with one of 20; five of these are never left.
    assert (torch.bincount(labels.flatten(), minlength=5) - 2000).abs().max() < 200
    pairs = torch.bincount((5 * truth + labels).flatten(), minlength=25)
    assert (pairs - 400).abs().max() < 100


# pairs of classes


@settings(max_examples=25, deadline=None)
@given(classes=st.integers(2, 7), each=st.integers(2, 7), seed=ANY_SEED)
def test_classes_are_dealt_out_each_once_a_deck_and_called_by_their_place(classes: int, each: int, seed: int) -> None:
    assume(each <= classes)
    data = make_data(train=21, test=14, classes=classes)
    a_deck = classes // each
    stream = stream_of("class_pairs", data, seed, tasks=3 * a_deck, classes=each)
    hands = []
    for task in stream:
        hand = [int(word.rstrip(",")) for word in task.name.split()[1:]]
        assert len(set(hand)) == each
        numbers = learnt(task, data)
        assert numbers == [number for number in range(21) if number % classes in hand]
        assert task.samples.labels.tolist() == [hand.index(number % classes) for number in numbers]
        place = torch.tensor([hand.index(number % classes) if number % classes in hand else 0 for number in range(3000)])
        oracle = Oracle(data, place, outputs=each)
        assert accuracies(task, oracle) == {"test_accuracy": 1.0}
        assert oracle.asked == [[n for n in range(FIRST_TEST, FIRST_TEST + 14) if n % classes in hand]]
        hands.append(hand)
    for deck in range(3):
        dealt = [number for hand in hands[deck * a_deck : (deck + 1) * a_deck] for number in hand]
        assert len(set(dealt)) == len(dealt) == a_deck * each
        if classes % each == 0:
            assert sorted(dealt) == list(range(classes))


def test_decks_are_shuffled_anew() -> None:
    data = make_data(classes=4)
    stream = stream_of("class_pairs", data, tasks=40)
    assert len({(stream[i].name, stream[i + 1].name) for i in range(0, 40, 2)}) > 5


# label noise


@settings(max_examples=25, deadline=None)
@given(noise=st.lists(st.floats(0, 1), min_size=1, max_size=4), seed=ANY_SEED)
def test_wrong_labels_are_the_share_asked_for_and_among_those_of_noisier_tasks(noise: list[float], seed: int) -> None:
    data = make_data(classes=5)
    stream = stream_of("label_noise", data, seed, noise=noise, epochs=[1] * len(noise))
    shares, changed = sorted(noise), []
    by_share = sorted(zip(noise, stream, strict=True), key=lambda pair: pair[0])
    for share, task in by_share:
        assert learnt(task, data) == list(range(40))
        wrong = (task.samples.labels != TRUTH[:40]).nonzero().flatten().tolist()
        assert len(wrong) <= round(share * 40)
        changed.append((set(wrong), task.samples.labels))
        assert accuracies(task, Oracle(data, TRUTH)) == {"test_accuracy": 1.0}  # tests are clean
    for (fewer, quiet), (more, loud) in itertools.pairwise(changed):
        assert fewer <= more
        assert all(quiet[sample] == loud[sample] for sample in fewer)
    if shares[0] == 0:
        assert not changed[0][0]


def test_noise_falls_short_of_its_share_only_where_a_drawn_label_happens_to_be_the_true_one() -> None:
    data = make_data(train=900, test=5)
    clean = data.train.labels.clone()
    half, whole = stream_of("label_noise", data, noise=[0.5, 1.0], epochs=[1, 1])
    # One draw in five agrees: of 450, 360 wrong with a deviation of 8.5; of 900, 720 with 12. Five of these are never left.
    assert abs(int((half.samples.labels != clean).sum()) - 360) < 43
    assert abs(int((whole.samples.labels != clean).sum()) - 720) < 60
    assert (torch.bincount(whole.samples.labels, minlength=5) - 180).abs().max() < 60
    assert torch.equal(data.train.labels, clean)  # the data themselves stay clean
    assert [task.name for task in (half, whole)] == ["noise 0.5", "noise 1"]
    assert [task.epochs for task in stream_of("label_noise", data)] == [1, 2, 3]


# bad input


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("single", {"epochs": 0}, "epochs=0"),
        ("single", {"batch": 0}, "batch=0:"),
        ("warm_start", {"fraction": 0.0}, "fraction=0.0: .* between 0 and 1"),
        ("warm_start", {"fraction": 1}, "fraction=1:"),
        ("warm_start", {"fraction": 0.01}, "fraction=0.01 of 40 samples is 0"),
        ("warm_start", {"fraction": 0.999}, "fraction=0.999 of 40 samples is 40"),
        ("warm_start", {"epochs": [1, 2, 3]}, r"epochs=\[1, 2, 3\]: .* two"),
        ("warm_start", {"epochs": 100}, "epochs=100: .* two"),
        ("continual", {"chunks": 41}, "chunks=41: .*1 to 40"),
        ("continual", {"chunks": 0}, "chunks=0: .*1 to 40"),
        ("continual", {"chunks": 2.5}, "chunks=2.5: .*1 to 40"),
        ("continual", {"access": "none"}, 'access=\'none\': .*"full".*"limited"'),
        ("class_incremental", {"phases": 6}, "phases=6: .*1 to 5"),
        ("class_incremental", {"phases": 0}, "phases=0"),
        ("permuted_pixels", {"tasks": 0}, "tasks=0: .*1 or more"),
        ("random_labels", {"tasks": -1}, "tasks=-1"),
        ("random_labels", {"samples": 41}, "samples=41: numbers has 40 training samples"),
        ("random_labels", {"samples": 0}, "samples=0"),
        ("random_labels", {"samples": 0.5}, "samples=0.5"),
        ("class_pairs", {"tasks": 1.5}, "tasks=1.5"),
        ("class_pairs", {"classes": 1}, "classes=1: numbers has 5, .* 2"),
        ("class_pairs", {"classes": 6}, "classes=6"),
        ("label_noise", {"noise": [0.5]}, r"noise=\[0.5\], epochs=\[1, 2, 3\]: .* shares"),
        ("label_noise", {"noise": [0.5, 1.5, 0]}, r"noise=\[0.5, 1.5, 0\]"),
        ("label_noise", {"noise": [], "epochs": []}, r"noise=\[\]"),
        ("label_noise", {"noise": 0.5}, "noise=0.5"),
        ("label_noise", {"epochs": 10}, "epochs=10"),
    ],
)
def test_settings_that_make_no_sense_are_an_error_that_says_what_does(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        stream_of(name, make_data(), **options)


def without(data: ImageData, absent: int) -> dict[str, Split]:
    """The splits of `data`, less one class."""
    return {name: split.of(split.labels != absent) for name, split in data.splits().items()}


def with_splits(data: ImageData, **splits: Split) -> ImageData:
    return dataclasses.replace(data, **splits)


def test_a_class_without_training_images_is_an_error_where_classes_are_the_tasks() -> None:
    data = make_data()
    data = with_splits(data, train=without(data, 3)["train"])
    for name in ("class_incremental", "class_pairs"):
        with pytest.raises(ValueError, match=r"numbers.*train.*class 3"):
            stream_of(name, data, **({"tasks": 20} if name == "class_pairs" else {}))
    assert len(stream_of("continual", data)) == 4


def test_a_pair_that_can_be_tested_on_one_class_only_is_an_error() -> None:
    data = make_data(validation=10)
    with pytest.raises(ValueError, match=r"numbers.*test.*class 2"):
        stream_of("class_pairs", with_splits(data, test=without(data, 2)["test"]), tasks=20)
    with pytest.raises(ValueError, match=r"validation.*class 2"):
        stream_of("class_pairs", with_splits(data, validation=without(data, 2)["validation"]), tasks=20)


def test_a_phase_that_cannot_be_tested_is_an_error_and_one_that_can_in_part_is_not() -> None:
    data = make_data()
    first = int(stream_of("class_incremental", data, phases=5)[0].samples.labels[0])
    lacking = with_splits(data, test=without(data, first)["test"])
    with pytest.raises(ValueError, match=r"'1 classes'.*test"):
        stream_of("class_incremental", lacking, phases=5)
    stream = stream_of("class_incremental", lacking, phases=2)
    assert all(number % 5 != first for task in stream for number in asked_of(task, lacking)["full_accuracy"])


@pytest.mark.parametrize("name", PROTOCOLS)
def test_data_without_images_are_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=r"no training samples|0 samples|1 to 0|no train samples|0 training samples"):
        stream_of(name, make_data(train=0))


def test_one_image_is_enough_where_nothing_is_split() -> None:
    data = make_data(train=1, test=1, classes=1)
    for name, options in [
        ("single", {}),
        ("continual", {"chunks": 1}),
        ("class_incremental", {"phases": 1}),
        ("permuted_pixels", {}),
        ("random_labels", {"samples": 1}),
        ("label_noise", {}),
    ]:
        for task in stream_of(name, data, **options):
            ((images, labels),) = task.batches(torch.Generator())
            assert images.shape[0] == len(labels) == 1
