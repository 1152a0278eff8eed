"""What the HTTP server refuses: other hosts and origins, odd paths and bodies, smuggled requests, and other tenants."""

# ruff: noqa: E501, S104 - a request is read best on one line; nothing listens at these addresses

from __future__ import annotations

import contextlib
import itertools
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lazydelta.errors import OptionError
from lazydelta.server.config import ServeConfig, ServerSettings, TableSettings
from lazydelta.server.tokens import add_token
from tests.server.http_server import http_serving, write_every_type

POSTS = [
    "/v1/rest/query",
    "/v2/rest/query",
    "/v1/rest/mgmt",
    "/api/query",
    "/api/files",
    "/api/explain",
    "/api/download",
    "/api/cancel",
]
GETS = ["/api/tables", "/api/table?name=T", "/api/timeline?name=T", "/api/history?name=T", "/api/words", "/metrics"]
HOSTS = [
    "evil.example",
    "evil.example:80",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "127.0.0.2",
    "0.0.0.0",
    "10.0.0.1",
    "[::2]",
    "",
    "localhost@evil",
]
SITES: list[dict[str, str]] = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:1"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
]
PLACES = [
    "/../../etc/passwd",
    "/..%2f..%2fetc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/static/../../app.py",
    "/page.js/../app.py",
    "/page.js%00.html",
    "//evil.example/",
    "/app.py",
    "/static/index.html",
    "/LICENSES.txt",
    "/.git/config",
    "/api",
    "/api/",
    "/api/unknown",
    "/v1/rest",
    "/v3/rest/query",
    "/v1/rest/ingest/db/T",
    "/api/table/T",
    "/api/tables/../../x",
    "/%c0%ae%c0%ae/etc/passwd",
    "/api/%2e%2e/metrics",
    "/favicon.ico",
    "/robots.txt",
    "/INDEX.HTML",
]
NAMES = [
    "../T",
    "/etc",
    "T/../../etc",
    "file:///etc",
    "s3://bucket/x",
    "T\x00",
    "%2e%2e",
    "..",
    ".",
    "T/",
    "*",
    "root/*",
    "'; DROP TABLE T; --",
    "<script>",
    "T" * 600,
]
BODIES: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b"1",
    b'"x"',
    b"{",
    b"{}",
    b'{"csl": 1}',
    b'{"csl": null}',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"a":' * 5000,
    b'{"csl": "T", "db": 7}',
    b'{"csl": "T", "properties": "{"}',
    b'{"csl": "T", "properties": {"Options": 1}}',
    b'{"csl": "T", "properties": {"Parameters": [1]}}',
    b'{"csl": "\\ud800"}',
]
STATEMENTS = [
    ("sql", "SELECT * FROM read_csv('/etc/passwd')"), ("sql", "SELECT * FROM '/etc/passwd'"), ("sql", "COPY T TO '/tmp/x'"), ("sql", "ATTACH '/tmp/x'"), ("sql", "INSTALL httpfs"),
    ("sql", "SELECT getenv('HOME')"), ("sql", "DROP TABLE T"), ("sql", "SELECT 1; SELECT 2"), ("sql", "PRAGMA database_list"), ("sql", "SET memory_limit='9GB'"),
    ("sql", "SELECT * FROM delta_scan('/etc')"), ("sql", "SELECT * FROM duckdb_secrets()"), ("sql", "("* 500), ("kql", "external_table('/etc')"), ("kql", "table('../T')"),
    ("kql", "externaldata(x:string)['file:///etc/passwd']"), ("kql", "cluster('evil').database('x').T"), ("kql", "T | evaluate python()"), ("kql", "(" * 500), ("perl", "1"),
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_every_type(tmp_path_factory.mktemp("safe") / "T")


@pytest.fixture(scope="module")
def address(place: Path) -> Iterator[str]:
    with http_serving({"T": place}) as (_, found):
        yield found


def hostile() -> Iterator[tuple[str, str, dict[str, str], bytes | None, set[int]]]:
    """Yield requests, each with the statuses that are right for it."""
    body, is_json = (
        b'{"csl": "T", "table": "T", "language": "sql", "text": "SELECT 1", "id": "1"}',
        {"content-type": "application/json"},
    )
    for host, path in itertools.product(HOSTS, [*POSTS[:4], *GETS[:4]]):
        yield (
            ("POST" if path in POSTS else "GET"),
            path,
            is_json | {"host": host},
            body if path in POSTS else None,
            {421, 400},
        )
    for site, path in itertools.product(SITES, [*POSTS[:5], *GETS[:4]]):
        yield ("POST" if path in POSTS else "GET"), path, is_json | site, body if path in POSTS else None, {403}
    for path in PLACES:
        yield "GET", path, {}, None, {404, 405, 307}
    for method, path in itertools.product(
        ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"], [POSTS[0], POSTS[3], "/", "/metrics"]
    ):
        yield method, path, is_json, None, {405}
    for path in POSTS:
        yield "GET", path, {}, None, {405}
        yield "POST", path, {"content-type": "text/plain"}, body, {415}
        yield "POST", path, {"content-type": "application/x-www-form-urlencoded"}, body, {415}
        yield "POST", path, is_json, b" " * (3 << 20), {413}
    for text, path in itertools.product(BODIES, [POSTS[1], POSTS[3], POSTS[4]]):
        yield "POST", path, is_json, text, {400}
    for name in NAMES:
        yield "GET", str(httpx.URL("/api/table", params={"name": name})), {}, None, {404}
        yield "POST", "/api/files", is_json, json.dumps({"table": name}).encode(), {404}
    for language, statement in STATEMENTS:
        yield "POST", "/api/query", is_json, json.dumps({"language": language, "text": statement}).encode(), {400}


def test_hostile_requests_get_the_right_errors_and_nothing_else(address: str) -> None:
    number = 0
    with httpx.Client(base_url=address, timeout=120) as client:
        for method, path, headers, body, expected in hostile():
            # The path is sent as it is: a client would tidy it up.
            request = client.build_request(method, "/", headers=headers, content=body)
            request.url = request.url.copy_with(raw_path=path.encode())
            answer = client.send(request)
            number += 1
            assert answer.status_code in expected, (method, path, headers, (body or b"")[:80], answer.text[:200])
            assert "access-control-allow-origin" not in answer.headers
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "root:" not in answer.text
            assert "Traceback" not in answer.text
        assert number >= 300
        fine = client.post("/v2/rest/query", json={"csl": "T | count"})
        assert fine.json()[2]["Rows"] == [[6]]


@pytest.mark.parametrize(
    "lines",
    [
        ["POST /v2/rest/query HTTP/1.1", "Host: localhost", "Content-Length: 5", "Content-Length: 6"],
        ["POST /v2/rest/query HTTP/1.1", "Host: localhost", "Content-Length: 5", "Transfer-Encoding: chunked"],
        ["POST /v2/rest/query HTTP/1.1", "Host: localhost", "Transfer-Encoding: identity, chunked"],
        ["POST /v2/rest/query HTTP/1.1", "Host: localhost", "Content-Length: -1"],
        ["GET /api/tables HTTP/1.1", "Host: localhost", "Host: evil.example"],
        ["GET /api/tables HTTP/1.1"],
        ["GET http://evil.example/api/tables HTTP/1.1", "Host: evil.example"],
        ["GET /api/tables HTTP/1.1", "Host: localhost", "A b: c"],
        ["GET /api/tables HTTP/1.1", "Host: localhost", *(f"X-{index}: 1" for index in range(150))],
        ["GET /api/tables HTTP/1.1", "Host: localhost", "X: " + "a" * 70_000],
        ["GET /" + "a" * 9000 + " HTTP/1.1", "Host: localhost"],
        ["NONSENSE"],
    ],
    ids=range(12),
)  # fmt: skip
def test_a_malformed_request_is_refused(address: str, lines: list[str]) -> None:
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=60) as connection:
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        data = b""
        # A server that closes before it has read everything resets the connection, maybe before its answer arrives.
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65536):
                data += part
    if not data and len(lines[-1]) > 65536:
        return
    assert data.split(b" ")[1][:1] == b"4", data[:200]
    assert data.count(b"HTTP/1.1 ") == 1


