"""The public names. `import replastic` imports them, and with them torch, when one of them is first used."""

from . import checkpoint as checkpoint
from . import linalg as linalg
from . import measures as measures
from . import optim as optim
from . import units as units
from .diagnosis.diagnosis import diagnose as diagnose
from .diagnosis.result import Diagnosis as Diagnosis
from .learner import Batch as Batch
from .learner import Learner as Learner
from .learner import Learners as Learners
from .learner import Method as Method
from .learner import Task as Task
from .linalg import deviation_from_isometry as deviation_from_isometry
from .linalg import normalised_squared_frobenius_error as normalised_squared_frobenius_error
from .linalg import squared_frobenius_error as squared_frobenius_error
from .measures import MEASURES as MEASURES
from .measures import NotMeasurable as NotMeasurable
from .measures import Probe as Probe
from .measures import layer_deviation as layer_deviation
from .measures import measure as measure
from .measures.watch import Watch as Watch
from .measures.watch import watch as watch
from .methods import METHODS as METHODS
from .methods.exports import *  # noqa: F403
from .optim import clear_state_ as clear_state_
from .units import Tap as Tap
from .units import find_units as find_units
from .units import reset_units_ as reset_units_
from .weights import select as select
