"""``RemoteTable``: a table that a server offers, pinned at one version, with the API of ``DeltaTable``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from lazydelta.client.connection import Connection
from lazydelta.client.not_over_the_wire import NotOverTheWire
from lazydelta.client.remote_files import RemoteFileStream
from lazydelta.client.remote_rows import RemoteRowStream
from lazydelta.client.resuming import DeliveredFiles, DeliveredRows, ResumedStream
from lazydelta.deltalake_api.deprecated_parameters import instead_of
from lazydelta.errors import OptionError
from lazydelta.log.actions import Metadata, Protocol
from lazydelta.log.table_description import ProtocolVersions, TableMetadata
from lazydelta.types.delta_types import Schema, schema_object
from lazydelta.types.schema import TableSchema
from lazydelta.wire import ScanCommand

if TYPE_CHECKING:
    import pandas as pd

    from lazydelta.row_scan.pieces import RowEstimate

__all__ = ["RemoteTable"]


class _Description(msgspec.Struct):
    version: int
    metadata: Metadata
    protocol: Protocol


class RemoteTable(NotOverTheWire):
    """A table of a server at one version, pinned when it is opened.

    Predicates are SQL text, JSON or tuples, as for ``DeltaTable``; a PyArrow expression cannot be sent.
    """

    def __init__(self, connection: Connection, name: str, version: int | str | None = None) -> None:
        self._connection = connection
        self.name = name
        self._described = self._describe(version)

    def version(self) -> int:
        """Return the pinned version."""
        return self._described.version

    def schema(self) -> Schema:
        """Return the schema of the table's rows; ``schema().to_arrow()`` is the PyArrow schema."""
        metadata = self._described.metadata
        return schema_object(TableSchema.parse(metadata.schema_string, partition_columns=()).fields)

    def metadata(self) -> TableMetadata:
        """Return the metadata: id, name, description, partition columns, configuration, creation time."""
        return TableMetadata(self._described.metadata)

    def protocol(self) -> ProtocolVersions:
        """Return the reader and writer versions and features that the table asks for."""
        return ProtocolVersions.of(self._described.protocol)

    @property
    def table_uri(self) -> str:
        """The server's location and the table's name there."""
        return f"{self._connection.location}/{self.name}"

    def domain_metadata(self) -> dict[str, str]:
        """Return the configuration of every metadata domain."""
        found: dict[str, str] = self._told("domains", self._command(None))
        return found

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the provenance of the versions, newest first, as far back as their commits are kept."""
        found: list[dict[str, Any]] = self._told("history", self._command(None, limit=limit))
        return found

    def load_as_version(self, version: int | str) -> None:
        """Pin another version, by number or by moment."""
        self._described = self._describe(version)

    def update_incremental(self) -> None:
        """Pin the newest version."""
        self._described = self._describe(None)

    def files(  # noqa: PLR0913 - keywords but for the first
        self,
        where: Any = None,
        *,
        limit: int | None = None,
        row_limit: int | None = None,
        strategy: str = "auto",
        stats_columns: Sequence[str] | None = None,
        batch_size: int | None = None,
        strict: bool = False,
        last: str | dt.timedelta | None = None,
        now: str | dt.datetime | None = None,
    ) -> RemoteFileStream:
        """Return the active files that may hold rows matching ``where``, as a lazy stream; as ``DeltaTable.files``."""
        command = self._command(
            where,
            limit=limit,
            row_limit=row_limit,
            strategy=strategy,
            stats_columns=None if stats_columns is None else list(stats_columns),
            batch_size=batch_size,
            strict=strict,
            last=_span(last),
            now=now.isoformat() if isinstance(now, dt.datetime) else now,
        )
        info = self._connection.plan(command)
        asked = _pinned(command, info)
        return RemoteFileStream(lambda: self._stream(asked, info, 0, DeliveredFiles()), lambda: self._explain(asked))

    def file_infos(self, predicate: Any = None, **keywords: Any) -> RemoteFileStream:
        """Return the active files that may match ``predicate``; keywords as for ``files``."""
        return self.files(predicate, **keywords)

    def rows(
        self,
        columns: Sequence[str] | None = None,
        where: Any = None,
        *,
        limit: int | None = None,
        strategy: str = "auto",
    ) -> RemoteRowStream:
        """Return the rows that match ``where`` as a stream of record batches, read while files are found."""
        named = None if columns is None else list(columns)
        command = self._command(where, of="rows", columns=named, limit=limit, strategy=strategy)
        return self._row_streams(command)[0]

    def get_add_actions(self, flatten: bool = False) -> pa.Table:  # noqa: FBT001, FBT002 - DeltaTable's parameter
        """Return every active file as a row: path, size, time, record count, statistics, partition values."""
        from lazydelta.scan.add_actions import AddActions  # noqa: PLC0415 - few ask for it

        metadata = self._described.metadata
        schema = TableSchema.parse(metadata.schema_string, partition_columns=metadata.partition_columns)
        actions = AddActions.of(schema, metadata)
        with self.files(stats_columns=actions.stats_columns) as files:
            return actions.table(files.batches(), flatten=flatten)

    def partitions(
        self, partition_filters: Any = None, *, file_pruning_predicate: Any = None
    ) -> list[dict[str, str | None]]:
        """Return the distinct partitions of the active files, which the server finds out."""
        where = instead_of("partition_filters", partition_filters, file_pruning_predicate)
        found: list[dict[str, str | None]] = self._told("partitions", self._command(where))
        return found

    def estimate(self, where: Any = None) -> RowEstimate:
        """Return how many files, bytes and rows a scan would read at most, by the log alone."""
        from lazydelta.row_scan.pieces import RowEstimate  # noqa: PLC0415 - as above

        found = self._told("estimate", self._command(where))
        return RowEstimate(found["files"], found["size"], found["rows"])

    def scan(self, columns: list[str] | None = None, predicate: Any = None) -> pa.RecordBatchReader:
        """Return the rows that match ``predicate`` as a stream of record batches."""
        return self.rows(columns, predicate).to_reader()

    def fragments(
        self, number: int, *, columns: Sequence[str] | None = None, where: Any = None
    ) -> list[RemoteRowStream]:
        """Return the rows in ``number`` streams of about the same size, to be read side by side."""
        named = None if columns is None else list(columns)
        return self._row_streams(self._command(where, of="rows", columns=named, endpoints=number))

    def count_rows(self, where: Any = None) -> int:
        """Return the number of rows that match; the server counts them."""
        rows: int = self._told("count", self._command(where, of="rows"))["rows"]
        return rows

    def count(self) -> int:
        """Return the number of live rows."""
        return self.count_rows()

    def to_pyarrow_reader(
        self, columns: Sequence[str] | None = None, filters: Any = None, *, limit: int | None = None
    ) -> pa.RecordBatchReader:
        """Return the rows as a PyArrow reader; closing or dropping it ends the scan."""
        return self.rows(columns, filters, limit=limit).to_reader()

    def to_pyarrow_table(self, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
        """Return the rows as a table."""
        return self.rows(columns, filters).read_all()

    def to_pandas(self, columns: Sequence[str] | None = None, filters: Any = None) -> pd.DataFrame:
        """Return the rows as a pandas data frame."""
        return self.to_pyarrow_table(columns, filters).to_pandas()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hand all rows to another library; nothing is read before it pulls."""
        return self.rows().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"RemoteTable({self._connection.location!r}, {self.name!r}, version={self.version()})"

    def _row_streams(self, command: ScanCommand) -> list[RemoteRowStream]:
        info = self._connection.plan(command)
        asked = _pinned(command, info)

        def stream(number: int) -> RemoteRowStream:
            return RemoteRowStream(
                info.schema, lambda: self._stream(asked, info, number, DeliveredRows()), lambda: self._explain(asked)
            )

        return [stream(number) for number in range(len(info.endpoints))]

    def _stream(
        self, command: ScanCommand, info: Any, number: int, delivered: DeliveredFiles | DeliveredRows
    ) -> ResumedStream:
        return ResumedStream(
            self._connection,
            info.endpoints[number].ticket.ticket,
            delivered,
            lambda: bytes(self._connection.plan(command).endpoints[number].ticket.ticket),
            limit=command.limit,
        )

    def _explain(self, command: ScanCommand) -> dict[str, Any]:
        found: dict[str, Any] = self._told("explain", msgspec.structs.replace(command, endpoints=1))
        return found

    def _told(self, action: str, command: ScanCommand) -> Any:
        return msgspec.json.decode(self._connection.action(action, msgspec.json.encode(command)))

    def _describe(self, version: int | str | None) -> _Description:
        command = ScanCommand(table=self.name, version=version)
        data = self._connection.action("describe", msgspec.json.encode(command))
        return msgspec.json.decode(data, type=_Description)

    def _command(self, where: Any, **given: Any) -> ScanCommand:
        return ScanCommand(table=self.name, version=self.version(), **_predicate(where), **given)


def _pinned(command: ScanCommand, info: Any) -> ScanCommand:
    """Return a command that means the same whenever it is given: the moment is the one that the server took."""
    told = msgspec.json.decode(info.app_metadata)
    return msgspec.structs.replace(command, at=told["at"])


def _predicate(where: Any) -> dict[str, Any]:
    if where is None:
        return {}
    if isinstance(where, str):
        return {"where": where}
    if isinstance(where, Mapping):
        return {"where": _plain(dict(where))}
    if isinstance(where, Sequence):
        return {"filters": _plain(where)}
    kind = type(where).__name__
    raise OptionError(f"A {kind} cannot be sent to a server", hint="write the condition as SQL, JSON or tuples")


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; the server gives texts the type of their column."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value


def _span(last: str | dt.timedelta | None) -> str | None:
    return f"{last // dt.timedelta(microseconds=1)} microseconds" if isinstance(last, dt.timedelta) else last
