"""Flight SQL: statements, prepared statements and a catalog over the tables of a server."""

from __future__ import annotations

from lazydelta.errors import require

# Worker processes load DuckDB and the KQL grammar. Checking here reports a missing package at startup.
require("serve", "google.protobuf", "duckdb", "lark", "prometheus_client")
