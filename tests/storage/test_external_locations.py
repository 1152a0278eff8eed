"""Credentials go to the account, bucket and endpoint that they were given for, whatever a log names."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta.errors import AccessDeniedError, DataFileError, ExternalLocationError, LazyDeltaError, OptionError
from lazydelta.protocol.actions import DeletionVector
from lazydelta.protocol.deletion_vectors import read_deletion_vector
from lazydelta.storage import open_store, redact
from tests.rows.files import LoggedFile, column, rows, schema_of
from tests.storage.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lazydelta.storage import Store
    from tests.support.azurite import Azurite
    from tests.support.s3 import S3Server

KEY = "c2VjcmV0LW9mLXRoZS10YWJsZQ=="
DFS = "dfs.core.windows.net"
AZURE = f"abfss://data@corp.{DFS}/t"
SCHEMA = schema_of(column("id", "long"))
SIGNED: dict[str, dict[str, str]] = {
    "key": {"account_key": KEY},
    "sas": {"sas_key": "sv=1&sig=TABLESIGNATURE"},
    "token": {"bearer_token": "TABLETOKEN"},
}


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Give a server that must not be called."""
    with Listener() as server:
        yield server


def refused_everywhere(store: Store, logged: str) -> str:
    """Take a path through every way into data files and return why it was refused."""
    said = set()
    vector = DeletionVector(storage_type="p", path_or_inline_dv=logged, offset=1, size_in_bytes=8, cardinality=1)
    for way in (
        lambda: store.locate(logged),
        lambda: store.uri_of(logged),
        lambda: rows(store, SCHEMA, LoggedFile(logged, 1000)),
        lambda: read_deletion_vector(store, vector, data_file="a"),
    ):
        with pytest.raises(DataFileError) as caught:
            way()
        assert caught.value.path == logged
        said.add(str(caught.value))
    (reason,) = said
    return reason


@pytest.mark.parametrize("signed", SIGNED)
@pytest.mark.parametrize(
    "form",
    [
        "http://127.0.0.1:{port}/devstoreaccount1/c/x",
        "http://127.0.0.1:{port}/corp/c/x",
        "https://127.0.0.1:{port}/corp/c/x",
        "https://localhost:{port}/a/c/x",
        "https://localhost:{port}/corp/data/t/x",
        "http://corp.blob.localhost:{port}/data/x",
        "abfss://data@corp.blob.localhost:{port}/t/x",
        "https://evil.example.com/devstoreaccount1/c/x",
        "abfss://c@corp.blob.evil.example.com/x",
        "abfss://data@corp.dfs.core.windows.net.evil.example.com/t/x",
        "https://corp.blob.evil.example.com/c/x",
        "abfss://data@evil.dfs.core.windows.net/t/x",
        "https://evil.blob.core.windows.net/data/t/x",
        "http://169.254.169.254/latest/meta-data/x",
        "http://169.254.169.254/corp/c/x",
        "http://169.254.169.254/devstoreaccount1/c/x",
        "abfss://data@corp.dfs.core.windows.net@evil.example.com/x",
        "https://corp.blob.core.windows.net@evil.example.com/data/x",
        "https://corp.blob.core.windows.net\\@evil.example.com/data/x",
        "https://corp.blob.core.windows.net#@evil.example.com/data/x",
        "abfss://data@corp.dfs.core.chinacloudapi.cn/t/x",
        "abfss://data@corp.dfs.fabric.microsoft.com/t/x",
        "s3://data/t/x",
        "gs://data/t/x",
        "memory://data/t/x",
    ],
)
@pytest.mark.each_value
def test_an_azure_table_keeps_its_credentials(listener: Listener, form: str, signed: str) -> None:
    store = open_store(AZURE, {**SIGNED[signed], "allow_http": "true"}, retries=0, request_timeout=5)
    refused_everywhere(store, form.format(port=listener.port))
    assert (listener.connections, listener.calls) == (0, [])


