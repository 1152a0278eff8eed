"""Ranges from the JSON statistics of ``add`` actions, for the columns that a predicate names and no others.

The whole column of texts is decoded as one NDJSON buffer into structs that hold nothing but the fields asked for; the
decoder skips the rest. Types are exact: 1.5 where a long is due is missing and not 2, decimals keep their digits. If
one text is bad the batch is read again, text by text, and only the bad value is missing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from decimal import Decimal as PyDecimal
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.log.schema import Column, DataType, Decimal, Primitive, Struct
from lazydelta.pruning.literals import scaled
from lazydelta.pruning.native import typed_array, typed_scalar
from lazydelta.pruning.ranges import ColumnRange, Ranges
from lazydelta.pruning.text import from_text

__all__ = ["ranges_from_json"]

_Path: TypeAlias = tuple[str, ...]
_SECTIONS = ("minValues", "maxValues", "nullCount")
_INT64 = 2**63
_BAD_JSON = (msgspec.DecodeError, RecursionError, ValueError)  # UnicodeDecodeError is a ValueError


def ranges_from_json(stats: pa.Array | pa.ChunkedArray, columns: Sequence[Column]) -> Ranges:
    """Read numRecords, tightBounds and the ranges of ``columns`` (physical names, nested) from texts of statistics."""
    if isinstance(stats, pa.ChunkedArray):
        combined = stats.combine_chunks()
        stats = combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
    if not pa.types.is_large_string(stats.type):
        stats = pc.cast(stats, pa.large_string())  # 64-bit offsets: a batch may hold more than 2 GB of statistics.
    fields = tuple(_fields(columns))
    rows = _decode(stats, fields)
    found: dict[_Path, ColumnRange] = {}
    values = dict(zip(fields, rows[2:], strict=True))
    for column in columns:
        path = column.physical_path
        counts = values.get(("nullCount", path, "count"))
        if counts is None:
            continue
        low = values.get(("minValues", path, _kind(column.type)))
        high = values.get(("maxValues", path, _kind(column.type)))
        found[path] = ColumnRange(
            None if low is None else _bounds(low, column.type, up=False),
            None if high is None else _bounds(high, column.type, up=True),
            _counts(counts),
        )
    return Ranges(len(stats), _counts(rows[0]), typed_array(rows[1], pa.bool_()), found)


_Field: TypeAlias = tuple[str, _Path, str]
"""Section, path below it, and kind of value."""

_KINDS: dict[str, Any] = {
    "count": int | None,
    "integer": int | None,
    "float": float | str | None,
    "decimal": PyDecimal | None,
    "boolean": bool | None,
    "text": str | None,
}


def _fields(columns: Sequence[Column]) -> list[_Field]:
    fields: dict[_Field, None] = {}
    for column in columns:
        if isinstance(column.type, Struct):
            continue  # Writers count the nulls of its fields, not its own.
        kind = _kind(column.type)
        if kind:
            fields["minValues", column.physical_path, kind] = None
            fields["maxValues", column.physical_path, kind] = None
        fields["nullCount", column.physical_path, "count"] = None
    return list(fields)


def _kind(kind: DataType) -> str:
    if isinstance(kind, Decimal):
        return "decimal"
    if not isinstance(kind, Primitive):
        return ""
    if kind.name in {"long", "integer", "short", "byte"}:
        return "integer"
    if kind.name in {"float", "double"}:
        return "float"
    if kind.name == "boolean":
        return "boolean"
    return "text" if kind.name in {"string", "date", "timestamp", "timestamp_ntz"} else ""


def _decode(stats: pa.Array, fields: tuple[_Field, ...]) -> list[list[Any]]:
    """Decode all texts: a list of numRecords, one of tightBounds, then one for each field."""
    fast = _decoder(fields)
    if fast is None:
        return _slowly(stats.to_pylist(), fields)
    decoder, getters = fast
    rows = _decode_lines(decoder, stats)
    bad: dict[int, str] = {}
    if rows is None:
        rows = []
        for index, text in enumerate(stats.to_pylist()):
            try:
                rows.append(decoder.decode(text or "{}"))
            except _BAD_JSON:
                rows.append(decoder.decode("{}"))
                bad[index] = text
    lists = _transposed(rows, getters)
    if bad:
        for good, repaired in zip(lists, _slowly(list(bad.values()), fields), strict=True):
            for index, value in zip(bad, repaired, strict=True):
                good[index] = value
    return lists


def _decode_lines(decoder: msgspec.json.Decoder[Any], stats: pa.Array) -> list[Any] | None:
    empty, newline, nothing = (typed_scalar(each, pa.string()).cast(pa.large_string()) for each in ("{}", "\n", ""))
    filled = pc.fill_null(stats, empty)
    # The decoder goes from document to document, not from line to line. Texts that all start with { and end with }
    # cannot run into one another, so as many documents as texts means one in each.
    if not (pc.all(pc.starts_with(filled, "{")).as_py() and pc.all(pc.ends_with(filled, "}")).as_py()):
        return None
    lines = pc.binary_join_element_wise(filled, nothing, newline)
    if len(lines) == 0:
        return []
    first, last = lines.offset, lines.offset + len(lines)
    offsets = memoryview(lines.buffers()[1]).cast("q")
    try:
        rows = decoder.decode_lines(memoryview(lines.buffers()[2])[offsets[first] : offsets[last]])
    except _BAD_JSON:
        return None
    return rows if len(rows) == len(stats) else None


def _transposed(rows: list[Any], getters: Sequence[str]) -> list[list[Any]]:
    """Return a list of values for each getter; a section is fetched once for all of its fields."""
    sections: dict[str, list[Any]] = {}
    lists = []
    for getter in getters:
        section, _, rest = getter.partition(".")
        if section not in sections:
            sections[section] = list(map(attrgetter(section), rows))
        lists.append(_read(sections[section], attrgetter(rest)) if rest else sections[section])
    return lists


def _read(rows: list[Any], reader: Callable[[Any], Any]) -> list[Any]:
    try:
        return list(map(reader, rows))
    except AttributeError:  # A section or a struct in it that is null.
        return [_or_none(reader, row) for row in rows]


def _or_none(reader: Callable[[Any], Any], row: Any) -> Any:
    try:
        return reader(row)
    except AttributeError:
        return None


@functools.lru_cache(maxsize=256)
def _decoder(fields: tuple[_Field, ...]) -> tuple[msgspec.json.Decoder[Any], list[str]] | None:
    """Build structs that hold just ``fields``, with a getter for each; None where a name cannot be a field's."""
    tree: dict[str, Any] = {}
    for section, path, kind in fields:
        level = tree.setdefault(section, {})
        for name in path[:-1]:
            level = level.setdefault(name, {})
            if not isinstance(level, dict):
                return None
        level[path[-1]] = kind
    getters: dict[_Field, str] = {}

    def build(level: dict[str, Any], section: str, path: _Path, attributes: str) -> type[msgspec.Struct]:
        members: list[Any] = []
        names: dict[str, str] = {}
        for index, (name, content) in enumerate(level.items()):
            member = f"f{index}"
            names[member] = name
            if isinstance(content, dict):
                inner = build(content, section, (*path, name), f"{attributes}.{member}")
                members.append((member, inner | None, msgspec.field(default_factory=inner)))
            else:
                members.append((member, _KINDS[content], None))
                getters[section, (*path, name), content] = f"{attributes}.{member}"
        return msgspec.defstruct("Level", members, rename=names, gc=False)

    try:
        sections: list[Any] = [("num", int | None, None), ("tight", bool | None, None)]
        names = {"num": "numRecords", "tight": "tightBounds"}
        for position, section in enumerate(each for each in _SECTIONS if each in tree):
            inner = build(tree[section], section, (), f"s{position}")
            sections.append((f"s{position}", inner | None, msgspec.field(default_factory=inner)))
            names[f"s{position}"] = section
        top = msgspec.defstruct("Stats", sections, rename=names, gc=False)
        decoder = msgspec.json.Decoder(top)
    except (ValueError, TypeError):
        return None  # A name with a quote, a backslash or a control character in it.
    return decoder, ["num", "tight", *(getters[each] for each in fields)]


