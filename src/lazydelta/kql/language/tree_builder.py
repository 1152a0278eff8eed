"""Lark's tree to the syntax tree: a method for each rule of the grammar."""

from __future__ import annotations

from typing import Any

from lark import Token, Transformer, v_args
from lark.tree import Meta

from lazydelta.kql.language import kql_syntax as syntax
from lazydelta.kql.language.complaints import QueryText
from lazydelta.kql.language.kql_literals import KINDS, BadLiteral, span, typed, unquoted, written

__all__ = ["TreeBuilder"]

# The methods are named after the rules of the grammar, which says what each is.
# ruff: noqa: D102


def _tuple(children: list[Any]) -> tuple[Any, ...]:
    return tuple(each for each in children if each is not None and not isinstance(each, Token))


@v_args(meta=True)
class TreeBuilder(Transformer[Token, Any]):
    """Makes the nodes; every method gets the children of its rule in the grammar."""

    def __init__(self, query: QueryText) -> None:
        super().__init__()
        self._query = query

    # Statements

    def start(self, meta: Meta, children: list[Any]) -> syntax.Program:
        *lets, body = _tuple(children)
        return syntax.Program(meta.start_pos, tuple(lets), body)

    def let_statement(self, meta: Meta, children: list[Any]) -> syntax.Let:
        return syntax.Let(meta.start_pos, children[1][0], children[2])

    def function(self, meta: Meta, children: list[Any]) -> syntax.Function:
        parts = _tuple(children)
        parameters = tuple(each for each in parts if isinstance(each, syntax.Parameter))
        *lets, body = parts[len(parameters) :]
        return syntax.Function(meta.start_pos, parameters, syntax.Program(meta.start_pos, tuple(lets), body))

    def scalar_parameter(self, meta: Meta, children: list[Any]) -> syntax.Parameter:
        (name, _), kind, default = children
        return syntax.Parameter(meta.start_pos, name, self._kind(kind), default, None)

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
        return syntax.Distinct(meta.start_pos, tuple(each for each in children if isinstance(each, syntax.Named)))

    def count(self, meta: Meta, _children: list[Any]) -> syntax.Count:
        return syntax.Count(meta.start_pos)

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
        """Ignore it: a hint changes no row."""

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
        return syntax.Member(meta.start_pos, children[0], str(children[1]))

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

    def argument(self, meta: Meta, children: list[Any]) -> Any:
        return children[0] if children else syntax.Star(meta.start_pos)

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
        if value > 2**63:  # 2**63 itself may have a minus before it.
            raise self._query.error(meta.start_pos, f"{text} does not fit into the type long", hint="write it as real")
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
            # What JSON has no type for is a text in it.
            return None if value.value is None else written(value.kind, value.value)
        raise self._query.error(value.at, "a dynamic literal holds constants only")

    def _kind(self, token: Token) -> str:
        kind = KINDS.get(str(token))
        if kind is None:
            hint = f"known are {', '.join(sorted(KINDS))}"
            raise self._query.error(token.start_pos or 0, f"the type {str(token)!r} is not supported", hint=hint)
        return kind


def _options(children: list[Any]) -> tuple[tuple[tuple[str, str], ...], tuple[Any, ...]]:
    parts = _tuple(children)
    options = tuple(each for each in parts if isinstance(each, tuple))
    return options, parts[len(options) :]


def _bare(token: Token) -> str:
    return unquoted(token[1:-1].strip()) if token.type == "BRACKET_NAME" else str(token)
