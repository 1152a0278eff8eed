"""Commit settings with deltalake's names: custom metadata, retries, application transactions, post-commit hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from lazydelta.errors import OptionError, UnsupportedOperationError
from lazydelta.protocol.actions import Txn
from lazydelta.write.commit import CommitNote
from lazydelta.write.parquet_encoding import ColumnEncoding, ParquetEncoding

if TYPE_CHECKING:
    from lazydelta.maintenance.after_commit import Maintain

__all__ = [
    "BloomFilterProperties",
    "ColumnProperties",
    "CommitProperties",
    "PostCommitHookProperties",
    "TableFeatures",
    "Transaction",
    "WriterProperties",
    "attempts_of",
    "compression_of",
    "encoding_of",
    "maintains",
    "note_of",
]


@dataclass(frozen=True)
class Transaction:
    """The progress of an application: recorded by a commit, read by ``DeltaTable.transaction_version``."""

    app_id: str
    version: int
    last_updated: int | None = None


@dataclass
class CommitProperties:
    """Settings of a commit.

    ``custom_metadata`` is added to the commit info (``history()``). ``max_commit_retries`` is the number of retries
    when other writers commit first. ``app_transactions`` are recorded with the commit. They do not prevent a batch from
    being written twice, as ``app_id`` and ``app_version`` of `write_arrow` do. It is a conflict if an application has
    advanced since the table was opened, or advances during the write.
    """

    custom_metadata: dict[str, Any] | None = None
    max_commit_retries: int | None = None
    app_transactions: list[Transaction] | None = None


@dataclass
class PostCommitHookProperties:
    """Actions after a commit: a checkpoint (and sidecar) if one is due, and log cleanup if the table enables it."""

    create_checkpoint: bool = True
    cleanup_expired_logs: bool | None = None


def note_of(
    properties: CommitProperties | None, transaction_version: Callable[[str], int | None] | None = None
) -> CommitNote:
    """Return the extra contents of a commit; ``transaction_version`` is that of the caller's table."""
    if properties is None:
        return CommitNote()
    info: Any = properties.custom_metadata
    txns = tuple(
        Txn(app_id=each.app_id, version=each.version, last_updated=each.last_updated)
        for each in properties.app_transactions or ()
    )
    seen = {} if transaction_version is None else {each.app_id: transaction_version(each.app_id) for each in txns}
    return CommitNote({} if info is None else info, txns, seen)


def attempts_of(properties: CommitProperties | None, default: int) -> int:
    """Return the maximum number of commit attempts."""
    retries = None if properties is None else properties.max_commit_retries
    if retries is None:
        return default
    if retries < 0:
        raise OptionError(f"max_commit_retries={retries} is not valid", hint="pass a number of at least 0")
    return retries + 1


def maintains(properties: PostCommitHookProperties | None) -> Maintain:
    """Return whether a due checkpoint and sidecar follow a commit, and then a cleanup of the log."""
    if properties is None:
        return True
    if properties.create_checkpoint and properties.cleanup_expired_logs:
        message = "lazydelta cleans the log according to the table property delta.enableExpiredLogCleanup"
        hint = "omit cleanup_expired_logs, or call cleanup_metadata() yourself"
        raise UnsupportedOperationError(message, hint=hint)
    if properties.create_checkpoint and properties.cleanup_expired_logs is not None:
        return "keep log"
    if not properties.create_checkpoint and properties.cleanup_expired_logs:
        message = "lazydelta cleans the log after a checkpoint, not instead of one"
        raise UnsupportedOperationError(message, hint="call cleanup_metadata() yourself")
    return properties.create_checkpoint


# Encoding of data files with deltalake's names. The writer chooses unset properties by the rows. Table properties
# decide about file statistics in the log (``delta.dataSkippingStatsColumns``), independently of statistics in Parquet.


_LEVELS = {"GZIP": (0, 10), "BROTLI": (0, 11), "ZSTD": (1, 22)}
_DEFAULT_LEVELS = {"GZIP": 6, "BROTLI": 1, "ZSTD": 1}
_COMPRESSIONS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
_OURS = {"UNCOMPRESSED": "none", "SNAPPY": "snappy", "GZIP": "gzip", "ZSTD": "zstd"}
# Page statistics are those of the file's page index, which is always written.
_STATISTICS = {None: None, "NONE": False, "CHUNK": True, "PAGE": True}


@dataclass
class BloomFilterProperties:
    """Bloom filter settings of a column."""

    set_bloom_filter_enabled: bool | None
    fpp: float | None = None
    ndv: int | None = None

    def __post_init__(self) -> None:
        """Raise for invalid values."""
        if self.fpp is not None and not 0 < self.fpp < 1:
            raise OptionError("fpp must be between 0 and 1 exclusive")

    def __str__(self) -> str:
        return f"set_bloom_filter_enabled: {self.set_bloom_filter_enabled}, fpp: {self.fpp}, ndv: {self.ndv}"


@dataclass
class ColumnProperties:
    """Encoding settings of one column."""

    dictionary_enabled: bool | None = None
    statistics_enabled: str | None = None
    bloom_filter_properties: BloomFilterProperties | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        """Raise for invalid values."""
        if self.encoding is not None and self.dictionary_enabled:
            raise OptionError("Cannot specify dictionary_enabled=True and encoding")

    def __str__(self) -> str:
        return (
            f"dictionary_enabled: {self.dictionary_enabled}, statistics_enabled: {self.statistics_enabled}, "
            f"bloom_filter_properties: {self.bloom_filter_properties}, encoding: {self.encoding}"
        )


