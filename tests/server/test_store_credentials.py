"""The server's own credentials: a managed identity with tokens that are renewed, a SAS that expires."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lazydelta.client import Connection
from lazydelta.errors import AccessDeniedError, LazyDeltaError
from lazydelta.server.flight import FlightServer, drain
from lazydelta.server.tables import ServedTables, TablePlace
from lazydelta.server.ticket import TicketSigner
from tests.scan.hand_log import HandLog, add, publish
from tests.server.serving import location
from tests.storage.listener import Listener
from tests.support.azurite import Azurite

_LISTED = (
    '<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="c"><Blobs>{}</Blobs><NextMarker/>'
    "</EnumerationResults>"
)
_BLOB = (
    "<Blob><Name>{}</Name><Properties><Last-Modified>Thu, 01 Jan 1970 00:00:00 GMT</Last-Modified><Etag>1</Etag>"
    "<Content-Length>{}</Content-Length><Content-Type>a/b</Content-Type><BlobType>BlockBlob</BlobType></Properties></Blob>"
)


@contextmanager
def _served(place: TablePlace) -> Iterator[Connection]:
    server = FlightServer("grpc://127.0.0.1:0", ServedTables({"t": place}), TicketSigner(b"k" * 32))
    try:
        with Connection(location(server), token="client.secret", attempts=1) as connection:
            yield connection
    finally:
        drain(server, 0)


def _tokens(store: Listener) -> set[str | None]:
    return {{name.lower(): value for name, value in call.headers.items()}.get("authorization") for call in store.calls}


def _token(name: str, seconds: int) -> dict[str, bytes]:
    answer = {
        "access_token": name,
        "expires_on": str(int(time.time()) + seconds),
        "expires_in": str(seconds),
        "resource": "https://storage.azure.com",
        "token_type": "Bearer",
    }
    return {"/metadata/identity/oauth2/token": json.dumps(answer).encode()}


def test_a_managed_identity_asks_the_metadata_service_and_gives_its_token_to_the_store_alone(tmp_path: Path) -> None:
    HandLog(tmp_path / "t").commit(add("a.parquet"))
    commit = "t/_delta_log/00000000000000000000.json"
    data = (tmp_path / commit).read_bytes()
    objects = {f"/c/{commit}": data, "/c": _LISTED.format(_BLOB.format(commit, len(data))).encode()}
    # The first token is about to expire, so another one is asked for before the next use.
    with Listener(_token("first-token", 1)) as metadata, Listener(objects) as store:
        options = {
            "account_name": "corp",
            "azure_endpoint": store.endpoint,
            "azure_allow_http": "true",
            "msi_endpoint": f"{metadata.endpoint}/metadata/identity/oauth2/token",
        }
        with _served(TablePlace("az://c/t", options, {"cache_size": 0, "retries": 0})) as connection:
            assert [file.path for file in connection.table("t").files()] == ["a.parquet"]
            assert _tokens(store) == {"Bearer first-token"}
            metadata.objects |= _token("second-token", 3600)
            store.calls.clear()
            # A token that was fetched a tenth of a second ago is used once more, although it is about to expire.
            for _ in range(1000):
                assert [file.path for file in connection.table("t").files()] == ["a.parquet"]
                if "Bearer second-token" in _tokens(store):
                    break
            assert "Bearer second-token" in _tokens(store)
            metadata.objects.clear()
            store.objects.clear()
            with pytest.raises(LazyDeltaError) as caught:
                connection.table("t")
        said = f"{caught.value} {vars(caught.value)}"
        assert "token" not in said.replace("token is", "")
        assert metadata.calls
        assert all("resource=" in call.target for call in metadata.calls)
        assert "client.secret" not in metadata.heard + store.heard  # what clients send stays here


def test_a_sas_that_has_expired_is_denied_and_not_shown(tmp_path: Path, azurite: Azurite) -> None:
    """The same signature scheme lets in before it expires, so that it is the timestamp that makes the difference."""
    HandLog(tmp_path / "t").commit(add("a.parquet"))
    container = azurite.container("sas")
    publish(tmp_path / "t", f"az://{container}/t", azurite.storage_options())
    for expires, is_good in (("2099-01-01T00:00:00Z", True), ("2020-01-01T00:00:00Z", False)):
        sas = azurite.sas(container, expires)
        options = {"account_name": azurite.account, "endpoint": azurite.endpoint, "sas_token": sas}
        options |= {"azure_allow_http": "true"}
        with _served(TablePlace(f"az://{container}/t", options, {"cache_size": 0, "retries": 0})) as connection:
            if is_good:
                assert [file.path for file in connection.table("t").files()] == ["a.parquet"]
                continue
            with pytest.raises(AccessDeniedError) as caught:
                connection.table("t")
    assert sas.rpartition("sig=")[2] not in f"{caught.value} {vars(caught.value)}"
