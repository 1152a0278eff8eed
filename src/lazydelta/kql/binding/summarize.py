"""``summarize``: aggregates, their column names, and their results for empty groups."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from lazydelta.kql.binding.computed import measured
from lazydelta.kql.binding.plan import OrderKey, Session, order_sql
from lazydelta.kql.binding.scalars import Scalars
from lazydelta.kql.binding.types import Typed, as_kind, column, element_json, quoted, to_text
from lazydelta.kql.functions.aggregates import AGGREGATE_NAMES, FROM_LISTS, SKETCHES
from lazydelta.kql.language import syntax

__all__ = ["Aggregates"]

_ADDED = {"int": "long", "long": "long", "real": "real", "decimal": "decimal", "timespan": "timespan"}
_ORDERED = frozenset({"bool", "int", "long", "real", "decimal", "string", "datetime", "timespan"})
_FORMER = {"any": "take_any", "anyif": "take_anyif", "argmax": "arg_max", "argmin": "arg_min", "makelist": "make_list"}
_FORMER |= {"makeset": "make_set", "make_dictionary": "make_bag"}
_SPREAD = {"stdev": "stddev_samp", "stdevp": "stddev_pop", "variance": "var_samp", "variancep": "var_pop"}
_SPREAD |= {"covariance": "covar_samp", "covariancep": "covar_pop"}
_BITS = {"binary_all_and": "bit_and", "binary_all_or": "bit_or", "binary_all_xor": "bit_xor"}
# The bits of a hash that name a register, by accuracy.
_REGISTER_BITS = (12, 14, 16, 17, 18)
_COLLECTED = {"make_set": "set", "make_list": "list", "make_list_with_nulls": "list", "make_bag": "bag"}


class Aggregates:
    """Collects the aggregates of one ``summarize``.

    ``scalars`` binds their arguments; ``collected`` holds SQL by identity for the plan node.
    """

    def __init__(
        self, session: Session, scalars: Scalars, others: Callable[[], list[Typed]], order: tuple[OrderKey, ...]
    ) -> None:
        self._session = session
        self._scalars = scalars
        # The columns that a star expands to: all except the group keys.
        self._others = others
        # DuckDB aggregates in parallel, so an order applies within an aggregate only if the aggregate states it.
        self._order = order
        self.collected: dict[str, tuple[str, frozenset[str]]] = {}

    def columns(self, node: syntax.Call) -> list[Typed]:
        """Return the columns that a call produces, which is one for most functions."""
        self._check(node)
        name = _FORMER.get(node.name, node.name)
        if name in {"arg_max", "arg_min"}:
            return self._argument_of_extreme(node, name)
        if name == "take_any" and (len(node.arguments) > 1 or isinstance(node.arguments[0], syntax.Star)):
            found = self._row(self._listed(node.arguments), "first({})")
            return [replace(each, name=f"any_{each.name}") for each in found] if node.name == "any" else found
        if name in {"percentiles", "percentilesw"}:
            value = self._scalars.bind(node.arguments[0])
            weight = self._weight(node)
            skipped = 1 if weight is None else 2
            return [self._percentile(node, value, weight, each) for each in node.arguments[skipped:]]
        return [self.one(node)]

    def one(self, node: syntax.Call) -> Typed:
        """Return the column of an aggregate inside an expression."""
        self._check(node)
        name = _FORMER.get(node.name, node.name)
        if name in {"arg_max", "arg_min", "percentiles", "percentilesw"}:
            hint = "use it on its own, and extend by the rest"
            raise self._session.error(
                node.at, f"{node.name}() returns several columns and cannot be part of an expression", hint
            )
        if name == "count":
            if node.arguments and not isinstance(node.arguments[0], syntax.Star):
                return self._add("long", "count(*)", [], self._named("count", self._scalars.bind(node.arguments[0])))
            return self._add("long", "count(*)", [], "count_")
        if name == "countif":
            condition = self._scalars.condition(node.arguments[0])
            return self._add(
                "long", f"count(*) FILTER (WHERE {condition.sql})", [condition], self._named("countif", condition)
            )
        value = self._scalars.bind(node.arguments[0])
        if name in {"percentile", "percentilew"}:
            return self._percentile(node, value, self._weight(node), node.arguments[-1])
        if name in {"percentiles_array", "percentilesw_array"}:
            return self._percentile_array(node, value, self._weight(node))
        if name in SKETCHES:
            return self._sketch(node, name, value)
        return self._simple(node, name, value)

    def _sketch(self, node: syntax.Call, name: str, value: Typed) -> Typed:
        """Return a sketch, which is collected in memory that does not depend on the number of rows."""
        used, conditions = [value], [f"{value.sql} IS NOT NULL"]
        if name == "hll_if":
            used.append(self._scalars.condition(node.arguments[1]))
            conditions.append(used[1].sql)
        only = _filter(conditions)
        if name in {"hll", "hll_if"}:
            sql = self._hll(value, only, node.arguments[len(used) :])
        elif name == "tdigest":
            if len(node.arguments) > 1:
                used.append(self._scalars.bind(node.arguments[1]))
            sql = self._tdigest(node, value, only, used[1:])
        else:
            self._kind_of(node, value, {"dynamic": "dynamic"})
            kept = "hll_merge" if name == "hll_merge" else "tdigest_merge"
            sql = f"py_sketch_{kept}_1(CAST(to_json(list({value.sql}){only}) AS VARCHAR))"
        prefix = "merge_tdigests" if name in {"merge_tdigest", "tdigest_merge"} else name
        return self._add("dynamic", _of_rows(f"CAST({sql} AS JSON)"), used, self._named(prefix, value))

    def _hll(self, value: Typed, only: str, accuracy: tuple[syntax.Expression, ...]) -> str:
        level = self._scalars.constant(accuracy[0], "the accuracy", "long", "int").value if accuracy else 1
        if level not in range(len(_REGISTER_BITS)):
            raise self._session.error(accuracy[0].at, f"{level} is not an accuracy", "write a number from 0 to 4")
        bits = _REGISTER_BITS[level]
        # A hash that stays the same, because sketches may be stored.
        codes = f"list(DISTINCT kql_hll(md5_number_lower({to_text(value)}), {bits})){only}"
        return f"py_sketch_hll_2(coalesce(CAST(to_json({codes}) AS VARCHAR), '[]'), {bits})"

    def _tdigest(self, node: syntax.Call, value: Typed, only: str, weights: list[Typed]) -> str:
        number = measured(value)
        if number is None:
            raise self._session.error(node.at, f"{node.name}() of a {value.kind} is not defined", "convert it first")
        if value.kind == "real":
            # A digest is JSON, which has neither NaN nor infinities.
            number = f"(CASE WHEN isfinite({number}) THEN {number} END)"
        kind = "'long'" if value.kind == "int" else f"'{value.kind}'"
        if weights:
            pairs = f"to_json(list([{number}, {as_kind(weights[0], 'real')}]){only})"
            return f"py_sketch_tdigest_weighted_2({kind}, coalesce(CAST({pairs} AS VARCHAR), '[]'))"
        # All values in order if they are few; else their quantiles, of which DuckDB keeps a digest of its own.
        few, steps = 1024, 1023
        shares = f"CAST([x / {steps}.0 FOR x IN range({few})] AS FLOAT[])"
        least = f"to_json(min({number}, {few}){only})"
        grid = f"to_json(approx_quantile({number}, {shares}){only})"
        return (
            f"py_sketch_tdigest_4({kind}, count({number}){only}, coalesce(CAST({least} AS VARCHAR), '[]'),"
            f" coalesce(CAST({grid} AS VARCHAR), '[]'))"
        )

    def _simple(self, node: syntax.Call, name: str, value: Typed) -> Typed:
        plain = name.removesuffix("if").removesuffix("_") if name not in _COLLECTED else name
        used = [value]
        if plain in {"covariance", "covariancep"}:
            used.append(self._scalars.bind(node.arguments[1]))
        conditions = []
        if plain != name:
            condition = self._scalars.condition(node.arguments[len(used)])
            used.append(condition)
            conditions = [condition.sql]
        if plain in _COLLECTED:
            size = node.arguments[len(used) :]
            kind, sql = "dynamic", self._list(plain, value, conditions, size[0] if size else None)
            used += [key.expression for key in self._order]
        elif plain == "buildschema":
            kind, sql = "dynamic", _of_rows(self._from_list("schema", value, conditions, None))
        else:
            kind, sql = self._sql(node, plain, used, _filter(conditions))
        prefix = {**_COLLECTED, "buildschema": "schema"}.get(plain, node.name)
        prefix = "dictionary" if node.name == "make_dictionary" else prefix
        column_name = self._named(prefix, value)
        if plain in _BITS or (plain == "take_any" and node.name not in {"any", "anyif"}):
            column_name = value.name or ("any_arg0" if plain == "take_any" else self._named(plain, value))
        return self._add(kind, sql, used, column_name)

    def _sql(self, node: syntax.Call, plain: str, values: list[Typed], only: str) -> tuple[str, str]:
        value = values[0]
        if plain in {"dcount", "count_distinct"}:
            return "long", f"count(DISTINCT {value.sql}){only}"
        if plain in {"sum", "avg"}:
            return self._added(node, plain, value, only)
        if plain in _SPREAD:
            numbers = values[:2] if plain.startswith("covariance") else values[:1]
            for each in numbers:
                self._kind_of(node, each, dict.fromkeys(("int", "long", "real", "decimal"), "real"))
            arguments = ", ".join(as_kind(each, "real") for each in numbers)
            return "real", f"coalesce({_SPREAD[plain]}({arguments}){only}, CAST(0 AS DOUBLE))"
        if plain in _BITS:
            self._kind_of(node, value, {"int": "long", "long": "long"})
            return "long", f"{_BITS[plain]}({as_kind(value, 'long')}){only}"
        if plain in {"min", "max"}:
            kind = self._kind_of(node, value, {each: each for each in _ORDERED})
            sql = f"{plain}({value.sql}){only}"
            return kind, f"coalesce({sql}, '')" if kind == "string" else sql
        if value.kind == "string":
            return "string", f"coalesce(any_value(nullif({value.sql}, '')){only}, '')"
        return value.kind, f"any_value({value.sql}){only}"

    def _added(self, node: syntax.Call, plain: str, value: Typed, only: str) -> tuple[str, str]:
        if plain == "avg" and value.kind == "datetime":
            return "datetime", f"make_timestamp(CAST(avg(epoch_us({value.sql})){only} AS BIGINT))"
        kind = self._kind_of(node, value, _ADDED)
        if plain == "sum":
            zero = "0" if kind != "real" else "CAST(0 AS DOUBLE)"
            cast = "DECIMAL(38,6)" if kind == "decimal" else "DOUBLE" if kind == "real" else "BIGINT"
            total = f"sum({value.sql}){only}"
            return kind, f"coalesce({total if kind == 'decimal' else f'CAST({total} AS {cast})'}, {zero})"
        if kind == "timespan":
            return kind, f"CAST(avg({value.sql}){only} AS BIGINT)"
        return "real", f"coalesce(avg({as_kind(value, 'real')}){only}, CAST('nan' AS DOUBLE))"

    def _list(self, plain: str, value: Typed, conditions: list[str], size: syntax.Expression | None) -> str:
        most = None if size is None else self._scalars.constant(size, "the size of a list", "long", "int").value
        if plain == "make_bag":
            return self._from_list("bag", value, conditions, most)
        element = element_json(value)
        distinct = "DISTINCT " if plain == "make_set" else ""
        nulls = [] if plain == "make_list_with_nulls" else [f"{value.sql} IS NOT NULL"]
        present = _filter([*conditions, *nulls])
        # The order of a set is undefined.
        order = "" if distinct else self._ordered()
        if value.kind == "dynamic":
            # Arrays contribute their elements; only a list with nulls keeps those that are null.
            parts = f"{'kql_array' if not nulls else 'kql_elements'}({element})"
            collected = f"flatten(list({parts}{order}){present})"
            collected = f"list_distinct({collected})" if distinct else collected
        else:
            collected = f"list({distinct}{element}{order}){present}"
        if most is not None:
            collected = f"list_slice({collected}, 1, {most})"
        return f"coalesce(to_json({collected}), CAST('[]' AS JSON))"

    def _ordered(self) -> str:
        return f" ORDER BY {order_sql(self._order)}" if self._order else ""

    def _from_list(self, name: str, value: Typed, conditions: list[str], option: object) -> str:
        """Return SQL for a value that Python computes from the list of all values."""
        function = FROM_LISTS[name]
        self._session.evaluator.define(function)
        collected = f"to_json(list({value.sql}){_filter([*conditions, f'{value.sql} IS NOT NULL'])})"
        shown = "CAST(NULL AS VARCHAR)" if option is None else quoted(json.dumps(option))
        return f"CAST({function.name}(CAST({collected} AS VARCHAR), {shown}) AS JSON)"

    def _weight(self, node: syntax.Call) -> Typed | None:
        if not node.name.startswith(("percentilew", "percentilesw")):
            return None
        weight = self._scalars.bind(node.arguments[1])
        self._kind_of(node, weight, {"int": "long", "long": "long", "real": "real"})
        return weight

    def _percentile_kind(self, node: syntax.Call, value: Typed) -> str:
        kinds = {"int": "long", "long": "long", "real": "real", "decimal": "real"}
        return self._kind_of(node, value, kinds | {"datetime": "datetime", "timespan": "timespan"})

    def _share(self, at: int, share: object) -> float:
        if not isinstance(share, int | float) or not 0 <= share <= 100:  # noqa: PLR2004 - per cent
            raise self._session.error(at, f"{share} is not a percentile", "write a number from 0 to 100")
        return share

    def _percentile(self, node: syntax.Call, value: Typed, weight: Typed | None, percent: syntax.Expression) -> Typed:
        kind = self._percentile_kind(node, value)
        share = self._share(percent.at, self._scalars.constant(percent, "a percentile", "long", "int", "real").value)
        used = [value] if weight is None else [value, weight]
        sql = self._quantile(kind, value, weight, share)
        suffix = str(share).replace(".", "_")
        return self._add(kind, sql, used, f"{self._named('percentile', value)}_{suffix}")

    def _quantile(self, kind: str, value: Typed, weight: Typed | None, share: float) -> str:
        number = value.sql if kind == value.kind else as_kind(value, kind)
        if weight is None:
            return f"quantile_disc({number}, CAST('{share / 100!r}' AS DOUBLE))"
        if kind == "datetime":
            return f"make_timestamp(CAST({self._weighted(f'epoch_us({number})', weight, share)} AS BIGINT))"
        return f"CAST({self._weighted(number, weight, share)} AS {'DOUBLE' if kind == 'real' else 'BIGINT'})"

    def _weighted(self, number: str, weight: Typed, share: float) -> str:
        function = FROM_LISTS["weighted"]
        self._session.evaluator.define(function)
        collected = f"to_json(list(json_array({number}, {weight.sql})))"
        return f"json_extract({function.name}(CAST({collected} AS VARCHAR), '[{share!r}]'), '$[0]')"

    def _percentile_array(self, node: syntax.Call, value: Typed, weight: Typed | None) -> Typed:
        kind = self._percentile_kind(node, value)
        shares: list[float] = []
        for each in node.arguments[1 if weight is None else 2 :]:
            bound = self._scalars.constant(each, "a percentile")
            shares += [
                self._share(each.at, one) for one in (bound.value if isinstance(bound.value, list) else [bound.value])
            ]
        parts = [element_json(Typed(kind, self._quantile(kind, value, weight, share), "aggregate")) for share in shares]
        used = [value] if weight is None else [value, weight]
        return self._add("dynamic", f"json_array({', '.join(parts)})", used, self._named("percentiles", value))

    def _argument_of_extreme(self, node: syntax.Call, name: str) -> list[Typed]:
        best = self._scalars.bind(node.arguments[0])
        self._kind_of(node, best, {each: each for each in _ORDERED})
        others = self._listed(node.arguments[1:], besides=best)
        extreme = f"{name.removeprefix('arg_')}_"
        named = [
            each if each.name else replace(each, name=f"{extreme}{best.name or ''}_arg{index + 1}")
            for index, each in enumerate(others)
        ]
        # If all values are null there is no extreme, so any row will do.
        found = self._row(
            [replace(best, name=best.name or extreme), *named], f"coalesce({name}({{0}}, {best.sql}), first({{0}}))"
        )
        if node.name == name:
            return found
        first = f"{extreme}{best.name or ''}"
        return [replace(each, name=f"{first}_{each.name}" if index else first) for index, each in enumerate(found)]

    def _row(self, values: list[Typed], choose: str) -> list[Typed]:
        """Take several values from the same row of each group, packed so that they stay together."""
        packed = "struct_pack(" + ", ".join(f"f{index} := {each.sql}" for index, each in enumerate(values)) + ")"
        whole = self._add("dynamic", choose.format(packed), values, "row")
        return [_field(whole, index, each) for index, each in enumerate(values)]

    def _listed(self, arguments: tuple[syntax.Expression, ...], besides: Typed | None = None) -> list[Typed]:
        if any(isinstance(each, syntax.Star) for each in arguments):
            if len(arguments) > 1:
                raise self._session.error(arguments[0].at, "* must be used alone: it means all columns")
            left_out = besides.value if besides is not None and besides.op == "column" else None
            return [each for each in self._others() if each.value != left_out]
        return [self._scalars.bind(each) for each in arguments]

    def _kind_of(self, node: syntax.Call, value: Typed, kinds: dict[str, str]) -> str:
        if value.kind not in kinds:
            raise self._session.error(node.at, f"{node.name}() of a {value.kind} is not defined", "convert it first")
        return kinds[value.kind]

    def _check(self, node: syntax.Call) -> None:
        declared = AGGREGATE_NAMES[node.name]
        least, most = declared.least, declared.most
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


def _of_rows(sql: str) -> str:
    """Return an aggregate that is null where no rows come."""
    return f"CASE WHEN count(*) > 0 THEN {sql} END"


def _field(whole: Typed, index: int, value: Typed) -> Typed:
    # The struct is null for a group without rows, where a string must be empty.
    sql = f"struct_extract({whole.sql}, 'f{index}')"
    sql = f"coalesce({sql}, '')" if value.kind == "string" else sql
    return Typed(value.kind, sql, "field", (whole,), refs=whole.refs, name=value.name or f"any_arg{index}")
