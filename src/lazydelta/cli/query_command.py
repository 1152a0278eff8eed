"""``lazydelta query``: SQL over tables by name or by ``delta('URI')``, or KQL, run by DuckDB."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lazydelta.cli.kql_command import run_kql, told
from lazydelta.cli.output import output
from lazydelta.cli.parameters import (
    CONTEXT,
    check_uri,
    debug_option,
    json_option,
    pairs,
    refuse_extra_arguments,
    storage_option,
)
from lazydelta.cli.wording import printable
from lazydelta.errors import OptionError, QueryError

if TYPE_CHECKING:
    import pyarrow as pa

    from lazydelta.delta_table import DeltaTable
    from lazydelta.row_scan.rows_dataset import RowsDataset

__all__ = ["query"]

_CATALOG = "LAZYDELTA_CATALOG"


@click.command("query", context_settings=CONTEXT)
@click.argument("text", required=False)
@click.option("--file", "file", type=click.Path(dir_okay=False), metavar="F", help="Read the query from a file.")
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="NAME=URI",
    callback=pairs,
    help="A table and the name that the query gives it; repeatable.",
)
@click.option(
    "--catalog",
    type=click.Path(dir_okay=False),
    metavar="F",
    help=f"Names of tables in a TOML file, under [tables]; else the file that {_CATALOG} names.",
)
@click.option("--kql", "is_kql", is_flag=True, help="The query is KQL; tables are named by --table or the catalog.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with a header.")
@click.option("--arrow", "as_arrow", is_flag=True, help="Write a stream of Arrow record batches to standard output.")
@click.option("--parquet", type=click.Path(dir_okay=False), metavar="FILE", help="Write the rows to a Parquet file.")
@click.option("--explain", is_flag=True, help="Run the query and show what was pushed down, pruned and read.")
@storage_option
@json_option
@debug_option
def query(  # noqa: PLR0913 - one parameter an option
    text: str | None,
    *,
    file: str | None,
    tables: dict[str, str],
    catalog: str | None,
    is_kql: bool,
    as_csv: bool,
    as_arrow: bool,
    parquet: str | None,
    explain: bool,
    storage_option: dict[str, str],
    as_json: bool,
) -> None:
    """Ask tables in SQL, DuckDB's dialect, or in KQL.

    Tables are named by --table, by a catalog file, or in place as delta('URI'). Rows are printed while they are found;
    files are read only until the query has what it asks for.
    """
    refuse_extra_arguments()
    if sum([as_csv, as_arrow, as_json and not explain, parquet is not None]) > 1:
        raise click.UsageError("--csv, --json, --arrow and --parquet exclude each other.")
    named = _catalog(catalog) | tables
    asked: _Query | _KqlQuery = (_KqlQuery if is_kql else _Query)(_text(text, file), named, storage_option)
    with asked:
        if explain and isinstance(asked, _KqlQuery):
            output(as_json=as_json).tell(asked.result.explain(), lambda found: map(printable, told(found)))
        elif explain and isinstance(asked, _Query):
            for _ in asked.batches():
                pass
            output(as_json=as_json).tell(asked.explained(), _explained)
        elif as_arrow:
            _write_arrow(asked)
        elif parquet is not None:
            _write_parquet(asked, parquet)
        elif as_csv:
            _write_csv(asked)
        else:
            out = output(as_json=as_json) if as_json or not sys.stdout.isatty() else _fitting_output()
            out.rows(asked.batches(), asked.schema.names)


class _KqlQuery:
    """One query in KQL."""

    def __init__(self, text: str, named: dict[str, str], storage_options: dict[str, str]) -> None:
        def open_table(uri: str) -> DeltaTable:
            from lazydelta.delta_table import DeltaTable  # noqa: PLC0415 - loaded by whoever runs the command, not by its help

            check_uri(uri)
            return DeltaTable(uri, storage_options=storage_options or None)

        self.result = run_kql(text, named, open_table=open_table)
        self.schema: pa.Schema = self.result.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the answer as it comes."""
        return iter(self.result)

    def __enter__(self) -> _KqlQuery:  # noqa: PYI034 - of this module only
        return self

    def __exit__(self, *_: object) -> None:
        self.result.close()


