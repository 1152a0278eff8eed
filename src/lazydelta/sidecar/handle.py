"""``Snapshot``: a table at a version, and ``TableHandle``: the open table that it belongs to.

A table is opened once. Functions that read a version take a `Snapshot`, which carries its table: the store, the options
and the process-wide caches. No lower layer opens a table again by URI, which would lose retries, timeouts and
credentials. Only this module decides how a version is pinned and how a scan is assembled (cache, sidecar, read-ahead),
so that the scans of writers are as fast as those of readers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from lazydelta.errors import OptionError
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.snapshot import LogSnapshot, ScannedBase, open_snapshot, shipped
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
from lazydelta.sidecar.reading.discovery import SidecarCache
from lazydelta.storage import Store, open_store

__all__ = ["PinnedVersion", "Snapshot", "TableHandle", "TableOrUri", "snapshot_of"]

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
        found = open_snapshot(
            self.store,
            version=version,
            log_tail=log_tail,
            parallelism=self.options.commit_parallelism,
            window=self.options.reverse_window,
            remembered=self.remembered,
            max_staleness=self.options.max_staleness,
            base=self.base(),
            scan_follows=True,
            prefetched=self.options.open_prefetched_versions,
        )
        return _carrying(found, self)

    def newest(self, known: Snapshot | None = None) -> Snapshot:
        """Pin the newest version from the current log, not from a cache, for writers that build on it.

        That is ``known`` if the log has nothing newer, which takes one listing, and if all of it was read from the log.
        """
        if known is not None and not known.mirrored and known.spans.is_unused and known.segment.is_newest(self.store):
            return msgspec.structs.replace(known.on(self), spans=TailSpans(), scanned_base=ScannedBase())
        return _carrying(open_snapshot(self.store, parallelism=self.options.commit_parallelism), self)

    def base(self) -> ScanBase:
        """Return where this table's state and files at the checkpoint are read."""
        if not self.options.sidecar_enabled:
            return CheckpointBase()
        # A sidecar row group has ten thousand files, whatever the budget; the budget limits how many are in flight.
        ahead = max(1, min(self.options.sidecar_row_groups_per_batch, self.options.memory_budget // _ROW_GROUP_BYTES))
        return SidecarBase(
            self.store,
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


class Snapshot(LogSnapshot, frozen=True, eq=False, kw_only=True):
    """A table at a version: what the log says about the version, and the table that it is read from.

    Only `TableHandle.snapshot` and `TableHandle.newest` make one. Its pickle carries the pickle of its table, and the
    other process does not list the log again.
    """

    table: TableHandle
    travels: bool = False
    """Whether the version was asked for, so that VACUUM may have deleted its files."""

    @property
    def uri(self) -> str:
        """The table's root, without credentials."""
        return self.table.uri

    @property
    def options(self) -> Options:
        """The options of the table."""
        return self.table.options

    def asked_for(self) -> Snapshot:
        """Return this snapshot as one whose version was asked for: its scans warn if its files may be gone."""
        return msgspec.structs.replace(self, travels=True)

    def scan(self, request: ScanRequest, *, within: ScanRange | None = None) -> LazyDeltaScanner:
        """Return a scan, or one range of it: the tail, and the base from the sidecar if there is one."""
        snapshot, table = self, self.table
        base = table.base()
        if type(snapshot.spans.base) is not type(base):
            # The snapshot was pinned with other options, for a writer, or in another process.
            snapshot = msgspec.structs.replace(snapshot, spans=TailSpans(base), scanned_base=ScannedBase())
        scanner = LazyDeltaScanner(snapshot, request, table.options, base=base, within=within)
        if table.options.sidecar_enabled:
            scanner.shown_groups = partial(_shown_groups, snapshot, request)
        return scanner

    def places(self, predicate: Predicate | None, files: int) -> list[BasePlace]:
        """Return the places of the base of a scan, of about ``files`` files each, without reading the files."""
        scan = BaseScan(
            snapshot=self,
            store=self.store,
            predicate=predicate,
            wanted=None,
            newest_first=False,
            batch_size=self.options.batch_size,
            metrics=ScanMetrics(),
        )
        return self.table.base().places(scan, files)

    def on(self, table: TableHandle) -> Snapshot:
        """Return the same version read through another handle of the same table."""
        return msgspec.structs.replace(
            self, table=table, store=table.store, parallelism=table.options.commit_parallelism
        )

    def with_options(self, given: Mapping[str, Any]) -> Snapshot:
        """Return the same version with changed options, for one call."""
        return self.on(self.table.with_options(given))

    def with_settings(self, **settings: Any) -> Snapshot:
        """Return the same version with these options, by the names of their fields."""
        options = msgspec.structs.replace(self.options, **settings)
        return self.on(msgspec.structs.replace(self.table, options=options))

    def carrying_credentials(self) -> Snapshot:
        """Return the same version with credentials in its pickles, for tasks on other machines."""
        return self.on(self.table.carrying_credentials())

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        _, described = super().__reduce__()
        return (_arrived, (self.table, *described))


def _carrying(found: LogSnapshot, table: TableHandle) -> Snapshot:
    return Snapshot(table=table, **{name: getattr(found, name) for name in LogSnapshot.__struct_fields__})


def _arrived(table: TableHandle, *described: Any) -> Snapshot:
    return _carrying(shipped(*described), table)


def _shown_groups(snapshot: Snapshot, request: ScanRequest) -> Sequence[Any]:
    from lazydelta.sidecar.timeline import row_groups  # noqa: PLC0415 - only for pictures

    return row_groups(snapshot, request.predicate)


class PinnedVersion:
    """Base class of what is public and at one version; other layers get the version by `snapshot_of`."""

    _snapshot: Snapshot


TableOrUri: TypeAlias = str | os.PathLike[str] | PinnedVersion | Any
"""A URI or path, or a ``DeltaTable``."""


def snapshot_of(
    table: TableOrUri, storage_options: Mapping[str, str] | None = None, version: int | None = None
) -> Snapshot:
    """Return the snapshot of a table, or another version of it. A table given by URI is opened now."""
    if isinstance(table, PinnedVersion):
        if storage_options is not None:
            raise OptionError("An open table already has its storage options", hint="pass them only with a URI")
        snapshot = table._snapshot  # noqa: SLF001 - the one accessor for other layers
        return snapshot if version is None else snapshot.table.snapshot(version).asked_for()
    if not isinstance(table, str | os.PathLike):
        kind = type(table).__name__
        raise OptionError(f"A table is a URI or a DeltaTable, not a {kind}", hint="pass DeltaTable(uri) or a URI")
    opened = TableHandle.open(table, storage_options).snapshot(version)
    return opened if version is None else opened.asked_for()
