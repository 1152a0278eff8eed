"""``LongStrings``: a string column whose pages are too large to decode, read a few rows at a time.

Arrow decodes a page as a whole, and some writers put a thousand rows into each page, however long the strings are. For
a table with thousands of columns, that is hundreds of megabytes of statistics. In uncompressed pages, as delta-rs
writes them, each string is stored verbatim in the file. One pass over the pages records the positions, and the strings
of a few rows are then read from there. Compressed pages are held decompressed if they fit, because a decoder would hold
a dictionary twice. Columns in any other form are rejected with ``UnlikeError``.
"""

from __future__ import annotations

import bisect
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.log.checkpoint.pages import CODECS, page_header

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["LongStrings", "UnlikeError", "text_column"]

_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _DICTIONARY_CODED = 0, frozenset({2, 8})
_LEVEL_BITS, _PRESENT = 2, 2  # an optional string in an optional action
_FIRST_HEADER, _LONGEST_HEADER = 256, 1 << 20
_READ_AT_ONCE = 1 << 20
_LENGTH = 4
_WIDEST = 32

ReadAt = Callable[[int, int], bytes | memoryview]
"""Returns this many bytes from a position in the file."""


class UnlikeError(Exception):
    """The column does not have the form that can be read here."""


class LongStrings(msgspec.Struct, frozen=True):
    """The position of each row's string: its first byte and its length, -1 for null.

    ``unpacked`` reads from the decompressed pages.
    """

    starts: np.ndarray[tuple[int], np.dtype[np.int64]]
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]]
    unpacked: ReadAt | None = None

    @classmethod
    def of(
        cls, metadata: pq.FileMetaData, group: int, column: int, read_at: ReadAt, *, most_held: int = 0
    ) -> LongStrings:
        """Scan the pages of a column in a row group once; raise UnlikeError if they do not have the required form.

        At most ``most_held`` bytes of decompressed pages are held.
        """
        chunk, described = metadata.row_group(group).column(column), metadata.schema.column(column)
        is_optional = (described.max_definition_level, described.max_repetition_level) == (_LEVEL_BITS, 0)
        is_packed = chunk.compression != "UNCOMPRESSED"
        if described.physical_type != "BYTE_ARRAY" or not is_optional:
            raise UnlikeError
        if is_packed and (chunk.compression not in CODECS or chunk.total_uncompressed_size > most_held):
            raise UnlikeError
        offset = chunk.dictionary_page_offset
        start = chunk.data_page_offset if offset is None else min(offset, chunk.data_page_offset)
        rows = metadata.row_group(group).num_rows
        pages = _Pages(read_at, start, start + chunk.total_compressed_size)
        unpacked = _UnpackedPages(pages, CODECS[chunk.compression], most_held) if is_packed else None
        try:
            starts, lengths = _places(unpacked or pages, rows)
        except (IndexError, OverflowError, ValueError, OSError, pa.ArrowException) as error:
            raise UnlikeError from error
        return cls(starts, lengths, unpacked.bytes if unpacked is not None else None)

    def rows_within(self, first: int, most_bytes: int) -> int:
        """Return how many rows from this one on fit into this many bytes, at least one."""
        taken = np.cumsum(np.maximum(self.lengths[first:], 0))
        return max(1, int(np.searchsorted(taken, most_bytes, side="right")))

    def read(self, first: int, rows: int, read_at: ReadAt) -> pa.StringArray:
        """Read the strings of these rows."""
        read_at = self.unpacked or read_at
        starts, lengths = self.starts[first : first + rows], self.lengths[first : first + rows]
        known = np.maximum(lengths, 0)
        offsets = np.zeros(len(known) + 1, np.int32)
        np.cumsum(known, out=offsets[1:])
        data = b"".join(
            read_at(int(start), int(length)) for start, length in zip(starts, lengths, strict=True) if length > 0
        )
        valid = np.packbits(lengths >= 0, bitorder="little")
        texts = pa.StringArray.from_buffers(len(known), pa.py_buffer(offsets), pa.py_buffer(data), pa.py_buffer(valid))
        texts.validate(full=True)
        return texts


class _Page(msgspec.Struct, frozen=True):
    kind: int
    encoding: int
    values: int
    size: int
    start: int
    end: int


