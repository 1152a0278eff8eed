"""Errors that begin with what happened.

Spark shows what a Python worker raises as a traceback with the message at its very end. What an exception was caused by
is printed before it, and a cause that was never raised has no traceback. So an error of ours names its own sentence as
its cause. Where tracebacks are simplified, which is the default, Spark takes the cause away first; hence a class whose
cause stays.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lazydelta.errors import LazyDeltaError
from lazydelta.spark.sparks_words import in_sparks_words

__all__ = ["sentence_first"]


@contextmanager
def sentence_first() -> Iterator[None]:
    """Let errors of ours be printed with their sentence first, in Spark's words, then how they came about."""
    try:
        yield
    except LazyDeltaError as error:
        if "_said" in vars(error):
            raise
        raise _beginning_with_its_sentence(in_sparks_words(error)).with_traceback(error.__traceback__) from None


def _beginning_with_its_sentence(error: LazyDeltaError) -> LazyDeltaError:
    kind = type(error)
    said = copy.copy(error)
    said.__traceback__ = said.__cause__ = said.__context__ = None
    cause = property(lambda _: said, lambda _, __: None)
    names: dict[str, Any] = {"__cause__": cause, "__module__": kind.__module__, "__reduce_ex__": _as_it_was}
    shown = copy.copy(error)
    shown.__class__ = type(kind.__name__, (kind,), names)
    shown._said = said  # type: ignore[attr-defined]  # noqa: SLF001 - a mark that it is done
    return shown


def _as_it_was(error: LazyDeltaError, protocol: int) -> Any:
    """Pickle an error as one of its own class, which other processes know."""
    return error._said.__reduce_ex__(protocol)  # type: ignore[attr-defined]  # noqa: SLF001
