"""`replastic new-method`: write a method to start from, and its test."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from ..options import OptionError
from .command import Command
from .console import print_line

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(kw_only=True)
class NewMethod(Command):
    """Write a method to start from, and its test."""

    name: ClassVar[str] = "new-method"

    method: Positional[Annotated[str, arg(metavar="NAME")]]
    """The file's name, such as soft_reset; the class is then SoftReset."""
    folder: Annotated[str, arg(metavar="DIR")] = "."
    """The folder to write both files to."""

    def __call__(self) -> int:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", self.method).lower()
        if not name.isidentifier() or keyword.iskeyword(name):
            raise OptionError(f"{self.method!r} is not a name for a Python file: use letters and _, as in soft_reset")
        if find_spec(name) is not None and not (Path(self.folder) / f"{name}.py").exists():
            raise OptionError(f"a module {name!r} exists already, and the file would hide it: choose another name")
        kind = "".join(part.capitalize() for part in name.split("_"))
        folder = Path(self.folder)
        if folder.exists() and not folder.is_dir():
            raise OptionError(f"--folder {folder} is a file: pass a folder, which need not exist")
        files = {folder / f"{name}.py": "method.py.txt", folder / f"test_{name}.py": "test_method.py.txt"}
        for path in files:
            if path.exists():
                raise OptionError(f"{path} exists already: delete it, or choose another name; nothing was written")
        folder.mkdir(parents=True, exist_ok=True)
        words = {"title": name.replace("_", " ").capitalize(), "kind": kind, "name": name}
        for path, template in files.items():
            text = (_TEMPLATES / template).read_text(encoding="utf-8")
            path.write_text(text.format(**words), encoding="utf-8")
        method, test = files
        print_line(f"{method}: a working method to change")
        print_line(f"{test}: its test; run it with  pytest {test}")
        print_line(f'In an experiment file in the same folder:\n\n[arms.mine]\nname = "{name}.py:{kind}"\nrate = 0.5')
        return 0
