"""What a run was made with is found out, and never gets in its way."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from replastic.record import provenance as module
from replastic.record.provenance import provenance

GIT = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]


def git(folder: Path, *arguments: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    done = subprocess.run([*GIT, *arguments], cwd=folder, env=clean, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.setattr(module, "_PACKAGE", package)
    return package


def test_it_says_versions_machine_and_command_in_json() -> None:
    found = provenance()
    assert json.loads(json.dumps(found)) == found
    assert (found["torch"], found["python"]) == (torch.__version__, platform.python_version())
    assert found["command"][1:] == sys.argv[1:]
    assert found["threads"] == torch.get_num_threads()
    assert found["cpus"] >= 1
    assert all(found[key] for key in ("numpy", "safetensors", "platform", "host", "cpu"))
    assert (found["gpu"] is not None) == torch.cuda.is_available()
    assert found["gpus"] == torch.cuda.device_count()


@pytest.mark.parametrize(
    ("program", "name"), [("/usr/local/bin/replastic", "replastic"), ("/somewhere/replastic/__main__.py", "replastic")]
)
def test_the_command_has_no_folder_of_this_machine(program: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [program, "run", "quick.toml"])
    assert provenance()["command"] == [name, "run", "quick.toml"]


def test_it_names_the_commit_and_sees_what_was_changed_since(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert module._commit() == {"commit": commit, "dirty": False}
    (checkout.parent / "results").mkdir()
    (checkout.parent / "results/rows.jsonl").write_text("{}")
    assert module._commit()["dirty"] is False
    (checkout / "mine.py").write_text("")
    assert module._commit()["dirty"] is True
    (checkout / "mine.py").unlink()
    (checkout / "__init__.py").write_text("changed = True")
    assert module._commit() == {"commit": commit, "dirty": True}


def test_the_checkout_of_somebody_else_around_an_installed_package_is_not_ours(checkout: Path) -> None:
    git(checkout, "rm", "-q", "--cached", "__init__.py")
    (checkout.parent / ".gitignore").write_text("package")
    assert module._commit() == {"commit": None, "dirty": None}


def test_a_copy_without_history_has_the_commit_of_its_stamp_and_sees_what_was_changed_since(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    module.stamp()
    copy = tmp_path / "copies/copy"
    copy.mkdir(parents=True)
    shutil.copytree(checkout, copy / "package")
    shutil.copy(checkout.parent / module.STAMP, copy)
    git(tmp_path / "copies", "init", "-q")  # a copy may lie in a checkout of something else
    monkeypatch.setattr(module, "_PACKAGE", copy / "package")
    assert module._commit() == {"commit": commit, "dirty": False}
    (copy / "package/__init__.py").write_text("changed = True")
    assert module._commit() == {"commit": commit, "dirty": True}
    with pytest.raises(RuntimeError, match="not a git checkout"):
        module.stamp()
    for damaged in ("{", "{}", '{"commit": 3, "dirty": false, "sha256": ""}'):
        (copy / module.STAMP).write_text(damaged)
        assert module._commit() == {"commit": None, "dirty": None}
    (checkout / "mine.py").write_text("")
    monkeypatch.setattr(module, "_PACKAGE", checkout)
    module.stamp()
    assert json.loads((checkout.parent / module.STAMP).read_text())["dirty"] is True
    assert module._commit()["dirty"] is True  # git is asked first, and the stamp is not part of the package


def test_the_variables_of_a_git_hook_do_not_mislead_it(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert module._commit()["commit"] == commit


def test_without_git_there_is_no_commit_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(module, "STAMP", "no-stamp")
    found = provenance()
    assert (found["commit"], found["dirty"]) == (None, None)
    assert found["torch"] == torch.__version__


def test_a_git_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*arguments: Any, timeout: float, **options: Any) -> Any:
        raise subprocess.TimeoutExpired("git", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    monkeypatch.setattr(module, "STAMP", "no-stamp")
    assert module._commit() == {"commit": None, "dirty": None}


def test_cuda_is_not_started_only_to_name_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: pytest.fail("started CUDA"))
    monkeypatch.setattr(module, "_output", lambda *command: asked.append(command[0]) or "NVIDIA H200\nNVIDIA H200")
    assert module._gpu() == "NVIDIA H200"
    assert asked == ["nvidia-smi"]
