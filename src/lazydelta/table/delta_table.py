"""``DeltaTable``: a table pinned at one version, with the API and parameters of deltalake.

`lazydelta.table.pinned_table` opens it and finds its files. The row reader and the writer are imported on first use,
because importing them takes longer than finding the files of an hour.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa

from lazydelta.deltalake_names.changes import ChangesTable
from lazydelta.deltalake_names.parameters import (
    NOT_GIVEN,
    LeftToDeltalake,
    by_position,
    instead_of,
    named_columns,
    warn_of,
)
from lazydelta.errors import OptionError, require
from lazydelta.missing_names import known_arguments
from lazydelta.predicates import Predicate, Where, conjunction, parse_predicate
from lazydelta.scan.request import RetentionGuard
from lazydelta.table.pinned_table import DeltaTableConfig, PinnedTable

if TYPE_CHECKING:
    from datetime import datetime

    import pandas as pd
    import polars as pl
    from pyarrow.dataset import Dataset, ParquetReadOptions

    from lazydelta.deltalake_names.commit_properties import CommitProperties, PostCommitHookProperties
    from lazydelta.deltalake_names.maintenance import TableOptimizer
    from lazydelta.engines.sql import SqlResult
    from lazydelta.maintenance.doctor import Diagnosis
    from lazydelta.protocol.delta_types import Schema
    from lazydelta.rows.change_feed import ChangeStream
    from lazydelta.rows.scanner import RowEstimate, RowFragment, RowScanner
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


class DeltaTable(PinnedTable, ChangesTable, LeftToDeltalake):
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

    def scan(
        self,
        columns: list[str] | None = None,
        predicate: Where = None,
        *,
        where: Where = None,
        limit: int | None = None,
    ) -> BatchStream:
        """Return the rows that match as a stream of record batches, read while files are found.

        ``predicate`` is deltalake's name of ``where``; if both are given, both must hold.
        """
        # A column can be requested twice; it is read once.
        columns = self._named(columns)
        once = self._distinct(columns)
        found = self.rows(once, self._both(predicate, where), limit=limit)
        if columns is None or once == columns:
            return found
        from lazydelta.rows.stream import IteratorStream  # noqa: PLC0415 - see the head of this module

        asked = found.schema.empty_table().select(columns).schema
        return IteratorStream(asked, (batch.select(columns) for batch in found))

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
        """Return the resolved locations of the active files: plain paths for local tables, otherwise URIs."""
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

    def count(self, where: Where = None) -> int:
        """Return the number of live rows, or of those that match ``where``, from the log as far as it tells."""
        return self.count_rows(where)

    @known_arguments
    def rows(
        self, columns: Sequence[str] | str | None = None, where: Where = None, *, limit: int | None = None
    ) -> RowStream:
        """Return the rows that match ``where`` as a stream of record batches, read while files are found.

        A column ``a.b`` is the struct ``a`` with only its field ``b``. Rows are in scan order file by file, newest
        files first with a limit, and within a file in file order.

        Args:
            columns: The columns to read; all by default.
            where: Keep rows for which this holds: SQL, an expression, or tuples.
            limit: Stop after this many rows.

        Returns:
            A stream of record batches. Nothing is read before it is consumed.

        Raises:
            PredicateError: If ``where`` cannot be parsed or evaluated.
            UnknownColumnError: If the table has no column of that name.

        Example:
            >>> DeltaTable("telemetry").rows(["value"], "value >= 238").to_list()
            [{'value': 238.0}, {'value': 239.0}]

        """
        if isinstance(where, str) and where in self.columns and self.dtypes[where] != "bool":
            hint = f"write rows({[*(self._named(columns) or ()), where]})"
            raise OptionError(f"{where!r} is a column and no condition", hint=hint)
        return self._row_scanner(columns=self._named(columns), where=self._bound(where), limit=limit).stream()

    def to_pyarrow_reader(
        self,
        columns: Sequence[str] | None = None,
        filters: Where = None,
        *,
        where: Where = None,
        limit: int | None = None,
    ) -> pa.RecordBatchReader:
        """Return the rows as a PyArrow reader; closing or dropping it ends the scan."""
        return self.rows(columns, self._both(filters, where), limit=limit).to_reader()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export all rows to another library; nothing is read before it pulls."""
        return self.rows().__arrow_c_stream__(requested_schema)

    def to_pyarrow_dataset(
        self,
        partitions: Where = None,
        filesystem: object = None,
        parquet_read_options: ParquetReadOptions | None = None,
        schema: pa.Schema | None = None,
        as_large_types: bool = False,  # noqa: FBT001, FBT002
        file_pruning_predicate: Where = None,
        *,
        where: Where = None,
    ) -> Dataset:
        """Return the rows as a PyArrow dataset that finds its files while it is read.

        ``where`` filters rows and files, ``file_pruning_predicate`` only files, as in deltalake. ``schema``
        and ``as_large_types`` change the types, and ``parquet_read_options`` reads columns as dictionaries (INT96 is
        always read as microseconds).
        """
        from lazydelta.rows.dataset import table_dataset  # noqa: PLC0415 - pyarrow.dataset takes a while

        if partitions is not None and file_pruning_predicate is not None:
            message = "`partitions` is deprecated, and `file_pruning_predicate` is given as well"
            raise OptionError(message, hint="filter the dataset, or pass `file_pruning_predicate` alone")
        if partitions is not None:
            warn_of("`partitions` is deprecated; filter the dataset, or use `file_pruning_predicate`")
        given = [self._both(partitions, where), self._bound(file_pruning_predicate)]
        kinds = {
            "filesystem": filesystem,
            "schema": schema,
            "as_large_types": as_large_types,
            "dictionary_columns": () if parquet_read_options is None else parquet_read_options.dictionary_columns,
        }
        return table_dataset(self._snapshot, *given, **kinds)  # type: ignore[arg-type]

    def to_pyarrow_table(
        self,
        partitions: Where = None,
        columns: list[str] | None = None,
        filesystem: object = None,
        filters: Where = None,
        *,
        where: Where = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return the rows as a table; ``where`` and deltalake's ``filters`` accept every form of predicate."""
        if filesystem is not None:
            from lazydelta.rows.dataset import check_filesystem  # noqa: PLC0415 - see the head of this module

            check_filesystem(filesystem, self._snapshot.store)
        if isinstance(partitions, list) and partitions and set(map(str, partitions)) <= set(self.columns):
            message = "The first argument is a list of filters, as in deltalake"
            raise OptionError(message, hint=f"write columns={partitions!r}")
        if partitions is not None:
            warn_of("`partitions` is deprecated; use `filters` instead")
        columns = self._named(columns)
        once = self._distinct(columns)  # a column can be requested twice
        table = self.rows(once, self._both(partitions, filters, where), limit=limit).read_all()
        return table if columns is None or once == columns else table.select(columns)

    def to_polars(
        self, columns: Sequence[str] | None = None, *, where: Where = None, limit: int | None = None
    ) -> pl.LazyFrame:
        """Return the table as a Polars lazy frame. With ``where``, it is a frame of the rows that match."""
        from lazydelta.engines.polars import scan  # noqa: PLC0415 - an extra

        if where is not None:
            frame = self.rows(columns, where, limit=limit).to_polars().lazy()
        else:
            frame = scan(self)
            frame = frame if columns is None else frame.select(self._named(columns))
        return frame if limit is None else frame.head(limit)

    def to_arrow(
        self, columns: Sequence[str] | None = None, *, where: Where = None, limit: int | None = None
    ) -> pa.Table:
        """Return the rows as a PyArrow table."""
        return self.to_pyarrow_table(columns=self._named(columns), where=where, limit=limit)

    def to_list(
        self, columns: Sequence[str] | None = None, *, where: Where = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows as a list of dictionaries."""
        return self.rows(columns, where, limit=limit).to_list()

    def head(self, n: int = 10, columns: Sequence[str] | None = None, *, where: Where = None) -> pa.Table:
        """Return a few of the newest rows; no more files are read than these rows need."""
        return self.rows(columns, where, limit=n).read_all()

    def show(self, n: int = 10, columns: Sequence[str] | None = None, *, where: Where = None) -> None:
        """Print a few of the newest rows."""
        from lazydelta.runtime.results import text_table  # noqa: PLC0415 - for people only

        print(text_table(self.head(n, columns, where=where)))  # noqa: T201 - what it is for

    def explain(self, where: Where = None, **keywords: Any) -> Explanation:
        """Return the plan of ``files(where, …)``, without reading any file list."""
        return self.files(where, **keywords).explain()

    def info(self) -> TableInfo:
        """Return what the table is: version, columns, partitioning, protocol, properties. Reads no file list."""
        from lazydelta.table.information import describe  # noqa: PLC0415 - not needed for reading

        return describe(self)

    def sql(self, query: str, *, params: Sequence[Any] | Mapping[str, Any] | None = None, **tables: Any) -> SqlResult:
        """Return the result of a SELECT, in which the table is called ``self`` or by the name of its folder.

        ``tables`` are further ones by name; see `lazydelta.sql`.
        """
        from lazydelta.engines.sql import sql  # noqa: PLC0415 - an extra

        return sql(query, {**self._names(), **tables}, params=params)

    def kql(self, query: str, *, now: datetime | None = None, **tables: Any) -> KqlResult:
        """Return the result of a KQL query, in which the table is called ``self`` or by the name of its folder.

        The name can be left out: ``table.kql("where n > 3 | count")``. ``tables`` are further ones by name.
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

    def fragments(self, number: int, *, columns: Sequence[str] | None = None, where: Where = None) -> list[RowFragment]:
        """Return the rows as at most ``number`` fragments of similar size, for other threads or processes."""
        from lazydelta.rows.scanner import row_fragments  # noqa: PLC0415 - as above

        return row_fragments(self._row_scanner(columns=columns, where=self._bound(where)), number)

    def estimate(self, where: Where = None) -> RowEstimate:
        """Return an upper bound of the files, bytes and rows that a scan would read, from the log alone."""
        from lazydelta.rows.scanner import estimate_rows  # noqa: PLC0415 - as above

        return estimate_rows(self._row_scanner(where=self._bound(where)))

    def count_rows(self, where: Where = None) -> int:
        """Return the number of matching rows, from the log where possible, otherwise from the files concerned."""
        return self._row_scanner(where=self._bound(where)).count()

    def to_pandas(
        self,
        partitions: Where = None,
        columns: list[str] | None = None,
        filesystem: object = None,
        filters: Where = None,
        types_mapper: Callable[[pa.DataType], Any] | None = None,
        *,
        where: Where = None,
        limit: int | None = None,
    ) -> pd.DataFrame:
        """Return the rows as a pandas data frame."""
        require("pandas", "pandas")
        table = self.to_pyarrow_table(partitions, columns, filesystem, filters, where=where, limit=limit)
        return table.to_pandas(types_mapper=types_mapper)

    def retention_guard(self) -> RetentionGuard:
        """Return a guard for ``files`` that rejects a version whose files VACUUM may have deleted."""
        from lazydelta.scan.request import table_retention_guard  # noqa: PLC0415 - as above

        return table_retention_guard(self._snapshot)

    @property
    def optimize(self) -> TableOptimizer:
        """Compaction of small files: ``optimize.compact()`` moves the table to its newest version."""
        from lazydelta.deltalake_names.maintenance import TableOptimizer  # noqa: PLC0415 - not needed for reading

        return TableOptimizer(self._snapshot, self.update_incremental)

    def vacuum(
        self,
        retention_hours: float | None = None,
        dry_run: bool = True,  # noqa: FBT001, FBT002
        enforce_retention_duration: bool = True,  # noqa: FBT001, FBT002
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
        full: bool = NOT_GIVEN,
        keep_versions: list[int] | None = None,
    ) -> list[str]:
        """Delete files that no version within the retention references, and return their paths relative to the root.

        The table then moves to its newest version, which records the vacuum; a dry run changes nothing. Without
        ``retention_hours``, the table property ``delta.deletedFileRetentionDuration`` applies (7 days by default).
        With ``full=False`` nothing is listed, and only files that the log names as removed are deleted. ``args`` are
        the last four parameters by position, which deltalake deprecates.
        """
        from lazydelta.deltalake_names.maintenance import vacuum_call  # noqa: PLC0415 - not needed for reading

        last = by_position(
            "vacuum",
            args,
            {
                "post_commithook_properties": post_commithook_properties,
                "commit_properties": commit_properties,
                "full": None if full is NOT_GIVEN else full,
                "keep_versions": keep_versions,
            },
        )
        noted = (last["commit_properties"], last["post_commithook_properties"])
        paths = vacuum_call(
            self._snapshot.table,
            retention_hours,
            dry_run,
            enforce_retention_duration,
            last["keep_versions"],
            properties=noted,
            lite=last["full"] is False,
        )
        if not dry_run:
            self.update_incremental()
        return paths

    def _row_scanner(self, **keywords: Any) -> RowScanner:
        from lazydelta.rows.request import RowRequest  # noqa: PLC0415 - as above
        from lazydelta.rows.scanner import RowScanner  # noqa: PLC0415 - as above

        request = RowRequest.of(self._snapshot.schema, **keywords)
        return RowScanner(self._snapshot, request)

    def _both(self, *conditions: Where) -> Predicate | None:
        now = time.time_ns()
        given = [each for each in (self._bound(condition, now) for condition in conditions) if each is not None]
        return conjunction(given) if given else None

    def _all_of(self, first: Where, second: Where) -> Where:
        """Return the conditions of a file scan, which binds the second itself; SQL of the first is deltalake's."""
        if isinstance(first, str):
            first = parse_predicate(first, self._snapshot.schema, by_engine=True, numbers_as_text=True)
        return (
            self._both(first, second)
            if first is not None and second is not None
            else second
            if first is None
            else first
        )

    def _named(self, columns: Sequence[str] | str | None) -> list[str] | None:
        return named_columns(columns, self._snapshot.schema)

    def _distinct(self, columns: Sequence[str] | str | None) -> list[str] | None:
        names = self._named(columns)
        return None if names is None else list(dict.fromkeys(names))

    def _names(self) -> dict[str, Any]:
        folder = self.table_uri.rstrip("/").rpartition("/")[2]
        return {"self": self, folder: self} if folder.isidentifier() else {"self": self}

    def _bound(self, where: Where, now: int | None = None) -> Predicate | None:
        trust = self._snapshot.options.float_max == "trust"
        return parse_predicate(where, self._snapshot.schema, now=now, trust_float_max=trust, by_engine=True)

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

    ``table`` is a location or a ``DeltaTable``. The stream has ``to_arrow``, ``to_pandas``, ``to_polars``, ``to_list``,
    ``count`` and ``first``, and other libraries read it as an Arrow stream.
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
    """Return the rows of a table that match ``where`` as a PyArrow table. ``opening`` is as for ``scan``."""
    return scan(table, columns, where=where, limit=limit, **opening).read_all()
