"""Windows of tokens: what they hold, which are drawn, and what they are tested on."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from replastic.options import OptionError
from replastic.train.loop import order_of
from replastic.workloads.text import TextData, TextTask
from replastic.workloads.text.protocols import domains, stages
from replastic.workloads.text.tasks import losses
from replastic.workloads.text.tokens import byte_tokens
from tests.texts import END, ENTRIES, corpora, data_of, drawn, experiment, write


def data(folder: Path, counts: dict[str, int], **settings: Any) -> TextData:
    files = {name: [write(folder / f"{name}.bin", drawn(count, count))] for name, count in counts.items()}
    test = {"held": [write(folder / "held.bin", drawn(100, 0))]}
    return data_of(files, test, **{"context": 8, **settings})


def order(task: TextTask, seed: int = 0, number: int = 0, a_pass: int = 0) -> Tensor:
    return task.order(order_of(seed, number, a_pass))


def test_targets_are_inputs_shifted_by_one(tmp_path: Path) -> None:
    of = data(tmp_path, {"a": 500})
    task, tokens = of.task("a", "a", batch=4, steps=3), torch.from_numpy(drawn(500, 500).astype(int))
    starts = order(task)
    inputs, targets = task.batch(starts)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.shape == targets.shape == (len(task), 8)
    for start, one, other in zip(starts, inputs, targets, strict=True):
        assert one.equal(tokens[start : start + 8])
        assert other.equal(tokens[start + 1 : start + 9])
    assert starts.min() >= 0
    assert starts.max() <= 500 - 9
    [(first, _), *_] = task.batches(order_of(0, 0, 0))
    assert first.equal(inputs[:4])


def test_every_window_can_be_drawn_the_last_one_included(tmp_path: Path) -> None:
    of = data(tmp_path, {"x": 30, "a": 12})
    task = of.task("a", "a", batch=64, steps=1)
    assert sorted(set(order(task).tolist())) == [30, 31, 32, 33]


@pytest.mark.parametrize("draw", ["random", "passes"])
def test_the_order_comes_from_seed_task_and_pass_alone(draw: str, tmp_path: Path) -> None:
    of = data(tmp_path, {"a": 700, "b": 500}, draw=draw)
    sources = {"a": 0.5, "b": 0.5}
    first = order(of.task("first", sources, batch=4, steps=3))
    torch.rand(3)
    other = order(of.task("other", sources, batch=4, steps=99))
    assert first.equal(other)
    assert len(first) == len(of.task("a", sources, batch=4, steps=3)) == 4 * (len(first) // 4)
    for seed, number, a_pass in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        assert not first.equal(order(of.task("a", sources, batch=4, steps=3), seed, number, a_pass))


def test_windows_of_a_pass_do_not_overlap_and_the_next_pass_has_another_offset(tmp_path: Path) -> None:
    of = data(tmp_path, {"x": 10, "a": 1000}, draw="passes")
    task = of.task("a", "a", batch=4, steps=3)
    offsets = set()
    for a_pass in range(6):
        starts = order(task, a_pass=a_pass)
        offset = (starts - 10) % 8
        assert len(starts) == len(set(starts.tolist())) == 124
        assert offset.unique().numel() == 1
        assert starts.min() >= 10
        assert starts.max() + 9 <= 1010
        offsets.add(int(offset[0]))
    assert len(offsets) > 2


def test_a_mixture_is_drawn_by_weight_and_says_what_was_drawn(tmp_path: Path) -> None:
    of = data(tmp_path, {"a": 9000, "b": 60000, "c": 9000})
    task = of.task("mixture", {"a": 0.1, "b": 0.2, "c": 0.7}, batch=8, steps=3)
    starts = order(task)
    assert len(starts) == 9744
    row = task.row(5, [starts[:5000], starts[5000:]])
    assert row["tokens"] == 5 * 8 * 8
    bounds = torch.tensor([9000, 69000])
    assert list(row["drawn"].values()) == torch.bucketize(starts, bounds, right=True).bincount().tolist()
    assert sum(row["drawn"].values()) == len(starts)
    for name, weight in (("a", 0.1), ("b", 0.2), ("c", 0.7)):  # 5 standard deviations
        assert abs(row["drawn"][name] / len(starts) - weight) < 5 * math.sqrt(weight * (1 - weight) / len(starts))


def test_in_a_mixture_of_passes_a_window_comes_again_only_when_all_have_come(tmp_path: Path) -> None:
    of = data(tmp_path, {"a": 89, "b": 2000}, draw="passes")
    task = of.task("mixture", {"a": 0.5, "b": 0.5}, batch=8, steps=3)
    starts = order(task)
    mine = starts[starts < 89].tolist()
    assert len(mine) > 40
    assert max(Counter(start // 8 for start in mine[:10]).values()) == 1
    assert all(start % 8 == mine[0] % 8 for start in mine[:10])
    others = starts[starts >= 89].tolist()
    assert len(others) == len(set(others))


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({"a": 0.5, "b": 0.6}, r"0\.5 \+ 0\.6 = 1\.1"),
        ({"a": 0.5}, r"sum to 0\.5 = 0\.5"),
        ({"a": 1.5, "b": -0.5}, r"weight of a is 1\.5"),
        ({"a": True}, "weight of a is True"),
        ("A", "did you mean 'a'"),
        ({"wiki": 1.0}, "'wiki': there are a, b"),
        ({}, "name of a corpus, or weights"),
        (3, "sources = 3"),
    ],
)
def test_sources_that_cannot_be_meant_are_refused(sources: Any, said: str, tmp_path: Path) -> None:
    of = data(tmp_path, {"a": 100, "b": 100})
    with pytest.raises(ValueError, match=said):
        of.task("t", sources, batch=4, steps=1)


def test_shares_that_sum_to_1_up_to_rounding_are_accepted(tmp_path: Path) -> None:
    of = data(tmp_path, {"a": 100, "b": 100, "c": 100})
    assert of.task("t", {"a": 0.1, "b": 0.2, "c": 0.7}, batch=4, steps=1).drawing.weights == (0.1, 0.2, 0.7)


@pytest.mark.parametrize(
    ("counts", "settings", "said"),
    [
        ({"a": 8}, {}, r"train\.a has 8 tokens.*context = 8 needs 9"),
        ({"a": 500}, {"context": 100}, r"test\.held has 100 tokens.*needs 101"),
        ({"a": 500}, {"context": 0}, "context = 0"),
        ({"a": 500}, {"draw": "all"}, "windows = 'all'"),
        ({"a": 500}, {"test_windows": 0}, "test_windows = 0"),
    ],
)
def test_data_that_cannot_be_windows_are_refused(
    counts: dict[str, int], settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        data(tmp_path, counts, **settings)
    assert data(tmp_path, {"a": 9}).task("t", "a", batch=4, steps=1).order(torch.Generator()).tolist() == [0] * 4


def test_a_batch_larger_than_a_pass_is_refused_where_windows_come_once(tmp_path: Path) -> None:
    of = data(tmp_path, {"a": 100}, draw="passes")
    with pytest.raises(ValueError, match="a has 11 windows, and batch = 12"):
        of.task("t", "a", batch=12, steps=1)
    assert len(of.task("t", "a", batch=11, steps=1)) == 11


class Table(nn.Module):
    """Logits that depend on the token alone."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)
        self.seen: list[Tensor] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen.append(tokens)
        return self.logits[tokens]


