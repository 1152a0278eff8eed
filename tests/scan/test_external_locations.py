"""A table whose log, checkpoint or manifest names other places: nothing is sent there, and nothing secret travels."""

from __future__ import annotations

import io
import json
import logging
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from lazydelta.errors import AccessDeniedError, DataFileError, ExternalLocationError, LazyDeltaError, OptionError
from lazydelta.sidecar import build
from lazydelta.sidecar.format.manifest import seal
from lazydelta.storage import open_store
from tests.scan.hand_log import HandLog, add, publish
from tests.storage.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.azurite import Azurite

OWN = {"aws_access_key_id": "OWNID", "aws_secret_access_key": "OWNSECRET"}
UUID = "3a0d65cd-4056-49b8-937b-95f9e3ee90e5"


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """Give a server to which every bucket leads by the environment, with credentials."""
    with Listener() as server:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "AROUNDID",
            "AWS_SECRET_ACCESS_KEY": "AROUNDSECRET",
            "AWS_ENDPOINT_URL": server.endpoint,
            "GOOGLE_BASE_URL": server.endpoint,
            "GOOGLE_BEARER_TOKEN": "AROUNDTOKEN",
            "AZURE_STORAGE_TOKEN": "AROUNDTOKEN",
            "AZURE_STORAGE_ACCOUNT_NAME": "corp",
        }.items():
            monkeypatch.setenv(name, value)
        yield server


FORMS = ["s3://evil/x.parquet", "gs://evil/x.parquet", "{endpoint}/corp/c/x.parquet", "az://evil/x.parquet"]


def data() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]}), sink)
    return sink.getvalue()


def unknown_rows(path: str, **more: Any) -> dict[str, Any]:
    """Return an add action without statistics, so that counting rows has to open the file."""
    action: dict[str, Any] = add(path)
    action["add"].pop("stats", None)
    action["add"] |= {"size": len(data()), **more}
    return action


READS: list[Callable[[DeltaTable], object]] = [
    lambda table: table.to_pyarrow_table(),
    lambda table: table.to_pandas(),
    lambda table: list(table.rows(["id"], "id > 0")),
    lambda table: table.count(),
    lambda table: table.file_uris(),
    lambda table: [file.uri for file in table.files()],
]


@pytest.mark.parametrize("form", FORMS)
def test_a_data_file_elsewhere_is_refused_however_it_is_read(listener: Listener, tmp_path: Path, form: str) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(unknown_rows(form.format(endpoint=listener.endpoint)))
    table = DeltaTable(tmp_path / "t", storage_options={"allow_http": "true"})
    assert len(table.files().collect()) == 1
    for read in READS:
        with pytest.raises(ExternalLocationError, match="external_locations"):
            read(table)
    assert (listener.connections, listener.calls) == (0, [])


@pytest.mark.parametrize("form", FORMS)
def test_a_deletion_vector_elsewhere_is_refused(listener: Listener, tmp_path: Path, form: str) -> None:
    log = HandLog(tmp_path / "t", features=["deletionVectors"])
    (tmp_path / "t" / "a.parquet").write_bytes(data())
    where = form.format(endpoint=listener.endpoint)
    vector = {"storageType": "p", "pathOrInlineDv": where, "offset": 1, "sizeInBytes": 40, "cardinality": 1}
    log.commit(unknown_rows("a.parquet", deletionVector=vector))
    with pytest.raises(ExternalLocationError, match="external_locations"):
        DeltaTable(tmp_path / "t", storage_options={"allow_http": "true"}).to_pyarrow_table()
    assert listener.connections == 0


@pytest.mark.parametrize("form", [*FORMS, "{endpoint}/corp/c/_delta_log/_sidecars/x.parquet", "../../x.parquet"])
def test_a_checkpoint_sidecar_elsewhere_is_not_fetched(listener: Listener, tmp_path: Path, form: str) -> None:
    log = HandLog(tmp_path / "t", features=["v2Checkpoint"])
    log.commit(unknown_rows("a.parquet"))
    named = {"path": form.format(endpoint=listener.endpoint), "sizeInBytes": 100, "modificationTime": 0}
    lines = [{"checkpointMetadata": {"version": 0}}, log.protocol(), log.metadata(), {"sidecar": named}]
    (log.log / f"{0:020}.checkpoint.{UUID}.json").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(LazyDeltaError, match=r"sidecar|is gone"):
        DeltaTable(tmp_path / "t").files().collect()
    assert listener.connections == 0


