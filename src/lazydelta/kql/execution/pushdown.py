"""Pushdown: which conditions and row limits of a plan reach the tables, and why the rest does not.

Conditions move down through renamed and computed columns by replacing each column with its definition. They stop where
they would change which rows an operator sees: ``take``, ``top``, ``sample``, conditions on aggregates, and the side of
a join whose unmatched rows are kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from lazydelta.kql.binding.plan import (
    Aggregate,
    Attach,
    Expand,
    Filter,
    Grid,
    Limit,
    Match,
    Merge,
    Order,
    OrderKey,
    Plan,
    Relation,
    Rows,
    Scan,
    Staged,
    Window,
)
from lazydelta.kql.binding.types import Typed, call, literal, substituted
from lazydelta.protocol.values import Instant

__all__ = ["Pushed", "push_down"]


# Translate conditions of a query into predicates that prune files.
#
# A predicate keeps every row that its condition keeps, and may keep more, because DuckDB tests them again. It uses the
# JSON form of predicates with SQL's nulls, so Kusto's nulls are spelled out: ``x != 5`` keeps nulls, and a null string
# is an empty one.


_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WHOLE_IN_REAL = 2**53
_DAY = 864_000_000_000
_STARTS = {"startofday": _DAY, "startofweek": 7 * _DAY, "startofmonth": 31 * _DAY, "startofyear": 366 * _DAY}
_IGNORE_CASE = frozenset({"=~", "!~", "has", "hasprefix", "hassuffix", "contains", "startswith", "endswith"})


class Unprunable(Exception):  # noqa: N818 - a reason to show, not an error
    """The reason why a condition cannot prune."""


@dataclass(frozen=True, slots=True)
class Prunable:
    """A predicate, or None if every row may match; ``exact`` is set if it keeps no extra rows."""

    where: dict[str, Any] | None
    exact: bool


def prunable(
    condition: Typed, column_of: Callable[[str], str | None], known: Callable[[Typed], Typed | None]
) -> Prunable:
    """Translate a condition; ``column_of`` returns the table column of an identity, ``known`` folds constants.

    Raises ``Unprunable`` if no part of the condition can prune.
    """
    return _Translation(column_of, known).translate(condition)


class _Translation:
    def __init__(self, column_of: Callable[[str], str | None], known: Callable[[Typed], Typed | None]) -> None:
        self._column_of = column_of
        self._known = known

    def translate(self, node: Typed, *, negated: bool = False, nulls: bool = False) -> Prunable:
        """Return the predicate for rows where the node is true, or false if ``negated``, or also null if ``nulls``."""
        if node.op == "not":
            return self.translate(node.arguments[0], negated=not negated, nulls=nulls)
        if node.op in {"and", "or"}:
            return self._connective(node, all_of=(node.op == "and") is not negated, negated=negated)
        if node.op == "literal" and node.kind == "bool":
            passes = nulls if node.value is None else bool(node.value) is not negated
            return Prunable(None if passes else {"or": []}, exact=True)
        if node.op == "column" and node.kind == "bool":
            name = self._name(node)
            wanted = _leaf(name, "=", not negated)
            return Prunable({"or": [wanted, {name: None}]} if nulls else wanted, exact=not nulls)
        if node.op in _OPPOSITE:
            return self._comparison(node, negated=negated, nulls=nulls)
        if node.op in {"in", "!in"}:
            return self._membership(node, negated=negated is not (node.op == "!in"))
        if node.op in {"between", "!between"}:
            return self._between(node, negated=negated is not (node.op == "!between"), nulls=nulls)
        if node.op in {"startswith_cs", "!startswith_cs"}:
            return self._prefix(node, negated=negated is not (node.op == "!startswith_cs"))
        if node.op in {"isnull", "isnotnull", "notnull", "isempty", "isnotempty", "notempty"}:
            return self._null_test(node, negated=negated)
        if node.op in _IGNORE_CASE or node.op.lstrip("!") in _IGNORE_CASE:
            raise Unprunable(f"{node.op} ignores case or searches inside strings, which bounds cannot decide")
        raise Unprunable(f"{node.op} says nothing about the bounds of a column")

    def _connective(self, node: Typed, *, all_of: bool, negated: bool) -> Prunable:
        parts: list[Prunable] = []
        reasons: list[str] = []
        for each in node.arguments:
            try:
                # A connective is never null: it is false unless its parts make it true, whether they are null or false.
                parts.append(self.translate(each, negated=negated, nulls=negated))
            except Unprunable as reason:
                reasons.append(str(reason))
        if reasons and (not all_of or not parts):
            raise Unprunable(reasons[0])
        exact = not reasons and not negated and all(each.exact for each in parts)
        said = [each.where for each in parts]
        if not all_of:
            if any(each is None for each in said):
                return Prunable(None, exact=exact)
            return Prunable({"or": said}, exact=exact)
        kept = [each for each in said if each is not None]
        return Prunable({"and": kept} if kept else None, exact=exact)

    def _comparison(self, node: Typed, *, negated: bool, nulls: bool) -> Prunable:
        left, right = node.arguments
        op = node.op
        if right.refs and not left.refs:
            left, right, op = right, left, _MIRRORED[op]
        if left.op == "strcmp" and right.is_literal and right.kind in {"int", "long"} and right.value == 0:
            # Kusto's way of ordering strings.
            return self._comparison(call("bool", op, "", left.arguments), negated=negated, nulls=nulls)
        width = None if negated or op == "!=" else self._width(left)
        if width is not None:
            return self._rounded_down(left.arguments[0], op, right, width, nulls=nulls)
        name, value = self._name(left), self._value(left, right)
        return self._compared(left, name, op, value, negated=negated, nulls=nulls)

    def _width(self, expression: Typed) -> int | None:
        """Return how far an expression can lie below the column that it rounds down, or None if it does not round."""
        if expression.op in _STARTS and len(expression.arguments) == 1:
            return _STARTS[expression.op]
        if expression.op in {"bin", "floor"} and expression.arguments[0].kind in {"datetime", "long", "int"}:
            size = expression.arguments[1]
            if size.is_literal and size.kind in {"timespan", "long", "int"} and (size.value or 0) > 0:
                return int(size.value)
        return None

    def _rounded_down(self, column: Typed, op: str, bound: Typed, width: int, *, nulls: bool) -> Prunable:
        """Compare a rounded-down column: its value is at least the rounded one, and less than one width above."""
        name = self._name(column)
        low = self._value(column, bound)
        constant = bound if bound.is_literal else self._known(bound)
        if low is None or constant is None or constant.kind == "real":
            raise Unprunable("the bound of a rounded column is not a whole number or a timestamp")
        high = self._value(column, literal(constant.kind, constant.value + width))
        parts = [_leaf(name, ">" if op == ">" else ">=", low)] if op in {">", ">=", "=="} else []
        parts += [_leaf(name, "<", high)] if op in {"<", "<=", "=="} else []
        said: dict[str, Any] = {"and": parts}
        if _null_passes(column, op, low, nulls=nulls):
            said = {"or": [said, {name: None}]}
        return Prunable(said, exact=False)

    def _compared(self, column: Typed, name: str, op: str, value: Any, *, negated: bool, nulls: bool) -> Prunable:
        if value is None:
            raise Unprunable("a comparison with null prunes nothing")
        said: dict[str, Any] = _leaf(name, _sql_operator(op), value)
        if negated:
            said = {"not": said}
        if _null_passes(column, _OPPOSITE[op] if negated else op, value, nulls=nulls):
            said = {"or": [said, {name: None}]}
        return Prunable(said, exact=not negated and column.kind not in {"real", "decimal"})

    def _membership(self, node: Typed, *, negated: bool) -> Prunable:
        column, *items = node.arguments
        name = self._name(column)
        # Nothing equals null or NaN.
        values = [value for each in items if (value := self._value(column, each)) is not None and value == value]  # noqa: PLR0124
        said: dict[str, Any] = {name: {"in": values}}
        passes = "" in values if column.kind == "string" else False
        if negated:
            said = {"not": said} if values else {"and": []}
            if not values:
                return Prunable(None, exact=True)
        if passes is not negated:
            said = {"or": [said, {name: None}]}
        return Prunable(said, exact=column.kind not in {"real", "decimal"})

    def _between(self, node: Typed, *, negated: bool, nulls: bool) -> Prunable:
        column, low, high = node.arguments
        name = self._name(column)
        bounds = [(">=", self._value(column, low)), ("<=", self._value(column, high))]
        parts = [self._compared(column, name, op, value, negated=negated, nulls=nulls) for op, value in bounds]
        join = "or" if negated else "and"
        return Prunable({join: [each.where for each in parts]}, exact=all(each.exact for each in parts))

    def _prefix(self, node: Typed, *, negated: bool) -> Prunable:
        column, prefix = node.arguments
        name, value = self._name(column), self._value(column, prefix)
        if not isinstance(value, str) or not value:
            raise Unprunable("every string starts with the empty string")
        said: dict[str, Any] = {name: {"starts with": value}}
        if negated:
            return Prunable({"or": [{"not": said}, {name: None}]}, exact=True)
        return Prunable(said, exact=True)

    def _null_test(self, node: Typed, *, negated: bool) -> Prunable:
        (column,) = node.arguments
        name = self._name(column, compared=False)
        is_null = node.op in {"isnull", "isempty"}
        wanted = is_null is not negated
        if column.kind == "string":
            if node.op in {"isnull", "isnotnull", "notnull"}:
                return Prunable({"or": []} if wanted else None, exact=True)
            empty = {"or": [_leaf(name, "=", ""), {name: None}]}
            return Prunable(empty if wanted else {name: {"!=": ""}}, exact=True)
        if column.kind == "dynamic":
            raise Unprunable("a dynamic value has no bounds")
        return Prunable({name: None} if wanted else {"not": {name: None}}, exact=True)

    def _name(self, column: Typed, *, compared: bool = True) -> str:
        if column.op != "column":
            raise Unprunable(f"a column is compared after {column.op}")
        name = self._column_of(str(column.value))
        if name is None:
            raise Unprunable("the column has no bounds in a table")
        if column.kind == "dynamic" and compared:
            raise Unprunable("a dynamic value has no bounds")
        if name.lower() == "not":
            raise Unprunable("a column called not cannot be named in a predicate")
        return name

    def _value(self, column: Typed, expression: Typed) -> Any:
        if expression.refs:
            raise Unprunable("a column is compared with another column")
        constant = expression if expression.is_literal else self._known(expression)
        if constant is None:
            raise Unprunable(f"the value of {expression.op} is not known before the query runs")
        value = constant.value
        if value is None:
            return None
        if (constant.kind == "bool") is not (column.kind == "bool"):
            raise Unprunable("a bool is compared with a number")
        if constant.kind == "real" and column.kind in {"int", "long"} and not abs(value) < _WHOLE_IN_REAL:
            raise Unprunable("the number is too large for an exact comparison")
        if {constant.kind, column.kind} == {"real", "decimal"}:
            raise Unprunable("a decimal is compared with a real, which rounds")
        if constant.kind == "datetime":
            return Instant(value // 10 * 1000)
        if constant.kind == "dynamic":
            raise Unprunable("a dynamic value is compared")
        if column.kind == "real" and isinstance(value, int) and abs(value) >= _WHOLE_IN_REAL:
            raise Unprunable("the number is too large for an exact comparison")
        return float(value) if column.kind == "real" and isinstance(value, int | Decimal) else value


def _null_passes(column: Typed, op: str, value: Any, *, nulls: bool) -> bool:
    if column.kind == "string":
        # A null in Delta is an empty string here.
        return _HOLDS[op]("", value)
    # Null never equals a value, and an order comparison with null is null.
    return op == "!=" or (op != "==" and nulls)


def _leaf(name: str, op: str, value: Any) -> dict[str, Any]:
    return {name: {op: value}}


def _sql_operator(op: str) -> str:
    return "=" if op == "==" else op


def conjunction(parts: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the conjunction of the parts."""
    listed = list(parts)
    return listed[0] if len(listed) == 1 else {"and": listed} if listed else None


