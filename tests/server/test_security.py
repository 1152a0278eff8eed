"""Who is let in, and what becomes of hostile requests."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import lazydelta
from lazydelta import errors
from lazydelta.client.wire import ScanCommand, error_from, parse_command
from lazydelta.errors import (
    KqlError,
    LazyDeltaError,
    OptionError,
    QueryError,
    TableNotFoundError,
    TicketError,
    UnauthenticatedError,
)
from lazydelta.scan.file import FILES_SCHEMA
from lazydelta.server import tokens as tokens_module
from lazydelta.server.config import LimitSettings, ServeConfig, ServerSettings, TableSettings, read_config
from lazydelta.server.flight import FlightServer, ServerLimits, drain
from lazydelta.server.flight_sql.calls import SessionOptions, SqlLimits
from lazydelta.server.flight_sql.messages import MESSAGES, packed
from lazydelta.server.tables import Identity, ServedTables, TablePlace
from lazydelta.server.ticket import Ticket, TicketSigner
from lazydelta.server.tokens import AccessLog, GuessLimit, TokenFile, add_token
from lazydelta.storage import Request, observe
from tests.rows.made_table import make_table
from tests.scan.hand_log import HandLog, add
from tests.server.serving import KEY, connected, location, plan, serving

# --- tokens


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[Path, str, str]:
    """Return a file of two tokens, the one of a reader of ``t`` and the one of a reader of all."""
    file = tmp_path / "tokens"
    return file, add_token(file, "some", ["t"]), add_token(file, "all")


@pytest.fixture
def two_tables(tmp_path: Path) -> dict[str, Path]:
    for name in ("t", "u"):
        HandLog(tmp_path / name).commit(add(f"{name}.parquet"))
    return {name: tmp_path / name for name in ("t", "u")}


def test_a_token_opens_its_tables_and_no_others(two_tables: dict[str, Path], tokens: tuple[Path, str, str]) -> None:
    file, some, everything = tokens
    with serving(two_tables, tokens=TokenFile(file)) as server:
        with connected(server, token=some) as connection:
            assert connection.tables() == ["t"]
            assert [each.path for each in connection.table("t").files()] == ["t.parquet"]
            with pytest.raises(TableNotFoundError):
                connection.table("u")
        with connected(server, token=everything) as connection:
            assert connection.tables() == ["t", "u"]
            assert [each.path for each in connection.table("u").files()] == ["u.parquet"]


@pytest.mark.parametrize(
    "wrong", [None, "", "some", "some.", "some.wrong", "nobody.x", "x" * 100_000], ids=[*"abcdef", "long"]
)
def test_without_a_known_token_nothing_is_answered(
    two_tables: dict[str, Path], tokens: tuple[Path, str, str], wrong: str | None
) -> None:
    with serving(two_tables, tokens=TokenFile(tokens[0])) as server, connected(server, token=wrong, attempts=1) as to:
        with pytest.raises(LazyDeltaError) as caught:
            to.tables()
        # gRPC itself refuses headers that are too long.
        assert isinstance(caught.value, UnauthenticatedError) or len(wrong or "") > 10_000
        headers = [] if wrong is None else [(b"authorization", f"Bearer {wrong}".encode())]
        with pytest.raises((fl.FlightError, pa.ArrowException, OSError)) as seen:
            _Bearing(location(server), *headers).get_schema(fl.FlightDescriptor.for_path("t"))
        assert "Traceback" not in str(seen.value)
        for call in (to.health, lambda: to.table("t"), lambda: list(to.begin(b"x"))):
            with pytest.raises((LazyDeltaError, fl.FlightUnauthenticatedError, fl.FlightError)):
                call()


def test_an_address_that_guesses_is_told_nothing_more_and_its_other_clients_stay(
    two_tables: dict[str, Path], tokens: tuple[Path, str, str]
) -> None:
    file, some, everything = tokens
    log = io.StringIO()
    with (
        serving(two_tables, tokens=TokenFile(file), access_log=AccessLog(log)) as server,
        connected(server, token=some) as before,
    ):
        assert before.tables() == ["t"]
        for number in range(25):
            with connected(server, token=f"all.{number}", attempts=1) as guess:
                match = "not known" if number < 20 else "Too many wrong tokens"
                with pytest.raises(UnauthenticatedError, match=match):
                    guess.tables()
        with (
            connected(server, token=everything, attempts=1) as late,
            pytest.raises(UnauthenticatedError, match="Too many wrong tokens"),
        ):
            late.tables()
        assert before.tables() == ["t"]
    refused = [line for line in map(json.loads, log.getvalue().splitlines()) if line["how"] == "UnauthenticatedError"]
    assert len(refused) == 26
    assert all(line["client"] == "unknown" and "127.0.0.1" in line["peer"] for line in refused)
    assert everything.partition(".")[2] not in log.getvalue()


def test_guesses_are_counted_for_a_network_and_a_minute() -> None:
    now = [0.0]
    limit, wrong = GuessLimit(lambda: now[0]), UnauthenticatedError("wrong")

    def guess(address: str) -> str:
        with pytest.raises(UnauthenticatedError) as caught:
            limit.settle(address, wrong)
        return str(caught.value.args[0])

    assert {guess(f"2001:db8::{number:x}") for number in range(1, 21)} == {"wrong"}
    assert {guess("::ffff:10.0.0.1") for _ in range(20)} == {"wrong"}
    assert "Too many" in guess("2001:db8::ffff")
    assert "Too many" in guess("10.0.0.1")
    assert guess("2001:db8:0:1::1") == guess("10.0.0.2") == "wrong"
    now[0] = 60.0
    assert guess("10.0.0.1") == "wrong"
    assert limit.settle("2001:db8::5", Identity("a")) == Identity("a")


def test_a_ticket_is_for_its_holder_alone(two_tables: dict[str, Path], tokens: tuple[Path, str, str]) -> None:
    file, some, everything = tokens
    with serving(two_tables, tokens=TokenFile(file)) as server:
        with connected(server, token=everything) as connection:
            ticket = connection.plan(ScanCommand(table="u")).endpoints[0].ticket.ticket
        with connected(server, token=some) as connection, pytest.raises(TicketError, match="another client"):
            connection.begin(ticket)
    with pytest.raises(OptionError, match="not a token"):
        lazydelta.connect("grpc://127.0.0.1:1", token="\u00e4.b")


def test_a_file_of_tokens_holds_no_secret_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    token = add_token(file, "a", ["t"])
    assert token.partition(".")[2] not in file.read_text(encoding="utf-8")
    assert file.stat().st_mode & 0o077 == 0
    known = TokenFile(file)
    assert known.identity(token).tables == ("t",)
    later = add_token(file, "b")
    assert known.identity(later).name == "b"
    file.write_text(file.read_text(encoding="utf-8").splitlines()[1] + "\n", encoding="utf-8")
    with pytest.raises(UnauthenticatedError):
        known.identity(token)  # also though it was verified before
    with pytest.raises(OptionError, match="already"):
        add_token(file, "b")
    with pytest.raises(OptionError, match="cannot be the name"):
        add_token(file, "a.b")


def test_every_wrong_token_takes_the_same_work_and_little_of_it(
    tokens: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names cannot be told by time: one hash for each, and none that is slow."""
    known = TokenFile(tokens[0])
    hashed: list[int] = []
    original = tokens_module._hash

    def counted(secret: str, salt: bytes) -> str:
        hashed.append(len(salt))
        return original(secret, salt)

    def refuse(*_: object, **__: object) -> bytes:
        raise AssertionError("a slow hash, which a flood of wrong tokens would wait for")

    monkeypatch.setattr(tokens_module, "_hash", counted)
    monkeypatch.setattr(hashlib, "scrypt", refuse)
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", refuse)
    for number in range(60):
        for wrong in ("some.wrong", f"nobody{number}.wrong", "some", "", "x" * 1000):
            with pytest.raises(UnauthenticatedError):
                known.identity(wrong)
    assert hashed == [16] * 300
    assert known.identity(tokens[1]).name == "some"


