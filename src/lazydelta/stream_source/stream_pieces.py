"""The files between two offsets in pieces, for tasks that read side by side.

A piece is a range of the stream's order. Where there are few files, the piece names them; a step of a million files,
which only who takes off all limits gets, is described by its offsets alone, and the task finds its files itself. A
single file that is larger than a piece becomes several, each with a share of its row groups.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from lazydelta.arrays import numpy_of
from lazydelta.scan.data_file import StoredFile, data_files
from lazydelta.stream_source.stream_offset import StreamOffset
from lazydelta.stream_source.table_stream import Run, TableStream

__all__ = ["NAMED_FILES", "StreamPiece", "plan_pieces"]

# A step of Delta's default size has a thousand.
NAMED_FILES = 10_000
_MOST_BYTES = 128 << 20
_LEAST_BYTES = 1 << 20
# Row groups are seldom smaller, and each share of a file reads its footer.
_LEAST_SHARE = 4 << 20
_MOST_FILES = 1000


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Consecutive files of a stream: by name, or None where the two offsets have to do.

    ``share`` is which of so many shares of its one file is meant, None the whole of all.
    """

    start: StreamOffset
    end: StreamOffset
    files: tuple[StoredFile, ...] | None = None
    share: tuple[int, int] | None = None

    def files_of(self, stream: TableStream | None) -> Iterator[StoredFile]:
        """Yield the files to read; only who has names needs no stream."""
        if self.files is not None or stream is None:
            found: Iterable[StoredFile] = self.files or ()
        else:
            found = (file for run in stream.runs_between(self.start, self.end) for file in stored(run, stream))
        yield from found if self.share is None else (replace(file, share=self.share) for file in found)


def stored(run: Run, stream: TableStream) -> Iterator[StoredFile]:
    """Yield the files of a run as they are read."""
    return (each.to_read() for each in data_files(run.files, stream.handle.store, stream.pinned.schema))


def plan_pieces(
    stream: TableStream, start: StreamOffset, end: StreamOffset, *, named: int = NAMED_FILES
) -> list[StreamPiece]:
    """Divide what lies between two offsets into pieces of about the same size."""
    held: list[Run] = []
    count = total = 0
    for run in stream.runs_between(start, end):
        count += len(run.files)
        total += int(numpy_of(run.files.size).sum())
        if count <= named:
            held.append(run)
    if count <= named:
        target = max(_LEAST_BYTES, min(_MOST_BYTES, total // (2 * (os.cpu_count() or 1)) + 1))
        return [
            piece
            for runs in _cut(held, target)
            for piece in _pieces(runs, target, [each for run in runs for each in stored(run, stream)])
        ]
    return [
        piece for runs in _cut(stream.runs_between(start, end), _MOST_BYTES) for piece in _pieces(runs, _MOST_BYTES)
    ]


def _pieces(runs: Sequence[Run], target: int, files: Sequence[StoredFile] | None = None) -> Iterator[StreamPiece]:
    """Yield a stretch of the order as one piece, a file that is larger than one as several."""
    last = runs[-1]
    whole = StreamPiece(runs[0].offset(0), last.offset(len(last.files)), None if files is None else tuple(files))
    sizes = [size for run in runs for size in numpy_of(run.files.size).tolist()]
    count = -(-sizes[0] // max(target, _LEAST_SHARE)) if len(sizes) == 1 else 1
    if count <= 1:
        yield whole
    else:
        yield from (dataclasses.replace(whole, share=(number, count)) for number in range(count))


def _cut(runs: Iterable[Run], target: int) -> Iterator[list[Run]]:
    """Yield stretches of at most ``target`` bytes, but for a single file that is larger."""
    held: list[Run] = []
    size = count = 0
    for run in runs:
        begin = 0
        for index, each in enumerate(numpy_of(run.files.size).tolist()):
            if count and (size + each > target or count >= _MOST_FILES):
                if index > begin:
                    held.append(run.part(begin, index))
                yield held
                held, begin, size, count = [], index, 0, 0
            size += each
            count += 1
        if begin < len(run.files):
            held.append(run.part(begin, len(run.files)))
    if held:
        yield held
