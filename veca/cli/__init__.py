"""The command line: only this room may import all others."""

from veca.cli.main import main

__all__ = ["main"]
