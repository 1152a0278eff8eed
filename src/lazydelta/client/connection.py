"""``connect``: a connection to a table server that reconnects when it breaks."""

from __future__ import annotations

import ipaddress
import random
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from lazydelta.client.wire import ScanCommand, error_from
from lazydelta.errors import (
    DeadlineError,
    LazyDeltaError,
    OptionError,
    ServeError,
    ServerBusyError,
    ServerUnreachableError,
    StreamClosedError,
    UnauthenticatedError,
)
from lazydelta.runtime.threads import ClosesItself
from lazydelta.warned import LazyDeltaWarning

if TYPE_CHECKING:
    import os

    from lazydelta.client.remote_table import RemoteTable

__all__ = ["Connection", "connect"]

T = TypeVar("T")

_SCHEMES = ("grpc://", "grpc+tcp://", "grpc+tls://", "grpc+unix://")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# Without the bandwidth probe, an idle reader buffers 0.2 MB of the server's batches instead of 33 MB.
_CHANNEL = [("grpc.http2.bdp_probe", 0)]


def connect(
    location: str,
    *,
    token: str | None = None,
    tls_root_certs: str | os.PathLike[str] | bytes | None = None,
    cert_chain: str | os.PathLike[str] | bytes | None = None,
    private_key: str | os.PathLike[str] | bytes | None = None,
    attempts: int = 8,
    timeout: float | None = None,
    plaintext: bool = False,
) -> Connection:
    """Connect to the location that ``lazydelta serve`` printed: ``grpc://host:port`` or ``grpc+tls://host:port``.

    ``token`` is sent with each call. Without TLS it is only sent to this machine, unless ``plaintext`` states that the
    connection is protected by other means. ``tls_root_certs`` is the authority that signed the server's certificate, if
    the system does not know it. ``cert_chain`` and ``private_key`` are the client's own, for a server that requires a
    client certificate. Each is a file or its bytes. A call on a broken connection is retried up to ``attempts`` times
    without progress. ``timeout`` limits the total seconds of a stream.
    """
    if not location.startswith(_SCHEMES):
        message = f"{location!r} is not a server location"
        raise OptionError(message, hint="it begins with grpc:// or grpc+tls://, as lazydelta serve prints it")
    if token is not None and not plaintext and _is_read_by_others(location):
        message = f"The token would be sent to {location} in plain text"
        hint = "connect with grpc+tls://, or pass plaintext=True where a tunnel or proxy protects the connection"
        raise OptionError(message, hint=hint)
    tls: dict[str, Any] = {
        name: _content(value)
        for name, value in (
            ("tls_root_certs", tls_root_certs),
            ("cert_chain", cert_chain),
            ("private_key", private_key),
        )
        if value is not None
    }
    return Connection(location, token, tls, attempts=attempts, timeout=timeout)


