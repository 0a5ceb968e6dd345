"""Write docs/api/: every public name, from signatures, docstrings and comments of fields.

python docs/api.py

A name is public if a namespace below exports it: by `__all__`, by `import name as name`, or because it is a
function, a class or a constant that is defined there.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from api_docstrings import paragraphs, parameters, prose, signature

import replastic as rp
from replastic.cli.catalogue import settings
from replastic.learner import Method

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/api"


@dataclass(frozen=True)
class Page:
    """A page of the reference: title, what it is about, and whose names it has, by the modules that define them."""

    title: str
    about: str
    modules: tuple[str, ...]


# The page with the longest match of a name's module has it; in-place functions of `methods` are remedies.
PAGES = {
    "remedies": Page(
        "Remedies",
        "Functions that change a model in place, all or nothing, and end in `_`. [Methods](methods.md) call the same ones "
        "at the right moment of a training loop.",
        (),
    ),
    "methods": Page(
        "Methods",
        "Classes for a [`Learner`](learner.md), one for each published method. [Methods](../methods.md) has their "
        "equations, costs, papers, and departures from released code.",
        ("methods",),
    ),
    "learner": Page(
        "Learner",
        "What a training loop and its methods share. [The learner](../learner.md) explains it with examples.",
        ("learner", "optim"),
    ),
    "diagnosis": Page(
        "Diagnosis",
        "What is unhealthy in a model (`diagnose`), and when to act during training (`watch`).",
        ("diagnosis", "measures.watch"),
    ),
    "measures": Page(
        "Measures",
        "By name, of a `Probe` (`rp.measure`), or as functions of tensors. [Measures](../measures.md) has a table of all.",
        ("measures",),
    ),
    "curvature": Page(
        "Curvature",
        "Eigenvalues, spectra, traces and ranks of the loss's second derivatives. `rp.measure` has the common ones by name.",
        ("measures.curvature",),
    ),
    "units": Page("Units", "Find hidden units in a model's graph, observe them, and re-initialise them.", ("units",)),
    "weights": Page("Weights", "A model's weights as matrices, and how to choose among them.", ("weights",)),
    "linalg": Page("Linear algebra", "Functions of tensors, independent of models.", ("linalg",)),
    "theory": Page("Theory", "Both sides of the papers' theorems as numbers, for small networks.", ("theory",)),
    "train": Page(
        "Training",
        "Train a learner on a list of tasks. [Streams and training](../training.md) explains tasks and settings.",
        ("train",),
    ),
    "experiments": Page(
        "Experiments",
        "Data sets, protocols, networks, and records of runs, as [experiment files](../experiments.md) use them.",
        ("workloads.images", "models", "record"),
    ),
    "report": Page("Report", "From records to tables, figures and a page. Needs no torch.", ("report",)),
    "checkpoint": Page(
        "Checkpoints", "Files of weights, without the model's code: [guide](../checkpoints.md).", ("checkpoint",)
    ),
    "integrations": Page(
        "Integrations",
        "Callbacks for [the training loops of other libraries](../integrations.md), each imported from its own module.",
        ("integrations",),
    ),
}
NAMESPACES = (
    *("", "checkpoint", "diagnosis", "learner", "linalg", "measures", "measures.curvature", "methods", "methods.grids"),
    *(
        "models",
        "optim",
        "record",
        "report",
        "theory",
        "theory.collapse",
        "theory.fire",
        "train",
        "units",
        "weights",
        "workloads.images",
    ),
    *("integrations.lightning", "integrations.sb3", "integrations.transformers"),
)
# Names that are no class or function have no docstring.
VALUES = {
    "methods.METHODS": "All methods by the names that experiment files use.",
    "methods.grids.GRIDS": "The hyperparameters that the papers searched, by experiment and method.",
    "methods.grids.BEST": "The point of each grid that the papers chose, by experiment, data set and method.",
    "measures.MEASURES": "All measures by name, for `rp.measure`.",
    "weights.PRESETS": "What may be passed as `where`, by name.",
    "weights.Where": "What may be passed as `where`: a preset, a glob, a name, a predicate, or a list; see `rp.select`.",
    "units.FROZEN": "The reason that `Units.left_out` has for a layer that does not train.",
    "units.Example": "What may be passed as `example`: a tensor, a tuple of inputs, or a dict of inputs by name.",
    "linalg.COEFFICIENTS": "Coefficients of the published iteration by name.",
    "record.ENDINGS": "How a run can end.",
    "models.FROM_IMAGES": "Arguments of networks that follow from images, or other samples with targets.",
    "models.FROM_TOKENS": "Arguments of networks that follow from tokens.",
    "models.MODELS": "All networks by name, for `build_model` and `build_language_model`.",
    "methods.grids.DEFAULTS": "The settings that the papers hold fixed, by experiment and method.",
    "integrations.transformers.FILE": "The file in a Trainer's checkpoint that has the methods' state.",
    "workloads.images.DATA_SETS": "All data sets by name, for `load`.",
    "workloads.images.PROTOCOLS": "All protocols by name.",
}


@dataclass(frozen=True)
class Name:
    """A public object: its paths, the shortest first, and the module in which it is defined, relative to the package."""

    paths: tuple[str, ...]
    made: Any
    module: str

    @property
    def shown(self) -> str:
        """As a user writes it."""
        return f"replastic.{self.paths[0]}" if self.paths[0].startswith("integrations.") else f"rp.{self.paths[0]}"

    @property
    def short(self) -> str:
        return self.paths[0].rpartition(".")[2]

    @property
    def page(self) -> str:
        """The page that has it."""
        in_place = self.short.endswith("_") or self.short == "FireReport"
        if (self.module.startswith("methods.") and in_place) or self.paths[0] == "clear_state_":
            return "remedies"
        matches = {module: page for page, one in PAGES.items() for module in one.modules if self._is_in(module)}
        if matches:
            return matches[max(matches, key=len)]
        raise ValueError(f"{self.shown}, defined in {self.module}, has no page: add the module to PAGES of docs/api.py")

    def _is_in(self, module: str) -> bool:
        return f"{self.module}.".startswith(f"{module}.")

    @property
    def summary(self) -> str:
        """Its first sentence or line."""
        text = inspect.getdoc(self.made) if _has_docstring(self.made) else self.value_text
        return (text or "").partition("\n\n")[0].partition("\n    ")[0].replace("\n", " ").rstrip(":")

    @property
    def value_text(self) -> str:
        key = f"{self.module}.{self.short}"
        if key not in VALUES:
            raise ValueError(f"{self.shown} has no docstring: describe {key!r} in VALUES of docs/api.py")
        return VALUES[key]


def public_names() -> list[Name]:
    """Every public object, once."""
    found: dict[Any, Name] = {}
    for namespace in NAMESPACES:
        module = rp if not namespace else import_module(f"replastic.{namespace}")
        for name in rp.__all__ if module is rp else exported(module):
            made = getattr(module, name)
            if isinstance(made, ModuleType):
                continue
            path = f"{namespace}.{name}".lstrip(".")
            key = id(made) if _has_docstring(made) else (name, id(made))
            before = found.get(key)
            paths = (*before.paths, path) if before else (path,)
            where = made.__module__.partition(".")[2] if _has_docstring(made) else namespace
            found[key] = Name(tuple(sorted(paths, key=lambda path: (path.count("."), path))), made, where)
    return list(found.values())


def exported(module: ModuleType) -> list[str]:
    """The names that a module exports, in its order."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    if module.__name__ == "replastic.methods":
        return ["METHODS", *exported(import_module("replastic.methods.exports"))]
    names: list[str] = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom):
            names += [alias.name for alias in node.names if alias.asname == alias.name]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper()]
    return [name for name in names if not name.startswith("_")]