def test_a_token_of_an_earlier_version_is_to_be_made_again(tmp_path: Path) -> None:
    line = {"name": "a", "salt": "00" * 16, "hash": "ab" * 32, "tables": None}
    (tmp_path / "tokens").write_text(json.dumps(line) + "\n", encoding="utf-8")
    with pytest.raises(OptionError, match=r"'a' in line 1 .* earlier version .*token add"):
        TokenFile(tmp_path / "tokens")


def test_metrics_tell_of_no_table_that_the_token_may_not_read(
    two_tables: dict[str, Path], tokens: tuple[Path, str, str]
) -> None:
    file, some, everything = tokens
    with serving(two_tables, tokens=TokenFile(file)) as server:
        with connected(server, token=everything) as connection:
            for name in ("t", "u"):
                list(connection.table(name).files())
            server.metrics.stream("t,u", "sql", "done", rows=5, size=5, seconds=1.0)
            told = connection.action("metrics", b"").decode()
            assert all(f'table="{name}"' in told for name in ("t", "u", "t,u"))
        with connected(server, token=some) as connection:
            told = connection.action("metrics", b"").decode()
            assert set(re.findall(r'table="([^"]*)"', told)) == {"t"}
            assert "lazydelta_serve_streams" in told
        # The operator's port has all of them.
        assert set(re.findall(r'table="([^"]*)"', server.metrics.text().decode())) == {"t", "u", "t,u"}


