"""``DeltaTable``: a table pinned at one version, with the API and parameters of deltalake.

`lazydelta.table.pinned_table` opens it and finds its files. The row reader and the writer are imported on first use,
because importing them takes longer than finding the files of an hour.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa

from lazydelta.deltalake_names.changes import ChangesTable
from lazydelta.deltalake_names.parameters import (
    LeftToDeltalake,
    by_position,
    instead_of,
    warn_of,
)
from lazydelta.errors import OptionError
from lazydelta.missing_names import known_arguments
from lazydelta.predicates import Where
from lazydelta.scan.request import RetentionGuard
from lazydelta.table.pinned_table import DeltaTableConfig
from lazydelta.table.rows_table import RowsTable

if TYPE_CHECKING:
    from datetime import datetime

    from lazydelta.deltalake_names.commit_properties import CommitProperties, PostCommitHookProperties
    from lazydelta.engines.sql import SqlResult
    from lazydelta.maintenance.doctor import Diagnosis
    from lazydelta.protocol.delta_types import Schema
    from lazydelta.rows.change_feed import ChangeStream
    from lazydelta.rows.stream import BatchStream, RowStream
    from lazydelta.scan.scanner import Explanation
    from lazydelta.sidecar.building.publish import BuildResult
    from lazydelta.sidecar.handle import Snapshot, TableHandle
    from lazydelta.sidecar.inspection import SidecarInfo
    from lazydelta.table.information import TableInfo

    KqlResult = Any  # a layer above

__all__ = ["DeltaTable", "read", "scan", "table_at", "table_of"]

_FEW_PATHS = 1000
_KQL_OPERATOR = (
    r"(where|filter|take|limit|count|project|extend|summarize|sort|order|top|distinct|parse|mv-expand|render)\b"
)


class DeltaTable(RowsTable, ChangesTable, LeftToDeltalake):
    """A Delta table at one version, pinned when it is opened.

    ``version`` is a number, or a timestamp (``datetime`` or ISO 8601 string) that selects the newest version at or
    before it. ``options`` are lazydelta's own (see ``Options``). ``log_tail`` has the commits that a catalog has
    ratified, for catalog-managed tables. ``external_locations`` are folders in other accounts or buckets whose files
    the log can reference, each with its own storage options; files outside of these and of the table's own account (on
    Azure) or bucket are refused. ``credential`` is an ``azure-identity`` credential, a function that returns a token
    and its expiry, or a name such as ``default`` or ``cli``; tokens are fetched again before they end.
    ``without_files``, ``log_buffer_size`` and ``skip_stats`` are accepted for
    compatibility with deltalake; they have no effect, because files are always loaded lazily.

    Two tables are equal if they have the same location and version. A pickled table opens the same version again when
    it is unpickled; its pickle does not contain credentials.
    """

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        # Polars makes a path of every table that is not deltalake's own, and the version would be lost.
        if sys._getframe(1).f_globals.get("__name__", "").startswith("polars.io.delta"):  # noqa: SLF001
            message = "scan_delta() and read_delta() of Polars take locations and tables of deltalake only"
            raise OptionError(message, hint="write table.to_polars(), which is a LazyFrame of this version")
        return repr(self)

    @property
    def table_config(self) -> DeltaTableConfig:
        """The load configuration of deltalake, which deprecates it; it has no effect here."""
        warn_of("The 'table_config' property is deprecated; it is the same for every table.")
        return DeltaTableConfig()

    def get_add_actions(self, flatten: bool = False) -> pa.Table:  # noqa: FBT001, FBT002 - deltalake's parameter
        """Return every active file as a row: path, size, time, record count, statistics, partition values.

        With ``flatten``, each statistic is a column (``min.a``), otherwise they are structs. All files are held in
        memory; ``files(stats_columns=…).batches()`` streams them.
        """
        from lazydelta.scan.listings import AddActions  # noqa: PLC0415 - see the head of this module

        actions = AddActions.of(self._snapshot.schema, self._snapshot.metadata)
        with self.files(stats_columns=actions.stats_columns) as files:
            return actions.table(files.batches(), flatten=flatten)

    def deletion_vectors(self) -> pa.RecordBatchReader:
        """Return a row for each file with a deletion vector: its URI, and for every row whether it is kept."""
        from lazydelta.scan.listings import SELECTION_VECTORS, selection_vectors  # noqa: PLC0415 - as above

        batches = selection_vectors(self.files(), self._snapshot.store)
        return pa.RecordBatchReader.from_batches(SELECTION_VECTORS, batches)

    def load_cdf(
        self,
        starting_version: int = 0,
        ending_version: int | None = None,
        starting_timestamp: str | None = None,
        ending_timestamp: str | None = None,
        columns: list[str] | None = None,
        predicate: Where = None,
        allow_out_of_range: bool = False,  # noqa: FBT001, FBT002
        *,
        where: Where = None,
    ) -> BatchStream:
        """Return the rows inserted, updated and deleted by the versions, as a stream in commit order.

        Besides the columns of the table (at the pinned version), rows have ``_change_type`` (``insert``, ``delete``,
        ``update_preimage``, ``update_postimage``), ``_commit_version`` and ``_commit_timestamp`` (UTC). The table
        property ``delta.enableChangeDataFeed`` must be true in all of these versions. ``where`` (deltalake's
        ``predicate``) can reference all of these columns. A start after the newest version is an error, or returns no
        rows with ``allow_out_of_range``.
        """
        from lazydelta.rows.change_feed import ChangeReader, VersionRange, check_enabled  # noqa: PLC0415 - as above
        from lazydelta.rows.stream import IteratorStream  # noqa: PLC0415 - as above

        asked = VersionRange.of(
            starting_version, ending_version, starting_timestamp, ending_timestamp, may_be_outside=allow_out_of_range
        )
        if predicate is not None and where is not None:
            raise OptionError("`predicate` and `where` are both given", hint="pass only `where`")
        reader = ChangeReader(self._snapshot, columns=columns, where=where if predicate is None else predicate)
        commits = asked.commits(self._snapshot.store, self._snapshot.metadata, self.version())
        if commits:
            first = commits[0].file.version
            check_enabled(self._open(first).metadata, first)
        return IteratorStream(reader.schema, reader.read(commits))

    def changes(self, since: int | None = None, *, batch_size: int = 8192) -> ChangeStream:
        """Return the files added and removed by the versions after ``since``, as Arrow batches in log order.

        The last version is the pinned one; without ``since``, the first is version 0. Each action is a row:
        ``version``, ``timestamp`` (epoch milliseconds), ``action`` (``add``, ``remove``, ``metaData``, ``protocol``),
        ``path``, ``size``, ``modification_time``, ``partition_values``, ``deletion_vector``, ``data_change`` (false for
        rows that were only moved), and in ``detail`` the JSON of metadata and protocol. If commits were cleaned up, an
        error names the earliest available version; no commit is skipped silently.
        """
        from lazydelta.rows.change_feed import ChangeStream  # noqa: PLC0415 - see the head of this module

        return ChangeStream(self._snapshot, since, batch_size=batch_size)

    def file_uris(
        self,
        partition_filters: Where = None,
        *,
        file_pruning_predicate: Where = None,
        where: Where = None,
        limit: int | None = None,
    ) -> list[str]:
        """Return the resolved locations of the active files: plain paths for local tables, otherwise URIs.

        Args:
            partition_filters: deltalake's former name of the next one.
            file_pruning_predicate: deltalake's name of ``where``; if both are given, both must hold.
            where: Keep files that can hold matching rows.
            limit: Stop after this many files.

        Returns:
            The locations.

        Raises:
            PredicateError: If a condition cannot be parsed.

        Example:
            >>> len(DeltaTable("telemetry").file_uris(where="value >= 238"))
            1

        """
        given = instead_of("partition_filters", partition_filters, file_pruning_predicate)
        where = self._all_of(given, where)
        store = self._snapshot.store
        # Small batches limit how many paths exist twice, as logged and as resolved.
        return [
            store.uri_of(path)
            for batch in self.files(where, limit=limit).batches()
            for start in range(0, batch.num_rows, _FEW_PATHS)
            for path in batch.column("path").slice(start, _FEW_PATHS).to_pylist()
        ]

    def partitions(
        self, partition_filters: Where = None, *, file_pruning_predicate: Where = None, where: Where = None
    ) -> list[dict[str, str | None]]:
        """Return the distinct partitions of the active files; empty for a table without partition columns.

        Each has every partition column, in table order; a null is None, however it was logged.
        """
        where = self._all_of(instead_of("partition_filters", partition_filters, file_pruning_predicate), where)
        names = self._snapshot.schema.partition_columns
        if not names:
            return []
        found: dict[tuple[str | None, ...], None] = {}
        for batch in self.files(where).batches():
            # Writers log the map entries in any order, and an empty string for null.
            maps = (dict(values or ()) for values in batch.column("partition_values").to_pylist())
            found.update(dict.fromkeys(tuple(values.get(name) or None for name in names) for values in maps))
        return [dict(zip(names, values, strict=True)) for values in found]

    def explain(self, where: Where = None, **keywords: Any) -> Explanation:
        """Return the plan of ``files(where, …)``, without reading any file list."""
        return self.files(where, **keywords).explain()

    def info(self) -> TableInfo:
        """Return what the table is: version, columns, partitioning, protocol, properties. Reads no file list."""
        from lazydelta.table.information import describe  # noqa: PLC0415 - not needed for reading

        return describe(self)

    def sql(self, query: str, *, params: Sequence[Any] | Mapping[str, Any] | None = None, **tables: Any) -> SqlResult:
        """Return the result of a SELECT, in which the table is called ``self`` or by the name of its folder.

        Args:
            query: One SELECT; see `lazydelta.sql`.
            params: Values of parameters.
            **tables: Further tables by name.

        Returns:
            The result, computed while it is read.

        Raises:
            QueryError: If DuckDB refuses the query, or it fails.

        Example:
            >>> DeltaTable("telemetry").sql("SELECT count(*) AS n FROM self WHERE value < $v", params={"v": 60}).first()
            {'n': 120}

        """
        from lazydelta.engines.sql import sql  # noqa: PLC0415 - an extra

        return sql(query, {**self._names(), **tables}, params=params)

    def kql(self, query: str, *, now: datetime | None = None, **tables: Any) -> KqlResult:
        """Return the result of a KQL query, in which the table is called ``self`` or by the name of its folder.

        The name can be left out.

        Args:
            query: The query; ``where n > 3 | count`` works as well.
            now: The timestamp of ``now()``.
            **tables: Further tables by name.

        Returns:
            The result, computed while it is read.

        Raises:
            KqlError: If the query is invalid.

        Example:
            >>> DeltaTable("telemetry").kql("where value < 60 | count").first()
            {'Count': 120}

        """
        text = query.strip().removeprefix("|")
        if text != query.strip() or re.match(_KQL_OPERATOR, text):
            text = f"self | {text}"
        # KQL is a layer above tables: it is given this one, and imported by name.
        result: KqlResult = importlib.import_module("lazydelta.kql").query(text, {**self._names(), **tables}, now)
        return result

    def build_sidecar(self, **options: Any) -> BuildResult:
        """Build the sidecar of the newest checkpoint. ``options`` are those of ``lazydelta.sidecar.build``."""
        from lazydelta.sidecar import build  # noqa: PLC0415 - not needed for reading

        return build(self._snapshot.table, **options)  # type: ignore[arg-type]  # opened already

    def refresh_sidecar(self, **options: Any) -> BuildResult:
        """Update the sidecar to the newest checkpoint. ``options`` are those of ``lazydelta.sidecar.refresh``."""
        from lazydelta.sidecar import refresh  # noqa: PLC0415 - not needed for reading

        return refresh(self._snapshot.table, **options)  # type: ignore[arg-type]

    def sidecar_status(self) -> SidecarInfo | None:
        """Describe the newest sidecar from its manifest; None if the table has none."""
        from lazydelta.sidecar import show  # noqa: PLC0415 - not needed for reading
        from lazydelta.sidecar.format.manifest import list_folder  # noqa: PLC0415

        return show(self._snapshot.table) if list_folder(self._snapshot.store) else None  # type: ignore[arg-type]

    def doctor(self, *, deep: bool = False) -> Diagnosis:
        """Return what makes the newest version slow or endangers its readers, with costs and remedies.

        It costs a few requests, whatever the size of the table. ``deep`` also lists the table's folder for data files
        that nothing refers to.
        """
        from lazydelta.maintenance.doctor import diagnose  # noqa: PLC0415 - not needed for reading

        return diagnose(self._snapshot.table, deep=deep)

    def shallow_clone(
        self, target_uri: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None
    ) -> DeltaTable:
        """Create a table at ``target_uri`` that refers to the files of this version, and return it.

        No data is copied, and both tables change independently afterwards. A VACUUM of this table deletes files that
        the clone may still need. Readers of a clone in another account need ``external_locations``.
        """
        from lazydelta.maintenance.restore import shallow_clone  # noqa: PLC0415 - not needed for reading
        from lazydelta.sidecar.handle import TableHandle  # noqa: PLC0415

        target = TableHandle.open(target_uri, storage_options)
        shallow_clone(self._snapshot, target)
        return DeltaTable(target_uri, storage_options=None if storage_options is None else dict(storage_options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: a table holds no connection open. Its streams close themselves."""

    def _repr_html_(self) -> str:
        from lazydelta.table.information import html  # noqa: PLC0415 - for notebooks only

        return html(self)

    def retention_guard(self) -> RetentionGuard:
        """Return a guard for ``files`` that rejects a version whose files VACUUM may have deleted."""
        from lazydelta.scan.request import table_retention_guard  # noqa: PLC0415 - as above

        return table_retention_guard(self._snapshot)

    def _names(self) -> dict[str, Any]:
        folder = self.table_uri.rstrip("/").rpartition("/")[2]
        return {"self": self, folder: self} if folder.isidentifier() else {"self": self}

    @classmethod
    def create(  # noqa: PLR0913 - deltalake's parameters
        cls,
        table_uri: str | os.PathLike[str],
        schema: Schema | pa.Schema,
        mode: Literal["error", "append", "overwrite", "ignore"] = "error",
        partition_by: list[str] | str | None = None,
        name: str | None = None,
        description: str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        storage_options: Mapping[str, str] | None = None,
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
        raise_if_key_not_exists: bool | None = None,
    ) -> DeltaTable:
        """Create an empty table and open it.

        With ``mode="ignore"``, an existing table is left unchanged; ``overwrite`` empties it and sets its columns.
        Properties that Delta does not define are refused unless ``raise_if_key_not_exists`` is false. ``args`` are the
        last three parameters by position, which deltalake deprecates.
        """
        last: dict[str, Any] = {
            "commit_properties": commit_properties,
            "post_commithook_properties": post_commithook_properties,
            "raise_if_key_not_exists": raise_if_key_not_exists,
        }
        more: dict[str, Any] = by_position("create", args, last)
        from lazydelta.deltalake_names.writing import create  # noqa: PLC0415 - readers need no writer, slow to import

        create(
            table_uri,
            schema,
            mode=mode,
            partition_by=partition_by,
            name=name,
            description=description,
            configuration=configuration,
            storage_options=storage_options,
            **more,
        )
        return cls(table_uri, storage_options=storage_options)

    def create_checkpoint(self, *, sidecar: bool = True) -> None:
        """Write the checkpoint of this version, unless it exists, and point readers at it.

        The sidecar is brought to the newest checkpoint as well; ``sidecar=False`` leaves it as it is.
        """
        from lazydelta.maintenance.after_commit import checkpoint_at, sidecar_beside  # noqa: PLC0415 - as above

        checkpoint_at(self._snapshot.store, self.version(), self._snapshot)
        if sidecar:
            sidecar_beside(self._snapshot.table)

    def cleanup_metadata(self) -> None:
        """Delete the log files that the table's ``delta.logRetentionDuration`` no longer retains."""
        from lazydelta.maintenance.after_commit import clean_log  # noqa: PLC0415 - as above

        clean_log(self._snapshot.table)


