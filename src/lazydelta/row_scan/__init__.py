"""Rows of a table: files found, fetched and decoded side by side, as one closable stream of record batches."""

from __future__ import annotations

from lazydelta.row_scan.pieces import RowEstimate, RowFragment
from lazydelta.row_scan.reading_pool import ReadingPool
from lazydelta.row_scan.row_request import RowRequest
from lazydelta.row_scan.row_scanner import RowScanner
from lazydelta.row_scan.row_stream import RowStream

__all__ = ["ReadingPool", "RowEstimate", "RowFragment", "RowRequest", "RowScanner", "RowStream"]
