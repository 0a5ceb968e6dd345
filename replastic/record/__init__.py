"""One run = one folder: written by `Record`, read by `read`."""

from .checkpoints import load_checkpoint as load_checkpoint
from .files import RecordNotWritten as RecordNotWritten
from .folder import Record as Record
from .folder import status_of as status_of
from .reading import Run as Run
from .reading import find_runs as find_runs
from .reading import read as read
from .schema import ENDINGS as ENDINGS
