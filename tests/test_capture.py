"""A captured step does what the eager one does, whatever method acts; only CUDA has graphs."""

import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import replastic as rp
from replastic.models import CNN
from replastic.record.position import position_of
from replastic.train import Training, train
from replastic.train.loop import order_of, steps_for
from replastic.workloads.images import ImageData, LabelledTask, Split
from replastic.workloads.images.protocols import class_incremental, warm_start

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on CUDA")

# What is in the graph, in the first task and in the second.
WHOLE = ("graph, whole step", "graph, whole step")
METHODS: dict[str, tuple[Callable[[], Any], tuple[str, str]]] = {
    "none": (lambda: [], WHOLE),
    "fire": (lambda: [rp.FIRE()], WHOLE),
    "dash": (lambda: [rp.DASH()], WHOLE),
    "full reset": (lambda: [rp.FullReset()], WHOLE),
    "plasticity injection": (lambda: [rp.PlasticityInjection()], WHOLE),
    "l2 and parseval": (lambda: [rp.L2(1e-3), rp.Parseval(1e-4)], WHOLE),
    "swr": (lambda: [rp.SWR(1e-2)], WHOLE),
    "swr with re-init": (lambda: [rp.SWR(1e-2, reinit=True)], WHOLE),
    "weight clipping": (lambda: [rp.WeightClipping(1.0)], WHOLE),
    "cbp": (lambda: [rp.CBP(0.05, maturity=3)], ("graph, all but CBP",) * 2),
    "redo": (lambda: [rp.ReDo(0.5, period=3)], ("graph, all but ReDo",) * 2),
    "snr": (lambda: [rp.SNR(0.3, longest=2, update_every=2)], ("graph, all but SNR",) * 2),
    "er": (lambda: [rp.ER(1e-2, every=3)], ("graph, all but ER",) * 2),
    "hare and tortoise": (lambda: [rp.HareAndTortoise(0.9, period=4)], ("graph, all but HareAndTortoise",) * 2),
    "clipping after cbp": (
        lambda: [rp.CBP(0.05, maturity=3), rp.WeightClipping(1.0)],
        ("graph, all but CBP, WeightClipping",) * 2,
    ),
    "l2 from the second task": (lambda: [rp.L2(1e-2, from_task=1)], WHOLE),
    "muon from the second task": (lambda: [rp.UseMuon(from_task=1)], ("graph, whole step", "graph, whole step")),
}


def data() -> ImageData:
    draw = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        labels = torch.arange(count) % 4
        images = torch.randint(0, 128, (count, 12, 12, 3), dtype=torch.uint8, generator=draw)
        return Split(images + 30 * labels.view(-1, 1, 1, 1).to(torch.uint8), labels)

    return ImageData("classes of grey", split(210), split(50), 4, (0.5,) * 3, (0.25,) * 3).to("cuda")


