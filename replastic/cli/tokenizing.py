"""`replastic tokenize`: corpora of text to token files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from tyro.conf import Positional, UseAppendAction, arg

from .command import Command
from .console import console, print_line, print_table

if TYPE_CHECKING:
    from ..workloads.text.tokenize import Tell
    from ..workloads.text.tokens import TokenFile

_SILENCE = 10.0  # seconds without a line, where there is no bar


@dataclass(kw_only=True)
class Tokenize(Command):
    """Write the tokens of text, for experiments with language."""

    name: ClassVar[str] = "tokenize"
    when_stopped: ClassVar[str] = "stopped; every token file that is there is whole"

    corpora: Positional[Annotated[list[str], arg(metavar="CORPUS.txt.xz")]]
    """.txt, .txt.xz or .txt.gz files, in UTF-8. Each becomes NAME.bin and NAME.json."""
    out: Annotated[str, arg(metavar="DIR", aliases=["-o"])]
    """The folder of the token files."""
    tokenizer: Annotated[str, arg(metavar="gpt2|FILE.json|bytes")]
    """GPT-2's, one of the library tokenizers, or bytes."""
    documents: Literal["marked", "lines", "files"] = "marked"
    """What ends a document: a line <|endoftext|>, each line, or each file."""
    end: Annotated[str, arg(metavar="TOKEN")] = "<|endoftext|>"
    """The token after each document; '' for none."""
    vocabulary: Annotated[str, arg(metavar="DIR")] = ""
    """The folder of GPT-2's vocab.bpe and encoder.json; by default next to the text, or $REPLASTIC_DATA."""
    into: Annotated[str, arg(metavar="NAME")] = ""
    """Write one token file of all corpora, with this name."""
    sources: UseAppendAction[Annotated[list[str], arg(metavar="FILE.sources.txt.xz")]] = field(default_factory=list)
    """The source of each document, a line each: one NAME.SOURCE.bin a source. One such file for each corpus."""
    hold_out: Annotated[float, arg(metavar="SHARE")] = 0.0
    """Share of the documents for NAME.valid.bin; the others go to NAME.train.bin."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Draws the documents that are held out."""
    jobs: Annotated[int, arg(metavar="N")] = 0
    """Number of threads; 0: one per core. The tokens do not depend on it."""
    overwrite: bool = False
    """Replace token files that exist."""

    def __call__(self) -> int:
        from ..workloads.text.tokenize import tokenize

        with _progress() as tell:
            made = tokenize(
                self.corpora,
                self.out,
                tokenizer=self.tokenizer,
                documents=self.documents,
                end=self.end,
                vocabulary=self.vocabulary or None,
                into=self.into or None,
                sources=self.sources,
                hold_out=self.hold_out,
                seed=self.seed,
                jobs=self.jobs or None,
                overwrite=self.overwrite,
                tell=tell,
            )
        _print_files(made)
        return 0


def _print_files(made: Sequence[TokenFile]) -> None:
    rows = [
        (str(file.path), f"{file.tokens:,}", f"{file.documents:,}", f"{file.bytes:,}", f"{file.bytes / file.tokens:.3f}")
        for file in made
    ]
    print_table(("written", "tokens", "documents", "bytes of text", "bytes a token"), rows, right=(1, 2, 3, 4))


@contextmanager
def _progress() -> Iterator[Tell]:
    """A bar on a terminal; elsewhere a line now and then."""
    from rich import progress as bars

    begun = last = time.monotonic()

    def line(read: int, of: int, text: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _SILENCE:
            last = now
            print_line(f"{text / 1e6:,.0f} MB of text, {text / 1e6 / (now - begun):.1f} MB/s; {read / of:.0%} of the files")

    if not console().is_terminal:
        yield line
        return
    with bars.Progress(
        bars.BarColumn(20),
        bars.TaskProgressColumn(),
        bars.TextColumn("{task.fields[text]}"),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
        console=console(),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None, text="")

        def show(read: int, of: int, text: int) -> None:
            rate = text / 1e6 / max(time.monotonic() - begun, 1e-9)
            bar.update(task, completed=read, total=of, text=f"{text / 1e6:,.0f} MB of text, {rate:.1f} MB/s")

        yield show
