"""`WritePlan`: what a write does, validated before anything is written, for Arrow and Spark alike.

A plan is serializable, so that it can be sent to the processes that write the files. They need only the metadata of the
table. The commit of their files (`file_commit`) reads the table again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import (
    OptionError,
    PredicateError,
    SchemaMismatchError,
    TableExistsError,
    UnsupportedFeatureError,
    WriteError,
)
from lazydelta.predicates import Predicate, Where, parse_predicate, referenced_columns, to_arrow_expression
from lazydelta.predicates.tree import IsNull, leaves
from lazydelta.protocol.actions import Add, Metadata
from lazydelta.protocol.arrow_types import has_timestamp_ntz
from lazydelta.protocol.delta_types import Schema
from lazydelta.protocol.properties import Key
from lazydelta.protocol.schema import Field, Primitive, TableSchema
from lazydelta.runtime import compute as pc
from lazydelta.sidecar.handle import Snapshot
from lazydelta.write.alignment import NULL_TIMESTAMPS, Alignment, Boundary, boundary_of, find_column
from lazydelta.write.column_mapping import mapped_metadata, mapping_of
from lazydelta.write.commit import CommitNote
from lazydelta.write.computed_columns import ComputedColumns, generated_columns
from lazydelta.write.create import is_version_property, new_metadata, stage_creation, with_features, with_versions
from lazydelta.write.evolution import Conformer, grown_schema
from lazydelta.write.row_changes.rewriter import stage_replacement
from lazydelta.write.transaction import Transaction

__all__ = ["Creation", "MaxRejected", "RowConstraints", "WritePlan", "is_merging", "partitions_of", "schema_of"]


# CHECK constraints and string lengths of a table: every written row must satisfy them.
#
# As in Delta-Spark a constraint must be true; null violates it. A constraint that our row filter may evaluate
# differently from Spark is refused by name before anything is written.


_CHARACTERS = re.compile(r"(?:var)?char\(\s*(\d+)\s*\)", re.IGNORECASE)
# Functions whose result depends on time, place or user.
_UNSTABLE = re.compile(
    r"\b(now|current_\w+|localtimestamp|unix_timestamp|rand\w*|uuid|session_user|user)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class _Constraint:
    name: str
    text: str
    expression: pc.Expression

    def check(self, rows: pa.RecordBatch) -> None:
        kept = rows.filter(self.expression).num_rows
        if kept == rows.num_rows:
            return
        message = f"{rows.num_rows - kept} rows break the table's CHECK constraint {self.name!r}: {self.text}"
        shown = rows.filter(pc.invert(pc.fill_null(_mask(rows, self.expression), False))).slice(0, 1).to_pylist()  # noqa: FBT003
        hint = f"nothing was committed; omit such rows, as for example {_brief(shown[0])}"
        raise WriteError(message, hint=hint)


class RowConstraints:
    """The constraints in the metadata, ready to be checked. Raises for constraints that cannot be checked."""

    def __init__(self, metadata: Metadata, table: TableSchema) -> None:
        self._constraints = [
            _constraint(key[len(Key.CONSTRAINT) :], text or "", table)
            for key, text in (metadata.configuration or {}).items()
            if key.lower().startswith(Key.CONSTRAINT)
        ]
        if Key.INVARIANTS in metadata.schema_string:
            invariants = Schema.from_json(metadata.schema_string).invariants
            self._constraints += [_constraint(f"of column {name}", text, table) for name, text in invariants]
        self._lengths = dict(filter(None, (_length(each) for each in table.fields)))

    def check(self, rows: pa.RecordBatch) -> None:
        """Raise if a row violates a constraint. The rows have the table's column names."""
        if not (self._constraints or self._lengths) or not rows.num_rows:
            return
        plain = _decoded(rows)
        for name, (length, kind) in self._lengths.items():
            longest = pc.max(pc.utf8_length(plain.column(name))).as_py() if name in plain.schema.names else None
            if longest is not None and longest > length:
                message = f"The column {name!r} is {kind}, and a row has a string of {longest} characters"
                raise WriteError(message, hint="nothing was committed; shorten these strings, or omit the rows")
        for each in self._constraints:
            each.check(plain)


