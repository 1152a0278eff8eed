"""The reader of the data source without a session: what it plans, what a task gets of it, what it takes of a filter."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import random
import traceback
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import datasource as pushed
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lazydelta import DeltaTable, write_arrow
from lazydelta.errors import LazyDeltaError, OptionError
from lazydelta.rows import scanner
from lazydelta.spark import schema as spark_schemas
from lazydelta.spark.reader import LazyDeltaReader, SharePartition, open_reader, read_schema
from tests.rows.made_table import make_table

ROWS = 3000


def reader(uri: Path, **options: Any) -> LazyDeltaReader:
    """Return the reader of a table as Spark makes it."""
    given = {"path": str(uri), **{key: str(value) for key, value in options.items()}}
    schema, version = read_schema(given)
    return open_reader(given, schema, version)


def rows(planned: LazyDeltaReader, partitions: Iterable[InputPartition] | None = None) -> pa.Table:
    """Read all partitions as tasks do, which have copies of everything."""
    batches = []
    for each in planned.partitions() if partitions is None else partitions:
        task, partition = pickle.loads(pickle.dumps((planned, each)))  # noqa: S301 - made here
        batches += list(task.read(partition))
    return pa.Table.from_batches(batches, schema=planned._form)


def made(folder: Path, commits: int = 4, **options: Any) -> pa.Table:
    """Write a table of several commits, and return its rows."""
    rng = random.Random(1)
    tables = []
    for commit in range(commits):
        table = pa.table(
            {
                "id": pa.array(range(commit * ROWS, (commit + 1) * ROWS), pa.int64()),
                "x": pa.array([rng.choice([None, math.nan, -0.0, 0.0, rng.uniform(-9, 9)]) for _ in range(ROWS)]),
                "s": pa.array([rng.choice([None, "", "a", "ab", "b%", "ü"]) for _ in range(ROWS)]),
                "d": pa.array([Decimal(rng.randrange(-999, 999)).scaleb(-2) for _ in range(ROWS)], pa.decimal128(9, 2)),
                "t": pa.array([_timestamp(rng) for _ in range(ROWS)], pa.timestamp("us", "UTC")),
                "day": pa.array([dt.date(1500, 1, 1) + dt.timedelta(rng.randrange(200_000)) for _ in range(ROWS)]),
                "p": pa.array([rng.choice(["u", "v", None]) for _ in range(ROWS)]),
            }
        )
        write_arrow(folder, table, partition_by=["p"], **options)
        tables.append(table)
    return pa.concat_tables(tables)


def _timestamp(rng: random.Random) -> dt.datetime:
    return dt.datetime(2026, 2, 10, tzinfo=dt.UTC) + dt.timedelta(seconds=rng.randrange(90_000), microseconds=7)


def ids(table: pa.Table) -> list[int]:
    """Return the ids in order; what is doubled is there twice."""
    return sorted(table["id"].to_pylist())


def test_partitions_hold_every_row_once_and_are_of_one_size(tmp_path: Path) -> None:
    """By files where they are few; a partition is smaller than the whole."""
    made(tmp_path)
    planned = reader(tmp_path, minPartitions=3, maxPartitionBytes="20kb")
    partitions = planned.partitions()
    sizes = [each.share.size for each in partitions if isinstance(each, SharePartition)]
    assert len(sizes) > 2
    assert ids(rows(planned, partitions)) == list(range(4 * ROWS))


def test_a_large_file_is_divided_by_its_row_groups(tmp_path: Path) -> None:
    """Three shares of one file have its rows between them."""
    table = pa.table({"id": pa.array(range(1 << 21), pa.int64())})
    write_arrow(tmp_path, table, compression="none")
    (file,) = DeltaTable(tmp_path).files()
    planned = reader(tmp_path, maxPartitionBytes=file.size // 3)
    partitions = planned.partitions()
    assert len(partitions) >= 3
    counts = [rows(planned, [each]).num_rows for each in partitions]
    assert sum(counts) == 1 << 21
    assert sum(count > 0 for count in counts) > 1


def test_many_files_are_divided_by_ranges_that_name_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What travels to a task does not grow with its files, and its rows are those of a plain scan."""
    made(tmp_path, commits=12)  # a checkpoint and a sidecar after ten
    monkeypatch.setattr(scanner, "FEW_FILES", 3)
    monkeypatch.setattr(scanner, "_UNKNOWN_FILE", 64 << 20)
    planned = reader(tmp_path, maxPartitionBytes="20kb")
    partitions = planned.partitions()
    ranges = [each.share.within for each in partitions if isinstance(each, SharePartition)]
    assert all(each is not None for each in ranges)
    assert {each.place is None for each in ranges if each is not None} == {True, False}
    assert b".parquet" not in pickle.dumps([each for each in partitions if each.share.within.place is None])  # type: ignore[attr-defined]
    assert ids(rows(planned, partitions)) == list(range(12 * ROWS))


