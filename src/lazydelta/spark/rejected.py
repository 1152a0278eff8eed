"""Rows that do not go into the table: kept in a table of their own, as text, with the reason.

That table has the same four columns whatever was rejected, so that it never needs a change of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa

from lazydelta.log.actions import Add, Metadata, Txn
from lazydelta.storage import open_store
from lazydelta.write.create import new_metadata
from lazydelta.write.data_files import DataFileWriter
from lazydelta.write.maintenance import after_commit
from lazydelta.write.plan import WritePlan, commit_files, schema_of

__all__ = ["RejectedRowsWriter", "commit_rejected"]

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

    def __init__(self, uri: str, storage_options: Mapping[str, str], source: str | None = None) -> None:
        self._uri = uri
        self._storage_options = storage_options
        self._source = source
        self._files: DataFileWriter | None = None

    @property
    def num_rows(self) -> int:
        """Return how many rows were rejected."""
        return 0 if self._files is None else self._files.num_rows

    def __call__(self, rows: pa.RecordBatch, reason: str) -> None:
        """Take rows in the columns that they came with."""
        self.texts([_as_text(row) for row in rows.to_pylist()], reason)

    def texts(self, records: Sequence[str], reason: str, source: str | None = None) -> None:
        """Take records that could not even be read as rows."""
        if not records:
            return
        if self._files is None:
            self._files = DataFileWriter(
                open_store(self._uri, self._storage_options),
                schema_of(_metadata()).to_arrow(),
                memory_budget=_MEMORY_BUDGET,
            )
        now = time.time_ns() // 1_000
        count = len(records)
        columns: list[list[Any]] = [[now] * count, [reason] * count, [source or self._source] * count, list(records)]
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


def commit_rejected(uri: str, storage_options: Mapping[str, str], adds: Sequence[Add], txn: Txn | None) -> None:
    """Add files of rejected rows to their table."""
    store = open_store(uri, storage_options)
    done = commit_files(store, WritePlan.of(), _SCHEMA, _metadata(), adds, operation="WRITE", txn=txn)
    if not done.already_committed:
        after_commit(store, done.version, done.metadata)


def _metadata() -> Metadata:
    return new_metadata(_SCHEMA, description="Rows that an ingestion did not take, and why")


def _as_text(row: dict[str, Any]) -> str:
    return msgspec.json.encode(row, enc_hook=str).decode()
