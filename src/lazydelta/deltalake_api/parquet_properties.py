"""How data files are encoded, by deltalake's names; what our writer decides by itself is refused by name.

Row groups, pages, dictionaries and statistics are made as the reader of sidecars and the memory budget need them, so of
these properties the compression is the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from lazydelta.errors import OptionError, UnsupportedOperationError

__all__ = ["BloomFilterProperties", "ColumnProperties", "WriterProperties", "compression_of"]

_LEVELS = {"GZIP": (0, 10), "BROTLI": (0, 11), "ZSTD": (1, 22)}
_DEFAULT_LEVELS = {"GZIP": 6, "BROTLI": 1, "ZSTD": 1}
_COMPRESSIONS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
_OURS = {"UNCOMPRESSED": "none", "SNAPPY": "snappy", "GZIP": "gzip", "ZSTD": "zstd"}


@dataclass
class BloomFilterProperties:
    """A Bloom filter of a column; lazydelta writes none."""

    set_bloom_filter_enabled: bool | None
    fpp: float | None = None
    ndv: int | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.fpp is not None and not 0 < self.fpp < 1:
            raise OptionError("fpp must be between 0 and 1 exclusive")

    def __str__(self) -> str:
        return f"set_bloom_filter_enabled: {self.set_bloom_filter_enabled}, fpp: {self.fpp}, ndv: {self.ndv}"


@dataclass
class ColumnProperties:
    """How one column is encoded; lazydelta decides that by itself."""

    dictionary_enabled: bool | None = None
    statistics_enabled: str | None = None
    bloom_filter_properties: BloomFilterProperties | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.encoding is not None and self.dictionary_enabled:
            raise OptionError("Cannot specify dictionary_enabled=True and encoding")

    def __str__(self) -> str:
        return (
            f"dictionary_enabled: {self.dictionary_enabled}, statistics_enabled: {self.statistics_enabled}, "
            f"bloom_filter_properties: {self.bloom_filter_properties}, encoding: {self.encoding}"
        )


@dataclass
class WriterProperties:
    """How Parquet files are written. ``compression`` is taken; anything else is refused when a table is written."""

    data_page_size_limit: int | None = None
    dictionary_page_size_limit: int | None = None
    data_page_row_count_limit: int | None = None
    write_batch_size: int | None = None
    max_row_group_size: int | None = None
    compression: str | None = None
    compression_level: int | None = None
    statistics_truncate_length: int | None = None
    default_column_properties: ColumnProperties | None = None
    column_properties: dict[str, ColumnProperties] | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense, and write the level beside the name as deltalake does: ``ZSTD(4)``."""
        level = self.compression_level
        if self.compression is None:
            if level is not None:
                raise OptionError("Providing a compression level without the compression type is not possible")
            return
        name = self.compression.upper()
        if name not in _COMPRESSIONS:
            message = f"{self.compression} is not a valid Compression"
            raise OptionError(message, hint=f"Valid values are: {list(_COMPRESSIONS)}")
        if name not in _LEVELS:
            self.compression = name
            return
        low, high = _LEVELS[name]
        if level is not None and not low <= level <= high:
            raise OptionError(f"Compression level for {name} should fall between {low}-{high}")
        self.compression = f"{name}({_DEFAULT_LEVELS[name] if level is None else level})"

    def __str__(self) -> str:
        shown = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "compression_level"}
        columns = self.column_properties or {}
        shown["column_properties"] = ", ".join(f"column '{key}': {value}" for key, value in columns.items()) or None
        return f"WriterProperties({', '.join(f'{name}: {value}' for name, value in shown.items())})"


def _asks(value: Any) -> bool:
    """Tell whether a property asks for anything: those of columns may be there and leave everything open."""
    if isinstance(value, dict):
        return any(_asks(each) for each in value.values())
    return value != ColumnProperties() if isinstance(value, ColumnProperties) else value is not None


def compression_of(properties: Any, default: str) -> str:
    """Return how files are compressed; every other property is refused by name."""
    if properties is None:
        return default
    for each in fields(properties):
        if each.name != "compression" and _asks(getattr(properties, each.name)):
            message = f"lazydelta decides by itself what {each.name} of WriterProperties says"
            raise UnsupportedOperationError(message, hint="leave it out, or write the table with deltalake")
    if properties.compression is None:
        return default
    name = properties.compression.partition("(")[0]
    if name not in _OURS:
        message = f"lazydelta does not write files compressed with {name}"
        raise UnsupportedOperationError(message, hint=f"it writes {', '.join(_OURS)}")
    return _OURS[name]
