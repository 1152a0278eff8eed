"""What both sides do in the suite ``merge``; a child imports this module and runs one function."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import deltalake
import pyarrow as pa

import lazydelta

__all__ = ["merge"]


def merge(by: str, folder: str, hour: str, rows: int) -> int:
    """Merge rows, half of which the hour has; return how many were inserted if as many were updated, else -1."""
    start = datetime.strptime(hour, "%Y%m%d%H").replace(tzinfo=UTC)
    source = pa.table(
        {
            "timestamp": pa.array([start] * rows, pa.timestamp("us", "UTC")),
            "device_id": ["new"] * rows,
            "value": [0.5] * rows,
            "sequence": range(rows // 2, rows // 2 + rows),
            "_event_hour": [hour] * rows,
        }
    )
    table: Any = lazydelta.DeltaTable(folder) if by == "lazydelta" else deltalake.DeltaTable(folder)
    merger = table.merge(
        source, f"t._event_hour = '{hour}' AND t.sequence = s.sequence", source_alias="s", target_alias="t"
    )
    done = merger.when_matched_update({"value": "s.value"}).when_not_matched_insert_all().execute()
    inserted = int(done["num_target_rows_inserted"])
    return inserted if inserted == done["num_target_rows_updated"] else -1