# ``lazydelta.scan`` and ``lazydelta.read``: the rows of a table in one call.


@known_arguments
def scan(
    table: str | os.PathLike[str] | DeltaTable,
    columns: Sequence[str] | str | None = None,
    *,
    where: Where = None,
    limit: int | None = None,
    version: int | str | datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    credential: Any = None,
) -> RowStream:
    """Return the rows of a table that match ``where`` as a lazy stream; nothing is read before it is consumed.

    The stream has ``to_arrow``, ``to_pandas``, ``to_polars``, ``to_list``, ``count`` and ``first``, and other libraries
    read it as an Arrow stream.

    Args:
        table: A location, or a `DeltaTable`.
        columns: The columns to read; all by default.
        where: Keep rows for which this holds: SQL, an expression, or tuples.
        limit: Stop after this many rows.
        version: A version, or a timestamp; the newest by default.
        storage_options: Credentials and settings of the store.
        options: Options of lazydelta.
        credential: As for `DeltaTable`.

    Returns:
        A stream of record batches.

    Raises:
        TableNotFoundError: If there is no table.
        PredicateError: If `where` cannot be parsed or evaluated.

    Example:
        >>> lazydelta.scan("telemetry", ["value"], where="value >= 238").to_list()
        [{'value': 238.0}, {'value': 239.0}]

    """
    if not isinstance(table, DeltaTable):
        table = DeltaTable(table, version, storage_options, options=options, credential=credential)
    return table.rows(columns, where, limit=limit)


