"""``BoundedBatches``: the rows of a Parquet checkpoint file, in batches bounded by rows and by bytes.

Nearly all checkpoints are read in one pass, with a batch size derived from the footer. Pages of long strings are
watched while they are read: if the next rows would take too much memory, they are read in smaller batches. If a single
page is too large, its strings are read a few at a time if their form allows it (``long_strings``). Otherwise the row
group is read without statistics, or raises an error for callers that need them. A dictionary that is large but within
the limit is read the same way, because the decoder would hold it twice.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.errors import MemoryLimitError
from lazydelta.log.checkpoint.columns import CheckpointFile, corrupt_if_unreadable, joined, read_batches, rows_at_once
from lazydelta.protocol.file_names import LogFile
from lazydelta.storage import open_native

if TYPE_CHECKING:
    from lazydelta.log.checkpoint.long_strings import LongStrings

__all__ = [
    "CODECS",
    "MEMORY_BUDGET",
    "BoundedBatches",
    "LargeBatchError",
    "LargePageError",
    "PageWatch",
    "ThriftCursor",
    "Watches",
    "budget_for_page",
    "page_bytes_within",
    "page_header",
]


# ``PageWatch``: the size of the next rows of a Parquet file, known before they are decoded.


_DICTIONARY_PAGE = 2
_DICTIONARY_CODED = frozenset({2, 8})  # PLAIN_DICTIONARY and RLE_DICTIONARY
_FIRST_HEADER, _LONGEST_HEADER = 256, 1 << 20
_length_at = struct.Struct("<I").unpack_from
_LONGEST_PLAIN_VALUE = 4 << 10  # for values up to this length the mean is good enough
CODECS = {"ZSTD": "zstd", "SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "LZ4": "lz4_raw"}
"""Arrow's names for the compression codecs of Parquet."""


class LargeBatchError(Exception):
    """The current rows would exceed the limit of a batch; ``rows`` of them would fit."""

    def __init__(self, rows: int) -> None:
        super().__init__(f"at most {rows} rows at once")
        self.rows = rows


class LargePageError(Exception):
    """A page that exceeds the budget; it can only be decoded as a whole."""

    def __init__(self, column: str, size: int) -> None:
        super().__init__(f"a page of {size:,} bytes in column {column!r}")
        self.column = column
        self.size = size


class _Chunk(msgspec.Struct):
    """A column of a row group: the position of its next page header, and the pages seen so far by their last row."""

    column: str
    at: int
    end: int
    row: int
    counts_rows: bool
    is_text: bool
    codec: str
    pending: bytes = b""
    needs: int = _FIRST_HEADER
    large_row: int | None = None
    large_size: int = 0
    value_bytes: float = 0.0
    ends: list[int] = msgspec.field(default_factory=list)
    sizes: list[float] = msgspec.field(default_factory=list)

    def largest_row(self, rows: int) -> float:
        """Return the bytes of a row in the page with the largest ones; the mean if pages do not count their rows."""
        if not self.counts_rows:
            return sum(self.sizes) / max(1, rows)
        counts = [end - start for start, end in pairwise([self.row, *self.ends])]
        return max((size / max(1, count) for size, count in zip(self.sizes, counts, strict=True)), default=0.0)

    def bytes_of(self, first: int, rows: int) -> float:
        """Return the size of these rows according to the pages seen so far."""
        total = 0.0
        begin = bisect.bisect_right(self.ends, first)
        for index in range(begin, len(self.ends)):
            start = self.ends[index - 1] if index else self.row
            if start >= first + rows:
                break
            inside = min(self.ends[index], first + rows) - max(start, first)
            total += self.sizes[index] * inside / max(1, self.ends[index] - start)
        return total


class Watches(Protocol):
    """Wraps a file before it reaches the decoder."""

    def over(self, source: pa.NativeFile, size: int, path: str) -> pa.NativeFile:
        """Return the watched file."""


