"""Source files of an ingestion: listing, format detection, and assignment to tasks.

A source is a folder, one file, or a name pattern within one folder. Empty files and names that begin with ``_`` or
``.`` are skipped, as is customary. Subfolders are not searched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cached_property
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.errors import DataFileError, OptionError
from lazydelta.ingest.lines import BadRow, RejectRows, Required, missing
from lazydelta.runtime.threads import all_in_parallel
from lazydelta.storage import CarriedOptions, Store, open_store, refuse_half_uri, shipped_options
from lazydelta.storage.location import split_scheme
from lazydelta.write.file_commit import as_texts
from lazydelta.write.plan import MaxRejected

__all__ = [
    "FORMATS",
    "FileTally",
    "SourceFile",
    "SourceFormat",
    "Tally",
    "Unit",
    "opened_parquet",
    "parquet_fields",
    "parquet_schema",
    "rows_of_groups",
    "tasks_of",
]


# Row counts of source files: rows read and rows rejected.
#
# A few bad rows are rejected and the others are written. A file without any good row is different: it has the wrong
# separator, has no header, or is not a source file. Rejecting all its rows would hide that.


_REASONS = 3


@dataclass(slots=True)
class FileTally:
    """Row counts of one file, with the first reasons for rejection."""

    rows: int = 0
    rejected: int = 0
    reasons: list[str] = field(default_factory=list)

    def rejecting(self, reject: RejectRows) -> RejectRows:
        """Return a function that counts rows before it rejects them."""

        def counted(bad: list[BadRow]) -> None:
            self.rejected += len(bad)
            self._note(f"{each.source}: {each.reason}" for each in bad)
            reject(bad)

        return counted

    def add(self, other: FileTally) -> None:
        """Add the counts of another part of the same file."""
        self.rows += other.rows
        self.rejected += other.rejected
        self._note(other.reasons)

    def _note(self, reasons: Iterable[str]) -> None:
        for each in reasons:
            if len(self.reasons) == _REASONS:
                return
            self.reasons.append(each)


@dataclass(slots=True)
class Tally:
    """Row counts by file location."""

    files: dict[str, FileTally] = field(default_factory=dict)

    def of(self, place: str) -> FileTally:
        """Return the counts of a file."""
        return self.files.setdefault(place, FileTally())

    def add(self, other: Tally) -> None:
        """Add the counts of another task."""
        for place, each in other.files.items():
            self.of(place).add(each)

    @property
    def rejected(self) -> FileTally:
        """The sum over all files, with the first reasons of the worst file."""
        total = FileTally()
        for each in sorted(self.files.values(), key=lambda each: -each.rejected):
            total.add(each)
        return total

    def refuse(self, limit: MaxRejected) -> None:
        """Raise for files without any good row, and for more rejected rows than allowed."""
        for place, each in sorted(self.files.items()):
            limit.refuse_file(place, each.rows, each.rejected, each.reasons)
        total = self.rejected
        limit.refuse_rows(total.rows, total.rejected, f"{len(self.files)} files", total.reasons)


# Rows of Parquet row groups, in large batches and bounded memory.


_BATCH_ROWS = 1 << 17
_BATCH_BYTES = 16 << 20
_LEAST_ROWS = 1 << 10
_INSTANT = pa.timestamp("us", "UTC")


def parquet_schema(store: Store, path: str, size: int) -> pa.Schema:
    """Return the columns of a file, from its footer."""
    with opened_parquet(store, path, size) as file:
        return pa.schema(parquet_fields(file))


def sizes_of_groups(store: Store, path: str, size: int) -> list[int]:
    """Return the compressed size of each row group in bytes."""
    with opened_parquet(store, path, size) as file:
        groups = (file.metadata.row_group(index) for index in range(file.num_row_groups))
        return [sum(each.column(index).total_compressed_size for index in range(each.num_columns)) for each in groups]


def rows_of_groups(
    store: Store, path: str, size: int, groups: tuple[int, int] | None, reject: RejectRows, required: Required
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, or of the row groups from ``groups[0]`` up to ``groups[1]``."""
    place = store.place(path)
    with opened_parquet(store, path, size) as file:
        first, end = groups or (0, file.num_row_groups)
        number = sum(file.metadata.row_group(index).num_rows for index in range(first))
        fields = parquet_fields(file)
        is_instant = [each.type == _INSTANT for each in fields]
        for batch in _batches(file, range(first, end)):
            # INT96 is an instant, but Arrow reads it as a timestamp without time zone.
            columns = [
                values.view(_INSTANT) if instant else values
                for values, instant in zip(batch.columns, is_instant, strict=True)
            ]
            rows = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
            faults = missing(rows, required)
            if faults:
                bad = sorted(faults)
                texts = as_texts(rows.take(pa.array(bad)))
                reject(
                    [
                        BadRow(text, faults[row], f"{place}, row {number + row + 1}")
                        for text, row in zip(texts, bad, strict=True)
                    ]
                )
                rows = rows.filter(pa.array([row not in faults for row in range(rows.num_rows)]))
            number += batch.num_rows
            if rows.num_rows:
                yield rows


