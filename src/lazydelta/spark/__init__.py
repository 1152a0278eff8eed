"""Spark ingestion: tables whose files are aligned to time, from batches, streams and files.

The modules import PySpark; install it with ``pip install 'lazydelta[spark]'``. ``format("lazydelta")`` needs no call in
any session whose Python environment has this package.
"""

from __future__ import annotations

from lazydelta.spark.ingest import ingest, ingest_stream
from lazydelta.spark.job import IngestResult
from lazydelta.spark.options import IngestOptions
from lazydelta.spark.session import start_session

__all__ = ["IngestOptions", "IngestResult", "ingest", "ingest_stream", "start_session"]
