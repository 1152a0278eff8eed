"""A commit read line by line with Python's JSON, as the rows that a delta sidecar has to hold of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import CorruptLogError
from lazydelta.log.commits import CHUNK_SIZE
from lazydelta.log.names import LogFile
from lazydelta.sidecar.inspection.plain_values import UNJUDGED, loaded, logged_bound, logged_partition, logged_stats
from lazydelta.sidecar.layout.sidecar_columns import (
    EXTRA_NAMES,
    STATS_NAMES,
    STATS_OF_COLUMNS,
    ColumnRole,
    SidecarColumn,
)
from lazydelta.storage import Store

__all__ = ["LoggedCommit", "OtherAction", "PlainRow", "expected_row"]

Json = dict[str, Any]
OtherAction = tuple[Any, ...]
"""A transaction, a domain or an action that nobody knows, in a form that can be compared."""

_NAMES = {
    ColumnRole.PATH: "path",
    ColumnRole.SIZE: "size",
    ColumnRole.MODIFICATION_TIME: "modificationTime",
}
_KNOWN = (
    "add",
    "remove",
    "metaData",
    "protocol",
    "txn",
    "domainMetadata",
    "commitInfo",
    "sidecar",
    "cdc",
    "checkpointMetadata",
)


class PlainRow(msgspec.Struct, frozen=True):
    """An action about a file."""

    removed: bool
    body: Json


class LoggedCommit:
    """One pass over a commit; what is not about files is known when its rows have gone by."""

    def __init__(self, store: Store, file: LogFile) -> None:
        self._store = store
        self._file = file
        self.others: list[OtherAction] = []
        self.describes_table = False

    def rows(self) -> Iterator[PlainRow]:
        """Yield adds in the log's order, then removes."""
        removes: list[Json] = []
        for line in self._lines():
            if line.get("add") is not None:
                yield PlainRow(False, line["add"])  # noqa: FBT003 - the field's only meaning
            elif line.get("remove") is not None:
                removes.append({name: line["remove"].get(name) for name in ("path", "deletionVector")})
            else:
                self._note(line)
        for remove in removes:
            yield PlainRow(True, remove)  # noqa: FBT003

    def _note(self, line: Json) -> None:
        self.describes_table |= any(line.get(name) is not None for name in ("metaData", "protocol"))
        txn, domain = line.get("txn"), line.get("domainMetadata")
        if txn is not None:
            self.others.append(("txn", txn.get("appId"), txn.get("version"), txn.get("lastUpdated")))
        elif domain is not None:
            settings = domain.get("configuration", "")
            self.others.append(("domainMetadata", domain.get("domain"), settings, domain.get("removed", False)))
        elif all(line.get(name) is None for name in _KNOWN):
            self.others.append(("unknown",))

    def _lines(self) -> Iterator[Json]:
        stream = self._store.stream(self._file.path, chunk_size=CHUNK_SIZE)
        try:
            rest = b""
            for chunk in stream:
                *lines, rest = (rest + bytes(chunk)).split(b"\n")
                yield from self._parsed(lines)
            yield from self._parsed([rest])
        finally:
            stream.close()

    def _parsed(self, lines: Sequence[bytes]) -> Iterator[Json]:
        for line in filter(None, map(bytes.strip, lines)):
            try:
                found = loaded(line)
            except (ValueError, RecursionError) as error:
                message = f"{self._file.path} has a line that is not JSON: {error}"
                raise CorruptLogError(message, path=self._file.path, version=self._file.version) from error
            yield found if isinstance(found, dict) else {}


def expected_row(row: PlainRow, columns: Sequence[SidecarColumn], types: Mapping[str, pa.DataType]) -> Json:
    """Return what the columns of a delta sidecar have to hold of an action; of a remove only its key counts."""
    if row.removed:
        columns = [each for each in columns if each.role in {ColumnRole.PATH, ColumnRole.DV}]
    stats = {} if row.removed else logged_stats(row.body.get("stats"))
    return {each.name: _expected(each, types[each.name], row.body, stats) for each in columns}


def _expected(column: SidecarColumn, kind: pa.DataType, body: Json, stats: Json) -> Any:
    match column.role:
        case ColumnRole.DV:
            vector = body.get("deletionVector")
            default = 0 if column.path[0] in {"sizeInBytes", "cardinality"} else None
            return None if vector is None else vector.get(column.path[0], default)
        case ColumnRole.PARTITION:
            return logged_partition((body.get("partitionValues") or {}).get(column.path[0]), kind)
        case ColumnRole.PARTITION_VALUES:
            return body.get("partitionValues") or None
        case role if role in EXTRA_NAMES:
            return body.get(EXTRA_NAMES[role]) or None if role is ColumnRole.TAGS else body.get(EXTRA_NAMES[role])
        case role if role in STATS_NAMES:
            path = (STATS_NAMES[role], *(column.path if role in STATS_OF_COLUMNS else ()))
            value = logged_bound(_found(stats, path), kind, up=role is ColumnRole.MAX)
            is_count = role in {ColumnRole.NUM_RECORDS, ColumnRole.NULL_COUNT}
            return UNJUDGED if is_count and isinstance(value, int) and value < 0 else value
        case role:
            return body.get(_NAMES[role])


def _found(stats: Any, path: Sequence[str]) -> Any:
    for name in path:
        stats = stats.get(name) if isinstance(stats, dict) else None
    return stats
