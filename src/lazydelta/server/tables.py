"""``ServedTables``: the tables that a server offers by name, and which client may read which.

Clients send names, never locations. A name is looked up among the configured ones. Below a configured root it is split
into plain folder names, and anything that could lead out of the root is not a valid name. Missing tables and tables
that a client may not read get the same error, so clients cannot discover names.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.errors import ExternalLocationError, OptionError, StorageError, StreamClosedError, TableNotFoundError
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.time_travel import history
from lazydelta.protocol.file_names import LOG
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import numpy_of
from lazydelta.sidecar.handle import TableHandle, snapshot_of
from lazydelta.storage import Store
from lazydelta.table.delta_table import DeltaTable, table_of

__all__ = [
    "ANYONE",
    "Identity",
    "ServedTables",
    "TableListing",
    "TablePlace",
    "described",
    "estimated",
    "history_of",
    "partitions_in",
]


# Facts about a table other than its files and rows, as JSON.


_MOST_VERSIONS = 10_000


def described(table: DeltaTable, name: str) -> bytes:
    """Return the version, schema, protocol and metadata of a table, without its location."""
    snapshot = snapshot_of(table)
    return msgspec.json.encode(
        {
            "table": name,
            "version": table.version(),
            "metadata": snapshot.metadata,
            "protocol": snapshot.protocol,
        }
    )


def history_of(table: DeltaTable, limit: int | None, left: Callable[[], bool], cleaned: Callable[[str], str]) -> bytes:
    """Return the history, newest first. Table locations in it are replaced by the names that clients know."""
    if limit is not None and limit < 0:
        raise OptionError(f"history(limit={limit}) is not valid", hint="pass a positive number or None")
    snapshot = snapshot_of(table)
    most = _MOST_VERSIONS + 1 if limit is None else min(limit, _MOST_VERSIONS + 1)
    found: list[dict[str, Any]] = []
    for info in history(snapshot.store, snapshot.segment, snapshot.metadata, most):
        if left():
            raise StreamClosedError("The client has left")
        found.append(info)
    if len(found) > _MOST_VERSIONS:
        message = f"There are more than {_MOST_VERSIONS} versions"
        raise OptionError(message, hint="pass a limit, or open older versions and request their history")
    return cleaned(msgspec.json.encode(found).decode()).encode()


def partitions_in(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> list[dict[str, str | None]]:
    """Return the distinct partitions of files, like ``DeltaTable.partitions``."""
    found: dict[tuple[str | None, ...], None] = {}
    for batch in batches:
        if not names:
            continue
        # Writers log the map entries in any order, and an empty string for null.
        maps = (dict(values or ()) for values in batch.column("partition_values").to_pylist())
        found.update(dict.fromkeys(tuple(values.get(name) or None for name in names) for values in maps))
    return [dict(zip(names, values, strict=True)) for values in found]


def estimated(batches: Iterable[pa.RecordBatch]) -> dict[str, int | None]:
    """Return the number of files, their bytes and live rows. Return None where the log lacks a number."""
    files = size = 0
    rows: int | None = 0
    for batch in batches:
        files += batch.num_rows
        size += int(np.maximum(numpy_of(batch.column("size")), 0).sum())
        records, vectors = batch.column("num_records"), batch.column("deletion_vector")
        if rows is None or records.null_count:
            rows = None
            continue
        rows += pc.sum(records).as_py() or 0
        if vectors.null_count < len(vectors):
            rows -= pc.sum(pc.struct_field(vectors, "cardinality")).as_py() or 0
    return {"files": files, "size": size, "rows": rows}


# ``Confinement``: which local files the log of a served table may refer to.
#
# The log of a table on a local disk can name any file by its absolute path, and a folder can be a symbolic link. A
# server reads on behalf of others, so every file whose rows it reads must be below the configured folders after links
# are resolved.


class Confinement:
    """Checks the files of one local table before their rows are read."""

    def __init__(self, store: Store, folders: Iterable[str]) -> None:
        self._store = store
        self._folders = tuple(folders)

    def check(self, files: Iterable[tuple[str, Mapping[str, object] | None]]) -> None:
        """Refuse files and deletion vectors outside the allowed folders."""
        for path, vector in files:
            self._check_one(path)
            if vector is not None and vector["storageType"] == "p":
                self._check_one(str(vector["pathOrInlineDv"]))

    def check_batch(self, files: FileBatch) -> None:
        """Check the files of a batch."""
        vectors = [None] * len(files) if files.deletion_vector is None else files.deletion_vector.to_pylist()
        self.check(zip(files.path.to_pylist(), vectors, strict=True))

    def _check_one(self, path: str) -> None:
        found = os.path.realpath(self._store.uri_of(path))
        if any(found == each or found.startswith(each.rstrip("/") + "/") for each in self._folders):
            return
        message = "The log names a file outside the folders that this server may read"
        raise ExternalLocationError(message, path=path, hint="ask the owner of the table why it is there")


_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=\- ]*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
LONGEST_NAME = 512
_SNAPSHOTS_KEPT = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """A client and the tables that it may read. ``tables=None`` means all, ``root/*`` all below a root."""

    name: str
    tables: tuple[str, ...] | None = None

    def may_read(self, table: str) -> bool:
        """Return whether the client may read a table."""
        if self.tables is None:
            return True
        return any(
            table == each or (each.endswith("/*") and table.startswith(each[:-1])) or each == "*"
            for each in self.tables
        )

    def may_read_below(self, folder: str) -> bool:
        """Return whether a folder may contain, at any depth, tables that the client may read."""
        if self.tables is None:
            return True
        return any(
            each in {"*", folder}
            or each.startswith(f"{folder}/")
            or (each.endswith("/*") and f"{folder}/".startswith(each[:-1]))
            for each in self.tables
        )


ANYONE = Identity("anonymous")
"""The identity of clients of a server without tokens, which listens on the loopback only."""


@dataclass(frozen=True, slots=True)
class TablePlace:
    """The location of a table or of a folder of tables, with its options. ``repr`` shows no credentials."""

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    external_locations: Mapping[str, Mapping[str, str] | None] | None = field(default=None, repr=False)

    def opened(self, below: str = "", version: int | str | None = None) -> DeltaTable:
        """Open the table, or a table in a folder below."""
        uri = f"{self.uri.rstrip('/')}/{below}" if below else self.uri
        return DeltaTable(
            uri,
            version,
            dict(self.storage_options) or None,
            options={"page_sizes": "footers", **self.options},  # a large page is another client's memory
            external_locations=self.external_locations,
        )


class ServedTables:
    """The configured tables and roots. Opened versions are cached, because they do not change."""

    def __init__(
        self,
        tables: Mapping[str, TablePlace],
        roots: Mapping[str, TablePlace] | None = None,
        *,
        kept: int = _SNAPSHOTS_KEPT,
    ) -> None:
        self._tables = dict(tables)
        self._roots = dict(roots or {})
        for name in (*self._tables, *self._roots):
            if _NAME.fullmatch(name) is None:
                hint = "names are letters, digits, _, - and ., and do not begin with a dot"
                raise OptionError(f"{name!r} cannot be the name of a table", hint=hint)
        if both := self._tables.keys() & self._roots.keys():
            raise OptionError(f"{min(both)!r} is both a table and a root", hint="rename one of them")
        self._kept = kept
        self._written = sorted(self._written_places(), key=lambda each: len(each[0]), reverse=True)
        self._opened: OrderedDict[tuple[str, int, int], DeltaTable] = OrderedDict()
        self._lock = threading.Lock()

    def names_for(self, identity: Identity) -> list[str]:
        """Return the configured tables that a client may read, without those below roots."""
        return sorted(name for name in self._tables if identity.may_read(name))

    def roots(self) -> list[str]:
        """Return the names of the configured roots."""
        return sorted(self._roots)

    def folders(self, root: str, below: str) -> Sequence[str]:
        """Return the names of the subfolders of a folder below a root, without symbolic links."""
        place = self._roots[root]
        return TableHandle.open(place.uri, dict(place.storage_options) or None).store.folders(below)

    def open(
        self, name: str, identity: Identity, version: int | str | None = None, *, base: int | None = None
    ) -> DeltaTable:
        """Open a table that the client may read, at a version or at the newest.

        ``base`` requests the cached version that was read from the checkpoint ``base``, if there is one. A newer
        checkpoint lists the same files in another order.
        """
        place, below = self._place(name, identity)
        known = self._known(name, version, base)
        if known is not None:
            return known
        try:
            table = place.opened(below, version)
        except TableNotFoundError:
            raise _not_there(name) from None
        return self._remembered(name, self._confined(name, table))

    def _confined(self, name: str, table: DeltaTable) -> DeltaTable:
        """Make every row scan of a table check the location of its files, for all protocols and engines."""
        folders = self.allowed_folders(name)
        if folders is not None:
            snapshot = snapshot_of(table)
            check = Confinement(snapshot.store, folders).check_batch
            return table_of(snapshot.on(msgspec.structs.replace(snapshot.table, check_files=check)))
        return table

    def _known(self, name: str, version: int | str | None, base: int | None) -> DeltaTable | None:
        if not isinstance(version, int) or base is None:
            return None
        with self._lock:
            found = self._opened.get((name, version, base))
            if found is not None:
                self._opened.move_to_end((name, version, base))
            return found

    def _remembered(self, name: str, table: DeltaTable) -> DeltaTable:
        segment = snapshot_of(table).segment
        key = (name, segment.version, segment.base_version)
        with self._lock:
            known = self._opened.get(key)
            # Another table with the same versions may have replaced the cached one.
            if known is None or known.metadata().id != table.metadata().id:
                self._opened[key] = known = table
            self._opened.move_to_end(key)
            while len(self._opened) > self._kept:
                self._opened.popitem(last=False)
        return known

    def allowed_folders(self, name: str) -> tuple[str, ...] | None:
        """Return the local folders that may contain a table's files. Return None for tables in object stores."""
        root, _, below = name.partition("/")
        place = self._roots.get(root) if below else self._tables.get(name)
        store = None if place is None else TableHandle.open(place.uri, dict(place.storage_options) or None).store
        if store is None or not store.pins_what_is_open:
            return None
        return (os.path.realpath(store.place("").rstrip("/") or "/"),)

    def without_places(self, message: str) -> str:
        """Return a message with locations replaced by table and root names. Clients may not see locations."""
        for written, name in self._written:
            message = message.replace(written, name)
        return message

    def name_of(self, uri: str) -> str | None:
        """Return the name of the table at a location, for metrics. Return None if it is not served here."""
        place = uri.rstrip("/")
        for written, name in self._written:
            if place == written or place.startswith(f"{written}/"):
                return name + place[len(written) :]
        return None

    def _written_places(self) -> Iterator[tuple[str, str]]:
        """Yield every spelling of each location, with its name on this server."""
        for name, place in (*self._tables.items(), *self._roots.items()):
            store = TableHandle.open(place.uri, dict(place.storage_options) or None).store
            for written in {place.uri, store.uri, store.place("")}:
                if written.strip("/"):
                    yield written.rstrip("/"), name

    def _place(self, name: str, identity: Identity) -> tuple[TablePlace, str]:
        if len(name) > LONGEST_NAME or not identity.may_read(name):
            raise _not_there(name)
        place = self._tables.get(name)
        if place is not None:
            return place, ""
        root, slash, below = name.partition("/")
        place = self._roots.get(root)
        if place is None or not slash:
            raise _not_there(name)
        if not all(_SEGMENT.fullmatch(each) for each in below.split("/")):
            raise _not_there(name)
        self._stay_inside(place, name, below)
        return place, below

    @staticmethod
    def _stay_inside(place: TablePlace, name: str, below: str) -> None:
        """Refuse a folder that links outside its root. Object stores have no links."""
        store = TableHandle.open(place.uri, dict(place.storage_options) or None).store
        if not store.pins_what_is_open:
            return
        root = os.path.realpath(store.place("").rstrip("/") or "/")
        found = os.path.realpath(store.place(below))
        if os.path.commonpath([root, found]) != root:
            raise _not_there(name)


def is_folder_name(name: str) -> bool:
    """Return whether the name of a folder below a root can be part of a table name."""
    return _SEGMENT.fullmatch(name) is not None


def _not_there(name: object) -> TableNotFoundError:
    shown = repr(name)
    shown = shown if len(shown) <= LONGEST_NAME else f"{shown[:LONGEST_NAME]}…"
    return TableNotFoundError(f"There is no table {shown} here", hint="list the tables that you may read")


# Table listing: the configured tables, and those found in the folders below roots.
#
# Folders are listed one by one in name order, and only where the client may read a table with the requested prefix. A
# folder with a log is a table, and nothing below it is listed. The number of tables and of folders is bounded, because
# a root may hold anything. A truncated listing says so.


_log = logging.getLogger(__name__)
_FOLDERS_A_TABLE = 10


class TableListing:
    """The names of at most ``most`` tables for one client. ``is_cut`` is set if there may be more."""

    def __init__(
        self, tables: ServedTables, identity: Identity, *, most: int, left: Callable[[], bool] = lambda: False
    ) -> None:
        self._tables = tables
        self._identity = identity
        self._most = most
        self._left = left
        self._folders = 0
        self.is_cut = False

    def names(self, prefix: str = "") -> list[str]:
        """Return the names that start with ``prefix``, configured tables first."""
        found = [name for name in self._tables.names_for(self._identity) if name.startswith(prefix)]
        for root in self._tables.roots():
            try:
                for name in self._below(root, "", prefix):
                    if len(found) >= self._most:
                        self.is_cut = True
                        return found
                    found.append(name)
            except StorageError as error:
                # A root that cannot be listed must not hide other roots or configured tables.
                _log.warning("The tables below the root %r are not listed: %s", root, error)
                self.is_cut = True
        self.is_cut = self.is_cut or len(found) > self._most
        return found[: self._most]

    def _below(self, root: str, below: str, prefix: str) -> Iterator[str]:
        """Yield the tables in a folder below a root, including the folder itself, at any depth."""
        folder = f"{root}/{below}" if below else root
        if len(folder) > LONGEST_NAME or not _meet(f"{folder}/", prefix) or not self._identity.may_read_below(folder):
            return
        if self._left():
            raise StreamClosedError("The client has left")
        self._folders += 1
        if self._folders > self._most * _FOLDERS_A_TABLE:
            self.is_cut = True
            return
        inside = self._tables.folders(root, below)
        if LOG in inside:
            if below and self._identity.may_read(folder) and folder.startswith(prefix):
                yield folder
            return
        for name in inside:
            if is_folder_name(name):
                yield from self._below(root, f"{below}/{name}" if below else name, prefix)


def _meet(folder: str, prefix: str) -> bool:
    return folder.startswith(prefix) or prefix.startswith(folder)
