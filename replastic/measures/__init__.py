"""What a network's weights say about its plasticity."""

from ..linalg import deviation_from_isometry as deviation_from_isometry
from ..linalg import normalised_squared_frobenius_error as normalised_squared_frobenius_error
from ..linalg import squared_frobenius_error as squared_frobenius_error
from .catalogue import MEASURES as MEASURES
from .catalogue import Measure as Measure
from .probe import NotMeasurable as NotMeasurable
from .probe import Probe as Probe
from .take import measure as measure
from .weights import layer_deviation as layer_deviation
