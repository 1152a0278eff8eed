"""How many bytes the next rows of a Parquet file will take, known before they are decoded.

A footer tells what a column takes on the whole, and a few rows of a checkpoint may have nearly all of it: statistics of
five megabytes among thousands of five hundred bytes, or one long text that a dictionary stands for a hundred times in
a file of kilobytes. What a page takes stands in front of it, so pages are watched on their way to the decoder; a batch
that would be too large is given up there, before it is in memory, and read again in fewer rows.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.storage import open_native

__all__ = ["CODECS", "LargeBatchError", "LargePageError", "PageHeader", "PageWatch", "Watches", "page_header"]

_DICTIONARY_PAGE = 2
_DICTIONARY_CODED = frozenset({2, 8})  # PLAIN_DICTIONARY and RLE_DICTIONARY
_FIRST_HEADER, _LONGEST_HEADER = 256, 1 << 20
_LONGEST_PLAIN_VALUE = 4 << 10  # values up to this length need no care of their own: their mean will do
CODECS = {"ZSTD": "zstd", "SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "LZ4": "lz4_raw"}
"""What Arrow calls the compressions of Parquet."""


class LargeBatchError(Exception):
    """The rows under way would take more than a batch may; ``rows`` of them would do."""

    def __init__(self, rows: int) -> None:
        super().__init__(f"at most {rows} rows at once")
        self.rows = rows


class LargePageError(Exception):
    """A page that does not fit the budget; it can only be decoded whole."""

    def __init__(self, column: str, size: int) -> None:
        super().__init__(f"a page of {size:,} bytes in column {column!r}")
        self.column = column
        self.size = size


class _Chunk(msgspec.Struct):
    """A column of a row group: where its next page header begins, and the pages met so far, by their last row."""

    column: str
    at: int
    end: int
    row: int
    counts_rows: bool
    codec: str
    pending: bytes = b""
    needs: int = _FIRST_HEADER
    large_row: int | None = None
    large_size: int = 0
    value_bytes: float = 0.0
    ends: list[int] = msgspec.field(default_factory=list)
    sizes: list[float] = msgspec.field(default_factory=list)

    def bytes_of(self, first: int, rows: int) -> float:
        """Return what the pages known so far say that these rows take."""
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
    """Comes between a file and its decoder."""

    def over(self, source: pa.NativeFile, size: int, path: str) -> pa.NativeFile:
        """Return the file, watched."""


class PageWatch:
    """Watches the pages of some columns of a file while it is read.

    ``page_bytes`` is what a page may take, ``dictionary_bytes`` what one may take that is a dictionary, which a decoder
    holds twice, and ``batch_bytes`` what the rows of a batch may take in one column. Whoever reads says with ``expect``
    which rows are next.
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
        """Say which rows are decoded next, counted from the first row group that is read."""
        self._first, self._rows = first, rows
        self._check()

    def over(self, source: pa.NativeFile, size: int, path: str) -> pa.NativeFile:
        """Return the file, watched."""
        return open_native(_Watched(source, self), size, path)

    def passing(self, start: int, data: bytes) -> None:
        """Look at bytes that go by; whoever reads a column reads it from front to back."""
        number = bisect.bisect_right(self._begins, start + len(data)) - 1
        while number >= 0:
            chunk = self._chunks[number]
            if chunk.end <= start:
                break
            if start <= chunk.at + len(chunk.pending) < start + len(data):
                self._take(chunk, start, data)
            number -= 1

    def _take(self, chunk: _Chunk, start: int, data: bytes) -> None:
        met = False
        while chunk.at < chunk.end:
            known = chunk.at + len(chunk.pending)
            if not start <= known < start + len(data):
                break
            chunk.pending += bytes(data[known - start : known - start + chunk.needs - len(chunk.pending)])
            header = page_header(chunk.pending)
            if header is None:
                if len(chunk.pending) >= _LONGEST_HEADER:
                    chunk.at = chunk.end  # no header that a page has: the decoder will say so
                elif len(chunk.pending) >= chunk.needs:
                    chunk.needs = min(8 * chunk.needs, _LONGEST_HEADER)
                continue
            if header.size > (self._dictionary_bytes if header.kind == _DICTIONARY_PAGE else self._page_bytes):
                chunk.large_row = chunk.ends[-1] if chunk.ends and chunk.counts_rows else chunk.row
                chunk.large_size, chunk.at = header.size, chunk.end
                met = True
                break
            if header.kind == _DICTIONARY_PAGE:
                chunk.needs = header.length + header.compressed
                if len(chunk.pending) < chunk.needs:
                    continue  # its values are looked at once they are all there
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
        if met:
            self._check()

    def _check(self) -> None:
        for each in self._chunks:
            if each.large_row is not None and each.large_row < self._first + self._rows:
                before = each.large_row - self._first
                if before > 0:
                    raise LargeBatchError(before)
                raise LargePageError(each.column, each.large_size)
        if self._rows <= 1:
            return
        size = max((each.bytes_of(self._first, self._rows) for each in self._chunks if each.counts_rows), default=0.0)
        if size > self._batch_bytes:
            raise LargeBatchError(max(1, int(self._rows * self._batch_bytes / size / 2)))