@dataclass(frozen=True, slots=True)
class Note:
    """Outcome of pushing a part of the query to a table; ``why`` is empty if it was pushed as a whole."""

    text: str
    reached: bool
    why: str = ""


@dataclass(slots=True)
class Pushed:
    """What one scan receives: a predicate, and how many rows are needed."""

    where: dict[str, Any] | None = None
    limit: int | None = None
    newest: tuple[str, int] | None = None
    """A column and a number: only the rows with that many greatest values of the column matter."""
    by_path: bool = False
    """Whether rows are numbered in the order in which they come, which depends only on the version then."""
    notes: list[Note] = field(default_factory=list)


_TESTED = "a condition before it is tested row by row"


@dataclass(frozen=True, slots=True)
class _Newest:
    """The greatest values of an expression that matter, in the order of ``order by … desc | take n`` and ``top``."""

    expression: Typed
    count: int

    def missed(self, why: str) -> Note:
        return Note(f"take {self.count}", reached=False, why=why)


@dataclass(frozen=True, slots=True)
class _Condition:
    expression: Typed
    text: str


@dataclass(frozen=True, slots=True)
class _Above:
    """Context from above a node: conditions on its rows, and how many rows are needed, any or the newest.

    ``by_path`` says that its rows are numbered in their order, by ``serialize`` without an order of its own.
    """

    conditions: tuple[_Condition, ...] = ()
    limit: int | None = None
    stopped: tuple[Note, ...] = ()
    newest: _Newest | None = None
    by_path: bool = False

    def without_limit(self, why: str) -> _Above:
        """Return the same context without the row limit."""
        notes = self.stopped
        if self.limit is not None:
            notes = (*notes, Note(f"take {self.limit}", reached=False, why=why))
        if self.newest is not None:
            notes = (*notes, self.newest.missed(why))
        return replace(self, limit=None, stopped=notes, newest=None)

    def below_order(self, keys: Sequence[OrderKey]) -> _Above:
        """Return the context below an order: its first rows are those with the greatest values of the first key."""
        first = keys[0] if keys else None
        if self.limit is None or first is None or not first.descending or first.nulls_first:
            return replace(self.without_limit("an order is made of all rows"), by_path=not keys)
        newest = _Newest(first.expression, self.limit)
        return replace(self, limit=None, newest=newest, by_path=False)

    def keeping(self, keep: Callable[[Typed], bool], why: str) -> _Above:
        """Return the same context with only the conditions that can move further down.

        Without the others, no number of rows is known to be enough.
        """
        kept = tuple(each for each in self.conditions if keep(each.expression))
        lost = tuple(Note(each.text, reached=False, why=why) for each in self.conditions if each not in kept)
        passing = replace(self, conditions=kept, stopped=(*self.stopped, *lost))
        if lost or (self.newest is not None and not keep(self.newest.expression)):
            return passing.without_limit(_TESTED)
        return passing


