"""How fast is training, compared with the loop that anyone would write around a DataLoader?

    python benchmarks/training.py                 # on what the machine has; writes benchmarks/results/training-<device>.json
    python benchmarks/training.py --only plain here --rounds 2     # some of the ways, nothing written
    python benchmarks/training.py --online        # batches of one alone; the rest of the record stays as it is
    python benchmarks/training.py --cnn           # the small network on a GPU alone; likewise
    python benchmarks/training.py --cnn --profile "graph, tf32"    # which kernels take the time of one way; nothing written
    python benchmarks/training.py --write-docs    # the table of docs, from the committed records

All train the same network on images of CIFAR's shape in batches of 256 with Adam, clipping and cross-entropy. "plain" is as
FIRE's released code does it: eager PyTorch in float32 as it comes (on CUDA convolutions are in TF32 then), a Dataset that
turns each image into a normalised tensor, a DataLoader without workers, the accuracy read after each step; next to it the
same with workers and pinned memory. On a CPU the other ways keep freed memory, as experiments do. Ways are timed in turn
within each round, an epoch each, and medians compared; first epochs, in which graphs are recorded and code is compiled, are
left out and given apart.

The network is ResNet-18 on CUDA and the CNN of Soft Weight Rescaling on a CPU. That CNN, which is far too
small for a GPU, is also timed on CUDA. Online training of permuted MNIST's network (batches of one) is timed in steps a
second, alone and stacked.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from polar import CUDA, DEVICE, RESULTS, hardware, synchronise
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from training_table import PAGE, rendered

from replastic import Learner
from replastic.models import CNN, MLP, ResNet
from replastic.train import Training
from replastic.train.allocator import keep_freed_memory
from replastic.train.loop import order_of, steps_for
from replastic.train.step import EagerSteps
from replastic.workloads.images import ImageData, LabelledTask, Split
from replastic.workloads.images.protocols import permuted_pixels, single

KIND = DEVICE.type
IMAGES = {"cuda": 50_000, "cpu": 5_000}
BATCH, CLIP, RATE = 256, 0.5, 1e-3
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
WORKERS = min(8, max(1, (os.cpu_count() or 2) // 2))
ROUNDS = {"cuda": 5, "cpu": 5}
ONLINE_STEPS = {"cuda": 2000, "cpu": 60}
MEMBERS = (5, 25)

Epoch = Callable[[], object]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18": ResNet,
    "CNN of Soft Weight Rescaling": lambda: CNN(3, 32, 10),
}
LARGE, SMALL = NETWORKS
LAYOUT = torch.channels_last if CUDA else torch.preserve_format  # as experiments have it


def cifar_like() -> ImageData:
    draw = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        images = torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=draw)
        return Split(images, torch.randint(10, (count,), generator=draw))

    return ImageData("CIFAR's shape", split(IMAGES[KIND]), split(100), 10, MEAN, STD)


class Images(Dataset[tuple[Tensor, int]]):
    """One image at a time, as a normalised tensor: by torchvision's transforms of a PIL image, as its CIFAR-10 does it.

    Where torchvision cannot be imported the same arithmetic is done without PIL, which is faster.
    """

    def __init__(self, data: ImageData) -> None:
        self.images, self.labels = data.train.images.numpy(), data.train.labels.tolist()
        self.transform = torchvision_transform()
        self.mean, self.std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if self.transform is not None:
            return self.transform(self.images[number]), self.labels[number]
        image = torch.from_numpy(self.images[number]).permute(2, 0, 1).contiguous().float().div(255)
        return (image - self.mean) / self.std, self.labels[number]


def torchvision_transform() -> Callable[[Any], Tensor] | None:
    try:
        from PIL import Image
        from torchvision import transforms  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError):  # with a CPU build of torch it fails as it is imported
        return None
    return transforms.Compose([Image.fromarray, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def plain(data: ImageData, network: str, workers: int) -> Epoch:
    """As FIRE's released code trains; with workers, and pinned memory then, as one would to make it faster."""
    model = NETWORKS[network]().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    loader = DataLoader(
        Images(data),
        BATCH,
        shuffle=True,
        num_workers=workers,
        pin_memory=CUDA and workers > 0,
        persistent_workers=workers > 0,
    )

    def epoch() -> None:
        model.train()
        right = 0
        for images, labels in loader:
            images, labels = images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
            outputs = model(images)
            right += (outputs.argmax(1) == labels).sum().item()
            loss = nn.functional.cross_entropy(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()

    return epoch


def steps_of(
    data: ImageData, network: str, layout: torch.memory_format = LAYOUT, **settings: Any
) -> tuple[EagerSteps, LabelledTask]:
    training = Training(renew_optimizer=True, learning_rate=RATE, clip=CLIP, batch=BATCH, **settings)
    (task,) = single(data.to(DEVICE), seed=0, batch=BATCH, epochs=100)
    model = NETWORKS[network]().to(device=DEVICE, memory_format=layout)  # pyright: ignore[reportCallIssue]
    learner = Learner(model, training.make_optimizer(model))
    learner.begin(task)
    return steps_for(learner, training), task


def here(data: ImageData, network: str, **settings: Any) -> Epoch:
    if not CUDA:
        keep_freed_memory()  # as experiments do
    (steps, task), numbers = steps_of(data, network, **settings), iter(range(10**6))

    def epoch() -> None:
        steps.epoch(task, order_of(0, 0, next(numbers)))

    return epoch


def side_by_side(data: ImageData, network: str, *, runs: int, **settings: Any) -> Epoch:
    """Runs that take turns, each on a stream of its own."""
    streams, several = [torch.cuda.Stream() for _ in range(runs)], list[Any]()
    for stream in streams:
        with torch.cuda.stream(stream):
            several.append(steps_of(data, network, **settings))
    numbers = iter(range(10**6))

    def epoch() -> None:
        number = next(numbers)
        active = [
            (stream, steps.pieces(task, order_of(0, 0, number)))
            for stream, (steps, task) in zip(streams, several, strict=True)
        ]
        while active:
            for turn in list(active):
                with torch.cuda.stream(turn[0]):
                    if next(turn[1]) is not None:
                        active.remove(turn)

    return epoch


Ways = dict[str, tuple[Callable[..., Epoch], dict[str, Any]]]
PLAIN: Ways = {"plain": (plain, {"workers": 0}), f"plain, {WORKERS} workers": (plain, {"workers": WORKERS})}
ON_A_CPU: Ways = {
    **PLAIN,
    "here": (here, {"path": "eager"}),
    "here, compiled": (here, {"path": "compiled"}),
}
ON_CUDA: Ways = {
    **PLAIN,
    "eager, tf32": (here, {"path": "eager", "precision": "tf32"}),
    "eager, bfloat16": (here, {"path": "eager", "precision": "bfloat16"}),
    "graph, float32": (here, {"path": "graph", "precision": "float32"}),
    "graph, tf32": (here, {"path": "graph", "precision": "tf32"}),
    "graph, bfloat16": (here, {"path": "graph", "precision": "bfloat16"}),
    "compiled graph, tf32": (here, {"path": "compiled", "precision": "tf32"}),
    "compiled graph, bfloat16": (here, {"path": "compiled", "precision": "bfloat16"}),
    "two side by side, bfloat16": (side_by_side, {"path": "compiled", "precision": "bfloat16", "runs": 2}),
}
SMALL_ON_CUDA: Ways = {
    **PLAIN,
    "graph, tf32": (here, {"path": "graph", "precision": "tf32"}),
    "graph, tf32, channels first": (here, {"path": "graph", "precision": "tf32", "layout": torch.contiguous_format}),
    "compiled graph, tf32": (here, {"path": "compiled", "precision": "tf32"}),
    "compiled graph, bfloat16": (here, {"path": "compiled", "precision": "bfloat16"}),
    **{
        f"{runs} side by side, {path}, {precision}": (side_by_side, {"path": path, "precision": precision, "runs": runs})
        for runs, path, precision in (
            (4, "graph", "tf32"),
            (4, "compiled", "tf32"),
            (4, "compiled", "bfloat16"),
        )
    },
}
WAYS = {LARGE: ON_CUDA, SMALL: SMALL_ON_CUDA} if CUDA else {SMALL: ON_A_CPU}


def timed(epoch: Epoch) -> float:
    synchronise()
    start = time.perf_counter()
    epoch()
    synchronise()
    return time.perf_counter() - start


def images_a_second(network: str, only: list[str] | None, rounds: int) -> dict[str, Any]:
    """On a CPU every way has a process of its own: what one asks of the memory allocator is not for the others."""
    chosen = {name: way[1].get("runs", 1) for name, way in WAYS[network].items() if only is None or name in only}
    data = cifar_like() if CUDA else None
    epochs = {name: made(network, name, data) if data is not None else made_elsewhere(network, name) for name in chosen}
    first, seconds = {}, {name: list[float]() for name in chosen}
    for name, epoch in epochs.items():
        first[name] = epoch()
        print(f"{name}: first epoch {first[name]:.1f} s", flush=True)
    for _ in range(rounds):
        for name, epoch in epochs.items():
            seconds[name].append(epoch())
    found = {}
    for name, runs in chosen.items():
        rates = [runs * IMAGES[KIND] / taken for taken in seconds[name]]
        found[name] = {"images a second": rates, "first epoch, seconds": first[name], "runs": runs}
        ratio = statistics.median(rates) / statistics.median(found.get("plain", found[name])["images a second"])
        print(f"{name:<28} {statistics.median(rates):>10,.0f} images/s  {ratio:5.2f}x", flush=True)
    return found


def made(network: str, name: str, data: ImageData) -> Callable[[], float]:
    """A way of training: called, it goes through an epoch, and says how long that took."""
    torch.manual_seed(0)
    make, settings = WAYS[network][name]
    epoch = make(data, network, **settings)
    return lambda: timed(epoch)


def made_elsewhere(network: str, name: str) -> Callable[[], float]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_epochs, args=(network, name, theirs))
    process.start()
    atexit.register(ours.send, False)  # enough

    def epoch() -> float:
        ours.send(True)
        return ours.recv()

    return epoch


