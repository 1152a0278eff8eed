"""Scalar expressions: resolve names to columns or values and calls to functions, and determine types."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from lazydelta.kql.binding import operators
from lazydelta.kql.binding.computed import COMPUTED, computed_columns
from lazydelta.kql.binding.plan import Limit, OutputColumn, Relation, Rows, Scope, Session, TableFunction, is_volatile
from lazydelta.kql.binding.types import Typed, call, column, converted, literal, to_text
from lazydelta.kql.functions.aggregates import AGGREGATE_NAMES
from lazydelta.kql.functions.declaration import Function, Given
from lazydelta.kql.functions.table import FUNCTIONS, REFUSED, similar
from lazydelta.kql.language import syntax
from lazydelta.kql.language.literals import KINDS

__all__ = ["Scalars"]

_HAS_ANY = FUNCTIONS["has_any_index"]
_LONGEST_SQL = 1 << 20

BindRelation = Callable[[syntax.Expression, Scope], Relation]
Aggregator = Callable[[syntax.Call], Typed]
Special = Callable[["Scalars", syntax.Call], Typed]


class Scalars:
    """Binds expressions over the columns in scope.

    ``bind_relation`` binds a table inside an expression; ``aggregator`` handles aggregate calls where they are allowed,
    ``special`` other functions that only this place has.
    """

    def __init__(
        self,
        session: Session,
        scope: Scope,
        columns: Sequence[OutputColumn],
        bind_relation: BindRelation,
        aggregator: Aggregator | None = None,
        special: Mapping[str, Special] | None = None,
    ) -> None:
        self._session = session
        self._scope = scope
        self._columns = {each.name: each for each in columns}
        self._bind_relation = bind_relation
        self._aggregator = aggregator
        # Functions that have a meaning only in this place, such as those of neighbouring rows.
        self._special = special or {}

    def bind(self, node: syntax.Expression) -> Typed:
        """Return the typed expression."""
        bound = self._bind(node)
        if len(bound.sql) > _LONGEST_SQL:
            raise self._session.error(node.at, "the expression grows too large", "name parts of it with extend")
        return bound

    def columns(self, node: syntax.Expression) -> list[Typed]:
        """Return the columns of an expression that stands alone, which is one for most functions."""
        if isinstance(node, syntax.Call) and node.name not in self._scope:
            function = FUNCTIONS.get(node.name)
            if function is not None and function.several is not None:
                return function.several(self._given(node, function))
            declared = COMPUTED.get(node.name)
            if declared is not None and declared.columns:
                return computed_columns(self._given(node, FUNCTIONS[node.name]))
        return [self.bind(node)]

    def condition(self, node: syntax.Expression) -> Typed:
        """Return an expression that must be a condition."""
        bound = self.bind(node)
        if bound.kind != "bool":
            hint = "compare it with a value"
            raise self._session.error(node.at, f"a condition must be a bool, and this is a {bound.kind}", hint)
        return bound

    def constant(self, node: syntax.Expression, what: str, *kinds: str) -> Typed:
        """Return an expression that must be a constant of one of the kinds."""
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
                return operators.minus(bound, complain) if op == "-" else bound
            case syntax.Logical(op=op, parts=parts):
                return self._logical(op, [self.condition(part) for part in parts])
            case syntax.Binary():
                return self._binary(node)
            case syntax.ListTest():
                return self._list_test(node)
            case syntax.Between(negated=negated):
                tested = self._between(node)
                return operators.negated(tested, "!between") if negated else tested
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
        if isinstance(binding, TableFunction) and binding.is_function and not binding.parameters:
            return self._user_function(syntax.Call(node.at, name, ()), binding)
        if binding is not None or self._session.tables.columns(name) is not None:
            raise self._session.error(node.at, f"{name!r} is a table, and a value is expected", "use toscalar()")
        known = [*self._columns, *self._scope.names]
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}" if known else None
        raise self._session.error(node.at, f"there is no column or value {name!r}", hint)

    def _logical(self, op: str, parts: list[Typed]) -> Typed:
        # Null counts as false on both sides of both operators.
        joined = f" {op.upper()} ".join(part.sql for part in parts)
        return call("bool", op, f"coalesce({joined}, FALSE)", parts)

    def _binary(self, node: syntax.Binary) -> Typed:
        left, right, complain = self.bind(node.left), self.bind(node.right), self._session.complain(node)
        if node.op in {"+", "-", "*", "/", "%"}:
            return operators.operate(node.op, left, right, complain)
        if node.op in {"==", "!=", "<", "<=", ">", ">="}:
            if left.kind == right.kind == "string" and node.op not in {"==", "!="}:
                self._session.text_orders.append(node)
            return operators.compare(node.op, left, right, complain)
        op = "=~" if node.op == "!~" else node.op.removeprefix("!")
        if op == "matches regex":
            self._check_regex(node.right, right)
        tested = operators.text_test(op, left, right, complain)
        return operators.negated(tested, node.op) if node.op.startswith("!") else tested

    def _check_regex(self, node: syntax.Node, pattern: Typed) -> None:
        if not pattern.is_literal or not isinstance(pattern.value, str):
            return
        wrong = self._session.evaluator.check_regex(pattern.value)
        if wrong is not None:
            raise self._session.error(node.at, f"the regular expression is not valid: {wrong}")

    def _between(self, node: syntax.Between) -> Typed:
        value, low, high = self.bind(node.value), self.bind(node.low), self.bind(node.high)
        if high.kind == "timespan" and low.kind == "datetime":
            high = operators.operate("+", low, high, self._session.complain(node))
        if value.kind == low.kind == high.kind == "string":
            self._session.text_orders.append(node)
        return operators.between(value, low, high, self._session.complain(node))

    def _list_test(self, node: syntax.ListTest) -> Typed:
        value, complain = self.bind(node.value), self._session.complain(node)
        op = node.op.removeprefix("!")
        items: list[Typed] = []
        for item in node.items:
            if self._is_table(item):
                if len(node.items) > 1:
                    raise self._session.error(item.at, "a table must be the only item of a list", "write in (table)")
                kind, found = self._session.evaluator.values(self._bind_relation(item, self._scope))
                if isinstance(found, str):
                    tested = operators.subquery_test(op, value, kind, found, complain)
                    return operators.negated(tested, "!in rows") if node.op.startswith("!") else tested
                items = [each for one in found for each in _flattened(kind, one)]
            else:
                bound = self.bind(item)
                found_list = self._elements(bound) if bound.kind == "dynamic" else [bound]
                if found_list is None:
                    return self._column_test(node, value, bound)
                items += found_list
        tested = operators.list_test(op, value, items, complain)
        return operators.negated(tested, node.op) if node.op.startswith("!") else tested

    def _elements(self, bound: Typed) -> list[Typed] | None:
        """Return the elements of a dynamic value, or None if they differ from row to row."""
        constant = bound if bound.is_literal else None if bound.refs else self._session.evaluator.known(bound)
        return None if constant is None else _flattened("dynamic", constant.value)

    def _column_test(self, node: syntax.ListTest, value: Typed, bound: Typed) -> Typed:
        """Return a test whose list is a dynamic value of the row."""
        op = node.op.removeprefix("!")
        if len(node.items) > 1 or op not in {"in", "in~", "has_any"}:
            hint = "write the list, or dynamic([…])"
            raise self._session.error(node.items[0].at, f"the list of {op} must be known before the query runs", hint)
        if op == "has_any":
            given = self._given(syntax.Call(node.at, "has_any_index", (node.value, node.items[0])), _HAS_ANY)
            tested = call("bool", op, f"({_HAS_ANY.call(given).sql} >= 0)", (value, bound))
        else:
            fold = "kql_fold({})" if op == "in~" else "{}"
            element = fold.format("json_extract_string(e, '$')")
            elements = f"list_transform(kql_array({bound.sql}), lambda e: {element})"
            found = f"list_contains({elements}, {fold.format(to_text(value))})"
            tested = call("bool", f"{op} list", f"coalesce({found}, FALSE)", (value, bound))
        return operators.negated(tested, f"!{tested.op}") if node.op.startswith("!") else tested

    def _is_table(self, node: syntax.Expression) -> bool:
        match node:
            case _ if isinstance(node, syntax.TABLES):
                return True
            case syntax.Column(name=name) if name not in self._columns:
                binding = self._scope.get(name)
                if binding is None:
                    return self._session.tables.columns(name) is not None
                return not isinstance(binding, Typed)
            case syntax.Call(name="external_table" | "table" | "materialize"):
                return True
            case syntax.Member(base=syntax.Call(name="database")) | syntax.Member(base=syntax.Method()):
                return True
            case syntax.Call():
                return _calls_table(node, self._scope)
            case _:
                return False

    def _access(self, node: syntax.Member | syntax.Index) -> Typed:
        if isinstance(node, syntax.Member) and isinstance(node.base, syntax.Column):
            # A property of a node or edge of a graph, or a column of a step of scan.
            found = self._columns.get(f"{node.base.name}.{node.name}")
            if found is not None:
                return column(found.identity, found.kind, f"{node.base.name}_{node.name}")
        base = self.bind(node.base)
        if base.kind != "dynamic":
            hint = "convert it with parse_json()"
            raise self._session.error(node.at, f"only a dynamic value has parts, and this is a {base.kind}", hint)
        if isinstance(node, syntax.Member):
            key: object = node.name
        else:
            index = self.bind(node.index)
            if index.kind not in {"string", "long", "int", "dynamic"}:
                message = f"an index must be a string or a whole number, not a {index.kind}"
                raise self._session.error(node.index.at, message)
            if not index.is_literal:
                path = f"kql_key({index.sql})" if index.kind in {"long", "int"} else f"kql_pointer({to_text(index)})"
                return call("dynamic", "access", f"kql_json({base.sql}, {path})", (base, index))
            key = index.value
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
        if node.name in self._special:
            return self._special[node.name](self, node)
        # A few are both: one argument joins the values of the rows, several are joined row by row.
        joins_rows = self._aggregator is not None and len(node.arguments) == 1
        if node.name in AGGREGATE_NAMES and (node.name not in FUNCTIONS or joins_rows):
            if self._aggregator is None:
                hint = "write T | summarize …"
                raise self._session.error(node.at, f"{node.name}() is an aggregate and belongs in summarize", hint)
            return self._aggregator(node)
        if node.name == "toscalar":
            return self._to_scalar(node)
        if node.name == "column_names_of" and len(node.arguments) == 1:
            names = [each.name for each in self._bind_relation(node.arguments[0], self._scope).columns]
            return literal("dynamic", names)
        function = FUNCTIONS.get(node.name)
        if function is None:
            if node.name in REFUSED:
                raise self._session.error(node.at, f"the function {node.name}() is not supported", REFUSED[node.name])
            near = similar(node.name)
            hint = f"did you mean {near}()?" if near else "no function has a name like it"
            raise self._session.error(node.at, f"the function {node.name}() is not supported", hint)
        return function.call(self._given(node, function))

    def _given(self, node: syntax.Call, function: Function) -> Given:
        arguments = tuple(self._arguments(node, function))
        if not function.least <= len(arguments) <= function.most:
            wanted = str(function.least) if function.least == function.most else f"{function.least} to {function.most}"
            message = f"{node.name}() takes {wanted} argument(s), not {len(arguments)}"
            raise self._session.error(node.at, message)
        columns = tuple(column(each.identity, each.kind, each.name) for each in self._columns.values())
        evaluator = self._session.evaluator
        complain = self._session.complain(node)
        return Given(
            node.name,
            arguments,
            complain,
            self._session.now,
            columns,
            evaluator.known,
            evaluator.define,
            self._session.settings,
        )

    def _arguments(self, node: syntax.Call, function: Function) -> Iterator[Typed]:
        for index, each in enumerate(node.arguments):
            declared = function.argument(index) if function.arguments else None
            match each:
                case syntax.Star() if declared is not None and declared.repeated:
                    yield from (column(each.identity, each.kind, each.name) for each in self._columns.values())
                case syntax.Call(name="typeof", arguments=[syntax.Column(name=kind)]) if (
                    declared is not None and "type" in declared.kinds
                ):
                    if kind not in KINDS:
                        raise self._session.error(each.at, f"the type {kind!r} is not supported")
                    yield Typed("type", "", "literal", value=KINDS[kind])
                case _:
                    bound = self.bind(each)
                    if declared is not None and "regex" in declared.kinds:
                        self._check_regex(each, bound)
                    yield bound

    def _to_scalar(self, node: syntax.Call) -> Typed:
        if len(node.arguments) != 1:
            raise self._session.error(node.at, "toscalar() takes one table or value")
        (argument,) = node.arguments
        if not self._is_table(argument):
            bound = self.bind(argument)
            return self._once(node, bound) if not bound.refs and is_volatile(bound.sql) else bound
        relation = self._bind_relation(argument, self._scope)
        first = Relation(Limit(relation.plan, 1), relation.columns[:1])
        kind, values = self._session.evaluator.values(first)
        return literal(kind, values[0] if values else None)

    def _once(self, node: syntax.Call, bound: Typed) -> Typed:
        """Return a random value that is the same wherever the query uses this ``toscalar``."""
        key = node.at, bound.sql
        if key not in self._session.scalars:
            one = OutputColumn("value", bound.kind, self._session.identity())
            found = self._session.evaluator.values(Relation(Rows(f"SELECT {bound.sql} AS {one.identity}"), (one,)))
            self._session.scalars[key] = literal(found[0], found[1][0])
        return self._session.scalars[key]

    def _user_function(self, node: syntax.Call, function: TableFunction) -> Typed:
        scope = bound_parameters(self._session, node, function, self.bind, self._bind_relation, self._scope)
        for let in function.program.lets:
            if not isinstance(let, syntax.Let):
                raise self._session.error(let.at, "a function has let statements only")
            scope = bind_let(self._session, let, scope, self._bind_relation)
        inner = Scalars(self._session, scope, (), self._bind_relation, special=self._special)
        # Parameter names do not become column names outside the function.
        return replace(inner.bind(function.program.body), name=None)


def _flattened(kind: str, value: object) -> list[Typed]:
    """Return the values to search for. Nested lists are flattened at any depth."""
    if kind != "dynamic":
        return [literal(kind, value)]
    if isinstance(value, list):
        return [each for inner in value for each in _flattened(kind, inner)]
    kinds = {str: "string", bool: "bool", int: "long", float: "real"}
    return [] if value is None else [literal(kinds.get(type(value), "dynamic"), value)]


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
    named = {each.name: each for each in node.arguments if isinstance(each, syntax.NamedArgument)}
    known = {each.name for each in function.parameters}
    for each in named.values():
        if each.name not in known:
            raise session.error(each.at, f"{node.name}() has no parameter {each.name!r}", f"it has {', '.join(known)}")
    positional = iter([each for each in node.arguments if not isinstance(each, syntax.NamedArgument)])
    for parameter in function.parameters:
        given = named.get(parameter.name)
        argument = next(positional, None) if given is None else given.value
        if argument is not None:
            if parameter.columns is not None:
                scope = scope.having(parameter.name, bind_relation(argument, outer))
                continue
            value = bind(argument)
        elif parameter.default is not None:
            value = literal(parameter.default.kind, parameter.default.value)
        else:
            raise session.error(node.at, f"{node.name}() needs a value for {parameter.name!r}")
        if parameter.kind == "dynamic":
            value = (
                replace(value, kind="dynamic", sql=converted(value, "dynamic")) if value.kind != "dynamic" else value
            )
        fits = value.kind == parameter.kind or {value.kind, parameter.kind} <= {"int", "long", "real", "decimal"}
        if not fits:
            message = f"{parameter.name!r} of {node.name}() is a {parameter.kind}, not a {value.kind}"
            raise session.error(node.at, message)
        scope = scope.having(parameter.name, value)
    return scope


def bind_let(session: Session, let: syntax.Let, scope: Scope, bind_relation: BindRelation) -> Scope:
    """Return the scope with the name that ``let`` defines. Tables are bound where they are used."""
    value = let.value
    if isinstance(value, syntax.Function):
        return scope.having(
            let.name, TableFunction(value.parameters, value.program, scope, is_function=True, is_view=value.view)
        )
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
    """Return whether the body of a function is a table, as far as its syntax shows."""
    body = function.program.body
    if isinstance(body, syntax.TABLES):
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
