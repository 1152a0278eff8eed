"""Flight SQL: statements, prepared statements and a catalog over the tables of a server.

Clients send strings of SQL; ``guard`` refuses what a server does not answer, and a worker process runs the rest.
"""

from __future__ import annotations

from lazydelta.errors import require

# Worker processes load DuckDB and the KQL grammar. Checking here reports a missing package at startup.
__all__ = ["calls", "guard", "session", "statement"]

require("serve", "google.protobuf", "duckdb", "lark", "prometheus_client")
