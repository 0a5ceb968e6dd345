"""Signatures and docstrings as Markdown, for docs/api.py."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

_LINE = 100  # characters of a signature; a longer one has a line for each parameter


def signature(shown: str, made: Callable[..., Any], *, bound: bool = False) -> str:
    """As it is called, with types and defaults. bound: without the first parameter, which is the object itself."""
    try:
        found = inspect.signature(made)
    except ValueError:
        return shown
    parts: list[str] = []
    kinds = inspect.Parameter
    for parameter in list(found.parameters.values())[bound:]:
        if parameter.kind is kinds.KEYWORD_ONLY and "*" not in parts and not any(part.startswith("*") for part in parts):
            parts.append("*")
        stars = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        hint = "" if parameter.annotation is kinds.empty else f": {_annotation(parameter.annotation)}"
        default = "" if parameter.default is kinds.empty else f" = {_default(parameter.default)}"
        parts.append(f"{stars}{parameter.name}{hint}{default}")
    ends = "" if inspect.isclass(made) or found.return_annotation is kinds.empty else _annotation(found.return_annotation)
    end = f") -> {ends}" if ends else ")"
    line = f"{shown}({', '.join(parts)}{end}"
    return line if len(line) <= _LINE else "\n".join([f"{shown}(", *(f"    {part}," for part in parts), end])


def _annotation(hint: Any) -> str:
    text = hint if isinstance(hint, str) else getattr(hint, "__forward_arg__", inspect.formatannotation(hint))
    return text.strip("'\"")  # of a name that is not defined yet


def _default(value: Any) -> str:
    if inspect.isclass(value) or inspect.isfunction(value):
        return value.__name__
    text = repr(value)
    return "..." if " at 0x" in text or text.startswith("<") else text


def parameters(made: Any) -> set[str]:
    """Names that a docstring may explain, each as `name: text`: parameters, fields and attributes."""
    try:
        known = set(inspect.signature(made).parameters)
    except ValueError:
        known = set()
    for kind in inspect.getmro(made) if inspect.isclass(made) else ():
        known |= {*vars(kind), *vars(kind).get("__annotations__", {})}
    return known


def paragraphs(text: str, known: set[str]) -> list[str]:
    """A docstring as Markdown: prose, parameters as a list, equations and tables as they are, examples as sessions."""
    parts: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if lines and lines[0].startswith(">>>"):
            parts.append(f"```pycon\n{block}\n```")
        elif lines and all(line.startswith("    ") for line in lines):
            parts.append(f"```text\n{textwrap.dedent(block)}\n```")
        else:
            parts += _mixed(lines, known)
    return parts


def _mixed(lines: list[str], known: set[str]) -> Iterator[str]:
    """A block of prose, in which each `name: text` begins an item, and indented lines continue it, or stand as they are."""
    chunks: list[tuple[str, list[str]]] = []
    for line in lines:
        indented = line.startswith("    ")
        named = line.partition(": ")[0].split(", ")
        if set(named) <= known or re.match(r"\s*- ", line):
            chunks.append(("item", [line.strip()]))
        elif indented and chunks and chunks[-1][0] == "item" and not re.search(r"\w {3,}\S", line.strip()):
            chunks[-1][1].append(line)
        elif indented:
            if not chunks or chunks[-1][0] != "code":
                chunks.append(("code", []))
            chunks[-1][1].append(line)
        elif chunks and chunks[-1][0] == "prose":
            chunks[-1][1].append(line)
        else:
            chunks.append(("prose", [line]))
    items: list[str] = []
    for kind, inside in [*chunks, ("end", [])]:
        if kind != "item" and items:
            yield "\n".join(items)
            items = []
        if kind == "item":
            items.append(_item(" ".join(line.strip() for line in inside)))
        elif kind == "code":
            yield "```text\n" + textwrap.dedent("\n".join(inside)) + "\n```"
        elif kind == "prose":
            yield prose(" ".join(inside))


def _item(text: str) -> str:
    if text.startswith("- "):
        return f"- {prose(text[2:])}"
    names, _, rest = text.partition(": ")
    return f"- {', '.join(f'`{name}`' for name in names.split(', '))}: {prose(rest)}"


def prose(text: str) -> str:
    """Text whose characters mean themselves in Markdown, except between backticks."""
    parts = re.split(r"(`[^`]+`)", text)
    escaped = "".join(part if part.startswith("`") else _escaped(part) for part in parts)
    return re.sub(r"^([#+>-])", r"\\\1", escaped)


def _escaped(text: str) -> str:
    return re.sub(r"([*_\[\]\\])", r"\\\1", text).replace("<", "&lt;")
