"""What the page asks for: tables, timelines, files, statements and explanations, as JSON and lines of JSON."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import io
import uuid
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from lazydelta.engines import duckdb as duckdb_engine
from lazydelta.errors import LazyDeltaError, OptionError, StreamClosedError
from lazydelta.kql.execution.query import KIND, RENDER
from lazydelta.kql.functions.aggregates import AGGREGATE_NAMES
from lazydelta.kql.functions.table import FUNCTIONS
from lazydelta.kql.language.parser import OPERATORS
from lazydelta.server.flight_sql.guard import allowed_functions
from lazydelta.server.http.kusto_commands import Commands
from lazydelta.server.http.kusto_frames import Column, columns_of, encoded_rows
from lazydelta.server.http.queries import Call, Queries, RunningQuery
from lazydelta.server.http.replies import Handler, Head, error_body, json_reply
from lazydelta.server.tables import TableListing, history_of, partitions_in
from lazydelta.sidecar.format.manifest import list_folder
from lazydelta.sidecar.handle import snapshot_of
from lazydelta.sidecar.timeline import Timeline, exact_timeline, manifest_timeline, time_column_of
from lazydelta.table.delta_table import DeltaTable

__all__ = ["PageApi"]

_LINES = "application/x-ndjson; charset=utf-8"
_EXACT_FILES = 300_000
_COUNTED_FILES = 5000
_FILES_MEMORY = 64 << 20
_MOST_FILES = 5000
_MOST_HISTORY = 100
_MOST_PARTITIONS = 200
_MEDIA = {
    "csv": "text/csv; charset=utf-8",
    "json": _LINES,
    "parquet": "application/vnd.apache.parquet",
}


class _Statement(msgspec.Struct):
    language: str
    text: str
    id: str = ""
    format: str = "csv"


class _Scan(msgspec.Struct):
    table: str
    where: str | None = None
    limit: int | None = None
    first: float | None = None
    last: float | None = None


class _Cancel(msgspec.Struct):
    id: str


class PageApi:
    """The handlers of the page. A client sees the tables that its token allows."""

    def __init__(self, queries: Queries, *, has_tokens: bool, most_tables: int) -> None:
        self._queries = queries
        self._has_tokens = has_tokens
        self._most = most_tables
        self._commands = Commands(queries, most=most_tables)

    def paths(self) -> list[tuple[str, Handler, str]]:
        """Return the paths with their handlers and methods."""
        return [
            ("/api/about", self._about, "GET"),
            ("/api/tables", self._tables, "GET"),
            ("/api/table", self._table, "GET"),
            ("/api/timeline", self._timeline, "GET"),
            ("/api/statistics", self._statistics, "GET"),
            ("/api/history", self._history, "GET"),
            ("/api/partitions", self._partitions, "GET"),
            ("/api/health", self._health, "GET"),
            ("/api/words", self._words, "GET"),
            ("/api/files", self._files, "POST"),
            ("/api/explain", self._explain, "POST"),
            ("/api/query", self._query, "POST"),
            ("/api/download", self._download, "POST"),
            ("/api/cancel", self._cancel, "POST"),
        ]

    # --- tables

    def _about(self, call: Call) -> Iterator[Head | bytes]:
        told = {"version": version("lazydelta"), "user": call.identity.name, "tokens": self._has_tokens}
        return json_reply(told)

    def _tables(self, call: Call) -> Iterator[Head | bytes]:
        """Yield a line for each table, so that a slow store delays only its own."""
        listing = TableListing(self._queries.tables, call.identity, most=self._most, left=call.left.is_set)
        names = listing.names()
        yield Head(200, _LINES)
        for name in names:
            if call.left.is_set():
                return
            yield _line(self._summary(call, name))
        yield _line({"more": listing.is_cut})

    def _summary(self, call: Call, name: str) -> dict[str, Any]:
        try:
            table = self._queries.tables.open(name, call.identity)
        except LazyDeltaError as error:
            return {"name": name, **error_body(error, self._queries.tables.without_places)}
        snapshot = snapshot_of(table)
        segment, checksum = snapshot.segment, snapshot.checksum
        return {
            "name": name,
            # The operator of a server without tokens is its only client.
            "place": None if self._has_tokens else table.table_uri,
            "version": table.version(),
            "files": None if checksum is None else checksum.num_files,
            "rows": _rows_of(table) if checksum is not None and checksum.num_files <= _COUNTED_FILES else None,
            "bytes": None if checksum is None else checksum.table_size_bytes,
            "checkpoint": None if segment.checkpoint is None else segment.base_version,
            "tail": segment.version - segment.base_version if segment.checkpoint is not None else segment.version + 1,
            "notes": _notes(table),
        }

    def _table(self, call: Call) -> Iterator[Head | bytes]:
        name = _asked(call, "name")
        table = self._queries.tables.open(name, call.identity)
        snapshot = snapshot_of(table)
        metadata = table.metadata()
        kinds = dict(self._commands.columns(call, name))
        partition = set(metadata.partition_columns)
        columns = [
            {"name": each.name, "type": str(each.type), "kusto": kinds.get(each.name), "nullable": each.nullable}
            | {"partition": each.name in partition}
            for each in table.schema().to_arrow()
        ]
        column = time_column_of(snapshot)
        told = self._summary(call, name) | {"columns": columns, "time": None if column is None else column.name}
        told |= {"partitions": list(metadata.partition_columns), "properties": dict(metadata.configuration)}
        protocol = snapshot.protocol
        told["protocol"] = {"reader": protocol.min_reader_version, "writer": protocol.min_writer_version}
        return json_reply(told)

    def _timeline(self, call: Call) -> Iterator[Head | bytes]:
        table = self._queries.tables.open(_asked(call, "name"), call.identity)
        snapshot = snapshot_of(table)
        give_back = self._queries.room(call, _FILES_MEMORY)
        try:
            found: Timeline | None = manifest_timeline(snapshot)
            ranges = {} if found is None else found.ranges
            number = snapshot.checksum.num_files if snapshot.checksum is not None else None
            known = sum(found.files) if found is not None else number
            if known is None or known <= _EXACT_FILES:
                found = exact_timeline(snapshot, lambda column: _batches(table, column.name), left=call.left.is_set)
        finally:
            give_back()
        if found is None:
            return json_reply({"none": "The table has no single timestamp column that its files could be dated by."})
        return json_reply(msgspec.structs.replace(found, ranges=ranges))

    def _statistics(self, call: Call) -> Iterator[Head | bytes]:
        """Answer the range of each column from the files in the log, for a table that has no manifest."""
        table = self._queries.tables.open(_asked(call, "name"), call.identity)
        snapshot = snapshot_of(table)
        columns = [each.name for each in snapshot.schema.leaves() if len(each.path) == 1]
        checksum = snapshot.checksum
        if checksum is None or checksum.num_files > _COUNTED_FILES:
            return json_reply({})
        give_back = self._queries.room(call, _FILES_MEMORY)
        try:
            with table.files(stats_columns=columns, strategy="forward") as stream:
                found = pa.Table.from_batches(list(_while_wanted(call, stream.batches())), stream.schema)
        finally:
            give_back()
        return json_reply({name: told for name in columns if (told := _range(found, name)) is not None})

    def _history(self, call: Call) -> Iterator[Head | bytes]:
        table = self._queries.tables.open(_asked(call, "name"), call.identity)
        limit = min(
            int(call.query.get("limit", "20")) if call.query.get("limit", "20").isdigit() else 20, _MOST_HISTORY
        )
        data = history_of(table, limit, call.left.is_set, self._queries.tables.without_places)
        return json_reply(msgspec.Raw(data))

    def _partitions(self, call: Call) -> Iterator[Head | bytes]:
        table = self._queries.tables.open(_asked(call, "name"), call.identity)
        names = table.metadata().partition_columns
        if not names:
            return json_reply({"partitions": [], "more": False})
        found: dict[tuple[str | None, ...], None] = {}
        with self._scan(call, table, None, limit=_EXACT_FILES) as batches:
            for batch in batches:
                each = partitions_in([batch], names)
                found.update(dict.fromkeys(tuple(values.values()) for values in each))
                if len(found) > _MOST_PARTITIONS:
                    break
        shown = [dict(zip(names, values, strict=True)) for values in list(found)[:_MOST_PARTITIONS]]
        return json_reply({"partitions": shown, "more": len(found) > _MOST_PARTITIONS})

    def _health(self, call: Call) -> Iterator[Head | bytes]:
        """Answer the doctor's findings."""
        table = self._queries.tables.open(_asked(call, "name"), call.identity)
        give_back = self._queries.room(call, _FILES_MEMORY)
        try:
            found = table.doctor().findings
        finally:
            give_back()
        text = msgspec.json.encode(found).decode()
        return json_reply({"findings": msgspec.Raw(self._queries.tables.without_places(text).encode())})

    def _words(self, call: Call) -> Iterator[Head | bytes]:
        """Answer the words that the editor completes: tables with their columns, operators and functions."""
        tables: dict[str, list[list[str]]] = {}
        for name in self._queries.tables.names_for(call.identity):
            with contextlib.suppress(LazyDeltaError):  # a table that cannot be opened must not hide the others
                tables[name] = [[column, kind] for column, kind in self._commands.columns(call, name)]
        return json_reply(
            {
                "tables": tables,
                "operators": list(OPERATORS),
                "functions": sorted({*FUNCTIONS, *AGGREGATE_NAMES}),
                "sql": _sql_functions(),
            }
        )

    # --- scans

    def _files(self, call: Call) -> Iterator[Head | bytes]:
        """Yield the files of a range of time, as lines."""
        asked = _decoded(call, _Scan)
        table = self._queries.tables.open(asked.table, call.identity)
        most = min(asked.limit or _MOST_FILES, _MOST_FILES)
        files = rows = size = 0
        with self._scan(call, table, _where(table, asked), limit=None) as batches:
            yield Head(200, _LINES)
            for batch in batches:
                counts, sizes = batch.column("num_records").to_pylist(), batch.column("size").to_pylist()
                if files < most:
                    paths = batch.column("path").to_pylist()
                    shown = list(zip(paths, sizes, counts, strict=True))[: most - files]
                    yield _line({"files": shown})
                files += batch.num_rows
                size += sum(sizes)
                rows += sum(each or 0 for each in counts)
                yield _line({"total": {"files": files, "rows": rows, "bytes": size}})
        yield _line({"end": True})

    def _explain(self, call: Call) -> Iterator[Head | bytes]:
        """Answer how a scan of files went: the plan, its cost, and the picture."""
        asked = _decoded(call, _Scan)
        table = self._queries.tables.open(asked.table, call.identity)
        give_back = self._queries.room(call, _FILES_MEMORY)
        try:
            with table.files(_where(table, asked), limit=asked.limit) as stream:
                for _ in stream.batches():
                    if call.left.is_set():
                        raise StreamClosedError("The client has left")
                told, picture = stream.explain(), stream.explain("svg", title=asked.table)
        finally:
            give_back()
        plan = {**told.plan, "table": asked.table}
        picture = self._queries.tables.without_places(picture)
        return json_reply({"plan": plan, "metrics": told.metrics, "svg": picture})

    @contextlib.contextmanager
    def _scan(
        self, call: Call, table: DeltaTable, where: str | None, *, limit: int | None
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        give_back = self._queries.room(call, _FILES_MEMORY)
        try:
            with table.files(where, limit=limit, stats_columns=[]) as stream:
                yield _while_wanted(call, stream.batches())
        finally:
            give_back()

    # --- statements

    def _query(self, call: Call) -> Iterator[Head | bytes]:
        """Yield the columns of a statement, its rows as they come, and how it ended."""
        asked = _statement(call)
        began = dt.datetime.now(dt.UTC)
        with self._run(call, asked) as query:
            columns = _shown_columns(query.schema, asked.language)
            yield Head(200, _LINES)
            render = (query.schema.metadata or {}).get(RENDER)
            shown = [{"name": each.name, "kind": each.kind} for each in columns]
            yield _line({"columns": shown, "render": None if render is None else msgspec.Raw(render)})
            try:
                for batch in query:
                    if batch.num_rows:
                        yield b'{"rows":[' + encoded_rows(_plain_batch(batch, columns), columns) + b"]}\n"
            except LazyDeltaError as error:
                yield _line({"failure": error_body(error, self._queries.tables.without_places)})
                raise_if_left(call)
                return
            seconds = (dt.datetime.now(dt.UTC) - began).total_seconds()
            yield _line({"end": {"rows": query.shown.rows, "seconds": round(seconds, 3)}})

    def _download(self, call: Call) -> Iterator[Head | bytes]:
        asked = _statement(call)
        if asked.format not in _MEDIA:
            raise OptionError(f"There is no download as {asked.format[:20]!r}", hint="use csv, json or parquet")
        with self._run(call, asked) as query:
            columns = _shown_columns(query.schema, asked.language)
            ending = "ndjson" if asked.format == "json" else asked.format
            yield Head(200, _MEDIA[asked.format], {"content-disposition": f'attachment; filename="rows.{ending}"'})
            yield from _written(query, columns, asked.format)

    def _cancel(self, call: Call) -> Iterator[Head | bytes]:
        return json_reply({"cancelled": self._queries.cancel(call.identity, _decoded(call, _Cancel).id)})

    def _run(self, call: Call, asked: _Statement) -> Any:
        return self._queries.run(call, asked.language, asked.text, identifier=asked.id or str(uuid.uuid4()))


def raise_if_left(call: Call) -> None:
    """Stop a handler whose client has disconnected."""
    if call.left.is_set():
        raise StreamClosedError("The client has left")


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str) + b"\n"


