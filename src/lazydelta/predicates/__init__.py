"""Predicates, and the files that they rule out.

A predicate in any input form becomes one tree bound to the table's schema (`parse_predicate`). What the log records
about files becomes `Ranges`, whatever the source. `may_match` and `all_match` evaluate the tree over the ranges, and
`to_arrow_expression` filters rows by the same tree.
"""

from __future__ import annotations

from lazydelta.predicates.binding import conjunction, to_arrow_expression
from lazydelta.predicates.evaluate import DistinctPartitions, all_match, may_match
from lazydelta.predicates.parse import Conjunct, Where, check_conjuncts, conjuncts, parse_predicate
from lazydelta.predicates.tree import (
    NanOrder,
    Predicate,
    bounded_columns,
    counts_matter,
    partition_columns,
    referenced_columns,
    stats_columns,
)

__all__ = [
    "Conjunct",
    "DistinctPartitions",
    "NanOrder",
    "Predicate",
    "Where",
    "all_match",
    "binding",
    "bounded_columns",
    "check_conjuncts",
    "conjunction",
    "conjuncts",
    "counts_matter",
    "expression",
    "may_match",
    "parse_predicate",
    "partition_columns",
    "polars_expression",
    "referenced_columns",
    "sql",
    "stats_columns",
    "to_arrow_expression",
    "tree",
]
