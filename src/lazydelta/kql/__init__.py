"""KQL, the query language of Azure Data Explorer, over Delta tables.

``query`` runs a documented subset (see ``docs/kql.md``) in DuckDB and reads rows on demand. ``rewrite`` turns a query
into one for a cluster. Both need the extra ``kql``.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, cast

from lazydelta.errors import KqlError, require

require("kql", "duckdb", "lark")

from lazydelta.kql.execution.cluster_rewrite import rewrite  # noqa: E402 - after the check for the extra
from lazydelta.kql.execution.query import KqlResult, QuerySettings, result_count, run  # noqa: E402
from lazydelta.kql.execution.tables import Queryable  # noqa: E402

__all__ = ["KqlError", "KqlResult", "query", "query_all", "rewrite"]
# What other packages of lazydelta import besides; programs use the names above.
SHARED = ("binding", "execution", "functions", "language", "package")


def query(
    text: str,
    tables: Mapping[str, Queryable] | Queryable | None = None,
    now: dt.datetime | str | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
) -> KqlResult:
    """Return the result of a KQL query as a stream of record batches.

    ``tables`` maps the table names in the query to a ``DeltaTable``, the URI of one, or a ``pyarrow.Table``; one table
    alone is called ``T``. ``now`` is the time that ``now()`` and ``ago()`` use, also as ISO 8601; it is fixed for the
    whole query. ``parameters`` are values of what the query declares with ``declare query_parameters``, as texts of
    literals.
    """
    return run(text, _named(tables), settings=QuerySettings(_timestamp(now), parameters or {}))


def query_all(
    text: str,
    tables: Mapping[str, Queryable] | Queryable | None = None,
    now: dt.datetime | str | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
) -> Iterator[KqlResult]:
    """Yield each result of a KQL query that may have several, as ``fork`` and ``facet`` make them; see ``query``.

    A result is closed when the next one is asked for. Rows are read anew for each result.
    """
    timestamp = _timestamp(now) or dt.datetime.now(dt.UTC)
    for number in range(result_count(text)):
        with run(text, _named(tables), settings=QuerySettings(timestamp, parameters or {}, result=number)) as result:
            yield result


def _named(tables: Mapping[str, Queryable] | Queryable | None) -> Mapping[str, Queryable]:
    if tables is None or isinstance(tables, Mapping):
        return tables or {}
    return {"T": tables}


def _timestamp(now: dt.datetime | str | None) -> dt.datetime | None:
    if not isinstance(now, str):
        return now
    found = dt.datetime.fromisoformat(now)
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


class _CallablePackage(ModuleType):
    """The package, which can be called: ``lazydelta.kql("T | count", {"T": uri})``."""

    query = staticmethod(query)
    query_all = staticmethod(query_all)
    rewrite = staticmethod(rewrite)

    def __call__(
        self,
        text: str,
        tables: Mapping[str, Queryable] | Queryable | None = None,
        now: dt.datetime | str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        **named: Queryable,
    ) -> KqlResult:
        """Return the result of a KQL query; see ``query``. ``named`` are further tables by keyword."""
        return self.query(text, {**_named(tables), **named}, now, parameters=parameters)


package = cast("_CallablePackage", sys.modules[__name__])
package.__class__ = _CallablePackage
