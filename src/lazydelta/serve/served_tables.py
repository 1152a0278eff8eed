"""``ServedTables``: the tables that a server offers, by name, and who may read which.

Clients give names, never places. A name is looked up among the configured ones; below a configured root it is taken
apart into plain folder names, and whatever could lead out of the root is no name. Tables that do not exist and tables
that somebody may not read get the same answer, so that nobody learns names by asking.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lazydelta.delta_table import DeltaTable
from lazydelta.engines.table_source import pinned
from lazydelta.errors import OptionError, TableNotFoundError
from lazydelta.handle import TableHandle
from lazydelta.serve.confinement import Confinement

__all__ = ["ANYONE", "LONGEST_NAME", "Identity", "ServedTables", "TablePlace", "is_folder_name"]

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=\- ]*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
LONGEST_NAME = 512
_SNAPSHOTS_KEPT = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks, and for which tables; ``tables`` None are all, ``root/*`` stands for all below a root."""

    name: str
    tables: tuple[str, ...] | None = None

    def may_read(self, table: str) -> bool:
        """Tell whether a table is among those that this one may read."""
        if self.tables is None:
            return True
        return any(
            table == each or (each.endswith("/*") and table.startswith(each[:-1])) or each == "*"
            for each in self.tables
        )

    def may_read_below(self, folder: str) -> bool:
        """Tell whether there may be tables in a folder, or deeper, that this one may read."""
        if self.tables is None:
            return True
        return any(
            each in {"*", folder}
            or each.startswith(f"{folder}/")
            or (each.endswith("/*") and f"{folder}/".startswith(each[:-1]))
            for each in self.tables
        )


ANYONE = Identity("anonymous")
"""Who asks a server that wants no tokens, which only listens to its own machine."""


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where a table is, or the folder of several, and how it is opened; ``repr`` shows no credentials."""

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    external_locations: Mapping[str, Mapping[str, str] | None] | None = field(default=None, repr=False)

    def opened(self, below: str = "", version: int | str | None = None) -> DeltaTable:
        """Open the table, or the one in a folder below."""
        uri = f"{self.uri.rstrip('/')}/{below}" if below else self.uri
        return DeltaTable(
            uri,
            version,
            dict(self.storage_options) or None,
            options=dict(self.options) or None,
            external_locations=self.external_locations,
        )


class ServedTables:
    """The configured tables and roots; versions that were opened are remembered, because they do not change."""

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
            raise OptionError(f"{min(both)!r} is both a table and a root", hint="give one of them another name")
        self._kept = kept
        self._written = sorted(self._written_places(), key=lambda each: len(each[0]), reverse=True)
        self._opened: OrderedDict[tuple[str, int, int], DeltaTable] = OrderedDict()
        self._lock = threading.Lock()

    def names_for(self, identity: Identity) -> list[str]:
        """Return the configured tables that somebody may read; those below roots are not looked for."""
        return sorted(name for name in self._tables if identity.may_read(name))

    def roots(self) -> list[str]:
        """Return the names of the configured roots."""
        return sorted(self._roots)

    def folders(self, root: str, below: str) -> Sequence[str]:
        """Return the names of the folders in a folder below a root; a link is none."""
        place = self._roots[root]
        return TableHandle.open(place.uri, dict(place.storage_options) or None).store.folders(below)

    def open(
        self, name: str, identity: Identity, version: int | str | None = None, *, base: int | None = None
    ) -> DeltaTable:
        """Open a table that somebody may read, at a version or at the newest.

        ``base`` asks for the version as it was read from the checkpoint ``base`` before, where that is remembered: a
        newer checkpoint has the same files in another order.
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
        """Have every scan of a table's rows check where its files lie, whichever protocol or engine asks for it."""
        folders = self.allowed_folders(name)
        if folders is not None:
            handle, snapshot = pinned(table)
            check = Confinement(snapshot.store, folders).check_batch
            table._handle = msgspec.structs.replace(handle, check_files=check)  # noqa: SLF001 - made for this server alone
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
        segment = pinned(table)[1].segment
        key = (name, segment.version, segment.base_version)
        with self._lock:
            known = self._opened.get(key)
            # Another table may have taken the place of the one that was remembered, version for version.
            if known is None or known.metadata().id != table.metadata().id:
                self._opened[key] = known = table
            self._opened.move_to_end(key)
            while len(self._opened) > self._kept:
                self._opened.popitem(last=False)
        return known

    def allowed_folders(self, name: str) -> tuple[str, ...] | None:
        """Return the local folders that the files of a table may lie in; None for tables in stores."""
        root, _, below = name.partition("/")
        place = self._roots.get(root) if below else self._tables.get(name)
        store = None if place is None else TableHandle.open(place.uri, dict(place.storage_options) or None).store
        if store is None or not store.pins_what_is_open:
            return None
        return (os.path.realpath(store.place("").rstrip("/") or "/"),)

    def without_places(self, message: str) -> str:
        """Return a message with the names of tables and roots where it has their places, which clients are not told."""
        for written, name in self._written:
            message = message.replace(written, name)
        return message

    def _written_places(self) -> Iterator[tuple[str, str]]:
        """Yield every way in which a place may be written, with the name that it has here."""
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
        """Refuse a folder that is a link to somewhere else; stores have no links."""
        store = TableHandle.open(place.uri, dict(place.storage_options) or None).store
        if not store.pins_what_is_open:
            return
        root = os.path.realpath(store.place("").rstrip("/") or "/")
        found = os.path.realpath(store.place(below))
        if os.path.commonpath([root, found]) != root:
            raise _not_there(name)


def is_folder_name(name: str) -> bool:
    """Tell whether a folder below a root can be a part of a table's name."""
    return _SEGMENT.fullmatch(name) is not None


def _not_there(name: object) -> TableNotFoundError:
    shown = repr(name)
    shown = shown if len(shown) <= LONGEST_NAME else f"{shown[:LONGEST_NAME]}…"
    return TableNotFoundError(f"There is no table {shown} here", hint="list the tables to see which there are for you")
