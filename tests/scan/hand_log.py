"""Logs written action by action, requests watched while they are scanned, and the same table on any store."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lazydelta.storage import Request, bridge, observe, open_store
from tests.oracle.checkpoints import CheckpointWriter, hint_for
from tests.oracle.replay import Snapshot, canonical_path, commit_name, dv_id, replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from lazydelta.scan.file import DataFile
    from tests.oracle.replay import Json, Key

SIZE = 10
BUSY = ("lazydelta-read-ahead", "lazydelta-worker")
_COMMIT = re.compile(r"_delta_log/\d{20}\.json$")
_PATIENCE = 120


class HandLog:
    """A table's log, commit by commit; no data file exists."""

    def __init__(
        self,
        table: Path,
        columns: Mapping[str, Any] | None = None,
        *,
        partitions: Iterable[str] = (),
        features: Iterable[str] = (),
        configuration: Mapping[str, str] | None = None,
    ) -> None:
        self.table = table
        self.log = table / "_delta_log"
        self.log.mkdir(parents=True)
        self.version = -1
        self.columns = dict(columns or {"id": "long", "name": "string"})
        self.partitions = list(partitions)
        self.features = list(features)
        self.configuration = dict(configuration or {})

    def protocol(self) -> Json:
        """Return a protocol action that asks for this table's features."""
        if not self.features:
            return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
        lists = {"readerFeatures": self.features, "writerFeatures": self.features}
        return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **lists}}

    def metadata(self) -> Json:
        """Return a metaData action with the columns at this point."""
        fields = [_field(name, kind) for name, kind in self.columns.items()]
        return {
            "metaData": {
                "id": "hand",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": self.partitions,
                "configuration": self.configuration,
            }
        }

    def commit(self, *actions: Json) -> int:
        """Write the next version; the first one creates the table. Return its number."""
        self.version += 1
        created = [self.protocol(), self.metadata()] if self.version == 0 else []
        lines = [json.dumps(each) for each in (*created, *actions, {"commitInfo": {"operation": "WRITE"}})]
        (self.log / commit_name(self.version)).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return self.version

    def state(self) -> Snapshot:
        """Return the newest version by plain replay."""
        return replay(self.log)

    def checkpoint(self, *, parts: int = 1, hint: bool = True, stats: str = "json") -> list[Path]:
        """Write the checkpoint of the newest version."""
        snapshot = self.state()
        writer = CheckpointWriter(self.log, snapshot, random.Random(0))
        writer.stats = stats
        paths = writer.classic() if parts == 1 else writer.multipart(parts)
        if hint:
            content = hint_for(snapshot, paths, parts=None if parts == 1 else parts)
            (self.log / "_last_checkpoint").write_text(json.dumps(content))
        return paths

    def checksum(self, files: int | None = None) -> None:
        """Write the version checksum of the newest version; ``files`` saves counting them."""
        count = len(self.state().files) if files is None else files
        content = {
            "tableSizeBytes": count * SIZE,
            "numFiles": count,
            "numMetadata": 1,
            "numProtocol": 1,
            "metadata": self.metadata()["metaData"],
            "protocol": self.protocol()["protocol"],
        }
        (self.log / f"{self.version:020d}.crc").write_text(json.dumps(content), encoding="utf-8")


def _field(name: str, kind: Any) -> Json:
    if isinstance(kind, tuple):
        kind, physical, number = kind
        mapped = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
        return {"name": name, "type": kind, "nullable": True, "metadata": mapped}
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def add(
    path: str,
    *,
    ids: tuple[int, int] | None = None,
    records: int = 1,
    partition: Mapping[str, str | None] | None = None,
    vector: Json | None = None,
    stats: Json | None = None,
) -> Json:
    """Return an add action; ``ids`` is the range of the column ``id``."""
    if ids is not None:
        low, high = ids
        stats = {"minValues": {"id": low}, "maxValues": {"id": high}, "nullCount": {"id": 0}}
    action: Json = {
        "path": path,
        "partitionValues": dict(partition or {}),
        "size": SIZE,
        "modificationTime": 1_700_000_000_000,
        "dataChange": True,
    }
    if stats is not None:
        action["stats"] = json.dumps({"numRecords": records, **stats})
    if vector is not None:
        action["deletionVector"] = vector
    return {"add": action}


def remove(path: str, *, vector: Json | None = None) -> Json:
    """Return a remove action."""
    action: Json = {"path": path, "deletionTimestamp": 1_700_000_000_000, "dataChange": True}
    return {"remove": action | ({} if vector is None else {"deletionVector": vector})}


def vector(name: str, cardinality: int = 1) -> Json:
    """Return the descriptor of a deletion vector stored in a file."""
    return {"storageType": "u", "pathOrInlineDv": f"{name:a>20}", "sizeInBytes": 36, "cardinality": cardinality}


def paths(files: Iterable[DataFile]) -> list[str]:
    """Return the paths of files, in their order."""
    return [file.path for file in files]


def key(file: DataFile) -> Key:
    """Return the key of a file as the oracle writes it."""
    return canonical_path(file.path), dv_id({"deletionVector": file.deletion_vector})


def publish(table: Path, uri: str, storage_options: Mapping[str, str] | None = None) -> str:
    """Copy a table to another store and return its place there."""
    store = open_store(uri, storage_options)
    for file in sorted(table.rglob("*")):
        if file.is_file():
            store.put(file.relative_to(table).as_posix(), file.read_bytes())
    return uri


class Watch:
    """The requests that were made while it watched."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def count(self, text: str = "", *, verb: str = "GET") -> int:
        """Return how many requests of a verb named an object whose path holds ``text``."""
        return sum(each.verb == verb and text in each.path for each in list(self.requests))

    @property
    def commits(self) -> int:
        """How many reads of commits there were."""
        return sum(each.verb == "GET" and bool(_COMMIT.search(each.path)) for each in list(self.requests))

    def clear(self) -> None:
        """Forget what was seen so far."""
        self.requests.clear()

    def grows(self) -> list[Request]:
        """Wait until no thread is left that could make a request, and return those that were begun meanwhile.

        What had been handed to a thread just before may still be announced by it: one request a thread is left out.
        """
        before, busy = len(self.requests), len(read_ahead_threads())
        deadline = time.monotonic() + _PATIENCE
        while read_ahead_threads() or requests_under_way():
            assert time.monotonic() < deadline, "the scan goes on and on"
            time.sleep(0.001)
        return self.requests[before + busy :]


@contextmanager
def watching() -> Iterator[Watch]:
    """Watch every request of this process."""
    watch = Watch()
    with observe(watch.requests.append):
        yield watch


def requests_under_way() -> int:
    """Return how many requests are under way on the event loop of the stores."""
    loop = bridge._state.loop
    return 0 if loop is None else len(asyncio.all_tasks(loop.loop))


def read_ahead_threads() -> list[str]:
    """Return the names of the scan's own threads that live."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(BUSY)]
