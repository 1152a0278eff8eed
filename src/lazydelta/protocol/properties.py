"""The keys of table properties and of column metadata, and the properties that lazydelta honours, with their types.

A property that a writer must honour is a key in ``Key``, a field of ``TableProperties`` with Delta's default, and a
line of ``PROPERTIES``. ``tests/project/test_properties.py`` refuses raw keys elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from lazydelta.errors import WriteError
from lazydelta.protocol.actions import Metadata

__all__ = [
    "ISOLATION_LEVELS",
    "PROPERTIES",
    "TIMESTAMP_COLUMN",
    "Key",
    "TableProperties",
    "is_true",
    "parse_interval",
    "split_columns",
]


class Key:
    """Names of properties, as the protocol spells them; a table may spell them in another case."""

    APPEND_ONLY = "delta.appendOnly"
    AUTO_COMPACT = "delta.autoOptimize.autoCompact"
    CHANGE_DATA_FEED = "delta.enableChangeDataFeed"
    CHECKPOINT_INTERVAL = "delta.checkpointInterval"
    CHECKPOINT_POLICY = "delta.checkpointPolicy"
    CHECKPOINT_PROTECTED_BEFORE = "delta.requireCheckpointProtectionBeforeVersion"
    COLUMN_MAPPING_MODE = "delta.columnMapping.mode"
    CONSTRAINT = "delta.constraints."  # a prefix
    DELETED_FILE_RETENTION = "delta.deletedFileRetentionDuration"
    DELETION_VECTORS = "delta.enableDeletionVectors"
    EXPIRED_LOG_CLEANUP = "delta.enableExpiredLogCleanup"
    FEATURE = "delta.feature."  # a prefix
    ICEBERG_COMPAT = "delta.enableIcebergCompat"  # a prefix
    INDEXED_COLUMNS = "delta.dataSkippingNumIndexedCols"
    IN_COMMIT_SINCE_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"
    IN_COMMIT_SINCE_VERSION = "delta.inCommitTimestampEnablementVersion"
    IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
    ISOLATION_LEVEL = "delta.isolationLevel"
    LOG_RETENTION = "delta.logRetentionDuration"
    MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
    MIN_READER_VERSION = "delta.minReaderVersion"
    MIN_WRITER_VERSION = "delta.minWriterVersion"
    ROW_TRACKING = "delta.enableRowTracking"
    STATS_AS_JSON = "delta.checkpoint.writeStatsAsJson"
    STATS_AS_STRUCT = "delta.checkpoint.writeStatsAsStruct"
    STATS_COLUMNS = "delta.dataSkippingStatsColumns"
    TARGET_FILE_SIZE = "delta.targetFileSize"
    TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"
    TYPE_WIDENING = "delta.enableTypeWidening"
    UNIVERSAL_FORMATS = "delta.universalFormat.enabledFormats"

    # In the metadata of a column.
    COLUMN_ID = "delta.columnMapping.id"
    GENERATION = "delta.generationExpression"
    IDENTITY = "delta.identity."  # a prefix
    INVARIANTS = "delta.invariants"
    PHYSICAL_NAME = "delta.columnMapping.physicalName"
    TYPE_CHANGES = "delta.typeChanges"


TIMESTAMP_COLUMN = "lazydelta.timestampColumn"
"""The property that names the timestamp column of a time-aligned table."""

ISOLATION_LEVELS = ("Serializable", "WriteSerializable", "SnapshotIsolation")
"""The values of ``delta.isolationLevel``; the last two are the same here, because every write checks what it read."""

_UNITS = {
    "week": timedelta(weeks=1),
    "day": timedelta(days=1),
    "hour": timedelta(hours=1),
    "minute": timedelta(minutes=1),
    "second": timedelta(seconds=1),
    "millisecond": timedelta(milliseconds=1),
    "microsecond": timedelta(microseconds=1),
}
_INTERVAL = r"\s*([+-]?\d+)\s+([a-z]+?)s?(?=\s|$)"
_COLUMN = r"\s*((?:`(?:[^`]|``)*`|[^,`])+?)\s*(?:,|$)"


class TableProperties(msgspec.Struct, frozen=True):
    """The table's configuration; an invalid value raises an error that names its property."""

    checkpoint_interval: int = 10
    log_retention: timedelta = timedelta(days=30)
    deleted_file_retention: timedelta = timedelta(days=7)
    transaction_retention: timedelta | None = None
    append_only: bool = False
    indexed_columns: int = 32
    """Number of leaf columns that get statistics; -1 means all."""
    stats_columns: tuple[str, ...] | None = None
    """The columns that get statistics, overriding ``indexed_columns``; names may be dotted and backquoted."""
    in_commit_timestamps: bool = False
    expired_log_cleanup: bool = True
    stats_as_json: bool = True
    stats_as_struct: bool = True
    deletion_vectors: bool = False
    auto_compact: bool = False
    serializable: bool = False
    """Whether a blind append conflicts with an operation that would have read its rows."""
    protected_before: int = 0
    """The log before this version is cleaned up completely or not at all."""

    @classmethod
    def of(cls, metadata: Metadata, *, strict: bool = True) -> TableProperties:
        """Parse the properties of a table."""
        return cls.parse(metadata.configuration or {}, strict=strict)

    @classmethod
    def parse(cls, configuration: Mapping[str, str | None], *, strict: bool = True) -> TableProperties:
        """Parse properties from a configuration; unless ``strict``, an invalid one gets its default."""
        # Delta's property names are case-insensitive.
        given = {key.lower(): value for key, value in configuration.items() if value is not None}
        found: dict[str, Any] = {}
        for field, each in PROPERTIES.items():
            value = given.get(each.key.lower())
            if value is None:
                continue
            try:
                found[field] = each.parse(value)
            except ValueError as error:
                if strict:
                    message = f"The table property {each.key} is {value!r}, which is not valid"
                    raise WriteError(message, hint=each.hint) from error
        return cls(**found)


