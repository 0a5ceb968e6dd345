"""How fast does a GPT train, compared with nanoGPT's loop?

    python benchmarks/language.py                       # on what the machine has; writes results/language-<device>.json
    python benchmarks/language.py --sizes 124M          # one size; the rest of the record stays as it is
    python benchmarks/language.py --write-docs          # the table of docs, from the committed records

Both train the same model on the same random tokens, each in a process of its own, with AdamW (decay on matrices), clipping,
a cosine schedule per step, and bfloat16 autocast on CUDA. "plain" is nanoGPT's loop, written from its description: the
model with its loss under torch.compile, windows that are drawn on the host from a memory-mapped file and stacked there
while the device is busy, pinned copies, and the loss read every ten steps. "here" is `train` with path = "compiled" and
tokens on the device. They take turns within each round, and medians are compared. The first ten steps, in which code is
compiled and a graph recorded, are timed apart: with an empty cache of torch.compile, and again in a new process with what
is in the cache by then. "tiny" is for tests.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from polar import CUDA, DEVICE, RESULTS, hardware, synchronise
from torch import Tensor, nn
from torch.nn import functional as F

from replastic import Learner
from replastic.models import GPT
from replastic.train import Training, train
from replastic.workloads.text.tasks import TextData
from replastic.workloads.text.tokens import read_token_file, token_data, write_token_file

PAGE = Path(__file__).parent.parent / "docs/performance.md"
WAYS = ("plain", "here")
EACH = 10  # steps between two readings of the loss
RATE, FLOOR, WARM_UP, HORIZON, DECAY, BETAS, CLIP = 6e-4, 0.1, 100, 10_000, 0.1, (0.9, 0.95), 1.0


@dataclass(frozen=True)
class Size:
    """batch: windows in a step. steps: in a round."""

    vocabulary: int
    context: int
    layers: int
    heads: int
    width: int
    batch: int
    steps: int
    tokens: int = 20_000_000  # in the file

    def model(self) -> GPT:
        torch.manual_seed(0)
        return GPT(self.vocabulary, self.context, layers=self.layers, heads=self.heads, width=self.width).to(DEVICE)

    @property
    def tokens_a_step(self) -> int:
        return self.batch * self.context


SIZES: dict[str, Size] = {
    "cuda": {
        "124M": Size(50_257, 1024, 12, 12, 768, batch=64, steps=20),
        "6 x 384": Size(8192, 512, 6, 6, 384, batch=64, steps=200),
    },
    "cpu": {"4 x 128": Size(257, 128, 4, 4, 128, batch=8, steps=20, tokens=200_000)},
}[DEVICE.type] | {"tiny": Size(257, 16, 1, 2, 32, batch=4, steps=10, tokens=10_000)}

Advance = Callable[[int], float]  # number of steps -> the last loss that was read


class WithLoss(nn.Module):
    """A model that returns its loss, as nanoGPT's does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self.model(tokens)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def plain(size: Size, path: Path) -> Advance:
    """nanoGPT's loop."""
    torch.set_float32_matmul_precision("high")
    data = np.memmap(path, dtype=np.uint16, mode="r")
    model = WithLoss(size.model())
    decayed, others = ([p for p in model.parameters() if (p.ndim >= 2) == wanted] for wanted in (True, False))
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, RATE, BETAS, fused=CUDA)
    compiled, done = torch.compile(model), 0

    def windows() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - size.context, (size.batch,)).tolist()
        drawn = [
            torch.stack([torch.from_numpy(data[at + by : at + by + size.context].astype(np.int64)) for at in starts])
            for by in (0, 1)
        ]
        tokens, targets = (one.pin_memory().to(DEVICE, non_blocking=True) if CUDA else one for one in drawn)
        return tokens, targets

    batch = windows()

    def advance(steps: int) -> float:
        nonlocal batch, done
        model.train()
        shown = math.nan
        for _ in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = rate_at(done)
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
                loss = compiled(*batch)
            batch = windows()  # while the device computes
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1
            if done % EACH == 0:
                shown = loss.item()
        return shown

    return advance


def rate_at(step: int) -> float:
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    fallen = min(1.0, (step - WARM_UP) / (HORIZON - WARM_UP))
    return RATE * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * fallen)))


