"""Reader of text files: fast for blocks of valid records, exact about invalid ones.

A block is passed whole to Arrow's reader. If the reader refuses it, or does not return one row per record, the records
are checked individually. Records known to be invalid are rejected. If the reader still refuses the rest, it is bisected
down to the invalid record. Only the reader decides what is a row, and each record is read or rejected exactly once,
independent of its neighbours.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from lazydelta.errors import DataFileError
from lazydelta.runtime import compute as pc

__all__ = [
    "BadRow",
    "Block",
    "LineFormat",
    "Lines",
    "RejectRows",
    "Required",
    "Splitter",
    "as_text",
    "blocks",
    "decompressed",
    "missing",
    "rows_of_lines",
]


# Splitting of a text file into blocks of whole records, some megabytes at a time.
#
# Blocks do not depend on file size, compression or chunk boundaries. Data that is not a record, because its end is
# missing or too far away, is returned in pieces with the reason. It can then be rejected, and no data is skipped.


BLOCK_BYTES = 8 << 20
LONGEST_RECORD = 64 << 20
_BOM = b"\xef\xbb\xbf"
_PIECE = 4 << 20
# Invalid data may have any size and becomes Python objects, so it is passed on in small pieces.
_FAULTY_PIECE = 1 << 20
_LONGEST_CHARACTER = 4


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records. ``first`` is the line number of the first one. ``fault`` says why the data is not a record."""

    data: bytes
    first: int
    fault: str | None = None


class OpenRecord(Protocol):
    """Incremental search for the end of one record."""

    @property
    def is_closed(self) -> bool:
        """Return whether the record may end with the last piece."""

    def end(self, data: bytes, position: int = 0) -> int:
        """Return the index after the record in its next piece, or -1 if it continues."""


class Splitter(Protocol):
    """Finds the ends of records of a format."""

    unit: str
    unclosed: str

    def cut(self, data: bytes) -> int:
        """Return the index after the last record that is certain to end. The data begins with a record."""

    def lines(self, data: bytes) -> int:
        """Return the number of line ends, inside or between records."""

    def begin(self) -> OpenRecord:
        """Start a search for the end of a record."""


class Lines:
    """Splitter for records that are lines."""

    unit = "line"
    unclosed = ""

    is_closed = True

    def cut(self, data: bytes) -> int:
        """Return the index after the last complete line."""
        return data.rfind(b"\n") + 1

    def lines(self, data: bytes) -> int:
        """Return the number of complete lines."""
        return data.count(b"\n")

    def begin(self) -> Lines:
        """Return the splitter itself: a search in a line has no state."""
        return self

    def end(self, data: bytes, position: int = 0) -> int:
        """Return the index after the line, or -1 if it continues."""
        return data.find(b"\n", position) + 1 or -1


def blocks(
    chunks: Iterable[bytes], splitter: Splitter, size: int = BLOCK_BYTES, longest: int = LONGEST_RECORD
) -> Iterator[Block]:
    """Yield the records of a file in blocks of about ``size`` bytes. A record longer than ``longest`` is invalid."""
    return _Blocks(splitter, size, longest).of(_without_bom(chunks))