@pytest.mark.parametrize(
    ("where", "is_safe"),
    [
        ("grpc://127.0.0.1:1", True),
        ("grpc://127.8.9.1:1", True),
        ("grpc+tcp://[::1]:1", True),
        ("grpc://localhost:1", True),
        ("grpc+tls://example.com:1", True),
        ("grpc+unix:///run/lazydelta", True),
        ("grpc://example.com:1", False),
        ("grpc+tcp://10.0.0.1:1", False),
        ("grpc://localhost.example.com:1", False),
        ("grpc://127.0.0.1.example.com:1", False),
        ("grpc://[2001:db8::1]:1", False),
        ("grpc://0.0.0.0:1", False),
        ("grpc://127.0.0.1@example.com:1", False),
    ],
)
def test_a_token_is_not_sent_in_plain_text_to_another_machine(where: str, is_safe: bool) -> None:  # noqa: FBT001
    lazydelta.connect(where).close()
    lazydelta.connect(where, token="a.b", plaintext=True).close()
    if is_safe:
        lazydelta.connect(where, token="a.b").close()
    else:
        with pytest.raises(OptionError, match=r"in plain text .*grpc\+tls"):
            lazydelta.connect(where, token="a.b")


def test_sessions_of_one_client_leave_those_of_another_alone() -> None:
    options = SessionOptions()
    request = MESSAGES["SetSessionOptionsRequest"]()
    request.ParseFromString(_language("kql"))

    def call(session: str) -> Any:
        return SimpleNamespace(get_middleware=lambda _: SimpleNamespace(session=session))

    options.set(call("mine"), "me", request)
    for number in range(20_000):
        options.set(call(f"session {number}"), "another", request)
    assert options.language(call("mine"), "me") == "kql"
    assert options.language(call("session 0"), "another") == "sql"
    assert options.language(call("session 19999"), "another") == "kql"
    assert sum(map(len, options._sessions.values())) <= 2000
    options.close(call("mine"), "me")
    assert "me" not in options._sessions


def _language(value: str) -> bytes:
    chosen = MESSAGES["SessionOptionValue"](string_value=value)
    message = MESSAGES["SetSessionOptionsRequest"]()
    message.session_options.add(key="language", value=chosen)
    return bytes(message.SerializeToString())


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"name":"a","salt":"zz","hash":""}'])
def test_a_file_without_good_tokens_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokens").write_text(content, encoding="utf-8")
    with pytest.raises(OptionError, match="token"):
        TokenFile(tmp_path / "tokens")
    with pytest.raises(OptionError, match="cannot be read"):
        TokenFile(tmp_path / "nowhere")


# --- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an authority, and certificates of a server and a client that it signed, and one without an authority."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)  # noqa: S607

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for authority in ("ca", "other"):
        openssl("req", "-x509", *new, "-keyout", f"{authority}.key", "-out", f"{authority}.pem", "-subj", "/CN=ca")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost", encoding="utf-8")
    for name, authority in (("server", "ca"), ("client", "ca"), ("stranger", "other")):
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem", "-days", "2")
    return folder


def _config(certificates: Path, **more: Any) -> ServeConfig:
    names: dict[str, Any] = {"tls_cert": str(certificates / "server.pem"), "tls_key": str(certificates / "server.key")}
    return ServeConfig(tables={"t": TableSettings("/nowhere")}, server=ServerSettings(**names, **more))