def test_the_refusal_names_the_place_and_what_to_do(listener: Listener) -> None:
    store = open_store(AZURE, SIGNED["key"])
    reason = refused_everywhere(store, f"http://127.0.0.1:{listener.port}/devstoreaccount1/c/x")
    assert f"account 'devstoreaccount1' at http://127.0.0.1:{listener.port}/devstoreaccount1" in reason
    assert f"external_locations={{'http://127.0.0.1:{listener.port}/devstoreaccount1/c'" in reason
    with pytest.raises(ExternalLocationError, match=r"account 'corp' at https://corp\.blob\.evil\.example\.com"):
        store.locate("abfss://c@corp.blob.evil.example.com/x")
    assert KEY not in reason


@pytest.mark.parametrize(
    ("table", "options", "logged"),
    [
        (AZURE, {}, f"abfss://other@corp.{DFS}/x"),
        (AZURE, {}, f"abfss://data@CORP.{DFS}/elsewhere/x"),
        (AZURE, {}, "https://corp.blob.core.windows.net/other/x"),
        (AZURE, {}, "wasbs://other@corp.blob.core.windows.net/x"),
        (AZURE, {"account_name": "corp"}, "az://other/x"),
        ("az://data/t", {"account_name": "corp"}, f"abfss://other@corp.{DFS}/x"),
        (AZURE, {"endpoint": "https://private.example.com/corp"}, f"abfss://other@corp.{DFS}/x"),
        ("abfss://d@corp.dfs.core.chinacloudapi.cn/t", {}, "https://corp.blob.core.chinacloudapi.cn/other/x"),
        ("abfss://w@onelake.dfs.fabric.microsoft.com/t", {}, "https://onelake.blob.fabric.microsoft.com/v/x"),
        ("http://127.0.0.1:1/devstoreaccount1/c/t", {}, "http://127.0.0.1:1/devstoreaccount1/d/x"),
        ("az://c/t", {"use_emulator": "true"}, "http://127.0.0.1:10000/devstoreaccount1/d/x"),
        ("az://c/t", {"use_emulator": "true"}, f"abfss://d@devstoreaccount1.{DFS}/x"),
    ],
)
def test_another_container_of_the_same_account_and_endpoint_is_at_home(
    table: str, options: dict[str, str], logged: str
) -> None:
    store = open_store(table, {"account_key": KEY, **options})
    found, path = store.locate(logged)
    assert found is not store
    assert found.place(path) == store.uri_of(logged)
    assert path in {"x", "elsewhere/x"}


@pytest.mark.parametrize(
    ("options", "logged"),
    [
        ({"account_name": "other"}, "az://data/x"),
        ({"endpoint": "https://private.example.com/corp"}, "abfss://data@corp.blob.evil.example.com/t/x"),
        ({"endpoint": "https://private.example.com/corp"}, f"abfss://data@other.{DFS}/t/x"),
        ({"endpoint": "https://private.example.com/corp"}, "https://corp.blob.evil.example.com/data/t/x"),
    ],
)
def test_the_endpoint_decides_and_not_the_label(options: dict[str, str], logged: str) -> None:
    store = open_store(AZURE, {"account_key": KEY, **options})
    refused_everywhere(store, logged)


def test_an_endpoint_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch, listener: Listener) -> None:
    """The client takes it from there, so the table is at that endpoint, and a URI of the public cloud is, too."""
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{listener.endpoint}/corp")
    store = open_store(AZURE, {"account_key": KEY}, retries=0)
    with pytest.raises(LazyDeltaError):
        store.get("a")
    assert [call.target for call in listener.calls] == ["/corp/data/t/a"]
    found, _ = store.locate(f"{listener.endpoint}/corp/other/x")
    with pytest.raises(LazyDeltaError):
        found.get("x")
    assert listener.calls[-1].target == "/corp/other/x"
    refused_everywhere(store, "https://corp.blob.evil.example.com/data/t/x")


# --- S3 and Google


