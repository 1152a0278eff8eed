"""The sources of ranges, in one place for those who read the log."""

from __future__ import annotations

from lazydelta.pruning.json_stats import ranges_from_json
from lazydelta.pruning.parsed_stats import ranges_from_parsed
from lazydelta.pruning.partitions import partition_ranges, partition_ranges_from_parsed

__all__ = ["partition_ranges", "partition_ranges_from_parsed", "ranges_from_json", "ranges_from_parsed"]
