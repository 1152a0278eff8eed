"""Ranges from the JSON statistics of ``add`` actions, for the columns that a predicate names and no others.

The whole column of texts is decoded as one NDJSON buffer into structs that hold nothing but the fields asked for; the
decoder checks the rest and skips it. Types are exact: 1.5 where a long is due is missing and not 2, decimals keep their
digits. If one text is bad the batch is read again, text by text, and only the bad value is missing. Where many fields
are asked for, texts that are alike are read all at once (``alike_ranges``), and the decoder has the rest.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal as PyDecimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pyarrow as pa

from lazydelta.arrays import one_array, typed_array
from lazydelta.execution import give_way
from lazydelta.stats.chosen_columns import has_range
from lazydelta.stats.json_texts import end_to_end
from lazydelta.stats.ranges import ColumnRange, Ranges, narrowed_floats
from lazydelta.types.literals import scaled
from lazydelta.types.schema import Column, DataType, Decimal, Primitive, Struct
from lazydelta.types.text import cast_decimals, from_text

if TYPE_CHECKING:
    import numpy.typing as npt  # its docstrings are made at import

__all__ = ["ranges_from_json"]

_Path: TypeAlias = tuple[str, ...]
_INT64 = 2**63
# With fewer fields the decoder is as quick: to skip what nobody asks for takes it less time than to prove it alike.
_FIELDS_WORTH_WHILE, _SLOTS_A_FIELD = 8, 3
_TEXTS_AT_ONCE = 1024  # half a millisecond's work, after which others are let in
_BAD_JSON = (msgspec.DecodeError, RecursionError, ValueError)  # UnicodeDecodeError is a ValueError


def ranges_from_json(
    stats: pa.Array | pa.ChunkedArray, columns: Sequence[Column], *, only_bounds: bool = False
) -> Ranges:
    """Read numRecords, tightBounds and the ranges of ``columns`` (physical names, nested) from texts of statistics.

    ``only_bounds`` leaves out all counts, which saves a quarter of the time; what the bounds alone rule out stays out.
    """
    stats = one_array(stats)
    fields = tuple(_fields(columns, only_bounds=only_bounds))
    if len(fields) < _FIELDS_WORTH_WHILE:
        return _decoded(stats, columns, fields, only_bounds=only_bounds)
    # A scan has seldom use for it, and its import would be in the way of the first file.
    from lazydelta.stats.alike_ranges import alike_or_decoded  # noqa: PLC0415

    return alike_or_decoded(
        stats,
        columns,
        lambda texts: _decoded(texts, columns, fields, only_bounds=only_bounds),
        only_bounds=only_bounds,
        most_slots=_SLOTS_A_FIELD * len(fields),
    )


def _decoded(stats: pa.Array, columns: Sequence[Column], fields: tuple[_Field, ...], *, only_bounds: bool) -> Ranges:
    values = dict(zip(fields, _decode(stats, fields), strict=True))
    found: dict[_Path, ColumnRange] = {}
    for column in columns:
        path, kind = column.physical_path, _kind(column.type)
        low = values.get((("minValues", *path), kind))
        high = values.get((("maxValues", *path), kind))
        counts = values.get((("nullCount", *path), "count"))
        if low is None and counts is None:
            continue
        found[path] = ColumnRange(
            None if low is None else _bounds(low, column.type, up=False),
            None if high is None else _bounds(high, column.type, up=True),
            None if counts is None else _counts(counts),
        )
    if only_bounds:
        return Ranges(len(stats), columns=found)
    return Ranges(len(stats), _counts(values[_NUM_RECORDS]), typed_array(values[_TIGHT_BOUNDS], pa.bool_()), found)


_Field: TypeAlias = tuple[_Path, str]
"""Path from the top of a text, and kind of value."""

_Reader: TypeAlias = Callable[[list[Any]], list[Any]]
_Readers: TypeAlias = list[tuple[str, _Reader]]
"""For each field the attribute of its section, or "" for the row itself, and what reads the values from there."""

_NUM_RECORDS: _Field = (("numRecords",), "count")
_TIGHT_BOUNDS: _Field = (("tightBounds",), "boolean")

_KINDS: dict[str, Any] = {
    "count": int | None,
    "integer": int | None,
    "float": float | str | None,
    "decimal": PyDecimal | None,
    "boolean": bool | None,
    "text": str | None,
}


def _fields(columns: Sequence[Column], *, only_bounds: bool) -> list[_Field]:
    fields: dict[_Field, None] = {} if only_bounds else {_NUM_RECORDS: None, _TIGHT_BOUNDS: None}
    for column in columns:
        if isinstance(column.type, Struct):
            continue  # Writers count the nulls of its fields, not its own.
        if has_range(column):
            kind = _kind(column.type)
            fields[("minValues", *column.physical_path), kind] = None
            fields[("maxValues", *column.physical_path), kind] = None
        if not only_bounds:
            fields[("nullCount", *column.physical_path), "count"] = None
    return list(fields)


def _kind(kind: DataType) -> str:
    if isinstance(kind, Decimal):
        return "decimal"
    if kind in _INTEGERS:
        return "integer"
    if kind in _FLOATS:
        return "float"
    return "boolean" if kind == Primitive("boolean") else "text"


_INTEGERS = tuple(map(Primitive, ("long", "integer", "short", "byte")))
_FLOATS = tuple(map(Primitive, ("float", "double")))


def _decode(stats: pa.Array, fields: tuple[_Field, ...]) -> list[list[Any]]:
    """Decode all texts: a list of values for each field."""
    fast = _decoder(fields)
    if fast is None:
        return _slowly(stats.to_pylist(), fields)
    decoder, readers = fast
    lines = end_to_end(stats)
    lists: list[list[Any]] = [[] for _ in fields]
    for start in range(0, len(stats), _TEXTS_AT_ONCE):
        texts = stats.slice(start, _TEXTS_AT_ONCE)
        rows = None if lines is None else _decode_lines(decoder, *lines, start, start + len(texts))
        found = _one_by_one(decoder, readers, texts, fields) if rows is None else _transposed(rows, readers)
        for values, more in zip(lists, found, strict=True):
            values.extend(more)
        give_way()
    return lists


def _decode_lines(
    decoder: msgspec.json.Decoder[Any], lines: memoryview, offsets: npt.NDArray[Any], start: int, end: int
) -> list[Any] | None:
    """Decode some of the texts in one go; None if one is bad, or not surely one document in each."""
    try:
        rows = decoder.decode_lines(lines[offsets[start] : offsets[end]])
    except _BAD_JSON:
        return None
    return rows if len(rows) == end - start else None


def _one_by_one(
    decoder: msgspec.json.Decoder[Any], readers: _Readers, stats: pa.Array, fields: tuple[_Field, ...]
) -> list[list[Any]]:
    rows, bad = [], {}
    for index, text in enumerate(stats.to_pylist()):
        try:
            rows.append(decoder.decode(text or "{}"))
        except _BAD_JSON:
            rows.append(decoder.decode("{}"))
            bad[index] = text
    lists = _transposed(rows, readers)
    for good, repaired in zip(lists, _slowly(list(bad.values()), fields), strict=True):
        for index, value in zip(bad, repaired, strict=True):
            good[index] = value
    return lists


def _transposed(rows: list[Any], readers: _Readers) -> list[list[Any]]:
    """Return a list of values for each field; a section is fetched once for all of its fields."""
    sections: dict[str, list[Any]] = {}
    lists = []
    for section, reader in readers:
        if section and section not in sections:
            sections[section] = list(map(attrgetter(section), rows))
        lists.append(_read(sections[section] if section else rows, reader))
    return lists


def _read(rows: list[Any], reader: _Reader) -> list[Any]:
    try:
        return reader(rows)
    except AttributeError:  # A section or a struct in it that is null.
        return [_or_none(reader, row) for row in rows]


def _or_none(reader: _Reader, row: Any) -> Any:
    try:
        return reader([row])[0]
    except AttributeError:
        return None


@functools.lru_cache(maxsize=256)
def _decoder(fields: tuple[_Field, ...]) -> tuple[msgspec.json.Decoder[Any], _Readers] | None:
    """Build structs that hold just ``fields``, with a reader for each; None where a name cannot be a field's."""
    tree: dict[str, Any] = {}
    for path, kind in fields:
        level = tree
        for name in path[:-1]:
            level = level.setdefault(name, {})
            if not isinstance(level, dict):
                return None
        level[path[-1]] = kind
    places: dict[_Path, str] = {}

    def build(level: dict[str, Any], path: _Path, attributes: str) -> type[msgspec.Struct]:
        members: list[Any] = []
        names: dict[str, str] = {}
        for index, (name, content) in enumerate(level.items()):
            member = f"f{index}"
            names[member] = name
            if isinstance(content, dict):
                inner = build(content, (*path, name), f"{attributes}{member}.")
                members.append((member, inner | None, msgspec.field(default_factory=inner)))
            else:
                members.append((member, _KINDS[content], None))
                places[*path, name] = f"{attributes}{member}"
        return msgspec.defstruct("Level", members, rename=names, gc=False)

    try:
        decoder = msgspec.json.Decoder(build(tree, (), ""))
    except (ValueError, TypeError):
        return None  # A name with a quote, a backslash or a control character in it.
    shared = Counter(path[0] for path, _ in fields)
    readers: _Readers = []
    for path, _ in fields:
        section, _, rest = places[path].partition(".")
        readers.append((section, _reader(rest)) if shared[path[0]] > 1 else ("", _reader(places[path])))
    return decoder, readers


