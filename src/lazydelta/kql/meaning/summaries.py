"""``summarize``: aggregates, their names, and what they are over no rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lazydelta.kql.language import kql_syntax as syntax
from lazydelta.kql.meaning.kinds import to_text
from lazydelta.kql.meaning.query_session import Session
from lazydelta.kql.meaning.scalars import Scalars
from lazydelta.kql.meaning.typed import Typed, as_kind, column

__all__ = ["SEVERAL", "Aggregates"]

SEVERAL = frozenset({"arg_max", "arg_min", "percentiles", "take_any"})
"""Aggregates that may make several columns."""

_ADDED = {"int": "long", "long": "long", "real": "real", "decimal": "decimal", "timespan": "timespan"}
_ORDERED = frozenset({"bool", "int", "long", "real", "decimal", "string", "datetime", "timespan"})
_COUNTS: dict[str, tuple[int, int]] = {
    "arg_max": (2, 64),
    "arg_min": (2, 64),
    "avg": (1, 1),
    "avgif": (2, 2),
    "count": (0, 1),
    "count_distinct": (1, 1),
    "count_distinctif": (2, 2),
    "countif": (1, 1),
    "dcount": (1, 2),
    "dcountif": (2, 3),
    "make_list": (1, 2),
    "make_list_if": (2, 3),
    "make_set": (1, 2),
    "make_set_if": (2, 3),
    "max": (1, 1),
    "maxif": (2, 2),
    "min": (1, 1),
    "minif": (2, 2),
    "percentile": (2, 2),
    "percentiles": (2, 64),
    "stdev": (1, 1),
    "stdevif": (2, 2),
    "sum": (1, 1),
    "sumif": (2, 2),
    "take_any": (1, 64),
    "take_anyif": (2, 2),
    "variance": (1, 1),
    "varianceif": (2, 2),
}


class Aggregates:
    """Collects the aggregates of one ``summarize``.

    ``scalars`` binds their arguments; ``collected`` is what the plan's node needs: SQL by identity.
    """

    def __init__(self, session: Session, scalars: Scalars, others: Callable[[], list[Typed]]) -> None:
        self._session = session
        self._scalars = scalars
        # The columns that a star stands for: all that are no keys of the groups.
        self._others = others
        self.collected: dict[str, tuple[str, frozenset[str]]] = {}

    def columns(self, node: syntax.Call) -> list[Typed]:
        """Return the columns that a call makes: most make one."""
        self._check(node)
        if node.name in {"arg_max", "arg_min"}:
            return self._argument_of_extreme(node)
        if node.name == "take_any" and (len(node.arguments) > 1 or isinstance(node.arguments[0], syntax.Star)):
            return self._row(node, self._listed(node.arguments), None)
        if node.name == "percentiles":
            value = self._scalars.bind(node.arguments[0])
            return [self._percentile(node, value, each) for each in node.arguments[1:]]
        return [self.one(node)]

    def one(self, node: syntax.Call) -> Typed:
        """Return the column of an aggregate inside an expression."""
        self._check(node)
        if node.name in {"arg_max", "arg_min", "percentiles"}:
            hint = "let it stand alone, and extend by the rest"
            raise self._session.error(
                node.at, f"{node.name}() makes several columns and is no part of an expression", hint
            )
        if node.name == "count":
            if node.arguments and not isinstance(node.arguments[0], syntax.Star):
                return self._add("long", "count(*)", [], self._named("count", self._scalars.bind(node.arguments[0])))
            return self._add("long", "count(*)", [], "count_")
        if node.name == "countif":
            condition = self._scalars.condition(node.arguments[0])
            return self._add(
                "long", f"count(*) FILTER (WHERE {condition.sql})", [condition], self._named("countif", condition)
            )
        value = self._scalars.bind(node.arguments[0])
        if node.name == "percentile":
            return self._percentile(node, value, node.arguments[1])
        return self._simple(node, value)

    def _simple(self, node: syntax.Call, value: Typed) -> Typed:
        plain = node.name.removesuffix("if").removesuffix("_")
        used, conditions = [value], []
        if plain != node.name:
            condition = self._scalars.condition(node.arguments[1])
            used.append(condition)
            conditions = [condition.sql]
        if plain in {"make_set", "make_list"}:
            size = node.arguments[len(used) :]
            kind, sql = "dynamic", self._list(plain, value, conditions, size[0] if size else None)
        else:
            kind, sql = self._sql(node, plain, value, _filter(conditions))
        prefix = {"make_set": "set", "make_list": "list"}.get(plain, node.name)
        name = (value.name or "any_arg0") if plain == "take_any" else self._named(prefix, value)
        return self._add(kind, sql, used, name)

    def _sql(self, node: syntax.Call, plain: str, value: Typed, only: str) -> tuple[str, str]:
        if plain in {"dcount", "count_distinct"}:
            return "long", f"count(DISTINCT {value.sql}){only}"
        if plain in {"sum", "avg"}:
            kind = self._kind_of(node, value, _ADDED)
            if plain == "sum":
                zero = "0" if kind != "real" else "CAST(0 AS DOUBLE)"
                cast = "DECIMAL(38,6)" if kind == "decimal" else "DOUBLE" if kind == "real" else "BIGINT"
                total = f"sum({value.sql}){only}"
                return kind, f"coalesce({total if kind == 'decimal' else f'CAST({total} AS {cast})'}, {zero})"
            if kind == "timespan":
                return kind, f"CAST(avg({value.sql}){only} AS BIGINT)"
            return "real", f"coalesce(avg({as_kind(value, 'real')}){only}, CAST('nan' AS DOUBLE))"
        if plain in {"stdev", "variance"}:
            self._kind_of(node, value, dict.fromkeys(("int", "long", "real", "decimal"), "real"))
            function = {"stdev": "stddev_samp", "variance": "var_samp"}[plain]
            return "real", f"coalesce({function}({as_kind(value, 'real')}){only}, CAST(0 AS DOUBLE))"
        if plain in {"min", "max"}:
            kind = self._kind_of(node, value, {each: each for each in _ORDERED})
            sql = f"{plain}({value.sql}){only}"
            return kind, f"coalesce({sql}, '')" if kind == "string" else sql
        if value.kind == "string":
            return "string", f"coalesce(any_value(nullif({value.sql}, '')){only}, '')"
        return value.kind, f"any_value({value.sql}){only}"

    def _list(self, plain: str, value: Typed, conditions: list[str], size: syntax.Expression | None) -> str:
        element = to_text(value) if value.kind in {"datetime", "timespan"} else value.sql
        if value.kind == "real":
            element = f"kql_real_json({value.sql})"
        distinct = "DISTINCT " if plain == "make_set" else ""
        present = _filter([*conditions, f"{value.sql} IS NOT NULL"])
        if distinct and value.kind == "dynamic":
            # A set of arrays is one of what they hold.
            collected = f"list_distinct(flatten(list(kql_elements({element})){present}))"
        else:
            collected = f"list({distinct}{element}){present}"
        if size is not None:
            most = self._scalars.constant(size, "the size of a list", "long", "int").value
            collected = f"list_slice({collected}, 1, {most})"
        return f"coalesce(to_json({collected}), CAST('[]' AS JSON))"

    def _percentile(self, node: syntax.Call, value: Typed, percent: syntax.Expression) -> Typed:
        kinds = {"int": "long", "long": "long", "real": "real", "decimal": "real"}
        kind = self._kind_of(node, value, kinds | {"datetime": "datetime", "timespan": "timespan"})
        share = self._scalars.constant(percent, "a percentile", "long", "int", "real").value
        if not 0 <= share <= 100:  # noqa: PLR2004 - per cent
            raise self._session.error(percent.at, f"{share} is no percentile", "write a number from 0 to 100")
        number = value.sql if kind == value.kind else as_kind(value, kind)
        suffix = str(share).replace(".", "_")
        sql = f"quantile_disc({number}, CAST('{share / 100!r}' AS DOUBLE))"
        return self._add(kind, sql, [value], f"{self._named('percentile', value)}_{suffix}")

    def _argument_of_extreme(self, node: syntax.Call) -> list[Typed]:
        best = self._scalars.bind(node.arguments[0])
        self._kind_of(node, best, {each: each for each in _ORDERED})
        others = self._listed(node.arguments[1:], besides=best)
        extreme = f"{node.name.removeprefix('arg_')}_"
        named = [
            each if each.name else replace(each, name=f"{extreme}{best.name or ''}_arg{index + 1}")
            for index, each in enumerate(others)
        ]
        return self._row(node, [replace(best, name=best.name or extreme), *named], best)

    def _row(self, node: syntax.Call, values: list[Typed], best: Typed | None) -> list[Typed]:
        """Take several values from one and the same row of each group, packed so that they stay together."""
        packed = "struct_pack(" + ", ".join(f"f{index} := {each.sql}" for index, each in enumerate(values)) + ")"
        sql = f"first({packed})"
        if best is not None:
            # Where all are null there is no extreme, and any row will do.
            sql = f"coalesce({node.name}({packed}, {best.sql}), {sql})"
        whole = self._add("dynamic", sql, values, "row")
        return [_field(whole, index, each) for index, each in enumerate(values)]

    def _listed(self, arguments: tuple[syntax.Expression, ...], besides: Typed | None = None) -> list[Typed]:
        if any(isinstance(each, syntax.Star) for each in arguments):
            if len(arguments) > 1:
                raise self._session.error(arguments[0].at, "* stands alone: it is all columns")
            left_out = besides.value if besides is not None and besides.op == "column" else None
            return [each for each in self._others() if each.value != left_out]
        return [self._scalars.bind(each) for each in arguments]

    def _kind_of(self, node: syntax.Call, value: Typed, kinds: dict[str, str]) -> str:
        if value.kind not in kinds:
            raise self._session.error(node.at, f"{node.name}() of a {value.kind} is not defined", "convert it first")
        return kinds[value.kind]

    def _check(self, node: syntax.Call) -> None:
        least, most = _COUNTS[node.name]
        if not least <= len(node.arguments) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            message = f"{node.name}() takes {wanted} argument(s), not {len(node.arguments)}"
            raise self._session.error(node.at, message)

    def _named(self, prefix: str, value: Typed) -> str:
        return f"{prefix}_{value.name or ''}"

    def _add(self, kind: str, sql: str, used: list[Typed], name: str) -> Typed:
        identity = self._session.identity()
        self.collected[identity] = (sql, frozenset[str]().union(*(each.refs for each in used)))
        return column(identity, kind, name)


def _filter(conditions: list[str]) -> str:
    return f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""


def _field(whole: Typed, index: int, value: Typed) -> Typed:
    # Null of the whole is a group without rows, where a text is empty.
    sql = f"struct_extract({whole.sql}, 'f{index}')"
    sql = f"coalesce({sql}, '')" if value.kind == "string" else sql
    return Typed(value.kind, sql, "field", (whole,), refs=whole.refs, name=value.name or f"any_arg{index}")
