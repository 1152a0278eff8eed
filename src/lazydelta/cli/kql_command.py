"""``lazydelta kql``: a query over named tables, or the same query rewritten for a cluster."""

from __future__ import annotations

import importlib.util
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from lazydelta.cli.output import output
from lazydelta.cli.parameters import (
    CONTEXT,
    check_uri,
    debug_option,
    external_option,
    json_option,
    library_option,
    pairs,
    refuse_extra_arguments,
    storage_option,
)
from lazydelta.cli.wording import printable
from lazydelta.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lazydelta.delta_table import DeltaTable
    from lazydelta.kql import KqlResult

__all__ = ["kql", "run_kql", "told"]


def run_kql(
    text: str,
    tables: dict[str, str],
    *,
    now: datetime | None = None,
    open_table: Callable[[str], DeltaTable] | None = None,
) -> KqlResult:
    """Start a query over tables that are given by URI; what `query --kql` calls too."""
    _check_installed()
    from lazydelta.kql.running.kql_query import run  # noqa: PLC0415 - DuckDB and Lark are optional

    return run(text, tables, now=now, open_table=open_table)


def _check_installed() -> None:
    for package in ("lark", "duckdb"):
        if importlib.util.find_spec(package) is None:
            raise OptionError(f"KQL needs {package}, which is not installed", hint="pip install 'lazydelta[kql]'")


@click.command("kql", context_settings=CONTEXT)
@click.argument("text")
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="NAME=URI",
    callback=pairs,
    help="A table and the name that the query gives it; repeatable.",
)
@click.option("--now", metavar="T", help="The moment that now() and ago() go by: ISO 8601, UTC unless it has a zone.")
@click.option("--explain", is_flag=True, help="Show what of the query reaches the tables, what does not, and why.")
@click.option(
    "--rewrite", is_flag=True, help="Print the query for a cluster: externaldata over the files that may match."
)
@click.option(
    "--cluster-uri",
    multiple=True,
    metavar="NAME=URI",
    callback=pairs,
    help="With --rewrite: where the cluster finds a table; repeatable.",
)
@click.option(
    "--secret-variable",
    metavar="NAME",
    help="With --rewrite: the environment variable that holds a SAS token or ;key, to be put behind each address.",
)
@click.option("--managed-identity", metavar="ID", help="With --rewrite: system, or the object id of an identity.")
@click.option("--cap", type=click.IntRange(min=0), metavar="BYTES", help="With --rewrite: refuse more bytes of files.")
@storage_option
@external_option
@library_option
@json_option
@debug_option
def kql(  # noqa: PLR0913 - one parameter an option
    text: str,
    *,
    tables: dict[str, str],
    now: str | None,
    explain: bool,
    rewrite: bool,
    cluster_uri: dict[str, str],
    secret_variable: str | None,
    managed_identity: str | None,
    cap: int | None,
    storage_option: dict[str, str],
    option: dict[str, str],
    external_location: dict[str, dict[str, str]],
    as_json: bool,
) -> None:
    """Ask tables in KQL, the language of Azure Data Explorer.

    Rows are printed while they are found; files are read only until the query has what it asks for.
    """
    refuse_extra_arguments()

    def open_table(uri: str) -> DeltaTable:
        from lazydelta.delta_table import DeltaTable  # noqa: PLC0415 - loaded by whoever runs the command, not by its help

        check_uri(uri)
        return DeltaTable(
            uri, storage_options=storage_option or None, options=option, external_locations=external_location
        )

    moment = None if now is None else _moment(now)
    out = output(as_json=as_json)
    if rewrite:
        rewritten = _rewritten(
            text,
            tables,
            now=moment,
            cluster_uris=cluster_uri,
            secret=None if secret_variable is None else _secret(secret_variable),
            managed_identity=managed_identity,
            open_table=open_table,
            **({} if cap is None else {"cap": cap}),
        )
        if as_json:
            out.tell({"query": rewritten}, lambda _: ())
        else:
            # Not through the renderer for people, which would break lines: this is to be pasted.
            click.echo(rewritten)
        return
    with run_kql(text, tables, now=moment, open_table=open_table) as result:
        if explain:
            out.tell(result.explain(), lambda found: map(printable, told(found)))
        else:
            out.rows(iter(result), result.schema.names)


def told(explained: dict[str, Any]) -> Iterator[str]:
    """Yield an explanation for people, line by line."""
    for table in explained["tables"]:
        yield f"{table['table']}"
        yield f"  columns     {', '.join(table['columns']) or 'none'}"
        yield f"  predicate   {json.dumps(table['where'], ensure_ascii=False) if table['where'] else 'none'}"
        yield f"  row limit   {'none' if table['row_limit'] is None else table['row_limit']}"
        for each in table["conditions"]:
            why = f": {each['why']}" if each["why"] else ""
            yield f"  {'reached' if each['reached'] else 'stopped'}     {' '.join(each['text'].split())}{why}"
    yield f"SQL  {explained['sql']}"


def _rewritten(text: str, tables: dict[str, str], **options: Any) -> str:
    _check_installed()
    from lazydelta.kql.running.cluster_rewrite import rewrite  # noqa: PLC0415 - DuckDB and Lark are optional

    return rewrite(text, tables, **options)


def _secret(variable: str) -> str:
    # Not on the command line, where every process of the machine can read it.
    secret = os.environ.get(variable)
    if not secret:
        raise OptionError(f"The environment variable {variable} is not set", hint="put the token or the key into it")
    return secret


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is not an ISO 8601 timestamp"
        raise OptionError(message, hint="write it as 2026-02-10T22:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
