"""One paper, one file. `METHODS` has them all by name."""

from collections.abc import Callable
from typing import Any

from .cbp import CBP as CBP
from .dash import DASH as DASH
from .er import ER as ER
from .er import l2_er as l2_er
from .fire import FIRE as FIRE
from .fire import FireReport as FireReport
from .fire import fire_ as fire_
from .fire_on_alarm import FIREOnAlarm as FIREOnAlarm
from .hare_and_tortoise import HareAndTortoise as HareAndTortoise
from .l2 import L2 as L2
from .l2_init import L2Init as L2Init
from .muon import Muon as Muon
from .muon import UseMuon as UseMuon
from .muon import muon as muon
from .normalize_and_project import NormalizeAndProject as NormalizeAndProject
from .parseval import Parseval as Parseval
from .plasticity_injection import PlasticityInjection as PlasticityInjection
from .redo import ReDo as ReDo
from .redo import redo_ as redo_
from .reset import FullReset as FullReset
from .reset import LayerReset as LayerReset
from .reset import reset_ as reset_
from .shrink_and_perturb import PerturbEachStep as PerturbEachStep
from .shrink_and_perturb import ShrinkAndAddNoise as ShrinkAndAddNoise
from .shrink_and_perturb import ShrinkAndPerturb as ShrinkAndPerturb
from .shrink_and_perturb import shrink_and_perturb_ as shrink_and_perturb_
from .shrink_and_perturb import shrink_encoder as shrink_encoder
from .snr import SNR as SNR
from .spectral import SpectralRegularisation as SpectralRegularisation
from .swr import SWR as SWR
from .swr import rescale_ as rescale_
from .wasserstein import WassersteinInit as WassersteinInit
from .weight_clipping import WeightClipping as WeightClipping

# A name gives a class, or a function that returns a list of methods.
METHODS: dict[str, Callable[..., Any]] = {
    "fire": FIRE,
    "fire_on_alarm": FIREOnAlarm,
    "full_reset": FullReset,
    "layer_reset": LayerReset,
    "shrink_and_perturb": ShrinkAndPerturb,
    "shrink_and_add_noise": ShrinkAndAddNoise,
    "perturb_each_step": PerturbEachStep,
    "shrink_encoder": shrink_encoder,
    "dash": DASH,
    "plasticity_injection": PlasticityInjection,
    "swr": SWR,
    "cbp": CBP,
    "redo": ReDo,
    "snr": SNR,
    "hare_and_tortoise": HareAndTortoise,
    "weight_clipping": WeightClipping,
    "normalize_and_project": NormalizeAndProject,
    "er": ER,
    "l2_er": l2_er,
    "l2": L2,
    "l2_init": L2Init,
    "parseval": Parseval,
    "spectral": SpectralRegularisation,
    "wasserstein": WassersteinInit,
    "muon": UseMuon,
}
