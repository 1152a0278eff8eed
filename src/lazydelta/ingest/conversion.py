"""`convert_parquet`: make a table of Parquet files where they are, in one commit.

Files are found and their footers read side by side; no row is read and no file is written or moved. Statistics are
those of the footers, for types whose bounds are exact there: integers, decimals, dates and timestamps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.errors import OptionError, SchemaMismatchError, TableExistsError, WriteError
from lazydelta.ingest.files import opened_parquet, parquet_fields
from lazydelta.protocol.actions import Add
from lazydelta.protocol.values import logged_path
from lazydelta.runtime.threads import in_parallel
from lazydelta.sidecar.handle import TableHandle
from lazydelta.stats.collector import StatsCollector
from lazydelta.storage import ObjectInfo, Store
from lazydelta.write.commit import CommitNote
from lazydelta.write.create import new_metadata, stage_creation
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = ["STRATEGIES", "check_strategy", "convert_parquet"]

STRATEGIES = ("hive", "directory")
_THREADS = 8
_AT_ONCE = 1_000
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def convert_parquet(  # noqa: PLR0913 - keyword-only options
    handle: TableHandle,
    *,
    partition_by: pa.Schema | None = None,
    strategy: str = "hive",
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
    description: str | None = None,
    collect_stats: bool = True,
    note: CommitNote | None = None,
    dry_run: bool = False,
) -> tuple[int, CommitResult | None]:
    """Make a table of the Parquet files below a place, and return their number; a dry run commits nothing.

    ``partition_by`` has the columns that the names of folders hold: as ``name=value``, or as values alone with the
    strategy ``directory``. Files and folders whose names begin with a dot or an underscore are left out. Files may lack
    columns of others, but not have them with another type.
    """
    columns = partition_by or pa.schema([])
    told = {"numFiles": 0, "partitionedBy": columns.names, "collectStats": collect_stats}
    with Transaction.begin(handle, operation="CONVERT", parameters=told) as transaction:
        if transaction.snapshot is not None:
            message = f"There is already a Delta table at {handle.uri}"
            raise TableExistsError(message, path=handle.uri, hint="use mode='ignore', or another location")
        transaction.note = note or CommitNote()
        fields: dict[str, pa.Field] = {}
        waiting: list[Add] = []
        count = 0
        work = _looked_at(handle.store, columns, strategy, collect_stats=collect_stats)
        found = in_parallel(work, _files(handle.store), threads=_THREADS, stop=lambda: None)
        with closing(found):
            for add, schema in found:
                _take(fields, schema, columns, add.path)
                waiting.append(add)
                count += 1
                if len(waiting) >= _AT_ONCE:
                    transaction.add(*waiting)
                    waiting = []
        if not count:
            message = f"There is no Parquet file below {handle.uri}"
            raise WriteError(message, path=handle.uri, hint="check the path; names that begin with _ or . are skipped")
        transaction.add(*waiting)
        transaction.parameters["numFiles"] = count
        whole = pa.schema([*fields.values(), *columns])
        made = new_metadata(
            whole, partition_by=columns.names, properties=properties, name=name, description=description
        )
        stage_creation(transaction, made)
        return count, None if dry_run else transaction.commit()


def _files(store: Store) -> Iterator[ObjectInfo]:
    def hides(path: str) -> bool:
        last = path.rpartition("/")[2]
        return last.startswith(".") or (last.startswith("_") and "=" not in last)

    return (info for info in store.walk(hides) if info.path.endswith(".parquet"))


def _looked_at(
    store: Store, columns: pa.Schema, strategy: str, *, collect_stats: bool
) -> Callable[[ObjectInfo], tuple[Add, pa.Schema]]:
    def work(info: ObjectInfo) -> tuple[Add, pa.Schema]:
        values = _partition_values(info.path, columns.names, strategy)
        with opened_parquet(store, info.path, info.size) as file:
            schema = pa.schema(parquet_fields(file))
            stats = _stats(file.metadata, schema) if collect_stats else None
        add = Add(
            path=logged_path(info.path),
            size=info.size,
            modification_time=info.last_modified,
            partition_values=values,
            stats=stats,
        )
        return add, schema

    return work


def _partition_values(path: str, names: Sequence[str], strategy: str) -> dict[str, str | None]:
    folders = path.split("/")[:-1]
    if strategy == "directory":
        given = dict(zip(names, folders, strict=False)) if len(folders) == len(names) else None
    else:
        parts = [each.partition("=") for each in folders]
        given = {name: value for name, equals, value in parts if equals}
        if not names and given:
            message = "The schema of partition columns must be provided to convert a Parquet table to a Delta table"
            hint = f"partition_by with the columns {', '.join(given)}; nothing was committed"
            raise WriteError(f"Generic error: {message}: {path}", path=path, hint=hint)
        given = given if list(given) == list(names) else None
    if given is None:
        message = f"The folders of {path} do not hold the partition columns {list(names)}"
        raise SchemaMismatchError(message, path=path, hint="list the columns in the order of the folders")
    plain = {name: unquote(value) for name, value in given.items()}
    return {name: None if value in {"", _NULL_FOLDER} else value for name, value in plain.items()}


def _take(fields: dict[str, pa.Field], schema: pa.Schema, columns: pa.Schema, path: str) -> None:
    """Add the columns of a file to those of the table."""
    for each in schema:
        if each.name in columns.names:
            message = f"The file {path} has the column {each.name!r}, which the names of its folders contain as well"
            raise SchemaMismatchError(message, path=path, hint="remove it from partition_by")
        known = fields.setdefault(each.name, each.with_nullable(True))  # noqa: FBT003 - pyarrow signature
        if known.type != each.type:
            message = f"The column {each.name!r} is {each.type} in {path}, and {known.type} in other files"
            raise SchemaMismatchError(message, path=path, hint="rewrite such files, or move them away")


def _stats(metadata: pq.FileMetaData, schema: pa.Schema) -> str:
    """Return the statistics of a file, as far as its footer proves them."""
    bounds: dict[str, list[Any]] = {}
    nulls: dict[str, int | None] = {}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            name = column.path_in_schema
            if name not in schema.names or pa.types.is_nested(schema.field(name).type):
                continue
            known = column.statistics
            count = known.null_count if known is not None and known.has_null_count else None
            before = nulls.get(name, 0)
            nulls[name] = None if before is None or count is None else before + count
            if known is not None and known.has_min_max and _is_exact(schema.field(name).type):
                bounds.setdefault(name, []).extend((known.min, known.max))
            elif count is None or count < group.num_rows:
                bounds[name] = [None]  # no bound for the whole file
    found: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name, values in bounds.items():
        if None in values:
            continue
        field = pa.schema([schema.field(name)])
        try:
            batch = pa.record_batch([pa.array(values).cast(field.field(0).type)], schema=field)
        except (pa.ArrowException, OverflowError):  # a value that Python does not hold
            continue
        collector = StatsCollector(field)
        collector.update(batch)
        logged = msgspec.json.decode(collector.to_json(metadata.num_rows))
        found["minValues"] |= logged["minValues"]
        found["maxValues"] |= logged["maxValues"]
    found["nullCount"] = {name: count for name, count in nulls.items() if count is not None}
    return msgspec.json.encode(found).decode()


def _is_exact(kind: pa.DataType) -> bool:
    """Return whether a footer has the bounds of a type as they are. Texts may be cut off, and NaN is not in them."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_decimal(kind) or types.is_date(kind) or types.is_timestamp(kind))


def check_strategy(partition_by: object, strategy: str | None) -> None:
    """Raise unless the two parameters of deltalake fit together."""
    if partition_by is not None and strategy is None:
        raise OptionError("Partition strategy has to be provided with partition_by.", hint="use 'hive' or 'directory'")
    if strategy is not None and strategy not in STRATEGIES:
        message = f"Partition strategy must be `hive` or `directory`, and is {strategy!r}"
        raise OptionError(message, hint="use 'hive' for folders named name=value")
