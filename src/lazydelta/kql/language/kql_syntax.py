"""The syntax tree: what a text says, before anything is known of tables and types.

Every node has the place where it starts in the text, as a number of characters, because any later stage may have to
complain about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = [
    "Between",
    "Binary",
    "Call",
    "Column",
    "Count",
    "DataTable",
    "Distinct",
    "Expression",
    "Extend",
    "Function",
    "GetSchema",
    "Index",
    "Join",
    "Let",
    "ListTest",
    "Literal",
    "Logical",
    "Member",
    "Named",
    "Node",
    "Ordering",
    "Parameter",
    "Pattern",
    "Pipeline",
    "Print",
    "Program",
    "Project",
    "ProjectAway",
    "ProjectKeep",
    "ProjectRename",
    "ProjectReorder",
    "Range",
    "Render",
    "Reordering",
    "Sample",
    "Sort",
    "Star",
    "Summarize",
    "Take",
    "Top",
    "Unary",
    "Union",
    "Where",
]


@dataclass(frozen=True, slots=True)
class Node:
    """Anything in the tree."""

    at: int


# Expressions


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A constant; ``value`` is a Python value of the kind, None for null, ticks of 100 ns for time spans."""

    kind: str
    value: Any


@dataclass(frozen=True, slots=True)
class Column(Node):
    """A name on its own: a column, something that ``let`` has named, or a table."""

    name: str


@dataclass(frozen=True, slots=True)
class Star(Node):
    """``*`` in place of an argument."""


@dataclass(frozen=True, slots=True)
class Member(Node):
    """``base.name``."""

    base: Expression
    name: str


@dataclass(frozen=True, slots=True)
class Index(Node):
    """``base[index]``."""

    base: Expression
    index: Expression


@dataclass(frozen=True, slots=True)
class Call(Node):
    """``name(arguments)``."""

    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """A sign before an expression."""

    op: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """Two operands and what stands between them; ``at`` is the operator's place.

    ``places`` are where the left side starts, the operator ends, and the right side ends.
    """

    op: str
    left: Expression
    right: Expression
    places: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Logical(Node):
    """A chain of ``and`` or of ``or``, as long as it is written: thousands of links are no deep tree.

    ``spans`` has where each part starts and ends.
    """

    op: str
    parts: tuple[Expression, ...]
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ListTest(Node):
    """``in``, ``!in``, ``in~``, ``!in~``, ``has_any`` and ``has_all``."""

    op: str
    value: Expression
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Between(Node):
    """``value between (low .. high)``.

    ``places`` are where it starts, the operator ends, the dots start and end, and all of it ends.
    """

    negated: bool
    value: Expression
    low: Expression
    high: Expression
    places: tuple[int, int, int, int, int]


# Sources of rows


@dataclass(frozen=True, slots=True)
class Named(Node):
    """``name = expression``, or an expression that gets a name later.

    ``more`` are the further names of ``(name, …) = expression``, for what makes several columns.
    """

    name: str | None
    expression: Expression
    more: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Print(Node):
    """One row of expressions."""

    items: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class Range(Node):
    """A column of equidistant values."""

    name: str
    first: Expression
    last: Expression
    step: Expression


@dataclass(frozen=True, slots=True)
class DataTable(Node):
    """Rows written in the query, row by row in one list."""

    columns: tuple[tuple[str, str], ...]
    values: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Union(Node):
    """Rows of several sources; as an operator it takes the rows before it as well."""

    options: tuple[tuple[str, str], ...]
    legs: tuple[Expression | Pattern, ...]


@dataclass(frozen=True, slots=True)
class Pipeline(Node):
    """A source and operators; in parentheses, and without operators, this may be a scalar expression."""

    source: Expression
    operators: tuple[Operator, ...]


# Operators


@dataclass(frozen=True, slots=True)
class Where(Node):
    """Rows for which the condition is true; the text of the operator goes up to ``end``."""

    condition: Expression
    end: int


@dataclass(frozen=True, slots=True)
class Project(Node):
    """These columns."""

    items: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class Pattern(Node):
    """A column's name, or a text with ``*`` in it that may stand for several."""

    text: str
    wild: bool


@dataclass(frozen=True, slots=True)
class ProjectAway(Node):
    """All columns but these."""

    patterns: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class ProjectKeep(Node):
    """Only these columns, in the order that they have."""

    patterns: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class ProjectRename(Node):
    """New names for columns: pairs of new and old, each with the place of the old one."""

    renamings: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True)
class Reordering(Node):
    """A pattern and how the columns that it stands for are ordered among themselves."""

    pattern: Pattern
    direction: str | None


@dataclass(frozen=True, slots=True)
class ProjectReorder(Node):
    """These columns first."""

    items: tuple[Reordering, ...]


@dataclass(frozen=True, slots=True)
class Extend(Node):
    """More columns."""

    items: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class Summarize(Node):
    """Aggregates by groups."""

    items: tuple[Named, ...]
    groups: tuple[Named, ...] | None


@dataclass(frozen=True, slots=True)
class Ordering(Node):
    """An expression to order by."""

    expression: Expression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Sort(Node):
    """All rows in order."""

    orderings: tuple[Ordering, ...]


@dataclass(frozen=True, slots=True)
class Top(Node):
    """The first rows in order."""

    count: Expression
    ordering: Ordering


@dataclass(frozen=True, slots=True)
class Take(Node):
    """Some rows."""

    count: Expression


@dataclass(frozen=True, slots=True)
class Sample(Node):
    """Some rows, at random."""

    count: Expression


@dataclass(frozen=True, slots=True)
class Distinct(Node):
    """Different rows; no items stand for all columns."""

    items: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class Count(Node):
    """How many rows there are."""


@dataclass(frozen=True, slots=True)
class GetSchema(Node):
    """A row for each column."""


@dataclass(frozen=True, slots=True)
class Join(Node):
    """``join`` and ``lookup``."""

    lookup: bool
    options: tuple[tuple[str, str], ...]
    right: Expression
    conditions: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Render(Node):
    """How a client should show the result."""

    visualization: str
    properties: tuple[tuple[str, Any], ...]


# Statements


@dataclass(frozen=True, slots=True)
class Parameter(Node):
    """A parameter of a function: ``kind`` of a scalar, ``columns`` of a table (empty for any table)."""

    name: str
    kind: str | None
    default: Literal | None
    columns: tuple[tuple[str, str], ...] | None


@dataclass(frozen=True, slots=True)
class Function(Node):
    """A function without side effects."""

    parameters: tuple[Parameter, ...]
    program: Program


@dataclass(frozen=True, slots=True)
class Let(Node):
    """A name for a value, a table or a function."""

    name: str
    value: Expression | Function


@dataclass(frozen=True, slots=True)
class Program(Node):
    """``let`` statements and what is asked for."""

    lets: tuple[Let, ...]
    body: Expression


Operator: TypeAlias = (
    "Where | Project | ProjectAway | ProjectKeep | ProjectRename | ProjectReorder | Extend | Summarize | Sort | Top"
    " | Take | Sample | Distinct | Count | GetSchema | Union | Join | Render"
)
Expression: TypeAlias = (
    "Literal | Column | Star | Member | Index | Call | Unary | Binary | Logical | ListTest | Between | Pipeline | Print"
    " | Range | DataTable | Union"
)