def test_tls_is_verified_by_both_sides(two_tables: dict[str, Path], certificates: Path) -> None:
    config = _config(certificates, client_ca=str(certificates / "ca.pem")).checked()
    with serving(two_tables, location="grpc+tls://127.0.0.1:0", **config.tls()) as server:
        where = f"grpc+tls://127.0.0.1:{server.port}"

        def tables(authority: str, client: str | None) -> list[str]:
            own = {} if client is None else {"cert_chain": f"{client}.pem", "private_key": f"{client}.key"}
            files: dict[str, Any] = {
                name: certificates / file for name, file in ({"tls_root_certs": authority} | own).items()
            }
            with lazydelta.connect(where, attempts=1, **files) as connection:
                return connection.tables()

        assert tables("ca.pem", "client") == ["t", "u"]
        for authority, client in (("other.pem", "client"), ("ca.pem", "stranger"), ("ca.pem", None)):
            with pytest.raises(errors.ServerUnreachableError):
                tables(authority, client)
        with pytest.raises(errors.ServerUnreachableError), connected(server, attempts=1) as plain:
            plain.tables()


# --- settings that would let strangers in


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"host": "0.0.0.0"}, "loopback interface"),  # noqa: S104 - refused
        ({"host": "192.0.2.1", "tokens": "f"}, "could be read on the network"),
        ({"host": "example.com"}, "loopback interface"),
        ({"host": "127.0.0.1.example.com"}, "loopback interface"),
        ({"host": "::"}, "loopback interface"),
        ({"tls_cert": "f"}, "belong together"),
        ({"client_ca": "f"}, "part of TLS"),
        ({"port": 70_000}, "not a port"),
    ],
    ids=range(8),
)
def test_settings_that_make_no_sense_are_refused(server: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        ServeConfig(tables={"t": TableSettings("/nowhere")}, server=ServerSettings(**server)).checked()


@pytest.mark.parametrize(
    "server",
    [{}, {"host": "::1"}, {"host": "127.0.0.2"}, {"host": "10.0.0.1", "tokens": "f", "plaintext": True}],
    ids=range(4),
)
def test_settings_that_are_safe_are_taken(server: dict[str, Any]) -> None:
    config = ServeConfig(tables={"t": TableSettings("/nowhere")}, server=ServerSettings(**server))
    assert config.checked() is config


def test_a_configuration_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    good = (
        '[tables.t]\nuri = "/t"\nstorage_options = { key = "s3cret" }\n[limits]\nstreams = 3\n[server]\nport = 8815\n'
    )
    file = tmp_path / "serve.toml"
    file.write_text(good, encoding="utf-8")
    config = read_config(str(file))
    assert (config.server.port, config.limits.streams, config.tables["t"].uri) == (8815, 3, "/t")
    assert "s3cret" not in repr(config)
    for wrong in ("stream = 3", "[limits]\nstreem = 3", "[tables.t]\nurl = '/t'", "x"):
        file.write_text(wrong, encoding="utf-8")
        with pytest.raises(OptionError, match="not a valid configuration"):
            read_config(str(file))
    with pytest.raises(OptionError, match="fit into memory_per_client"):
        ServeConfig(tables=config.tables, limits=LimitSettings(memory_per_client=1000)).checked()
    with pytest.raises(OptionError, match="nothing to serve"):
        ServeConfig().checked()


# --- hostile requests


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FlightServer, Path]]:
    """Serve a root with one table, beside one that must not be reached."""
    folder = tmp_path_factory.mktemp("hostile")
    HandLog(folder / "lake" / "t").commit(add("a.parquet"))
    HandLog(folder / "secret").commit(add("secret.parquet"))
    (folder / "lake" / "link").symlink_to(folder / "secret")
    roots = {"lake": TablePlace(str(folder / "lake"))}
    tables = ServedTables({"t": TablePlace(str(folder / "lake" / "t"))}, roots)
    (folder / "secret.csv").write_text("a\nunseen\n", encoding="utf-8")
    limits, sql = ServerLimits(command_bytes=10_000), SqlLimits(memory=64 << 20, reading_memory=16 << 20)
    server = FlightServer("grpc://127.0.0.1:0", tables, TicketSigner(KEY), limits=limits, sql=sql)
    yield server, folder
    drain(server, 0)