def _batches(file: pq.ParquetFile, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
    rows = sum(file.metadata.row_group(index).num_rows for index in groups)
    size = sum(file.metadata.row_group(index).total_byte_size for index in groups)
    most = max(_LEAST_ROWS, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(size, 1)))
    yield from file.iter_batches(batch_size=most, row_groups=list(groups))


def parquet_fields(file: pq.ParquetFile) -> list[pa.Field]:
    """Return the columns. INT96 columns are instants."""
    fields = list(file.schema_arrow.remove_metadata())
    leaves = file.schema
    old = {leaves.column(index).path for index in range(len(leaves)) if leaves.column(index).physical_type == "INT96"}
    return [pa.field(each.name, _INSTANT if each.name in old else each.type) for each in fields]


@contextmanager
def opened_parquet(store: Store, path: str, size: int) -> Iterator[pq.ParquetFile]:
    """Open a file for the duration of a block."""
    place = store.place(path)
    try:
        with store.open_input(path, size=size) as source:
            yield pq.ParquetFile(source, coerce_int96_timestamp_unit="us", page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        message = f"The file {place} cannot be read as Parquet: {error}"
        hint = "nothing was committed; check that it is a complete Parquet file, or remove it"
        raise DataFileError(message, path=place, hint=hint) from error


FORMATS = ("json", "csv", "parquet")
_SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_GZIP = ".gz"
_OTHER_CODECS = (".bz2", ".zst", ".lz4", ".xz", ".snappy", ".zip")
_WILD = re.compile(r"[*?\[]")
# A task should be worth its startup cost, and small enough to repeat after a failure.
_LEAST_BYTES, _MOST_BYTES = 4 << 20, 1 << 30
# Compressed text takes as long as its uncompressed size.
_GZIP_FACTOR = 8
_PARALLEL_FOOTERS = 16


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: its path in the source folder, and its size."""

    path: str
    size: int

    @property
    def is_gzip(self) -> bool:
        """Return whether the file name ends in ``.gz``."""
        return self.path.lower().endswith(_GZIP)


@dataclass(frozen=True, slots=True)
class Unit:
    """A contiguous piece of work: a file, or the row groups from the first number up to the second."""

    file: SourceFile
    groups: tuple[int, int] | None = None
    weight: int = 0


@dataclass(frozen=True)
class SourceFormat:
    """A source folder, with a pattern for the file names."""

    folder: str = field(repr=False)
    pattern: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, source: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> SourceFormat:
        """Parse a folder, file or pattern. The folder is accessed to tell them apart."""
        text = os.fspath(source)
        options = dict(storage_options or {})
        is_uri = split_scheme(text) is not None
        if not is_uri:
            refuse_half_uri(source)
            text = os.path.abspath(text)  # noqa: PTH100 - tasks may run in other directories; links are not resolved
        place, mark, query = text.partition("?") if text.startswith("http") else (text, "", "")
        above, _, last = place.rstrip("/").rpartition("/")
        folder = f"{above or '/'}{mark}{query}"
        name = unquote(last) if is_uri else last
        whole = cls(text, None, options)
        if not name or whole.exists():
            return whole
        parent = cls(folder, _literal(name), options)
        if parent.store.exists(name):
            return parent
        return cls(folder, name, options) if _WILD.search(name) else whole

    @cached_property
    def store(self) -> Store:
        """The store of the folder."""
        return open_store(self.folder, self.storage_options)

    @property
    def shown(self) -> str:
        """The source, for messages."""
        return self.store.place(self.pattern or "").rstrip("/")

    def __getstate__(self) -> dict[str, object]:
        # A store opened before a fork must not be used after it.
        kept = {name: value for name, value in self.__dict__.items() if name != "store"}
        if isinstance(self.storage_options, CarriedOptions):
            return kept
        # A signature in the URI is equivalent to a storage option.
        place, mark, signature = self.folder.partition("?") if self.folder.startswith("http") else (self.folder, "", "")
        options = dict(self.storage_options) | ({"sas_key": signature} if mark else {})
        return kept | {"folder": place, "storage_options": shipped_options(options)}

    def carrying_credentials(self) -> SourceFormat:
        """Return a copy whose pickle includes the credentials, for tasks in other processes."""
        return replace(self, storage_options=CarriedOptions(self.storage_options))

    def exists(self) -> bool:
        """Return whether the folder exists. In an object store it must contain objects."""
        if not self.store.is_remote and self.store.uri.startswith("file:"):
            return os.path.isdir(self.store.place(""))  # noqa: PTH112 - an empty folder exists, too
        return next(iter(self.store.list("")), None) is not None

    def takes(self, name: str) -> bool:
        """Return whether a file with this name belongs to the source."""
        if name.startswith(("_", ".")):
            return False
        return self.pattern is None or re.fullmatch(translate(self.pattern), name) is not None

    def files(self) -> list[SourceFile]:
        """Return the files of the source, sorted by name."""
        found = [
            SourceFile(each.path, each.size) for each in self.store.list("") if self.takes(each.path) and each.size
        ]
        if not found:
            self.check()
        return found

    def check(self) -> None:
        """Raise `OptionError` if the source does not exist."""
        if self.exists():
            return
        hint = "name a folder, a file, or a pattern such as folder/*.json"
        if _WILD.search(self.folder):
            hint = "only the last part of the path may be a pattern"
        raise OptionError(f"There is no {self.shown}", path=self.shown, hint=hint)

    def format_of(self, files: Sequence[SourceFile], given: str | None = None) -> str:
        """Return the format of the files: the given one, or the one that all file names indicate."""
        if given is not None:
            if given not in FORMATS:
                raise OptionError(f"format={given!r} is not valid", hint=f"use one of {', '.join(FORMATS)}")
            found = given
        else:
            said = {_format(each.path) for each in files}
            if len(said) != 1 or None in said:
                what = "has no files yet" if not files else "has files of other or several formats, by their names"
                message = f"The format of {self.shown} cannot be told: it {what}"
                raise OptionError(message, path=self.shown, hint=f"pass the format: {', '.join(FORMATS)}")
            found = str(said.pop())
        if found != "parquet":
            other = next((each.path for each in files if each.path.lower().endswith(_OTHER_CODECS)), None)
            if other is not None:
                message = f"{self.store.place(other)} has an unsupported compression"
                raise OptionError(message, path=other, hint="compress it with gzip, or send it uncompressed")
        return found


def _literal(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)


def _format(path: str) -> str | None:
    name = path.lower().removesuffix(_GZIP)
    return _SUFFIXES.get(os.path.splitext(name)[1])  # noqa: PTH122 - a name, not a path


def tasks_of(source: SourceFormat, files: Sequence[SourceFile], file_format: str, parallelism: int) -> list[list[Unit]]:
    """Distribute the files to tasks: as many as can run in parallel, or more if there is a lot of data.

    Files keep their order. A task then reads files that are close by name, and most likely in time, so it writes fewer
    data files.
    """
    is_text = file_format != "parquet"
    weights = [each.size * (_GZIP_FACTOR if is_text and each.is_gzip else 1) for each in files]
    total = sum(weights)
    share = min(_MOST_BYTES, max(_LEAST_BYTES, -(-total // max(parallelism, 1))))
    units = [Unit(file, None, weight) for file, weight in zip(files, weights, strict=True)]
    if not is_text:
        units = _cut(source.store, units, share)
    count = max(1, -(-total // share))
    tasks: list[list[Unit]] = [[] for _ in range(count)]
    done = 0
    for unit in units:
        # The midpoint of the unit determines its task.
        tasks[min(count - 1, (2 * done + unit.weight) * count // (2 * total))].append(unit)
        done += unit.weight
    return [each for each in tasks if each]


def _cut(store: Store, units: Sequence[Unit], share: int) -> list[Unit]:
    """Split files that are large for a task at row group boundaries."""

    def cut(unit: Unit) -> Iterable[Unit]:
        if unit.weight <= share // 4:
            return [unit]
        sizes = sizes_of_groups(store, unit.file.path, unit.file.size)
        pieces: list[Unit] = []
        first = weight = 0
        for index, size in enumerate(sizes):
            weight += size
            if weight >= share // 8 or index == len(sizes) - 1:
                pieces.append(Unit(unit.file, (first, index + 1), weight))
                first, weight = index + 1, 0
        return pieces

    return [piece for pieces in all_in_parallel(cut, units, threads=_PARALLEL_FOOTERS) for piece in pieces]
