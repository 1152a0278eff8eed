"""Scalar expressions: names become columns or values, calls become functions, and everything gets a type."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace

from lazydelta.kql.language import kql_syntax as syntax
from lazydelta.kql.language.kql_literals import KINDS
from lazydelta.kql.meaning.operations import arithmetic, comparisons
from lazydelta.kql.meaning.operations.signatures import Function, Given
from lazydelta.kql.meaning.operations.text_functions import TEXT_FUNCTIONS
from lazydelta.kql.meaning.operations.time_functions import TIME_FUNCTIONS
from lazydelta.kql.meaning.operations.value_functions import VALUE_FUNCTIONS
from lazydelta.kql.meaning.query_plan import Limit, OutputColumn, Relation
from lazydelta.kql.meaning.query_session import Scope, Session, TableFunction
from lazydelta.kql.meaning.typed import Typed, call, column, literal

__all__ = ["AGGREGATE_NAMES", "FUNCTIONS", "Scalars"]

FUNCTIONS: dict[str, Function] = {**TEXT_FUNCTIONS, **TIME_FUNCTIONS, **VALUE_FUNCTIONS}
"""Every scalar function."""

AGGREGATE_NAMES = frozenset(
    {
        *("arg_max", "arg_min", "avg", "avgif", "count", "count_distinct", "count_distinctif", "countif", "dcount"),
        *("dcountif", "make_list", "make_list_if", "make_set", "make_set_if", "max", "maxif", "min", "minif"),
        *("percentile", "percentiles", "stdev", "stdevif", "sum", "sumif", "take_any", "take_anyif"),
        *("variance", "varianceif"),
    }
)
"""Functions that belong into ``summarize``."""

_LONGEST_SQL = 1 << 20

BindRelation = Callable[[syntax.Expression, Scope], Relation]
Aggregator = Callable[[syntax.Call], Typed]


class Scalars:
    """Binds expressions over the columns at hand.

    ``bind_relation`` binds what is a table inside an expression, ``aggregator`` takes the calls of aggregates where
    they are allowed.
    """

    def __init__(
        self,
        session: Session,
        scope: Scope,
        columns: Sequence[OutputColumn],
        bind_relation: BindRelation,
        aggregator: Aggregator | None = None,
    ) -> None:
        self._session = session
        self._scope = scope
        self._columns = {each.name: each for each in columns}
        self._bind_relation = bind_relation
        self._aggregator = aggregator

    def bind(self, node: syntax.Expression) -> Typed:
        """Return the expression with its type."""
        bound = self._bind(node)
        if len(bound.sql) > _LONGEST_SQL:
            raise self._session.error(node.at, "the expression grows too large", "name parts of it with extend")
        return bound

    def condition(self, node: syntax.Expression) -> Typed:
        """Return an expression that must be a condition."""
        bound = self.bind(node)
        if bound.kind != "bool":
            hint = "compare it with a value"
            raise self._session.error(node.at, f"a condition must be a bool, and this is a {bound.kind}", hint)
        return bound

    def constant(self, node: syntax.Expression, what: str, *kinds: str) -> Typed:
        """Return an expression whose value must be known, of one of the kinds."""
        bound = self.bind(node)
        if not bound.is_literal or bound.value is None or (kinds and bound.kind not in kinds):
            expected = " or ".join(kinds)
            raise self._session.error(node.at, f"{what} must be a constant{f' of type {expected}' if kinds else ''}")
        return bound

    def _bind(self, node: syntax.Expression) -> Typed:
        complain = self._session.complain(node)
        match node:
            case syntax.Literal(kind=kind, value=value):
                return literal(kind, value)
            case syntax.Column(name=name):
                return self._name(node, name)
            case syntax.Member() | syntax.Index():
                return self._access(node)
            case syntax.Call():
                return self._call(node)
            case syntax.Unary(op=op, operand=operand):
                bound = self.bind(operand)
                return arithmetic.minus(bound, complain) if op == "-" else bound
            case syntax.Logical(op=op, parts=parts):
                return self._logical(op, [self.condition(part) for part in parts])
            case syntax.Binary():
                return self._binary(node)
            case syntax.ListTest():
                return self._list_test(node)
            case syntax.Between(negated=negated):
                tested = self._between(node)
                return comparisons.negated(tested, "!between") if negated else tested
            case syntax.Star():
                raise self._session.error(node.at, "* is not expected here", "name the columns")
            case _:
                raise self._session.error(node.at, "a value is expected here, not a table", "use toscalar()")

    def _name(self, node: syntax.Column, name: str) -> Typed:
        found = self._columns.get(name)
        if found is not None:
            return column(found.identity, found.kind, found.name)
        binding = self._scope.get(name)
        if isinstance(binding, Typed):
            return replace(binding, name=name)
        if binding is not None or self._session.tables.columns(name) is not None:
            raise self._session.error(node.at, f"{name!r} is a table, and a value is expected", "use toscalar()")
        known = [*self._columns, *self._scope.names]
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}" if known else None
        raise self._session.error(node.at, f"there is no column or value {name!r}", hint)

    def _logical(self, op: str, parts: list[Typed]) -> Typed:
        # Null counts as false on both sides of both.
        joined = f" {op.upper()} ".join(part.sql for part in parts)
        return call("bool", op, f"coalesce({joined}, FALSE)", parts)

    def _binary(self, node: syntax.Binary) -> Typed:
        left, right, complain = self.bind(node.left), self.bind(node.right), self._session.complain(node)
        if node.op in {"+", "-", "*", "/", "%"}:
            return arithmetic.operate(node.op, left, right, complain)
        if node.op in {"==", "!=", "<", "<=", ">", ">="}:
            if left.kind == right.kind == "string" and node.op not in {"==", "!="}:
                self._session.text_orders.append(node)
            return comparisons.compare(node.op, left, right, complain)
        op = "=~" if node.op == "!~" else node.op.removeprefix("!")
        if op == "matches regex" and right.is_literal and isinstance(right.value, str):
            self._check_regex(node.right, right.value)
        tested = comparisons.text_test(op, left, right, complain)
        return comparisons.negated(tested, node.op) if node.op.startswith("!") else tested

    def _check_regex(self, node: syntax.Node, pattern: str) -> None:
        wrong = self._session.evaluator.check_regex(pattern)
        if wrong is not None:
            raise self._session.error(node.at, f"the regular expression is not valid: {wrong}")

    def _between(self, node: syntax.Between) -> Typed:
        value, low, high = self.bind(node.value), self.bind(node.low), self.bind(node.high)
        if high.kind == "timespan" and low.kind == "datetime":
            high = arithmetic.operate("+", low, high, self._session.complain(node))
        if value.kind == low.kind == high.kind == "string":
            self._session.text_orders.append(node)
        return comparisons.between(value, low, high, self._session.complain(node))

    def _list_test(self, node: syntax.ListTest) -> Typed:
        value, complain = self.bind(node.value), self._session.complain(node)
        op = node.op.removeprefix("!")
        items: list[Typed] = []
        for item in node.items:
            if self._is_table(item):
                if len(node.items) > 1:
                    raise self._session.error(item.at, "a table stands alone in a list", "write in (table)")
                kind, found = self._session.evaluator.values(self._bind_relation(item, self._scope))
                if isinstance(found, str):
                    tested = comparisons.subquery_test(op, value, kind, found, complain)
                    return comparisons.negated(tested, "!in rows") if node.op.startswith("!") else tested
                items = [literal(kind, each) for each in found]
            else:
                bound = self.bind(item)
                items += self._elements(item, bound) if bound.kind == "dynamic" else [bound]
        tested = comparisons.list_test(op, value, items, complain)
        return comparisons.negated(tested, node.op) if node.op.startswith("!") else tested

    def _elements(self, node: syntax.Node, bound: Typed) -> list[Typed]:
        if not bound.is_literal:
            hint = "write the list, or dynamic([…])"
            raise self._session.error(node.at, "a list to search must be known before the query runs", hint)
        elements = bound.value if isinstance(bound.value, list) else [bound.value]
        kinds = {str: "string", bool: "bool", int: "long", float: "real"}
        return [literal(kinds.get(type(each), "dynamic"), each) for each in elements if each is not None]

    def _is_table(self, node: syntax.Expression) -> bool:
        match node:
            case syntax.Pipeline() | syntax.Print() | syntax.Range() | syntax.DataTable() | syntax.Union():
                return True
            case syntax.Column(name=name) if name not in self._columns:
                binding = self._scope.get(name)
                if binding is None:
                    return self._session.tables.columns(name) is not None
                return not isinstance(binding, Typed)
            case syntax.Call(name="external_table" | "table" | "materialize"):
                return True
            case syntax.Call():
                return _calls_table(node, self._scope)
            case _:
                return False

    def _access(self, node: syntax.Member | syntax.Index) -> Typed:
        base = self.bind(node.base)
        if base.kind != "dynamic":
            hint = "convert it with parse_json()"
            raise self._session.error(node.at, f"only a dynamic value has parts, and this is a {base.kind}", hint)
        if isinstance(node, syntax.Member):
            key: object = node.name
        else:
            key = self.constant(node.index, "an index", "string", "long", "int").value
        if isinstance(key, int):
            path = f"$[{key}]" if key >= 0 else f"$[#{key}]"
        else:
            path = "/" + str(key).replace("~", "~0").replace("/", "~1")
        name = f"{base.name}_{'' if isinstance(key, int) and key < 0 else key}" if base.name else None
        return call("dynamic", "access", f"kql_json({base.sql}, {literal('string', path).sql})", (base,), name=name)

    def _call(self, node: syntax.Call) -> Typed:
        binding = self._scope.get(node.name)
        if isinstance(binding, TableFunction) and binding.is_function:
            return self._user_function(node, binding)
        if node.name in AGGREGATE_NAMES:
            if self._aggregator is None:
                hint = "write T | summarize …"
                raise self._session.error(node.at, f"{node.name}() is an aggregate and belongs into summarize", hint)
            return self._aggregator(node)
        if node.name == "toscalar":
            return self._to_scalar(node)
        function = FUNCTIONS.get(node.name)
        if function is None:
            near = difflib.get_close_matches(node.name, [*FUNCTIONS, *AGGREGATE_NAMES], 1)
            hint = f"did you mean {near[0]}()?" if near else "docs/kql.md lists the functions"
            raise self._session.error(node.at, f"the function {node.name}() is not supported", hint)
        if not function.least <= len(node.arguments) <= function.most:
            wanted = str(function.least) if function.least == function.most else f"{function.least} to {function.most}"
            message = f"{node.name}() takes {wanted} argument(s), not {len(node.arguments)}"
            raise self._session.error(node.at, message)
        values = tuple(self._argument(node.name, index, each) for index, each in enumerate(node.arguments))
        regex = {"extract": 0, "trim": 0, "trim_start": 0, "trim_end": 0}.get(node.name)
        if regex is not None and values[regex].is_literal and isinstance(values[regex].value, str):
            self._check_regex(node.arguments[regex], values[regex].value)
        bound = function.build(Given(node.name, values, self._session.complain(node), self._session.now))
        if function.named_by_first and bound.name is None and values and values[0].name is not None:
            return Typed(bound.kind, bound.sql, bound.op, bound.arguments, bound.value, bound.refs, values[0].name)
        return bound

    def _argument(self, function: str, index: int, node: syntax.Expression) -> Typed:
        match node:
            case syntax.Call(name="typeof", arguments=[syntax.Column(name=kind)]) if function == "extract" and index:
                return Typed("type", "", "literal", value=KINDS.get(kind, kind))
            case _:
                return self.bind(node)

    def _to_scalar(self, node: syntax.Call) -> Typed:
        if len(node.arguments) != 1:
            raise self._session.error(node.at, "toscalar() takes one table or value")
        (argument,) = node.arguments
        if not self._is_table(argument):
            return self.bind(argument)
        relation = self._bind_relation(argument, self._scope)
        first = Relation(Limit(relation.plan, 1), relation.columns[:1])
        kind, values = self._session.evaluator.values(first)
        return literal(kind, values[0] if values else None)

    def _user_function(self, node: syntax.Call, function: TableFunction) -> Typed:
        scope = bound_parameters(self._session, node, function, self.bind, self._bind_relation, self._scope)
        for let in function.program.lets:
            scope = bind_let(self._session, let, scope, self._bind_relation)
        inner = Scalars(self._session, scope, (), self._bind_relation)
        # A parameter's name is the function's own affair.
        return replace(inner.bind(function.program.body), name=None)


def bound_parameters(
    session: Session,
    node: syntax.Call,
    function: TableFunction,
    bind: Callable[[syntax.Expression], Typed],
    bind_relation: BindRelation,
    outer: Scope,
) -> Scope:
    """Return the scope of a function's body for one call."""
    if len(node.arguments) > len(function.parameters):
        message = f"{node.name}() takes {len(function.parameters)} argument(s), not {len(node.arguments)}"
        raise session.error(node.at, message)
    scope = function.scope
    for index, parameter in enumerate(function.parameters):
        if index < len(node.arguments):
            argument = node.arguments[index]
            if parameter.columns is not None:
                scope = scope.having(parameter.name, bind_relation(argument, outer))
                continue
            value = bind(argument)
        elif parameter.default is not None:
            value = literal(parameter.default.kind, parameter.default.value)
        else:
            raise session.error(node.at, f"{node.name}() needs a value for {parameter.name!r}")
        fits = value.kind == parameter.kind or {value.kind, parameter.kind} <= {"int", "long", "real", "decimal"}
        if not fits:
            message = f"{parameter.name!r} of {node.name}() is a {parameter.kind}, not a {value.kind}"
            raise session.error(node.at, message)
        scope = scope.having(parameter.name, value)
    return scope