class _Blocks:
    def __init__(self, splitter: Splitter, size: int, longest: int) -> None:
        self._splitter = splitter
        self._size = size
        self._longest = longest
        self._number = 1

    def of(self, chunks: Iterator[bytes]) -> Iterator[Block]:
        waiting: list[bytes] = []
        held, due = 0, self._size
        for chunk in chunks:
            waiting.append(chunk)
            held += len(chunk)
            if held < due:
                continue
            data = b"".join(waiting)
            cut = self._splitter.cut(data)
            if cut:
                yield self._block(data[:cut])
                data = data[cut:]
            elif held > self._longest:
                data = yield from self._too_long(data, chunks)
            waiting, held = [data], len(data)
            # A long record is scanned again only when its length has doubled, not with each chunk.
            due = max(self._size, min(2 * held, self._longest + 1))
        if held:
            yield from self._end(b"".join(waiting))

    def _block(self, data: bytes) -> Block:
        block = Block(data, self._number)
        self._number += self._splitter.lines(data)
        return block

    def _too_long(self, data: bytes, chunks: Iterator[bytes]) -> Generator[Block, None, bytes]:
        """Yield the record at the start of the data up to its end, and return the data after it."""
        record = self._splitter.begin()
        fault = f"the {self._splitter.unit} that begins in line {self._number} is longer than {self._longest} bytes"
        end = record.end(data)
        waiting, held = [data], len(data)
        while end < 0:
            if held > _FAULTY_PIECE:
                data = yield from self._faulty(b"".join(waiting), fault, is_whole=False)
                waiting, held = [data], len(data)
            more = next(chunks, None)
            if more is None:
                yield from self._faulty(b"".join(waiting), fault)
                return b""
            end = record.end(more)
            waiting.append(more)
            held += len(more)
        last = waiting.pop()
        yield from self._faulty(b"".join([*waiting, last[:end]]), fault)
        return last[end:]

    def _end(self, data: bytes) -> Iterator[Block]:
        """Yield the rest of the file. The last record may lack a line end."""
        cut = self._splitter.cut(data)
        record = self._splitter.begin()
        if record.end(data, cut) < 0 and not record.is_closed:
            if cut:
                yield self._block(data[:cut])
            yield from self._faulty(data[cut:], self._splitter.unclosed.format(line=self._number))
        else:
            yield self._block(data)

    def _faulty(self, data: bytes, fault: str, *, is_whole: bool = True) -> Generator[Block, None, bytes]:
        """Yield data in pieces. Unless ``is_whole``, return the rest to be continued."""
        start = 0
        while len(data) - start > (0 if is_whole else _FAULTY_PIECE):
            stop = _piece(data, start)
            block = Block(data[start:stop], self._number, fault)
            self._number += self._splitter.lines(block.data)
            yield block
            start = stop
        return data[start:]


def _piece(data: bytes, start: int) -> int:
    """Return where a piece may end: at a line end if there is one, and never inside a character."""
    stop = start + _FAULTY_PIECE
    if stop >= len(data):
        return len(data)
    line = data.rfind(b"\n", start, stop) + 1
    if line:
        return line
    for end in range(stop, stop - _LONGEST_CHARACTER, -1):
        # Split neither a UTF-8 character nor a line end.
        if data[end] & 0xC0 != 0x80 and data[end - 1 : end + 1] != b"\r\n":  # noqa: PLR2004
            return end
    return stop


def _without_bom(chunks: Iterable[bytes]) -> Iterator[bytes]:
    beginning = b""
    chunks = iter(chunks)
    for chunk in chunks:
        beginning += chunk
        if len(beginning) >= len(_BOM):
            break
    if beginning:
        yield beginning.removeprefix(_BOM)
    yield from chunks


def decompressed(chunks: Iterable[bytes], place: str) -> Iterator[bytes]:
    """Yield gzip-decompressed data, also of several members, in pieces of bounded size."""
    inflate: zlib._Decompress | None = None
    try:
        for chunk in chunks:
            data = chunk
            while data:
                inflate = inflate or zlib.decompressobj(zlib.MAX_WBITS | 16)
                found = inflate.decompress(data, _PIECE)
                data = inflate.unconsumed_tail
                if inflate.eof:  # members may be padded
                    data, inflate = inflate.unused_data.lstrip(b"\0"), None
                yield found
        while inflate is not None:  # flush the remaining data
            found = inflate.decompress(b"", _PIECE)
            if inflate.eof:
                inflate = None
            elif not found:
                raise _damaged(place, "it ends too early")
            yield found
    except zlib.error as error:
        raise _damaged(place, str(error)) from error


def _damaged(place: str, why: str) -> DataFileError:
    message = f"The file {place} is not a complete gzip file: {why}"
    return DataFileError(message, path=place, hint="nothing was committed; write the file again, or remove it")


class BadRow(NamedTuple):
    """A rejected record: its text, the reason, and its location."""

    record: str
    reason: str
    source: str


RejectRows: TypeAlias = Callable[[list[BadRow]], None]
Required: TypeAlias = dict[str, str]
"""Columns that must have a value, each with the reason for rejecting a row without one."""


class LineFormat(Protocol):
    """Parser from records, usually lines, to rows."""

    def parse(self, lines: bytes) -> pa.RecordBatch:
        """Parse records to rows. Raise `ArrowException` or `ValueError` if any record is invalid."""

    def fault(self, line: bytes) -> str | None:
        """Return what is wrong with a record, or None if only Arrow can tell."""

    def records(self, data: bytes) -> Iterable[tuple[int, bytes]]:
        """Return the non-empty records, each with the number of lines before it."""


