"""``HttpServer``: the HTTP application on a socket, in a thread of its own, until it is closed."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from lazydelta.errors import OptionError, require

require("http", "starlette", "uvicorn")

import anyio.to_thread  # noqa: E402 - after the check for the extra
import uvicorn  # noqa: E402

from lazydelta.runtime.threads import start_thread  # noqa: E402
from lazydelta.server.actions import ServingMetrics  # noqa: E402
from lazydelta.server.config import ServeConfig, is_loopback  # noqa: E402
from lazydelta.server.flight import FlightServer  # noqa: E402
from lazydelta.server.http.app import HttpApp, HttpOptions  # noqa: E402
from lazydelta.server.http.queries import Queries  # noqa: E402
from lazydelta.server.tables import ServedTables  # noqa: E402
from lazydelta.server.tokens import AccessLog, TokenFile  # noqa: E402
from lazydelta.server.worker_pool import WorkerPool  # noqa: E402

__all__ = ["HttpServer", "address_of", "served"]

_MOST_CONNECTIONS = 1000
_HEADER_BYTES = 32 << 10
_THREADS = 400
_KEEP_ALIVE_SECONDS = 15
_END_SECONDS = 10.0


class HttpServer:
    """Listens as soon as it is created. ``port`` is the one that it got."""

    def __init__(self, app: HttpApp, host: str, port: int, tls: Mapping[str, Any] | None = None) -> None:
        self.app = app
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host.strip("[]"), port), family=family, backlog=128)
        except OSError as error:
            message = f"The server cannot listen at {host}:{port}: {error.strerror or error}"
            raise OptionError(message, hint="check whether the port is in use") from None
        self.port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            _with_threads(app),
            log_config=None,
            access_log=False,
            ws="none",
            lifespan="off",
            http="h11",
            proxy_headers=False,
            server_header=False,
            date_header=True,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(_END_SECONDS),
            h11_max_incomplete_event_size=_HEADER_BYTES,
            **(tls or {}),
        )
        self._server = uvicorn.Server(config)
        self._thread = start_thread(self._run, "lazydelta-http")

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def refuse(self) -> None:
        """Tell load balancers that the server is about to end."""
        self.app.is_ending = True

    def close(self) -> None:
        """End the server. Statements that run are cancelled."""
        self.refuse()
        self.app.queries.cancel_all()
        self._server.should_exit = True
        self._thread.join(_END_SECONDS)
        self._socket.close()


def _with_threads(app: HttpApp) -> Any:
    """Return the application with enough threads: a handler that waits for room keeps one."""
    is_set = False

    async def first(scope: Any, receive: Any, send: Any) -> None:
        nonlocal is_set
        if not is_set:
            anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
            is_set = True
        await app(scope, receive, send)

    return first


@contextlib.contextmanager
def served(
    settings: ServeConfig,
    *,
    host: str,
    port: int,
    tokens: TokenFile | None = None,
    access_log: AccessLog | None = None,
    beside: FlightServer | None = None,
) -> Iterator[HttpServer]:
    """Serve HTTP until the end of the block, with the tables, budgets and workers of a Flight server if given."""
    limits = settings.limits.of_statements()
    with contextlib.ExitStack() as stack:
        tables: ServedTables
        if beside is None:
            tables, budgets = settings.served_tables(), settings.limits.budgets()
            metrics = ServingMetrics(budgets, tables.name_of)
        else:
            tables, budgets, metrics = beside.tables, beside.budgets, beside.metrics
        workers = None if beside is None or beside.sql is None else beside.sql.workers
        if workers is None:
            workers = WorkerPool(
                memory=limits.memory,
                reading_memory=limits.reading_memory,
                threads=limits.threads or os.cpu_count() or 1,
            )
            stack.callback(workers.close)
            workers.start()
        log = access_log or AccessLog(None)
        queries = Queries(tables, workers, limits, budgets=budgets, metrics=metrics, access_log=log)
        app = HttpApp(queries, tokens, HttpOptions(hosts=_hosts(settings, host, tokens)))
        server = HttpServer(app, host, port, _tls(settings))
        stack.callback(server.close)
        yield server


def address_of(settings: ServeConfig, host: str, port: int) -> str:
    """Return the address that a browser opens."""
    scheme = "http" if settings.server.tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host and '[' not in host else host}:{port}"


def _hosts(settings: ServeConfig, host: str, tokens: TokenFile | None) -> frozenset[str] | None:
    given = frozenset(each.lower() for each in settings.server.http_hosts)
    if given:
        return given
    if tokens is None or is_loopback(host):
        return HttpOptions().hosts
    return None


def _tls(settings: ServeConfig) -> dict[str, Any]:
    server = settings.server
    if server.tls_cert is None:
        return {}
    given: dict[str, Any] = {"ssl_certfile": server.tls_cert, "ssl_keyfile": server.tls_key}
    if server.client_ca is not None:
        given |= {"ssl_ca_certs": server.client_ca, "ssl_cert_reqs": 2}
    return given
