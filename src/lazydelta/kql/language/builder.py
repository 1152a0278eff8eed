"""Converts Lark's tree to the syntax tree. The methods are named after the grammar rules, which describe them."""

# ruff: noqa: D102 - as above

from __future__ import annotations

import re
from typing import Any

from lark import Token, Transformer, v_args
from lark.tree import Meta

from lazydelta.kql.language import syntax
from lazydelta.kql.language.literals import KINDS, BadLiteral, span, typed, unquoted, written
from lazydelta.kql.language.syntax import QueryText

__all__ = ["TreeBuilder"]


def _tuple(children: list[Any]) -> tuple[Any, ...]:
    return tuple(each for each in children if each is not None and not isinstance(each, Token))


@v_args(meta=True)
class TreeBuilder(Transformer[Token, Any]):
    """Builds the nodes. Every method gets the children of its grammar rule."""

    def __init__(self, query: QueryText) -> None:
        super().__init__()
        self._query = query
        self._settings: list[tuple[str, syntax.Literal]] = []

    # Statements

    def start(self, meta: Meta, children: list[Any]) -> syntax.Program:
        parts = _tuple(children)
        statements = (syntax.Let, syntax.QueryParameters, syntax.DeclaredPattern)
        lets = tuple(each for each in parts if isinstance(each, statements))
        body, *more = parts[len(lets) :]
        return syntax.Program(meta.start_pos, lets, body, tuple(self._settings), tuple(more))

    def set_statement(self, _meta: Meta, children: list[Any]) -> None:
        """Keep the option. Few of them change rows; most set how a cluster runs a query."""
        _, (name, _), *value = children
        self._settings += [(name, each) for each in value if isinstance(each, syntax.Literal)]

    def parameters_statement(self, meta: Meta, children: list[Any]) -> syntax.QueryParameters:
        return syntax.QueryParameters(meta.start_pos, _tuple(children))

    def pattern_statement(self, meta: Meta, children: list[Any]) -> syntax.DeclaredPattern:
        rules = tuple(each for each in children if isinstance(each, syntax.PatternRule))
        return syntax.DeclaredPattern(meta.start_pos, children[1][0], rules)

    def pattern_rule(self, meta: Meta, children: list[Any]) -> syntax.PatternRule:
        parts = _tuple(children)
        *before, body = parts
        lets = tuple(each for each in before if isinstance(each, syntax.Let))
        values = [each for each in before if isinstance(each, syntax.Literal)]
        # The placeholder of an absent path is None, and follows the values.
        path = values.pop().value if None not in children else None
        return syntax.PatternRule(meta.start_pos, tuple(values), path, syntax.Program(meta.start_pos, lets, body))

    def alias_statement(self, meta: Meta, _children: list[Any]) -> None:
        raise self._query.error(meta.start_pos, "other databases are not supported", hint="pass their tables by name")

    def restrict_statement(self, meta: Meta, _children: list[Any]) -> None:
        message = "'restrict access' is not supported"
        raise self._query.error(meta.start_pos, message, hint="pass only the tables that the query may read")

    def let_statement(self, meta: Meta, children: list[Any]) -> syntax.Let:
        return syntax.Let(meta.start_pos, children[1][0], children[2])

    def function(self, meta: Meta, children: list[Any]) -> syntax.Function:
        parts = _tuple(children)
        parameters = tuple(each for each in parts if isinstance(each, syntax.Parameter))
        *lets, body = parts[len(parameters) :]
        view = any(isinstance(each, Token) and each.type == "VIEW" for each in children)
        return syntax.Function(meta.start_pos, parameters, syntax.Program(meta.start_pos, tuple(lets), body), view)

    def scalar_parameter(self, meta: Meta, children: list[Any]) -> syntax.Parameter:
        (name, _), kind, default = children
        return syntax.Parameter(meta.start_pos, name, self._kind(kind), default, None)

    def signed_literal(self, meta: Meta, children: list[Any]) -> Any:
        return self.signed(meta, children)

    def open_table_parameter(self, meta: Meta, children: list[Any]) -> syntax.Parameter:
        return syntax.Parameter(meta.start_pos, children[0][0], None, None, ())

    def table_parameter(self, meta: Meta, children: list[Any]) -> syntax.Parameter:
        return syntax.Parameter(meta.start_pos, children[0][0], None, None, tuple(children[1:]))

    def column_type(self, _meta: Meta, children: list[Any]) -> tuple[str, str]:
        return children[0][0], self._kind(children[1])

    def body(self, meta: Meta, children: list[Any]) -> Any:
        source, *operators = children
        return syntax.Pipeline(meta.start_pos, source, tuple(operators)) if operators else source

    # Sources and operators

    def print(self, meta: Meta, children: list[Any]) -> syntax.Print:
        return syntax.Print(meta.start_pos, _tuple(children))

    def range(self, meta: Meta, children: list[Any]) -> syntax.Range:
        (name, _), first, last, step = _tuple(children)
        return syntax.Range(meta.start_pos, name, first, last, step)

    def datatable(self, meta: Meta, children: list[Any]) -> syntax.DataTable:
        parts = _tuple(children)
        columns = tuple(each for each in parts if isinstance(each, tuple))
        return syntax.DataTable(meta.start_pos, columns, parts[len(columns) :])

    def where(self, meta: Meta, children: list[Any]) -> syntax.Where:
        return syntax.Where(meta.start_pos, children[1], meta.end_pos)

    def project(self, meta: Meta, children: list[Any]) -> syntax.Project:
        return syntax.Project(meta.start_pos, _tuple(children))

    def project_away(self, meta: Meta, children: list[Any]) -> syntax.ProjectAway:
        return syntax.ProjectAway(meta.start_pos, _tuple(children))

    def project_keep(self, meta: Meta, children: list[Any]) -> syntax.ProjectKeep:
        return syntax.ProjectKeep(meta.start_pos, _tuple(children))

    def project_rename(self, meta: Meta, children: list[Any]) -> syntax.ProjectRename:
        return syntax.ProjectRename(meta.start_pos, _tuple(children))

    def renaming(self, _meta: Meta, children: list[Any]) -> tuple[str, str, int]:
        (new, _), (old, at) = children
        return new, old, at

    def project_reorder(self, meta: Meta, children: list[Any]) -> syntax.ProjectReorder:
        return syntax.ProjectReorder(meta.start_pos, _tuple(children))

    def reordering(self, meta: Meta, children: list[Any]) -> syntax.Reordering:
        pattern, direction = children
        return syntax.Reordering(meta.start_pos, pattern, None if direction is None else str(direction))

    def pattern(self, meta: Meta, children: list[Any]) -> syntax.Pattern:
        (only,) = children
        wild = isinstance(only, Token)
        return syntax.Pattern(meta.start_pos, str(only) if wild else only[0], wild)

    def extend(self, meta: Meta, children: list[Any]) -> syntax.Extend:
        return syntax.Extend(meta.start_pos, _tuple(children))

    def summarize(self, meta: Meta, children: list[Any]) -> syntax.Summarize:
        items, groups = children[-2:]
        if items is None and groups is None:
            raise self._query.error(meta.end_pos, "summarize has nothing to do", hint="write an aggregate or by")
        return syntax.Summarize(meta.start_pos, items or (), groups)

    def named_list(self, _meta: Meta, children: list[Any]) -> tuple[syntax.Named, ...]:
        return tuple(children)

    def by_clause(self, _meta: Meta, children: list[Any]) -> tuple[syntax.Named, ...]:
        return _tuple(children)

    def named(self, meta: Meta, children: list[Any]) -> syntax.Named:
        name, expression = children
        return syntax.Named(meta.start_pos, None if name is None else name[0], expression)

    def named_together(self, meta: Meta, children: list[Any]) -> syntax.Named:
        *names, expression = children
        (first, _), *more = names
        return syntax.Named(meta.start_pos, first, expression, tuple(name for name, _ in more))

    def sort(self, meta: Meta, children: list[Any]) -> syntax.Sort:
        return syntax.Sort(meta.start_pos, _tuple(children))

    def ordering(self, meta: Meta, children: list[Any]) -> syntax.Ordering:
        expression, direction, nulls = children
        if direction is not None and direction.startswith("granny"):
            raise self._query.error(direction.start_pos, f"{str(direction)!r} orders columns, not rows")
        descending = direction is None or direction == "desc"
        first = not descending if nulls is None else nulls.endswith("first")
        return syntax.Ordering(meta.start_pos, expression, descending, first)

    def top(self, meta: Meta, children: list[Any]) -> syntax.Top:
        count, ordering = _tuple(children)
        return syntax.Top(meta.start_pos, count, ordering)

    def take(self, meta: Meta, children: list[Any]) -> syntax.Take:
        return syntax.Take(meta.start_pos, children[1])

    def sample(self, meta: Meta, children: list[Any]) -> syntax.Sample:
        return syntax.Sample(meta.start_pos, children[1])

    def distinct(self, meta: Meta, children: list[Any]) -> syntax.Distinct:
        items = tuple(each for each in children if isinstance(each, syntax.Named))
        if len(items) == 1 and isinstance(items[0].expression, syntax.Star):
            items = ()
        return syntax.Distinct(meta.start_pos, items)

    def count(self, meta: Meta, children: list[Any]) -> syntax.Count:
        return syntax.Count(meta.start_pos, "Count" if children[-1] is None else children[-1][0])

    def getschema(self, meta: Meta, _children: list[Any]) -> syntax.GetSchema:
        return syntax.GetSchema(meta.start_pos)

    def union(self, meta: Meta, children: list[Any]) -> syntax.Union:
        options, legs = _options(children)
        return syntax.Union(meta.start_pos, options, legs)

    def table_pattern(self, meta: Meta, children: list[Any]) -> syntax.Pattern:
        return syntax.Pattern(meta.start_pos, str(children[0]), wild=True)

    def join(self, meta: Meta, children: list[Any]) -> syntax.Join:
        return self._join(meta, children, lookup=False)

    def lookup(self, meta: Meta, children: list[Any]) -> syntax.Join:
        return self._join(meta, children, lookup=True)

    def _join(self, meta: Meta, children: list[Any], *, lookup: bool) -> syntax.Join:
        options, (right, *conditions) = _options(children)
        return syntax.Join(meta.start_pos, lookup, options, right, tuple(conditions))

    def option(self, _meta: Meta, children: list[Any]) -> tuple[str, str]:
        name, value = children
        return str(name).rstrip("= \t\r\n"), _bare(value)

    def hint(self, _meta: Meta, _children: list[Any]) -> None:
        """Ignore the hint, which never changes rows."""

    # Operators on arrays, strings and sequences of rows

    def steps(self, _meta: Meta, children: list[Any]) -> list[syntax.Operator]:
        return children

    def expanded(self, meta: Meta, children: list[Any]) -> syntax.Expanded:
        name, expression, *_, kind = children
        kind = None if kind is None else self._kind(kind)
        return syntax.Expanded(meta.start_pos, None if name is None else name[0], expression, kind)

    def mv_expand(self, meta: Meta, children: list[Any]) -> syntax.MvExpand:
        options, items, rest = _options_and(children, syntax.Expanded)
        steps = next((tuple(each) for each in rest if isinstance(each, list)), None)
        limit: Any = next((each for each in rest if isinstance(each, syntax.Node)), None)
        return syntax.MvExpand(meta.start_pos, options, items, limit, steps)

    mv_apply = mv_expand

    def series(self, meta: Meta, children: list[Any]) -> syntax.Series:
        return syntax.Series(meta.start_pos, children[0], children[-1])

    def axis(self, meta: Meta, children: list[Any]) -> syntax.Named:
        return self.named(meta, children)

    def make_series(self, meta: Meta, children: list[Any]) -> syntax.MakeSeries:
        options, items, rest = _options_and(children, syntax.Series)
        axis = next(each for each in rest if isinstance(each, syntax.Named))
        words = {str(each): index for index, each in enumerate(children) if isinstance(each, Token)}
        first, last = (children[words[word] + 1] if word in words else None for word in ("from", "to"))
        step, groups = children[words["step"] + 1], children[-1]
        return syntax.MakeSeries(meta.start_pos, options, items, axis, first, last, step, groups or (), inclusive=False)

    def make_series_in(self, meta: Meta, children: list[Any]) -> syntax.MakeSeries:
        options, items, rest = _options_and(children, syntax.Series)
        axis = next(each for each in rest if isinstance(each, syntax.Named))
        first, last, step, groups = children[-4:]
        return syntax.MakeSeries(meta.start_pos, options, items, axis, first, last, step, groups or (), inclusive=True)

    def parse(self, meta: Meta, children: list[Any]) -> syntax.Parse:
        options, parts, rest = _options_and(children, syntax.ParsePart)
        expression: Any = next(each for each in rest if isinstance(each, syntax.Node))
        return syntax.Parse(meta.start_pos, children[0] == "parse-where", options, expression, parts)

    def parse_text(self, meta: Meta, children: list[Any]) -> syntax.ParsePart:
        return syntax.ParsePart(meta.start_pos, "".join(self._unquoted(each) for each in children), None, "string")

    def parse_skip(self, meta: Meta, children: list[Any]) -> syntax.ParsePart:
        # After a text the lexer takes a star for a multiplication.
        if children and children[0] != "*":
            raise self._query.error(meta.start_pos, f"{str(children[0])!r} is not expected here", hint="write *")
        return syntax.ParsePart(meta.start_pos, None, None, "string")

    def parse_column(self, meta: Meta, children: list[Any]) -> syntax.ParsePart:
        (name, _), kind = children
        return syntax.ParsePart(meta.start_pos, None, name, "string" if kind is None else self._kind(kind))

    def parse_kv(self, meta: Meta, children: list[Any]) -> syntax.ParseKv:
        _, expression, _, *rest = children
        pairs = [each for each in rest if isinstance(each, tuple)]
        words = [index for index, each in enumerate(rest) if isinstance(each, Token)]
        count = words[0] if words else len(pairs)
        return syntax.ParseKv(meta.start_pos, expression, tuple(pairs[:count]), tuple(pairs[count:]))

    def serialize(self, meta: Meta, children: list[Any]) -> syntax.Serialize:
        return syntax.Serialize(meta.start_pos, children[1] or ())

    def scan(self, meta: Meta, children: list[Any]) -> syntax.ScanRows:
        options, steps, rest = _options_and(children, syntax.ScanStep)
        declared = tuple(each[1:] for each in children if isinstance(each, tuple) and each[:1] == ("declared",))
        partition = next((tuple(each) for each in rest if isinstance(each, list)), ())
        options = tuple(each for each in options if each[:1] != ("declared",))
        return syntax.ScanRows(meta.start_pos, options, partition, declared, steps)

    def by_columns(self, _meta: Meta, children: list[Any]) -> list[syntax.Pattern]:
        return [each for each in children if isinstance(each, syntax.Pattern)]

    def declared(self, _meta: Meta, children: list[Any]) -> tuple[str, str, str, Any]:
        (name, _), kind, default = children
        return "declared", name, self._kind(kind), default

    def step(self, meta: Meta, children: list[Any]) -> syntax.ScanStep:
        _, (name, _), *rest = children
        pairs = [each for each in rest if isinstance(each, tuple)]
        options: dict[str, str] = dict(each for each in pairs if isinstance(each[1], str))
        assignments = tuple(each for each in pairs if isinstance(each[1], syntax.Node))
        condition: Any = next(each for each in rest if isinstance(each, syntax.Node))
        return syntax.ScanStep(meta.start_pos, name, options.get("output", "all"), condition, assignments)

    def assigned(self, _meta: Meta, children: list[Any]) -> tuple[str, Any]:
        return children[0][0], children[1]

    # Operators on several tables, and on parts of one

    def search(self, meta: Meta, children: list[Any]) -> syntax.Search:
        options, (*tables, condition) = _options(children)
        return syntax.Search(meta.start_pos, options, tuple(tables), condition)

    def find(self, meta: Meta, children: list[Any]) -> syntax.Find:
        *rest, columns = children
        options, (*tables, condition) = _options(rest)
        return syntax.Find(meta.start_pos, options, tuple(tables), condition, columns)

    def find_columns(self, _meta: Meta, children: list[Any]) -> tuple[tuple[str, str | None], ...] | None:
        return None if children[0] == "project-smart" else _tuple(children)

    def find_column(self, _meta: Meta, children: list[Any]) -> tuple[str, str | None]:
        if isinstance(children[0], Token):
            return "*", None
        (name, _), kind = children
        return name, None if kind is None else self._kind(kind)

    def as_name(self, meta: Meta, children: list[Any]) -> syntax.As:
        *options, (name, _) = children[1:]
        return syntax.As(meta.start_pos, tuple(options), name)

    def partition_key(self, meta: Meta, children: list[Any]) -> Any:
        key: Any = syntax.Column(meta.start_pos, children[0][0])
        for name, _ in children[1:]:
            key = syntax.Member(meta.start_pos, key, name)
        return key

    def partition(self, meta: Meta, children: list[Any]) -> syntax.Partition:
        return syntax.Partition(meta.start_pos, children[-2], tuple(children[-1]), None)

    def partition_body(self, meta: Meta, children: list[Any]) -> syntax.Partition:
        return syntax.Partition(meta.start_pos, children[-2], (), children[-1])

    def sample_distinct(self, meta: Meta, children: list[Any]) -> syntax.SampleDistinct:
        return syntax.SampleDistinct(meta.start_pos, *_tuple(children))

    def top_nested(self, meta: Meta, children: list[Any]) -> syntax.TopNested:
        return syntax.TopNested(meta.start_pos, _tuple(children))

    def nested(self, meta: Meta, children: list[Any]) -> syntax.NestedLevel:
        count, _, key, *rest, direction = children
        by = rest[-1]
        others: Any = next((each for each in rest[:-1] if isinstance(each, syntax.Node)), None)
        return syntax.NestedLevel(meta.start_pos, count, key, others, by, direction != "asc")

    def top_hitters(self, meta: Meta, children: list[Any]) -> syntax.TopHitters:
        _, count, _, key, *_, by = children
        return syntax.TopHitters(meta.start_pos, count, key, None if isinstance(by, Token) else by)

    def reduce(self, meta: Meta, children: list[Any]) -> syntax.Reduce:
        parts = _tuple(children)
        expression: Any = next(each for each in parts if isinstance(each, syntax.Node))
        return syntax.Reduce(meta.start_pos, expression, tuple(each for each in parts if isinstance(each, tuple)))

    reduce_option = assigned

    def facet(self, meta: Meta, children: list[Any]) -> syntax.Facet:
        columns = tuple(each for each in children if isinstance(each, tuple))
        steps = next((tuple(each) for each in children if isinstance(each, list)), None)
        return syntax.Facet(meta.start_pos, columns, steps)

    def fork(self, meta: Meta, children: list[Any]) -> syntax.Fork:
        return syntax.Fork(meta.start_pos, tuple(each for each in children if isinstance(each, tuple)))

    def branch(self, _meta: Meta, children: list[Any]) -> tuple[str | None, tuple[Any, ...]]:
        name, steps = children
        return None if name is None else name[0], tuple(steps)

    def consume(self, meta: Meta, _children: list[Any]) -> syntax.Consume:
        return syntax.Consume(meta.start_pos)

    def invoke(self, meta: Meta, children: list[Any]) -> syntax.Invoke:
        return syntax.Invoke(meta.start_pos, children[1])

    def evaluate(self, meta: Meta, children: list[Any]) -> syntax.Evaluate:
        call = next(each for each in children if isinstance(each, syntax.Call))
        columns = tuple(each for each in children if isinstance(each, tuple)) or None
        return syntax.Evaluate(meta.start_pos, call, columns)

    def result_column(self, _meta: Meta, children: list[Any]) -> tuple[str, str]:
        return children[0] if children else ("*", "")

    def assert_schema(self, meta: Meta, children: list[Any]) -> syntax.AssertSchema:
        return syntax.AssertSchema(meta.start_pos, tuple(children[1:]))

    def project_by_names(self, meta: Meta, children: list[Any]) -> syntax.ProjectByNames:
        return syntax.ProjectByNames(meta.start_pos, tuple(children[1:]))

    # Graphs

    def make_graph(self, meta: Meta, children: list[Any]) -> syntax.MakeGraph:
        _, (source, _), _, (target, _), *rest = (each for each in children if each is not None)
        partition = rest.pop() if rest and isinstance(rest[-1], syntax.GraphPartition) else None
        node_id = rest[0][1] if rest and not isinstance(rest[0], Token) else None
        tables = tuple(rest[1:]) if node_id is None else ()
        return syntax.MakeGraph(meta.start_pos, source, target, tables, node_id, partition)

    def graph_partition(self, meta: Meta, children: list[Any]) -> syntax.GraphPartition:
        return syntax.GraphPartition(meta.start_pos, children[1][0], children[2])

    def node_table(self, _meta: Meta, children: list[Any]) -> tuple[Any, str]:
        return children[0], children[2][0]

    def graph_match(self, meta: Meta, children: list[Any]) -> syntax.GraphMatch:
        options = tuple(each for each in children if isinstance(each, tuple))
        paths = tuple(each for each in children if isinstance(each, syntax.GraphPath))
        items = tuple(each for each in children if isinstance(each, syntax.Named))
        condition = next((each[0] for each in children if isinstance(each, list)), None)
        shortest = children[0].type == "GRAPH_SHORTEST_PATHS"
        return syntax.GraphMatch(meta.start_pos, shortest, options, paths, condition, items)

    graph_shortest_paths = graph_match

    def graph_condition(self, _meta: Meta, children: list[Any]) -> list[Any]:
        return [children[1]]

    def path(self, meta: Meta, children: list[Any]) -> syntax.GraphPath:
        return syntax.GraphPath(meta.start_pos, tuple(children[::2]), tuple(children[1::2]))

    def graph_node(self, _meta: Meta, children: list[Any]) -> str | None:
        return children[0][0] if children[0] is not None else None

    def graph_edge(self, meta: Meta, children: list[Any]) -> syntax.GraphEdge:
        arrow = str(children[0])
        direction = "<" if arrow.startswith("<") else ">" if arrow.endswith(">") else "-"
        name, hops = re.search(r"\[\s*([A-Za-z_]\w*)", arrow), re.search(r"(\d+)\s*\.\.\s*(\d+)", arrow)
        span_of_hops = (int(hops[1]), int(hops[2])) if hops else None
        return syntax.GraphEdge(meta.start_pos, name[1] if name else None, direction, span_of_hops)

    def graph_to_table(self, meta: Meta, children: list[Any]) -> syntax.GraphToTable:
        return syntax.GraphToTable(meta.start_pos, tuple(children[1:]))

    def graph_output(self, _meta: Meta, children: list[Any]) -> tuple[str, str | None, tuple[tuple[str, str], ...]]:
        word, _, name, *options = children
        return str(word), None if name is None else name[0], tuple(options)

    def graph_mark_components(self, meta: Meta, children: list[Any]) -> syntax.GraphMarkComponents:
        return syntax.GraphMarkComponents(meta.start_pos, tuple(children[1:]))

    def graph_where(self, meta: Meta, children: list[Any]) -> syntax.GraphWhere:
        return syntax.GraphWhere(meta.start_pos, children[0].type == "GRAPH_WHERE_NODES", children[1])

    def render(self, meta: Meta, children: list[Any]) -> syntax.Render:
        return syntax.Render(meta.start_pos, str(children[1]), _tuple(children))

    def property(self, _meta: Meta, children: list[Any]) -> tuple[str, Any]:
        (name, _), value = children
        return name, value.value if isinstance(value, syntax.Literal) else getattr(value, "name", None)

    # Expressions

    def or_chain(self, meta: Meta, children: list[Any]) -> Any:
        return self._chain(meta, "or", children)

    def and_chain(self, meta: Meta, children: list[Any]) -> Any:
        return self._chain(meta, "and", children)

    def _chain(self, meta: Meta, op: str, children: list[Any]) -> Any:
        parts = _tuple(children)
        if len(parts) == 1:
            return parts[0]
        words = [each for each in children if isinstance(each, Token)]
        starts = [meta.start_pos, *(word.end_pos or 0 for word in words)]
        ends = [*(word.start_pos or 0 for word in words), meta.end_pos]
        return syntax.Logical(meta.start_pos, op, parts, tuple(zip(starts, ends, strict=True)))

    def _binary(self, meta: Meta, children: list[Any]) -> syntax.Binary:
        left, op, right = children
        word = "!=" if op == "<>" else " ".join(op.split())
        return syntax.Binary(op.start_pos, word, left, right, (meta.start_pos, op.end_pos, meta.end_pos))

    equality = addition = multiplication = textual = _binary

    def relational(self, meta: Meta, children: list[Any]) -> Any:
        return children[0] if children[1] is None else self._binary(meta, children)

    def membership(self, _meta: Meta, children: list[Any]) -> syntax.ListTest:
        value, op, *items = children
        return syntax.ListTest(op.start_pos, str(op), value, tuple(items))

    has_list = membership

    def between(self, meta: Meta, children: list[Any]) -> syntax.Between:
        value, op, low, dots, high = children
        places = (meta.start_pos, op.end_pos, dots.start_pos, dots.end_pos, meta.end_pos)
        return syntax.Between(op.start_pos, op.startswith("!"), value, low, high, places)

    def signed(self, meta: Meta, children: list[Any]) -> Any:
        op, operand = children
        if isinstance(operand, syntax.Literal) and operand.kind in {"long", "int", "real", "timespan", "decimal"}:
            if operand.value is None or op == "+":
                return operand
            return syntax.Literal(meta.start_pos, operand.kind, -operand.value)
        return syntax.Unary(meta.start_pos, str(op), operand)

    def member(self, meta: Meta, children: list[Any]) -> syntax.Member:
        return syntax.Member(meta.start_pos, children[0], children[1][0])

    def method(self, meta: Meta, children: list[Any]) -> syntax.Method:
        base, (name, _), *arguments = children
        return syntax.Method(meta.start_pos, base, name, _tuple(arguments))

    def star(self, meta: Meta, _children: list[Any]) -> syntax.Star:
        return syntax.Star(meta.start_pos)

    def index(self, meta: Meta, children: list[Any]) -> syntax.Index:
        return syntax.Index(meta.start_pos, *children)

    def bracket_index(self, meta: Meta, children: list[Any]) -> syntax.Index:
        base, token = children
        return syntax.Index(meta.start_pos, base, syntax.Literal(token.start_pos, "string", _bare(token)))

    def column(self, meta: Meta, children: list[Any]) -> syntax.Column:
        return syntax.Column(meta.start_pos, children[0][0])

    def call(self, meta: Meta, children: list[Any]) -> syntax.Call:
        (name, _), *arguments = children
        return syntax.Call(meta.start_pos, name, _tuple(arguments))

    def argument(self, _meta: Meta, children: list[Any]) -> Any:
        return children[0]

    def named_argument(self, meta: Meta, children: list[Any]) -> syntax.NamedArgument:
        return syntax.NamedArgument(meta.start_pos, children[0][0], children[1])

    def parenthesis(self, _meta: Meta, children: list[Any]) -> Any:
        return children[0]

    def name(self, meta: Meta, children: list[Any]) -> tuple[str, int]:
        return _bare(children[0]), meta.start_pos

    # Literals

    def text(self, meta: Meta, children: list[Any]) -> syntax.Literal:
        return syntax.Literal(meta.start_pos, "string", "".join(self._unquoted(each) for each in children))

    def _unquoted(self, token: Token) -> str:
        try:
            return unquoted(str(token))
        except BadLiteral as error:
            raise self._query.error(token.start_pos or 0, str(error)) from error

    def long(self, meta: Meta, children: list[Any]) -> syntax.Literal:
        text = str(children[0])
        value = int(text, 16 if text[:2] in {"0x", "0X"} else 10)
        if value > 2**63:  # 2**63 itself may be preceded by a minus sign.
            raise self._query.error(
                meta.start_pos, f"{text} does not fit into the type long", hint="use a real literal"
            )
        return syntax.Literal(meta.start_pos, "long", value)

    def real(self, meta: Meta, children: list[Any]) -> syntax.Literal:
        return syntax.Literal(meta.start_pos, "real", float(children[0]))

    def timespan(self, meta: Meta, children: list[Any]) -> syntax.Literal:
        return self._literal(meta.start_pos, lambda: ("timespan", span(str(children[0]))))

    def boolean(self, meta: Meta, children: list[Any]) -> syntax.Literal:
        return syntax.Literal(meta.start_pos, "bool", children[0].lower() == "true")

    def typed(self, meta: Meta, children: list[Any]) -> Any:
        name, _, rest = str(children[0]).partition("(")
        inside = meta.start_pos + len(name) + 1 + len(rest) - len(rest.lstrip())
        literal = self._literal(inside, lambda: typed(name.strip(), rest[:-1]))
        if literal.kind == "now":
            return syntax.Call(meta.start_pos, "now", ())
        return syntax.Literal(meta.start_pos, literal.kind, literal.value)

    def _literal(self, at: int, read: Any) -> syntax.Literal:
        try:
            kind, value = read()
        except BadLiteral as error:
            raise self._query.error(at, str(error)) from error
        return syntax.Literal(at, kind, value)

    def dynamic(self, meta: Meta, children: list[Any]) -> syntax.Literal:
        return syntax.Literal(meta.start_pos, "dynamic", self._plain(children[1]))

    def json_array(self, _meta: Meta, children: list[Any]) -> list[Any]:
        return [self._plain(each) for each in children if each is not None]

    def json_object(self, _meta: Meta, children: list[Any]) -> dict[str, Any]:
        return dict(each for each in children if each is not None)

    def json_pair(self, _meta: Meta, children: list[Any]) -> tuple[str, Any]:
        return self._unquoted(children[0]), self._plain(children[1])

    def json_number(self, meta: Meta, children: list[Any]) -> syntax.Literal:
        sign, token = children
        value = (self.long if token.type == "LONG" else self.real)(meta, [token]).value
        return syntax.Literal(meta.start_pos, "real", -value if sign == "-" else value)

    def json_null(self, meta: Meta, _children: list[Any]) -> syntax.Literal:
        return syntax.Literal(meta.start_pos, "dynamic", None)

    def _plain(self, value: Any) -> Any:
        if not isinstance(value, syntax.Node):
            return value
        if isinstance(value, syntax.Literal) and value.kind in {"string", "long", "int", "real", "bool", "dynamic"}:
            return value.value
        if isinstance(value, syntax.Literal):
            # Values without a JSON type become strings.
            return None if value.value is None else written(value.kind, value.value)
        raise self._query.error(value.at, "a dynamic literal holds constants only")

    def _kind(self, token: Token) -> str:
        kind = KINDS.get(str(token))
        if kind is None:
            hint = f"known: {', '.join(sorted(KINDS))}"
            raise self._query.error(token.start_pos or 0, f"the type {str(token)!r} is not supported", hint=hint)
        return kind


def _options(children: list[Any]) -> tuple[tuple[tuple[str, str], ...], tuple[Any, ...]]:
    parts = _tuple(children)
    options = tuple(each for each in parts if isinstance(each, tuple))
    return options, parts[len(options) :]


def _options_and(children: list[Any], kind: type) -> tuple[tuple[Any, ...], tuple[Any, ...], list[Any]]:
    """Return the options, the nodes of a kind, and the rest without keywords."""
    options = tuple(each for each in children if isinstance(each, tuple) and all(isinstance(one, str) for one in each))
    chosen = tuple(each for each in children if isinstance(each, kind))
    rest = [
        each for each in children if each is not None and not isinstance(each, tuple | Token) and each not in chosen
    ]
    return options, chosen, rest


def _bare(token: Token) -> str:
    if token.type == "STRING":
        return unquoted(str(token))
    return unquoted(token[1:-1].strip()) if token.type == "BRACKET_NAME" else str(token)
