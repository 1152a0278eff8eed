"""Errors that show their message first.

Spark shows an exception of a Python worker as a traceback with the message at the very end. The cause of an exception
is printed before it, and a cause that was never raised has no traceback, so a lazydelta error uses its own message as
its cause. With simplified tracebacks, which are the default, Spark removes the cause first; a class with a read-only
cause prevents that.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from lazydelta import errors
from lazydelta.errors import LazyDeltaError, WriteError

__all__ = ["error_of_ours", "ours_first", "sentence_first", "with_spark_names"]


# lazydelta errors for Spark users: the message comes first, and hints use the names of Spark's options.


_OURS = re.compile(r"lazydelta\.errors\.(\w+): (.*?)(?=\s+SQLSTATE: \w{5}\b|\n\s*\n|\n\s*at |\Z)", re.DOTALL)

# Names in lazydelta's own functions, and their equivalents in a DataFrame writer.
_WORDS = (
    (re.compile(r"pass schema_mode='merge' to add it"), "set mergeSchema to true to add it"),
    (re.compile(r"pass mode='overwrite' or schema_mode='merge'"), "set mergeSchema to true"),
    (re.compile(r"cast the column to timestamp\[us, tz=UTC\] yourself"), "cast it with to_timestamp(…)"),
    (re.compile(r"cast the column to timestamp\[us\] yourself"), "cast it with to_timestamp_ntz(…)"),
    (re.compile(r"cast the column to date32\[day\] yourself"), "cast it with to_date(…)"),
    (
        re.compile(r"cast the column to (int|float|double)(8|16|32|64)? yourself"),
        "cast it with try_cast(…)",
    ),
    (re.compile(r"cast the column to decimal128(\(.*?\)) yourself"), r"cast it with try_cast(… AS decimal\1)"),
    (re.compile(r"cast the column to bool yourself"), "cast it with try_cast(… AS boolean)"),
    (re.compile(r"cast the column to (string|binary) yourself"), r"cast it with cast(… AS \1)"),
    (re.compile(r"cast the column to .+ yourself"), "cast it to the type that the table has"),
    (re.compile(r"cast the column before writing it"), "cast it to a type that Delta has"),
    (re.compile(r"or cast this one: `pc\.strptime`, `pc\.cast`"), "or cast this one with to_timestamp(…)"),
    (re.compile(r"\boverwrite_where\b"), "replaceWhere"),
    (re.compile(r"\btimestamp_column\b"), "timestampColumn"),
    (re.compile(r"\bpartition_by\b"), "partitionBy"),
)


def error_of_ours(error: Exception, what: str = "the ingestion") -> LazyDeltaError:
    """Return the lazydelta error that ended a task or query. Spark passes on only its message."""
    text = str(error)
    # In a chain of errors, the last one is the final error.
    found = next(reversed(list(_OURS.finditer(text))), None)
    if found is not None:
        kind = getattr(errors, found[1], LazyDeltaError)
        return kind(" ".join(found[2].split())) if issubclass(kind, LazyDeltaError) else LazyDeltaError(found[2])
    lines = [each.strip() for each in text.splitlines() if each.strip() and not each.strip().startswith("at ")]
    cause = next(
        (each for each in reversed(lines) if "Caused by" in each or "Error" in each), lines[0] if lines else ""
    )
    message = f"Spark did not finish {what}: {cause[:500]}"
    hint = "nothing was committed; see Spark's log"
    if "AssertionError: assertion failed" in cause:
        hint = (
            "nothing was committed. Spark refuses every write but Delta-Spark's own while "
            "spark.databricks.delta.schema.autoMerge.enabled is true: unset it, and set mergeSchema to true"
        )
    return WriteError(message, hint=hint)


def with_spark_names(error: LazyDeltaError) -> LazyDeltaError:
    """Return the same error, with the names of Spark's options and functions in its hint."""
    if error.hint is None:
        return error
    found = copy.copy(error)
    found.__dict__.update(error.__dict__)
    found.hint = error.hint
    for pattern, word in _WORDS:
        found.hint = pattern.sub(word, found.hint or "")
    return found


@contextmanager
def ours_first() -> Iterator[None]:
    """Raise the lazydelta error contained in a Spark error, with the Spark error as its cause."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise error_of_ours(error) from error


@contextmanager
def sentence_first() -> Iterator[None]:
    """Raise lazydelta errors so that Spark prints the message first, with Spark's names, then the traceback."""
    try:
        yield
    except LazyDeltaError as error:
        if "_said" in vars(error):
            raise
        raise _beginning_with_its_sentence(with_spark_names(error)).with_traceback(error.__traceback__) from None


def _beginning_with_its_sentence(error: LazyDeltaError) -> LazyDeltaError:
    kind = type(error)
    said = copy.copy(error)
    said.__traceback__ = said.__cause__ = said.__context__ = None
    cause = property(lambda _: said, lambda _, __: None)
    names: dict[str, Any] = {"__cause__": cause, "__module__": kind.__module__, "__reduce_ex__": _as_it_was}
    shown = copy.copy(error)
    shown.__class__ = type(kind.__name__, (kind,), names)
    shown._said = said  # type: ignore[attr-defined]  # noqa: SLF001 - marks the error as converted
    return shown


def _as_it_was(error: LazyDeltaError, protocol: int) -> Any:
    """Pickle an error as its original class, which other processes know."""
    return error._said.__reduce_ex__(protocol)  # type: ignore[attr-defined]  # noqa: SLF001
