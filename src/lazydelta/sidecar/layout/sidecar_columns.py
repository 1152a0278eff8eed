"""The sidecar's columns: which there are, what they are called, and what each of them means.

``docs/sidecar.md`` is the specification; names here are those used there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec
import pyarrow as pa

from lazydelta.log.file_batch import PARTITION_VALUES
from lazydelta.log.names import LOG
from lazydelta.stats import has_range
from lazydelta.types.schema import Column, TableSchema

__all__ = [
    "CORE_ROLES",
    "FOLDER",
    "FORMAT_VERSION",
    "GROUPS_PER_FILE",
    "ROWS_PER_GROUP",
    "SidecarColumn",
    "SidecarLayout",
    "SortColumn",
    "manifest_path",
    "part_path",
    "sidecar_path",
]

# 1 could have NaN as a null partition value, and timestamps that went through nanoseconds: such a sidecar is not used.
FORMAT_VERSION = 2
FOLDER = f"{LOG}/_sidecars"
ROWS_PER_GROUP = 10_000
GROUPS_PER_FILE = 16

_TEXT, _LONG, _INT = pa.string(), pa.int64(), pa.int32()
_DV = {
    "storageType": _TEXT,
    "pathOrInlineDv": _TEXT,
    "offset": _INT,
    "sizeInBytes": _INT,
    "cardinality": _LONG,
}
_EXTRA = {
    "tags": PARTITION_VALUES,
    "base_row_id": _LONG,
    "default_row_commit_version": _LONG,
    "clustering_provider": _TEXT,
}
CORE_ROLES = frozenset(
    {"path", "size", "modification_time", "partition", "num_records", "tight_bounds", "dv", "partition_values"}
)


class SidecarColumn(msgspec.Struct, frozen=True):
    """A Parquet column of the sidecar: its name says nothing, its role and physical path say all."""

    name: str
    role: str
    path: tuple[str, ...] = ()


class SortColumn(msgspec.Struct, frozen=True):
    """What the rows are sorted by: a partition value, or the minimum of a column."""

    role: str
    path: tuple[str, ...]


class SidecarLayout(msgspec.Struct, frozen=True, dict=True):
    """The columns of a sidecar in order, with what they are sorted by."""

    columns: tuple[SidecarColumn, ...]
    sort: tuple[SortColumn, ...]

    def name_of(self, role: str, path: tuple[str, ...] = ()) -> str | None:
        """Return the Parquet name of the column with this role and path."""
        return self._names.get((role, path))

    def names(self, *, core: bool) -> list[str]:
        """Return the names of the core columns, or of the others."""
        return [column.name for column in self.columns if self._is_core(column) is core]

    def _is_core(self, column: SidecarColumn) -> bool:
        # What the rows are sorted by tells where a file belongs, so it is read with every row group.
        return column.role in CORE_ROLES or SortColumn(column.role, column.path) in self.sort

    def sort_names(self) -> list[str]:
        """Return the Parquet names of the sort columns."""
        return [self._names[each.role, each.path] for each in self.sort]

    @cached_property
    def _names(self) -> dict[tuple[str, tuple[str, ...]], str]:
        return {(column.role, column.path): column.name for column in self.columns}

    @classmethod
    def of(cls, schema: TableSchema, stats: Iterable[Column], sort: Sequence[SortColumn]) -> SidecarLayout:
        """Lay out the sidecar of a table: core columns, then the statistics of ``stats``, then what is rarely read."""
        planned: list[tuple[str, str, tuple[str, ...]]] = [
            ("path", "path", ()),
            ("size", "size", ()),
            ("modification_time", "modification_time", ()),
        ]
        planned += [(name, "partition", (name,)) for name in schema.physical_partition_columns]
        planned += [(f"min.{'.'.join(each.path)}", "min", each.path) for each in sort if each.role == "min"]
        planned += [("num_records", "num_records", ()), ("tight_bounds", "tight_bounds", ())]
        planned += [(f"dv.{name}", "dv", (name,)) for name in _DV]
        planned += [("partition_values", "partition_values", ())]
        for column in stats:
            dotted = ".".join(column.physical_path)
            if has_range(column):
                roles = ["max"] if SortColumn("min", column.physical_path) in sort else ["min", "max"]
                planned += [(f"{role}.{dotted}", role, column.physical_path) for role in roles]
            planned.append((f"null_count.{dotted}", "null_count", column.physical_path))
        planned += [(name, name, ()) for name in _EXTRA]
        return cls(tuple(_distinct(planned)), tuple(sort))

    def arrow_schema(self, schema: TableSchema) -> pa.Schema:
        """Return the Arrow schema of the sidecar of a table with this schema."""
        types = {column.physical_path: column.type.to_arrow() for column in schema.leaves()}
        return pa.schema([pa.field(each.name, _type_of(each, types)) for each in self.columns])


def _distinct(planned: Iterable[tuple[str, str, tuple[str, ...]]]) -> Iterable[SidecarColumn]:
    taken: set[str] = set()
    for name, role, path in planned:
        free, number = name, 2
        while free in taken:
            free, number = f"{name}#{number}", number + 1
        taken.add(free)
        yield SidecarColumn(free, role, path)


def _type_of(column: SidecarColumn, types: dict[tuple[str, ...], pa.DataType]) -> pa.DataType:
    match column.role:
        case "partition" | "min" | "max":
            return types[column.path]
        case "dv":
            return _DV[column.path[0]]
        case "path":
            return _TEXT
        case "tight_bounds":
            return pa.bool_()
        case "partition_values":
            return PARTITION_VALUES
        case role if role in _EXTRA:
            return _EXTRA[role]
        case _:
            return _LONG


def manifest_path(version: int) -> str:
    """Return where the manifest of checkpoint ``version`` lies."""
    return f"{FOLDER}/v{version}.manifest.json"


def sidecar_path(version: int) -> str:
    """Return where a single-file sidecar of checkpoint ``version`` lies."""
    return f"{FOLDER}/v{version}.parquet"


def part_path(version: int, build: str, number: int) -> str:
    """Return where part ``number`` of the build ``build`` lies."""
    return f"{FOLDER}/v{version}-{build}-{number}.parquet"
