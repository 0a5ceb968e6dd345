"""Data sets, and the protocols that turn them into streams of tasks."""

from .data import DATA_SETS as DATA_SETS
from .data import load as load
from .images import Examples as Examples
from .images import ImageData as ImageData
from .images import ImageTask as ImageTask
from .images import Split as Split
from .images import image_task as image_task
from .protocols import PROTOCOLS as PROTOCOLS
