"""``ScanRequest``: the validated parameters of a scan."""

from __future__ import annotations

import datetime as dt
import enum
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from numbers import Integral

import msgspec

from lazydelta.errors import LogError, OptionError, PredicateError, RetentionGuardError
from lazydelta.log.segment import commits_in_order
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.log.time_travel import commit_info, milliseconds
from lazydelta.predicates import Predicate, Where, check_conjuncts, conjunction, parse_predicate
from lazydelta.predicates.binding import compare
from lazydelta.protocol.actions import Metadata
from lazydelta.protocol.properties import TIMESTAMP_COLUMN, TableProperties
from lazydelta.protocol.schema import Column, Primitive, TableSchema
from lazydelta.protocol.time import parse_timespan
from lazydelta.protocol.values import Instant, folder_values, parse_instant, short_repr
from lazydelta.warned import RetentionWarning

__all__ = [
    "NamedFiles",
    "RetentionGuard",
    "ScanRequest",
    "ScanStrategy",
    "check_time_travel",
    "last_window",
    "table_retention_guard",
    "time_column",
    "timestamp_of",
]


# ``NamedFiles``: files requested by path, and the partition values in their paths.


class NamedFiles(msgspec.Struct, frozen=True):
    """Paths, each with partition values by physical column.

    Folder names are a convention of writers, not part of the format. They only determine where to look first: a file
    that is not found there is searched for everywhere.
    """

    shown: Mapping[str, Mapping[tuple[str, ...], str | None]]

    @classmethod
    def of(cls, paths: Iterable[str], schema: TableSchema) -> NamedFiles:
        """Parse the folder names of paths, which contain logical or physical column names."""
        columns = [column for column in schema.leaves() if column.is_partition]
        physical = {name: each.physical_path for each in columns for name in (each.name, *each.physical_path)}
        shown = {}
        for path in dict.fromkeys(paths):
            values = folder_values(path)
            shown[path] = {physical[name]: value for name, value in values.items() if name in physical}
        return cls(shown)


# The ``last`` window of a table: its time column, and the predicate for that period.


_TIMESTAMPS = (Primitive("timestamp"), Primitive("timestamp_ntz"))
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def timestamp_of(now: dt.datetime | str | int | None) -> int:
    """Return a timestamp in nanoseconds since 1970, in UTC unless it has a zone. None is now; integers are kept."""
    if now is None:
        return time.time_ns()
    if isinstance(now, int):
        return now
    if isinstance(now, dt.datetime):
        since = (now if now.tzinfo is not None else now.replace(tzinfo=dt.UTC)) - _EPOCH
        return ((since.days * 86_400 + since.seconds) * 10**6 + since.microseconds) * 1_000
    instant = parse_instant(str(now))
    if instant is None:
        message = f"now={short_repr(now)} is not a timestamp"
        raise OptionError(message, hint="pass a datetime, or a string such as '2026-02-08T10:00:00Z'")
    return instant


def time_column(metadata: Metadata, schema: TableSchema) -> Column:
    """Return the time column of a table: the one that it is aligned by, otherwise its only timestamp column."""
    recorded = metadata.property(TIMESTAMP_COLUMN)
    if recorded is not None:
        try:
            return schema.column((recorded,))
        except PredicateError:
            pass  # It was renamed or dropped since. The current columns may still leave only one choice.
    found = [column for column in schema.leaves() if column.type in _TIMESTAMPS]
    if len(found) == 1:
        return found[0]
    named = f"has several timestamps ({', '.join(column.name for column in found)})" if found else "has no timestamp"
    message = f"The table's time column is unknown: it {named} and is not aligned by one"
    raise OptionError(message, hint='spell out the condition, such as where="t >= now() - interval 1 hour"')


def last_window(
    column: Column,
    last: str | dt.timedelta,
    now: dt.datetime | str | int | None = None,
    *,
    ends: bool | None = None,
) -> Predicate:
    """Return the predicate for the time from ``last`` before ``now`` on. An explicit ``now`` is also the end.

    Otherwise there is no end: clocks differ, and rows from a minute ahead are among the newest. ``ends`` overrides
    this, to repeat a request that had no end.
    """
    span = parse_timespan(last if isinstance(last, dt.timedelta) else str(last))
    if span is None or (span.months, span.nanoseconds) <= (0, 0):
        message = f"last={short_repr(last)} is not a duration"
        raise OptionError(message, hint="use 30m, 1h, 2d, '1 hour 30 minutes', or pass a timedelta")
    end = timestamp_of(now)
    parts = [compare(column, ">=", Instant((-span).after(end)))]
    if now is not None if ends is None else ends:
        parts.append(compare(column, "<=", Instant(end)))
    return conjunction(parts)


RetentionGuard = Callable[[int, int], bool]
"""Called with the version and timestamp (epoch ms) of a scan's floor. Returning False rejects the scan."""


class ScanStrategy(enum.Enum):
    """The order in which files are found. It does not change which files are found."""

    AUTO = "auto"
    REVERSE = "reverse"
    FORWARD = "forward"