def test_links_to_the_page_and_programs_are_let_in(address: str) -> None:
    for headers in (
        {},
        {"host": "localhost"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
        {"origin": address},
    ):
        answer = httpx.get(address + "/", headers=headers)
        assert answer.status_code == 200
        assert "script-src 'self'" in answer.headers["content-security-policy"]
    packed = httpx.get(address + "/editor.js", headers={"accept-encoding": "gzip"})
    plain = httpx.get(address + "/editor.js", headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.num_bytes_downloaded < 200_000 < len(plain.content)
    assert packed.content == plain.content
    assert httpx.get(address + "/healthz").json() == {"status": "ok"}
    assert httpx.get(address + "/readyz").json()["status"] == "ready"


def test_metrics_have_requests_and_scans(address: str) -> None:
    httpx.post(address + "/api/explain", json={"table": "T", "where": "x > 3"}).raise_for_status()
    text = httpx.get(address + "/metrics").text
    assert 'lazydelta_serve_requests_total{how="200",request="http page"}' in text
    found = {line.split("{")[0]: line for line in text.splitlines() if line.startswith("delta_lazy_")}
    assert float(found["delta_lazy_scans_total"].split()[-1]) >= 1
    assert {
        "delta_lazy_files_emitted_total",
        "delta_lazy_bytes_read_total",
        "delta_lazy_requests_total",
    } <= found.keys()


def test_tenants_see_neither_tables_nor_queries_nor_metrics_of_others(tmp_path: Path, place: Path) -> None:
    tokens = tmp_path / "tokens"
    one, two = add_token(tokens, "one", ["T"]), add_token(tokens, "two", ["U"])
    with http_serving({"T": place, "U": place}, tokens) as (_, address):

        def asked(token: str, path: str, **body: Any) -> httpx.Response:
            headers = {"authorization": f"Bearer {token}"}
            if body:
                return httpx.post(address + path, headers=headers, json=body, timeout=120)
            return httpx.get(address + path, headers=headers, timeout=120)

        assert (
            asked(one, "/api/query", language="sql", text="SELECT count(*) FROM T", id="secret-id").status_code == 200
        )
        assert asked(two, "/api/query", language="sql", text="SELECT count(*) FROM T").status_code == 400
        assert '"name":"T"' not in asked(two, "/api/tables").text
        assert str(place) not in asked(one, "/api/tables").text
        assert "place" in json.loads(asked(one, "/api/tables").text.splitlines()[0])
        assert asked(two, "/api/table?name=T").status_code == 404
        assert asked(two, "/api/files", table="T").status_code == 404
        assert 'table="T"' in asked(one, "/metrics").text
        assert 'table="T"' not in asked(two, "/metrics").text
        assert "secret-id" not in asked(two, "/v1/rest/mgmt", csl=".show queries").text
        assert "secret-id" not in asked(one, "/v1/rest/mgmt", csl=".show running queries").text
        for command in (".show tables details", ".show databases entities", ".show schema as json"):
            seen = asked(two, "/v1/rest/mgmt", csl=command).text
            assert "U" in seen
            assert '"T"' not in seen.replace("\\", "")
        assert asked(two, "/v1/rest/mgmt", csl=".show table T details").status_code == 400
        picture = asked(one, "/api/explain", table="T").json()["svg"]
        assert str(place.parent) not in picture
        for path in ("/api/tables", "/metrics", "/v1/rest/query"):
            assert httpx.get(address + path).status_code == 401
        # The page itself has nothing of a table in it.
        assert httpx.get(address + "/page.js").status_code == 200


def test_an_address_that_guesses_tokens_is_told_nothing_more(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    early, late = add_token(tokens, "early"), add_token(tokens, "late")
    with http_serving({"T": write_every_type(tmp_path / "t")}, tokens) as (_, address):

        def status(token: str) -> tuple[int, bool]:
            answer = httpx.get(f"{address}/api/tables", headers={"authorization": f"Bearer {token}"})
            return answer.status_code, "Too many wrong tokens" in answer.text

        assert status(early) == (200, False)
        assert {status(f"late.{number}") for number in range(20)} == {(401, False)}
        assert status("late.x") == status(late) == (401, True)
        assert status(early) == (200, False)


def test_other_machines_need_tokens_and_tls_or_names(tmp_path: Path) -> None:
    tables = {"T": TableSettings(str(tmp_path))}
    with pytest.raises(OptionError, match="loopback interface"):
        ServeConfig(tables=tables, server=ServerSettings(host="0.0.0.0", http_port=0)).checked()
    tls = {"tls_cert": "c", "tls_key": "k", "client_ca": "a"}
    with pytest.raises(OptionError, match="by its own name"):
        ServeConfig(tables=tables, server=ServerSettings(host="0.0.0.0", http_port=0, **tls)).checked()  # type: ignore[arg-type]
