"""Predicates, and which files they let go unread.

A predicate in any input form becomes one tree bound to the table's schema (`parse_predicate`). What the log knows of
files becomes `Ranges`, whatever the source. `may_match` and `all_match` evaluate the one over the other, and
`to_arrow_expression` filters rows by the same tree.
"""

from __future__ import annotations

from lazydelta.pruning.binding import conjunction
from lazydelta.pruning.conjuncts import Conjunct, check_conjuncts, conjuncts
from lazydelta.pruning.distinct_partitions import DistinctPartitions
from lazydelta.pruning.evaluate import all_match, may_match
from lazydelta.pruning.parse import Where, parse_predicate
from lazydelta.pruning.row_filter import to_arrow_expression
from lazydelta.pruning.tree import (
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
    "bounded_columns",
    "check_conjuncts",
    "conjunction",
    "conjuncts",
    "counts_matter",
    "may_match",
    "parse_predicate",
    "partition_columns",
    "referenced_columns",
    "stats_columns",
    "to_arrow_expression",
]
