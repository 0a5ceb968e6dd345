"""All code in README and docs runs as it stands: page by page, one block after the other, in a folder of its own."""

import contextlib
import io
import logging
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import replastic as rp
from replastic.checkpoint.families import TABLE
from replastic.cli import main
from replastic.cli.commands import ALL
from replastic.methods import METHODS
from replastic.record import find_runs, read

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]
# Named one by one, so that a typo in a fence cannot hide a page's code.
WITHOUT_PYTHON = {
    "docs/design.md",
    "docs/experiments.md",
    "docs/gallery.md",
    "docs/glossary.md",
    "docs/performance.md",
    "docs/claims.md",
    "docs/report.md",
    "docs/reproduce.md",
    "docs/results.md",
    "docs/results-fire.md",
    "docs/results-spectral-collapse.md",
    "docs/results-swr.md",
}
# What may stand on a page and is not run: what was printed, and what installs or takes minutes.
SHOWN_ONLY = {
    "README.md": {"text"},
    "docs/experiments.md": {"toml"},  # tests/test_experiments.py reads it
    "docs/language.md": {"text"},
    "docs/measures.md": {"text"},
    "docs/methods.md": {"text"},
    "docs/own-experiments.md": {"text"},
    "docs/tutorial-checkpoint.md": {"text"},
    "docs/tutorial-first-steps.md": {"text"},
    "docs/tutorial-own-loop.md": {"text"},
}
# What would take minutes is run for a few seconds: a page's commands get these arguments, too.
_ONE_EPOCH = ["--set", "protocol.tasks=2", "--set", "protocol.epochs=1", "--set", "training.evaluate_every=1"]
SMALLER = {
    "README.md": {"run": _ONE_EPOCH},
    "docs/own-experiments.md": {"run": _ONE_EPOCH, "sweep": _ONE_EPOCH},
}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what else stands behind the fence, the line of its first line, and its text."""

    language: str
    options: str
    line: int
    text: str

    @property
    def title(self) -> str | None:
        """The file that it is, or "added to" one."""
        found = re.search(r'title="([^"]+)"', self.options)
        return found[1] if found else None

    @property
    def commands(self) -> list[list[str]]:
        """Of a shell block that is run: the arguments of each `replastic`."""
        if self.language != "sh" or not self.text.startswith("replastic "):
            return []
        return [shlex.split(line, comments=True)[1:] for line in self.text.splitlines() if line.strip()]

    @property
    def runs(self) -> bool:
        return self.language == "python" or bool(self.commands) or self.title is not None


def blocks_of(page: str) -> list[Block]:
    found: list[Block] = []
    opened: tuple[str, str, int] | None = None
    inside: list[str] = []
    for number, line in enumerate((ROOT / page).read_text().splitlines(), start=1):
        fence = re.match(r"\s*(```|~~~)\s*(\S*)\s*(.*)$", line)
        if fence is None:
            inside.append(line)
            continue
        assert line.startswith("```"), f"{page}:{number}: a fence is three backticks at the start of a line"
        if opened is None:
            opened, inside = (fence[2], fence[3], number + 1), []
        else:
            assert line.strip() == "```", f"{page}:{number}: a block was not closed"
            found.append(Block(*opened, "\n".join([*inside, ""])))
            opened = None
    assert opened is None, f"{page}: the last block is not closed"
    return found


def given_to(page: str) -> dict[str, Any]:
    """Names that a page takes for granted. Tutorials have none."""
    if page == "docs/methods.md":
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        batch = (torch.randn(3, 4), torch.tensor([0, 1, 1]))
        task = rp.Task("a", lambda generator: [batch], nn.functional.cross_entropy)
        names = {"rp": rp, "torch": torch, "model": model, "optimizer": torch.optim.Adam(model.parameters())}
        return {**names, "first_task": task, "second_task": task, "generator": torch.Generator()}
    return {}


def run(block: Block, page: str, names: dict[str, Any]) -> None:
    if block.title is not None:
        file = block.title.removeprefix("added to ")
        with Path(file).open("w" if file == block.title else "a") as opened:
            opened.write(block.text)
    elif block.language == "sh":
        for arguments in block.commands:
            arguments = [*arguments, *SMALLER.get(page, {}).get(arguments[0], [])]
            assert exit_code(arguments) == 0, f"{page}:{block.line}: replastic {shlex.join(arguments)}"
    else:
        # Empty lines in front, so that a traceback has the page's line numbers.
        exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), names)


def exit_code(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in; methods, random state and loggers are afterwards what they were."""
    monkeypatch.chdir(tmp_path)
    methods, handlers, level = dict(METHODS), list(logging.root.handlers), logging.root.level
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield tmp_path
    METHODS.clear()
    METHODS.update(methods)
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in WITHOUT_PYTHON])
def test_the_code_of_a_page_runs(page: str, alone: Path) -> None:
    names = given_to(page)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for block in blocks_of(page):
            if block.runs and block.language not in SHOWN_ONLY.get(page, set()):
                run(block, page, names)
    CHECKS.get(page, lambda names, printed: None)(names, printed.getvalue())


