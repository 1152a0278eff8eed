"""Spark asks for files while it plans: the same rows as Delta-Spark's, from no more files than our own scan lists."""

from __future__ import annotations

import datetime as dt
import gc
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from lazydelta import DeltaTable, PredicateWarning, write_arrow
from lazydelta.errors import CorruptLogError, OptionError
from lazydelta.runtime import compute as pc
from lazydelta.spark import attach, read
from lazydelta.spark.file_index import SparkInternals, TableFiles
from tests.spark.hard_values import condition, write_hard_values
from tests.spark.random_queries import ZONES, Query, write_by_deltalake, write_ours

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


@contextmanager
def _listings(patch: pytest.MonkeyPatch) -> Iterator[list[set[str]]]:
    """Give the names of the files of each listing in a block."""
    found: list[set[str]] = []
    plain = TableFiles.listing

    def listing(files: TableFiles, predicate: Any) -> pa.Table:
        table = plain(files, predicate)
        paths = pc.struct_field(pc.list_flatten(table["files"].combine_chunks()), "path").to_pylist()
        found.append({each.rpartition("/")[2] for each in paths})
        return table

    with patch.context() as patched:
        patched.setattr(TableFiles, "listing", listing)
        yield found


def _rows(frame: DataFrame) -> Counter[str]:
    return Counter(map(str, frame.collect()))


@pytest.fixture(scope="module")
def table_of(made: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives the table of a writer."""
    folder = tmp_path_factory.mktemp("writers")
    writers = {"ours": write_ours, "deltalake": write_by_deltalake}

    def give(writer: str) -> Path:
        if writer not in writers:
            return made(writer)
        if not (folder / writer).exists():
            writers[writer](folder / writer)
        return folder / writer

    return give


WRITERS = ("deletion vectors", "ours", "deltalake")
LONG = [pytest.mark.slow, pytest.mark.timeout(3600)]
NUMBERS = [*((each, 2) for each in WRITERS), *(pytest.param(each, 100, marks=LONG) for each in WRITERS)]


@pytest.mark.parametrize(("writer", "number"), NUMBERS)
def test_random_queries_answer_as_delta_spark_does(
    writer: str, number: int, table_of: Callable[[str], Path], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In four time zones, over one view; each of their scans lists at most the files of our own scan in SQL."""
    table = table_of(writer)
    attach(spark, ours_t=str(table))
    spark.read.format("delta").load(str(table)).createOrReplaceTempView("delta_t")
    rng = random.Random(f"{writer} {number}")
    answered = compared = 0
    for index in range(number):
        spark.conf.set("spark.sql.session.timeZone", ZONES[index % len(ZONES)])
        query = Query(rng)
        expected = _rows(spark.sql(query.text.format(t="delta_t")))
        with _listings(monkeypatch) as listed:
            asked = spark.sql(query.text.format(t="ours_t"))
            if index % 5 == 4:
                asked = asked.cache()
            assert _rows(asked) == expected, query.text
            asked.unpersist()
        answered += bool(expected)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PredicateWarning)  # some of deltalake's files may hide a NaN
            ours = [{Path(each.uri).name for each in DeltaTable(table).files(where)} for where in query.ours]
        for names in listed if ours else ():
            compared += 1
            assert any(names <= most for most in ours), query.text
    assert answered
    assert compared or number < 20


HARD = ("", "f s", "ts", "day o", "d y", "deltalake")
ROUNDS = [("", 1), ("f s", 1), *(pytest.param(each, 16, marks=pytest.mark.slow) for each in HARD)]


@pytest.mark.parametrize(("writer", "rounds"), ROUNDS)
def test_random_conditions_leave_out_no_row(writer: str, rounds: int, spark: SparkSession, tmp_path: Path) -> None:
    """A dozen in one query, over scans that prune; beside them what Spark makes of the same conditions as columns."""
    write_hard_values(tmp_path / "t", writer)
    ours, delta = read(spark, f"{tmp_path}/t"), spark.read.format("delta").load(f"{tmp_path}/t")
    rng = random.Random(f"{writer} {rounds}")
    found = 0
    for index in range(rounds):
        spark.conf.set("spark.sql.session.timeZone", ZONES[(index + 1) % len(ZONES)])
        asked = [condition(rng) for _ in range(12)]
        columns = [F.expr(f"coalesce({each}, false)").alias(f"c{number}") for number, each in enumerate(asked)]
        expected = {
            (number, row.id)
            for row in delta.select("id", *columns).collect()
            for number in range(12)
            if row[number + 1]
        }
        parts = [ours.where(each).select(F.lit(number), "id") for number, each in enumerate(asked)]
        got = [tuple(row) for row in reduce(DataFrame.unionAll, parts).collect()]
        wrong = {number for number, _ in expected.symmetric_difference(got)}
        assert not wrong, [asked[number] for number in wrong]
        assert len(got) == len(expected)
        found += len(got)
    assert found