def is_true(metadata: Metadata, name: str) -> bool:
    """Return whether a boolean property is true; any other value counts as false."""
    lowered = name.lower()
    configuration = metadata.configuration or {}
    return any(
        key.lower() == lowered and (value or "").strip().lower() == "true" for key, value in configuration.items()
    )


def parse_interval(text: str) -> timedelta | None:
    """Parse ``interval 7 days``, ``7 days`` or ``1 week 2 hours``; None if it is not such an interval.

    Months and years have no fixed length, and Delta does not accept them for a retention either.
    """
    rest = text.strip().lower().removeprefix("interval")
    total = timedelta()
    position = 0
    while rest[position:].strip():
        match = re.compile(_INTERVAL).match(rest, position)
        unit = None if match is None else _UNITS.get(match[2])
        if match is None or unit is None:
            return None
        try:
            total += int(match[1]) * unit
        except OverflowError:
            return None
        position = match.end()
    return total if position else None


def split_columns(text: str) -> tuple[str, ...]:
    """Split a list of column names at commas; a comma between backquotes belongs to the name."""
    return tuple(match[1] for match in re.finditer(_COLUMN, text))


def _flag(text: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise ValueError
    return text.strip().lower() == "true"


def _from(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if (number := int(text)) < least:
            raise ValueError
        return number

    return parse


def _retention(text: str) -> timedelta:
    found = parse_interval(text)
    if found is None or found < timedelta():
        raise ValueError
    return found


def _is_serializable(text: str) -> bool:
    if text.strip().lower() not in {each.lower() for each in ISOLATION_LEVELS}:
        raise ValueError
    return text.strip().lower() == "serializable"


class Property(msgspec.Struct, frozen=True):
    """How a property is parsed; ``parse`` raises a ``ValueError``, and ``hint`` says what is valid."""

    key: str
    parse: Callable[[str], Any]
    hint: str = ""


_FLAG, _INTERVALS = "use true or false", "write it like 'interval 7 days'"
PROPERTIES = {
    "append_only": Property(Key.APPEND_ONLY, _flag, _FLAG),
    # Delta-Spark accepts more values, and none of them is a reason to refuse a write.
    "auto_compact": Property(Key.AUTO_COMPACT, lambda text: text.strip().lower() in {"true", "auto"}),
    "checkpoint_interval": Property(Key.CHECKPOINT_INTERVAL, _from(1), "give a number from 1"),
    "deleted_file_retention": Property(Key.DELETED_FILE_RETENTION, _retention, _INTERVALS),
    "deletion_vectors": Property(Key.DELETION_VECTORS, _flag, _FLAG),
    "expired_log_cleanup": Property(Key.EXPIRED_LOG_CLEANUP, _flag, _FLAG),
    "in_commit_timestamps": Property(Key.IN_COMMIT_TIMESTAMPS, _flag, _FLAG),
    "indexed_columns": Property(Key.INDEXED_COLUMNS, _from(-1), "give a number from -1"),
    "log_retention": Property(Key.LOG_RETENTION, _retention, _INTERVALS),
    "protected_before": Property(Key.CHECKPOINT_PROTECTED_BEFORE, _from(0), "give a number from 0"),
    "serializable": Property(Key.ISOLATION_LEVEL, _is_serializable, f"use one of {', '.join(ISOLATION_LEVELS)}"),
    "stats_as_json": Property(Key.STATS_AS_JSON, _flag, _FLAG),
    "stats_as_struct": Property(Key.STATS_AS_STRUCT, _flag, _FLAG),
    "stats_columns": Property(Key.STATS_COLUMNS, split_columns),
    "transaction_retention": Property(Key.TRANSACTION_RETENTION, _retention, _INTERVALS),
}
"""The properties that lazydelta honours, by the field of ``TableProperties``."""
