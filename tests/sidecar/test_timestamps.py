"""Timestamps in typed statistics, far away and before 1970, in every type that writers give them."""

from __future__ import annotations

import datetime as dt
import json
import random
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable, sidecar
from lazydelta.protocol.schema import Column, Primitive
from lazydelta.sidecar.format.columns import manifest_path
from lazydelta.stats import ranges_from_parsed
from lazydelta.storage import open_store
from lazydelta.write.checkpoint.writer import write_checkpoint
from tests.oracle.checkpoints import CheckpointWriter, hint_for
from tests.scan.hand_log import HandLog, add
from tests.sidecar.sidecars import DISABLED, Place, resealed

FAR, NEAR, EARLY = "9999-12-31T00:00:00.000Z", "2024-05-06T07:08:09.000Z", "1969-12-31T23:59:59.999Z"
WRAPPED = dt.datetime(1816, 3, 29, 5, 56, 8, 66277, tzinfo=dt.UTC)
"""What 9999-12-31 becomes in 64 bits of nanoseconds."""

PREDICATES = {
    "at > '2025-01-01T00:00:00Z'": {"far"},
    "at >= '9999-01-01T00:00:00Z'": {"far"},
    "at < '1900-01-01T00:00:00Z'": set(),
    "at = '1969-12-31T23:59:59.999500Z'": {"early"},
    "at < '2000-01-01T00:00:00Z'": {"early"},
    "at > '1969-12-31T23:59:59.999Z' AND at < '2000-01-01T00:00:00Z'": {"early"},
}


def timestamp(name: str, text: str) -> dict[str, Any]:
    bound = {"at": text}
    return add(f"{name}.parquet", stats={"minValues": bound, "maxValues": bound, "nullCount": {"at": 0}})


def far_table(folder: Path, *, stats: str, int96: bool = True) -> HandLog:
    """Make a table with a checkpoint as Delta-Spark writes it: statistics cut to milliseconds, typed as INT96."""
    log = HandLog(folder, {"at": "timestamp"})
    log.commit(timestamp("far", FAR), timestamp("near", NEAR), timestamp("early", EARLY))
    snapshot = log.state()
    writer = CheckpointWriter(log.log, snapshot, random.Random(0))
    writer.stats, writer.int96 = stats, int96
    (log.log / "_last_checkpoint").write_text(json.dumps(hint_for(snapshot, writer.classic())))
    return log


def found(table: DeltaTable, where: str) -> set[str]:
    return {file.path.removesuffix(".parquet") for file in table.files(where)}


@pytest.mark.parametrize("stats", ["struct", "both"])
@pytest.mark.parametrize("int96", [True, False])
@pytest.mark.parametrize("tier", [1, 2, 3])
def test_no_file_vanishes_by_a_timestamp_outside_the_reach_of_nanoseconds(
    tmp_path: Path, stats: str, tier: int, *, int96: bool
) -> None:
    far_table(tmp_path / "t", stats=stats, int96=int96)
    place = Place(str(tmp_path / "t"))
    if tier < 3:
        assert place.build() == "built"
        assert sidecar.verify(place.uri).problems == []
    if tier == 2:
        (tmp_path / "t" / "_delta_log" / "_sidecars" / "v0.manifest.json").unlink()
    for where, expected in PREDICATES.items():
        table = place.open()
        assert found(table, where) == expected, where
    stream = table.files()
    assert len(stream.collect()) == 3
    assert stream.metrics.tier == tier


@pytest.mark.parametrize("stats", ["struct", "both"])
def test_a_checkpoint_of_ours_copies_far_timestamps_as_they_are(tmp_path: Path, stats: str) -> None:
    log = far_table(tmp_path / "t", stats=stats)
    log.commit(timestamp("new", NEAR))
    write_checkpoint(open_store(tmp_path / "t"))
    [path] = (tmp_path / "t" / "_delta_log").glob("*01.checkpoint.parquet")
    adds = pq.read_table(path, columns=["add"]).column("add").to_pylist()
    bounds = {each["stats_parsed"]["maxValues"]["at"] for each in adds if each}
    assert dt.datetime(9999, 12, 31, tzinfo=dt.UTC) in bounds
    assert min(bounds) == dt.datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=dt.UTC)
    files = pa.table(deltalake.DeltaTable(str(tmp_path / "t")).get_add_actions(flatten=True))
    assert max(files.column("max.at").to_pylist()) == dt.datetime(9999, 12, 31, tzinfo=dt.UTC)
    for where, expected in PREDICATES.items():
        assert found(DeltaTable(tmp_path / "t", options=DISABLED), where) == expected, where


