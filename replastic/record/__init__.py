"""One run = one folder: `Record` writes it, `read` reads it, and `pack` makes one file of many."""

from .checkpoints import load_checkpoint as load_checkpoint
from .files import RecordNotWritten as RecordNotWritten
from .folder import Record as Record
from .folder import status_of as status_of
from .packed import Packed as Packed
from .packed import pack as pack
from .packed import unpack as unpack
from .reading import Run as Run
from .reading import find_runs as find_runs
from .reading import read as read
from .schema import ENDINGS as ENDINGS