def test_no_block_is_neither_run_nor_meant_to_be_shown_only() -> None:
    for page in PAGES:
        others = {block.language for block in blocks_of(page) if not block.runs}
        assert others <= SHOWN_ONLY.get(page, set()), f"{page} has blocks of {others} that nothing runs"
        assert any(block.language == "python" for block in blocks_of(page)) != (page in WITHOUT_PYTHON), page
    assert {*SHOWN_ONLY, *WITHOUT_PYTHON} <= {*PAGES}


def test_commands_that_are_shown_and_not_run_name_what_there_is() -> None:
    """In indented lines: too large to be run here."""
    shown, known = 0, {command.name for command in ALL}
    for page in PAGES:
        for line in re.findall(r"^    (?:replastic|python) .+", (ROOT / page).read_text(), re.MULTILINE):
            shown += 1
            words = line.split()
            assert words[0] != "replastic" or words[1] in known, f"{page}: {line.strip()}"
            for path in re.findall(r"(?:experiments|examples|benchmarks|docs)/[\w./-]+", line):
                assert (ROOT / path).exists(), f"{page}: {line.strip()}"
    assert shown >= 10


def check_readme(names: dict[str, Any], printed: str) -> None:
    assert torch.allclose(names["q"].T @ names["q"], torch.eye(3), atol=1e-6)


def check_learner(names: dict[str, Any], printed: str) -> None:
    assert names["learner"].task_number > 0


def check_measures(names: dict[str, Any], printed: str) -> None:
    assert names["found"]["weight_growth"] == 1
    assert names["watch"].history
    assert names["smallest"].holds


def check_methods(names: dict[str, Any], printed: str) -> None:
    assert names["learner"].task_number == 1


def check_language(names: dict[str, Any], printed: str) -> None:
    assert names["last"]["tokens"] == 60 * 16 * 32
    assert names["last"]["drawn"].keys() == {"novel", "plays"}
    assert "[(0, 0, 0), (0, 10, 1280), (1, 0, 1280), (1, 10, 2560)]" in printed


def check_continual_pretraining(names: dict[str, Any], printed: str) -> None:
    assert names["callback"].boundaries == [(0, "new data")]
    assert names["stopped"].state.global_step == 20
    assert names["stopped"].lr_scheduler.get_last_lr()[0] > 5e-4  # in the middle of the schedule
    assert printed.count("FIRE, 5 steps: 13 weights") == 1
    assert printed.count("norms restored: 13 tensors") == 1
    for name, parameter in names["scaled"].named_parameters():
        skipped = any(part in name for part in ("ln_", "bias", "wpe"))
        assert torch.equal(parameter, names["fired"].get_parameter(name)) == skipped


def check_logging(names: dict[str, Any], printed: str) -> None:
    runs = [read(folder) for folder in find_runs("runs/mine")]
    assert {(run.arm, run.seed) for run in runs} == {(arm, seed) for arm in ("base", "FIRE") for seed in (1, 2, 3)}
    assert {run.status for run in runs} == {"finished"}
    assert all("dormant_fraction" in row["measures"] for run in runs for row in run.rows)
    assert "idle" in runs[0].rows[-1]["measures"]
    assert "True" in printed.splitlines()  # the resumed run has each row once
    assert "<html" in Path("pages/mine/index.html").read_text()
    assert list(Path("runs/board/base").glob("events.*"))
    assert list(Path("wandb").glob("offline-run-*"))