class PageWatch:
    """Watches the pages of some columns of a file while it is read.

    A footer gives only the total size of a column, and a few rows may hold nearly all of it: five-megabyte statistics
    among thousands of 500 bytes, or one long string that a dictionary repeats a hundred times in a file of kilobytes. A
    page header states the size of its page, so pages are watched on their way to the decoder. A batch that would be too
    large is aborted before it is in memory, and read again in fewer rows.

    ``page_bytes`` limits a page, ``dictionary_bytes`` a dictionary page, which a decoder holds twice, and
    ``batch_bytes`` the rows of a batch in one column. The reader announces the next rows with ``expect``.
    """

    def __init__(
        self,
        metadata: pq.FileMetaData,
        columns: Sequence[int],
        groups: Sequence[int],
        page_bytes: int,
        batch_bytes: int,
        dictionary_bytes: int | None = None,
    ) -> None:
        self._page_bytes = page_bytes
        self._dictionary_bytes = page_bytes if dictionary_bytes is None else dictionary_bytes
        self._batch_bytes = batch_bytes
        self._first = self._rows = 0
        self._chunks: list[_Chunk] = []
        row = 0
        for number in groups:
            group = metadata.row_group(number)
            for index in columns:
                self._chunks.append(_chunk(group.column(index), metadata.schema.column(index), row))
            row += group.num_rows
        self._chunks.sort(key=lambda chunk: chunk.at)
        self._begins = [chunk.at for chunk in self._chunks]

    def expect(self, first: int, rows: int) -> None:
        """Announce the rows to decode next, counted from the first row group that is read."""
        self._first, self._rows = first, rows
        self._check(self._chunks)

    def look_ahead(self, read_at: Callable[[int, int], bytes]) -> float:
        """Inspect all pages now, by their headers alone. Return the bytes of a row where rows are largest.

        ``read_at`` takes a position and a length.

        Raises:
            LargePageError: If a page is too large to be decoded.

        """
        largest = 0.0
        for chunk in self._chunks:
            while chunk.at < chunk.end:
                known = chunk.at + len(chunk.pending)
                data = read_at(known, min(chunk.needs, chunk.end - chunk.at) - len(chunk.pending))
                if not data:
                    break  # the file is cut off: the decoder will report it
                self._take(chunk, known, data)
            if chunk.large_row is not None:
                raise LargePageError(chunk.column, chunk.large_size)
            largest = max(largest, chunk.largest_row(self._rows))
        return largest

    def over(self, source: pa.NativeFile, size: int, path: str) -> pa.NativeFile:
        """Return the watched file."""
        return open_native(_Watched(source, self), size, path)

    def passing(self, start: int, data: bytes) -> None:
        """Inspect bytes that were read; each column is read sequentially."""
        number = bisect.bisect_right(self._begins, start + len(data)) - 1
        while number >= 0:
            chunk = self._chunks[number]
            if chunk.end <= start:
                break
            if start <= chunk.at + len(chunk.pending) < start + len(data) and self._take(chunk, start, data):
                # The other chunks are unchanged: checking all of them at each page would be quadratic in the columns.
                self._check([chunk])
            number -= 1

    def _take(self, chunk: _Chunk, start: int, data: bytes) -> bool:
        """Note the pages that begin in these bytes. Return whether there were any."""
        met = False
        while chunk.at < chunk.end:
            known = chunk.at + len(chunk.pending)
            if not start <= known < start + len(data):
                break
            chunk.pending += bytes(data[known - start : known - start + chunk.needs - len(chunk.pending)])
            header = page_header(chunk.pending)
            if header is None:
                if len(chunk.pending) >= _LONGEST_HEADER:
                    chunk.at = chunk.end  # not a valid page header: the decoder will report it
                elif len(chunk.pending) >= chunk.needs:
                    chunk.needs = min(8 * chunk.needs, _LONGEST_HEADER)
                continue
            if header.size > (self._dictionary_bytes if header.kind == _DICTIONARY_PAGE else self._page_bytes):
                chunk.large_row = chunk.ends[-1] if chunk.ends and chunk.counts_rows else chunk.row
                chunk.large_size, chunk.at = header.size, chunk.end
                met = True
                break
            if header.kind == _DICTIONARY_PAGE and not chunk.is_text:
                chunk.value_bytes = header.size / max(1, header.values)
            elif header.kind == _DICTIONARY_PAGE and header.size * self._rows <= self._batch_bytes:
                chunk.value_bytes = header.size  # the rows fit, whichever value they repeat
            elif header.kind == _DICTIONARY_PAGE:
                chunk.needs = header.length + header.compressed
                if len(chunk.pending) < chunk.needs:
                    continue  # its values are inspected once they are complete
                body = chunk.pending[header.length : chunk.needs]
                chunk.value_bytes = _value_bytes(body, header, chunk.codec)
            else:
                coded = header.encoding in _DICTIONARY_CODED
                size = header.values * chunk.value_bytes if coded else header.size
                chunk.sizes.append(max(size, header.size))
                chunk.ends.append((chunk.ends[-1] if chunk.ends else chunk.row) + header.values)
            met = True
            chunk.at += header.length + header.compressed
            chunk.pending, chunk.needs = b"", _FIRST_HEADER
        return met

    def _check(self, chunks: Sequence[_Chunk]) -> None:
        for each in chunks:
            if each.large_row is not None and each.large_row < self._first + self._rows:
                before = each.large_row - self._first
                if before > 0:
                    raise LargeBatchError(before)
                raise LargePageError(each.column, each.large_size)
        if self._rows <= 1:
            return
        size = max((each.bytes_of(self._first, self._rows) for each in chunks if each.counts_rows), default=0.0)
        if size > self._batch_bytes:
            raise LargeBatchError(max(1, int(self._rows * self._batch_bytes / size / 2)))


