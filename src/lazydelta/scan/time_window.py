"""The last hour of a table: which column its time is, and the predicate for so much of it."""

from __future__ import annotations

import datetime as dt
import time

from lazydelta.errors import OptionError, PredicateError
from lazydelta.log.actions import Metadata
from lazydelta.log.properties import TIMESTAMP_COLUMN
from lazydelta.pruning import Predicate, conjunction
from lazydelta.pruning.binding import compare
from lazydelta.types.literals import Instant, parse_instant, short_repr
from lazydelta.types.schema import Column, Primitive, TableSchema
from lazydelta.types.timespan import parse_timespan

__all__ = ["last_window", "moment_of", "time_column"]

_MOMENTS = (Primitive("timestamp"), Primitive("timestamp_ntz"))
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def moment_of(now: dt.datetime | str | int | None) -> int:
    """Return a moment in nanoseconds since 1970, UTC unless it has a zone; None is now, a number is such."""
    if now is None:
        return time.time_ns()
    if isinstance(now, int):
        return now
    if isinstance(now, dt.datetime):
        since = (now if now.tzinfo is not None else now.replace(tzinfo=dt.UTC)) - _EPOCH
        return ((since.days * 86_400 + since.seconds) * 10**6 + since.microseconds) * 1_000
    instant = parse_instant(str(now))
    if instant is None:
        message = f"now={short_repr(now)} is no moment"
        raise OptionError(message, hint="give a datetime, or text such as '2026-02-08T10:00:00Z'")
    return instant


def time_column(metadata: Metadata, schema: TableSchema) -> Column:
    """Return the column that a table's time is: the one it is aligned by, else its only timestamp."""
    recorded = metadata.property(TIMESTAMP_COLUMN)
    if recorded is not None:
        try:
            return schema.column((recorded,))
        except PredicateError:
            pass  # It was renamed or dropped since; what is there now may still leave no choice.
    found = [column for column in schema.leaves() if column.type in _MOMENTS]
    if len(found) == 1:
        return found[0]
    named = f"has several timestamps ({', '.join(column.name for column in found)})" if found else "has no timestamp"
    message = f"It cannot be told which column the table's time is: it {named} and is not aligned by one"
    raise OptionError(message, hint='write the condition out, such as where="t >= now() - interval 1 hour"')


def last_window(
    column: Column,
    last: str | dt.timedelta,
    now: dt.datetime | str | int | None = None,
    *,
    ends: bool | None = None,
) -> Predicate:
    """Return the predicate for the time from ``last`` before ``now`` on; a ``now`` that was given also ends it.

    Without it there is no end: clocks differ, and rows from a minute ahead are among the newest. ``ends`` says it
    otherwise, for who asks again what was asked without an end.
    """
    span = parse_timespan(last if isinstance(last, dt.timedelta) else str(last))
    if span is None or (span.months, span.nanoseconds) <= (0, 0):
        message = f"last={short_repr(last)} is no span of time"
        raise OptionError(message, hint="write 30m, 1h, 2d, '1 hour 30 minutes', or give a timedelta")
    end = moment_of(now)
    parts = [compare(column, ">=", Instant((-span).after(end)))]
    if now is not None if ends is None else ends:
        parts.append(compare(column, "<=", Instant(end)))
    return conjunction(parts)