def _epochs(network: str, name: str, pipe: Any) -> None:
    epoch = made(network, name, cifar_like())
    while pipe.recv():
        pipe.send(epoch())


def profile(network: str, name: str) -> None:
    """What an epoch's time goes into, once graphs are recorded and code is compiled."""
    epoch = made(network, name, cifar_like())
    for _ in range(2):
        epoch()
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if CUDA else [])]
    with torch.profiler.profile(activities=kinds) as seen:
        epoch()
    print(seen.key_averages().table(sort_by=f"self_{KIND}_time_total", row_limit=25, max_name_column_width=90))


def online(rounds: int) -> dict[str, Any]:
    """Steps a second, of all members together, of permuted MNIST's network with batches of one."""
    from replastic.train.stacked.network import Stack

    steps = ONLINE_STEPS[KIND]
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (steps, 28, 28, 1), dtype=torch.uint8, generator=draw)
    split = Split(images, torch.randint(10, (steps,), generator=draw))
    data = ImageData("MNIST's shape", split, split, 10, (0.1307,), (0.3081,)).to(DEVICE)
    training = Training(renew_optimizer=False, optimizer="sgd", learning_rate=0.01, clip=CLIP, batch=1)

    def learner(seed: int) -> tuple[Learner, LabelledTask]:
        torch.manual_seed(seed)
        model = MLP(784, [1000] * 3, 10, init="kaiming").to(DEVICE)
        return Learner(model, training.make_optimizer(model), seed=seed), permuted_pixels(data, seed=seed, tasks=1)[0]

    def alone(path: str) -> Epoch:
        one, task = learner(0)
        one.begin(task)
        ways = steps_for(one, Training(**{**vars(training), "path": path}))
        return lambda: ways.epoch(task, order_of(0, 0, 0))

    if not CUDA:
        keep_freed_memory()

    def stacked(members: int, *, compiled: bool = False) -> Epoch:
        pairs = [learner(seed) for seed in range(members)]
        stack = Stack([one for one, _ in pairs], clip=CLIP, compiled=compiled)
        stack.begin([task for _, task in pairs])
        orders = torch.stack([torch.randperm(steps) for _ in pairs]).to(DEVICE)
        return lambda: stack.epoch(orders)

    ways: dict[str, tuple[Epoch, int]] = {"alone, eager": (alone("eager"), 1)}
    if CUDA:
        ways["alone, graph"] = (alone("graph"), 1)
    for members in MEMBERS:
        ways[f"{members} stacked"] = stacked(members), members
        ways[f"{members} stacked, compiled"] = stacked(members, compiled=True), members
    found = {}
    for name, (epoch, runs) in ways.items():
        timed(epoch)
        rates = [runs * steps / timed(epoch) for _ in range(rounds)]
        found[name] = {"steps a second": rates, "runs": runs}
        base = statistics.median(found["alone, eager"]["steps a second"])
        print(f"{name:<28} {statistics.median(rates):>10,.0f} steps/s  {statistics.median(rates) / base:6.2f}x", flush=True)
        gc.collect()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="WAY", help="these ways alone")
    parser.add_argument("--rounds", type=int, default=ROUNDS[KIND])
    parser.add_argument("--online", action="store_true", help="measure batches of one alone")
    parser.add_argument("--cnn", action="store_true", help="the small network")
    parser.add_argument("--profile", metavar="WAY", help="show which kernels take the time")
    parser.add_argument("--write-docs", action="store_true")
    given = parser.parse_args()
    path, network = RESULTS / f"training-{KIND}.json", SMALL if given.cnn or not CUDA else LARGE
    if given.cnn and not CUDA:
        raise SystemExit("--cnn is for a GPU: on a CPU that network is the one that is timed anyway; leave it out")
    for way in [*(given.only or []), *([given.profile] if given.profile else [])]:
        if way not in WAYS[network]:
            raise SystemExit(f"{way!r}: of the {network} there are " + ", ".join(map(repr, WAYS[network])))
    if given.write_docs:
        PAGE.write_text(rendered(PAGE.read_text()))
    elif given.profile:
        profile(network, given.profile)
    elif given.only is not None:
        images_a_second(network, given.only, given.rounds)
    elif given.online or given.cnn:
        record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"hardware": "no machine yet"}
        if record["hardware"] != (now := hardware()):
            raise SystemExit(f"{path.name} is of {record['hardware']}, and this is {now}: measure all of it")
        if given.cnn:
            record["small"] = images_a_second(SMALL, None, given.rounds)
        if given.online:
            record["online"] = online(min(given.rounds, 3))
        path.write_text(json.dumps(record, indent=1) + "\n")
    else:
        record = {
            "hardware": hardware(),
            "network": network,
            "transforms": "torchvision" if torchvision_transform() is not None else "tensors, without PIL",
            "images": images_a_second(network, None, given.rounds),
            **({"small": images_a_second(SMALL, None, given.rounds)} if CUDA else {}),
            "online": online(min(given.rounds, 3)),
        }
        RESULTS.mkdir(exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