def _plain_object(value: Any) -> Any:
    found = getattr(value, "as_dict", None)
    return found() if found is not None else str(value)


def _asked(call: Call, name: str) -> str:
    value = call.query.get(name)
    if not value:
        raise OptionError(f"The request has no {name}", hint=f"add ?{name}=…")
    return value


def _decoded(call: Call, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(call.body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise OptionError(f"The request cannot be understood: {error}", hint="send requests as the page does") from None


def _statement(call: Call) -> _Statement:
    asked: _Statement = _decoded(call, _Statement)
    if asked.language not in {"sql", "kql"}:
        raise OptionError(f"There is no language {asked.language[:20]!r}", hint="write sql or kql")
    return asked


def _notes(table: DeltaTable) -> list[str]:
    """Return what is worth knowing at a glance, from what opening has read."""
    snapshot = snapshot_of(table)
    segment = snapshot.segment
    found = []
    if segment.checkpoint is None and segment.version > _LONG_TAIL:
        found.append("no checkpoint")
    elif segment.version - segment.base_version > _LONG_TAIL:
        found.append(f"{segment.version - segment.base_version} commits since the checkpoint")
    version = segment.base_version
    if segment.checkpoint is not None and not any(each.version == version for each in list_folder(snapshot.store)):
        found.append("no sidecar")
    if snapshot.checksum is None:
        found.append("no checksum")
    return found


_LONG_TAIL = 100


def _rows_of(table: DeltaTable) -> int | None:
    """Return the rows of a small table by its log. Return None if a file does not tell."""
    with table.files(stats_columns=[], strategy="forward") as stream:
        counts = [each for batch in stream.batches() for each in batch.column("num_records").to_pylist()]
    return None if None in counts else sum(counts)


def _range(files: pa.Table, name: str) -> dict[str, Any] | None:
    """Return the least and greatest value of a column over files, as text, and whether it has nulls."""
    least, greatest, nulls = (files.column(f"{each}.{name}") for each in ("min", "max", "null_count"))
    if not files.num_rows or least.null_count == files.num_rows:
        return None
    ends = pc.min_max(least)["min"].as_py(), pc.min_max(greatest)["max"].as_py()
    shown = [each.isoformat() if isinstance(each, dt.date) else _text(each) for each in ends]
    total = None if nulls.null_count else pc.sum(nulls).as_py()
    return {"min": shown[0], "max": shown[1], "has_null": total is None or total > 0, "nulls": total}


@functools.cache
def _sql_functions() -> list[str]:
    """Return the functions of SQL that the editor completes."""
    with contextlib.closing(duckdb_engine.connect(extra="serve")) as con:
        return sorted(name for name in allowed_functions(con) if name.isidentifier())


def _batches(table: DeltaTable, column: str) -> Iterator[pa.RecordBatch]:
    with table.files(stats_columns=[column], strategy="forward") as stream:
        yield from stream.batches()


def _while_wanted(call: Call, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        raise_if_left(call)
        yield batch


def _where(table: DeltaTable, asked: _Scan) -> str | None:
    """Return the condition of a scan: what was written, and the range of time that was brushed."""
    parts = [] if not asked.where or not asked.where.strip() else [f"({asked.where})"]
    column = time_column_of(snapshot_of(table))
    if column is not None:
        quoted = '"' + column.name.replace('"', '""') + '"'
        for op, timestamp in ((">=", asked.first), ("<", asked.last)):
            if timestamp is not None:
                text = dt.datetime.fromtimestamp(timestamp, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
                parts.append(f"{quoted} {op} TIMESTAMP '{text}'")
    return " AND ".join(parts) or None


# --- rows


def _shown_columns(schema: pa.Schema, language: str) -> list[Column]:
    if language == "kql":
        return columns_of(schema, KIND)
    return [Column(each.name, _kind(each.type)) for each in schema]


def _kind(kind: pa.DataType) -> str:
    tests = (
        (pa.types.is_boolean, "bool"),
        (pa.types.is_integer, "long"),
        (pa.types.is_floating, "real"),
        (pa.types.is_decimal, "decimal"),
        (pa.types.is_timestamp, "datetime"),
        (pa.types.is_date, "datetime"),
        (pa.types.is_duration, "timespan"),
        (pa.types.is_nested, "dynamic"),
    )
    return next((name for test, name in tests if test(kind)), "string")


def _plain_batch(batch: pa.RecordBatch, columns: list[Column]) -> pa.RecordBatch:
    """Return a batch whose columns have the types that JSON rows are made from. SQL has more types than KQL."""
    arrays = []
    for array, column in zip(batch.columns, columns, strict=True):
        kind = array.type
        if column.kind == "dynamic" and pa.types.is_nested(kind):
            texts = [
                None if each is None else msgspec.json.encode(each, enc_hook=str).decode() for each in _python(array)
            ]
            arrays.append(pa.array(texts, pa.string()))
        elif pa.types.is_date(kind):
            arrays.append(array.cast(pa.timestamp("us")))
        elif column.kind == "string" and not pa.types.is_string(kind):
            arrays.append(pa.array([None if each is None else _text(each) for each in array.to_pylist()], pa.string()))
        else:
            arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _python(array: pa.Array) -> list[Any]:
    found: list[Any] = array.to_pylist()
    return found


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _written(query: RunningQuery, columns: list[Column], kind: str) -> Iterator[bytes]:
    if kind == "json":
        names = [each.name for each in columns]
        for batch in query:
            rows = msgspec.json.decode(b"[" + encoded_rows(_plain_batch(batch, columns), columns) + b"]")
            yield b"".join(_line(dict(zip(names, row, strict=True))) for row in rows)
        return
    out = _Sink()
    schema = query.schema.remove_metadata()
    if kind == "csv":
        flat = [each.with_type(pa.string()) if pa.types.is_nested(each.type) else each for each in schema]
        schema = pa.schema(flat)
    writer: Any = pq.ParquetWriter(out, schema) if kind == "parquet" else csv.CSVWriter(out, schema)
    with writer:
        for batch in query:
            writer.write_batch(_flat(batch, columns, schema) if kind == "csv" else batch)
            yield out.taken()
    yield out.taken()


def _flat(batch: pa.RecordBatch, columns: list[Column], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch whose nested values are JSON, because CSV has none."""
    plain = _plain_batch(batch, columns).columns
    made = [new if pa.types.is_nested(old.type) else old for old, new in zip(batch.columns, plain, strict=True)]
    return pa.RecordBatch.from_arrays(made, schema=schema)


class _Sink(io.RawIOBase):
    """A file that is written only: what was taken is forgotten, and positions count on."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._size += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._size

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        data = b"".join(self._parts)
        self._parts.clear()
        return data