def test_losses_and_bits_are_those_computed_by_hand_and_the_end_of_a_text_has_no_bits(tmp_path: Path) -> None:
    # p(next | token): from 0 to 1 with 1/2, from 1 to the end with 1/4, from the end to 2 with 1/8, from 2 to 0 with 1/16.
    steps = {(0, 1): 1 / 2, (1, END): 1 / 4, (END, 2): 1 / 8, (2, 0): 1 / 16}
    logits = torch.zeros(ENTRIES, ENTRIES)
    for (token, following), share in steps.items():
        logits[token] = math.log((1 - share) / (ENTRIES - 1))
        logits[token, following] = math.log(share)
    # entry n has n % 4 + 1 bytes
    tokens = torch.tensor([0, 1, END, 2, 0, 1, END, 2, 0, 1, 1]).numpy().astype("uint16")  # the last two fill no window
    held = write(tmp_path / "held.bin", tokens)
    of = data_of({"a": [held]}, {"held": [held]}, context=4, at_once=1)
    found = losses(of.tests(), 1, Table(logits))
    targets = 2 * [math.log(2), math.log(4), math.log(8), math.log(16)]
    assert found["held_loss"] == pytest.approx(sum(targets) / 8, rel=1e-6)
    # bits 1 + 3 + 4 for targets 1, 2 and 0, which have 2 + 3 + 1 bytes; the end's 2 bits count in the loss alone
    assert found["held_bits"] == pytest.approx(8 / 6, rel=1e-6)


def test_without_an_end_of_text_all_tokens_count(tmp_path: Path) -> None:
    held = write(tmp_path / "held.bin", drawn(100, 0), end=None, lengths=[2] * ENTRIES)
    of = data_of({"a": [held]}, {"held": [held]}, context=4)
    found = losses(of.tests(), 16, Table(torch.zeros(ENTRIES, ENTRIES)))
    assert found["held_loss"] == pytest.approx(math.log(ENTRIES))
    assert found["held_bits"] == pytest.approx(math.log2(ENTRIES) / 2)


