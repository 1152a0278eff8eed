"""Actions of the log as JSON lines, a whole slice of files at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.showcase.bench.made_files import PARTITION_COLUMN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["LineReader", "add_lines", "commit_info", "line", "remove_lines"]


def line(action: dict[str, Any]) -> bytes:
    """Return one action as a line."""
    return json.dumps(action, separators=(",", ":")).encode() + b"\n"


def commit_info(version: int, timestamp: int, operation: str) -> bytes:
    """Return the line that says what a commit did."""
    parameters = {"mode": "Append", "partitionBy": json.dumps([PARTITION_COLUMN])}
    info = {"timestamp": timestamp, "operation": operation, "operationParameters": parameters}
    return line({"commitInfo": info | {"readVersion": version - 1, "engineInfo": "lazydelta bench"}})


def add_lines(files: pa.StructArray) -> pa.Array:
    """Return the files as ``add`` actions."""
    pieces = [
        '{"add":{"path":"',
        files.field("path"),
        f'","partitionValues":{{"{PARTITION_COLUMN}":"',
        files.field("partitionValues").items,
        '"},"size":',
        files.field("size").cast(pa.string()),
        ',"modificationTime":',
        files.field("modificationTime").cast(pa.string()),
        ',"dataChange":true',
    ]
    if files.type.get_field_index("stats") >= 0:
        # The statistics are JSON in JSON; they hold quotation marks and nothing else that needs escaping.
        pieces += [',"stats":"', pc.replace_substring(files.field("stats"), '"', '\\"'), '"']
    return pc.binary_join_element_wise(*pieces, _vectors(files), "}}\n", "")


def remove_lines(files: pa.StructArray, timestamp: int) -> pa.Array:
    """Return ``remove`` actions for the files."""
    pieces = [
        '{"remove":{"path":"',
        files.field("path"),
        f'","deletionTimestamp":{timestamp},"dataChange":true,"extendedFileMetadata":true,"partitionValues":{{"',
        f'{PARTITION_COLUMN}":"',
        files.field("partitionValues").items,
        '"},"size":',
        files.field("size").cast(pa.string()),
    ]
    return pc.binary_join_element_wise(*pieces, _vectors(files), "}}\n", "")


def _vectors(files: pa.StructArray) -> pa.Array:
    vectors = files.field("deletionVector")
    text = pc.binary_join_element_wise(
        ',"deletionVector":{"storageType":"',
        vectors.field("storageType"),
        '","pathOrInlineDv":"',
        vectors.field("pathOrInlineDv"),
        '","offset":',
        vectors.field("offset").cast(pa.string()),
        ',"sizeInBytes":',
        vectors.field("sizeInBytes").cast(pa.string()),
        ',"cardinality":',
        vectors.field("cardinality").cast(pa.string()),
        "}",
        "",
    )
    return pc.if_else(vectors.is_valid(), text, "")


class LineReader:
    """Lines of many slices, read a number at a time: commits need not end where slices end."""

    def __init__(self, slices: Iterable[pa.Array]) -> None:
        self._slices = iter(slices)
        self._offsets = np.zeros(1, np.int32)
        self._data = memoryview(b"")
        self._at = 0

    def take(self, count: int) -> Iterator[bytes]:
        """Yield the next ``count`` lines, as few chunks as the slices allow."""
        while count > 0:
            left = len(self._offsets) - 1 - self._at
            if left == 0:
                self._next_slice()
                continue
            step = min(left, count)
            yield bytes(self._data[self._offsets[self._at] : self._offsets[self._at + step]])
            self._at += step
            count -= step

    def _next_slice(self) -> None:
        lines = next(self._slices)
        self._offsets = np.frombuffer(lines.buffers()[1], np.int32, len(lines) + 1, lines.offset * 4)
        self._data = memoryview(lines.buffers()[2])
        self._at = 0
