"""The sidecar's columns: which there are, what they are called, and what each of them means.

``docs/sidecar.md`` is the specification; names here are those used there.
"""

from __future__ import annotations

import enum
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

# 1 could have NaN as a null partition value, and timestamps that went through nanoseconds: such a sidecar is not used.
FORMAT_VERSION = 2
# What a reader of 2 would not understand: a manifest with leaves or tiers. All other manifests are still of format 2.
LATER_FORMAT = 3
READ_FORMATS = (FORMAT_VERSION, LATER_FORMAT)
FOLDER = f"{LOG}/_sidecars"
DELTA_MANIFEST = f"{FOLDER}/deltas.manifest.json"
ROWS_PER_GROUP = 10_000
GROUPS_PER_FILE = 16


class ColumnRole(enum.StrEnum):
    """What a column of the sidecar means; together with a physical path it says which one it is."""

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
"""What statistics are called in the log; those of a column have its path below."""

STATS_OF_COLUMNS = frozenset({ColumnRole.MIN, ColumnRole.MAX, ColumnRole.NULL_COUNT})

EXTRA_NAMES = {
    ColumnRole.TAGS: "tags",
    ColumnRole.BASE_ROW_ID: "baseRowId",
    ColumnRole.DEFAULT_ROW_COMMIT_VERSION: "defaultRowCommitVersion",
    ColumnRole.CLUSTERING_PROVIDER: "clusteringProvider",
}
"""What is rarely read of an ``add``, and what it is called there."""

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
    """A Parquet column of the sidecar: its name says nothing, its role and physical path say all."""

    name: str
    role: ColumnRole
    path: tuple[str, ...] = ()


class SortColumn(msgspec.Struct, frozen=True):
    """What the rows are sorted by: a partition value, or the minimum of a column."""

    role: ColumnRole
    path: tuple[str, ...]


class SidecarLayout(msgspec.Struct, frozen=True, dict=True):
    """The columns of a sidecar in order, with what they are sorted by."""

    columns: tuple[SidecarColumn, ...]
    sort: tuple[SortColumn, ...]

    def name_of(self, role: ColumnRole, path: tuple[str, ...] = ()) -> str | None:
        """Return the Parquet name of the column with this role and path."""
        return self._names.get((role, path))

    def names(self, *, core: bool) -> list[str]:
        """Return the names of the core columns, or of the others."""
        return [column.name for column in self.columns if self.is_core(column) is core]

    def is_core(self, column: SidecarColumn) -> bool:
        """Tell whether a column is read with every row group."""
        # What the rows are sorted by tells where a file belongs, so it is read with every row group.
        return column.role in CORE_ROLES or SortColumn(column.role, column.path) in self.sort

    def sort_names(self) -> list[str]:
        """Return the Parquet names of the sort columns."""
        return [self._names[each.role, each.path] for each in self.sort]

    @cached_property
    def _names(self) -> dict[tuple[ColumnRole, tuple[str, ...]], str]:
        return {(column.role, column.path): column.name for column in self.columns}

    @classmethod
    def of(cls, schema: TableSchema, stats: Iterable[Column], sort: Sequence[SortColumn]) -> SidecarLayout:
        """Lay out the sidecar of a table: core columns, then the statistics of ``stats``, then what is rarely read."""
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
    """Return where the manifest of checkpoint ``version`` lies."""
    return f"{FOLDER}/v{version}.manifest.json"


def sidecar_path(version: int) -> str:
    """Return where a single-file sidecar of checkpoint ``version`` lies."""
    return f"{FOLDER}/v{version}.parquet"


def part_path(version: int, build: str, number: int) -> str:
    """Return where part ``number`` of the build ``build`` lies."""
    return f"{FOLDER}/v{version}-{build}-{number}.parquet"


def tier_paths(path: str) -> tuple[str, str]:
    """Return where the two tiers of a part lie that would lie at ``path`` if it had no tiers."""
    stem = path.removesuffix(".parquet")
    return f"{stem}.index.parquet", f"{stem}.stats.parquet"


def leaves_path(version: int, build: str) -> str:
    """Return where the leaves of the manifest lie that the build ``build`` writes."""
    return f"{FOLDER}/v{version}-{build}.leaves"
