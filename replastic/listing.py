"""Names in a sentence: a few of them, however many there are, and whatever letters they have."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Control characters, which terminals obey; characters without a width, and those that reverse the direction of writing; and
# halves of characters. Joiners (U+200C, U+200D) are part of words and of pictures.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def some(names: Iterable[str], between: str = ", ") -> str:
    """The first three, and how many more there are.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    names = [*names]
    return between.join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def visible(text: str) -> str:
    r"""With an escape in the place of every character that would do something instead of being shown.

    >>> visible("a\x1b[31mb\u202e")
    'a\\x1b[31mb\\u202e'
    """
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """The same, of tabs and new lines as well."""
    return visible(text).replace("\t", "\\t").replace("\n", "\\n")