def _length(field: Field) -> tuple[str, tuple[int, str]] | None:
    """Return the maximum length of a string column: Spark annotates strings as ``char(n)`` and ``varchar(n)``."""
    if not field.metadata:
        return None
    kind = field.metadata.get("__CHAR_VARCHAR_TYPE_STRING")
    if not isinstance(kind, str):
        return None
    found = _CHARACTERS.fullmatch(kind.strip())
    if found is None or field.type != Primitive("string"):
        message = f"The column {field.name!r} is {kind}, whose lengths lazydelta does not check"
        raise UnsupportedFeatureError(message, features=("char/varchar",), hint="write the table with Delta-Spark")
    return field.name, (int(found[1]), kind)


def _constraint(name: str, text: str, table: TableSchema) -> _Constraint:
    try:
        # Spark casts the column to a number, so that '01' equals 1.
        predicate = parse_predicate(text, table, numbers_as_text=False)
        expression = None if predicate is None else to_arrow_expression(predicate, table)
        why = "it is empty" if predicate is None else _ambiguous(predicate, text)
    except PredicateError as error:
        expression, why = None, str(error)
    if expression is None or why is not None:
        message = f"The table has the CHECK constraint {name!r} ({text}), which lazydelta cannot check: {why}"
        hint = f"write it with Delta-Spark, or drop it: ALTER TABLE … DROP CONSTRAINT {name}"
        raise UnsupportedFeatureError(message, features=("checkConstraints",), hint=hint)
    return _Constraint(name, text, expression)


def _ambiguous(predicate: Predicate, text: str) -> str | None:
    """Return why Spark may evaluate a constraint differently, or None."""
    if _UNSTABLE.search(text):
        return "its answer depends on when, where and by whom it is asked"
    for leaf in leaves(predicate):
        compared = () if isinstance(leaf, IsNull) else referenced_columns(leaf)
        if any(column.type == Primitive("timestamp") for column in compared):
            return "it compares timestamps, which Spark reads in the time zone of its session"
    return None


def _mask(rows: pa.RecordBatch, expression: pc.Expression) -> pa.Array:
    """Return the value of the constraint for each row."""
    import pyarrow.dataset as ds  # noqa: PLC0415 - only needed for an error message

    table = ds.dataset(pa.Table.from_batches([rows])).to_table(columns={"holds": expression})
    return table["holds"].combine_chunks()


