"""Makes ``format("lazydelta")`` known to every Spark session.

Spark looks for installed modules named ``pyspark_…`` and registers their ``DefaultSource``; the module exists for that.
An exception here would hide the data sources of all packages, so that an unsuitable PySpark is an error of use only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from lazydelta.spark.source import LazyDeltaSource as DefaultSource
else:
    try:
        from lazydelta.spark.source import LazyDeltaSource as DefaultSource
    except ImportError as error:
        from pyspark.sql.datasource import DataSource

        _REASON = str(error)

        class DefaultSource(DataSource):
            """Raises the reason why there is no data source."""

            def __init__(self, options: object) -> NoReturn:  # noqa: ARG002 - Spark passes them
                """Raise the reason."""
                raise ImportError(_REASON)

            @classmethod
            def name(cls) -> str:
                """Return the name for ``format(…)``."""
                return "lazydelta"


__all__ = ["DefaultSource"]
