"""``PinnedTable``: a table at one version, its metadata, and the lazy discovery of its files.

This module imports what is needed to open a table and find its files. Everything else is imported on first use, because
importing it takes longer than finding the files of an hour.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pyarrow as pa

from lazydelta.deltalake_names.parameters import warn_of_ignored
from lazydelta.errors import OptionError, TableNotFoundError, VersionNotFoundError
from lazydelta.log.hint import read_hint
from lazydelta.log.segment import LogTailCommit, load_segment, log_tail_files
from lazydelta.log.time_travel import history, milliseconds, version_at
from lazydelta.missing_names import called, known_arguments
from lazydelta.predicates import Where
from lazydelta.protocol.actions import Metadata, Protocol
from lazydelta.protocol.file_names import LogFile
from lazydelta.scan.request import RetentionGuard, ScanRequest, time_column
from lazydelta.scan.stream import FileStream
from lazydelta.sidecar.handle import PinnedVersion, Snapshot, TableHandle
from lazydelta.storage import has_known_scheme
from lazydelta.warned import LazyDeltaWarning

if TYPE_CHECKING:
    from lazydelta.protocol.delta_types import Schema

__all__ = [
    "DeltaTableConfig",
    "PinnedTable",
    "ProtocolVersions",
    "TableMetadata",
]


# The table's metadata and protocol in familiar shapes: lists, a dictionary, a tuple to unpack.


class TableMetadata:
    """The table's metadata: id, name, description, partition columns, configuration, creation time."""

    __slots__ = ("_metadata",)

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    @property
    def id(self) -> str:
        """The table's unique id."""
        return self._metadata.id

    @property
    def name(self) -> str | None:
        """The table's name, if it has one."""
        return self._metadata.name

    @property
    def description(self) -> str | None:
        """The table's description, if it has one."""
        return self._metadata.description

    @property
    def partition_columns(self) -> list[str]:
        """The partition columns, in order."""
        return list(self._metadata.partition_columns)

    @property
    def created_time(self) -> int | None:
        """When the table was created, in epoch milliseconds."""
        return self._metadata.created_time

    @property
    def configuration(self) -> dict[str, Any]:
        """The table's properties."""
        return dict(self._metadata.configuration or {})

    @property
    def schema_string(self) -> str:
        """The schema string as stored in the log."""
        return self._metadata.schema_string

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TableMetadata):
            return NotImplemented
        return self._metadata == other._metadata

    def __hash__(self) -> int:
        return hash(self._metadata.id)

    def __repr__(self) -> str:
        return (
            f"Metadata(id: {self.id}, name: {self.name}, description: {self.description}, "
            f"partition_columns: {self.partition_columns}, created_time: {self.created_time}, "
            f"configuration: {self.configuration})"
        )


class ProtocolVersions(NamedTuple):
    """The versions and features that readers and writers must support; features are None in older protocol versions."""

    min_reader_version: int
    min_writer_version: int
    writer_features: list[str] | None
    reader_features: list[str] | None

    @classmethod
    def of(cls, protocol: Protocol) -> ProtocolVersions:
        """Return the protocol action in this shape."""
        return cls(
            protocol.min_reader_version,
            protocol.min_writer_version,
            None if protocol.writer_features is None else list(protocol.writer_features),
            None if protocol.reader_features is None else list(protocol.reader_features),
        )


class DeltaTableConfig(NamedTuple):
    """How deltalake loads a table; lazydelta always loads files lazily, whatever these options say."""

    without_files: bool = False
    log_buffer_size: int = 8
    skip_stats: bool = False