def check_training(names: dict[str, Any], printed: str) -> None:
    assert "(1, 8, 8) 10 1437 360" in printed
    assert printed.count("\n") == 9
    assert "(0, 20, 60, 'steps')" in printed


def check_writing_a_method(names: dict[str, Any], printed: str) -> None:
    """The method does what it says, and is as short as the page says."""
    first = blocks_of("docs/writing-a-method.md")[0].text
    assert sum(bool(line.strip()) for line in first.partition("@dataclass")[2].splitlines()) <= 20
    learner, model = names["learner"], names["model"]
    learner.begin()
    for name, parameter in model.named_parameters():
        back = (parameter == learner.first(name)).float().mean()
        assert back >= 0.2 - 1 / parameter.numel()
        assert back < 0.5


def check_own_loop(names: dict[str, Any], printed: str) -> None:
    """What the page says of its numbers, which differ a little between machines."""
    assert names["plain"][0] > 0.8
    assert names["plain"][-1] < 0.5
    assert min(names["fired"]) > 0.8
    assert names["alarms"]
    assert names["resumed"].steps == names["learner"].steps == 600
    assert not names["diagnosis"].healthy
    assert [group.name for group in names["units"].groups] == ["up"]
    assert "as in a residual stream" in printed


def check_checkpoint(names: dict[str, Any], printed: str) -> None:
    assert {finding.problem for finding in names["diagnosis"].findings} == {"dead units", "grown weight"}
    assert names["doubtful"] < names["new"] - 0.1
    assert names["restored"] > names["doubtful"] + 0.1
    calls = [advice.do.replace(", optimizer=optimizer", "") for advice in names["diagnosis"].advice]
    page = (ROOT / "docs/tutorial-checkpoint.md").read_text()
    assert all(f"print({call})" in page for call in calls)  # the page does what it says
    assert "selects no weight matrix of this model" in printed
    assert "c_attn.weight:query" in printed
    assert "tied to transformer.wte.weight" in printed
    assert "1 of 4 matrices has grown" in printed
    fired, by_command = names["fired"], load_file("fired.safetensors")
    for name, value in fired.items():  # the command fires one weight at a time, the call all: they round otherwise
        torch.testing.assert_close(by_command[name], value, rtol=1e-4, atol=1e-4)


def check_checkpoints(names: dict[str, Any], printed: str) -> None:
    page = (ROOT / "docs/checkpoints.md").read_text()
    families = {family for row in TABLE for family in row[0].split(", ") if family not in ("", "language model")}
    assert [family for family in families if family not in page] == []
    assert "FIRE would change 3 weights" in printed
    before, after, some = (load_file(f"{name}.safetensors") for name in ("model", "fired", "again"))
    assert [name for name in before if not torch.equal(before[name], after[name])] == ["0.weight", "2.weight", "4.weight"]
    assert [name for name in before if not torch.equal(before[name], some[name])] == ["0.weight", "2.weight"]


def check_integrations(names: dict[str, Any], printed: str) -> None:
    assert printed.count("new data") == 2  # Lightning's second fit, the Trainer's second phase
    assert printed.count("step 1") == 1  # the agent, at the first rollout after step 120
    assert "FIRE, 10 steps: 2 weights" in printed


def check_researcher(names: dict[str, Any], printed: str) -> None:
    assert {run.arm for run in map(read, find_runs("runs/mine"))} >= {"base", "reset", "FIRE", "pull back"}
    assert "<html" in Path("pages/mine/index.html").read_text()
    assert "rate=0." in printed  # the best point
    assert printed.count("finished") >= 6


CHECKS: dict[str, Callable[[dict[str, Any], str], None]] = {
    "README.md": check_readme,
    "docs/checkpoints.md": check_checkpoints,
    "docs/continual-pretraining.md": check_continual_pretraining,
    "docs/integrations.md": check_integrations,
    "docs/language.md": check_language,
    "docs/learner.md": check_learner,
    "docs/logging.md": check_logging,
    "docs/measures.md": check_measures,
    "docs/methods.md": check_methods,
    "docs/training.md": check_training,
    "docs/tutorial-checkpoint.md": check_checkpoint,
    "docs/tutorial-own-loop.md": check_own_loop,
    "docs/tutorial-researcher.md": check_researcher,
    "docs/writing-a-method.md": check_writing_a_method,
}
