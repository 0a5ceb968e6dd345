"""Checkpoint files as named tensors, without the model's code: examine their weights (`inspect`), and restore an even
spectrum (`fire`).

    rp.checkpoint.inspect("model.safetensors").summary
    rp.checkpoint.fire("model.safetensors", "model-fired.safetensors")
"""

from .firing import Fired as Fired
from .firing import fire as fire
from .inspecting import Inspection as Inspection
from .inspecting import inspect as inspect
from .opened import Checkpoint as Checkpoint
from .opened import open_checkpoint as open_checkpoint
from .stored import CheckpointError as CheckpointError
