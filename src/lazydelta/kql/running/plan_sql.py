"""A plan as SQL for DuckDB, with only the columns that somebody uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lazydelta.kql.meaning.kinds import common_kind
from lazydelta.kql.meaning.query_plan import (
    Aggregate,
    Attach,
    Filter,
    Limit,
    Match,
    Merge,
    Order,
    OrderKey,
    Plan,
    Relation,
    Rows,
    Scan,
)
from lazydelta.kql.meaning.typed import Typed, as_kind

__all__ = ["PlanSql", "output_expression"]

_NOTHING = "NULL AS nothing"
_OUTER = {"leftouter": "LEFT", "rightouter": "RIGHT", "fullouter": "FULL"}


def output_expression(kind: str, identity: str) -> str:
    """Return SQL of a column as it leaves a query."""
    if kind == "timespan":
        return f"CAST({identity} // 10 AS BIGINT)"
    if kind == "decimal":
        return identity
    types = {"bool": "BOOLEAN", "int": "INTEGER", "long": "BIGINT", "real": "DOUBLE", "datetime": "TIMESTAMP"}
    return f"CAST({identity} AS {types.get(kind, 'VARCHAR')})"


class PlanSql:
    """Writes the SQL of one plan; ``scans`` is filled with the columns that each scan must deliver.

    ``scan_column`` writes how a column of a table becomes one of Kusto's types.
    """

    def __init__(self, scan_column: Callable[[Scan, str], str]) -> None:
        self._scan_column = scan_column
        self.scans: dict[Scan, list[str]] = {}

    def relation(self, relation: Relation) -> str:
        """Return a query whose columns are those of the relation, in order."""
        inner = self._sql(relation.plan, frozenset(each.identity for each in relation.columns))
        parts = (
            f"{output_expression(each.kind, each.identity)} AS o{index}" for index, each in enumerate(relation.columns)
        )
        return f"SELECT {', '.join(parts)} FROM ({inner})"

    def inner(self, relation: Relation, expressions: Iterable[str]) -> str:
        """Return a query for expressions over the relation's columns, as they are held inside."""
        source = self._sql(relation.plan, frozenset(each.identity for each in relation.columns))
        return f"SELECT {', '.join(expressions)} FROM ({source})"

    def _sql(self, plan: Plan, needed: frozenset[str]) -> str:
        match plan:
            case Scan():
                used = [each for each in plan.columns if each in needed]
                self.scans[plan] = used
                return f"SELECT {_list(self._scan_column(plan, each) for each in used)} FROM {plan.view}"
            case Rows(sql=sql):
                return sql
            case Filter(source=source, condition=condition):
                return f"SELECT * FROM ({self._sql(source, needed | condition.refs)}) WHERE {condition.sql}"
            case Attach(source=source, columns=columns):
                made = {identity: each for identity, each in columns.items() if identity in needed}
                inner = self._sql(source, _refs(made.values()) | (needed - columns.keys()))
                more = "".join(f", {each.sql} AS {identity}" for identity, each in made.items())
                return f"SELECT *{more} FROM ({inner})" if made else inner
            case Aggregate():
                return self._aggregate(plan, needed)
            case Order(source=source, keys=keys):
                inner = self._sql(source, needed | _refs(key.expression for key in keys))
                return f"SELECT * FROM ({inner}) ORDER BY {', '.join(map(_order, keys))}"
            case Limit(source=source, count=count, at_random=at_random):
                if at_random and count:
                    return f"SELECT * FROM ({self._sql(source, needed)}) USING SAMPLE reservoir({count} ROWS)"
                inner = self._sql(source, needed)
                ordered = isinstance(source, Order)
                return f"{inner} LIMIT {count}" if ordered else f"SELECT * FROM ({inner}) LIMIT {count}"
            case Match():
                return self._match(plan, needed)
            case Merge(legs=legs):
                used = [identity for identity in legs[0][1] if identity in needed]
                return " UNION ALL ".join(self._leg(each, chosen, used) for each, chosen in legs)

    def _leg(self, source: Plan, chosen: dict[str, Typed], columns: list[str]) -> str:
        used = [(identity, chosen[identity]) for identity in columns]
        inner = self._sql(source, _refs(each for _, each in used))
        return f"SELECT {_list(f'{each.sql} AS {identity}' for identity, each in used)} FROM ({inner})"

    def _aggregate(self, plan: Aggregate, needed: frozenset[str]) -> str:
        made = {identity: each for identity, each in plan.aggregates.items() if identity in needed}
        used = _refs(plan.keys.values()).union(*(refs for _, refs in made.values()))
        parts = [f"{each.sql} AS {identity}" for identity, each in plan.keys.items()]
        parts += [f"{sql} AS {identity}" for identity, (sql, _) in made.items()]
        groups = ", ".join(str(index + 1) for index in range(len(plan.keys)))
        inner = self._sql(plan.source, used)
        if not parts:
            return f"SELECT count(*) AS nothing FROM ({inner})"
        return f"SELECT {', '.join(parts)} FROM ({inner})" + (f" GROUP BY {groups}" if groups else "")

    def _match(self, plan: Match, needed: frozenset[str]) -> str:
        left_keys, right_keys = _refs(one for one, _ in plan.pairs), _refs(other for _, other in plan.pairs)
        left = self._sql(plan.left, (needed & plan.left_columns.keys()) | left_keys)
        right = self._sql(plan.right, (needed & plan.right_columns.keys()) | right_keys)
        condition = " AND ".join(_equal(one, other) for one, other in plan.pairs)
        if plan.kind == "innerunique":
            # One row of the left side for each key, the first.
            left = f"SELECT DISTINCT ON ({', '.join(one.sql for one, _ in plan.pairs)}) * FROM ({left})"
        if plan.kind in {"leftsemi", "leftanti"}:
            return f"SELECT * FROM ({left}) AS l {plan.kind[4:].upper()} JOIN ({right}) AS r ON {condition}"
        if plan.kind in {"rightsemi", "rightanti"}:
            return f"SELECT * FROM ({right}) AS r {plan.kind[5:].upper()} JOIN ({left}) AS l ON {condition}"
        sides = _OUTER.get(plan.kind, "INNER")
        kinds = plan.left_columns | plan.right_columns
        shown = (self._filled(each, kinds[each], outer=sides != "INNER") for each in kinds if each in needed)
        return f"SELECT {_list(shown)} FROM ({left}) AS l {sides} JOIN ({right}) AS r ON {condition}"

    def _filled(self, identity: str, kind: str, *, outer: bool) -> str:
        # Where a row has no partner, a text is empty: it is never null.
        return f"coalesce({identity}, '') AS {identity}" if outer and kind == "string" else identity


def _equal(one: Typed, other: Typed) -> str:
    kind = common_kind((one.kind, other.kind)) or one.kind
    return f"{as_kind(one, kind)} = {as_kind(other, kind)}"


def _order(key: OrderKey) -> str:
    direction = "DESC" if key.descending else "ASC"
    if key.expression.kind == "real":
        # NaN goes with the nulls, between them and the numbers.
        rank = f"CASE WHEN {key.expression.sql} IS NULL THEN 2 WHEN isnan({key.expression.sql}) THEN 1 ELSE 0 END"
        return f"{rank} {'DESC' if key.nulls_first else 'ASC'}, {key.expression.sql} {direction}"
    return f"{key.expression.sql} {direction} NULLS {'FIRST' if key.nulls_first else 'LAST'}"


def _refs(expressions: Iterable[Typed]) -> frozenset[str]:
    return frozenset[str]().union(*(each.refs for each in expressions))


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts) or _NOTHING
