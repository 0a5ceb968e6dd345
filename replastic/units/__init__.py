"""Hidden units: what they are (`find_units`), what they do (`Tap`), and how they are re-initialised (`reset_units_`)."""

from .flow import FROZEN as FROZEN
from .groups import Slot as Slot
from .groups import UnitGroup as UnitGroup
from .groups import Units as Units
from .groups import find_units as find_units
from .kinds import original as original
from .reset import reset_checked_ as reset_checked_
from .reset import reset_units_ as reset_units_
from .reset import written as written
from .tap import Tap as Tap
from .tape import Example as Example
