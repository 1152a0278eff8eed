"""``RowScanner``: one request for rows of one table version, built on the file scan and the file reader."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.data_files.columns import check_field_ids
from lazydelta.data_files.reader import FileToRead
from lazydelta.errors import OptionError
from lazydelta.log.file_batch import FileBatch
from lazydelta.predicates import Predicate, conjunction
from lazydelta.protocol.schema import TableSchema
from lazydelta.rows.file_rows import FileLayouts, FileRows, FooterUse, RepeatedValues, Sparsity
from lazydelta.rows.flow import ReadingPool, RowFlow
from lazydelta.rows.request import RowMetrics, RowRequest
from lazydelta.rows.stream import RowStream
from lazydelta.runtime.metrics import ScanMetrics
from lazydelta.scan.base import ScanRange, divided, tail_bytes
from lazydelta.scan.file import StoredFile, data_files
from lazydelta.scan.pruner import Pruner
from lazydelta.scan.request import ScanRequest
from lazydelta.scan.scanner import Explanation, LazyDeltaScanner
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.storage import IoCounters

__all__ = [
    "FilesScanner",
    "RowEstimate",
    "RowFragment",
    "RowScanner",
    "RowShare",
    "ShareSize",
    "estimate_rows",
    "row_fragments",
    "row_shares",
    "share_stream",
    "stream_files",
]


Choose = Callable[[LazyDeltaScanner, FileBatch], FileBatch]
"""Called with the files in discovery order; returns those whose rows are wanted."""

# More files than any table has. A limit tells the file scan that it may stop early; the rows decide when.
_ANY_NUMBER = 1 << 62


class RowScanner:
    """Scans rows of a pinned version. Each call of ``stream`` starts a scan of its own.

    ``pool`` is shared with other scans of the same query; without it, each stream has its own pool while it runs.
    ``within`` limits the scan to a range if other readers take the rest of it. ``by_path`` lists all files first and
    orders them by path, an order that depends only on the version. Otherwise they come in discovery order, which
    depends on where they are found (commits, a checkpoint, a sidecar).
    """

    def __init__(
        self,
        snapshot: Snapshot,
        request: RowRequest,
        *,
        pool: ReadingPool | None = None,
        within: ScanRange | None = None,
        by_path: bool = False,
    ) -> None:
        self._snapshot = snapshot
        self._by_path = by_path
        self.request = request
        self._pool = pool
        self._within = within
        _check_ids(snapshot.schema)

    def narrowed(self, within: ScanRange) -> RowScanner:
        """Return a scanner for one range of the same scan."""
        return RowScanner(self._snapshot, self.request, pool=self._pool, within=within)

    def stream(self, choose: Choose | None = None) -> RowStream:
        """Return the rows as a stream. Nothing is read before the first batch is requested.

        ``choose`` is called with the files in discovery order and returns those whose rows are wanted.
        """
        scanner = self._scan()
        if self._by_path:
            return self._stream(scanner, self.request, lambda: _by_path(self._files(scanner, choose)))
        return self._stream(scanner, self.request, lambda: self._files(scanner, choose))

    def count(self) -> int:
        """Return the number of rows, from the log if it proves that all rows of a file match, else from the file."""
        request = replace(self.request, output=(), limit=None)
        scanner = self._scan(stats_columns=[])
        pruner = Pruner(msgspec.structs.replace(scanner.request, predicate=self.request.predicate), ScanMetrics())
        proven = 0

        def unproven() -> Generator[Sequence[FileToRead]]:
            nonlocal proven
            batches = scanner.batches()
            try:
                for batch in batches:
                    rows = pruner.proven_rows(batch)
                    proven += int(rows.sum())
                    files = data_files(batch, self._snapshot.store, self._snapshot.schema)
                    yield [file.to_read() for file, known in zip(files, rows, strict=True) if not known]
            finally:
                batches.close()

        with self._stream(scanner, request, unproven) as stream:
            total = stream.count() + proven
        return total if self.request.limit is None else min(total, self.request.limit)

    @property
    def snapshot(self) -> Snapshot:
        """The scanned version."""
        return self._snapshot

    @property
    def files_where(self) -> Predicate | None:
        """The predicate that prunes files: the row filter and the filter for files alone."""
        asked = [each for each in (self.request.predicate, self.request.files_where) if each is not None]
        return conjunction(asked) if asked else None

    def files(self) -> Generator[tuple[StoredFile, int | None]]:
        """Yield the files that may hold matching rows, with their number of live rows if the log has it."""
        batches = self._scan(stats_columns=[]).batches()
        try:
            for batch in batches:
                for file in data_files(batch, self._snapshot.store, self._snapshot.schema):
                    vector, stored = file.deletion_vector, file.to_read()
                    gone = 0 if vector is None else vector["cardinality"]
                    yield stored, None if file.num_records is None else file.num_records - gone
        finally:
            batches.close()

    def found_files(self) -> Generator[StoredFile]:
        """Yield the files that may hold matching rows, reading only the statistics needed for pruning."""
        found = self._files(self._scan())
        try:
            for some in found:
                yield from some
        finally:
            found.close()

    def _scan(self, **more: Any) -> LazyDeltaScanner:
        request = self.request
        return self._snapshot.scan(
            ScanRequest.of(
                self._snapshot.schema,
                where=self.files_where,
                limit=None if request.limit is None else _ANY_NUMBER,
                strategy=request.strategy,
                batch_size=self._snapshot.options.rows_in_memory,
                time_travel=self._snapshot.travels,
                **more,
            ),
            within=self._within,
        )

    def _files(self, scanner: LazyDeltaScanner, choose: Choose | None = None) -> Generator[list[StoredFile]]:
        batches, check_files = scanner.batches(), self._snapshot.table.check_files
        try:
            for found in batches:
                batch = found if choose is None else choose(scanner, found)
                if check_files is not None:
                    check_files(batch)
                files = [each.to_read() for each in data_files(batch, self._snapshot.store, self._snapshot.schema)]
                yield [self._meant(each) for each in files]
        finally:
            batches.close()

    def _meant(self, file: StoredFile) -> StoredFile:
        share = None if self._within is None else self._within.share_of(file.path, file.size)
        return file if share is None else msgspec.structs.replace(file, share=share)

    def _stream(
        self, scanner: LazyDeltaScanner, request: RowRequest, found: Callable[[], Generator[Sequence[FileToRead]]]
    ) -> RowStream:
        metrics = RowMetrics()

        def explained() -> dict[str, Any]:
            explanation = Explanation.of(scanner).as_dict()
            explanation["plan"]["limit"] = request.limit
            explanation["plan"]["columns"] = [each.name for each in request.output]
            # The file scan updates its metrics once per batch of files; rows were read since then.
            explanation["metrics"]["delta.lazy.requests"] = scanner.io.requests
            explanation["metrics"]["delta.lazy.bytes_read"] = scanner.io.bytes_read
            return explanation | {"rows": metrics.as_dict()}

        return _row_stream(
            self._snapshot.table, request, found, scanner.io, metrics, pool=self._pool, explained=explained
        )


def _by_path(found: Generator[list[StoredFile]]) -> Generator[list[StoredFile]]:
    with closing(found):
        files = [file for some in found for file in some]
    yield sorted(files, key=lambda file: file.path)


class FilesScanner:
    """Scans rows of known files, as `RowScanner` does for a version."""

    def __init__(
        self, handle: TableHandle, request: RowRequest, files: Sequence[FileToRead], *, pool: ReadingPool | None = None
    ) -> None:
        self._handle = handle
        self._request = request
        self._files = files
        self._pool = pool

    def stream(self) -> RowStream:
        """Return the rows of the files, in their order."""
        return stream_files(self._handle, self._request, self._files, pool=self._pool)

    def count(self) -> int:
        """Return the number of rows that match."""
        request = replace(self._request, output=())
        with stream_files(self._handle, request, self._files, pool=self._pool) as stream:
            return stream.count()

    def found_files(self) -> Generator[FileToRead]:
        """Yield the files."""
        yield from self._files


def stream_files(
    handle: TableHandle, request: RowRequest, files: Sequence[FileToRead], *, pool: ReadingPool | None = None
) -> RowStream:
    """Return the rows of known files, in their order."""
    _check_ids(request.table)
    metrics = RowMetrics()

    def found() -> Generator[Sequence[FileToRead]]:
        yield files

    return _row_stream(
        handle, request, found, IoCounters(), metrics, pool=pool, explained=lambda: {"rows": metrics.as_dict()}
    )


def _row_stream(
    handle: TableHandle,
    request: RowRequest,
    found: Callable[[], Generator[Sequence[FileToRead]]],
    io: IoCounters,
    metrics: RowMetrics,
    *,
    pool: ReadingPool | None,
    explained: Callable[[], dict[str, Any]],
) -> RowStream:
    store = handle.store.with_counters(io)

    def begin(whole: bool) -> RowFlow:  # noqa: FBT001 - passed by position
        # Keep no references to the stream here: nothing that a stream holds may hold the stream.
        shared = pool or ReadingPool.for_store(handle.options.memory_budget, remote=store.is_remote)
        sparsity, footers, repeated, layouts = Sparsity(), FooterUse(), RepeatedValues(), FileLayouts(request)
        return RowFlow(
            found(),
            lambda file: FileRows(store, request, file, metrics, sparsity, footers, repeated, layouts, handle.options),
            shared,
            metrics,
            stop=io.stop,
            whole=whole,
            owns_pool=pool is None,
        )

    return RowStream(request.schema, request.limit, begin, metrics=metrics, explained=explained, stop=io.stop)


def _check_ids(schema: TableSchema) -> None:
    if schema.column_mapping == "id":
        check_field_ids(each for each in schema.fields if each.name not in schema.partition_columns)


# Divide a row scan among workers: by files if there are few, else by ranges of the scan.
#
# The planner must not hold the list of files, or a table of ten million would fill its memory. It lists the files of
# small scans only, for shares of equal size with large files split by row group. Other scans are split by the places
# that a manifest or footers give, and each worker discovers its own files.


FEW_FILES = 20_000
_FEW_BYTES_OF_TAIL = 16 << 20
_UNKNOWN_FILE = 128 << 10  # assumed file size if the table does not record it


@dataclass(frozen=True, slots=True)
class RowShare:
    """Work of one worker: these files, or else a range of the scan whose files it discovers."""

    files: tuple[StoredFile, ...] = ()
    within: ScanRange | None = None

    @property
    def size(self) -> int:
        """Return the total size of its files in bytes, as far as it is known."""
        return sum(_size(file) for file in self.files)


@dataclass(frozen=True, slots=True)
class ShareSize:
    """Target size of shares: ``most`` bytes, or less if there would be fewer shares than ``workers``.

    Opening a file is counted as reading ``opening`` bytes. No share is smaller than that.
    """

    most: int = 128 << 20
    workers: int = 2
    opening: int = 4 << 20

    def of(self, total: int) -> int:
        """Return the size of a share for ``total`` bytes."""
        return max(1, min(self.most, max(self.opening, total // max(1, self.workers))))


def row_shares(scanner: RowScanner, size: ShareSize) -> list[RowShare]:
    """Divide a row scan into shares that together hold each row exactly once."""
    snapshot = scanner.snapshot
    of_a_file = _bytes_of_a_file(snapshot)
    at_once = max(1, size.most // (of_a_file + size.opening // 8))
    places = scanner.snapshot.places(scanner.files_where, at_once)
    known = sum(place.files for place in places)
    if known <= FEW_FILES and tail_bytes(snapshot.segment) <= _FEW_BYTES_OF_TAIL:
        return _by_files(list(scanner.found_files()), size)
    # A file larger than a share is split by row group among several workers.
    wanted = at_once if of_a_file <= size.most else size.most / of_a_file
    ranges = divided(snapshot.segment, places, wanted, share_bytes=size.most)
    return [RowShare(within=each) for each in ranges]


def share_stream(scanner: RowScanner, share: RowShare) -> RowStream:
    """Return the rows of one share of a scan."""
    if share.within is None:
        return stream_files(scanner.snapshot.table, scanner.request, list(share.files))
    return scanner.narrowed(share.within).stream()


def _by_files(files: list[StoredFile], size: ShareSize) -> list[RowShare]:
    most = size.of(sum(_size(file) + size.opening for file in files))
    pieces: list[tuple[int, StoredFile]] = []
    for file in files:
        count = max(1, -(-_size(file) // most))
        whole = _size(file) // count + size.opening
        pieces += [
            (whole, file if count == 1 else msgspec.structs.replace(file, share=(number, count)))
            for number in range(count)
        ]
    total = sum(cost for cost, _ in pieces)
    shares: list[list[StoredFile]] = [[] for _ in range(min(len(pieces), max(1, -(-total // most))))]
    # Assign the largest remaining piece to the smallest share.
    smallest = [(0, number) for number in range(len(shares))]
    for cost, file in sorted(pieces, key=lambda piece: -piece[0]):
        held, number = heapq.heappop(smallest)
        shares[number].append(file)
        heapq.heappush(smallest, (held + cost, number))
    return [RowShare(tuple(share)) for share in shares]


def _size(file: StoredFile) -> int:
    size = max(0, file.size)
    if file.share is None:
        return size
    return size // file.share[1]


def _bytes_of_a_file(snapshot: Snapshot) -> int:
    """Return the mean file size, from the checksum of the version if it has one."""
    checksum = snapshot.checksum
    if checksum is None or not checksum.num_files:
        return _UNKNOWN_FILE
    return checksum.table_size_bytes // checksum.num_files


# Fragments of a scan for parallel workers, and estimates before anything is read.


@dataclass(frozen=True, slots=True)
class RowEstimate:
    """Upper bound of what a scan reads: the files that may match, their bytes and their live rows.

    ``rows`` is None if the log lacks the row count of a file.
    """

    files: int
    size: int
    rows: int | None


@dataclass(frozen=True, slots=True)
class RowFragment:
    """Files of a scan with everything needed to read their rows. Fragments can be pickled.

    A pickle holds no credentials, unless the table's handle was set to carry them.
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
        """The total size of its files in bytes."""
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
        # Dask derives task names from their inputs: equal rows get equal names, whatever the handle has cached.
        request = self.request
        asked = tuple(map(str, (request.output, request.predicate, request.expression, request.limit)))
        files = tuple((file.path, file.size, str(file.deletion_vector)) for file in self.files)
        return (type(self).__qualname__, self.handle.uri, asked, files)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows().__arrow_c_stream__(requested_schema)


def row_fragments(scanner: RowScanner, number: int) -> list[RowFragment]:
    """Divide the files of a scan into at most ``number`` pieces of similar size, largest files first."""
    if isinstance(number, bool) or number < 1:
        raise OptionError(f"A table cannot be read in {number} pieces", hint="pass a number of at least 1")
    files = sorted((file for file, _ in scanner.files()), key=lambda file: file.size, reverse=True)
    pieces: list[list[FileToRead]] = [[] for _ in range(min(number, len(files)))]
    smallest = [(0, index) for index in range(len(pieces))]
    for file in files:
        size, index = heapq.heappop(smallest)
        pieces[index].append(file)
        heapq.heappush(smallest, (size + max(1, file.size), index))
    return [RowFragment(scanner.snapshot.table, scanner.request, tuple(piece)) for piece in pieces]


def estimate_rows(scanner: RowScanner) -> RowEstimate:
    """Sum up the sizes and row counts that the log has for the files that may match."""
    files = size = 0
    rows: int | None = 0
    for file, known in scanner.files():
        files += 1
        size += max(0, file.size)
        rows = None if rows is None or known is None else rows + known
    return RowEstimate(files, size, rows)