class _Watched:
    """Positioned reads over a file, reported to a watch."""

    def __init__(self, source: pa.NativeFile, watch: PageWatch) -> None:
        self._source = source
        self._watch = watch

    def read_at(self, start: int, length: int) -> bytes:
        data: bytes = self._source.read_at(length, start)
        self._watch.passing(start, data)
        return data

    def close(self) -> None:
        """Close the underlying file."""
        self._source.close()


def _chunk(column: Any, described: Any, row: int) -> _Chunk:
    offset = column.dictionary_page_offset
    start = column.data_page_offset if offset is None else min(offset, column.data_page_offset)
    return _Chunk(
        column.path_in_schema,
        start,
        start + column.total_compressed_size,
        row,
        described.max_repetition_level == 0,
        column.physical_type == "BYTE_ARRAY",
        column.compression,
    )


class PageHeader(msgspec.Struct, frozen=True):
    """The header of a page: its sizes and values, and its checksum if it has one."""

    kind: int
    size: int
    compressed: int
    length: int
    values: int
    encoding: int
    crc: int | None = None


def _value_bytes(body: bytes, header: PageHeader, codec: str) -> float:
    """Return the size of a dictionary value: the mean, or the longest if one is long."""
    mean = header.size / max(1, header.values)
    try:
        plain = body if codec == "UNCOMPRESSED" else pa.decompress(body, header.size, CODECS[codec], asbytes=True)
    except (pa.ArrowException, KeyError, ValueError, OSError):
        return float(header.size)
    if _are_short(plain, header.values):
        return mean
    longest = at = 0
    with contextlib.suppress(struct.error):  # the page ends early
        for _ in range(header.values):  # a loop over every value of large dictionaries: no slices, no calls of max()
            (length,) = _length_at(plain, at)
            if length > longest:  # noqa: PLR1730 - as above
                longest = length
            at += 4 + length
    return float(longest) if longest > _LONGEST_PLAIN_VALUE else mean