def rendered() -> dict[str, str]:
    """All pages of the reference, by file name."""
    names = public_names()
    pages = {page: sorted((n for n in names if n.page == page), key=_order) for page in PAGES}
    made = "<!-- Made by `python docs/api.py` from the code. Do not edit. -->"
    contents = [f"# Reference\n\n{made}\n", "Every public name, by topic. `rp` is `import replastic as rp`.\n"]
    texts = {}
    for page, members in pages.items():
        one = PAGES[page]
        links = ", ".join(f"[`{_label(n, members)}`]({page}.md#{n.shown})" for n in members)
        contents.append(f"## [{one.title}]({page}.md)\n\n{links}\n")
        texts[f"{page}.md"] = "\n".join(
            [f"# {one.title}\n", made, "", one.about, "", *_table(members), *map(_entry, members)]
        )
    return {"index.md": "\n".join(contents), **texts}


def _label(name: Name, among: list[Name]) -> str:
    """The name alone, unless another one on the page is the same."""
    alone = [other.short for other in among].count(name.short) == 1
    return name.short if alone else ".".join(name.paths[0].split(".")[-2:])


def _order(name: Name) -> tuple[bool, str, str]:
    """The package's own names first, then namespace by namespace."""
    namespace, _, short = name.paths[0].rpartition(".")
    return bool(namespace), namespace, short.lower()


