"""Destinations of generated tables: a local folder, or an object store through a temporary file."""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.errors import OptionError, StorageError
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import from_numpy
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Store
from lazydelta.storage.location import parse_location
from lazydelta.storage.options import normalise
from lazydelta.testing.stats_columns import HOUR_MS, FileStats, Slice, StatsColumn, fixed_width, make_stats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from os import PathLike

__all__ = [
    "CHOICE",
    "PARTITION_COLUMN",
    "VECTORS",
    "Destination",
    "FileMaker",
    "LineReader",
    "add_lines",
    "commit_info",
    "hour_text",
    "line",
    "new_vectors",
    "open_destination",
    "remove_lines",
    "uuid_texts",
]


_CHUNK = 8 << 20
_LOG = "_delta_log"


class Destination(ABC):
    """The log folder of a table that does not exist yet."""

    def __init__(self, store: Store) -> None:
        self.store = store
        if next(store.list(_LOG), None) is not None:
            raise OptionError(f"There is already a table at {store.uri}", hint="choose a folder that does not exist")

    @abstractmethod
    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write an object of the log."""

    @abstractmethod
    def write_file(self, name: str, file: Path) -> None:
        """Move a local file to its place in the log. The local file may no longer exist afterwards."""

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a temporary folder for files that are written before they are moved into place."""
        with _as_storage_error(), tempfile.TemporaryDirectory(prefix="lazydelta-make-table-") as folder:
            yield Path(folder)


class _Folder(Destination):
    """A local folder. A generated table does not need durability, which costs a flush for each object."""

    def __init__(self, store: Store, root: Path) -> None:
        super().__init__(store)
        self._log = root / _LOG
        with _as_storage_error():
            self._log.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        with _as_storage_error(), self._place(name).open("wb") as out:
            out.writelines(chunks)

    def write_file(self, name: str, file: Path) -> None:
        with _as_storage_error():
            file.rename(self._place(name))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        # On the same file system, so that a rename suffices. Readers skip names that start with a dot.
        with _as_storage_error(), tempfile.TemporaryDirectory(prefix=".making-", dir=self._log) as folder:
            yield Path(folder)

    def _place(self, name: str) -> Path:
        place = self._log / name
        place.parent.mkdir(exist_ok=True)
        return place


class _Remote(Destination):
    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        self.store.put_stream(f"{_LOG}/{name}", chunks)

    def write_file(self, name: str, file: Path) -> None:
        self.write(name, _chunks(file))


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as source:
        while chunk := source.read(_CHUNK):
            yield chunk


@contextmanager
def _as_storage_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"Cannot write the table: {error}"
        raise StorageError(message, path=error.filename, hint="check free space and write permission") from error


def open_destination(uri: str | PathLike[str], storage_options: Mapping[str, str] | None) -> Destination:
    """Open the destination of a new table. A location that already has a log is refused."""
    location, _ = parse_location(uri, normalise(storage_options))
    store = TableHandle.open(uri, storage_options).store
    return _Folder(store, Path(location.plain)) if location.kind == "local" else _Remote(store)


# Generated files as ``add`` actions, slice by slice. The same seed makes the same files.


PARTITION_COLUMN = "_event_hour"
SLICE = 1 << 16
"""The number of files generated at once: about 60 MB with eight statistics columns."""

_LAST_HOUR = 491_879  # 2026-02-10T23 in hours since the epoch: the newest hour of every table
_MAP = pa.map_(pa.string(), pa.string())
_Z85 = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#", np.uint8)
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)
_UUID_DASHES = (8, 13, 18, 23)
_UUID_DIGITS = [place for place in range(36) if place not in _UUID_DASHES]

# Independent streams of random numbers.
BASE, TAIL, CHOICE, VECTORS = range(4)


