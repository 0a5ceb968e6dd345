"""Every command, in the order in which `replastic --help` lists them."""

from .catalogue import List, Show
from .checkpoints import Fire, Inspect
from .doctor import Doctor
from .looking import Best, Compare, Report
from .new_method import NewMethod
from .packing import Pack, Unpack
from .running import Run, Sweep
from .tokenizing import Tokenize

ALL = (Run, Sweep, Report, Compare, Best, Pack, Unpack, Inspect, Fire, Tokenize, List, Show, NewMethod, Doctor)
