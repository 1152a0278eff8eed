"""Alignment of a table's partitions to time, and validation of rows against it.

In an aligned table the partition column is derived from the timestamp column. A row with any other value would be lost
to readers that prune by that column. Values supplied with the rows are therefore checked; missing ones are computed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.errors import OptionError, WriteError
from lazydelta.protocol.actions import Metadata
from lazydelta.protocol.properties import TIMESTAMP_COLUMN
from lazydelta.protocol.schema import TableSchema
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import bitmap, flags, typed_array
from lazydelta.write.computed_columns import GENERATED, generated_columns

__all__ = [
    "BOUNDARIES",
    "NULL_TIMESTAMPS",
    "Alignment",
    "Boundary",
    "UntoldAlignment",
    "boundary_of",
    "find_column",
    "in_range",
]


# Time boundaries: the partition that a timestamp belongs to.
#
# Always in UTC, so that no hour is skipped or repeated when clocks change. Values are strings that sort in time order,
# so readers can prune by string comparison.


NULL_TIMESTAMPS = ("null-partition", "reject")
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# Years with four digits: a fifth digit would break the sort order of the strings.
_FIRST_TIMESTAMP = np.datetime64("0000-01-01T00:00:00", "s")
_LAST_TIMESTAMP = np.datetime64("9999-12-31T23:59:59", "s")


@dataclass(frozen=True, slots=True)
class Boundary:
    """A unit of time that data files do not cross. ``unit`` is the NumPy code of the unit.

    ``format`` is how its values are written where they are not digits alone; ``pattern`` says the same as Java does.
    """

    name: str
    unit: str
    pattern: str
    format: str = ""

    @property
    def column(self) -> str:
        """Return the default name of the partition column."""
        return f"_event_{self.name}"

    @property
    def derivable(self) -> Boundary:
        """Return the boundary in the format from which Delta-Spark derives filters of a generated column."""
        known = _DERIVABLE.get(self.name)
        return self if self.format or known is None else _formatted(self, known)

    def expression(self, column: str) -> str:
        """Return the values as an expression of Spark SQL, for a generated column."""
        if "'" in self.pattern:
            message = f"partition_format={self.format!r} has letters, which a generated column does not have"
            raise OptionError(message, hint="write digits with signs between them: %Y-%m-%d-%H")
        return f"date_format(`{column.replace('`', '``')}`, '{self.pattern}')"

    def check(self, kind: pa.DataType, column: str) -> None:
        """Raise `OptionError` unless the column is a timestamp or a date."""
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            message = f"Column {column!r} has type {kind}, which is not a timestamp"
            raise OptionError(
                message, hint="choose a timestamp or date column, or cast this one: `pc.strptime`, `pc.cast`"
            )

    def values(self, timestamps: pa.Array, *, nulls: str = "null-partition", column: str = "timestamp") -> pa.Array:
        """Return the partition value of each timestamp as a dictionary-encoded string array.

        Timestamps without a time zone are read as UTC. Null timestamps map to null, or raise with ``nulls="reject"``.
        """
        if nulls not in NULL_TIMESTAMPS:
            raise OptionError(f"null_timestamps={nulls!r} is not valid", hint=f"use one of {NULL_TIMESTAMPS}")
        missing = timestamps.null_count
        if missing and nulls == "reject":
            message = f"{missing} rows have no value in the timestamp column {column!r}"
            raise WriteError(message, hint="drop them, or pass null_timestamps='null-partition'")
        self.check(timestamps.type, column)
        seconds = _seconds(timestamps)
        valid = None
        if missing:
            valid = flags(timestamps.is_valid())
            seconds = np.where(valid, seconds, np.int64(0))
        instants = seconds.view("datetime64[s]")
        if not _in_range(instants).all():
            message = f"The timestamp column {column!r} has timestamps outside the years 0 to 9999"
            raise WriteError(message, hint="correct or drop these rows; they have no partition value")
        # NumPy rounds down to coarser units, also before 1970.
        found, codes = _distinct(instants.astype(f"datetime64[{self.unit}]").view(np.int64))
        texts = self._written(found.view(f"datetime64[{self.unit}]"))
        indices = pa.Array.from_buffers(
            pa.int32(),
            len(codes),
            [None if valid is None else bitmap(valid.tolist()), pa.py_buffer(codes.astype(np.int32))],
        )
        return pa.DictionaryArray.from_arrays(indices, typed_array(texts, pa.string()))

    def _written(self, found: npt.NDArray[np.datetime64]) -> list[str]:
        texts = np.datetime_as_string(found).tolist()
        if not self.format:
            return [text.translate(_ONLY_DIGITS) for text in texts]
        pieces = _DIRECTIVE.split(_spelled_out(self.format))
        days = (found.astype("datetime64[D]") - found.astype("datetime64[Y]").astype("datetime64[D]")).astype(int)
        written = []
        for text, day in zip(texts, days.tolist(), strict=True):
            values = dict(zip("YmdHMS", re.findall(r"\d+", text + _BEGINNING[len(text) :]), strict=True))
            values |= {"j": f"{day + 1:03d}", "%": "%"}
            written.append("".join(values[each] if place % 2 else each for place, each in enumerate(pieces)))
        return written


# Formats of partition values. A value sorts as time if it has years first, then each smaller unit in turn, all of them
# in as many digits as they can have.


_DIRECTIVE = re.compile("%(.)", re.DOTALL)
_SHORTHANDS = {"%F": "%Y-%m-%d", "%T": "%H:%M:%S", "%R": "%H:%M"}
_BEGINNING = "0000-01-01T00:00:00"
_JAVA = {"Y": "yyyy", "m": "MM", "d": "dd", "j": "DDD", "H": "HH", "M": "mm", "S": "ss", "%": "%"}
_SMALLER = {"": "Y", "Y": "mj", "m": "d", "d": "H", "j": "H", "H": "M", "M": "S", "S": ""}
# The only formats whose filters Delta-Spark derives from those of the timestamp column.
_DERIVABLE = {"month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}
_SMALLEST = {"month": "m", "day": "dj", "hour": "H", "minute": "M", "second": "S"}


def _spelled_out(text: str) -> str:
    return re.sub("%[FTR]", lambda match: _SHORTHANDS[match[0]], text)


def _formatted(boundary: Boundary, text: str) -> Boundary:
    """Return a boundary whose values have a format; raise if these would not sort as time or not tell it."""
    last, java = "", []
    for place, piece in enumerate(_DIRECTIVE.split(_spelled_out(text))):
        if place % 2 == 0:
            java.append(re.sub("[A-Za-z']+", lambda match: "'" + match[0].replace("'", "''") + "'", piece))
            reason = "a single % at its end" if piece.endswith("%") else ""
        else:
            java.append(_JAVA.get(piece, ""))
            reason = (
                "" if piece == "%" or (piece and piece in _SMALLER[last]) else f"%{piece} after %{last or ' nothing'}"
            )
            last = last if piece == "%" else piece
        if reason:
            message = f"partition_format={text!r} does not produce values that sort as time: it has {reason}"
            raise OptionError(
                message, hint="write %Y, then %m and %d or %j, then %H, %M and %S, or %F and %T, in order"
            )
    names = list(_SMALLEST)
    if not last or last not in "".join(_SMALLEST[each] for each in names[names.index(boundary.name) :]):
        message = f"partition_format={text!r} does not distinguish one {boundary.name} from the next"
        raise OptionError(message, hint=f"let it go on to %{_SMALLEST[boundary.name][0]}")
    return replace(boundary, format=text, pattern="".join(java))


BOUNDARIES = {
    each.name: each
    for each in (
        Boundary("month", "M", "yyyyMM"),
        Boundary("day", "D", "yyyyMMdd"),
        Boundary("hour", "h", "yyyyMMddHH"),
        Boundary("minute", "m", "yyyyMMddHHmm"),
        Boundary("second", "s", "yyyyMMddHHmmss"),
    )
}


def boundary_of(name: str, partition_format: str | None = None) -> Boundary:
    """Return the boundary with this name, its values in digits or in a format of ``strftime``."""
    found = BOUNDARIES.get(name)
    if found is None:
        raise OptionError(f"boundary={name!r} is not valid", hint=f"use one of {', '.join(BOUNDARIES)}")
    return _formatted(found, partition_format) if partition_format else found


def in_range(timestamps: pa.Array) -> pa.Array:
    """Return a mask of the timestamps that have a partition value. The result for nulls is arbitrary."""
    return pa.array(_in_range(_seconds(timestamps).view("datetime64[s]")))


def _distinct(numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the sorted distinct numbers, and the index of each number among them."""
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    if high - low >= max(len(numbers), 1024):  # few rows that are far apart
        found, codes = np.unique(numbers, return_inverse=True)
        return found, codes.astype(np.int64)
    # Timestamps that are close together are grouped by counting, which is much faster than sorting.
    shifted = numbers - low
    is_there = np.bincount(shifted, minlength=1) > 0 if len(numbers) else np.zeros(1, bool)
    return np.flatnonzero(is_there) + low, (np.cumsum(is_there) - 1)[shifted]


