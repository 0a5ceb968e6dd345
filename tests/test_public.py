"""What `import replastic` gives, and what it does without."""

import importlib.util
import subprocess
import sys
from types import ModuleType

import pytest

import replastic as rp
from replastic import public
from replastic.methods import METHODS, exports


def names() -> dict[str, object]:
    return {name: value for name, value in vars(public).items() if not name.startswith("_")}


def test_every_public_name_is_there_and_listed() -> None:
    assert len(names()) > 50
    for name, value in names().items():
        assert getattr(rp, name) is value
    assert set(names()) <= set(dir(rp))


def test_no_module_hides_a_public_name() -> None:
    """Importing a module sets its name in the package: a function of that name would be gone from then on."""
    for name, value in names().items():
        assert isinstance(value, ModuleType) or importlib.util.find_spec(f"replastic.{name}") is None, name


def test_all_public_names_and_no_others_come_with_a_star() -> None:
    found: dict[str, object] = {}
    exec("from replastic import *", found)
    assert set(found) - {"__builtins__"} == set(names())


@pytest.mark.parametrize("name", ["fire", "__wrapped__", "public_", "_repr_html_", "linalg.polar"])
def test_a_name_that_is_not_there_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'replastic' has no attribute '{name}'"):
        getattr(rp, name)


@pytest.mark.slow
@pytest.mark.parametrize("statement", ["import replastic", "from replastic import record, report"])
def test_records_are_read_without_torch(statement: str) -> None:
    program = f"import sys; {statement}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_the_first_use_of_a_name_brings_it() -> None:
    program = "import replastic as rp; assert callable(rp.watch); import replastic.measures.watch; assert callable(rp.watch)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_files_of_experiments_are_read_without_importing_every_method() -> None:
    program = """
import sys
import replastic.runs.config
from replastic.methods import METHODS
assert "dash" in METHODS and list(METHODS)[0] == "fire"
assert "replastic.methods.dash" not in sys.modules
assert METHODS["dash"].__module__ in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_imported_by_its_own_name(name: str) -> None:
    made = METHODS[name]
    assert getattr(rp, made.__name__) is made
    assert getattr(rp.methods, made.__name__) is made


def test_every_export_of_methods_is_there_by_its_own_name_and_not_its_file() -> None:
    assert METHODS["muon"] is rp.UseMuon  # imports the file
    for name, value in vars(exports).items():
        if not name.startswith("_"):
            assert getattr(rp.methods, name) is value, name


def test_a_method_of_a_users_own_can_be_added_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "mine", rp.L2Init)
    assert METHODS["mine"] is rp.L2Init
    assert dict(METHODS)["mine"] is rp.L2Init
    with pytest.raises(KeyError, match="yours"):
        METHODS["yours"]