BUCKETS: dict[str, tuple[str, dict[str, str]]] = {
    "s3": (
        "s3://mine/t",
        {"aws_access_key_id": "TABLEID", "aws_secret_access_key": "TABLESECRET", "aws_session_token": "TABLESESSION"},
    ),
    "gs": ("gs://mine/t", {"google_bearer_token": "TABLETOKEN"}),
}
_ENDPOINT = {"s3": "aws_endpoint_url", "gs": "google_base_url"}


def bucket_store(kind: str, endpoint: str, **more: Any) -> Store:
    table, options = BUCKETS[kind]
    return open_store(
        table, {**options, _ENDPOINT[kind]: endpoint, "allow_http": "true"}, retries=0, request_timeout=5, **more
    )


@pytest.mark.parametrize("kind", BUCKETS)
@pytest.mark.parametrize("form", ["{kind}://evil/t/x", "{kind}://mine-evil/t/x", "{kind}://mine.evil/t/x"])
def test_another_bucket_is_refused(listener: Listener, kind: str, form: str) -> None:
    reason = refused_everywhere(bucket_store(kind, listener.endpoint), form.format(kind=kind))
    assert "bucket 'evil'" in reason or "mine-evil" in reason or "mine.evil" in reason
    assert listener.connections == 0


@pytest.mark.parametrize("kind", BUCKETS)
@pytest.mark.parametrize("form", ["{kind}://evil.example.com#/x", "{kind}://evil?/x", "{kind}://mine@evil/x"])
def test_a_bucket_that_would_be_another_host_is_no_bucket(listener: Listener, kind: str, form: str) -> None:
    refused_everywhere(bucket_store(kind, listener.endpoint), form.format(kind=kind))
    assert listener.connections == 0
    with pytest.raises(OptionError):
        open_store(form.format(kind=kind), {"aws_virtual_hosted_style_request": "true", "skip_signature": "true"})


@pytest.mark.parametrize("kind", BUCKETS)
def test_the_same_bucket_is_at_home(listener: Listener, kind: str) -> None:
    store = bucket_store(kind, listener.endpoint)
    listener.objects["/mine/elsewhere/x"] = b"content"
    found, path = store.locate(f"{kind}://mine/elsewhere/x")
    assert found.get(path) == b"content"


ENVIRONMENTS: dict[str, tuple[dict[str, str], str]] = {
    "s3": (
        {
            "AWS_ACCESS_KEY_ID": "AROUNDID",
            "AWS_SECRET_ACCESS_KEY": "AROUNDSECRET",
            "AWS_SESSION_TOKEN": "AROUNDSESSION",
            "AWS_ENDPOINT_URL": "{endpoint}",
            "AWS_ALLOW_HTTP": "true",
        },
        "s3://evil/x",
    ),
    "gs": ({"GOOGLE_BEARER_TOKEN": "AROUNDTOKEN", "GOOGLE_BASE_URL": "{endpoint}"}, "gs://evil/x"),
    "azure": (
        {"AZURE_STORAGE_ACCOUNT_NAME": "corp", "AZURE_STORAGE_ACCOUNT_KEY": KEY},
        "{endpoint}/corp/c/x",
    ),
    "azure token": (
        {"AZURE_STORAGE_ACCOUNT_NAME": "corp", "AZURE_STORAGE_TOKEN": "AROUNDTOKEN"},
        "{endpoint}/devstoreaccount1/c/x",
    ),
    "metadata": ({"AWS_METADATA_ENDPOINT": "{endpoint}", "AWS_REGION": "us-east-1"}, "s3://evil/x"),
}


def around(monkeypatch: pytest.MonkeyPatch, kind: str, endpoint: str) -> str:
    """Put credentials of this kind into the environment; return a path that leads to the endpoint with them."""
    variables, logged = ENVIRONMENTS[kind]
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(endpoint=endpoint))
    return logged.format(endpoint=endpoint)


