"""The curvature of the loss in the parameters: eigenvalues, their density, trace and ranks, and slices of the landscape.

    operator = hessian(probe)                       # or gauss_newton(probe), or hessian_of(loss, parameters)
    top_eigenvalues(operator, 3)
    spectral_density(operator).epsilon_rank(0.1)

Everything is computed in float32 or better, with autocast off, and leaves the model unchanged.
"""

from .density import SpectralDensity as SpectralDensity
from .density import spectral_density as spectral_density
from .eigenvalues import top_eigenpairs as top_eigenpairs
from .eigenvalues import top_eigenvalues as top_eigenvalues
from .estimate import Estimate as Estimate
from .graphs import gauss_newton as gauss_newton
from .graphs import hessian as hessian
from .kronecker import KroneckerRanks as KroneckerRanks
from .kronecker import LayerRanks as LayerRanks
from .kronecker import kronecker_rank_sum as kronecker_rank_sum
from .kronecker import kronecker_ranks as kronecker_ranks
from .landscape import direction_to as direction_to
from .landscape import loss_slice as loss_slice
from .landscape import random_direction as random_direction
from .on_probe import gauss_newton_top_eigenvalue as gauss_newton_top_eigenvalue
from .on_probe import hessian_density as hessian_density
from .on_probe import hessian_epsilon_mass as hessian_epsilon_mass
from .on_probe import hessian_epsilon_mass_as_released as hessian_epsilon_mass_as_released
from .on_probe import hessian_epsilon_rank as hessian_epsilon_rank
from .on_probe import hessian_top_eigenvalue as hessian_top_eigenvalue
from .on_probe import hessian_trace as hessian_trace
from .operators import SymmetricOperator as SymmetricOperator
from .operators import dense as dense
from .operators import from_matrix as from_matrix
from .operators import hessian_of as hessian_of
from .trace import hutch_plus_plus as hutch_plus_plus
from .trace import hutchinson as hutchinson
