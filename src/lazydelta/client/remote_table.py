"""``RemoteTable``: a table on a server, pinned at one version, with the API of ``DeltaTable``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec
import pyarrow as pa

from lazydelta.client.connection import Connection
from lazydelta.client.streams import DeliveredFiles, DeliveredRows, RemoteFileStream, RemoteRowStream, ResumedStream
from lazydelta.client.wire import ScanCommand
from lazydelta.deltalake_names.parameters import instead_of
from lazydelta.errors import OptionError, PositionLostError, UnsupportedOperationError, require
from lazydelta.protocol.actions import Metadata, Protocol
from lazydelta.protocol.delta_types import Schema, schema_object
from lazydelta.protocol.schema import TableSchema
from lazydelta.table.pinned_table import ProtocolVersions, TableMetadata

if TYPE_CHECKING:
    import pandas as pd

    from lazydelta.rows.scanner import RowEstimate

__all__ = ["NotOverTheWire", "RemoteTable"]


# The methods of ``DeltaTable`` that a remote table does not support. Each exists and says what to do instead.
#
# A missing name would look like a mistake. A server only reads and reveals no locations, so methods that write,
# maintain or work with locations require opening the table itself.


_OPEN_IT = "open the table where it is stored: DeltaTable(uri)"


def _refuse(name: str, why: str, hint: str) -> NoReturn:
    raise UnsupportedOperationError(f"A table of a server has no {name}: {why}", hint=hint)


def _method(name: str, why: str, hint: str = _OPEN_IT) -> Callable[..., NoReturn]:
    def method(self: object, *_: Any, **__: Any) -> NoReturn:  # noqa: ARG001 - whatever DeltaTable's takes
        _refuse(f"{name}()", why, hint)

    method.__name__ = name
    method.__qualname__ = f"RemoteTable.{name}"
    method.__doc__ = f"Refuse: {why}; {hint}."
    return method


def _noun(name: str, why: str, hint: str = _OPEN_IT) -> property:
    return property(lambda _: _refuse(name, why, hint), doc=f"Refuse: {why}; {hint}.")


_READS = "servers only read"
_PLACES = "servers tell no places"


class NotOverTheWire:
    """The unsupported names of ``DeltaTable``. Each raises ``UnsupportedOperationError``."""

    alter = _noun("alter", _READS)
    build_sidecar = _method("build_sidecar", _READS)
    changes = _method("changes", "servers send files and rows of one version")
    cleanup_metadata = _method("cleanup_metadata", _READS)
    compact_logs = _method("compact_logs", _READS)
    create = _method("create", _READS)
    create_checkpoint = _method("create_checkpoint", _READS)
    create_write_transaction = _method("create_write_transaction", _READS)
    delete = _method("delete", _READS)
    deletion_vectors = _method("deletion_vectors", _PLACES, "rows() leaves deleted rows out")
    doctor = _method("doctor", _PLACES)
    file_uris = _method("file_uris", _PLACES, "files() has the paths as logged, rows() what is in the files")
    generate = _method("generate", _READS)
    get_stats_for_files = _method(
        "get_stats_for_files", "servers look files up by conditions", "ask files(stats_columns=…).batches()"
    )
    info = _method("info", "servers tell no places", "metadata(), protocol() and schema() say what the table is")
    is_deltatable = _method("is_deltatable", _PLACES, "Connection.tables() has the tables that there are")
    kql = _method("kql", "streams carry rows", "send the query by Flight SQL, which the same port answers")
    load_cdf = _method("load_cdf", "servers send files and rows of one version")
    merge = _method("merge", _READS)
    optimize = _noun("optimize", _READS)
    refresh_sidecar = _method("refresh_sidecar", _READS)
    repair = _method("repair", _READS)
    restore = _method("restore", _READS)
    retention_guard = _method("retention_guard", "the server reads the files, so it is the one to guard them")
    shallow_clone = _method("shallow_clone", _PLACES)
    sidecar_status = _method("sidecar_status", _PLACES)
    sql = _method("sql", "streams carry rows", "send the query by Flight SQL, which the same port answers")
    table_config = _noun("table_config", "it is deltalake's, and deprecated there", "omit it")
    to_polars = _method("to_polars", "its frames read files themselves", "polars.DataFrame(table) takes the rows")
    to_pyarrow_dataset = _method(
        "to_pyarrow_dataset", "a dataset reads files itself", "to_pyarrow_reader(columns, filters) streams the rows"
    )
    transaction_version = _method("transaction_version", "it is for those who write")
    update = _method("update", _READS)
    vacuum = _method("vacuum", _READS)


class _Description(msgspec.Struct):
    version: int
    metadata: Metadata
    protocol: Protocol


class RemoteTable(NotOverTheWire):
    """A table on a server at one version, pinned when it is opened.

    Predicates are SQL strings, JSON or tuples, as for ``DeltaTable``. A PyArrow expression cannot be sent.
    """

    def __init__(self, connection: Connection, name: str, version: int | str | None = None) -> None:
        self._connection = connection
        self.name = name
        self._described = self._describe(version)

    def version(self) -> int:
        """Return the pinned version."""
        return self._described.version

    def schema(self) -> Schema:
        """Return the schema of the table's rows. ``schema().to_arrow()`` is the PyArrow schema."""
        metadata = self._described.metadata
        return schema_object(TableSchema.parse(metadata.schema_string, partition_columns=()).fields)

    def metadata(self) -> TableMetadata:
        """Return the metadata: id, name, description, partition columns, configuration, creation time."""
        return TableMetadata(self._described.metadata)

    def protocol(self) -> ProtocolVersions:
        """Return the reader and writer versions and features that the table requires."""
        return ProtocolVersions.of(self._described.protocol)

    @property
    def table_uri(self) -> str:
        """The server's location and the table's name on it."""
        return f"{self._connection.location}/{self.name}"

    @property
    def uri(self) -> str:
        """The server's location and the table's name on it."""
        return self.table_uri

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [field.name for field in self.schema().fields]

    @property
    def dtypes(self) -> dict[str, str]:
        """The Arrow type of each column, as text."""
        return {field.name: str(field.type) for field in self.schema().to_arrow()}

    @property
    def partition_columns(self) -> list[str]:
        """The names of the partition columns."""
        return list(self._described.metadata.partition_columns)

    def domain_metadata(self) -> dict[str, str]:
        """Return the configuration of every metadata domain."""
        found: dict[str, str] = self._told("domains", self._command(None))
        return found

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the history, newest version first, as far back as the commits are retained."""
        found: list[dict[str, Any]] = self._told("history", self._command(None, limit=limit))
        return found

    def load_as_version(self, version: int | str) -> None:
        """Pin another version, by number or by timestamp."""
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
        """Return a lazy stream of the active files that may hold rows matching ``where``, like ``DeltaTable.files``."""
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
        info, asked = self._planned(command)
        return RemoteFileStream(
            info.schema, lambda: self._stream(asked, info, 0, DeliveredFiles()), lambda: self._explain(asked)
        )

    def file_infos(self, predicate: Any = None, **keywords: Any) -> RemoteFileStream:
        """Return the active files that may match ``predicate``. Keywords are those of ``files``."""
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
        from lazydelta.scan.listings import AddActions  # noqa: PLC0415 - rarely used

        metadata = self._described.metadata
        schema = TableSchema.parse(metadata.schema_string, partition_columns=metadata.partition_columns)
        actions = AddActions.of(schema, metadata)
        with self.files(stats_columns=actions.stats_columns) as files:
            return actions.table(files.batches(), flatten=flatten)

    def partitions(
        self, partition_filters: Any = None, *, file_pruning_predicate: Any = None
    ) -> list[dict[str, str | None]]:
        """Return the distinct partitions of the active files, computed by the server."""
        where = instead_of("partition_filters", partition_filters, file_pruning_predicate)
        found: list[dict[str, str | None]] = self._told("partitions", self._command(where))
        return found

    def estimate(self, where: Any = None) -> RowEstimate:
        """Return the maximum number of files, bytes and rows that a scan would read, from the log alone."""
        from lazydelta.rows.scanner import RowEstimate  # noqa: PLC0415 - as above

        found = self._told("estimate", self._command(where))
        return RowEstimate(found["files"], found["size"], found["rows"])

    def scan(
        self, columns: list[str] | None = None, predicate: Any = None, *, where: Any = None, limit: int | None = None
    ) -> pa.RecordBatchReader:
        """Return the rows that match ``where``, or deltalake's ``predicate``, as a PyArrow reader."""
        return self.rows(columns, _one_of(predicate, where), limit=limit).to_reader()

    def explain(self, where: Any = None, **keywords: Any) -> dict[str, Any]:
        """Return how the server runs ``files(where, …)``, which it does to find out."""
        return self.files(where, **keywords).explain()

    def head(self, n: int = 10, columns: Sequence[str] | None = None, *, where: Any = None) -> pa.Table:
        """Return a few of the newest rows."""
        return self.rows(columns, where, limit=n).read_all()

    def show(self, n: int = 10, columns: Sequence[str] | None = None, *, where: Any = None) -> None:
        """Print a few of the newest rows."""
        from lazydelta.runtime.results import text_table  # noqa: PLC0415 - for people only

        print(text_table(self.head(n, columns, where=where)))  # noqa: T201 - what it is for

    def to_arrow(
        self, columns: Sequence[str] | None = None, *, where: Any = None, limit: int | None = None
    ) -> pa.Table:
        """Return the rows as a PyArrow table."""
        return self.rows(columns, where, limit=limit).read_all()

    def to_list(
        self, columns: Sequence[str] | None = None, *, where: Any = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows as a list of dictionaries."""
        return self.rows(columns, where, limit=limit).to_list()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the connection is closed by its owner."""

    def fragments(
        self, number: int, *, columns: Sequence[str] | None = None, where: Any = None
    ) -> list[RemoteRowStream]:
        """Return the rows as ``number`` streams of about the same size, to be read in parallel."""
        named = None if columns is None else list(columns)
        return self._row_streams(self._command(where, of="rows", columns=named, endpoints=number))

    def count_rows(self, where: Any = None) -> int:
        """Return the number of matching rows, counted by the server."""
        rows: int = self._told("count", self._command(where, of="rows"))["rows"]
        return rows

    def count(self, where: Any = None) -> int:
        """Return the number of live rows, or of those that match."""
        return self.count_rows(where)

    def to_pyarrow_reader(
        self,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        *,
        where: Any = None,
        limit: int | None = None,
    ) -> pa.RecordBatchReader:
        """Return the rows as a PyArrow reader. Closing or dropping it ends the scan."""
        return self.rows(columns, _one_of(filters, where), limit=limit).to_reader()

    def to_pyarrow_table(
        self,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        *,
        where: Any = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return the rows as a table."""
        return self.rows(columns, _one_of(filters, where), limit=limit).read_all()

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        *,
        where: Any = None,
        limit: int | None = None,
    ) -> pd.DataFrame:
        """Return the rows as a pandas data frame."""
        require("pandas", "pandas")
        return self.to_pyarrow_table(columns, filters, where=where, limit=limit).to_pandas()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export all rows as an Arrow stream. Nothing is read until the consumer pulls."""
        return self.rows().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"RemoteTable({self._connection.location!r}, {self.name!r}, version={self.version()})"

    def _row_streams(self, command: ScanCommand) -> list[RemoteRowStream]:
        info, asked = self._planned(command)

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
            lambda: bytes(self._planned(command)[0].endpoints[number].ticket.ticket),
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
        table_id = self._described.metadata.id
        return ScanCommand(table=self.name, version=self.version(), table_id=table_id, **_predicate(where), **given)

    def _planned(self, command: ScanCommand) -> tuple[Any, ScanCommand]:
        """Return the server's tickets, and a command that means the same whenever it is sent.

        The command has the timestamp that the server used, and this object's table and version. A stream is therefore
        never continued with batches of another table or version.
        """
        info = self._connection.plan(command)
        told = msgspec.json.decode(info.app_metadata)
        if (told["table_id"], told["version"]) != (command.table_id, command.version):
            what = f"Another table, version {told['version']}, is in the place of {self!r}"
            raise PositionLostError(what, hint="open the table again and start over")
        return info, msgspec.structs.replace(command, at=told["at"])


def _one_of(theirs: Any, where: Any) -> Any:
    """Return the predicate, given under deltalake's name or as ``where``."""
    if theirs is not None and where is not None:
        raise OptionError("The predicate is given twice", hint="pass only `where`")
    return where if theirs is None else theirs


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
    """Return a value for JSON. The server converts strings to the type of their column."""
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
