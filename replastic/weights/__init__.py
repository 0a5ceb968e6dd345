"""A model's weights as matrices: which there are (`matrices`), and which of them a method acts on (`select`)."""

from .inventory import WeightMatrix as WeightMatrix
from .inventory import matrices as matrices
from .select import PRESETS as PRESETS
from .select import LeftAlone as LeftAlone
from .select import Selection as Selection
from .select import Where as Where
from .select import select as select
