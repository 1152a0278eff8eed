"""SQL text to a predicate: what people write is read by the small parser, anything else by the large one."""

from __future__ import annotations

import re

from lazydelta.errors import PredicateError
from lazydelta.pruning.sql.foreign_sql import QUOTED, parse_foreign, too_deep
from lazydelta.pruning.sql.plain_sql import parse_plain
from lazydelta.pruning.sql.translation import Translator
from lazydelta.pruning.tree import NanOrder, Predicate
from lazydelta.types.schema import TableSchema

__all__ = ["parse_sql", "quote_moments"]

_KQL_FUNCTIONS = ("ago", "datetime", "now")
_UNQUOTED_MOMENTS = (
    rf"(?is){QUOTED}|\b(?P<name>{'|'.join(_KQL_FUNCTIONS)})\s*\(\s*(?P<inside>[-+]?[0-9][^()'\"`]*?)\s*\)"
)


def parse_sql(text: str, schema: TableSchema, *, now: int, nan: NanOrder = NanOrder.LARGEST) -> Predicate:
    """Translate a SQL condition; parts without a translation become opaque, unknown columns are errors.

    ``now`` is what ``now()`` is, in nanoseconds since 1970.
    """
    if not text.strip():
        message = "The predicate is empty"
        raise PredicateError(message, hint="leave it out, or write a condition such as \"date = '2026-02-08'\"")
    text = quote_moments(text)
    tree = parse_plain(text)
    try:
        return Translator(schema, now=now, nan=nan).predicate(tree or parse_foreign(text))
    except RecursionError as error:
        raise too_deep(text) from error


def quote_moments(text: str) -> str:
    """Put quotes around what KQL has none for: ``ago(1h)``, ``datetime(2026-02-08)``."""
    lowered = text.lower()
    if not any(name in lowered for name in _KQL_FUNCTIONS):
        return text
    return re.sub(
        _UNQUOTED_MOMENTS, lambda match: f"{match['name']}('{match['inside']}')" if match["name"] else match[0], text
    )
