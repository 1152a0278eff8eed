"""How data files are encoded, by deltalake's names.

What they leave open our writer decides by the rows. Statistics of files in the log are the table's to decide
(``delta.dataSkippingStatsColumns``): those of a column in Parquet say nothing about them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from lazydelta.errors import OptionError, UnsupportedOperationError
from lazydelta.write.parquet_encoding import ColumnEncoding, ParquetEncoding

__all__ = ["BloomFilterProperties", "ColumnProperties", "WriterProperties", "compression_of", "encoding_of"]

_LEVELS = {"GZIP": (0, 10), "BROTLI": (0, 11), "ZSTD": (1, 22)}
_DEFAULT_LEVELS = {"GZIP": 6, "BROTLI": 1, "ZSTD": 1}
_COMPRESSIONS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
_OURS = {"UNCOMPRESSED": "none", "SNAPPY": "snappy", "GZIP": "gzip", "ZSTD": "zstd"}
# A page has statistics where the file's index has them, which is always written.
_STATISTICS = {None: None, "NONE": False, "CHUNK": True, "PAGE": True}


@dataclass
class BloomFilterProperties:
    """A Bloom filter of a column."""

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
    """How one column is encoded."""

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
    """How Parquet files are written; what is left out is decided by the rows.

    Files are compressed with SNAPPY, GZIP or ZSTD, or not at all, and ``statistics_truncate_length`` is refused when a
    table is written.
    """

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


def compression_of(properties: WriterProperties | None, default: str) -> str:
    """Return how files are compressed."""
    if properties is None or properties.compression is None:
        return default
    name = properties.compression.partition("(")[0]
    if name not in _OURS:
        message = f"lazydelta does not write files compressed with {name}"
        raise UnsupportedOperationError(message, hint=f"it writes {', '.join(_OURS)}")
    return _OURS[name]


def encoding_of(properties: WriterProperties | None) -> ParquetEncoding | None:
    """Return how files are encoded beyond that; what PyArrow has no setting for is refused by name."""
    if properties is None:
        return None
    if properties.statistics_truncate_length is not None:
        message = "lazydelta decides by itself what statistics_truncate_length of WriterProperties says"
        raise UnsupportedOperationError(message, hint="leave it out, or write the table with deltalake")
    level = properties.compression_level
    if level is not None and properties.compression == "GZIP(10)":
        raise UnsupportedOperationError("lazydelta compresses with GZIP up to level 9", hint="say 9")
    return ParquetEncoding(
        compression_level=level,
        page_bytes=properties.data_page_size_limit,
        page_rows=properties.data_page_row_count_limit,
        dictionary_bytes=properties.dictionary_page_size_limit,
        batch_rows=properties.write_batch_size,
        row_group_rows=properties.max_row_group_size,
        every=_column(properties.default_column_properties),
        columns={name: _column(each) for name, each in (properties.column_properties or {}).items()},
    )


def _column(given: ColumnProperties | None) -> ColumnEncoding:
    if given is None:
        return ColumnEncoding()
    statistics = None if given.statistics_enabled is None else given.statistics_enabled.upper()
    if statistics not in _STATISTICS:
        message = f"statistics_enabled={given.statistics_enabled!r} makes no sense"
        raise OptionError(message, hint="say NONE, CHUNK or PAGE")
    bloom = given.bloom_filter_properties
    return ColumnEncoding(
        dictionary=given.dictionary_enabled,
        statistics=_STATISTICS[statistics],
        encoding=None if given.encoding is None else given.encoding.upper(),
        bloom_filter=(bloom.ndv, bloom.fpp) if bloom is not None and bloom.set_bloom_filter_enabled else None,
    )
