"""KQL, the language of Azure Data Explorer, over Delta tables.

``query`` runs a documented subset (see ``docs/kql.md``) in DuckDB over rows that are read while they are asked for.
``rewrite`` turns a query into one for a cluster. It needs the extra ``kql``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from lazydelta.errors import KqlError
from lazydelta.kql.running.cluster_rewrite import rewrite
from lazydelta.kql.running.kql_query import KqlResult, run
from lazydelta.kql.running.kql_tables import Queryable

__all__ = ["KqlError", "KqlResult", "query", "rewrite"]


def query(text: str, tables: Mapping[str, Queryable] | None = None, now: dt.datetime | None = None) -> KqlResult:
    """Return the rows that a KQL query asks for, as a stream of record batches.

    ``tables`` gives the names of the query their tables: a ``DeltaTable``, the URI of one, or a ``pyarrow.Table``.
    ``now`` is the moment that ``now()`` and ``ago()`` go by; one query has one.
    """
    return run(text, tables or {}, now=now)
