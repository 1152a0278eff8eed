"""``BoundedBatches``: the rows of a Parquet file of a checkpoint, in batches that end by rows and by bytes.

Nearly all checkpoints are read in one go, in batches of a size that the footer suggests. Long texts are watched on
their way (see ``parquet_pages``): where the next rows would take too much they are read in smaller batches. Where a
single page does, its texts are read a few at a time if they lie there as they are (``long_texts``); else the row group
goes on without statistics, or ends in an error for whoever must not lose them. A dictionary that is large, but not too
large, is read likewise: the decoder would hold it twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.errors import MemoryLimitError
from lazydelta.log.checkpoint.checkpoint_columns import corrupt_if_unreadable, joined, read_batches, rows_at_once
from lazydelta.log.checkpoint.parquet_pages import LargeBatchError, LargePageError, PageWatch, Watches
from lazydelta.log.names import LogFile

if TYPE_CHECKING:
    from lazydelta.log.checkpoint.long_texts import LongTexts

__all__ = ["MEMORY_BUDGET", "BoundedBatches"]

logger = logging.getLogger(__name__)

MEMORY_BUDGET = 150 << 20
# A batch is there several times over: as pages, as columns, as parsed values, and in the hands of who reads ahead.
_BATCH_SHARE = 25
_DICTIONARY_SHARE = 8
# Whatever the budget: a page has about a megabyte where its rows are of usual size.
_LEAST_PAGE_BYTES, _LEAST_BATCH_BYTES = 4 << 20, 256 << 10
_TOLERATED_EXCESS = 2  # how much more than its share a batch may take before it is begun anew
_LONG_TEXT = 4 << 10
_TEXT, _TYPED = "add.stats", "add.stats_parsed"
_STATS = (_TEXT, _TYPED)
_COUNTING_COLUMN = "add.size"  # read where nothing else is left, so that rows are still counted


class _Raw:
    """Lets somebody read a file's bytes beside the decoder."""

    def __init__(self) -> None:
        self._source: pa.NativeFile | None = None

    def over(self, source: pa.NativeFile, size: int, path: str) -> pa.NativeFile:  # noqa: ARG002 - see ``Watches``
        """Note the file."""
        self._source = source
        return source

    def read_at(self, start: int, length: int) -> memoryview:
        """Return some of its bytes, without a copy of them: a page may be large. The decoder has a place of its own."""
        if self._source is None:
            return memoryview(b"")
        self._source.seek(start)
        return memoryview(self._source.read_buffer(length))