def trained(path: str, methods: Any, tasks: list[LabelledTask], **given: Any) -> tuple[rp.Learner, list[dict[str, Any]]]:
    # SGD: Adam's first steps are of one size however small the gradient, and make of rounding what it likes.
    training = Training(**{"renew_optimizer": True, "optimizer": "sgd", "learning_rate": 0.02, "clip": 1.0, "warmup": 0.5,
                           "path": path, **given})  # fmt: skip

    def build() -> torch.nn.Module:
        return CNN(3, 12, 4, channels=4, kernel=3, hidden=[12], norm="batch")

    torch.manual_seed(0)
    model = build().to(device="cuda", memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    learner = rp.Learner(model, training.make_optimizer(model), methods=methods, build=build)
    return learner, [row.read() for row in train(learner, tasks, training, seed=1)]


def stream() -> list[LabelledTask]:
    return warm_start(data(), seed=0, batch=20, fraction=0.5, epochs=(3, 2))


def check_alike(one: Any, other: Any, tolerance: float = 1e-4) -> None:
    (learner, rows), (reference, expected) = one, other
    assert [(position_of(row), row["step"]) for row in rows] == [(position_of(row), row["step"]) for row in expected]
    for row, wanted in zip(rows, expected, strict=True):
        for figure in wanted.keys() & {"loss", "online_accuracy", "test_accuracy", "full_accuracy", "hare_test_accuracy"}:
            assert row[figure] == pytest.approx(wanted[figure], rel=10 * tolerance, abs=0.03 if "accuracy" in figure else 0)
    theirs = reference.model.state_dict()
    for name, tensor in learner.model.state_dict().items():
        scale = theirs[name].double().abs().max()
        assert (tensor.double() - theirs[name].double()).abs().max() <= tolerance * scale + 1e-7, name


@cuda
@pytest.mark.parametrize("name", METHODS)
def test_a_captured_run_is_the_eager_run(name: str) -> None:
    methods, held = METHODS[name]
    captured = trained("graph", methods(), stream())
    eager = trained("eager", methods(), stream())
    if name.startswith("muon"):  # makes directions of one length out of gradients of any, and so something out of rounding
        assert captured[1][-1]["loss"] == pytest.approx(eager[1][-1]["loss"], rel=0.02)
    else:
        check_alike(captured, eager)
    paths = [row["path"] for row in captured[1] if row["epoch"]]
    assert (paths[0], paths[-1]) == held


@cuda
@pytest.mark.parametrize("length", [{"epochs": 2}, {"epochs": None, "steps": 17}])
def test_rates_of_steps_and_micro_batches_are_captured(length: dict[str, Any]) -> None:
    tasks: list[Any] = [dataclasses.replace(task, **length) for task in stream()]
    given = {"rate_per": "step", "anneal": "cosine", "warmup": 3, "accumulate": 2, "learning_rate": [0.02, 0.05]}
    captured, eager = (trained(path, [], tasks, evaluate_every=4, **given) for path in ("graph", "eager"))
    check_alike(captured, eager)
    assert captured[1][-1]["path"] == "graph, whole step"


@cuda
@pytest.mark.parametrize("name", ["l2 from the second task", "plasticity injection"])
def test_a_task_that_is_learnt_again_is_recorded_again(name: str) -> None:
    (make, _), tasks = METHODS[name], stream()[:1] * 2
    check_alike(*(trained(path, make(), tasks) for path in ("graph", "eager")))


@cuda
@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.9), ("adam", 0.0), ("adamw", 0.0)])
def test_every_optimiser_takes_part(optimizer: str, momentum: float) -> None:
    given = {"optimizer": optimizer, "momentum": momentum, "learning_rate": 1e-3}
    captured, eager = (trained(path, [], stream(), **given) for path in ("graph", "eager"))
    check_alike(captured, eager, 1e-4 if optimizer == "sgd" else 5e-2)
    assert captured[1][-1]["path"] == "graph, whole step"


@cuda
def test_the_optimiser_remembers_what_a_boundary_has_brought() -> None:
    """State that is made within a graph is made anew by every replay, and forgets."""
    given = {"optimizer": "adam", "learning_rate": 1e-3}
    (captured, _), (eager, _) = (trained(path, [rp.PlasticityInjection()], stream(), **given) for path in ("graph", "eager"))
    counts = [
        [int(learner.optimizer.state[parameter]["step"]) for parameter in learner.trained()] for learner in (captured, eager)
    ]
    assert counts[0] == counts[1]
    for mine, theirs in zip(captured.trained(), eager.trained(), strict=True):
        moments = [learner.optimizer.state[p]["exp_avg_sq"] for learner, p in ((captured, mine), (eager, theirs))]
        assert moments[0].sum().item() == pytest.approx(moments[1].sum().item(), rel=0.1)


@cuda
def test_layers_that_are_frozen_between_epochs_are_recorded_so_and_within_one_are_refused() -> None:
    training = Training(renew_optimizer=True, batch=20, path="graph")
    task = stream()[1]
    model = CNN(3, 12, 4, channels=4, kernel=3, hidden=[12, 12]).cuda()
    learner = rp.Learner(model, training.make_optimizer(model), methods=[rp.L2(1e-2), rp.SWR(1e-2)])
    learner.begin(task)
    steps = steps_for(learner, training)
    steps.epoch(task, order_of(0, 0, 0))
    for epoch, trains in enumerate([False, True], start=1):
        model[0].requires_grad_(trains)
        before = model[0].weight.detach().clone()  # a graph of autograd on this stream would break the capture
        steps.epoch(task, order_of(0, 0, epoch))
        assert torch.equal(model[0].weight, before) != trains
    assert steps.path == "graph, whole step"
    pieces = steps.pieces(task, order_of(0, 0, 3))
    next(pieces)
    model[0].requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"frozen.*epoch"):
        next(pieces)


@cuda
def test_an_eager_optimiser_sees_the_gradient_of_each_replay() -> None:
    """Also behind the smaller last batch of an epoch, whose graph leaves gradients of its own."""
    training = Training(renew_optimizer=True, batch=20, path="graph")
    task = stream()[1]  # of 210 samples
    model = CNN(3, 12, 4, channels=4, kernel=3, hidden=[12, 12]).cuda()
    learner = rp.Learner(model, torch.optim.SGD(model.parameters(), lr=0.01))  # whose rate is on the host
    learner.begin(task)
    steps = steps_for(learner, training)
    steps.epoch(task, order_of(0, 0, 0))
    gradients = []
    for _ in steps.pieces(task, order_of(0, 0, 1)):
        gradients.append(learner.trained()[0].grad.clone())
    assert steps.path == "graph, gradients"
    assert len(gradients) > 4
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(gradients))


