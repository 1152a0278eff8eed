"""The options of an ingestion mean the same as arguments and as text."""

from __future__ import annotations

from typing import Any

import pytest

from lazydelta.errors import OptionError
from lazydelta.spark.options import IngestOptions


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
        {"overwrite_where": "_event_hour = '2026'"},
        {"app_id": "x", "app_version": 0},
        {"properties": {"delta.checkpointInterval": "3"}, "storage_options": {"account_name": "A"}},
    ],
    ids=str,
)
def test_options_survive_their_way_through_spark(options: dict[str, Any]) -> None:
    given = IngestOptions(**options)
    lowered = {key.lower(): value for key, value in given.to_spark().items()}  # as Spark does
    assert IngestOptions.from_spark(lowered) == given


def test_what_spark_adds_is_no_option_of_ours() -> None:
    assert IngestOptions.from_spark({"path": "p", "checkpointLocation": "c", "queryName": "q"}) == IngestOptions()


def test_partition_columns_may_come_from_the_call() -> None:
    assert IngestOptions.from_spark({"__partition_columns": '["a","b"]'}).partition_by == ("a", "b")
    with pytest.raises(OptionError, match="differ"):
        IngestOptions.from_spark({"__partition_columns": '["a"]', "partitionBy": "b"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestampColum": "ts"}, "There is no option 'timestampColum'.*timestampColumn"),
        ({"boundary": "week"}, "boundary='week'.*month, day, hour"),
        ({"targetFileSize": "big"}, "target_file_size='big'"),
        ({"targetFileSize": "0"}, "target_file_size='0'"),
        ({"compression": "lzo"}, "compression='lzo'"),
        ({"nullTimestamps": "drop"}, "null_timestamps='drop'"),
        ({"mergeSchema": "yes"}, "mergeSchema='yes'.*true or false"),
        ({"txnVersion": "1"}, "app_version makes no sense without app_id"),
        ({"txnAppId": "a", "txnVersion": "one"}, "txnVersion='one'"),
        ({"delta.columnMapping.mode": "name"}, "delta.columnmapping.mode"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        IngestOptions.from_spark(options)


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
    assert IngestOptions().rejected_uri(uri) == rejected