_OBJECT: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _slowly(texts: Sequence[str | None], fields: tuple[_Field, ...]) -> list[list[Any]]:
    """Decode text by text and value by value, so that one bad value costs only itself."""
    results: list[list[Any]] = [[] for _ in range(len(fields) + 2)]
    for text in texts:
        row = _object(text)
        results[0].append(_value(row.get("numRecords"), "count"))
        results[1].append(_value(row.get("tightBounds"), "boolean"))
        opened: dict[_Path, dict[str, msgspec.Raw]] = {(): row}
        for result, (section, path, kind) in zip(results[2:], fields, strict=True):
            full = (section, *path)
            for depth in range(1, len(full)):
                if full[:depth] not in opened:
                    opened[full[:depth]] = _object(opened[full[: depth - 1]].get(full[depth - 1]))
            result.append(_value(opened[full[:-1]].get(full[-1]), kind))
    return results


def _object(raw: msgspec.Raw | str | None) -> dict[str, msgspec.Raw]:
    if raw is None:
        return {}
    try:
        return _OBJECT.decode(raw)
    except _BAD_JSON:
        return {}


def _value(raw: msgspec.Raw | None, kind: str) -> Any:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=_KINDS[kind])
    except _BAD_JSON:
        return None


def _counts(values: list[Any]) -> pa.Array:
    try:
        return typed_array(values, pa.int64())
    except OverflowError:
        return typed_array([each if each is not None and 0 <= each < _INT64 else None for each in values], pa.int64())


