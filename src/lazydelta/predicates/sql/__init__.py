"""SQL conditions: from SQL text to a syntax tree to a predicate.

It knows no schema; ``predicates.binding`` resolves columns and types.
"""

__all__ = ["sqlglot_sql", "translation"]
