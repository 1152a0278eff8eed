"""Makes ``format("lazydelta")`` known to every Spark session.

Spark looks for installed modules named ``pyspark_…`` and registers their ``DefaultSource``; the module exists for that.
"""

from __future__ import annotations

from lazydelta.spark.source import LazyDeltaSource as DefaultSource

__all__ = ["DefaultSource"]