class _Bearing:
    """A plain client that sends headers with each call."""

    def __init__(self, where: str, *headers: tuple[bytes, bytes]) -> None:
        self._client: Any = fl.connect(where)
        self._options = fl.FlightCallOptions(headers=list(headers))

    def get_flight_info(self, descriptor: Any) -> Any:
        return self._client.get_flight_info(descriptor, self._options)

    def get_schema(self, descriptor: Any) -> Any:
        return self._client.get_schema(descriptor, self._options)

    def do_action(self, action: Any) -> Any:
        return self._client.do_action(action, self._options)

    def do_get(self, ticket: Any) -> Any:
        return self._client.do_get(ticket, self._options)


def _forged(ticket: bytes, rng: random.Random) -> bytes:
    """Change a ticket: a bit, its end, a field, its signature."""
    kind = rng.randrange(5)
    if kind == 0:
        place = rng.randrange(len(ticket))
        return ticket[:place] + bytes([ticket[place] ^ 1 << rng.randrange(8)]) + ticket[place + 1 :]
    if kind == 1:
        return ticket[: rng.randrange(len(ticket))]
    signed = json.loads(ticket)
    if kind == 2:
        signed["ticket"]["command"]["table"] = rng.choice(["lake/link", "../secret", "secret", "u"])
    elif kind == 3:
        signed["signature"] = rng.choice(["", "0" * 64, "\u00e4", signed["signature"][::-1]])
    else:
        signed["ticket"]["expires"] += 10**6
    return json.dumps(signed).encode()


Ask = Callable[[Any], object]


def _planned(descriptor: Any) -> Ask:
    return lambda client: client.get_flight_info(descriptor)


def _done(action: str, body: bytes) -> Ask:
    return lambda client: list(client.do_action(fl.Action(action, body)))


def _got(ticket: bytes) -> Ask:
    return lambda client: client.do_get(fl.Ticket(ticket)).read_all()


def _requests(rng: random.Random, ticket: bytes) -> Iterator[tuple[str, Ask]]:
    """Yield hostile requests, each with what kind it is."""
    names = [
        "../secret", "lake/../secret", "lake/%2e%2e/secret", "lake/link", "/etc", "file:///etc", "secret", "lake",
        "s3://bucket/x", "lake/..", "lake/t/../../secret", "~root", "lake/\0", "", "lake/t/_delta_log/..", "t\n",
    ]  # fmt: skip
    for name in names:
        command = json.dumps({"table": name}).encode()
        yield "name", _planned(fl.FlightDescriptor.for_command(command))
        yield "name", _done("describe", command)
        yield "name", _done("explain", command)
        path = fl.FlightDescriptor.for_path(*name.split("/"))
        yield "name", _planned(path)
    bodies = [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"table": 3}', b'{"table":"t","nope":1}', b'{"table":"t","of":"x"}',
        b'{"table": "t", "limit": -1}', b'{"table": "t", "endpoints": 0}', b'{"table": "t", "endpoints": 1e9}',
        b'{"table": "t", "where": "id ="}', b'{"table": "t", "where": {"nope": 1}}', b'{"table": "t", "version": 99}',
        b'{"table": "t", "version": "soon"}', b'{"table": "t", "columns": ["x"], "of": "rows"}', b"[" * 9_000,
        b'{"table": "t", "timeout": -1}', b'{"table": "t", "last": "yesterday"}', b'{"table":"t","batch_size":0}',
        b'{"table": "t", "filters": [1]}', b'{"table": "t", "filters": [["id", "=="]]}', b'{"table":"t","limit":1e99}',
        b'{"table": "t", "where": ' + b'{"not":' * 900 + b"1" + b"}" * 901, b'{"table": "t", "where": 1}',
        b"x" * 10_001, b"y" * 5_000_000, b'{"table": "t", "where": "' + b"(" * 9_000 + b'"}',
    ]  # fmt: skip
    for body in bodies:
        yield "command", _planned(fl.FlightDescriptor.for_command(body))
        yield "command", _done("count", body)
    for body in (b"", b"{}", b"x" * 600_000, b'{"v":1}', b'{"v":2,"signature":"","ticket":{}}', b"[" * 100_000):
        yield "ticket", _got(body)
    for _ in range(190):
        body = _forged(ticket, rng)
        if body != ticket:
            yield "ticket", _got(body)
    for action in ("nope", "", "health/../x", "x" * 5000):
        yield "command", _done(action, b"")
    yesterday = TicketSigner(KEY, lifetime=-86_400.0)
    known = json.loads(ticket)["ticket"]
    for limit in range(10):
        scan = ScanCommand(table="t", version=0, limit=limit)
        old = Ticket(scan, known["table_id"], known["base"], known["holder"], yesterday.expiry())
        yield "expired", _got(yesterday.encode(old))


