"""``TableHandle``: an open table for internal use, with its store, options and process-wide caches.

A table is opened once and its handle is passed down. No lower layer opens it again by URI, which would lose retries,
timeouts and credentials. Only this module decides how a version is pinned and how a scan is assembled (cache, sidecar,
read-ahead), so that the scans of writers are as fast as those of readers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from lazydelta.log.file_batch import FileBatch
from lazydelta.log.opening import open_snapshot
from lazydelta.log.snapshot import ScannedBase, Snapshot
from lazydelta.log.tail_spans import TailSpans
from lazydelta.options import Options
from lazydelta.predicates import Predicate
from lazydelta.protocol.file_names import LogFile
from lazydelta.runtime.cache import ByteLru, shared
from lazydelta.runtime.metrics import ScanMetrics
from lazydelta.scan.base import BasePlace, BaseScan, CheckpointBase, ScanBase, ScanRange
from lazydelta.scan.request import ScanRequest
from lazydelta.scan.scanner import LazyDeltaScanner
from lazydelta.sidecar.reading.base import SidecarBase
from lazydelta.sidecar.reading.delta_spans import DeltaSpans
from lazydelta.sidecar.reading.discovery import ManifestMirror, SidecarCache
from lazydelta.storage import Store, open_store

__all__ = ["TableHandle"]

_ROW_GROUP_BYTES = 4 << 20


class TableHandle(msgspec.Struct, frozen=True, eq=False):
    """The location of a table and how to access it; cheap to copy, safe to share between threads.

    Its pickle describes the table to another process, which opens its own connections and has its own cache.
    Credentials are included only after ``carrying_credentials``.
    """

    store: Store
    options: Options = msgspec.field(default_factory=Options)
    remembered: ByteLru = shared
    # Called with the files of a scan before their rows are read for another user; raises if that is not allowed.
    check_files: Callable[[FileBatch], None] | None = None

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str] | TableHandle,
        storage_options: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        external_locations: Mapping[str, Mapping[str, str] | None] | None = None,
    ) -> TableHandle:
        """Open the table at ``uri``; makes no request, so a missing table is not detected here.

        An open table is returned as it is: its location has no credentials, so it could not be opened again.
        """
        if isinstance(uri, TableHandle):
            return uri if options is None else uri.with_options(options)
        settings = Options.load(options)
        store = open_store(
            uri,
            storage_options,
            retries=settings.retries,
            request_timeout=settings.request_timeout,
            external_locations=external_locations,
        )
        return cls.of(store, settings)

    @classmethod
    def of(cls, store: Store, options: Options | None = None) -> TableHandle:
        """Return the handle of a table with an open store."""
        settings = Options() if options is None else options
        return cls(store, settings, _memory(settings.cache_size))

    @property
    def uri(self) -> str:
        """The table's root, without credentials."""
        return self.store.uri

    @property
    def cache(self) -> SidecarCache:
        """Manifests and footers cached by the process."""
        return SidecarCache(self.remembered)

    def snapshot(self, version: int | None = None, *, log_tail: Sequence[LogFile] | None = None) -> Snapshot:
        """Pin a version, or the newest; ``log_tail`` has the commits ratified by a catalog."""
        return open_snapshot(
            self.store,
            version=version,
            log_tail=log_tail,
            parallelism=self.options.commit_parallelism,
            window=self.options.reverse_window,
            remembered=self.remembered,
            max_staleness=self.options.max_staleness,
            mirror=ManifestMirror(self.cache) if self.options.sidecar_enabled and self.options.use_manifest else None,
            spans=DeltaSpans(self.cache, self.store) if self.options.sidecar_enabled else None,
            scan_follows=True,
            prefetched=self.options.open_prefetched_versions,
        )

    def newest(self) -> Snapshot:
        """Pin the newest version from the current log, not from a cache, for writers that build on it."""
        return open_snapshot(self.store, parallelism=self.options.commit_parallelism)

    def scan(self, snapshot: Snapshot, request: ScanRequest, *, within: ScanRange | None = None) -> LazyDeltaScanner:
        """Return a scan, or one range of it: the tail, and the base from the sidecar if there is one."""
        if (snapshot.spans.source is not None) is not self.options.sidecar_enabled:
            # The snapshot was pinned by a handle with other options, or in another process.
            source = DeltaSpans(self.cache, self.store) if self.options.sidecar_enabled else None
            snapshot = msgspec.structs.replace(snapshot, spans=TailSpans(source), scanned_base=ScannedBase())
        scanner = LazyDeltaScanner(snapshot, request, self.options, base=self._base(), within=within)
        if self.options.sidecar_enabled:
            scanner.shown_groups = partial(self._shown_groups, snapshot, request)
        return scanner

    def _shown_groups(self, snapshot: Snapshot, request: ScanRequest) -> Sequence[Any]:
        from lazydelta.sidecar.timeline import row_groups  # noqa: PLC0415 - only for pictures

        return row_groups(self, snapshot, request.predicate)

    def places(self, snapshot: Snapshot, predicate: Predicate | None, files: int) -> list[BasePlace]:
        """Return the places of the base of a scan, of about ``files`` files each, without reading the files."""
        scan = BaseScan(
            snapshot=snapshot,
            store=snapshot.store,
            predicate=predicate,
            wanted=None,
            newest_first=False,
            batch_size=self.options.batch_size,
            metrics=ScanMetrics(),
        )
        return self._base().places(scan, files)

    def _base(self) -> ScanBase:
        if not self.options.sidecar_enabled:
            return CheckpointBase()
        # A sidecar row group has ten thousand files, whatever the budget; the budget limits how many are in flight.
        ahead = max(1, min(self.options.sidecar_row_groups_per_batch, self.options.memory_budget // _ROW_GROUP_BYTES))
        return SidecarBase(
            ahead,
            self.cache,
            use_manifest=self.options.use_manifest,
            prune_row_groups=self.options.prune_row_groups,
        )

    def with_options(self, given: Mapping[str, Any]) -> TableHandle:
        """Return a handle of the same table with changed options, for one call."""
        options = self.options.changed(given)
        remembered = self.remembered if options.cache_size == self.options.cache_size else _memory(options.cache_size)
        store = self.store.with_limits(retries=options.retries, request_timeout=options.request_timeout)
        return TableHandle(store, options, remembered, self.check_files)

    def adopted(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot of the same table as if this handle had pinned it."""
        return msgspec.structs.replace(snapshot, store=self.store, parallelism=self.options.commit_parallelism)

    def carrying_credentials(self) -> TableHandle:
        """Return the same handle with credentials in its pickles, for tasks on other machines."""
        return msgspec.structs.replace(self, store=self.store.carrying_credentials())

    def __reduce__(self) -> tuple[Any, tuple[Store, Options]]:
        return (TableHandle.of, (self.store, self.options))


def _memory(size: int) -> ByteLru:
    """Return the cache shared by all tables of the process; a size of 0 gets its own, which keeps nothing."""
    if size == 0:
        return ByteLru(0)
    if size != Options().cache_size:
        shared.resize(size)
    return shared