def test_large_files_are_divided_by_row_groups_where_ranges_name_no_file_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file of four shares is opened by four tasks and not by all of them, and each row comes once."""
    table = make_table(tmp_path, files=6, rows=1000, group=50)
    size = max(file.size for file in DeltaTable(tmp_path).files())
    monkeypatch.setattr(scanner, "FEW_FILES", -1)
    monkeypatch.setattr(scanner, "_UNKNOWN_FILE", size)
    planned = reader(tmp_path, maxPartitionBytes=-(-size // 4))
    partitions = planned.partitions()
    assert len(partitions) > 2 * 6
    opened: Counter[str] = Counter()
    for each in partitions:
        assert isinstance(each, SharePartition)
        assert each.share.within is not None
        opened.update(file.path for file in planned._scanner().narrowed(each.share.within).found_files())
    assert opened == dict.fromkeys(table.files, 4)
    counts = [rows(planned, [each]).num_rows for each in partitions]
    assert sum(count > 0 for count in counts) > 6
    assert ids(rows(planned, partitions)) == list(range(6000))


def test_the_version_stays_what_it_was_when_the_schema_was_asked_for(tmp_path: Path) -> None:
    """What is written between planning and reading is not read, and neither is a new column."""
    made(tmp_path, commits=1)
    given = {"path": str(tmp_path)}
    schema, version = read_schema(given)
    write_arrow(tmp_path, pa.table({"id": [99_999], "more": [1]}), schema_mode="merge")
    assert ids(rows(open_reader(given, schema, version))) == list(range(ROWS))


def test_timestamps_are_in_utc_for_every_pyspark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """4.1 converts schemas by a function that takes no time zone and always returns UTC."""
    made(tmp_path, commits=1)
    form = rows(reader(tmp_path)).schema
    assert form.field("t").type == pa.timestamp("us", "UTC")

    def of_4_1(schema: StructType) -> pa.Schema:
        assert schema.names == form.names
        return form

    monkeypatch.setattr(spark_schemas, "to_arrow_schema", of_4_1)
    assert ids(rows(reader(tmp_path))) == list(range(ROWS))


def test_versions_columns_and_where_are_options(tmp_path: Path) -> None:
    """By number, by time; names in any case; rows are filtered exactly."""
    made(tmp_path, commits=2)
    assert rows(reader(tmp_path, versionAsOf=0)).num_rows == ROWS
    assert rows(reader(tmp_path, timestampAsOf="2999-01-01")).num_rows == 2 * ROWS
    chosen = rows(reader(tmp_path, columns="ID, p", where="id < 10"))
    assert chosen.schema.names == ["id", "p"]
    assert ids(chosen) == list(range(10))
    assert rows(reader(tmp_path, columns='["id"]')).schema.names == ["id"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"versionAsOf": "one"}, "versionAsOf='one' is not a whole number"),
        ({"versionAsOf": "1", "timestampAsOf": "2026-01-01"}, "both given"),
        ({"versionsAsOf": "1"}, "There is no option 'versionsAsOf'"),
        ({"columns": "[3]"}, "names no columns"),
        ({"columns": "id,nope"}, "no column 'nope'"),
        ({"maxPartitionBytes": "much"}, "is not a size"),
        ({"where": "nope = 1"}, "no column 'nope'"),
        ({"where": "id ="}, "id ="),
        ({"files": "some"}, "There is no option 'files'"),
        ({"versionAsOf": "77"}, "77"),
    ],
    ids=str,
)
def test_a_bad_option_is_an_error_whose_sentence_comes_before_the_traceback(
    options: dict[str, str], words: str, tmp_path: Path
) -> None:
    """Spark prints what a worker raises as Python does."""
    made(tmp_path, commits=1)
    with pytest.raises(LazyDeltaError, match=None) as raised:
        reader(tmp_path, **options)
    text = "".join(traceback.format_exception(raised.value))
    first, _, _ = text.partition("\n")
    assert words in first, text
    assert not first.startswith("Traceback")


def test_a_path_may_name_its_version(tmp_path: Path) -> None:
    """As Delta-Spark has it, unless there is such a folder."""
    made(tmp_path / "t", commits=2)
    first, newest = (len(ids(rows(reader(Path(f"{tmp_path}/t{each}"))))) for each in ("@v0", ""))
    assert first < newest
    with pytest.raises(LazyDeltaError, match="A version is given twice"):
        reader(Path(f"{tmp_path}/t@v0"), versionAsOf="1")
    made(tmp_path / "t@v0", commits=3)
    assert len(ids(rows(reader(tmp_path / "t@v0")))) > newest


def test_a_table_that_comes_without_a_place_is_answered_with_what_to_type() -> None:
    """So do tables of Spark's catalog: it tells a data source in Python neither location nor options."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - only here

    with pytest.raises(
        OptionError, match=r"There is no table to read.*CREATE TEMPORARY VIEW v USING lazydelta OPTIONS"
    ):
        open_reader({}, StructType(), None)


