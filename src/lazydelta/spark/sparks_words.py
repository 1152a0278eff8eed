"""Errors and hints as somebody meets them who writes Spark: our sentence first, and its advice in Spark's names."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from lazydelta import errors
from lazydelta.errors import LazyDeltaError, WriteError

__all__ = ["error_of_ours", "in_sparks_words", "ours_first"]

_OURS = re.compile(r"lazydelta\.errors\.(\w+): (.*?)(?=\s+SQLSTATE: \w{5}\b|\n\s*\n|\n\s*at |\Z)", re.DOTALL)

# What our own functions call it, and what a DataFrame's writer does.
_WORDS = (
    (re.compile(r"say schema_mode='merge' to add it"), "set mergeSchema to true to add it"),
    (re.compile(r"say mode='overwrite' without a predicate, or schema_mode='merge'"), "set mergeSchema to true"),
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
    (re.compile(r"\boverwrite_where\b"), "replaceWhere"),
    (re.compile(r"\btimestamp_column\b"), "timestampColumn"),
    (re.compile(r"\bpartition_by\b"), "partitionBy"),
)


def error_of_ours(error: Exception, what: str = "the ingestion") -> LazyDeltaError:
    """Return the error of ours that a task or a query ended with; Spark passes on no more than its text."""
    text = str(error)
    # Of errors that came one of another, the last is what it came to.
    found = next(reversed(list(_OURS.finditer(text))), None)
    if found is not None:
        kind = getattr(errors, found[1], LazyDeltaError)
        return kind(" ".join(found[2].split())) if issubclass(kind, LazyDeltaError) else LazyDeltaError(found[2])
    lines = [each.strip() for each in text.splitlines() if each.strip()]
    cause = next(
        (each for each in reversed(lines) if "Caused by" in each or "Error" in each), lines[0] if lines else ""
    )
    message = f"Spark did not finish {what}: {cause[:500]}"
    return WriteError(message, hint="nothing of it was committed; Spark's log says more")


def in_sparks_words(error: LazyDeltaError) -> LazyDeltaError:
    """Return the same error, with its hint in the names of Spark's options and functions."""
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
    """Raise what was ours in an error of Spark's; what Spark says around it is its cause."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise error_of_ours(error) from error
