"""Credentials that end, as objects, functions and names; and clients that share their connections.

A server that answers everything with 404 notes who asked: what matters is what was sent, and over how many connections.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import http.server
import pickle
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import AccessDeniedError, LazyDeltaError, ObjectNotFoundError, OptionError
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import open_store


class Noted:
    """What the server has seen: an Authorization header for each request, and the number of connections."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.connections = 0
        self.port = 0

    def options(self, **more: Any) -> dict[str, Any]:
        """Return the options of a store at the server."""
        endpoint = f"http://127.0.0.1:{self.port}/account"
        return {"azure_storage_account_name": "account", "azure_storage_endpoint": endpoint, "max_retries": "0", **more}

    def ask(self, **more: Any) -> None:
        """Open a store and ask it for an object that is not there."""
        with pytest.raises(ObjectNotFoundError):
            open_store("az://container/t", self.options(**more)).get("a")


@pytest.fixture
def noted() -> Iterator[Noted]:
    """Serve 404 on a port of this machine."""
    seen = Noted()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            seen.connections += 1
            super().setup()

        def do_GET(self) -> None:
            seen.tokens.append(self.headers.get("Authorization") or "")
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        seen.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield seen
        finally:
            server.shutdown()
            thread.join()


class Token(NamedTuple):
    """What azure-identity returns."""

    token: str
    expires_on: int


class Identity:
    """A credential as azure-identity has them."""

    def __init__(self, seconds: float = 3600) -> None:
        self.asked: list[str] = []
        self._seconds = seconds

    def get_token(self, *scopes: str, **_: Any) -> Token:
        """Return another token each time."""
        self.asked += scopes
        return Token(f"token{len(self.asked)}", int(time.time() + self._seconds))


class AsyncIdentity(Identity):
    """The same, for programs that await."""

    async def get_token(self, *scopes: str, **_: Any) -> Token:  # type: ignore[override]
        """Return another token each time."""
        await asyncio.sleep(0)
        return Identity.get_token(self, *scopes)


@pytest.mark.parametrize("kind", [Identity, AsyncIdentity])
def test_a_credential_of_azure_identity_signs_and_is_asked_once_while_its_token_lasts(
    kind: type[Identity], noted: Noted
) -> None:
    credential = kind()
    for _ in range(3):
        noted.ask(credential=credential)
    assert credential.asked == ["https://storage.azure.com/.default"]
    assert noted.tokens == ["Bearer token1"] * 3


def test_a_token_is_fetched_again_before_it_ends(noted: Noted) -> None:
    credential = Identity(seconds=60)  # so little that the next request does not rely on it
    store = open_store("az://container/t", noted.options(credential=credential))
    for _ in range(2):
        with pytest.raises(ObjectNotFoundError):
            store.get("a")
        time.sleep(0.2)  # the client does not ask twice within a tenth of a second
    assert noted.tokens == ["Bearer token1", "Bearer token2"]


@pytest.mark.parametrize(
    "answer",
    [
        lambda: ("secret", dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)),
        lambda: ("secret", time.time() + 3600),
        lambda: {"token": "secret", "expires_at": dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)},
        lambda: Token("secret", int(time.time()) + 3600),
    ],
    ids=["datetime", "seconds", "dict", "object"],
)
def test_a_function_returns_a_token_and_its_end(answer: Any, noted: Noted) -> None:
    noted.ask(credential=answer)
    assert noted.tokens == ["Bearer secret"]


@pytest.mark.parametrize(
    ("credential", "said"),
    [(lambda: 1 // 0, "ZeroDivisionError: integer division"), (lambda: "tok", r"return \(token, expiry\)")],
)
def test_a_function_that_fails_is_said_to(noted: Noted, credential: Any, said: str) -> None:
    with pytest.raises(AccessDeniedError, match=said):
        open_store("az://container/t", noted.options(credential=credential)).get("a")
    assert not noted.tokens


def test_what_a_function_says_when_it_fails_has_no_secrets(noted: Noted) -> None:
    """A failed request names its URL, and a client what it was given."""

    def failing() -> Any:
        raise RuntimeError(
            "GET https://login.example/token?client_secret=c2VjcmV0LW9uZQ failed, AccountKey=c2VjcmV0LXR3bw=="
        )

    with pytest.raises(AccessDeniedError, match=r"RuntimeError: GET https://login\.example/token") as caught:
        open_store("az://container/t", noted.options(credential=failing)).get("a")
    assert "c2VjcmV0" not in str(caught.value)


def test_a_table_takes_a_credential_and_its_pickle_does_not(noted: Noted) -> None:
    def credential() -> tuple[str, float]:
        return "secret", time.time() + 3600

    with pytest.raises(LazyDeltaError):
        DeltaTable("az://container/t", storage_options=noted.options(), credential=credential)
    assert set(noted.tokens) == {"Bearer secret"}
    handle = TableHandle.open("az://container/t", noted.options(credential=credential))
    sent = pickle.dumps(handle)
    assert b"secret" not in sent
    with pytest.raises(LazyDeltaError, match="were not sent"):
        pickle.loads(sent).store.get("a")  # noqa: S301 - our own
    with pytest.raises(OptionError, match="pass its name instead"):
        pickle.dumps(handle.carrying_credentials())


@pytest.mark.parametrize(
    ("uri", "credential", "said"),
    [
        ("az://c/t", "nope", "default"),
        ("s3://b/t", "default", "profile:NAME"),
        ("gs://b/t", "cli", "default"),
        ("az://c/t", 5, "azure-identity"),
        ("s3://b/t", Identity(), "opens Azure only"),
    ],
)
def test_what_is_no_credential_is_told_what_is(uri: str, credential: Any, said: str) -> None:
    options = {"azure_storage_account_name": "account", "aws_region": "us-east-1", "credential": credential}
    with pytest.raises(OptionError, match=said):
        open_store(uri, options)


def test_a_profile_of_aws_signs(noted: Noted, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text("[work]\naws_access_key_id = AKIAWORK\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    options = {
        "aws_endpoint_url": f"http://127.0.0.1:{noted.port}",
        "aws_region": "us-east-1",
        "credential": "profile:work",
        "max_retries": "0",
    }
    with pytest.raises(ObjectNotFoundError):
        open_store("s3://bucket/t", options).get("a")
    assert "Credential=AKIAWORK/" in noted.tokens[0]


def test_tables_of_one_container_share_their_connections(noted: Noted) -> None:
    """Twenty tables opened one after the other, each asked once: one connection, not twenty."""
    for number in range(20):
        with pytest.raises(ObjectNotFoundError):
            open_store(f"az://container/t{number}", noted.options(azure_storage_sas_token="sig=x")).get("a")
    assert len(noted.tokens) == 20
    assert noted.connections == 1


def test_other_credentials_have_connections_of_their_own(noted: Noted) -> None:
    noted.ask(credential=lambda: ("one", time.time() + 3600))
    noted.ask(credential=lambda: ("two", time.time() + 3600))
    assert noted.tokens == ["Bearer one", "Bearer two"]


def test_az_login_without_the_azure_cli_says_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    table = "abfss://c@account.dfs.core.windows.net/t"
    with pytest.raises(AccessDeniedError, match=r"Azure CLI gave no token .* \(install it, and run az login\)"):
        DeltaTable(table, credential="cli").version()
