"""Listing all files: local row groups are read by Arrow itself, and nothing is copied that need not be."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lazydelta import DeltaTable, sidecar
from lazydelta.log.file_batch import FileBatch, partition_values_array
from lazydelta.log.keys import RemoveSet
from lazydelta.log.replay import unmasked, unmasked_stretches
from lazydelta.scan import stream as file_stream
from lazydelta.scan.file import to_record_batch
from lazydelta.sidecar.format import part_file
from lazydelta.sidecar.reading import row_groups
from lazydelta.storage import observe
from lazydelta.storage.local import FileStore
from lazydelta.testing import make_table
from tests.scan.hand_log import HandLog, add
from tests.sidecar.conftest import Split
from tests.sidecar.sidecars import DISABLED, Place

WHERE = [None, "device_id >= 'sensor-0'"]
KINDS = {
    "string": [None, "", "a", "ä", "a longer one", "b"],
    "binary": [None, "a", "b"],
    "integer": [None, "1", "-7"],
    "date": [None, "2026-01-01"],
    "decimal(4,1)": [None, "1.0", "-2.5"],
}


def answer(place: Path | str, where: str | None = None, **options: Any) -> pa.Table:
    """Return all that the record batches of a scan hold, but for the tier, in one order."""
    stream = DeltaTable(place, options={"cache_size": 0, **options}).files(where, strategy="forward")
    found = pa.Table.from_batches(list(stream.batches()))
    assert options or stream.metrics.tier == 1
    return found.drop_columns(["tier"]).sort_by("path")


def without_records(found: pa.Table) -> pa.Table:
    return found.drop_columns(["num_records"])  # which a checkpoint does not have at hand


@pytest.fixture
def table(tmp_path: Path, split: Split) -> Path:
    """Return a table of many small row groups, some of whose files the tail removed."""
    split(50, 4)
    make_table(tmp_path, files=1_000, hours=24, tail=5, removes=30, deletion_vectors=0.1)
    sidecar.build(tmp_path)
    return tmp_path


@pytest.mark.parametrize("where", WHERE)
def test_what_arrow_reads_by_itself_is_what_blocks_hold(
    table: Path, monkeypatch: pytest.MonkeyPatch, where: str | None
) -> None:
    """The same files for the same requests, and without a copy of their bytes in Python."""
    blocks: list[Any] = []

    def counting(*arguments: Any, **named: Any) -> pa.RecordBatch:
        blocks.append(arguments)
        return part_file.read_groups(*arguments, **named)

    monkeypatch.setattr(row_groups, "read_groups", counting)
    seen: list[Any] = []
    with observe(seen.append):
        direct = answer(table, where)
    assert not blocks
    announced = sorted((each.verb, each.path, each.start) for each in seen)
    monkeypatch.setattr(FileStore, "reads_directly", property(lambda _: False))
    seen.clear()
    with observe(seen.append):
        assert answer(table, where).equals(direct)
    assert blocks
    assert announced == sorted((each.verb, each.path, each.start) for each in seen)
    assert without_records(answer(table, where, **DISABLED)).equals(without_records(direct))


@pytest.mark.parametrize("kind", KINDS)
def test_partition_values_read_as_codes_are_those_that_were_logged(tmp_path: Path, split: Split, kind: str) -> None:
    split(10, 3)
    rng = random.Random(kind)
    texts = rng.choices(KINDS[kind], k=100)
    log = HandLog(tmp_path, {"p": kind, "id": "long"}, partitions=["p"])
    log.commit(*(add(f"{number}.parquet", ids=(1, 9), partition={"p": text}) for number, text in enumerate(texts)))
    log.checkpoint()
    assert Place(str(tmp_path)).build() == "built"
    found = answer(tmp_path)
    assert without_records(found).equals(without_records(answer(tmp_path, None, **DISABLED)))
    maps = [dict(each) for each in found["partition_values"].to_pylist()]
    by_path = {f"{number}.parquet": text for number, text in enumerate(texts)}
    assert [each["p"] or None for each in maps] == [by_path[path] or None for path in found["path"].to_pylist()]


def files_named(paths: list[str]) -> FileBatch:
    numbers = pa.array(range(len(paths)), pa.int64())
    return FileBatch(pa.array(paths), numbers, numbers, partition_values_array([{"p": path[:1]} for path in paths]))


@pytest.mark.parametrize("hidden", [0, 1, 3, 4_000])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.each_value
def test_what_the_tail_hides_is_cut_out(hidden: int, *, ends: bool) -> None:
    paths = [f"h={number % 7}/part-{number:05d}.parquet" for number in range(10_000)]
    gone = random.Random(hidden).sample(paths[1:-1], hidden) + [paths[0], paths[-1]] * ends
    seen = RemoveSet()
    if gone:
        seen.add(pa.array(gone, pa.string()))
    batch = files_named(paths)
    pieces = unmasked_stretches(batch, seen)
    left = [path for path in paths if path not in set(gone)]
    assert [path for piece in pieces for path in piece.path.to_pylist()] == left
    assert [size for piece in pieces for size in piece.size.to_pylist()] == unmasked(batch, seen).size.to_pylist()
    assert all(len(piece) for piece in pieces)
    few = len(gone) <= 4
    # Few gaps: pieces of the batch itself. Many: one copy.
    assert len(pieces) <= (len(gone) + 1 if few else 1)
    address = batch.path.buffers()[2].address
    assert all((piece.path.buffers()[2].address == address) is few for piece in pieces)


def test_batches_are_converted_as_they_were_found_and_cut_afterwards(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def counting(batch: FileBatch, *more: Any) -> pa.RecordBatch:
        sizes.append(len(batch))
        return to_record_batch(batch, *more)

    monkeypatch.setattr(file_stream, "to_record_batch", counting)
    stream = DeltaTable(table).files(strategy="forward", batch_size=7)
    pieces = list(stream.batches())
    assert max(piece.num_rows for piece in pieces) == 7
    assert sum(piece.num_rows for piece in pieces) == sum(sizes) == stream.metrics.files_emitted
    assert np.mean(sizes) > 14
    first = DeltaTable(table).files(strategy="forward", batch_size=7)
    batches = first.batches()
    next(batches)
    assert first.metrics.files_emitted <= 7  # what was not handed out does not count
    first.close()
