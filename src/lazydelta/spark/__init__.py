"""Spark ingestion: write batches, streams and files to tables whose files are aligned to time.

These names need PySpark; install it with ``pip install 'lazydelta[spark]'``. The modules that read source files do not.
``format("lazydelta")`` works without registration in any session whose Python environment has this package.
"""

from __future__ import annotations

from importlib.util import find_spec

from lazydelta.errors import require
from lazydelta.write.job import WriteResult as IngestResult
from lazydelta.write.options import WriteOptions as IngestOptions

__all__ = [
    "IngestOptions",
    "IngestResult",
    "SidecarListener",
    "attach",
    "build_sidecar",
    "checkpoint_table",
    "following_sidecar",
    "ingest",
    "ingest_files",
    "ingest_files_stream",
    "ingest_stream",
    "optimize_table",
    "read",
    "start_session",
    "use_session",
    "vacuum_table",
    "write",
]
# What other packages of lazydelta import besides; programs use the names above.
SHARED = ("errors", "files", "maintenance", "session", "sidecar")

if find_spec("pyspark") is not None:
    from pyspark import __version__ as _pyspark
    from pyspark.sql import datasource as _datasource

    if not hasattr(_datasource, "DataSourceStreamArrowWriter"):
        raise ImportError(f"lazydelta.spark needs PySpark 4.1 or later, and this is {_pyspark}")

    from lazydelta.spark.files import ingest_files, ingest_files_stream
    from lazydelta.spark.frames import attach, read
    from lazydelta.spark.ingest import ingest, ingest_stream, write
    from lazydelta.spark.maintenance import optimize_table, vacuum_table
    from lazydelta.spark.session import start_session, use_session
    from lazydelta.spark.sidecar import SidecarListener, build_sidecar, checkpoint_table, following_sidecar
else:

    def __getattr__(name: str) -> object:
        if name in __all__:
            require("spark", "pyspark")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