def push_down(
    relation: Relation, known: Callable[[Typed], Typed | None], has_bounds: Callable[[Scan, str], bool]
) -> dict[Scan, Pushed]:
    """Return what is pushed to each scan of a relation's plan.

    ``known`` evaluates constants; ``has_bounds`` returns whether a table can prune by one of its columns.
    """
    found: dict[Scan, Pushed] = {}
    _PushdownWalk(found, known, has_bounds).visit(relation.plan, _Above())
    return found


class _PushdownWalk:
    def __init__(
        self,
        found: dict[Scan, Pushed],
        known: Callable[[Typed], Typed | None],
        has_bounds: Callable[[Scan, str], bool],
    ) -> None:
        self._found = found
        self._known = known
        self._has_bounds = has_bounds

    def visit(self, plan: Plan, above: _Above) -> None:  # noqa: C901, PLR0912 - one case per node
        match plan:
            case Scan():
                self._found[plan] = self._scan(plan, above)
            case Rows():
                pass
            case Filter(source=source, condition=condition, texts=texts):
                parts = condition.arguments if len(texts) > 1 else (condition,)
                mine = [
                    _Condition(each, text) for part, text in zip(parts, texts, strict=True) for each in _conjuncts(part)
                ]
                self.visit(source, replace(above, conditions=(*above.conditions, *mine)))
            case Attach(source=source, columns=columns):
                self.visit(source, self._substituted(above, columns))
            case Aggregate(source=source, keys=groups):
                passing = above.without_limit("groups are made of all rows")
                passing = passing.keeping(lambda each: each.refs <= groups.keys(), "it is about an aggregate")
                self.visit(source, replace(self._substituted(passing, groups), by_path=False))
            case Order(source=source, keys=keys):
                self.visit(source, above.below_order(keys))
            case Limit(source=source, by=by) if by:
                passing = above.without_limit("every group has a limit of its own")
                self.visit(source, passing.keeping(lambda each: each.refs <= {*by}, "it comes after take or top"))
            case Limit(source=source, count=count, at_random=at_random):
                self._limit(source, count, above, at_random=at_random)
            case Match():
                self._match(plan, above)
            case Merge(legs=legs):
                for source, chosen in legs:
                    self.visit(source, self._substituted(above, chosen))
            case Expand(source=source, lists=lists, index=index):
                made = {*lists, index}
                passing = above.without_limit("an array may have no element")
                self.visit(source, passing.keeping(lambda each: not each.refs & made, "it is about an element"))
            case Window(source=source, columns=columns, are_ids=True):
                ids = columns.keys()
                self.visit(source, above.keeping(lambda each: not each.refs & ids, "it is about a number of rows"))
            case Window(source=source):
                passing = above.without_limit("rows depend on their neighbours")
                self.visit(source, passing.keeping(lambda _: False, "rows depend on their neighbours"))
            case Grid(source=source, keys=keys):
                passing = replace(above.without_limit("a series is made of all rows"), by_path=False)
                self.visit(source, passing.keeping(lambda each: each.refs <= {*keys}, "it is about a series"))
            case Staged(source=source, outputs=outputs, is_rowwise=is_rowwise):
                passing = above if is_rowwise else above.without_limit("rows depend on each other")
                why = "it is about a computed column" if is_rowwise else "rows depend on each other"
                self.visit(source, passing.keeping(lambda each: is_rowwise and not each.refs & outputs.keys(), why))

    def _substituted(self, above: _Above, definitions: dict[str, Typed]) -> _Above:
        conditions = tuple(
            _Condition(substituted(each.expression, definitions), each.text) for each in above.conditions
        )
        newest = above.newest
        if newest is not None:
            newest = replace(newest, expression=substituted(newest.expression, definitions))
        return replace(above, conditions=conditions, newest=newest)

    def _limit(self, source: Plan, count: int, above: _Above, *, at_random: bool) -> None:
        word = "sample" if at_random else "take"
        stopped = replace(above, limit=None, newest=None).keeping(lambda _: False, f"it comes after {word}")
        # A condition in between may need all rows of this limit to fill the limit above.
        wanted = count if above.limit is None or above.conditions else min(count, above.limit)
        limit = None if at_random else wanted
        self.visit(source, _Above((), limit, stopped.stopped, by_path=above.by_path))

    def _match(self, plan: Match, above: _Above) -> None:
        above = replace(above.without_limit("a join looks at all rows"), by_path=False)
        left_ids, right_ids = plan.left_columns.keys(), plan.right_columns.keys()
        left_open = plan.kind in {"inner", "leftouter", "leftsemi", "leftanti"}
        right_open = plan.kind in {"inner", "innerunique", "rightouter", "rightsemi", "rightanti"}
        keys = frozenset(str(one.value) for one, _ in plan.pairs)
        why = f"a {plan.kind} join lets rows through that do not pass it" if not left_open else "of the other side"

        def to_left(each: Typed) -> bool:
            # innerunique keeps one row per key, so only conditions on the keys may be applied before it.
            return each.refs <= left_ids and (left_open or (plan.kind == "innerunique" and each.refs <= keys))

        self.visit(plan.left, above.keeping(to_left, why))
        self.visit(plan.right, above.keeping(lambda each: right_open and each.refs <= right_ids, "of the other side"))

    def _scan(self, plan: Scan, above: _Above) -> Pushed:
        pushed = Pushed(notes=list(above.stopped), by_path=above.by_path)
        parts: list[dict[str, Any]] = []
        exact = True

        def column_of(identity: str) -> str | None:
            name = plan.columns.get(identity)
            return name if name is not None and self._has_bounds(plan, name) else None

        for each in above.conditions:
            try:
                part = prunable(each.expression, column_of, self._known)
            except Unprunable as reason:
                exact = False
                pushed.notes.append(Note(each.text, reached=False, why=str(reason)))
                continue
            exact = exact and part.exact
            if part.where is not None:
                parts.append(part.where)
            why = "" if part.exact else "files are left out by it, rows are tested again"
            pushed.notes.append(Note(each.text, reached=True, why=why))
        pushed.where = conjunction(parts)
        if above.limit is not None:
            if exact:
                pushed.limit = above.limit
                pushed.notes.append(Note(f"take {above.limit}", reached=True))
            else:
                pushed.notes.append(Note(f"take {above.limit}", reached=False, why=_TESTED))
        if above.newest is not None:
            key = above.newest.expression
            name = column_of(str(key.value)) if key.op == "column" else None
            if name is None:
                pushed.notes.append(above.newest.missed("an order is made of all rows"))
            elif above.conditions:
                pushed.notes.append(above.newest.missed(_TESTED))
            else:
                pushed.newest = (name, above.newest.count)
                pushed.notes.append(Note(f"take {above.newest.count}", reached=True, why="the newest files are read"))
        return pushed


def _conjuncts(condition: Typed) -> list[Typed]:
    if condition.op == "and":
        return [part for each in condition.arguments for part in _conjuncts(each)]
    return [condition]
