"""``ServeConfig``: the settings of a server, from a TOML file, the command line or both.

Invalid and insecure settings are rejected before the server listens.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from lazydelta.client.wire import MAX_COMMAND_BYTES
from lazydelta.errors import OptionError
from lazydelta.server.budgets import Budgets
from lazydelta.server.flight import ServerLimits
from lazydelta.server.flight_sql.calls import SqlLimits
from lazydelta.server.tables import ServedTables, TablePlace
from lazydelta.server.ticket import TicketSigner

__all__ = ["LimitSettings", "ServeConfig", "ServerSettings", "TableSettings", "read_config"]

_LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost"})


class TableSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One table, or a folder of tables."""

    uri: str
    storage_options: dict[str, str] = msgspec.field(default_factory=dict)
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    external_locations: dict[str, dict[str, str]] | None = None

    def place(self) -> TablePlace:
        """Return the location with its options."""
        return TablePlace(self.uri, self.storage_options, self.options, self.external_locations)

    def __repr__(self) -> str:
        return f"TableSettings({self.uri!r})"  # the options may hold credentials


class ServerSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The address that the server listens on, and which clients it accepts."""

    host: str = "127.0.0.1"
    port: int = 0
    tls_cert: str | None = None
    tls_key: str | None = None
    client_ca: str | None = None
    tokens: str | None = None
    plaintext: bool = False
    ticket_key: str | None = None
    ticket_seconds: float = 3600.0
    drain_seconds: float = 30.0
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    access_log: str | None = None
    sql: bool = True
    http_port: int | None = None
    http_hosts: tuple[str, ...] = ()


class LimitSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Limits for the server, each client and each request. Memory is in bytes."""

    streams: int = 64
    streams_per_client: int = 16
    memory: int = 2 << 30
    memory_per_client: int = 1 << 30
    files_memory: int = 64 << 20
    rows_memory: int = 150 << 20
    sql_memory: int = 256 << 20
    seconds: float | None = 3600.0
    sql_seconds: float | None = 600.0
    spill_bytes: int = 256 << 20
    queue: int = 256
    queue_per_client: int = 64
    queue_seconds: float = 30.0
    command_bytes: int = MAX_COMMAND_BYTES
    listed_tables: int = 1000

    def budgets(self) -> Budgets:
        """Return the budgets for streams."""
        return Budgets(
            streams=self.streams,
            streams_per_client=self.streams_per_client,
            memory=self.memory,
            memory_per_client=self.memory_per_client,
            queue=self.queue,
            queue_per_client=self.queue_per_client,
            queue_seconds=self.queue_seconds,
        )

    def of_statements(self) -> SqlLimits:
        """Return the limits of one Flight SQL statement: memory for DuckDB, and memory for reading its rows."""
        given = [each for each in (self.sql_seconds, self.seconds) if each is not None]
        return SqlLimits(
            memory=self.sql_memory,
            reading_memory=self.rows_memory,
            statement_seconds=min(given) if given else None,
            spill_bytes=self.spill_bytes,
        )

    def of_requests(self) -> ServerLimits:
        """Return the limits of one request."""
        return ServerLimits(self.command_bytes, self.files_memory, self.rows_memory, self.seconds, self.listed_tables)


class ServeConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """All settings of a server."""

    tables: dict[str, TableSettings] = msgspec.field(default_factory=dict)
    roots: dict[str, TableSettings] = msgspec.field(default_factory=dict)
    server: ServerSettings = msgspec.field(default_factory=ServerSettings)
    limits: LimitSettings = msgspec.field(default_factory=LimitSettings)

    def served_tables(self) -> ServedTables:
        """Return the tables by name."""
        return ServedTables(
            {name: each.place() for name, each in self.tables.items()},
            {name: each.place() for name, each in self.roots.items()},
        )

    def signer(self) -> TicketSigner:
        """Return the signer of tickets. Its key is shared with other servers, or random for this process."""
        key = os.urandom(32) if self.server.ticket_key is None else _file(self.server.ticket_key, "key for tickets")
        return TicketSigner(key, lifetime=self.server.ticket_seconds)

    def tls(self) -> dict[str, Any]:
        """Return the TLS arguments for Flight. Return an empty dictionary if TLS is off."""
        server = self.server
        if server.tls_cert is None or server.tls_key is None:
            return {}
        certificate = (_file(server.tls_cert, "certificate"), _file(server.tls_key, "private key"))
        given: dict[str, Any] = {"tls_certificates": [certificate]}
        if server.client_ca is not None:
            given |= {"verify_client": True, "root_certificates": _file(server.client_ca, "clients' authority")}
        return given

    @property
    def scheme(self) -> str:
        """The scheme of the server's location."""
        return "grpc" if self.server.tls_cert is None else "grpc+tls"

    def checked(self) -> ServeConfig:
        """Return the settings. Raise ``OptionError`` if they contradict each other or are insecure."""
        server = self.server
        wrong = _wrong(self)
        if wrong is not None:
            raise OptionError(wrong[0], hint=wrong[1])
        if is_loopback(server.host):
            return self
        if server.tokens is None and server.client_ca is None:
            message = f"Without tokens a server may only listen on the loopback interface, not on {server.host}"
            raise OptionError(message, hint="pass --tokens, or --client-ca with TLS, or omit --host")
        if server.tls_cert is None and not server.plaintext:
            message = f"Without TLS, tokens sent to {server.host} could be read on the network"
            raise OptionError(
                message, hint="pass --tls-cert and --tls-key, or --plaintext behind a proxy that terminates TLS"
            )
        return self


def read_config(path: str) -> ServeConfig:
    """Read a TOML file. Unknown settings are an error, because a misspelled limit would not apply."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        return msgspec.convert(data, ServeConfig)
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}", hint="pass a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise OptionError(
            f"{path} is not a valid configuration: {error}", hint="docs/serving.md has an example"
        ) from None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host. A name that needs DNS does not count as loopback."""
    if host.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _wrong(config: ServeConfig) -> tuple[str, str] | None:
    server, limits = config.server, config.limits
    if not config.tables and not config.roots:
        return "There is nothing to serve", "give --table NAME=URI, or tables in --config"
    if (server.tls_cert is None) != (server.tls_key is None):
        return "A certificate and its private key belong together", "give both --tls-cert and --tls-key"
    if server.client_ca is not None and server.tls_cert is None:
        return "Certificates of clients are a part of TLS", "give --tls-cert and --tls-key as well"
    for port in (server.port, server.http_port or 0):
        if not 0 <= port < 1 << 16:
            return f"{port} is not a port", "give a number up to 65535, 0 for any that is free"
    is_open = server.tokens is None and server.client_ca is not None and not is_loopback(server.host)
    if server.http_port is not None and is_open and not server.http_hosts:
        return "Without tokens a page elsewhere could reach the server by its own name", "give http_hosts, or --tokens"
    statement = limits.rows_memory + (limits.sql_memory if server.sql else 0)
    if max(limits.files_memory, statement) > limits.memory_per_client:
        return "A single stream would not fit into memory_per_client", "give more, or less for each stream"
    if limits.memory_per_client > limits.memory:
        return "memory_per_client is more than memory", "give one client less than all"
    return None


def _file(path: str, words: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OptionError(
            f"The {words} in {path} cannot be read: {error.strerror}", hint="pass the path of a file"
        ) from None
