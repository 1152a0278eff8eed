"""The functions of KQL: one table from which queries, documentation, suggestions and tests are derived."""

from __future__ import annotations

import difflib

from lazydelta.kql.binding.computed import COMPUTED_FUNCTIONS
from lazydelta.kql.functions.addresses import ADDRESSES
from lazydelta.kql.functions.aggregates import AGGREGATE_NAMES
from lazydelta.kql.functions.conversions import CONVERSIONS
from lazydelta.kql.functions.declaration import Function
from lazydelta.kql.functions.dynamics import DYNAMICS
from lazydelta.kql.functions.numbers import NUMBERS_AND_TESTS
from lazydelta.kql.functions.parsing import PARSING
from lazydelta.kql.functions.strings import STRINGS
from lazydelta.kql.functions.times import TIMES

__all__ = ["FUNCTIONS", "GROUPS", "REFUSED", "REFUSED_PLUGINS", "similar"]

GROUPS: dict[str, list[Function]] = {
    "Numbers, choices and tests": NUMBERS_AND_TESTS,
    "Conversions": CONVERSIONS,
    "Dates and times": TIMES,
    "Strings": STRINGS,
    "Formats and encodings": PARSING,
    "Dynamic values": DYNAMICS,
    "IP addresses and hashes": ADDRESSES,
    "Series, statistics, sketches and places": COMPUTED_FUNCTIONS,
}
"""The scalar functions by subject."""

FUNCTIONS: dict[str, Function] = {each.name: each for group in GROUPS.values() for each in group}
"""The scalar functions by name."""


_CLUSTER = "it asks for the state of a cluster"

REFUSED: dict[str, str] = {
    "cluster": "other clusters are not reached; give their tables by name",
    "current_cluster_endpoint": _CLUSTER,
    "current_database": _CLUSTER,
    "current_principal": _CLUSTER,
    "current_principal_details": _CLUSTER,
    "current_principal_is_member_of": _CLUSTER,
    "cursor_after": _CLUSTER,
    "cursor_before_or_at": _CLUSTER,
    "cursor_current": _CLUSTER,
    "entity_group": "other clusters are not reached; give their tables by name",
    "extent_id": _CLUSTER,
    "extent_tags": _CLUSTER,
    "geo_info_from_ip_address": "it needs a database of addresses and places",
    "graph": "stored graphs belong to a cluster; make one with make-graph",
    "ingestion_time": "files of a Delta table do not have it; use a column of the table",
    "materialized_view": "materialized views belong to a cluster",
    "row_id": _CLUSTER,
    "stored_query_result": "stored results belong to a cluster",
}
"""Functions of the reference that are not supported, and why."""

_OUTSIDE = "it runs code or queries outside of the query"

REFUSED_PLUGINS: dict[str, str] = dict.fromkeys(
    ("ai_chat_completion", "ai_chat_completion_prompt", "ai_embeddings", "azure_digital_twins_query_request",
     "cosmosdb_sql_request", "csharp", "execute_query", "execute_show_command", "external_datatable", "http_request",
     "http_request_post", "infer_storage_schema", "infer_storage_schema_with_suggestions", "mysql_request",
     "postgresql_request", "python", "r", "sql_request"),
    _OUTSIDE,
) | dict.fromkeys(("estimate_rows_count", "identity", "identity_v3"), _CLUSTER)  # fmt: skip
"""Plugins of the reference that are not supported, and why."""


def similar(name: str) -> str | None:
    """Return the known function whose name is most like another, or None if none is like it."""
    near = difflib.get_close_matches(name.lower(), [*FUNCTIONS, *AGGREGATE_NAMES], 1, 0.75)
    return near[0] if near else None
