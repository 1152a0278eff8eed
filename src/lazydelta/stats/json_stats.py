"""Ranges from the JSON statistics of ``add`` actions, only for the columns that a predicate names.

The whole string column is decoded as one NDJSON buffer into structs that hold only the requested fields; the decoder
validates the rest and skips it. Types are exact: 1.5 in place of a long is missing instead of 2, and decimals keep
their digits. If one string is invalid, the batch is decoded again string by string, and only the invalid value is
missing. If many fields are requested, strings of the same shape are read in bulk (``similar_json``), and the decoder
reads the rest.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal as PyDecimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.log.file_batch import FileBatch
from lazydelta.protocol.schema import Column, DataType, Decimal, Primitive, Struct
from lazydelta.protocol.values import cast_decimals, from_text, is_float, scaled
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import one_array, typed_array
from lazydelta.runtime.threads import give_way
from lazydelta.stats.collector import has_range
from lazydelta.stats.ranges import (
    WRITTEN_HERE,
    ColumnRange,
    Ranges,
    combine,
    narrowed_floats,
    partition_ranges,
    partition_ranges_from_parsed,
    ranges_from_parsed,
)

if TYPE_CHECKING:
    import numpy.typing as npt  # builds its docstrings at import

__all__ = [
    "file_partition_ranges",
    "is_timestamp",
    "is_written_here",
    "ranges_from_json",
    "stats_ranges",
    "with_writers",
]


# A column of JSON objects as one buffer that a decoder can read document by document.


_OPENS, _CLOSES, _QUOTES = b"{"[0], b"}"[0], b'"'[0]
_FIRST_LETTER, _LAST_LETTER, _LOWER = b"a"[0], b"z"[0], 0x20
_SHORTEST = len('{"a"}')


def end_to_end(texts: pa.Array) -> tuple[memoryview, npt.NDArray[Any]] | None:
    """Return all strings in one buffer with their offsets, null as ``{}``; None if one does not look like an object.

    If several consecutive strings decode into as many objects, each of them is one object: none can continue into the
    next string.
    """
    if texts.null_count == 0 and len(texts):
        values, offsets = _parts(texts)
        if _cannot_run_over(values, offsets):
            return values, offsets
    empty, newline, nothing = pc.cast(typed_array(["{}", "\n", ""], pa.string()), pa.large_string())
    filled = pc.fill_null(pc.cast(texts, pa.large_string()), empty)  # 64-bit offsets: the result may exceed 2 GB
    if not (pc.all(pc.starts_with(filled, "{")).as_py() and pc.all(pc.ends_with(filled, "}")).as_py()):
        return None
    # An object that does not end with its string ends inside a JSON string, which cannot contain a newline.
    return _parts(pc.binary_join_element_wise(filled, nothing, newline))


def _parts(texts: pa.Array) -> tuple[memoryview, npt.NDArray[Any]]:
    kind = np.dtype(np.int64 if pa.types.is_large_string(texts.type) else np.int32)
    _, offsets, values = texts.buffers()
    found = np.frombuffer(offsets, kind, len(texts) + 1, texts.offset * kind.itemsize)
    return memoryview(b"" if values is None else values), found


def _cannot_run_over(values: memoryview, offsets: npt.NDArray[Any]) -> bool:
    """Return whether strings that follow one another without a newline are still unambiguous.

    They are if each begins with ``{"`` and a letter. An object that does not end with its string ends inside a JSON
    string. The next string would close it with its quotation mark, which no letter may follow.
    """
    starts, ends = offsets[:-1], offsets[1:]
    if (ends - starts).min() < _SHORTEST:
        return False
    byte_at = np.frombuffer(values, np.uint8).take
    letters = byte_at(starts + 2) | _LOWER
    return bool(
        (byte_at(starts) == _OPENS).all()
        and (byte_at(starts + 1) == _QUOTES).all()
        and ((letters >= _FIRST_LETTER) & (letters <= _LAST_LETTER)).all()
        and (byte_at(ends - 1) == _CLOSES).all()
    )


_Path: TypeAlias = tuple[str, ...]
_INT64 = 2**63
# With fewer fields the decoder is as fast: it skips other fields in less time than it takes to compare shapes.
_FIELDS_WORTH_WHILE, _SLOTS_A_FIELD = 8, 3
_TEXTS_AT_ONCE = 1024  # half a millisecond of work, after which other threads get a turn
_BAD_JSON = (msgspec.DecodeError, RecursionError, ValueError)  # UnicodeDecodeError is a ValueError


def ranges_from_json(
    stats: pa.Array | pa.ChunkedArray, columns: Sequence[Column], *, only_bounds: bool = False
) -> Ranges:
    """Read numRecords, tightBounds and the ranges of ``columns`` (physical names, nested) from JSON statistics.

    ``only_bounds`` leaves out all counts, which saves a quarter of the time; pruning by bounds still works.
    """
    stats = one_array(stats)
    fields = tuple(_fields(columns, only_bounds=only_bounds))
    if len(fields) < _FIELDS_WORTH_WHILE:
        return _decoded(stats, columns, fields, only_bounds=only_bounds)
    # Few scans need it, and importing it would delay the first file.
    from lazydelta.stats.similar_json import parse_similar  # noqa: PLC0415

    return parse_similar(
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
"""Path from the root of the JSON object, and kind of value."""

_Reader: TypeAlias = Callable[[list[Any]], list[Any]]
_Readers: TypeAlias = list[tuple[str, _Reader]]
"""For each field the attribute of its section, or "" for the row itself, and the function that reads its values."""

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
    """Decode all strings: a list of values for each field."""
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
    """Decode a range of strings at once; None if one is invalid, or may not be exactly one document."""
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
    except AttributeError:  # A section, or a struct in it, is null.
        return [_or_none(reader, row) for row in rows]


def _or_none(reader: _Reader, row: Any) -> Any:
    try:
        return reader([row])[0]
    except AttributeError:
        return None


@functools.lru_cache(maxsize=256)
def _decoder(fields: tuple[_Field, ...]) -> tuple[msgspec.json.Decoder[Any], _Readers] | None:
    """Build structs that hold only ``fields``, with a reader for each; None if a name cannot be a field name."""
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
        return None  # A name contains a quote, a backslash or a control character.
    shared = Counter(path[0] for path, _ in fields)
    readers: _Readers = []
    for path, _ in fields:
        section, _, rest = places[path].partition(".")
        readers.append((section, _reader(rest)) if shared[path[0]] > 1 else ("", _reader(places[path])))
    return decoder, readers


def _reader(place: str) -> _Reader:
    # Compiled, with generated names only (f0.f1): this reads members in half the time that attrgetter takes, a million
    # times over.
    reader: _Reader = eval(f"lambda rows: [row.{place} for row in rows]")  # noqa: S307
    return reader


_OBJECT: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _slowly(texts: Sequence[str | None], fields: tuple[_Field, ...]) -> list[list[Any]]:
    """Decode each string value by value, so that an invalid value affects only itself."""
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
    # Digits beyond the scale are floating-point noise: round outwards.
    unscaled = scaled(value, kind.scale)[1 if up else 0]
    return unscaled if abs(unscaled) < 10**kind.precision else None


def _floats(values: list[Any], target: pa.DataType) -> pa.Array:
    try:
        doubles = typed_array(values, pa.float64())
    except TypeError:  # NaN and infinities are logged as strings.
        doubles = typed_array([_number(each) for each in values], pa.float64())
    return narrowed_floats(doubles, target)


def _number(value: float | str | None) -> float | None:
    if isinstance(value, str):
        return {"Infinity": math.inf, "-Infinity": -math.inf, "+Infinity": math.inf, "inf": math.inf}.get(value)
    return value


# The ranges of a batch of files from all sources; this section decides which source wins.


_WRITTEN_HERE = rf"{re.escape(WRITTEN_HERE)}(\.[a-z]+)?\.parquet$"


def stats_ranges(batch: FileBatch, columns: Sequence[Column]) -> Ranges:
    """Return the ranges of ``columns`` from the statistics of a batch, and whether their maxima account for NaN."""
    return with_writers(batch, _logged_ranges(batch, columns), columns)


def with_writers(batch: FileBatch, ranges: Ranges, columns: Sequence[Column]) -> Ranges:
    """Mark the files whose float maxima account for NaN, according to their names, in the ranges of a batch."""
    floats = {each.physical_path for each in columns if is_float(each.type)} & ranges.columns.keys()
    if not floats:
        return ranges
    ours = pc.match_substring_regex(batch.path, pattern=_WRITTEN_HERE)
    marked = {path: msgspec.structs.replace(ranges.columns[path], max_knows_nan=ours) for path in floats}
    return msgspec.structs.replace(ranges, columns={**ranges.columns, **marked})


def _logged_ranges(batch: FileBatch, columns: Sequence[Column]) -> Ranges:
    """Return the ranges from the typed statistics, and from the JSON for what they lack.

    For timestamps, JSON wins if present. Typed statistics are a copy of it, and some copies were converted through
    nanoseconds, which cannot represent the year 9999.
    """
    if batch.parsed_stats is None:
        return Ranges(len(batch)) if batch.json_stats is None else ranges_from_json(batch.json_stats, columns)
    typed = ranges_from_parsed(batch.parsed_stats, columns)
    if batch.json_stats is None:
        return typed
    only_text = pc.and_(pc.is_null(batch.parsed_stats), pc.is_valid(batch.json_stats))
    if only_text.true_count == 0:
        columns = [column for column in columns if is_timestamp(column) or _is_untyped(typed, column)]
    if not columns:
        return typed
    text = ranges_from_json(batch.json_stats, columns)
    timestamps = {column.physical_path for column in columns if is_timestamp(column)}
    first = Ranges(len(batch), columns={path: known for path, known in text.columns.items() if path in timestamps})
    return combine([first, typed, text])


def is_written_here(path: str) -> bool:
    """Return whether lazydelta wrote a file, according to its name: no other writer is known to use such names."""
    return re.search(_WRITTEN_HERE, path) is not None


def file_partition_ranges(batch: FileBatch, columns: Sequence[Column]) -> Ranges:
    """Return the ranges of ``columns`` from the partition values of a batch.

    Typed values are faster to read, but a null among them may be a string that its writer could not parse, which means
    unknown, not null. Only string columns have no unparsable values.
    """
    parsed = batch.parsed_partitions
    if parsed is None or any(_has_nulls(parsed, column) for column in columns if column.is_partition):
        return partition_ranges(batch.partition_values, columns)
    return partition_ranges_from_parsed(parsed, columns)


def is_timestamp(column: Column) -> bool:
    """Return whether a column holds timestamps."""
    return column.type in (Primitive("timestamp"), Primitive("timestamp_ntz"))


def _has_nulls(structs: pa.StructArray, column: Column) -> bool:
    position = structs.type.get_field_index(column.physical_path[0])
    return position < 0 or (column.type != Primitive("string") and pc.struct_field(structs, [position]).null_count > 0)


def _is_untyped(typed: Ranges, column: Column) -> bool:
    known = typed.column(column)
    return known is None or known.null_count is None or (has_range(column) and (known.min is None or known.max is None))
