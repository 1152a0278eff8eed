"""``PredicateCheck``: the sidecar and the log are asked the same questions and must name the same files.

Comparing values finds what the two have differently. What both lost on the same way (a value that the sidecar's type
has no room for is null on either side of such a comparison) shows only in the answers: those of the log come from its
own texts, those of the sidecar from its columns and from the ranges of its parts and row groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import flags
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.keys import Hashes, hash_bytes
from lazydelta.pruning import Predicate, may_match, referenced_columns
from lazydelta.pruning.binding import compare, is_null, membership
from lazydelta.sidecar.layout.manifest import RangeText
from lazydelta.sidecar.layout.sidecar_columns import ColumnRole, SidecarLayout
from lazydelta.sidecar.layout.sidecar_rows import from_rows
from lazydelta.sidecar.reading.surviving import surviving
from lazydelta.stats import combine, file_partition_ranges, partition_ranges, stats_ranges
from lazydelta.types.schema import Column, TableSchema

__all__ = ["SMALL_GROUPS_TOGETHER", "PredicateCheck"]

_ASKED_COLUMNS = 16
SMALL_GROUPS_TOGETHER = 8192
"""Row groups are looked at together until they have so many rows."""
_OPERATORS = ("=", "!=", "<", ">=")


class PredicateCheck:
    """Counts and sums up the files that each predicate finds, on either side."""

    def __init__(self, layout: SidecarLayout, schema: TableSchema, sample: pa.Table) -> None:
        """``sample`` are some rows of the sidecar, from which the values in the predicates are taken."""
        self._layout = layout
        self._predicates = list(_predicates(layout, schema, sample))
        columns = dict.fromkeys(column for each in self._predicates for column in referenced_columns(each))
        self._partitions = tuple(column for column in columns if column.is_partition)
        self._stats = tuple(column for column in columns if not column.is_partition)
        # For each side and predicate: the number of files, and two sums of their hashed paths.
        self._found = np.zeros((2, len(self._predicates), 3), np.uint64)
        self._waiting: list[_Group] = []

    def ask_log(self, batch: FileBatch) -> None:
        """Take files of the checkpoint, read with their statistics."""
        if not len(batch):
            return
        ranges = stats_ranges(batch, self._stats)
        ranges = combine([partition_ranges(batch.partition_values, self._partitions), ranges])
        hashes = hash_bytes(batch.path)
        for number, predicate in enumerate(self._predicates):
            self._take(0, number, hashes, flags(may_match(predicate, ranges)))

    def ask_sidecar(
        self, rows: pa.Table, part: Mapping[str, RangeText] | None, group: Mapping[str, RangeText] | None
    ) -> None:
        """Take the rows of a row group, with the ranges that may keep a reader from looking at it at all."""
        # Small row groups are asked together: each question costs about the same for one group and for a thousand.
        self._waiting.append(_Group(rows, part, group))
        if sum(each.rows.num_rows for each in self._waiting) >= SMALL_GROUPS_TOGETHER:
            self._ask_waiting()

    def problems(self) -> Iterator[str]:
        """Yield the predicates that find other files in the sidecar than in the log."""
        self._ask_waiting()
        for predicate, logged, ours in zip(self._predicates, *self._found, strict=True):
            if (logged != ours).any():
                yield f"{predicate} finds {int(ours[0])} files by the sidecar and {int(logged[0])} by the log"

    def _ask_waiting(self) -> None:
        groups, self._waiting = self._waiting, []
        if not groups:
            return
        looked_at = [self._looked_at(predicate, groups) for predicate in self._predicates]
        group_of = np.repeat(np.arange(len(groups)), [each.rows.num_rows for each in groups])
        for batch in pa.concat_tables(each.rows for each in groups).combine_chunks().to_batches():
            files = from_rows(batch, self._layout, tier=1)
            ranges = combine([file_partition_ranges(files, self._partitions), stats_ranges(files, self._stats)])
            hashes, here = hash_bytes(files.path), group_of[: len(files)]
            group_of = group_of[len(files) :]
            for number, predicate in enumerate(self._predicates):
                if looked_at[number].any():
                    self._take(1, number, hashes, flags(may_match(predicate, ranges)) & looked_at[number][here])

    def _looked_at(self, predicate: Predicate, groups: Sequence[_Group]) -> npt.NDArray[np.bool_]:
        """Return which of the row groups a reader looks at: all whose ranges, and those of their part, let it."""
        kept = np.ones(len(groups), np.bool_)
        for above in ([each.by_part for each in groups], [each.by_group for each in groups]):
            known = [(place, ranges) for place, ranges in enumerate(above) if ranges is not None]
            alive = {known[place][0] for place in surviving(predicate, [ranges for _, ranges in known])}
            kept[[place for place, _ in known if place not in alive]] = False
        return kept

    def _take(self, side: int, number: int, hashes: Hashes, found: npt.NDArray[np.bool_]) -> None:
        chosen = hashes[:, found]
        self._found[side, number] += np.array([chosen.shape[1], *chosen.sum(axis=1, dtype=np.uint64)], np.uint64)


class _Group(msgspec.Struct, frozen=True):
    """The rows of a row group, and what is written of its part and of itself."""

    rows: pa.Table
    by_part: Mapping[str, RangeText] | None
    by_group: Mapping[str, RangeText] | None


def _predicates(layout: SidecarLayout, schema: TableSchema, sample: pa.Table) -> Iterator[Predicate]:
    """Yield what people ask, and its negations, for the columns that prune most often."""
    by_path = {(column.is_partition, column.physical_path): column for column in schema.leaves()}
    ranged = [each for each in layout.columns if each.role in {ColumnRole.PARTITION, ColumnRole.MIN}][:_ASKED_COLUMNS]
    for stored in ranged:
        column = by_path[stored.role == ColumnRole.PARTITION, stored.path]
        yield is_null(column)
        yield is_null(column, negated=True)
        values = _values(sample.column(stored.name), column)
        for value in values:
            for op in _OPERATORS:
                yield compare(column, op, value)
            yield compare(column, ">=", value, negated=True)
        if values:
            yield membership(column, values, negated=True)


def _values(stored: pa.ChunkedArray, column: Column) -> Sequence[object]:
    """Return two values from the middle, where neither side of a comparison is empty."""
    known = stored.filter(stored.is_valid())
    if column.type.to_arrow() in (pa.float32(), pa.float64()):
        known = known.filter(pc.invert(pc.is_nan(known)))
    if pa.types.is_nested(known.type) or not len(known):
        return []
    ordered = known.take(pc.sort_indices(known))
    return list(dict.fromkeys(ordered[len(ordered) * share // 3].as_py() for share in (1, 2)))