def _reader(place: str) -> _Reader:
    # Compiled, with names that are all our own (f0.f1): the interpreter then reads members in half the time that
    # attrgetter takes, a million times over.
    reader: _Reader = eval(f"lambda rows: [row.{place} for row in rows]")  # noqa: S307
    return reader


_OBJECT: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _slowly(texts: Sequence[str | None], fields: tuple[_Field, ...]) -> list[list[Any]]:
    """Decode text by text and value by value, so that one bad value costs only itself."""
    results: list[list[Any]] = [[] for _ in fields]
    for text in texts:
        opened: dict[_Path, dict[str, msgspec.Raw]] = {(): _object(text)}
        for result, (path, kind) in zip(results, fields, strict=True):
            for depth in range(1, len(path)):
                if path[:depth] not in opened:
                    opened[path[:depth]] = _object(opened[path[: depth - 1]].get(path[depth - 1]))
            result.append(_value(opened[path[:-1]].get(path[-1]), kind))
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
        return cast_decimals(texts, kind.to_arrow())
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
    return narrowed_floats(doubles, target)


def _number(value: float | str | None) -> float | None:
    if isinstance(value, str):
        return {"Infinity": math.inf, "-Infinity": -math.inf, "+Infinity": math.inf, "inf": math.inf}.get(value)
    return value
