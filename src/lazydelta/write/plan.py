"""What a write is to do: checked before anything is written, and the same for rows from Arrow and from Spark.

A plan is plain data, so that it can be sent to the processes that write the files. They need nothing of the table but
its metadata; whoever commits their files later looks at the table again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.errors import CommitConflictError, OptionError, SchemaMismatchError, WriteError
from lazydelta.log.actions import Add, Metadata, Txn
from lazydelta.log.schema import TableSchema
from lazydelta.log.snapshot import Snapshot
from lazydelta.pruning import Where, parse_predicate, to_arrow_expression
from lazydelta.storage import Store
from lazydelta.write.create import new_metadata, stage_creation
from lazydelta.write.delta_schema import has_timestamp_ntz
from lazydelta.write.evolution import Conformer, grown_schema
from lazydelta.write.layout import NULL_TIMESTAMPS, Boundary, boundary_of, in_range
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = ["Creation", "RejectedRows", "TableRows", "WritePlan", "commit_files", "schema_of"]

RejectedRows = Callable[[pa.RecordBatch, str], None]
"""Takes rows that do not go into the table, and why."""

# The layout of a table that is aligned to time, so that whoever appends to it need not say it again.
_TIMESTAMP_COLUMN = "lazydelta.timestampColumn"
_BOUNDARY = "lazydelta.boundary"
_PARTITION_COLUMN = "lazydelta.partitionColumn"
# How often files are offered to a table whose metadata others change all the while.
_OFFERS = 5


@dataclass(frozen=True, slots=True)
class Creation:
    """What only a new table takes."""

    properties: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    description: str | None = None

    def check(self, snapshot: Snapshot) -> None:
        """Refuse properties that the table does not have: they would be silently without effect."""
        for key, value in self.properties.items():
            if snapshot.metadata.property(key) != value:
                message = (
                    f"The table exists, and its property {key} is {snapshot.metadata.property(key)!r}, not {value!r}"
                )
                raise OptionError(message, hint="properties are those of a new table; leave them out")


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """What the caller asked for, checked as far as it can be without a table.

    With a ``timestamp_column``, ``boundary`` and ``partition_column`` are None only where the caller left them to the
    table.
    """

    mode: str = "append"
    partition_by: tuple[str, ...] | None = None
    timestamp_column: str | None = None
    boundary: Boundary | None = None
    partition_column: str | None = None
    overwrite_where: Where = None
    merges: bool = False
    null_timestamps: str = "null-partition"
    creation: Creation = field(default_factory=Creation)

    @classmethod
    def of(  # noqa: PLR0913 - keyword-only, and each stands for itself
        cls,
        *,
        mode: str = "append",
        partition_by: Sequence[str] | None = None,
        timestamp_column: str | None = None,
        boundary: str | None = None,
        partition_column: str | None = None,
        overwrite_where: Where = None,
        schema_mode: str | None = None,
        null_timestamps: str = "null-partition",
        creation: Creation | None = None,
    ) -> WritePlan:
        """Check options as a caller gives them."""
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
            boundary=None if boundary is None else boundary_of(boundary),
            partition_column=partition_column,
            overwrite_where=overwrite_where,
            merges=schema_mode == "merge",
            null_timestamps=null_timestamps,
            creation=creation or Creation(),
        )

    def settled(self, snapshot: Snapshot | None, source: pa.Schema) -> WritePlan:
        """Return the plan with what it leaves to the table; ``source`` is the schema of the data as it comes."""
        recorded: dict[str, str | None] = {}
        if snapshot is not None:
            recorded = {each: snapshot.metadata.property(each) for each in _LAYOUT}
        column, made_from = recorded.get(_PARTITION_COLUMN), recorded.get(_TIMESTAMP_COLUMN)
        if self.timestamp_column is None:
            if made_from is None or column is None or _find(source, column) is not None:
                return self
            if _find(source, made_from) is None:
                message = f"The table makes its partition column {column!r} from {made_from!r}, which the data lacks"
                raise SchemaMismatchError(message, hint="give the column, or name another with timestamp_column")
        elif made_from is not None and made_from != self.timestamp_column:
            message = f"The table is aligned by its column {made_from!r}, not by {self.timestamp_column!r}"
            raise SchemaMismatchError(message, hint="leave timestamp_column out; the table knows it")
        if (
            column is not None
            and column == self.partition_column
            and self.boundary
            and not _is(self.boundary, recorded)
        ):
            message = (
                f"The table's column {column!r} has the boundary {recorded.get(_BOUNDARY)}, not {self.boundary.name}"
            )
            raise SchemaMismatchError(message, hint="leave boundary out; the table knows it")
        boundary = self.boundary or boundary_of(recorded.get(_BOUNDARY) or "hour")
        return replace(
            self,
            timestamp_column=self.timestamp_column or made_from,
            boundary=boundary,
            partition_column=self.partition_column or (column if _is(boundary, recorded) else None) or boundary.column,
        )

    @property
    def partition_columns(self) -> tuple[str, ...] | None:
        """Return the partition columns asked for; None if none were mentioned."""
        if self.timestamp_column is None or self.partition_column is None:
            return self.partition_by
        named = self.partition_by or ()
        return named if self.partition_column in named else (self.partition_column, *named)

    @property
    def parameters(self) -> dict[str, Any]:
        """Return what the log says of the write."""
        found: dict[str, Any] = {"mode": self.mode.capitalize(), "partitionBy": list(self.partition_columns or ())}
        if self.overwrite_where is not None:
            found["predicate"] = str(self.overwrite_where)
        return found

    def incoming(self, source: pa.Schema) -> pa.Schema:
        """Return the schema of the data with the column that is made from its timestamps."""
        if self.timestamp_column is None or self.partition_column is None or self.boundary is None:
            return source
        self.boundary.check(source.field(self.position(source)).type, self.timestamp_column)
        name = self.partition_column
        if _find(source, name) is not None:
            message = f"The data has a column {name!r}, which timestamp_column={self.timestamp_column!r} is to make"
            raise OptionError(message, hint="drop the column, or leave timestamp_column out")
        return source.append(pa.field(name, pa.string()))

    def position(self, source: pa.Schema) -> int:
        """Return which column of the data has its timestamps."""
        index: int = source.get_field_index(self.timestamp_column)
        if index < 0:
            message = f"The data has no column {self.timestamp_column!r} (or has it twice) to take timestamps from"
            raise OptionError(message, hint=f"its columns are: {', '.join(source.names)}")
        return index

    def stage(self, transaction: Transaction, incoming: pa.Schema) -> Metadata:
        """Say what the commit does beside adding files, and return the metadata that files are written for."""
        snapshot = transaction.snapshot
        if snapshot is None:
            metadata = self._new_metadata(incoming)
            stage_creation(transaction, metadata)
            return metadata
        self.creation.check(snapshot)
        self._check_partitioning(snapshot)
        metadata = snapshot.metadata
        if self.merges:
            grown = grown_schema(metadata.schema_string, incoming)
            if grown is not None:
                metadata = msgspec.structs.replace(metadata, schema_string=grown)
                _check_features(transaction, schema_of(metadata))
                transaction.set_metadata(metadata)
        Conformer(schema_of(metadata).to_arrow(), incoming)  # what does not fit is refused before the first request
        if self.mode == "overwrite":
            if self.overwrite_where is None:
                transaction.remove_all()
            else:
                transaction.remove_partitions(self.overwrite_where)
        return metadata

    def _new_metadata(self, incoming: pa.Schema) -> Metadata:
        properties = dict(self.creation.properties)
        if self.timestamp_column is not None and self.boundary is not None and self.partition_column is not None:
            properties |= {
                _TIMESTAMP_COLUMN: self.timestamp_column,
                _BOUNDARY: self.boundary.name,
                _PARTITION_COLUMN: self.partition_column,
            }
        return new_metadata(
            incoming,
            partition_by=self.partition_columns or (),
            properties=properties,
            name=self.creation.name,
            description=self.creation.description,
        )

    def _check_partitioning(self, snapshot: Snapshot) -> None:
        wanted, actual = self.partition_columns, snapshot.metadata.partition_columns
        if wanted is None or wanted == actual:
            return
        if self.partition_by is None and self.partition_column in actual:
            return  # the other partition columns were not mentioned
        message = f"The table is partitioned by {list(actual)}, not by {list(wanted)}"
        raise SchemaMismatchError(message, path=snapshot.store.uri, hint="a table's partitioning cannot be changed")


_LAYOUT = (_TIMESTAMP_COLUMN, _BOUNDARY, _PARTITION_COLUMN)


class TableRows:
    """Brings batches as they come to the rows of the table, the column made from their timestamps included.

    ``rejected`` takes the rows that the plan rejects; without it they are an error.
    """

    def __init__(self, plan: WritePlan, metadata: Metadata, rejected: RejectedRows | None = None) -> None:
        self._plan = plan
        self._schema = schema_of(metadata)
        self._table = self._schema.to_arrow()
        name = None if plan.partition_column is None else _find(self._table, plan.partition_column)
        self._made = None if plan.timestamp_column is None or name is None else self._table.get_field_index(name)
        # What batches bring themselves.
        self._given = self._table if self._made is None else self._table.remove(self._made)
        self._selects = _selector(plan, self._schema)
        self._conform: Conformer | None = None
        self._rejected = rejected

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch; the column that is made is encoded by a dictionary."""
        batch, made = self._with_boundary(batch)
        if self._conform is None or not batch.schema.equals(self._conform.source):
            self._conform = Conformer(self._given, batch.schema)
        rows = self._conform(batch)
        if made is not None and self._made is not None:
            rows = self._with_made(rows, made, self._made)
        _check_empty_texts(rows, self._schema)
        self._selects(rows)
        return rows

    def _with_boundary(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array | None]:
        plan = self._plan
        if plan.timestamp_column is None or plan.boundary is None or plan.partition_column is None:
            return batch, None
        index = plan.position(batch.schema)
        if self._rejected is not None and plan.null_timestamps == "reject":
            batch = self._only_timed(batch, index, self._rejected)
        values = plan.boundary.values(batch.column(index), nulls=plan.null_timestamps, column=plan.timestamp_column)
        return batch, values

    def _with_made(self, rows: pa.RecordBatch, values: pa.Array, index: int) -> pa.RecordBatch:
        """Put the made column into its place; as the table has it only where somebody is to look at its values."""
        field = self._table.field(index)
        if self._plan.overwrite_where is not None or not field.nullable or not pa.types.is_string(field.type):
            found = pa.RecordBatch.from_arrays([values], [field.name])
            values = Conformer(pa.schema([field]), found.schema)(found).column(0)
        return rows.add_column(index, field.with_type(values.type), values)

    def _only_timed(self, batch: pa.RecordBatch, index: int, rejected: RejectedRows) -> pa.RecordBatch:
        """Hand over the rows that belong to no boundary, and return the others."""
        column = self._plan.timestamp_column
        for reason, kept in (
            (f"no value in the timestamp column {column!r}", pc.is_valid),
            (f"the timestamp column {column!r} is outside the years 0 to 9999", in_range),
        ):
            mask = kept(batch.column(index))
            if not pc.all(mask).as_py():
                rejected(batch.filter(pc.invert(mask)), reason)
                batch = batch.filter(mask)
        return batch


