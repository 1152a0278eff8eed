"""URIs in, places out; and the paths that logs write."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lazydelta import DeltaTable, create_table
from lazydelta.errors import DataFileError, OptionError
from lazydelta.storage import open_store
from lazydelta.storage.location import parse_location
from lazydelta.storage.options import normalise

if TYPE_CHECKING:
    from tests.support.azurite import Azurite

ACCOUNT = {"account_name": "acct", "account_key": "c2VjcmV0"}
DFS = "dfs.core.windows.net"


@pytest.mark.parametrize(
    ("uri", "canonical"),
    [
        ("/a/b/", "file:///a/b"),
        ("/a b%20#?é", "file:///a%20b%2520%23%3F%C3%A9"),
        ("file:///a%20b", "file:///a%20b"),
        ("file:/a/b", "file:///a/b"),
        ("file://localhost/a", "file:///a"),
        ("fs://localhost/a/../b", "file:///b"),
        ("opendal+fs://any/a%20b", "file:///a%20b"),
        ("/", "file:///"),
        ("memory://name/t", "memory://name/t"),
        ("memory:///t", "memory:///t"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3a://bucket/a%20b//c", "s3a://bucket/a%20b/c"),
        ("s3://bucket", "s3://bucket"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("gcs://bucket/a", "gcs://bucket/a"),
        (f"abfss://c@acct.{DFS}/p/", f"abfss://c@acct.{DFS}/p"),
        (f"abfs://c@acct.{DFS}/p", f"abfs://c@acct.{DFS}/p"),
        ("wasbs://c@acct.blob.core.windows.net/p", "wasbs://c@acct.blob.core.windows.net/p"),
        ("az://c/p", "az://c/p"),
        ("azure://c/p", "azure://c/p"),
        ("https://acct.blob.core.windows.net/c/p", "https://acct.blob.core.windows.net/c/p"),
        ("https://acct.dfs.core.windows.net/c/p?sv=1&sig=abcdef", "https://acct.dfs.core.windows.net/c/p"),
        ("http://127.0.0.1:10000/devstoreaccount1/c/p", "http://127.0.0.1:10000/devstoreaccount1/c/p"),
    ],
)
def test_a_uri_has_one_canonical_form(uri: str, canonical: str) -> None:
    options = {**ACCOUNT, "aws_region": "us-east-1", "google_skip_signature": "true"}
    store = open_store(uri, options)
    assert store.uri == canonical
    assert repr(store).endswith(f"({canonical!r})")


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("a/../b").uri == (tmp_path / "b").as_uri()
    assert open_store(Path("b")).uri == (tmp_path / "b").as_uri()
    assert open_store("./~").uri == open_store("a/../~").uri == f"{tmp_path.as_uri()}/~"


def test_a_tilde_alone_or_before_a_slash_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store("~").uri == tmp_path.as_uri()
    assert open_store("~/a/b").uri == open_store(Path("~/a/b")).uri == (tmp_path / "a" / "b").as_uri()
    monkeypatch.chdir(tmp_path)
    assert open_store("~a").uri == f"{tmp_path.as_uri()}/~a"


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "a\0b",
        "/t/\udcff",
        "s3://b/\ud83d",
        "ftp://host/a",
        "s3:///a",
        "s3://user:secret@bucket/a",
        "file://host/a",
        "file:a",
        "az:///p",
        "https://example.org/a",
        "https://acct.blob.core.windows.net/",
        "s3://bucket/a/../b",
        "s3://bucket/%ff",
    ],
)
def test_a_uri_that_makes_no_sense_is_an_option_error(uri: str) -> None:
    with pytest.raises(OptionError) as caught:
        open_store(uri, ACCOUNT)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "advice"),
    [
        ("s3:/bucket/t", "write s3://"),
        ("s3:bucket/t", "write s3://"),
        ("S3:/bucket/t", "write s3://"),
        ("abfss:/c@acct.dfs.core.windows.net/t", "write abfss://"),
        ("az:/c/t", "write az://"),
        ("gs:/bucket/t", "write gs://"),
        ("https:/acct.blob.core.windows.net/c/t", "write https://"),
        ("memory:/t", "write memory:///"),
        ("dbfs:/mnt/t", "/dbfs/"),
        ("dbfs://mnt/t", "/dbfs/"),
        ("hdfs:/t", "mount it"),
        ("hdfs://host/t", "mount it"),
        (Path("s3://bucket/t"), "as a string"),
        (Path("dbfs:/mnt/t"), "/dbfs/"),
    ],
)
def test_what_is_nearly_a_uri_does_not_become_a_local_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str | Path, advice: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (open_store, DeltaTable, lambda uri: create_table(uri, pa.schema([("id", pa.int64())]))):
        with pytest.raises(OptionError) as caught:
            use(place)
        assert advice in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_what_is_nearly_a_uri_is_not_shown_with_its_signature() -> None:
    with pytest.raises(OptionError) as caught:
        open_store("https:/acct.blob.core.windows.net/c/t?sv=1&sig=secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("place", ["./a:b", "./s3:/b", "x:y", "a/s3:/b", "t=12:00", "c:/x", "foo:/x", "{tmp}/s3:/x"])
def test_a_local_path_may_hold_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    place = place.format(tmp=tmp_path)
    for form in (place, Path(place)) if not place.startswith("./s3") else (place,):
        store = open_store(form)
        store.put("a", b"1")
        assert (tmp_path / place / "a").read_bytes() == b"1"


def test_a_place_must_be_text_or_a_path() -> None:
    with pytest.raises(OptionError, match="a string or a path"):
        open_store(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uri", "options", "implied"),
    [
        (f"abfss://c@acct.{DFS}/p", {}, {"account_name": "acct"}),
        (f"abfss://c@acct.{DFS}/p", {"endpoint": "https://x"}, {"account_name": "acct"}),
        (
            "abfss://c@acct.dfs.core.chinacloudapi.cn/p",
            {},
            {"account_name": "acct", "endpoint": "https://acct.blob.core.chinacloudapi.cn"},
        ),
        (
            "abfss://ws@onelake.dfs.fabric.microsoft.com/lake/Tables/t",
            {},
            {"account_name": "onelake", "use_fabric_endpoint": "true"},
        ),
        (
            "https://acct.z12.blob.storage.azure.net/c/p",
            {},
            {"account_name": "acct", "endpoint": "https://acct.z12.blob.storage.azure.net"},
        ),
        ("az://c/p", {}, {}),
    ],
)
def test_an_azure_host_says_account_and_endpoint(uri: str, options: dict[str, str], implied: dict[str, str]) -> None:
    location, _ = parse_location(uri, options)
    assert dict(location.implied) == implied


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=a2V5PQ==;EndpointSuffix=core.windows.net",
            {"account_name": "acct", "account_key": "a2V5PQ=="},
        ),
        (
            "BlobEndpoint=https://x.blob.core.windows.net/;SharedAccessSignature=sv=1&sig=a%3D",
            {"endpoint": "https://x.blob.core.windows.net/", "sas_key": "sv=1&sig=a%3D"},
        ),
        ("UseDevelopmentStorage=true", {"use_emulator": "true"}),
        (
            "AccountName=acct;AccountKey=a2V5;EndpointSuffix=core.usgovcloudapi.net",
            {"account_name": "acct", "account_key": "a2V5", "endpoint": "https://acct.blob.core.usgovcloudapi.net"},
        ),
    ],
)
def test_a_connection_string_is_taken_apart(text: str, said: dict[str, str]) -> None:
    _, options = parse_location("az://c/p", {"azure_storage_connection_string": text})
    assert options == said


def test_options_beside_a_connection_string_win() -> None:
    given = {"connection_string": "AccountName=a;AccountKey=a2V5", "AZURE_STORAGE_ACCOUNT_NAME": "b"}
    _, options = parse_location("az://c/p", normalise(given))
    assert options == {"azure_storage_account_name": "b", "account_key": "a2V5"}


def test_a_senseless_connection_string_is_an_option_error() -> None:
    with pytest.raises(OptionError, match="connection string"):
        open_store("az://c/p", {"connection_string": "hello=1"})


def azure_variants(azurite: Azurite) -> list[tuple[str, dict[str, str]]]:
    """Ways to name one container of the emulator."""
    container = azurite.container("variants")
    root = azurite.endpoint.removesuffix(f"/{azurite.account}")
    return [
        (f"az://{container}/t", azurite.storage_options()),
        (f"az://{container}/t", {"use_emulator": "true", "endpoint": root}),
        (f"az://{container}/t", {"AZURE_STORAGE_USE_EMULATOR": "True", "azure_endpoint": azurite.endpoint}),
        (f"abfs://{container}/t", azurite.storage_options()),
        (f"wasbs://{container}@{azurite.account}.blob.core.windows.net/t", azurite.storage_options()),
        (f"{azurite.endpoint}/{container}/t", {}),
        (
            f"az://{container}/t",
            {
                "azure_storage_connection_string": f"AccountName={azurite.account};AccountKey={azurite.key};"
                f"BlobEndpoint={azurite.endpoint}"
            },
        ),
    ]


def test_every_way_to_name_a_container_reaches_it(azurite: Azurite) -> None:
    for number, (uri, options) in enumerate(azure_variants(azurite)):
        open_store(uri, options).put(f"f/{number}", b"x")
    uri, options = azure_variants(azurite)[0]
    found = [info.path for info in open_store(uri, options).list("f")]
    assert found == [f"f/{number}" for number in range(len(azure_variants(azurite)))]


# --- paths of the log


REMOTE_TABLE = "s3://bucket/folder/table"


@pytest.mark.parametrize(
    ("logged", "path"),
    [
        ("part-0.parquet", "part-0.parquet"),
        ("x=1/part-0.parquet", "x=1/part-0.parquet"),
        ("x=a%20b/p.parquet", "x=a b/p.parquet"),
        ("x=a%2520b/p.parquet", "x=a%20b/p.parquet"),
        ("x=100%/p.parquet", "x=100%/p.parquet"),
        ("x=%C3%A9/p+q.parquet", "x=é/p+q.parquet"),
        ("x=é/p.parquet", "x=é/p.parquet"),
        ("./a/./b/../p.parquet", "a/p.parquet"),
        ("t=12:00:00/p.parquet", "t=12:00:00/p.parquet"),
        ("s3:x/p.parquet", "s3:x/p.parquet"),
        ("a:/p.parquet", "a:/p.parquet"),
        ("/ds=2026-02-10/p.parquet", "ds=2026-02-10/p.parquet"),
        ("/ds=a%20b/p.parquet", "ds=a b/p.parquet"),
    ],
)
@pytest.mark.parametrize("table", ["/folder/table", REMOTE_TABLE, "memory://m/folder/table"])
def test_a_relative_path_is_decoded_and_stays_in_the_table(table: str, logged: str, path: str) -> None:
    store = open_store(table)
    assert store.locate(logged) == (store, path)
    assert store.uri_of(logged) == f"{table}/{path}"


@pytest.mark.parametrize(
    ("table", "logged", "root", "path", "uri"),
    [
        ("/a/t", "/a/t/x%20y", "file:///a/t", "x y", "/a/t/x y"),
        ("/a/t", "file:/a/t/x", "file:///a/t", "x", "/a/t/x"),
        ("/year=2026/t", "/year=2026/t/x", "file:///year=2026/t", "x", "/year=2026/t/x"),
        ("/a/t", "file:///b/x", "file:///", "b/x", "/b/x"),
        (REMOTE_TABLE, "s3://bucket/folder/table/x", REMOTE_TABLE, "x", f"{REMOTE_TABLE}/x"),
        (REMOTE_TABLE, "s3a://bucket/folder/table/x", REMOTE_TABLE, "x", f"{REMOTE_TABLE}/x"),
        (REMOTE_TABLE, "s3://bucket/other/x", "s3://bucket", "other/x", "s3://bucket/other/x"),
        (REMOTE_TABLE, "/other/x", "s3://bucket", "other/x", "s3://bucket/other/x"),
        (f"abfss://c@acct.{DFS}/t", "https://acct.blob.core.windows.net/c/t/x", f"abfss://c@acct.{DFS}/t", "x", None),
        (f"abfss://c@acct.{DFS}/t", f"abfss://d@acct.{DFS}/x", f"abfss://d@acct.{DFS}", "x", None),
    ],
)
def test_an_absolute_path_finds_its_store(table: str, logged: str, root: str, path: str, uri: str | None) -> None:
    store = open_store(table, {**ACCOUNT, "aws_region": "us-east-1"})
    found, inside = store.locate(logged)
    assert (found.uri, inside) == (root, path)
    assert store.uri_of(logged) == (uri or f"{root}/{path}")
    assert found.counters is store.counters
    assert store.locate(logged)[0] is found


@pytest.mark.parametrize(
    ("table", "logged"),
    [
        ("/a/t", "../x"),
        ("/a/t", "b/../../x"),
        ("/a/t", "%2e%2e/x"),
        ("/a/t", "/../x"),
        ("/a/t", "a%00b"),
        ("/a/t", "a\0b"),
        ("/a/t", ""),
        ("/a/t", "a/.."),
        ("/a/t", "%ff"),
        ("/a/t", "ftp://host/x"),
        ("/a/t", "file://host/x"),
        ("/a/t", "s3://bucket/"),
        ("/a/t", "s3://bucket/a/../../x"),
        (REMOTE_TABLE, "file:/etc/x"),
        (REMOTE_TABLE, "file:///etc/x"),
        ("memory://m/t", "file:///etc/x"),
        ("/a/t", "dbfs:/mnt/x"),
        ("/a/t", "hdfs:/x"),
        ("/a/t", "s3:/bucket/x"),
        (REMOTE_TABLE, "dbfs:/mnt/x"),
    ],
)
def test_a_path_that_leads_astray_is_refused_by_name(table: str, logged: str) -> None:
    store = open_store(table, {"aws_region": "us-east-1"})
    for resolve in (store.locate, store.uri_of):
        with pytest.raises(DataFileError) as caught:
            resolve(logged)
        assert caught.value.path == logged


def test_another_folder_of_the_disk_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "else where").mkdir()
    (tmp_path / "else where" / "x").write_bytes(b"1")
    store, path = open_store(tmp_path / "table").locate(f"file:{tmp_path}/else%20where/x")
    assert store.get(path) == b"1"


def test_local_names_are_not_decoded(tmp_path: Path) -> None:
    folder = tmp_path / "100% #1?"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    assert open_store(os.fspath(folder)).get("a") == b"1"
    assert open_store(folder).get("a") == b"1"
    assert open_store(folder.as_uri()).get("a") == b"1"


@pytest.mark.parametrize("scheme", ["fs", "opendal+fs"])
def test_a_log_does_not_name_files_by_opendals_schemes(scheme: str) -> None:
    """They are for the caller, who says with them which folder of the machine is meant."""
    assert parse_location(f"{scheme}:///data/t", {})[0].kind == "local"
    with pytest.raises(OptionError, match=f"no store for URIs that begin with {re.escape(scheme)}:"):
        parse_location(f"{scheme}:///data/t", {}, logged=True)
