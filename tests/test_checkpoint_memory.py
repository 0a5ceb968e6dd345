"""A checkpoint is never in memory as a whole: firing or inspecting some of its matrices takes what those take."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

WIDTH, HIDDEN, LAYERS, A_SHARD = 2048, 5504, 10, 2
# The largest matrix is 45 MB in float32. A step of the iteration holds some copies of it, its Gram matrix and the bytes as
# they were read; the file has 1 GB.
CEILING = 600e6

CHILD = """
import json, sys
import torch
import replastic as rp
import safetensors.torch
from pathlib import Path

def peak():
    # Not getrusage's ru_maxrss: a process inherits that from the one that starts it.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024

torch.set_num_threads(1)
rp.fire_(torch.nn.Linear(8, 8), steps=1)  # what is imported late is no part of the growth
what, folder, out = sys.argv[1:]
before = peak()
some = ["model.layers.0.mlp.gate_proj", "model.layers.9.mlp.down_proj", "*.layers.5.self_attn.[qk]_proj"]
files = Path(folder).glob("*.safetensors") if what == "load" else ()
kept = [value.clone() for file in files for value in safetensors.torch.load_file(file).values()]
if what == "inspect":
    rp.checkpoint.inspect(folder, where="model.layers.3.mlp.up_proj")
elif what == "fire":
    rp.checkpoint.fire(folder, out, where=some, method="published", steps=1)
print(json.dumps({"growth": peak() - before, "total": peak()}))
"""


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory as Linux tells it"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Llama's names in five shards, 1 GB of bfloat16; every matrix is the same numbers, which is quick to write."""
    made = tmp_path_factory.mktemp("checkpoint")
    if shutil.disk_usage(made).free < 3e9:
        shutil.rmtree(made)
        pytest.skip("needs 3 GB on the disk of temporary files")
    wide = torch.randn(HIDDEN, WIDTH, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()
    parts = {f"self_attn.{letter}_proj": wide[:WIDTH] for letter in "qkvo"}
    parts |= {"mlp.gate_proj": wide, "mlp.up_proj": wide, "mlp.down_proj": wide.view(WIDTH, HIDDEN)}
    where: dict[str, str] = {}
    for number in range(0, LAYERS, A_SHARD):
        file = f"model-{number // A_SHARD + 1:05}-of-{LAYERS // A_SHARD:05}.safetensors"
        layers = range(number, number + A_SHARD)
        shard = {f"model.layers.{layer}.{name}.weight": value.clone() for layer in layers for name, value in parts.items()}
        save_file(shard, made / file)
        where |= dict.fromkeys(shard, file)
    (made / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    yield made
    shutil.rmtree(made)


def measured(what: str, folder: Path, out: Path) -> dict[str, float]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, what, str(folder), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    shutil.rmtree(out, ignore_errors=True)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("what", ["fire", "inspect"])
def test_a_gigabyte_is_fired_and_inspected_in_far_less(what: str, folder: Path, tmp_path: Path) -> None:
    assert sum(file.stat().st_size for file in folder.iterdir()) > 1e9
    used = measured(what, folder, tmp_path / "out")
    assert used["growth"] < CEILING
    assert used["total"] < 2e9


def test_the_measurement_would_show_a_file_that_is_loaded(folder: Path, tmp_path: Path) -> None:
    assert measured("load", folder, tmp_path / "out")["growth"] > 1e9
