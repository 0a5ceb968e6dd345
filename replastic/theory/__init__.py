"""Theorems on plasticity as numbers: both sides of each inequality, for a small network that you pass.

`fire` has the theorems of FIRE, `collapse` those on spectral collapse. Where a paper's statement does not hold as printed, a
form that holds is here instead; each file lists these under "Departures".
"""

from . import collapse as collapse
from . import fire as fire
from .bound import Bound as Bound