class _Query:
    """One query over a connection of its own; all its tables share the threads and the memory of one pool."""

    def __init__(self, text: str, named: dict[str, str], storage_options: dict[str, str]) -> None:
        from lazydelta.engines import duckdb as engine  # noqa: PLC0415 - loaded by whoever runs the command, not by its help
        from lazydelta.engines.table_source import engine as load  # noqa: PLC0415
        from lazydelta.options import Options  # noqa: PLC0415
        from lazydelta.row_scan import ReadingPool  # noqa: PLC0415

        self._duckdb = load("duckdb", "duckdb")
        self._con = self._duckdb.connect()
        self._tables: list[tuple[str, RowsDataset]] = []
        try:
            self._pool = ReadingPool.for_store(Options.load().memory_budget, remote=True)
            for uri in engine.tables_of(self._con, text):
                check_uri(uri)
            used = engine.names_of(self._con, text)
            for name, uri in named.items():
                if name.lower() in used:
                    check_uri(uri)
                    options = storage_options or None
                    engine.register(
                        self._con, name, uri, storage_options=options, pool=self._pool, opened=self._remember
                    )
            relation = engine.query(
                self._con, text, storage_options=storage_options or None, pool=self._pool, opened=self._remember
            )
            self._reader = relation.to_arrow_reader()
        except self._duckdb.Error as error:
            self._con.close()
            raise _refused(error) from error
        except BaseException:
            self._con.close()
            raise

    @property
    def schema(self) -> pa.Schema:
        """The columns of the answer, each under a name of its own."""
        import pyarrow as pa  # noqa: PLC0415 - see above

        found = self._reader.schema
        return pa.schema([each.with_name(name) for each, name in zip(found, _distinct(found.names), strict=True)])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the answer as it comes."""
        import pyarrow as pa  # noqa: PLC0415 - see above

        while True:
            try:
                batch = self._reader.read_next_batch()
            except StopIteration:
                return
            except (self._duckdb.Error, pa.ArrowException, OSError) as error:
                raise _refused(error) from error
            yield batch.rename_columns(self.schema.names)

    def explained(self) -> list[dict[str, Any]]:
        """Return for each scan of each table what it did."""
        return [{"table": name, **scan()} for name, dataset in self._tables for scan in dataset.scans or ()]

    def _remember(self, name: str, dataset: RowsDataset) -> None:
        dataset.scans = []
        self._tables.append((name, dataset))

    def __enter__(self) -> _Query:  # noqa: PYI034 - of this module only
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._con.close()
        self._pool.close()


def _distinct(names: list[str]) -> list[str]:
    """Return names of which none is there twice: a join has those of both sides."""
    distinct: list[str] = []
    for name in names:
        unique, number = name, 0
        while unique in distinct or (number and unique in names):
            number += 1
            unique = f"{name}_{number}"
        distinct.append(unique)
    return distinct


def _refused(error: Exception) -> QueryError:
    return QueryError(f"DuckDB cannot answer the query: {error}", hint="mind DuckDB's dialect of SQL")


def _text(text: str | None, file: str | None) -> str:
    if (text is None) == (file is None):
        raise click.UsageError("Give the query, or --file with its name.")
    if file is None:
        return text or ""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"The query in {file} cannot be read: {error}", path=file) from error


def _catalog(given: str | None) -> dict[str, str]:
    path = given or os.environ.get(_CATALOG)
    if not path:
        return {}
    hint = 'write [tables] and below it name = "URI"'
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("tables", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"The catalog {path} cannot be read: {error}", path=path, hint=hint) from error
    if not isinstance(tables, dict) or not all(isinstance(uri, str) for uri in tables.values()):
        raise OptionError(f"The catalog {path} has more than names and URIs", path=path, hint=hint)
    return tables


def _fitting_output() -> Any:
    from lazydelta.cli.console_output import ConsoleOutput  # noqa: PLC0415 - people only

    return ConsoleOutput(width=os.get_terminal_size(sys.stdout.fileno()).columns)


def _write_csv(asked: _Query | _KqlQuery) -> None:
    import csv  # noqa: PLC0415 - one of several forms
    import json  # noqa: PLC0415

    from lazydelta.cli.values import plain, records  # noqa: PLC0415

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(asked.schema.names)
    for batch in asked.batches():
        for record in records(batch):
            cells = [plain(value) for value in record.values()]
            writer.writerow([json.dumps(cell) if isinstance(cell, dict | list) else cell for cell in cells])
        sys.stdout.flush()


def _write_arrow(asked: _Query | _KqlQuery) -> None:
    import pyarrow as pa  # noqa: PLC0415 - see above

    out = sys.stdout.buffer
    if sys.stdout.isatty():
        raise OptionError("A stream of Arrow batches is not for a terminal", hint="redirect it, or use --parquet FILE")
    with pa.ipc.new_stream(out, asked.schema) as writer:
        for batch in asked.batches():
            writer.write_batch(batch)
            out.flush()


def _write_parquet(asked: _Query | _KqlQuery, path: str) -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415 - see above

    # Under another name until it is whole: whoever finds the file finds all of its rows.
    unfinished = Path(f"{path}.unfinished-{os.getpid()}")
    try:
        with pq.ParquetWriter(unfinished, asked.schema) as writer:
            for batch in asked.batches():
                writer.write_batch(batch)
        unfinished.replace(path)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error}", path=path) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _explained(scans: list[dict[str, Any]]) -> Iterator[str]:
    if not scans:
        yield "The query reads no table."
    for scan in scans:
        plan, rows, files = scan["plan"], scan["rows"], scan["metrics"]
        yield f"{scan['table']}, version {plan['version']}"
        yield f"  columns read: {', '.join(plan['columns']) or 'none, rows are counted'}"
        yield f"  filter pushed down: {plan['predicate'] or 'none'}"
        yield f"  files: {files['delta.lazy.files_emitted']} found, {files['delta.lazy.files_pruned']} pruned by log"
        yield f"  files opened: {rows['files_opened']}, {rows['files_while_discovering']} while others were looked for"
        yield f"  row groups: {rows['row_groups_read']} read, {rows['row_groups_pruned']} pruned by footers"
        yield f"  rows: {rows['rows_read']} decoded, {rows['rows_emitted']} handed over"
        yield f"  requests: {files['delta.lazy.requests']}, {files['delta.lazy.bytes_read']} bytes of log and data"
