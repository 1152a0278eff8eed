"""``write_arrow``: rows from Arrow to a table, in one call and one commit."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.errors import CommitConflictError, OptionError, SchemaMismatchError, WriteError
from lazydelta.log.actions import Add, Metadata, Txn
from lazydelta.log.schema import TableSchema
from lazydelta.log.snapshot import Snapshot
from lazydelta.pruning import Where, parse_predicate, to_arrow_expression
from lazydelta.storage import Store, open_store
from lazydelta.write.create import new_metadata, stage_creation
from lazydelta.write.data_files import MEMORY_BUDGET, TARGET_FILE_SIZE, DataFileWriter
from lazydelta.write.delta_schema import has_timestamp_ntz
from lazydelta.write.evolution import Conformer, grown_schema
from lazydelta.write.layout import NULL_TIMESTAMPS, Boundary, boundary_of
from lazydelta.write.maintenance import after_commit
from lazydelta.write.properties import TableProperties
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = ["ArrowData", "write_arrow"]

_log = logging.getLogger(__name__)

ArrowData: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch] | Any"
"""Anything that gives record batches, the last being whatever has ``__arrow_c_stream__``."""


def write_arrow(  # noqa: PLR0913 - keyword-only, and each stands for itself
    uri: str | os.PathLike[str],
    data: ArrowData,
    *,
    mode: Literal["append", "overwrite"] = "append",
    partition_by: Sequence[str] | None = None,
    timestamp_column: str | None = None,
    boundary: str = "hour",
    storage_options: Mapping[str, str] | None = None,
    overwrite_where: Where = None,
    schema_mode: Literal["merge"] | None = None,
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
    description: str | None = None,
    app_id: str | None = None,
    app_version: int | None = None,
    null_timestamps: str = "null-partition",
    target_file_size: int = TARGET_FILE_SIZE,
    memory_budget: int = MEMORY_BUDGET,
    compression: str = "zstd",
    max_attempts: int = 15,
    maintain: bool = True,
) -> int:
    """Write rows to a table in one commit, and return its version; a table that does not exist is created.

    ``mode="overwrite"`` replaces the whole table, or what ``overwrite_where`` selects by partition columns.
    ``timestamp_column`` makes a partition column of UTC time out of a column: ``_event_hour`` with ``boundary="hour"``,
    likewise month, day, minute, second; null timestamps get the null partition or, with ``null_timestamps="reject"``,
    are an error. ``partition_by`` names further partition columns. ``schema_mode="merge"`` adds columns that the table
    does not have. ``properties``, ``name`` and ``description`` are those of a new table.

    With ``app_id`` and ``app_version`` the write happens once: if the table has this version of the application, or a
    later one, nothing is written, and the table's current version is returned.

    Memory is bounded by ``memory_budget`` and the batches given, however many there are. If the write fails, no data
    file is left behind as far as the store lets us delete it; only where it is not known whether the commit arrived
    (``StorageError``) do the files stay. ``maintain`` writes the checkpoint and the sidecar where they are due.
    """
    plan = _Plan.of(
        mode=mode,
        partition_by=partition_by,
        timestamp_column=timestamp_column,
        boundary=boundary,
        overwrite_where=overwrite_where,
        schema_mode=schema_mode,
        null_timestamps=null_timestamps,
        txn=_txn(app_id, app_version),
    )
    creation = _Creation(properties, name, description)
    store = open_store(uri, storage_options)
    source, batches = _open(data)
    incoming = plan.incoming(source)
    with plan.begin(store) as transaction:
        if transaction.already_committed and transaction.snapshot is not None:
            return transaction.snapshot.version
        metadata = _stage(transaction, plan, creation, incoming)
        schema = _schema_of(metadata)
        files = DataFileWriter(
            store,
            schema.to_arrow(),
            metadata.partition_columns,
            properties=TableProperties.of(metadata),
            target_file_size=target_file_size,
            memory_budget=memory_budget,
            compression=compression,
        )
        with files:
            _write(files, batches, plan, schema)
            adds = files.close()
        # From here on the files may be part of the table, and are deleted only where they are known not to be.
        try:
            result = _commit(transaction, plan, metadata, adds, max_attempts)
        except WriteError:
            files.abort()
            raise
    if result.already_committed:
        files.abort()
    elif maintain:
        after_commit(store, result.version, result.metadata)
    return result.version


@dataclass(frozen=True, slots=True)
class _Creation:
    """What only a new table takes."""

    properties: Mapping[str, str] | None
    name: str | None
    description: str | None

    def check(self, snapshot: Snapshot) -> None:
        """Refuse properties that the table does not have: they would be silently without effect."""
        for key, value in (self.properties or {}).items():
            if snapshot.metadata.property(key) != value:
                message = (
                    f"The table exists, and its property {key} is {snapshot.metadata.property(key)!r}, not {value!r}"
                )
                raise OptionError(message, hint="properties are those of a new table; leave them out")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What the caller asked for, checked as far as it can be without a table."""

    mode: str
    partition_by: tuple[str, ...] | None
    timestamp_column: str | None
    boundary: Boundary
    overwrite_where: Where
    merges: bool
    null_timestamps: str
    txn: Txn | None

    @classmethod
    def of(
        cls,
        *,
        mode: str,
        partition_by: Sequence[str] | None,
        timestamp_column: str | None,
        boundary: str,
        overwrite_where: Where,
        schema_mode: str | None,
        null_timestamps: str,
        txn: Txn | None,
    ) -> _Plan:
        if mode not in {"append", "overwrite"}:
            raise OptionError(f"mode={mode!r} makes no sense", hint="say 'append' or 'overwrite'")
        if schema_mode not in {None, "merge"}:
            raise OptionError(f"schema_mode={schema_mode!r} makes no sense", hint="say 'merge' or leave it out")
        if overwrite_where is not None and mode != "overwrite":
            raise OptionError("overwrite_where needs mode='overwrite'", hint="say so, or leave the predicate out")
        if isinstance(partition_by, str):
            raise OptionError("partition_by is a list of names, not a text", hint=f"write [{partition_by!r}]")
        if null_timestamps not in NULL_TIMESTAMPS:
            message = f"null_timestamps={null_timestamps!r} makes no sense"
            raise OptionError(message, hint=f"say one of {NULL_TIMESTAMPS}")
        return cls(
            mode=mode,
            partition_by=None if partition_by is None else tuple(partition_by),
            timestamp_column=timestamp_column,
            boundary=boundary_of(boundary),
            overwrite_where=overwrite_where,
            merges=schema_mode == "merge",
            null_timestamps=null_timestamps,
            txn=txn,
        )

    @property
    def partition_columns(self) -> tuple[str, ...] | None:
        """Return the partition columns asked for; None if none were mentioned."""
        if self.timestamp_column is None:
            return self.partition_by
        named = self.partition_by or ()
        return named if self.boundary.column in named else (self.boundary.column, *named)

    def incoming(self, source: pa.Schema) -> pa.Schema:
        """Return the schema of the data with the column that is made from its timestamps."""
        if self.timestamp_column is None:
            return source
        self._position(source)
        name = self.boundary.column
        if source.get_field_index(name) >= 0:
            message = f"The data has a column {name!r}, which timestamp_column={self.timestamp_column!r} is to make"
            raise OptionError(message, hint="drop the column, or leave timestamp_column out")
        return source.append(pa.field(name, pa.string()))

    def with_boundary(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with that column."""
        if self.timestamp_column is None:
            return batch
        moments = batch.column(self._position(batch.schema))
        values = self.boundary.values(moments, nulls=self.null_timestamps, column=self.timestamp_column)
        return batch.append_column(self.boundary.column, values)

    def _position(self, source: pa.Schema) -> int:
        index: int = source.get_field_index(self.timestamp_column)
        if index < 0:
            message = f"The data has no column {self.timestamp_column!r} (or has it twice) to take timestamps from"
            raise OptionError(message, hint=f"its columns are: {', '.join(source.names)}")
        return index

    def begin(self, store: Store) -> Transaction:
        columns = self.partition_columns
        parameters: dict[str, Any] = {"mode": self.mode.capitalize(), "partitionBy": list(columns or ())}
        if self.overwrite_where is not None:
            parameters["predicate"] = str(self.overwrite_where)
        return Transaction.begin(store, operation="WRITE", parameters=parameters, txn=self.txn)


def _txn(app_id: str | None, app_version: int | None) -> Txn | None:
    if (app_id is None) != (app_version is None):
        raise OptionError("app_id and app_version belong together", hint="give both or neither")
    # Version 0 is a version.
    return None if app_id is None or app_version is None else Txn(app_id=app_id, version=app_version)


def _stage(transaction: Transaction, plan: _Plan, creation: _Creation, incoming: pa.Schema) -> Metadata:
    """Say what the commit does beside adding files, and return the metadata that the files are written for."""
    snapshot = transaction.snapshot
    if snapshot is None:
        metadata = new_metadata(
            incoming,
            partition_by=plan.partition_columns or (),
            properties=creation.properties,
            name=creation.name,
            description=creation.description,
        )
        stage_creation(transaction, metadata)
        return metadata
    creation.check(snapshot)
    _check_partitioning(plan, snapshot)
    metadata = snapshot.metadata
    if plan.merges:
        grown = grown_schema(metadata.schema_string, incoming)
        if grown is not None:
            metadata = msgspec.structs.replace(metadata, schema_string=grown)
            _check_features(transaction, _schema_of(metadata))
            transaction.set_metadata(metadata)
    Conformer(_schema_of(metadata).to_arrow(), incoming)  # what does not fit is refused before the first request
    if plan.mode == "overwrite":
        if plan.overwrite_where is None:
            transaction.remove_all()
        else:
            transaction.remove_partitions(plan.overwrite_where)
    return metadata


def _check_partitioning(plan: _Plan, snapshot: Snapshot) -> None:
    wanted, actual = plan.partition_columns, snapshot.metadata.partition_columns
    if wanted is None or wanted == actual:
        return
    if plan.partition_by is None and plan.boundary.column in actual:
        return  # the other partition columns were not mentioned
    message = f"The table is partitioned by {list(actual)}, not by {list(wanted)}"
    raise SchemaMismatchError(message, path=snapshot.store.uri, hint="a table's partitioning cannot be changed")


def _check_features(transaction: Transaction, schema: TableSchema) -> None:
    protocol = transaction.protocol
    features = () if protocol is None else protocol.writer_features or ()
    if has_timestamp_ntz(schema.to_arrow()) and "timestampNtz" not in features:
        message = "A new column has timestamps without a time zone, for which the table lacks the feature timestampNtz"
        raise SchemaMismatchError(message, path=transaction.store.uri, hint="give its timestamps a time zone")


def _schema_of(metadata: Metadata) -> TableSchema:
    return TableSchema.parse(metadata.schema_string, partition_columns=metadata.partition_columns)


def _write(files: DataFileWriter, batches: Iterator[pa.RecordBatch], plan: _Plan, schema: TableSchema) -> None:
    table = schema.to_arrow()
    selects = _selector(plan, schema)
    conform: Conformer | None = None
    for batch in batches:
        given = plan.with_boundary(batch)
        if conform is None or not given.schema.equals(conform.source):
            conform = Conformer(table, given.schema)
        rows = conform(given)
        _check_empty_texts(rows, schema)
        selects(rows)
        files.write(rows)


def _selector(plan: _Plan, schema: TableSchema) -> Callable[[pa.RecordBatch], None]:
    """Return what makes sure that an overwrite by predicate writes only rows that the predicate selects."""
    predicate = parse_predicate(plan.overwrite_where, schema)
    if predicate is None:
        return lambda _: None
    expression = to_arrow_expression(predicate, schema)

    def check(rows: pa.RecordBatch) -> None:
        outside = rows.num_rows - rows.filter(expression).num_rows
        if outside:
            message = f"{outside} of the rows written are not selected by overwrite_where={plan.overwrite_where}"
            raise WriteError(message, hint="they would come on top of what is kept; leave them out or append them")

    return check


def _check_empty_texts(rows: pa.RecordBatch, schema: TableSchema) -> None:
    # The log cannot tell an empty partition value from null.
    for name in schema.partition_columns:
        field = rows.schema.field(name)
        if field.nullable or not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
            continue
        lengths = pc.binary_length(rows.column(name))
        if rows.num_rows and pc.min(lengths).as_py() == 0:
            message = f"Partition column {name!r} has empty values, which are nulls to Delta, and may have none"
            raise SchemaMismatchError(message, hint="give these rows another value")


def _commit(
    transaction: Transaction, plan: _Plan, metadata: Metadata, adds: list[Add], max_attempts: int
) -> CommitResult:
    transaction.add(*adds)
    try:
        return transaction.commit(max_attempts=max_attempts)
    except CommitConflictError:
        if transaction.snapshot is not None or plan.mode != "append":
            raise
    # Somebody else created the table in the meantime. If it is the same table, what we have to add is an append.
    with plan.begin(transaction.store) as again:
        found = again.snapshot
        if found is None or not _is_same(found.metadata, metadata):
            message = f"Another writer created the table at {transaction.store.uri} with other columns"
            raise CommitConflictError(message, path=transaction.store.uri, hint="look at the table and write again")
        _log.info("%s was created by another writer meanwhile; appending to it", transaction.store.uri)
        again.add(*adds)
        return again.commit(max_attempts=max_attempts)


def _is_same(found: Metadata, ours: Metadata) -> bool:
    same_columns = _schema_of(found).fields == _schema_of(ours).fields
    return same_columns and found.partition_columns == ours.partition_columns


def _open(data: ArrowData) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema of the data and its batches, one at a time."""
    if isinstance(data, pa.Table):
        return data.schema, iter(data.to_batches())
    if isinstance(data, pa.RecordBatch):
        return data.schema, iter([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, _read(data)
    if hasattr(data, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise OptionError(f"The data gives no stream of Arrow batches: {error}") from error
        return reader.schema, _read(reader)
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | Mapping):
        message = f"Rows cannot be taken from a {type(data).__name__}"
        raise OptionError(message, hint="give a pyarrow Table, a RecordBatchReader or batches")
    batches = iter(data)
    first = next(batches, None)
    if first is None:
        raise OptionError("There is not a single batch, so the columns are unknown", hint="give an empty Table instead")
    return _batch(first).schema, map(_batch, itertools.chain([first], batches))


def _read(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except pa.ArrowException as error:
            raise WriteError(f"The rows to write could not be read: {error}", hint="nothing was committed") from error
        yield batch


def _batch(batch: object) -> pa.RecordBatch:
    if not isinstance(batch, pa.RecordBatch):
        message = f"A {type(batch).__name__} is no record batch"
        raise OptionError(message, hint="give pyarrow RecordBatches")
    return batch