def commit_files(  # noqa: PLR0913 - a commit is all of these
    store: Store,
    plan: WritePlan,
    incoming: pa.Schema,
    written_for: Metadata,
    adds: Sequence[Add],
    *,
    operation: str = "WRITE",
    parameters: Mapping[str, Any] | None = None,
    txn: Txn | None = None,
    max_attempts: int = 15,
) -> CommitResult:
    """Commit files that were written for the metadata of an earlier moment, maybe by other processes.

    The table is looked at anew. What has happened to it since then is no hindrance to an append, as long as it still
    has the columns that the files were written for.
    """
    for remaining in reversed(range(_OFFERS)):
        with Transaction.begin(store, operation=operation, parameters=parameters or plan.parameters, txn=txn) as offer:
            if offer.already_committed:
                return offer.commit()
            _check_columns(_staged(plan, offer, incoming), written_for, store)
            offer.add(*adds)
            try:
                return offer.commit(max_attempts=max_attempts)
            except CommitConflictError:
                if plan.mode != "append" or not remaining:
                    raise
    raise AssertionError("the last offer returns or raises")  # pragma: no cover


def _staged(plan: WritePlan, offer: Transaction, incoming: pa.Schema) -> Metadata:
    try:
        return plan.stage(offer, incoming)
    except SchemaMismatchError as error:  # it did fit when the files were written
        raise _changed(offer.store, f": {error}") from error


