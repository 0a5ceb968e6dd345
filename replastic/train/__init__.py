"""The training loop: `train` takes a learner through a stream of tasks, as `Training` says."""

from .loop import train as train
from .settings import Training as Training
