"""Data sets of images and of other tensors, and the protocols that turn them into streams of tasks."""

from .data import DATA_SETS as DATA_SETS
from .data import load as load
from .protocols import PROTOCOLS as PROTOCOLS
from .tasks import Examples as Examples
from .tasks import ImageData as ImageData
from .tasks import LabelledTask as LabelledTask
from .tasks import Split as Split
from .tasks import labelled_task as labelled_task
from .tensors import TensorData as TensorData
from .tensors import TensorSplit as TensorSplit
