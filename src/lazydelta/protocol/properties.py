"""Table properties, typed: the few that a writer must honour, with Delta's defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

import msgspec

from lazydelta.errors import WriteError
from lazydelta.protocol.actions import Metadata

__all__ = ["ISOLATION_LEVELS", "TIMESTAMP_COLUMN", "TableProperties", "is_true", "parse_interval", "split_columns"]

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
        given = {key.lower(): (key, value) for key, value in configuration.items() if value is not None}
        read = _Reader(given, strict)
        stats_columns = read.text("delta.dataSkippingStatsColumns")
        return cls(
            checkpoint_interval=read.number("delta.checkpointInterval", 10, least=1),
            log_retention=read.interval("delta.logRetentionDuration", timedelta(days=30)),
            deleted_file_retention=read.interval("delta.deletedFileRetentionDuration", timedelta(days=7)),
            transaction_retention=read.optional_interval("delta.setTransactionRetentionDuration"),
            append_only=read.flag("delta.appendOnly", default=False),
            indexed_columns=read.number("delta.dataSkippingNumIndexedCols", 32, least=-1),
            stats_columns=None if stats_columns is None else split_columns(stats_columns),
            in_commit_timestamps=read.flag("delta.enableInCommitTimestamps", default=False),
            expired_log_cleanup=read.flag("delta.enableExpiredLogCleanup", default=True),
            stats_as_json=read.flag("delta.checkpoint.writeStatsAsJson", default=True),
            stats_as_struct=read.flag("delta.checkpoint.writeStatsAsStruct", default=True),
            protected_before=read.number("delta.requireCheckpointProtectionBeforeVersion", 0, least=0),
            deletion_vectors=read.flag("delta.enableDeletionVectors", default=False),
            serializable=read.choice("delta.isolationLevel", ISOLATION_LEVELS) == "serializable",
            # Delta-Spark accepts more values, and none of them is a reason to refuse a write.
            auto_compact=(read.text("delta.autoOptimize.autoCompact") or "").strip().lower() in {"true", "auto"},
        )


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


class _Reader(msgspec.Struct, frozen=True):
    given: Mapping[str, tuple[str, str]]
    strict: bool

    def text(self, name: str) -> str | None:
        found = self.given.get(name.lower())
        return None if found is None else found[1]

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        text = self.text(name)
        if text is None:
            return None
        if text.strip().lower() not in {each.lower() for each in choices}:
            self._refuse(name, text, f"say one of {', '.join(choices)}")
        return text.strip().lower()

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in {"true", "false"}:
            self._refuse(name, text, "say true or false")
            return default
        return text.strip().lower() == "true"

    def number(self, name: str, default: int, *, least: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            self._refuse(name, text, f"give a number from {least}")
            return default
        return number

    def interval(self, name: str, default: timedelta) -> timedelta:
        found = self.optional_interval(name)
        return default if found is None else found

    def optional_interval(self, name: str) -> timedelta | None:
        text = self.text(name)
        if text is None:
            return None
        found = parse_interval(text)
        if found is None or found < timedelta():
            self._refuse(name, text, "write it like 'interval 7 days'")
            return None
        return found

    def _refuse(self, name: str, text: str, hint: str) -> None:
        if self.strict:
            raise WriteError(f"The table property {name} is {text!r}, which is not valid", hint=hint)
