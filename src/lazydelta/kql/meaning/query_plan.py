"""The plan of a query: what is done to which rows, with columns known by identities and not by names.

An identity belongs to one column of one node and is never used again, so renaming, projecting and reordering columns
are no steps at all, two sides of a join never clash, and an expression can be followed down to a table by replacing
identities with what they stand for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lazydelta.kql.meaning.typed import Typed

__all__ = [
    "Aggregate",
    "Attach",
    "Filter",
    "Limit",
    "Match",
    "Merge",
    "Order",
    "OrderKey",
    "OutputColumn",
    "Plan",
    "Relation",
    "Rows",
    "Scan",
]


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column as a query sees it."""

    name: str
    kind: str
    identity: str


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """The rows of a table; ``columns`` has the table's name of each identity. Each reference is a scan of its own.

    ``at`` is where the query refers to it.
    """

    table: str
    view: str
    columns: dict[str, str]
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows that the query itself holds, as SQL with the identities as its columns."""

    sql: str


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """Rows for which the condition is true; ``texts`` is how the query says it, or each part of its ``and``."""

    source: Plan
    condition: Typed
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Attach:
    """More columns beside those that are there."""

    source: Plan
    columns: dict[str, Typed]


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """Groups by keys; ``aggregates`` are SQL with the columns that each uses. No keys and no aggregate is one row."""

    source: Plan
    keys: dict[str, Typed]
    aggregates: dict[str, tuple[str, frozenset[str]]]


@dataclass(frozen=True, slots=True)
class OrderKey:
    """What to order by."""

    expression: Typed
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Rows in order."""

    source: Plan
    keys: tuple[OrderKey, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """No more than ``count`` rows: any, or the first of an order, or chosen at random."""

    source: Plan
    count: int
    at_random: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A join; ``pairs`` are the expressions that must be equal, the columns of both sides come with their kinds."""

    kind: str
    left: Plan
    right: Plan
    pairs: tuple[tuple[Typed, Typed], ...]
    left_columns: dict[str, str]
    right_columns: dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Merge:
    """Rows of several plans; each leg says which of its expressions becomes which column."""

    legs: tuple[tuple[Plan, dict[str, Typed]], ...]


Plan: TypeAlias = "Scan | Rows | Filter | Attach | Aggregate | Order | Limit | Match | Merge"


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """A plan, and which of its columns are seen under which names, in order."""

    plan: Plan
    columns: tuple[OutputColumn, ...]

    def find(self, name: str) -> OutputColumn | None:
        """Return the column of that name; names differ in case too."""
        return next((each for each in self.columns if each.name == name), None)