@pytest.mark.parametrize("kind", ENVIRONMENTS)
@pytest.mark.parametrize("table", ["local", "memory://m/t"])
def test_credentials_of_the_environment_are_the_tables(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, table: str
) -> None:
    logged = around(monkeypatch, kind, listener.endpoint)
    store = open_store(tmp_path if table == "local" else table, {"allow_http": "true"}, retries=0, request_timeout=5)
    refused_everywhere(store, logged)
    assert (listener.connections, listener.calls) == (0, [])


# --- places that the user allows


def parquet_of(ids: list[int]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), sink)
    return sink.getvalue()


OWN: dict[str, tuple[str, dict[str, str], str]] = {
    "s3": (
        "s3://shared/data",
        {"aws_access_key_id": "OWNID", "aws_secret_access_key": "OWNSECRET", "aws_endpoint_url": "{endpoint}"},
        "s3://shared/data/x",
    ),
    "gs": (
        "gs://shared/data",
        {"google_bearer_token": "OWNTOKEN", "google_base_url": "{endpoint}"},
        "gs://shared/data/x",
    ),
    "azure key": ("{endpoint}/own/shared/data", {"account_key": "b3duLWtleQ=="}, "{endpoint}/own/shared/data/x"),
    "azure sas": (
        "{endpoint}/own/shared/data",
        {"sas_key": "?sv=1&sig=OWN%2BSIGNATURE%3D"},
        "{endpoint}/own/shared/data/x",
    ),
    "azure token": ("{endpoint}/own/shared/data", {"token": "OWNTOKEN"}, "{endpoint}/own/shared/data/x"),
    "s3 public": ("s3://shared", {"skip_signature": "true", "aws_endpoint_url": "{endpoint}"}, "s3://shared/data/x"),
}
_SERVED = {"s3": "/shared/data/x", "gs": "/shared/data/x", "s3 public": "/shared/data/x"}
SECRETS = ("AROUND", "TABLE", KEY)


@pytest.mark.parametrize("home", ["local", AZURE, "s3"])
@pytest.mark.parametrize("environment", [None, *ENVIRONMENTS])
@pytest.mark.parametrize("kind", OWN)
@pytest.mark.each_value
def test_an_allowed_place_gets_its_own_credentials_and_no_others(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, environment: str | None, home: str
) -> None:
    with Listener() as other:
        if environment is not None:
            around(monkeypatch, environment, other.endpoint)
        prefix, options, logged = OWN[kind]
        options = {name: value.format(endpoint=listener.endpoint) for name, value in options.items()}
        allowed = {prefix.format(endpoint=listener.endpoint): {**options, "allow_http": "true"}}
        listener.objects[_SERVED.get(kind, "/own/shared/data/x")] = parquet_of([1, 2])
        if home == "s3":
            store = bucket_store("s3", other.endpoint, external_locations=allowed)
        else:
            place = tmp_path if home == "local" else home
            store = open_store(place, SIGNED["key"], retries=0, request_timeout=5, external_locations=allowed)
        logged = logged.format(endpoint=listener.endpoint)
        assert rows(store, SCHEMA, LoggedFile(logged, len(parquet_of([1, 2])))) == [{"id": 1}, {"id": 2}]
        assert other.connections == 0
    assert listener.calls
    assert not [secret for secret in SECRETS if secret in listener.heard]
    if kind != "s3 public":
        shown = {"azure key": "SharedKey own:", "azure sas": "OWN%2BSIGNATURE%3D"}.get(kind, "OWN")
        assert all(shown in str(call) for call in listener.calls)


