"""The clauses of a MERGE, with their names resolved to columns of the target or of the source.

Conditions and values are SQL of DuckDB, which joins the rows. A name may have the alias of its table in front. Names
are quoted by backticks or double quotes, and text by single quotes, as in predicates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from lazydelta.errors import OptionError, PredicateError, UnknownColumnError
from lazydelta.predicates.sql.sqlglot_sql import sql_of, syntax_tree
from lazydelta.protocol.schema import TableSchema

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

__all__ = [
    "MERGE_TIME",
    "Action",
    "BoundClause",
    "Bounds",
    "Kind",
    "MergeClause",
    "MergeNames",
    "Sql",
    "assignments",
    "canonical",
    "quoted",
]

MERGE_TIME = "lazydelta_now"
"""The variable of DuckDB with the time of a merge, which is the same for all of its rows and attempts."""
_NOW = frozenset({"now", "current_timestamp", "get_current_timestamp", "transaction_timestamp", "localtimestamp"})
_TODAY = frozenset({"today", "current_date"})

Kind = Literal["matched", "not matched", "not matched by source"]
Action = Literal["update", "delete", "insert"]
Side = Literal["t", "s"]

TARGET: Side = "t"
SOURCE: Side = "s"
# The tables that the expressions of a clause may name.
_SIDES: Mapping[str, tuple[Side, ...]] = {
    "matched": (TARGET, SOURCE),
    "not matched": (SOURCE,),
    "not matched by source": (TARGET,),
}
_TABLES = {TARGET: "target", SOURCE: "source"}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


@dataclass(frozen=True, slots=True)
class MergeClause:
    """What happens to some rows: ``when matched``, ``not matched`` (by the target) or ``not matched by source``.

    ``values`` maps columns of the target to SQL; None means all columns of the source but ``left_out``. Of several
    clauses of one kind, the first whose predicate is true applies.
    """

    kind: Kind
    action: Action
    predicate: str | None = None
    values: Mapping[str, str] | None = None
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        condition = "" if self.predicate is None else f" AND {self.predicate}"
        return f"WHEN {self.kind.upper()}{condition} THEN {self.action.upper()}"


@dataclass(frozen=True, slots=True)
class Sql:
    """An expression in DuckDB's SQL over the tables ``t`` and ``s``, and the target's columns that it uses."""

    text: str
    target: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class BoundClause:
    """A clause whose names are resolved. ``number`` is its place among all clauses."""

    number: int
    clause: MergeClause
    condition: Sql | None
    values: Mapping[str, Sql]


@dataclass(frozen=True, slots=True)
class Bounds:
    """A comparison that every match satisfies: a column of the target with a value of the source."""

    column: str
    op: str
    value: str


class MergeNames:
    """Resolves names in the SQL of a MERGE.

    ``table`` is the target after columns were added to it, ``source`` the schema of the rows to merge.
    """

    def __init__(
        self, table: TableSchema, source: pa.Schema, target_alias: str | None, source_alias: str | None
    ) -> None:
        self._columns: dict[Side, dict[str, str]] = {
            TARGET: {each.name.lower(): each.name for each in table.fields},
            SOURCE: {name.lower(): name for name in source.names},
        }
        if len(self._columns[SOURCE]) < len(source):
            message = f"The source has columns whose names differ by case alone, or not at all: {source.names}"
            raise OptionError(message, hint="rename or drop one of them")
        given: dict[Side, str | None] = {TARGET: target_alias, SOURCE: source_alias}
        if target_alias is not None and source_alias is not None and target_alias.lower() == source_alias.lower():
            raise OptionError(
                f"Source and target have the same alias {source_alias!r}", hint="use two different aliases"
            )
        self._aliases: dict[str, Side] = {alias.lower(): side for side, alias in given.items() if alias}
        for side, name in _TABLES.items():
            self._aliases.setdefault(name, side)

    def bound(self, number: int, clause: MergeClause) -> BoundClause:
        """Resolve the names of a clause."""
        sides = _SIDES[clause.kind]
        condition = None if clause.predicate is None else self.sql(clause.predicate, sides)
        values: dict[str, Sql] = {}
        for name, text in self.assigned(clause).items():
            if name in values:
                raise OptionError(f"The column {name!r} gets two values in {clause}", hint="name each once")
            values[name] = Sql(f"{SOURCE}.{quoted(text[0])}") if isinstance(text, tuple) else self.sql(text, sides)
        if clause.action != "delete" and not values:
            raise OptionError(f"The clause {clause} sets no columns", hint="pass columns and their values")
        return BoundClause(number, clause, condition, values)

    def assigned(self, clause: MergeClause) -> dict[str, str | tuple[str]]:
        """Return the target's columns that a clause sets, with SQL or, in a tuple, the name of a source column."""
        if clause.action == "delete":
            return {}
        if clause.values is None:
            left_out = {each.lower() for each in clause.left_out}
            # As in Delta-Spark, other columns of the source serve conditions alone.
            return {
                self._columns[TARGET][low]: (name,)
                for low, name in self._columns[SOURCE].items()
                if low not in left_out and low in self._columns[TARGET]
            }
        named: dict[str, str | tuple[str]] = {}
        for key, text in clause.values.items():
            column = self._assigned(key)
            if column in named:
                raise OptionError(f"The column {column!r} gets two values in {clause}", hint="name each once")
            named[column] = text
        return named

    def added(self, clauses: Sequence[MergeClause]) -> list[str]:
        """Return the source's columns that clauses set and that the target lacks."""
        found: dict[str, None] = {}
        for clause in clauses:
            if clause.action == "delete":
                continue
            left_out = {each.lower() for each in clause.left_out}
            keys = clause.values
            names = self._columns[SOURCE].values() if keys is None else [self._bare(each) for each in keys]
            for name in names:
                low = name.lower()
                if low in self._columns[SOURCE] and low not in self._columns[TARGET] and low not in left_out:
                    found[self._columns[SOURCE][low]] = None
        return list(found)

    def _assigned(self, key: str) -> str:
        name = self._bare(key)
        if name.lower() not in self._columns[TARGET]:
            raise self._unknown(name, TARGET)
        return self._columns[TARGET][name.lower()]

    def _bare(self, key: str) -> str:
        """Return the column that a clause sets, without quotes and alias."""
        if key.lower() in self._columns[TARGET]:
            return key
        parts = [each.name for each in _column_parts(syntax_tree(key), key)]
        if len(parts) > 1 and self._aliases.get(parts[0].lower()) == TARGET:
            parts = parts[1:]
        if len(parts) > 1:
            message = f"A clause sets {key!r}, and only whole columns can be set"
            raise OptionError(message, hint="set the struct with all of its fields")
        return parts[0]

    def sql(self, text: Any, sides: Sequence[Side] = (TARGET, SOURCE)) -> Sql:
        """Return an expression with its names resolved to the tables that it may use."""
        if not isinstance(text, str):
            message = f"A condition or value of a merge is a SQL string, not {text!r}"
            raise OptionError(message, hint="write literals as in SQL: '0', \"'text'\", 'true'")
        return self._sql(syntax_tree(text), text, sides)

    def _sql(self, tree: Expr, text: str, sides: Sequence[Side]) -> Sql:
        from sqlglot import exp  # noqa: PLC0415 - loaded with the tree

        if next(tree.find_all(exp.Query), None) is not None:
            raise PredicateError(f"{text!r} contains a subquery", hint="use expressions over the two tables' columns")
        used: set[str] = set()

        def resolved(node: Expr) -> Expr:
            name = str(node.this).lower() if isinstance(node, exp.Anonymous) else ""
            if isinstance(node, exp.CurrentTimestamp) or name in _NOW:
                return _variable(MERGE_TIME)
            if isinstance(node, exp.CurrentDate) or name in _TODAY:
                return exp.cast(_variable(MERGE_TIME), "DATE")
            if not isinstance(node, exp.Column):
                return node
            side, parts = self._resolved(node, text, sides)
            if side == TARGET:
                used.add(parts[0])
            found: Expr = exp.column(_identifier(parts[0]), table=exp.to_identifier(side))
            for each in parts[1:]:
                found = exp.Dot(this=found, expression=_identifier(each))
            return found

        whole = tree.copy().transform(resolved)
        return Sql(sql_of(whole, duckdb=True), frozenset(used))

    def _resolved(self, node: Expr, text: str, sides: Sequence[Side]) -> tuple[Side, list[str]]:
        parts = [each.name for each in _column_parts(node, text)]
        if len(parts) > 1 and parts[0].lower() in self._aliases:
            side = self._aliases[parts[0].lower()]
            low = parts[1].lower()
            if low in self._columns[side]:
                if side not in sides:
                    message = f"{text!r} names {'.'.join(parts)}, but rows of this clause have no {_TABLES[side]}"
                    raise PredicateError(message, hint=f"use columns of the {_TABLES[sides[0]]}")
                return side, [self._columns[side][low], *parts[2:]]
            raise self._unknown(parts[1], side)
        low = parts[0].lower()
        found = [side for side in sides if low in self._columns[side]]
        if len(found) > 1:
            message = f"The column {parts[0]!r} in {text!r} is ambiguous: target and source have it"
            raise PredicateError(message, hint="prefix it with the alias of its table")
        if not found:
            raise self._unknown(parts[0], *sides)
        return found[0], [self._columns[found[0]][low], *parts[1:]]

    def _unknown(self, name: str, *sides: Side) -> UnknownColumnError:
        tables = " nor the ".join(_TABLES[each] for each in sides)
        known = ", ".join(name for side in sides for name in list(self._columns[side].values())[:20])
        one = len(sides) == 1
        message = f"The {tables} has no column {name!r}" if one else f"Neither the {tables} has a column {name!r}"
        return UnknownColumnError(message, hint=f"the columns are: {known}")

    # --- what a match implies for the target's files

    def implied(self, predicate: str) -> Iterator[Bounds | str]:
        """Yield what each match of a merge predicate satisfies.

        These are comparisons of a column of the target with a value of the source, and conditions on the target alone,
        as SQL for `parse_predicate`.
        """
        from sqlglot import exp  # noqa: PLC0415 - as above

        ops: dict[type[Any], str] = {exp.EQ: "=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
        for part in _conjuncts(syntax_tree(predicate)):
            sides = {self._resolved(each, predicate, (TARGET, SOURCE))[0] for each in part.find_all(exp.Column)}
            if sides == {TARGET}:
                yield self._of_target(part, predicate, (TARGET, SOURCE))
            elif type(part) in ops:
                for one, other, op in (
                    (part.this, part.expression, ops[type(part)]),
                    (part.expression, part.this, _FLIPPED[ops[type(part)]]),
                ):
                    bounds = self._bounds(one, other, op, predicate)
                    if bounds is not None:
                        yield bounds

    def _bounds(self, one: Expr, other: Expr, op: str, text: str) -> Bounds | None:
        from sqlglot import exp  # noqa: PLC0415 - as above

        if not isinstance(one, exp.Column):
            return None
        side, parts = self._resolved(one, text, (TARGET, SOURCE))
        others = {self._resolved(each, text, (TARGET, SOURCE))[0] for each in other.find_all(exp.Column)}
        if side != TARGET or others != {SOURCE}:
            return None
        return Bounds(".".join(f"`{each}`" for each in parts), op, self._sql(other, text, (SOURCE,)).text)

    def of_target(self, text: str) -> str:
        """Return a condition on the target alone as SQL for `parse_predicate`."""
        return self._of_target(syntax_tree(text), text, (TARGET,))

    def _of_target(self, tree: Expr, text: str, sides: Sequence[Side]) -> str:
        from sqlglot import exp  # noqa: PLC0415 - as above

        def bare(node: Expr) -> Expr:
            if not isinstance(node, exp.Column):
                return node
            _, parts = self._resolved(node, text, sides)
            found: Expr = exp.column(_identifier(parts[0]))
            for each in parts[1:]:
                found = exp.Dot(this=found, expression=_identifier(each))
            return found

        return sql_of(tree.copy().transform(bare), duckdb=False)


def _column_parts(tree: Expr, text: str) -> list[Expr]:
    from sqlglot import exp  # noqa: PLC0415 - as above

    if not isinstance(tree, exp.Column):
        raise OptionError(f"{text!r} is not a column of the target", hint="use a column name, in backticks if needed")
    return list(tree.parts)


def _variable(name: str) -> Expr:
    from sqlglot import exp  # noqa: PLC0415 - as above

    return exp.Anonymous(this="getvariable", expressions=[exp.Literal.string(name)])


def _identifier(name: str) -> Expr:
    from sqlglot import exp  # noqa: PLC0415 - as above

    return exp.to_identifier(name, quoted=True)


def assignments(text: str) -> dict[str, str]:
    """Return the values of ``A = B, C = D`` by column."""
    from sqlglot import exp  # noqa: PLC0415 - as above

    # A row of conditions: a comma does not end one inside a function.
    tree = syntax_tree(f"struct({text})")
    found: dict[str, str] = {}
    for each in tree.expressions:
        if not isinstance(each, exp.EQ) or not isinstance(each.this, exp.Column):
            raise PredicateError(f"{text!r} is not of the form COLUMN = VALUE, …", hint="write a = source.a, b = 0")
        found[sql_of(each.this, duckdb=False)] = sql_of(each.expression, duckdb=False)
    return found


def canonical(text: Any) -> str:
    """Return a condition with the spacing and keywords that delta-rs records."""
    return syntax_tree(text).sql(dialect="spark") if isinstance(text, str) else str(text)


def quoted(name: str) -> str:
    """Return a name as an identifier of DuckDB."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _conjuncts(tree: Expr) -> Iterator[Expr]:
    from sqlglot import exp  # noqa: PLC0415 - as above

    if isinstance(tree, exp.Paren):
        yield from _conjuncts(tree.this)
    elif isinstance(tree, exp.And):
        yield from _conjuncts(tree.this)
        yield from _conjuncts(tree.expression)
    else:
        yield tree