def test_a_table_made_again_at_the_same_place_is_another_one(spark: SparkSession, tmp_path: Path) -> None:
    """Its version and location are those of the table before it, whose rows Spark has cached."""
    write_arrow(tmp_path / "t", pa.table({"id": [1, 2]}))
    cached = read(spark, f"{tmp_path}/t").cache()
    assert cached.count() == 2
    shutil.rmtree(tmp_path / "t")
    write_arrow(tmp_path / "t", pa.table({"id": [7, 8, 9]}))
    assert {row.id for row in read(spark, f"{tmp_path}/t").collect()} == {7, 8, 9}
    cached.unpersist()


def test_one_frame_serves_different_filters_at_once(
    table_of: Callable[[str], Path], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In eight threads, each in a join of the frame with itself, some of them cached: every scan has its own files."""
    frame = read(spark, str(table_of("ours")))
    with _listings(monkeypatch) as listed:
        frame.where("id < 100").join(frame.where("id >= 350").select("p"), "p", "left_semi").count()
    assert sorted(map(len, listed)) == [4, 8]

    def ask(number: int) -> tuple[int, int]:
        low, high = frame.where(F.col("id") < 10 * number), frame.where(F.col("id") >= 470 - number)
        if number % 2:
            low = low.cache()
        found = low.select("id").unionByName(high.select("id")).count(), low.join(low, "id").count()
        low.unpersist()
        return found

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(1, 9)))
    assert answers == [(10 * each + 10 + each, 10 * each) for each in range(1, 9)]


def test_partition_values_of_every_type(spark: SparkSession, tmp_path: Path) -> None:
    """As Delta-Spark reads them, with nulls, and found by filters, which Spark does not apply to rows again."""
    timestamp = dt.datetime(2021, 10, 31, 1, 30, 0, 5, tzinfo=dt.UTC)
    values: dict[str, tuple[pa.DataType, list[Any], str]] = {
        "i": (pa.int64(), [1, -(2**63), None], "-9223372036854775808"),
        "t": (
            pa.timestamp("us", "UTC"),
            [timestamp, timestamp.replace(hour=6), None],
            "timestamp'2021-10-31T06:30:00.000005Z'",
        ),
        "n": (
            pa.timestamp("us"),
            [timestamp.replace(tzinfo=None), timestamp.replace(year=1, tzinfo=None), None],
            "timestamp_ntz'0001-10-31T01:30:00.000005'",
        ),
        "day": (pa.date32(), [dt.date(9999, 12, 31), dt.date(1, 1, 1), None], "date'0001-01-01'"),
        "d": (
            pa.decimal128(38, 10),
            [Decimal("1.5"), Decimal("-9999999999999999999999999999.9999999999"), None],
            "-9999999999999999999999999999.9999999999BD",
        ),
        "f": (pa.float64(), [float("nan"), -0.5, None], "-0.5D"),
        "yes": (pa.bool_(), [True, False, None], "false"),
        "s": (pa.string(), ["a b/%=ü'{}*", "", None], "'x'"),
        "b": (pa.binary(), [b"ab", b"c d", None], "X'632064'"),
    }
    columns = {name: pa.array(found, kind) for name, (kind, found, _) in values.items()}
    write_arrow(tmp_path, pa.table({"id": [0, 1, 2], **columns}), partition_by=list(values))
    delta, ours = spark.read.format("delta").load(str(tmp_path)), read(spark, str(tmp_path))
    assert _rows(ours) == _rows(delta)
    for name, (_, _, literal) in values.items():
        found = {row.id for row in ours.where(f"{name} = {literal} OR {name} IS NULL").select("id").collect()}
        assert found == {1, 2}, name
    # A filter that Python does not understand is applied all the same.
    assert [row.id for row in ours.where("hex(s) = hex('a b/%=ü''{}*')").collect()] == [0]


def test_files_outside_the_table_and_columns_named_like_sparks_metadata(spark: SparkSession, tmp_path: Path) -> None:
    """An absolute path in the log, as a shallow clone has it."""
    write_arrow(tmp_path / "origin %", pa.table({"id": [1, 2], "file_name": ["a", "b"], "row_index": [5, 6]}))
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/clone` SHALLOW CLONE delta.`{tmp_path}/origin %`")
    frame = read(spark, f"{tmp_path}/clone")
    assert {(row.id, row.file_name, row.row_index) for row in frame.collect()} == {(1, "a", 5), (2, "b", 6)}
    [name] = {row[0] for row in frame.select("_metadata.file_name").collect()}
    assert frame.where(F.col("_metadata.file_name") == name).count() == 2
    assert frame.where("file_name = 'b' AND row_index = 6").count() == 1
    [path] = {row[0] for row in frame.select(F.input_file_name()).collect()}
    assert [path] == frame.inputFiles()
    assert "/origin%20%25/" in path


def test_a_view_moves_on_when_it_is_refreshed(spark: SparkSession, tmp_path: Path) -> None:
    """Also where it is cached; a version that was asked for stays, and columns that changed are an error."""
    write_arrow(tmp_path, pa.table({"id": [1]}))
    attach(spark, moving=str(tmp_path))
    read(spark, str(tmp_path), version=0).createOrReplaceTempView("pinned")
    write_arrow(tmp_path, pa.table({"id": [2]}))
    assert spark.table("moving").count() == 1
    spark.sql("REFRESH TABLE moving")
    assert spark.table("moving").count() == 2
    spark.sql("CACHE TABLE moving")
    write_arrow(tmp_path, pa.table({"id": [3]}))
    for view in ("moving", "pinned"):
        spark.catalog.refreshTable(view)
    assert spark.table("moving").count() == 3
    spark.sql("UNCACHE TABLE moving")
    assert spark.table("pinned").count() == 1
    write_arrow(tmp_path, pa.table({"no": ["x"]}), mode="overwrite", overwrite_schema=True)
    with pytest.raises(PySparkException, match="create the DataFrame or view again"):
        spark.sql("REFRESH TABLE moving")
    assert spark.table("moving").count() == 3
    with pytest.raises(PySparkException, match="UNSUPPORTED_INSERT"):
        spark.sql("INSERT INTO moving VALUES (4)")


def test_the_size_comes_from_the_log_and_lets_spark_broadcast(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a listing of files."""
    write_arrow(tmp_path, pa.table({"id": range(1000)}))
    frame = read(spark, str(tmp_path))
    with _listings(monkeypatch) as listed:
        size = frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()
        plan = spark.range(10**9).join(frame, "id")._jdf.queryExecution().sparkPlan().toString()
    assert size == sum(each.size for each in DeltaTable(tmp_path).files())
    assert "BroadcastHashJoin" in plan
    assert listed == []


def test_errors_and_interrupts_in_a_call_back_are_one_clear_exception(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the session lives on."""
    write_arrow(tmp_path, pa.table({"id": [1]}))
    frame = read(spark, str(tmp_path))
    for error, expected in (
        (CorruptLogError("The log is odd", hint="mend it"), "lazydelta.errors.CorruptLogError: The log is odd"),
        (ZeroDivisionError("of ours"), "ZeroDivisionError: of ours"),
        (KeyboardInterrupt(), "interrupted while listing"),
    ):

        def fail(*_: Any, raised: BaseException = error) -> pa.Table:
            raise raised

        with monkeypatch.context() as patched:
            patched.setattr(TableFiles, "listing", fail)
            with pytest.raises(Exception, match=expected) as found:
                frame.where("id > 0").collect()
        if not isinstance(error, KeyboardInterrupt):
            assert len(str(found.value)) < 500
        assert frame.where("id > 0").count() == 1


def test_a_callback_server_that_ended_is_an_error_until_the_next_read_starts_it_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Then the DataFrames from before work again, too."""
    write_arrow(tmp_path, pa.table({"id": [1, 2]}))
    frame = read(spark, str(tmp_path))
    server: Any = spark.sparkContext._gateway._callback_server  # type: ignore[union-attr]
    server.server_socket.shutdown(socket.SHUT_RDWR)
    server.thread.join(60)
    for connection in list(server.connections):
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(Py4JError, match=r"Connection refused|Received empty command|communication channel"):
        frame.where("id > 1").count()
    assert read(spark, str(tmp_path)).where("id > 1").count() == 1
    assert frame.where("id < 2").count() == 1


def test_sessions_without_a_file_index_get_the_data_source(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here one whose threads are not pinned; insisting on it raises an error that says why."""
    write_arrow(tmp_path, pa.table({"id": [1, 2]}))
    monkeypatch.setenv("PYSPARK_PIN_THREAD", "false")
    frame = read(spark, str(tmp_path), where="id > 1", columns=["id"])
    assert "BatchScan lazydelta" in frame._jdf.queryExecution().toString()
    assert [row.id for row in frame.collect()] == [2]
    with pytest.raises(OptionError, match="PYSPARK_PIN_THREAD is off"):
        read(spark, str(tmp_path), by_spark=True)


DIAGNOSTICS = "com.sun.management:type=DiagnosticCommand"


@pytest.mark.parametrize("number", [40, pytest.param(10_000, marks=LONG)])
def test_frames_that_are_dropped_leave_nothing(number: int, spark: SparkSession, tmp_path: Path) -> None:
    """Neither objects and py4j's proxies in Python, nor connections of ended threads, nor relations in the JVM."""
    write_arrow(tmp_path, pa.table({"id": range(10)}))
    jvm: Any = spark._jvm
    pool: dict[str, Any] = spark.sparkContext._gateway.gateway_property.pool  # type: ignore[union-attr]

    def relations() -> int:
        """Return how many relations the JVM holds after a full collection."""
        make = spark.sparkContext._gateway.new_array  # type: ignore[union-attr]
        none, command = make(jvm.java.lang.String, 0), jvm.javax.management.ObjectName(DIAGNOSTICS)
        arguments, signature = make(jvm.java.lang.Object, 1), make(jvm.java.lang.String, 1)
        arguments[0], signature[0] = none, none.getClass().getName()
        server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
        # By reflection, because the server's own class is not public.
        invoke = next(
            each
            for each in jvm.java.lang.Class.forName("javax.management.MBeanServer").getMethods()
            if each.getName() == "invoke"
        )
        given = make(jvm.java.lang.Object, 4)
        given[0], given[1], given[2], given[3] = command, "gcClassHistogram", arguments, signature
        rows = (line.split() for line in str(invoke.invoke(server, given)).splitlines())
        return sum(int(row[1]) for row in rows if len(row) > 3 and row[3].endswith(".HadoopFsRelation"))

    def left(most: int) -> tuple[int, int, int]:
        for _ in range(20):
            gc.collect()
            jvm.java.lang.System.gc()
            jvm.java.lang.System.runFinalization()
            if len(pool) <= most:
                break
        return len(pool), len(gc.get_objects()), relations()

    def make(number: int) -> None:
        for index in range(number):
            frame = read(spark, str(tmp_path))
            if index % 10 == 0:  # with a shuffle, so that adaptive execution plans in threads of its own
                assert frame.join(frame.groupBy("id").count(), "id").count() == 10

    start = len(pool)
    held = read(spark, str(tmp_path))
    assert held.count() == 10
    assert relations() >= 1
    del held
    make(number // 4)
    before = left(start + 5)
    make(number)
    after = left(start + 5)
    assert after[0] <= start + 5
    assert after[1] - before[1] < 1000 + number // 10  # a DataFrame is dozens of objects
    assert after[2] - before[2] < 10 + number // 1000
    internals = SparkInternals.of(spark)
    internals.close_ended()
    assert internals.connections
    assert all(thread.isAlive() for thread, _ in internals.connections)


@pytest.mark.slow
def test_a_stopped_session_is_named_and_another_one_serves(tmp_path: Path) -> None:
    """In a process of its own, which stops its session and starts another one."""
    write_arrow(tmp_path / "t", pa.table({"id": [1, 2]}))
    code = """
import json, sys
from lazydelta.spark import read, start_session
from tests.support.spark import use_java
use_java()
spark = start_session()
frame = read(spark, sys.argv[1])
found = [frame.count()]
spark.stop()
for ask in (lambda: read(spark, sys.argv[1]), frame.count):
    try:
        ask()
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}"[:300])
found.append(read(start_session(), sys.argv[1]).where("id = 2").count())
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "t")],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, refused, dead, again = json.loads(done.stdout.splitlines()[-1])
    assert (first, again) == (2, 1)
    assert "stopped" in refused
    assert dead
