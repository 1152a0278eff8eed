"""``Pruner``: drops the files of a batch that provably hold no matching row, cheapest checks first."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.errors import PredicateError
from lazydelta.log.checkpoint.reader import StatsWanted
from lazydelta.log.file_batch import PARTITION_VALUES, FileBatch
from lazydelta.predicates import (
    DistinctPartitions,
    Predicate,
    all_match,
    bounded_columns,
    counts_matter,
    may_match,
    partition_columns,
    stats_columns,
)
from lazydelta.predicates.tree import believing_maxima
from lazydelta.protocol.schema import Column
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import flags
from lazydelta.runtime.metrics import ScanMetrics
from lazydelta.scan.request import ScanRequest
from lazydelta.stats import Ranges, combine, file_partition_ranges, ranges_from_json, stats_ranges, with_writers
from lazydelta.warned import PredicateWarning

if TYPE_CHECKING:
    import numpy.typing as npt  # builds its docstrings on import

__all__ = ["Pruner"]


class Pruner:
    """Evaluates the predicate of a request against batches of files.

    Without ``project_columns``, returns the statistics of all columns, whatever the request names.
    """

    def __init__(self, request: ScanRequest, metrics: ScanMetrics, *, project_columns: bool = True) -> None:
        self._predicate: Predicate | None = request.predicate
        self._partitions = partition_columns(request.predicate)
        self._distinct = None if request.predicate is None else DistinctPartitions(request.predicate, self._partitions)
        self._columns = stats_columns(request.predicate)
        self._counts_rows = request.row_limit is not None
        self._bounded = bounded_columns(request.predicate)
        self._bounds_decide = request.predicate is not None and not counts_matter(request.predicate)
        self._bounds_first = True  # tried at first; after that the last batch decides
        self._metrics = metrics
        # None if no file can have a hidden NaN, if no warning is wanted, and once one was issued.
        told = None if request.quiet else request.predicate
        self._believing = None if told is None else believing_maxima(told)
        self._is_strict = request.strict
        reported = request.stats_columns
        self.wanted: StatsWanted | None = None
        if not project_columns:
            self.wanted = StatsWanted(extra=request.extra)
        elif self._columns or self._counts_rows or reported is not None:
            paths = dict.fromkeys(column.physical_path for column in (*self._columns, *(reported or ())))
            self.wanted = StatsWanted(tuple(paths), extra=request.extra)
        elif request.extra:
            self.wanted = StatsWanted(extra=True, stats=False)

    def prune(self, batch: FileBatch) -> FileBatch:
        """Return the files that may hold a matching row. Files with missing statistics are kept."""
        if self._predicate is None:
            return batch
        before = len(batch)
        if self._partitions or not self._columns:
            batch = _plain(_keep(batch, self._by_partitions(self._predicate, batch)))
        if self._columns and len(batch):
            # Parse statistics only for the files left: on V1 checkpoints they are JSON, the most expensive step.
            batch = self._by_stats(self._predicate, batch)
            if self._believing is not None and len(batch):
                self._tell_of_nan(self._believing, batch)
        self._metrics.files_pruned_one_by_one += before - len(batch)
        return batch

    def _tell_of_nan(self, believing: Predicate, batch: FileBatch) -> None:
        """Warn, or raise with ``strict``, if files are kept only because a NaN may exceed their maximum."""
        count = len(batch) - may_match(believing, self._all_ranges(batch)).true_count
        if not count:
            return
        self._believing = None
        message = f"Some files cannot be pruned by {self._predicate}, because NaN is the largest value and their"
        message += " writers may have left it out of the maximum"
        hint = 'rewrite them (OPTIMIZE), set float_max="trust" if no writer does so, or compare by a tuple'
        if self._is_strict:
            raise PredicateError(message, hint=hint)
        warnings.warn(PredicateWarning(f"{message} ({hint})"), stacklevel=2)

    def _by_partitions(self, predicate: Predicate, batch: FileBatch) -> pa.BooleanArray:
        if batch.parsed_partitions is None and self._distinct is not None:
            return self._distinct.may_match(batch.partition_values)
        return may_match(predicate, self._partition_ranges(batch))

    def _by_stats(self, predicate: Predicate, batch: FileBatch) -> FileBatch:
        before = len(batch)
        if self._bounds_first and self._bounded and batch.json_stats is not None and batch.parsed_stats is None:
            # Parsing only the bounds takes a quarter less time. Counts can only rule out more files, so they are parsed
            # for the files that the bounds keep. If those are most of the files, parsing everything at once is faster.
            bounds = ranges_from_json(batch.json_stats, self._bounded, only_bounds=True)
            bounds = with_writers(batch, bounds, self._bounded)
            batch = _keep(batch, may_match(predicate, self._with_partitions(batch, bounds)))
            self._bounds_first = len(batch) <= before // 2
            if self._bounds_decide and _all_known(bounds, self._bounded):
                return batch
            return _keep(batch, may_match(predicate, self._all_ranges(batch))) if len(batch) else batch
        batch = _keep(batch, may_match(predicate, self._all_ranges(batch)))
        self._bounds_first = len(batch) <= before // 2
        return batch

    def proven_rows(self, batch: FileBatch) -> npt.NDArray[np.int64]:
        """Return the number of live rows proven to match for each file: all of them, or 0 if not all are proven."""
        ranges = self._all_ranges(batch)
        records = ranges.num_records
        if records is None:
            return np.zeros(len(batch), np.int64)
        counts = _integers(records)
        if batch.deletion_vector is not None:
            counts = counts - _integers(batch.deletion_vector.field("cardinality"))
        if self._predicate is not None:
            counts = np.where(flags(all_match(self._predicate, ranges)), counts, 0)
        return np.maximum(counts, 0)

    def _partition_ranges(self, batch: FileBatch) -> Ranges:
        return file_partition_ranges(batch, self._partitions)

    def _all_ranges(self, batch: FileBatch) -> Ranges:
        return self._with_partitions(batch, stats_ranges(batch, self._columns))

    def _with_partitions(self, batch: FileBatch, stats: Ranges) -> Ranges:
        return combine([self._partition_ranges(batch), stats]) if self._partitions else stats


def _all_known(ranges: Ranges, columns: Sequence[Column]) -> bool:
    """Return whether each file has a bound for each column. Then no count can show that there are no values."""
    known = [ranges.column(column) for column in columns]
    return all(
        each is not None and any(bound is not None and bound.null_count == 0 for bound in (each.min, each.max))
        for each in known
    )


def _plain(batch: FileBatch) -> FileBatch:
    """Return the batch with partition values as strings, if they were read as dictionary codes."""
    if batch.partition_values.type == PARTITION_VALUES:
        return batch
    return msgspec.structs.replace(batch, partition_values=pc.cast(batch.partition_values, PARTITION_VALUES))


def _keep(batch: FileBatch, keep: pa.BooleanArray) -> FileBatch:
    count = keep.true_count
    if count == len(keep):
        return batch
    if count == 0:
        return batch.slice(0, 0)
    if 4 * count > len(keep):
        # In rows sorted by the predicate's column the matches are contiguous, and need no copy. A short range is
        # copied: otherwise one of its files would keep the whole batch in memory.
        mask = flags(keep)
        start = int(mask.argmax())
        if mask[start : start + count].all():
            return batch.slice(start, count)
    return batch.filter(keep)


def _integers(values: pa.Array) -> npt.NDArray[np.int64]:
    counts = np.frombuffer(values.buffers()[1], np.int64, len(values), values.offset * 8)
    return np.where(flags(pc.is_valid(values)), counts, 0)
