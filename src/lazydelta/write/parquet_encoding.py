"""How data files are encoded beyond their compression, for callers who know their rows better than the writer does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import OptionError

__all__ = ["ENCODINGS", "ColumnEncoding", "ParquetEncoding", "leaf_columns"]

ENCODINGS = (
    "PLAIN",
    "RLE",
    "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY",
    "DELTA_BYTE_ARRAY",
    "BYTE_STREAM_SPLIT",
)


class ColumnEncoding(msgspec.Struct, frozen=True):
    """How one column is encoded; None leaves it to the writer.

    ``bloom_filter`` is the number of distinct values that a Bloom filter is made for, and the share of wrong answers;
    either may be None.
    """

    dictionary: bool | None = None
    statistics: bool | None = None
    encoding: str | None = None
    bloom_filter: tuple[int | None, float | None] | None = None

    def over(self, other: ColumnEncoding) -> ColumnEncoding:
        """Return what both say, this one first."""
        own = {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not None}
        if self.encoding is not None and self.dictionary is None:
            own["dictionary"] = False  # what has an encoding of its own cannot have a dictionary
        if self.dictionary:
            own.setdefault("encoding", None)
        return msgspec.structs.replace(other, **own)


class ParquetEncoding(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller decides about Parquet; None is what the writer finds best.

    ``columns`` are named as the table names them, fields of structs by dotted paths; a column with parts says it for
    all of them. ``every`` is for the columns that are not named, and for what a named one leaves open.
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
        """Refuse what makes no sense before any work begins."""
        for name in ("page_bytes", "page_rows", "dictionary_bytes", "batch_rows", "row_group_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name}={value} makes no sense for Parquet files", hint="give a number from 1")
        for each in (self.every, *self.columns.values()):
            if each.encoding is not None and each.encoding not in ENCODINGS:
                message = f"There is no encoding {each.encoding!r} of Parquet columns"
                raise OptionError(message, hint=f"say one of {', '.join(ENCODINGS)}")

    def check(self, rows: pa.Schema, partition_columns: Sequence[str]) -> None:
        """Refuse columns that files of the table do not have; ``rows`` has theirs as the table names them."""
        known = {path for field in rows for leaf in leaf_columns(field) for path in _with_parents(leaf)}
        for path in self.columns:
            if path not in known:
                inside = path in partition_columns
                reason = "data files do not hold partition columns" if inside else "the table does not have it"
                message = f"The column {path!r} cannot be encoded: {reason}"
                raise OptionError(message, hint=f"data files have: {', '.join(rows.names)}")

    def settings(self, rows: pa.Schema, stored: pa.Schema, repetitive: Sequence[str]) -> dict[str, Any]:
        """Return how PyArrow's writer is called.

        ``rows`` has the columns as the table names them and ``stored`` as files do; ``repetitive`` are the columns of
        files for which the writer would choose a dictionary.
        """
        chosen = dict(self._chosen(rows, stored))
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

    def _chosen(self, rows: pa.Schema, stored: pa.Schema) -> list[tuple[str, ColumnEncoding]]:
        found = []
        for shown, field in zip(rows, stored, strict=True):
            for path, leaf in zip(leaf_columns(shown), leaf_columns(field), strict=True):
                choice = self.every
                for name in _with_parents(path):  # the innermost name has the last word
                    if name in self.columns:
                        choice = self.columns[name].over(choice)
                found.append((leaf, choice))
        return found


def _with_parents(path: str) -> list[str]:
    """Return a dotted path with what it lies in, the outermost first."""
    return [path[:end] for end, letter in enumerate(path) if letter == "."] + [path]


def _bloom(wanted: tuple[int | None, float | None]) -> Any:
    distinct, wrong = wanted
    given = {"ndv": distinct, "fpp": wrong}
    return {key: value for key, value in given.items() if value is not None} or True


def leaf_columns(field: pa.Field, above: str = "") -> list[str]:
    """Return the names that Parquet has for the leaf columns of a field."""
    name, kind = f"{above}{field.name}", field.type
    if pa.types.is_struct(kind):
        return [leaf for each in kind for leaf in leaf_columns(each, f"{name}.")]
    if pa.types.is_map(kind):
        parts = (kind.key_field.with_name("key"), kind.item_field.with_name("value"))
        return [leaf for each in parts for leaf in leaf_columns(each, f"{name}.key_value.")]
    if pa.types.is_list(kind):
        return leaf_columns(kind.value_field.with_name("element"), f"{name}.list.")
    return [name]