def _decoded(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without dictionary encoding, which the derived partition column has."""
    columns = [each.dictionary_decode() if pa.types.is_dictionary(each.type) else each for each in rows.columns]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _brief(row: object) -> str:
    text = repr(row)
    return text if len(text) <= 200 else f"{text[:197]}..."  # noqa: PLR2004 - about two lines


@dataclass(frozen=True, slots=True)
class Creation:
    """Settings that apply only to a new table."""

    properties: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    description: str | None = None

    def check(self, snapshot: Snapshot) -> None:
        """Raise for properties that differ from the existing table's, because they would be silently ignored."""
        for key, value in self.properties.items():
            if is_version_property(key) and with_versions(snapshot.protocol, {key: value}) == snapshot.protocol:
                continue
            if snapshot.metadata.property(key) != value:
                message = (
                    f"The table exists, and its property {key} is {snapshot.metadata.property(key)!r}, not {value!r}"
                )
                raise OptionError(message, hint="omit them; properties apply only to new tables")


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """The requested write, validated as far as possible without a table.

    ``replaces_partitions`` makes an overwrite remove only the partitions that the rows belong to. ``creates_only``
    refuses an existing table. ``replaces_schema`` makes an overwrite of the whole table replace its columns and
    partitioning too. ``shown_mode`` is the mode recorded in the log. ``casts`` is as in `Conformer`. With a
    ``timestamp_column``, ``boundary`` and ``partition_column`` are None only if the caller left them to the table.
    """

    mode: str = "append"
    partition_by: tuple[str, ...] | None = None
    timestamp_column: str | None = None
    boundary: Boundary | None = None
    partition_column: str | None = None
    partition_generated: bool = False
    overwrite_where: Where = None
    merges: bool = False
    null_timestamps: str = "null-partition"
    creation: Creation = field(default_factory=Creation)
    note: CommitNote = field(default_factory=CommitNote)
    replaces_schema: bool = False
    shown_mode: str | None = None
    replaces_partitions: bool = False
    creates_only: bool = False
    casts: bool = False

    @classmethod
    def of(  # noqa: PLR0913 - keyword-only options
        cls,
        *,
        mode: str = "append",
        partition_by: Sequence[str] | None = None,
        timestamp_column: str | None = None,
        boundary: str | None = None,
        partition_column: str | None = None,
        partition_format: str | None = None,
        partition_generated: bool = False,
        overwrite_where: Where = None,
        schema_mode: str | None = None,
        null_timestamps: str = "null-partition",
        creation: Creation | None = None,
        replaces_schema: bool = False,
        partition_overwrite_mode: str = "static",
        user_metadata: str | None = None,
        creates_only: bool = False,
    ) -> WritePlan:
        """Validate the options given by a caller."""
        replaces_partitions = _is_dynamic(partition_overwrite_mode)
        if mode not in {"append", "overwrite"}:
            raise OptionError(f"mode={mode!r} is not valid", hint="use 'append' or 'overwrite'")
        merges = is_merging(schema_mode)
        if overwrite_where is not None and mode != "overwrite":
            raise OptionError(
                "overwrite_where needs mode='overwrite'", hint="pass mode='overwrite', or omit the predicate"
            )
        given = {"overwrite_schema": replaces_schema, "partition_overwrite_mode='dynamic'": replaces_partitions}
        for name in (name for name, is_given in given.items() if is_given):
            if mode != "overwrite" or overwrite_where is not None:
                hint = f"pass mode='overwrite' without a predicate, or omit {name}"
                raise OptionError(f"{name} needs mode='overwrite' of the whole table", hint=hint)
        if replaces_schema and replaces_partitions:
            message = "overwrite_schema replaces all rows, and a dynamic partition overwrite only some"
            raise OptionError(message, hint="pass only one of them")
        if isinstance(partition_by, str):
            partition_by = [partition_by]
        if null_timestamps not in NULL_TIMESTAMPS:
            message = f"null_timestamps={null_timestamps!r} is not valid"
            raise OptionError(message, hint=f"use one of {NULL_TIMESTAMPS}")
        return cls(
            mode=mode,
            partition_by=None if partition_by is None else tuple(partition_by),
            timestamp_column=timestamp_column,
            boundary=boundary_of(boundary or "hour", partition_format) if boundary or partition_format else None,
            partition_column=partition_column,
            partition_generated=partition_generated,
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
        """Return the plan completed with the table's settings. ``source`` is the schema of the incoming data."""
        if self.partition_by is not None:
            named = [] if snapshot is None else list(snapshot.metadata.partition_columns)
            spelled = tuple(_spelled(each, [*named, *source.names]) for each in self.partition_by)
            if spelled != self.partition_by:
                return replace(self, partition_by=spelled).settled(snapshot, source)
        known = None if snapshot is None else Alignment.recorded(snapshot.metadata)
        if known is None:
            return self._without_record(snapshot)
        given = self.timestamp_column
        if given is not None and given.lower() != known.timestamp_column.lower():
            message = f"The table is aligned by its column {known.timestamp_column!r}, not by {given!r}"
            raise SchemaMismatchError(message, hint="omit timestamp_column; the table has its own")
        if find_column(source, known.timestamp_column) is None:
            message = f"The table computes its partition column {known.partition_column!r} from"
            hint = "add that column: without it the partition of a row is unknown"
            raise SchemaMismatchError(f"{message} {known.timestamp_column!r}, which the data lacks", hint=hint)
        boundary = self.boundary or known.boundary
        if boundary.name == known.boundary.name and not boundary.format:
            boundary = known.boundary  # in the format that the table has
        if boundary != known.boundary and self.partition_column == known.partition_column:
            message = f"The table's column {known.partition_column!r} has the boundary {known.boundary.name}"
            hint = "omit boundary; the table has its own"
            raise SchemaMismatchError(f"{message}, not {boundary.name}", hint=hint)
        if boundary.name == known.boundary.name and boundary != known.boundary:
            message = f"The table writes its partition values as {known.boundary.pattern}, not as {boundary.pattern}"
            raise SchemaMismatchError(message, hint="omit partition_format; the table has its own")
        column = known.partition_column if boundary == known.boundary else boundary.column
        if self.partition_generated and not known.is_generated:
            raise _not_generated(known.partition_column)
        return replace(
            self,
            partition_generated=known.is_generated,
            timestamp_column=known.timestamp_column,
            boundary=boundary,
            partition_column=self.partition_column or column,
        )

    def _without_record(self, snapshot: Snapshot | None) -> WritePlan:
        """Return the plan for a table that is new, or that does not record its alignment."""
        if self.timestamp_column is not None:
            boundary = self.boundary or boundary_of("hour")
            column = self.partition_column or boundary.column
            is_generated = self.partition_generated
            if snapshot is not None:
                is_generated = column in generated_columns(snapshot.schema)
                if self.partition_generated and not is_generated:
                    raise _not_generated(column)
            boundary = boundary.derivable if self.partition_generated else boundary
            return replace(self, boundary=boundary, partition_column=column, partition_generated=is_generated)
        is_format = self.boundary is not None and self.boundary.format
        name = "boundary" if self.boundary is not None else "partition_column"
        if getattr(self, name) is not None or self.partition_generated:
            told = "partition_format" if is_format else name
            told = told if getattr(self, name) is not None else "partition_generated"
            message = f"{told} defines a time boundary, but there is no timestamp column"
            raise OptionError(message, hint="pass it as timestamp_column, or omit the other")
        return self

    @property
    def alignment(self) -> Alignment | None:
        """Return the time alignment of the rows, or None if there is none or the table determines it later."""
        if self.timestamp_column is None or self.boundary is None or self.partition_column is None:
            return None
        return Alignment(self.timestamp_column, self.boundary, self.partition_column, self.partition_generated)

    @property
    def made_columns(self) -> dict[str, str]:
        """Return the generated column that the alignment makes, with its expression."""
        aligned = self.alignment
        if aligned is None or not aligned.is_generated:
            return {}
        return {aligned.partition_column: aligned.boundary.expression(aligned.timestamp_column)}

    @property
    def partition_columns(self) -> tuple[str, ...] | None:
        """Return the requested partition columns, or None if none were given."""
        if self.timestamp_column is None or self.partition_column is None:
            return self.partition_by
        named = self.partition_by or ()
        return named if self.partition_column in named else (self.partition_column, *named)

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the operation parameters for the log."""
        mode = self.shown_mode or self.mode.capitalize()
        found: dict[str, Any] = {"mode": mode, "partitionBy": list(self.partition_columns or ())}
        if self.overwrite_where is not None:
            found["predicate"] = str(self.overwrite_where)
        return found

    def incoming(self, source: pa.Schema) -> pa.Schema:
        """Return the schema of the data with the column derived from its timestamps."""
        return source if self.alignment is None else self.alignment.added_to(source)

    def stage(self, transaction: Transaction, incoming: pa.Schema, *, inserts: bool = True) -> Metadata:
        """Stage everything except the added files, and return the metadata that files are written for.

        ``inserts`` says that all rows are new.
        """
        snapshot, transaction.note = transaction.snapshot, self.note
        if snapshot is None:
            metadata = self._new_metadata(incoming)
            stage_creation(transaction, metadata, self.creation.properties)
            return metadata
        if self.creates_only:
            message = f"A table already exists at {snapshot.store.uri}"
            hint = "pass mode='append', 'overwrite' or 'ignore', or write to another place"
            raise TableExistsError(message, path=snapshot.store.uri, version=snapshot.version, hint=hint)
        self.creation.check(snapshot)
        self.note.check_seen(snapshot.transaction_version, transaction.store.uri)
        self._check_alignment(snapshot)
        if self.replaces_schema:
            return self._overwritten_metadata(transaction, snapshot, incoming)
        self._check_partitioning(snapshot)
        metadata = snapshot.metadata
        if self.merges:
            grown = grown_schema(metadata.schema_string, incoming)
            if grown is not None:
                metadata = mapped_metadata(msgspec.structs.replace(metadata, schema_string=grown), snapshot)
                _add_features(transaction, schema_of(metadata))
                transaction.set_metadata(metadata)
        table = schema_of(metadata)
        RowConstraints(metadata, table)
        computed = ComputedColumns(table, self.made_columns)
        if inserts:
            computed.check_inserted(incoming.names)
        # Raises if the data does not fit, before the first request.
        Conformer(computed.given(table.to_arrow(), incoming.names), incoming, casts=self.casts)
        if self.mode == "overwrite" and not self.replaces_partitions:
            if self.overwrite_where is None:
                transaction.remove_all()
            else:
                stage_replacement(transaction, self.overwrite_where)
        return metadata

    def _overwritten_metadata(self, transaction: Transaction, snapshot: Snapshot, incoming: pa.Schema) -> Metadata:
        """Replace the columns, partitioning and all rows of the table with those of the data."""
        metadata = snapshot.metadata
        kept = metadata.partition_columns if self.partition_columns is None else self.partition_columns
        described = new_metadata(incoming, partition_by=kept, is_mapped=mapping_of(metadata) != "none")
        changed = msgspec.structs.replace(
            metadata, schema_string=described.schema_string, partition_columns=described.partition_columns
        )
        changed = mapped_metadata(changed, snapshot)
        if changed != metadata:
            _add_features(transaction, schema_of(changed))
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
        # The plan was completed with an earlier state of the table. Another writer may have created it since.
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
            return  # the other partition columns were not given
        message = "Generic error: Specified table partitioning does not match table partitioning: "
        message += f"expected: {json.dumps(actual)}, got: {json.dumps(wanted)}"
        raise SchemaMismatchError(
            message, path=snapshot.store.uri, hint="the partitioning of a table cannot be changed"
        )


def _not_generated(column: str) -> SchemaMismatchError:
    message = f"The table exists, and its column {column!r} is not a generated column; only a new table can define it"
    return SchemaMismatchError(message, hint="omit partition_generated")


def is_merging(schema_mode: str | None) -> bool:
    """Return whether new columns are added to the table."""
    if schema_mode not in {None, "merge"}:
        raise OptionError(f"schema_mode={schema_mode!r} is not valid", hint="use 'merge' or omit it")
    return schema_mode == "merge"


def _spelled(name: str, known: Sequence[str]) -> str:
    """Return a column name as ``known`` spells it. Delta and Spark column names are case-insensitive."""
    return name if name in known else next((each for each in known if each.lower() == name.lower()), name)


def _is_dynamic(mode: str) -> bool:
    if mode.lower() not in {"static", "dynamic"}:
        raise OptionError(f"partition_overwrite_mode={mode!r} is not valid", hint="use 'static' or 'dynamic'")
    return mode.lower() == "dynamic"


def schema_of(metadata: Metadata) -> TableSchema:
    """Return the schema described by the metadata."""
    return TableSchema.parse(
        metadata.schema_string, partition_columns=metadata.partition_columns, column_mapping=mapping_of(metadata)
    )


def _add_features(transaction: Transaction, schema: TableSchema) -> None:
    """Add the features that new columns need to the protocol."""
    protocol = transaction.protocol
    if protocol is None or not has_timestamp_ntz(schema.to_arrow()):
        return
    grown = with_features(protocol, ["timestampNtz"])
    if grown != protocol:
        transaction.set_protocol(grown)


# The partitions of written files, as a predicate that selects exactly these partitions.


def partitions_of(adds: Sequence[Add], table: TableSchema) -> Where:
    """Return a predicate for the partitions of files. One column gives one IN list, which is fast for thousands."""
    names = dict(zip(table.physical_partition_columns, table.partition_columns, strict=True))
    found = {tuple(each.partition_values.get(physical) or None for physical in names) for each in adds}
    columns = tuple(names.values())
    if len(columns) > 1:
        return [[_is(*each) for each in zip(columns, values, strict=True)] for values in sorted(found, key=repr)]
    values = sorted(value for (value,) in found if value is not None)
    alternatives: list[list[tuple[object, ...]]] = [[(columns[0], "in", values)]] if values else []
    if (None,) in found:
        alternatives.append([_is(columns[0], None)])
    return alternatives


def _is(name: str, value: str | None) -> tuple[object, ...]:
    return (name, "is null") if value is None else (name, "=", value)


# ``MaxRejected``: the number of rows that may be rejected before a write fails.


@dataclass(frozen=True, slots=True)
class MaxRejected:
    """Limit of rejected rows: a number, a share of all rows, or no limit.

    A file whose rows are all rejected is always an error, unless the share is 100%.
    """

    count: int | None = None
    share: float | None = None

    @classmethod
    def of(cls, given: float | str | MaxRejected | None) -> MaxRejected:
        """Parse a number of rows (an integer) or a share (0.01, "1%")."""
        if given is None or isinstance(given, MaxRejected):
            return given or cls()
        text = str(given).strip()
        if text.isdecimal() and not isinstance(given, bool):
            return cls(count=int(text))
        number, percent = text.removesuffix("%"), text.endswith("%")
        try:
            share = float(number) / (100 if percent else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            hint = "pass a number of rows, such as 100, or a share of them, such as 0.01 or 1%"
            raise OptionError(f"max_rejected={given!r} is not valid", hint=hint)
        return cls(share=share)

    def __str__(self) -> str:
        """Return the limit in the form in which it is given."""
        return str(self.count) if self.share is None else f"{self.share:.8%}".rstrip("0%").rstrip(".") + "%"

    def refuse_file(self, place: str, rows: int, rejected: int, reasons: Iterable[str]) -> None:
        """Raise if all rows of a file were rejected."""
        if rejected and not rows and self.share != 1:
            message = f"{rejected} of {rejected} rows of {place} were rejected, and none is left"
            hint = (
                "nothing was committed; check that it is the right file and format, with commas and a header if it is "
                "CSV (header=false reads one without), or remove it; max_rejected=100% lets it pass"
            )
            raise WriteError(f"{message}: {'; '.join(reasons)}", path=place, hint=hint)

    def refuse_rows(self, rows: int, rejected: int, origin: str, reasons: Iterable[str] = ()) -> None:
        """Raise if more rows were rejected than allowed. ``origin`` names the source in the message."""
        most = rejected if self.count is None else self.count
        if self.share is not None:
            most = int(self.share * (rows + rejected) + 1e-9)
        if rejected > most:
            message = f"{rejected} of {rows + rejected} rows of {origin} were rejected, and max_rejected is {self}"
            hint = "nothing was committed; correct them, or raise max_rejected"
            raise WriteError(": ".join([message, *filter(None, ["; ".join(reasons)])]), hint=hint)
