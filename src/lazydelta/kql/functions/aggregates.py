"""The aggregation functions of ``summarize``, and those parts of them that Python computes from a collected list."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.kql.functions.declaration import Function, Given, PythonFunction, built

__all__ = ["AGGREGATES", "AGGREGATE_NAMES", "FROM_LISTS", "SEVERAL", "SKETCHES"]


def _nowhere(given: Given) -> Any:
    raise given.complain(f"{given.name}() is an aggregate and belongs in summarize", "write T | summarize …")


def _aggregate(signature: str, about: str) -> Function:
    return built(signature, about, _nowhere)


def _conditional(signature: str, about: str, name: str) -> list[Function]:
    """Return an aggregate and its sibling that counts only the rows for which a condition is true."""
    plain, arguments = signature.split("(", 1)
    inside, result = arguments.split(") -> ")
    first, *rest = inside.split(", ")
    two = [rest.pop(0)] if plain.startswith("covariance") else []
    more = ", ".join([first, *two, "condition: bool", *rest])
    condition = f"As `{plain}`, of the rows for which a condition is true."
    return [_aggregate(signature, about), _aggregate(f"{name}({more}) -> {result}", condition)]


AGGREGATES: list[Function] = [
    _aggregate("any(value: any...) -> any", "Former name of `take_any`."),
    _aggregate("anyif(value: any, condition: bool) -> any", "Former name of `take_anyif`."),
    _aggregate("arg_max(value: any, column?: any...) -> any", "Returns the row with the largest value."),
    _aggregate("arg_min(value: any, column?: any...) -> any", "Returns the row with the smallest value."),
    _aggregate("argmax(value: any, column?: any...) -> any", "Former name of `arg_max`."),
    _aggregate("argmin(value: any, column?: any...) -> any", "Former name of `arg_min`."),
    *_conditional("avg(value: any) -> any", "Returns the mean.", "avgif"),
    _aggregate("binary_all_and(value: long) -> long", "Returns the bitwise AND of all values."),
    _aggregate("binary_all_or(value: long) -> long", "Returns the bitwise OR of all values."),
    _aggregate("binary_all_xor(value: long) -> long", "Returns the bitwise exclusive OR of all values."),
    _aggregate("buildschema(value: dynamic) -> dynamic", "Returns the schema of all dynamic values."),
    _aggregate("count(value?: any) -> long", "Counts the rows."),
    *_conditional("count_distinct(value: any) -> long", "Counts the different values.", "count_distinctif"),
    _aggregate("countif(condition: bool) -> long", "Counts the rows for which a condition is true."),
    *_conditional("covariance(x: real, y: real) -> real", "Returns the covariance of a sample.", "covarianceif"),
    *_conditional("covariancep(x: real, y: real) -> real", "Returns the covariance of a population.", "covariancepif"),
    *_conditional("dcount(value: any, accuracy?: whole) -> long", "Counts the different values, exactly.", "dcountif"),
    _aggregate("hll(value: any, accuracy?: whole) -> dynamic", "Makes a sketch of the different values."),
    _aggregate("hll_if(value: any, condition: bool, accuracy?: whole) -> dynamic",
               "As `hll`, of the rows for which a condition is true."),
    _aggregate("hll_merge(sketch: dynamic...) -> dynamic", "Joins sketches."),
    *_conditional("make_bag(bag: dynamic, size?: whole) -> dynamic", "Joins bags.", "make_bag_if"),
    _aggregate("make_dictionary(bag: dynamic, size?: whole) -> dynamic", "Former name of `make_bag`."),
    *_conditional("make_list(value: any, size?: whole) -> dynamic", "Collects the values.", "make_list_if"),
    _aggregate("make_list_with_nulls(value: any) -> dynamic", "Collects the values and the nulls."),
    *_conditional("make_set(value: any, size?: whole) -> dynamic", "Collects the different values.", "make_set_if"),
    _aggregate("makelist(value: any, size?: whole) -> dynamic", "Former name of `make_list`."),
    _aggregate("makeset(value: any, size?: whole) -> dynamic", "Former name of `make_set`."),
    *_conditional("max(value: any) -> any", "Returns the largest value.", "maxif"),
    _aggregate("merge_tdigest(digest: dynamic...) -> dynamic", "Joins digests."),
    *_conditional("min(value: any) -> any", "Returns the smallest value.", "minif"),
    _aggregate("percentile(value: any, percent: real) -> any", "Returns a percentile, by nearest rank."),
    _aggregate("percentiles(value: any, percent: real...) -> any", "Returns several percentiles, as columns."),
    _aggregate("percentiles_array(value: any, percent: any...) -> dynamic", "Returns percentiles, as an array."),
    _aggregate("percentilesw(value: any, weight: whole, percent: real...) -> any", "Returns weighted percentiles."),
    _aggregate("percentilesw_array(value: any, weight: whole, percent: any...) -> dynamic",
               "Returns weighted percentiles, as an array."),
    _aggregate("percentilew(value: any, weight: whole, percent: real) -> any", "Returns a weighted percentile."),
    *_conditional("stdev(value: real) -> real", "Returns the standard deviation of a sample.", "stdevif"),
    _aggregate("stdevp(value: real) -> real", "Returns the standard deviation of a population."),
    *_conditional("sum(value: any) -> any", "Adds the values.", "sumif"),
    _aggregate("take_any(value: any...) -> any", "Returns values of any row."),
    _aggregate("take_anyif(value: any, condition: bool) -> any", "Returns a value of any row that meets a condition."),
    _aggregate("tdigest(value: any, weight?: whole) -> dynamic", "Makes a digest, for percentiles."),
    _aggregate("tdigest_merge(digest: dynamic...) -> dynamic", "Joins digests."),
    *_conditional("variance(value: real) -> real", "Returns the variance of a sample.", "varianceif"),
    *_conditional("variancep(value: real) -> real", "Returns the variance of a population.", "variancepif"),
]  # fmt: skip
"""The aggregates. ``summarize`` builds them."""

AGGREGATE_NAMES: dict[str, Function] = {each.name: each for each in AGGREGATES}
"""The aggregates by name."""

SEVERAL = frozenset({"any", "arg_max", "arg_min", "argmax", "argmin", "percentiles", "percentilesw", "take_any"})
"""Aggregates that may produce several columns."""


SKETCHES = frozenset({"hll", "hll_if", "hll_merge", "merge_tdigest", "tdigest", "tdigest_merge"})
"""Aggregates whose result stands for many values."""


# What Python computes from the list of a group's values, as JSON.


def _bag(bags: list[Any], size: int | None) -> Any:
    made: dict[str, Any] = {}
    for bag in bags:
        for key, value in bag.items() if isinstance(bag, dict) else ():
            if size is not None and len(made) >= size:
                return made
            made.setdefault(key, value)
    return made


def _schema(values: list[Any], _: None) -> Any:
    found: list[Any] = []
    for value in values:
        _learn(found, value)
    return _shown(found)


def _learn(found: list[Any], value: Any) -> None:
    """Add the type of a value to the types found: names, and one dict each of the parts of bags and arrays."""
    if isinstance(value, dict | list):
        parts = next((each for each in found if isinstance(each, dict)), None)
        if parts is None:
            parts = {}
            found.append(parts)
        pairs = value.items() if isinstance(value, dict) else [("`indexer`", each) for each in value]
        for key, each in pairs:
            _learn(parts.setdefault(key, []), each)
        return
    names = {bool: "bool", int: "long", float: "double", str: "string"}
    name = names.get(type(value))
    if name is not None and name not in found:
        found.append(name)


def _shown(found: list[Any]) -> Any:
    shown = [{key: _shown(each) for key, each in part.items()} if isinstance(part, dict) else part for part in found]
    return shown[0] if len(shown) == 1 else shown


def _weighted(rows: list[Any], percents: list[float]) -> Any:
    """Return the values at which the weights, summed in the order of the values, reach the shares."""
    rows = sorted(([value, weight] for value, weight in rows if value is not None and (weight or 0) > 0))
    if not rows:
        return None
    sums = list(itertools.accumulate(weight for _, weight in rows))
    places = (bisect.bisect_left(sums, sums[-1] * percent / 100) for percent in percents)
    return [rows[min(place, len(rows) - 1)][0] for place in places]


def _from_list(name: str, compute: Callable[[Any, Any], Any]) -> PythonFunction:
    def over(lists: Any, options: Any) -> pa.Array:
        made = []
        for text, option in zip(lists.to_pylist(), options.to_pylist(), strict=True):
            values = [] if text is None else msgspec.json.decode(text)
            result = compute(values, None if option is None else msgspec.json.decode(option))
            made.append(None if result is None else msgspec.json.encode(result).decode())
        return pa.array(made, pa.string())

    return PythonFunction(f"kql_list_{name}", "VARCHAR", over)


FROM_LISTS: dict[str, PythonFunction] = {
    name: _from_list(name, compute) for name, compute in (("bag", _bag), ("schema", _schema), ("weighted", _weighted))
}
"""Functions of a list and an option, both JSON."""