def _bounds(values: list[Any], kind: DataType, *, up: bool) -> pa.Array:
    target = kind.to_arrow()
    if isinstance(kind, Decimal):
        return _decimals(values, kind, up=up)
    if pa.types.is_integer(target):
        try:
            return typed_array(values, target)
        except OverflowError:
            limit = 2 ** (target.bit_width - 1)
            return typed_array(
                [each if each is not None and -limit <= each < limit else None for each in values], target
            )
    if pa.types.is_floating(target):
        return _floats(values, target)
    if pa.types.is_boolean(target):
        return typed_array(values, target)
    return from_text(typed_array(values, pa.string()), kind)


def _decimals(values: list[Any], kind: Decimal, *, up: bool) -> pa.Array:
    try:
        texts = typed_array([None if each is None else str(each) for each in values], pa.string())
        return pc.cast(texts, kind.to_arrow())
    except pa.ArrowException:
        return typed_array([_decimal(value, kind, up=up) for value in values], kind.to_arrow())


def _decimal(value: PyDecimal | None, kind: Decimal, *, up: bool) -> int | None:
    if value is None or not value.is_finite():
        return None
    # Digits beyond the scale are noise of a double: round outwards.
    unscaled = scaled(value, kind.scale)[1 if up else 0]
    return unscaled if abs(unscaled) < 10**kind.precision else None


def _floats(values: list[Any], target: pa.DataType) -> pa.Array:
    try:
        doubles = typed_array(values, pa.float64())
    except TypeError:  # NaN and infinities are logged as texts.
        doubles = typed_array([_number(each) for each in values], pa.float64())
    if target == pa.float64():
        return doubles
    singles = pc.cast(doubles, target, safe=False)
    overflowed = pc.and_(pc.is_inf(singles), pc.is_finite(doubles))
    return pc.if_else(overflowed, typed_scalar(None, target), singles)


def _number(value: float | str | None) -> float | None:
    if isinstance(value, str):
        return {"Infinity": math.inf, "-Infinity": -math.inf, "+Infinity": math.inf, "inf": math.inf}.get(value)
    return value