class PinnedTable(PinnedVersion):
    """``DeltaTable`` without access to rows; the constructor is documented there."""

    @known_arguments
    def __init__(  # noqa: PLR0913 - keyword-only except for deltalake's parameters
        self,
        table_uri: str | os.PathLike[str],
        version: int | str | datetime | None = None,
        storage_options: Mapping[str, str] | None = None,
        without_files: bool = False,  # noqa: FBT001, FBT002 - deltalake's parameter, see above
        log_buffer_size: int | None = None,
        skip_stats: bool = False,  # noqa: FBT001, FBT002
        *,
        options: Mapping[str, Any] | None = None,
        log_tail: Sequence[LogTailCommit | str] | None = None,
        external_locations: Mapping[str, Mapping[str, str] | None] | None = None,
        credential: Any = None,
    ) -> None:
        warn_of_ignored({"without_files": without_files, "log_buffer_size": log_buffer_size, "skip_stats": skip_stats})
        if credential is not None:
            storage_options = {**(storage_options or {}), "credential": credential}
        self._storage_options = None if storage_options is None else dict(storage_options)
        handle = TableHandle.open(table_uri, storage_options, options, external_locations=external_locations)
        self._log_tail = None if log_tail is None else log_tail_files(log_tail)
        self._snapshot = self._open(version, handle)

    @classmethod
    def _at(cls, handle: TableHandle, version: int | str | datetime | None = None) -> Self:
        """Pin a version of a table that is open already; for internal use."""
        table = cls.__new__(cls)
        table._storage_options = table._log_tail = None  # noqa: SLF001 - constructed here
        table._snapshot = table._open(version, handle)  # noqa: SLF001
        return table

    @classmethod
    def _of(cls, snapshot: Snapshot, log_tail: tuple[LogFile, ...] | None = None) -> Self:
        """Return the public table of a snapshot; for internal use."""
        table = cls.__new__(cls)
        table._storage_options, table._log_tail, table._snapshot = None, log_tail, snapshot  # noqa: SLF001
        return table

    @classmethod
    def is_deltatable(cls, table_uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> bool:
        """Return whether there is a Delta log at this location; false for locations with an unknown scheme."""
        if not has_known_scheme(table_uri):
            return False
        store = TableHandle.open(table_uri, storage_options).store
        try:
            load_segment(store, hint=read_hint(store))
        except TableNotFoundError:
            return False
        return True

    @property
    def table_uri(self) -> str:
        """The table's root, without credentials."""
        return self._snapshot.uri

    @property
    def uri(self) -> str:
        """The table's root, without credentials."""
        return self._snapshot.uri

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [field.name for field in self._snapshot.schema.fields]

    @property
    def dtypes(self) -> dict[str, str]:
        """The Arrow type of each column, as text."""
        return {field.name: str(field.type) for field in self._snapshot.schema.to_arrow()}

    @property
    def partition_columns(self) -> list[str]:
        """The names of the partition columns."""
        return list(self._snapshot.schema.partition_columns)

    def version(self) -> int:
        """Return the pinned version."""
        return self._snapshot.version

    @called
    def schema(self) -> Schema:
        """Return the schema of the table's rows; ``schema().to_arrow()`` is the PyArrow schema."""
        from lazydelta.protocol.delta_types import schema_object  # noqa: PLC0415 - as above

        return schema_object(self._snapshot.schema.fields)

    @called
    def metadata(self) -> TableMetadata:
        """Return the metadata: id, name, description, partition columns, configuration, creation time."""
        return TableMetadata(self._snapshot.metadata)

    @called
    def protocol(self) -> ProtocolVersions:
        """Return the reader and writer versions and features that the table requires."""
        return ProtocolVersions.of(self._snapshot.protocol)

    def domain_metadata(self) -> dict[str, str]:
        """Return the configuration of every metadata domain."""
        return {each.domain: each.configuration for each in self._snapshot.domains()}

    @called
    def history(
        self, limit: int | None = None, *, progress: Callable[[int, int], object] | None = None
    ) -> list[dict[str, Any]]:
        """Return the commit info of the versions, newest first, as far back as commits are retained.

        Each version costs a request.

        Args:
            limit: The number of versions; all by default.
            progress: Called with the number of versions read so far and their total.

        Returns:
            A dictionary for each version.

        Raises:
            OptionError: If ``limit`` is negative.

        Example:
            >>> [each["operation"] for each in DeltaTable("telemetry").history()]
            ['WRITE', 'WRITE', 'WRITE']

        """
        if limit is not None and limit < 0:
            raise OptionError(f"history(limit={limit}) is not valid", hint="pass a positive number or None")
        snapshot = self._snapshot
        return list(history(snapshot.store, snapshot.segment, snapshot.metadata, limit, progress))

    def transaction_version(self, app_id: str) -> int | None:
        """Return the last transaction version committed by the application; None if there is none."""
        return self._snapshot.transaction_version(app_id)

    def load_as_version(self, version: int | str | datetime) -> None:
        """Pin another version, by number or timestamp.

        Args:
            version: A number, or a timestamp (``datetime``, ISO 8601) that selects the newest version up to it.

        Returns:
            Nothing; the table is changed.

        Raises:
            VersionNotFoundError: If the version was cleaned up or never written.

        Example:
            >>> table = DeltaTable("telemetry")
            >>> table.load_as_version(0)
            >>> table.count()
            240

        """
        self._snapshot = self._open(version)

    def update_incremental(self) -> None:
        """Pin the newest version."""
        self._snapshot = self._open(None)

    @known_arguments
    def files(  # noqa: PLR0913 - all but the first are keyword-only
        self,
        where: Where = None,
        *,
        limit: int | None = None,
        row_limit: int | None = None,
        strategy: str = "auto",
        stats_columns: Sequence[str] | None = None,
        batch_size: int | None = None,
        retention_guard: RetentionGuard | None = None,
        options: Mapping[str, Any] | None = None,
        strict: bool = False,
        last: str | timedelta | None = None,
        now: str | datetime | None = None,
    ) -> FileStream:
        """Return the active files that can hold rows matching ``where``, as a lazy stream.

        ``limit`` counts files; ``row_limit`` counts the live rows of files in which every row is proven to match.
        ``strategy`` is ``reverse`` (newest first), ``forward`` (highest throughput) or ``auto``. ``stats_columns`` adds
        statistics to ``batches()``; an empty list fills only ``num_records``. ``retention_guard`` can reject the
        version below which the scan does not look. ``options`` override those of the table for this scan.

        ``last`` (``"1h"``, ``"30 minutes"``, a ``timedelta``) keeps the newest part of the table by time, counted back
        from now. ``now`` sets another reference timestamp, which then also ends the window; ``now()`` in ``where`` is
        the same timestamp. A condition that cannot exclude any file issues a ``PredicateWarning``, and a version that
        was replaced longer ago than ``delta.deletedFileRetentionDuration`` a ``RetentionWarning``, because VACUUM may
        have deleted some of its files; ``strict`` makes both an error.

        Args:
            where: Keep files that can hold matching rows: SQL, an expression, or tuples.
            limit: Stop after this many files.
            row_limit: Stop once the files hold this many rows that match for certain.
            strategy: The order of the files: ``reverse``, ``forward`` or ``auto``.
            stats_columns: Columns whose statistics ``batches()`` has.
            batch_size: The most files in a batch.
            retention_guard: Rejects versions that the scan must not look below.
            options: Options for this scan alone.
            strict: Raise what would be a warning.
            last: Keep the newest part of the table: ``"1h"``.
            now: The end of that part.

        Returns:
            A stream of files. Memory does not grow with the size of the table.

        Raises:
            PredicateError: If ``where`` cannot be parsed or names a column that the table does not have.

        Example:
            >>> for file in DeltaTable("telemetry").files("timestamp >= '2026-02-10T23:00:00Z'"):
            ...     print(file.partition_values, file.num_records)
            {'_event_hour': '2026021023'} 60

        """
        snapshot = self._snapshot if options is None else self._snapshot.with_options(options)
        request = ScanRequest.of(
            snapshot.schema,
            where=where,
            limit=limit,
            row_limit=row_limit,
            strategy=strategy,
            stats_columns=stats_columns,
            batch_size=snapshot.options.rows_in_memory if batch_size is None else batch_size,
            retention_guard=retention_guard,
            strict=strict,
            last=last,
            now=now,
            time_column=lambda: time_column(snapshot.metadata, snapshot.schema),
            trust_float_max=snapshot.options.float_max == "trust",
            time_travel=snapshot.travels,
        )
        return FileStream(snapshot.scan(request))

    def file_infos(self, predicate: Where = None, **keywords: Any) -> FileStream:
        """Return the active files that can match ``predicate``; keywords as for ``files``."""
        return self.files(predicate, **keywords)

    def get_stats_for_files(
        self,
        paths: Sequence[str],
        stat_columns: Sequence[str] | None = None,
        *,
        columns: Sequence[str] | None = None,
        missing: str = "error",
    ) -> pa.Table:
        """Return the statistics of files given by their logged paths: one row per path, in the given order.

        The columns are ``path``, ``num_records`` and ``min.``, ``max.``, ``null_count.`` of each of ``stat_columns``
        (or ``columns``, its other name). A path that is not an active file is an error, or a row of nulls with
        ``missing="null"``. If a sidecar is sorted by partition values, only the row groups that match the folders of
        the paths are read, unless a file is not found there.
        """
        from lazydelta.scan.listings import stats_of_files  # noqa: PLC0415 - see the head of this module

        if missing not in {"error", "null"}:
            raise OptionError(f"missing={missing!r} is not valid", hint="use 'error' or 'null'")
        if (stat_columns is None) == (columns is None):
            raise OptionError("Which columns?", hint="list them in stat_columns (or in columns, not in both)")
        names = stat_columns if columns is None else columns
        snapshot = self._snapshot
        reported = tuple(snapshot.schema.column(name) for name in names or ())
        return stats_of_files(
            paths,
            reported,
            snapshot.schema,
            lambda request: FileStream(snapshot.scan(request)),
            missing=missing,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._snapshot.uri!r}, version={self.version()})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PinnedTable):
            return NotImplemented
        return (self.table_uri, self.version()) == (other.table_uri, other.version())

    def __hash__(self) -> int:
        return hash(self.table_uri)  # the version can change

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (_reopened, (type(self), self._snapshot.table, self._log_tail, self.version()))

    def _open(self, version: int | str | datetime | None, handle: TableHandle | None = None) -> Snapshot:
        handle = self._snapshot.table if handle is None else handle
        if version is not None and not isinstance(version, str | datetime):
            version = _whole_number(version)
        if isinstance(version, str | datetime):
            newest = self._open(None, handle)
            timestamp = milliseconds(version)
            try:
                version = version_at(handle.store, newest.metadata, timestamp, log_tail=self._log_tail or ())
            except VersionNotFoundError as error:
                if error.earliest != 0:
                    raise  # the table state at that time has been cleaned up
                version = 0
                warnings.warn(f"{error}: version 0 is opened, as deltalake does", LazyDeltaWarning, stacklevel=3)
            if version == newest.version:
                return newest
        opened = handle.snapshot(version, log_tail=self._log_tail)
        return opened if version is None else opened.asked_for()


def _whole_number(version: object) -> int:
    """Return the version number; a date is rejected, because it does not determine a time of day."""
    try:
        number = -1 if isinstance(version, bool) else index(version)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < 0:
        hint = "versions are numbers of at least 0; a timestamp is a datetime, or a string such as 2026-02-10T14:00:00Z"
        raise OptionError(f"{version!r} is not a table version", hint=hint)
    return int(number)


def _reopened(
    cls: type[PinnedTable], handle: TableHandle, log_tail: tuple[LogFile, ...] | None, version: int
) -> PinnedTable:
    return cls._of(handle.snapshot(version, log_tail=log_tail), log_tail)
