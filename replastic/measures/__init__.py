"""What a network's weights say about its plasticity."""

from ..linalg import deviation_from_isometry as deviation_from_isometry
from ..linalg import normalised_squared_frobenius_error as normalised_squared_frobenius_error
from ..linalg import squared_frobenius_error as squared_frobenius_error
from .weights import layer_deviation as layer_deviation
