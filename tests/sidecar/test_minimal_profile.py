"""Sidecars of the minimal profile, written by plain PyArrow and by DuckDB: used, verified, refused, upgraded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from lazydelta.sidecar.building.refresh import refresh
from lazydelta.sidecar.verification import verify
from tests.scan.hand_log import HandLog, add, watching
from tests.sidecar.sidecars import COLUMNS, DISABLED, rows

FOLDER = "_delta_log/_sidecars"
QUERIES = (None, "hour = '2026021005'", "hour IS NULL", "id < 40", "id >= 90 AND hour > '2026021003'", "hour = 'x'")
GROUP = 10


def table(folder: Path) -> HandLog:
    """Write a table whose files have an hour, some of them none, and statistics, some of them none."""
    log = HandLog(folder, COLUMNS, partitions=["hour"])
    log.commit(
        *(
            add(
                f"hour={number % 7}/f{number:03d}",
                ids=None if number % 11 == 5 else (number, number + 9),
                records=number + 1,
                partition={"hour": None if number % 13 == 7 else f"20260210{number % 7:02d}"},
            )
            for number in range(60)
        )
    )
    log.checkpoint()
    log.commit(add("late", ids=(1, 2), partition={"hour": "2026021005"}))
    log.checksum()
    return log


def logged(log: HandLog) -> list[dict[str, Any]]:
    """Return the rows of a sidecar as the first commit has them."""
    lines = [json.loads(line) for line in (log.log / f"{0:020d}.json").read_text().splitlines()]
    found = []
    for each in (line["add"] for line in lines if "add" in line):
        stats = json.loads(each.get("stats", "{}"))
        found.append(
            {
                "path": each["path"],
                "size": each["size"],
                "modification_time": each["modificationTime"],
                "hour": each["partitionValues"]["hour"],
                "num_records": stats.get("numRecords"),
                "min.id": stats.get("minValues", {}).get("id"),
                "max.id": stats.get("maxValues", {}).get("id"),
                "null_count.id": stats.get("nullCount", {}).get("id"),
            }
        )
    return sorted(found, key=lambda row: (row["hour"] is None, row["hour"] or "", row["path"]))


def by_pyarrow(log: HandLog, path: Path) -> None:
    types = dict.fromkeys(("size", "modification_time", "num_records", "min.id", "max.id", "null_count.id"), pa.int64())
    types |= {"path": pa.string(), "hour": pa.string()}
    files = logged(log)
    schema = pa.schema([(name, types[name]) for name in files[0]])
    pq.write_table(pa.Table.from_pylist(files, schema=schema), path, row_group_size=GROUP)


def by_duckdb(log: HandLog, path: Path) -> None:
    source = f"{log.log}/{0:020d}.json"
    duckdb.sql(f"""
        COPY (
            SELECT a.path AS path, a.size::BIGINT AS size, a.modificationTime::BIGINT AS modification_time,
                a.partitionValues->>'hour' AS hour,
                (a.stats::JSON->>'numRecords')::BIGINT AS num_records,
                (a.stats::JSON->'minValues'->>'id')::BIGINT AS "min.id",
                (a.stats::JSON->'maxValues'->>'id')::BIGINT AS "max.id",
                (a.stats::JSON->'nullCount'->>'id')::BIGINT AS "null_count.id"
            FROM (
                SELECT unnest(from_json(add, '{{"path": "VARCHAR", "size": "BIGINT", "modificationTime": "BIGINT",
                    "partitionValues": "JSON", "stats": "VARCHAR"}}')) FROM (
                    SELECT json->'add' AS add FROM read_ndjson_objects('{source}') WHERE (json->'add') IS NOT NULL)
            ) AS a
            ORDER BY hour NULLS LAST, path
        ) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)
    """)


def manifest(log: HandLog, path: Path) -> dict[str, Any]:
    """Return the minimal manifest of a Parquet file, from its footer."""
    footer = pq.read_metadata(path)
    hours = pq.read_table(path, columns=["hour"])["hour"].to_pylist()
    groups, row = [], 0
    for index in range(footer.num_row_groups):
        group = footer.row_group(index)
        chunks = [group.column(at) for at in range(group.num_columns)]
        starts = [min(filter(None, (each.dictionary_page_offset, each.data_page_offset))) for each in chunks]
        ends = [start + each.total_compressed_size for start, each in zip(starts, chunks, strict=True)]
        values = [hour for hour in hours[row : row + group.num_rows] if hour is not None]
        row += group.num_rows
        groups.append(
            {
                "index": index,
                "byte_offset": min(starts),
                "byte_length": max(ends) - min(starts),
                "num_rows": group.num_rows,
                "event_hour_min": min(values, default=None),
                "event_hour_max": max(values, default=None),
            }
        )
    [checkpoint] = log.log.glob("*.checkpoint.parquet")
    return {
        "version": 0,
        "sidecar_file": path.name,
        "sidecar_size_bytes": path.stat().st_size,
        "num_row_groups": footer.num_row_groups,
        "num_files": footer.num_rows,
        "schema_hash": hashlib.sha256(log.metadata()["metaData"]["schemaString"].encode()).hexdigest(),
        "row_groups": groups,
        "checkpoint": [{"name": checkpoint.name, "size": checkpoint.stat().st_size}],
    }


def write(log: HandLog, with_: Callable[[HandLog, Path], None] = by_pyarrow, **changed: Any) -> Path:
    folder = log.table / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / "v0.parquet"
    with_(log, path)
    (folder / "v0.manifest.json").write_text(json.dumps(manifest(log, path) | changed))
    return path


@pytest.fixture
def log(tmp_path: Path) -> HandLog:
    return table(tmp_path / "t")


@pytest.mark.parametrize("writer", [by_pyarrow, by_duckdb])
def test_it_is_used_and_verified(log: HandLog, writer: Callable[[HandLog, Path], None]) -> None:
    write(log, writer)
    for where in QUERIES:
        for strategy in ("forward", "reverse"):
            for columns in ([], ["id"]):
                expected, _ = rows(DeltaTable(log.table, options=DISABLED), where, stats_columns=columns)
                found, metrics = rows(DeltaTable(log.table), where, strategy=strategy, stats_columns=columns)
                assert found == expected, (where, strategy)
                assert metrics.tier == 1
                assert metrics.sidecar == "version 0, of the minimal profile"
    report = verify(str(log.table))
    assert (report.ok, report.num_files, report.problems) == (True, 60, [])
    # Statistics that were not asked for come later.
    files = {file.path: file.stats for file in DeltaTable(log.table).files()}
    plain = {file.path: file.stats for file in DeltaTable(log.table, options=DISABLED).files()}
    assert {path: (stats or {}).get("minValues") or None for path, stats in files.items()} == {
        path: (stats or {}).get("minValues") for path, stats in plain.items()
    }


def test_the_needed_columns_are_enough(log: HandLog) -> None:
    def needed(log: HandLog, path: Path) -> None:
        by_pyarrow(log, path)
        read = pq.read_table(path, columns=["path", "size", "modification_time", "hour"])
        pq.write_table(read, path, row_group_size=GROUP)

    write(log, needed)
    for where in (None, "hour = '2026021005'", "id < 40"):
        stream = DeltaTable(log.table).files(where)
        found = {file.path for file in stream}
        known = {file.path for file in DeltaTable(log.table, options=DISABLED).files(where)}
        # Without statistics no file is left out by them.
        assert found >= known if where == "id < 40" else found == known
        assert stream.metrics.tier == 1
        assert {file.num_records for file in DeltaTable(log.table).files("hour = '2026021005'") if file.tier == 1} == {
            None
        }
    assert verify(str(log.table)).ok


def test_row_groups_are_pruned_by_the_hour(log: HandLog) -> None:
    write(log)
    with watching() as watch:
        stream = DeltaTable(log.table).files("hour = '2026021005'")
        stream.collect()
    assert stream.metrics.row_groups_pruned >= 4
    assert watch.count("checkpoint.parquet") == 0


def test_a_limit_takes_one_row_group(log: HandLog) -> None:
    write(log)
    stream = DeltaTable(log.table).files(limit=5)
    assert len(stream.collect()) == 5
    assert stream.metrics.row_groups_read == 1


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"version": 1}, "it is for version 1"),
        ({"table_id": "another"}, "it belongs to table another"),
        ({"num_files": 59}, "its numbers contradict each other"),
        ({"sidecar_size_bytes": 77}, "the manifest says 77"),
        ({"schema_hash": "0" * 64}, "its schema_hash is not"),
        ({"sidecar_file": "../../f.parquet"}, "it names a file that is not in"),
        ({"checkpoint": [{"name": "x", "size": 1}]}, "it mirrors another checkpoint"),
        ({"checkpoint": None}, "it has neither a digest nor the fields of the minimal profile"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_what_does_not_fit_is_refused_by_name_and_the_checkpoint_is_read(
    log: HandLog, changed: dict[str, Any], reason: str
) -> None:
    write(log, **changed)
    expected, _ = rows(DeltaTable(log.table, options=DISABLED))
    found, metrics = rows(DeltaTable(log.table))
    assert (found, metrics.tier) == (expected, 3)
    assert reason in metrics.sidecar
    assert not verify(str(log.table)).ok


def test_columns_that_vectors_need_are_needed(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t", COLUMNS, partitions=["hour"], features=["deletionVectors"])
    log.commit(add("a", ids=(1, 2), partition={"hour": "1"}))
    log.checkpoint()
    write(log)
    _, metrics = rows(DeltaTable(log.table))
    assert metrics.tier == 3
    assert "it lacks the column tight_bounds" in metrics.sidecar


def test_a_column_of_another_type_is_refused(log: HandLog) -> None:
    def as_text(log: HandLog, path: Path) -> None:
        by_pyarrow(log, path)
        read = pq.read_table(path)
        at = read.schema.get_field_index("min.id")
        pq.write_table(read.set_column(at, "min.id", read["min.id"].cast(pa.string())), path, row_group_size=GROUP)

    write(log, as_text)
    _, metrics = rows(DeltaTable(log.table))
    assert metrics.tier == 3
    assert "its column min.id is of type string, not int64" in metrics.sidecar


def test_damage_in_the_middle_of_a_scan_leaves_the_answer(log: HandLog) -> None:
    path = write(log)
    said = json.loads((path.parent / "v0.manifest.json").read_text())
    data = bytearray(path.read_bytes())
    group = said["row_groups"][3]
    data[group["byte_offset"] : group["byte_offset"] + 60] = bytes(60)
    path.write_bytes(data)
    expected, _ = rows(DeltaTable(log.table, options=DISABLED))
    found, metrics = rows(DeltaTable(log.table), strategy="forward")
    assert found == expected
    assert metrics.sidecar_failure == "damaged"


def test_verify_tells_a_wrong_value_a_missing_file_and_a_false_range(log: HandLog) -> None:
    def wrong(log: HandLog, path: Path) -> None:
        by_pyarrow(log, path)
        files = pq.read_table(path).to_pylist()
        files[3]["size"] += 1
        del files[30]
        pq.write_table(pa.Table.from_pylist(files, schema=pq.read_schema(path)), path, row_group_size=GROUP)

    path = write(log, wrong)
    told = " ".join(verify(str(log.table)).problems)
    assert "59 files and the log has 60" in told
    assert "size" in told
    said = json.loads((path.parent / "v0.manifest.json").read_text())
    said["row_groups"][0]["event_hour_max"] = said["row_groups"][0]["event_hour_min"]
    (path.parent / "v0.manifest.json").write_text(json.dumps(said))
    assert "row group 0 has values of hour outside of" in " ".join(verify(str(log.table)).problems)


def test_refresh_makes_a_full_sidecar_of_it(log: HandLog) -> None:
    write(log)
    assert refresh(str(log.table)).action in {"built", "refreshed"}
    expected, _ = rows(DeltaTable(log.table, options=DISABLED))
    found, metrics = rows(DeltaTable(log.table))
    assert (found, metrics.sidecar) == (expected, "version 0, by its manifest")
    assert verify(str(log.table)).ok
