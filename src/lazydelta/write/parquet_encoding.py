"""Parquet encoding settings beyond compression, for callers that know their data better than the writer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import OptionError
from lazydelta.log.checkpoint.pages import ThriftCursor
from lazydelta.runtime import compute as pc

__all__ = [
    "ENCODINGS",
    "SAMPLE_ROWS",
    "ColumnEncoding",
    "ParquetEncoding",
    "leaf_columns",
    "leaves_with_nan",
    "repeats",
    "without_bounds",
]

ENCODINGS = (
    "PLAIN",
    "RLE",
    "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY",
    "DELTA_BYTE_ARRAY",
    "BYTE_STREAM_SPLIT",
)


class ColumnEncoding(msgspec.Struct, frozen=True):
    """Encoding of one column. None leaves the choice to the writer.

    ``bloom_filter`` is the expected number of distinct values and the false-positive rate of a Bloom filter. Either may
    be None.
    """

    dictionary: bool | None = None
    statistics: bool | None = None
    encoding: str | None = None
    bloom_filter: tuple[int | None, float | None] | None = None

    def over(self, other: ColumnEncoding) -> ColumnEncoding:
        """Return both settings merged. This one takes precedence."""
        own = {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not None}
        if self.encoding is not None and self.dictionary is None:
            own["dictionary"] = False  # a column with an explicit encoding cannot have a dictionary
        if self.dictionary:
            own.setdefault("encoding", None)
        return msgspec.structs.replace(other, **own)


class ParquetEncoding(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's choice of Parquet settings. None leaves a setting to the writer.

    ``columns`` uses the table's column names, and dotted paths for struct fields. A setting for a nested column applies
    to all its leaves. ``every`` applies to columns that are not named, and to what a named column leaves open.
    """

    compression_level: int | None = None
    page_bytes: int | None = None
    page_rows: int | None = None
    dictionary_bytes: int | None = None
    batch_rows: int | None = None
    row_group_rows: int | None = None
    every: ColumnEncoding = ColumnEncoding()
    columns: Mapping[str, ColumnEncoding] = {}

    def __post_init__(self) -> None:
        """Validate the settings before any work begins."""
        for name in ("page_bytes", "page_rows", "dictionary_bytes", "batch_rows", "row_group_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name}={value} is not valid for Parquet files", hint="pass a number of at least 1")
        for each in (self.every, *self.columns.values()):
            if each.encoding is not None and each.encoding not in ENCODINGS:
                message = f"Parquet columns have no encoding {each.encoding!r}"
                raise OptionError(message, hint=f"use one of {', '.join(ENCODINGS)}")

    def check(self, rows: pa.Schema, partition_columns: Sequence[str]) -> None:
        """Raise for columns that data files do not have. ``rows`` is their schema with the table's column names."""
        known = {path for field in rows for leaf in leaf_columns(field) for path in _with_parents(leaf)}
        for path in self.columns:
            if path not in known:
                inside = path in partition_columns
                reason = "data files do not hold partition columns" if inside else "the table does not have it"
                message = f"The column {path!r} cannot be encoded: {reason}"
                raise OptionError(message, hint=f"data files have: {', '.join(rows.names)}")

    def settings(self, rows: pa.Schema, stored: pa.Schema, repetitive: Collection[str]) -> dict[str, Any]:
        """Return the keyword arguments for PyArrow's writer.

        ``rows`` has the table's column names and ``stored`` those of the files. ``repetitive`` are the stored columns
        for which the writer would choose a dictionary.
        """
        chosen, repetitive = dict(self._chosen(rows, stored)), frozenset(repetitive)
        plain = {name: each.encoding for name, each in chosen.items() if each.encoding is not None}
        with_dictionary = [
            name
            for name, each in chosen.items()
            if name not in plain and (name in repetitive if each.dictionary is None else each.dictionary)
        ]
        quiet = any(each.statistics is False for each in chosen.values())
        filters = {name: _bloom(each.bloom_filter) for name, each in chosen.items() if each.bloom_filter is not None}
        settings = {
            "compression_level": self.compression_level,
            "data_page_size": self.page_bytes,
            "max_rows_per_page": self.page_rows,
            "dictionary_pagesize_limit": self.dictionary_bytes,
            "write_batch_size": self.batch_rows,
            "column_encoding": plain or None,
            "bloom_filter_options": filters or None,
            "write_statistics": [name for name, each in chosen.items() if each.statistics is not False]
            if quiet
            else None,
        }
        return {"use_dictionary": with_dictionary} | {key: each for key, each in settings.items() if each is not None}

    def codecs(self, rows: pa.RecordBatch, compression: str) -> str | dict[str, str]:
        """Return the codec of all stored columns, or of each if some do not get smaller: random numbers, for instance.

        Compressing those takes a tenth of the time of a file, and reading them longer.
        """
        if compression != "zstd" or self.compression_level is not None:
            return compression
        dense = [field.name for field in rows.schema if _is_dense(rows.column(field.name))]
        leaves = [leaf for field in rows.schema for leaf in leaf_columns(field)] if dense else []
        return dict.fromkeys(leaves, compression) | dict.fromkeys(dense, "none") if dense else compression

    def _chosen(self, rows: pa.Schema, stored: pa.Schema) -> list[tuple[str, ColumnEncoding]]:
        if not self.columns:
            return [(leaf, self.every) for field in stored for leaf in leaf_columns(field)]
        found = []
        for shown, field in zip(rows, stored, strict=True):
            for path, leaf in zip(leaf_columns(shown), leaf_columns(field), strict=True):
                choice = self.every
                for name in _with_parents(path):  # the innermost name takes precedence
                    if name in self.columns:
                        choice = self.columns[name].over(choice)
                found.append((leaf, choice))
        return found