def bind_let(session: Session, let: syntax.Let, scope: Scope, bind_relation: BindRelation) -> Scope:
    """Return the scope with what ``let`` names; tables are bound where they are used."""
    value = let.value
    if isinstance(value, syntax.Function):
        return scope.having(let.name, TableFunction(value.parameters, value.program, scope, is_function=True))
    scalars = Scalars(session, scope, (), bind_relation)
    if scalars._is_table(value):  # noqa: SLF001 - the same module
        program = syntax.Program(let.at, (), value)
        return scope.having(let.name, TableFunction((), program, scope, is_function=False))
    return scope.having(let.name, scalars.bind(value))


def _calls_table(value: syntax.Expression, scope: Scope) -> bool:
    if not isinstance(value, syntax.Call):
        return False
    function = scope.get(value.name)
    return isinstance(function, TableFunction) and returns_table(function)


def returns_table(function: TableFunction) -> bool:
    """Tell whether a function's body is a table, as far as its text shows."""
    body = function.program.body
    if isinstance(body, syntax.Pipeline | syntax.Print | syntax.Range | syntax.DataTable | syntax.Union):
        return True
    if isinstance(body, syntax.Call):
        inner = function.scope.get(body.name)
        if body.name in {"external_table", "table", "materialize"}:
            return True
        return isinstance(inner, TableFunction) and returns_table(inner)
    if isinstance(body, syntax.Column):
        tables = {each.name for each in function.parameters if each.columns is not None}
        scalars = {each.name for each in function.parameters} | {
            name for name, binding in function.scope.names.items() if isinstance(binding, Typed)
        }
        return body.name in tables or body.name not in scalars
    return False
