"""What every training loop shares: `Learner`, `Method` and `Task`."""

from .learner import Learner as Learner
from .learners import Learners as Learners
from .method import Method as Method
from .task import Batch as Batch
from .task import IndexedTask as IndexedTask
from .task import Samples as Samples
from .task import Task as Task
