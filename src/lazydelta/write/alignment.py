"""``Alignment``: how a table says that its partitions are made from time, and whether rows agree with it.

A table that is aligned to time has a column of text that no row may choose for itself: a reader that prunes by it would
not find the row again. So whoever brings the column is checked against the time, and whoever does not gets it made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.errors import OptionError, WriteError
from lazydelta.log.actions import Metadata
from lazydelta.log.properties import TIMESTAMP_COLUMN
from lazydelta.types.schema import TableSchema
from lazydelta.write.layout import BOUNDARIES, Boundary, boundary_of

__all__ = ["Alignment", "UntoldAlignment", "find_column"]

_BOUNDARY = "lazydelta.boundary"
_PARTITION_COLUMN = "lazydelta.partitionColumn"


@dataclass(frozen=True, slots=True)
class Alignment:
    """``partition_column`` is the ``boundary`` of ``timestamp_column``, in every row."""

    timestamp_column: str
    boundary: Boundary
    partition_column: str

    @classmethod
    def of(cls, timestamp_column: str, boundary: str | None = None, partition_column: str | None = None) -> Self:
        """Return an alignment with what the caller left out: hours, and the name that goes with the boundary."""
        unit = boundary_of(boundary or "hour")
        return cls(timestamp_column, unit, partition_column or unit.column)

    @classmethod
    def recorded(cls, metadata: Metadata) -> Self | None:
        """Return what a table remembers, None if it remembers nothing, or what its columns no longer bear out."""
        made_from, column = metadata.property(TIMESTAMP_COLUMN), metadata.property(_PARTITION_COLUMN)
        if made_from is None or column is None or column not in metadata.partition_columns:
            return None
        return cls(made_from, boundary_of(metadata.property(_BOUNDARY) or "hour"), column)

    @property
    def properties(self) -> dict[str, str]:
        """Return the table properties that record it."""
        return {
            TIMESTAMP_COLUMN: self.timestamp_column,
            _BOUNDARY: self.boundary.name,
            _PARTITION_COLUMN: self.partition_column,
        }

    def position(self, schema: pa.Schema, what: str = "The data") -> int:
        """Return which column has the timestamps; ``what`` names in an error whose columns they are."""
        name = self.timestamp_column
        found = [index for index, each in enumerate(schema.names) if each.lower() == name.lower()]
        if len(found) != 1:
            message = f"{what} has no column {name!r} (or has it twice) to take timestamps from"
            raise OptionError(message, hint=f"its columns are: {', '.join(schema.names)}")
        return found[0]

    def added_to(self, schema: pa.Schema, what: str = "The data") -> pa.Schema:
        """Return a schema with the partition column; one that it has already must be text."""
        self.boundary.check(schema.field(self.position(schema, what)).type, self.timestamp_column)
        made = pa.field(self.partition_column, pa.string())
        own = find_column(schema, self.partition_column)
        if own is None:
            return schema.append(made)
        index = schema.names.index(own)
        kind = schema.field(index).type
        if not _is_text(kind):
            message = f"The column {self.partition_column!r}, which is made from {self.timestamp_column!r}, is text"
            raise OptionError(f"{message}, and here it is {kind}", hint="drop the column; it is made")
        return schema.set(index, made)

    def check(self, made: pa.Array, given: pa.Array) -> None:
        """Refuse rows that bring another value than the one made for them; nulls are fine, as they say nothing."""
        if given.null_count == len(given):
            return
        ours, theirs = made.cast(pa.string()), given.cast(pa.string())
        says = pc.greater(pc.fill_null(pc.binary_length(theirs), 0), 0)  # an empty value is a null to Delta
        other = pc.and_(says, pc.fill_null(pc.not_equal(ours, theirs), True))  # noqa: FBT003 - pyarrow's
        count = pc.sum(other).as_py() or 0
        if count:
            first = pc.index(other, True).as_py()
            message = (
                f"{count} rows have another value in {self.partition_column!r} than their {self.timestamp_column!r} "
                f"makes: the first has {theirs[first].as_py()!r} in place of {ours[first].as_py()!r}"
            )
            raise WriteError(message, hint="leave the column out, and it is made; nothing was committed")


@dataclass(frozen=True, slots=True)
class UntoldAlignment:
    """A partition column that has the name of a boundary's, in a table that does not say what it is made from."""

    partition_column: str
    moments: tuple[str, ...]

    @classmethod
    def of(cls, metadata: Metadata) -> Self | None:
        """Return it for a table that has such a column, and others that it may be made from."""
        names = {each.column for each in BOUNDARIES.values()}
        column = next((each for each in metadata.partition_columns if each.lower() in names), None)
        if column is None or Alignment.recorded(metadata) is not None:
            return None
        schema = TableSchema.parse(metadata.schema_string, partition_columns=metadata.partition_columns).to_arrow()
        moments = [each.name for each in schema if pa.types.is_timestamp(each.type) or pa.types.is_date(each.type)]
        return cls(column, tuple(moments)) if moments and _is_text(schema.field(column).type) else None

    def check(self, rows: pa.RecordBatch) -> None:
        """Refuse rows that have a time and would get the null partition all the same."""
        values = rows.column(self.partition_column)
        lengths = pc.fill_null(pc.binary_length(values), 0)
        if not len(values) or pc.min(lengths).as_py():
            return
        timed = rows.column(self.moments[0]).is_valid()
        for name in self.moments[1:]:
            timed = pc.or_(timed, rows.column(name).is_valid())
        count = pc.sum(pc.and_(timed, pc.equal(lengths, 0))).as_py()
        if count:
            message = (
                f"{count} rows have a time but no value in the partition column {self.partition_column!r}, and the "
                "table does not say which column that is made from"
            )
            hint = f"name it as the timestamp column ({', '.join(self.moments)}); nothing was committed"
            raise WriteError(message, hint=hint)


def find_column(schema: pa.Schema, name: str) -> str | None:
    """Return how a schema spells a column; Delta does not tell names apart by case."""
    return next((each for each in schema.names if each.lower() == name.lower()), None)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    # A column of nulls alone has no type of its own yet.
    return kind in {pa.string(), pa.large_string(), pa.string_view(), pa.null()}
