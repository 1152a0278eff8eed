"""Identity columns: values from the sequence of a table, and the mark in the metadata up to which it is used.

A write allocates values from the mark of the version that it read, and moves the mark in the same commit. If another
writer moved it first, the values in the written files are shifted behind the new mark before the commit is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.data_files.reader import RowReader
from lazydelta.errors import UnsupportedFeatureError, WriteError
from lazydelta.protocol.actions import Add, Metadata
from lazydelta.protocol.properties import Key
from lazydelta.protocol.schema import Field, NameIndex, TableSchema
from lazydelta.runtime.arrays import from_numpy
from lazydelta.storage import Store
from lazydelta.storage.staged_files import StagedFiles, delete_paths

__all__ = [
    "IDENTITY",
    "AllocatedValues",
    "IdentitySequence",
    "identity_columns",
    "lacking",
    "with_marks_of",
    "with_typed_identities",
    "with_used",
]

IDENTITY = Key.IDENTITY
_START, _STEP, _MARK = (f"{IDENTITY}{name}" for name in ("start", "step", "highWaterMark"))
_EXPLICIT = f"{IDENTITY}allowExplicitInsert"
_INT64 = 1 << 63
_PER_BLOCK = 1 << 13


def identity_columns(table: TableSchema) -> dict[str, bool]:
    """Return the identity columns, and whether writers may give values of their own."""
    return {
        each.name: str(each.metadata.get(_EXPLICIT)).lower() == "true"
        for each in table.fields
        if each.metadata and any(key.startswith(IDENTITY) for key in each.metadata)
    }


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The values of one column that are still free: ``first``, ``first + step`` and so on."""

    name: str
    first: int
    step: int

    @classmethod
    def of(cls, field: Field) -> _Numbers:
        start, step, mark = (field.metadata.get(key) for key in (_START, _STEP, _MARK))
        if not isinstance(start, int) or not isinstance(step, int) or not step or not isinstance(mark, int | None):
            message = f"The identity column {field.name!r} has an invalid start or step"
            raise WriteError(message, hint="check the metadata of the column")
        used = 0 if mark is None else max(0, (mark - start) // step + 1)
        return cls(field.name, start + used * step, step)

    def at(self, number: int) -> int:
        value = self.first + number * self.step
        if not -_INT64 <= value < _INT64:
            raise WriteError(
                f"The sequence of the identity column {self.name!r} is at its end", hint="recreate the table"
            )
        return value


class IdentitySequence:
    """Numbers the rows of one task, and makes the values of the identity columns that they lack.

    ``task`` is the index of a task among others that run at the same time, or None for a write of one process. The
    tasks know nothing of each other. They take blocks of numbers along the diagonals of (task, block), so that no
    number is taken twice and few are left out. ``last`` is the highest number that was used, or -1.
    """

    def __init__(self, table: TableSchema, task: int | None = None) -> None:
        self.last = -1
        self._columns = {name: _Numbers.of(table.field(name)) for name in identity_columns(table)}
        for name in self._columns.keys() & set(table.partition_columns):
            message = f"The table is partitioned by its identity column {name!r}"
            raise UnsupportedFeatureError(
                message, features=("identityColumns",), hint="recreate the table without this partitioning"
            )
        self._task = task
        self._used = 0

    def values(self, names: Sequence[str], rows: int) -> dict[str, pa.Array]:
        """Return new values of some identity columns. They share the numbers of the rows."""
        if not names or not rows:
            return {name: pa.array([], pa.int64()) for name in names}
        numbers = self._numbers(rows)
        self.last = int(numbers[-1])
        for name in names:
            self._columns[name].at(self.last)
        return {name: from_numpy(self._columns[name].first + numbers * self._columns[name].step) for name in names}

    def _numbers(self, rows: int) -> npt.NDArray[np.int64]:
        numbers = np.arange(self._used, self._used + rows, dtype=np.int64)
        self._used += rows
        if self._task is None:
            return numbers
        block, place = np.divmod(numbers, _PER_BLOCK)
        diagonal = block + self._task
        found: npt.NDArray[np.int64] = (diagonal * (diagonal + 1) // 2 + block) * _PER_BLOCK + place
        return found


def with_used(metadata: Metadata, columns: Iterable[str], last: int) -> Metadata:
    """Return the metadata after the number ``last`` of the free values of some identity columns was used."""
    if last < 0:
        return metadata
    schema, table = msgspec.json.decode(metadata.schema_string), TableSchema.parse(metadata.schema_string)
    marks = {name: _Numbers.of(table.field(name)).at(last) for name in columns}
    return _with_marks(metadata, schema, marks)


def with_marks_of(metadata: Metadata, newer: Metadata) -> Metadata:
    """Return earlier metadata with the marks of newer metadata, so that no value is used twice."""
    table = TableSchema.parse(newer.schema_string)
    schema = msgspec.json.decode(metadata.schema_string)
    names = {each["name"] for each in schema["fields"] if any(key.startswith(IDENTITY) for key in each["metadata"])}
    marks = {each.name: each.metadata[_MARK] for each in table.fields if each.name in names and _MARK in each.metadata}
    return _with_marks(metadata, schema, marks)


def with_typed_identities(schema_string: str) -> str:
    """Return a schema whose identity columns say with a boolean whether writers may give values.

    `lazydelta.schema.Field` shows booleans as text, like deltalake, and Delta-Spark reads no text there.
    """
    if _EXPLICIT not in schema_string:
        return schema_string
    schema = msgspec.json.decode(schema_string)
    for each in schema["fields"]:
        if _EXPLICIT in each["metadata"]:
            each["metadata"][_EXPLICIT] = str(each["metadata"][_EXPLICIT]).lower() == "true"
    return msgspec.json.encode(schema).decode()


def _with_marks(metadata: Metadata, schema: dict[str, Any], marks: Mapping[str, int]) -> Metadata:
    if not marks:
        return metadata
    for each in schema["fields"]:
        if each["name"] in marks:
            each["metadata"][_MARK] = marks[each["name"]]
    return msgspec.structs.replace(metadata, schema_string=msgspec.json.encode(schema).decode())


@dataclass(slots=True)
class AllocatedValues:
    """The values of identity columns in the files of a write.

    ``columns`` have values up to the number ``last``, counted from the mark in ``metadata``. ``rewrite`` writes rows to
    new files.
    """

    metadata: Metadata
    table: TableSchema
    columns: tuple[str, ...]
    last: int
    rewrite: Callable[[Iterable[pa.RecordBatch]], list[Add]]

    def settle(self, found: Metadata, store: Store, staged: StagedFiles, adds: Sequence[Add]) -> Sequence[Add]:
        """Return the files with values behind the mark in ``found``. Files that had other values are deleted."""
        theirs = TableSchema.parse(found.schema_string)
        shifts = {
            name: _Numbers.of(theirs.field(name)).first - _Numbers.of(self.table.field(name)).first
            for name in self.columns
        }
        if any(shifts.values()) and adds:
            reader = RowReader(store, self.table)
            rows = (batch for add in adds for batch in reader.read(add))
            old, adds = [unquote(each.path) for each in adds], self.rewrite(_shifted(rows, shifts))
            staged.stage(unquote(each.path) for each in adds)
            delete_paths(store, old)
        self.metadata, self.table = found, theirs
        return adds

    def noted(self) -> Metadata:
        """Return the metadata with the marks behind the values."""
        return with_used(self.metadata, self.columns, self.last)


def _shifted(batches: Iterable[pa.RecordBatch], shifts: Mapping[str, int]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = batch
        for name, shift in shifts.items():
            index = rows.schema.get_field_index(name)
            values = rows.column(index).to_numpy(zero_copy_only=False) + np.int64(shift)
            rows = rows.set_column(index, rows.schema.field(index), from_numpy(values))
        yield rows


def lacking(table: TableSchema, given: Iterable[str]) -> tuple[str, ...]:
    """Return the identity columns that rows with some columns lack."""
    names = NameIndex(given)
    return tuple(name for name in identity_columns(table) if not names.positions(name))