def wrap(folder: Path) -> None:
    """Write the typed bounds of the checkpoint wrapped, as a reader of INT96 as nanoseconds does."""
    [path] = (folder / "_delta_log").glob("*.checkpoint.parquet")
    table = pq.read_table(path, coerce_int96_timestamp_unit="us")
    rows = table.to_pylist()
    for row in rows:
        typed = (row["add"] or {}).get("stats_parsed") or {}
        for end in ("minValues", "maxValues"):
            if typed and typed[end]["at"].year == 9999:
                typed[end]["at"] = WRAPPED
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)


def test_bounds_that_were_written_wrapped_give_way_to_the_text_beside_them(tmp_path: Path) -> None:
    log = far_table(tmp_path / "t", stats="both")
    wrap(tmp_path / "t")
    place = Place(str(tmp_path / "t"))
    assert place.build() == "built"
    report = sidecar.verify(place.uri)
    assert not report.ok
    assert "far.parquet has the minimum 1816-03-29" in report.problems[0]
    assert "beside the text 9999-12-31" in report.problems[0]
    for where, expected in PREDICATES.items():
        assert found(place.open(), where) == expected, where
    log.commit(timestamp("new", NEAR))
    write_checkpoint(place.store)
    sidecar.drop(place.uri)
    for where, expected in PREDICATES.items():
        assert found(place.open(), where) == expected, where
    assert place.build() == "built"
    assert sidecar.verify(place.uri).ok


def test_bounds_that_were_written_wrapped_are_found_by_the_data_where_there_is_no_text(tmp_path: Path) -> None:
    log = far_table(tmp_path / "t", stats="struct")
    for name, text in (("far", FAR), ("near", NEAR), ("early", "1969-12-31T23:59:59.999500Z")):
        values = pa.array([dt.datetime.fromisoformat(text)], pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"at": values}), log.table / f"{name}.parquet")
    place = Place(str(tmp_path / "t"))
    assert sidecar.build(place.uri).action == "built"
    assert sidecar.verify(place.uri).ok
    wrap(tmp_path / "t")
    sidecar.drop(place.uri)
    assert place.build() == "built"
    report = sidecar.verify(place.uri)
    assert "far.parquet has the maximum 1816-03-29" in report.problems[-1]
    assert "and holds 9999-12-31" in report.problems[-1]
    assert found(place.open(), "at > '2025-01-01T00:00:00Z'") >= {"far"}
    log.commit(timestamp("new", NEAR))
    write_checkpoint(place.store)
    assert found(place.open(**DISABLED), "at > '2025-01-01T00:00:00Z'") >= {"far"}


def test_a_sidecar_of_the_first_format_is_not_believed(tmp_path: Path) -> None:
    far_table(tmp_path / "t", stats="both")
    place = Place(str(tmp_path / "t"))
    place.build()
    data = place.store.get(manifest_path(0))
    place.store.put(manifest_path(0), resealed(data, lambda manifest: manifest.update(format_version=1)))
    stream = place.open().files()
    assert len(stream.collect()) == 3
    assert stream.metrics.tier != 1
    assert sidecar.refresh(place.uri).action == "manifest-added"


@pytest.mark.parametrize("nanoseconds", [-1, 0, 1, 999, 1000, -999, -1000, -1001, -(2**63) + 1, 2**63 - 1])
def test_nanoseconds_are_rounded_outwards_on_both_sides_of_1970(nanoseconds: int) -> None:
    column = Column(("at",), ("at",), Primitive("timestamp"))
    bounds = pa.array([{"at": nanoseconds}], pa.struct({"at": pa.timestamp("ns", "UTC")}))
    stats = pa.StructArray.from_arrays([bounds, bounds], names=["minValues", "maxValues"])
    known = ranges_from_parsed(stats, [column]).column(column)
    assert known is not None
    assert known.min is not None
    assert known.max is not None
    assert known.min[0].value == nanoseconds // 1000
    assert known.max[0].value == -(-nanoseconds // 1000)
