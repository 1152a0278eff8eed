"""Tables with a past: every file and commit has the age that the test gives it, and the log tells all of it."""

from __future__ import annotations

import os
import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.oracle.checkpoints import CheckpointWriter
from tests.oracle.replay import commit_name, dv_id, read_commit
from tests.rows.files import z85
from tests.scan.hand_log import HandLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.oracle.replay import Json

__all__ = ["NOW", "OldTable", "data_files", "days", "milliseconds"]

NOW = datetime(2026, 3, 31, 12, tzinfo=UTC)


def days(number: float) -> datetime:
    """Return the timestamp so many days before NOW."""
    return NOW - timedelta(days=number)


def milliseconds(timestamp: datetime) -> int:
    """Return a timestamp as the log writes it."""
    return round(timestamp.timestamp() * 1000)


def data_files(root: Path) -> set[str]:
    """Return every file below a table's root but those of its log, by walking the disk."""
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and path.relative_to(root).parts[0] != "_delta_log"
    }


class _NoLuck(random.Random):
    """Lets a writer of checkpoints leave nothing out."""

    def random(self) -> float:
        return 0.0


class OldTable(HandLog):
    """A table whose data files exist, of a few bytes each; ``timestamps`` are the times of its commits."""

    def __init__(self, table: Path, **keywords: Any) -> None:
        super().__init__(table, {"id": "long", "_event_hour": "string"}, partitions=["_event_hour"], **keywords)
        self.timestamps: list[datetime] = []

    def put(self, path: str, age: float, content: bytes = b"data") -> str:
        """Put a file in place that is so many days old, and return its path as the log writes it."""
        place = self.table / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        self.set_age(path, age)
        return quote(path, safe="/=")

    def set_age(self, path: str, age: float) -> None:
        """Make a file or folder so many days old."""
        timestamp = days(age).timestamp()
        os.utime(self.table / path, (timestamp, timestamp))

    def put_vector(self, age: float, prefix: str = "", *, absolute: bool = False) -> tuple[Json, str]:
        """Put a file for a deletion vector in place; return the descriptor, and where the file is."""
        key = uuid.uuid4()
        path = f"{prefix}/deletion_vector_{key}.bin" if prefix else f"deletion_vector_{key}.bin"
        self.put(path, age)
        named = (self.table / path).as_uri() if absolute else prefix + z85(key.bytes)
        kind = "p" if absolute else "u"
        vector = {"storageType": kind, "pathOrInlineDv": named, "offset": 1, "sizeInBytes": 4, "cardinality": 1}
        return vector, path

    def add(self, path: str, vector: Json | None = None, hour: str | None = "h") -> Json:
        """Return the action that adds a file."""
        body = {"path": path, "partitionValues": {"_event_hour": hour}, "size": 4, "modificationTime": 1}
        return {"add": body | {"dataChange": True} | ({} if vector is None else {"deletionVector": vector})}

    def remove(self, path: str, age: float | None, vector: Json | None = None) -> Json:
        """Return the action that removes a file, so many days before NOW; None leaves the time out."""
        body: Json = {"path": path, "dataChange": True, "partitionValues": {"_event_hour": "h"}, "size": 4}
        body |= {} if age is None else {"deletionTimestamp": milliseconds(days(age))}
        return {"remove": body | ({} if vector is None else {"deletionVector": vector})}

    def commit_at(self, age: float, *actions: Json) -> int:
        """Write the next version, so many days before NOW."""
        version = self.commit(*actions)
        self.set_age(f"_delta_log/{commit_name(version)}", age)
        self.timestamps.append(days(age))
        return version

    def needed(self, cutoff: datetime) -> set[tuple[str, str | None]]:
        """Return the keys (logged path, vector id) that a version refers to that was the newest at ``cutoff`` or later.

        A plain replay of the commits, version by version.
        """
        active: dict[tuple[str, str | None], Json] = {}
        needed: set[tuple[str, str | None]] = set()
        for version in range(self.version + 1):
            actions = list(read_commit(self.log, version))
            for action in actions:
                if "remove" in action:
                    active.pop((action["remove"]["path"], dv_id(action["remove"])), None)
            for action in actions:
                if "add" in action:
                    active[action["add"]["path"], dv_id(action["add"])] = action["add"]
            if version == self.version or self.timestamps[version + 1] >= cutoff:
                needed |= set(active)
        return needed

    def write_checkpoint(self, kind: str = "classic", *, forget: Callable[[str], bool] = lambda _: False) -> None:
        """Write the checkpoint of the newest version with all its tombstones but for those of some paths."""
        state = self.state()
        state.tombstones = {key: each for key, each in state.tombstones.items() if not forget(key[0])}
        writer = CheckpointWriter(self.log, state, _NoLuck(0))
        writer.stats = "json"
        if kind == "multipart":
            writer.multipart(2)
        elif kind.startswith("v2"):
            writer.v2(main=kind.removeprefix("v2 "), sidecars=2)
        else:
            writer.classic()

    @classmethod
    def simple(cls, table: Path, *, configuration: Mapping[str, str] | None = None) -> OldTable:
        """Return a table of four files: active, removed long ago, removed lately, and never committed."""
        made = cls(table, configuration=configuration)
        names = {name: made.put(f"_event_hour=h/{name}.parquet", 30) for name in ("active", "gone", "lately")}
        made.put("_event_hour=h/orphan.parquet", 30)
        made.commit_at(30, *(made.add(path) for path in names.values()))
        made.commit_at(10, made.remove(names["gone"], 10))
        made.commit_at(3, made.remove(names["lately"], 3))
        return made
