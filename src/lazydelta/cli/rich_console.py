"""Rich's consoles on the standard streams, set up for paths and for pipes."""

from __future__ import annotations

import sys

from rich.console import Console

__all__ = ["console"]

# A pipe has no width: lines there are as long as they need to be, for grep and cut.
_ENDLESS = 4000


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command, which knows the exit code; Rich would exit here."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Return a console on a standard stream that takes text literally: paths are full of brackets and colons."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _ENDLESS
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
