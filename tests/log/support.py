"""Small logs written by hand, and ways to watch how they are read."""

from __future__ import annotations

import json
import random
import re
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazydelta.storage import Request, Store, observe, open_store
from tests.oracle.checkpoints import CheckpointWriter, hint_for
from tests.oracle.replay import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

    from lazydelta.log.segment import LogSegment
    from lazydelta.storage import ObjectInfo

Json = dict[str, Any]

FIELDS = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
_OUR_SIDECAR = re.compile(r"_delta_log/_sidecars/v\d")
UUIDS = ("3a0d65cd-4056-49b8-937b-95f9e3ee90e5", "80a083e8-7026-4e79-81be-64bd76c43a11")


def protocol(*features: str) -> Json:
    """Return a protocol action; with features it is that of reader version 3."""
    if not features:
        return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    names = list(features)
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    return {"protocol": {**versions, "readerFeatures": names, "writerFeatures": names}}


def metadata(properties: dict[str, str] | None = None, *, fields: list[Json] | None = None) -> Json:
    """Return a metaData action of an unpartitioned table."""
    schema = json.dumps({"type": "struct", "fields": FIELDS if fields is None else fields})
    return {
        "metaData": {
            "id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": [],
            "configuration": properties or {},
            "createdTime": 1_770_000_000_000,
        }
    }


def add(path: str, *, size: int = 10, records: int = 1) -> Json:
    """Return an add action with statistics."""
    stats = {"numRecords": records, "minValues": {"id": 1}, "maxValues": {"id": 9}, "nullCount": {"id": 0}}
    return {
        "add": {
            "path": path,
            "size": size,
            "modificationTime": 1_770_000_000_000,
            "partitionValues": {},
            "dataChange": True,
            "stats": json.dumps(stats),
        }
    }


def remove(path: str) -> Json:
    """Return a remove action."""
    return {"remove": {"path": path, "deletionTimestamp": 1_770_000_000_000, "dataChange": True}}


def lines(*actions: Json) -> bytes:
    """Return actions as the content of a commit."""
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)


def name_of(version: int, suffix: str = "json") -> str:
    """Return the name of a log file of a version."""
    return f"{version:020}.{suffix}"


def part_name(version: int, part: int, parts: int) -> str:
    """Return the name of one part of a multi-part checkpoint."""
    return name_of(version, f"checkpoint.{part:010}.{parts:010}.parquet")


@dataclass(frozen=True)
class Log:
    """A table of which only the log exists; version 0 adds ``f0``, every later version ``v`` adds ``f{v}``."""

    root: Path

    @property
    def folder(self) -> Path:
        """The log's folder."""
        return self.root / "_delta_log"

    @property
    def store(self) -> Store:
        """A store at the table's root."""
        return open_store(self.root)

    def commit(self, version: int, *actions: Json, content: bytes | None = None) -> Path:
        """Write a commit: the given actions, else one that adds ``f{version}``."""
        if not actions:
            actions = (protocol(), metadata(), add("f0")) if version == 0 else (add(f"f{version}"),)
        return self.write(name_of(version), lines(*actions) if content is None else content)

    def commits(self, first: int, last: int) -> Log:
        """Write the plain commits of a range of versions."""
        for version in range(first, last + 1):
            self.commit(version)
        return self

    def write(self, name: str, content: bytes = b"{}") -> Path:
        """Write any file of the log."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def delete(self, *versions: int) -> None:
        """Delete commits."""
        for version in versions:
            (self.folder / name_of(version)).unlink()

    def writer(self, version: int, *, stats: str = "json", seed: int = 1) -> CheckpointWriter:
        """Return a writer of the checkpoint of ``version``, which needs every commit up to it."""
        writer = CheckpointWriter(self.folder, replay(self.folder, version), random.Random(seed))
        writer.stats = stats
        return writer

    def checkpoint(self, version: int, *, hint: bool = False) -> list[Path]:
        """Write a classic checkpoint, and the hint to it if asked."""
        writer = self.writer(version)
        paths = writer.classic()
        if hint:
            self.hint(**hint_for(writer.snapshot, paths))
        return paths

    def hint(self, **content: object) -> None:
        """Write ``_last_checkpoint``."""
        self.write("_last_checkpoint", json.dumps(content).encode())

    def checksum(self, version: int, **changes: object) -> Path:
        """Write the exact checksum of a version, with changes."""
        state = replay(self.folder, version)
        content: Json = {
            "tableSizeBytes": sum(each["size"] for each in state.files.values()),
            "numFiles": len(state.files),
            "numMetadata": 1,
            "numProtocol": 1,
            "metadata": state.metadata,
            "protocol": state.protocol,
        }
        return self.write(name_of(version, "crc"), json.dumps(content | changes).encode())

    def compaction(self, first: int, last: int) -> Path:
        """Write the compacted commits of a range in which nothing was removed."""
        actions: list[Json] = []
        for version in range(first, last + 1):
            text = (self.folder / name_of(version)).read_text(encoding="utf-8")
            actions += [json.loads(line) for line in text.splitlines()]
        return self.write(f"{first:020}.{last:020}.compacted.json", lines(*actions))

    def in_memory(self) -> str:
        """Copy the table to an object store in memory, where requests have ranges and pages; return its URI."""
        uri = f"memory://{uuid.uuid4().hex}/table"
        store = open_store(uri)
        for path in sorted(self.root.rglob("*")):
            if path.is_file():
                store.put(str(path.relative_to(self.root)), path.read_bytes())
        return uri


class Requests(list[Request]):
    """Requests in the order they were made."""

    def of(self, verb: str) -> list[str]:
        """Return the paths of all requests of one verb."""
        return [request.path for request in self if request.verb == verb]

    @property
    def gets(self) -> list[str]:
        """The names of the log's own files that were read; a path outside of the log is left whole.

        Whether a sidecar of ours is there is asked beside all this, and left out here.
        """
        return [path.removeprefix("_delta_log/") for path in self.of("GET") if not _OUR_SIDECAR.match(path)]

    @property
    def lists(self) -> int:
        """How many pages were listed."""
        return len(self.of("LIST"))

    def ranges(self, path: str) -> list[tuple[int, int]]:
        """Return the (start, end) of every read of an object; to its end is a large number."""
        return [
            (each.start or 0, (each.start or 0) + (1 << 62 if each.length is None else each.length))
            for each in self
            if each.verb == "GET" and each.path == path
        ]


@contextmanager
def requests() -> Iterator[Requests]:
    """Watch the requests of all stores."""
    seen = Requests()
    with observe(seen.append):
        yield seen


def paths(files: object) -> list[str]:
    """Return the sorted paths of files."""
    return sorted(each.path for each in files)  # type: ignore[attr-defined]  # anything iterable with paths


def versions(segment: LogSegment) -> list[int]:
    """Return the versions of a segment's commits."""
    return [each.version for each in segment.commits]


def spy_on_listings(monkeypatch: pytest.MonkeyPatch, store: Store, change: Callable[[int, str], bool]) -> list[str]:
    """Hide names from listings of this kind of store where ``change(number of the listing, name)`` says so.

    Returns the list of all names that listings have given out since.
    """
    kind = type(store)
    original = kind.list
    given: list[str] = []
    count = 0

    def spying(self: Store, folder: str, *, after: str = "") -> Iterator[ObjectInfo]:
        nonlocal count
        number, count = count, count + 1
        for info in original(self, folder, after=after):
            name = info.path.rpartition("/")[2]
            if not change(number, name):
                given.append(name)
                yield info

    monkeypatch.setattr(kind, "list", spying)
    return given
