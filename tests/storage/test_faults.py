"""Errors say what failed, in our words, and keep secrets."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import socket
import traceback
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from lazydelta.errors import (
    AccessDeniedError,
    LazyDeltaError,
    ObjectNotFoundError,
    OptionError,
    StorageError,
    StorageTimeoutError,
)
from lazydelta.storage import Request, Store, observe, open_store
from lazydelta.storage.faults import Attempt, redact
from lazydelta.storage.location import ExternalLocation, Location, Settings
from lazydelta.storage.options import sort_options
from tests.support import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.storage.conftest import Place
    from tests.support.azurite import Azurite
    from tests.support.s3 import S3Server

WRONG_KEY = "d3Jvbmd3cm9uZ3dyb25nd3Jvbmc="
SIGNATURE = "Zm9vYmFyYmF6cXV4"


def everything_said(error: BaseException) -> str:
    """All that a user or a log can see of an error."""
    shown = "".join(traceback.format_exception(error))
    chain = f"{error.__cause__!r} {error.__context__!r}"
    return f"{shown} {error} {error!r} {vars(error)} {chain} {pickle.dumps(error)!r}"


def calls(store: Store) -> list[Callable[[], object]]:
    return [
        lambda: store.get("a"),
        lambda: store.head("a"),
        lambda: list(store.list("a")),
        lambda: list(store.stream("a")),
        lambda: store.put("a", b""),
        lambda: store.put_if_absent("a", b""),
        lambda: store.put_stream("a", [b"1"]),
        lambda: store.delete("a"),
        lambda: store.fetch_ranges("a", [(0, 1)]).result(),
        lambda: store.open_input("a", size=10).read(5),
    ]


def test_a_wrong_account_key_is_denied_and_not_shown(azurite: Azurite) -> None:
    container = azurite.container("faults")
    store = open_store(f"az://{container}/t", {**azurite.storage_options(), "azure_storage_account_key": WRONG_KEY})
    for call in calls(store):
        with pytest.raises(AccessDeniedError) as caught:
            call()
        assert WRONG_KEY not in everything_said(caught.value)
    assert WRONG_KEY not in repr(store)


def test_what_carries_secrets_inside_shows_none() -> None:
    options = {"azure_storage_account_key": WRONG_KEY, "azure_storage_sas_key": f"sig={SIGNATURE}"}
    location = Location("azure", "az://c", "c", "t", account="a", implied=(("azure_storage_sas_key", SIGNATURE),))
    settings = Settings(options, (WRONG_KEY,), 1, 1.0, lambda *_: pytest.fail("nothing is opened"))
    carriers = [
        location,
        settings,
        ExternalLocation(location, settings),
        Attempt("read", "az://c/t", "t", (WRONG_KEY, SIGNATURE)),
        sort_options("azure", options),
    ]
    assert sort_options("azure", options).config
    for each in carriers:
        assert type(each).__name__ in repr(each)
        assert not any(secret in repr(each) + str(each) for secret in (WRONG_KEY, SIGNATURE))


@pytest.mark.parametrize("how", ["query", "option"])
def test_a_wrong_sas_is_denied_and_not_shown(azurite: Azurite, how: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    container = azurite.container("faults")
    sas = f"sv=2021-08-06&sr=c&sp=rl&se=2099-01-01T00%3A00%3A00Z&sig={SIGNATURE}%3D"
    if how == "query":
        store = open_store(f"{azurite.endpoint}/{container}/t?{sas}")
    else:
        options = {"account_name": azurite.account, "endpoint": azurite.endpoint, "sas_token": f"?{sas}"}
        store = open_store(f"az://{container}/t", options)
    for call in calls(store):
        with pytest.raises(AccessDeniedError) as caught:
            call()
        assert SIGNATURE not in everything_said(caught.value)
    assert SIGNATURE not in f"{store!r} {store.uri} {caplog.text}"


def test_a_key_that_is_no_key_is_an_option_error(azurite: Azurite) -> None:
    options = {**azurite.storage_options(), "azure_storage_account_key": WRONG_KEY + "!!"}
    with pytest.raises(OptionError) as caught:
        open_store("az://c/t", options)
    assert WRONG_KEY not in everything_said(caught.value)


def test_an_account_that_is_not_named_is_an_option_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(OptionError, match=r"[Aa]ccount"):
        open_store("az://container/t")


def test_a_container_that_is_not_there_is_not_found(azurite: Azurite, s3_server: S3Server) -> None:
    for store in (
        open_store("az://no-such-container/t", azurite.storage_options()),
        open_store("s3://no-such-bucket/t", s3_server.storage_options()),
    ):
        with pytest.raises(ObjectNotFoundError):
            list(store.list("f"))
        with pytest.raises(ObjectNotFoundError):
            store.get("f")


def s3_at(port: int) -> dict[str, str]:
    return {
        "aws_access_key_id": "id",
        "aws_secret_access_key": "very-secret",
        "aws_region": "us-east-1",
        "aws_endpoint_url": f"http://127.0.0.1:{port}",
    }


def test_a_service_that_refuses_connections_is_a_storage_error() -> None:
    store = open_store("s3://bucket/t", s3_at(free_port()), retries=1)
    for call in calls(store):
        with pytest.raises(StorageError, match="bucket/t/a") as caught:
            call()
        assert "very-secret" not in everything_said(caught.value)


def test_a_service_that_says_nothing_times_out() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        store = open_store("s3://bucket/t", s3_at(port), retries=0, request_timeout=0.3)
        for call in (lambda: store.get("a"), lambda: list(store.list("a")), lambda: store.put("a", b"1")):
            with pytest.raises(StorageTimeoutError):
                call()


def test_a_request_is_tried_again(s3_server: S3Server) -> None:
    """The listener closes the first connections unanswered, as a service that restarts does."""
    with closing(socket.create_server(("127.0.0.1", 0))) as flaky:
        port = flaky.getsockname()[1]
        pending = open_store("s3://bucket/t", s3_at(port), retries=3).fetch("a")
        for _ in range(2):
            flaky.accept()[0].close()
        connection = flaky.accept()[0]
        with closing(connection):
            connection.recv(65536)
            head = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nETag: "x"\r\n'
            connection.sendall(f"{head}Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\nok".encode())
            assert pending.result(30) == b"ok"


def test_an_unencrypted_endpoint_elsewhere_needs_consent() -> None:
    options = {**s3_at(1), "aws_endpoint_url": "http://storage.example.org"}
    with pytest.raises(OptionError, match="allow_http"):
        open_store("s3://bucket/t", options)
    open_store("s3://bucket/t", {**options, "aws_allow_http": "true"})


# --- options


def test_an_unknown_option_is_refused_and_its_value_never_shown() -> None:
    options = {**s3_at(1), "aws_s3_allow_unsafe_rename": "true", "azure_storage_account_name": "other"}
    open_store("s3://bucket/t", options)  # what other tools and other stores know has no effect
    with pytest.raises(OptionError, match=r"aws_secret_acess_key.*did you mean 'aws_secret_access_key'") as refused:
        open_store("s3://bucket/t", {**options, "aws_secret_acess_key": "mistyped-secret"})
    assert "mistyped-secret" not in str(refused.value)


def test_option_names_are_taken_in_any_case(s3_server: S3Server) -> None:
    bucket = s3_server.bucket("faults")
    options = {key.upper(): value for key, value in s3_server.storage_options().items()}
    store = open_store(f"s3://{bucket}/t", options)
    store.put("a", b"1")
    assert store.get("a") == b"1"


@pytest.mark.parametrize(("retries", "request_timeout"), [(-1, 1.0), (1, 0.0)])
def test_a_senseless_policy_is_an_option_error(retries: int, request_timeout: float) -> None:
    with pytest.raises(OptionError):
        open_store("s3://bucket/t", retries=retries, request_timeout=request_timeout)


# --- local files


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read_is_denied(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "a").chmod(0)
    with pytest.raises(AccessDeniedError):
        open_store(tmp_path).get("a")


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (errno.EACCES, AccessDeniedError, "permissions"),
        (errno.EROFS, AccessDeniedError, "permissions"),
        (errno.ENOSPC, StorageError, "disk is full"),
        (errno.EDQUOT, StorageError, "disk is full"),
        (errno.EIO, StorageError, "Input/output error"),
        (errno.ETIMEDOUT, StorageTimeoutError, "timed out"),
    ],
)
def test_errors_of_the_system_are_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[StorageError], said: str
) -> None:
    store = open_store(tmp_path)

    def fail(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("lazydelta.storage.atomic_files.os.open", fail)
    for call in (lambda: store.get("a"), lambda: store.put("a", b"1")):
        with pytest.raises(kind, match=said) as caught:
            call()
        assert caught.value.path == "a"


def test_a_failed_write_leaves_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("lazydelta.storage.atomic_files.os.replace", fail)
    with pytest.raises(StorageError, match="disk is full"):
        store.put("a", b"1")
    assert list(tmp_path.iterdir()) == []


# --- nothing foreign leaves, nothing secret shows


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, KeyError, OSError, UnicodeError, MemoryError])
def test_any_exception_of_a_request_leaves_as_ours(place: Place, kind: type[Exception]) -> None:
    store = place.open()

    def fail(request: Request) -> None:
        raise kind("sig=abcdef")

    with observe(fail):
        for call in calls(store):
            if place.uri.startswith("/") and call is calls(store)[-1]:
                continue
            with pytest.raises(LazyDeltaError) as caught:
                call()
            assert "abcdef" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "GET https://a.blob.core.windows.net/c/b?sv=1&sig=TOPSECRET%3D failed",
        "AccountName=a;AccountKey=TOPSECRET==;",
        "Authorization: Bearer TOPSECRET",
        "Authorization: SharedKey acct:TOPSECRET",
        "<AWSAccessKeyId>TOPSECRET</AWSAccessKeyId>",
        "X-Amz-Signature=TOPSECRET&x=1",
        "key TOPSECRET in the clear",
        "key TOP%53ECRET escaped",
    ],
)
def test_redaction_finds_what_looks_like_a_secret_and_what_is_known_to_be_one(text: str) -> None:
    shown = redact(text, ["TOPSECRET", "TOP%53ECRET"])
    assert "TOPSECRET" not in shown
    assert "TOP%53ECRET" not in shown


def test_secrets_of_the_environment_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-the-environment")
    assert redact("it was from-the-environment") == "it was ***"