def schema_of(metadata: Metadata) -> TableSchema:
    """Return the schema that the metadata describe."""
    return TableSchema.parse(metadata.schema_string, partition_columns=metadata.partition_columns)


def _check_columns(found: Metadata, ours: Metadata, store: Store) -> None:
    columns = {each.name: each for each in schema_of(found).fields}
    lost = [each.name for each in schema_of(ours).fields if columns.get(each.name) != each]
    if not lost and found.partition_columns == ours.partition_columns:
        return
    raise _changed(store, f": {', '.join(lost)}" if lost else "")


def _changed(store: Store, detail: str) -> CommitConflictError:
    message = f"Another writer gave the table at {store.uri} other columns meanwhile{detail}"
    return CommitConflictError(message, path=store.uri, hint="look at the table and write again")


def _check_features(transaction: Transaction, schema: TableSchema) -> None:
    protocol = transaction.protocol
    features = () if protocol is None else protocol.writer_features or ()
    if has_timestamp_ntz(schema.to_arrow()) and "timestampNtz" not in features:
        message = "A new column has timestamps without a time zone, for which the table lacks the feature timestampNtz"
        raise SchemaMismatchError(message, path=transaction.store.uri, hint="give its timestamps a time zone")


def _selector(plan: WritePlan, schema: TableSchema) -> Callable[[pa.RecordBatch], None]:
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


def _find(schema: pa.Schema, name: str) -> str | None:
    # Delta does not tell names apart by case.
    return next((each for each in schema.names if each.lower() == name.lower()), None)


def _is(boundary: Boundary, recorded: Mapping[str, str | None]) -> bool:
    return recorded.get(_BOUNDARY) == boundary.name
