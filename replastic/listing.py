"""Names in a sentence: a few of them, however many there are."""

from __future__ import annotations

from collections.abc import Iterable


def some(names: Iterable[str], between: str = ", ") -> str:
    """The first three, and how many more there are.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    names = [*names]
    return between.join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
