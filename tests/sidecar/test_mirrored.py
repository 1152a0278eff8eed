"""Which checkpoint a sidecar mirrors: copies of a table keep theirs, and a checkpoint that was rewritten loses it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lazydelta import sidecar
from lazydelta.sidecar.format.columns import manifest_path
from lazydelta.sidecar.reading.discovery import shared_cache
from lazydelta.storage import Request, observe
from lazydelta.testing import make_table
from tests.scan.hand_log import publish
from tests.sidecar.conftest import Split
from tests.sidecar.refreshed import HOURS, Hourly, file_in
from tests.sidecar.sidecars import QUERIES, Place, hourly, rows

CHECKPOINT = f"_delta_log/{0:020d}.checkpoint.parquet"
ROOM = 3000
TAILS = 64 << 10


@pytest.fixture
def table(tmp_path: Path, split: Split) -> Place:
    """Return a table with a sidecar, whose checkpoint has room for changes that do not change its size."""
    split(7, 3)
    hourly(tmp_path / "t", tail=0)
    rewrite(tmp_path / "t" / CHECKPOINT, lambda path: path, ROOM)
    place = Place(str(tmp_path / "t"))
    assert place.build() == "built"
    return place


def rewrite(file: Path, rename: Callable[[pa.Array], pa.Array], room: int | None = None) -> None:
    """Write a checkpoint with other paths in its files, of the same size unless ``room`` says how much larger."""
    found = pq.read_table(file)
    add = found.column("add").combine_chunks()
    add = add.chunk(0) if isinstance(add, pa.ChunkedArray) else add
    names = [field.name for field in add.type]
    changed = pa.StructArray.from_arrays(
        [rename(add.field(name)) if name == "path" else add.field(name) for name in names],
        fields=list(add.type),
        mask=add.is_null(),
    )
    size = file.stat().st_size
    found = found.set_column(found.schema.get_field_index("add"), "add", changed)
    padding, missing = 0, 1
    while missing:
        with pq.ParquetWriter(file, found.schema, store_schema=False) as writer:
            writer.write_table(found)
            writer.add_key_value_metadata({"padding": "x" * padding})
        missing = size + (room or 0) - file.stat().st_size
        padding += missing
        assert padding >= 0


def renamed(place: Place) -> None:
    """Rewrite the checkpoint such that other files are there, under names of the same length."""
    size = (Path(place.uri) / CHECKPOINT).stat().st_size
    rewrite(Path(place.uri) / CHECKPOINT, lambda path: pc.replace_substring(path, "f000", "g000"))
    assert (Path(place.uri) / CHECKPOINT).stat().st_size == size


def checkpoint_reads(where: Any, place: Place) -> tuple[int, int, Any]:
    """Return how many ranges of the checkpoint a scan reads, how many bytes, and its metrics."""
    requests: list[Request] = []
    with observe(requests.append):
        found, metrics = rows(place.open(), where)
    assert found == place.answer(where)
    reads = ends_read(requests)
    return len(reads), sum(reads), metrics


def ends_read(requests: list[Request]) -> list[int]:
    """Return the lengths of the ranges that were read of checkpoints; metadata is read in another way."""
    return [each.length or 0 for each in requests if ".checkpoint." in each.path and each.start is not None]


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("manifest", [True, False], ids=["manifest", "no manifest"])
def test_a_checkpoint_that_was_rewritten_in_the_same_size_is_another(
    *, table: Place, warm: bool, manifest: bool, split: Split
) -> None:
    if not manifest:
        # Only a single file is a sidecar by itself.
        split(7, 1000)
        sidecar.drop(table.uri)
        assert table.build() == "built"
        table.store.delete(manifest_path(0))
        shared_cache.clear()
    assert rows(table.open())[1].tier == (1 if manifest else 2)
    before = table.answer()
    renamed(table)
    assert table.answer() != before
    for where in QUERIES:
        if not warm:
            shared_cache.clear()
        found, metrics = rows(table.open(), where)
        assert found == table.answer(where)
        assert metrics.tier == 3


def test_verify_tells_and_build_replaces_the_sidecar_of_a_rewritten_checkpoint(table: Place) -> None:
    renamed(table)
    report = sidecar.verify(table.uri)
    assert not report.ok
    assert "of the same size" in report.problems[0]
    assert table.build() == "built"
    assert sidecar.verify(table.uri).ok
    found, metrics = rows(table.open())
    assert (found, metrics.tier) == (table.answer(), 1)


def test_the_checkpoint_is_not_read_where_the_store_vouches_for_it(table: Place) -> None:
    for where in QUERIES:
        shared_cache.clear()
        assert checkpoint_reads(where, table)[0] == 0


def test_a_copy_of_a_table_keeps_its_sidecar(table: Place, tmp_path: Path) -> None:
    """The end of its checkpoint is read and compared, once for each process."""
    copy = Place(shutil.copytree(table.uri, str(tmp_path / "copy")))
    for where in QUERIES:
        shared_cache.clear()
        for expected in (1, 0):
            count, size, metrics = checkpoint_reads(where, copy)
            assert (count, metrics.tier) == (expected, 1)
            assert size <= TAILS
    assert sidecar.verify(copy.uri).ok
    assert copy.build() == "already-valid"


def test_a_copy_on_another_store_keeps_its_sidecar(table: Place) -> None:
    copy = Place(publish(Path(table.uri), "memory://copied-with-its-sidecar/t", None))
    for where in QUERIES:
        shared_cache.clear()
        found, metrics = rows(copy.open(), where)
        assert (found, metrics.tier) == (table.answer(where), 1)


@pytest.mark.parametrize("kind", ["v1", "multipart", "v2"])
def test_all_files_of_a_checkpoint_are_compared_in_one_small_read_each(kind: Any, tmp_path: Path) -> None:
    make_table(tmp_path / "t", files=5000, checkpoint=kind, parts=20, hours=24)
    sidecar.build(tmp_path / "t")
    copy = Place(shutil.copytree(tmp_path / "t", str(tmp_path / "copy")))
    shared_cache.clear()
    requests: list[Request] = []
    with observe(requests.append):
        found, metrics = rows(copy.open(), "_event_hour = '2026021022'")
    assert (found, metrics.tier) == (copy.answer("_event_hour = '2026021022'"), 1)
    reads = ends_read(requests)
    assert len(reads) == (20 if kind == "multipart" else 1)
    assert sum(reads) <= 20 * (4 << 10) + TAILS


def test_a_refresh_does_not_build_on_a_sidecar_of_a_rewritten_checkpoint(tmp_path: Path, split: Split) -> None:
    table = Hourly(tmp_path / "t", split)
    sidecar.drop(table.place.uri)
    rewrite(tmp_path / "t" / CHECKPOINT, lambda path: path, ROOM)
    assert table.place.build() == "built"
    renamed(table.place)
    table.log.commit(file_in(HOURS[3], 900))
    # The checkpoint of version 1 is the hand log's, which knows nothing of the new names: what counts is the reason.
    result = table.refresh()
    assert result.action == "built"
    assert "of the same size" in str(result.reason)
    table.check()


def test_a_refresh_builds_on_the_sidecar_of_a_copied_table(tmp_path: Path, split: Split) -> None:
    table = Hourly(tmp_path / "t", split)
    table.log.commit(file_in(HOURS[3], 900))
    table.log.checkpoint()
    copy = Place(shutil.copytree(table.place.uri, str(tmp_path / "copy")))
    result = sidecar.refresh(copy.uri)
    assert (result.action, result.reused_parts) == ("refreshed", 9)
    assert sidecar.verify(copy.uri).ok
