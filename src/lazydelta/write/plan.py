"""What a write is to do: checked before anything is written, and the same for rows from Arrow and from Spark.

A plan is plain data, so that it can be sent to the processes that write the files. They need nothing of the table but
its metadata; whoever commits their files later (`file_commit`) looks at the table again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import OptionError, SchemaMismatchError, TableExistsError
from lazydelta.log.actions import Metadata
from lazydelta.log.snapshot import Snapshot
from lazydelta.pruning import Where
from lazydelta.types.from_arrow import has_timestamp_ntz
from lazydelta.types.schema import TableSchema
from lazydelta.write.alignment import Alignment, find_column
from lazydelta.write.column_mapping import mapped_metadata, mapping_of
from lazydelta.write.commit_note import CommitNote
from lazydelta.write.create import new_metadata, stage_creation
from lazydelta.write.evolution import Conformer, grown_schema
from lazydelta.write.layout import NULL_TIMESTAMPS, Boundary, boundary_of
from lazydelta.write.row_changes.replacing import stage_replacement
from lazydelta.write.row_constraints import RowConstraints
from lazydelta.write.transaction import Transaction

__all__ = ["Creation", "WritePlan", "is_merging", "schema_of"]


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

    ``replaces_partitions`` lets an overwrite remove the partitions only that the rows turn out to have;
    ``creates_only`` refuses a table that exists. ``replaces_schema`` makes an overwrite of the whole table one of its
    columns and partitioning too. ``shown_mode`` is what the log calls the mode. With a ``timestamp_column``,
    ``boundary`` and ``partition_column`` are None only where the caller left them to the table.
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
    note: CommitNote = field(default_factory=CommitNote)
    replaces_schema: bool = False
    shown_mode: str | None = None
    replaces_partitions: bool = False
    creates_only: bool = False

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
        replaces_schema: bool = False,
        partition_overwrite_mode: str = "static",
        user_metadata: str | None = None,
        creates_only: bool = False,
    ) -> WritePlan:
        """Check options as a caller gives them."""
        replaces_partitions = _is_dynamic(partition_overwrite_mode)
        if mode not in {"append", "overwrite"}:
            raise OptionError(f"mode={mode!r} makes no sense", hint="say 'append' or 'overwrite'")
        merges = is_merging(schema_mode)
        if overwrite_where is not None and mode != "overwrite":
            raise OptionError("overwrite_where needs mode='overwrite'", hint="say so, or leave the predicate out")
        given = {"overwrite_schema": replaces_schema, "partition_overwrite_mode='dynamic'": replaces_partitions}
        for name in (name for name, is_given in given.items() if is_given):
            if mode != "overwrite" or overwrite_where is not None:
                hint = "say so, without a predicate, or leave it out"
                raise OptionError(f"{name} needs mode='overwrite' of the whole table", hint=hint)
        if replaces_schema and replaces_partitions:
            message = "overwrite_schema replaces all rows, and a dynamic partition overwrite only some"
            raise OptionError(message, hint="give one of them")
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
            merges=merges,
            null_timestamps=null_timestamps,
            creation=creation or Creation(),
            note=CommitNote() if user_metadata is None else CommitNote({"userMetadata": user_metadata}),
            replaces_schema=replaces_schema,
            replaces_partitions=replaces_partitions,
            creates_only=creates_only,
            shown_mode="ErrorIfExists" if creates_only else None,
        )

    def settled(self, snapshot: Snapshot | None, source: pa.Schema) -> WritePlan:
        """Return the plan with what it leaves to the table; ``source`` is the schema of the data as it comes."""
        if self.partition_by is not None:
            named = [] if snapshot is None else list(snapshot.metadata.partition_columns)
            spelled = tuple(_spelled(each, [*named, *source.names]) for each in self.partition_by)
            if spelled != self.partition_by:
                return replace(self, partition_by=spelled).settled(snapshot, source)
        known = None if snapshot is None else Alignment.recorded(snapshot.metadata)
        if known is None:
            return self._without_record()
        given = self.timestamp_column
        if given is not None and given.lower() != known.timestamp_column.lower():
            message = f"The table is aligned by its column {known.timestamp_column!r}, not by {given!r}"
            raise SchemaMismatchError(message, hint="leave timestamp_column out; the table knows it")
        if find_column(source, known.timestamp_column) is None:
            message = f"The table makes its partition column {known.partition_column!r} from"
            hint = "give that column: without it nobody can tell where a row belongs"
            raise SchemaMismatchError(f"{message} {known.timestamp_column!r}, which the data lacks", hint=hint)
        boundary = self.boundary or known.boundary
        if boundary != known.boundary and self.partition_column == known.partition_column:
            message = f"The table's column {known.partition_column!r} has the boundary {known.boundary.name}"
            hint = "leave boundary out; the table knows it"
            raise SchemaMismatchError(f"{message}, not {boundary.name}", hint=hint)
        column = known.partition_column if boundary == known.boundary else boundary.column
        return replace(
            self,
            timestamp_column=known.timestamp_column,
            boundary=boundary,
            partition_column=self.partition_column or column,
        )

    def _without_record(self) -> WritePlan:
        """Return the plan for a table that is new, or that does not say how it is aligned."""
        if self.timestamp_column is not None:
            boundary = self.boundary or boundary_of("hour")
            return replace(self, boundary=boundary, partition_column=self.partition_column or boundary.column)
        name = "boundary" if self.boundary is not None else "partition_column"
        if getattr(self, name) is not None:
            message = f"{name} says how a time is cut off, and there is no timestamp column"
            raise OptionError(message, hint="name it as timestamp_column, or leave the other out")
        return self

    @property
    def alignment(self) -> Alignment | None:
        """Return how rows are aligned to time; None if they are not, or if it is still left to the table."""
        if self.timestamp_column is None or self.boundary is None or self.partition_column is None:
            return None
        return Alignment(self.timestamp_column, self.boundary, self.partition_column)

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
        mode = self.shown_mode or self.mode.capitalize()
        found: dict[str, Any] = {"mode": mode, "partitionBy": list(self.partition_columns or ())}
        if self.overwrite_where is not None:
            found["predicate"] = str(self.overwrite_where)
        return found

    def incoming(self, source: pa.Schema) -> pa.Schema:
        """Return the schema of the data with the column that is made from its timestamps."""
        return source if self.alignment is None else self.alignment.added_to(source)

    def stage(self, transaction: Transaction, incoming: pa.Schema) -> Metadata:
        """Say what the commit does beside adding files, and return the metadata that files are written for."""
        snapshot, transaction.note = transaction.snapshot, self.note
        if snapshot is None:
            metadata = self._new_metadata(incoming)
            stage_creation(transaction, metadata)
            return metadata
        if self.creates_only:
            message = f"A table already exists at {snapshot.store.uri}"
            hint = "say mode='append', 'overwrite' or 'ignore', or write to another place"
            raise TableExistsError(message, path=snapshot.store.uri, version=snapshot.version, hint=hint)
        self.creation.check(snapshot)
        self.note.check_seen(snapshot.transaction_version, transaction.store.uri)
        self._check_alignment(snapshot)
        if self.replaces_schema:
            return self._replaced(transaction, snapshot.metadata, incoming)
        self._check_partitioning(snapshot)
        metadata = snapshot.metadata
        if self.merges:
            grown = grown_schema(metadata.schema_string, incoming)
            if grown is not None:
                metadata = mapped_metadata(msgspec.structs.replace(metadata, schema_string=grown))
                _check_features(transaction, schema_of(metadata))
                transaction.set_metadata(metadata)
        table = schema_of(metadata)
        RowConstraints(metadata, table)
        Conformer(table.to_arrow(), incoming)  # what does not fit is refused before the first request
        if self.mode == "overwrite" and not self.replaces_partitions:
            if self.overwrite_where is None:
                transaction.remove_all()
            else:
                stage_replacement(transaction, self.overwrite_where)
        return metadata

    def _replaced(self, transaction: Transaction, metadata: Metadata, incoming: pa.Schema) -> Metadata:
        """Give the table the columns and partitioning of the data, in place of its own and of all its rows."""
        kept = metadata.partition_columns if self.partition_columns is None else self.partition_columns
        described = new_metadata(incoming, partition_by=kept)
        changed = msgspec.structs.replace(
            metadata, schema_string=described.schema_string, partition_columns=described.partition_columns
        )
        changed = mapped_metadata(changed)
        if changed != metadata:
            _check_features(transaction, schema_of(changed))
            transaction.set_metadata(changed)
        transaction.remove_all()
        return changed

    def _new_metadata(self, incoming: pa.Schema) -> Metadata:
        properties = dict(self.creation.properties)
        if self.alignment is not None:
            properties |= self.alignment.properties
        return new_metadata(
            incoming,
            partition_by=self.partition_columns or (),
            properties=properties,
            name=self.creation.name,
            description=self.creation.description,
        )

    def _check_alignment(self, snapshot: Snapshot) -> None:
        # The plan was settled on what the table said then; another writer may have created it since.
        known = Alignment.recorded(snapshot.metadata)
        if known is not None and (self.alignment is None or self.alignment.timestamp_column != known.timestamp_column):
            message = f"The table is aligned by its column {known.timestamp_column!r}"
            hint = "read the table again; it knows how rows are aligned"
            raise SchemaMismatchError(message, path=snapshot.store.uri, hint=hint)

    def _check_partitioning(self, snapshot: Snapshot) -> None:
        wanted, actual = self.partition_columns, snapshot.metadata.partition_columns
        if wanted is None or wanted == actual:
            return
        if self.partition_by is None and self.partition_column in actual:
            return  # the other partition columns were not mentioned
        message = "Specified table partitioning does not match table partitioning: the table is partitioned by"
        message += f" {list(actual)}, not by {list(wanted)}"
        raise SchemaMismatchError(message, path=snapshot.store.uri, hint="a table's partitioning cannot be changed")


def is_merging(schema_mode: str | None) -> bool:
    """Tell whether new columns come into the table."""
    if schema_mode not in {None, "merge"}:
        raise OptionError(f"schema_mode={schema_mode!r} makes no sense", hint="say 'merge' or leave it out")
    return schema_mode == "merge"


def _spelled(name: str, known: Sequence[str]) -> str:
    """Return a column as it is written elsewhere: Delta and Spark do not tell names apart by case."""
    return name if name in known else next((each for each in known if each.lower() == name.lower()), name)


def _is_dynamic(mode: str) -> bool:
    if mode.lower() not in {"static", "dynamic"}:
        raise OptionError(f"partition_overwrite_mode={mode!r} makes no sense", hint="say 'static' or 'dynamic'")
    return mode.lower() == "dynamic"


def schema_of(metadata: Metadata) -> TableSchema:
    """Return the schema that the metadata describe."""
    return TableSchema.parse(
        metadata.schema_string, partition_columns=metadata.partition_columns, column_mapping=mapping_of(metadata)
    )


def _check_features(transaction: Transaction, schema: TableSchema) -> None:
    protocol = transaction.protocol
    features = () if protocol is None else protocol.writer_features or ()
    if has_timestamp_ntz(schema.to_arrow()) and "timestampNtz" not in features:
        message = "A new column has timestamps without a time zone, for which the table lacks the feature timestampNtz"
        raise SchemaMismatchError(message, path=transaction.store.uri, hint="give its timestamps a time zone")