def _in_range(instants: npt.NDArray[np.datetime64]) -> npt.NDArray[np.bool_]:
    return (instants >= _FIRST_TIMESTAMP) & (instants <= _LAST_TIMESTAMP)


def _seconds(timestamps: pa.Array) -> npt.NDArray[np.int64]:
    """Return whole seconds since 1970, rounded down. The values for nulls are arbitrary."""
    kind = timestamps.type
    if pa.types.is_dictionary(kind):
        return _seconds(timestamps.dictionary_decode())
    if pa.types.is_date(kind):
        days = _stored(timestamps.cast(pa.date32()), np.int32).astype(np.int64)
        return days * np.int64(86_400)
    return np.floor_divide(_stored(timestamps, np.int64), np.int64(_PER_SECOND[kind.unit]))


def _stored(values: pa.Array, kind: type[np.int32 | np.int64]) -> npt.NDArray[np.int64]:
    width = np.dtype(kind).itemsize
    if len(values) == 0:
        return np.empty(0, kind)
    return np.frombuffer(values.buffers()[1], kind, len(values), values.offset * width)


_ONLY_DIGITS = str.maketrans("", "", "-:T")


_BOUNDARY = "lazydelta.boundary"
_PARTITION_COLUMN = "lazydelta.partitionColumn"
_PARTITION_FORMAT = "lazydelta.partitionFormat"


