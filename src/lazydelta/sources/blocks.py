"""The records of a text file, some megabytes at a time.

Whole records only, whatever the file's size or compression, and wherever the pieces that it comes in are cut. What is
no record, because it has no end or none within reach, comes as well, in pieces and with the reason: somebody has to be
able to put it aside, and nothing of a file may be left out.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from lazydelta.errors import DataFileError

__all__ = ["BLOCK_BYTES", "LONGEST_RECORD", "Block", "Lines", "OpenRecord", "Splitter", "blocks", "decompressed"]

BLOCK_BYTES = 8 << 20
LONGEST_RECORD = 64 << 20
_BOM = b"\xef\xbb\xbf"
_PIECE = 4 << 20
# What is no record may be of any size, and becomes objects of Python's: it is handed on in little pieces.
_FAULTY_PIECE = 1 << 20
_LONGEST_CHARACTER = 4


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records; ``first`` is the number of the first line in its file. ``fault`` says why these are none."""

    data: bytes
    first: int
    fault: str | None = None


class OpenRecord(Protocol):
    """The search for the end of one record, from piece to piece of it."""

    @property
    def is_closed(self) -> bool:
        """Tell whether the record may end where the last piece does."""

    def end(self, data: bytes, position: int = 0) -> int:
        """Return the index behind the record in the next piece of it, -1 if it goes on."""


class Splitter(Protocol):
    """What tells where the records of a format end."""

    unit: str
    unclosed: str

    def cut(self, data: bytes) -> int:
        """Return the index behind the last record that ends for certain; data begins with a record."""

    def lines(self, data: bytes) -> int:
        """Return how many ends of lines there are, in records or between them."""

    def begin(self) -> OpenRecord:
        """Begin to look for the end of a record."""


class Lines:
    """A record is a line."""

    unit = "line"
    unclosed = ""

    is_closed = True

    def cut(self, data: bytes) -> int:
        """Return the index behind the last line that ends."""
        return data.rfind(b"\n") + 1

    def lines(self, data: bytes) -> int:
        """Return how many lines end."""
        return data.count(b"\n")

    def begin(self) -> Lines:
        """Return what has the state of a search in a line: there is none."""
        return self

    def end(self, data: bytes, position: int = 0) -> int:
        """Return the index behind the line."""
        return data.find(b"\n", position) + 1 or -1


def blocks(
    chunks: Iterable[bytes], splitter: Splitter, size: int = BLOCK_BYTES, longest: int = LONGEST_RECORD
) -> Iterator[Block]:
    """Yield the records of a file in blocks of about ``size`` bytes; one longer than ``longest`` is at fault."""
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
            # A long record is looked at anew when twice as much of it has come, not with each piece.
            due = max(self._size, min(2 * held, self._longest + 1))
        if held:
            yield from self._end(b"".join(waiting))

    def _block(self, data: bytes) -> Block:
        block = Block(data, self._number)
        self._number += self._splitter.lines(data)
        return block

    def _too_long(self, data: bytes, chunks: Iterator[bytes]) -> Generator[Block, None, bytes]:
        """Yield the record that data begins with, to its end; return what comes behind it."""
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
        """Yield what is left at the end of the file: records, and the last may have no end of a line."""
        cut = self._splitter.cut(data)
        record = self._splitter.begin()
        if record.end(data, cut) < 0 and not record.is_closed:
            if cut:
                yield self._block(data[:cut])
            yield from self._faulty(data[cut:], self._splitter.unclosed.format(line=self._number))
        else:
            yield self._block(data)

    def _faulty(self, data: bytes, fault: str, *, is_whole: bool = True) -> Generator[Block, None, bytes]:
        """Yield data in pieces; return what is left of it where more is to come."""
        start = 0
        while len(data) - start > (0 if is_whole else _FAULTY_PIECE):
            stop = _piece(data, start)
            block = Block(data[start:stop], self._number, fault)
            self._number += self._splitter.lines(block.data)
            yield block
            start = stop
        return data[start:]


def _piece(data: bytes, start: int) -> int:
    """Return where a piece may end: with a line if there is one, and with a whole character."""
    stop = start + _FAULTY_PIECE
    if stop >= len(data):
        return len(data)
    line = data.rfind(b"\n", start, stop) + 1
    if line:
        return line
    for end in range(stop, stop - _LONGEST_CHARACTER, -1):
        # Neither in the midst of a character of UTF-8, nor of an end of a line.
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
    """Yield what was compressed by gzip, also in several members, in pieces of bounded size."""
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
        while inflate is not None:  # what is still inside
            found = inflate.decompress(b"", _PIECE)
            if inflate.eof:
                inflate = None
            elif not found:
                raise _damaged(place, "it ends too early")
            yield found
    except zlib.error as error:
        raise _damaged(place, str(error)) from error


def _damaged(place: str, why: str) -> DataFileError:
    message = f"The file {place} is not whole gzip: {why}"
    return DataFileError(message, path=place, hint="nothing was committed; write the file again, or take it away")