@pytest.mark.parametrize("form", [*FORMS, "/etc/passwd", "../../other/x.parquet", "a.parquet"])
def test_a_manifest_that_names_a_part_elsewhere_is_not_used(listener: Listener, tmp_path: Path, form: str) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(*(add(f"f{number}.parquet") for number in range(5)))
    log.checkpoint()
    build(tmp_path / "t")
    (manifest,) = (log.log / "_sidecars").glob("*.manifest.json")
    content = json.loads(manifest.read_bytes())
    where = form.format(endpoint=listener.endpoint)
    content["parts"][0]["file"] = content["sidecarFile"] = where
    manifest.write_bytes(seal(json.dumps(content | {"sha256": "0" * 64}).encode()))
    stream = DeltaTable(tmp_path / "t", options={"cache_size": 0}).files()
    assert sorted(file.path for file in stream) == [f"f{number}.parquet" for number in range(5)]
    assert stream.metrics.tier != 1
    assert listener.connections == 0


@pytest.mark.parametrize(
    "form", ["s3://evil/{name}", "{endpoint}/corp/c/_delta_log/{name}", "../../{name}", "//evil/{name}"]
)
def test_a_log_tail_elsewhere_is_refused(listener: Listener, tmp_path: Path, form: str) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(unknown_rows("a.parquet"))
    name = f"{1:020}.json"
    with pytest.raises(OptionError, match="log tail"):
        DeltaTable(tmp_path / "t", log_tail=[form.format(endpoint=listener.endpoint, name=name)])
    assert listener.connections == 0


