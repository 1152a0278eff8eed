"""Which bytes of a Parquet file were read: its column chunks, and reads to compare with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from lazydelta.storage.local import FileReads

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa
    import pytest

Range = tuple[int, int]

_FOOTER = 64 << 10


def chunks_of(source: Path | pa.BufferReader, column: str) -> list[Range]:
    """Return the (start, end) of every chunk of the columns below ``column``."""
    metadata = pq.ParquetFile(source).metadata
    found = []
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            if chunk.path_in_schema == column or chunk.path_in_schema.startswith(f"{column}."):
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                found.append((start, start + chunk.total_compressed_size))
    return found


def overlap(ranges: Iterable[Range], chunks: Iterable[Range]) -> int:
    """Return how many bytes of the chunks the ranges cover, a byte read twice counted twice."""
    wanted = list(chunks)
    return sum(max(0, min(end, stop) - max(start, begin)) for start, end in ranges for begin, stop in wanted)


def without_footer(ranges: Iterable[Range], path: Path) -> list[Range]:
    """Leave out reads of the file's end: they are for its footer, whatever columns lie close before it."""
    size = path.stat().st_size
    return [(start, end) for start, end in ranges if not (end == size and start >= size - _FOOTER)]


@dataclass
class LocalReads:
    """The positioned reads of local files, which are exact: the operating system reads ahead, not we."""

    reads: dict[str, list[Range]] = field(default_factory=dict)

    def of(self, path: Path) -> list[Range]:
        """Return the ranges that were read of a file of the log, its footer left out."""
        return without_footer(self.reads.get(f"_delta_log/{path.name}", []), path)

    @classmethod
    def watch(cls, monkeypatch: pytest.MonkeyPatch) -> LocalReads:
        """Record every positioned read from now on."""
        watched = cls()
        original = FileReads.read_at

        def recording(self: FileReads, start: int, length: int) -> bytes:
            watched.reads.setdefault(self._path, []).append((start, start + length))
            return original(self, start, length)

        monkeypatch.setattr(FileReads, "read_at", recording)
        return watched
