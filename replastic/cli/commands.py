"""Every command, in the order in which `replastic --help` lists them."""

from .catalogue import List, Show
from .checkpoints import Fire, Inspect
from .doctor import Doctor
from .looking import Best, Compare, Report
from .new_method import NewMethod
from .running import Run, Sweep

ALL = (Run, Sweep, Report, Compare, Best, Inspect, Fire, List, Show, NewMethod, Doctor)