@dataclass(frozen=True, slots=True)
class Alignment:
    """The rule that ``partition_column`` is the ``boundary`` of ``timestamp_column`` in every row.

    With ``is_generated`` the schema says so to every writer: the column is a generated column of Delta.
    """

    timestamp_column: str
    boundary: Boundary
    partition_column: str
    is_generated: bool = False

    @classmethod
    def of(
        cls,
        timestamp_column: str,
        boundary: str | None = None,
        partition_column: str | None = None,
        partition_format: str | None = None,
        *,
        is_generated: bool = False,
    ) -> Self:
        """Return an alignment with defaults filled in: hourly, in digits, and the column name of the boundary."""
        unit = boundary_of(boundary or "hour", partition_format)
        unit = unit.derivable if is_generated else unit
        return cls(timestamp_column, unit, partition_column or unit.column, is_generated)

    @classmethod
    def recorded(cls, metadata: Metadata) -> Self | None:
        """Return the alignment recorded in the table properties, or None if it is missing or no longer applies."""
        made_from, column = metadata.property(TIMESTAMP_COLUMN), metadata.property(_PARTITION_COLUMN)
        if made_from is None or column is None or column not in metadata.partition_columns:
            return None
        boundary = boundary_of(metadata.property(_BOUNDARY) or "hour", metadata.property(_PARTITION_FORMAT))
        is_generated = GENERATED in metadata.schema_string and column in generated_columns(
            TableSchema.parse(metadata.schema_string)
        )
        return cls(made_from, boundary, column, is_generated)

    @property
    def properties(self) -> dict[str, str]:
        """Return the table properties that record the alignment."""
        return {
            TIMESTAMP_COLUMN: self.timestamp_column,
            _BOUNDARY: self.boundary.name,
            _PARTITION_COLUMN: self.partition_column,
            **({_PARTITION_FORMAT: self.boundary.format} if self.boundary.format else {}),
        }

    def position(self, schema: pa.Schema, what: str = "The data") -> int:
        """Return the index of the timestamp column. ``what`` names the owner of the schema in error messages."""
        name = self.timestamp_column
        found = [index for index, each in enumerate(schema.names) if each.lower() == name.lower()]
        if len(found) != 1:
            message = f"{what} has no column {name!r} (or has it twice) with timestamps"
            raise OptionError(message, hint=f"its columns are: {', '.join(schema.names)}")
        return found[0]

    def added_to(self, schema: pa.Schema, what: str = "The data") -> pa.Schema:
        """Return the schema with the partition column added. An existing column must be a string."""
        self.boundary.check(schema.field(self.position(schema, what)).type, self.timestamp_column)
        made = pa.field(self.partition_column, pa.string())
        if self.is_generated:
            made = made.with_metadata({GENERATED: self.boundary.expression(self.timestamp_column)})
        own = find_column(schema, self.partition_column)
        if own is None:
            return schema.append(made)
        index = schema.names.index(own)
        kind = schema.field(index).type
        if not _is_text(kind):
            message = f"The column {self.partition_column!r}, which is made from {self.timestamp_column!r}, is text"
            raise OptionError(f"{message}, but here it is {kind}", hint="drop the column; lazydelta computes it")
        return schema.set(index, made)

    def check(self, made: pa.Array, given: pa.Array) -> None:
        """Raise `WriteError` if rows carry a partition value other than the computed one. Nulls are accepted."""
        if given.null_count == len(given):
            return
        ours, theirs = made.cast(pa.string()), given.cast(pa.string())
        says = pc.greater(pc.fill_null(pc.binary_length(theirs), 0), 0)  # Delta treats an empty value as null
        other = pc.and_(says, pc.fill_null(pc.not_equal(ours, theirs), True))  # noqa: FBT003 - pyarrow signature
        count = pc.sum(other).as_py() or 0
        if count:
            first = pc.index(other, True).as_py()
            message = (
                f"{count} rows have another value in {self.partition_column!r} than their {self.timestamp_column!r} "
                f"makes: the first has {theirs[first].as_py()!r} in place of {ours[first].as_py()!r}"
            )
            raise WriteError(message, hint="nothing was committed; omit the column, and lazydelta computes it")