def here(size: Size, path: Path) -> Advance:
    """`train`, as experiments do it."""
    training = Training(
        renew_optimizer=True, optimizer="adamw", learning_rate=RATE, weight_decay=DECAY, decay="matrices", betas=BETAS,
        clip=CLIP, batch=size.batch, rate_per="step", warmup=WARM_UP, anneal="cosine", floor=FLOOR, horizon=HORIZON,
        precision="bfloat16" if CUDA else "float32", path="compiled", evaluate_every=EACH,
    )  # fmt: skip
    tokens = token_data({"random": [read_token_file(path)]}, {}, DEVICE)
    task = TextData(tokens, size.context).task("random", "random", batch=size.batch, steps=10**6)
    task = dataclasses.replace(task, evaluate=None)
    model = size.model()
    rows = train(Learner(model, training.make_optimizer(model), initial=False), [task], training)
    next(rows)  # right after the boundary

    def advance(steps: int) -> float:
        last = [next(rows) for _ in range(steps // EACH)][-1]
        return last.read()["loss"]

    return advance


def measured(name: str, rounds: int) -> dict[str, Any]:
    """Both ways in turn, and the start of each once more."""
    size = SIZES[name]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "tokens.bin"
        random_tokens(path, size)
        ways, found = dict[str, Child](), dict[str, dict[str, Any]]()
        for way in WAYS:  # one starts after the other, so that each has all cores while it compiles
            ways[way] = stack.enter_context(Child(name, way, path))
            found[way] = ways[way].start()
        for _ in range(rounds):
            for way, child in ways.items():
                found[way]["tokens a second"].append(child.round())
        for way, child in ways.items():
            found[way] |= child.end()
            with Child(name, way, path) as again:
                found[way]["started again"] = again.start()
                again.end()
            show(way, found[way], found["plain"])
    with torch.device("meta"):
        model = GPT(size.vocabulary, size.context, layers=size.layers, heads=size.heads, width=size.width)
    counted = sum(parameter.numel() for parameter in model.parameters()) - size.context * size.width
    work = 6 * counted + 12 * size.layers * size.width * size.context  # operations for a token, forward and backward
    about = {"layers": size.layers, "width": size.width, "context": size.context, "vocabulary": size.vocabulary}
    about |= {"parameters": counted, "tokens a step": size.tokens_a_step, "operations a token": work}
    return {**about, "ways": found}


def random_tokens(path: Path, size: Size) -> None:
    draw = np.random.default_rng(0)
    write_token_file(
        path,
        [draw.integers(size.vocabulary, size=size.tokens, dtype=np.uint16)],
        tokenizer="random", tokenizer_sha256="", vocabulary=size.vocabulary, end=None, documents=1, bytes=size.tokens,
        lengths=[1] * size.vocabulary,
    )  # fmt: skip


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """Have processes that are started within keep compiled code in this folder, and look for it there alone."""
    before = os.environ.copy()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    os.environ.pop("TRITON_CACHE_DIR", None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Child:
    """A way of training, in a process of its own."""

    def __init__(self, name: str, way: str, path: Path) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        arguments = (SIZES[name], way, path, theirs, time.time())
        self.process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments)
        with cache_in(path.parent / way):
            self.process.start()
        theirs.close()  # so that `recv` raises if the process dies

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.join()

    def start(self) -> dict[str, Any]:
        return self.pipe.recv()

    def round(self) -> float:
        self.pipe.send(True)
        return self.pipe.recv()

    def end(self) -> dict[str, Any]:
        self.pipe.send(False)
        found = self.pipe.recv()
        self.process.join()  # so that its memory is free
        return found


def _serve(size: Size, way: str, path: Path, pipe: Any, begun: float) -> None:
    imports = time.time() - begun
    start = time.perf_counter()
    advance = {"plain": plain, "here": here}[way](size, path)
    advance(EACH)
    synchronise()
    pipe.send({"imports, seconds": imports, "first steps, seconds": time.perf_counter() - start, "tokens a second": []})
    loss = math.nan
    while pipe.recv():
        start = time.perf_counter()
        loss = advance(size.steps)
        synchronise()
        pipe.send(size.steps * size.tokens_a_step / (time.perf_counter() - start))
    memory = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()} if CUDA else {}
    pipe.send({"loss": loss, "peak memory, GiB": {name: value / 2**30 for name, value in memory.items()}})


def show(name: str, way: dict[str, Any], base: dict[str, Any]) -> None:
    rate, first = statistics.median(way["tokens a second"]), statistics.median(base["tokens a second"])
    print(
        f"{name:<8} {rate:>12,.0f} tokens/s {rate / first:6.2f}x, loss {way['loss']:.3f}, first steps "
        f"{way['first steps, seconds']:.1f} s, again {way['started again']['first steps, seconds']:.1f} s, peak "
        + (", ".join(f"{value:.1f} GiB {kind}" for kind, value in way["peak memory, GiB"].items()) or "not measured"),
        flush=True,
    )


def rendered(page: str) -> str:
    """The page with the tables of the committed records."""
    paths = [RESULTS / f"language-{kind}.json" for kind in ("cuda", "cpu")]
    tables = [table(json.loads(path.read_text())) for path in paths if path.exists()]
    before, _, rest = page.partition("<!-- language -->\n")
    _, end, after = rest.partition("<!-- end -->")
    return before + "<!-- language -->\n" + ("\n\n".join(tables) or "Not measured yet.") + "\n" + end + after


def table(record: dict[str, Any]) -> str:
    on = record["hardware"]
    lines = [f"{on['device']}, torch {on['torch']}:", ""]
    lines += ["| | tokens a second | compared with plain | TFLOP/s | first ten steps | in a new process | peak GiB |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for name, size in record["sizes"].items():
        base = statistics.median(size["ways"]["plain"]["tokens a second"])
        for way, found in size["ways"].items():
            rates, peak = found["tokens a second"], found["peak memory, GiB"].get("reserved")
            rate = statistics.median(rates)
            cells = [
                f"{name}, {way}",
                f"{rate:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
                f"**{rate / base:.2f}x**",
                f"{rate * size['operations a token'] / 1e12:,.3g}",
                f"{found['first steps, seconds']:.1f} s",
                f"{found['started again']['first steps, seconds']:.1f} s",
                "" if peak is None else f"{peak:.1f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=[*SIZES], default=[name for name in SIZES if name != "tiny"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path, default=RESULTS / f"language-{DEVICE.type}.json")
    parser.add_argument("--write-docs", action="store_true")
    given = parser.parse_args(arguments)
    if given.write_docs:
        PAGE.write_text(rendered(PAGE.read_text()))
        return
    path, on = given.record, hardware()
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"hardware": on, "sizes": {}}
    if known["hardware"] != on:
        if set(known["sizes"]) - set(given.sizes):
            raise SystemExit(f"{path.name} is of {known['hardware']}, and this is {on}: measure all sizes")
        known = {"hardware": on, "sizes": {}}
    for name in given.sizes:
        print(f"{name}:", flush=True)
        known["sizes"][name] = measured(name, given.rounds)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(known, indent=1) + "\n")  # after each size: a later one may run out of time


if __name__ == "__main__":
    main()
