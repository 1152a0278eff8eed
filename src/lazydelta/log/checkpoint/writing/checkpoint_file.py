"""``CheckpointFile``: rows of a checkpoint as the bytes of one Parquet file, encoded while they are pulled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.errors import LazyDeltaError, ObjectNotFoundError, WriteError
from lazydelta.execution import release_memory
from lazydelta.log.checkpoint.writing.checkpoint_rows import CheckpointLayout
from lazydelta.storage import Store

__all__ = ["AlreadyThereError", "CheckpointFile"]

_GROUP_ROWS = 65_536
_PAGE_BYTES = 1 << 20
# One leaf of each action has Parquet statistics: its nulls tell readers which row groups hold none of that kind. Ranges
# of the other columns serve nobody and would make the footer grow with the table.
_COLUMNS_WITH_NULL_COUNTS = (
    "txn.appId",
    "add.path",
    "remove.path",
    "metaData.id",
    "protocol.minReaderVersion",
    "domainMetadata.domain",
)


class AlreadyThereError(LazyDeltaError):
    """Another process was faster; raised into our own upload to end it, and caught where it was begun."""


@dataclass(slots=True)
class CheckpointFile:
    """One file of the checkpoint of a version; ``rows`` counts what was encoded, ``notes`` are put into its footer."""

    layout: CheckpointLayout
    path: str
    version: int
    group_bytes: int
    notes: Mapping[str, str] = field(default_factory=dict)
    rows: int = field(default=0, init=False)

    def chunks(
        self, store: Store, batches: Iterable[pa.RecordBatch], advanced: Callable[[], None] | None = None
    ) -> Iterator[bytes]:
        """Yield the file; `AlreadyThereError` before its end where ``store`` has it by then."""
        try:
            yield from self.encoded(batches, advanced, lambda: self._refuse_second(store))
        except LazyDeltaError:
            raise
        except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, KeyError) as error:
            message = f"The checkpoint {self.path} cannot be written: {error}"
            hint = "the table is unharmed and readable without it; report the cause"
            raise WriteError(message, path=self.path, version=self.version, hint=hint) from error

    def encoded(
        self,
        batches: Iterable[pa.RecordBatch],
        advanced: Callable[[], None] | None = None,
        before_last: Callable[[], None] | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes, a row group at a time; ``before_last`` is asked before those that make it a file."""
        sink = _Sink()
        with closing(
            pq.ParquetWriter(
                pa.PythonFile(sink, mode="w"),
                self.layout.schema,
                compression="zstd",
                write_statistics=list(_COLUMNS_WITH_NULL_COUNTS),
                write_page_checksum=True,
                # A page is cut where it is full, which is looked at only after so many rows; readers decode it whole.
                write_batch_size=self.layout.rows_in(_PAGE_BYTES),
                store_schema=False,
            )
        ) as writer:
            for table in self._row_groups(batches):
                writer.write_table(table, row_group_size=table.num_rows)
                self.rows += table.num_rows
                if advanced is not None:
                    advanced()
                yield from sink.take()
                release_memory()
            if self.notes:
                writer.add_key_value_metadata(dict(self.notes))
        if before_last is not None:
            before_last()
        yield from sink.take()

    def _refuse_second(self, store: Store) -> None:
        # The last bytes make the file: look once more whether somebody else's is there, and leave that one if so.
        if _size_of(store, self.path) > 0:
            raise AlreadyThereError(f"{self.path} was written by another process meanwhile", path=self.path)

    def _row_groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= _GROUP_ROWS or size >= self.group_bytes:
                yield pa.Table.from_batches(held)
                held, rows, size = [], 0, 0
        if rows:
            yield pa.Table.from_batches(held)


class _Sink:
    """A file that gives away what was written to it."""

    closed = False

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def write(self, data: bytes | memoryview) -> int:
        self._chunks.append(bytes(data))
        return len(data)

    def take(self) -> list[bytes]:
        chunks, self._chunks = self._chunks, []
        return [b"".join(chunks)] if chunks else []

    def flush(self) -> None:
        """Do nothing: nothing waits anywhere else."""

    def close(self) -> None:
        """Keep what was written: the caller takes it."""


def _size_of(store: Store, path: str) -> int:
    try:
        return store.head(path).size
    except ObjectNotFoundError:
        return 0
