"""Small tables with sidecars of many row groups, answers to compare, and ways to damage and to re-seal."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazydelta import DeltaTable
from lazydelta.sidecar.building.build import build
from lazydelta.sidecar.format.columns import FOLDER
from lazydelta.sidecar.format.manifest import seal
from lazydelta.storage import open_store
from tests.oracle.checkpoints import CheckpointWriter, hint_for
from tests.scan.hand_log import HandLog, add, remove, vector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from lazydelta.scan.file import DataFile
    from lazydelta.scan.stream import FileStream
    from lazydelta.storage import Store
    from tests.oracle.replay import Json

DISABLED = {"delta.sidecar.enabled": False}
COLUMNS = {"id": "long", "at": "timestamp", "name": "string", "hour": "string"}
HOURS = 24
ZEROS = "0" * 64

Answer = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Place:
    """A table on some store, which tests may damage whatever the store is."""

    uri: str
    storage_options: Mapping[str, str] | None = None

    @property
    def store(self) -> Store:
        """Return a store of the table's root."""
        return open_store(self.uri, self.storage_options)

    def open(self, version: int | None = None, **options: Any) -> DeltaTable:
        """Open the table."""
        return DeltaTable(self.uri, version=version, storage_options=self.storage_options, options=options)

    def build(self, version: int | None = None) -> str:
        """Build a sidecar and return what the builder did."""
        return build(self.uri, version, storage_options=self.storage_options).action

    def sidecars(self) -> list[str]:
        """Return the paths of the Parquet files and manifests of ours."""
        return [each.path for each in self.store.list(FOLDER)]

    def parquets(self) -> list[str]:
        """Return the paths of the sidecar's Parquet files, without the overview of parts."""
        return [path for path in self.sidecars() if path.endswith(".parquet") and not is_overview(self.store.get(path))]

    def answer(self, where: Any = None, **keywords: Any) -> Answer:
        """Return what the log says, without any sidecar."""
        return rows(self.open(**DISABLED), where, **keywords)[0]


def is_overview(data: bytes) -> bool:
    """Return whether a Parquet file lists the parts of a sidecar."""
    return b"lazydelta.parts" in data


def rows(table: DeltaTable, where: Any = None, **keywords: Any) -> tuple[Answer, Any]:
    """Return everything that a scan says of each file but how it was found, in one order; and the scan's metrics."""
    stream = table.files(where, **({"stats_columns": []} | keywords))
    found = [as_row(row) for batch in stream.batches() for row in batch.to_pylist()]
    return sorted(found, key=repr), stream.metrics


def until_base(stream: FileStream) -> list[DataFile]:
    """Pull files until the first one of the base has come."""
    files = [next(stream)]
    while files[-1].tier == 0:
        files.append(next(stream))
    return files


def rest(stream: FileStream) -> list[DataFile]:
    """Pull the files that are left."""
    return list(iter(lambda: next(stream, None), None))


def as_row(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a row of a record batch without the tier that it came from."""
    # NaN is unequal to itself: compared by how it is written.
    return tuple(repr(value) if isinstance(value, float) else value for name, value in row.items() if name != "tier")


def hourly(table: Path, *, files: int = 120, tail: int = 3, seed: int = 0) -> HandLog:
    """Write a table partitioned by hour: odd files without statistics, vectors, a null hour, and a lively tail."""
    rng = random.Random(seed)
    log = HandLog(table, COLUMNS, partitions=["hour"], features=["deletionVectors"])
    log.commit(*(_file(rng, number) for number in range(files)))
    log.checkpoint()
    for number in range(tail):
        gone = f"f{number * 7:05d}"
        again = f"f{number * 11 + 1:05d}"
        was = vector(f"v{number * 11 + 1}") if _has_vector(number * 11 + 1) else None
        log.commit(
            remove(gone, vector=vector(f"v{number * 7}") if _has_vector(number * 7) else None),
            remove(again, vector=was),
            add(again, ids=(5, 6), records=9, partition={"hour": "2026021005"}, vector=vector(f"new{number}", 2)),
            add(f"t{number:05d}", ids=(number, number + 50), records=3, partition={"hour": "2026021023"}),
        )
    return log


def _has_vector(number: int) -> bool:
    return number % 9 == 4


def _file(rng: random.Random, number: int) -> Any:
    hour = rng.randrange(HOURS)
    low = rng.randrange(1000)
    at = f"2026-02-10T{hour:02d}:{rng.randrange(60):02d}:00.000Z"
    stats: dict[str, Any] | None = {
        "minValues": {"id": low, "at": at, "name": f"n{low:04d}"},
        "maxValues": {"id": low + 20, "at": at, "name": f"n{low + 20:04d}"},
        "nullCount": {"id": 0, "at": 0, "name": rng.choice([0, 5])},
    }
    if number % 13 == 0:
        stats = None
    elif number % 17 == 0:
        stats = {"minValues": {"id": low}, "nullCount": {"id": 3}}
    value = None if number % 29 == 3 else f"20260210{hour:02d}"
    gone = vector(f"v{number}") if _has_vector(number) else None
    return add(f"f{number:05d}", records=10, partition={"hour": value}, stats=stats, vector=gone)


class _AsLogged(CheckpointWriter):
    """Writes what was logged, also where it is not of the column's type."""

    def _add_value(self, add: Json) -> Json:
        return dict(add) if self.stats == "json" and not self.parsed_partitions else super()._add_value(add)


def checkpoint(log: HandLog, *, stats: str = "json", parsed_partitions: bool = False) -> None:
    """Write the checkpoint of the newest version, with partition values of types that the hand log cannot parse."""
    snapshot = log.state()
    writer = _AsLogged(log.log, snapshot, random.Random(0))
    writer.stats, writer.parsed_partitions = stats, parsed_partitions
    (log.log / "_last_checkpoint").write_text(json.dumps(hint_for(snapshot, writer.classic())))


QUERIES: tuple[Any, ...] = (
    None,
    "hour = '2026021005'",
    "hour >= '2026021020'",
    "hour IS NULL",
    "id < 100",
    "at >= '2026-02-10T18:00:00Z' AND name < 'n0500'",
    "hour = '1999010100'",
)


def resealed(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a manifest that was changed and sealed again."""
    manifest = json.loads(data)
    change(manifest)
    manifest["sha256"] = ZEROS
    return seal(json.dumps(manifest, separators=(",", ":")).encode())


def flipped(data: bytes, bit: int) -> bytes:
    """Return the bytes with one bit turned over."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
