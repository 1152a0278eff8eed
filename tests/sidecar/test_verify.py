"""``verify`` finds whatever is not as in the log, and says where."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lazydelta import sidecar
from lazydelta.sidecar.format.columns import manifest_path, sidecar_path
from lazydelta.sidecar.row_digest import RowDigest
from lazydelta.testing import make_table
from tests.scan.hand_log import HandLog
from tests.sidecar.conftest import Split
from tests.sidecar.refreshed import COLUMNS, HOURS, Hourly, file_in, gone_from
from tests.sidecar.sidecars import Place, resealed

publishing = importlib.import_module("lazydelta.sidecar.building.publish")


@pytest.fixture
def hourly(tmp_path: Path, split: Split) -> Hourly:
    """Return a table whose sidecar has ten parts."""
    return Hourly(tmp_path / "t", split)


def rebuilt(hourly: Hourly, monkeypatch: pytest.MonkeyPatch, change: Callable[[pa.Table], pa.Table]) -> Any:
    """Build the sidecar again with rows that were changed before they were sealed; return what verify says."""
    encode = publishing.encode_part

    def changed(rows: pa.Table, *rest: Any) -> Any:
        return encode(change(rows), *rest)

    sidecar.drop(hourly.place.uri)
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "encode_part", changed)
        assert hourly.place.build() == "built"
    return sidecar.verify(hourly.place.uri)


def with_value(rows: pa.Table, path: str, column: str, value: Any) -> pa.Table:
    """Return rows with one value changed."""
    values = rows.column(column).to_pylist()
    paths = rows.column("path").to_pylist()
    if path not in paths:
        return rows
    values[paths.index(path)] = value
    place = rows.schema.get_field_index(column)
    return rows.set_column(place, rows.schema.field(place), pa.array(values, rows.schema.field(place).type))


def test_a_good_sidecar_is_proven_good(hourly: Hourly) -> None:
    report = sidecar.verify(hourly.place.uri)
    assert (report.ok, report.problems, report.tier, report.version) == (True, [], 1, 0)
    assert (report.num_files, report.num_parts, report.num_row_groups) == (200, 10, 40)
    assert report.compared_columns == 19


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("size", 11, "size is 11 in the sidecar and 10 in the log"),
        ("max.id", 4711, "max.id is 4711 in the sidecar and 80 in the log"),
        ("null_count.id", None, "null_count.id is None in the sidecar and 0 in the log"),
        ("num_records", 8, "num_records is 8 in the sidecar and 7 in the log"),
        ("tight_bounds", False, "tight_bounds is False in the sidecar and None in the log"),
        ("dv.storageType", "u", "dv.storageType is 'u' in the sidecar and None in the log"),
        ("partition_values", [("hour", "x")], "partition_values is [('hour', 'x')] in the sidecar"),
        ("tags", [("a", "b")], "tags is [('a', 'b')] in the sidecar and None in the log"),
    ],
)
def test_one_wrong_value_is_found_and_named(
    hourly: Hourly, monkeypatch: pytest.MonkeyPatch, column: str, value: Any, said: str
) -> None:
    action = gone_from(HOURS[0], 3)
    tagged = file_in(HOURS[19], 900)
    tagged["add"]["tags"] = {"k": "v"}  # so that the checkpoint has a column for tags
    hourly.log.commit(action, tagged)
    hourly.log.checkpoint()
    report = rebuilt(hourly, monkeypatch, lambda rows: with_value(rows, "f00075", column, value))
    assert not report.ok
    assert [each for each in report.problems if each.startswith(f"f00075: {said}")], report.problems


def test_a_lost_and_an_invented_file_are_found(hourly: Hourly, monkeypatch: pytest.MonkeyPatch) -> None:
    report = rebuilt(hourly, monkeypatch, lambda rows: rows.slice(1) if rows.num_rows == 20 else rows)
    assert "the sidecar has 190 files and the log has 200" in report.problems
    lost = [f"f{number:05}: 0 times in the sidecar, 1 times in the log" for number in range(0, 200, 20)]
    assert len(set(lost) & set(report.problems)) == 5  # of ten, the first that it came upon
    invented = with_value  # another path in place of a file: one is missing and one is too many
    report = rebuilt(hourly, monkeypatch, lambda rows: invented(rows, "f00075", "path", "f00075a"))
    assert {
        "f00075: 0 times in the sidecar, 1 times in the log",
        "f00075a: 1 times in the sidecar, 0 times in the log",
    } <= set(report.problems)


def test_rows_out_of_order_are_found(hourly: Hourly, monkeypatch: pytest.MonkeyPatch) -> None:
    report = rebuilt(hourly, monkeypatch, lambda rows: rows.take(list(range(rows.num_rows))[::-1]))
    assert any("is not sorted" in each for each in report.problems)
    assert any("begins before" in each for each in report.problems)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda manifest: manifest.update(num_files=199), "num_files is 199 and should be 200"),
        (lambda manifest: manifest.update(schema_hash="0" * 63), "schema_hash"),
        (lambda manifest: manifest["metaData"].update(name="other"), "metaData"),
        (lambda manifest: manifest["txn"].append({"appId": "a", "version": 1}), "txn"),
        (lambda manifest: manifest["parts"][2].update(num_row_groups=5), "row groups"),
        (lambda manifest: manifest["parts"][2]["ranges"]["id"].update(min="0"), "range"),
        (lambda manifest: manifest["parts"][2].update(first=["2026021003", "x"]), "first and last keys"),
        (lambda manifest: manifest["row_groups"][9]["ranges"]["id"].update(max="1"), "describes the row groups"),
        (lambda manifest: manifest["parts"].reverse(), "begins before|row groups"),
    ],
)
def test_a_manifest_that_lies_under_a_good_seal_is_found(
    hourly: Hourly, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    path = manifest_path(0)
    hourly.place.store.put(path, resealed(hourly.place.store.get(path), change))
    report = sidecar.verify(hourly.place.uri)
    assert not report.ok
    assert any(piece in problem for problem in report.problems for piece in said.split("|")), report.problems


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_a_damaged_part_is_named(hourly: Hourly, damage: str) -> None:
    path = hourly.parts()[4]
    data = bytearray(hourly.place.store.get(path))
    if damage == "missing":
        hourly.place.store.delete(path)
    else:
        data[len(data) // 3] ^= 1
        hourly.place.store.put(path, bytes(data[:-100] if damage == "truncated" else data))
    report = sidecar.verify(hourly.place.uri)
    assert not report.ok
    assert any(path in problem for problem in report.problems), report.problems


def test_a_missing_and_an_invalid_sidecar_are_not_good(hourly: Hourly) -> None:
    hourly.place.store.put(manifest_path(0), b"{}")
    report = sidecar.verify(hourly.place.uri)
    assert (report.ok, report.tier) == (False, None)
    assert f"{manifest_path(0)} is not valid" in report.problems[0]
    sidecar.drop(hourly.place.uri)
    assert sidecar.verify(hourly.place.uri).problems == ["there is no sidecar of version 0"]


def test_a_single_file_without_a_manifest_is_verified_too(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t", COLUMNS, partitions=["hour"])
    log.commit(*(file_in(HOURS[number % 20], number) for number in range(50)))
    log.checkpoint()
    place = Place(str(tmp_path / "t"))
    place.build()
    place.store.delete(manifest_path(0))
    report = sidecar.verify(place.uri)
    assert (report.ok, report.tier, report.num_files) == (True, 2, 50)
    assert place.store.exists(sidecar_path(0))


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"setTransactions": [{"appId": "nobody", "version": 1}]},
        {"domainMetadata": [{"domain": "nowhere", "configuration": "", "removed": False}]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_all_that_the_checksum_says_is_compared_with_the_log(hourly: Hourly, changes: dict[str, Any]) -> None:
    hourly.log.checksum()
    path = hourly.log.log / f"{hourly.log.version:020d}.crc"
    assert sidecar.verify(hourly.place.uri).checksum == "matches"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))
    report = sidecar.verify(hourly.place.uri)
    assert (report.checksum, report.ok) == ("differs", False)
    assert any(path.name in problem for problem in report.problems)


@pytest.mark.parametrize(("files", "checksum"), [(200, "matches"), (201, "differs")])
def test_the_version_checksum_is_compared_with_the_log(hourly: Hourly, files: int, checksum: str) -> None:
    hourly.log.checksum(files)
    report = sidecar.verify(hourly.place.uri)
    assert (report.checksum, report.ok) == (checksum, checksum == "matches")


@pytest.mark.parametrize("stats", ["json", "struct", "both", "none"])
@pytest.mark.parametrize("checkpoint", ["v1", "multipart", "v2"])
@pytest.mark.each_value
def test_every_kind_of_checkpoint_is_compared_as_far_as_it_goes(tmp_path: Path, stats: Any, checkpoint: Any) -> None:
    make_table(
        tmp_path / "t", files=3_000, columns=9, hours=24, stats=stats, checkpoint=checkpoint, deletion_vectors=0.2
    )
    assert sidecar.build(tmp_path / "t").action == "built"
    report = sidecar.verify(tmp_path / "t")
    assert report.ok, report.problems
    assert ("num_records" in report.not_compared) == (stats == "none")


def test_a_digest_does_not_depend_on_order_batches_or_how_a_map_is_written() -> None:
    kind = pa.map_(pa.string(), pa.string())
    rows: list[dict[str, Any]] = [
        {"path": "a", "x": float("nan"), "y": None, "m": [("k", "v"), ("l", None)]},
        {"path": "b", "x": -0.0, "y": 5, "m": []},
        {"path": "c", "x": None, "y": 0, "m": None},
    ]
    schema = pa.schema({"path": pa.string(), "x": pa.float64(), "y": pa.int64(), "m": kind})

    def digest(rows: list[dict[str, Any]], size: int = 10) -> RowDigest:
        found = RowDigest("path", schema.names)
        for batch in pa.Table.from_pylist(rows, schema=schema).combine_chunks().to_batches(max_chunksize=size):
            found.add(batch)
        return found

    same = [dict(row) for row in reversed(rows)]
    same[2]["m"] = [("l", None), ("k", "v")]
    same[1]["m"] = None
    assert digest(rows).differing(digest(same, 1)) == []
    for row, name, value in ((0, "x", 1.0), (1, "x", 0.0), (2, "y", None), (0, "m", [("k", "l"), ("v", None)])):
        other = [dict(each) for each in rows]
        other[row][name] = value
        assert len(digest(rows).differing(digest(other))) == 1, (row, name)
