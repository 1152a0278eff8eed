"""Translate a plan to SQL for DuckDB, with only the columns that are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

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
    Plan,
    Relation,
    Rows,
    Scan,
    Staged,
    Window,
    order_sql,
)
from lazydelta.kql.binding.types import SQL_TYPES, Typed, as_kind, common_kind

__all__ = ["PlanSql", "Stage", "output_expression"]

_NOTHING = "NULL AS nothing"
_OUTER = {"leftouter": "LEFT", "rightouter": "RIGHT", "fullouter": "FULL"}


def output_expression(kind: str, identity: str) -> str:
    """Return SQL for a result column of a query."""
    if kind == "timespan":
        return f"CAST({identity} // 10 AS BIGINT)"
    if kind == "decimal":
        return identity
    types = {"bool": "BOOLEAN", "int": "INTEGER", "long": "BIGINT", "real": "DOUBLE", "datetime": "TIMESTAMP"}
    return f"CAST({identity} AS {types.get(kind, 'VARCHAR')})"


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a query that Python computes: the SQL of its source, written by ``writer``, and the columns of both."""

    plan: Staged
    writer: PlanSql
    sql: str
    kept: tuple[str, ...]


class PlanSql:
    """Writes the SQL of one plan, and fills ``scans`` with the columns that each scan must return.

    ``stages`` are the parts that Python computes, each with a writer of its own.

    ``scan_column`` writes the conversion of a table column to its Kusto type; ``native_list`` writes that of an array
    to a list of another type, and is None where the elements need JSON.
    """

    def __init__(
        self, scan_column: Callable[[Scan, str], str], native_list: Callable[[Scan, str, str], str | None]
    ) -> None:
        self._scan_column = scan_column
        self._native_list = native_list
        self.scans: dict[Scan, list[str]] = {}
        self.stages: list[Stage] = []

    def relation(self, relation: Relation) -> str:
        """Return a query with the columns of the relation, in order."""
        inner = self._sql(relation.plan, frozenset(each.identity for each in relation.columns))
        parts = (
            f"{output_expression(each.kind, each.identity)} AS o{index}" for index, each in enumerate(relation.columns)
        )
        return f"SELECT {', '.join(parts)} FROM ({inner})"

    def inner(self, relation: Relation, expressions: Iterable[str]) -> str:
        """Return a query for expressions over the relation's columns in their internal form."""
        source = self._sql(relation.plan, frozenset(each.identity for each in relation.columns))
        return f"SELECT {', '.join(expressions)} FROM ({source})"

    def _sql(  # noqa: C901, PLR0912 - one case per node
        self, plan: Plan, needed: frozenset[str]
    ) -> str:
        match plan:
            case Scan():
                lists = {each for each in plan.columns if f"{each}_" in needed}
                self.scans[plan] = [each for each in plan.columns if each in needed or each in lists]
                parts = [self._scan_column(plan, each) for each in plan.columns if each in needed]
                parts += [f"{each} AS {each}_" for each in plan.columns if each in lists]
                return f"SELECT {_list(parts)} FROM {plan.view}"
            case Rows(sql=sql):
                return sql
            case Filter(source=source, condition=condition):
                return f"SELECT * FROM ({self._sql(source, needed | condition.refs)}) WHERE {condition.sql}"
            case Attach(source=source, columns=columns) | Window(source=source, columns=columns):
                made = {identity: each for identity, each in columns.items() if identity in needed}
                inner = self._sql(source, _refs(made.values()) | (needed - columns.keys()))
                more = "".join(f", {each.sql} AS {identity}" for identity, each in made.items())
                return f"SELECT *{more} FROM ({inner})" if made else inner
            case Aggregate():
                return self._aggregate(plan, needed)
            case Order(source=source, keys=keys):
                inner = self._sql(source, needed | _refs(key.expression for key in keys))
                if not keys:
                    return inner
                return f"SELECT * FROM ({inner}) ORDER BY {order_sql(keys)}"
            case Limit(source=source, count=count, by=by, keys=keys) if by:
                inner = self._sql(source, needed | {*by} | _refs(key.expression for key in keys))
                order = f" ORDER BY {order_sql(keys)}" if keys else ""
                number = f"row_number() OVER (PARTITION BY {', '.join(by)}{order})"
                return f"SELECT * FROM ({inner}) QUALIFY {number} <= {count}"
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
            case Expand():
                return self._expand(plan, needed)
            case Grid():
                return self._grid(plan)
            case Staged():
                return self._staged(plan, needed)

    def _native(self, source: Plan, elements: Typed) -> Typed | None:
        """Return the elements of a table's array as they are in the table, or None if they need JSON."""
        match elements.arguments:
            case (Typed(op="column", sql=identity),):
                pass
            case _:
                return None
        while not isinstance(source, Scan):
            match source:
                case Filter(source=source):
                    pass
                case Attach(source=below, columns=columns) | Window(source=below, columns=columns) if (
                    identity not in columns
                ):
                    source = below
                case _:
                    return None
        written = self._native_list(source, identity, elements.kind) if identity in source.columns else None
        if written is None:
            return None
        # The scan has the array under this name beside, or instead of, its JSON.
        name = f"{identity}_"
        listed = f"CASE WHEN {name} IS NULL THEN [NULL] ELSE {written.format(name)} END"
        most = "" if elements.value is None else f"[:{elements.value}]"
        return replace(elements, sql=f"({listed}){most}", arguments=(), refs=frozenset({name}))

    def _expand(self, plan: Expand, needed: frozenset[str]) -> str:
        made = {*plan.lists, plan.index}
        lists = {identity: self._native(plan.source, each) or each for identity, each in plan.lists.items()}
        inner = self._sql(plan.source, (needed - made) | _refs(lists.values()))
        parts = [
            # A string is never null, also where another list is longer.
            f"coalesce(unnest({each.sql}), '') AS {identity}"
            if each.kind == "string"
            else f"unnest({each.sql}) AS {identity}"
            for identity, each in lists.items()
        ]
        if plan.index is not None:
            longest = ", ".join(f"coalesce(len({each.sql}), 0)" for each in lists.values())
            parts.append(f"unnest(range(greatest({longest}, 0))) AS {plan.index}")
        return f"SELECT *, {', '.join(parts)} FROM ({inner})"

    def _grid(self, plan: Grid) -> str:
        inner = self._sql(plan.source, frozenset({*plan.source.keys, *plan.source.aggregates}))
        keys = ", ".join(plan.keys)
        groups = (
            f"SELECT DISTINCT {keys} FROM a" if keys else f"SELECT 1{'' if plan.is_nonempty else ' FROM a LIMIT 1'}"
        )
        bins = f"SELECT unnest(generate_series({plan.first}, {plan.last})) AS i FROM (SELECT 1)"
        same = "".join(f" AND a.{each} IS NOT DISTINCT FROM g.{each}" for each in plan.keys)
        axis, element = plan.axis
        parts = [f"g.{each}" for each in plan.keys]
        parts += [f"to_json(list({sql} ORDER BY i)) AS {identity}" for identity, sql in plan.values.items()]
        parts.append(f"to_json(list({element} ORDER BY i)) AS {axis}")
        grouped = f" GROUP BY {', '.join(f'g.{each}' for each in plan.keys)}" if keys else " HAVING count(*) > 0"
        return (
            f"WITH a AS MATERIALIZED ({inner}) SELECT {', '.join(parts)} FROM ({groups}) AS g CROSS JOIN ({bins}) AS b"
            f" LEFT JOIN a ON a.{plan.bin} = b.i{same}{grouped}"
        )

    def _staged(self, plan: Staged, needed: frozenset[str]) -> str:
        writer = PlanSql(self._scan_column, self._native_list)
        kept = tuple(sorted(needed - plan.outputs.keys())) if plan.keeps else ()
        inner = writer._sql(plan.source, frozenset(kept) | plan.inputs.keys())
        taken = [f"{_given(kind, each)} AS i_{each}" for each, kind in plan.inputs.items()]
        # DuckDB's own types, such as JSON and UUID, come back from Arrow as they were sent.
        taken += [f"{each} AS k_{each}" for each in kept]
        self.stages.append(Stage(plan, writer, f"SELECT {_list(taken)} FROM ({inner})", kept))
        made = [f"{_received(kind, f'o_{each}')} AS {each}" for each, kind in plan.outputs.items()]
        made += [f"k_{each} AS {each}" for each in kept]
        return f"SELECT {_list(made)} FROM {plan.view}"

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
        condition = " AND ".join(_equal(one, other) for one, other in plan.pairs) or "TRUE"
        if plan.kind == "innerunique":
            # Keep the first row of the left side for each key.
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
        # For an unmatched row a string is empty, because strings are never null.
        return f"coalesce({identity}, '') AS {identity}" if outer and kind == "string" else identity


def _given(kind: str, identity: str) -> str:
    return f"CAST({identity} AS VARCHAR)" if kind in {"dynamic", "guid"} else identity


def _received(kind: str, name: str) -> str:
    if kind == "string":
        return f"coalesce({name}, '')"
    return f"CAST({name} AS {SQL_TYPES[kind]})" if kind in SQL_TYPES and kind != "decimal" else name


def _equal(one: Typed, other: Typed) -> str:
    kind = common_kind((one.kind, other.kind)) or one.kind
    return f"{as_kind(one, kind)} = {as_kind(other, kind)}"


def _refs(expressions: Iterable[Typed]) -> frozenset[str]:
    return frozenset[str]().union(*(each.refs for each in expressions))


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts) or _NOTHING
