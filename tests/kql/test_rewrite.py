"""Queries for a cluster: exactly the pruned files, accepted by Microsoft's analyser; no cluster was there to run."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lazydelta.errors import KqlError, OptionError, UnsupportedFeatureError
from lazydelta.kql import rewrite
from tests.kql.analyser import analysed
from tests.kql.tables import NOW, SCHEMAS
from tests.scan.hand_log import HandLog, add

WHERE = {"Telemetry": "https://account.blob.core.windows.net/container/telemetry"}
QUERY = "external_table('Telemetry') | where _event_hour >= '2026021004' | where device_id == 'sensor-42' | take 100"


def addresses(text: str) -> list[str]:
    return [unquote(each.replace("''", "'")) for each in re.findall(r"@'(https://(?:[^']|'')*)'", text)]


def test_the_files_are_exactly_those_that_may_match(table_paths: dict[str, Path]) -> None:
    text = rewrite(QUERY, table_paths, cluster_uris=WHERE, now=NOW)
    expected = [
        file.name
        for hour in ("2026021004", "2026021005")
        for file in (table_paths["Telemetry"] / f"_event_hour={hour}").iterdir()
    ]
    assert sorted(Path(each).name for each in addresses(text)) == sorted(expected)
    assert all(each.startswith(WHERE["Telemetry"] + "/_event_hour=") for each in addresses(text))
    ending = ") | where strcmp(_event_hour , '2026021004') >= 0 | where device_id == 'sensor-42' | take 100"
    assert text.endswith(ending)
    assert "external_table" not in text


def test_partition_columns_are_constants_of_their_group(table_paths: dict[str, Path]) -> None:
    text = rewrite(QUERY, table_paths, cluster_uris=WHERE)
    for hour in ("2026021004", "2026021005"):
        group = text[text.index(f"_event_hour%3D{hour}") :]
        assert group[group.index("| extend") :].startswith(f"| extend _event_hour = @'{hour}'")
    declared = re.findall(r"externaldata\((.*?)\)\[", text)
    assert len(declared) == 2
    assert all("_event_hour" not in each for each in declared)


# What Kusto has no order for is compared by strcmp() in what the cluster gets, and what follows stays.
ORDERS = [
    ("_event_hour > '2026021004'", "strcmp(_event_hour , '2026021004') > 0"),
    ("(_event_hour)<=('x')", "strcmp((_event_hour),('x')) <= 0"),
    (
        "_event_hour between ('2026021004' .. strcat('2026', '021005'))",
        "(strcmp(_event_hour , '2026021004' ) >= 0 and strcmp(_event_hour,  strcat('2026', '021005')) <= 0)",
    ),
    (
        "n < 3 and _event_hour !between ('1' .. '2') // a < b",
        "n < 3 and not(strcmp(_event_hour , '1' ) >= 0 and strcmp(_event_hour,  '2') <= 0) // a < b",
    ),
    ("iff(device_id > 'm', n, i) > 0", "iff(strcmp(device_id , 'm') > 0, n, i) > 0"),
]


@pytest.mark.parametrize(("condition", "written"), ORDERS, ids=[each[0] for each in ORDERS])
def test_the_order_of_texts_is_written_as_a_cluster_knows_it(
    condition: str, written: str, table_paths: dict[str, Path]
) -> None:
    text = rewrite(f"Telemetry | where {condition}\n| count", table_paths, cluster_uris=WHERE)
    assert text.endswith(f" | where {written}\n| count")


def test_tables_of_parts_that_run_first_are_replaced_too(table_paths: dict[str, Path]) -> None:
    places = WHERE | {"Devices": "https://account.blob.core.windows.net/container/devices"}
    text = rewrite(
        "Telemetry | where device_id in ((Devices | project device_id)) and _event_hour >="
        " toscalar(external_table('Telemetry') | where n == 50 | summarize min(_event_hour)) | count",
        table_paths,
        cluster_uris=places,
    )
    assert "external_table" not in text
    (first, second, third) = (text.index(each) for each in (" | where device_id in", "/devices/", "toscalar("))
    assert first < second < third
    assert "externaldata(" in text[third:]
    assert analysed([text], {})[0].errors == []


REWRITTEN = [
    "external_table('Telemetry') | where _event_hour >= '2026021004' | where device_id == 'sensor-42' | take 100",
    "external_table('Telemetry') | where _event_hour between ('2026021000' .. '2026021003') | summarize count() by i",
    "external_table('Telemetry') | where _event_hour == '2026021004' | summarize avg(value) by bin(timestamp, 1h)",
    "external_table('Telemetry') | where timestamp > ago(1h) | count",
    "Telemetry | where i == 5 | join kind=inner (external_table('Devices')) on device_id | project n, site",
    "external_table('Telemetry') | where false | count",
    "let T = external_table('Telemetry'); T | where _event_hour == '2026021001' | union (T | take 3) | count",
]


def test_microsofts_analyser_accepts_the_result_and_gives_it_the_same_columns(table_paths: dict[str, Path]) -> None:
    places = WHERE | {"Devices": "abfss://container@account.dfs.core.windows.net/devices"}
    results = [
        rewrite(text, table_paths, cluster_uris=places, secret="?sv=2026&sig=it's", now=NOW) for text in REWRITTEN
    ]
    for text, before, after in zip(REWRITTEN, analysed(REWRITTEN, SCHEMAS), analysed(results, {}), strict=True):
        assert after.errors == [], text
        assert after.columns == before.columns


def test_secrets_are_in_strings_that_the_cluster_does_not_log(table_paths: dict[str, Path]) -> None:
    text = rewrite(QUERY, table_paths, cluster_uris=WHERE, secret="?sv=2026&sig=it's")
    assert text.count("h@'https://") == text.count("https://") == 2
    assert text.count("?sv=2026&sig=it''s'") == 2


def test_a_managed_identity_takes_the_place_of_a_secret(table_paths: dict[str, Path]) -> None:
    text = rewrite(QUERY, table_paths, cluster_uris=WHERE, managed_identity="system")
    assert text.count(";managed_identity=system'") == 2
    with pytest.raises(OptionError, match="are mutually exclusive"):
        rewrite(QUERY, table_paths, cluster_uris=WHERE, managed_identity="system", secret="x")


def test_too_many_bytes_are_refused_at_the_table(table_paths: dict[str, Path]) -> None:
    with pytest.raises(KqlError, match="bytes of files may match") as caught:
        rewrite("print 1 | union (external_table('Telemetry') | project n)", table_paths, cluster_uris=WHERE, cap=1000)
    assert (caught.value.line, caught.value.column) == (1, 18)


def test_a_pattern_of_tables_is_refused_at_its_place(table_paths: dict[str, Path]) -> None:
    with pytest.raises(KqlError, match="several tables") as caught:
        rewrite("print 1 | union Tele*", table_paths, cluster_uris=WHERE)
    assert (caught.value.line, caught.value.column) == (1, 17)


def test_a_table_that_the_cluster_cannot_reach_is_refused(table_paths: dict[str, Path]) -> None:
    with pytest.raises(KqlError, match="cannot reach"):
        rewrite(QUERY, table_paths)


def test_deletion_vectors_are_refused_by_name(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t", features=["deletionVectors"])
    vector = {
        "storageType": "u",
        "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
        "offset": 1,
        "sizeInBytes": 40,
        "cardinality": 2,
    }
    log.commit(add("a.parquet", vector=vector))
    with pytest.raises(UnsupportedFeatureError, match="deletion vector"):
        rewrite("T | count", {"T": tmp_path / "t"}, cluster_uris={"T": "https://x/y"})


def test_column_mapping_is_refused_by_name(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"a": [1]}))
    log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    text = log.read_text().replace('"configuration":{}', '"configuration":{"delta.columnMapping.mode":"name"}')
    text = re.sub(r'"minReaderVersion":\d+', '"minReaderVersion":2', text)
    text = re.sub(r'"minWriterVersion":\d+', '"minWriterVersion":5', text)
    text = text.replace(
        '\\"metadata\\":{}',
        '\\"metadata\\":{\\"delta.columnMapping.id\\":1,\\"delta.columnMapping.physicalName\\":\\"a\\"}',
    )
    log.write_text(text)
    with pytest.raises(UnsupportedFeatureError, match="maps its columns by name"):
        rewrite("T | count", {"T": tmp_path / "t"}, cluster_uris={"T": "https://x/y"})


def test_names_and_partition_values_of_every_type_are_written_as_kql(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "it's": ["x", "y"],
            "p int": pa.array([1, None], pa.int32()),
            "day": pa.array([0, 20000], pa.date32()),
            "text": ["a'b", None],
        }
    )
    write_deltalake(tmp_path / "t", rows, partition_by=["p int", "day", "text"])
    text = rewrite("T | count", {"T": tmp_path / "t"}, cluster_uris={"T": "https://x/y"})
    assert "['p int'] = int(1), day = datetime(1970-01-01), text = @'a''b'" in text
    assert "['p int'] = int(null), day = datetime(2024-10-04), text = ''" in text
    assert analysed([text], {})[0].errors == []
