"""Columns of a sidecar: their names, types and roles.

``docs/sidecar.md`` is the specification; this module uses its names.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec
import pyarrow as pa

from lazydelta.log.file_batch import PARTITION_VALUES
from lazydelta.protocol.file_names import LOG
from lazydelta.protocol.schema import Column, TableSchema
from lazydelta.stats import has_range

__all__ = [
    "CORE_ROLES",
    "DELTA_MANIFEST",
    "EXTRA_NAMES",
    "FOLDER",
    "FORMAT_VERSION",
    "GROUPS_PER_FILE",
    "LATER_FORMAT",
    "READ_FORMATS",
    "ROWS_PER_GROUP",
    "STATS_NAMES",
    "STATS_OF_COLUMNS",
    "ColumnRole",
    "SidecarColumn",
    "SidecarLayout",
    "SortColumn",
    "leaves_path",
    "manifest_path",
    "part_path",
    "sidecar_path",
    "tier_paths",
]

# Format 1 could store NaN as a null partition value, and timestamps rounded through nanoseconds. It is not read.
FORMAT_VERSION = 2
# Manifests with leaves or tiers, which a reader of format 2 would not understand. All others keep format 2.
LATER_FORMAT = 3
READ_FORMATS = (FORMAT_VERSION, LATER_FORMAT)
FOLDER = f"{LOG}/_sidecars"
DELTA_MANIFEST = f"{FOLDER}/deltas.manifest.json"
ROWS_PER_GROUP = 10_000
GROUPS_PER_FILE = 16


class ColumnRole(enum.StrEnum):
    """The meaning of a sidecar column; a role and a physical path identify a column."""

    PATH = "path"
    SIZE = "size"
    MODIFICATION_TIME = "modification_time"
    PARTITION = "partition"
    PARTITION_VALUES = "partition_values"
    NUM_RECORDS = "num_records"
    TIGHT_BOUNDS = "tight_bounds"
    DV = "dv"
    MIN = "min"
    MAX = "max"
    NULL_COUNT = "null_count"
    TAGS = "tags"
    BASE_ROW_ID = "base_row_id"
    DEFAULT_ROW_COMMIT_VERSION = "default_row_commit_version"
    CLUSTERING_PROVIDER = "clustering_provider"
    VERSION = "version"
    REMOVED = "removed"


STATS_NAMES = {
    ColumnRole.NUM_RECORDS: "numRecords",
    ColumnRole.TIGHT_BOUNDS: "tightBounds",
    ColumnRole.MIN: "minValues",
    ColumnRole.MAX: "maxValues",
    ColumnRole.NULL_COUNT: "nullCount",
}
"""Names of statistics in the log; those of a column have its path below."""

STATS_OF_COLUMNS = frozenset({ColumnRole.MIN, ColumnRole.MAX, ColumnRole.NULL_COUNT})

EXTRA_NAMES = {
    ColumnRole.TAGS: "tags",
    ColumnRole.BASE_ROW_ID: "baseRowId",
    ColumnRole.DEFAULT_ROW_COMMIT_VERSION: "defaultRowCommitVersion",
    ColumnRole.CLUSTERING_PROVIDER: "clusteringProvider",
}
"""Rarely read fields of an ``add`` action, and their names in the log."""

_TEXT, _LONG, _INT = pa.string(), pa.int64(), pa.int32()
_DV = {
    "storageType": _TEXT,
    "pathOrInlineDv": _TEXT,
    "offset": _INT,
    "sizeInBytes": _INT,
    "cardinality": _LONG,
}
CORE_ROLES = frozenset(ColumnRole) - STATS_OF_COLUMNS - EXTRA_NAMES.keys()


class SidecarColumn(msgspec.Struct, frozen=True):
    """A Parquet column of the sidecar, identified by its role and physical path; its name has no meaning."""

    name: str
    role: ColumnRole
    path: tuple[str, ...] = ()


class SortColumn(msgspec.Struct, frozen=True):
    """A column of the sort order: a partition value, or the minimum of a column."""

    role: ColumnRole
    path: tuple[str, ...]


class SidecarLayout(msgspec.Struct, frozen=True, dict=True):
    """The columns of a sidecar in order, and their sort order."""

    columns: tuple[SidecarColumn, ...]
    sort: tuple[SortColumn, ...]

    def name_of(self, role: ColumnRole, path: tuple[str, ...] = ()) -> str | None:
        """Return the Parquet name of the column with this role and path."""
        return self._names.get((role, path))

    def names(self, *, core: bool) -> list[str]:
        """Return the names of the core columns, or of the others."""
        return [column.name for column in self.columns if self.is_core(column) is core]

    def is_core(self, column: SidecarColumn) -> bool:
        """Return whether a column is read with every row group."""
        # Sort columns determine where a file belongs, so they are read with every row group.
        return column.role in CORE_ROLES or SortColumn(column.role, column.path) in self.sort

    def sort_names(self) -> list[str]:
        """Return the Parquet names of the sort columns."""
        return [self._names[each.role, each.path] for each in self.sort]

    @cached_property
    def _names(self) -> dict[tuple[ColumnRole, tuple[str, ...]], str]:
        return {(column.role, column.path): column.name for column in self.columns}

    @classmethod
    def of(cls, schema: TableSchema, stats: Iterable[Column], sort: Sequence[SortColumn]) -> SidecarLayout:
        """Return the layout for a table: core columns, the statistics of ``stats``, then rarely read columns."""
        planned: list[tuple[str, ColumnRole, tuple[str, ...]]] = [
            (role.value, role, ()) for role in (ColumnRole.PATH, ColumnRole.SIZE, ColumnRole.MODIFICATION_TIME)
        ]
        planned += [(name, ColumnRole.PARTITION, (name,)) for name in schema.physical_partition_columns]
        minima = [each.path for each in sort if each.role == ColumnRole.MIN]
        planned += [(f"min.{'.'.join(path)}", ColumnRole.MIN, path) for path in minima]
        planned += [(role.value, role, ()) for role in (ColumnRole.NUM_RECORDS, ColumnRole.TIGHT_BOUNDS)]
        planned += [(f"dv.{name}", ColumnRole.DV, (name,)) for name in _DV]
        planned += [("partition_values", ColumnRole.PARTITION_VALUES, ())]
        for column in stats:
            dotted = ".".join(column.physical_path)
            if has_range(column):
                roles = [ColumnRole.MAX] if column.physical_path in minima else [ColumnRole.MIN, ColumnRole.MAX]
                planned += [(f"{role}.{dotted}", role, column.physical_path) for role in roles]
            planned.append((f"null_count.{dotted}", ColumnRole.NULL_COUNT, column.physical_path))
        planned += [(role.value, role, ()) for role in EXTRA_NAMES]
        return cls(tuple(_distinct(planned)), tuple(sort))

    def arrow_schema(self, schema: TableSchema) -> pa.Schema:
        """Return the Arrow schema of the sidecar of a table with this schema."""
        types = {column.physical_path: column.type.to_arrow() for column in schema.leaves()}
        return pa.schema([pa.field(each.name, _type_of(each, types)) for each in self.columns])


def _distinct(planned: Iterable[tuple[str, ColumnRole, tuple[str, ...]]]) -> Iterable[SidecarColumn]:
    taken: set[str] = set()
    for name, role, path in planned:
        free, number = name, 2
        while free in taken:
            free, number = f"{name}#{number}", number + 1
        taken.add(free)
        yield SidecarColumn(free, role, path)


def _type_of(column: SidecarColumn, types: dict[tuple[str, ...], pa.DataType]) -> pa.DataType:
    match column.role:
        case ColumnRole.PARTITION | ColumnRole.MIN | ColumnRole.MAX:
            return types[column.path]
        case ColumnRole.DV:
            return _DV[column.path[0]]
        case ColumnRole.PATH | ColumnRole.CLUSTERING_PROVIDER:
            return _TEXT
        case ColumnRole.TIGHT_BOUNDS | ColumnRole.REMOVED:
            return pa.bool_()
        case ColumnRole.PARTITION_VALUES | ColumnRole.TAGS:
            return PARTITION_VALUES
        case _:
            return _LONG


def manifest_path(version: int) -> str:
    """Return the path of the manifest of checkpoint ``version``."""
    return f"{FOLDER}/v{version}.manifest.json"


def sidecar_path(version: int) -> str:
    """Return the path of a single-file sidecar of checkpoint ``version``."""
    return f"{FOLDER}/v{version}.parquet"


def part_path(version: int, build: str, number: int) -> str:
    """Return the path of part ``number`` of the build ``build``."""
    return f"{FOLDER}/v{version}-{build}-{number}.parquet"


def tier_paths(path: str) -> tuple[str, str]:
    """Return the paths of the two tiers of a part whose path without tiers would be ``path``."""
    stem = path.removesuffix(".parquet")
    return f"{stem}.index.parquet", f"{stem}.stats.parquet"


def leaves_path(version: int, build: str) -> str:
    """Return the path of the manifest leaves that the build ``build`` writes."""
    return f"{FOLDER}/v{version}-{build}.leaves"
