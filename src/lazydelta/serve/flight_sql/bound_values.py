"""Bound parameters as constants of a query.

DuckDB's Python API runs a query with parameters to its end before it shows a row. As constants in the tree they are
streamed like any query, and prune files. They are put in as nodes of the tree, so no value can become SQL.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.errors import QueryError

__all__ = ["literal", "with_values"]

_PLAIN = (
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_int8, "TINYINT"),
    (pa.types.is_int16, "SMALLINT"),
    (pa.types.is_int32, "INTEGER"),
    (pa.types.is_int64, "BIGINT"),
    (pa.types.is_uint8, "UTINYINT"),
    (pa.types.is_uint16, "USMALLINT"),
    (pa.types.is_uint32, "UINTEGER"),
    (pa.types.is_uint64, "UBIGINT"),
    (pa.types.is_float16, "FLOAT"),
    (pa.types.is_float32, "FLOAT"),
    (pa.types.is_float64, "DOUBLE"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_time, "TIME"),
)
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_TO_MICROSECONDS = {"s": 1_000_000, "ms": 1000, "us": 1}


def literal(value: pa.Scalar) -> str:
    """Return a value as SQL that has its type and nothing but its value."""
    kind = value.type
    if pa.types.is_null(kind):
        return "NULL"
    if pa.types.is_dictionary(kind):
        return literal(value.value)
    if pa.types.is_union(kind):
        # Clients that do not know a parameter's type send a union of all.
        return literal(value.value) if value.is_valid else "NULL"
    name = _name(kind)
    if not value.is_valid:
        return f"CAST(NULL AS {name})"
    if pa.types.is_interval(kind):
        months, days, nanoseconds = value.as_py()
        return f"to_months({months}) + to_days({days}) + to_microseconds({_whole_microseconds(nanoseconds)})"
    if pa.types.is_duration(kind):
        return f"to_microseconds(CAST('{_microseconds(value)}' AS BIGINT))"
    text = _text(value)
    quoted = text.replace("'", "''")
    return f"CAST('{quoted}' AS {name})"


def _name(kind: pa.DataType) -> str:
    for test, name in _PLAIN:
        if test(kind):
            return name
    if any(test(kind) for test in _TEXTS):
        return "VARCHAR"
    if any(test(kind) for test in _BYTES):
        return "BLOB"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMPTZ" if kind.tz else "TIMESTAMP_NS" if kind.unit == "ns" else "TIMESTAMP"
    if pa.types.is_duration(kind) or pa.types.is_interval(kind):
        return "INTERVAL"
    if pa.types.is_decimal(kind) and kind.precision <= 38:  # noqa: PLR2004 - DuckDB's widest
        return f"DECIMAL({kind.precision}, {kind.scale})"
    raise QueryError(f"A parameter of the type {kind} cannot be bound", hint="bind plain values")


def _text(value: pa.Scalar) -> str:
    kind = value.type
    if any(test(kind) for test in _TEXTS):
        text = str(value.as_py())
        if "\0" in text:
            raise QueryError("A bound text has a zero byte, which DuckDB's texts have not", hint="bind it as binary")
        return text
    if any(test(kind) for test in _BYTES):
        return "".join(f"\\x{byte:02X}" for byte in value.as_py())
    if pa.types.is_timestamp(kind) and kind.tz:
        # As text of the moment in UTC: the zone only says how a client shows it.
        return f"{_shown(value, pa.timestamp(kind.unit))}+00"
    if pa.types.is_floating(kind):
        return repr(float(value.as_py()))
    return _shown(value, kind)


def _shown(value: pa.Scalar, kind: pa.DataType) -> str:
    array = pa.array([value.as_py()], value.type) if not pa.types.is_timestamp(value.type) else _alone(value)
    return str(pc.cast(pc.cast(array, kind), pa.string())[0].as_py())


def _alone(value: pa.Scalar) -> pa.Array:
    # From its number: Python's moments have no nanoseconds.
    return pa.array([value.value], pa.int64()).cast(value.type)


def _microseconds(value: pa.Scalar) -> int:
    unit = value.type.unit
    return _whole_microseconds(value.value) if unit == "ns" else int(value.value * _TO_MICROSECONDS[unit])


def _whole_microseconds(nanoseconds: int) -> int:
    if nanoseconds % 1000:
        raise QueryError("A bound duration has nanoseconds, which DuckDB's have not", hint="round it")
    return int(nanoseconds // 1000)


def with_values(tree: Any, values: dict[str, dict[str, Any]]) -> Any:
    """Return a tree in which every parameter is the node of its value."""
    if isinstance(tree, list):
        return [with_values(each, values) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.get("class") == "PARAMETER":
        return {**values[str(tree["identifier"])], "alias": tree.get("alias", "")}
    return {key: [] if key == "named_param_map" else with_values(value, values) for key, value in tree.items()}
