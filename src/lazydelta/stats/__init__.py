"""What the log says of the values in files: ranges, from text, typed statistics and partition values.

``collector`` makes the statistics of new files; all else reads those that are there.
"""

from __future__ import annotations

from lazydelta.stats.chosen_columns import has_range
from lazydelta.stats.file_ranges import file_partition_ranges, is_timestamp, stats_ranges
from lazydelta.stats.json_stats import ranges_from_json
from lazydelta.stats.partition_ranges import partition_ranges, partition_ranges_from_parsed
from lazydelta.stats.ranges import ColumnRange, Ranges, combine
from lazydelta.stats.typed_stats import ranges_from_parsed

__all__ = [
    "ColumnRange",
    "Ranges",
    "combine",
    "file_partition_ranges",
    "has_range",
    "is_timestamp",
    "partition_ranges",
    "partition_ranges_from_parsed",
    "ranges_from_json",
    "ranges_from_parsed",
    "stats_ranges",
]
