"""Text as tokens, and the protocols that turn corpora into streams of tasks."""

from .protocols import PROTOCOLS as PROTOCOLS
from .tasks import TextData as TextData
from .tasks import TextTask as TextTask
from .tasks import Windows as Windows
from .tokens import TokenData as TokenData
from .tokens import TokenFile as TokenFile
from .tokens import read_token_file as read_token_file
from .tokens import write_token_file as write_token_file