def test_create_table_is_refused_at_once(tmp_path: Path) -> None:
    """Spark asks for the schema with what its catalog notes of the table, and would never name the place again."""
    made(tmp_path, commits=1)
    place = f"file:{tmp_path}"
    given = {"owner": "root", "path": place, "location": place, "provider": "lazydelta"}  # as Spark 4.2 gives them
    with pytest.raises(OptionError, match=r"could not be read.*CREATE TEMPORARY VIEW v USING lazydelta OPTIONS"):
        read_schema(given)


def test_a_schema_chooses_columns_and_changes_no_types(tmp_path: Path) -> None:
    """Another type is an error that names it."""
    from pyspark.sql.types import LongType, StringType, StructType  # noqa: PLC0415 - only here

    made(tmp_path, commits=1)
    given = {"path": str(tmp_path)}
    chosen = open_reader(given, StructType().add("P", StringType()).add("ID", LongType()), None)
    assert rows(chosen).schema.names == ["P", "ID"]
    with pytest.raises(OptionError, match="'id' as string, and in the table it is bigint"):
        open_reader(given, StructType().add("id", StringType()), None)


def test_a_reader_takes_filters_and_does_not_look_as_if_it_overrode_the_method(tmp_path: Path) -> None:
    """Spark refuses every read of one that does, unless a setting is on that is off by default."""
    made(tmp_path, commits=1)
    assert "pushFilters" not in vars(reader(tmp_path))
    planned = reader(tmp_path, pushFilters="true")
    assert getattr(planned.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    filters: list[pushed.Filter] = [pushed.EqualTo(("p",), "u"), pushed.StringContains(("s",), "a")]
    assert planned.pushFilters(filters) == filters
    assert set(rows(planned)["p"].to_pylist()) == {"u"}


def test_pushed_filters_leave_out_files_before_they_are_planned(tmp_path: Path) -> None:
    """One partition of three is left, and of its files those whose ids fit."""
    made(tmp_path)
    planned = reader(tmp_path, pushFilters="true")
    planned.pushFilters([pushed.EqualTo(("p",), "u"), pushed.LessThan(("id",), ROWS)])
    files = [file for each in planned.partitions() if isinstance(each, SharePartition) for file in each.share.files]
    assert [file.partition_values["p"] for file in files] == ["u"]


COLUMNS = ("id", "x", "s", "d", "t", "day", "p")
KINDS = {
    "=": pushed.EqualTo,
    "<": pushed.LessThan,
    "<=": pushed.LessThanOrEqual,
    ">": pushed.GreaterThan,
    ">=": pushed.GreaterThanOrEqual,
}


def _some_filter(rng: random.Random, table: pa.Table) -> tuple[pushed.Filter, str, list[Any]]:
    """Return a filter of Spark's, and what it means in the SQL of DuckDB, where NaN is the largest value too."""
    name = rng.choice(COLUMNS)
    values = [each for each in rng.sample(table[name].to_pylist(), 40) if each is not None] or ["u"]
    word = rng.choice([*KINDS, "in", "null", "not null", "safe", "prefix"])
    path, value = (name,), rng.choice(values)
    given: pushed.Filter
    match word:
        case "in":
            some = values[:3]
            given, sql, used = pushed.In(path, tuple(some)), f"{name} IN ({', '.join('?' * len(some))})", some
        case "null":
            given, sql, used = pushed.IsNull(path), f"{name} IS NULL", []
        case "not null":
            given, sql, used = pushed.IsNotNull(path), f"{name} IS NOT NULL", []
        case "safe":
            given, sql, used = pushed.EqualNullSafe(path, value), f"{name} IS NOT DISTINCT FROM ?", [value]
        case "prefix":
            given, sql, used = pushed.StringStartsWith(("s",), "a"), "starts_with(s, ?)", ["a"]
        case _:
            given, sql, used = KINDS[word](path, value), f"{name} {word} ?", [value]
    if rng.random() < 0.3:
        return pushed.Not(given), f"NOT ({sql})", used
    return given, f"({sql})", used


def test_rows_that_are_left_are_those_that_spark_would_keep(tmp_path: Path) -> None:
    """Random conjunctions over every type, with nulls and NaN, beside DuckDB over the same rows."""
    table = made(tmp_path, commits=2)
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("rows", table)
    rng = random.Random(3)
    narrowed = 0
    for _ in range(60):
        chosen = [_some_filter(rng, table) for _ in range(rng.randint(1, 3))]
        planned = reader(tmp_path, pushFilters="true")
        planned.pushFilters([each for each, _, _ in chosen])
        text = " AND ".join(sql for _, sql, _ in chosen)
        used = [value for _, _, values in chosen for value in values]
        found = connection.execute(f"SELECT id FROM rows WHERE {text}", used).fetchall()
        expected = sorted(each for (each,) in found)
        left = ids(rows(planned))
        # A filter that we do not understand is left to Spark: then more rows leave, but none is missing.
        assert not set(expected) - set(left), (text, used)
        exact = not any("IS NOT DISTINCT" in sql and sql.startswith("NOT") for _, sql, _ in chosen)
        if exact:
            assert left == expected, (text, used)
        narrowed += len(left) < table.num_rows
    assert narrowed > 40


def test_a_scan_that_no_filter_reaches_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Once for a read of many files, and not where a filter or a condition came."""
    made(tmp_path, commits=2)
    monkeypatch.setattr("lazydelta.spark.reader.FEW_FILES", 20)
    reader(tmp_path).partitions()
    assert capfd.readouterr().err.count("option('where', …)") == 1
    reader(tmp_path, pushFilters="true").partitions()
    assert capfd.readouterr().err.count("spark.sql.python.filterPushdown.enabled") == 1
    reader(tmp_path, where="id > 3").partitions()
    planned = reader(tmp_path, pushFilters="true")
    planned.pushFilters([pushed.IsNotNull(("id",))])
    planned.partitions()
    assert not capfd.readouterr().err


def test_an_option_that_is_true_or_false_is_nothing_else(tmp_path: Path) -> None:
    made(tmp_path, commits=1)
    with pytest.raises(OptionError, match="pushFilters='yes' is neither true nor false"):
        reader(tmp_path, pushFilters="yes")