@pytest.mark.parametrize(
    ("prefix", "options", "logged"),
    [
        ("s3://bucket", {}, "s3://bucket-evil/x"),
        ("s3://bucket/fold", {}, "s3://bucket/folder/x"),
        ("s3://bucket/folder", {}, "s3://bucket/x"),
        ("s3://bucket/folder/", {}, "s3://bucket/folder"),
        ("gs://bucket", {}, "gs://bucket.evil/x"),
        ("gs://bucket", {}, "s3://bucket/x"),
        ("https://good.blob.example.com/c", {}, "https://good.blob.example.com.evil.com/c/x"),
        ("https://good.blob.example.com/c", {}, "https://good.blob.example.com:8443/c/x"),
        ("https://good.blob.example.com/c", {}, "https://good.blob.example.com@evil.com/c/x"),
        ("https://good.blob.example.com/c", {}, "https://good.blob.example.com/d/x"),
        ("https://good.blob.core.windows.net/c", {}, "https://good.blob.core.windows.net.evil.com/c/x"),
        ("https://good.blob.core.windows.net/c", {}, "abfss://c@good.dfs.core.windows.net.evil.com/x"),
        (f"abfss://c@good.{DFS}/p", {}, f"abfss://c@good.{DFS}/p/../q/x"),
        (f"abfss://c@good.{DFS}/p", {}, f"abfss://c@good.{DFS}/p/%2e%2e/q/x"),
        (f"abfss://c@good.{DFS}/p", {"endpoint": "https://private.example.com"}, "https://good.blob.evil.com/c/p/x"),
    ],
)
def test_a_prefix_matches_by_host_and_container_and_whole_segments(
    tmp_path: Path, prefix: str, options: dict[str, str], logged: str
) -> None:
    store = open_store(tmp_path, external_locations={prefix: {"skip_signature": "true", **options}})
    refused_everywhere(store, logged)


@pytest.mark.parametrize(
    ("prefix", "logged"),
    [
        ("s3://bucket", "s3://bucket/x"),
        ("s3://bucket/a b/", "s3a://bucket/a%20b/c/x"),
        (f"abfss://c@good.{DFS}/p", "https://good.blob.core.windows.net/c/p/x"),
        ("https://good.blob.core.windows.net/c/p", f"abfss://c@GOOD.{DFS}/p/x"),
        ("gcs://bucket/p", "gs://bucket/p/x"),
    ],
)
def test_a_prefix_matches_however_the_place_is_written(tmp_path: Path, prefix: str, logged: str) -> None:
    store = open_store(tmp_path, external_locations={prefix: {"skip_signature": "true"}})
    assert store.uri_of(logged).endswith("/x")


def test_the_longest_prefix_wins(listener: Listener, tmp_path: Path) -> None:
    def options(name: str) -> dict[str, str]:
        return {"google_bearer_token": name, "google_base_url": listener.endpoint, "allow_http": "true"}

    allowed = {"gs://b": options("WIDE"), "gs://b/p/q": options("NARROW"), "gs://b/p": options("MIDDLE")}
    store = open_store(tmp_path, external_locations=allowed, retries=0)
    for logged, owner in (("gs://b/x", "WIDE"), ("gs://b/p/q/x", "NARROW"), ("gs://b/p/qq/x", "MIDDLE")):
        found, path = store.locate(logged)
        with pytest.raises(LazyDeltaError):
            found.get(path)
        assert listener.calls[-1].headers["authorization"] == f"Bearer {owner}"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"s3://bucket": {}}, "no credentials of its own"),
        ({"s3://bucket": None}, "no credentials of its own"),
        ({f"abfss://c@good.{DFS}/p": {"account_name": "good"}}, "no credentials of its own"),
        ({"gs://bucket": {"aws_access_key_id": "a", "aws_secret_access_key": "b"}}, "no credentials of its own"),
        ({"/data": {}}, "on this machine"),
        ({"file:///data": {}}, "on this machine"),
        ({"s3:/bucket": {}}, "neither a URI nor a path"),
        ({"s3://bucket": "key"}, "must map prefixes"),
        (["s3://bucket"], "must map prefixes"),
    ],
)
def test_an_external_location_that_makes_no_sense_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any, match: str
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"AccountName=good;AccountKey={KEY}")
    with pytest.raises(OptionError, match=match):
        open_store(tmp_path, external_locations=given)