class ScanRequest(msgspec.Struct, frozen=True):
    """A bound predicate, limits, and the values to report for each file.

    ``stats_columns`` None reports no statistics, so none are read for the report; an empty tuple requests
    ``num_records``. ``extra`` keeps all other fields of an ``add``, for callers that copy it. ``named`` are the only
    files of interest: a sorted base may look only where their paths point. ``strict`` rejects files that are kept only
    because of a NaN missing from their statistics; ``quiet`` keeps them without a warning, for engines that pass their
    own filters. ``time_travel`` says that the version was asked for, so that its files may be gone (see
    ``check_time_travel``).
    """

    predicate: Predicate | None = None
    limit: int | None = None
    row_limit: int | None = None
    strategy: ScanStrategy = ScanStrategy.AUTO
    stats_columns: tuple[Column, ...] | None = None
    batch_size: int = 8192
    retention_guard: RetentionGuard | None = None
    extra: bool = False
    named: NamedFiles | None = None
    strict: bool = False
    time_travel: bool = False
    quiet: bool = False

    @classmethod
    def of(  # noqa: PLR0913 - keywords, as the caller wrote them
        cls,
        schema: TableSchema,
        *,
        where: Where = None,
        limit: int | None = None,
        row_limit: int | None = None,
        strategy: str = "auto",
        stats_columns: Sequence[str] | None = None,
        batch_size: int = 8192,
        retention_guard: RetentionGuard | None = None,
        strict: bool = False,
        last: str | dt.timedelta | None = None,
        now: dt.datetime | str | None = None,
        time_column: Callable[[], Column] | None = None,
        trust_float_max: bool = False,
        time_travel: bool = False,
    ) -> ScanRequest:
        """Bind the caller's arguments to the table's schema. Invalid arguments raise an error here.

        ``time_column`` is called for the column of ``last``. Conditions that cannot prune any file cause a warning, or
        an error with ``strict``.
        """
        for name, value in (("limit", limit), ("row_limit", row_limit)):
            if value is not None and not _whole(value, least=0):
                raise OptionError(
                    f"{name}={value!r} is not valid", hint="pass a number of at least 0, or None for no limit"
                )
        if not _whole(batch_size, least=1):
            raise OptionError(f"batch_size={batch_size!r} is not valid", hint="pass at least 1 file")
        try:
            chosen = ScanStrategy(strategy)
        except ValueError:
            known = ", ".join(each.value for each in ScanStrategy)
            raise OptionError(f"There is no strategy {strategy!r}", hint=f"known: {known}") from None
        if isinstance(stats_columns, str):
            raise OptionError("stats_columns is a list of names, not a string", hint=f"write [{stats_columns!r}]")
        predicate = parse_predicate(where, schema, now=timestamp_of(now), trust_float_max=trust_float_max)
        if last is not None:
            if time_column is None:
                raise OptionError(f"last={last!r} needs a table whose time is known", hint="spell out the condition")
            window = last_window(time_column(), last, now)
            predicate = window if predicate is None else conjunction([predicate, window])
        check_conjuncts(predicate, strict=strict)
        return cls(
            predicate=predicate,
            limit=None if limit is None else int(limit),  # NumPy's integers are taken too
            row_limit=None if row_limit is None else int(row_limit),
            strategy=chosen,
            stats_columns=None if stats_columns is None else tuple(schema.column(name) for name in stats_columns),
            batch_size=batch_size,
            retention_guard=retention_guard,
            strict=strict,
            time_travel=time_travel,
        )


def _whole(value: object, *, least: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


# Retention guard: reject scans of versions whose files VACUUM may have deleted.
#
# VACUUM deletes a file once it was removed longer ago than ``delta.deletedFileRetentionDuration``. So a version is
# complete while it is the newest, and then while its successor is younger than that. The age of the version itself, or
# of its checkpoint, does not matter.


def check_time_travel(snapshot: LogSnapshot, *, strict: bool, now: datetime | None = None) -> None:
    """Warn if VACUUM may have deleted files of an older version; raise with ``strict``.

    A version that is younger than the retention costs no request: it cannot have been replaced longer ago.
    """
    segment = snapshot.segment
    newest = segment.commits[-1] if segment.commits else segment.checkpoint_commit
    retention = TableProperties.of(snapshot.metadata, strict=False).deleted_file_retention
    age = None if newest is None else milliseconds(now or datetime.now(UTC)) - newest.info.last_modified
    if age is not None and timedelta(milliseconds=age) <= retention:
        return
    try:
        table_retention_guard(snapshot, now=now)(snapshot.version, 0)
    except RetentionGuardError as error:
        if strict:
            raise
        warnings.warn(str(error), RetentionWarning, stacklevel=2)


def table_retention_guard(snapshot: LogSnapshot, *, now: datetime | None = None) -> RetentionGuard:
    """Return the guard of a version. It lists the log once when the scan starts."""

    def guard(_version: int, _timestamp: int) -> bool:
        retention = TableProperties.of(snapshot.metadata).deleted_file_retention
        try:
            following = next(commits_in_order(snapshot.store, snapshot.version + 1), None)
        except LogError as error:
            message = f"When version {snapshot.version} of {snapshot.store.uri} was replaced is not known: {error}"
            hint = "scan a newer version, or disable the guard"
            raise RetentionGuardError(message, version=snapshot.version, path=error.path, hint=hint) from error
        if following is None:
            return True
        stamp = commit_info(snapshot.store, following).get("inCommitTimestamp")
        replaced = stamp if isinstance(stamp, int) else following.info.last_modified
        age = timedelta(milliseconds=milliseconds(now or datetime.now(UTC)) - replaced)
        if age <= retention:
            return True
        message = (
            f"Version {snapshot.version} of {snapshot.store.uri} was replaced {age} ago, and the table keeps removed "
            f"files for {retention} only (delta.deletedFileRetentionDuration): VACUUM may have deleted some"
        )
        raise RetentionGuardError(
            message, version=snapshot.version, path=following.path, hint="scan a newer version, or disable the guard"
        )

    return guard
