"""``DeltaTable``: a table pinned at one version, with the read API that deltalake users know."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lazydelta.errors import LazyDeltaError, OptionError
from lazydelta.log.actions import Metadata, Protocol
from lazydelta.log.hint import read_hint
from lazydelta.log.log_tail import LogTailCommit, log_tail_files
from lazydelta.log.segment import load_segment
from lazydelta.log.snapshot import Snapshot, load_snapshot
from lazydelta.log.travel import history, milliseconds, version_at
from lazydelta.options import Options
from lazydelta.scan.data_file import DataFile
from lazydelta.scan.scanner import LazyDeltaScanner
from lazydelta.scan.stream import FileStream
from lazydelta.storage import open_store

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DeltaTable"]


class DeltaTable:
    """A Delta table at one version, pinned when it is opened.

    ``version`` is a number, or a moment (``datetime`` or ISO 8601 text) that stands for the newest version not younger
    than it. ``options`` are lazydelta's own (see ``Options``); ``log_tail`` are the commits that a catalog has ratified,
    for catalog-managed tables. ``without_files``, ``log_buffer_size`` and ``skip_stats`` are accepted because deltalake
    has them; they change nothing here, where files and statistics are not loaded before somebody asks.
    """

    def __init__(
        self,
        table_uri: str | os.PathLike[str],
        version: int | str | datetime | None = None,
        storage_options: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        log_tail: Sequence[LogTailCommit | str] | None = None,
        *,
        without_files: bool = False,  # noqa: ARG002 - deltalake's parameter, see above
        log_buffer_size: int | None = None,  # noqa: ARG002
        skip_stats: bool = False,  # noqa: ARG002
    ) -> None:
        self._options = Options.load(options)
        self._store = open_store(
            table_uri,
            storage_options,
            retries=self._options.retries,
            request_timeout=self._options.request_timeout,
        )
        self._log_tail = log_tail_files(log_tail or ())
        self._snapshot = self._open(version)

    @classmethod
    def is_deltatable(
        cls, table_uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
    ) -> bool:
        """Tell whether there is a Delta log at this place."""
        store = open_store(table_uri, storage_options)
        try:
            load_segment(store, hint=read_hint(store))
        except LazyDeltaError:
            return False
        return True

    @property
    def table_uri(self) -> str:
        """The table's root, without credentials."""
        return self._store.uri

    def version(self) -> int:
        """Return the pinned version."""
        return self._snapshot.version

    def schema(self) -> pa.Schema:
        """Return the schema of the table's rows as a PyArrow schema."""
        return self._snapshot.schema.to_arrow()

    def metadata(self) -> Metadata:
        """Return the metadata: id, name, description, partition columns, configuration, creation time."""
        return self._snapshot.metadata

    def protocol(self) -> Protocol:
        """Return the reader and writer versions and features that the table asks for."""
        return self._snapshot.protocol

    def domain_metadata(self) -> dict[str, str]:
        """Return the configuration of every metadata domain."""
        return self._snapshot.domain_metadata()

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the provenance of the versions, newest first, as far back as their commits are kept."""
        if limit is not None and limit < 0:
            raise OptionError(f"history(limit={limit}) makes no sense", hint="give a positive number or None")
        return list(history(self._store, self._snapshot.segment, self._snapshot.metadata, limit))

    def transaction_version(self, app_id: str) -> int | None:
        """Return the last transaction version that the application committed, None if there is none."""
        return self._snapshot.transaction_version(app_id)

    def load_as_version(self, version: int | str | datetime) -> None:
        """Pin another version, by number or by moment."""
        self._snapshot = self._open(version)

    def update_incremental(self) -> None:
        """Pin the newest version."""
        self._snapshot = self._open(None)

    def files(self) -> FileStream:
        """Return the active files as a lazy stream."""
        return FileStream(LazyDeltaScanner(self._snapshot, self._options))

    def __repr__(self) -> str:
        return f"DeltaTable({self._store.uri!r}, version={self.version()})"

    def _open(self, version: int | str | datetime | None) -> Snapshot:
        if isinstance(version, bool) or (isinstance(version, int) and version < 0):
            raise OptionError(f"{version!r} is not a table version", hint="versions are numbers from 0")
        if isinstance(version, str | datetime):
            newest = self._open(None)
            moment = milliseconds(version)
            version = version_at(self._store, newest.metadata, moment, log_tail=self._log_tail)
            if version == newest.version:
                return newest
        segment = load_segment(self._store, version=version, hint=read_hint(self._store), log_tail=self._log_tail)
        return load_snapshot(
            self._store,
            segment,
            has_log_tail=bool(self._log_tail),
            parallelism=self._options.commit_parallelism,
        )


_ = (Iterator, DataFile, "pd")
