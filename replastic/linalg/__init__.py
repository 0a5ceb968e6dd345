"""Pure tensor maths: tensors in, tensors out."""

from .isometry import deviation_from_isometry as deviation_from_isometry
from .isometry import normalised_squared_frobenius_error as normalised_squared_frobenius_error
from .isometry import smaller_side_deviation as smaller_side_deviation
from .isometry import squared_frobenius_error as squared_frobenius_error
from .newton_schulz import COEFFICIENTS as COEFFICIENTS
from .polar_factor import PolarInfo as PolarInfo
from .polar_factor import PolarOptions as PolarOptions
from .polar_factor import polar as polar
from .polar_factor import polar_with_info as polar_with_info
