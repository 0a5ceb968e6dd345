"""The curvature of the loss in the parameters: eigenvalues, their density, trace and ranks, and slices of the landscape.

    operator = hessian(probe)                       # or gauss_newton(probe), or hessian_of(loss, parameters)
    top_eigenvalues(operator, 3)
    spectral_density(operator).epsilon_rank(0.1)

Everything is computed in float32 or better, with autocast off, and leaves the model unchanged.
"""

from .density import SpectralDensity, spectral_density
from .eigenvalues import top_eigenpairs, top_eigenvalues
from .estimate import Estimate
from .graphs import gauss_newton, hessian
from .kronecker import KroneckerRanks, LayerRanks, kronecker_rank_sum, kronecker_ranks
from .landscape import direction_to, loss_slice, random_direction
from .on_probe import (
    gauss_newton_top_eigenvalue,
    hessian_density,
    hessian_epsilon_mass,
    hessian_epsilon_mass_as_released,
    hessian_epsilon_rank,
    hessian_top_eigenvalue,
    hessian_trace,
)
from .operators import SymmetricOperator, dense, from_matrix, hessian_of
from .trace import hutch_plus_plus, hutchinson

__all__ = [
    "Estimate",
    "KroneckerRanks",
    "LayerRanks",
    "SpectralDensity",
    "SymmetricOperator",
    "dense",
    "direction_to",
    "from_matrix",
    "gauss_newton",
    "gauss_newton_top_eigenvalue",
    "hessian",
    "hessian_density",
    "hessian_epsilon_mass",
    "hessian_epsilon_mass_as_released",
    "hessian_epsilon_rank",
    "hessian_of",
    "hessian_top_eigenvalue",
    "hessian_trace",
    "hutch_plus_plus",
    "hutchinson",
    "kronecker_rank_sum",
    "kronecker_ranks",
    "loss_slice",
    "random_direction",
    "spectral_density",
    "top_eigenpairs",
    "top_eigenvalues",
]
