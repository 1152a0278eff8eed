"""Tables without data, of any size, for tests and benchmarks of file discovery."""

from __future__ import annotations

from lazydelta.testing.make_table import MadeTable, make_table

__all__ = ["MadeTable", "make_table"]