@dataclass(frozen=True, slots=True)
class FileMaker:
    """Generates the files of one table."""

    seed: int
    files: int
    hours: int
    ordered: bool
    columns: tuple[StatsColumn, ...]
    stats: str
    deletion_vectors: float

    def base(self) -> Iterator[pa.StructArray]:
        """Yield the base files of the table."""
        for number, start in enumerate(range(0, self.files, SLICE)):
            index = np.arange(start, min(start + SLICE, self.files), dtype=np.int64)
            random = np.random.default_rng([self.seed, BASE, number])
            if self.ordered:
                hour = index * self.hours // self.files
            else:
                hour = random.integers(0, self.hours, len(index), np.int64)
            yield self._make(index, hour + (_LAST_HOUR + 1 - self.hours), random, self.deletion_vectors)

    def tail(self, count: int) -> Iterator[pa.StructArray]:
        """Yield ``count`` files in the newest hour that are added after the base."""
        for number, start in enumerate(range(0, count, SLICE)):
            index = np.arange(start, min(start + SLICE, count), dtype=np.int64)
            random = np.random.default_rng([self.seed, TAIL, number])
            yield self._make(index, np.full(len(index), _LAST_HOUR, np.int64), random, 0)

    def _make(
        self, index: npt.NDArray[np.int64], hour: npt.NDArray[np.int64], random: np.random.Generator, vectors: float
    ) -> pa.StructArray:
        count = len(index)
        hours = _hour_digits(hour)
        sizes = random.integers(8 << 20, 128 << 20, count, np.int64)
        files = Slice(hour, sizes // 256, random)
        loose = random.random(count) < vectors if vectors else None
        stats = make_stats(
            files,
            self.columns,
            loose=loose,
            json=self.stats in {"json", "both"},
            parsed=self.stats in {"struct", "both"},
        )
        hour_column = fixed_width(hours)
        columns: dict[str, pa.Array] = {
            "path": _paths(hours, index, random),
            "partitionValues": _partition_values(hour_column),
            "size": from_numpy(sizes, pa.int64()),
            "modificationTime": from_numpy(hour * HOUR_MS + random.integers(HOUR_MS, 2 * HOUR_MS, count), pa.int64()),
            "dataChange": pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bytes((count + 7) // 8))]),
            "tags": pa.nulls(count, _MAP),
            "deletionVector": new_vectors(np.zeros(count, np.bool_) if loose is None else loose, random),
        }
        columns |= _stats_columns(stats, hour_column)
        return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def hour_text(hours_ago: int = 0) -> str:
    """Return the partition value of the newest hour, or of ``hours_ago`` hours before it."""
    digits = _hour_digits(np.array([_LAST_HOUR - hours_ago], np.int64))
    return digits.tobytes().decode()


def _stats_columns(stats: FileStats, hour: pa.Array) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = {}
    if stats.json is not None:
        columns["stats"] = stats.json
    if stats.parsed is not None:
        columns["stats_parsed"] = stats.parsed
        columns["partitionValues_parsed"] = pa.StructArray.from_arrays([hour], [PARTITION_COLUMN])
    return columns


def _partition_values(hour: pa.Array) -> pa.Array:
    name = PARTITION_COLUMN.encode()
    keys = fixed_width(np.tile(np.frombuffer(name, np.uint8), (len(hour), 1)))
    entries = pa.StructArray.from_arrays([keys, hour], fields=[_MAP.key_field, _MAP.item_field])
    offsets = pa.py_buffer(np.arange(len(hour) + 1, dtype=np.int32))
    return pa.Array.from_buffers(_MAP, len(hour), [None, offsets], children=[entries])


def _hour_digits(hour: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return ``yyyyMMddHH`` as a row of characters for each hour."""
    instant = hour.astype("datetime64[h]")
    month = instant.astype("datetime64[M]")
    year = instant.astype("datetime64[Y]")
    parts = (
        (year.astype(np.int64) + 1970, 4),
        ((month - year).astype(np.int64) + 1, 2),
        ((instant.astype("datetime64[D]") - month).astype(np.int64) + 1, 2),
        (hour % 24, 2),
    )
    return np.hstack([_digits(value, width) for value, width in parts])


def _digits(value: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    places = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    return (value[:, None] // places % 10 + ord("0")).astype(np.uint8)


def _uuids(random: np.random.Generator, count: int) -> npt.NDArray[np.uint8]:
    raw = np.frombuffer(random.bytes(count * 16), np.uint8).reshape(count, 16).copy()
    raw[:, 6] = raw[:, 6] & 0x0F | 0x40
    raw[:, 8] = raw[:, 8] & 0x3F | 0x80
    text = np.full((count, 36), ord("-"), np.uint8)
    text[:, _UUID_DIGITS] = _HEX[raw].reshape(count, 32)
    return text


def uuid_texts(random: np.random.Generator, count: int) -> tuple[str, ...]:
    """Return UUIDs for the objects of the log."""
    return tuple(fixed_width(_uuids(random, count)).to_pylist())


def _paths(hours: npt.NDArray[np.uint8], index: npt.NDArray[np.int64], random: np.random.Generator) -> pa.StringArray:
    """Return paths like those of real writers. Every part has a fixed width, so a matrix of characters suffices."""
    count = len(index)

    def constant(text: str) -> npt.NDArray[np.uint8]:
        return np.tile(np.frombuffer(text.encode(), np.uint8), (count, 1))

    return fixed_width(
        np.hstack(
            [
                constant(f"{PARTITION_COLUMN}="),
                hours,
                constant("/part-"),
                _digits(index % 100_000, 5),
                constant("-"),
                _uuids(random, count),
                constant(".c000.zstd.parquet"),
            ]
        )
    )


def new_vectors(marked: npt.NDArray[np.bool_], random: np.random.Generator) -> pa.StructArray:
    """Return deletion vectors for the marked files. They refer to vector files that do not exist."""
    count = len(marked)
    words = random.integers(0, 1 << 32, (count, 4), np.int64)
    powers = 85 ** np.arange(4, -1, -1, dtype=np.int64)
    names = _Z85[words[:, :, None] // powers % 85].reshape(count, 20)
    kind = np.full((count, 1), ord("u"), np.uint8)
    cardinality = random.integers(1, 1000, count, np.int64)
    children: Sequence[pa.Array] = (
        fixed_width(kind),
        fixed_width(names),
        from_numpy(np.ones(count, np.int32), pa.int32()),
        from_numpy((34 + 2 * cardinality).astype(np.int32), pa.int32()),
        from_numpy(cardinality, pa.int64()),
    )
    fields = ["storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality"]
    absent = pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(np.packbits(~marked, bitorder="little"))])
    return pa.StructArray.from_arrays(children, fields, mask=absent)


# Log actions as JSON lines, for a whole slice of files at once.


def line(action: dict[str, Any]) -> bytes:
    """Return one action as a line."""
    return json.dumps(action, separators=(",", ":")).encode() + b"\n"


def commit_info(version: int, timestamp: int, operation: str) -> bytes:
    """Return the ``commitInfo`` line of a commit."""
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
        # The statistics are JSON within JSON. Only their quotation marks need escaping.
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
    """Lines of many slices, read in any number: commits need not end where slices end."""

    def __init__(self, slices: Iterable[pa.Array]) -> None:
        self._slices = iter(slices)
        self._offsets = np.zeros(1, np.int32)
        self._data = memoryview(b"")
        self._at = 0

    def take(self, count: int) -> Iterator[bytes]:
        """Yield the next ``count`` lines in as few chunks as the slices allow."""
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
