"""File statistics: value ranges from JSON and typed statistics and from partition values.

``collector`` computes the statistics of new files; all other modules read existing ones.
"""

from __future__ import annotations

from lazydelta.stats.collector import has_range
from lazydelta.stats.json_stats import (
    file_partition_ranges,
    is_timestamp,
    is_written_here,
    ranges_from_json,
    stats_ranges,
    with_writers,
)
from lazydelta.stats.ranges import (
    ColumnRange,
    Ranges,
    combine,
    partition_ranges,
    partition_ranges_from_parsed,
    ranges_from_parsed,
)

__all__ = [
    "ColumnRange",
    "Ranges",
    "collector",
    "combine",
    "file_partition_ranges",
    "has_range",
    "is_timestamp",
    "is_written_here",
    "partition_ranges",
    "partition_ranges_from_parsed",
    "ranges",
    "ranges_from_json",
    "ranges_from_parsed",
    "stats_ranges",
    "with_writers",
]
