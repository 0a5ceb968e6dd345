"""Names and numbers as text: a few names in a sentence, unsafe characters escaped, rows as an aligned table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# Control characters, which terminals execute; characters without a width; characters that change the direction of text; and
# surrogates. Joiners (U+200C, U+200D) are allowed: they are part of words and emoji.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def some(names: Iterable[str], between: str = ", ") -> str:
    """The first three names, and the number of further ones.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    names = [*names]
    return between.join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def visible(text: str) -> str:
    r"""The text with every character escaped that would have an effect instead of being shown.

    >>> visible("a\x1b[31mb\u202e")
    'a\\x1b[31mb\\u202e'
    """
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """The text with tabs and line breaks escaped, too."""
    return visible(text).replace("\t", "\\t").replace("\n", "\\n")


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """A table as lines: the first `left` columns are aligned to the left, the others to the right.

    >>> aligned([["weight", "norm"], ["0", "12.5"]])
    ['weight  norm', '0       12.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = "<" * left + ">" * (len(widths) - left)
    cells = ([f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)] for row in rows)
    return ["  ".join(line).rstrip() for line in cells]
