"""SQL text: two parsers that give one tree of syntax, and its translation into a predicate."""

from __future__ import annotations

from lazydelta.pruning.sql.sql_text import parse_sql

__all__ = ["parse_sql"]