def test_bits_of_a_plain_text_are_those_of_its_bytes(tmp_path: Path) -> None:
    text = b"To be, or not to be.\n<|endoftext|>\n" * 4
    (tmp_path / "t.txt").write_bytes(text)
    of = experiment(
        tmp_path,
        {
            "data": {"context": 4, "train": {"a": "t.txt"}, "test": {"b": "t.txt"}},
            "protocol.stages": [{"sources": "a", "steps": 1}],
        },
    ).workload.load(device=torch.device("cpu"))
    tokens, documents, length = byte_tokens(text)
    assert (len(tokens), documents, length) == (84, 4, 80)
    found = losses(of.tests(), 16, Table(torch.zeros(257, 257)))
    windows = 83 // 4
    assert found["b_loss"] == pytest.approx(math.log(257))
    ends = int((torch.from_numpy(tokens.astype(int))[1 : 4 * windows + 1] == 256).sum())
    assert ends == 3
    assert found["b_bits"] == pytest.approx(math.log2(257))  # one byte a token, and the ends have neither bits nor bytes


def test_the_same_windows_are_tested_each_time_in_batches_of_any_size(tmp_path: Path) -> None:
    of = data(tmp_path, {"a": 500})
    task = of.task("t", "a", batch=4, steps=2)
    torch.manual_seed(1)
    table = Table(torch.randn(ENTRIES, ENTRIES)).train()
    first = task.evaluate(table)  # type: ignore[misc]
    seen, table.seen = torch.cat(table.seen), []
    assert table.training
    assert seen.equal(torch.from_numpy(drawn(100, 0).astype(int))[: 12 * 8].view(12, 8))
    again = losses(of.tests(), 5, table)
    assert torch.cat(table.seen).equal(seen)
    assert {name: float(value) for name, value in again.items()} == pytest.approx(
        {name: float(value) for name, value in first.items()}, rel=1e-12
    )
    few = data(tmp_path, {"a": 500}, test_windows=3)
    assert len(few.tests()["held"]) == 3
    assert [*few.task("t", "a", batch=4, steps=2).figures] == ["held_loss", "held_bits"]


def test_stages_are_tasks_in_steps_with_names(tmp_path: Path) -> None:
    of = data(tmp_path, {"a": 500, "b": 500})
    listed = [
        {"sources": "a", "steps": 7},
        {"sources": {"a": 0.25, "b": 0.75}, "steps": 3},
        {"sources": "b", "steps": 1, "name": "last"},
    ]
    tasks = stages(of, seed=0, batch=4, stages=listed)
    assert [(task.name, task.length, task.unit) for task in tasks] == [
        ("a", 7, "steps"),
        ("a + b", 3, "steps"),
        ("last", 1, "steps"),
    ]
    assert tasks[1].drawing.corpora == {"a": range(500), "b": range(500, 1000)}
    for wrong, said in (
        ([], r"stages = \[\]"),
        ([{"sources": "a"}], "number 1 has no 'steps'"),
        ([listed[0], {"source": "a", "steps": 1}], "number 2 has the key 'source': did you mean 'sources'"),
        ([{"sources": "a", "steps": 1.5}], "number 1: steps = 1.5"),
        ([{"sources": "a", "steps": 0}], "steps=0"),
    ):
        with pytest.raises((OptionError, ValueError), match=said):
            stages(of, seed=0, batch=4, stages=wrong)


def test_domains_come_in_rounds_of_their_own_order_and_then_the_probe(tmp_path: Path) -> None:
    of = data(tmp_path, dict.fromkeys("abcd", 500))
    tasks = domains(of, seed=0, batch=4, steps=7, rounds=3, probe="d", probe_steps=2)
    assert [task.length for task in tasks] == [7] * 9 + [2]
    assert tasks[-1].name == "d (probe)"
    orders = ["".join(task.name[0] for task in tasks[start : start + 3]) for start in (0, 3, 6)]
    assert {"".join(sorted(order)) for order in orders} == {"abc"}
    assert len(set(orders)) > 1
    assert [one.name for one in domains(of, seed=1, batch=4, steps=7, rounds=3)] != [one.name for one in tasks]
    assert [one.name for one in domains(of, seed=3, batch=4, steps=7, domains=["b"])] == ["b 1"]
    for wrong, said in (
        ({"probe": "a", "domains": ["a", "b"]}, "probe = 'a'"),
        ({"domains": ["a", "a"]}, "each once"),
        ({"domains": []}, r"domains = \[\]"),
        ({"domains": ["e"]}, "'e': there are a, b, c, d"),
        ({"rounds": 0}, "rounds = 0"),
        ({"probe_steps": 3}, "probe_steps = 3"),
        ({"probe": "b", "probe_steps": 0}, "steps=0"),
    ):
        with pytest.raises(ValueError, match=said):
            domains(of, seed=0, batch=4, **{"steps": 2, **wrong})


def test_tokens_are_shared_by_all_tasks(tmp_path: Path) -> None:
    of = experiment(corpora(tmp_path)).workload.load(device=torch.device("cpu"))
    tasks = [of.task(name, name, batch=4, steps=2) for name in "ab"]
    held = [one.data.tokens for task in tasks for one in (task.samples, *task.tests.values())]
    assert len({tokens.data_ptr() for tokens in held}) == 1
    assert held[0].dtype == torch.int16