def _are_short(plain: bytes, count: int) -> bool:
    """Return whether a page proves at a glance to have ``count`` values of less than 256 bytes.

    The length of such a value has three zeros, which strings rarely have. If the places with three zeros are where each
    value after the other begins, they are the lengths.
    """
    data = np.frombuffer(plain, np.uint8)
    if not count or len(data) < 4 * count:
        return False
    zero = data == 0
    places = np.flatnonzero(zero[1:-2] & zero[2:-1] & zero[3:])
    ends = places + 4 + data[places]
    return len(places) == count and not places[0] and ends[-1] == len(data) and bool((ends[:-1] == places[1:]).all())


# --- Thrift's compact protocol, as far as page headers use it

_STRUCT, _LIST, _SET, _MAP, _BINARY, _DOUBLE, _BYTE = 12, 9, 10, 11, 8, 7, 3
_LONG_LIST = 0x0F
_FIELDS = {1: "kind", 2: "size", 3: "compressed"}
_CRC = 4
_PAGE_HEADERS = {5: 2, 7: 2, 8: 4}
"""Headers of data pages, dictionary pages and V2 data pages, with the field number of their encoding."""


class ThriftCursor:
    """Reads Thrift's compact protocol, as used by Parquet, value by value."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        """Return the next byte."""
        value = self.data[self.at]
        self.at += 1
        return value

    def varint(self) -> int:
        """Return the next unsigned number."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # noqa: PLR2004 - the continuation bit
                return value

    def number(self) -> int:
        """Return the next signed number."""
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def fields(self) -> Any:
        """Yield (number, type) of the fields of a struct; the caller reads or skips each value."""
        number = 0
        while (head := self.byte()) != 0:
            step, kind = head >> 4, head & 0x0F
            number = number + step if step else self.number()
            yield number, kind

    def items(self) -> Iterator[int]:
        """Yield the type of each item of a list; the caller reads or skips it."""
        head = self.byte()
        short, kind = head >> 4, head & _LONG_LIST
        for _ in range(self.varint() if short == _LONG_LIST else short):
            yield kind

    def skip(self, kind: int) -> None:
        """Skip a value."""
        if kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner)
        elif kind in {_LIST, _SET}:
            for inner in self.items():
                self.skip(inner)
        elif kind == _MAP:
            count = self.varint()
            kinds = self.byte() if count else 0
            for _ in range(count):
                self.skip(kinds >> 4)
                self.skip(kinds & 0x0F)
        elif kind == _BINARY:
            self._forward(self.varint())
        elif kind == _DOUBLE:
            self._forward(8)
        elif kind == _BYTE:
            self._forward(1)
        elif kind > _BYTE:
            self.varint()

    def _forward(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise IndexError


def page_header(data: bytes) -> PageHeader | None:
    """Parse a page header; None if it extends beyond these bytes."""
    cursor = ThriftCursor(data)
    crc = None
    found = {"kind": 0, "size": 0, "compressed": 0, "values": 0, "encoding": 0}
    try:
        for number, kind in cursor.fields():
            if number in _FIELDS:
                found[_FIELDS[number]] = cursor.number()
            elif number == _CRC:
                crc = cursor.number()
            elif number in _PAGE_HEADERS and kind == _STRUCT:
                for inner, inner_kind in cursor.fields():
                    if inner == 1:
                        found["values"] = cursor.number()
                    elif inner == _PAGE_HEADERS[number]:
                        found["encoding"] = cursor.number()
                    else:
                        cursor.skip(inner_kind)
            else:
                cursor.skip(kind)
    except (IndexError, RecursionError):
        return None
    if min(found.values()) < 0:
        return None
    return PageHeader(length=cursor.at, crc=crc, **found)


logger = logging.getLogger(__name__)

MEMORY_BUDGET = 150 << 20
# A batch exists several times: as pages, columns, parsed values, and in read-ahead queues.
_BATCH_SHARE = 25
_DICTIONARY_SHARE = 8
# Minimum whatever the budget: a page takes about a megabyte if its rows have the usual size.
_LEAST_PAGE_BYTES, _LEAST_BATCH_BYTES = 4 << 20, 256 << 10
_TOLERATED_EXCESS = 2  # how far a batch may exceed its share before it is restarted
_LONG_TEXT = 4 << 10
_TEXT, _TYPED = "add.stats", "add.stats_parsed"
_STATS = (_TEXT, _TYPED)
_COUNTING_COLUMN = "add.size"  # read if no other column is left, so that rows are still counted


class _Raw:
    """Gives access to a file's bytes next to the decoder."""

    def __init__(self) -> None:
        self._source: pa.NativeFile | None = None

    def over(self, source: pa.NativeFile, size: int, path: str) -> pa.NativeFile:  # noqa: ARG002 - see ``Watches``
        """Keep a reference to the file."""
        self._source = source
        return source

    def read_at(self, start: int, length: int) -> memoryview:
        """Return bytes of the file without a copy, because a page may be large. The decoder has its own position."""
        if self._source is None:
            return memoryview(b"")
        self._source.seek(start)
        return memoryview(self._source.read_buffer(length))


class BoundedBatches(msgspec.Struct, frozen=True):
    """Reads one file, or some of its row groups; ``open`` opens it, watched or not.

    Callers that copy statistics set ``needs_stats``. For all others, ``passed_by`` receives the reason if statistics
    are dropped.
    """

    open: Callable[[Watches | None], AbstractContextManager[CheckpointFile]]
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
        return page_bytes_within(self.memory_budget)

    @property
    def _batch_bytes(self) -> int:
        return max(_LEAST_BATCH_BYTES, self.memory_budget // _BATCH_SHARE)

    def _rows_at_once(self, columns: Sequence[str]) -> int:
        return rows_at_once(self.metadata, columns, self.most_rows, self._batch_bytes)

    def _watched(self, columns: Sequence[str]) -> list[int]:
        """Return the string columns whose rows may take far more than the mean."""
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
        """Yield the rows of a row group, restarting with smaller batches as often as needed."""
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
                    dictionary_bytes = page_bytes  # leave it to the decoder after all
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

    def _long_texts(self, group: int, columns: Sequence[str], error: LargePageError) -> LongStrings | None:
        """Return the positions of the statistics in pages that are too large; None if their form is not supported."""
        if error.column != _TEXT or any(name.startswith(_TYPED) for name in columns):
            return None
        # Few scans need it, and importing it would delay the first file.
        from lazydelta.log.checkpoint.long_strings import LongStrings, UnlikeError, text_column  # noqa: PLC0415

        raw = _Raw()
        try:
            with self.open(raw):
                column = text_column(self.metadata, _TEXT)
                return LongStrings.of(self.metadata, group, column, raw.read_at, most_held=self._page_bytes)
        except UnlikeError:
            return None

    def _in_pieces(
        self, group: int, columns: Sequence[str], done: int, texts: LongStrings
    ) -> Generator[pa.RecordBatch]:
        """Yield the rest of a row group, a few rows at a time where the strings are long."""
        left = [name for name in columns if name != _TEXT] or [_COUNTING_COLUMN]
        raw, first = _Raw(), 0
        # Decompressed pages take most of the budget.
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
                f"give it a memory_budget (--memory) of {budget_for_page(error)} MB, or let a writer that cuts its "
                "pages smaller write the checkpoint: `lazydelta checkpoint` does"
            )
            raise MemoryLimitError(message, path=self.part.path, version=self.part.version, hint=hint) from None
        logger.warning("%s: files of that row group are listed without statistics", message)
        if self.passed_by is not None:
            self.passed_by(
                f"{message}; {budget_for_page(error)} MB would do (option memory_budget), and so would a sidecar"
            )
        return left or [_COUNTING_COLUMN]


def page_bytes_within(memory_budget: int) -> int:
    """Return the size of the largest page that may be decoded within a budget."""
    return max(_LEAST_PAGE_BYTES, memory_budget // 2)


def budget_for_page(error: LargePageError) -> int:
    """Return the budget in megabytes of which the page takes at most half."""
    return -(-2 * error.size // (1 << 20))
