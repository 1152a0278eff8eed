"""Other readers of Delta tables, asked for rows and files in one form, so that their answers can be compared."""

from __future__ import annotations

import datetime as dt
import json
import math
import operator
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import lazydelta
from tests.support import unavailable

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a column with a value, which every peer says in its own words."""

    column: str
    kind: pa.DataType
    operator: str
    value: Any

    def sql(self) -> str:
        """Return it as SQL; the value is text that is cast, so that it is never rounded on the way."""
        return f'"{self.column}" {self.operator} {self._literal()}'

    def datafusion(self) -> str:
        """Return it in DataFusion's SQL, whose own timestamps are nanoseconds and end in 2262."""
        if not pa.types.is_timestamp(self.kind):
            return self.sql()
        micros = pa.array([self.value], self.kind).view(pa.int64())[0].as_py()
        zone = "None" if self.kind.tz is None else 'Some("UTC")'
        return f"\"{self.column}\" {self.operator} arrow_cast({micros}, 'Timestamp(Microsecond, {zone})')"

    def _literal(self) -> str:
        return f"CAST('{self._text().replace(chr(39), chr(39) * 2)}' AS {_sql_type(self.kind)})"

    def _text(self) -> str:
        return f"{self.value:f}" if isinstance(self.value, Decimal) else str(self.value)

    def spark(self) -> str:
        """Return it in Spark's SQL; text goes as bytes, because Spark reads escapes in it."""
        kind = {"VARCHAR": "STRING", "REAL": "FLOAT"}.get(_sql_type(self.kind), _sql_type(self.kind))
        if pa.types.is_timestamp(self.kind):
            kind = "TIMESTAMP_NTZ" if self.kind.tz is None else "TIMESTAMP"
        if pa.types.is_string(self.kind):
            return f"`{self.column}` {self.operator} CAST(X'{self.value.encode().hex()}' AS STRING)"
        return f"`{self.column}` {self.operator} CAST('{self._text()}' AS {kind})"

    def polars(self) -> pl.Expr:
        """Return it as an expression of Polars."""
        column, value = pl.col(self.column), pl.from_arrow(pa.array([self.value], self.kind))
        assert isinstance(value, pl.Series)
        expression: pl.Expr = _OPERATORS[self.operator](column, pl.lit(value.item(), value.dtype))
        return expression

    def holds(self, value: Any) -> bool:
        """Tell whether it holds for a value; never for null."""
        return value is not None and bool(_OPERATORS[self.operator](value, self.value))


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _sql_type(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz is None else "TIMESTAMP WITH TIME ZONE"
    return {
        pa.int8(): "TINYINT",
        pa.int16(): "SMALLINT",
        pa.int32(): "INTEGER",
        pa.int64(): "BIGINT",
        pa.float32(): "REAL",
        pa.float64(): "DOUBLE",
        pa.bool_(): "BOOLEAN",
        pa.string(): "VARCHAR",
        pa.date32(): "DATE",
    }[kind]


class Peer(Protocol):
    """A reader of tables on the local disk."""

    def rows(self, table: Path, where: Condition | None = None) -> pa.Table:
        """Return the rows for which ``where`` holds."""

    def files(self, table: Path) -> set[str]:
        """Return the data files, decoded and relative to the table."""


class Ourselves:
    """lazydelta; in its own words, because a table that only others can read is of little use."""

    def rows(self, table: Path, where: Condition | None = None) -> pa.Table:
        """Return the rows for which ``where`` holds."""
        return lazydelta.DeltaTable(table).to_pyarrow_table(
            filters=None if where is None else [(where.column, where.operator, where.value)]
        )

    def files(self, table: Path) -> set[str]:
        """Return the data files."""
        return {unquote(file.path) for file in lazydelta.DeltaTable(table).files()}


class DeltaRs:
    """deltalake, through DataFusion, which skips files by their statistics."""

    def rows(self, table: Path, where: Condition | None = None) -> pa.Table:
        """Return the rows for which ``where`` holds."""
        builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(table))
        found = builder.execute(f"SELECT * FROM t{'' if where is None else f' WHERE {where.datafusion()}'}")
        return pa.table(found.read_all())

    def files(self, table: Path) -> set[str]:
        """Return the data files."""
        return {str(Path(uri).relative_to(table)) for uri in deltalake.DeltaTable(table).file_uris()}


