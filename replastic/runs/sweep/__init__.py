"""Run many runs, of methods x points of their grids x seeds, on this machine or on a cluster."""

from .call import Outcome as Outcome
from .engine import Engine as Engine
from .local import Local as Local
from .on_ray import OnRay as OnRay
from .on_slurm import OnSlurm as OnSlurm
from .sweeping import sweep as sweep
