"""Errors that begin with what happened.

Spark shows what a Python worker raises as its traceback, with the message at the very end. What an error was caused by
stands before it: so an error of ours is caused by its own sentence.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from lazydelta.errors import LazyDeltaError

__all__ = ["sentence_first"]


@contextmanager
def sentence_first() -> Iterator[None]:
    """Let errors of ours be printed with their sentence first, then how they came about."""
    try:
        yield
    except LazyDeltaError as error:
        if error.__cause__ is not None and type(error.__cause__) is type(error):
            raise
        said = copy.copy(error)
        said.__traceback__ = said.__cause__ = said.__context__ = None
        raise error from said
