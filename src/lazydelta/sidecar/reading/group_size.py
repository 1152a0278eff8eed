"""How many row groups of a sidecar may be under way at once: as many as fit the memory budget with what is read there.

A row group of ten thousand files is two megabytes where only its core is read, and five times that with the statistics
of a hundred columns. It is there several times over: as bytes, as rows, decoded together with others, in the hands of
the consumer, and as what the allocator keeps of the one before.
"""

from __future__ import annotations

from lazydelta.log.checkpoint.checkpoint_columns import StatsWanted
from lazydelta.sidecar.layout.sidecar_columns import ROWS_PER_GROUP, SidecarLayout
from lazydelta.sidecar.layout.tiers import TIERED_ABOVE
from lazydelta.sidecar.reading.group_stats import stats_column_names, wants_second_tier

__all__ = ["groups_that_fit"]

_CORE_BYTES, _STATISTIC_BYTES = 200, 12  # of a file: path, size and the like; a bound or a count
_STATISTICS_OF_A_COLUMN = 3
_LARGEST = 96 << 20  # the builder cuts parts of wide tables to this
_COPIES = 12


def groups_that_fit(layout: SidecarLayout, wanted: StatsWanted | None, memory_budget: int, *, has_tiers: bool) -> int:
    """Return the number, which is at least one: a row group is read whole, because it is verified whole."""
    statistics = len(stats_column_names(layout, wanted))
    if has_tiers and wanted is not None and wants_second_tier(layout, wanted):
        columns = TIERED_ABOVE if wanted.columns is None else len(wanted.columns)
        statistics += _STATISTICS_OF_A_COLUMN * columns
    size = ROWS_PER_GROUP * (_CORE_BYTES + _STATISTIC_BYTES * statistics)
    return max(1, memory_budget // (_COPIES * min(_LARGEST, size)))
