"""The options of an ingestion mean the same as arguments and as text."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from lazydelta.errors import AccessDeniedError, OptionError, WriteError
from lazydelta.protocol.actions import Txn
from lazydelta.spark.source import LazyDeltaSource
from lazydelta.storage import open_store
from lazydelta.write.job import WriteJob, refuse_older
from lazydelta.write.options import WriteOptions

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"timestamp_column": "ts", "boundary": "minute", "partition_column": "at"},
        {"partition_by": ["a", "b, c", "d`e", " f "]},
        {"partition_by": ()},
        {"target_file_size": "64MB", "memory_budget": 1 << 20},
        {"stats_columns": ["a", "b.`c.d`", "`e,f`"]},
        {"stats_columns": "a, b.c"},
        {"stats_columns": ()},
        {"compression": "none", "null_timestamps": "reject", "rejected_table": "s3://b/k"},
        {"merge_schema": True, "maintain": False},
        {"max_rejected": 5},
        {"max_rejected": 0.01},
        {"max_rejected": "1%"},
        {"overwrite_where": "_event_hour = '2026'"},
        {"app_id": "x", "app_version": 0},
        {"properties": {"delta.checkpointInterval": "3"}, "storage_options": {"account_name": "A"}},
    ],
    ids=str,
)
def test_options_survive_their_way_through_spark(options: dict[str, Any]) -> None:
    given = WriteOptions(**options)
    lowered = {key.lower(): value for key, value in given.to_spark().items()}  # as Spark does
    assert WriteOptions.from_spark(lowered) == given


def test_what_spark_adds_is_no_option_of_ours() -> None:
    assert WriteOptions.from_spark({"path": "p", "checkpointLocation": "c", "queryName": "q"}) == WriteOptions()


def test_functions_take_options_as_python_or_spark_spells_them() -> None:
    ours = WriteOptions(merge_schema=True, overwrite_where="p = 1", partition_by=["p"], app_id="a", app_version=1)
    named = {"mergeSchema": True, "replaceWhere": "p = 1", "partitionBy": ["p"], "txnAppId": "a", "txnVersion": 1}
    assert WriteOptions.from_keywords(named) == ours
    with pytest.raises(OptionError, match=r"There is no option 'mergSchema' \(known: .*merge_schema"):
        WriteOptions.from_keywords({"mergSchema": True})
    with pytest.raises(OptionError, match="merge_schema is passed twice, once as mergeSchema"):
        WriteOptions.from_keywords({"merge_schema": True, "mergeSchema": False})


def test_partition_columns_may_come_from_the_call() -> None:
    assert WriteOptions.from_spark({"__partition_columns": '["a","b"]'}).partition_by == ("a", "b")
    with pytest.raises(OptionError, match="differ"):
        WriteOptions.from_spark({"__partition_columns": '["a"]', "partitionBy": "b"})


def test_a_pyspark_that_is_too_old_is_named() -> None:
    """As 4.0 is, which lacks ``Filter``, too. The data sources of other packages are still found beside ours."""
    old = "from pyspark.sql import datasource as d; del d.DataSourceStreamArrowWriter, d.Filter; "
    found = "from pyspark_lazydelta import DefaultSource as S; print(S.name()); S({})"
    for code, output in (("import lazydelta.spark", ""), (found, "lazydelta\n")):
        command = [sys.executable, "-c", old + code]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.stdout == output
        assert "ImportError: lazydelta.spark needs PySpark 4.1 or later, and this is" in done.stderr.splitlines()[-1]


def test_a_table_of_sparks_catalog_is_answered_with_what_to_type() -> None:
    """Spark tells a data source in Python neither its name nor its location: ``saveAsTable``, CTAS, ``toTable``."""
    with pytest.raises(OptionError, match=r"saveAsTable.*USING delta LOCATION.*attach"):
        LazyDeltaSource({}).writer(StructType([StructField("id", LongType())]), overwrite=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestampColum": "ts"}, "There is no option 'timestampColum'.*timestampColumn"),
        ({"boundary": "week"}, "boundary='week'.*month, day, hour"),
        ({"targetFileSize": "big"}, "target_file_size='big'"),
        ({"targetFileSize": "0"}, "target_file_size='0'"),
        ({"compression": "lzo"}, "compression='lzo'"),
        ({"nullTimestamps": "drop"}, "null_timestamps='drop'"),
        ({"maxRejected": "few"}, "max_rejected='few'.*0.01 or 1%"),
        ({"mergeSchema": "yes"}, "mergeSchema='yes'.*true or false"),
        ({"txnVersion": "1"}, "app_version is not valid without app_id"),
        ({"txnAppId": "a", "txnVersion": "one"}, "txnVersion='one'"),
        ({"delta.columnMapping.maxColumnId": "9"}, "delta.columnmapping.maxcolumnid"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        WriteOptions.from_spark(options)


@pytest.mark.parametrize(
    ("uri", "rejected"),
    [
        ("/a/t", "/a/t_rejected"),
        ("/a/what?/", "/a/what?_rejected"),
        ("az://c/t/", "az://c/t_rejected"),
        ("https://a.blob.core.windows.net/c/t?sv=1&sig=x/", "https://a.blob.core.windows.net/c/t_rejected?sv=1&sig=x/"),
    ],
)
def test_the_side_table_has_the_name_of_the_table(uri: str, rejected: str) -> None:
    assert WriteOptions().rejected_uri(uri) == rejected


def test_options_leave_their_credentials_behind_unless_they_are_to_carry_them() -> None:
    options = WriteOptions(storage_options={"account_name": "corp", "account_key": "SECRETKEY"})
    pickled = pickle.dumps(options)
    assert b"SECRETKEY" not in pickled
    twin = pickle.loads(pickled)  # noqa: S301 - our own
    with pytest.raises(AccessDeniedError, match="were not sent"):
        open_store("az://c/t", twin.storage_options).get("a")
    carried = pickle.loads(pickle.dumps(options.carrying_credentials()))  # noqa: S301 - our own
    assert carried == options
    shown = f"{options!r} {carried!r} {carried.storage_options!r}"
    assert "SECRETKEY" not in shown


def test_a_job_carries_the_credentials_to_its_tasks_and_shows_them_to_nobody(tmp_path: Path) -> None:
    options = WriteOptions(storage_options={"account_key": "SECRETKEY"}, rejected_table="https://a/b?sig=SECRETKEY")
    job = WriteJob.prepare(str(tmp_path / "t"), pa.schema([("id", pa.int64())]), options)
    twin = pickle.loads(pickle.dumps(job))  # noqa: S301 - our own
    assert dict(twin.options.storage_options) == {"account_key": "SECRETKEY"}
    assert "SECRETKEY" not in f"{job!r} {twin!r} {options!r}"


@pytest.mark.parametrize("place", ["s3:/b/t", "dbfs:/t", "hdfs:/t"])
def test_a_table_that_is_nearly_a_uri_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    schema = pa.schema([("id", pa.int64())])
    for uri, options in ((place, WriteOptions()), (str(tmp_path / "t"), WriteOptions(rejected_table=place))):
        with pytest.raises(OptionError, match="neither a URI nor a path"):
            WriteJob.prepare(uri, schema, options)
    assert list(tmp_path.iterdir()) == []


def test_a_signature_in_a_uri_is_not_told() -> None:
    uri = "https://corp.blob.core.windows.net/c/t?sv=1&sig=SECRETKEY"
    with pytest.raises(WriteError) as caught:
        refuse_older(uri, Txn(app_id="a", version=1), 2)
    assert "SECRETKEY" not in f"{caught.value} {caught.value.path}"
