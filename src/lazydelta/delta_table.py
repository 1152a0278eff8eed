"""``DeltaTable``: a table pinned at one version, with the API that deltalake users know, down to its parameters.

Opening it and finding its files is `lazydelta.pinned_table`. The reader of rows and the writer are loaded where they
are used, because loading them takes longer than finding the files of an hour.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from lazydelta.deltalake_api.changes import ChangesTable
from lazydelta.deltalake_api.deprecated_parameters import by_position, instead_of, warn_of
from lazydelta.deltalake_api.left_to_deltalake import LeftToDeltalake
from lazydelta.errors import OptionError
from lazydelta.log.table_description import DeltaTableConfig
from lazydelta.pinned_table import PinnedTable
from lazydelta.pruning import Predicate, Where, conjunction, parse_predicate
from lazydelta.scan.request import RetentionGuard

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pyarrow.dataset import Dataset, ParquetReadOptions

    from lazydelta.deltalake_api.commit_properties import CommitProperties, PostCommitHookProperties
    from lazydelta.deltalake_api.deltalake_maintenance import TableOptimizer
    from lazydelta.deltalake_api.raw_table import RawDeltaTable
    from lazydelta.file_changes import ChangeStream
    from lazydelta.row_scan import RowEstimate, RowFragment, RowScanner, RowStream
    from lazydelta.types.delta_types import Schema

__all__ = ["DeltaTable"]

_FEW_PATHS = 1000


class DeltaTable(PinnedTable, ChangesTable, LeftToDeltalake):
    """A Delta table at one version, pinned when it is opened.

    ``version`` is a number, or a moment (``datetime`` or ISO 8601 text) that stands for the newest version not younger
    than it. ``options`` are lazydelta's own (see ``Options``); ``log_tail`` are the commits that a catalog has
    ratified, for catalog-managed tables. ``external_locations`` are the folders of other accounts or buckets in which
    the log may name files, each with storage options of its own; files anywhere else than in the table's own account
    (on Azure) or bucket are refused. ``without_files``, ``log_buffer_size`` and ``skip_stats`` are accepted because
    deltalake has them; they change nothing here, where no file is loaded before somebody asks.

    Two tables are equal if they are the same version of the same place. A pickle of a table opens that version again
    where it is loaded; credentials are not in it.
    """

    @property
    def table_config(self) -> DeltaTableConfig:
        """How deltalake would have loaded the table, which it calls deprecated; nothing here depends on it."""
        warn_of("The 'table_config' property is deprecated; it is the same for every table.")
        return DeltaTableConfig()

    @property
    def _table(self) -> RawDeltaTable:
        from lazydelta.deltalake_api.raw_table import RawDeltaTable  # noqa: PLC0415 - see the head of this module

        return RawDeltaTable(self)

    def get_add_actions(self, flatten: bool = False) -> pa.Table:  # noqa: FBT001, FBT002 - deltalake's parameter
        """Return every active file as a row: path, size, time, record count, statistics, partition values.

        With ``flatten`` each statistic is a column (``min.a``), else they are structs. All files are held at once;
        ``files(stats_columns=…).batches()`` streams them.
        """
        from lazydelta.scan.add_actions import AddActions  # noqa: PLC0415 - see the head of this module

        actions = AddActions.of(self._snapshot.schema, self._snapshot.metadata)
        with self.files(stats_columns=actions.stats_columns) as files:
            return actions.table(files.batches(), flatten=flatten)

    def deletion_vectors(self) -> pa.RecordBatchReader:
        """Return a row for each file that has a deletion vector: its URI, and for every row whether it is kept."""
        from lazydelta.scan.selection_vectors import SELECTION_VECTORS, selection_vectors  # noqa: PLC0415 - as above

        batches = selection_vectors(self.files(), self._snapshot.store)
        return pa.RecordBatchReader.from_batches(SELECTION_VECTORS, batches)

    def scan(self, columns: list[str] | None = None, predicate: Where = None) -> pa.RecordBatchReader:
        """Return the rows that match ``predicate`` as a stream of record batches, read while files are found."""
        # A column may be asked for twice; it is read once.
        once = None if columns is None else list(dict.fromkeys(columns))
        found = self.rows(once, predicate).to_reader()
        if columns is None or once == columns:
            return found
        asked = found.schema.empty_table().select(columns).schema
        return pa.RecordBatchReader.from_batches(asked, (batch.select(columns) for batch in found))

    def load_cdf(
        self,
        starting_version: int = 0,
        ending_version: int | None = None,
        starting_timestamp: str | None = None,
        ending_timestamp: str | None = None,
        columns: list[str] | None = None,
        predicate: Where = None,
        allow_out_of_range: bool = False,  # noqa: FBT001, FBT002
    ) -> pa.RecordBatchReader:
        """Return the rows that versions inserted, updated and deleted, as a stream in the order of the commits.

        Beside the table's columns (those of the pinned version) they have ``_change_type`` (``insert``, ``delete``,
        ``update_preimage``, ``update_postimage``), ``_commit_version`` and ``_commit_timestamp`` (UTC). The table's
        property ``delta.enableChangeDataFeed`` must be true in all of these versions. ``predicate`` may name all of
        these columns. A start behind the newest version is an error, or gives no rows with ``allow_out_of_range``.
        """
        from lazydelta.change_data import ChangeReader, VersionRange, check_enabled  # noqa: PLC0415 - as above

        asked = VersionRange.of(
            starting_version, ending_version, starting_timestamp, ending_timestamp, may_be_outside=allow_out_of_range
        )
        reader = ChangeReader(self._snapshot, columns=columns, where=predicate)
        commits = asked.commits(self._handle.store, self._snapshot.metadata, self.version())
        if commits:
            first = commits[0].file.version
            check_enabled(self._open(first).metadata, first)
        return pa.RecordBatchReader.from_batches(reader.schema, reader.read(commits))

    def changes(self, since: int | None = None, *, batch_size: int = 8192) -> ChangeStream:
        """Return the files that the versions after ``since`` added and removed, as Arrow batches in the log's order.

        The last version is the one that is pinned; without ``since`` the first is version 0. Each action is a row:
        ``version``, ``timestamp`` (epoch milliseconds), ``action`` (``add``, ``remove``, ``metaData``, ``protocol``),
        ``path``, ``size``, ``modification_time``, ``partition_values``, ``deletion_vector``, ``data_change`` (false for
        rows that were only moved), and in ``detail`` the JSON of metadata and protocol. Versions whose commits were
        cleaned up are an error that names the earliest; no commit is left out silently.
        """
        from lazydelta.file_changes import ChangeStream  # noqa: PLC0415 - see the head of this module

        return ChangeStream(self._snapshot, since, batch_size=batch_size)

    def file_uris(self, partition_filters: Where = None, *, file_pruning_predicate: Where = None) -> list[str]:
        """Return the resolved places of the active files: plain paths for local tables, else URIs."""
        where = instead_of("partition_filters", partition_filters, file_pruning_predicate)
        store = self._snapshot.store
        # Batches are cut so that few paths are there twice, as logged and as resolved.
        return [
            store.uri_of(path)
            for batch in self.files(where).batches()
            for start in range(0, batch.num_rows, _FEW_PATHS)
            for path in batch.column("path").slice(start, _FEW_PATHS).to_pylist()
        ]

    def partitions(
        self, partition_filters: Where = None, *, file_pruning_predicate: Where = None
    ) -> list[dict[str, str | None]]:
        """Return the distinct partitions of the active files, none for a table without partition columns.

        Each has every partition column, in the order of the table; a null is None, however it was logged.
        """
        where = instead_of("partition_filters", partition_filters, file_pruning_predicate)
        names = self._snapshot.schema.partition_columns
        if not names:
            return []
        found: dict[tuple[str | None, ...], None] = {}
        for batch in self.files(where).batches():
            # Writers log the entries of the map in any order, and an empty text for a null.
            maps = (dict(values or ()) for values in batch.column("partition_values").to_pylist())
            found.update(dict.fromkeys(tuple(values.get(name) or None for name in names) for values in maps))
        return [dict(zip(names, values, strict=True)) for values in found]

    def count(self) -> int:
        """Return the number of live rows, from the log where it has record counts, else from the files."""
        return self._row_scanner().count()

    def rows(self, columns: Sequence[str] | None = None, where: Where = None, *, limit: int | None = None) -> RowStream:
        """Return the rows that match ``where`` as a stream of record batches, read while files are found.

        A column ``a.b`` is the struct ``a`` with its field ``b`` alone. Rows come file by file in the order of the
        scan, newest files first with a limit, and within a file in the order of the file.
        """
        return self._row_scanner(columns=columns, where=self._bound(where), limit=limit).stream()

    def to_pyarrow_reader(
        self, columns: Sequence[str] | None = None, filters: Where = None, *, limit: int | None = None
    ) -> pa.RecordBatchReader:
        """Return the rows as a PyArrow reader; closing or dropping it ends the scan."""
        return self.rows(columns, filters, limit=limit).to_reader()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hand all rows to another library; nothing is read before it pulls."""
        return self.rows().__arrow_c_stream__(requested_schema)

    def to_pyarrow_dataset(
        self,
        partitions: Where = None,
        filesystem: object = None,
        parquet_read_options: ParquetReadOptions | None = None,
        schema: pa.Schema | None = None,
        as_large_types: bool = False,  # noqa: FBT001, FBT002
        file_pruning_predicate: Where = None,
    ) -> Dataset:
        """Return the rows as a PyArrow dataset that finds its files while it is read.

        ``partitions`` filters rows as well as files, ``file_pruning_predicate`` files alone, as deltalake has it.
        ``schema`` or ``as_large_types`` ask for other types, ``parquet_read_options`` for columns as dictionaries
        (INT96 is read as microseconds anyway).
        """
        from lazydelta.row_scan.table_dataset import table_dataset  # noqa: PLC0415 - pyarrow.dataset takes a while

        if partitions is not None and file_pruning_predicate is not None:
            message = "`partitions` is deprecated, and `file_pruning_predicate` is given as well"
            raise OptionError(message, hint="filter the dataset, or pass `file_pruning_predicate` alone")
        if partitions is not None:
            warn_of("`partitions` is deprecated; filter the dataset, or use `file_pruning_predicate`")
        given = [self._bound(each) for each in (partitions, file_pruning_predicate)]
        kinds = {
            "filesystem": filesystem,
            "schema": schema,
            "as_large_types": as_large_types,
            "dictionary_columns": () if parquet_read_options is None else parquet_read_options.dictionary_columns,
        }
        return table_dataset(self._handle, self._snapshot, *given, **kinds)  # type: ignore[arg-type]

    def to_pyarrow_table(
        self,
        partitions: Where = None,
        columns: list[str] | None = None,
        filesystem: object = None,
        filters: Where = None,
    ) -> pa.Table:
        """Return the rows as a table; ``partitions`` and ``filters`` take every form of predicate."""
        if filesystem is not None:
            raise OptionError("lazydelta reads through its own store", hint="leave filesystem out; use storage_options")
        if partitions is not None:
            warn_of("`partitions` is deprecated; use `filters` instead")
        once = None if columns is None else list(dict.fromkeys(columns))  # one may be asked for twice
        table = self.rows(once, self._both(partitions, filters)).read_all()
        return table if columns is None or once == columns else table.select(columns)

    def to_polars(self) -> pl.LazyFrame:
        """Return the table as a lazy frame of Polars."""
        from lazydelta.engines.polars import scan  # noqa: PLC0415 - an extra

        return scan(self)

    def fragments(self, number: int, *, columns: Sequence[str] | None = None, where: Where = None) -> list[RowFragment]:
        """Return the rows in at most ``number`` pieces of about the same size, for other threads or processes."""
        from lazydelta.row_scan.pieces import row_fragments  # noqa: PLC0415 - as above

        return row_fragments(self._row_scanner(columns=columns, where=self._bound(where)), number)

    def estimate(self, where: Where = None) -> RowEstimate:
        """Return how many files, bytes and rows a scan would read at most, by the log alone."""
        from lazydelta.row_scan.pieces import estimate_rows  # noqa: PLC0415 - as above

        return estimate_rows(self._row_scanner(where=self._bound(where)))

    def count_rows(self, where: Where = None) -> int:
        """Return the number of rows that match, from the log where it knows, else from the files in question."""
        return self._row_scanner(where=self._bound(where)).count()

    def to_pandas(
        self,
        partitions: Where = None,
        columns: list[str] | None = None,
        filesystem: object = None,
        filters: Where = None,
        types_mapper: Callable[[pa.DataType], Any] | None = None,
    ) -> pd.DataFrame:
        """Return the rows as a pandas data frame."""
        try:
            import pandas  # noqa: F401, ICN001, PLC0415 - an extra
        except ImportError as error:
            message = "to_pandas needs pandas, which is not installed"
            raise OptionError(message, hint="pip install 'lazydelta[pandas]'") from error
        table = self.to_pyarrow_table(partitions, columns, filesystem, filters)
        return table.to_pandas(types_mapper=types_mapper)

    def retention_guard(self) -> RetentionGuard:
        """Return a guard for ``files`` that refuses a version of which VACUUM may have deleted files by now."""
        from lazydelta.scan.retention import table_retention_guard  # noqa: PLC0415 - as above

        return table_retention_guard(self._snapshot)

    @property
    def optimize(self) -> TableOptimizer:
        """What packs small files: ``optimize.compact()``; the table is at its newest version then."""
        from lazydelta.deltalake_api.deltalake_maintenance import TableOptimizer  # noqa: PLC0415 - who reads needs none of it

        return TableOptimizer(self._handle, self.update_incremental)

    def vacuum(
        self,
        retention_hours: float | None = None,
        dry_run: bool = True,  # noqa: FBT001, FBT002
        enforce_retention_duration: bool = True,  # noqa: FBT001, FBT002
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
        full: bool = False,
        keep_versions: list[int] | None = None,
    ) -> list[str]:
        """Delete files that no version within the retention refers to, and return their paths below the root.

        The table is at its newest version then, which records it; a dry run leaves everything as it is.
        Without ``retention_hours`` the table says how long files stay (``delta.deletedFileRetentionDuration``, 7 days).
        Every vacuum is a full one here: ``full`` changes nothing. ``commit_properties`` join what the log says of it.
        ``args`` are the last four by position, which deltalake calls deprecated.
        """
        from lazydelta.deltalake_api.deltalake_maintenance import vacuum_call  # noqa: PLC0415 - who reads needs none of it

        last = by_position(
            "vacuum",
            args,
            {
                "post_commithook_properties": post_commithook_properties,
                "commit_properties": commit_properties,
                "full": full or None,
                "keep_versions": keep_versions,
            },
        )
        noted = (last["commit_properties"], last["post_commithook_properties"])
        paths = vacuum_call(
            self._handle,
            retention_hours,
            dry_run,
            enforce_retention_duration,
            last["keep_versions"],
            properties=noted,
        )
        if not dry_run:
            self.update_incremental()
        return paths

    def _row_scanner(self, **keywords: Any) -> RowScanner:
        from lazydelta.row_scan import RowRequest, RowScanner  # noqa: PLC0415 - as above

        request = RowRequest.of(self._snapshot.schema, **keywords)
        return RowScanner(self._handle, self._snapshot, request)

    def _both(self, first: Where, second: Where) -> Predicate | None:
        now = time.time_ns()
        given = [each for each in (self._bound(first, now), self._bound(second, now)) if each is not None]
        return conjunction(given) if given else None

    def _bound(self, where: Where, now: int | None = None) -> Predicate | None:
        trust = self._handle.options.float_max == "trust"
        return parse_predicate(where, self._snapshot.schema, now=now, trust_float_max=trust)

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

        With ``mode="ignore"`` a table that exists is left as it is; ``overwrite`` empties it and gives it the columns.
        Properties that are not Delta's are refused unless ``raise_if_key_not_exists`` is false. ``args`` are the last
        three by position, which deltalake calls deprecated.
        """
        last: dict[str, Any] = {
            "commit_properties": commit_properties,
            "post_commithook_properties": post_commithook_properties,
            "raise_if_key_not_exists": raise_if_key_not_exists,
        }
        more: dict[str, Any] = by_position("create", args, last)
        from lazydelta.deltalake_api.table_creation import create  # noqa: PLC0415 - readers need no writer, which takes a while to load

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

    def create_checkpoint(self) -> None:
        """Write the checkpoint of this version, unless there is one, and point readers at it."""
        from lazydelta.maintenance.checkpointing import checkpoint_at  # noqa: PLC0415 - as above

        checkpoint_at(self._handle.store, self.version())

    def cleanup_metadata(self) -> None:
        """Delete what the table's ``delta.logRetentionDuration`` lets go of its log."""
        from lazydelta.maintenance.log_cleanup import clean_log  # noqa: PLC0415 - as above

        clean_log(self._handle)