@cuda
def test_a_run_that_goes_on_in_a_new_process_records_its_tests_too() -> None:
    """There nothing has tested the network before, and no library has chosen its kernels for that."""
    script = (
        "import torch; from tests.test_capture import *; torch.backends.cudnn.deterministic = False\n"
        "tasks = stream(); training = Training(renew_optimizer=True, batch=20, path='graph')\n"
        "model = CNN(3, 12, 4, channels=4, kernel=3, hidden=[12], norm='batch').cuda()\n"
        "learner = rp.Learner(model, training.make_optimizer(model)); learner.begin(tasks[1])\n"
        "print(len(list(train(learner, tasks, training, done=(1, 0 + 1)))))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert answer.stdout.strip() == "1", answer.stderr


@cuda
def test_masks_of_tasks_are_each_tasks_own() -> None:
    tasks = class_incremental(data(), seed=0, batch=20, phases=2, epochs=3, masked=True)
    check_alike(trained("graph", [], tasks), trained("eager", [], tasks))


@cuda
def test_the_rate_changes_within_a_graph() -> None:
    given = {"warmup": 0.0, "decay_at": [1], "decay_by": 1e-6}
    learner, rows = trained("graph", [], stream()[:1], **given)
    stopped = rows[1]["test_accuracy"]
    assert [row["test_accuracy"] for row in rows[1:]] == [stopped] * 3
    check_alike((learner, rows), trained("eager", [], stream()[:1], **given))


@cuda
def test_a_decay_of_the_rate_is_seen_within_a_graph() -> None:
    decaying = {"warmup": 0.0, "decay_at": [1]}
    captured, eager = (trained(path, [rp.SWR(0.1, reinit=True)], stream(), **decaying) for path in ("graph", "eager"))
    check_alike(captured, eager)
    unaware = trained("graph", [rp.SWR(0.1)], stream(), **decaying)
    norms = [learner.methods[0].state["norms"] for learner, _ in (captured, eager, unaware)]
    assert torch.allclose(norms[0], norms[1], rtol=1e-4)
    assert not torch.allclose(norms[0], norms[2], rtol=1e-4)


@cuda
def test_a_compiled_graph_is_near_the_eager_run() -> None:
    captured = trained("compiled", [rp.FIRE()], stream())
    assert captured[1][-1]["path"] == "compiled graph, whole step"
    check_alike(captured, trained("eager", [rp.FIRE()], stream()), 2e-3)


@cuda
def test_bfloat16_is_captured_too() -> None:
    captured = trained("graph", [], stream(), precision="bfloat16")
    check_alike(captured, trained("eager", [], stream(), precision="bfloat16"), 2e-2)


@cuda
def test_runs_that_take_turns_do_not_see_each_other() -> None:
    training = Training(renew_optimizer=True, optimizer="sgd", learning_rate=0.02, batch=20, path="graph")

    def made(seed: int) -> tuple[rp.Learner, LabelledTask]:
        torch.manual_seed(seed)
        model = CNN(3, 12, 4, channels=4, kernel=3, hidden=[12]).cuda()
        learner = rp.Learner(model, training.make_optimizer(model))
        task = stream()[1]
        learner.begin(task)
        return learner, task

    pairs = [made(0), made(1)]
    streams = [torch.cuda.Stream() for _ in pairs]
    pieces = [
        (stream, steps_for(learner, training).pieces(task, order_of(0, 0, 0)))
        for stream, (learner, task) in zip(streams, pairs, strict=True)
    ]
    torch.cuda.synchronize()
    while pieces:
        for turn in list(pieces):
            with torch.cuda.stream(turn[0]):
                if next(turn[1]) is not None:
                    pieces.remove(turn)
    torch.cuda.synchronize()
    for seed, (learner, _) in enumerate(pairs):
        alone, task = made(seed)
        steps_for(alone, training).epoch(task, order_of(0, 0, 0))
        for mine, theirs in zip(learner.model.parameters(), alone.model.parameters(), strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@cuda
def test_nothing_waits_for_the_device_within_an_epoch() -> None:
    training = Training(renew_optimizer=True, batch=20, path="graph", clip=0.5)
    task = stream()[1]
    model = CNN(3, 12, 4, channels=4, kernel=3, hidden=[12], norm="batch").cuda()
    learner = rp.Learner(model, training.make_optimizer(model), methods=[rp.CBP(0.01, maturity=3), rp.L2(1e-3)])
    learner.begin(task)
    steps = steps_for(learner, training)
    steps.epoch(task, order_of(0, 0, 0))
    steps.evaluate(task, model)
    torch.cuda.set_sync_debug_mode("error")
    try:
        steps.epoch(task, order_of(0, 0, 1))
        steps.evaluate(task, model)
    finally:
        torch.cuda.set_sync_debug_mode("default")
