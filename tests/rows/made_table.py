"""Tables made by hand, with all that makes rows hard to read, beside the rows that they hold.

The log is written as text and the files by PyArrow, so that nothing of ours has a part in what is expected.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.rows.files import array_of, column, inline_vector, struct_type

__all__ = ["SCHEMA", "MadeTable", "make_rich_table", "make_table"]

_FIELDS = [
    column("id", "long"),
    column("hour", "string"),
    column("n", "integer"),
    column("x", "double"),
    column("s", "string"),
    column("day", "date"),
    column("at", "timestamp"),
    column("price", "decimal(12,2)"),
    column("flag", "boolean"),
    column("place", struct_type(column("row", "long"), column("name", "string"), column("later", "long"))),
    column("tags", array_of("string")),
    column("grown", "long"),
    column("late", "long"),
]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("hour", pa.string()),
        pa.field("n", pa.int32()),
        pa.field("x", pa.float64()),
        pa.field("s", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("flag", pa.bool_()),
        pa.field("place", pa.struct([("row", pa.int64()), ("name", pa.string()), ("later", pa.int64())])),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("grown", pa.int64()),
        pa.field("late", pa.int64()),
    ]
)
_FLOATS = [float("nan"), -0.0, 0.0, float("inf"), float("-inf"), 1.5, -2.25, 5.0, 5.5, 1e300]
_WORDS = ["", "a", "ab", "abc", "b", "ü", "zebra", "x" * 40, "Z"]


@dataclass
class MadeTable:
    """A table and its rows, files in the order of the log and rows in the order of their file."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    schema: pa.Schema = SCHEMA

    @property
    def uri(self) -> str:
        """Where it is."""
        return str(self.path)

    def table(self) -> pa.Table:
        """Return the rows as Arrow has them."""
        return pa.Table.from_pylist(self.rows, schema=self.schema)


def make_rich_table(folder: Path, *, seed: int, files: int = 6, rows: int = 60, with_vectors: bool = True) -> MadeTable:
    """Make a table of several commits with partitions, vectors, missing columns and narrower types of old."""
    rng = random.Random(seed)
    made = MadeTable(folder)
    _commit(folder, 0, [_protocol(), _metadata(_FIELDS, ["hour"])])
    next_id = 0
    for number in range(files):
        hour = rng.choice([None, "2026021022", "2026021023", "2026021100"])
        found = [_row(rng, next_id + index, hour) for index in range(rng.randrange(1, rows))]
        next_id += len(found)
        is_old = number < files // 2
        if is_old:
            for row in found:
                row["late"] = None
                row["grown"] = None if row["grown"] is None else row["grown"] % 1000
                if row["place"] is not None:
                    row["place"]["later"] = None
        deleted = sorted(rng.sample(range(len(found)), rng.randrange(len(found)))) if rng.random() < 0.5 else []
        deleted = deleted if with_vectors else []
        path = f"part-{number}.parquet"
        _write(folder / path, found, is_old=is_old, group=rng.choice([7, 20, 1000]))
        _commit(folder, number + 1, [_add(folder, path, found, hour, deleted, with_stats=rng.random() < 0.6)])
        made.files.append(path)
        made.rows += [row for index, row in enumerate(found) if index not in set(deleted)]
    made.rows = made.table().to_pylist()  # as Python has them from Arrow: zones and zeros after the point
    return made


