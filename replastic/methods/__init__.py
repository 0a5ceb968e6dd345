"""One paper, one file."""

from .fire import FIRE as FIRE
from .fire import FireReport as FireReport
from .fire import fire_ as fire_