def _statements(folder: Path) -> Iterator[tuple[str, Ask]]:
    """Yield SQL and KQL that would read a file or reach the network, as statements and prepared."""
    file, address = folder / "secret.csv", "127.0.0.1:1"
    for text in (
        f"SELECT * FROM '{file}'",
        f"SELECT * FROM read_csv('{file}')",
        f"SELECT * FROM read_text('{folder}/*')",
        f"SELECT * FROM glob('{folder}/*')",
        f"SELECT * FROM delta('{folder}/secret')",
        f"SELECT * FROM delta_scan('{folder}/secret')",
        f"SELECT * FROM read_csv('http://{address}/x')",
        f"SELECT * FROM parquet_scan('s3://bucket/x?s3_endpoint={address}')",
        f"COPY (SELECT 1) TO '{folder}/new.csv'",
        f"ATTACH 'http://{address}/x.db'",
        "INSTALL httpfs FROM 'http://127.0.0.1:1'",
        "SELECT getenv('HOME')",
        "SET enable_external_access = true",
        f"kql: externaldata(a:string)['http://{address}/x']",
        "kql: external_table('secret') | take 1",
    ):
        yield "sql", _planned(fl.FlightDescriptor.for_command(packed("CommandStatementQuery", query=text)))
        prepare = packed("ActionCreatePreparedStatementRequest", query=text)
        yield "sql", _done("CreatePreparedStatement", prepare)


def _wrong_headers(token: str) -> list[list[tuple[bytes, bytes]]]:
    name, _, secret = token.partition(".")
    texts = [
        f"Bearer {name}.{secret[:-1]}",
        f"Bearer {name}.{secret[::-1]}",
        f"Bearer {name}.",
        f"Bearer nobody.{secret}",
        f"Bearer {name}",
        "Bearer ",
        f"Basic {token}",
        token,
        f"Bearer {name}.{'x' * 600}",
        "Bearer ../../etc/passwd",
    ]
    wrong = [[(b"authorization", text.encode())] for text in texts]
    return [[], [(b"authorization", f"Bearer {token}".encode())] * 2, *wrong]


_RIGHT: dict[str, tuple[type[LazyDeltaError], ...]] = {
    "name": (TableNotFoundError,),
    "ticket": (TicketError,),
    "expired": (TicketError,),
    "sql": (QueryError, KqlError),
    "token": (UnauthenticatedError,),
    "command": (LazyDeltaError,),
}


def test_three_hundred_hostile_requests_each_get_the_right_error(
    hostile: tuple[FlightServer, Path], tmp_path: Path
) -> None:
    server, folder = hostile
    client = fl.connect(location(server))
    good = plan(client, table="t").endpoints[0].ticket.ticket
    reached: list[str] = []
    made: Counter[str] = Counter()

    def note(request: Request) -> None:
        if "secret" in request.root or "/etc" in request.root:
            reached.append(request.root)

    def refused(kind: str, ask: Ask, client: Any) -> None:
        made[kind] += 1
        with pytest.raises((fl.FlightError, pa.ArrowInvalid)) as caught:
            ask(client)
        assert "Traceback" not in str(caught.value)
        if isinstance(caught.value, pa.ArrowInvalid):
            assert kind == "sql"
            assert "[SQLSTATE 42000]" in str(caught.value)
            return
        told = error_from(caught.value.extra_info)
        assert told is not None, (kind, made, caught.value)
        assert isinstance(told, _RIGHT[kind]), (kind, made, told)
        assert type(told) is not errors.ServeError, told  # an internal error is never the right one
        assert kind != "expired" or "expired" in str(told)
        # What the client wrote itself may come back to it, and nothing of what is there.
        assert kind == "sql" or str(folder) not in str(caught.value)
        assert "unseen" not in str(caught.value)

    token = add_token(tmp_path / "tokens", "me")
    with observe(note), serving({"t": folder / "lake/t"}, tokens=TokenFile(tmp_path / "tokens")) as guarded:
        for kind, ask in (*_requests(random.Random(5), good), *_statements(folder)):
            refused(kind, ask, client)
        right = _Bearing(location(guarded), (b"authorization", f"Bearer {token}".encode()))
        assert right.get_flight_info(fl.FlightDescriptor.for_path("t")).endpoints  # a wrong token later changes nothing
        for headers in _wrong_headers(token):
            for ask in (_planned(fl.FlightDescriptor.for_path("t")), _done("health", b""), _got(good)):
                refused("token", ask, _Bearing(location(guarded), *headers))
        assert right.get_flight_info(fl.FlightDescriptor.for_path("t")).endpoints
    assert made.total() >= 300
    assert set(made) == set(_RIGHT)
    assert min(made.values()) >= 10
    assert reached == []
    assert sorted(each.name for each in folder.iterdir()) == ["lake", "secret", "secret.csv"]
    assert client.do_get(fl.Ticket(good)).read_all().column("path").to_pylist() == ["a.parquet"]
    assert server.budgets.streams == 0


