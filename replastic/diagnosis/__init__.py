"""What is unhealthy in a model: `diagnose`."""

from .diagnosis import diagnose as diagnose
from .result import Diagnosis as Diagnosis