# For other packages: the public table of what is open already.


def table_at(handle: TableHandle, version: int | str | datetime | None = None) -> DeltaTable:
    """Pin a version of an open table."""
    return DeltaTable._at(handle, version)  # noqa: SLF001 - made for other packages


def table_of(snapshot: Snapshot) -> DeltaTable:
    """Return the public table of a snapshot."""
    return DeltaTable._of(snapshot)  # noqa: SLF001 - as above


@known_arguments
def read(
    table: str | os.PathLike[str] | DeltaTable,
    columns: Sequence[str] | str | None = None,
    *,
    where: Where = None,
    limit: int | None = None,
    **opening: Any,
) -> pa.Table:
    """Return the rows of a table that match ``where`` as a PyArrow table.

    Args:
        table: A location, or a `DeltaTable`.
        columns: The columns to read; all by default.
        where: Keep rows for which this holds: SQL, an expression, or tuples.
        limit: Stop after this many rows.
        **opening: As for `scan`.

    Returns:
        The rows.

    Raises:
        TableNotFoundError: If there is no table.
        PredicateError: If `where` cannot be parsed or evaluated.

    Example:
        >>> lazydelta.read("telemetry", where="value >= 238").num_rows
        2

    """
    return scan(table, columns, where=where, limit=limit, **opening).read_all()