def rows_of_lines(
    found: Iterable[Block], lines: LineFormat, place: str, reject: RejectRows, required: Required
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file's blocks. Invalid records go to ``reject``."""
    for block in found:
        if block.fault is not None:
            # Reject by line, so that the number of rejected rows reflects the size of the data.
            texts = enumerate(block.data.split(b"\n"), block.first)
            bad = [(number, as_text(line.rstrip(b"\r"))) for number, line in texts]
            reject([BadRow(text, block.fault, f"{place}:{number}") for number, text in bad if text])
            continue
        yield from _Block(block, lines, place, reject, required).rows()


class _Block:
    def __init__(self, block: Block, lines: LineFormat, place: str, reject: RejectRows, required: Required) -> None:
        self._block = block
        self._lines = lines
        self._place = place
        self._reject = reject
        self._required = required

    def rows(self) -> Iterator[pa.RecordBatch]:
        data = self._block.data
        try:
            batch = self._lines.parse(data)
        except (pa.ArrowException, ValueError):
            batch = None
        if batch is not None and batch.num_rows == data.count(b"\n") + (not data.endswith(b"\n")):
            numbered: list[tuple[int, bytes]] | None = None
        else:
            numbered = self._numbered()
            if batch is None or batch.num_rows != len(numbered):
                yield from self._salvaged(numbered)
                return
        yield from self._complete(batch, numbered)

    def _numbered(self) -> list[tuple[int, bytes]]:
        first = self._block.first
        return [(first + before, record) for before, record in self._lines.records(self._block.data)]

    def _salvaged(self, numbered: list[tuple[int, bytes]]) -> Iterator[pa.RecordBatch]:
        bad: list[BadRow] = []
        good = []
        for number, line in numbered:
            fault = self._lines.fault(line)
            if fault is None:
                good.append((number, line))
            else:
                bad.append(self._bad(number, line, fault))
        self._reject(bad)
        # The first half is processed first, so that rows keep their order.
        left = [good] if good else []
        while left:
            part = left.pop()
            try:
                batch = self._lines.parse(b"\n".join(line for _, line in part))
                if batch.num_rows != len(part):
                    raise pa.ArrowInvalid(f"the line makes {batch.num_rows} rows")
            except (pa.ArrowException, ValueError) as error:
                if len(part) == 1:
                    self._reject([self._bad(*part[0], _brief(error))])
                else:
                    middle = len(part) // 2
                    left += [part[middle:], part[:middle]]
                continue
            yield from self._complete(batch, part)

    def _complete(self, batch: pa.RecordBatch, numbered: list[tuple[int, bytes]] | None) -> Iterator[pa.RecordBatch]:
        """Reject the rows that lack a required value, and yield the others."""
        faults = missing(batch, self._required)
        if faults:
            numbered = self._numbered() if numbered is None else numbered
            self._reject([self._bad(*numbered[row], reason) for row, reason in sorted(faults.items())])
            batch = batch.filter(pa.array([row not in faults for row in range(batch.num_rows)]))
        if batch.num_rows:
            yield batch

    def _bad(self, number: int, line: bytes, reason: str) -> BadRow:
        return BadRow(as_text(line.rstrip(b"\r\n")), reason, f"{self._place}:{number}")


def missing(batch: pa.RecordBatch, required: Required) -> dict[int, str]:
    """Return the rows that lack a required value, with the reason."""
    faults: dict[int, str] = {}
    for name, reason in required.items():
        index = batch.schema.get_field_index(name)
        nulls = batch.num_rows if index < 0 else batch.column(index).null_count
        if not nulls:
            continue
        rows = range(batch.num_rows) if index < 0 else pc.indices_nonzero(pc.is_null(batch.column(index))).to_pylist()
        for row in rows:
            faults.setdefault(row, reason)
    return faults


def as_text(line: bytes) -> str:
    """Decode a record for display, whatever bytes it contains."""
    return line.decode("utf-8", "backslashreplace")


def _brief(error: Exception) -> str:
    """Return Arrow's message without the row number, which refers to a bisected part."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return said.removesuffix(" in row 0").removeprefix("JSON parse error: ")[:500]
