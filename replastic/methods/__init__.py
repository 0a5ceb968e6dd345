"""One file per paper. `METHODS` has all methods by name."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .muon import muon as muon  # now, because its file, once imported, would be what has this name

if TYPE_CHECKING:
    from .exports import *  # noqa: F403


class _Methods(UserDict[str, Any]):
    """A dict whose values may be written "file:name"; the file is imported when the value is first used."""

    def __getitem__(self, name: str) -> Callable[..., Any]:
        made = self.data[name]
        if isinstance(made, str):
            file, _, attribute = made.partition(":")
            made = self.data[name] = getattr(import_module(f".{file}", __name__), attribute)
        return made


# A name stands for a class, or for a function that returns a list of methods.
METHODS = _Methods(
    {
        "fire": "fire:FIRE",
        "fire_on_alarm": "fire_on_alarm:FIREOnAlarm",
        "full_reset": "reset:FullReset",
        "layer_reset": "reset:LayerReset",
        "shrink_and_perturb": "shrink_and_perturb:ShrinkAndPerturb",
        "shrink_and_add_noise": "shrink_and_perturb:ShrinkAndAddNoise",
        "perturb_each_step": "shrink_and_perturb:PerturbEachStep",
        "shrink_encoder": "shrink_and_perturb:shrink_encoder",
        "restore_norms": "restore_norms:RestoreNorms",
        "dash": "dash:DASH",
        "plasticity_injection": "plasticity_injection:PlasticityInjection",
        "swr": "swr:SWR",
        "cbp": "cbp:CBP",
        "redo": "redo:ReDo",
        "snr": "snr:SNR",
        "hare_and_tortoise": "hare_and_tortoise:HareAndTortoise",
        "weight_clipping": "weight_clipping:WeightClipping",
        "normalize_and_project": "normalize_and_project:NormalizeAndProject",
        "er": "er:ER",
        "l2_er": "er:l2_er",
        "l2": "l2:L2",
        "l2_init": "l2_init:L2Init",
        "parseval": "parseval:Parseval",
        "spectral": "spectral:SpectralRegularisation",
        "wasserstein": "wasserstein:WassersteinInit",
        "muon": "muon:UseMuon",
    }
)


def __getattr__(name: str) -> Any:
    """Import all methods when one is first used by the name of its class; `METHODS` imports only the one that is used."""
    exports = import_module(".exports", __name__)
    if name.startswith("_") or not hasattr(exports, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(exports, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *vars(import_module(".exports", __name__))})
