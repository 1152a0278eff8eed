"""Query engines over the row scanner; each module imports its engine when it is used.

``duckdb``, ``polars``, ``datafusion`` have one function or two each; ``query_builder`` is SQL as deltalake has it.
"""

from __future__ import annotations
