"""The plan of a query: operations on rows, with columns known by identity rather than by name.

An identity belongs to one column of one node and is never reused. Renaming, projecting and reordering columns therefore
need no plan step, the two sides of a join never clash, and an expression can be traced down to a table by replacing
identities with their definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from lazydelta.errors import KqlError
from lazydelta.kql.binding.types import Complain, Typed, literal
from lazydelta.kql.functions.declaration import PythonFunction
from lazydelta.kql.functions.macros import VOLATILE
from lazydelta.kql.language import syntax
from lazydelta.kql.language.syntax import QueryText

__all__ = [
    "Aggregate",
    "Attach",
    "Expand",
    "Filter",
    "Grid",
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
    "Scope",
    "Session",
    "Staged",
    "TableFunction",
    "Window",
    "is_repeatable",
    "is_serialized",
    "is_volatile",
    "order_of",
    "order_sql",
]


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column as the query sees it."""

    name: str
    kind: str
    identity: str


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """The rows of a table; ``columns`` maps each identity to a column name. Each reference is a separate scan.

    ``at`` is the position of the reference in the query.
    """

    table: str
    view: str
    columns: dict[str, str]
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows contained in the query itself, as SQL with the identities as its columns."""

    sql: str


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """Rows for which the condition is true; ``texts`` is its source, or that of each part of an ``and``."""

    source: Plan
    condition: Typed
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Attach:
    """Adds computed columns to the existing ones."""

    source: Plan
    columns: dict[str, Typed]


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """Groups by keys; ``aggregates`` are SQL with the columns each uses. Without keys and aggregates it is one row."""

    source: Plan
    keys: dict[str, Typed]
    aggregates: dict[str, tuple[str, frozenset[str]]]


@dataclass(frozen=True, slots=True)
class OrderKey:
    """A sort key."""

    expression: Typed
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Sorted rows."""

    source: Plan
    keys: tuple[OrderKey, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """At most ``count`` rows: any, the first of an order, or a random sample.

    With ``by``, at most that many for each value of these columns, the first ones in the order of ``keys``.
    """

    source: Plan
    count: int
    at_random: bool = False
    by: tuple[str, ...] = ()
    keys: tuple[OrderKey, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A join; ``pairs`` are the expressions that must be equal, and the columns of both sides map to their kinds.

    Without pairs, it joins each row with all rows of the other side.
    """

    kind: str
    left: Plan
    right: Plan
    pairs: tuple[tuple[Typed, Typed], ...]
    left_columns: dict[str, str]
    right_columns: dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Merge:
    """Union of several plans; each leg maps result columns to its own expressions."""

    legs: tuple[tuple[Plan, dict[str, Typed]], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Expand:
    """One row per element of lists, in parallel; a shorter list is filled with nulls.

    ``lists`` has SQL lists by the identity of their elements; ``index`` is the identity of the position.
    """

    source: Plan
    lists: dict[str, Typed]
    index: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Adds columns that depend on other rows, in the order of the rows.

    ``are_ids`` says that the columns only tell rows apart, so that it does not matter which rows there are.
    """

    source: Plan
    columns: dict[str, Typed]
    are_ids: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Lists of values at each of equidistant bins, for each group of an aggregate.

    ``source`` has the ``keys``, the number of the bin and the values; ``count`` is SQL for the number of bins over the
    rows ``a``, ``axis`` SQL for the value of bin ``i``. ``values`` maps a list to SQL of its element.
    """

    source: Aggregate
    keys: tuple[str, ...]
    bin: str
    first: str
    last: str
    axis: tuple[str, str]
    values: dict[str, str]
    is_nonempty: bool


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """Rows that Python computes from those of another plan, batch by batch.

    ``inputs`` and ``outputs`` are columns with their kinds. ``make`` returns a function for one run. If ``keeps``, it
    maps a batch of inputs to arrays of outputs, which are added to the rows; otherwise it maps an iterator of batches
    to one of batches, which replace the rows. ``is_rowwise`` says that each row is computed from itself alone.
    """

    source: Plan
    view: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    make: Callable[[], Callable[..., Any]]
    keeps: bool = False
    is_rowwise: bool = False


Plan: TypeAlias = (
    "Scan | Rows | Filter | Attach | Aggregate | Order | Limit | Match | Merge | Expand | Window | Grid | Staged"
)


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """A plan and its visible columns, with names, in order."""

    plan: Plan
    columns: tuple[OutputColumn, ...]

    def find(self, name: str) -> OutputColumn | None:
        """Return the column of that name, which is case-sensitive."""
        return next((each for each in self.columns if each.name == name), None)


def is_repeatable(plan: Plan) -> bool:
    """Return whether a plan always gives the same rows, which ``take``, ``sample`` and the like may not."""
    match plan:
        case Scan():
            return True
        case Rows(sql=sql):
            return not is_volatile(sql)
        case Limit(source=source, count=count):
            return not count and is_repeatable(source)
        case Match(kind=kind, left=left, right=right):
            return kind != "innerunique" and is_repeatable(left) and is_repeatable(right)
        case Merge(legs=legs):
            return all(is_repeatable(leg) for leg, _ in legs)
        case Aggregate(source=source, aggregates=aggregates):
            chosen = any("first(" in sql or "any_value(" in sql for sql, _ in aggregates.values())
            return not chosen and is_repeatable(source)
        case Filter(source=source, condition=condition):
            return not is_volatile(condition.sql) and is_repeatable(source)
        case Attach(source=source, columns=columns):
            return not any(is_volatile(each.sql) for each in columns.values()) and is_repeatable(source)
        case Order(source=source) | Window(source=source):
            return is_repeatable(source)
        case Expand(source=source) | Grid(source=source) | Staged(source=source):
            return is_repeatable(source)


def is_volatile(sql: str) -> bool:
    """Return whether an expression may have another value each time."""
    return any(word in sql for word in VOLATILE)


def order_of(plan: Plan) -> tuple[OrderKey, ...]:
    """Return the sort order of a plan's rows, or an empty tuple if it has none."""
    match plan:
        case Order(keys=keys):
            return keys
        case Filter(source=source) | Attach(source=source) | Limit(source=source, at_random=False, by=()):
            return order_of(source)
        case Window(source=source) | Expand(source=source) | Staged(source=source, keeps=True):
            return order_of(source)
        case _:
            return ()


def is_serialized(plan: Plan) -> bool:
    """Return whether the rows have an order that functions of neighbouring rows may use."""
    match plan:
        case Order() | Rows():
            return True
        case Filter(source=source) | Attach(source=source) | Window(source=source) | Expand(source=source):
            return is_serialized(source)
        case Limit(source=source, at_random=False) | Staged(source=source):
            return is_serialized(source)
        case _:
            return False


def order_sql(keys: Iterable[OrderKey]) -> str:
    """Return the contents of an ORDER BY clause."""
    return ", ".join(map(_key_sql, keys))


def _key_sql(key: OrderKey) -> str:
    direction = "DESC" if key.descending else "ASC"
    if key.expression.kind == "real":
        # NaN sorts between the numbers and the nulls.
        rank = f"CASE WHEN {key.expression.sql} IS NULL THEN 2 WHEN isnan({key.expression.sql}) THEN 1 ELSE 0 END"
        return f"{rank} {'DESC' if key.nulls_first else 'ASC'}, {key.expression.sql} {direction}"
    return f"{key.expression.sql} {direction} NULLS {'FIRST' if key.nulls_first else 'LAST'}"


# State shared while binding one query: its source, its time, the tables, new identities, and early evaluation.


class Tables(Protocol):
    """The tables that a query may refer to."""

    def columns(self, name: str) -> list[tuple[str, str]] | None:
        """Return the columns of a table with their kinds, or None if there is no such table."""

    def names(self) -> list[str]:
        """Return the names of all tables."""


class Evaluator(Protocol):
    """Runs parts of a query that the rest depends on, and checks what only DuckDB can check."""

    def values(self, relation: Relation) -> tuple[str, list[Any] | str]:
        """Return the kind of a relation's only column and its values, or SQL that selects them if there are many."""

    def table(self, relation: Relation) -> str:
        """Return the name of a table with the rows of a relation. Its columns are the identities."""

    def row_function(
        self, expressions: list[Typed], columns: list[tuple[str, str]]
    ) -> Callable[[list[Any]], tuple[Any, ...]]:
        """Return a function that evaluates expressions over one row of columns with their kinds."""

    def check_regex(self, pattern: str) -> str | None:
        """Return the error in a regular expression, or None if it is valid."""

    def known(self, expression: Typed) -> Typed | None:
        """Return the value of an expression without columns as a literal, or None if it cannot be computed now."""

    def define(self, function: PythonFunction) -> None:
        """Register a Python function for the SQL of the query."""


@dataclass(frozen=True, slots=True)
class TableFunction:
    """A function, or a table named by ``let``, with its scope."""

    parameters: tuple[syntax.Parameter, ...]
    program: syntax.Program
    scope: Scope
    is_function: bool
    is_view: bool = False


Binding: TypeAlias = "Typed | Relation | TableFunction"
"""Anything that a name in a query may refer to besides a column or a table."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The names defined by ``let`` and parameters."""

    names: Mapping[str, Binding] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def get(self, name: str) -> Binding | None:
        """Return the binding of a name."""
        return self.names.get(name)

    def having(self, name: str, binding: Binding) -> Scope:
        """Return a scope with one more name."""
        return Scope({**self.names, name: binding})


class Session:
    """The state of binding one query."""

    def __init__(
        self,
        text: str,
        now: int,
        tables: Tables,
        evaluator: Evaluator,
        settings: Iterable[tuple[str, syntax.Literal]] = (),
    ) -> None:
        self.query = QueryText(text)
        self.now = now
        self.tables = tables
        self.evaluator = evaluator
        self.settings = {name: literal(each.kind, each.value) for name, each in settings}
        # Order comparisons of strings, which a cluster does not support.
        self.text_orders: list[syntax.Binary | syntax.Between] = []
        # A condition for every table with a datetime column of that name.
        self.window: tuple[str, syntax.Where] | None = None
        # Random values of toscalar() by its position and expression.
        self.scalars: dict[tuple[int, str], Typed] = {}
        self._count = 0

    def identity(self) -> str:
        """Return an identity that no other column has."""
        self._count += 1
        return f"c{self._count}"

    def error(self, at: int, what: str, hint: str | None = None) -> KqlError:
        """Return an error about a position in the query."""
        return self.query.error(at, what, hint=hint)

    def complain(self, node: syntax.Node) -> Complain:
        """Return a function that creates errors about a node."""
        complain: Callable[[str, str | None], KqlError] = lambda what, hint: self.error(node.at, what, hint)  # noqa: E731
        return complain
