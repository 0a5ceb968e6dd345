"""What is published: a wheel and an archive of sources that install and work outside of a checkout."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import replastic as rp

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def in_package() -> set[str]:
    """Every file of the package, and the experiments that come with it."""
    files = [path for path in (ROOT / "replastic").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    experiments = [*(ROOT / "experiments").rglob("*.toml"), *(ROOT / "experiments/text").glob("*.txt")]
    return {path.relative_to(ROOT).as_posix() for path in files} | {
        f"replastic/{path.relative_to(ROOT).as_posix()}" for path in experiments
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of sources, and a wheel that is built from that archive and not from the checkout."""
    for module in ("build", "hatchling"):
        pytest.importorskip(module, reason=f'the package is built with {module}: pip install {module}, or ".[dev]"')
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel. Other packages, torch above all, are those of this one."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(site)
    (site / "others.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("site-packages")))
    return folder


def python(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The environment's Python, run in a folder that has nothing of the checkout."""
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    environment = {**known, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [str(installed / "bin/python"), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


def replastic(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(installed, folder, "-m", "replastic", *arguments)


@pytest.mark.slow
def test_the_wheel_has_the_package_and_its_experiments_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
        metadata = next(opened.read(name).decode() for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
    assert names == in_package()
    assert {"replastic/py.typed", "replastic/report/page.css", "replastic/experiments/quick.toml"} <= names
    assert "License-Expression: MIT" in metadata
    assert wheel.name.startswith(f"replastic-{PROJECT['version']}-py3-none-any")


@pytest.mark.slow
def test_the_archive_of_sources_has_no_records_tests_or_caches(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    tops = {name.partition("/")[0] for name in names}
    assert tops <= {
        *("replastic", "experiments", "examples", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "constraints.txt"),
        *("pyproject.toml", "PKG-INFO", ".gitignore"),
    }
    assert [name for name in names if "results" in name or name.endswith((".pyc", ".gz"))] == []
    assert archive.stat().st_size < 2**20


@pytest.mark.slow
def test_the_wheel_runs_a_shipped_experiment_from_any_folder(installed: Path, tmp_path: Path) -> None:
    where = python(installed, tmp_path, "-c", "import replastic; print(replastic.__file__, replastic.__version__)")
    printed = where.stdout
    assert printed.startswith(str(installed))
    assert printed.split()[1] == PROJECT["version"]
    small = ["--set", "protocol.tasks=2", "--set", "protocol.epochs=1", "--set", "training.evaluate_every=1"]
    run = replastic(installed, tmp_path, "run", "quick", "--out", "runs", "--arm", "FIRE", "--seed", "1", *small)
    assert run.returncode == 0, run.stderr
    report = replastic(installed, tmp_path, "report", "runs", "--out", "page")
    assert report.returncode == 0, report.stderr
    assert "<html" in (tmp_path / "page/index.html").read_text()
    written = replastic(installed, tmp_path, "new-method", "my_own")
    assert written.returncode == 0, written.stderr
    assert (tmp_path / "my_own.py").is_file()


@pytest.mark.slow
def test_with_the_core_alone_doctor_help_and_version_work(installed: Path, tmp_path: Path) -> None:
    """tyro and rich are hidden by modules that cannot be imported, and stand before the others on the path."""
    for name in ("tyro", "rich", "matplotlib", "sklearn"):
        (tmp_path / f"{name}.py").write_text("raise ImportError(__name__)\n")
    doctor = replastic(installed, tmp_path, "doctor")
    assert doctor.returncode == 0, doctor.stderr
    assert "torch " in doctor.stdout
    assert str(installed) in doctor.stdout  # the experiments
    help_of = replastic(installed, tmp_path, "--help")
    assert help_of.returncode == 0, help_of.stderr
    assert 'pip install "replastic[cli]"' in help_of.stdout
    assert replastic(installed, tmp_path, "--version").stdout == f"replastic {PROJECT['version']}\n"
    run = replastic(installed, tmp_path, "run", "quick", "--out", "runs")
    assert run.returncode == 2
    assert 'pip install "replastic[cli]"' in run.stderr


def test_the_version_is_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [PROJECT["version"]]
    assert (ROOT / "CHANGELOG.md").read_text().splitlines()[2].startswith(f"## {PROJECT['version']}")
    assert rp.__version__ in (PROJECT["version"], "0+unknown")
