"""Functions of dynamic values: arrays, sets and property bags."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from typing import Any

from lazydelta.kql.binding.types import Typed, call, element_json, literal, quoted, unified
from lazydelta.kql.functions.declaration import Function, Given, built, from_text, rows, template

__all__ = ["DYNAMICS"]

_MOST_VALUES = 1_048_576
_STEP = re.compile(r"\['((?:\\.|[^'])*)'\]|\[\"((?:\\.|[^\"])*)\"\]|\.([^.\[]+)|\[(-?\d+)\]")


def _key(value: Any) -> Any:
    """Return what makes elements equal: numbers by value, everything else by its JSON."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return json.dumps(value, sort_keys=True)


def _different(values: list[Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for each in values:
        found.setdefault(_key(each), each)
    return found


# Arrays


def _index_of(array: Any, value: Any, start: int | None, length: int | None, occurrence: int | None) -> int | None:
    if not isinstance(array, list):
        return None
    first = start or 0
    first = max(first + len(array), 0) if first < 0 else first
    end = len(array) if length is None or length < 0 else min(first + length, len(array))
    wanted = _key(value)
    found = [index for index in range(first, end) if _key(array[index]) == wanted]
    nth = 1 if occurrence is None else occurrence
    return found[nth - 1] if 0 < nth <= len(found) else -1


def _array_iff(condition: Any, yes: Any, no: Any) -> Any:
    if not isinstance(condition, list):
        return None

    def at(values: Any, index: int) -> Any:
        if not isinstance(values, list):
            return values
        return values[index] if index < len(values) else None

    # A condition is a bool or a number.
    return [
        at(yes if each else no, index) if isinstance(each, bool | int | float) else None
        for index, each in enumerate(condition)
    ]


def _reverse(array: Any) -> Any:
    return array[::-1] if isinstance(array, list) else None


def _rotate_left(array: Any, count: int | None) -> Any:
    if not isinstance(array, list) or count is None:
        return None
    at = count % len(array) if array else 0
    return array[at:] + array[:at]


def _rotate_right(array: Any, count: int | None) -> Any:
    return _rotate_left(array, None if count is None else -count)


def _shift_left(array: Any, count: int | None, fill: Any) -> Any:
    if not isinstance(array, list) or count is None:
        return None
    if fill is None and array and all(isinstance(each, str) for each in array):
        fill = ""
    blank = [fill] * min(abs(count), len(array))
    return (array[count:] + blank if count >= 0 else blank + array[:count])[: len(array)]


def _shift_right(array: Any, count: int | None, fill: Any) -> Any:
    return _shift_left(array, None if count is None else -count, fill)


def _slice(array: Any, start: int | None, end: int | None) -> Any:
    if not isinstance(array, list) or start is None or end is None:
        return None
    first = max(start + len(array), 0) if start < 0 else start
    last = end + len(array) if end < 0 else end
    return array[first : last + 1] if last >= 0 else []


def _split(array: Any, indexes: Any) -> Any:
    if not isinstance(array, list):
        return None
    cuts = indexes if isinstance(indexes, list) else [indexes]
    cuts = [int(each) + len(array) if each < 0 else int(each) for each in cuts if isinstance(each, int | float)]
    bounds = [0, *(min(max(each, 0), len(array)) for each in cuts), len(array)]
    return [array[first:last] for first, last in itertools.pairwise(bounds)]


def _rank(value: Any) -> tuple[int, Any]:
    if isinstance(value, bool | int | float):
        return (0, value)
    return (1, value) if isinstance(value, str) else (2, json.dumps(value))


def _sorted(arrays: list[Any], descending: bool, nulls_last: bool) -> Any:  # noqa: FBT001 - from a query
    """Sort the first array, and put the others into the same order."""
    first = arrays[0]
    if not isinstance(first, list):
        return None
    present = sorted(
        (index for index, each in enumerate(first) if each is not None),
        key=lambda at: _rank(first[at]),
        reverse=descending,
    )
    nulls = [index for index, each in enumerate(first) if each is None]
    order = present + nulls if nulls_last else nulls + present
    return [
        [each[at] for at in order] if isinstance(each, list) and len(each) == len(first) else None for each in arrays
    ]


_SORTED = rows("array_sort(arrays: dynamic, descending: bool, nulls_last: bool) -> dynamic", "", _sorted)


def _sort_columns(given: Given) -> list[Typed]:
    arrays = [each for each in given.values if each.kind == "dynamic"]
    nulls_last = given.values[-1] if given.values[-1].kind == "bool" else literal("bool", value=True)
    packed = Typed("dynamic", f"json_array({', '.join(each.sql for each in arrays)})", "json_array", tuple(arrays))
    arguments = (packed, literal("bool", given.name.endswith("desc")), nulls_last)
    made = _SORTED.build(replace(given, values=arguments)).sql
    return [
        call("dynamic", given.name, f"kql_json({made}, '$[{index}]')", given.values,
             name=f"{each.name or f'array{index + 1}'}_sorted")
        for index, each in enumerate(arrays)
    ]  # fmt: skip


def _sort(given: Given) -> Typed:
    return _sort_columns(given)[0]


def _sum(array: Any) -> float | None:
    if not isinstance(array, list):
        return None
    numbers = [each for each in array if isinstance(each, int | float)]
    return float(sum(numbers)) if len(numbers) == len(array) else None


def _zip(*arrays: Any) -> Any:
    lists = [each if isinstance(each, list) else [each] for each in arrays]
    longest = max(map(len, lists))
    return [[each[index] if index < len(each) else None for each in lists] for index in range(longest)]


def _concat(given: Given) -> Typed:
    # DuckDB's binder gives the constant null another type.
    present = [index for index, each in enumerate(given.values) if not (each.is_literal and each.value is None)]
    lists = ", ".join(f"kql_array({given.as_kind(index, 'dynamic')})" for index in present)
    return given.of("dynamic", f"to_json(flatten([{lists}]))" if present else "CAST(NULL AS JSON)")


def _array_length(given: Given) -> Typed:
    value = given.values[0]
    if value.kind != "dynamic":
        given.refuse(0, "a dynamic value")
    sql = f"CASE WHEN json_type({value.sql}) = 'ARRAY' THEN CAST(json_array_length({value.sql}) AS BIGINT) END"
    return given.of("long", f"({sql})")


def _pack_array(given: Given) -> Typed:
    return given.of("dynamic", f"json_array({', '.join(map(element_json, given.values))})")


def _range(given: Given) -> Typed:
    kind, bounds = unified("range()", given.values[:2], given.complain)
    span = kind in {"datetime", "timespan"}
    step = given.values[2] if len(given) > 2 else None  # noqa: PLR2004 - the third argument
    if kind in {"int", "long"} and (step is None or step.kind in {"int", "long"}):
        amount = "1" if step is None else given.whole(2)
        values = f"generate_series({bounds[0]}, {bounds[1]}, CAST({amount} AS BIGINT))"
    elif span:
        if step is not None and step.kind != "timespan":
            given.refuse(2, "a timespan")
        unit = "// 10" if kind == "datetime" else ""
        amount = f"({'36000000000' if step is None else step.sql} {unit})"
        first, last = (f"epoch_us({each})" if kind == "datetime" else each for each in bounds)
        text = "kql_timestamp_text(make_timestamp(x))" if kind == "datetime" else "kql_span_text(x)"
        values = f"list_transform(generate_series({first}, {last}, {amount}), lambda x: {text})"
    else:
        first, last = (given.as_kind(index, "real") for index in (0, 1))
        amount = "1.0" if step is None else given.as_kind(2, "real")
        count = f"CAST(floor(({last} - {first}) / {amount} + 1e-9) AS BIGINT)"
        values = f"list_transform(generate_series(0, {count}), lambda x: {first} + x * {amount})"
    return given.of("dynamic", f"to_json(list_slice({values}, 1, {_MOST_VALUES}))")


# Sets


def _union(*arrays: Any) -> Any:
    if not all(isinstance(each, list) for each in arrays):
        return None
    return list(_different([each for array in arrays for each in array]).values())


def _intersect(first: Any, *others: Any) -> Any:
    if not all(isinstance(each, list) for each in (first, *others)):
        return None
    common = [_different(each).keys() for each in others]
    return [value for key, value in _different(first).items() if all(key in each for each in common)]


def _difference(first: Any, *others: Any) -> Any:
    if not all(isinstance(each, list) for each in (first, *others)):
        return None
    gone = {key for each in others for key in _different(each)}
    return [value for key, value in _different(first).items() if key not in gone]


def _equal_sets(first: Any, second: Any) -> bool | None:
    if not isinstance(first, list) or not isinstance(second, list):
        return None
    return _different(first).keys() == _different(second).keys()


def _has_element(array: Any, value: Any) -> bool | None:
    return _key(value) in _different(array) if isinstance(array, list) else None


def _jaccard(first: Any, second: Any) -> float | None:
    if not isinstance(first, list) or not isinstance(second, list):
        return None
    one, other = set(_different(first)), set(_different(second))
    return len(one & other) / len(one | other) if one | other else None


# Property bags


def _steps(path: str) -> list[str | int]:
    """Return the steps of a key: one name, or a JSON path that starts with ``$``."""
    if not path.startswith("$") or path == "$":
        return [path]
    return [
        int(match[4]) if match[4] is not None else match[1] or match[2] or match[3] or ""
        for match in _STEP.finditer(path, 1)
    ]


def _has_key(bag: Any, key: str) -> bool | None:
    if not isinstance(bag, dict):
        return None
    at: Any = bag
    for step in _steps(key):
        if isinstance(step, int):
            if not isinstance(at, list) or not -len(at) <= step < len(at):
                return False
        elif not isinstance(at, dict) or step not in at:
            return False
        at = at[step]
    return True


def _keys(bag: Any) -> Any:
    return list(bag) if isinstance(bag, dict) else None


def _merge(*bags: Any) -> Any:
    merged: dict[str, Any] = {}
    for bag in bags:
        if isinstance(bag, dict):
            merged = {**merged, **{key: value for key, value in bag.items() if key not in merged}}
    return merged if any(isinstance(each, dict) for each in bags) else None


def _remove_keys(bag: Any, keys: Any) -> Any:
    if not isinstance(bag, dict) or not isinstance(keys, list):
        return bag if isinstance(bag, dict) else None
    for key in keys:
        *outer, last = _steps(str(key))
        at: Any = bag
        for step in outer:
            at = at.get(step) if isinstance(at, dict) else None
        if isinstance(at, dict):
            at.pop(last, None)
    return bag


def _set_key(bag: Any, key: str, value: Any) -> Any:
    if not isinstance(bag, dict):
        return None
    *outer, last = _steps(key)
    at: Any = bag
    for step in outer:
        if not isinstance(at.get(step), dict):
            at[step] = {}
        at = at[step]
    at[last] = value
    return bag


def _bag_zip(keys: Any, values: Any) -> Any:
    if not isinstance(keys, list):
        return None
    given = values if isinstance(values, list) else []
    pairs = ((key, given[index] if index < len(given) else None) for index, key in enumerate(keys))
    return {key: value for key, value in pairs if isinstance(key, str)}


def _treepath(value: Any) -> Any:
    found: dict[str, None] = {}

    def visit(at: Any, path: str) -> None:
        if path:
            found.setdefault(path)
        if isinstance(at, dict):
            for key, each in at.items():
                visit(each, f"{path}['{key}']")
        elif isinstance(at, list):
            for each in at:
                visit(each, f"{path}[0]")

    visit(value, "")
    return list(found)


def _pack(given: Given) -> Typed:
    if len(given) % 2:
        raise given.complain(f"{given.name}() needs pairs of key and value", None)
    parts = [given.text(index) if index % 2 == 0 else element_json(value) for index, value in enumerate(given.values)]
    return given.of("dynamic", f"json_object({', '.join(parts)})")


def _pack_columns(given: Given) -> Typed:
    for index, each in enumerate(given.values):
        if each.name is None:
            given.refuse(index, "a column")
    parts = [part for each in given.values for part in (quoted(each.name or ""), element_json(each))]
    return given.of("dynamic", f"json_object({', '.join(parts)})")


def _pack_all(given: Given) -> Typed:
    skip = bool(given.constant(0, "bool")) if len(given) else False
    columns = given.columns
    refs = frozenset[str]().union(*(each.refs for each in columns))
    if not skip:
        parts = [part for each in columns for part in (quoted(each.name or ""), element_json(each))]
        sql = f"json_object({', '.join(parts)})"
    else:
        entries = ", ".join(
            f"{{'key': {quoted(each.name or '')}, 'value': CAST({element_json(each)} AS JSON)}}" for each in columns
        )
        kept = f"list_filter([{entries}], lambda e: e.value IS NOT NULL AND CAST(e.value AS VARCHAR) <> '\"\"')"
        sql = f"to_json(map_from_entries({kept}))"
    return Typed("dynamic", sql, given.name, columns, refs=refs)


def _extract_json(given: Given) -> Typed:
    found = f"coalesce(json_extract_string(kql_parse_json({given.text(1)}), {given.string(0)}), '')"
    if len(given) == 2:  # noqa: PLR2004 - without a type
        return given.of("string", found)
    kind = given.constant(2, "type")
    if kind == "dynamic":
        return given.of(kind, f"kql_json(kql_parse_json({given.text(1)}), {given.string(0)})")
    return given.of(kind, from_text(found, kind, loose=True))


_ROTATES = "Rotates the elements of an array to the"
_SHIFTS = "Shifts the elements of an array, and fills the gap, to the"

DYNAMICS: list[Function] = [
    built("array_concat(array: dynamic...) -> dynamic", "Joins arrays.", _concat),
    rows("array_iff(conditions: dynamic, yes: json, no: json) -> dynamic", "Chooses element by element.", _array_iff),
    rows("array_iif(conditions: dynamic, yes: json, no: json) -> dynamic", "Another name of `array_iff`.", _array_iff),
    rows(
        "array_index_of(array: dynamic, value: json, start?: long, length?: long, occurrence?: long) -> long",
        "Returns the position of an element, or -1.",
        _index_of,
    ),
    built("array_length(array: any) -> long", "Returns the number of elements.", _array_length),
    rows("array_reverse(array: dynamic) -> dynamic", "Reverses an array.", _reverse),
    rows("array_rotate_left(array: dynamic, count: long) -> dynamic", f"{_ROTATES} left.", _rotate_left),
    rows("array_rotate_right(array: dynamic, count: long) -> dynamic", f"{_ROTATES} right.", _rotate_right),
    rows("array_shift_left(array: dynamic, count: long, fill?: json) -> dynamic", f"{_SHIFTS} left.", _shift_left),
    rows("array_shift_right(array: dynamic, count: long, fill?: json) -> dynamic", f"{_SHIFTS} right.", _shift_right),
    rows("array_slice(array: dynamic, start: long, end: long) -> dynamic", "Returns part of an array.", _slice),
    *(
        replace(built(f"array_sort_{order}(array: dynamic, more?: any...) -> dynamic", about, _sort),
                several=_sort_columns)
        for order, about in (("asc", "Sorts arrays by the first."), ("desc", "Sorts arrays by the first, downwards."))
    ),
    rows("array_split(array: dynamic, indexes: json) -> dynamic", "Splits an array at one or more positions.", _split),
    rows("array_sum(array: dynamic) -> real", "Adds the elements of an array; null if one is no number.", _sum),
    rows("bag_has_key(bag: dynamic, key: string) -> bool", "Tests whether a bag has a key, or a path.", _has_key),
    rows("bag_keys(bag: dynamic) -> dynamic", "Returns the keys of a bag.", _keys),
    rows("bag_merge(bag: dynamic...) -> dynamic", "Joins bags; the first value of a key wins.", _merge),
    built("bag_pack(key: any...) -> dynamic", "Makes a bag of keys and values.", _pack),
    built("bag_pack_columns(column: any...) -> dynamic", "Makes a bag of columns.", _pack_columns),
    rows("bag_remove_keys(bag: dynamic, keys: dynamic) -> dynamic", "Removes keys, or paths, of a bag.", _remove_keys),
    rows("bag_set_key(bag: dynamic, key: string, value: json) -> dynamic", "Sets a key or path of a bag.", _set_key),
    rows("bag_zip(keys: dynamic, values: dynamic) -> dynamic", "Makes a bag of an array of keys and one of values.",
         _bag_zip),
    built("extract_json(path: string, json: text, type?: type) -> string", "Returns the value at a path of JSON text.",
          _extract_json),
    built("extractjson(path: string, json: text, type?: type) -> string", "Another name of `extract_json`.",
          _extract_json),
    rows("jaccard_index(a: dynamic, b: dynamic) -> dynamic", "Returns the Jaccard index of two sets.", _jaccard),
    built("pack(key: any...) -> dynamic", "Former name of `bag_pack`.", _pack),
    built("pack_all(ignore_empty?: bool) -> dynamic", "Makes a bag of all columns.", _pack_all),
    built("pack_array(value: any...) -> dynamic", "Makes an array of values.", _pack_array),
    built("pack_dictionary(key: any...) -> dynamic", "Former name of `bag_pack`.", _pack),
    built("range(start: any, stop: any, step?: any) -> dynamic", "Makes an array of equidistant values.", _range),
    template("repeat(value: json, count: long) -> dynamic", "Makes an array that holds a value several times.",
             "CASE WHEN {count} >= 0 THEN to_json(list_transform(range({count}), lambda i: {value})) END",
             named="repeat_{}"),
    rows("set_difference(a: dynamic, b: dynamic...) -> dynamic", "Returns the elements of an array that no other has.",
         _difference),
    rows("set_equals(a: dynamic, b: dynamic) -> bool", "Tests whether arrays have the same elements.", _equal_sets),
    rows("set_has_element(set: dynamic, value: json) -> bool", "Tests whether an array has an element.", _has_element),
    rows("set_intersect(set: dynamic...) -> dynamic", "Returns the elements that all arrays have.", _intersect),
    rows("set_union(set: dynamic...) -> dynamic", "Returns the elements of all arrays, each once.", _union),
    rows("treepath(value: dynamic) -> dynamic", "Lists the paths of all values.", _treepath, named="tree_{}"),
    rows("zip(array: dynamic...) -> dynamic", "Joins arrays element by element.", _zip),
]  # fmt: skip
"""The functions."""
