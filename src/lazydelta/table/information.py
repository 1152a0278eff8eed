"""What a table is, for people and programs: ``DeltaTable.info()`` and the form of a table in notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import msgspec
import pyarrow as pa

from lazydelta.errors import LazyDeltaError
from lazydelta.missing_names import OF_INFORMATION, AnswersNames
from lazydelta.runtime.results import bar_chart, bytes_text, facts_html, table_html

if TYPE_CHECKING:
    from lazydelta.table.delta_table import DeltaTable

__all__ = ["Column", "TableInfo", "describe", "html"]

# A chart of more bars is a chart of hours that cannot be told apart.
_MOST_BARS = 168
# Without a sidecar, the files of a chart have to be found first: this many are found in a fraction of a second.
_FEW_FILES = 20_000


class Column(msgspec.Struct, frozen=True):
    """A column of the table. ``type`` is PyArrow's name for it."""

    name: str
    type: str
    nullable: bool


class TableInfo(msgspec.Struct, AnswersNames, frozen=True, kw_only=True):
    """The output of ``info``. Timestamps are epoch milliseconds.

    ``num_files``, ``num_rows`` and ``size_bytes`` are None where neither a checksum nor a manifest records them.
    """

    uri: str
    version: int
    timestamp: int | None
    operation: str | None
    id: str
    name: str | None
    description: str | None
    created_time: int | None
    partition_columns: list[str]
    columns: list[Column]
    min_reader_version: int
    min_writer_version: int
    reader_features: list[str]
    writer_features: list[str]
    properties: dict[str, str | None]
    checkpoint_version: int | None
    tail_commits: int
    num_files: int | None = None
    size_bytes: int | None = None

    _INSTEAD: ClassVar[Mapping[str, str]] = OF_INFORMATION

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary of plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    if not TYPE_CHECKING:

        def __getitem__(self, name: object) -> NoReturn:
            raise TypeError(f"a TableInfo has no items; use info().{name}, or info().to_dict()")

    def _repr_html_(self) -> str:
        return facts_html(f"Delta table at version {self.version}", _facts(self)) + table_html(_columns(self))


def describe(table: DeltaTable) -> TableInfo:
    """Collect what the table is: one request for the newest commit, none for files."""
    metadata, protocol = table.metadata(), table.protocol()
    newest: dict[str, Any] = next(iter(table.history(1)), {})
    timestamp, operation = newest.get("timestamp"), newest.get("operation")
    plan = table.files().explain().plan
    checksum = table._snapshot.checksum  # noqa: SLF001 - the other half of the class
    return TableInfo(
        uri=table.table_uri,
        version=table.version(),
        timestamp=timestamp if isinstance(timestamp, int) else None,
        operation=operation if isinstance(operation, str) else None,
        id=metadata.id,
        name=metadata.name,
        description=metadata.description,
        created_time=metadata.created_time,
        partition_columns=list(metadata.partition_columns),
        columns=[Column(field.name, str(field.type), field.nullable) for field in table.schema().to_arrow()],
        min_reader_version=protocol.min_reader_version,
        min_writer_version=protocol.min_writer_version,
        reader_features=sorted(protocol.reader_features or ()),
        writer_features=sorted(protocol.writer_features or ()),
        properties=dict(metadata.configuration or {}),
        checkpoint_version=plan["base_version"],
        tail_commits=plan["tail_commits"],
        num_files=None if checksum is None else checksum.num_files,
        size_bytes=None if checksum is None else checksum.table_size_bytes,
    )


def html(table: DeltaTable) -> str:
    """Return a table for a notebook: facts, columns, and how many files there are over time."""
    info = describe(table)
    return info._repr_html_() + bar_chart(*_files_over_time(table, info))


def _facts(info: TableInfo) -> dict[str, Any]:
    known = info.checkpoint_version
    commits = f"{info.tail_commits:,} commits"
    return {
        "location": info.uri,
        "name": info.name,
        "description": info.description,
        "files": None if info.num_files is None else f"{info.num_files:,}",
        "size": None if info.size_bytes is None else bytes_text(info.size_bytes),
        "partitioned by": ", ".join(info.partition_columns),
        "last operation": info.operation,
        "log": f"{commits}, no checkpoint" if known is None else f"checkpoint {known} and {commits} after it",
        "features": ", ".join(dict.fromkeys([*info.reader_features, *info.writer_features])),
    }


def _columns(info: TableInfo) -> pa.Table:
    return pa.table(
        {
            "column": pa.array([each.name for each in info.columns], pa.string()),
            "type": pa.array([each.type for each in info.columns], pa.string()),
            "nullable": pa.array(["" if each.nullable else "no" for each in info.columns], pa.string()),
        }
    )


def _files_over_time(table: DeltaTable, info: TableInfo) -> tuple[list[tuple[str, int]], str]:
    """Return the number of files by the value that the table is sorted by, from the manifest where there is one.

    A bar of a manifest stands for a row group, under the least value in it.
    """
    found: Counter[str] = Counter()
    try:
        sidecar = table.sidecar_status()
    except LazyDeltaError:
        sidecar = None  # it is damaged: scans go without it, too
    if sidecar is not None and sidecar.version is not None and sidecar.version == info.checkpoint_version:
        for part in sidecar.parts:
            for group in part.row_groups:
                found[group.min or "null"] += group.num_rows
    elif info.partition_columns and info.num_files is not None and info.num_files <= _FEW_FILES:
        name = info.partition_columns[-1]
        for file in table.files():
            found[file.partition_values.get(name) or "null"] += 1
    counts = sorted(found.items())
    while len(counts) > _MOST_BARS:
        pairs = [counts[start : start + 2] for start in range(0, len(counts), 2)]
        counts = [(pair[0][0], sum(count for _, count in pair)) for pair in pairs]
    return counts, "files"
