"""A model's weights as matrices: list them (`matrices`) and choose which of them a method changes (`select`)."""

from .inventory import WeightMatrix as WeightMatrix
from .inventory import matrices as matrices
from .select import PRESETS as PRESETS
from .select import LeftAlone as LeftAlone
from .select import Selection as Selection
from .select import Where as Where
from .select import select as select
