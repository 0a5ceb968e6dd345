"""How plastic is a network? Measures as functions of tensors, and by name of a `Probe`: one model and one batch.

`curvature` has operators, spectra and loss landscapes.
"""

from ..linalg import deviation_from_isometry as deviation_from_isometry
from ..linalg import normalised_squared_frobenius_error as normalised_squared_frobenius_error
from ..linalg import squared_frobenius_error as squared_frobenius_error
from . import curvature as curvature
from .balance import layer_balance as layer_balance
from .balance import pq_balancedness as pq_balancedness
from .balance import pq_norm as pq_norm
from .catalogue import MEASURES as MEASURES
from .catalogue import Measure as Measure
from .features import effective_rank as effective_rank
from .features import feature_covariance_distance as feature_covariance_distance
from .features import feature_norm as feature_norm
from .features import normalised_feature_covariance as normalised_feature_covariance
from .features import srank as srank
from .features import threshold_rank as threshold_rank
from .from_scratch import FromScratchGap as FromScratchGap
from .from_scratch import from_scratch_gap as from_scratch_gap
from .gradients import gradient_collinearity as gradient_collinearity
from .gradients import gradient_covariance as gradient_covariance
from .gradients import gradient_norm as gradient_norm
from .gradients import gradient_rank as gradient_rank
from .gradients import sample_gradient_gram as sample_gradient_gram
from .lipschitz import lipschitz_bound as lipschitz_bound
from .lipschitz import product_of_spectral_norms as product_of_spectral_norms
from .probe import NotApplicable as NotApplicable
from .probe import NotMeasurable as NotMeasurable
from .probe import Probe as Probe
from .take import measure as measure
from .units import activity_scores as activity_scores
from .units import dead_fraction as dead_fraction
from .units import dormant_fraction as dormant_fraction
from .units import margin_dead_fraction as margin_dead_fraction
from .units import margins as margins
from .units import saturated_fraction as saturated_fraction
from .units import sign_entropy as sign_entropy
from .units import smallest_activity as smallest_activity
from .weights import condition_number as condition_number
from .weights import frobenius_norm as frobenius_norm
from .weights import layer_deviation as layer_deviation
from .weights import norm_growth as norm_growth
from .weights import relative_distance as relative_distance
from .weights import singular_values as singular_values
from .weights import spectral_norm as spectral_norm
from .weights import stable_rank as stable_rank
