"""Measure how a network loses its ability to learn, and give it back.

>>> import torch, replastic as rp
>>> model = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
>>> report = rp.fire_(model)
"""

from importlib.metadata import PackageNotFoundError, version

from . import linalg as linalg
from . import measures as measures
from . import optim as optim
from . import units as units
from . import weights as weights
from .health import Diagnosis as Diagnosis
from .health import diagnose as diagnose
from .learner import Learner as Learner
from .linalg import deviation_from_isometry as deviation_from_isometry
from .linalg import normalised_squared_frobenius_error as normalised_squared_frobenius_error
from .linalg import squared_frobenius_error as squared_frobenius_error
from .measures import MEASURES as MEASURES
from .measures import NotMeasurable as NotMeasurable
from .measures import Probe as Probe
from .measures import layer_deviation as layer_deviation
from .measures import measure as measure
from .method import Method as Method
from .methods import CBP as CBP
from .methods import DASH as DASH
from .methods import ER as ER
from .methods import FIRE as FIRE
from .methods import L2 as L2
from .methods import METHODS as METHODS
from .methods import SNR as SNR
from .methods import SWR as SWR
from .methods import FireReport as FireReport
from .methods import FullReset as FullReset
from .methods import HareAndTortoise as HareAndTortoise
from .methods import L2Init as L2Init
from .methods import LayerReset as LayerReset
from .methods import Muon as Muon
from .methods import NormalizeAndProject as NormalizeAndProject
from .methods import Parseval as Parseval
from .methods import PerturbEachStep as PerturbEachStep
from .methods import PlasticityInjection as PlasticityInjection
from .methods import ReDo as ReDo
from .methods import ShrinkAndAddNoise as ShrinkAndAddNoise
from .methods import ShrinkAndPerturb as ShrinkAndPerturb
from .methods import SpectralRegularisation as SpectralRegularisation
from .methods import UseMuon as UseMuon
from .methods import WassersteinInit as WassersteinInit
from .methods import WeightClipping as WeightClipping
from .methods import fire_ as fire_
from .methods import l2_er as l2_er
from .methods import muon as muon
from .methods import redo_ as redo_
from .methods import rescale_ as rescale_
from .methods import reset_ as reset_
from .methods import shrink_and_perturb_ as shrink_and_perturb_
from .methods import shrink_encoder as shrink_encoder
from .optim import clear_state_ as clear_state_
from .task import Batch as Batch
from .task import Task as Task
from .units import Tap as Tap
from .units import find_units as find_units
from .units import reset_units_ as reset_units_
from .watch import Watch as Watch
from .watch import watch as watch
from .weights import select as select

try:
    __version__ = version("replastic")
except PackageNotFoundError:  # used from a checkout that was never installed
    __version__ = "0+unknown"