@dataclass(frozen=True, slots=True)
class UntoldAlignment:
    """A partition column named like a boundary, in a table that does not record which column it is derived from."""

    partition_column: str
    instants: tuple[str, ...]

    @classmethod
    def of(cls, metadata: Metadata) -> Self | None:
        """Return the alignment of a table with such a column and at least one candidate timestamp column."""
        names = {each.column for each in BOUNDARIES.values()}
        column = next((each for each in metadata.partition_columns if each.lower() in names), None)
        if column is None or Alignment.recorded(metadata) is not None:
            return None
        schema = TableSchema.parse(metadata.schema_string, partition_columns=metadata.partition_columns).to_arrow()
        instants = [each.name for each in schema if pa.types.is_timestamp(each.type) or pa.types.is_date(each.type)]
        return cls(column, tuple(instants)) if instants and _is_text(schema.field(column).type) else None

    def check(self, rows: pa.RecordBatch) -> None:
        """Raise `WriteError` if rows with a timestamp would land in the null partition."""
        values = rows.column(self.partition_column)
        lengths = pc.fill_null(pc.binary_length(values), 0)
        if not len(values) or pc.min(lengths).as_py():
            return
        timed = rows.column(self.instants[0]).is_valid()
        for name in self.instants[1:]:
            timed = pc.or_(timed, rows.column(name).is_valid())
        count = pc.sum(pc.and_(timed, pc.equal(lengths, 0))).as_py()
        if count:
            message = (
                f"{count} rows have a time but no value in the partition column {self.partition_column!r}, and the "
                "table does not record from which column it is computed"
            )
            hint = f"pass it as the timestamp column ({', '.join(self.instants)}); nothing was committed"
            raise WriteError(message, hint=hint)


def find_column(schema: pa.Schema, name: str) -> str | None:
    """Return the column name as the schema spells it. Delta column names are case-insensitive."""
    return next((each for each in schema.names if each.lower() == name.lower()), None)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    # A column that holds only nulls has no concrete type yet.
    return kind in {pa.string(), pa.large_string(), pa.string_view(), pa.null()}
