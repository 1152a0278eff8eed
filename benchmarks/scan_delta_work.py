"""What Polars' own reader of Delta tables is measured at."""

from __future__ import annotations

import polars as pl


def limited(uri: str, hour: str, limit: int) -> int:
    """Take rows of one hour."""
    frame = pl.scan_delta(uri).filter(pl.col("_event_hour") == hour)
    return frame.select("device_id", "value", "sequence").head(limit).collect().height
