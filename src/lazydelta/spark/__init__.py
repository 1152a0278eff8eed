"""Spark ingestion: tables whose files are aligned to time, from batches, streams and files.

These names need PySpark; install it with ``pip install 'lazydelta[spark]'``. The modules that read source files do not.
``format("lazydelta")`` needs no call in any session whose Python environment has this package.
"""

from __future__ import annotations

from importlib.util import find_spec

from lazydelta.write.job import WriteResult as IngestResult
from lazydelta.write.write_options import WriteOptions as IngestOptions

__all__ = ["IngestOptions", "IngestResult"]

if find_spec("pyspark") is not None:
    from lazydelta.spark.checkpoint_spreading import checkpoint_table
    from lazydelta.spark.files_ingestion import ingest_files
    from lazydelta.spark.files_stream import ingest_files_stream
    from lazydelta.spark.ingest import ingest, ingest_stream, write
    from lazydelta.spark.reading.parquet_files import read
    from lazydelta.spark.session import start_session, use_session
    from lazydelta.spark.sidecar_building import build_sidecar
    from lazydelta.spark.sidecar_following import SidecarListener, following_sidecar
    from lazydelta.spark.table_optimizing import optimize_table
    from lazydelta.spark.table_vacuuming import vacuum_table

    __all__ += [
        "SidecarListener",
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
