"""Generated columns, defaults, identity columns and invariants hold on every way into a table."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner

from lazydelta import DeltaTable, create_table, write_arrow, write_deltalake
from lazydelta.cli.app import cli
from lazydelta.errors import SchemaMismatchError, UnsupportedFeatureError, WriteError
from lazydelta.protocol.schema import TableSchema
from lazydelta.schema import Field, PrimitiveType, Schema
from lazydelta.storage import Store
from lazydelta.write import publication, transaction
from lazydelta.write.identity import IdentitySequence

# Expressions of Spark, the type of their column, and the same in DuckDB.
FORMS = [
    ("CAST(ts AS DATE)", "date", "CAST(ts AS DATE)"),
    ("to_date(ts)", "date", "CAST(ts AS DATE)"),
    ("YEAR(ts)", "integer", "year(ts)"),
    ("month(`ts`)", "integer", "month(ts)"),
    ("day(ts)", "integer", "day(ts)"),
    ("hour(ts)", "integer", "hour(ts)"),
    ("minute(ts)", "integer", "minute(ts)"),
    ("second(ts)", "integer", "second(ts)"),
    ("dayofweek(ts)", "integer", "dayofweek(ts) + 1"),
    ("weekofyear(ts)", "integer", "weekofyear(ts)"),
    ("dayofyear(CAST(ts AS DATE))", "integer", "dayofyear(ts)"),
    *(
        (f"date_trunc('{unit}', ts)", "timestamp", f"date_trunc('{unit}', ts)")
        for unit in ("YEAR", "quarter", "MONTH", "week", "day", "hour", "minute", "second")
    ),
    ("trunc(CAST(ts AS DATE), 'MONTH')", "date", "date_trunc('month', ts)::DATE"),
    ("date_format(ts, 'yyyy-MM-dd-HH')", "string", "strftime(ts, '%Y-%m-%d-%H')"),
    ("DATE_FORMAT(ts, 'yyyyMMdd''T''HHmmss')", "string", "strftime(ts, '%Y%m%dT%H%M%S')"),
    ("substring(name, 2, 2)", "string", "substring(name, 2, 2)"),
    ("concat(name, '-', id)", "string", "name || '-' || id"),
    ("name || CAST(year(ts) AS STRING)", "string", "name || year(ts)"),
    ("coalesce(name, 'none')", "string", "coalesce(name, 'none')"),
    ("id * 10 - (id + 3)", "long", "id * 10 - (id + 3)"),
    ("-id", "long", "-id"),
    ("length(name)", "integer", "length(name)"),
    ("CAST(id AS DOUBLE)", "double", "CAST(id AS DOUBLE)"),
    ("5", "integer", "5::INT"),
]


def rows(number: int = 300) -> pa.Table:
    rng = random.Random(34)
    timestamps = [rng.randrange(-(2**55), 2**56) if rng.random() < 0.9 else None for _ in range(number)]
    return pa.table(
        {
            "id": pa.array([rng.randrange(-(10**9), 10**9) for _ in range(number)], pa.int64()),
            "ts": pa.array(timestamps, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "name": [rng.choice(["ä-ö", "b", "", "日本語x", None]) for _ in range(number)],
        }
    )


def generated(*columns: tuple[str, str, str], nullable: bool = True) -> Schema:
    """Return the columns of `rows`, with generated ones: name, type and expression."""
    plain = [("id", "long"), ("ts", "timestamp"), ("name", "string")]
    fields = [Field(name, PrimitiveType(kind)) for name, kind in plain]
    return Schema(
        [
            *fields,
            *(
                Field(name, PrimitiveType(kind), nullable=nullable, metadata={"delta.generationExpression": text})
                for name, kind, text in columns
            ),
        ]
    )


def test_every_form_is_computed_as_duckdb_computes_it(tmp_path: Path) -> None:
    columns = [(f"c{number}", kind, spark) for number, (spark, kind, _) in enumerate(FORMS)]
    create_table(tmp_path, generated(*columns))
    given = rows()
    write_arrow(tmp_path, given)
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'")
        con.register("given", given)
        expected = con.sql(
            "SELECT *, " + ", ".join(text for _, _, text in FORMS) + " FROM given ORDER BY id"
        ).fetchall()
        found = DeltaTable(tmp_path).to_pyarrow_table()
        con.register("found", found)
        actual = con.sql("SELECT * FROM found ORDER BY id").fetchall()
    for number, (spark, _, _) in enumerate(FORMS, 3):
        assert [each[number] for each in actual] == [each[number] for each in expected], spark
    theirs = pa.table(deltalake.DeltaTable(tmp_path).to_pyarrow_table())
    assert theirs.sort_by("id").equals(found.sort_by("id"))
    assert DeltaTable(tmp_path).protocol().min_writer_version == 4


@pytest.mark.parametrize(
    "text",
    ["upper(name)", "rand()", "id / 2", "date_format(ts, 'E')", "CAST(name AS DATE)", "other + 1", "id > 1", "now()"],
)
def test_an_expression_that_may_differ_from_spark_is_refused_by_name(tmp_path: Path, text: str) -> None:
    schema = generated(("made", "string", text))

    def write() -> None:
        create_table(tmp_path, schema)
        write_arrow(tmp_path, rows(3))

    with pytest.raises(UnsupportedFeatureError, match="'made'") as caught:
        write()
    assert caught.value.features == ("generatedColumns",)
    assert not list(tmp_path.glob("*.parquet"))


DAY = ("day", "date", "CAST(ts AS DATE)")


def _append(table: Path) -> None:
    write_arrow(table, wrong())


def _overwrite(table: Path) -> None:
    write_deltalake(table, wrong(), mode="overwrite")


def _update(table: Path) -> None:
    DeltaTable(table).update(new_values={"day": dt.date(2000, 1, 1)})


def _merge(table: Path) -> None:
    merger = DeltaTable(table).merge(wrong(), "s.id = t.id", "s", "t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def wrong() -> pa.Table:
    given = rows(3)
    return given.append_column("day", pa.array([dt.date(2000, 1, 1)] * 3))


@pytest.mark.parametrize("way", [_append, _overwrite, _update, _merge])
def test_other_values_than_the_generated_ones_are_refused_on_every_way_in(
    tmp_path: Path, way: Callable[[Path], None]
) -> None:
    create_table(tmp_path, generated(DAY))
    write_arrow(tmp_path, rows(5))
    version = DeltaTable(tmp_path).version()
    with pytest.raises(WriteError, match=r"rows failed validation check.*'day' is CAST"):
        way(tmp_path)
    assert DeltaTable(tmp_path).version() == version


def test_changed_rows_get_new_values_in_generated_partitions(tmp_path: Path) -> None:
    create_table(tmp_path, generated(DAY), partition_by=["day"])
    at = [dt.datetime(2026, 1, day, 23, 59, tzinfo=dt.UTC) for day in (1, 2, 3)]
    given = pa.table({"id": [1, 2, 3], "ts": pa.array(at, pa.timestamp("us", "UTC")), "name": ["a", "b", "c"]})
    write_arrow(tmp_path, given)
    table = DeltaTable(tmp_path)
    table.update(new_values={"ts": at[2] + dt.timedelta(days=7)}, predicate="id = 1")
    later = given.slice(1).set_column(1, "ts", pa.array([at[0], at[0]], pa.timestamp("us", "UTC")))
    later = pa.concat_tables([later, later.slice(0, 1).set_column(0, "id", pa.array([9]))])
    merger = table.merge(later, "s.id = t.id", "s", "t")
    merger.when_matched_update({"ts": "s.ts"}, predicate="s.id = 2").when_not_matched_insert_all().execute()
    for read in (table.to_pyarrow_table(), pa.table(deltalake.DeltaTable(tmp_path).to_pyarrow_table())):
        found = read.sort_by("id").select(["id", "day"]).to_pydict()
        assert found == {"id": [1, 2, 3, 9], "day": [dt.date(2026, 1, day) for day in (10, 1, 3, 1)]}


def test_a_generated_column_without_nulls_takes_none(tmp_path: Path) -> None:
    create_table(tmp_path, generated(DAY, nullable=False))
    write_arrow(tmp_path, rows(50).filter(pa.compute.field("ts").is_valid()))
    with pytest.raises(SchemaMismatchError, match="'day'"):
        write_arrow(tmp_path, rows(50))


def test_the_command_line_computes_what_files_lack(tmp_path: Path) -> None:
    plain = generated(DAY).fields
    level = Field("level", PrimitiveType("integer"), metadata={"CURRENT_DEFAULT": "3"})
    create_table(tmp_path / "table", Schema([*plain, level]))
    (tmp_path / "rows.csv").write_text("id,ts,name\n1,2026-02-03T04:05:06Z,a\n")
    (tmp_path / "rows.json").write_text('{"id": 2, "ts": "2026-02-04T04:05:06Z", "name": "b"}\n')
    for name in ("rows.csv", "rows.json"):
        done = CliRunner().invoke(cli, ["append", str(tmp_path / "table"), str(tmp_path / name)], prog_name="lazydelta")
        assert done.exit_code == 0, done.output
    found = DeltaTable(tmp_path / "table").to_pyarrow_table().sort_by("id")
    assert found["day"].to_pylist() == [dt.date(2026, 2, 3), dt.date(2026, 2, 4)]
    assert found["level"].to_pylist() == [3, 3]


# --- defaults, identity columns and invariants


def marked(metadata: dict[str, Any], kind: str = "long", *, nullable: bool = True) -> Schema:
    field = Field("made", PrimitiveType(kind), nullable=nullable, metadata=metadata)
    return Schema([Field("id", PrimitiveType("long")), field])


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("7", "long", 7),
        ("-1.5", "double", -1.5),
        ("'it''s'", "string", "it's"),
        ("true", "boolean", True),
        ("null", "string", None),
        ("DATE '2026-01-02'", "date", dt.date(2026, 1, 2)),
        ("CAST(3 AS STRING)", "string", "3"),
    ],
)
def test_a_default_fills_a_column_that_the_rows_lack(tmp_path: Path, text: str, kind: str, value: object) -> None:
    create_table(tmp_path, marked({"CURRENT_DEFAULT": text}, kind, nullable=value is None))
    write_arrow(tmp_path, pa.table({"id": [1]}))
    merger = DeltaTable(tmp_path).merge(pa.table({"id": [2]}), "s.id = t.id", "s", "t")
    merger.when_not_matched_insert({"id": "s.id"}).execute()
    found = DeltaTable(tmp_path).to_pyarrow_table().sort_by("id")
    assert found["made"].to_pylist() == [value, value]
    assert "allowColumnDefaults" in (DeltaTable(tmp_path).protocol().writer_features or ())


def test_a_default_of_the_current_time_is_that_of_the_write(tmp_path: Path) -> None:
    create_table(tmp_path, marked({"CURRENT_DEFAULT": "current_timestamp()"}, "timestamp"))
    begun = dt.datetime.now(dt.UTC)
    write_arrow(tmp_path, pa.table({"id": [1, 2]}))
    first, second = DeltaTable(tmp_path).to_pyarrow_table()["made"].to_pylist()
    assert begun <= first == second <= dt.datetime.now(dt.UTC)


def identity(*, explicit: bool, start: int = 1, step: int = 1) -> Schema:
    notes = {"start": start, "step": step, "allowExplicitInsert": explicit}
    return marked({f"delta.identity.{key}": value for key, value in notes.items()})


def mark(root: Path) -> object:
    return DeltaTable(root).schema().fields[1].metadata.get("delta.identity.highWaterMark")


def made(root: Path) -> list[object]:
    found: list[object] = DeltaTable(root).to_pyarrow_table().sort_by("id")["made"].to_pylist()
    return found


@pytest.mark.parametrize(("start", "step"), [(1, 1), (10, 5), (-3, -2)])
def test_an_identity_column_counts_on_every_way_in(tmp_path: Path, start: int, step: int) -> None:
    create_table(tmp_path, identity(explicit=False, start=start, step=step))
    write_arrow(tmp_path, pa.table({"id": [1, 2]}))
    write_deltalake(tmp_path, pa.table({"id": [3]}), mode="append")
    merger = DeltaTable(tmp_path).merge(pa.table({"id": [3, 4]}), "s.id = t.id", "s", "t")
    merger.when_not_matched_insert({"id": "s.id"}).execute()
    DeltaTable(tmp_path).update(new_values={"id": 5}, predicate="id = 4")
    assert made(tmp_path) == [start + step * number for number in range(4)]
    assert mark(tmp_path) == start + 3 * step
    write_arrow(tmp_path, pa.table({"id": [6]}), mode="overwrite")
    assert made(tmp_path) == [start + 4 * step]


def test_the_log_says_with_a_boolean_whether_an_identity_column_takes_values(tmp_path: Path) -> None:
    create_table(tmp_path, identity(explicit=False))
    lines = (tmp_path / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    [metadata] = [found["metaData"] for line in lines if "metaData" in (found := json.loads(line))]
    notes = json.loads(metadata["schemaString"])["fields"][1]["metadata"]
    assert notes["delta.identity.allowExplicitInsert"] is False


def test_the_mark_of_an_identity_column_survives_a_restore(tmp_path: Path) -> None:
    create_table(tmp_path, identity(explicit=False))
    for number in (1, 2):
        write_arrow(tmp_path, pa.table({"id": [number]}))
    DeltaTable(tmp_path).restore(1)
    write_arrow(tmp_path, pa.table({"id": [3]}))
    assert made(tmp_path) == [1, 3]


def test_writers_at_the_same_time_get_different_values_of_an_identity_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_table(tmp_path, identity(explicit=False))
    publish, others = publication.publish, [1, 2, 3]

    def beaten(store: Store, version: int, data: bytes, txn_id: str) -> bool:
        if others:
            write_arrow(tmp_path, pa.table({"id": [others.pop()]}))
        return publish(store, version, data, txn_id)

    monkeypatch.setattr(transaction, "publish", beaten)
    write_arrow(tmp_path, pa.table({"id": [8, 9]}))
    assert sorted(made(tmp_path)) == [1, 2, 3, 4, 5]  # type: ignore[type-var]
    assert made(tmp_path)[3:] == [4, 5]
    assert mark(tmp_path) == 5
    on_disk = {path.name for path in tmp_path.glob("*.parquet")}
    assert on_disk == {Path(uri).name for uri in DeltaTable(tmp_path).file_uris()}


def test_tasks_that_know_nothing_of_each_other_take_different_numbers() -> None:
    table = TableSchema.parse(identity(explicit=False).to_json())
    taken: list[int] = []
    for task in range(7):
        sequence = IdentitySequence(table, task)
        for rows in (1, 9000, 20000 * task):
            taken += sequence.values(["made"], rows)["made"].to_pylist()
            assert sequence.last >= max(taken[-rows:] or [0]) - 1
    assert len(set(taken)) == len(taken)


def test_an_identity_column_takes_the_values_that_it_may(tmp_path: Path) -> None:
    create_table(tmp_path / "always", identity(explicit=False))
    create_table(tmp_path / "default", identity(explicit=True))
    write_arrow(tmp_path / "default", pa.table({"id": [1], "made": [5]}))
    assert mark(tmp_path / "default") is None
    data = pa.table({"id": [1], "made": [5]})
    with pytest.raises(SchemaMismatchError, match="identity column 'made'"):
        write_arrow(tmp_path / "always", data)
    merger = DeltaTable(tmp_path / "always").merge(data, "s.id = t.id AND s.id < 0", "s", "t")
    with pytest.raises(SchemaMismatchError, match="identity column 'made'"):
        merger.when_not_matched_insert_all().execute()
    table = DeltaTable(tmp_path / "default")
    with pytest.raises(SchemaMismatchError, match="never updated"):
        table.update(new_values={"made": 6})
    table.update(new_values={"id": 3})
    assert table.to_pyarrow_table().to_pydict() == {"id": [3], "made": [5]}
    table.delete("id = 3")
    assert table.count() == 0


def test_an_invariant_is_checked_like_a_constraint(tmp_path: Path) -> None:
    rule = json.dumps({"expression": {"expression": "made > 3"}})
    create_table(tmp_path, marked({"delta.invariants": rule}))
    write_arrow(tmp_path, pa.table({"id": [1], "made": [4]}))
    with pytest.raises(WriteError, match="made > 3"):
        write_arrow(tmp_path, pa.table({"id": [1], "made": [3]}))
    with pytest.raises(WriteError, match="made > 3"):
        DeltaTable(tmp_path).update(new_values={"made": 0})


def test_a_column_of_a_generated_one_is_neither_renamed_nor_dropped(tmp_path: Path) -> None:
    create_table(tmp_path, generated(DAY))
    table = DeltaTable(tmp_path)
    table.alter.set_table_properties({"delta.columnMapping.mode": "name"})
    with pytest.raises(SchemaMismatchError, match="generated column 'day'"):
        table.alter.rename_column("ts", "at")