def make_table(
    folder: Path, *, files: int, rows: int, group: int | None = None, one_commit: bool = False, stats: bool = True
) -> MadeTable:
    """Make a plain table: ``id`` counts up, ``part`` is the number of the file, ``text`` is bulky."""
    schema = pa.schema([("id", pa.int64()), ("part", pa.int64()), ("text", pa.string())])
    made = MadeTable(folder, schema=schema)
    head = [_protocol(), _metadata([column("id", "long"), column("part", "long"), column("text", "string")], [])]
    adds = []
    for number in range(files):
        first = number * rows
        found = [{"id": first + index, "part": number, "text": f"{first + index:020d}" * 5} for index in range(rows)]
        path = f"part-{number:05d}.parquet"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(found, schema=schema), folder / path, row_group_size=group or rows)
        logged = {
            "numRecords": rows,
            "minValues": {"id": first, "part": number},
            "maxValues": {"id": first + rows - 1, "part": number},
            "nullCount": {"id": 0, "part": 0},
        }
        add = {
            "path": path,
            "size": (folder / path).stat().st_size,
            "modificationTime": number,
            "dataChange": True,
            "partitionValues": {},
        }
        adds.append({"add": add | ({"stats": json.dumps(logged)} if stats else {})})
        made.files.append(path)
        made.rows += found
    if one_commit:
        _commit(folder, 0, [*head, *adds])
    else:
        _commit(folder, 0, head)
        for version, each in enumerate(adds, start=1):
            _commit(folder, version, [each])
    return made


def _row(rng: random.Random, number: int, hour: str | None) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.15 else value

    day = dt.date(2026, 2, 1) + dt.timedelta(days=rng.randrange(20))
    at = dt.datetime(2026, 2, 10, tzinfo=dt.UTC) + dt.timedelta(microseconds=rng.randrange(10**11))
    return {
        "id": number,
        "hour": hour,
        "n": maybe(rng.randrange(-5, 20)),
        "x": maybe(rng.choice(_FLOATS)),
        "s": maybe(rng.choice(_WORDS)),
        "day": maybe(day),
        "at": maybe(at),
        "price": maybe(Decimal(rng.randrange(-500, 500)) / 100),
        "flag": maybe(rng.random() < 0.5),
        "place": maybe({"row": maybe(rng.randrange(5)), "name": maybe(rng.choice(_WORDS)), "later": maybe(number % 7)}),
        "tags": maybe([rng.choice(_WORDS) for _ in range(rng.randrange(3))]),
        "grown": maybe(rng.randrange(2**40)),
        "late": maybe(rng.randrange(100)),
    }


def _write(path: Path, rows: list[dict[str, Any]], *, is_old: bool, group: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = SCHEMA.remove(SCHEMA.get_field_index("hour"))
    if is_old:
        schema = schema.remove(schema.get_field_index("late"))
        place = pa.field("place", pa.struct([("row", pa.int64()), ("name", pa.string())]))
        schema = schema.set(schema.get_field_index("place"), place)
        schema = schema.set(schema.get_field_index("grown"), pa.field("grown", pa.int32()))
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, row_group_size=group)


def _add(
    folder: Path, path: str, rows: list[dict[str, Any]], hour: str | None, deleted: list[int], *, with_stats: bool
) -> dict[str, Any]:
    add: dict[str, Any] = {
        "path": path,
        "size": (folder / path).stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
        "partitionValues": {"hour": hour},
    }
    if with_stats or deleted:
        ids = [row["id"] for row in rows]
        bounds = {"minValues": {"id": min(ids)}, "maxValues": {"id": max(ids)}, "nullCount": {"id": 0}}
        add["stats"] = json.dumps({"numRecords": len(rows), "tightBounds": not deleted, **bounds})
    if deleted:
        vector = inline_vector(deleted)
        add["deletionVector"] = {
            "storageType": vector.storage_type,
            "pathOrInlineDv": vector.path_or_inline_dv,
            "sizeInBytes": vector.size_in_bytes,
            "cardinality": vector.cardinality,
        }
    return {"add": add}


def _protocol() -> dict[str, Any]:
    features = ["deletionVectors", "timestampNtz"]
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
    }


def _metadata(fields: list[dict[str, Any]], partitions: list[str]) -> dict[str, Any]:
    return {
        "metaData": {
            "id": "00000000-0000-0000-0000-000000000000",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(struct_type(*fields)),
            "partitionColumns": partitions,
            "configuration": {},
            "createdTime": 0,
        }
    }


def _commit(folder: Path, version: int, actions: list[dict[str, Any]]) -> None:
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))
