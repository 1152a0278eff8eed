"""Schema of an ingestion: from the table, the user, the Parquet footers, or inferred from sampled lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import OptionError, SchemaMismatchError
from lazydelta.ingest.csv import CsvSplitter, after_header, cells, header_names, looks_like_a_row, records
from lazydelta.ingest.files import SourceFile, SourceFormat, parquet_schema
from lazydelta.ingest.lines import Lines
from lazydelta.ingest.reading import blocks_of
from lazydelta.runtime.threads import all_in_parallel
from lazydelta.sidecar.handle import Snapshot
from lazydelta.write.computed_columns import generated_columns
from lazydelta.write.plan import WritePlan

__all__ = ["cell_columns", "source_schema"]

_SAMPLED_FILES, _SAMPLED_LINES = 8, 2_000
_PARALLEL_FOOTERS = 16
_TIMESTAMP = pa.timestamp("us", "UTC")
_INTEGER_LIMIT = 1 << 63


def source_schema(
    source: SourceFormat,
    files: Sequence[SourceFile],
    file_format: str,
    snapshot: Snapshot | None,
    plan: WritePlan,
    given: pa.Schema | None = None,
    *,
    header: bool | None = None,
) -> pa.Schema:
    """Return the columns that rows are read with, without the column derived from timestamps.

    The columns of the table come first. If the plan merges schemas, or for a new table, the columns given by the user
    follow or, without them, the columns of the files. ``header`` says whether CSV files have a header. With None they
    should, and a first line that looks like a row is an error.
    """
    if header is False and file_format != "csv":
        raise OptionError("header=false applies to CSV only", hint="omit it")
    table = None if snapshot is None else _columns_of(snapshot, plan)
    if table is not None and given is None and (header is False or not plan.merges):
        return table
    if given is None and header is False:
        message = f"The files of {source.shown} have no header, and there is no table yet that defines their columns"
        hint = 'pass a schema, in the order of the cells, such as "device string, ts timestamp"'
        raise OptionError(message, path=source.shown, hint=hint)
    timestamps = plan.timestamp_column
    if given is None:
        every = plan.merges or table is None
        chosen = files if every else files[:_SAMPLED_FILES]
        given = _FROM[file_format](source, chosen, timestamps, trusted=header is True)
    if table is None:
        return given
    known = {name.lower() for name in table.names}
    return pa.schema([*table, *(each for each in given if each.name.lower() not in known)])


def cell_columns(schema: pa.Schema, given: pa.Schema | None) -> list[str]:
    """Return the columns of CSV files without a header: the given ones, or all columns, in order."""
    spelled = {name.lower(): name for name in schema.names}
    return [spelled[name.lower()] for name in (schema if given is None else given).names]


def _columns_of(snapshot: Snapshot, plan: WritePlan) -> pa.Schema:
    """Return the columns of a table without the derived partition column and generated ones, which are computed."""
    computed = set(generated_columns(snapshot.schema))
    schema = pa.schema([each for each in snapshot.schema.to_arrow() if each.name not in computed])
    recorded = snapshot.metadata.property("lazydelta.partitionColumn")
    rest = pa.schema([each for each in schema if each.name != recorded])
    made = plan.settled(snapshot, rest).partition_column
    return pa.schema([each for each in schema if each.name != made])


# --- Parquet


def _of_parquet(
    source: SourceFormat,
    files: Sequence[SourceFile],
    _timestamps: str | None,
    *,
    trusted: bool,  # noqa: ARG001
) -> pa.Schema:
    found = all_in_parallel(
        lambda file: parquet_schema(source.store, file.path, file.size), files, threads=_PARALLEL_FOOTERS
    )
    try:
        return pa.unify_schemas(found, promote_options="permissive")
    except pa.ArrowException as error:
        message = f"The files of {source.shown} do not have the same columns: {error}"
        raise SchemaMismatchError(
            message, path=source.shown, hint="ingest them separately, or pass a schema"
        ) from error


# --- text


def _of_json(
    source: SourceFormat,
    files: Sequence[SourceFile],
    timestamps: str | None,
    *,
    trusted: bool,  # noqa: ARG001
) -> pa.Schema:
    seen: dict[str, _Seen] = {}
    for file in _spread(files):
        for line in islice(_lines(source, file), _SAMPLED_LINES):
            try:
                row = msgspec.json.decode(line)
            except (ValueError, RecursionError):
                continue  # the reader reports what is wrong with it
            if isinstance(row, dict):
                for name, value in row.items():
                    seen.setdefault(name, _Seen()).see(value)
    return _guessed(source, seen, timestamps)


def _of_csv(source: SourceFormat, files: Sequence[SourceFile], timestamps: str | None, *, trusted: bool) -> pa.Schema:
    seen: dict[str, _Seen] = {}
    for file in _spread(files):
        header, found = after_header(blocks_of(source.store, file, CsvSplitter()))
        try:
            names = [] if header is None else header_names(header.record)
        except ValueError:
            continue
        if header is not None and not trusted and looks_like_a_row(names):
            place = source.store.place(file.path)
            message = f"The first line of {place} looks like a row, not like a header: {','.join(names)[:200]}"
            hint = "pass header=false and a schema if there is no header, or header=true if this is one"
            raise OptionError(message, path=place, hint=hint)
        for name in names:
            seen.setdefault(name, _Seen())
        rows = (record for block in found if block.fault is None for _, record in records(block.data))
        for record in islice(rows, _SAMPLED_LINES):
            try:
                row = cells(record)
            except ValueError:
                continue
            if len(row) == len(names):
                for name, text in zip(names, row, strict=True):
                    seen[name].see(_value(text))
    return _guessed(source, seen, timestamps)


_FROM = {"json": _of_json, "csv": _of_csv, "parquet": _of_parquet}


def _spread(files: Sequence[SourceFile]) -> Sequence[SourceFile]:
    """Return a sample of the files: the first, the last, and some in between."""
    if len(files) <= _SAMPLED_FILES:
        return files
    return [files[index * (len(files) - 1) // (_SAMPLED_FILES - 1)] for index in range(_SAMPLED_FILES)]


def _lines(source: SourceFormat, file: SourceFile) -> Iterator[bytes]:
    for block in blocks_of(source.store, file, Lines()):
        yield from block.data.split(b"\n")


def _guessed(source: SourceFormat, seen: dict[str, _Seen], timestamps: str | None) -> pa.Schema:
    if not seen:
        message = f"{source.shown} has no rows to infer the columns from"
        raise OptionError(message, path=source.shown, hint='pass a schema, such as "device string, ts timestamp"')
    return pa.schema([(name, _TIMESTAMP if name == timestamps else each.type()) for name, each in seen.items()])


class _Seen:
    """Values seen in a column. The most common kind determines its type; other values will be rejected."""

    def __init__(self) -> None:
        self._kinds: Counter[str] = Counter()
        self._fractions = False
        self._fields: dict[str, _Seen] = {}
        self._element: _Seen | None = None

    def see(self, value: Any) -> None:
        match value:
            case None:
                return
            case bool():
                kind = "boolean"
            case int():
                kind = "number"
                self._fractions |= not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT
            case float():
                kind = "number"
                self._fractions = True
            case str():
                kind = "text"
            case list():
                kind = "list"
                self._element = self._element or _Seen()
                self._see_all(self._element, value)
            case _:
                kind = "object"
                for name, item in value.items():
                    self._fields.setdefault(name, _Seen()).see(item)
        self._kinds[kind] += 1

    @staticmethod
    def _see_all(element: _Seen, values: Iterable[Any]) -> None:
        for each in values:
            element.see(each)

    def type(self) -> pa.DataType:
        """Return the type, which defaults to string."""
        kind = self._kinds.most_common(1)[0][0] if self._kinds else "text"
        if kind == "number":
            return pa.float64() if self._fractions else pa.int64()
        if kind == "boolean":
            return pa.bool_()
        if kind == "list" and self._element is not None:
            return pa.list_(self._element.type())
        if kind == "object" and self._fields:
            return pa.struct([(name, each.type()) for name, each in self._fields.items()])
        return pa.string()


def _value(text: str) -> Any:
    """Return the value that a cell looks like."""
    if not text:
        return None
    if text in {"true", "True", "TRUE", "false", "False", "FALSE"}:
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
