"""``SpreadBuild``: a sidecar built by many tasks, each of which writes parts of its own; the driver only the manifest.

A job as plain data with its verbs, for whatever carries it to the tasks. The checkpoint is cut into units of row
groups. Tasks sample the keys of their units, from which the buckets between splitters are cut. Tasks then read their
units again and hand each file on, with its statistics as they are logged, to the bucket where its key belongs; the task
of a bucket parses, sorts and writes. Nobody holds more than a bucket, and what the driver gets is a few facts a part.

Tasks may be repeated, or run twice at once. Each attempt writes under names of its own, and only those that the
manifest names count; what other attempts left is deleted when the manifest is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import from_numpy
from lazydelta.errors import LazyDeltaError
from lazydelta.execution import release_memory
from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader, StatsWanted
from lazydelta.log.checkpoint.checkpoint_units import Unit, units_of
from lazydelta.log.file_batch import FILE_COLUMNS, FileBatch
from lazydelta.log.segment import Checkpoint
from lazydelta.scan.timestamp_check import false_timestamps, without_bounds
from lazydelta.sidecar.building.key_sample import KeySample
from lazydelta.sidecar.building.part_order import key_layout
from lazydelta.sidecar.building.planning import SidecarPlan
from lazydelta.sidecar.building.publication import BuildResult, Publication, PublishedPart
from lazydelta.sidecar.layout.folder import list_folder
from lazydelta.sidecar.layout.leaves import pack_groups
from lazydelta.sidecar.layout.order import places_among, sortable
from lazydelta.sidecar.layout.part_file import SidecarState, WrittenPart, encode_part
from lazydelta.sidecar.layout.sidecar_columns import ColumnRole, part_path
from lazydelta.sidecar.layout.sidecar_rows import to_rows
from lazydelta.sidecar.layout.tiers import encode_tiers
from lazydelta.storage import Store
from lazydelta.types.schema import Column

__all__ = ["BucketParts", "SpreadBuild", "UnitKeys", "splitters_of"]

_ROWS_PER_BATCH = 65_536
_SAMPLED_KEYS = 4_096
# Buckets differ in size as the sample is a sample: the largest of them should still be one part.
_FULL = 0.85
# An attempt has this many numbers for its parts; a bucket has a few.
_PARTS_PER_ATTEMPT = 100_000


@dataclass(frozen=True, slots=True)
class UnitKeys:
    """How many files a unit has, and a sample of their keys."""

    count: int
    keys: Sequence[bytes]


class BucketParts(msgspec.Struct, frozen=True):
    """The parts that a task wrote for a bucket, in order, with what the manifest says of them."""

    bucket: int
    parts: tuple[PublishedPart, ...]


@dataclass(frozen=True)
class SpreadBuild:
    """What a task knows of the build; ``wrong`` are columns whose typed bounds are false."""

    store: Store
    checkpoint: Checkpoint
    plan: SidecarPlan
    state: SidecarState
    build_id: str
    wrong: tuple[Column, ...]
    memory_budget: int

    @classmethod
    def begin(cls, publication: Publication, memory_budget: int) -> SpreadBuild:
        """Note the checkpoint as it is, and what all parts will say."""
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

    # --- where the build was begun

    def units(self, rows: int) -> list[Unit]:
        """Cut the checkpoint into units of about so many rows; a row group is never cut."""
        return units_of(self._reader(), rows)

    def buckets(self, files: int) -> int:
        """Return into how many buckets so many files are cut."""
        return max(1, -(-files // max(1, int(self._part_rows * _FULL))))

    def publish(self, publication: Publication, results: Iterable[BucketParts]) -> BuildResult:
        """Write the manifest over the parts of the buckets, and delete what other attempts have left."""
        ordered = sorted(results, key=lambda each: each.bucket)
        parts = [part for each in ordered for part in each.parts]
        try:
            done = publication.put_manifest(parts, action="built")
        except BaseException:
            self.discard(())
            raise
        self.discard(() if done.action == "already-valid" else [file for part, _ in parts for file in part.files])
        return done

    def discard(self, keep: Iterable[str]) -> None:
        """Delete the parts of this build, whose names nobody else has; `clean` deletes what we fail to."""
        kept = set(keep)
        with contextlib.suppress(LazyDeltaError):
            for file in list_folder(self.store):
                if f"-{self.build_id}-" in file.path and file.path not in kept:
                    self.store.delete(file.path)

    # --- in a task

    def sample(self, unit: Unit) -> UnitKeys:
        """Count the files of a unit, and choose some of their keys."""
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
        """Yield the files of a unit by the bucket where they belong, as they are logged."""
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
        """Write the files of a bucket, sorted, under names that no other attempt has."""
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
    """Choose the keys between buckets of about the same size; each key stands for as many files as its unit says."""
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
