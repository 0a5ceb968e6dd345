"""What theory says of plasticity, as numbers: both sides of each theorem, for a small network that is given.

`fire` has the theorems of FIRE, `collapse` those on spectral collapse. A paper's statement that does not hold as printed is
here in a form that does; each file lists these under "Departures".
"""

from . import collapse as collapse
from . import fire as fire
from .bound import Bound as Bound
