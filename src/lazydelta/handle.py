"""``TableHandle``: a table as everything inside works with it: its store, its options, what the process remembers.

It is opened once, with all that was given, and handed down; nothing below opens the table again by its URI, where
retries, time-outs and credentials would have to be repeated and were forgotten. How a version is pinned and how a scan
is put together (the cache, the sidecar, the row groups under way) is decided here and nowhere else, so that a writer's
own scans are as quick as a reader's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from lazydelta.log.file_batch import FileBatch
from lazydelta.log.names import LogFile
from lazydelta.log.snapshot import Snapshot
from lazydelta.log.snapshot_opening import open_snapshot
from lazydelta.log.tail_spans import TailSpans
from lazydelta.lru import ByteLru, shared
from lazydelta.metrics import ScanMetrics
from lazydelta.options import Options
from lazydelta.pruning import Predicate
from lazydelta.scan.base import BaseScan, checkpoint_files, checkpoint_places
from lazydelta.scan.request import ScanRequest
from lazydelta.scan.scan_range import BasePlace, ScanRange
from lazydelta.scan.scanner import LazyDeltaScanner
from lazydelta.sidecar.reading.delta_spans import DeltaSpans
from lazydelta.sidecar.reading.manifest_mirror import ManifestMirror
from lazydelta.sidecar.reading.sidecar_base import SidecarBase
from lazydelta.sidecar.reading.sidecar_cache import SidecarCache
from lazydelta.storage import Store, open_store

__all__ = ["TableHandle"]

_ROW_GROUP_BYTES = 4 << 20


class TableHandle(msgspec.Struct, frozen=True, eq=False):
    """Where a table is and how it is worked with; cheap to copy, safe to share between threads.

    A pickle of it describes the table to another process, which opens its own connections and remembers on its own;
    credentials are in it only after ``carrying_credentials``.
    """

    store: Store
    options: Options = msgspec.field(default_factory=Options)
    remembered: ByteLru = shared
    # Who reads for others says of the files that a scan found whether their rows may be read; it raises.
    check_files: Callable[[FileBatch], None] | None = None

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        external_locations: Mapping[str, Mapping[str, str] | None] | None = None,
    ) -> TableHandle:
        """Open the table at ``uri``; no request is made, so that a table that does not exist is not noticed here."""
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
        """Return the handle of a table whose store is open."""
        settings = Options() if options is None else options
        return cls(store, settings, _memory(settings.cache_size))

    @property
    def uri(self) -> str:
        """The table's root, without credentials."""
        return self.store.uri

    @property
    def cache(self) -> SidecarCache:
        """Manifests and footers that the process has seen."""
        return SidecarCache(self.remembered)

    def snapshot(self, version: int | None = None, *, log_tail: Sequence[LogFile] | None = None) -> Snapshot:
        """Pin a version, or the newest; ``log_tail`` is what a catalog has ratified."""
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
        )

    def newest(self) -> Snapshot:
        """Pin the newest version as the log has it now, for those who build on it: they may not trust a memory."""
        return open_snapshot(self.store, parallelism=self.options.commit_parallelism)

    def scan(self, snapshot: Snapshot, request: ScanRequest, *, within: ScanRange | None = None) -> LazyDeltaScanner:
        """Put a scan together: the tail, and the base from the sidecar where there is one; or one range of it."""
        if (snapshot.spans.source is not None) is not self.options.sidecar_enabled:
            # Pinned by a handle with other options, or in another process.
            source = DeltaSpans(self.cache, self.store) if self.options.sidecar_enabled else None
            snapshot = msgspec.structs.replace(snapshot, spans=TailSpans(source))
        if not self.options.sidecar_enabled:
            return LazyDeltaScanner(snapshot, request, self.options, open_base=checkpoint_files, within=within)
        base = self._sidecar_base()
        return LazyDeltaScanner(
            snapshot, request, self.options, open_base=base, share_of_base=base.share, within=within
        )

    def places(self, snapshot: Snapshot, predicate: Predicate | None, files: int) -> list[BasePlace]:
        """Return where the base of a scan is, in places of about so many files; the files themselves are not read."""
        scan = BaseScan(
            snapshot=snapshot,
            store=snapshot.store,
            predicate=predicate,
            wanted=None,
            newest_first=False,
            batch_size=self.options.batch_size,
            metrics=ScanMetrics(),
        )
        enabled = self.options.sidecar_enabled
        return self._sidecar_base().places(scan, files) if enabled else checkpoint_places(scan, files)

    def _sidecar_base(self) -> SidecarBase:
        # A row group of the sidecar is ten thousand files, whatever the budget; how many are under way is not.
        ahead = max(1, min(self.options.sidecar_row_groups_per_batch, self.options.memory_budget // _ROW_GROUP_BYTES))
        return SidecarBase(
            ahead,
            self.cache,
            use_manifest=self.options.use_manifest,
            prune_row_groups=self.options.prune_row_groups,
        )

    def with_options(self, given: Mapping[str, Any]) -> TableHandle:
        """Return the handle of the same table with other options, for one call."""
        options = self.options.changed(given)
        remembered = self.remembered if options.cache_size == self.options.cache_size else _memory(options.cache_size)
        store = self.store.with_limits(retries=options.retries, request_timeout=options.request_timeout)
        return TableHandle(store, options, remembered, self.check_files)

    def adopted(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot of the same table as if it had been pinned by this handle."""
        return msgspec.structs.replace(snapshot, store=self.store, parallelism=self.options.commit_parallelism)

    def carrying_credentials(self) -> TableHandle:
        """Return the same handle, whose pickles hold its credentials: for tasks that work elsewhere."""
        return msgspec.structs.replace(self, store=self.store.carrying_credentials())

    def __reduce__(self) -> tuple[Any, tuple[Store, Options]]:
        return (TableHandle.of, (self.store, self.options))


def _memory(size: int) -> ByteLru:
    """Return what a table shares with others of the process; a cache of 0 bytes is its own and keeps nothing."""
    if size == 0:
        return ByteLru(0)
    if size != Options().cache_size:
        shared.resize(size)
    return shared
