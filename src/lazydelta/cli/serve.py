"""``lazydelta serve``: serves tables over Arrow Flight until it is stopped."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO, TYPE_CHECKING, Any

import click

from lazydelta.cli.app import CommandGroup
from lazydelta.cli.output import note, output
from lazydelta.cli.parameters import (
    CONTEXT,
    check_uri,
    debug_option,
    folders,
    json_option,
    named_table,
    pairs,
    refuse_extra_arguments,
    storage_option,
)
from lazydelta.errors import OptionError, require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazydelta.server.config import ServeConfig
    from lazydelta.server.flight import FlightServer

__all__ = ["serve", "ui"]

_SERVER = ("host", "port", "tls_cert", "tls_key", "client_ca", "tokens", "plaintext", "ticket_key")
_CONTEXT = CONTEXT | {"allow_interspersed_args": False}  # an argument that is not an option is a subcommand
_MORE = ("drain_seconds", "metrics_port", "access_log", "sql", "http_port")


@click.group(
    "serve",
    cls=CommandGroup,
    invoke_without_command=True,
    context_settings=CONTEXT | {"allow_interspersed_args": False},
)
@click.option(
    "--table", "tables", multiple=True, metavar="NAME=URI", callback=pairs, help="A table and its name; repeatable."
)
@click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="NAME=URI",
    callback=pairs,
    help="A folder whose tables are served as NAME/folder; repeatable.",
)
@click.option("--config", type=click.Path(dir_okay=False), metavar="F", help="A TOML file with settings.")
@click.option("--host", metavar="H", help="The address to listen on; 127.0.0.1 unless tokens are required.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="The port; 0 chooses a free port.")
@click.option("--tls-cert", metavar="F", help="The server's certificate (PEM).")
@click.option("--tls-key", metavar="F", help="Its private key (PEM).")
@click.option("--client-ca", metavar="F", help="Accept only clients with a certificate of this authority (PEM).")
@click.option("--tokens", metavar="F", help="Accept only clients with a token in this file; see `token add`.")
@click.option(
    "--plaintext", is_flag=True, default=None, help="Accept tokens without TLS, behind a proxy that terminates TLS."
)
@click.option("--ticket-key", metavar="F", help="The key that signs tickets; several servers can share it.")
@click.option(
    "--drain-seconds", type=float, metavar="S", help="How many seconds streams may continue at shutdown (30)."
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Serve Prometheus metrics over HTTP on this port.",
)
@click.option("--access-log", metavar="F", help="Log one line of JSON per request to this file; - is standard error.")
@click.option("--sql/--no-sql", default=None, help="Serve Flight SQL on the same port (the default).")
@click.option(
    "--http",
    "http_port",
    type=click.IntRange(0, 65535),
    is_flag=False,
    flag_value=0,
    metavar="[N]",
    help="Also serve the page and the Kusto endpoint, on this port or a free one.",
)
@storage_option
@json_option
@debug_option
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    *,
    tables: dict[str, str],
    roots: dict[str, str],
    config: str | None,
    storage_option: dict[str, str],
    as_json: bool,
    **given: Any,
) -> None:
    """Serve tables over Arrow Flight and Flight SQL, to any language; the location is printed once the server listens.

    Without tokens it listens on this machine only. SIGTERM and Ctrl-C stop it after running streams have
    finished.
    """
    if ctx.invoked_subcommand is not None:
        return
    refuse_extra_arguments()
    _run(_settings(config, tables, roots, storage_option, given), as_json=as_json)


@click.command("ui", context_settings=CONTEXT)
@click.argument("tables", nargs=-1, metavar="[NAME=]URI …", required=True, shell_complete=folders)
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="The port; a free one by default.")
@click.option("--open/--no-open", "opens", default=True, help="Open the page in a browser (the default).")
@storage_option
@json_option
@debug_option
def ui(*, tables: tuple[str, ...], port: int, opens: bool, storage_option: dict[str, str], as_json: bool) -> None:
    """Explore tables in the browser: timeline, files, history, SQL and KQL queries, and scan plans.

    The page is served to this machine only; Ctrl-C stops it. `serve --http` serves it to others.
    """
    # Before the server names the extra of Flight alone.
    require("http", "duckdb", "lark", "google.protobuf", "starlette", "uvicorn")
    from lazydelta.server.flight import until_told  # noqa: PLC0415 - an optional extra
    from lazydelta.server.http.listening import address_of, served  # noqa: PLC0415

    refuse_extra_arguments()
    named = dict(named_table(each) for each in tables)
    settings = _settings(None, named, {}, storage_option, dict.fromkeys((*_SERVER, *_MORE)))
    with until_told() as told, served(settings, host=settings.server.host, port=port) as server:
        location = address_of(settings, settings.server.host, server.port)
        output(as_json=as_json).step({"location": location}, lambda found: [str(found["location"])])
        sys.stdout.flush()
        if opens:
            click.launch(location)
        told.wait()


@serve.group("token", cls=CommandGroup)
def token() -> None:
    """Create tokens for clients."""


@token.command("add", context_settings=CONTEXT)
@click.argument("file", type=click.Path(dir_okay=False))
@click.argument("name")
@click.option(
    "--allow", multiple=True, metavar="TABLE", help="A table that the token may read, or ROOT/*; all by default."
)
@json_option
@debug_option
def token_add(file: str, name: str, *, allow: tuple[str, ...], as_json: bool) -> None:
    """Add a token to a file of tokens and print it; the file keeps only its salted hash."""
    from lazydelta.server.tokens import add_token  # noqa: PLC0415 - not needed for --help

    refuse_extra_arguments()
    made = {"name": name, "token": add_token(file, name, allow or None), "tables": list(allow) or None}
    output(as_json=as_json).tell(made, lambda found: [str(found["token"])])


def _settings(
    path: str | None, tables: dict[str, str], roots: dict[str, str], storage: dict[str, str], given: dict[str, Any]
) -> ServeConfig:
    import msgspec  # noqa: PLC0415 - as above

    from lazydelta.server.config import ServeConfig, TableSettings, read_config  # noqa: PLC0415

    found = ServeConfig() if path is None else read_config(path)
    for uri in (*tables.values(), *roots.values()):
        check_uri(uri)
    chosen = {name: given[name] for name in (*_SERVER, *_MORE) if given[name] is not None}
    return msgspec.structs.replace(
        found,
        tables=found.tables | {name: TableSettings(uri, storage) for name, uri in tables.items()},
        roots=found.roots | {name: TableSettings(uri, storage) for name, uri in roots.items()},
        server=msgspec.structs.replace(found.server, **chosen),
    ).checked()


def _run(settings: ServeConfig, *, as_json: bool) -> None:
    """Serve until a signal stops the server."""
    from lazydelta.server.flight import drain, until_told  # noqa: PLC0415 - as above

    with contextlib.ExitStack() as stack:
        told = stack.enter_context(until_told())
        server = _server(settings, stack)
        host = settings.server.host
        location = f"{settings.scheme}://{f'[{host}]' if ':' in host and '[' not in host else host}:{server.port}"
        facts: dict[str, Any] = {"location": location}
        if settings.server.metrics_port is not None:
            port, http = server.metrics.listen(settings.server.metrics_host, settings.server.metrics_port)
            stack.callback(http.shutdown)
            facts["metrics"] = f"http://{settings.server.metrics_host}:{port}/metrics"
            note(f"metrics at {facts['metrics']}")
        if settings.server.http_port is not None:
            facts["http"] = _beside(settings, server, stack)
            note(f"the page and the Kusto endpoint at {facts['http']}")
        # One line, so that the program that started the server can read the location.
        output(as_json=as_json).step(facts, lambda found: [str(found["location"])])
        sys.stdout.flush()
        told.wait()
        note("ending: no more streams are taken, those that run may end")
        if not drain(server, settings.server.drain_seconds):
            note("some clients take nothing of what is on its way to them; they can resume elsewhere")
            sys.stderr.flush()
            os._exit(0)  # gRPC would wait for them forever


def _beside(settings: ServeConfig, flight: FlightServer, stack: contextlib.ExitStack) -> str:
    """Serve HTTP beside Flight and return its address."""
    from lazydelta.server.http.listening import address_of, served  # noqa: PLC0415 - an optional extra
    from lazydelta.server.tokens import TokenFile  # noqa: PLC0415

    server = settings.server
    tokens = None if server.tokens is None else TokenFile(server.tokens)
    http = stack.enter_context(
        served(settings, host=server.host, port=server.http_port or 0, tokens=tokens, beside=flight)
    )
    return address_of(settings, server.host, http.port)


def _server(settings: ServeConfig, stack: contextlib.ExitStack) -> FlightServer:
    from lazydelta.server.flight import FlightServer  # noqa: PLC0415
    from lazydelta.server.tokens import AccessLog, TokenFile  # noqa: PLC0415

    server = settings.server
    tokens = None if server.tokens is None else TokenFile(server.tokens)
    log = AccessLog(None if server.access_log is None else stack.enter_context(_log_file(server.access_log)))
    location = f"{settings.scheme}://{server.host}:{server.port}"
    try:
        return FlightServer(
            location,
            settings.served_tables(),
            settings.signer(),
            budgets=settings.limits.budgets(),
            limits=settings.limits.of_requests(),
            tokens=tokens,
            access_log=log,
            sql=settings.limits.of_statements() if server.sql else None,
            **settings.tls(),
        )
    except OSError as error:
        message = f"The server cannot listen at {location}: {error}"
        raise OptionError(message, hint="check whether the port is in use or the certificate is damaged") from None


@contextlib.contextmanager
def _log_file(path: str) -> Iterator[IO[str]]:
    if path == "-":
        yield sys.stderr
        return
    try:
        out = open(path, "a", encoding="utf-8")  # noqa: PTH123, SIM115 - closed below
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}", hint="pass a writable file") from None
    with out:
        yield out