class Connection(ClosesItself):
    """A connection to a table server. It is thread-safe, and leaving its ``with`` block closes it."""

    def __init__(
        self,
        location: str,
        token: str | None = None,
        tls: dict[str, Any] | None = None,
        *,
        attempts: int = 8,
        timeout: float | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        if token is not None and not (token.isascii() and token.isprintable()):
            raise OptionError("This is not a token", hint="pass NAME.SECRET, as lazydelta serve token add printed it")
        if attempts < 1:
            raise OptionError(f"attempts={attempts} is not valid", hint="pass a number of at least 1")
        self.location = location
        self.attempts = attempts
        self._timeout = timeout
        self._tls = tls or {}
        self._headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        self._lock = threading.Lock()
        self._client: Any = None
        self._closed = False
        self._pause = pause

    def tables(self, prefix: str = "") -> list[str]:
        """Return the names of the tables that this client may read and that start with ``prefix``.

        Tables below a root are named by their folders (``lake/sales/orders``). A server limits the number of names in
        one listing. If there may be more, a ``LazyDeltaWarning`` is issued, and a longer ``prefix`` finds them.
        """
        found = self.retried(lambda client: list(client.list_flights(prefix.encode(), self.options())))
        if any(info.app_metadata for info in found):
            message = f"{self.location} names {len(found)} tables, and there may be more: pass a prefix"
            warnings.warn(message, LazyDeltaWarning, stacklevel=2)
        return [b"/".join(info.descriptor.path).decode() for info in found]

    def table(self, name: str, version: int | str | None = None) -> RemoteTable:
        """Open a table at its newest version or at another one, given as a number or a timestamp string."""
        from lazydelta.client.remote_table import RemoteTable  # noqa: PLC0415 - it imports this module

        return RemoteTable(self, name, version)

    def health(self) -> dict[str, Any]:
        """Return the health that the server reports."""
        found: dict[str, Any] = msgspec.json.decode(self.action("health", b""))
        return found

    def close(self) -> None:
        """Close the connection. Open streams end with an error."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def __repr__(self) -> str:
        return f"Connection({self.location!r})"

    # --- for tables and streams

    def plan(self, command: ScanCommand) -> Any:
        """Return the server's plan for a command: schema, tickets, version."""
        descriptor = fl.FlightDescriptor.for_command(msgspec.json.encode(command))
        return self.retried(lambda client: client.get_flight_info(descriptor, self.options()))

    def action(self, kind: str, body: bytes) -> bytes:
        """Run an action and return its response."""

        def run(client: Any) -> bytes:
            results = [bytes(each.body) for each in client.do_action(fl.Action(kind, body), self.options())]
            return results[0] if results else b""

        return self.retried(run)

    def begin(self, ticket: bytes) -> Any:
        """Start a stream. If the connection is broken, this fails at once or with the first batch."""
        try:
            return self.client().do_get(fl.Ticket(ticket), self.options())
        except (fl.FlightError, pa.ArrowException, OSError) as error:
            raise our_error(error, self.location) from None

    def retried(self, call: Callable[[Any], T]) -> T:
        """Make a call. Retry it while the connection is broken or the server busy, until the attempts are used up."""
        failed = 0
        while True:
            try:
                return call(self.client())
            except (fl.FlightError, pa.ArrowException, OSError) as error:
                ours = our_error(error, self.location)
                failed += 1
                if not is_passing(ours) or failed >= self.attempts:
                    raise ours from None
            self.pause(failed)

    def pause(self, failed: int) -> None:
        """Wait before the next attempt, longer each time, and reconnect: gRPC itself would wait longer."""
        self._pause(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (failed - 1)) * random.uniform(0.5, 1))  # noqa: S311
        with self._lock:
            self._client = None  # streams of other threads hold the old one and end with it if they must

    def client(self) -> Any:
        """Return the current Flight client."""
        with self._lock:
            if self._closed:
                raise StreamClosedError("The connection is closed", hint="connect again")
            if self._client is None:
                self._client = fl.connect(self.location, generic_options=_CHANNEL, **self._tls)
            return self._client

    def options(self) -> Any:
        """Return the options of each call."""
        return fl.FlightCallOptions(headers=self._headers, timeout=self._timeout)


def _is_read_by_others(location: str) -> bool:
    """Return whether data sent to a server passes other machines unencrypted."""
    if location.startswith(("grpc+tls://", "grpc+unix://")):
        return False
    host = urlsplit(location).hostname or ""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost" and not host.endswith(".localhost")


def our_error(error: BaseException, location: str) -> LazyDeltaError:
    """Convert an error: return the error that a server described, or a connection error."""
    described = error_from(getattr(error, "extra_info", None) or b"")
    if described is not None:
        return described
    words = str(error).partition(". gRPC client debug context")[0]
    if isinstance(error, fl.FlightUnauthenticatedError):
        return UnauthenticatedError(f"{location} refuses the client: {words}", hint="connect with a token")
    if isinstance(error, fl.FlightTimedOutError):
        return DeadlineError(f"{location} did not answer in time: {words}", hint="increase the timeout")
    hint = "check that the server is running, and whether it requires TLS"
    if isinstance(error, fl.FlightUnavailableError | fl.FlightInternalError | fl.FlightCancelledError | OSError):
        return ServerUnreachableError(f"The connection to {location} is broken: {words}", hint=hint)
    return ServeError(f"{location} refuses: {words}")


def is_passing(error: LazyDeltaError) -> bool:
    """Return whether a retry may succeed."""
    return isinstance(error, ServerUnreachableError | ServerBusyError)


def _content(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return Path(value).read_bytes()
    except OSError as error:
        raise OptionError(f"{value} cannot be read: {error.strerror}", hint="pass a PEM file") from None