class BoundedBatches(msgspec.Struct, frozen=True):
    """Reads one file, or some of its row groups; ``open`` opens it, watched or not.

    ``needs_stats`` is said by those who copy statistics; ``passed_by`` is told why there are none, for all others.
    """

    open: Callable[[Watches | None], AbstractContextManager[pq.ParquetFile]]
    part: LogFile
    metadata: pq.FileMetaData
    columns: Sequence[str]
    most_rows: int
    memory_budget: int = MEMORY_BUDGET
    needs_stats: bool = False
    by_group: bool = False
    groups: range | None = None
    passed_by: Callable[[str], None] | None = None

    def __iter__(self) -> Generator[pa.RecordBatch]:
        rows = self._rows_at_once(self.columns)
        watched = self._watched(self.columns)
        chosen = range(self.metadata.num_row_groups) if self.groups is None else self.groups
        if watched:
            for group in chosen:
                yield from self._group(group, rows, watched)
            return
        together = None if self.groups is None else list(chosen)
        groups = [[number] for number in chosen] if self.by_group else [together]
        with self.open(None) as parquet:
            for some in groups:
                yield from read_batches(parquet, self.part, self.columns, rows, some)

    @property
    def _page_bytes(self) -> int:
        return max(_LEAST_PAGE_BYTES, self.memory_budget // 2)

    @property
    def _batch_bytes(self) -> int:
        return max(_LEAST_BATCH_BYTES, self.memory_budget // _BATCH_SHARE)

    def _rows_at_once(self, columns: Sequence[str]) -> int:
        return rows_at_once(self.metadata, columns, self.most_rows, self._batch_bytes)

    def _watched(self, columns: Sequence[str]) -> list[int]:
        """Return the columns of text whose rows may take far more than their mean."""
        prefixes = tuple(f"{name}." for name in columns)
        stats = tuple(f"{name}." for name in _STATS)
        found = []
        for index in range(self.metadata.num_columns):
            column = self.metadata.schema.column(index)
            path = f"{column.path}."
            if column.physical_type != "BYTE_ARRAY" or not path.startswith(prefixes):
                continue
            if path.startswith(stats) or self._mean(index) > _LONG_TEXT:
                found.append(index)
        return found

    def _mean(self, index: int) -> int:
        groups = [self.metadata.row_group(number) for number in range(self.metadata.num_row_groups)]
        sizes = [group.column(index).total_uncompressed_size // max(1, group.num_rows) for group in groups]
        return max(sizes, default=0)

    def _group(self, group: int, rows: int, watched: Sequence[int]) -> Generator[pa.RecordBatch]:
        """Yield the rows of a row group, begun anew with fewer rows a batch as often as it takes."""
        columns, done, count = self.columns, 0, self.metadata.row_group(group).num_rows
        batch_bytes, page_bytes = _TOLERATED_EXCESS * self._batch_bytes, self._page_bytes
        dictionary_bytes = max(_LEAST_PAGE_BYTES, self.memory_budget // _DICTIONARY_SHARE)
        while done < count:
            watch = PageWatch(self.metadata, watched, [group], page_bytes, batch_bytes, dictionary_bytes)
            try:
                for first, batch in self._watched_batches(group, columns, rows, watch):
                    end, skipped = first + batch.num_rows, max(0, done - first)
                    if end > done:
                        done = end
                        yield batch.slice(skipped) if skipped else batch
            except LargeBatchError as error:
                rows = max(1, min(error.rows, rows - 1))
            except LargePageError as error:
                texts = self._long_texts(group, columns, error)
                if texts is not None:
                    yield from self._in_pieces(group, columns, done, texts)
                    return
                if error.size <= page_bytes:
                    dictionary_bytes = page_bytes  # it is for the decoder after all
                    continue
                columns = self._without_stats(columns, error)
                watched = self._watched(columns)
                rows = self._rows_at_once(columns)

    def _watched_batches(
        self, group: int, columns: Sequence[str], rows: int, watch: PageWatch
    ) -> Generator[tuple[int, pa.RecordBatch]]:
        with self.open(watch) as parquet:
            first = 0
            watch.expect(first, rows)
            for batch in read_batches(parquet, self.part, columns, rows, [group]):
                yield first, batch
                first += batch.num_rows
                watch.expect(first, rows)

    def _long_texts(self, group: int, columns: Sequence[str], error: LargePageError) -> LongTexts | None:
        """Return where the texts of statistics lie in pages that are too large; None if that is not so simple."""
        if error.column != _TEXT or any(name.startswith(_TYPED) for name in columns):
            return None
        # Hardly any scan needs it, and its import would be in the way of the first file.
        from lazydelta.log.checkpoint.long_texts import LongTexts, UnlikeError, text_column  # noqa: PLC0415

        raw = _Raw()
        try:
            with self.open(raw):
                column = text_column(self.metadata, _TEXT)
                return LongTexts.of(self.metadata, group, column, raw.read_at, most_held=self._page_bytes)
        except UnlikeError:
            return None

    def _in_pieces(self, group: int, columns: Sequence[str], done: int, texts: LongTexts) -> Generator[pa.RecordBatch]:
        """Yield the rest of a row group, a few rows at a time where their texts are long."""
        left = [name for name in columns if name != _TEXT] or [_COUNTING_COLUMN]
        raw, first = _Raw(), 0
        # Pages that are held take most of the budget.
        most_bytes = self._batch_bytes if texts.unpacked is None else self._batch_bytes // 2
        with self.open(raw) as parquet:
            for batch in read_batches(parquet, self.part, left, self._rows_at_once(left), [group]):
                end, place = first + batch.num_rows, max(first, done)
                while place < end:
                    count = min(end - place, texts.rows_within(place, most_bytes))
                    with corrupt_if_unreadable(self.part):
                        found = texts.read(place, count, raw.read_at)
                    stats = pa.StructArray.from_arrays([found], ["stats"])
                    adds = joined(batch.column("add").slice(place - first, count), stats, self.part)
                    yield pa.RecordBatch.from_arrays([adds], ["add"])
                    place += count
                first = end

    def _without_stats(self, columns: Sequence[str], error: LargePageError) -> list[str]:
        message = (
            f"{self.part.path} has {error}, which is too much for the memory budget of {self.memory_budget:,} bytes"
        )
        left = [name for name in columns if not f"{name}.".startswith(tuple(f"{each}." for each in _STATS))]
        if self.needs_stats or len(left) == len(columns):
            hint = (
                f"give it a memory_budget (--memory) of {_needed(error)} MB, or let a writer that cuts its pages "
                "smaller write the checkpoint: `lazydelta checkpoint` does"
            )
            raise MemoryLimitError(message, path=self.part.path, version=self.part.version, hint=hint) from None
        logger.warning("%s: files of that row group are listed without statistics", message)
        if self.passed_by is not None:
            self.passed_by(f"{message}; {_needed(error)} MB would do (option memory_budget), and so would a sidecar")
        return left or [_COUNTING_COLUMN]


def _needed(error: LargePageError) -> int:
    """Return the budget, in megabytes, of which the page takes no more than half."""
    return -(-2 * error.size // (1 << 20))