class _Pages:
    """The pages of a column, with sequential reads in blocks."""

    def __init__(self, read_at: ReadAt, start: int, end: int) -> None:
        self._read_at = read_at
        self._at = start
        self._end = end
        self._block: bytes | memoryview = b""
        self._block_start = start

    def __iter__(self) -> Iterator[_Page]:
        while self._at < self._end:
            needs, header = _FIRST_HEADER, None
            while header is None:
                header = page_header(self.bytes(self._at, min(needs, self._end - self._at)))
                if header is None and (needs >= _LONGEST_HEADER or self._at + needs >= self._end):
                    raise UnlikeError
                needs *= 8
            start = self._at + header.length
            self._at = start + header.compressed
            if self._at > self._end:
                raise UnlikeError
            yield _Page(header.kind, header.encoding, header.values, header.size, start, self._at)
            self._check(start, header.compressed, header.crc)

    def bytes(self, start: int, length: int) -> bytes:
        """Return bytes from a block that is kept for the next reads."""
        begin = self._block_start
        if not begin <= start <= start + length <= begin + len(self._block):
            self._block_start = start
            self._block = self._read_at(start, max(length, min(_READ_AT_ONCE, self._end - start)))
        place = start - self._block_start
        found = bytes(self._block[place : place + length])
        if len(found) != length:
            raise IndexError
        return found

    def unpacked(self, page: _Page, codec: str) -> pa.Buffer:
        """Return the decompressed content of a page."""
        packed = self._read_at(page.start, page.end - page.start)
        return pa.decompress(packed, page.size, codec)

    def _check(self, start: int, size: int, crc: int | None) -> None:
        """Verify the checksum of a page if it has one, which takes another pass over its bytes."""
        if crc is None:
            return
        sum_ = 0
        for place in range(start, start + size, _READ_AT_ONCE):
            sum_ = zlib.crc32(self._read_at(place, min(_READ_AT_ONCE, start + size - place)), sum_)
        if sum_ != crc & 0xFFFFFFFF:
            raise UnlikeError  # the Arrow decoder reports the error


class _UnpackedPages:
    """Decompressed pages, end to end."""

    def __init__(self, packed: _Pages, codec: str, most_held: int) -> None:
        self._packed = packed
        self._codec = codec
        self._most_held = most_held
        self._begins: list[int] = []
        self._held: list[pa.Buffer] = []
        self._size = 0

    def __iter__(self) -> Iterator[_Page]:
        for page in self._packed:
            # The footer may declare less than the pages contain.
            if page.size > self._most_held - self._size:
                raise UnlikeError
            start = self._size
            self._begins.append(start)
            self._held.append(self._packed.unpacked(page, self._codec))
            self._size += page.size
            yield _Page(page.kind, page.encoding, page.values, page.size, start, self._size)

    def bytes(self, start: int, length: int) -> bytes:
        """Return bytes of a page."""
        number = bisect.bisect_right(self._begins, start) - 1
        place = start - self._begins[number]
        if place + length > len(self._held[number]):
            raise IndexError
        return bytes(memoryview(self._held[number])[place : place + length])


def _places(pages: _Pages | _UnpackedPages, rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    starts, lengths = np.full(rows, -1, np.int64), np.full(rows, -1, np.int64)
    words: list[tuple[int, int]] = []
    row = 0
    for page in pages:
        if page.kind == _DICTIONARY_PAGE:
            words = list(_plain(pages, page.start, page.end, page.values))
            continue
        # A page's own count must not decide how much memory is allocated: it has at most the remaining rows of the row
        # group.
        if page.kind != _DATA_PAGE or page.values > rows - row:
            raise UnlikeError
        size = int.from_bytes(pages.bytes(page.start, _LENGTH), "little")
        levels = _numbers(pages.bytes(page.start + _LENGTH, size), _LEVEL_BITS, page.values)
        present = np.flatnonzero(levels == _PRESENT)
        begin = page.start + _LENGTH + size
        if page.encoding == _PLAIN:
            found = list(_plain(pages, begin, page.end, len(present)))
        elif page.encoding in _DICTIONARY_CODED:
            data = pages.bytes(begin, page.end - begin)
            found = [words[code] for code in _numbers(data[1:], data[0], len(present)).tolist()]
        else:
            raise UnlikeError
        starts[row + present] = [start for start, _ in found]
        lengths[row + present] = [length for _, length in found]
        row += page.values
    if row != rows:
        raise UnlikeError
    return starts, lengths


def _plain(pages: _Pages | _UnpackedPages, start: int, end: int, count: int) -> Iterator[tuple[int, int]]:
    for _ in range(count):
        length = int.from_bytes(pages.bytes(start, _LENGTH), "little")
        if start + _LENGTH + length > end:
            raise UnlikeError
        yield start + _LENGTH, length
        start += _LENGTH + length


def _numbers(data: bytes, width: int, count: int) -> npt.NDArray[np.int64]:
    """Decode numbers in Parquet's RLE/bit-packing hybrid encoding."""
    if width > _WIDEST:
        raise UnlikeError
    found: list[npt.NDArray[np.int64]] = []
    held = at = 0
    while held < count:
        head, at = _varint(data, at)
        if head & 1:
            size = (head >> 1) * width
            bits = np.unpackbits(np.frombuffer(data, np.uint8, size, at), bitorder="little")
            weights = np.left_shift(np.int64(1), np.arange(width, dtype=np.int64))
            run = bits.reshape(-1, width).astype(np.int64) @ weights if width else np.zeros(8 * (head >> 1), np.int64)
            at += size
        else:
            size = -(-width // 8)
            run = np.full(min(head >> 1, count - held), int.from_bytes(data[at : at + size], "little"), np.int64)
            at += size
        if not len(run):
            raise UnlikeError
        found.append(run)
        held += len(run)
    return np.concatenate(found)[:count] if found else np.zeros(0, np.int64)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - the continuation bit
            return value, at


def text_column(metadata: pq.FileMetaData, path: str) -> int:
    """Return the index of the column with this path; -1 if there is none."""
    paths: Sequence[str] = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    return paths.index(path) if path in paths else -1
