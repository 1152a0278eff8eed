"""``SpreadBuild``: a sidecar build by many tasks that each write their own parts; the driver writes the manifest.

The job is plain data with methods, independent of what runs the tasks. The checkpoint is split into units of row
groups. Tasks sample the keys of their units, and splitters between buckets are chosen from the samples. Tasks then read
their units again and send each file, with its statistics as logged, to the bucket of its key. The task of a bucket
parses, sorts and writes. No process holds more than a bucket, and the driver receives only a few facts per part.

Tasks can be retried, or run twice at the same time. Each attempt writes under its own names, and only files in the
manifest count. Files of other attempts are deleted once the manifest is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.errors import LazyDeltaError
from lazydelta.log.checkpoint.reader import CheckpointReader, StatsWanted, Unit, units_of
from lazydelta.log.file_batch import FILE_COLUMNS, FileBatch
from lazydelta.log.segment import Checkpoint
from lazydelta.protocol.schema import Column
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import from_numpy
from lazydelta.runtime.threads import release_memory
from lazydelta.scan.timestamp_check import false_timestamps, without_bounds
from lazydelta.sidecar.building.build import KeySample
from lazydelta.sidecar.building.plan import SidecarPlan, key_layout
from lazydelta.sidecar.building.publish import BuildResult, Publication, PublishedPart
from lazydelta.sidecar.format.columns import ColumnRole, part_path
from lazydelta.sidecar.format.leaves import pack_groups
from lazydelta.sidecar.format.manifest import list_folder
from lazydelta.sidecar.format.part_file import SidecarState, WrittenPart, encode_part, encode_tiers
from lazydelta.sidecar.format.rows import places_among, sortable, to_rows
from lazydelta.storage import Store

__all__ = ["BucketParts", "SpreadBuild", "UnitKeys", "splitters_of"]

_ROWS_PER_BATCH = 65_536
_SAMPLED_KEYS = 4_096
# Bucket sizes vary because they come from a sample: the largest should still fit in one part.
_FULL = 0.85
# Part numbers reserved per attempt; a bucket has only a few parts.
_PARTS_PER_ATTEMPT = 100_000


@dataclass(frozen=True, slots=True)
class UnitKeys:
    """The number of files of a unit, and a sample of their keys."""

    count: int
    keys: Sequence[bytes]


class BucketParts(msgspec.Struct, frozen=True):
    """The parts that a task wrote for a bucket, in order, with their manifest entries."""

    bucket: int
    parts: tuple[PublishedPart, ...]


@dataclass(frozen=True)
class SpreadBuild:
    """The build as tasks see it; ``wrong`` lists columns whose typed bounds are wrong."""

    store: Store
    checkpoint: Checkpoint
    plan: SidecarPlan
    state: SidecarState
    build_id: str
    wrong: tuple[Column, ...]
    memory_budget: int

    @classmethod
    def begin(cls, publication: Publication, memory_budget: int) -> SpreadBuild:
        """Record the current checkpoint and the metadata shared by all parts."""
        publication.begin()
        return cls(
            publication.store.carrying_credentials(),
            publication.checkpoint,
            publication.plan,
            publication.sealed(),
            publication.build_id,
            tuple(false_timestamps(publication.snapshot)),
            memory_budget,
        )

    def __getstate__(self) -> dict[str, Any]:
        # Raw JSON does not pickle.
        state = {each.name: getattr(self, each.name) for each in fields(self)}
        return state | {"state": msgspec.json.encode(self.state)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"state": msgspec.json.decode(state["state"], type=SidecarState)})

    # --- on the driver

    def units(self, rows: int) -> list[Unit]:
        """Split the checkpoint into units of about ``rows`` rows; row groups are never split."""
        return units_of(self._reader(), rows)

    def buckets(self, files: int) -> int:
        """Return the number of buckets for this many files."""
        return max(1, -(-files // max(1, int(self._part_rows * _FULL))))

    def publish(self, publication: Publication, results: Iterable[BucketParts]) -> BuildResult:
        """Write the manifest over the parts of the buckets, and delete the files of other attempts."""
        ordered = sorted(results, key=lambda each: each.bucket)
        parts = [part for each in ordered for part in each.parts]
        try:
            done = publication.put_manifest(parts, action="built")
        except BaseException:
            self.discard(publication)
            raise
        self._delete_but(() if done.action == "already-valid" else [file for part, _ in parts for file in part.files])
        return done

    def discard(self, publication: Publication) -> None:
        """Delete the parts of this build, unless a manifest can name them; `clean` deletes the rest."""
        if publication.is_ruled_out():
            self._delete_but(())

    def _delete_but(self, keep: Iterable[str]) -> None:
        """Delete the parts of this build except ``keep``; their names are unique to the build."""
        kept = set(keep)
        with contextlib.suppress(LazyDeltaError):
            for file in list_folder(self.store):
                if f"-{self.build_id}-" in file.path and file.path not in kept:
                    self.store.delete(file.path)

    # --- in a task

    def sample(self, unit: Unit) -> UnitKeys:
        """Count the files of a unit and sample their keys."""
        layout = key_layout(self.plan.layout)
        wanted = tuple(each.path for each in layout.sort if each.role == ColumnRole.MIN)
        count, sample = 0, KeySample(_SAMPLED_KEYS)
        for batch in self._files(unit, StatsWanted(wanted) if wanted else StatsWanted(())):
            count += len(batch)
            chosen = sample.chosen(len(batch))
            some = batch if chosen is None else batch.filter(chosen)
            sample.add(sortable(to_rows(some, layout, self.plan.schema), layout))
        return UnitKeys(count, sample.held())

    def spread(self, unit: Unit, splitters: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield the files of a unit as logged, each with its bucket."""
        ends, layout = pa.array(splitters, pa.binary()), key_layout(self.plan.layout)
        for batch in self._files(unit, StatsWanted(extra=True)):
            keys = sortable(to_rows(without_bounds(batch, self.wrong), layout, self.plan.schema), layout)
            buckets = places_among(ends, keys, side="right")
            order = np.argsort(buckets, kind="stable")
            numbers, rows = buckets[order], _to_arrow(batch).take(from_numpy(order))
            edges = np.flatnonzero(np.diff(numbers)) + 1
            for start, end in zip([0, *edges.tolist()], [*edges.tolist(), len(numbers)], strict=True):
                yield int(numbers[start]), _packed(rows.slice(start, end - start))

    def write(self, bucket: int, pieces: Iterable[bytes], attempt: int) -> BucketParts:
        """Write the files of a bucket, sorted, under names unique to the attempt."""
        layout, schema = self.plan.layout, self.plan.schema
        held = [to_rows(without_bounds(_unpacked(piece), self.wrong), layout, schema) for piece in pieces]
        if not held:
            return BucketParts(bucket, ())
        table = pa.Table.from_batches(held, schema=layout.arrow_schema(schema)).combine_chunks()
        held.clear()
        table = table.take(pc.sort_indices(sortable(table, layout)))
        pieces_of = -(-table.num_rows // self._part_rows)
        rows = -(-table.num_rows // pieces_of)
        written = []
        for number, start in enumerate(range(0, table.num_rows, rows)):
            encoded = self._encode(table.slice(start, rows).combine_chunks())
            place = part_path(self.state.version, self.build_id, attempt * _PARTS_PER_ATTEMPT + number + 1)
            part, files = encoded.named(place)
            for path, data in files.items():
                self.store.put(path, data)
            written.append((part, pack_groups(encoded.row_groups)))
            release_memory()
        return BucketParts(bucket, tuple(written))

    def _encode(self, rows: pa.Table) -> WrittenPart:
        index = self.plan.index
        if index is None:
            return encode_part(rows, self.state, self.plan.indexed)
        return encode_tiers(rows, self.state, self.plan.indexed, index)

    @property
    def _part_rows(self) -> int:
        return self.plan.rows_in_part(self.memory_budget)

    def _reader(self) -> CheckpointReader:
        return CheckpointReader(
            self.store,
            self.checkpoint,
            batch_size=_ROWS_PER_BATCH,
            memory_budget=self.memory_budget,
            needs_stats=True,
        )

    def _files(self, unit: Unit, stats: StatsWanted) -> Iterator[FileBatch]:
        return msgspec.structs.replace(self._reader(), groups=unit.groups).files_of(unit.part, stats)


def splitters_of(sampled: Sequence[UnitKeys], buckets: int) -> list[bytes]:
    """Return the keys between buckets of similar size; each key is weighted by the file count of its unit."""
    known = [each for each in sampled if each.keys]
    if buckets <= 1 or not known:
        return []
    keys = pa.array([key for each in known for key in each.keys], pa.binary())
    weights = np.concatenate([np.full(len(each.keys), each.count / len(each.keys)) for each in known])
    order = np.asarray(pc.sort_indices(keys))
    reached = np.cumsum(weights[order])
    wanted = reached[-1] * np.arange(1, buckets) / buckets
    places = np.minimum(np.searchsorted(reached, wanted), len(order) - 1)
    return sorted({keys[int(order[place])].as_py() for place in places})


def _to_arrow(batch: FileBatch) -> pa.RecordBatch:
    columns = {name: column for name in FILE_COLUMNS if (column := getattr(batch, name)) is not None}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _packed(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpacked(piece: bytes) -> FileBatch:
    with pa.ipc.open_stream(piece) as reader:
        rows = reader.read_next_batch()
    columns: dict[str, Any] = dict(zip(rows.schema.names, rows.columns, strict=True))
    return FileBatch(**columns)