def test_the_environment_serves_an_external_location_that_says_so(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    around(monkeypatch, "s3", listener.endpoint)
    listener.objects["/shared/x"] = b"content"
    options = {"use_environment": "true", "allow_http": "true"}
    found, path = open_store(tmp_path, external_locations={"s3://shared": options}).locate("s3://shared/x")
    assert found.get(path) == b"content"
    assert "AROUNDID" in listener.heard


def test_what_cannot_be_kept_apart_from_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "AROUNDTOKEN")
    options = {"client_id": "a", "client_secret": "b", "tenant_id": "c"}
    store = open_store(tmp_path, external_locations={f"abfss://c@good.{DFS}": options})
    with pytest.raises(OptionError, match="AZURE_STORAGE_TOKEN would also be used") as caught:
        store.locate(f"abfss://c@good.{DFS}/x")
    assert "AROUNDTOKEN" not in str(caught.value)
    monkeypatch.setenv("AWS_SSE_CUSTOMER_KEY_BASE64", "AROUNDKEY")
    store = open_store(tmp_path, external_locations={"s3://b": {"skip_signature": "true"}})
    with pytest.raises(OptionError, match="AWS_SSE_CUSTOMER_KEY_BASE64 would also be used"):
        store.locate("s3://b/x")


def test_credentials_among_the_options_win_over_the_environments(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client alone lets a token of the environment win over a key."""
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "AROUNDTOKEN")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "AROUNDSESSION")
    listener.objects |= {"/own/c/t/a": b"1", "/b/t/a": b"1"}
    assert open_store(f"{listener.endpoint}/own/c/t", {"account_key": "b3duLWtleQ=="}).get("a") == b"1"
    options = {"access_key_id": "OWNID", "secret_access_key": "OWNSECRET", "endpoint": listener.endpoint}
    assert open_store("s3://b/t", options).get("a") == b"1"
    assert "AROUND" not in listener.heard
    assert "SharedKey own:" in listener.heard
    assert "Credential=OWNID" in listener.heard


# --- real services


def test_a_shallow_clone_within_the_account_is_read(azurite: Azurite) -> None:
    source, table = azurite.container("clone-source"), azurite.container("clone-table")
    home = f"abfss://{table}@{azurite.account}.{DFS}/t"
    store = open_store(home, azurite.storage_options())
    data = parquet_of([1, 2, 3])
    open_store(f"az://{source}/s", azurite.storage_options()).put("x.parquet", data)
    for logged in (
        f"abfss://{source}@{azurite.account}.{DFS}/s/x.parquet",
        f"{azurite.endpoint}/{source}/s/x.parquet",
        f"az://{source}/s/x.parquet",
    ):
        assert rows(store, SCHEMA, LoggedFile(logged, len(data))) == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_a_table_in_the_emulator_keeps_its_key(azurite: Azurite, listener: Listener) -> None:
    container = azurite.container("keeps")
    store = open_store(f"az://{container}/t", azurite.storage_options(), retries=0)
    for form in ("{url}/devstoreaccount1/{container}/x", "{url}/other/{container}/x"):
        refused_everywhere(store, form.format(url=listener.endpoint, container=container))
    assert listener.connections == 0


def test_another_bucket_is_read_when_it_is_allowed(s3_server: S3Server) -> None:
    home, other = s3_server.bucket("allow-home"), s3_server.bucket("allow-other")
    data = parquet_of([7])
    options = s3_server.storage_options()
    open_store(f"s3://{other}", options).put("d/x.parquet", data)
    file = LoggedFile(f"s3://{other}/d/x.parquet", len(data))
    with pytest.raises(ExternalLocationError, match=f"bucket '{other}'"):
        rows(open_store(f"s3://{home}/t", options), SCHEMA, file)
    store = open_store(f"s3://{home}/t", options, external_locations={f"s3://{other}/d": options})
    assert rows(store, SCHEMA, file) == [{"id": 7}]


# --- redirects


def redirecting(kind: str, endpoint: str) -> Store:
    if kind in BUCKETS:
        return bucket_store(kind, endpoint)
    return open_store(f"{endpoint}/corp/data/t", SIGNED[kind], retries=0, request_timeout=5)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("kind", [*BUCKETS, *SIGNED])
def test_a_redirect_to_another_host_is_not_followed(listener: Listener, kind: str, status: int) -> None:
    with Listener(redirect=(status, f"http://localhost:{listener.port}")) as home:
        store = redirecting(kind, home.endpoint)
        for ask in (
            lambda: store.get("x"),
            lambda: store.get("x", start=0, length=5),
            lambda: store.head("x"),
            lambda: list(store.list("")),
            lambda: list(store.stream("x")),
        ):
            with pytest.raises(AccessDeniedError, match="redirect to another host"):
                ask()
        with pytest.raises(LazyDeltaError):
            store.put("x", b"content")
        assert home.calls
    assert (listener.connections, listener.calls) == (0, [])


def test_a_redirect_to_instance_metadata_is_not_followed(listener: Listener) -> None:
    with Listener(redirect=(302, "http://169.254.169.254")) as home:
        with pytest.raises(AccessDeniedError, match="redirect to another host"):
            redirecting("s3", home.endpoint).get("x")
        assert len(home.calls) == 1
    assert listener.connections == 0


def test_a_proxy_that_the_user_has_is_used(listener: Listener) -> None:
    table, options = BUCKETS["s3"]
    listener.objects["http://store.example.com/mine/t/x"] = b"content"
    store = open_store(
        table,
        {
            **options,
            "aws_endpoint_url": "http://store.example.com",
            "allow_http": "true",
            "proxy_url": listener.endpoint,
        },
        retries=0,
    )
    assert store.get("x") == b"content"


def test_a_google_endpoint_in_the_key_is_where_the_table_is(listener: Listener, tmp_path: Path) -> None:
    key = {"gcs_base_url": listener.endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
    key["private_key_id"] = ""
    (tmp_path / "key.json").write_text(json.dumps(key))
    listener.objects["/b/t/x"] = b"content"
    for options in (
        {"google_service_account_key": json.dumps(key)},
        {"google_service_account": str(tmp_path / "key.json")},
    ):
        assert open_store("gs://b/t", {**options, "allow_http": "true"}, retries=0).get("x") == b"content"


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1.evil.example.com", "http://localhost.evil.example.com", "http://127.0.0.1@evil.org"]
)
def test_a_host_that_begins_like_this_machine_is_another(endpoint: str) -> None:
    for uri, options in (
        ("s3://b/t", {**BUCKETS["s3"][1], "aws_endpoint_url": endpoint}),
        ("gs://b/t", {**BUCKETS["gs"][1], "google_base_url": endpoint}),
        ("az://c/t", {"account_name": "corp", **SIGNED["key"], "endpoint": endpoint}),
    ):
        with pytest.raises(OptionError, match="not encrypted"):
            open_store(uri, options)


def test_the_emulators_own_variable_is_followed(monkeypatch: pytest.MonkeyPatch, listener: Listener) -> None:
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", listener.endpoint)
    listener.objects["/devstoreaccount1/c/t/a"] = b"1"
    store = open_store("az://c/t", {"use_emulator": "true"}, retries=0)
    assert store.get("a") == b"1"
    assert store.locate(f"{listener.endpoint}/devstoreaccount1/d/x")[1] == "x"
    refused_everywhere(store, "http://127.0.0.1:10000/devstoreaccount1/d/x")


@pytest.mark.parametrize(
    "variable",
    [
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_MASTER_KEY",
        "AZURE_CLIENT_SECRET",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_TOKEN",
        "AZURE_STORAGE_CONNECTION_STRING",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_SSE_CUSTOMER_KEY_BASE64",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "GOOGLE_BEARER_TOKEN",
    ],
)
def test_secrets_of_the_environment_are_not_quoted(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "AROUNDSECRET")
    assert redact("the server said AROUNDSECRET") == "the server said ***"