class _Watched:
    """Positioned reads over a file, shown to a watch."""

    def __init__(self, source: pa.NativeFile, watch: PageWatch) -> None:
        self._source = source
        self._watch = watch

    def read_at(self, start: int, length: int) -> bytes:
        data: bytes = self._source.read_at(length, start)
        self._watch.passing(start, data)
        return data

    def close(self) -> None:
        """Stop the reads below."""
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
        column.compression,
    )


class PageHeader(msgspec.Struct, frozen=True):
    """What stands in front of a page: its bytes and values, and its checksum where it has one."""

    kind: int
    size: int
    compressed: int
    length: int
    values: int
    encoding: int
    crc: int | None = None


def _value_bytes(body: bytes, header: PageHeader, codec: str) -> float:
    """Return what a value of a dictionary takes: the mean, or the longest where one is long."""
    mean = header.size / max(1, header.values)
    try:
        plain = body if codec == "UNCOMPRESSED" else pa.decompress(body, header.size, CODECS[codec], asbytes=True)
    except (pa.ArrowException, KeyError, ValueError, OSError):
        return float(header.size)
    longest = at = 0
    for _ in range(header.values):
        length = int.from_bytes(plain[at : at + 4], "little")
        longest = max(longest, length)
        at += 4 + length
        if at >= len(plain):
            break
    return float(longest) if longest > _LONGEST_PLAIN_VALUE else mean


# --- Thrift's compact protocol, as far as a page header has it

_STRUCT, _LIST, _SET, _MAP, _BINARY, _DOUBLE, _BYTE = 12, 9, 10, 11, 8, 7, 3
_LONG_LIST = 0x0F
_FIELDS = {1: "kind", 2: "size", 3: "compressed"}
_CRC = 4
_PAGE_HEADERS = {5: 2, 7: 2, 8: 4}
"""Headers of data pages, dictionary pages and data pages of the second version, with the place of their encoding."""


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follow
                return value

    def number(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def fields(self) -> Any:
        """Yield (number, type) of the fields of a struct; the caller reads or skips each value."""
        number = 0
        while (head := self.byte()) != 0:
            step, kind = head >> 4, head & 0x0F
            number = number + step if step else self.number()
            yield number, kind

    def skip(self, kind: int) -> None:
        if kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner)
        elif kind in {_LIST, _SET}:
            head = self.byte()
            short, kind = head >> 4, head & _LONG_LIST
            for _ in range(self.varint() if short == _LONG_LIST else short):
                self.skip(kind)
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
    """Read a page header; None where it goes on beyond these bytes."""
    cursor = _Cursor(data)
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
