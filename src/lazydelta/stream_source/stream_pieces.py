"""The files between two offsets in pieces, for tasks that read side by side.

A piece is a range of the stream's order. Where there are few files, the piece names them; a step of a million files,
which only who takes off all limits gets, is described by its offsets alone, and the task finds its files itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lazydelta.arrays import numpy_of
from lazydelta.scan.data_file import StoredFile, data_files
from lazydelta.stream_source.stream_offset import StreamOffset
from lazydelta.stream_source.table_stream import Run, TableStream

__all__ = ["NAMED_FILES", "StreamPiece", "plan_pieces"]

# A step of Delta's default size has a thousand.
NAMED_FILES = 10_000
_MOST_BYTES = 128 << 20
_LEAST_BYTES = 1 << 20
_MOST_FILES = 1000


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Consecutive files of a stream: by name, or None where the two offsets have to do."""

    start: StreamOffset
    end: StreamOffset
    files: tuple[StoredFile, ...] | None = None

    def files_of(self, stream: TableStream) -> Iterator[StoredFile]:
        """Yield the files to read."""
        if self.files is not None:
            yield from self.files
            return
        for run in stream.runs_between(self.start, self.end):
            yield from stored(run, stream)


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
        return [_piece(runs, [each for run in runs for each in stored(run, stream)]) for runs in _cut(held, target)]
    return [_piece(runs, None) for runs in _cut(stream.runs_between(start, end), _MOST_BYTES)]


def _piece(runs: Sequence[Run], files: Sequence[StoredFile] | None) -> StreamPiece:
    last = runs[-1]
    return StreamPiece(runs[0].offset(0), last.offset(len(last.files)), None if files is None else tuple(files))


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
