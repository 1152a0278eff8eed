"""Rows that do not go into the table: kept in a table of their own, as text, with the reason.

That table has the same four columns whatever was rejected, so that it never needs a change of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa

from lazydelta.handle import TableHandle
from lazydelta.log.actions import Add, Metadata, Txn
from lazydelta.write.batch_record import BatchRecord
from lazydelta.write.create import new_metadata
from lazydelta.write.data_files import DataFileWriter
from lazydelta.write.file_commit import commit_files
from lazydelta.write.plan import WritePlan, schema_of
from lazydelta.write.transaction import CommitResult

__all__ = ["RejectedRowsCounter", "RejectedRowsWriter", "as_texts", "commit_rejected"]

_SCHEMA = pa.schema(
    [
        ("rejected_at", pa.timestamp("us", "UTC")),
        ("reason", pa.string()),
        ("source", pa.string()),
        ("record", pa.string()),
    ]
)
_MEMORY_BUDGET = 32 << 20


class RejectedRowsWriter:
    """Takes the rejected rows of one task; makes no request as long as there are none."""

    def __init__(self, handle: TableHandle, source: str | None = None) -> None:
        self._handle = handle
        self._source = source
        self._files: DataFileWriter | None = None

    @property
    def num_rows(self) -> int:
        """Return how many rows were rejected."""
        return 0 if self._files is None else self._files.num_rows

    def __call__(self, rows: pa.RecordBatch, reason: str) -> None:
        """Take rows in the columns that they came with."""
        self.texts(as_texts(rows), reason)

    def texts(
        self, records: Sequence[str], reason: str | Sequence[str], source: str | Sequence[str] | None = None
    ) -> None:
        """Take records that could not even be read as rows; reason and source are those of all, or of each."""
        if not records:
            return
        if self._files is None:
            self._files = DataFileWriter(
                self._handle.store,
                schema_of(_metadata()).to_arrow(),
                memory_budget=_MEMORY_BUDGET,
            )
        now = time.time_ns() // 1_000
        count = len(records)
        columns: list[list[Any]] = [
            [now] * count,
            [reason] * count if isinstance(reason, str) else list(reason),
            [source or self._source] * count if source is None or isinstance(source, str) else list(source),
            list(records),
        ]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
        self._files.write(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))

    def close(self) -> list[Add]:
        """Finish the files and return what a commit needs to add them."""
        return [] if self._files is None else self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._files is not None:
            self._files.__exit__(kind, error, trace)


class RejectedRowsCounter:
    """Counts rejected rows and keeps none."""

    def __init__(self) -> None:
        self.num_rows = 0

    def __call__(self, rows: pa.RecordBatch, reason: str) -> None:  # noqa: ARG002 - as the writer
        """Count rows."""
        self.num_rows += rows.num_rows


def commit_rejected(
    handle: TableHandle,
    adds: Sequence[Add],
    txn: Txn | None,
    *,
    is_stream: bool = False,
) -> CommitResult:
    """Add files of rejected rows to their table."""
    batch = BatchRecord.of_adds(adds, is_stream=is_stream)
    return commit_files(handle, WritePlan.of(), _SCHEMA, _metadata(), adds, operation="WRITE", txn=txn, batch=batch)


def _metadata() -> Metadata:
    return new_metadata(_SCHEMA, description="Rows that an ingestion did not take, and why")


def as_texts(rows: pa.RecordBatch) -> list[str]:
    """Return each row as a JSON object."""
    columns = [_values(column) for column in rows.columns]
    records = (dict(zip(rows.schema.names, values, strict=True)) for values in zip(*columns, strict=True))
    return [msgspec.json.encode(each, enc_hook=str).decode() for each in records]


def _values(column: pa.Array) -> list[Any]:
    """Return values that JSON has a form for; what Python cannot hold comes as Arrow writes it."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        # The zone is that of the session, and only a label: the moments are the same in UTC.
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    try:
        found: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):  # Python's years end with 9999
        kind = _counted(column.type) if pa.types.is_nested(column.type) else pa.string()
        found = column.cast(kind).to_pylist()
    return found


def _counted(kind: pa.DataType) -> pa.DataType:
    """Return a nested type with moments as numbers: microseconds, or days, since 1970."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(_counted(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_counted(kind.value_type)))
    if types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_counted(key.type)), item.with_type(_counted(item.type)))
    if types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if types.is_date32(kind) else kind
