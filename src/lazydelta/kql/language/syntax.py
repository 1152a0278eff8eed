"""The syntax tree of a query, before tables and types are known.

Every node has its start position in the query, in characters, because any later stage may report an error about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from lazydelta.errors import KqlError

__all__ = ["TABLES", "QueryText"]


@dataclass(frozen=True, slots=True)
class Node:
    """Base class of all nodes."""

    at: int


# Expressions


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A constant; ``value`` is a Python value of the kind, None for null, 100 ns ticks for timespans."""

    kind: str
    value: Any


@dataclass(frozen=True, slots=True)
class Column(Node):
    """A bare name: a column, a ``let`` name, or a table."""

    name: str


@dataclass(frozen=True, slots=True)
class Star(Node):
    """``*`` as an argument."""


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
class NamedArgument(Node):
    """``name = value`` as an argument."""

    name: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Method(Node):
    """``base.name(arguments)``, such as ``cluster('x').database('y')``."""

    base: Expression
    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """A sign and its operand."""

    op: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """A binary operation; ``at`` is the position of the operator.

    ``places`` are the start of the left side, the end of the operator, and the end of the right side.
    """

    op: str
    left: Expression
    right: Expression
    places: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Logical(Node):
    """A chain of ``and`` or ``or`` of any length, kept flat so that thousands of parts do not nest deeply.

    ``spans`` are the start and end of each part.
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

    ``places`` are its start, the end of the operator, the start and end of the dots, and its end.
    """

    negated: bool
    value: Expression
    low: Expression
    high: Expression
    places: tuple[int, int, int, int, int]


# Row sources


