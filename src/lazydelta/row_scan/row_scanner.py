"""``RowScanner``: one request for rows of one version of a table, put together from the scan and the files' reader."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from lazydelta.handle import TableHandle
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.snapshot import Snapshot
from lazydelta.metrics import ScanMetrics
from lazydelta.pruning import Predicate, conjunction
from lazydelta.row_scan.file_layouts import FileLayouts
from lazydelta.row_scan.file_rows import FileRows, FooterUse, Sparsity
from lazydelta.row_scan.reading_pool import ReadingPool
from lazydelta.row_scan.repeated_values import RepeatedValues
from lazydelta.row_scan.row_flow import RowFlow
from lazydelta.row_scan.row_metrics import RowMetrics
from lazydelta.row_scan.row_request import RowRequest
from lazydelta.row_scan.row_stream import RowStream
from lazydelta.rows.column_finder import check_field_ids
from lazydelta.rows.opened_file import FileToRead
from lazydelta.scan.data_file import StoredFile, data_files
from lazydelta.scan.explanation import Explanation
from lazydelta.scan.pruner import Pruner
from lazydelta.scan.request import ScanRequest
from lazydelta.scan.scan_range import ScanRange
from lazydelta.scan.scanner import LazyDeltaScanner
from lazydelta.storage import IoCounters
from lazydelta.types.schema import TableSchema

__all__ = ["FilesScanner", "RowScanner", "stream_files"]

Choose = Callable[[LazyDeltaScanner, FileBatch], FileBatch]
"""Is shown the files as they are found, in their order, and returns those whose rows are wanted."""

# More files than any table has: the scan of files is told that it may be stopped early, and where is decided by rows.
_ANY_NUMBER = 1 << 62


class RowScanner:
    """Scans rows of a pinned version; ``stream`` may be called any number of times, each is a scan of its own.

    ``pool`` is shared with other scans of the same query; without one each stream has its own, for as long as it runs.
    ``within`` is the range of the scan that is meant, where others read the rest of it; ``only`` says which files are.
    """

    def __init__(
        self,
        handle: TableHandle,
        snapshot: Snapshot,
        request: RowRequest,
        *,
        pool: ReadingPool | None = None,
        within: ScanRange | None = None,
        only: Callable[[StoredFile], bool] | None = None,
    ) -> None:
        self._handle = handle
        self._snapshot = snapshot
        self.request = request
        self._pool = pool
        self._within = within
        self._only = only
        _check_ids(snapshot.schema)

    def narrowed(self, within: ScanRange) -> RowScanner:
        """Return the scanner of one range of the same scan."""
        return RowScanner(self._handle, self._snapshot, self.request, pool=self._pool, within=within, only=self._only)

    def stream(self, choose: Choose | None = None) -> RowStream:
        """Return the rows; nothing is read before the first is asked for.

        ``choose`` is shown the files as they are found, in their order, and returns those whose rows are wanted.
        """
        scanner = self._scan()
        return self._stream(scanner, self.request, lambda: self._files(scanner, choose))

    def count(self) -> int:
        """Return the number of rows, from the log where it knows that all rows of a file match, else from the files."""
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
    def handle(self) -> TableHandle:
        """The table that is scanned."""
        return self._handle

    @property
    def snapshot(self) -> Snapshot:
        """The version that is scanned."""
        return self._snapshot

    @property
    def files_where(self) -> Predicate | None:
        """What leaves out files: the filter of rows, and what was asked for files alone."""
        asked = [each for each in (self.request.predicate, self.request.files_where) if each is not None]
        return conjunction(asked) if asked else None

    def files(self) -> Generator[tuple[StoredFile, int | None]]:
        """Yield the files that may hold rows of the request, with their number of live rows where the log has it."""
        batches = self._scan(stats_columns=[]).batches()
        try:
            for batch in batches:
                for file in data_files(batch, self._snapshot.store, self._snapshot.schema):
                    vector, stored = file.deletion_vector, file.to_read()
                    gone = 0 if vector is None else vector["cardinality"]
                    if self._only is None or self._only(stored):
                        yield stored, None if file.num_records is None else file.num_records - gone
        finally:
            batches.close()

    def found_files(self) -> Generator[StoredFile]:
        """Yield the files that may hold rows of the request; no statistics are read but those that rule files out."""
        found = self._files(self._scan())
        try:
            for some in found:
                yield from some
        finally:
            found.close()

    def _scan(self, **more: Any) -> LazyDeltaScanner:
        request = self.request
        return self._handle.scan(
            self._snapshot,
            ScanRequest.of(
                self._snapshot.schema,
                where=self.files_where,
                limit=None if request.limit is None else _ANY_NUMBER,
                strategy=request.strategy,
                batch_size=self._handle.options.rows_in_memory,
                **more,
            ),
            within=self._within,
        )

    def _files(self, scanner: LazyDeltaScanner, choose: Choose | None = None) -> Generator[list[StoredFile]]:
        batches = scanner.batches()
        try:
            for found in batches:
                batch = found if choose is None else choose(scanner, found)
                if self._handle.check_files is not None:
                    self._handle.check_files(batch)
                files = [each.to_read() for each in data_files(batch, self._snapshot.store, self._snapshot.schema)]
                yield [self._meant(each) for each in files if self._only is None or self._only(each)]
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
            # The scan of files counts at each batch of files; rows have been read since.
            explanation["metrics"]["delta.lazy.requests"] = scanner.io.requests
            explanation["metrics"]["delta.lazy.bytes_read"] = scanner.io.bytes_read
            return explanation | {"rows": metrics.as_dict()}

        return _row_stream(self._handle, request, found, scanner.io, metrics, pool=self._pool, explained=explained)


class FilesScanner:
    """Scans rows of files that were found before, as `RowScanner` does those of a version."""

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
    """Return the rows of files that are known already, in their order."""
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

    def begin(whole: bool) -> tuple[RowFlow, Callable[[], None]]:  # noqa: FBT001 - handed on by position
        # No name of its own for the flow's parts: what a stream holds must not hold the stream.
        shared = pool or ReadingPool.for_store(handle.options.memory_budget, remote=store.is_remote)
        shared.join()
        sparsity, footers, repeated, layouts = Sparsity(), FooterUse(), RepeatedValues(), FileLayouts(request)
        verified = handle.options.page_checksums == "verify"
        flow = RowFlow(
            found(),
            lambda file: FileRows(store, request, file, metrics, sparsity, footers, repeated, layouts, verified),
            shared,
            metrics,
            stop=io.stop,
            whole=whole,
        )
        return flow, shared.leave

    return RowStream(request.schema, request.limit, begin, metrics=metrics, explained=explained, stop=io.stop)


def _check_ids(schema: TableSchema) -> None:
    if schema.column_mapping == "id":
        check_field_ids(each for each in schema.fields if each.name not in schema.partition_columns)
