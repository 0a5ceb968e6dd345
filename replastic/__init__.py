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
from .learner import Learner as Learner
from .linalg import deviation_from_isometry as deviation_from_isometry
from .linalg import normalised_squared_frobenius_error as normalised_squared_frobenius_error
from .linalg import squared_frobenius_error as squared_frobenius_error
from .measures import layer_deviation as layer_deviation
from .method import Method as Method
from .methods import FIRE as FIRE
from .methods import FireReport as FireReport
from .methods import fire_ as fire_
from .optim import clear_state_ as clear_state_
from .task import Batch as Batch
from .task import Task as Task
from .units import Tap as Tap
from .units import find_units as find_units
from .units import reset_units_ as reset_units_
from .weights import select as select

try:
    __version__ = version("replastic")
except PackageNotFoundError:  # used from a checkout that was never installed
    __version__ = "0+unknown"
