"""A scan in pieces: for workers that read side by side, and as a number before anything is read."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from lazydelta.errors import OptionError
from lazydelta.handle import TableHandle
from lazydelta.row_scan.row_request import RowRequest
from lazydelta.row_scan.row_scanner import RowScanner, stream_files
from lazydelta.row_scan.row_stream import RowStream
from lazydelta.rows.opened_file import FileToRead

__all__ = ["RowEstimate", "RowFragment", "estimate_rows", "row_fragments"]


@dataclass(frozen=True, slots=True)
class RowEstimate:
    """What a scan would read at most: files that may match, their bytes, and their live rows.

    ``rows`` is None where a file's number of rows is not in the log.
    """

    files: int
    size: int
    rows: int | None


@dataclass(frozen=True, slots=True)
class RowFragment:
    """Some files of a scan with all that it takes to read their rows; it pickles.

    A pickle holds no credentials, unless the table's handle was told to carry them.
    """

    handle: TableHandle
    request: RowRequest
    files: tuple[FileToRead, ...]

    @property
    def schema(self) -> pa.Schema:
        """The schema of its rows."""
        return self.request.schema

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(max(0, file.size) for file in self.files)

    def rows(self) -> RowStream:
        """Return its rows as a stream."""
        return stream_files(self.handle, self.request, list(self.files))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows."""
        return iter(self.rows())

    def to_table(self) -> pa.Table:
        """Return its rows as a table."""
        return self.rows().read_all()

    def count_rows(self) -> int:
        """Return the number of its rows."""
        return stream_files(self.handle, replace(self.request, output=()), list(self.files)).count()

    def __dask_tokenize__(self) -> object:
        # Dask names its tasks by what they are given: the same rows have the same name, whatever the handle has cached.
        request = self.request
        asked = tuple(map(str, (request.output, request.predicate, request.expression, request.limit)))
        files = tuple((file.path, file.size, str(file.deletion_vector)) for file in self.files)
        return (type(self).__qualname__, self.handle.uri, asked, files)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows().__arrow_c_stream__(requested_schema)


def row_fragments(scanner: RowScanner, number: int) -> list[RowFragment]:
    """Divide the files of a scan into at most ``number`` pieces of about the same size, the largest files first."""
    if isinstance(number, bool) or number < 1:
        raise OptionError(f"A table cannot be read in {number} pieces", hint="give a number from 1")
    files = sorted((file for file, _ in scanner.files()), key=lambda file: file.size, reverse=True)
    pieces: list[list[FileToRead]] = [[] for _ in range(min(number, len(files)))]
    smallest = [(0, index) for index in range(len(pieces))]
    for file in files:
        size, index = heapq.heappop(smallest)
        pieces[index].append(file)
        heapq.heappush(smallest, (size + max(1, file.size), index))
    return [RowFragment(scanner.handle, scanner.request, tuple(piece)) for piece in pieces]


def estimate_rows(scanner: RowScanner) -> RowEstimate:
    """Add up what the log says of the files that may match."""
    files = size = 0
    rows: int | None = 0
    for file, known in scanner.files():
        files += 1
        size += max(0, file.size)
        rows = None if rows is None or known is None else rows + known
    return RowEstimate(files, size, rows)
