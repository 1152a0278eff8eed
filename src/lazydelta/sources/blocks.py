"""The lines of a source file, some megabytes at a time.

Whole lines only, whatever the file's size or compression. A line that is longer than a block may be is the one thing
that is not read as it is.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lazydelta.errors import DataFileError

__all__ = ["BLOCK_BYTES", "LONGEST_LINE", "Block", "blocks", "decompressed"]

BLOCK_BYTES = 8 << 20
LONGEST_LINE = 64 << 20
_KEPT = 64 << 10
_BOM = b"\xef\xbb\xbf"
_PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines; ``first`` is the number of the first in its file. ``oversize`` is the length of a line cut short."""

    data: bytes
    first: int
    oversize: int = 0


def blocks(chunks: Iterable[bytes], size: int = BLOCK_BYTES, longest: int = LONGEST_LINE) -> Iterator[Block]:
    """Yield the lines of a file in blocks of about ``size`` bytes; a line longer than ``longest`` is cut short."""
    number = 1
    waiting: list[bytes] = []
    held = skipped = 0
    for chunk in _without_bom(chunks):
        if skipped:
            head, newline, chunk = chunk.partition(b"\n")  # noqa: PLW2901 - the rest of it goes on below
            skipped += len(head)
            if not newline:
                continue
            yield Block(b"".join(waiting)[:_KEPT], number, skipped)
            number, waiting, held, skipped = number + 1, [], 0, 0
        waiting.append(chunk)
        held += len(chunk)
        if held < size:
            continue
        data = b"".join(waiting)
        cut = data.rfind(b"\n") + 1
        if cut:
            yield Block(data[:cut], number)
            number += data.count(b"\n", 0, cut)
            waiting, held = [data[cut:]], len(data) - cut
        elif held > longest:
            waiting, skipped = [data[:_KEPT]], held
        else:
            waiting = [data]
    if skipped:
        yield Block(b"".join(waiting)[:_KEPT], number, skipped)
    elif held:
        yield Block(b"".join(waiting), number)


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