def test_errors_of_get_schema_tell_no_places(hostile: tuple[FlightServer, Path]) -> None:
    """PyArrow sends the trace of what is raised there, whatever it is; the error itself is ours all the same."""
    server, folder = hostile
    client = fl.connect(location(server))
    for command, words in ((b'{"table": "lake/link"}', "There is no table"), (b"{", "cannot be understood")):
        with pytest.raises(pa.ArrowException, match=words) as caught:
            client.get_schema(fl.FlightDescriptor.for_command(command))
        assert str(folder) not in str(caught.value)


def test_writing_and_exchanging_are_refused(hostile: tuple[FlightServer, Path]) -> None:
    client = fl.connect(location(hostile[0]))
    descriptor = fl.FlightDescriptor.for_command(b'{"table": "t"}')
    writer, _ = client.do_put(descriptor, FILES_SCHEMA)
    with pytest.raises(fl.FlightServerError, match="for reading only"):
        writer.close()
    exchange, reader = client.do_exchange(descriptor)
    with pytest.raises(fl.FlightServerError, match="no DoExchange"):
        reader.read_all()
    with pytest.raises(fl.FlightServerError):
        exchange.close()


def test_an_expired_ticket_is_refused() -> None:
    now = [1000.0]
    signer = TicketSigner(KEY, lifetime=60, clock=lambda: now[0])
    command = ScanCommand(table="t", version=0)
    data = signer.encode(Ticket(command, "id", -1, "a", signer.expiry()))
    assert signer.decode(data, "a").command == command
    now[0] = 1061.0
    with pytest.raises(TicketError, match="expired"):
        signer.decode(data, "a")
    with pytest.raises(TicketError, match="did not sign"):
        TicketSigner(KEY + b"x").decode(data, "a")
    with pytest.raises(OptionError, match="too short"):
        TicketSigner(b"short")


def test_a_command_that_is_too_long_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    monkeypatch.setattr(msgspec.json, "decode", lambda *_, **__: parsed.append(1))
    with pytest.raises(OptionError, match="more than 100"):
        parse_command(b'{"table": "t"}' + b" " * 100, most=100)
    with pytest.raises(TicketError, match="bytes, more than"):
        TicketSigner(KEY).decode(b"x" * 1_000_000, "a")
    assert parsed == []


@pytest.mark.parametrize("way", ["absolute", "link", "relative"])
def test_rows_of_files_outside_the_folders_are_not_read(tmp_path: Path, way: str) -> None:
    """A log can name any file of the machine; the server reads for others and looks where it is first."""
    make_table(tmp_path / "outside", files=1, rows=3)
    make_table(tmp_path / "t", files=1, rows=3)
    file = next((tmp_path / "outside").glob("*.parquet"))
    (tmp_path / "t" / "link.parquet").symlink_to(file)
    logged = {"absolute": str(file), "link": "link.parquet", "relative": "../outside/" + file.name}[way]
    entry = {"path": logged, "size": file.stat().st_size, "modificationTime": 0, "dataChange": True}
    commit = tmp_path / "t" / "_delta_log" / f"{lazydelta.DeltaTable(tmp_path / 't').version() + 1:020}.json"
    commit.write_text(json.dumps({"add": entry | {"partitionValues": {}}}), encoding="utf-8")
    with serving({"t": tmp_path / "t"}) as server, connected(server) as connection:
        with pytest.raises(errors.DataFileError) as caught:
            connection.table("t").rows().read_all()
        assert str(tmp_path / "t") not in str(caught.value)
        assert connection.table("t").files().collect()