@dataclass(frozen=True, slots=True)
class Named(Node):
    """``name = expression``, or an expression that is named later.

    ``more`` are the other names of ``(name, …) = expression``, for expressions that produce several columns.
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
    """Rows written in the query, as one flat list."""

    columns: tuple[tuple[str, str], ...]
    values: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Union(Node):
    """Rows of several sources. As an operator, it includes the rows before it."""

    options: tuple[tuple[str, str], ...]
    legs: tuple[Expression | Pattern, ...]


@dataclass(frozen=True, slots=True)
class Pipeline(Node):
    """A source and operators. Without operators, a parenthesized one may be a scalar expression."""

    source: Expression
    operators: tuple[Operator, ...]


# Operators


@dataclass(frozen=True, slots=True)
class Where(Node):
    """Rows for which the condition is true; ``end`` is where the operator ends in the query."""

    condition: Expression
    end: int


@dataclass(frozen=True, slots=True)
class Project(Node):
    """Selects columns."""

    items: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class Pattern(Node):
    """A column name, or a string with ``*`` that may match several."""

    text: str
    wild: bool


@dataclass(frozen=True, slots=True)
class ProjectAway(Node):
    """Removes columns."""

    patterns: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class ProjectKeep(Node):
    """Keeps only these columns, in their existing order."""

    patterns: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class ProjectRename(Node):
    """Renames columns: new name, old name, and the position of the old one."""

    renamings: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True)
class Reordering(Node):
    """A pattern, and the order of the columns that it matches."""

    pattern: Pattern
    direction: str | None


@dataclass(frozen=True, slots=True)
class ProjectReorder(Node):
    """Moves columns to the front."""

    items: tuple[Reordering, ...]


@dataclass(frozen=True, slots=True)
class Extend(Node):
    """Adds columns."""

    items: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class Summarize(Node):
    """Aggregates by group."""

    items: tuple[Named, ...]
    groups: tuple[Named, ...] | None


@dataclass(frozen=True, slots=True)
class Ordering(Node):
    """A sort key."""

    expression: Expression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Sort(Node):
    """Sorts all rows."""

    orderings: tuple[Ordering, ...]


@dataclass(frozen=True, slots=True)
class Top(Node):
    """The first rows in sort order."""

    count: Expression
    ordering: Ordering


@dataclass(frozen=True, slots=True)
class Take(Node):
    """Any rows, up to a number."""

    count: Expression


@dataclass(frozen=True, slots=True)
class Sample(Node):
    """A random sample of rows."""

    count: Expression


@dataclass(frozen=True, slots=True)
class Distinct(Node):
    """Distinct rows. No items means all columns."""

    items: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class Count(Node):
    """The number of rows, in a column of that name."""

    name: str = "Count"


@dataclass(frozen=True, slots=True)
class GetSchema(Node):
    """One row per column."""


@dataclass(frozen=True, slots=True)
class Join(Node):
    """``join`` and ``lookup``."""

    lookup: bool
    options: tuple[tuple[str, str], ...]
    right: Expression
    conditions: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Expanded(Node):
    """An array to expand: the name of its column, and the type of its elements (None for dynamic)."""

    name: str | None
    expression: Expression
    kind: str | None


@dataclass(frozen=True, slots=True)
class MvExpand(Node):
    """One row per element of arrays; ``steps`` of ``mv-apply`` run on the rows of each source row."""

    options: tuple[tuple[str, str], ...]
    items: tuple[Expanded, ...]
    limit: Expression | None
    steps: tuple[Operator, ...] | None = None


@dataclass(frozen=True, slots=True)
class Series(Node):
    """An aggregate of ``make-series`` and its value for empty bins."""

    item: Named
    default: Expression | None


@dataclass(frozen=True, slots=True)
class MakeSeries(Node):
    """Arrays of aggregates along an axis. With ``inclusive``, the last bin is the one that holds the end."""

    options: tuple[tuple[str, str], ...]
    items: tuple[Series, ...]
    axis: Named
    first: Expression | None
    last: Expression | None
    step: Expression
    groups: tuple[Named, ...]
    inclusive: bool


@dataclass(frozen=True, slots=True)
class ParsePart(Node):
    """A part of a ``parse`` pattern: a text, a column with its type, or a skipped part (neither)."""

    text: str | None
    name: str | None
    kind: str


@dataclass(frozen=True, slots=True)
class Parse(Node):
    """``parse``, and ``parse-where`` with ``keep_only_matches``."""

    keep_only_matches: bool
    options: tuple[tuple[str, str], ...]
    expression: Expression
    parts: tuple[ParsePart, ...]


@dataclass(frozen=True, slots=True)
class ParseKv(Node):
    """Extracts keys and values of a string."""

    expression: Expression
    columns: tuple[tuple[str, str], ...]
    properties: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Serialize(Node):
    """Fixes the order of rows, and adds columns."""

    items: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class ScanStep(Node):
    """A step of ``scan``: its condition, what it assigns, and which of its rows it returns."""

    name: str
    output: str
    condition: Expression
    assignments: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class ScanRows(Node):
    """``scan``: matches sequences of rows."""

    options: tuple[tuple[str, str], ...]
    partition: tuple[Pattern, ...]
    declared: tuple[tuple[str, str, Expression | None], ...]
    steps: tuple[ScanStep, ...]


@dataclass(frozen=True, slots=True)
class Search(Node):
    """Rows of tables in which a term occurs. ``tables`` is empty for all of them."""

    options: tuple[tuple[str, str], ...]
    tables: tuple[Expression | Pattern, ...]
    condition: Expression


@dataclass(frozen=True, slots=True)
class Find(Node):
    """Rows of tables that match; ``columns`` is None unless written, and the last item may be ``pack(*)``."""

    options: tuple[tuple[str, str], ...]
    tables: tuple[Expression | Pattern, ...]
    condition: Expression
    columns: tuple[tuple[str, str | None], ...] | None


@dataclass(frozen=True, slots=True)
class As(Node):
    """Names the table for the operators that follow."""

    options: tuple[tuple[str, str], ...]
    name: str


@dataclass(frozen=True, slots=True)
class Partition(Node):
    """Runs operators, or a query of its own, for each value of a column."""

    key: Expression
    steps: tuple[Operator, ...]
    body: Expression | None


@dataclass(frozen=True, slots=True)
class SampleDistinct(Node):
    """Some distinct values."""

    count: Expression
    expression: Expression


@dataclass(frozen=True, slots=True)
class NestedLevel(Node):
    """A level of ``top-nested``."""

    count: Expression | None
    key: Named
    others: Expression | None
    by: Named
    descending: bool


@dataclass(frozen=True, slots=True)
class TopNested(Node):
    """The first groups at each level of a hierarchy."""

    levels: tuple[NestedLevel, ...]


@dataclass(frozen=True, slots=True)
class TopHitters(Node):
    """The most frequent values."""

    count: Expression
    key: Expression
    by: Expression | None


@dataclass(frozen=True, slots=True)
class Reduce(Node):
    """Groups strings by similarity."""

    expression: Expression
    options: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class Facet(Node):
    """A table of counts for each column, and one of the remaining operators."""

    columns: tuple[tuple[str, int], ...]
    steps: tuple[Operator, ...] | None


@dataclass(frozen=True, slots=True)
class Fork(Node):
    """Several results from the same rows."""

    branches: tuple[tuple[str | None, tuple[Operator, ...]], ...]


@dataclass(frozen=True, slots=True)
class Consume(Node):
    """Reads all rows and returns none."""


@dataclass(frozen=True, slots=True)
class Invoke(Node):
    """Calls a function with the table as its first argument."""

    call: Call


@dataclass(frozen=True, slots=True)
class Evaluate(Node):
    """Calls a plugin; ``columns`` is the declared schema of its result, ``("*", "")`` for the columns before it."""

    call: Call
    columns: tuple[tuple[str, str], ...] | None


@dataclass(frozen=True, slots=True)
class AssertSchema(Node):
    """Fails unless the table has these columns."""

    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ProjectByNames(Node):
    """Selects columns by computed names."""

    names: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class GraphPartition(Node):
    """A graph for each value of a column, and the operators on each."""

    column: str
    steps: tuple[Operator, ...]


@dataclass(frozen=True, slots=True)
class MakeGraph(Node):
    """A graph from a table of edges, with tables of nodes or a name for the id of nodes, or with neither."""

    source: str
    target: str
    nodes: tuple[tuple[Expression, str], ...]
    node_id: str | None
    partition: GraphPartition | None = None


@dataclass(frozen=True, slots=True)
class GraphEdge(Node):
    """An edge of a pattern: ``direction`` is ``>``, ``<`` or ``-``; ``hops`` is None for exactly one edge."""

    name: str | None
    direction: str
    hops: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class GraphPath(Node):
    """A pattern: names of its nodes (None for any), and the edges between them."""

    nodes: tuple[str | None, ...]
    edges: tuple[GraphEdge, ...]


@dataclass(frozen=True, slots=True)
class GraphMatch(Node):
    """Occurrences of patterns in a graph, or the shortest paths among them."""

    shortest: bool
    options: tuple[tuple[str, str], ...]
    paths: tuple[GraphPath, ...]
    condition: Expression | None
    items: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class GraphToTable(Node):
    """Tables of nodes or edges: what, the name of the table, and options."""

    outputs: tuple[tuple[str, str | None, tuple[tuple[str, str], ...]], ...]


@dataclass(frozen=True, slots=True)
class GraphMarkComponents(Node):
    """Adds the number of its component to each node."""

    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GraphWhere(Node):
    """Keeps nodes or edges for which a condition is true."""

    nodes: bool
    condition: Expression


@dataclass(frozen=True, slots=True)
class Render(Node):
    """How a client should display the result."""

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
    """A function without side effects. The table of a ``view`` is found by patterns and by ``search``."""

    parameters: tuple[Parameter, ...]
    program: Program
    view: bool


@dataclass(frozen=True, slots=True)
class Let(Node):
    """A name for a value, a table or a function."""

    name: str
    value: Expression | Function


@dataclass(frozen=True, slots=True)
class QueryParameters(Node):
    """``declare query_parameters``: names with types, and defaults."""

    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class PatternRule(Node):
    """A rule of ``declare pattern``: the values that select it, the name in its path, and its query."""

    values: tuple[Literal, ...]
    path: str | None
    program: Program


@dataclass(frozen=True, slots=True)
class DeclaredPattern(Node):
    """``declare pattern``: a table for each combination of values."""

    name: str
    rules: tuple[PatternRule, ...]


@dataclass(frozen=True, slots=True)
class Program(Node):
    """Statements and the query body; ``settings`` are the options of ``set`` statements, ``more`` further queries."""

    lets: tuple[Let | QueryParameters | DeclaredPattern, ...]
    body: Expression
    settings: tuple[tuple[str, Literal], ...] = ()
    more: tuple[Expression, ...] = ()


Operator: TypeAlias = (
    "Where | Project | ProjectAway | ProjectKeep | ProjectRename | ProjectReorder | ProjectByNames | Extend | Summarize"
    " | Sort | Top | Take | Sample | Distinct | Count | GetSchema | Union | Join | Render | MvExpand | MakeSeries"
    " | Parse | ParseKv | Serialize | ScanRows | Search | As | Partition | SampleDistinct | TopNested | TopHitters"
    " | Reduce | Facet | Fork | Consume | Invoke | Evaluate | AssertSchema | MakeGraph | GraphMatch | GraphToTable"
    " | GraphMarkComponents | GraphWhere"
)
Expression: TypeAlias = (
    "Literal | Column | Star | Member | Index | Call | NamedArgument | Method | Unary | Binary | Logical | ListTest"
    " | Between | Pipeline | Print | Range | DataTable | Union | Search | Find"
)
TABLES = (Pipeline, Print, Range, DataTable, Union, Search, Find)
"""Nodes that are tables whatever their names refer to."""


# Errors that show their position in the query.


_SHOWN = 100


class QueryText:
    """The source of a query, for error messages."""

    def __init__(self, text: str) -> None:
        self.text = text

    def error(self, at: int, what: str, *, hint: str | None = None) -> KqlError:
        """Return an error about the character at ``at``. Its note shows the line with a caret in tracebacks."""
        at = min(max(at, 0), len(self.text))
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        shown = self.text[start : end if end >= 0 else len(self.text)].rstrip("\r")
        line, column = self.text.count("\n", 0, at) + 1, at - start + 1
        excerpt = _excerpt(shown, column - 1)
        error = KqlError(
            f"KQL, line {line}, column {column}: {what}", line=line, column=column, excerpt=excerpt, hint=hint
        )
        error.add_note(excerpt)
        return error


def _excerpt(line: str, position: int) -> str:
    # A query may be one line of a megabyte, so only the part around the position is shown.
    cut = max(0, position - _SHOWN // 2)
    window = line[cut : cut + _SHOWN].expandtabs(1)
    before, after = "… " if cut else "", " …" if len(line) > cut + _SHOWN else ""
    return f"{before}{window}{after}\n{' ' * (len(before) + position - cut)}^"
