"""``make_table``: a Delta table of any size without its data, for tests and benchmarks of file discovery."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa

from lazydelta.errors import OptionError
from lazydelta.log.hint.reader import hint_checksum
from lazydelta.runtime.arrays import from_numpy
from lazydelta.testing.checkpoint_files import CheckpointLayout, write_checkpoint
from lazydelta.testing.files import (
    CHOICE,
    PARTITION_COLUMN,
    VECTORS,
    Destination,
    FileMaker,
    LineReader,
    add_lines,
    commit_info,
    hour_text,
    line,
    new_vectors,
    open_destination,
    remove_lines,
    uuid_texts,
)
from lazydelta.testing.stats_columns import StatsColumn, choose_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from os import PathLike

__all__ = ["Checkpoint", "Compression", "MadeTable", "Order", "Stats", "make_table"]

Compression = Literal["none", "snappy", "zstd"]
Checkpoint = Literal["v1", "multipart", "v2", "none"]
Order = Literal["random", "time"]
Stats = Literal["json", "struct", "both", "none"]

CHECKPOINT_VERSION = 10
_CREATED = 1_770_764_400_000  # 2026-02-10T23:00:00Z: generated tables do not depend on the clock
_SECOND = 1000
_MOST_REMOVES = 1_000_000


@dataclass(frozen=True, slots=True)
class MadeTable:
    """A generated table, with enough facts to check query results against."""

    uri: str
    version: int
    checkpoint_version: int | None
    num_files: int
    size_bytes: int
    first_hour: str
    last_hour: str

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        return asdict(self)


def make_table(  # noqa: PLR0913 - one name for each property of a table; all but the size have a default
    table_uri: str | PathLike[str],
    *,
    files: int,
    columns: int = 8,
    hours: int = 720,
    order: Order = "random",
    tail: int = 0,
    adds_per_commit: int = 10,
    removes: int = 0,
    deletion_vectors: float = 0.0,
    checkpoint: Checkpoint = "v1",
    parts: int = 4,
    row_group_size: int | None = None,
    compression: Compression = "snappy",
    stats: Stats = "json",
    checksum: bool = False,
    seed: int = 0,
    storage_options: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> MadeTable:
    """Write the log of a table with ``files`` files at its checkpoint. No data file exists.

    The files are in ``hours`` partitions ``_event_hour=yyyyMMddHH`` and have statistics for ``columns`` columns.
    ``order`` is their order in the checkpoint. After it come ``tail`` commits, each adding ``adds_per_commit`` files in
    the newest hour. Together they also remove ``removes`` files of the checkpoint. The fraction ``deletion_vectors`` of
    the checkpoint's files has a deletion vector, and the same fraction of the removed files is added again in the same
    commit with a new one.

    ``checkpoint="none"`` writes the files as commits of ``adds_per_commit`` files instead. ``parts`` is the number of
    files of a multi-part checkpoint, or of sidecars of a V2 checkpoint. ``row_group_size=None`` makes one row group per
    file, like delta-rs. The same arguments make the same bytes. ``progress`` is called for every generated slice of
    files.
    """
    recipe = _Recipe(
        files, columns, hours, order, tail, adds_per_commit, removes, deletion_vectors, checkpoint, parts,
        row_group_size, compression, stats, checksum, seed,
    )  # fmt: skip
    recipe.check()
    destination = open_destination(table_uri, storage_options)
    return _Maker(recipe, destination, progress or (lambda _: None)).make()


@dataclass(frozen=True, slots=True)
class _Recipe:
    files: int
    columns: int
    hours: int
    order: Order
    tail: int
    adds_per_commit: int
    removes: int
    deletion_vectors: float
    checkpoint: Checkpoint
    parts: int
    row_group_size: int | None
    compression: Compression
    stats: Stats
    checksum: bool
    seed: int

    def check(self) -> None:
        for name, allowed in (
            ("checkpoint", Checkpoint),
            ("order", Order),
            ("stats", Stats),
            ("compression", Compression),
        ):
            if getattr(self, name) not in get_args(allowed):
                raise OptionError(f"{name}={getattr(self, name)!r} is none of {', '.join(get_args(allowed))}")
        for name, least in (("files", 1), ("columns", 1), ("hours", 1), ("tail", 0), ("parts", 1), ("removes", 0)):
            if getattr(self, name) < least:
                raise OptionError(f"{name}={getattr(self, name)} is not valid", hint=f"at least {least}")
        if self.adds_per_commit < (1 if self.checkpoint == "none" else 0):
            raise OptionError(f"adds_per_commit={self.adds_per_commit} is not valid")
        if self.row_group_size is not None and self.row_group_size < 1:
            raise OptionError(f"row_group_size={self.row_group_size} is not valid")
        if not 0 <= self.deletion_vectors <= 1:
            raise OptionError(f"deletion_vectors={self.deletion_vectors} is not a fraction between 0 and 1")
        if self.removes > min(self.files, _MOST_REMOVES) or (self.removes and not self.tail):
            message = f"{self.removes} files cannot be removed by {self.tail} commits from {self.files} files"
            raise OptionError(message, hint=f"at most {_MOST_REMOVES}, and a tail to remove them in")


class _Maker:
    def __init__(self, recipe: _Recipe, destination: Destination, progress: Callable[[int], None]) -> None:
        self._recipe = recipe
        self._destination = destination
        self._progress = progress
        self._files = FileMaker(
            recipe.seed,
            recipe.files,
            recipe.hours,
            recipe.order == "time",
            choose_columns(recipe.columns),
            recipe.stats,
            recipe.deletion_vectors,
        )
        random = np.random.default_rng([recipe.seed, CHOICE])
        self._uuids = uuid_texts(random, recipe.parts + 2)
        chosen = random.choice(recipe.files, recipe.removes, replace=False) if recipe.removes else np.zeros(0, np.int64)
        self._to_remove = np.sort(chosen)
        self._removed: list[pa.StructArray] = []
        self._num_files = 0
        self._size = 0

    def make(self) -> MadeTable:
        recipe = self._recipe
        if recipe.checkpoint == "none":
            version = self._base_commits()
        else:
            version = CHECKPOINT_VERSION
            self._base_checkpoint()
        checkpoint_version = None if recipe.checkpoint == "none" else version
        if recipe.tail:
            version = self._tail(version)
        if recipe.checksum:
            self._checksum(version)
        return MadeTable(
            self._destination.store.uri,
            version,
            checkpoint_version,
            self._num_files,
            self._size,
            hour_text(recipe.hours - 1),
            hour_text(),
        )

    def _base(self) -> Iterator[pa.StructArray]:
        """Yield the base, and keep the files that the tail will remove."""
        start = 0
        for adds in self._files.base():
            first, last = np.searchsorted(self._to_remove, [start, start + len(adds)])
            if last > first:
                self._removed.append(adds.take(from_numpy(self._to_remove[first:last] - start, pa.int64())))
            start += len(adds)
            self._count(adds, 1)
            self._progress(len(adds))
            yield adds

    def _count(self, files: pa.StructArray, sign: int) -> None:
        self._num_files += sign * len(files)
        self._size += sign * int(np.frombuffer(files.field("size").buffers()[1], np.int64, len(files)).sum())

    def _base_checkpoint(self) -> None:
        recipe = self._recipe
        layout = CheckpointLayout(
            recipe.checkpoint,
            CHECKPOINT_VERSION,
            recipe.parts,
            recipe.row_group_size,
            recipe.compression,
            self._uuids[1:],
        )
        actions = {"protocol": self._protocol(), "metaData": self._metadata()}
        hint = write_checkpoint(self._destination, layout, self._base(), recipe.files, actions)
        self._commit(CHECKPOINT_VERSION, "WRITE", [])
        if recipe.checksum:
            hint["checksum"] = hint_checksum(hint)  # as those do that write version checksums
        self._destination.write("_last_checkpoint", [json.dumps(hint).encode()])

    def _base_commits(self) -> int:
        recipe = self._recipe
        lines = LineReader(add_lines(adds) for adds in self._base())
        first = [line({"protocol": self._protocol()}), line({"metaData": self._metadata()})]
        version = -1
        for version, start in enumerate(range(0, recipe.files, recipe.adds_per_commit)):
            count = min(recipe.adds_per_commit, recipe.files - start)
            self._commit(version, "WRITE", first if version == 0 else [], lines.take(count))
        return version

    def _tail(self, version: int) -> int:
        recipe = self._recipe
        removed = pa.concat_arrays(self._removed) if self._removed else None
        removes, returns = LineReader([]), LineReader([])
        back = np.zeros(recipe.removes, np.bool_)
        if removed is not None:
            random = np.random.default_rng([recipe.seed, VECTORS])
            back = random.random(recipe.removes) < recipe.deletion_vectors
            removes = LineReader([remove_lines(removed, _CREATED)])
            returned = _with_new_vectors(removed.take(from_numpy(np.flatnonzero(back), pa.int64())), random)
            returns = LineReader([add_lines(returned)])
            self._count(removed, -1)
            self._count(returned, 1)
        adds = LineReader(self._tail_lines())
        for number in range(recipe.tail):
            first, last = number * recipe.removes // recipe.tail, (number + 1) * recipe.removes // recipe.tail
            version += 1
            operation = "DELETE" if last > first else "WRITE"
            self._commit(
                version,
                operation,
                removes.take(last - first),
                returns.take(int(back[first:last].sum())),
                adds.take(recipe.adds_per_commit),
            )
        return version

    def _tail_lines(self) -> Iterator[pa.Array]:
        for adds in self._files.tail(self._recipe.tail * self._recipe.adds_per_commit):
            self._count(adds, 1)
            self._progress(len(adds))
            yield add_lines(adds)

    def _commit(self, version: int, operation: str, *actions: Iterator[bytes] | list[bytes]) -> None:
        def chunks() -> Iterator[bytes]:
            yield commit_info(version, _CREATED + version * _SECOND, operation)
            for each in actions:
                yield from each

        self._destination.write(f"{version:020d}.json", chunks())

    def _checksum(self, version: int) -> None:
        content = {
            "tableSizeBytes": self._size,
            "numFiles": self._num_files,
            "numMetadata": 1,
            "numProtocol": 1,
            "metadata": self._metadata(),
            "protocol": self._protocol(),
        }
        self._destination.write(f"{version:020d}.crc", [json.dumps(content).encode()])

    def _protocol(self) -> dict[str, Any]:
        features = ["deletionVectors"] if self._recipe.deletion_vectors else []
        features += ["v2Checkpoint"] if self._recipe.checkpoint == "v2" else []
        if not features:
            return {"minReaderVersion": 1, "minWriterVersion": 2}
        return {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": [*features, "appendOnly", "invariants"],
        }

    def _metadata(self) -> dict[str, Any]:
        recipe = self._recipe
        configuration = {}
        if recipe.stats in {"struct", "both"}:
            configuration["delta.checkpoint.writeStatsAsStruct"] = "true"
        if recipe.stats in {"struct", "none"}:
            configuration["delta.checkpoint.writeStatsAsJson"] = "false"
        if recipe.deletion_vectors:
            configuration["delta.enableDeletionVectors"] = "true"
        if recipe.checkpoint == "v2":
            configuration["delta.checkpointPolicy"] = "v2"
        return {
            "id": self._uuids[0],
            "format": {"provider": "parquet", "options": {}},
            "schemaString": _schema_text(self._files.columns),
            "partitionColumns": [PARTITION_COLUMN],
            "configuration": configuration,
            "createdTime": _CREATED,
        }


def _schema_text(columns: tuple[StatsColumn, ...]) -> str:
    types = [(PARTITION_COLUMN, "string"), *((column.name, column.delta_type) for column in columns)]
    fields = [{"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in types]
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))


def _with_new_vectors(files: pa.StructArray, random: np.random.Generator) -> pa.StructArray:
    names = [files.type.field(index).name for index in range(files.type.num_fields)]
    vectors = new_vectors(np.ones(len(files), np.bool_), random)
    return pa.StructArray.from_arrays(
        [vectors if name == "deletionVector" else files.field(name) for name in names], names
    )
