"""The functions of KQL, declared by subject; ``table`` has them all.

An entry says name, arguments, result type, how it is computed and whether it prunes. Documentation, completion and
tests are derived from the entries.
"""

__all__ = ["aggregates", "declaration", "macros", "table"]
