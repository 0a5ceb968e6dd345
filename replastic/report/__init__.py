"""Records in, tables, figures and a page out. Never imports torch."""

from .best import Best as Best
from .best import best as best
from .comparison import Compared as Compared
from .comparison import compare as compare
from .gathering import Study as Study
from .gathering import gather as gather
from .writing import report as report