def _with_parents(path: str) -> list[str]:
    """Return a dotted path and its parents, outermost first."""
    return [path[:end] for end, letter in enumerate(path) if letter == "."] + [path]


def _bloom(wanted: tuple[int | None, float | None]) -> Any:
    distinct, wrong = wanted
    given = {"ndv": distinct, "fpp": wrong}
    return {key: value for key, value in given.items() if value is not None} or True


def leaf_columns(field: pa.Field, above: str = "") -> list[str]:
    """Return the Parquet paths of the leaf columns of a field."""
    name, kind = f"{above}{field.name}", field.type
    if kind.num_fields == 0:
        return [name]
    if pa.types.is_struct(kind):
        return [leaf for each in kind for leaf in leaf_columns(each, f"{name}.")]
    if pa.types.is_map(kind):
        parts = (kind.key_field.with_name("key"), kind.item_field.with_name("value"))
        return [leaf for each in parts for leaf in leaf_columns(each, f"{name}.key_value.")]
    if pa.types.is_list(kind):
        return leaf_columns(kind.value_field.with_name("element"), f"{name}.list.")
    return [name]


# --- choices by a sample of the rows


SAMPLE_ROWS = 1 << 14
"""Number of rows sampled to detect repeated values in a column."""
# Bytes sampled to detect columns that do not compress, and what is left of their size.
_DENSE_SAMPLE, _DENSE = 1 << 15, 0.9


def repeats(rows: pa.RecordBatch, field: pa.Field) -> bool:
    """Return whether a dictionary of the values of a column is worth its size."""
    if pa.types.is_nested(field.type):
        return True
    sample = rows.column(field.name).slice(0, SAMPLE_ROWS)
    try:
        return bool(2 * pc.count_distinct(sample, mode="all").as_py() <= len(sample))
    except pa.ArrowNotImplementedError:
        return True


def _is_dense(column: pa.Array) -> bool:
    """Return whether a column of numbers cannot be compressed."""
    if not pa.types.is_floating(column.type) and not pa.types.is_int64(column.type):
        return False
    width = column.type.bit_width // 8
    sample = column.buffers()[1].slice(column.offset * width, min(_DENSE_SAMPLE, len(column) * width))
    return bool(pa.compress(sample, codec="zstd").size > _DENSE * sample.size)


# --- bounds of chunks with NaN


def leaves_with_nan(rows: pa.RecordBatch) -> list[int]:
    """Return the indices of the leaf columns that contain a NaN in these rows."""
    found: list[int] = []
    place = 0
    for index, kind in enumerate(rows.schema.types):
        if kind.num_fields == 0 and not pa.types.is_floating(kind):  # most columns of a wide table: do not touch them
            place += 1
            continue
        for leaf in _leaves(rows.column(index)):
            if pa.types.is_floating(leaf.type) and pc.any(pc.is_nan(leaf)).as_py():
                found.append(place)
            place += 1
    return found


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_struct(array.type):
        for index in range(array.type.num_fields):
            yield from _leaves(array.field(index))
    elif pa.types.is_map(array.type):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        for entries in (array.keys, array.items):
            yield from _leaves(entries.slice(first, last - first))
    elif pa.types.is_list(array.type):
        yield from _leaves(array.flatten())
    else:
        yield array


# Field numbers in the Parquet footer on the path to the bounds of a column chunk.
_ROW_GROUPS, _COLUMNS, _COLUMN_METADATA, _STATISTICS = 4, 1, 3, 12
_COLUMN_INDEX = frozenset({6, 7})  # offset and length


def without_bounds(footer: bytes, chunks: Collection[tuple[int, int]]) -> bytes:
    """Remove the statistics and column indexes of chunks, given by row group and leaf column, from a footer.

    PyArrow's writer ignores NaN in the bounds. Spark treats NaN as the largest value, pushes ``f > 5`` down to the
    footer, and would skip the rows with NaN. PyArrow can disable statistics only for a column of the whole file and
    before the first row group is written, when the contents of the others are not yet known.
    """
    cursor, parts, copied = ThriftCursor(footer), [], 0
    for number, kind in cursor.fields():
        if number != _ROW_GROUPS:
            cursor.skip(kind)
            continue
        for group, _ in enumerate(cursor.items()):
            for inner, inner_kind in cursor.fields():
                if inner != _COLUMNS:
                    cursor.skip(inner_kind)
                    continue
                for leaf, chunk in enumerate(cursor.items()):
                    start = cursor.at
                    if (group, leaf) not in chunks:
                        cursor.skip(chunk)
                        continue
                    parts += [footer[copied:start], _copied(cursor, _COLUMN_INDEX, {_COLUMN_METADATA: {_STATISTICS}})]
                    copied = cursor.at
    return b"".join([*parts, footer[copied:]])


def _copied(cursor: ThriftCursor, leave_out: Collection[int], within: Mapping[int, Collection[int]]) -> bytes:
    """Copy a struct without the given fields, and without the given fields of nested structs."""
    copy, last = bytearray(), 0
    for number, kind in cursor.fields():
        start = cursor.at
        if number in within:
            value = _copied(cursor, within[number], {})
        else:
            cursor.skip(kind)
            value = cursor.data[start : cursor.at]
        if number not in leave_out:
            # Field numbers are encoded as the difference from the previous one.
            copy.append((number - last) << 4 | kind)
            copy += value
            last = number
    return bytes([*copy, 0])
