"""The command line, `replastic`. One file a group of commands; `main` has the exit codes."""

from .main import main as main