def _table(names: list[Name]) -> Iterator[str]:
    yield "| name | |"
    yield "|---|---|"
    for name in names:
        yield f"| [`{name.shown}`](#{name.shown}) | {prose(name.summary).replace('|', '&#124;')} |"
    yield ""


def _entry(name: Name) -> str:
    parts = [f'<a id="{name.shown}"></a>', f"## {name.shown.replace('_', chr(92) + '_')}"]
    also = ", ".join(f"`rp.{path}`" for path in name.paths[1:])
    if not _has_docstring(name.made):
        parts += [prose(name.value_text), *_values(name.made), *([f"Also: {also}"] if also else [])]
        return "\n\n".join(parts) + "\n"
    is_error = inspect.isclass(name.made) and issubclass(name.made, BaseException)
    if not is_error:
        parts.append(f"```python\n{signature(name.shown, name.made)}\n```")
    parts += paragraphs(inspect.getdoc(name.made) or "", parameters(name.made))
    if inspect.isclass(name.made) and issubclass(name.made, Method) and name.made is not Method:
        stem = name.module.rpartition(".")[2].replace("_", "-")
        parts += [*_fields(name.made, "setting"), f"Equation, paper and departures: [methods](../methods.md#{stem})."]
    elif inspect.isclass(name.made) and not is_error:
        parts += [*(_fields(name.made, "field") if dataclasses.is_dataclass(name.made) else []), *_members(name.made)]
    parts.append(f"Source: {_source(name)}{f'. Also: {also}' if also else ''}")
    return "\n\n".join(parts) + "\n"


def _source(name: Name) -> str:
    """The file that defines it; a link once pyproject.toml has the repository's address."""
    module = import_module(f"replastic.{name.module}")
    file = Path(module.__file__ or "").resolve().relative_to(ROOT).as_posix()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    address = project.get("urls", {}).get("Repository")
    return f"[`{file}`]({address}/blob/main/{file})" if address else f"`{file}`"


def _fields(made: Any, called: str) -> list[str]:
    """A table of the fields of a dataclass, from their comments."""
    rows = [row for row in settings(made) if row[2]]
    if not rows:
        return []
    cells = [f"| `{name}` | `{default}` | {prose(said)} |".replace("||", "&#124;&#124;") for name, default, said in rows]
    return ["\n".join([f"| {called} | default | |", "|---|---|---|", *cells])]


def _members(made: Any) -> Iterator[str]:
    """Public methods and properties that the class itself defines, each with its docstring."""
    for short, member in vars(made).items():
        function = getattr(member, "__func__", member)
        said = inspect.cleandoc(member.__doc__ or "")
        overridden = not said and any(hasattr(base, short) for base in inspect.getmro(made)[1:])
        if short.startswith("_") or overridden:
            continue
        if isinstance(member, property):
            yield f"**`{short}`**: {prose(said.replace(chr(10), ' '))}".rstrip(": ")
        elif inspect.isfunction(function):
            yield f"```python\n{signature(short, function, bound=True)}\n```"
            yield from paragraphs(said, parameters(function))


def _values(made: Any) -> Iterator[str]:
    """What a collection of names has; nothing for an alias of types."""
    if hasattr(made, "keys") or isinstance(made, tuple | frozenset | list):
        yield ", ".join(f"`{one}`" for one in made)
    elif isinstance(made, str):
        yield f"`{made!r}`"


def _has_docstring(made: Any) -> bool:
    return inspect.isclass(made) or inspect.isroutine(made)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in rendered().items():
        (FOLDER / name).write_text(text)
