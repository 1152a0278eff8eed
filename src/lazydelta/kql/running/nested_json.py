"""Structs, arrays and maps of a table as ``dynamic`` values: JSON with moments and numbers as Kusto writes them."""

from __future__ import annotations

import pyarrow as pa

from lazydelta.kql.meaning.typed import quoted

__all__ = ["nested_json"]


def nested_json(sql: str, kind: pa.DataType) -> str:
    """Return SQL that makes JSON of a nested value."""
    # DuckDB's own conversion is the quicker one, and right for most types.
    return _json(sql, kind, 0) if _needs_words(kind) else f"to_json({sql})"


def _needs_words(kind: pa.DataType) -> bool:
    """Tell whether a type holds, at any depth, what DuckDB writes differently: NaN, moments, bytes."""
    if pa.types.is_nested(kind):
        return any(_needs_words(kind.field(index).type) for index in range(kind.num_fields))
    return any(
        test(kind)
        for test in (pa.types.is_floating, pa.types.is_temporal, pa.types.is_binary, pa.types.is_large_binary)
    )


def _json(sql: str, kind: pa.DataType, depth: int) -> str:
    if pa.types.is_struct(kind):
        return f"CASE WHEN {sql} IS NOT NULL THEN {_object(sql, kind, depth)} END"
    if pa.types.is_map(kind):
        entry = f"e{depth}"
        key, value = f"CAST({entry}.key AS VARCHAR)", _json(f"{entry}.value", kind.item_type, depth + 1)
        pairs = f"list_transform(map_entries({sql}), lambda {entry}: {{'key': {key}, 'value': {value}}})"
        return f"to_json(map_from_entries({pairs}))"
    if pa.types.is_nested(kind):
        element = f"e{depth}"
        return f"to_json(list_transform({sql}, lambda {element}: {_json(element, kind.value_type, depth + 1)}))"
    if pa.types.is_floating(kind):
        return f"kql_real_json({sql})"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return f"CASE WHEN {sql} IS NOT NULL THEN to_json(kql_moment_text(CAST({sql} AS TIMESTAMP))) END"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return f"to_json(to_base64({sql}))"
    return f"to_json({sql})"


def _object(sql: str, kind: pa.StructType, depth: int) -> str:
    fields = (kind.field(index) for index in range(kind.num_fields))
    parts = (
        f"{quoted(field.name)}, {_json(f'struct_extract({sql}, {quoted(field.name)})', field.type, depth)}"
        for field in fields
    )
    return f"json_object({', '.join(parts)})"