def test_a_hint_that_names_a_checkpoint_elsewhere_is_only_a_version(listener: Listener, tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(unknown_rows("a.parquet"))
    log.checkpoint()
    hint = log.log / "_last_checkpoint"
    checkpoint = {"path": "s3://evil/x.parquet", "sizeInBytes": 1, "modificationTime": 0}
    more = {"v2Checkpoint": checkpoint | {"sidecarFiles": [checkpoint]}, "path": "s3://evil/x.parquet"}
    hint.write_text(json.dumps(json.loads(hint.read_text()) | more))
    assert len(DeltaTable(tmp_path / "t").files().collect()) == 1
    assert listener.connections == 0


def test_a_table_reads_an_allowed_place_with_that_places_credentials(listener: Listener, tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(unknown_rows("s3://shared/d/x.parquet"))
    listener.objects["/shared/d/x.parquet"] = data()
    allowed = {"s3://shared/d": OWN | {"aws_endpoint_url": listener.endpoint, "aws_allow_http": "true"}}
    table = DeltaTable(tmp_path / "t", external_locations=allowed)
    assert table.to_pyarrow_table().num_rows == 2
    assert "OWNID" in listener.heard
    assert "AROUND" not in listener.heard


def test_a_table_in_an_account_reads_its_other_containers_only(azurite: Azurite, tmp_path: Path) -> None:
    other, home = azurite.container("scan-other"), azurite.container("scan-home")
    open_store(f"az://{other}", azurite.storage_options()).put("x.parquet", data())
    place = f"abfss://{home}@{azurite.account}.dfs.core.windows.net/t"
    log = HandLog(tmp_path / "t")
    log.commit(unknown_rows(f"abfss://{other}@{azurite.account}.dfs.core.windows.net/x.parquet"))
    table = DeltaTable(
        publish(tmp_path / "t", place, azurite.storage_options()), storage_options=azurite.storage_options()
    )
    assert table.to_pyarrow_table().num_rows == 2
    with Listener() as evil:
        log.commit(unknown_rows(f"{evil.endpoint}/{azurite.account}/{other}/x.parquet"))
        place = f"abfss://{home}@{azurite.account}.dfs.core.windows.net/u"
        table = DeltaTable(
            publish(tmp_path / "t", place, azurite.storage_options()), storage_options=azurite.storage_options()
        )
        with pytest.raises(DataFileError, match="are not meant"):
            table.to_pyarrow_table()
        assert evil.connections == 0


# --- what travels


SECRET = "U0VDUkVUS0VZ"
SIGNED: list[tuple[str, dict[str, str]]] = [
    ("s3://b/t", {"aws_access_key_id": "ID", "aws_secret_access_key": SECRET, "aws_region": "eu-west-1"}),
    ("s3://b/t", {"access_key_id": "ID", "secret_access_key": "x", "session_token": SECRET}),
    ("abfss://c@corp.dfs.core.windows.net/t", {"account_key": SECRET}),
    ("abfss://c@corp.dfs.core.windows.net/t", {"sas_token": f"sv=1&sig={SECRET}"}),
    (f"https://corp.blob.core.windows.net/c/t?sv=1&sig={SECRET}", {}),
    ("az://c/t", {"connection_string": f"AccountName=corp;AccountKey={SECRET}"}),
    ("abfss://c@corp.dfs.core.windows.net/t", {"client_id": "a", "tenant_id": "b", "client_secret": SECRET}),
    ("abfss://c@corp.dfs.core.windows.net/t", {"bearer_token": SECRET}),
    ("gs://b/t", {"google_bearer_token": SECRET}),
    ("s3://b/t", {"access_key_id": "ID", "secret_access_key": "x", "proxy_url": f"http://u:{SECRET}@127.0.0.1:1"}),
    ("/local/t", {"account_key": SECRET}),
]


@pytest.mark.parametrize(("uri", "options"), SIGNED)
def test_a_pickled_store_holds_no_secret_and_says_so_when_it_needs_one(uri: str, options: dict[str, str]) -> None:
    store = open_store(uri, options, external_locations={"s3://other": OWN})
    pickled = pickle.dumps(store)
    assert SECRET.encode() not in pickled
    assert b"OWNSECRET" not in pickled
    twin = pickle.loads(pickled)  # noqa: S301 - our own
    assert twin.uri == store.uri
    assert twin.uri_of("x=1/a") == store.uri_of("x=1/a")
    assert twin.uri_of("s3://other/a") == "s3://other/a"
    asked = [twin.locate("s3://other/a")[0]] if uri.startswith("/") else [twin, twin.locate("s3://other/a")[0]]
    for each in asked:
        with pytest.raises(AccessDeniedError, match="were not sent"):
            each.get("a")
        with pytest.raises(AccessDeniedError, match="were not sent"):
            list(each.list(""))
    assert SECRET in pickle.dumps(store.carrying_credentials()).decode("latin-1")
    assert SECRET.encode() not in pickle.dumps(twin)


@pytest.mark.parametrize(("uri", "options"), SIGNED)
def test_no_representation_shows_a_secret(uri: str, options: dict[str, str]) -> None:
    store = open_store(uri, options, external_locations={"s3://other": OWN})
    shown = f"{store!r} {store.uri} {store._settings!r} {store._location!r} {store.counters!r} {store.identity}"
    assert SECRET not in shown
    assert "OWNSECRET" not in shown


def test_a_pickled_data_file_holds_no_secret(azurite: Azurite, tmp_path: Path) -> None:
    container = azurite.container("scan-pickle")
    log = HandLog(tmp_path / "t")
    log.commit(add("a.parquet"), add("b c.parquet"))
    place = publish(tmp_path / "t", f"az://{container}/t", azurite.storage_options())
    files = DeltaTable(place, storage_options=azurite.storage_options()).files().collect()
    pickled = pickle.dumps(files)
    assert azurite.key.encode() not in pickled
    twins = pickle.loads(pickled)  # noqa: S301 - our own
    assert twins == files
    assert [file.uri for file in twins] == [file.uri for file in files]


def test_a_store_without_credentials_of_its_own_works_on_the_other_side(listener: Listener) -> None:
    """The environment is not in a pickle: the other process has one of its own."""
    listener.objects["/b/t/a"] = b"content"
    twin = pickle.loads(pickle.dumps(open_store("s3://b/t", {"aws_allow_http": "true"})))  # noqa: S301 - our own
    assert twin.get("a") == b"content"


def test_nothing_that_a_scan_says_shows_a_secret(
    azurite: Azurite, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    container = azurite.container("scan-says")
    log = HandLog(tmp_path / "t")
    log.commit(add("a.parquet"))
    log.checkpoint()
    log.commit(add("b.parquet"))
    place = publish(tmp_path / "t", f"az://{container}/t", azurite.storage_options())
    allowed = {"s3://other": OWN}
    table = DeltaTable(place, storage_options=azurite.storage_options(), external_locations=allowed)
    stream = table.files("id > 0")
    files = stream.collect()
    with pytest.raises(DataFileError) as caught:
        table.to_pyarrow_table()
    parts = (table, files, stream, stream.metrics, stream.explain(), caught.value, vars(caught.value), caplog.text)
    said = " ".join(f"{each} {each!r}" for each in parts)
    assert azurite.key not in said
    assert "OWNSECRET" not in said