class Polars:
    """Polars, which skips files by the statistics that deltalake gives it."""

    def rows(self, table: Path, where: Condition | None = None) -> pa.Table:
        """Return the rows for which ``where`` holds."""
        frame = pl.scan_delta(str(table))
        if where is not None:
            frame = frame.filter(where.polars())
        return frame.collect().to_arrow()

    def files(self, table: Path) -> set[str]:
        """Return the data files."""
        return DeltaRs().files(table)


class DuckDb:
    """DuckDB's delta extension, in the environment of the peers, in a process that answers until it is closed."""

    _PROGRAM = """
import json, sys, duckdb, pathlib, duckdb_extension_delta
(extension,) = pathlib.Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
con = duckdb.connect(config={"allow_unsigned_extensions": "true"})
con.execute(f"LOAD '{extension}'")
con.execute("SET TimeZone='UTC'")
# A query of more than two seconds would draw a bar on the standard output, between the answers.
con.execute("SET enable_progress_bar=false")
for line in sys.stdin:
    try:
        con.execute(json.loads(line))
        print(json.dumps(None), flush=True)
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
"""

    def __init__(self) -> None:
        python = ROOT / ".venv-peers" / "bin" / "python"
        if not python.exists():
            unavailable("the environment of the peers is not installed: run `make setup`")
        self._process = subprocess.Popen(
            [python, "-c", self._PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        """End the process."""
        with self._process:
            self._process.terminate()

    def rows(self, table: Path, where: Condition | None = None) -> pa.Table:
        """Return the rows for which ``where`` holds."""
        condition = "" if where is None else f" WHERE {where.sql()}"
        return self._ask(f"SELECT * FROM delta_scan('{_quoted(table)}'){condition}")

    def files(self, table: Path) -> set[str]:
        """Return the data files."""
        found = self._ask(f"SELECT DISTINCT filename FROM delta_scan('{_quoted(table)}', filename=true)")
        return {str(Path(name.removeprefix("file://")).relative_to(table)) for name in found["filename"].to_pylist()}

    def _ask(self, query: str) -> pa.Table:
        # Through a file of Parquet: exact types, and no Arrow library is needed on the other side.
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "answer.parquet"
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(f"COPY ({query}) TO '{answer}'") + "\n")
            self._process.stdin.flush()
            error = json.loads(self._process.stdout.readline())
            assert error is None, error
            return pq.read_table(answer)


@contextmanager
def duckdb_peer() -> Iterator[DuckDb]:
    """Start DuckDB for the duration of a block."""
    peer = DuckDb()
    try:
        yield peer
    finally:
        peer.close()


def _quoted(table: Path) -> str:
    return str(table).replace("'", "''")


def comparable(table: pa.Table, schema: pa.Schema, *, ordered: bool = True) -> list[str]:
    """Return rows in a form that does not depend on who read them, nor, ``ordered``, on how they came."""
    columns = [[normal(value, field.type) for value in table.column(field.name).to_pylist()] for field in schema]
    rows = [repr(row) for row in zip(*columns, strict=True)]
    return sorted(rows) if ordered else rows


def normal(value: Any, kind: pa.DataType) -> Any:
    """Return a value in the one form of its type."""
    if value is None:
        return None
    types = pa.types
    if types.is_struct(kind):
        return tuple(normal(value[field.name], field.type) for field in kind)
    if types.is_map(kind):
        pairs = [(each["key"], each["value"]) if isinstance(each, dict) else each for each in _items(value)]
        return sorted(repr((normal(key, kind.key_type), normal(item, kind.item_type))) for key, item in pairs)
    if types.is_list(kind):
        return [normal(each, kind.value_type) for each in value]
    if types.is_floating(kind):
        return "NaN" if math.isnan(value) else float(value) + 0.0
    if types.is_decimal(kind):
        return f"{Decimal(value):f}"
    if types.is_timestamp(kind) and isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo is not None else value
    return bytes(value) if types.is_binary(kind) else value


def _items(value: Any) -> Any:
    return value.items() if isinstance(value, dict) else value