@dataclass
class WriterProperties:
    """Settings for writing Parquet files; unset ones are chosen by the rows.

    Files are compressed with SNAPPY, GZIP or ZSTD, or not at all. ``statistics_truncate_length`` is refused when a
    table is written.
    """

    data_page_size_limit: int | None = None
    dictionary_page_size_limit: int | None = None
    data_page_row_count_limit: int | None = None
    write_batch_size: int | None = None
    max_row_group_size: int | None = None
    compression: str | None = None
    compression_level: int | None = None
    statistics_truncate_length: int | None = None
    default_column_properties: ColumnProperties | None = None
    column_properties: dict[str, ColumnProperties] | None = None

    def __post_init__(self) -> None:
        """Raise for invalid values, and add the level to the compression name as deltalake does: ``ZSTD(4)``."""
        level = self.compression_level
        if self.compression is None:
            if level is not None:
                raise OptionError("Providing a compression level without the compression type is not possible")
            return
        name = self.compression.upper()
        if name not in _COMPRESSIONS:
            message = f"{self.compression} is not a valid Compression"
            raise OptionError(message, hint=f"Valid values are: {list(_COMPRESSIONS)}")
        if name not in _LEVELS:
            self.compression = name
            return
        low, high = _LEVELS[name]
        if level is not None and not low <= level <= high:
            raise OptionError(f"Compression level for {name} should fall between {low}-{high}")
        self.compression = f"{name}({_DEFAULT_LEVELS[name] if level is None else level})"

    def __str__(self) -> str:
        shown = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "compression_level"}
        columns = self.column_properties or {}
        shown["column_properties"] = ", ".join(f"column '{key}': {value}" for key, value in columns.items()) or None
        return f"WriterProperties({', '.join(f'{name}: {value}' for name, value in shown.items())})"


def compression_of(properties: WriterProperties | None, default: str) -> str:
    """Return the compression of files."""
    if properties is None or properties.compression is None:
        return default
    name = properties.compression.partition("(")[0]
    if name not in _OURS:
        message = f"lazydelta does not write files compressed with {name}"
        raise UnsupportedOperationError(message, hint=f"it writes {', '.join(_OURS)}")
    return _OURS[name]


def encoding_of(properties: WriterProperties | None) -> ParquetEncoding | None:
    """Return the other encoding settings; those that PyArrow does not support are refused by name."""
    if properties is None:
        return None
    if properties.statistics_truncate_length is not None:
        message = "lazydelta ignores statistics_truncate_length of WriterProperties"
        raise UnsupportedOperationError(message, hint="omit it, or write the table with deltalake")
    level = properties.compression_level
    if level is not None and properties.compression == "GZIP(10)":
        raise UnsupportedOperationError("lazydelta compresses with GZIP up to level 9", hint="use level 9 or lower")
    return ParquetEncoding(
        compression_level=level,
        page_bytes=properties.data_page_size_limit,
        page_rows=properties.data_page_row_count_limit,
        dictionary_bytes=properties.dictionary_page_size_limit,
        batch_rows=properties.write_batch_size,
        row_group_rows=properties.max_row_group_size,
        # Parquet's default, which a caller that sets properties of files expects; else the writer looks at the values.
        every=_column(properties.default_column_properties).over(ColumnEncoding(dictionary=True)),
        columns={name: _column(each) for name, each in (properties.column_properties or {}).items()},
    )


def _column(given: ColumnProperties | None) -> ColumnEncoding:
    if given is None:
        return ColumnEncoding()
    statistics = None if given.statistics_enabled is None else given.statistics_enabled.upper()
    if statistics not in _STATISTICS:
        message = f"statistics_enabled={given.statistics_enabled!r} is not valid"
        raise OptionError(message, hint="use NONE, CHUNK or PAGE")
    bloom = given.bloom_filter_properties
    return ColumnEncoding(
        dictionary=given.dictionary_enabled,
        statistics=_STATISTICS[statistics],
        encoding=None if given.encoding is None else given.encoding.upper(),
        bloom_filter=(bloom.ndv, bloom.fpp) if bloom is not None and bloom.set_bloom_filter_enabled else None,
    )


# Table features with deltalake's names.


class TableFeatures(Enum):
    """A feature that readers or writers of a table must support; `DeltaTable.protocol` lists those of a table."""

    ColumnMapping = "ColumnMapping"
    DeletionVectors = "DeletionVectors"
    TimestampWithoutTimezone = "TimestampWithoutTimezone"
    V2Checkpoint = "V2Checkpoint"
    AppendOnly = "AppendOnly"
    Invariants = "Invariants"
    CheckConstraints = "CheckConstraints"
    ChangeDataFeed = "ChangeDataFeed"
    GeneratedColumns = "GeneratedColumns"
    IdentityColumns = "IdentityColumns"
    RowTracking = "RowTracking"
    DomainMetadata = "DomainMetadata"
    IcebergCompatV1 = "IcebergCompatV1"
    VariantType = "VariantType"
    VariantTypePreview = "VariantTypePreview"
