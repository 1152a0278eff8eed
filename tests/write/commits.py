"""Tables with real data files, written commit by commit through the transaction under test."""

from __future__ import annotations

import io
import json
import uuid
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import lazydelta
from lazydelta.protocol.actions import Add, Remove, Txn
from lazydelta.scan.scanner import LazyDeltaScanner
from lazydelta.scan.stream import FileStream
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import open_store
from lazydelta.write.create import create_table
from lazydelta.write.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from lazydelta.scan.file import DataFile
    from lazydelta.storage import Store

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string())])


def parquet(ids: Iterable[int]) -> bytes:
    """Return a data file with these rows."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(list(ids), pa.int64())}), sink)
    return sink.getvalue()


def put_file(store: Store, ids: Iterable[int], partition: str | None = "a", content: bytes | None = None) -> Add:
    """Put a data file in place and return the action that would add it."""
    rows = list(ids)
    data = parquet(rows) if content is None else content
    path = f"p={partition}/{uuid.uuid4().hex}.parquet"
    store.put(path, data)
    return Add(
        path=path,
        size=len(data),
        modification_time=1_700_000_000_000,
        partition_values={"p": partition},
        stats=json.dumps({"numRecords": len(rows)}),
    )


def new_table(place: str | Path, options: Mapping[str, str] | None = None, **keywords: Any) -> Store:
    """Create a table partitioned by ``p``."""
    create_table(place, SCHEMA, partition_by=["p"], storage_options=options, **keywords)
    return open_store(place, options)


def begin(store: Store, txn: Txn | None = None) -> Transaction:
    """Begin a transaction."""
    return Transaction.begin(TableHandle.of(store), operation="WRITE", parameters={"mode": "Append"}, txn=txn)


def append(store: Store, ids: Iterable[int], partition: str | None = "a", txn: Txn | None = None) -> CommitResult:
    """Append rows in one file."""
    transaction = begin(store, txn)
    transaction.add(put_file(store, ids, partition))
    return transaction.commit()


def files(store: Store) -> list[DataFile]:
    """Return the active files of the newest version."""
    return lazydelta.DeltaTable(store.uri, storage_options=store._settings.options).files().collect()


def files_of(transaction: Transaction) -> list[DataFile]:
    """Return the active files of the version that a transaction was begun at."""
    assert transaction.snapshot is not None
    return FileStream(LazyDeltaScanner(transaction.snapshot)).collect()


def rows(store: Store) -> list[int]:
    """Return the ids of the table's rows, sorted, as often as they occur."""
    table = lazydelta.DeltaTable(store.uri, storage_options=store._settings.options)
    return sorted(table.to_pyarrow_table(columns=["id"]).column("id").to_pylist())


def removal(file: DataFile) -> Remove:
    """Return the action that removes an active file."""
    return Remove(path=file.path, size=file.size, partition_values=file.partition_values)


def commit_lines(store: Store, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit as they were written."""
    text = bytes(store.get(f"_delta_log/{version:020}.json")).decode()
    return [msgspec.json.decode(line) for line in text.splitlines()]


def commit_info(store: Store, version: int) -> dict[str, Any]:
    """Return a commit's provenance, which is its first line."""
    info: dict[str, Any] = commit_lines(store, version)[0]["commitInfo"]
    return info


def versions(store: Store) -> list[int]:
    """Return the versions whose commits are in the log."""
    names = [info.path.rpartition("/")[2] for info in store.list("_delta_log")]
    return [int(name[:20]) for name in names if name.endswith(".json")]
