"""What a child process asks a table: its answers must not depend on the time zone of the machine."""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datafusion
import pyarrow as pa
from click.testing import CliRunner

from lazydelta import DeltaTable, kql
from lazydelta.cli.app import cli
from lazydelta.engines import duckdb as duckdb_engine
from lazydelta.engines.datafusion import QueryBuilder, register_table
from lazydelta.server.flight_sql.session import SqlSession

if TYPE_CHECKING:
    from collections.abc import Iterator

_SQL = [
    "SELECT count(*) AS n FROM t WHERE timestamp >= '2026-02-10 20:00:00'",
    "SELECT count(*) AS n FROM t WHERE timestamp >= TIMESTAMP '2026-02-10 20:00:00'",
    "SELECT count(*) AS n FROM t WHERE timestamp BETWEEN '2026-02-10 03:00:00' AND '2026-02-10 04:00:00'",
    "SELECT count(*) AS n FROM t WHERE local >= '2026-02-10 20:00:00'",
    "SELECT count(*) AS n FROM t WHERE timestamp::DATE = '2026-02-10'",
    "SELECT date_trunc('day', timestamp) AS day, count(*) AS n FROM t GROUP BY 1 ORDER BY 1",
    "SELECT date_trunc('hour', timestamp) AS hour, count(*) AS n FROM t GROUP BY 1 ORDER BY 1",
    "SELECT hour(timestamp) AS hour, count(*) AS n FROM t GROUP BY 1 ORDER BY 1",
    "SELECT strftime(timestamp, '%Y-%m-%d %H:%M') AS text, timestamp::VARCHAR AS cast_text FROM t ORDER BY id LIMIT 3",
    "SELECT local::TIMESTAMPTZ AS moved, timestamp::TIMESTAMP AS plain FROM t ORDER BY id LIMIT 3",
    "SELECT time_bucket(INTERVAL '1 day', timestamp) AS bucket, count(*) AS n FROM t GROUP BY 1 ORDER BY 1",
    "SELECT current_setting('TimeZone') AS zone, current_setting('Calendar') AS calendar",
]
_KQL = [
    "t | where timestamp >= datetime(2026-02-10 20:00:00) | count",
    "t | summarize n = count() by bin(timestamp, 1d) | order by timestamp asc",
    "t | summarize n = count() by d = startofday(timestamp) | order by d asc",
    "t | where tostring(timestamp) startswith '2026-02-10T20' | count",
    "t | where timestamp > ago(3h) | count",
    "t | extend h = hourofday(timestamp), d = format_datetime(timestamp, 'yyyy-MM-dd HH:mm') | top 3 by id asc",
    "t | where timestamp >= todatetime('2026-02-10 20:00:00') | count",
    "t | summarize n = count() by day | order by day asc",
    "print todatetime('Tue, 10 Feb 2026 20:00:00 GMT'), datetime(2026-02-10), make_datetime(2026, 2, 10)",
]
_PREDICATES: list[Any] = [
    "timestamp >= '2026-02-10 20:00:00'",
    "timestamp >= TIMESTAMP '2026-02-10 20:00:00'",
    "date_trunc('day', timestamp) = '2026-02-10'",
    "CAST(timestamp AS DATE) = DATE '2026-02-10'",
    "local < '2026-02-10 03:00:00'",
    "day = '2026-02-10'",
    [("timestamp", ">=", "2026-02-10 20:00:00")],
    [("timestamp", ">=", dt.datetime(2026, 2, 10, 20))],  # noqa: DTZ001 - without a zone, which is UTC
    {"timestamp": {">=": "2026-02-10T20:00:00"}},
]
_NOW = "2026-02-11T04:00:00"


def _answers(uri: str, folder: Path) -> Iterator[tuple[str, Any]]:
    runner = CliRunner()
    for text in _SQL:
        for form in ([], ["--json"]):
            yield f"query {text} {form}", runner.invoke(cli, ["query", text, "--table", f"t={uri}", *form]).output
    for text in _KQL:
        for line in (["kql", text, "--now", _NOW], ["query", "--kql", text.replace("ago(3h)", f"datetime({_NOW})")]):
            yield f"{line}", runner.invoke(cli, [*line, "--table", f"t={uri}", "--json"]).output
        now = dt.datetime(2026, 2, 11, 4)  # noqa: DTZ001 - as above
        yield f"kql.query {text}", str(kql.query(text, {"t": uri}, now=now).read_all().to_pylist())
    table = DeltaTable(uri)
    for where in _PREDICATES:
        yield f"files {where}", sum(1 for _ in table.files(where))
        yield f"rows {where}", sum(batch.num_rows for batch in table.rows(where=where))
    yield from _engines(table)
    yield from _commands(uri, folder, runner)
    for timestamp in ("2026-02-12 02:00:00", "2026-02-12T02:00:00Z", dt.datetime(2026, 2, 12, 2)):  # noqa: DTZ001
        table.load_as_version(timestamp)
        yield f"travel {timestamp!r}", table.version()


def _engines(table: DeltaTable) -> Iterator[tuple[str, Any]]:
    # The zone of a session that the caller opens is the caller's; in ours, and in engines without a zone, it is UTC.
    with duckdb_engine.connect() as con:
        duckdb_engine.register(con, "t", table)
        for text in _SQL:
            yield f"duckdb {text}", con.sql(text).fetchall()
    session = SqlSession(memory=1 << 28, reading_memory=1 << 26, threads=1)
    for text in _SQL:
        if "current_setting" not in text:
            rows = session.rows(text, ("t",), {"t": table}.__getitem__, None, None)
            yield f"flight sql {text}", str(pa.Table.from_batches(rows).to_pylist())
    session.close()
    context = register_table(datafusion.SessionContext(), "t", table)
    asked = "SELECT count(*) AS n FROM t WHERE timestamp >= '2026-02-10 20:00:00'"
    yield f"datafusion {asked}", str(context.sql(asked).to_arrow_table().to_pylist())
    yield f"query builder {asked}", str(pa.table(QueryBuilder().register("t", table).execute(asked)).to_pylist())


def _commands(uri: str, folder: Path, runner: CliRunner) -> Iterator[tuple[str, Any]]:
    timestamp = ["--timestamp", "2026-02-12 02:00:00"]
    for line in (
        ["info", uri, *timestamp],
        ["info", uri, "--json"],
        ["history", uri],
        ["history", uri, "--json"],
        ["files", uri, "--where", "timestamp >= '2026-02-10 20:00:00'"],
        ["files", uri, "--where", "timestamp >= '2026-02-10 20:00:00'", "--json"],
        ["rows", uri, "--where", "timestamp >= '2026-02-10 20:00:00'", "--limit", "3"],
        ["rows", uri, "--limit", "3", "--json"],
    ):
        yield " ".join(line), runner.invoke(cli, line).output
    for name, text in (
        ("csv", "id,at,day\n1,2026-02-10 20:00:00,2026-02-10\n"),
        ("json", '{"id": 1, "at": "2026-02-10 20:00:00"}\n'),
    ):
        made = folder / f"rows.{name}"
        made.write_text(text)
        told = runner.invoke(cli, ["append", f"{folder}/{name}", str(made), "--timestamp-column", "at"])
        yield f"append {name}", f"{told.exit_code} {told.stderr}"
        yield f"appended {name}", runner.invoke(cli, ["rows", f"{folder}/{name}", "--json"]).output


if __name__ == "__main__":
    found = {name: str(value) for name, value in _answers(sys.argv[1], Path(sys.argv[2]))}
    sys.stdout.write(json.dumps(found).replace(sys.argv[2], ""))
