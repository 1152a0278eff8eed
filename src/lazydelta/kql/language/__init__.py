"""The KQL language: grammar, literals and syntax tree.

It knows no tables and no types of columns.
"""

__all__ = ["literals", "parser", "syntax"]
